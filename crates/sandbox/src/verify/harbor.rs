//! Harbor's protocol: a script writes a reward file, and nothing else counts.
//!
//! In order: reward files that are already there are deleted, unread, and reported; the task's
//! `tests` directory is laid at `/tests`; `/tests/test.sh` runs, its exit status ignored;
//! `reward.json` is read if there is one, else `reward.txt`.
//!
//! When both exist, `reward.json` decides and a disagreement is noted. A file that is missing, empty
//! or not what the protocol says, and a script that does not end in time, are failures of the
//! verifier: nothing is known, and no reward is made up. Only the key `reward` decides; other keys
//! are metrics. A reward of at least 1 is solved.

use std::{collections::BTreeMap, path::Path, time::Duration};

use temper_core::{
    Bytes, Failure, Verdict,
    task::{InjectedFile, Verifier},
    verdict::{Resolution, Tampering},
};

use super::{
    GradeRequest, Graded, LogSink, Submission,
    final_state::{self, NoState, excerpt},
    sandbox_spec, verifier_failure,
};
use crate::{Command, ExitStatus, Sandbox};

/// The name that verdicts carry.
pub const NAME: &str = "harbor/reward-file";

/// The least reward that counts as solved.
pub const SOLVED_REWARD: f64 = 1.0;

const JSON: &str = "/logs/verifier/reward.json";
const TEXT: &str = "/logs/verifier/reward.txt";
const MAX_REWARD_BYTES: u64 = 1 << 20;
const MAX_TEST_BYTES: u64 = 512 << 20;

/// The rewards of a verifier run, with what there is to say about them.
#[derive(Clone, Debug, PartialEq)]
pub struct Rewards {
    /// By name; `reward` decides.
    pub values: BTreeMap<String, f64>,
    /// The two files disagreed.
    pub warning: Option<String>,
}

/// Why reward files give no reward.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RewardError {
    /// Neither file is there.
    #[error("read the reward: neither reward.json nor reward.txt was written")]
    Missing,
    /// The file is empty.
    #[error("read the reward: {0} is empty")]
    Empty(&'static str),
    /// The file does not hold what the protocol says.
    #[error("read the reward: {file}: {problem}")]
    Malformed {
        /// The file.
        file: &'static str,
        /// What is wrong.
        problem: String,
    },
}

impl RewardError {
    fn class(&self) -> &'static str {
        match self {
            RewardError::Missing => "RewardFileMissing",
            RewardError::Empty(_) => "RewardFileEmpty",
            RewardError::Malformed { .. } => "RewardFileMalformed",
        }
    }
}

/// Reads reward files by the protocol: `json` wins over `text`.
pub fn read_rewards(json: Option<&[u8]>, text: Option<&[u8]>) -> Result<Rewards, RewardError> {
    let Some(json) = json else {
        let text = text.ok_or(RewardError::Missing)?;
        return Ok(Rewards {
            values: [("reward".to_owned(), read_text(text)?)].into(),
            warning: None,
        });
    };
    let values = read_json(json)?;
    let warning = match (values.get("reward"), text.map(read_text)) {
        (_, None) => None,
        (Some(reward), Some(Ok(other))) if *reward == other => None,
        (reward, Some(other)) => Some(format!(
            "reward.json ({}) decides; reward.txt disagrees ({})",
            reward.map_or("no reward".to_owned(), f64::to_string),
            other.map_or_else(|error| error.to_string(), |other| other.to_string()),
        )),
    };
    Ok(Rewards { values, warning })
}

fn read_text(content: &[u8]) -> Result<f64, RewardError> {
    let malformed = || RewardError::Malformed {
        file: "reward.txt",
        problem: format!("expected one finite number, got {:?}", excerpt(content)),
    };
    let text = std::str::from_utf8(content)
        .map_err(|_| malformed())?
        .trim();
    if text.is_empty() {
        return Err(RewardError::Empty("reward.txt"));
    }
    match text.parse::<f64>() {
        Ok(reward) if reward.is_finite() => Ok(reward),
        _ => Err(malformed()),
    }
}

