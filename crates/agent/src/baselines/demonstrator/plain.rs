//! A demonstration by one procedure that never varies: see which code the failing tests run, change
//! one place, run the tests, and take the change back when they fail.
//!
//! The varied demonstrations take whichever visible lead goes to the fix, which nobody without the
//! fix can foresee. Here the first command is a function of the statement alone, and shows code in
//! the order of suspicion; only the edit needs to be known. What is to be learned is then which of
//! the lines shown is at fault and what should stand there, and trying again. Places are named by
//! their text and never by a number: a small model copies a line that it saw, and misreads where it
//! stood.
//!
//! With [`Procedure::Search`] the program of the first command tries small edits of its own, in the
//! order of suspicion, with the failing tests as the judge, and keeps the first with which all tests
//! pass. Such a fix needs no knowledge at all; only where the search finds none is the known fix
//! shown.
//!
//! The suspicion is the Ochiai coefficient of lines over the public tests (Abreu et al. 2007), as
//! in the search baseline; a function counts as its most suspicious line.

use std::collections::BTreeMap;

use super::{
    DemonstratorSettings, FirstTry, GaveUp, Procedure,
    edit::{Edit, Style},
    goal::Goal,
    submit_as_told, succeeded, tool,
    visible::Visible,
    words::Choice,
    wrong,
};
use crate::{
    baselines::{mend, reply},
    model::{Model, ModelError, ModelReply, ModelRequest},
};

/// The program of the first command where no edits are tried. Like [`mend::PROGRAM`] it prints less
/// than what a profile shortens, and leaves the tests that failed and passed in `/tmp/t`.
const SUSPECTS: &str = include_str!("suspects.py");
/// Edits that do not help, at most.
const MOST_WRONG: usize = 3;
/// Places of one edit.
const MOST_PLACES: usize = 3;
/// A line shorter than this is no place to begin.
const MIN_LINE: usize = 6;

/// Lines of a file as they are at the start that are replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Replacement {
    file: String,
    /// The first line that goes, from 1; for an insertion the line before which the new ones are
    /// put.
    first: usize,
    n_old: usize,
    new: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    Suspects,
    Wrong,
    Right,
    TakenBack(GaveUp),
}

/// A demonstration under way.
pub(super) struct Plain {
    fix: Vec<Replacement>,
    /// The Python files at the start, as lines.
    files: BTreeMap<String, Vec<String>>,
    choice: Choice,
    /// Wrong edits still to be made.
    n_wrong: usize,
    /// Whether its program tries edits first.
    searches: bool,
    last: Last,
    shown: Vec<Section>,
}

impl Plain {
    /// Begins one that goes wrong first, some times, or never.
    pub(super) fn new(
        goal: Goal,
        sources: &BTreeMap<String, String>,
        settings: &DemonstratorSettings,
        seed: u64,
    ) -> Self {
        let mut choice = Choice::new(seed);
        let procedure = settings.procedure;
        let n_wrong = if settings.first_try == FirstTry::Wrong {
            choice.between(1, MOST_WRONG)
        } else {
            0
        };
        let lines = |text: &String| text.lines().map(str::to_owned).collect();
        let mut files: BTreeMap<String, Vec<String>> = sources
            .iter()
            .map(|(path, text)| (path.clone(), lines(text)))
            .collect();
        files.extend(goal.files);
        let fix = goal.changes.iter().map(|change| Replacement {
            file: change.file.clone(),
            first: change.first,
            n_old: change.old.len(),
            new: change.new.clone(),
        });
        Plain {
            searches: procedure == Procedure::Search,
            fix: fix.collect(),
            files,
            choice,
            n_wrong,
            last: Last::Nothing,
            shown: Vec::new(),
        }
    }

