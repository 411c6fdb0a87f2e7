//! Runs the commands of a trajectory again, from a clean state, without whoever chose them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{Failure, Patch, PreparedTask, trajectory::Step, trial::PatchSource};
use temper_sandbox::{Command, ExitStatus, Sandbox};

use crate::trial::{TrialContext, work_tree_patch};

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

/// Replays steps in a fresh sandbox, which is returned in the state after them.
pub fn replay_steps(
    context: &TrialContext<'_>,
    prepared: &PreparedTask,
    steps: &[Step],
    label: String,
) -> Result<(Box<dyn Sandbox>, Replay), Failure> {
    let mut sandbox = context.start_sandbox(prepared, label)?;
    let settings = context.profile.settings();
    let mut replay = Replay {
        n_actions: 0,
        n_same_exit: 0,
        n_same_output: 0,
        same_patch: None,
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
        let execution = sandbox.exec(&command).map_err(|error| error.failure())?;
        let exit = match execution.status {
            ExitStatus::Exited(code) => Some(code),
            ExitStatus::Signaled(signal) => Some(-signal),
            ExitStatus::TimedOut => None,
        };
        replay.n_actions += 1;
        replay.n_same_exit += u32::from(exit == action.exit_code);
        replay.n_same_output += u32::from(execution.output == action.output.0);
    }
    Ok((sandbox, replay))
}

/// Replays a whole trajectory and compares its patch.
pub fn replay(
    context: &TrialContext<'_>,
    prepared: &PreparedTask,
    steps: &[Step],
    patch: &Patch,
    label: String,
) -> Result<Replay, Failure> {
    let (mut sandbox, mut replay) = replay_steps(context, prepared, steps, label)?;
    if context.profile.settings().patch_source == PatchSource::WorkTree {
        let again = work_tree_patch(prepared, sandbox.as_mut());
        replay.same_patch = Some(again.is_ok_and(|again| again == *patch));
    }
    sandbox.stop().map_err(|error| error.failure())?;
    Ok(replay)
}
