//! A teacher that renders a task's known fix as a trajectory: look, reproduce, search, edit, test,
//! submit. Every command is really run, and what comes next depends on what it printed.
//!
//! It is no agent and never an arm of a comparison: it has the fix. But its trajectory holds
//! nothing that a fair solver lacks. It moves only along leads that the statement or an output
//! shows, it says only what was observed, it knows no hidden test, and it edits only lines that it
//! has opened. Where no visible lead goes to the fix within a bound, or the public tests do not
//! pass after the edit, it gives up and says so: [`GaveUp`].
//!
//! With [`FirstTry::Wrong`] it first makes an edit that does not help, sees the public tests fail,
//! and only then makes the right one.
//!
//! [`Procedure::Varied`] shows many ways to go; [`Procedure::Plain`] always goes the same one, which
//! a small model can learn.

mod edit;
mod goal;
mod plain;
mod script;
mod search;
mod visible;
mod words;
mod wrong;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{Message, PreparedTask, Role};

use self::{
    edit::{Edit, Style},
    goal::{Change, Goal},
    search::{Move, Search, View},
    visible::{Visible, reason, tests_passed},
    words::Choice,
};
use super::{reply, search::statement::Statement, submit};
use crate::model::{Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest};

/// Whether a demonstration goes wrong first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FirstTry {
    /// The first edit is the fix.
    #[default]
    Right,
    /// The first edit does not help, and the tests say so.
    Wrong,
}

/// How a demonstration goes about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Procedure {
    /// By any visible lead, with commands and words that vary.
    #[default]
    Varied,
    /// One procedure: which code the failing tests run, then edits that the tests judge.
    Plain,
    /// The same with a program that first tries small edits by itself.
    Search,
}

/// What a demonstration may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DemonstratorSettings {
    /// Whether it goes wrong first.
    pub first_try: FirstTry,
    /// How it goes about it.
    pub procedure: Procedure,
    /// Commands that may be spent on finding one place.
    pub most_searches: u32,
}

impl Default for DemonstratorSettings {
    fn default() -> Self {
        DemonstratorSettings {
            first_try: FirstTry::Right,
            procedure: Procedure::Varied,
            most_searches: 8,
        }
    }
}

/// Makes demonstrators.
#[derive(Clone, Debug, Default)]
pub struct DemonstratorFactory {
    /// What they may do.
    pub settings: DemonstratorSettings,
}

impl ModelFactory for DemonstratorFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "demonstrator",
            "language_model": false,
            "description": "renders the fix that the task comes with as an executed trajectory; \
                            not an agent",
            "version": VERSION,
            "settings": self.settings,
        })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, task: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        let refused = |message: String| ModelError {
            class: ModelErrorClass::BadRequest,
            message,
            attempts: Vec::new(),
        };
        let near = match self.settings.procedure {
            Procedure::Varied => goal::SAME_EDIT_LINES,
            Procedure::Plain | Procedure::Search => 0,
        };
        let goal = Goal::of(task, near).map_err(|error| refused(error.to_string()))?;
        let start = task.start_tree.as_deref();
        let sources = start.map(goal::sources).unwrap_or_default();
        if self.settings.procedure != Procedure::Varied {
            return Ok(Box::new(plain::Plain::new(
                goal,
                &sources,
                &self.settings,
                seed,
            )));
        }
        Ok(Box::new(Demonstrator::new(
            goal,
            sources,
            self.settings.clone(),
            seed,
        )))
    }
}

/// Counts changes of this module that change trajectories.
const VERSION: u32 = 2;

/// Why a demonstration ended without the fix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GaveUp {
    /// No visible lead goes to the place of the fix.
    NoLead,
    /// The public tests do not pass with the fix in place, or do not say.
    TestsFail,
    /// The wrong edit was not noticed by the public tests, or there is none to make.
    NoFailure,
    /// A command did not do what it should.
    Command,
}

impl GaveUp {
    const ALL: [GaveUp; 4] = [
        GaveUp::NoLead,
        GaveUp::TestsFail,
        GaveUp::NoFailure,
        GaveUp::Command,
    ];

