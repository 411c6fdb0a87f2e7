//! Search-based program repair: a classical, deterministic program in the place of the model.
//!
//! It sees what any agent sees, the conversation, and nothing else: it is opened with a seed
//! alone. It runs the public tests, traces them, ranks lines by the Ochiai coefficient, tries
//! small edits of the suspicious lines in order of suspiciousness times a prior of the operator,
//! and submits the best edit that makes the public tests pass. The Python programs that do the
//! work inside the sandbox lie in `search/` and are delivered by one command, so that the
//! trajectory holds everything that was run.
//!
//! In the line of GenProg (Le Goues et al. 2012: reuse of statements), Kali (Qi et al. 2015:
//! removal), PraPR (Ghanbari et al. 2019: mutation operators tried by code exchange in a loaded
//! program) and spectrum-based localisation (Abreu et al. 2007). Unlike GenProg it does not evolve
//! a population: it enumerates single edits, best first, which is repeatable.
//!
//! It does not read the statement as language: words of the statement only raise the rank of
//! functions that it names.

pub(super) mod statement;

use serde::{Deserialize, Serialize};
use temper_core::{Message, PreparedTask};

use super::{reply, submit};
use crate::model::{Model, ModelError, ModelFactory, ModelReply, ModelRequest};
use statement::Statement;

/// How long the search may go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchSettings {
    /// Processor time of the search, which unlike wall time is the same on a busy machine.
    pub processor_seconds: u64,
    /// How many candidate edits are tried at most. Mostly reached before the processor
    /// time, so that a result can be repeated.
    pub max_candidates: u32,
    /// Wall time of one command of the search; it has to stay below the profile's limit.
    pub batch_seconds: u64,
    /// Wall time of running the tests under the tracer.
    pub trace_seconds: u64,
}

impl Default for SearchSettings {
    fn default() -> Self {
        SearchSettings {
            processor_seconds: 3,
            max_candidates: 250,
            batch_seconds: 15,
            trace_seconds: 6,
        }
    }
}

/// Makes search-based repair agents.
#[derive(Clone, Debug, Default)]
pub struct SearchFactory {
    /// Limits of the search.
    pub settings: SearchSettings,
}

/// The programs, in the order in which they build on each other.
const PROGRAMS: [(&str, &str); 6] = [
    ("source.py", include_str!("search/source.py")),
    ("hints.py", include_str!("search/hints.py")),
    ("expressions.py", include_str!("search/expressions.py")),
    ("statements.py", include_str!("search/statements.py")),
    ("running.py", include_str!("search/running.py")),
    ("repair.py", include_str!("search/repair.py")),
];

/// Where they are laid, outside the work tree.
const HOME: &str = "${TMPDIR:-/tmp}/search-repair";

/// How often an edit may turn out wrong when the tests are run for real.
const MOST_REJECTIONS: u32 = 5;

/// Ends a heredoc; no program contains it as a line.
const HEREDOC_END: &str = "END_OF_PROGRAM";

impl ModelFactory for SearchFactory {
    fn describe(&self) -> serde_json::Value {
        let programs: Vec<u8> = PROGRAMS.iter().flat_map(|(_, text)| text.bytes()).collect();
        serde_json::json!({
            "kind": "search",
            "language_model": false,
            "description": "search-based program repair: Ochiai localisation and single edits, \
                            tried against the public tests; not a language model",
            "settings": self.settings,
            "programs": temper_core::Digest::of(&programs),
        })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, _task: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(SearchModel::new(self.settings.clone(), seed)))
    }
}

/// The agent of one trial: a state machine over the observations.
pub struct SearchModel {
    settings: SearchSettings,
    seed: u64,
    stage: Stage,
    command: String,
    failed: Vec<String>,
    n_rejected: u32,
}

/// What the last command was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Opening,
    FirstTests,
    FirstDelivery,
    SecondDelivery,
    Localisation,
    Search,
    Trial,
    Withdrawal,
    Submission,
}

impl SearchModel {
    /// An agent with its settings and its seed, which orders candidates of equal rank.
    pub fn new(settings: SearchSettings, seed: u64) -> Self {
        SearchModel {
            settings,
            seed,
            stage: Stage::Opening,
            command: String::new(),
            failed: Vec::new(),
            n_rejected: 0,
        }
    }

    fn go(
        &mut self,
        stage: Stage,
        request: &ModelRequest<'_>,
        thought: &str,
        command: &str,
    ) -> ModelReply {
        self.stage = stage;
        reply(request, thought, command)
    }

    fn finish(&mut self, request: &ModelRequest<'_>, thought: &str) -> ModelReply {
        self.stage = Stage::Submission;
        submit(request, thought)
    }