    fn answer(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        let visible = Visible::read(request.messages);
        match self.last {
            Last::Nothing => {
                self.last = Last::Suspects;
                let (thought, program) = if self.searches {
                    (
                        "I run the public tests and try small edits of the code that failing ones run.",
                        mend::PROGRAM,
                    )
                } else {
                    (
                        "I run the public tests and look at the code that failing ones run.",
                        SUSPECTS,
                    )
                };
                return match mend::command(request.messages, program) {
                    Some(command) => reply(request, thought, &command),
                    None => submit_as_told(request, GaveUp::NoLead.text()),
                };
            }
            Last::Suspects if mend::found(visible.last()) => {
                self.last = Last::Right;
                return reply(
                    request,
                    "An edit passes the tests. I run them once more.",
                    mend::TESTS,
                );
            }
            Last::Suspects => self.shown = sections(visible.last()),
            Last::Wrong if succeeded(request) => return self.give_up(request, GaveUp::NoFailure),
            Last::Wrong => {}
            Last::Right if succeeded(request) => {
                return submit_as_told(request, "The tests pass. I submit.");
            }
            Last::Right => return self.give_up(request, GaveUp::TestsFail),
            Last::TakenBack(why) => return submit_as_told(request, why.text()),
        }
        let Some(right) = self.attempt(&self.fix, tool(request)) else {
            return self.give_up(request, GaveUp::NoLead);
        };
        let begin = match self.last {
            Last::Wrong => "That did not help. ",
            _ => "",
        };
        let attempt = if self.n_wrong > 0 {
            self.n_wrong -= 1;
            self.last = Last::Wrong;
            match self.wrong(tool(request), &right) {
                Some(wrong) => wrong,
                None => return self.give_up(request, GaveUp::NoFailure),
            }
        } else {
            self.last = Last::Right;
            right
        };
        reply(
            request,
            &format!("{begin}{}", attempt.thought),
            &attempt.command,
        )
    }

    /// Leaves nothing behind, so that what gave up is never taken for a solution.
    fn give_up(&mut self, request: &ModelRequest<'_>, why: GaveUp) -> ModelReply {
        self.last = Last::TakenBack(why);
        reply(request, "I take my change back.", "git checkout -q .")
    }

    /// The edit of a few places as one command that takes back whatever was changed before, if all
    /// that it names was shown.
    fn attempt(&self, places: &[Replacement], tool: &str) -> Option<Attempt> {
        if places.is_empty() || places.len() > MOST_PLACES {
            return None;
        }
        let mut files = self.files.clone();
        let mut command = "git checkout -q . && ".to_owned();
        let mut functions: Vec<String> = Vec::new();
        // From the last place of a file to its first, so that earlier line numbers hold.
        for place in places.iter().rev() {
            let lines = files.get(&place.file)?;
            let edit = Edit {
                file: &place.file,
                lines,
                first: place.first,
                n_old: place.n_old,
                new: &place.new,
            };
            let old = edit.unique_old()?.join("\n");
            let section = self
                .shown
                .iter()
                .find(|section| section.file == place.file && section.holds(&old))?;
            let function = format!("`{}` of {}", section.function, section.file);
            if !functions.contains(&function) {
                functions.push(function);
            }
            command += &edit.in_style(Style::Replace, tool)?;
            command += " > /dev/null && ";
            let after = edit.after();
            files.insert(place.file.clone(), after);
        }
        command += mend::TESTS;
        (!command.contains("```")).then(|| Attempt {
            thought: format!("The fault may be in {}.", functions.join(" and ")),
            command,
        })
    }

    /// An edit that does not help: of some line that was shown, now and then of the right one.
    fn wrong(&mut self, tool: &str, right: &Attempt) -> Option<Attempt> {
        let place = self.fix[self.choice.below(self.fix.len())].clone();
        let old = &self.files.get(&place.file)?[place.first - 1..place.first - 1 + place.n_old];
        let mut found: Vec<Replacement> = Vec::new();
        if self.choice.of_ten(3)
            && let Some(new) = wrong::lines(old, &place.new, &mut self.choice)
        {
            found.push(Replacement { new, ..place });
        } else {
            for section in &self.shown {
                found.extend(self.turned(section));
            }
        }
        while !found.is_empty() {
            let place = found.swap_remove(self.choice.below(found.len()));
            let attempt = self.attempt(std::slice::from_ref(&place), tool);
            if let Some(attempt) = attempt.filter(|attempt| attempt.command != right.command) {
                return Some(attempt);
            }
        }
        None
    }

