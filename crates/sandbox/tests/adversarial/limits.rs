//! Attacks on the machine's resources.

use std::time::{Duration, Instant};

use temper_sandbox::{Backend, ExitStatus, Protection, Sandbox, Strength};

use crate::common::*;

fn is_enforced(protection: Protection) -> bool {
    let protections = backend().protections().unwrap();
    matches!(protections[&protection], Strength::Enforced { .. })
}

#[test]
fn a_fork_bomb_stays_in_its_sandbox_and_dies() {
    if waived() {
        return;
    }
    assert!(
        is_enforced(Protection::ProcessLimit),
        "no process limit to test"
    );
    let mut bombed = start(&spec(None));
    let mut neighbour = start(&spec(None));
    let begun = Instant::now();
    let execution = run_for(&mut *bombed, "b() { b | b & }; b; sleep 60", 1.0);
    assert!(
        begun.elapsed() < Duration::from_secs(8),
        "{:?}",
        begun.elapsed()
    );
    assert!(matches!(
        execution.status,
        ExitStatus::TimedOut | ExitStatus::Exited(_)
    ));
    let text = String::from_utf8_lossy(&execution.output).into_owned();
    assert!(text.contains("fork"), "the bomb met no limit: {text}");
    assert_eq!(n_strangers(&mut *bombed), 0);
    assert_alive(&mut *neighbour);
}

#[test]
fn the_process_limit_counts_all_processes_and_threads() {
    if waived() {
        return;
    }
    let mut sandbox = start(&spec(None));
    let text = output(
        &mut *sandbox,
        "/usr/bin/python3 -c '\n\
         import os, threading, time\n\
         n = 0\n\
         try:\n\
         \x20   for i in range(200):\n\
         \x20       threading.Thread(target=time.sleep, args=(30,), daemon=True).start(); n += 1\n\
         except RuntimeError: pass\n\
         print(n, flush=True); os._exit(0)'",
    );
    let n: u64 = text.trim().parse().unwrap();
    assert!(n > 20 && n < small_limits().max_processes, "{n} threads");
}

#[test]
fn many_processes_together_meet_the_memory_limit() {
    if waived() {
        return;
    }
    if !is_enforced(Protection::MemoryLimit) {
        // Without control groups the limit holds for each process, and the backend says so.
        let protections = backend().protections().unwrap();
        assert!(matches!(
            protections[&Protection::MemoryLimit],
            Strength::PerProcess { .. }
        ));
        return;
    }
    let mut sandbox = start(&spec(None));
    // Eight times 64 MiB, each below the limit of 256 MiB.
    let execution = run(
        &mut *sandbox,
        "for i in 1 2 3 4 5 6 7 8; do \
         /usr/bin/python3 -c 'import time; x = bytes(64 << 20).replace(b\"\\0\", b\"x\"); time.sleep(2)' & \
         done; wait",
    );
    assert!(execution.out_of_memory, "all of it was to be had");
    assert_alive(&mut *sandbox);
    let usage = Box::new(sandbox).stop().unwrap();
    let peak = usage.peak_memory_bytes.unwrap();
    assert!(
        peak <= small_limits().memory_bytes && peak > 64 << 20,
        "{peak}"
    );
    assert!(usage.cpu_seconds.unwrap() > 0.0);
}

/// Fills a place with files below the size limit of one file; says how many MiB went in.
fn fill(sandbox: &mut dyn Sandbox, places: &str) -> u64 {
    let text = output(
        sandbox,
        &format!(
            "for place in {places}; do for i in 1 2 3; do \
             head -c 40M /dev/zero > $place/fill$i 2>/dev/null; done; done; \
             du -cm --apparent-size {places} | tail -1 | cut -f1"
        ),
    );
    text.trim().parse().unwrap()
}

#[test]
fn everything_written_shares_one_disk_limit() {
    for places in [
        "/testbed",
        "/tmp",
        "/var/tmp",
        "/dev/shm",
        "/home/agent",
        "/logs",
        "/testbed /tmp /var/tmp /dev/shm /home/agent /logs",
    ] {
        in_sandbox(|sandbox| {
            let n = fill(sandbox, places);
            assert!((20..=36).contains(&n), "{n} MiB went into {places}");
            assert_alive(sandbox);
        });
    }
    // Nowhere else can anything be written at all.
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "find / -path /proc -prune -o -type d -writable -print 2>/dev/null | sort; \
             for d in / /dev /run /etc /var /opt /usr /home; do \
             (: > $d/probe) 2>/dev/null && echo wrote $d; done; true",
        );
        assert_eq!(
            text,
            "/dev/shm\n/home/agent\n/logs\n/testbed\n/tmp\n/var/tmp\n"
        );
    });
}

#[test]
fn many_small_files_meet_a_limit_too() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "/usr/bin/python3 -c '\n\
             n = 0\n\
             try:\n\
             \x20   for n in range(10**6): open(f\"/tmp/{n}\", \"w\").close()\n\
             except OSError as e: print(n, e.errno)'",
        );
        let mut words = text.split_whitespace();
        let n: u64 = words.next().unwrap().parse().unwrap();
        assert!(n < 20_000, "{n}");
        assert_eq!(words.next(), Some("28"));
    });
}

#[test]
fn one_file_has_a_size_limit_and_nothing_dumps_core() {
    if waived() {
        return;
    }
    let mut spec = spec(None);
    spec.limits.file_size_bytes = 1 << 20;
    let mut sandbox = start(&spec);
    let text = output(
        &mut *sandbox,
        "head -c 2M /dev/zero > big; stat -c %s big; ulimit -c; \
         bash -c 'kill -SEGV $$'; ls /testbed",
    );
    // The last line lists the work tree: a dump would be in it.
    assert!(
        text.contains("\n1048576\n0\n") && text.ends_with("\nbig\n"),
        "{text}"
    );
}

#[test]
fn cpu_time_can_be_limited() {
    if waived() || !is_enforced(Protection::MemoryLimit) {
        return;
    }
    let mut spec = spec(None);
    spec.limits.cpu_milli_cores = Some(200);
    let mut sandbox = start(&spec);
    run_for(
        &mut *sandbox,
        "while :; do :; done & while :; do :; done",
        2.0,
    );
    let usage = sandbox.stop().unwrap();
    let seconds = usage.cpu_seconds.unwrap();
    assert!(
        seconds < 1.0,
        "{seconds} s of CPU in 2 s at a fifth of a core"
    );
}