    /// What is said in the last reply.
    fn text(self) -> &'static str {
        match self {
            GaveUp::NoLead => "I give up: nothing that I have seen leads to the cause.",
            GaveUp::TestsFail => "I give up: the public tests do not pass with my change.",
            GaveUp::NoFailure => "I give up: the public tests do not tell a wrong edit apart.",
            GaveUp::Command => "I give up: my last command did not do what it should.",
        }
    }

    /// Whether and why the demonstration behind a trajectory gave up, from its last reply.
    pub fn read(last_reply: &Message) -> Option<GaveUp> {
        let says = |reason: &GaveUp| last_reply.content.contains(reason.text());
        GaveUp::ALL.into_iter().find(says)
    }
}

/// What the last command was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    Opening,
    Search,
    Edit,
    WrongEdit,
    WrongTests,
    Diff,
    Tests,
    Script,
}

/// Steps before the search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    List,
    Tests,
    Script,
}

struct Demonstrator {
    goal: Goal,
    sources: BTreeMap<String, String>,
    settings: DemonstratorSettings,
    choice: Choice,
    search: Search,
    opening: Vec<Opening>,
    style: Style,
    shows_diff: bool,
    last: Last,
    /// Which change comes next.
    next: usize,
    n_searches: u32,
    /// The changed files as they are now.
    files: BTreeMap<String, Vec<String>>,
    /// How far earlier edits of the file moved what comes after.
    shift: isize,
    /// Lines that a wrong edit left in the place of the first change.
    wrong: Option<Vec<String>>,
    tests_ran: bool,
    script_ran: bool,
    is_checked: bool,
    script_checked: bool,
}

impl Demonstrator {
    fn new(
        goal: Goal,
        sources: BTreeMap<String, String>,
        settings: DemonstratorSettings,
        seed: u64,
    ) -> Self {
        let mut choice = Choice::new(seed);
        let style = Style::ALL[choice.below(Style::ALL.len())];
        let opening = match choice.below(6) {
            0 => vec![Opening::List, Opening::Tests],
            1 => vec![Opening::Tests],
            2 => vec![Opening::Script],
            3 => vec![Opening::List, Opening::Script],
            4 => vec![Opening::Tests, Opening::Script],
            _ => vec![],
        };
        // Line numbers cost tokens, and sed needs them.
        let search = Search::new(style == Style::Sed || choice.of_ten(3));
        let shows_diff = choice.of_ten(3);
        Demonstrator {
            files: goal.files.clone(),
            goal,
            sources,
            settings,
            search,
            opening,
            style,
            shows_diff,
            choice,
            last: Last::Nothing,
            next: 0,
            n_searches: 0,
            shift: 0,
            wrong: None,
            tests_ran: false,
            script_ran: false,
            is_checked: false,
            script_checked: false,
        }
    }

    fn answer(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        let visible = Visible::read(request.messages);
        let command = Statement::read(request.messages).test_command;
        match self.last {
            Last::Edit | Last::WrongEdit if !succeeded(request) => {
                return self.give_up(request, GaveUp::Command);
            }
            Last::WrongEdit => return self.test_wrong(request, command.as_deref()),
            Last::WrongTests => {
                if tests_passed(visible.last()) != Some(false) {
                    return self.give_up(request, GaveUp::NoFailure);
                }
                return self.edit(request, &visible);
            }
            Last::Tests if self.is_checked && tests_passed(visible.last()) != Some(true) => {
                return self.give_up(request, GaveUp::TestsFail);
            }
            _ => {}
        }
        while !self.opening.is_empty() {
            let step = self.opening.remove(0);
            if let Some(reply) = self.open(request, &visible, step, command.as_deref()) {
                return reply;
            }
        }
        if self.next < self.goal.changes.len() {
            return self.approach(request, &visible, command.as_deref());
        }
        self.conclude(request, &visible, command.as_deref())
    }

    /// One step before the search.
    fn open(
        &mut self,
        request: &ModelRequest<'_>,
        visible: &Visible,
        step: Opening,
        tests: Option<&str>,
    ) -> Option<ModelReply> {
        match step {
            Opening::List => {
                self.last = Last::Opening;
                let thought = words::list(&mut self.choice);
                let command = self.choice.of(&[
                    "ls",
                    "git ls-files | grep '\\.py$' | head -n 30",
                    "ls -p | head -n 30",
                    "find . -name '*.py' -not -path './.git/*' | sort | head -n 30",
                ]);
                Some(reply(request, &thought, command))
            }
            Opening::Tests => self.first_tests(request, tests?),
            Opening::Script => {
                let script = script::of_statement(&visible.statement)?;
                self.last = Last::Script;
                self.script_ran = true;
                let thought = words::first_script(&mut self.choice);
                Some(reply(request, &thought, &script))
            }
        }
    }