    /// Edits of one line of a function that was shown.
    fn turned(&self, section: &Section) -> Vec<Replacement> {
        let Some(lines) = self.files.get(&section.file) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for line in section.text.lines().skip(1) {
            let mut same = lines.iter().enumerate().filter(|(_, other)| *other == line);
            if let (Some((at, _)), None) = (same.next(), same.next())
                && line.trim().len() >= MIN_LINE
            {
                found.extend(wrong::turned(line).into_iter().map(|new| Replacement {
                    file: section.file.clone(),
                    first: at + 1,
                    n_old: 1,
                    new: vec![new],
                }));
            }
        }
        found
    }
}

impl Model for Plain {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        Ok(self.answer(request))
    }
}

struct Attempt {
    thought: String,
    command: String,
}

/// A function that the first command printed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Section {
    file: String,
    function: String,
    text: String,
}

impl Section {
    /// Whether whole lines of it are these.
    fn holds(&self, lines: &str) -> bool {
        format!("\n{}\n", self.text).contains(&format!("\n{lines}\n"))
    }
}

fn sections(output: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for row in output.lines() {
        let head = row
            .strip_prefix("== ")
            .and_then(|head| head.split_once(' '));
        if let Some((file, function)) = head {
            sections.push(Section {
                file: file.to_owned(),
                function: function.to_owned(),
                text: String::new(),
            });
        } else if let Some(section) = sections.last_mut() {
            if !section.text.is_empty() {
                section.text.push('\n');
            }
            section.text.push_str(row);
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHOWN: &str = "1 failed 1 passed\n== m.py f\ndef f(a):\n    x = a\n    return x\n== n.py g\ndef g():\n    pass";

    fn plain(first: usize, n_old: usize, new: &[&str]) -> Plain {
        let file = "def f(a):\n    x = a\n    return x\n\ndef h(a):\n    x = a\n    return None\n";
        let mut plain = Plain::new(
            Goal::default(),
            &[("m.py".to_owned(), file.to_owned())].into(),
            &DemonstratorSettings::default(),
            0,
        );
        plain.shown = sections(SHOWN);
        plain.fix.push(Replacement {
            file: "m.py".to_owned(),
            first,
            n_old,
            new: new.iter().map(|line| (*line).to_owned()).collect(),
        });
        plain
    }

    #[test]
    fn only_what_was_shown_is_edited() {
        let right = plain(3, 1, &["    return -x"]);
        let attempt = right.attempt(&right.fix, "tool").unwrap();
        assert_eq!(attempt.thought, "The fault may be in `f` of m.py.");
        assert_eq!(
            attempt.command,
            format!(
                "git checkout -q . && old=$(cat <<'OLD'\n    return x\nOLD\n) && new=$(cat <<'NEW'\n    \
                 return -x\nNEW\n) && tool m.py -- \"$old\" \"$new\" > /dev/null && {}",
                mend::TESTS
            )
        );
        // A line that is there twice is told by its neighbour.
        let twice = plain(2, 1, &["    x = -a"]);
        let attempt = twice.attempt(&twice.fix, "tool").unwrap();
        assert!(
            attempt.command.contains("def f(a):\n    x = -a\nNEW"),
            "{}",
            attempt.command
        );
        let hidden = plain(7, 1, &["    return x"]);
        assert!(hidden.attempt(&hidden.fix, "tool").is_none());
        assert!(right.attempt(&[], "tool").is_none());
    }

    #[test]
    fn wrong_edits_are_of_lines_that_were_shown_and_not_the_fix() {
        for seed in 0..20 {
            let mut plain = plain(3, 1, &["    return -x"]);
            plain.choice = Choice::new(seed);
            let right = plain.attempt(&plain.fix, "tool").unwrap();
            if let Some(wrong) = plain.wrong("tool", &right) {
                assert_ne!(wrong.command, right.command);
                assert!(wrong.thought.contains("`f` of m.py"));
            }
        }
    }

    #[test]
    fn functions_are_told_apart() {
        let shown = sections(SHOWN);
        assert_eq!(shown.len(), 2);
        assert_eq!(
            (shown[1].file.as_str(), shown[1].function.as_str()),
            ("n.py", "g")
        );
        assert!(shown[0].holds("    x = a\n    return x") && !shown[0].holds("x = a"));
        assert!(!shown[1].holds("    x = a"));
    }
}
