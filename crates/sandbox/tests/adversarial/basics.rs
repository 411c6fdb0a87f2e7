//! What a sandbox is for, before anybody attacks it.

use temper_core::{TreePath, task::InjectedFile, tree::Entry};
use temper_sandbox::{Backend, ExitStatus};

use crate::common::*;

#[test]
fn commands_run_and_changes_are_collected() {
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
fn every_protection_is_in_force_here() {
    let protections = backend().protections().unwrap();
    for (protection, strength) in &protections {
        assert!(
            matches!(strength, temper_sandbox::Strength::Enforced { .. }),
            "{protection:?}: {strength:?}"
        );
    }
    assert_eq!(protections.len(), 12);
}
