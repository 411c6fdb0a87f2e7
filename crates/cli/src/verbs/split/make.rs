//! `temper split make`: divides a suite and freezes it, or adds to what is frozen.

use std::collections::BTreeSet;

use serde::Serialize;
use temper_core::{Digest, Split, TaskId};
use temper_report::table::{Align, Table};
use temper_tasks::isolation::{
    Extension, LinkRule, Refused, SplitManifest, SplitRule, extend, split,
};

use super::args::MakeArgs;
use crate::{error::CliError, exit_code, output, places::Places, tasks};

#[derive(Serialize)]
struct Made {
    manifest: String,
    digest: Digest,
    splits: Vec<Size>,
    n_added: usize,
    refused: Vec<Refused>,
}

#[derive(Serialize)]
struct Size {
    split: Split,
    n_tasks: usize,
    n_groups: usize,
    n_projects: usize,
}

/// Makes or extends; exit code [`exit_code::FINDINGS`] when a task was refused.
pub fn run(args: &MakeArgs, places: &Places) -> Result<u8, CliError> {
    let (suite, path) = super::locate(&args.place, places)?;
    let tasks = super::load(&suite)?;
    let old = match path.exists() {
        true => Some(SplitManifest::read(&path).map_err(tasks::input_error)?),
        false => None,
    };
    let rule = match &old {
        Some(old) if asks_for_a_rule(args) => {
            return Err(CliError::new(
                exit_code::USAGE,
                format!(
                    "divide the suite by other rules: {} is frozen with {}:{}:{} and seed {}",
                    path.display(),
                    old.rule.fractions.train,
                    old.rule.fractions.dev,
                    old.rule.fractions.test,
                    old.rule.seed
                ),
            )
            .hint("leave the flags out to add new tasks; another division of these tasks is another file (--manifest)"));
        }
        Some(old) if old.computed_digest() != old.digest => {
            return Err(CliError::new(
                exit_code::INPUT,
                format!(
                    "add to {}: it was edited since it was frozen",
                    path.display()
                ),
            )
            .hint(
                "`temper split verify` says what is wrong; take the file from where it was kept",
            ));
        }
        Some(old) => old.rule.clone(),
        None => rule(args)?,
    };
    let evidence = super::evidence(&suite, &tasks, &rule.links, places)?;
    let extension = match &old {
        Some(old) => extend(old, &evidence),
        None => split(&evidence, &rule).map(|manifest| Extension {
            added: manifest.tasks.iter().map(|task| task.id.clone()).collect(),
            manifest,
            refused: Vec::new(),
        }),
    }
    .map_err(super::split_error)?;
    let manifest = &extension.manifest;
    manifest.write(&path).map_err(tasks::input_error)?;

    let projects: std::collections::BTreeMap<&TaskId, &str> = evidence
        .iter()
        .map(|task| (&task.id, task.project.as_str()))
        .collect();
    let size = |split: Split| {
        let tasks: Vec<_> = manifest
            .tasks
            .iter()
            .filter(|task| task.split == split)
            .collect();
        Size {
            split,
            n_tasks: tasks.len(),
            n_groups: tasks
                .iter()
                .map(|task| &task.group)
                .collect::<BTreeSet<_>>()
                .len(),
            n_projects: tasks
                .iter()
                .filter_map(|task| projects.get(&task.id))
                .collect::<BTreeSet<_>>()
                .len(),
        }
    };
    let made = Made {
        manifest: path.display().to_string(),
        digest: manifest.digest.clone(),
        splits: [Split::Train, Split::Dev, Split::Test].map(size).into(),
        n_added: extension.added.len(),
        refused: extension.refused,
    };
    output::data(&args.format.format.one(&made, || table(&made)));
    Ok(if made.refused.is_empty() {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}

fn asks_for_a_rule(args: &MakeArgs) -> bool {
    args.fractions.is_some()
        || args.seed.is_some()
        || !args.hold_out.is_empty()
        || args.granularity.is_some()
        || args.declared
        || args.patches_only
}

fn rule(args: &MakeArgs) -> Result<SplitRule, CliError> {
    let mut rule = SplitRule {
        seed: args.seed.unwrap_or_default(),
        fractions: args.fractions.unwrap_or_default(),
        links: LinkRule {
            granularity: args.granularity.map(Into::into).unwrap_or_default(),
            declared: args.declared,
            sources: !args.patches_only,
            ..LinkRule::default()
        },
        ..SplitRule::default()
    };
    for pair in &args.hold_out {
        let split = match pair.rsplit_once('=') {
            Some((project, "train")) => Some((project, Split::Train)),
            Some((project, "dev")) => Some((project, Split::Dev)),
            Some((project, "test")) => Some((project, Split::Test)),
            _ => None,
        };
        let (project, split) = split.ok_or_else(|| {
            CliError::new(
                exit_code::USAGE,
                format!("hold out {pair:?}: expected PROJECT=train, PROJECT=dev or PROJECT=test"),
            )
        })?;
        rule.hold_out.insert(project.to_owned(), split);
    }
    Ok(rule)
}

fn table(made: &Made) -> String {
    let mut table = Table::new(&[
        ("split", Align::Left),
        ("tasks", Align::Right),
        ("source groups", Align::Right),
        ("projects", Align::Right),
    ]);
    for size in &made.splits {
        table.row([
            format!("{:?}", size.split).to_lowercase(),
            size.n_tasks.to_string(),
            size.n_groups.to_string(),
            size.n_projects.to_string(),
        ]);
    }
    let mut text = format!("{table}\n{} tasks added\n", made.n_added);
    if !made.refused.is_empty() {
        text.push_str(&format!(
            "{} tasks refused, since they would join splits:\n",
            made.refused.len()
        ));
    }
    for refused in &made.refused {
        text.push_str(&format!("  {}\n", refused.id));
        for link in &refused.because {
            let split = format!("{:?}", link.split).to_lowercase();
            let task = link.task.as_ref().map_or("held out", |id| id.as_str());
            let reason = link
                .reason
                .as_ref()
                .map_or(String::new(), |reason| format!(": {reason}"));
            text.push_str(&output::printable(&format!("    {split} {task}{reason}\n")));
        }
    }
    text.push_str(&format!("{}\n", made.manifest));
    text
}
