//! Which candidate saw the test tasks: each once, and a second time only with a reason that stays.
//!
//! One line for each event, appended and synchronised, never rewritten. A test that was begun and
//! not finished may be gone on with; one that was finished is over, even when its trials are gone.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use temper_core::Digest;

use crate::stage::{StageError, on};

/// The file of all final tests of a run.
#[derive(Clone, Debug)]
pub struct FinalTests {
    path: PathBuf,
    runs: Vec<TestRun>,
}

/// A final test of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TestRun {
    /// The candidate's weights.
    pub candidate: Digest,
    /// What the candidate is called.
    pub name: String,
    /// The test tasks by content.
    pub tests: Digest,
    /// How they are run: agent, device, attempts, seed.
    pub settings: Digest,
    /// Which time it is for this candidate and these tasks, from 1.
    pub number: u32,
    /// Why it is not the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<String>,
    /// When it began, RFC 3339.
    pub began_at: String,
    /// When it was over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<String>,
}

/// What may happen.
#[derive(Clone, Debug, PartialEq)]
pub enum Admission {
    /// It is to be run, for the first time or again, or to be gone on with.
    Run(TestRun),
    /// It was run, with these settings.
    Done(TestRun),
}

/// Why a final test is not run.
#[derive(Debug, thiserror::Error)]
pub enum FinalTestError {
    /// It was run before.
    #[error(
        "run the final test of {name}: it was run on {at} on the same tasks{}",
        if *.same_settings { "" } else { " with other settings" }
    )]
    Second {
        /// The candidate.
        name: String,
        /// When.
        at: String,
        /// Whether it was run in the same way.
        same_settings: bool,
    },
    /// The file.
    #[error(transparent)]
    File(#[from] StageError),
}

impl FinalTestError {
    /// What the user can do.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            FinalTestError::Second { .. } => Some(
                "a second look at the test tasks is no measurement of what was chosen without \
                 them; --again REASON runs it, and the record and the report say so",
            ),
            FinalTestError::File(_) => None,
        }
    }
}

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    format: u32,
    event: Event,
    run: TestRun,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Event {
    Begun,
    Finished,
}

const FORMAT: u32 = 1;