fn read_json(content: &[u8]) -> Result<BTreeMap<String, f64>, RewardError> {
    let malformed = |problem: String| RewardError::Malformed {
        file: "reward.json",
        problem,
    };
    if content.iter().all(u8::is_ascii_whitespace) {
        return Err(RewardError::Empty("reward.json"));
    }
    let object: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(content).map_err(|error| malformed(error.to_string()))?;
    let mut values = BTreeMap::new();
    for (name, value) in object {
        let number = match &value {
            serde_json::Value::Bool(value) => Some(f64::from(u8::from(*value))),
            serde_json::Value::Number(number) => number.as_f64().filter(|n| n.is_finite()),
            _ => None,
        };
        let number = number
            .ok_or_else(|| malformed(format!("{name:?} is not a finite number but {value}")))?;
        values.insert(name, number);
    }
    Ok(values)
}

/// Judges a submission in a fresh sandbox. Tasks whose outcome lies outside the work tree are judged
/// in the trial's own sandbox, by [`verify`].
pub fn grade(request: &GradeRequest<'_>, logs: &mut LogSink<'_>) -> Graded {
    match prepare_and_verify(request, logs) {
        Ok(graded) => graded,
        Err(failure) => Graded::lost(NAME, failure),
    }
}

fn prepare_and_verify(
    request: &GradeRequest<'_>,
    logs: &mut LogSink<'_>,
) -> Result<Graded, Failure> {
    let task = request.task;
    let mut sandbox = request
        .backend
        .start(&sandbox_spec(request, "verifier"))
        .map_err(|error| error.failure())?;
    final_state::set_up(request, sandbox.as_mut())?;
    let mut notes = Vec::new();
    let invalid = |place: String| -> Graded {
        Verdict {
            detail: place,
            ..Verdict::bare(Resolution::InvalidPatch, NAME)
        }
        .into()
    };
    let applied;
    let changes = match request.submission {
        Submission::Changes(changes) => changes,
        Submission::Start => {
            applied = Default::default();
            &applied
        }
        Submission::Patch(patch) => {
            match final_state::apply(request, patch) {
                Ok((changes, mended)) => {
                    notes = mended;
                    applied = changes;
                }
                Err(NoState::Broken(failure)) => return Err(failure),
                Err(NoState::Invalid(place)) => return Ok(invalid(place)),
                Err(NoState::Empty) => applied = Default::default(),
            }
            &applied
        }
    };
    if !changes.is_empty() {
        match final_state::lay(sandbox.as_mut(), &task.work_tree, changes) {
            Ok(()) | Err(NoState::Empty) => {}
            Err(NoState::Broken(failure)) => return Err(failure),
            Err(NoState::Invalid(place)) => return Ok(invalid(place)),
        }
    }
    let mut graded = verify(sandbox.as_mut(), &task.task.verifier, logs);
    graded.verdict.notes.splice(0..0, notes);
    Ok(graded)
}

/// Runs the verifier in a sandbox that holds the state to judge: the trial's own, after the agent
/// phase, or a fresh one into which the submission was laid.
pub fn verify(sandbox: &mut dyn Sandbox, verifier: &Verifier, logs: &mut LogSink<'_>) -> Graded {
    match run(sandbox, verifier, logs) {
        Ok(graded) => graded,
        Err((failure, tampering)) => {
            let mut graded = Graded::lost(NAME, failure);
            graded.verdict.tampering = tampering;
            graded
        }
    }
}

