//! What a suite holds, counted: the data card.
//!
//! Everything is computed from the tasks, so a card is as true as the suite; it says nothing of how
//! long anything took.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use temper_core::{
    Split, Task,
    task::{TestLists, Verifier},
};

/// The counts of one suite.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Card {
    /// Tasks.
    pub n_tasks: usize,
    /// Source groups.
    pub n_source_groups: usize,
    /// By split; only those that have tasks.
    pub splits: BTreeMap<Split, Part>,
    /// By project and version.
    pub projects: BTreeMap<String, Project>,
    /// Tasks by kind of bug; `unknown` where the source does not say.
    pub bugs: BTreeMap<String, usize>,
    /// Tasks by where the statement's words come from, for tasks that Temper made.
    pub statements: BTreeMap<String, usize>,
    /// Tasks by the rule that divided the tests, for tasks that Temper made.
    pub hidden_rules: BTreeMap<String, usize>,
    /// Tests that the tasks list, where they are listed by layer.
    pub tests: Tests,
    /// What wrong versions of the fixes say of the tests, over all audited tasks.
    pub mutation: Mutation,
}

/// One split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// Tasks.
    pub n_tasks: usize,
    /// Source groups.
    pub n_source_groups: usize,
    /// Projects.
    pub n_projects: usize,
}

/// One version of one project.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Project {
    /// SPDX expression; `None` where the source does not say.
    pub licence: Option<String>,
    /// Tasks.
    pub n_tasks: usize,
    /// Source groups.
    pub n_source_groups: usize,
}

/// Listed tests, summed over tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tests {
    /// Tasks whose failing tests are all hidden.
    pub n_tasks_without_public_failure: usize,
    /// Fail-to-pass tests that an agent can see.
    pub n_public_fail_to_pass: usize,
    /// Fail-to-pass tests that it cannot.
    pub n_hidden_fail_to_pass: usize,
    /// Pass-to-pass tests of both layers.
    pub n_pass_to_pass: usize,
}

/// Mutation audits, summed over tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mutation {
    /// Tasks with at least one wrong version that was run.
    pub n_audited_tasks: usize,
    /// Wrong versions that were run.
    pub n_mutants: usize,
    /// Noticed by public tests.
    pub n_killed_public: usize,
    /// Noticed by hidden tests alone.
    pub n_killed_hidden: usize,
    /// Noticed by neither and not known to be equivalent.
    pub n_survivors: usize,
    /// Tasks with such versions.
    pub n_tasks_with_survivors: usize,
    /// Hidden tests that were added because they alone notice some versions.
    pub n_added_tests: usize,
}

impl Card {
    /// Counts the tasks of a suite.
    pub fn of(tasks: &[Task]) -> Card {
        let mut card = Card {
            n_tasks: tasks.len(),
            ..Card::default()
        };
        let mut groups = BTreeSet::new();
        let mut split_groups: BTreeMap<Split, (BTreeSet<_>, BTreeSet<_>)> = BTreeMap::new();
        let mut project_groups: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
        for task in tasks {
            let group = &task.source_group;
            groups.insert(group);
            let (of_split, projects) = split_groups.entry(task.split).or_default();
            of_split.insert(group);
            projects.insert(&task.origin.project);
            card.splits.entry(task.split).or_default().n_tasks += 1;

            let name = match &task.origin.version {
                Some(version) => format!("{} {version}", task.origin.project),
                None => task.origin.project.clone(),
            };
            project_groups
                .entry(name.clone())
                .or_default()
                .insert(group);
            let project = card.projects.entry(name).or_default();
            project.n_tasks += 1;
            project.licence = project.licence.take().or(task.origin.licence.clone());

            let bug = task.origin.bug.as_deref().unwrap_or("unknown");
            *card.bugs.entry(bug.to_owned()).or_default() += 1;
            card.tests.add(&task.verifier);
            if let Some(construction) = &task.construction {
                let statement = construction.statement.clone();
                *card.statements.entry(statement).or_default() += 1;
                let rule = construction.hidden_rule.clone();
                *card.hidden_rules.entry(rule).or_default() += 1;
                if let Some(audit) = &construction.audit {
                    let mutation = &mut card.mutation;
                    mutation.n_audited_tasks += usize::from(audit.n_mutants > 0);
                    mutation.n_mutants += audit.n_mutants as usize;
                    mutation.n_killed_public += audit.n_killed_public as usize;
                    mutation.n_killed_hidden += audit.n_killed_hidden as usize;
                    mutation.n_survivors += audit.n_survivors() as usize;
                    mutation.n_tasks_with_survivors += usize::from(audit.n_survivors() > 0);
                    mutation.n_added_tests += audit.n_added_tests as usize;
                }
            }
        }
        card.n_source_groups = groups.len();
        for (split, (groups, projects)) in split_groups {
            let part = card.splits.entry(split).or_default();
            part.n_source_groups = groups.len();
            part.n_projects = projects.len();
        }
        for (name, groups) in project_groups {
            card.projects.entry(name).or_default().n_source_groups = groups.len();
        }
        card
    }