impl FinalTests {
    /// Reads the file, where there is one.
    ///
    /// # Errors
    /// When it cannot be read or holds what this code does not write. A last line without its end
    /// was being written when the program was killed: the test had not begun.
    pub fn open(path: &Path) -> Result<Self, FinalTestError> {
        let bytes = match fs::read(path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(on("read", path)(source).into()),
        };
        let mut runs: Vec<TestRun> = Vec::new();
        for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            if !line.ends_with(b"\n") {
                break;
            }
            let corrupt = |reason: String| StageError::Corrupt {
                path: path.to_owned(),
                reason: format!("line {}: {reason}", index + 1),
            };
            let line: Line =
                serde_json::from_slice(line).map_err(|error| corrupt(error.to_string()))?;
            if line.format != FORMAT {
                return Err(corrupt(format!("its format is {}", line.format)).into());
            }
            let same = |run: &&mut TestRun| {
                run.candidate == line.run.candidate
                    && run.tests == line.run.tests
                    && run.number == line.run.number
            };
            match (line.event, runs.iter_mut().find(same)) {
                (Event::Begun, None) => runs.push(line.run),
                (Event::Finished, Some(run)) => *run = line.run,
                _ => return Err(corrupt("it does not follow from those before".into()).into()),
            }
        }
        Ok(FinalTests {
            path: path.to_owned(),
            runs,
        })
    }

    /// All final tests so far, in the order they began.
    pub fn runs(&self) -> &[TestRun] {
        &self.runs
    }

    /// Says whether the test may be run; `asked` has everything but number and times. `is_kept`
    /// says of a finished run whether its result is still there. Nothing is written.
    ///
    /// # Errors
    /// When the candidate saw these tasks before and no reason is given to show them again.
    pub fn admit(
        &self,
        asked: &TestRun,
        is_kept: impl Fn(&TestRun) -> bool,
    ) -> Result<Admission, FinalTestError> {
        let earlier: Vec<&TestRun> = self
            .runs
            .iter()
            .filter(|run| run.candidate == asked.candidate && run.tests == asked.tests)
            .collect();
        let Some(last) = earlier.last() else {
            // A reason for a second time is of no use for the first.
            return Ok(Admission::Run(TestRun {
                number: 1,
                again: None,
                ..asked.clone()
            }));
        };
        let same_settings = last.settings == asked.settings;
        if last.ended_at.is_none() && same_settings {
            return Ok(Admission::Run((*last).clone()));
        }
        match &asked.again {
            // The reason that a run was made for is not a reason for one more.
            Some(reason) if last.again.as_ref() != Some(reason) || !same_settings => {
                Ok(Admission::Run(TestRun {
                    number: last.number + 1,
                    ..asked.clone()
                }))
            }
            _ if same_settings && is_kept(last) => Ok(Admission::Done((*last).clone())),
            _ => Err(FinalTestError::Second {
                name: asked.name.clone(),
                at: last.began_at.clone(),
                same_settings,
            }),
        }
    }

    /// Records that a test begins, before any of its trials does. One that is gone on with is
    /// recorded already.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn begin(&mut self, run: &TestRun) -> Result<(), FinalTestError> {
        if self.runs.contains(run) {
            return Ok(());
        }
        self.append(Event::Begun, run)?;
        self.runs.push(run.clone());
        Ok(())
    }

    /// Records that a test is over.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(&mut self, run: &TestRun, ended_at: String) -> Result<TestRun, FinalTestError> {
        let ended = TestRun {
            ended_at: Some(ended_at),
            ..run.clone()
        };
        self.append(Event::Finished, &ended)?;
        if let Some(known) = self.runs.iter_mut().find(|known| *known == run) {
            *known = ended.clone();
        }
        Ok(ended)
    }

    fn append(&self, event: Event, run: &TestRun) -> Result<(), FinalTestError> {
        let line = Line {
            format: FORMAT,
            event,
            run: run.clone(),
        };
        let mut bytes = serde_json::to_vec(&line).expect("plain data serializes to JSON");
        bytes.push(b'\n');
        let write = || {
            // A half-written line of a killed run would swallow this one.
            let whole = fs::read(&self.path).unwrap_or_default();
            let kept = whole.iter().rposition(|byte| *byte == b'\n');
            let length = kept.map_or(0, |at| at + 1) as u64;
            let mut file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(&self.path)?;
            if length < whole.len() as u64 {
                file.set_len(length)?;
            }
            file.write_all(&bytes)?;
            file.sync_all()
        };
        write().map_err(on("write", &self.path))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(candidate: &str, settings: &str, again: Option<&str>) -> TestRun {
        TestRun {
            candidate: Digest::of(candidate.as_bytes()),
            name: candidate.into(),
            tests: Digest::of(b"tests"),
            settings: Digest::of(settings.as_bytes()),
            number: 0,
            again: again.map(str::to_owned),
            began_at: "then".into(),
            ended_at: None,
        }
    }

    fn run(admission: Admission) -> TestRun {
        match admission {
            Admission::Run(run) => run,
            Admission::Done(run) => panic!("{run:?}"),
        }
    }

    #[test]
    fn a_candidate_sees_the_test_once_and_again_only_with_a_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("final-tests.jsonl");
        let mut tests = FinalTests::open(&path).unwrap();
        let first = run(tests
            .admit(&asked("a", "s", Some("why")), |_| true)
            .unwrap());
        assert_eq!((first.number, &first.again), (1, &None));
        tests.begin(&first).unwrap();

        // Killed and started again, it goes on; in another way it does not.
        let mut tests = {
            let half = [fs::read(&path).unwrap(), b"{\"for".to_vec()].concat();
            fs::write(&path, half).unwrap();
            FinalTests::open(&path).unwrap()
        };
        assert_eq!(
            run(tests.admit(&asked("a", "s", None), |_| true).unwrap()),
            first
        );
        assert!(tests.admit(&asked("a", "other", None), |_| true).is_err());
        tests.begin(&first).unwrap();
        let ended = tests.finish(&first, "now".into()).unwrap();

        let mut tests = FinalTests::open(&path).unwrap();
        assert_eq!(tests.runs(), std::slice::from_ref(&ended));
        let done = tests.admit(&asked("a", "s", None), |_| true).unwrap();
        assert_eq!(done, Admission::Done(ended));
        for (settings, kept) in [("s", false), ("other", true)] {
            let refused = tests.admit(&asked("a", settings, None), |_| kept);
            assert!(refused.unwrap_err().hint().is_some());
        }
        let second = run(tests
            .admit(&asked("a", "s", Some("lost")), |_| true)
            .unwrap());
        assert_eq!((second.number, second.again.as_deref()), (2, Some("lost")));
        tests.begin(&second).unwrap();
        let ended = tests.finish(&second, "now".into()).unwrap();
        // The same command again is no third time.
        let done = tests
            .admit(&asked("a", "s", Some("lost")), |_| true)
            .unwrap();
        assert_eq!(done, Admission::Done(ended));
        // Another candidate, or other tasks, are another matter.
        assert_eq!(
            run(tests.admit(&asked("b", "s", None), |_| true).unwrap()).number,
            1
        );
    }

    #[test]
    fn a_file_that_says_something_else_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("final-tests.jsonl");
        for text in ["{}\n", "null\n"] {
            fs::write(&path, text).unwrap();
            assert!(FinalTests::open(&path).is_err());
        }
        let mut tests = FinalTests::open(&folder.path().join("other.jsonl")).unwrap();
        let one = run(tests.admit(&asked("a", "s", None), |_| true).unwrap());
        tests.begin(&one).unwrap();
        let twice = fs::read(folder.path().join("other.jsonl"))
            .unwrap()
            .repeat(2);
        fs::write(&path, twice).unwrap();
        assert!(FinalTests::open(&path).is_err());
    }
}
