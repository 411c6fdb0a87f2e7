//! Where the trials of an experiment's final tests lie.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use temper_agent::job::write_atomically;

use crate::{error::CliError, exit_code};

const FILE: &str = "tests.json";

/// The jobs of all final tests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tests {
    /// Version of this format.
    pub format: u32,
    /// The job of what training started from.
    pub baseline: Option<PathBuf>,
    /// The arms.
    pub arms: Vec<ArmTests>,
}

/// An arm's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ArmTests {
    /// The arm.
    pub name: String,
    /// Seeds whose selection kept the start.
    pub kept_start: Vec<u64>,
    /// The job of each seed; the start's where selection kept that.
    pub runs: BTreeMap<u64, PathBuf>,
}

impl Tests {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Whether a directory is that of an experiment that was tested.
    pub fn is_in(directory: &Path) -> bool {
        directory.join(FILE).is_file()
    }

    /// Reads those of an experiment; paths in it are below its directory.
    pub fn read(directory: &Path) -> Result<Self, CliError> {
        let path = directory.join(FILE);
        let wrong = |problem: String| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {problem}", path.display()),
            )
        };
        let text = std::fs::read(&path).map_err(|error| wrong(error.to_string()))?;
        let mut tests: Tests =
            serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if tests.format != Self::FORMAT {
            return Err(wrong(format!("its format is {}", tests.format)));
        }
        for job in tests.jobs_mut() {
            *job = directory.join(&job);
        }
        Ok(tests)
    }

    /// Writes them.
    pub fn write(&self, directory: &Path) -> Result<(), CliError> {
        let mut tests = self.clone();
        for job in tests.jobs_mut() {
            if let Ok(below) = job.strip_prefix(directory) {
                *job = below.to_owned();
            }
        }
        let mut text = serde_json::to_vec_pretty(&tests).expect("paths are plain data");
        text.push(b'\n');
        Ok(write_atomically(&directory.join(FILE), &text)?)
    }

    /// Every job once, the baseline first.
    pub fn jobs(&self) -> Vec<PathBuf> {
        let mut jobs: Vec<PathBuf> = Vec::new();
        let runs = self.arms.iter().flat_map(|arm| arm.runs.values());
        for job in self.baseline.iter().chain(runs) {
            if !jobs.contains(job) {
                jobs.push(job.clone());
            }
        }
        jobs
    }

    fn jobs_mut(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let runs = self.arms.iter_mut().flat_map(|arm| arm.runs.values_mut());
        self.baseline.iter_mut().chain(runs)
    }
}

/// The start's job, with the digest of the tasks as they were told in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Where.
    pub job: PathBuf,
    /// Of what.
    pub tasks: String,
}

/// The tests of an arm, from the result that `temper train` printed and the stages it left; and that
/// of what training started from. Where selection kept the start, its trials are the arm's: those
/// of `baseline` where the tasks are the same, or its own where they are told otherwise.
pub fn of_arm(
    name: &str,
    result: &Value,
    directory: &Path,
    baseline: Option<&Start>,
) -> Result<(ArmTests, Start), CliError> {
    let wrong = |problem: String| {
        CliError::new(
            exit_code::FAILURE,
            format!("find the final tests of {name}: {problem}"),
        )
    };
    let jobs = jobs_of(&directory.join("evaluate")).map_err(|error| wrong(error.to_string()))?;
    let start = jobs.start.ok_or_else(|| {
        wrong("the start has no job".to_owned()).hint("--again REASON tests it once more")
    })?;
    let of_start = baseline
        .filter(|baseline| baseline.tasks == start.tasks)
        .unwrap_or(&start);
    let mut arm = ArmTests {
        name: name.to_owned(),
        ..ArmTests::default()
    };
    let selected = result["selected"].as_array().cloned().unwrap_or_default();
    // The last objective of a seed is what the recipe leads to.
    let mut of_seed: BTreeMap<u64, Value> = BTreeMap::new();
    for selected in selected {
        let seed = selected["seed"].as_u64();
        let seed = seed.ok_or_else(|| wrong("a selection has no seed".to_owned()))?;
        of_seed.insert(seed, selected);
    }
    for (seed, selected) in of_seed {
        let candidate = selected["candidate"].as_str().unwrap_or_default();
        if selected["keeps_start"] == true && !jobs.tested.contains_key(candidate) {
            arm.kept_start.push(seed);
            arm.runs.insert(seed, of_start.job.clone());
            continue;
        }
        let job = jobs.tested.get(candidate).cloned();
        let job = job.ok_or_else(|| wrong(format!("{candidate} has no job")))?;
        arm.runs.insert(seed, job);
    }
    Ok((arm, start))
}

#[derive(Default)]
struct Jobs {
    start: Option<Start>,
    tested: BTreeMap<String, PathBuf>,
}

/// The newest finished job of each contender. A candidate's tests are numbered, the start's are not.
fn jobs_of(evaluate: &Path) -> std::io::Result<Jobs> {
    let mut jobs = Jobs::default();
    let mut newest: BTreeMap<String, String> = BTreeMap::new();
    if !evaluate.is_dir() {
        return Ok(jobs);
    }
    for part in std::fs::read_dir(evaluate)? {
        let part = part?.path();
        if !part.is_dir() {
            continue;
        }
        for folder in std::fs::read_dir(part)? {
            let folder = folder?.path();
            let job = folder.join("job");
            let Ok(text) = std::fs::read(folder.join("stage.json")) else {
                continue;
            };
            let record: Value = serde_json::from_slice(&text).unwrap_or_default();
            let Some(contender) = record["result"]["contender"].as_str() else {
                continue;
            };
            let ended_at = record["ended_at"].as_str().unwrap_or_default().to_owned();
            let last = newest.entry(contender.to_owned()).or_default();
            if !job.is_dir() || ended_at < *last {
                continue;
            }
            *last = ended_at;
            if record["config"]["number"].is_null() {
                let tasks = record["inputs"]["tasks"].as_str().unwrap_or_default();
                jobs.start = Some(Start {
                    job,
                    tasks: tasks.to_owned(),
                });
            } else {
                jobs.tested.insert(contender.to_owned(), job);
            }
        }
    }
    Ok(jobs)
}