    fn open(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        let Some(command) = Statement::read(request.messages).test_command else {
            return self.finish(
                request,
                "The task names no public tests that I could run, and without tests I cannot \
                 tell a repair from a change. I submit no change.",
            );
        };
        self.command = command;
        let tests = self.tests();
        self.go(
            Stage::FirstTests,
            request,
            "I run the public tests first, to see which of them fail.",
            &format!("mkdir -p {HOME} && {tests}"),
        )
    }

    /// The public tests as the task gives them. Compiled files go where they are not part of the
    /// work tree, and only the end of the output is shown.
    fn tests(&self) -> String {
        let Self { command, .. } = self;
        format!(
            "set -o pipefail; export PYTHONPYCACHEPREFIX={HOME}/compiled; \
             timeout 40 {command} 2>&1 | tail -n 60"
        )
    }

    /// Lays out some of the programs. They go in two commands, since Linux bounds the size of one.
    fn deliver(
        &mut self,
        request: &ModelRequest<'_>,
        stage: Stage,
        thought: &str,
        programs: &[(&str, &str)],
    ) -> ModelReply {
        let mut command = String::new();
        for (name, text) in programs {
            command.push_str(&heredoc(name, text));
        }
        if stage == Stage::SecondDelivery {
            let settings = serde_json::json!({
                "processor_seconds": self.settings.processor_seconds,
                "trace_seconds": self.settings.trace_seconds,
                "max_candidates": self.settings.max_candidates,
                "seed": self.seed,
                "words": Statement::read(request.messages).words,
                "failed": self.failed,
            });
            command.push_str(&heredoc("settings.json", &settings.to_string()));
        }
        command.push_str(&format!("ls {HOME}"));
        self.go(stage, request, thought, &command)
    }

    fn deliver_operators(
        &mut self,
        request: &ModelRequest<'_>,
        observation: &Observation<'_>,
    ) -> ModelReply {
        self.failed = observation.failed_tests();
        self.deliver(
            request,
            Stage::FirstDelivery,
            "Some tests fail. I lay my repair programs outside the repository, first the \
             operators that propose small edits.",
            &PROGRAMS[..4],
        )
    }

    fn deliver_runner(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        self.deliver(
            request,
            Stage::SecondDelivery,
            "Now the tracer that ranks suspicious lines and the runner that tries edits.",
            &PROGRAMS[4..],
        )
    }

    fn repair(&mut self, arguments: &str) -> String {
        // The task's command begins with the interpreter that has the task's packages.
        let interpreter = self.command.split(' ').next().unwrap_or("python");
        format!("PYTHONPYCACHEPREFIX={HOME}/compiled {interpreter} {HOME}/repair.py {arguments}")
    }

    fn localise(&mut self, request: &ModelRequest<'_>) -> ModelReply {
        let arguments = match self.command.split_once(" pytest ") {
            Some((_, arguments)) => format!("localise {arguments}"),
            None => "localise".into(),
        };
        let command = self.repair(&arguments);
        self.go(
            Stage::Localisation,
            request,
            "I run the tests under the tracer and rank the lines by how much more the failing \
             tests run them than the passing ones (Ochiai).",
            &command,
        )
    }

    fn search(&mut self, request: &ModelRequest<'_>, thought: &str) -> ModelReply {
        let seconds = self.settings.batch_seconds;
        let command = self.repair(&format!("search {seconds}"));
        self.go(Stage::Search, request, thought, &command)
    }

    fn try_out(&mut self, request: &ModelRequest<'_>, thought: &str) -> ModelReply {
        let command = format!("{} && {{ {}; }}", self.repair("apply"), self.tests());
        self.go(Stage::Trial, request, thought, &command)
    }

    fn judge(&mut self, request: &ModelRequest<'_>, observation: &Observation<'_>) -> ModelReply {
        if observation.succeeded() {
            return self.finish(
                request,
                "All public tests pass with this edit. I submit it; that it is what the author \
                 meant I cannot know.",
            );
        }
        self.n_rejected += 1;
        let command = self.repair("undo");
        self.go(
            Stage::Withdrawal,
            request,
            "With this edit the public tests do not all pass when they are run for real, so I \
             take it back.",
            &command,
        )
    }

    fn after_search(
        &mut self,
        request: &ModelRequest<'_>,
        observation: &Observation<'_>,
    ) -> ModelReply {
        match observation.result("search: ") {
            Some("found") => self.try_out(
                request,
                "There is an edit with which the failing tests pass and no test that runs the \
                 changed code breaks. I write the best one and run the public tests for real.",
            ),
            Some("continue") => self.search(request, "No edit has worked yet; I go on trying."),
            Some("exhausted") => self.finish(
                request,
                "I have tried all the edits that I allow myself and none makes the tests pass. I \
                 submit no change.",
            ),
            _ => self.finish(
                request,
                "My time for the search is over and no edit makes the tests pass. I submit no \
                 change.",
            ),
        }
    }
}

