//! What a sandbox is for, before anybody attacks it.

use temper_core::{TreePath, task::InjectedFile, tree::Entry};
use temper_sandbox::{
    Backend, Demand, ExitStatus, Mount, Protection, SandboxError, namespaces::Namespaces,
};

use crate::common::*;

#[test]
fn commands_run_and_changes_are_collected() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    std::fs::write(start_tree.path().join("a.txt"), "one\n").unwrap();
    std::fs::create_dir(start_tree.path().join("dir")).unwrap();
    std::fs::write(start_tree.path().join("dir/b.txt"), "two\n").unwrap();
    std::fs::write(start_tree.path().join("gone.txt"), "three\n").unwrap();
    let mut spec = spec(Some(start_tree.path()));
    spec.files.push(InjectedFile {
        path: "/opt/temper/bin/tool".into(),
        content: "#!/bin/sh\necho tool ran\n".into(),
        executable: true,
    });
    let mut sandbox = start(&spec);
    let text = output(
        &mut *sandbox,
        "pwd; id -u; id -un; cat a.txt; echo new > n; chmod +x n; rm gone.txt; echo more >> dir/b.txt; \
         touch a.txt; /opt/temper/bin/tool",
    );
    assert_eq!(text, "/testbed\n1000\nagent\none\ntool ran\n");
    let execution = run(&mut *sandbox, "echo out; echo err >&2; exit 3");
    assert_eq!(execution.status, ExitStatus::Exited(3));
    assert_eq!(execution.output, b"out\nerr\n");
    let changes = sandbox.changes().unwrap();
    let path = |text: &str| TreePath::new(text).unwrap();
    assert_eq!(
        changes,
        [
            (path("dir/b.txt"), Some(Entry::file("two\nmore\n"))),
            (path("gone.txt"), None),
            (
                path("n"),
                Some(Entry::File {
                    content: b"new\n".into(),
                    executable: true
                })
            ),
        ]
        .into()
    );
    assert_eq!(
        std::fs::read_to_string(start_tree.path().join("dir/b.txt")).unwrap(),
        "two\n"
    );
    sandbox
        .write_files(&[InjectedFile {
            path: "/testbed/x/y".into(),
            content: "written".into(),
            executable: false,
        }])
        .unwrap();
    assert_eq!(output(&mut *sandbox, "cat x/y; echo z > x/y"), "written");
    assert_eq!(
        sandbox.read_file("/testbed/x/y", 10).unwrap().unwrap(),
        b"z\n"
    );
    let usage = sandbox.stop().unwrap();
    assert!(usage.wall_seconds > 0.0);
}

#[test]
fn protections_are_told_and_what_is_demanded_is_in_force() {
    if waived() {
        return;
    }
    let protections = backend().protections().unwrap();
    assert_eq!(protections.len(), 12);
    assert_eq!(Demand::default().unmet(&protections), []);
    // Whether control groups can be written depends on the machine; the rest does not.
    let mut everything = Demand(protections.keys().copied().collect());
    for limit in [Protection::MemoryLimit, Protection::ProcessLimit] {
        everything.0.remove(&limit);
    }
    assert_eq!(everything.unmet(&protections), []);
}

#[test]
fn an_unmet_demand_refuses_to_start() {
    if waived() {
        return;
    }
    let mut spec = spec(None);
    spec.network = temper_sandbox::Network::Host;
    match backend().start(&spec).map(drop) {
        Err(SandboxError::Refused { unmet, .. }) => {
            assert_eq!(unmet.len(), 1);
            assert_eq!(unmet[0].0, Protection::NetworkIsolated);
        }
        other => panic!("{other:?}"),
    }
    spec.demand.0.remove(&Protection::NetworkIsolated);
    assert_alive(&mut *start(&spec));
    spec.root = temper_sandbox::Root::Image("debian".into());
    let refusal = backend().start(&spec).map(drop);
    assert!(
        matches!(refusal, Err(SandboxError::Unsupported { .. })),
        "{refusal:?}"
    );
}

#[test]
fn a_program_that_is_no_launcher_is_an_error_and_not_a_hang() {
    let refusal = Namespaces::new().start(&spec(None)).map(drop);
    assert!(
        matches!(refusal, Err(SandboxError::Unavailable { .. })),
        "{refusal:?}"
    );
    let refusal = Namespaces::with_launcher("/bin/true")
        .start(&spec(None))
        .map(drop);
    assert!(
        matches!(refusal, Err(SandboxError::Start(_))),
        "{refusal:?}"
    );
    let refusal = Namespaces::with_launcher("/nonexistent")
        .start(&spec(None))
        .map(drop);
    assert!(
        matches!(refusal, Err(SandboxError::Start(_))),
        "{refusal:?}"
    );
}