    fn first_tests(&mut self, request: &ModelRequest<'_>, tests: &str) -> Option<ModelReply> {
        if std::mem::replace(&mut self.tests_ran, true) {
            return None;
        }
        self.last = Last::Tests;
        let thought = words::first_tests(&mut self.choice);
        let lines = self.choice.between(10, 16);
        let command = match self.choice.below(3) {
            0 => format!("{tests} -x --tb=short 2>&1 | tail -n {lines} | cut -c1-160"),
            1 => format!("{tests} --tb=short 2>&1 | tail -n {lines}"),
            _ => format!("{tests} --tb=short 2>&1 | grep -v '^$' | tail -n {lines} | cut -c1-140"),
        };
        Some(reply(request, &thought, &command))
    }

    /// One more command of the search, or the edit once the place was seen.
    fn approach(
        &mut self,
        request: &ModelRequest<'_>,
        visible: &Visible,
        tests: Option<&str>,
    ) -> ModelReply {
        let change = &self.goal.changes[self.next];
        let view = View {
            visible,
            change,
            lines: &self.goal.files[&change.file],
            sources: &self.sources,
        };
        if self.search.reached(&view) {
            return match self.settings.first_try {
                FirstTry::Wrong if self.next == 0 && self.wrong.is_none() => {
                    self.edit_wrongly(request)
                }
                _ => self.edit(request, visible),
            };
        }
        if self.n_searches >= self.settings.most_searches {
            return self.give_up(request, GaveUp::NoLead);
        }
        self.n_searches += 1;
        if let Some(made) = self.search.next(&view, &mut self.choice) {
            return self.make(request, visible, &made);
        }
        // Nothing visible leads on, so more has to become visible.
        let more = if let (false, Some(tests)) = (self.tests_ran, tests) {
            self.first_tests(request, tests)
        } else if !self.script_ran {
            self.script_ran = true;
            self.open(request, visible, Opening::Script, tests)
        } else {
            None
        };
        more.unwrap_or_else(|| self.give_up(request, GaveUp::NoLead))
    }

    fn make(&mut self, request: &ModelRequest<'_>, visible: &Visible, made: &Move) -> ModelReply {
        self.last = Last::Search;
        self.search.made(made, visible.outputs.len());
        reply(request, &made.thought, &made.command)
    }

    /// The next change as an edit of the file as it is now.
    fn edit(&mut self, request: &ModelRequest<'_>, visible: &Visible) -> ModelReply {
        let change = self.goal.changes[self.next].clone();
        let after_wrong = self.wrong.take();
        let n_old = after_wrong.as_ref().map_or(change.old.len(), Vec::len);
        let first = self.position(&change);
        let lines = self.files[&change.file].clone();
        let edit = Edit {
            file: &change.file,
            lines: &lines,
            first,
            n_old,
            new: &change.new,
        };
        let Some(command) = edit.command(self.style, tool(request)) else {
            return self.give_up(request, GaveUp::Command);
        };
        let (what, place) = (edit::what(&edit, &mut self.choice), edit::place(&edit));
        let thought = if after_wrong.is_some() {
            let why = reason(visible.last()).filter(|why| why.len() < 120 && !why.contains('`'));
            words::recover(&mut self.choice, why, &what, &place)
        } else if self.next > 0 {
            words::next_edit(&mut self.choice, &what, &place)
        } else {
            words::edit(&mut self.choice, &what, &place)
        };
        self.files.insert(change.file.clone(), edit.after());
        self.next += 1;
        let same_file = |next: &Change| next.file == change.file;
        self.shift = if self.goal.changes.get(self.next).is_some_and(same_file) {
            self.shift + change.new.len() as isize - change.old.len() as isize
        } else {
            0
        };
        self.n_searches = 0;
        self.last = Last::Edit;
        reply(request, &thought, &command)
    }

