//! A launcher for programs that cannot start themselves again as one, such as tests, and a way to
//! try the embedded sandbox by hand:
//!
//! ```text
//! temper-sandbox-init protections       what is in force here, as JSON
//! temper-sandbox-init exec COMMAND      run a bash command in a sandbox with an empty work tree
//! temper-sandbox-init changes START COMMAND      run one over a start, and list what it changed
//! ```

use std::{io::Write, process::ExitCode, time::Duration};

use temper_sandbox::{
    Backend, Command, Demand, ExitStatus, Limits, Network, Root, SandboxError, SandboxSpec,
    WorkTree, namespaces::Namespaces,
};

fn main() -> ExitCode {
    temper_sandbox::namespaces::run_launcher_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["protections"] => protections(),
        ["exec", command] => exec(None, command),
        ["changes", start, command] => exec(Some(start), command),
        _ => {
            let _ = writeln!(
                std::io::stderr(),
                "usage: protections | exec COMMAND | changes START COMMAND"
            );
            return ExitCode::from(64);
        }
    };
    result.unwrap_or_else(|error| {
        let _ = writeln!(std::io::stderr(), "failed to {error}");
        if let SandboxError::Unavailable { hint, .. } = error {
            let _ = writeln!(std::io::stderr(), "hint: {hint}");
        }
        ExitCode::FAILURE
    })
}

fn protections() -> Result<ExitCode, SandboxError> {
    let protections = Namespaces::new().protections()?;
    let mut stdout = std::io::stdout().lock();
    let _ = serde_json::to_writer_pretty(&mut stdout, &protections);
    let _ = stdout.write_all(b"\n");
    Ok(ExitCode::SUCCESS)
}

fn exec(start: Option<&str>, command: &str) -> Result<ExitCode, SandboxError> {
    let environment = [
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/home/agent"),
    ];
    let spec = SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: start.map(Into::into),
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: environment
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand::default(),
        label: "by-hand".into(),
    };
    let mut sandbox = Namespaces::new().start(&spec)?;
    let execution = sandbox.exec(&Command::bash(command, Duration::from_secs(3600)))?;
    let _ = std::io::stdout().write_all(&execution.output);
    if start.is_some() {
        for (path, entry) in sandbox.changes()? {
            let sign = if entry.is_some() { '+' } else { '-' };
            let _ = writeln!(std::io::stdout(), "{sign} {path}");
        }
    }
    Ok(match execution.status {
        ExitStatus::Exited(code) => ExitCode::from(code as u8),
        ExitStatus::Signaled(signal) => ExitCode::from(128 + signal as u8),
        ExitStatus::TimedOut => ExitCode::from(124),
    })
}
