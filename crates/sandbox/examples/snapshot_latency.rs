//! How long it takes to keep the state of a sandbox and to start another one from it.
//!
//! `cargo run --release -p temper-sandbox --example snapshot_latency [REPOSITORY [RUNS]]` copies a
//! repository (or makes one of 500 files), and in a sandbox over it edits a file, compiles the
//! sources as a test run does and stages everything with git. Then it takes snapshots, forks them
//! and runs `true`, and prints medians and 95th percentiles, beside a start from nothing.
#![allow(clippy::print_stdout)]

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use temper_sandbox::{
    Backend, Command, Demand, Limits, Network, Root, SandboxSpec, WorkTree,
    namespaces::{Namespaces, run_launcher_if_asked},
};

const WORK: &str = "echo '# edited' >> $(find . -name '*.py' -not -path './.git/*' | sort | head -n 1); \
    python3 -m compileall -q . >/dev/null; echo note > /tmp/note; \
    git add -A 2>/dev/null; git diff --cached > /tmp/patch 2>/dev/null; true";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run_launcher_if_asked();
    let mut arguments = std::env::args().skip(1);
    let made = tempfile::tempdir()?;
    let repository = match arguments.next() {
        Some(path) => PathBuf::from(path),
        None => {
            make_repository(made.path())?;
            made.path().to_owned()
        }
    };
    let n_runs: usize = arguments.next().map_or(Ok(100), |text| text.parse())?;
    let backend = Namespaces::new();
    let spec = SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: Some(repository),
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: [("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned())].into(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand::default(),
        label: "latency".into(),
    };
    let seconds = Duration::from_secs(60);
    let mut parent = backend.start(&spec)?;
    parent.exec(&Command::bash(WORK, seconds))?;
    let (mut starts, mut takes, mut forks, mut runs) = (vec![], vec![], vec![], vec![]);
    let mut size = (0, 0);
    for _ in 0..n_runs {
        let begun = Instant::now();
        let fresh = backend.start(&spec)?;
        starts.push(begun.elapsed());
        fresh.stop()?;
        let begun = Instant::now();
        let snapshot = parent.snapshot(256 << 20)?;
        takes.push(begun.elapsed());
        size = (snapshot.n_paths(), snapshot.bytes());
        let begun = Instant::now();
        let mut child = backend.fork(&snapshot, "fork")?;
        forks.push(begun.elapsed());
        child.exec(&Command::bash("true", seconds))?;
        runs.push(begun.elapsed());
        child.stop()?;
    }
    println!("written: {} paths, {:.2} MB", size.0, size.1 as f64 / 1e6);
    println!(
        "{:<28} {:>5} {:>10} {:>8}",
        "what", "n", "median ms", "p95 ms"
    );
    for (name, times) in [
        ("start from nothing", starts),
        ("snapshot", takes),
        ("fork", forks),
        ("fork and bash -c true", runs),
    ] {
        summarize(name, times);
    }
    Ok(())
}

fn make_repository(at: &Path) -> std::io::Result<()> {
    for package in 0..20 {
        let directory = at.join(format!("package_{package}"));
        std::fs::create_dir_all(&directory)?;
        for module in 0..25 {
            let text = format!("def f_{module}(x):\n    return x + {module}\n").repeat(60);
            std::fs::write(directory.join(format!("module_{module}.py")), text)?;
        }
    }
    let git = |arguments: &[&str]| {
        std::process::Command::new("git")
            .args(["-c", "user.name=x", "-c", "user.email=x@x"])
            .args(arguments)
            .current_dir(at)
            .output()
    };
    git(&["init", "-q"])?;
    git(&["add", "-A"])?;
    git(&["commit", "-q", "-m", "start"])?;
    Ok(())
}

fn summarize(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times
            .get(index)
            .map_or(0.0, |time| time.as_secs_f64() * 1e3)
    };
    println!(
        "{name:<28} {:>5} {:>10.2} {:>8.2}",
        times.len(),
        at(0.5),
        at(0.95)
    );
}
