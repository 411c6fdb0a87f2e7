//! Processes that want to outlive their command, or to harm what watches them.

use std::time::{Duration, Instant};

use temper_sandbox::ExitStatus;

use crate::common::*;

/// Ignores every signal that can be ignored, in a session of its own, twice forked.
const DAEMON: &str = "setsid bash -c \"trap '' TERM HUP INT QUIT; (trap '' TERM HUP; while :; do sleep 0.05; done) & disown; while :; do sleep 0.05; done\" </dev/null >/dev/null 2>&1 &";

#[test]
fn a_timeout_ends_daemons_and_keeps_the_output() {
    in_sandbox(|sandbox| {
        for round in 0..50 {
            let begun = Instant::now();
            let execution = run_for(sandbox, &format!("echo start; {DAEMON} sleep 300"), 0.15);
            assert_eq!(execution.status, ExitStatus::TimedOut);
            assert_eq!(execution.output, b"start\n");
            assert!(
                begun.elapsed() < Duration::from_secs(3),
                "{round}: {:?}",
                begun.elapsed()
            );
            assert_eq!(n_strangers(sandbox), 0, "round {round}");
        }
    });
}

#[test]
fn the_published_case_of_two_seconds() {
    in_sandbox(|sandbox| {
        let begun = Instant::now();
        let execution = run_for(sandbox, &format!("echo start; {DAEMON} sleep 300"), 2.0);
        assert_eq!(execution.status, ExitStatus::TimedOut);
        assert_eq!(execution.output, b"start\n");
        assert!(begun.elapsed() >= Duration::from_secs(2));
        assert!(
            begun.elapsed() < Duration::from_secs(4),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(n_strangers(sandbox), 0);
    });
}

#[test]
fn a_finished_command_leaves_no_daemon() {
    in_sandbox(|sandbox| {
        let execution = run(sandbox, &format!("{DAEMON} echo done"));
        assert_eq!(execution.status, ExitStatus::Exited(0));
        assert_eq!(execution.output, b"done\n");
        assert_eq!(n_strangers(sandbox), 0);
        // One that holds the output open does not hold the command up.
        let begun = Instant::now();
        assert_eq!(run(sandbox, "sleep 30 & echo done").output, b"done\n");
        assert!(begun.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn commands_see_no_process_of_the_host() {
    in_sandbox(|sandbox| {
        let mine = std::process::id();
        // Numbers start anew, so a process of this number would be a coincidence.
        assert_eq!(n_strangers(sandbox), 0);
        let text = output(sandbox, &format!("kill -0 {mine} 2>&1; echo $?"));
        assert!(text.ends_with("1\n"), "{text}");
        let text = output(
            sandbox,
            "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | sort -u",
        );
        assert!(!text.contains("adversarial"), "{text}");
    });
}

#[test]
fn the_first_process_cannot_be_killed_stopped_or_slowed() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "for s in KILL STOP TERM HUP INT SEGV CHLD; do kill -$s 1 2>/dev/null; done; kill -KILL -1 2>/dev/null; \
             true",
        );
        assert_eq!(text, "");
        assert_alive(sandbox);
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import os, resource\n\
             def tried(name, f):\n\
             \x20   try: f(); print(name, 'worked')\n\
             \x20   except (OSError, ValueError): pass\n\
             tried('limits', lambda: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)))\n\
             tried('files', lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)))\n\
             tried('nice', lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))\n\
             tried('affinity', lambda: os.sched_setaffinity(1, {0}))\n\
             tried('policy', lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))\n\
             END",
        );
        assert_eq!(text, "");
        assert_alive(sandbox);
    });
}

#[test]
fn the_first_process_cannot_be_traced_or_looked_into() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import ctypes, os\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             if libc.ptrace(16, 1, 0, 0) == 0: print('attached')\n\
             if libc.ptrace(0x4206, 1, 0, 0) == 0: print('seized')\n\
             buffer = ctypes.create_string_buffer(8)\n\
             class Vector(ctypes.Structure): _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]\n\
             mine = Vector(ctypes.addressof(buffer), 8)\n\
             for address in range(0x400000, 0x500000, 4096):\n\
             \x20   if libc.process_vm_readv(1, ctypes.byref(mine), 1, ctypes.byref(Vector(address, 8)), 1, 0) > 0: print('read')\n\
             fd = libc.syscall(434, 1, 0)\n\
             for number in range(20):\n\
             \x20   if fd >= 0 and libc.syscall(438, fd, number, 0) >= 0: print('stole descriptor', number)\n\
             for name in 'mem', 'environ', 'maps', 'auxv', 'syscall', 'stack', 'io':\n\
             \x20   try: open('/proc/1/' + name, 'rb').read(1); print('opened', name)\n\
             \x20   except OSError: pass\n\
             for name in 'root', 'cwd', 'exe', 'fd/0', 'fd/3', 'ns/mnt':\n\
             \x20   try: print(os.readlink('/proc/1/' + name))\n\
             \x20   except OSError: pass\n\
             for name in 'root/etc', 'cwd', 'fd':\n\
             \x20   try: print(os.listdir('/proc/1/' + name))\n\
             \x20   except OSError: pass\n\
             END",
        );
        assert_eq!(text, "");
        // The same calls do work on a process of one's own, so their failure above means something.
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import ctypes, os, time\n\
             child = os.fork()\n\
             if child == 0: time.sleep(5); os._exit(0)\n\
             print(ctypes.CDLL(None).ptrace(0x4206, child, 0, 0), len(os.readlink(f'/proc/{child}/exe')) > 0)\n\
             END",
        );
        assert_eq!(text, "0 True\n");
    });
}

#[test]
fn commands_find_no_descriptor_but_their_streams() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "exec /usr/bin/python3 -c 'import os\n\
             for n in range(1024):\n\
             \x20   try: print(n, os.readlink(f\"/proc/self/fd/{n}\"))\n\
             \x20   except OSError: pass'",
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert_eq!(lines[0], "0 /dev/null");
        assert!(
            lines[1].starts_with("1 pipe:") && lines[2].starts_with("2 pipe:"),
            "{text}"
        );
        let text = output(
            sandbox,
            "grep -E '^(Cap(Inh|Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t' ' '",
        );
        let expected = "CapInh: 0000000000000000\nCapPrm: 0000000000000000\nCapEff: 0000000000000000\n\
                        CapBnd: 0000000000000000\nCapAmb: 0000000000000000\nNoNewPrivs: 1\nSeccomp: 2\n";
        assert_eq!(text, expected);
        // Signals start from their defaults.
        let text = output(
            sandbox,
            "grep -E '^Sig(Blk|Ign):' /proc/self/status | tr '\\t' ' '",
        );
        assert_eq!(text, "SigBlk: 0000000000000000\nSigIgn: 0000000000000000\n");
    });
}
