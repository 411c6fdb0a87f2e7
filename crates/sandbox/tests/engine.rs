//! Containers of a real engine, if one is named: `TEMPER_TEST_ENGINE="unix:///path/api.sock image"`.
//! `tests/engine/run` starts private ones. Without, each test says that it was not run.
//!
//! The image needs `sh`, `bash`, `setsid`, and a work tree at `/repo` as that script makes it.

#![cfg(unix)]
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used)]

use std::{
    fs,
    io::{Read, Write},
    os::unix::{fs::symlink, net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use temper_core::{Bytes, Entry, TreePath, task::InjectedFile};
use temper_sandbox::{
    Backend, Command, Demand, Execution, ExitStatus, Limits, Mount, Network, Protection, Root,
    Sandbox, SandboxError, SandboxSpec, Shell, Strength, WorkTree,
    engine::{Engine, Kind},
};

/// Ignores every signal that can be ignored, in a session of its own, twice forked.
const DAEMON: &str = "setsid bash -c \"trap '' TERM HUP INT QUIT; (trap '' TERM HUP; while :; do sleep 0.05; done) & while :; do sleep 0.05; done\" </dev/null >/dev/null 2>&1 &";

struct Lab {
    address: String,
    image: String,
    engine: Engine,
    kind: Kind,
}

fn lab() -> Option<Lab> {
    let Ok(text) = std::env::var("TEMPER_TEST_ENGINE") else {
        eprintln!("not run: TEMPER_TEST_ENGINE names no engine (see tests/engine/run)");
        return None;
    };
    let (address, image) = text.split_once(' ').expect("an address and an image");
    let connect = |kind| Engine::connect(Some(address), kind, &[]);
    let (kind, engine) = match connect(Kind::Docker) {
        Ok(engine) => (Kind::Docker, engine),
        Err(docker) => match connect(Kind::Podman) {
            Ok(engine) => (Kind::Podman, engine),
            Err(podman) => panic!("no engine: {docker:?}, {podman:?}"),
        },
    };
    Some(Lab {
        address: address.into(),
        image: image.into(),
        engine,
        kind,
    })
}

impl Lab {
    fn spec(&self, start: Option<&Path>) -> SandboxSpec {
        SandboxSpec {
            root: Root::Image(self.image.clone()),
            work_tree: WorkTree {
                start: start.map(Into::into),
                path: if start.is_some() { "/testbed" } else { "/repo" }.into(),
            },
            mounts: vec![],
            files: vec![],
            environment: [("HOME", "/home/agent"), ("ONE", "1")]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            limits: Limits {
                memory_bytes: 256 << 20,
                max_processes: 64,
                file_size_bytes: 64 << 20,
                disk_bytes: 32 << 20,
                cpu_milli_cores: None,
                output_bytes: 64 << 10,
            },
            network: Network::None,
            demand: Demand::default(),
            label: "test".into(),
        }
    }

    fn start(&self, spec: &SandboxSpec) -> Box<dyn Sandbox> {
        self.engine
            .start(spec)
            .unwrap_or_else(|error| panic!("failed to {error}: {error:?}"))
    }

    /// Labels of the containers that carry one, as the engine itself tells.
    fn containers(&self, label: &str) -> usize {
        let mut socket =
            UnixStream::connect(self.address.strip_prefix("unix://").unwrap()).unwrap();
        let filter = format!("%7B%22label%22%3A%5B%22temper.label%3D{label}%22%5D%7D");
        write!(
            socket,
            "GET /v1.41/containers/json?all=1&filters={filter} HTTP/1.0\r\nHost: e\r\n\r\n"
        )
        .unwrap();
        let mut text = String::new();
        socket.read_to_string(&mut text).unwrap();
        assert!(text.contains(" 200 OK"), "{text}");
        text.matches("\"Id\":").count()
    }
}

fn run_for(sandbox: &mut dyn Sandbox, text: &str, seconds: f64) -> Execution {
    sandbox
        .exec(&Command::bash(text, Duration::from_secs_f64(seconds)))
        .unwrap()
}

fn output(sandbox: &mut dyn Sandbox, text: &str) -> String {
    let execution = run_for(sandbox, text, 30.0);
    let output = String::from_utf8_lossy(&execution.output).into_owned();
    assert_eq!(execution.status, ExitStatus::Exited(0), "{text}: {output}");
    output
}

/// Processes besides the first one, the wrapper and the command itself.
fn n_strangers(sandbox: &mut dyn Sandbox) -> usize {
    let list = output(sandbox, "echo /proc/[0-9]* $$ $PPID");
    let words: Vec<&str> = list.split_whitespace().collect();
    let (own, numbers) = (&words[words.len() - 2..], &words[..words.len() - 2]);
    numbers
        .iter()
        .filter_map(|word| word.strip_prefix("/proc/"))
        .filter(|number| *number != "1" && !own.contains(number))
        .count()
}

fn path(text: &str) -> TreePath {
    text.parse().unwrap()
}

fn injected(path: &str, content: &str, executable: bool) -> InjectedFile {
    InjectedFile {
        path: path.into(),
        content: Bytes::from(content),
        executable,
    }
}

#[test]
fn commands_run_and_say_how_they_ended() {
    let Some(lab) = lab() else { return };
    let start = tempfile::tempdir().unwrap();
    fs::write(start.path().join("a file"), "content\n").unwrap();
    let mut sandbox = lab.start(&lab.spec(Some(start.path())));
    let sandbox = &mut *sandbox;
    assert_eq!(
        output(sandbox, "pwd; cat 'a file'; echo $ONE $HOME"),
        "/testbed\ncontent\n1 /home/agent\n"
    );
    // The order of the two streams is that of the writes.
    let both = "for i in 1 2 3 4 5 6 7 8 9; do echo o$i; echo e$i >&2; done";
    let expected: String = (1..10).map(|i| format!("o{i}\ne{i}\n")).collect();
    assert_eq!(output(sandbox, both), expected);
    assert_eq!(
        run_for(sandbox, "exit 3", 10.0).status,
        ExitStatus::Exited(3)
    );
    let killed = run_for(sandbox, "kill -9 $$", 10.0);
    assert_eq!(killed.status, ExitStatus::Exited(137));
    assert_eq!(killed.output, b"");
    assert_eq!(output(sandbox, "cd /; export X=1"), "");
    assert_eq!(output(sandbox, "pwd; echo \"$X\"; cat"), "/testbed\n\n");
    // Everything that a command needs to be told arrives as it is.
    let mut command = Command::bash("echo \"$A\"; pwd", Duration::from_secs(10));
    command
        .environment
        .insert("A".into(), "a 'b' \"c\" $d\n\\".into());
    command.directory = Some("/tmp".into());
    command.shell = Shell::Sh;
    let execution = sandbox.exec(&command).unwrap();
    assert_eq!(
        String::from_utf8_lossy(&execution.output),
        "a 'b' \"c\" $d\n\\\n/tmp\n"
    );
    command.directory = Some("/missing place".into());
    let execution = sandbox.exec(&command).unwrap();
    assert_eq!(execution.status, ExitStatus::Exited(127));
    assert_eq!(execution.output, b"cannot enter /missing place\n");
    // Longer than the kernel takes as one argument.
    let long = format!("x='{}'; echo ${{#x}}", "é$(no)`".repeat(40_000));
    let execution = run_for(sandbox, &long, 20.0);
    let text = String::from_utf8_lossy(&execution.output).into_owned();
    assert!(
        text == "280000\n" || text == "320000\n",
        "{:?}",
        text.chars().take(200).collect::<String>()
    );
    // Bytes that are no text come as they are.
    assert_eq!(
        run_for(sandbox, "printf '\\200\\377x'", 10.0).output,
        b"\x80\xffx"
    );
}

#[test]
fn a_timeout_ends_daemons_and_keeps_the_output() {
    let Some(lab) = lab() else { return };
    let mut sandbox = lab.start(&lab.spec(None));
    let begun = Instant::now();
    let execution = run_for(
        &mut *sandbox,
        &format!("echo start; {DAEMON} sleep 300"),
        2.0,
    );
    assert_eq!(execution.status, ExitStatus::TimedOut);
    assert_eq!(execution.output, b"start\n");
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert!(
        begun.elapsed() < Duration::from_secs(10),
        "{:?}",
        begun.elapsed()
    );
    for round in 0..10 {
        let execution = run_for(
            &mut *sandbox,
            &format!("echo start; {DAEMON} sleep 300"),
            0.2,
        );
        assert_eq!(execution.status, ExitStatus::TimedOut);
        assert_eq!(execution.output, b"start\n", "round {round}");
        assert_eq!(n_strangers(&mut *sandbox), 0, "round {round}");
    }
}

#[test]
fn a_finished_command_leaves_no_daemon_and_does_not_wait_for_one() {
    let Some(lab) = lab() else { return };
    let mut sandbox = lab.start(&lab.spec(None));
    let sandbox = &mut *sandbox;
    assert_eq!(output(sandbox, &format!("{DAEMON} echo done")), "done\n");
    assert_eq!(n_strangers(sandbox), 0);
    let begun = Instant::now();
    assert_eq!(output(sandbox, "sleep 30 & echo done"), "done\n");
    assert!(begun.elapsed() < Duration::from_secs(10));
    // One that kills the shell that waits for it, and everything else it can reach.
    let execution = run_for(sandbox, "kill -9 $PPID; sleep 300", 1.0);
    assert!(
        matches!(
            execution.status,
            ExitStatus::TimedOut | ExitStatus::Exited(137)
        ),
        "{execution:?}"
    );
    let execution = run_for(
        sandbox,
        "sleep 300 & kill -9 -1; echo survived; kill -9 1; kill -STOP 1",
        2.0,
    );
    assert!(execution.output.starts_with(b"survived"), "{execution:?}");
    assert_eq!(n_strangers(sandbox), 0);
}

#[test]
fn a_command_that_takes_the_first_process_its_input_is_ended_all_the_same() {
    let Some(lab) = lab() else { return };
    let mut sandbox = lab.start(&lab.spec(None));
    let sandbox = &mut *sandbox;
    let thief = "(setsid sh -c 'trap \"\" TERM; while :; do cat /proc/1/fd/0; done' >/dev/null 2>&1 &); sleep 300";
    let execution = run_for(sandbox, thief, 1.0);
    assert_eq!(execution.status, ExitStatus::TimedOut);
    assert_eq!(n_strangers(sandbox), 0);
}

#[test]
fn attacks_on_limits_end_with_the_command() {
    let Some(lab) = lab() else { return };
    let mut sandbox = lab.start(&lab.spec(None));
    let sandbox = &mut *sandbox;
    // Processes.
    let bomb = "f() { f & f & sleep 100; }; f; sleep 100";
    let execution = run_for(sandbox, bomb, 2.0);
    assert!(matches!(
        execution.status,
        ExitStatus::TimedOut | ExitStatus::Exited(_)
    ));
    assert_eq!(n_strangers(sandbox), 0);
    // Memory: the command is killed, not the sandbox.
    let hog = "x=a; while :; do x=$x$x$x$x; done";
    let execution = run_for(sandbox, hog, 60.0);
    assert!(
        matches!(execution.status, ExitStatus::Exited(code) if code != 0),
        "{execution:?}"
    );
    assert!(execution.out_of_memory, "{execution:?}");
    // One file.
    let execution = run_for(
        sandbox,
        "dd if=/dev/zero of=/tmp/big bs=1M count=100 2>/dev/null; rm -f /tmp/big",
        60.0,
    );
    assert_eq!(execution.status, ExitStatus::Exited(0));
    // Some shells remark on how a command ended.
    let text = output(
        sandbox,
        "dd if=/dev/zero of=/tmp/big bs=1M count=100 >/dev/null 2>&1; wc -c </tmp/big",
    );
    assert_eq!(text.lines().last().unwrap(), (64 << 20).to_string());
    // Output.
    let begun = Instant::now();
    let execution = run_for(
        sandbox,
        "echo first; yes | head -c 50000000; echo last",
        60.0,
    );
    assert_eq!(execution.status, ExitStatus::Exited(0));
    assert_eq!(execution.output.len(), 64 << 10);
    assert!(execution.output.starts_with(b"first\n") && execution.output.ends_with(b"last\n"));
    let omitted = execution.omitted.unwrap();
    assert_eq!(omitted.at, 32 << 10);
    assert_eq!(omitted.bytes, 50_000_011 - (64 << 10));
    let execution = run_for(sandbox, "yes", 1.0);
    assert_eq!(execution.status, ExitStatus::TimedOut);
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(output(sandbox, "echo alive"), "alive\n");
}

#[test]
fn a_sandbox_has_no_network_no_privileges_and_nothing_of_the_host() {
    let Some(lab) = lab() else { return };
    let mut sandbox = lab.start(&lab.spec(None));
    let sandbox = &mut *sandbox;
    assert_eq!(output(sandbox, "ls /sys/class/net"), "lo\n");
    let status = output(
        sandbox,
        "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status | tr '\\t' ' '",
    );
    // CHOWN is bit 0, DAC_OVERRIDE 1, FOWNER 3.
    assert_eq!(
        status,
        "CapBnd: 000000000000000b\nNoNewPrivs: 1\nSeccomp: 2\n"
    );
    assert_eq!(
        output(
            sandbox,
            "mount -t tmpfs x /tmp 2>/dev/null && echo mounted; mknod /tmp/d b 8 0 2>/dev/null && echo made; true"
        ),
        ""
    );
    assert_eq!(
        output(
            sandbox,
            "tr '\\0' '\\n' </proc/1/environ | grep -c TEMPER; true"
        ),
        "0\n"
    );
    let protections = lab.engine.protections().unwrap();
    for protection in Demand::default().0 {
        assert!(
            matches!(protections[&protection], Strength::Enforced { .. }),
            "{protection:?}"
        );
    }
    assert!(matches!(
        protections[&Protection::DiskLimit],
        Strength::Absent { .. }
    ));
}

#[test]
fn files_are_written_and_read_without_following_links() {
    let Some(lab) = lab() else { return };
    let start = tempfile::tempdir().unwrap();
    fs::write(start.path().join("seen"), "1").unwrap();
    let mounted = tempfile::tempdir().unwrap();
    fs::write(mounted.path().join("inside"), "host\n").unwrap();
    let mut spec = lab.spec(Some(start.path()));
    spec.mounts = vec![Mount {
        source: mounted.path().into(),
        target: "/opt/temper/env".into(),
    }];
    spec.files = vec![
        injected("/opt/temper/bin/tool", "#!/bin/sh\necho tool\n", true),
        injected("/home/agent/.profile", "x", false),
    ];
    let mut sandbox = lab.start(&spec);
    let sandbox = &mut *sandbox;
    assert_eq!(
        output(
            sandbox,
            "/opt/temper/bin/tool; cat /opt/temper/env/inside; touch ~/new && echo home"
        ),
        "tool\nhost\nhome\n"
    );
    assert_ne!(
        run_for(sandbox, "echo x >/opt/temper/env/inside", 10.0).status,
        ExitStatus::Exited(0)
    );
    output(
        sandbox,
        "ln -s /etc etc; ln -s /etc/passwd passwd; mkfifo pipe; mkdir dir; ln -s /nowhere dangling; chmod 000 seen",
    );
    for absent in [
        "/testbed/etc",
        "/testbed/etc/passwd",
        "/testbed/passwd",
        "/testbed/pipe",
        "/testbed/dir",
        "/testbed/missing",
        "/testbed/seen/x",
        "/testbed/dangling",
    ] {
        assert_eq!(sandbox.read_file(absent, 1000).unwrap(), None, "{absent}");
    }
    for wrong in ["testbed/seen", "/testbed/../etc/passwd", "/", "", "/a\0b"] {
        assert!(sandbox.read_file(wrong, 1000).is_err(), "{wrong:?}");
    }
    assert_eq!(
        sandbox.read_file("/testbed/seen", 1).unwrap().unwrap(),
        b"1"
    );
    assert!(sandbox.read_file("/testbed/seen", 0).is_err());
    output(
        sandbox,
        "truncate -s 60M sparse 2>/dev/null || dd if=/dev/zero of=sparse bs=1 count=1 seek=60000000 2>/dev/null",
    );
    assert!(sandbox.read_file("/testbed/sparse", 1 << 20).is_err());
    sandbox
        .write_files(&[
            injected("/testbed/passwd", "mine", false),
            injected("/testbed/pipe", "mine", true),
            injected("/testbed/new/deep/file", "mine", false),
            injected("/tmp/temporary", "mine", false),
        ])
        .unwrap();
    for written in [
        "/testbed/passwd",
        "/testbed/pipe",
        "/testbed/new/deep/file",
        "/tmp/temporary",
    ] {
        assert_eq!(
            sandbox.read_file(written, 4).unwrap().unwrap(),
            b"mine",
            "{written}"
        );
    }
    assert_eq!(
        output(
            sandbox,
            "grep -c mine /etc/passwd; test -x pipe && echo executable; stat -c %a /tmp"
        ),
        "0\nexecutable\n1777\n"
    );
    for refused in [
        "/testbed/etc/evil",
        "/testbed/dir",
        "/testbed/seen/x",
        "/opt/temper/env/evil",
        "/testbed/../evil",
    ] {
        let error = sandbox
            .write_files(&[injected(refused, "x", false)])
            .unwrap_err();
        assert!(
            matches!(
                error,
                SandboxError::File {
                    operation: "write",
                    ..
                }
            ),
            "{refused}: {error}"
        );
    }
    assert_eq!(output(sandbox, "ls /etc/evil /evil 2>/dev/null; true"), "");
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 1);
}

#[test]
fn changes_of_an_uploaded_start_are_found() {
    let Some(lab) = lab() else { return };
    let start = tempfile::tempdir().unwrap();
    let root = start.path();
    for (name, content) in [
        ("same", "1"),
        ("edited", "1"),
        ("removed", "1"),
        ("dir/inner", "1"),
        ("to-link", "1"),
        (".git/HEAD", "1"),
    ] {
        let file = root.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, content).unwrap();
    }
    let long = format!("{0}/{0}/{0}", "n".repeat(90));
    fs::create_dir_all(root.join(&long)).unwrap();
    fs::write(root.join(&long).join("x"), "1").unwrap();
    symlink("same", root.join("link")).unwrap();
    let mut sandbox = lab.start(&lab.spec(Some(root)));
    let sandbox = &mut *sandbox;
    assert_eq!(sandbox.changes().unwrap(), Default::default());
    output(
        sandbox,
        "echo 2 >edited; rm removed; rm -r dir; mkdir new; echo 3 >new/file; chmod +x new/file; rm to-link; ln -s /etc/passwd to-link; \
         ln -s /etc outside; mkfifo pipe; echo 4 >.git/HEAD; echo 5 >.git/config; ln same hard; ln new/file new/hard; mkdir sub; mkdir sub/.git; echo 6 >sub/.git/x; \
         touch same; cp same t; cat t >same; rm t; mkdir empty",
    );
    let changes = sandbox.changes().unwrap();
    let file = |content: &str, executable| {
        Some(Entry::File {
            content: content.as_bytes().to_vec(),
            executable,
        })
    };
    let link = |target: &str| {
        Some(Entry::Symlink {
            target: target.as_bytes().to_vec(),
        })
    };
    let expected = [
        ("dir/inner", None),
        ("edited", file("2\n", false)),
        ("hard", file("1", false)),
        ("new/file", file("3\n", true)),
        ("new/hard", file("3\n", true)),
        ("outside", link("/etc")),
        ("removed", None),
        ("sub/.git/x", file("6\n", false)),
        ("to-link", link("/etc/passwd")),
    ]
    .map(|(name, entry)| (path(name), entry));
    assert_eq!(changes, expected.into());
    assert_eq!(fs::read_to_string(root.join("edited")).unwrap(), "1");
    // Too much is refused with a reason, also by the length of a file that takes no space.
    output(
        sandbox,
        "dd if=/dev/zero of=big bs=1 count=1 seek=40000000 2>/dev/null",
    );
    let error = sandbox.changes().unwrap_err().to_string();
    assert!(error.contains("disk limit"), "{error}");
    output(
        sandbox,
        "rm big; cd /; rm -rf /testbed; ln -s /etc /testbed",
    );
    let error = sandbox.changes().unwrap_err().to_string();
    assert!(error.contains("no longer a directory"), "{error}");
}