    fn edit_wrongly(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        let change = self.goal.changes[self.next].clone();
        let Some(new) = wrong::lines(&change.old, &change.new, &mut self.choice) else {
            return self.give_up(request, GaveUp::NoFailure);
        };
        let lines = self.files[&change.file].clone();
        let edit = Edit {
            file: &change.file,
            lines: &lines,
            first: change.first,
            n_old: change.old.len(),
            new: &new,
        };
        let Some(command) = edit.command(self.style, tool(request)) else {
            return self.give_up(request, GaveUp::Command);
        };
        let thought = words::guess(&mut self.choice, &edit::place(&edit));
        self.files.insert(change.file.clone(), edit.after());
        self.wrong = Some(new);
        self.last = Last::WrongEdit;
        reply(request, &thought, &command)
    }

    fn test_wrong(&mut self, request: &ModelRequest<'_>, tests: Option<&str>) -> ModelReply {
        let Some(tests) = tests else {
            return self.give_up(request, GaveUp::NoFailure);
        };
        self.last = Last::WrongTests;
        let thought = words::check(&mut self.choice);
        let command = format!("{tests} -x --tb=short 2>&1 | tail -n 12 | cut -c1-160");
        reply(request, &thought, &command)
    }

    /// Where a change is now.
    fn position(&self, change: &Change) -> usize {
        change.first.saturating_add_signed(self.shift)
    }

    /// The fix is in place: look at it, test it, submit it.
    fn conclude(
        &mut self,
        request: &ModelRequest<'_>,
        visible: &Visible,
        tests: Option<&str>,
    ) -> ModelReply {
        if std::mem::take(&mut self.shows_diff) {
            self.last = Last::Diff;
            let thought = words::diff(&mut self.choice);
            return reply(request, &thought, "git diff -U1 | tail -n +5");
        }
        if self.script_ran
            && !std::mem::replace(&mut self.script_checked, true)
            && let Some(script) = script::of_statement(&visible.statement)
        {
            self.last = Last::Script;
            let thought = words::check_script(&mut self.choice);
            return reply(request, &thought, &script);
        }
        match tests {
            Some(tests) if !self.is_checked => {
                self.is_checked = true;
                self.last = Last::Tests;
                let thought = words::check(&mut self.choice);
                let command = match self.choice.below(3) {
                    0 => format!("{tests} 2>&1 | tail -n 3"),
                    1 => format!("{tests} 2>&1 | tail -n 5"),
                    _ => format!("{tests} --tb=line 2>&1 | tail -n 4"),
                };
                reply(request, &thought, &command)
            }
            Some(_) => {
                let thought = words::submit(&mut self.choice);
                submit_as_told(request, &thought)
            }
            None => {
                let thought = words::submit_untested(&mut self.choice);
                submit_as_told(request, &thought)
            }
        }
    }

    fn give_up(&mut self, request: &ModelRequest<'_>, why: GaveUp) -> ModelReply {
        self.last = Last::Nothing;
        submit_as_told(request, why.text())
    }
}

impl Model for Demonstrator {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        Ok(self.answer(request))
    }
}

/// Submits by the very command that the prompt names, where it names one on a line of its own.
fn submit_as_told(request: &ModelRequest<'_>, thought: &str) -> ModelReply {
    let told = request
        .messages
        .iter()
        .take_while(|message| message.role != Role::Assistant)
        .flat_map(|message| message.content.lines())
        .map(str::trim)
        .filter(|line| {
            line.starts_with("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
                || line.starts_with("echo MINI_SWE_AGENT_FINAL_OUTPUT")
        })
        .last();
    match told {
        Some(command) => reply(request, thought, command),
        None => submit(request, thought),
    }
}

/// The edit tool as the prompt calls it.
fn tool(request: &ModelRequest<'_>) -> &'static str {
    let calls_python = |message: &Message| message.content.contains("python edit_via_str_replace");
    if request.messages.iter().take(2).any(calls_python) {
        "python edit_via_str_replace"
    } else {
        "edit_via_str_replace"
    }
}

/// Whether the loop reports the exit code 0 for the last command.
fn succeeded(request: &ModelRequest<'_>) -> bool {
    let last = request
        .messages
        .last()
        .map_or("", |message| &message.content);
    let code = last.split_once("<returncode>").map(|(_, rest)| rest);
    code.is_some_and(|rest| rest.starts_with("0</returncode>"))
}