impl Model for SearchModel {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let observation = Observation::last(request.messages);
        let reply = match self.stage {
            Stage::Opening => self.open(request),
            Stage::FirstTests if observation.succeeded() => self.finish(
                request,
                "All public tests pass already, so that nothing tells me what to repair. I \
                 submit no change.",
            ),
            Stage::FirstTests => self.deliver_operators(request, &observation),
            Stage::FirstDelivery => self.deliver_runner(request),
            Stage::SecondDelivery => self.localise(request),
            Stage::Localisation => match observation.result("localise: ") {
                Some(result) if !result.starts_with("nothing") => self.search(
                    request,
                    "I try the candidate edits, most suspicious first, against the failing tests \
                     and then against the tests that run the changed code.",
                ),
                _ => self.finish(
                    request,
                    "The failing tests do not lead to any line that I could change. I submit no \
                     change.",
                ),
            },
            Stage::Search => self.after_search(request, &observation),
            Stage::Trial => self.judge(request, &observation),
            Stage::Withdrawal if self.n_rejected < MOST_REJECTIONS => {
                self.search(request, "I go on with the next candidates.")
            }
            Stage::Withdrawal => self.finish(
                request,
                "Too many edits turned out wrong when tested for real. I submit no change.",
            ),
            Stage::Submission => self.finish(request, "I submit what stands."),
        };
        Ok(reply)
    }
}

/// A command that writes one file into the programs' directory.
fn heredoc(name: &str, text: &str) -> String {
    let text = text.trim_end();
    format!("cat > {HOME}/{name} <<'{HEREDOC_END}'\n{text}\n{HEREDOC_END}\n")
}

/// The last message as the result of a command.
struct Observation<'a>(&'a str);

impl<'a> Observation<'a> {
    fn last(messages: &'a [Message]) -> Self {
        Observation(messages.last().map_or("", |message| &message.content))
    }

    /// Whether it reports the exit code 0. The first line that reports one is the loop's own; what
    /// the command printed comes after it.
    fn succeeded(&self) -> bool {
        let code = self.0.split_once("<returncode>").map(|(_, rest)| rest);
        code.is_some_and(|rest| rest.starts_with("0</returncode>"))
    }

    /// The tests that pytest's summary lists as failed, each with the message that may follow it.
    /// Empty unless all of them are there: the output may have been shortened, and a failing test
    /// must not be taken for a passing one.
    fn failed_tests(&self) -> Vec<String> {
        let failed: Vec<_> = self
            .0
            .lines()
            .filter_map(|line| line.strip_prefix("FAILED "))
            .map(str::to_owned)
            .collect();
        let counted = self.0.lines().rev().find_map(|line| {
            let (count, _) = line.split_once(" failed")?;
            count.rsplit([' ', '=']).next()?.parse().ok()
        });
        let broken = self.0.lines().any(|line| line.starts_with("ERROR "));
        if counted == Some(failed.len()) && !broken {
            failed
        } else {
            Vec::new()
        }
    }

    /// The rest of the last line that begins with `label`.
    fn result(&self, label: &str) -> Option<&'a str> {
        self.0
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix(label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_a_summary_only_when_it_is_whole() {
        let whole = "<returncode>1</returncode>\nFAILED a.py::b[x - y] - assert 1\n\
                     FAILED a.py::c\n2 failed, 3 passed in 0.10s\n</output>";
        assert_eq!(
            Observation(whole).failed_tests(),
            ["a.py::b[x - y] - assert 1", "a.py::c"]
        );
        for partial in [
            whole.replace("2 failed", "12 failed"),
            whole.replace("FAILED a.py::c", "ERROR a.py::c"),
            whole.replace("2 failed, ", ""),
            String::new(),
        ] {
            assert!(Observation(&partial).failed_tests().is_empty(), "{partial}");
        }
        let ruled = "FAILED a.py::c - x\n===== 1 failed in 0.10s =====";
        assert_eq!(Observation(ruled).failed_tests().len(), 1);
    }

    #[test]
    fn success_is_what_the_loop_says_and_not_what_a_command_prints() {
        let lie = "<returncode>1</returncode>\n<output>\n<returncode>0</returncode>";
        assert!(!Observation(lie).succeeded());
        assert!(Observation("<returncode>0</returncode>\n<output>").succeeded());
        assert!(!Observation("").succeeded());
    }

    #[test]
    fn programs_can_be_delivered() {
        for (name, text) in PROGRAMS {
            assert!(!text.contains("```"), "{name} would end the block early");
            assert!(
                !text.contains(HEREDOC_END),
                "{name} would end the heredoc early"
            );
        }
        for part in [&PROGRAMS[..4], &PROGRAMS[4..]] {
            let bytes: usize = part.iter().map(|(_, text)| text.len()).sum();
            assert!(bytes < 100_000, "Linux takes no argument above 128 KiB");
        }
    }
}
