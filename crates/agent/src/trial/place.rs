//! A fresh sandbox for an agent, set up as its task asks.

use std::{collections::BTreeMap, time::Duration};

use temper_core::{Boundary, Failure, PreparedTask};
use temper_sandbox::{
    Backend, Command, Demand, ExitStatus, Limits, Mount, Network, Root, Sandbox, SandboxSpec,
    WorkTree,
};

use crate::edit_tool;

/// Where the commands of trials run: a backend, and what every sandbox of it gets.
#[derive(Clone)]
pub struct SandboxPlace<'a> {
    /// Where commands run.
    pub backend: &'a dyn Backend,
    /// Limits of every sandbox.
    pub limits: Limits,
    /// Protections of every sandbox.
    pub demand: Demand,
    /// What is seen of the network.
    pub network: Network,
}

impl SandboxPlace<'_> {
    /// A fresh sandbox for an agent, set up as the task asks.
    pub(crate) fn start(
        &self,
        prepared: &PreparedTask,
        label: String,
    ) -> Result<Box<dyn Sandbox>, Failure> {
        let spec = SandboxSpec {
            root: match &prepared.image {
                Some(image) => Root::Image(image.clone()),
                None => Root::Host,
            },
            work_tree: WorkTree {
                start: prepared.start_tree.clone(),
                path: prepared.work_tree.clone(),
            },
            mounts: prepared
                .mounts
                .iter()
                .map(|mount| Mount {
                    source: mount.source.clone(),
                    target: mount.target.clone(),
                })
                .collect(),
            files: edit_tool::injected_files(),
            environment: environment(prepared),
            limits: self.limits.clone(),
            network: self.network,
            demand: self.demand.clone(),
            label,
        };
        let mut sandbox = self.backend.start(&spec).map_err(|error| error.failure())?;
        if prepared.image.is_some() {
            // A login shell of an image may put its own Python first, so the tool also lies where
            // upstream puts it, kept out of the patch.
            sandbox
                .write_files(&[edit_tool::work_tree_launcher(&prepared.work_tree)])
                .map_err(|error| error.failure())?;
        }
        for command in prepared.setup.iter().map(String::as_str).chain(
            prepared.image.is_some().then_some(
                "if [ -d .git ]; then mkdir -p .git/info && echo /edit_via_str_replace >> .git/info/exclude; fi",
            ),
        ) {
            let mut command = Command::bash(command, Duration::from_secs(300));
            command.output_bytes = Some(1 << 20);
            let execution = sandbox
                .exec(&command)
                .map_err(|error| error.failure())?;
            if execution.status != ExitStatus::Exited(0) {
                let output = String::from_utf8_lossy(&execution.output);
                let tail: String = output.chars().rev().take(500).collect();
                return Err(Failure {
                    boundary: Boundary::Task,
                    class: "TaskSetup".into(),
                    message: format!(
                        "a set-up command ended with {:?}: {}",
                        execution.status,
                        tail.chars().rev().collect::<String>()
                    ),
                    retryable: false,
                });
            }
        }
        Ok(sandbox)
    }
}

/// The variables of every command. In an image the tool's directory comes in front of the usual
/// path.
fn environment(prepared: &PreparedTask) -> BTreeMap<String, String> {
    let mut variables = prepared.variables.clone();
    if prepared.image.is_some() {
        let path = variables.entry("PATH".into()).or_insert_with(|| {
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()
        });
        *path = format!("{}:{path}", edit_tool::BIN);
    }
    variables
}