    /// The card as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "{} tasks from {} projects in {} source groups.\n\n",
            self.n_tasks,
            self.projects.len(),
            self.n_source_groups
        );
        text += "| split | tasks | source groups | projects |\n| --- | ---: | ---: | ---: |\n";
        for (split, part) in &self.splits {
            let split = format!("{split:?}").to_lowercase();
            text += &format!(
                "| {split} | {} | {} | {} |\n",
                part.n_tasks, part.n_source_groups, part.n_projects
            );
        }
        text += "\n| project | licence | tasks | source groups |\n| --- | --- | ---: | ---: |\n";
        for (name, project) in &self.projects {
            text += &format!(
                "| {} | {} | {} | {} |\n",
                cell(name),
                cell(project.licence.as_deref().unwrap_or("unknown")),
                project.n_tasks,
                project.n_source_groups
            );
        }
        text += &counts("bug", &self.bugs);
        if !self.statements.is_empty() {
            text += &counts("statement", &self.statements);
            text += &counts("rule of hidden tests", &self.hidden_rules);
        }
        let (tests, mutation) = (&self.tests, &self.mutation);
        text += &format!(
            "\nTests listed: {} public and {} hidden fail-to-pass, {} pass-to-pass; in {} tasks every failing test is hidden.\n",
            tests.n_public_fail_to_pass,
            tests.n_hidden_fail_to_pass,
            tests.n_pass_to_pass,
            tests.n_tasks_without_public_failure
        );
        if mutation.n_mutants > 0 {
            let killed = mutation.n_killed_public + mutation.n_killed_hidden;
            text += &format!(
                "\nMutation audit: {} wrong versions of the fixes of {} tasks were run; {} are noticed ({} by public tests, {} by hidden ones alone), a score of {:.3}. {} tasks accept some; {} tests were added to hidden ones for what they alone notice.\n",
                mutation.n_mutants,
                mutation.n_audited_tasks,
                killed,
                mutation.n_killed_public,
                mutation.n_killed_hidden,
                killed as f64 / mutation.n_mutants as f64,
                mutation.n_tasks_with_survivors,
                mutation.n_added_tests
            );
        }
        text
    }
}

impl Tests {
    fn add(&mut self, verifier: &Verifier) {
        let none = TestLists::default();
        let (public, hidden) = match verifier {
            Verifier::Pytest { public, hidden, .. } => (public, hidden),
            // The lists of a log verifier are all hidden from the agent.
            Verifier::Log { tests, .. } => (&none, tests),
            Verifier::Harbor { .. } => return,
        };
        self.n_tasks_without_public_failure += usize::from(public.fail_to_pass.is_empty());
        self.n_public_fail_to_pass += public.fail_to_pass.len();
        self.n_hidden_fail_to_pass += hidden.fail_to_pass.len();
        self.n_pass_to_pass += public.pass_to_pass.len() + hidden.pass_to_pass.len();
    }
}

fn counts(name: &str, counts: &BTreeMap<String, usize>) -> String {
    let mut text = format!("\n| {name} | tasks |\n| --- | ---: |\n");
    for (key, n) in counts {
        text += &format!("| {} | {n} |\n", cell(key));
    }
    text
}

/// Text of a task in a table: it may hold anything.
fn cell(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect::<String>()
        .replace('|', "\\|")
}