#[test]
fn changes_of_an_image_are_found() {
    let Some(lab) = lab() else { return };
    for _ in 0..2 {
        let mut sandbox = lab.start(&lab.spec(None));
        let sandbox = &mut *sandbox;
        assert_eq!(sandbox.changes().unwrap(), Default::default());
        output(sandbox, "echo 2 >a; rm b/c; echo 3 >.git/HEAD; echo new >d");
        let changes = sandbox.changes().unwrap();
        let expected = [
            ("a", Some(Entry::file("2\n"))),
            ("b/c", None),
            ("d", Some(Entry::file("new\n"))),
        ]
        .map(|(name, entry)| (path(name), entry));
        assert_eq!(changes, expected.into());
    }
    assert_eq!(lab.containers("work%20tree%20of%20an%20image"), 0);
}

#[test]
fn what_cannot_be_done_is_said() {
    let Some(lab) = lab() else { return };
    let mut spec = lab.spec(None);
    spec.root = Root::Image("no/such-image:at-all".into());
    let error = lab.engine.start(&spec).err().unwrap();
    assert!(
        matches!(&error, SandboxError::Unavailable { hint, .. } if hint.contains("pull")),
        "{error:?}"
    );
    spec.root = Root::Host;
    assert!(matches!(
        lab.engine.start(&spec),
        Err(SandboxError::Unsupported { .. })
    ));
    let mut spec = lab.spec(None);
    spec.mounts = vec![Mount {
        source: "/no/such/place".into(),
        target: "/mnt/x".into(),
    }];
    assert!(matches!(
        lab.engine.start(&spec),
        Err(SandboxError::Start(_))
    ));
    let mut spec = lab.spec(None);
    spec.demand.0.insert(Protection::DiskLimit);
    assert!(matches!(
        lab.engine.start(&spec),
        Err(SandboxError::Refused { .. })
    ));
    let other = if lab.kind == Kind::Docker {
        Kind::Podman
    } else {
        Kind::Docker
    };
    assert!(matches!(
        Engine::connect(Some(&lab.address), other, &[]),
        Err(SandboxError::Unavailable { .. })
    ));
}