fn run(
    sandbox: &mut dyn Sandbox,
    verifier: &Verifier,
    logs: &mut LogSink<'_>,
) -> Result<Graded, (Failure, Vec<Tampering>)> {
    let Verifier::Harbor {
        tests,
        environment,
        timeout_seconds,
    } = verifier
    else {
        let failure =
            verifier_failure("UnsupportedVerifier", "the verifier is not Harbor's", false);
        return Err((failure, Vec::new()));
    };
    let early = |failure: Failure| (failure, Vec::new());
    // The directories are made anew so that a link in place of one leads nowhere.
    let cleared = run_ours(
        sandbox,
        &format!(
            "for file in {JSON} {TEXT}; do\n\
             if [ -e \"$file\" ] || [ -L \"$file\" ]; then echo \"$file\"; fi\n\
             done\n\
             rm -rf /logs/verifier /tests && mkdir -p /logs/verifier && [ ! -L /logs ]"
        ),
        "ClearRewards",
    )
    .map_err(early)?;
    let tampering: Vec<_> = String::from_utf8_lossy(&cleared)
        .lines()
        .filter(|line| [JSON, TEXT].contains(line))
        .map(|path| Tampering::PlantedResult { path: path.into() })
        .collect();
    let fail = |failure: Failure| (failure, tampering.clone());
    let files = test_files(tests).map_err(fail)?;
    let fail = |failure: Failure| (failure, tampering.clone());
    sandbox
        .write_files(&files)
        .map_err(|error| fail(error.failure()))?;
    let mut command = Command::bash(
        "chmod +x /tests/test.sh 2>/dev/null; \
         /tests/test.sh > /logs/verifier/test-stdout.txt 2>&1",
        Duration::from_secs((*timeout_seconds).max(1)),
    );
    command.environment = environment.clone();
    let execution = sandbox
        .exec(&command)
        .map_err(|error| fail(error.failure()))?;
    let output = sandbox
        .read_file("/logs/verifier/test-stdout.txt", 64 << 20)
        .ok()
        .flatten();
    logs("tests", output.as_deref().unwrap_or(&execution.output));
    if execution.status == ExitStatus::TimedOut {
        return Err(fail(verifier_failure(
            "VerifierTimeout",
            format!("the verifier did not finish in {timeout_seconds} s"),
            false,
        )));
    }
    let mut read = |path: &str| {
        sandbox
            .read_file(path, MAX_REWARD_BYTES)
            .map_err(|error| fail(error.failure()))
    };
    let (json, text) = (read(JSON)?, read(TEXT)?);
    let rewards = read_rewards(json.as_deref(), text.as_deref())
        .map_err(|error| fail(verifier_failure(error.class(), error.to_string(), false)))?;
    let Some(reward) = rewards.values.get("reward").copied() else {
        let names: Vec<_> = rewards.values.keys().collect();
        return Err(fail(verifier_failure(
            "RewardKeyMissing",
            format!("read the reward: no key \"reward\", only {names:?}"),
            false,
        )));
    };
    let resolution = if reward >= SOLVED_REWARD {
        Resolution::Resolved
    } else {
        Resolution::Unresolved
    };
    Ok(Verdict {
        rewards: rewards.values,
        tampering,
        notes: rewards.warning.into_iter().collect(),
        detail: format!("reward {reward}, solved from {SOLVED_REWARD}"),
        ..Verdict::bare(resolution, NAME)
    }
    .into())
}

fn run_ours(sandbox: &mut dyn Sandbox, command: &str, class: &str) -> Result<Vec<u8>, Failure> {
    let execution = sandbox
        .exec(&Command::bash(command, Duration::from_secs(120)))
        .map_err(|error| error.failure())?;
    match execution.status {
        ExitStatus::Exited(0) => Ok(execution.output),
        status => Err(verifier_failure(
            class,
            format!(
                "prepare the verifier: {status:?}: {}",
                excerpt(&execution.output)
            ),
            false,
        )),
    }
}

/// The files of a `tests` directory as they are laid at `/tests`. Links are left out: the directory
/// belongs to the task, but a link could name anything on this machine.
fn test_files(root: &Path) -> Result<Vec<InjectedFile>, Failure> {
    use std::os::unix::fs::PermissionsExt;
    let broken = |path: &Path, error: &dyn std::fmt::Display| {
        verifier_failure(
            "TestFiles",
            format!("read {}: {error}", path.display()),
            false,
        )
    };
    let mut files = Vec::new();
    let mut n_bytes = 0;
    let mut pending = vec![(root.to_owned(), "/tests".to_owned())];
    while let Some((directory, target)) = pending.pop() {
        for entry in std::fs::read_dir(&directory).map_err(|error| broken(&directory, &error))? {
            let entry = entry.map_err(|error| broken(&directory, &error))?;
            let path = entry.path();
            let name = entry
                .file_name()
                .into_string()
                .map_err(|_| broken(&path, &"its name is not UTF-8"))?;
            let metadata =
                std::fs::symlink_metadata(&path).map_err(|error| broken(&path, &error))?;
            let target = format!("{target}/{name}");
            if metadata.is_dir() {
                pending.push((path, target));
            } else if metadata.is_file() {
                n_bytes += metadata.len();
                if n_bytes > MAX_TEST_BYTES {
                    return Err(broken(&path, &"the tests are larger than 512 MiB"));
                }
                files.push(InjectedFile {
                    path: target.clone(),
                    content: Bytes(std::fs::read(&path).map_err(|error| broken(&path, &error))?),
                    executable: metadata.permissions().mode() & 0o100 != 0
                        || target == "/tests/test.sh",
                });
            }
        }
    }
    Ok(files)
}