#[test]
fn mounts_appear_at_any_path_and_are_read_only() {
    if waived() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    std::fs::create_dir(source.path().join("bin")).unwrap();
    std::fs::write(source.path().join("bin/data"), "mounted\n").unwrap();
    // A private directory, as interpreters below a home directory are.
    let targets = [
        source.path().to_str().unwrap(),
        "/root/.pyenv/versions/3",
        "/usr/local/deep/down",
        "/opt/temper/env",
        "/srv",
    ];
    let mut spec = spec(None);
    for target in targets {
        spec.mounts.push(Mount {
            source: source.path().into(),
            target: target.into(),
        });
    }
    let mut sandbox = start(&spec);
    for target in targets {
        assert_eq!(
            output(&mut *sandbox, &format!("cat {target}/bin/data")),
            "mounted\n"
        );
        let written = run(&mut *sandbox, &format!("echo x > {target}/bin/data"));
        assert_eq!(written.status, ExitStatus::Exited(1), "{target}");
    }
    assert_eq!(
        output(
            &mut *sandbox,
            "ls /usr/local/bin >/dev/null; ls /usr/bin/env"
        ),
        "/usr/bin/env\n"
    );
    assert_eq!(
        std::fs::read(source.path().join("bin/data")).unwrap(),
        b"mounted\n"
    );
}

#[test]
fn a_mount_target_behind_a_link_is_refused() {
    if waived() {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    for target in ["/bin/inside", "/../up", "relative", "/", "/dev/../etc"] {
        let mut spec = spec(None);
        spec.mounts.push(Mount {
            source: source.path().into(),
            target: target.into(),
        });
        let refusal = backend().start(&spec).map(drop);
        assert!(
            matches!(refusal, Err(SandboxError::Start(_))),
            "{target}: {refusal:?}"
        );
    }
}

#[test]
fn build_tools_and_interpreters_work() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && \
             printf 'int main(){return 7;}' > a.c && gcc a.c -o a && { ./a; echo $?; }",
        );
        assert_eq!(text, "7\n");
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import multiprocessing, os, pty, socket, subprocess, tempfile, threading\n\
             def f(x): return x * x\n\
             with multiprocessing.get_context('fork').Pool(2) as pool: print(pool.map(f, [1, 2, 3]))\n\
             server = socket.create_server(('127.0.0.1', 0))\n\
             client = socket.create_connection(server.getsockname())\n\
             pid, fd = pty.fork()\n\
             if pid == 0: os._exit(0)\n\
             os.waitpid(pid, 0)\n\
             thread = threading.Thread(target=lambda: print('thread')); thread.start(); thread.join()\n\
             print(subprocess.run(['sh', '-c', 'echo sub'], capture_output=True, text=True).stdout, end='')\n\
             print(os.getcwd(), os.path.expanduser('~'), tempfile.gettempdir(), socket.gethostname())\n\
             END",
        );
        assert_eq!(
            text,
            "[1, 4, 9]\nthread\nsub\n/testbed /home/agent /tmp sandbox\n"
        );
    });
}

#[test]
fn a_command_that_cannot_run_is_an_execution_that_says_so() {
    in_sandbox(|sandbox| {
        let mut command = temper_sandbox::Command::bash("true", std::time::Duration::from_secs(5));
        command.directory = Some("/missing".into());
        let execution = sandbox.exec(&command).unwrap();
        assert_eq!(execution.status, ExitStatus::Exited(127));
        let text = String::from_utf8(execution.output).unwrap();
        assert!(text.contains("/missing"), "{text}");
        // Longer than the kernel takes as one argument.
        let long = format!(
            "cat > big <<'END'\n{}\nEND\nwc -c < big",
            "x".repeat(300_000)
        );
        assert_eq!(output(sandbox, &long), "300001\n");
        assert_eq!(run(sandbox, "echo a\0b").status, ExitStatus::Exited(127));
        assert_alive(sandbox);
    });
}

#[test]
fn a_directory_can_be_the_root() {
    if waived() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    for directory in ["usr", "testbed", "proc", "etc", "data"] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
    }
    for (link, to) in [
        ("bin", "usr/bin"),
        ("lib", "usr/lib"),
        ("lib64", "usr/lib64"),
    ] {
        std::os::unix::fs::symlink(to, root.path().join(link)).unwrap();
    }
    std::fs::write(root.path().join("testbed/in-image"), "image\n").unwrap();
    std::fs::write(root.path().join("etc/marker"), "image\n").unwrap();
    let mut spec = spec(None);
    spec.root = temper_sandbox::Root::Directory(root.path().into());
    spec.mounts.push(Mount {
        source: "/usr".into(),
        target: "/usr".into(),
    });
    let mut sandbox = start(&spec);
    let text = output(
        &mut *sandbox,
        "cat in-image /etc/marker; echo y > in-image; ls -d /data",
    );
    assert_eq!(text, "image\nimage\n/data\n");
    assert_eq!(
        run(&mut *sandbox, "echo x > /etc/marker").status,
        ExitStatus::Exited(1)
    );
    let changes = sandbox.changes().unwrap();
    assert_eq!(changes.len(), 1);
    assert_eq!(
        std::fs::read(root.path().join("testbed/in-image")).unwrap(),
        b"image\n"
    );
}