#[test]
fn nothing_is_left_after_fifty_runs() {
    let Some(lab) = lab() else { return };
    let mut spec = lab.spec(None);
    spec.label = "fifty".into();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for round in 0..25 {
                    let mut sandbox = lab.start(&spec);
                    let text = if round % 2 == 0 {
                        "sleep 100 & true"
                    } else {
                        "true"
                    };
                    assert_eq!(output(&mut *sandbox, text), "");
                    if round % 3 == 0 {
                        drop(sandbox);
                    } else {
                        let usage = sandbox.stop().unwrap();
                        assert!(usage.wall_seconds > 0.0 && usage.cpu_seconds.unwrap() > 0.0);
                        assert!(usage.peak_memory_bytes.unwrap() > 100_000, "{usage:?}");
                    }
                }
            });
        }
    });
    assert_eq!(lab.containers("fifty"), 0);
}

/// Not a test of its own: what the next one starts and kills.
#[test]
fn child_that_is_killed() {
    if std::env::var_os("TEMPER_TEST_ENGINE_CHILD").is_none() {
        return;
    }
    let lab = lab().unwrap();
    let mut spec = lab.spec(None);
    spec.label = "orphan".into();
    let mut sandbox = lab.start(&spec);
    println!("up");
    let _ = sandbox.exec(&Command::bash(
        format!("{DAEMON} sleep 300"),
        Duration::from_secs(300),
    ));
}

#[test]
fn nothing_is_left_when_the_parent_is_killed() {
    let Some(lab) = lab() else { return };
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture"])
        .env("TEMPER_TEST_ENGINE_CHILD", "1")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("up") {
        line.clear();
        assert!(
            std::io::BufRead::read_line(&mut stdout, &mut line).unwrap() > 0,
            "the child ended early"
        );
    }
    assert_eq!(lab.containers("orphan"), 1);
    std::thread::sleep(Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    // It ends by itself because nobody holds its input; a new connection removes what does not.
    let begun = Instant::now();
    let mut reaped = false;
    while lab.containers("orphan") > 0 {
        if begun.elapsed() > Duration::from_secs(15) && !reaped {
            reaped = true;
            Engine::connect(Some(&lab.address), lab.kind, &[]).unwrap();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it lives on");
        std::thread::sleep(Duration::from_millis(50));
    }
    println!(
        "gone after {:?}, by a new connection: {reaped}",
        begun.elapsed()
    );
}
