//! Sandboxes for tests.

use std::{path::Path, time::Duration};

use temper_sandbox::{
    Backend, Command, Demand, Execution, ExitStatus, Limits, Network, Root, Sandbox, SandboxSpec,
    WorkTree, namespaces::Namespaces,
};

/// The backend, launched through this crate's own launcher.
pub fn backend() -> Namespaces {
    Namespaces::with_launcher(env!("CARGO_BIN_EXE_temper-sandbox-init"))
}

/// Limits that attacks reach quickly.
pub fn small_limits() -> Limits {
    Limits {
        memory_bytes: 256 << 20,
        max_processes: 64,
        file_size_bytes: 64 << 20,
        disk_bytes: 32 << 20,
        cpu_milli_cores: None,
        output_bytes: 64 << 10,
    }
}

/// A sandbox with the default demand.
pub fn spec(start: Option<&Path>) -> SandboxSpec {
    SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: start.map(Into::into),
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: [
            ("PATH", "/usr/local/bin:/usr/bin:/bin"),
            ("HOME", "/home/agent"),
            ("TMPDIR", "/tmp"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect(),
        limits: small_limits(),
        network: Network::None,
        demand: Demand::default(),
        label: "test".into(),
    }
}

/// Starts, or fails the test with the reason.
pub fn start(spec: &SandboxSpec) -> Box<dyn Sandbox> {
    backend()
        .start(spec)
        .unwrap_or_else(|error| panic!("failed to {error}: {error:?}"))
}

/// Whether there is nothing to test here, and somebody has said that this is known.
pub fn waived() -> bool {
    std::env::var_os("TEMPER_TEST_WITHOUT_SANDBOX").is_some()
}

/// Runs `test` in a sandbox with an empty work tree and the test limits.
pub fn in_sandbox(test: impl FnOnce(&mut dyn Sandbox)) {
    if !waived() {
        test(&mut *start(&spec(None)));
    }
}

/// How many processes a new command sees besides the first process and itself.
pub fn n_strangers(sandbox: &mut dyn Sandbox) -> usize {
    let list = output(sandbox, "echo /proc/[0-9]* $$");
    let own = list.split_whitespace().last().unwrap().to_owned();
    list.split_whitespace()
        .filter_map(|word| word.strip_prefix("/proc/"))
        .filter(|pid| *pid != "1" && *pid != own)
        .count()
}

/// Whether the sandbox still works.
pub fn assert_alive(sandbox: &mut dyn Sandbox) {
    assert_eq!(output(sandbox, "echo alive"), "alive\n");
}

/// Runs a command with ten seconds to go.
pub fn run(sandbox: &mut dyn Sandbox, text: &str) -> Execution {
    run_for(sandbox, text, 10.0)
}

/// Runs a command with a limit in seconds.
pub fn run_for(sandbox: &mut dyn Sandbox, text: &str, seconds: f64) -> Execution {
    sandbox
        .exec(&Command::bash(text, Duration::from_secs_f64(seconds)))
        .unwrap()
}

/// The output of a command that must succeed, however slow the machine is: some walk the whole file
/// system, which takes long where nothing of it is in memory yet.
pub fn output(sandbox: &mut dyn Sandbox, text: &str) -> String {
    let execution = run_for(sandbox, text, 120.0);
    let output = String::from_utf8_lossy(&execution.output).into_owned();
    assert_eq!(execution.status, ExitStatus::Exited(0), "{text}: {output}");
    output
}
