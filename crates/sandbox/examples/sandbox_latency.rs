//! How long a fresh sandbox takes from nothing to the end of `true` and to its removal.
//!
//! `cargo run --release -p temper-sandbox --example sandbox_latency [RUNS [THREADS]]` prints the
//! median and the 95th percentile of the embedded backend, and of `bwrap` and `podman` where they
//! are installed, for comparison. All use a read-only root and no network; `bwrap` and `podman`
//! have neither a copy-on-write work tree nor (`bwrap`) limits.
//!
//! With `RUNS THREADS ADDRESS docker|podman IMAGE` it compares the embedded backend with the engine
//! at that address, through its API and through its own command line, in turns: one run of each
//! before the next of any, so that a busy moment of the machine meets all of them.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use temper_sandbox::{
    Backend, Command, Demand, ExitStatus, Limits, Network, Root, SandboxSpec, WorkTree,
    engine::{Engine, Kind},
    namespaces::{Namespaces, run_launcher_if_asked},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    run_launcher_if_asked();
    let mut arguments = std::env::args().skip(1);
    let n_runs: usize = arguments.next().map_or(Ok(200), |text| text.parse())?;
    let n_threads: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    if let (Some(address), Some(kind), Some(image)) =
        (arguments.next(), arguments.next(), arguments.next())
    {
        let kind = match kind.as_str() {
            "docker" => Kind::Docker,
            "podman" => Kind::Podman,
            _ => return Err("the engine is docker or podman".into()),
        };
        return compare(n_runs, &address, kind, &image);
    }

    let start = tempfile::tempdir()?;
    for index in 0..200 {
        std::fs::write(start.path().join(format!("module_{index}.py")), "x = 1\n")?;
    }
    let backend = Namespaces::new();
    for (protection, strength) in backend.protections()? {
        eprintln!("{protection:?}: {strength:?}");
    }
    let spec = SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: Some(start.path().into()),
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand::default(),
        label: "latency".into(),
    };
    println!(
        "{:<34} {:>7} {:>10} {:>10} {:>9}",
        "what", "n", "median ms", "p95 ms", "per s"
    );
    let mut phases = vec![];
    report("temper, start to removed", n_runs, n_threads, || {
        let begun = Instant::now();
        let mut sandbox = backend.start(&spec)?;
        let started = begun.elapsed();
        let execution = sandbox.exec(&Command::bash("true", Duration::from_secs(10)))?;
        assert_eq!(execution.status, ExitStatus::Exited(0));
        let ran = begun.elapsed();
        sandbox.stop()?;
        Ok([started, ran - started, begun.elapsed() - ran])
    })
    .map(|times| phases = times)?;
    for (name, index) in [("  start", 0), ("  bash -c true", 1), ("  stop", 2)] {
        summarize(
            name,
            phases.iter().map(|times| times[index]).collect(),
            None,
        );
    }
    let programs: [(&str, &[&str]); 2] = [
        (
            "bwrap, all namespaces",
            &[
                "bwrap",
                "--unshare-all",
                "--die-with-parent",
                "--ro-bind",
                "/usr",
                "/usr",
                "--symlink",
                "usr/bin",
                "/bin",
                "--symlink",
                "usr/lib",
                "/lib",
                "--symlink",
                "usr/lib64",
                "/lib64",
                "--proc",
                "/proc",
                "--dev",
                "/dev",
                "--tmpfs",
                "/tmp",
                "bash",
                "-c",
                "true",
            ],
        ),
        (
            "podman run --rm",
            &[
                "podman",
                "run",
                "--rm",
                "--network",
                "none",
                "--rootfs",
                "/",
                "bash",
                "-c",
                "true",
            ],
        ),
    ];
    for (name, command) in programs {
        let once = || {
            std::process::Command::new(command[0])
                .args(&command[1..])
                .stdin(Stdio::null())
                .stderr(Stdio::null())
                .status()
        };
        if once().is_ok_and(|status| status.success()) {
            report(name, n_runs, n_threads, || {
                assert!(once()?.success());
                Ok([Duration::ZERO; 3])
            })?;
        } else {
            eprintln!("{name}: not installed, or does not work here");
        }
    }
    Ok(())
}

