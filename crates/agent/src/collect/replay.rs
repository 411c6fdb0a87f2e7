//! Runs the commands of a trajectory again, from a clean state, without whoever chose them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{Bytes, Failure, Patch, PreparedTask, trajectory::Step, trial::PatchSource};
use temper_sandbox::{Command, Execution, ExitStatus, Sandbox};

use crate::{
    profile::Settings,
    protocol,
    trial::{SandboxPlace, work_tree_patch},
};

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Replay {
    /// Commands that were run again.
    pub n_actions: u32,
    /// Of these, those that ended with the same exit code.
    pub n_same_exit: u32,
    /// Of these, those that printed the same bytes; times in outputs make them differ.
    pub n_same_output: u32,
    /// Whether the final work tree gives the same patch, byte for byte. Absent where the patch is
    /// what the agent submitted and not its work tree.
    pub same_patch: Option<bool>,
}

/// Steps that were run again, and the sandbox in the state after them.
pub(super) struct Replayed {
    pub sandbox: Box<dyn Sandbox>,
    pub replay: Replay,
    last: Option<Execution>,
}

/// Replays steps in a fresh sandbox.
pub(super) fn replay_steps(
    place: &SandboxPlace<'_>,
    settings: &Settings,
    prepared: &PreparedTask,
    steps: &[Step],
    label: String,
) -> Result<Replayed, Failure> {
    let mut replayed = Replayed {
        sandbox: place.start(prepared, label)?,
        replay: Replay {
            n_actions: 0,
            n_same_exit: 0,
            n_same_output: 0,
            same_patch: None,
        },
        last: None,
    };
    for action in steps.iter().flat_map(|step| &step.actions) {
        let command = Command {
            text: action.command.clone(),
            shell: settings.shell.into(),
            directory: Some(prepared.work_tree.clone()),
            environment: BTreeMap::from_iter(settings.variables.clone()),
            timeout: settings.command_timeout,
            output_bytes: None,
        };
        let execution = replayed.sandbox.exec(&command);
        let execution = execution.map_err(|error| error.failure())?;
        let replay = &mut replayed.replay;
        replay.n_actions += 1;
        replay.n_same_exit += u32::from(exit_code(&execution) == action.exit_code);
        replay.n_same_output += u32::from(execution.output == action.output.0);
        replayed.last = Some(execution);
    }
    Ok(replayed)
}

/// Replays a whole trajectory and compares its patch.
pub(super) fn replay(
    place: &SandboxPlace<'_>,
    settings: &Settings,
    prepared: &PreparedTask,
    steps: &[Step],
    patch: &Patch,
    label: String,
) -> Result<Replay, Failure> {
    let mut replayed = replay_steps(place, settings, prepared, steps, label)?;
    if settings.patch_source == PatchSource::WorkTree {
        let again = work_tree_patch(prepared, replayed.sandbox.as_mut());
        replayed.replay.same_patch = Some(again.is_ok_and(|again| again == *patch));
    }
    replayed.end()
}

/// The patch that a trajectory's commands leave when they are run again: of the work tree, or what
/// the last one submits, as `settings` say. `Err` within is what the commands came to instead.
///
/// # Errors
/// When the sandbox failed, which says nothing about the trajectory.
pub fn replayed_patch(
    place: &SandboxPlace<'_>,
    settings: &Settings,
    prepared: &PreparedTask,
    steps: &[Step],
    label: String,
) -> Result<Result<Patch, String>, Failure> {
    let mut replayed = replay_steps(place, settings, prepared, steps, label)?;
    let patch = match settings.patch_source {
        PatchSource::WorkTree => {
            work_tree_patch(prepared, replayed.sandbox.as_mut()).map_err(|error| error.to_string())
        }
        PatchSource::Submission => replayed
            .submission(settings)
            .ok_or_else(|| "the last command submits nothing".to_owned()),
        PatchSource::Predictions => Err("its patch came from a file".to_owned()),
    };
    replayed.end()?;
    Ok(patch)
}

impl Replayed {
    fn submission(&self, settings: &Settings) -> Option<Patch> {
        let last = self.last.as_ref()?;
        let shown = protocol::output_text(last, false);
        let submitted = settings
            .protocol
            .submission(&shown.text, exit_code(last)?)?;
        Some(Patch(Bytes(submitted.as_bytes().to_vec())))
    }

    fn end(self) -> Result<Replay, Failure> {
        self.sandbox.stop().map_err(|error| error.failure())?;
        Ok(self.replay)
    }
}

fn exit_code(execution: &Execution) -> Option<i32> {
    match execution.status {
        ExitStatus::Exited(code) => Some(code),
        ExitStatus::Signaled(signal) => Some(-signal),
        ExitStatus::TimedOut => None,
    }
}
