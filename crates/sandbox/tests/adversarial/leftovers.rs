//! What is there after sandboxes have ended, in every way they can end.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use temper_sandbox::{Backend, Command, ExitStatus};

use crate::common::*;

/// Tests in this file count things of the whole machine, so they run one at a time.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// Host processes whose command line holds the text.
fn n_processes(text: &str) -> usize {
    std::fs::read_dir("/proc")
        .unwrap()
        .flatten()
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| {
            line.split(|byte| *byte == 0)
                .any(|word| word == text.as_bytes())
        })
        .count()
}

/// Control groups that this or that process made.
fn groups(owner: u32) -> Vec<String> {
    fn walk(directory: &Path, owner: &str, depth: usize, found: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with("temper-") && name.contains(owner) {
                found.push(entry.path().display().to_string());
            } else if depth > 0 && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                walk(&entry.path(), owner, depth - 1, found);
            }
        }
    }
    let mut found = vec![];
    walk(
        Path::new("/sys/fs/cgroup"),
        &format!("-{owner}-"),
        5,
        &mut found,
    );
    found
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !done() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn unique_sleep(number: u32) -> String {
    format!("{}.{number}", 70_000 + std::process::id())
}

#[test]
fn nothing_is_left_after_two_hundred_sandboxes() {
    if waived() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let backend = backend();
    let nap = unique_sleep(1);
    let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let before = mounts();
    let start_tree = tempfile::tempdir().unwrap();
    std::fs::write(start_tree.path().join("a"), "1").unwrap();
    // Several threads at once, each also dropping without stopping.
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (backend, nap, start_tree) = (&backend, &nap, &start_tree);
            scope.spawn(move || {
                for round in 0..50 {
                    let mut sandbox = backend.start(&spec(Some(start_tree.path()))).unwrap();
                    let command = format!("setsid sleep {nap} & echo {thread}.{round} > a; cat a");
                    let execution = sandbox
                        .exec(&Command::bash(command, Duration::from_secs(20)))
                        .unwrap();
                    assert_eq!(execution.status, ExitStatus::Exited(0));
                    assert_eq!(execution.output, format!("{thread}.{round}\n").as_bytes());
                    if round % 2 == 0 {
                        sandbox.stop().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(n_processes(&nap), 0);
    assert_eq!(mounts(), before);
    assert_eq!(std::fs::read(start_tree.path().join("a")).unwrap(), b"1");
    let temporary = tempfile::tempdir().unwrap();
    let status = std::process::Command::new(env!("CARGO_BIN_EXE_temper-sandbox-init"))
        .args(["exec", "true"])
        .env("TMPDIR", temporary.path())
        .status();
    assert!(status.unwrap().success());
    assert_eq!(std::fs::read_dir(temporary.path()).unwrap().count(), 0);
    // Other tests of this process may be running sandboxes just now; theirs go away too.
    wait_until("the groups of this test are gone", || {
        groups(std::process::id()).len() < 40
    });
}

#[test]
fn a_killed_parent_takes_everything_with_it() {
    if waived() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let program = env!("CARGO_BIN_EXE_temper-sandbox-init");
    for round in 0..5 {
        let nap = unique_sleep(100 + round);
        let mut parent = std::process::Command::new(program)
            .args([
                "exec",
                &format!("setsid bash -c \"trap '' TERM HUP; sleep {nap}\" & sleep {nap}"),
            ])
            .spawn()
            .unwrap();
        wait_until("both sleep", || n_processes(&nap) == 2);
        let owner = parent.id();
        parent.kill().unwrap();
        parent.wait().unwrap();
        wait_until("nothing sleeps", || n_processes(&nap) == 0);
        wait_until("the groups are gone", || groups(owner).is_empty());
    }
}

#[test]
fn a_killed_launcher_takes_everything_with_it_and_is_an_error() {
    if waived() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(|e| e.into_inner());
    let nap = unique_sleep(200);
    let mut spec = spec(None);
    spec.label = "to-be-killed".into();
    let mut sandbox = start(&spec);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let command = Command::bash(format!("sleep {nap}"), Duration::from_secs(60));
            sandbox.exec(&command)
        });
        wait_until("it sleeps", || n_processes(&nap) == 1);
        let launcher = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .find(|entry| {
                std::fs::read_to_string(entry.path().join("comm"))
                    .is_ok_and(|name| name.trim() == "to-be-killed")
            })
            .expect("the launcher carries the label");
        let pid: i32 = launcher.file_name().to_str().unwrap().parse().unwrap();
        // SAFETY: signals a process that this test started.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let result = waiting.join().unwrap();
        assert!(
            matches!(result, Err(temper_sandbox::SandboxError::Ended(_))),
            "{result:?}"
        );
    });
    wait_until("nothing sleeps", || n_processes(&nap) == 0);
    let after = sandbox.exec(&Command::bash("true", Duration::from_secs(5)));
    assert!(
        matches!(after, Err(temper_sandbox::SandboxError::Ended(_))),
        "{after:?}"
    );
}

#[test]
fn a_sandbox_outlives_the_thread_that_started_it() {
    if waived() {
        return;
    }
    let mut sandbox = std::thread::spawn(|| start(&spec(None))).join().unwrap();
    assert_alive(&mut *sandbox);
    std::thread::spawn(move || assert_alive(&mut *sandbox))
        .join()
        .unwrap();
}