/// Measures the embedded backend, an engine through its API and its command line, in turns. None
/// of them gets a work tree.
fn compare(
    n_runs: usize,
    address: &str,
    kind: Kind,
    image: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let spec = |root: Root| SandboxSpec {
        root,
        work_tree: WorkTree {
            start: None,
            path: "/testbed".into(),
        },
        mounts: vec![],
        files: vec![],
        environment: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand::default(),
        label: "latency".into(),
    };
    let embedded = Namespaces::new();
    let engine = Engine::connect(Some(address), kind, &[])?;
    let through =
        |backend: &dyn Backend, spec: &SandboxSpec| -> Result<Phases, Box<dyn std::error::Error>> {
            let begun = Instant::now();
            let mut sandbox = backend.start(spec)?;
            let started = begun.elapsed();
            let mut command = Command::bash("true", Duration::from_secs(10));
            command.shell = temper_sandbox::Shell::Sh;
            let execution = sandbox.exec(&command)?;
            assert_eq!(execution.status, ExitStatus::Exited(0));
            let ran = begun.elapsed();
            sandbox.stop()?;
            Ok([started, ran - started, begun.elapsed() - ran])
        };
    let by_command = || -> Result<Duration, Box<dyn std::error::Error>> {
        let begun = Instant::now();
        let mut command = std::process::Command::new(kind.name());
        command.args([
            "run",
            "--rm",
            "--network",
            "none",
            image,
            "sh",
            "-c",
            "true",
        ]);
        if kind == Kind::Docker {
            command.env("DOCKER_HOST", address);
        }
        let status = command
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        if !status.success() {
            return Err(format!("{} run ended with {status}", kind.name()).into());
        }
        Ok(begun.elapsed())
    };
    let (own, theirs) = (spec(Root::Host), spec(Root::Image(image.into())));
    let mut times: [Vec<Phases>; 3] = Default::default();
    for turn in 0..=n_runs {
        let phases = [
            through(&embedded, &own)?,
            through(&engine, &theirs)?,
            [by_command()?, Duration::ZERO, Duration::ZERO],
        ];
        // The first turn is warm-up.
        if turn > 0 {
            for (all, phases) in times.iter_mut().zip(phases) {
                all.push(phases);
            }
        }
    }
    println!(
        "{:<34} {:>7} {:>10} {:>10}",
        "what", "n", "median ms", "p95 ms"
    );
    let names = [
        "namespaces, start to removed".to_owned(),
        format!("{} API, start to removed", kind.name()),
        format!("{} run --rm", kind.name()),
    ];
    for (index, (name, all)) in names.iter().zip(&times).enumerate() {
        summarize(
            name,
            all.iter().map(|phases| phases.iter().sum()).collect(),
            None,
        );
        if index < 2 {
            for (name, phase) in [("  start", 0), ("  sh -c true", 1), ("  stop", 2)] {
                summarize(name, all.iter().map(|phases| phases[phase]).collect(), None);
            }
        }
    }
    Ok(())
}

type Phases = [Duration; 3];

fn report(
    name: &str,
    n_runs: usize,
    n_threads: usize,
    run: impl Fn() -> Result<Phases, Box<dyn std::error::Error>> + Sync,
) -> Result<Vec<Phases>, Box<dyn std::error::Error>> {
    run()?;
    let begun = Instant::now();
    let mut all = vec![];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads)
            .map(|_| {
                scope.spawn(|| {
                    (0..n_runs / n_threads)
                        .map(|_| {
                            let begun = Instant::now();
                            let phases = run().map_err(|error| error.to_string())?;
                            Ok((begun.elapsed(), phases))
                        })
                        .collect::<Result<Vec<_>, String>>()
                })
            })
            .collect();
        for thread in threads {
            match thread.join() {
                Ok(Ok(times)) => all.extend(times),
                Ok(Err(error)) => eprintln!("{name}: {error}"),
                Err(_) => eprintln!("{name}: a thread panicked"),
            }
        }
    });
    let rate = all.len() as f64 / begun.elapsed().as_secs_f64();
    summarize(
        name,
        all.iter().map(|(whole, _)| *whole).collect(),
        Some(rate),
    );
    Ok(all.into_iter().map(|(_, phases)| phases).collect())
}

fn summarize(name: &str, mut times: Vec<Duration>, rate: Option<f64>) {
    times.sort();
    let at = |share: f64| {
        let index = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
        times
            .get(index)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    let rate = rate.map_or(String::new(), |rate| format!("{rate:.0}"));
    println!(
        "{name:<34} {:>7} {:>10.2} {:>10.2} {rate:>9}",
        times.len(),
        at(0.5),
        at(0.95)
    );
}
