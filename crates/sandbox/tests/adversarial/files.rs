//! Files that are not what they seem.

use std::os::unix::fs::MetadataExt;

use temper_core::{TreePath, task::InjectedFile, tree::Entry};
use temper_sandbox::{ExitStatus, SandboxError};

use crate::common::*;

fn path(text: &str) -> TreePath {
    TreePath::new(text).unwrap()
}

#[test]
fn links_are_collected_as_links_and_never_followed() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    for name in ["file", "dir/inner", "kept"] {
        let at = start_tree.path().join(name);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, "start\n").unwrap();
    }
    let mut sandbox = start(&spec(Some(start_tree.path())));
    output(
        &mut *sandbox,
        "ln -s /etc/passwd stolen; rm file; ln -s /etc/hostname file; rm -r dir; ln -s /etc dir; \
         ln -s /proc/self/environ env; ln kept hard; ln -s . loop; mkfifo pipe; \
         /usr/bin/python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'",
    );
    assert_eq!(
        run(&mut *sandbox, "ln /etc/passwd hard-passwd").status,
        ExitStatus::Exited(1)
    );
    let changes = sandbox.changes().unwrap();
    let link = |target: &str| {
        Some(Entry::Symlink {
            target: target.into(),
        })
    };
    let expected = [
        (path("dir"), link("/etc")),
        (path("dir/inner"), None),
        (path("env"), link("/proc/self/environ")),
        (path("file"), link("/etc/hostname")),
        (path("hard"), Some(Entry::file("start\n"))),
        (path("loop"), link(".")),
        (path("stolen"), link("/etc/passwd")),
    ];
    assert_eq!(changes, expected.into());
    for stolen in [
        "/testbed/stolen",
        "/testbed/dir/hostname",
        "/testbed/env",
        "/testbed/pipe",
        "/testbed/loop/kept",
        "/testbed",
    ] {
        assert_eq!(
            sandbox.read_file(stolen, 1 << 20).unwrap(),
            None,
            "{stolen}"
        );
    }
    // Writing replaces a link and does not go through it.
    let injected = |path: &str| InjectedFile {
        path: path.into(),
        content: "ours\n".into(),
        executable: false,
    };
    sandbox
        .write_files(&[injected("/testbed/stolen"), injected("/testbed/pipe")])
        .unwrap();
    assert_eq!(
        output(
            &mut *sandbox,
            "cat stolen pipe; grep -c ours /etc/passwd; true"
        ),
        "ours\nours\n0\n"
    );
    for through in [
        "/testbed/dir/hostname",
        "/testbed/loop/x",
        "/usr/bin/ls",
        "/proc/x",
        "relative",
        "/testbed/../etc/x",
    ] {
        let refusal = sandbox.write_files(&[injected(through)]);
        assert!(
            matches!(
                refusal,
                Err(SandboxError::File {
                    operation: "write",
                    ..
                })
            ),
            "{through}: {refusal:?}"
        );
    }
    assert_alive(&mut *sandbox);
}

#[test]
fn nothing_outside_can_be_changed_through_the_start() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().join("target");
    std::fs::write(&target, "safe").unwrap();
    std::os::unix::fs::symlink(&target, start_tree.path().join("out")).unwrap();
    std::fs::hard_link(&target, start_tree.path().join("same")).unwrap();
    let before = target.metadata().unwrap();
    let mut sandbox = start(&spec(Some(start_tree.path())));
    run(
        &mut *sandbox,
        "echo bad > out; echo bad >> same; chmod 777 same; touch -d 2001-01-01 same; rm -f same out",
    );
    let after = target.metadata().unwrap();
    assert_eq!(std::fs::read(&target).unwrap(), b"safe");
    assert_eq!(
        (before.mode(), before.mtime(), before.nlink()),
        (after.mode(), after.mtime(), after.nlink())
    );
    assert_eq!(
        sandbox.changes().unwrap(),
        [(path("out"), None), (path("same"), None)].into()
    );
}

#[test]
fn every_kind_of_change_is_told_and_nothing_else() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    for name in [
        "touched",
        "rewritten",
        "moved/a",
        "moved/b",
        "replaced/old",
        "emptied/x",
        "mode",
        ".git/HEAD",
        "sub/deep/file",
    ] {
        let at = start_tree.path().join(name);
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, format!("{name}\n")).unwrap();
    }
    let mut sandbox = start(&spec(Some(start_tree.path())));
    assert_eq!(sandbox.changes().unwrap(), [].into());
    output(
        &mut *sandbox,
        "touch touched; chmod 600 touched; echo rewritten > rewritten; mv moved renamed; \
         rm -r replaced; mkdir replaced; echo new > replaced/new; rm emptied/x; chmod +x mode; \
         echo evil > .git/HEAD; echo new > .git/new; mkdir -p empty/dirs; echo x >> sub/deep/file; \
         mkdir sub/.git; echo y > sub/.git/z; printf 'bytes\\377' > $'odd\\377name'",
    );
    let file = |content: &[u8]| Some(Entry::file(content));
    let expected = [
        (path("emptied/x"), None),
        (
            path("mode"),
            Some(Entry::File {
                content: b"mode\n".into(),
                executable: true,
            }),
        ),
        (path("moved/a"), None),
        (path("moved/b"), None),
        (path("renamed/a"), file(b"moved/a\n")),
        (path("renamed/b"), file(b"moved/b\n")),
        (path("replaced/new"), file(b"new\n")),
        (path("replaced/old"), None),
        (path("sub/.git/z"), file(b"y\n")),
        (path("sub/deep/file"), file(b"sub/deep/file\nx\n")),
        (
            TreePath::new(b"odd\xffname".to_vec()).unwrap(),
            file(b"bytes\xff"),
        ),
    ];
    assert_eq!(sandbox.changes().unwrap(), expected.into());
}

/// What a sandbox's edit becomes as a patch must fit a fresh copy byte for byte, whatever its line
/// ends, its last line and the bytes in it.
#[test]
fn an_edit_is_collected_and_applies_to_a_fresh_copy_byte_for_byte() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    let before: [(&str, &[u8]); 4] = [
        ("crlf.py", b"a = 1\r\nb = 1\r\nc = 3\r\n\r\n"),
        ("mixed.py", b"a = 1\r\nb = 1\nc = 3\r\n"),
        ("open.py", b"a = 1\r\nb = 1"),
        ("bytes.bin", b"\x80b = 1\r\n\xff"),
    ];
    for (name, content) in before {
        std::fs::write(start_tree.path().join(name), content).unwrap();
    }
    let mut sandbox = start(&spec(Some(start_tree.path())));
    output(
        &mut *sandbox,
        "/usr/bin/python3 -c 'import glob\n\
         for name in glob.glob(\"*\"):\n\
        \x20 with open(name, \"rb\") as f: old = f.read()\n\
        \x20 with open(name, \"wb\") as f: f.write(old.replace(b\"b = 1\", b\"b = 2\"))'",
    );
    let changes = sandbox.changes().unwrap();
    let mut fresh = |path: &TreePath| {
        let content = before.iter().find(|(name, _)| *name == path.to_text());
        content.map(|(_, content)| Entry::file(*content))
    };
    let patch = temper_core::patch::diff(&mut fresh, &changes);
    let applied = temper_core::patch::apply(&patch, &mut fresh).unwrap();
    assert_eq!(applied.notes, [""; 0]);
    assert_eq!(applied.changes, changes);
    for (name, content) in before {
        let text: Vec<u8> = content.to_vec();
        let at = text.windows(5).position(|w| w == b"b = 1").unwrap();
        let mut expected = text.clone();
        expected[at + 4] = b'2';
        assert_eq!(changes[&path(name)], Some(Entry::file(expected)), "{name}");
    }
}

#[test]
fn collecting_is_bounded() {
    in_sandbox(|sandbox| {
        // Sparse files hold more than the disk limit without taking any of it.
        output(sandbox, "truncate -s 30M a; truncate -s 30M b");
        let refusal = sandbox.changes();
        assert!(
            matches!(
                refusal,
                Err(SandboxError::File {
                    operation: "collect",
                    ..
                })
            ),
            "{refusal:?}"
        );
        output(sandbox, "rm a b");
        // Deeper than any path can name.
        output(
            sandbox,
            "/usr/bin/python3 -c 'import os\n\
             for i in range(300): os.mkdir(\"d\" * 100); os.chdir(\"d\" * 100)\n\
             open(\"bottom\", \"w\").close()'; echo x > top",
        );
        let changes = sandbox.changes().unwrap();
        assert_eq!(changes.len(), 1, "{:?}", changes.keys());
        let refusal = sandbox.read_file("/testbed/top", 1);
        assert!(
            matches!(
                refusal,
                Err(SandboxError::File {
                    operation: "read",
                    ..
                })
            ),
            "{refusal:?}"
        );
        assert_alive(sandbox);
    });
}

#[test]
fn injected_files_cannot_be_changed_by_commands() {
    if waived() {
        return;
    }
    let mut spec = spec(None);
    for path in [
        "/opt/temper/bin/tool",
        "/verifier/run.sh",
        "/usr/local/bin/ours",
        "/etc/extra",
    ] {
        spec.files.push(InjectedFile {
            path: path.into(),
            content: "#!/bin/sh\necho ours\n".into(),
            executable: true,
        });
    }
    let mut sandbox = start(&spec);
    for file in &spec.files {
        let at = &file.path;
        assert_eq!(output(&mut *sandbox, at), "ours\n");
        for attack in [
            format!("echo bad > {at}"),
            format!("rm -f {at}"),
            format!("chmod 777 {at}"),
            format!("mv {at} /tmp/x"),
            format!("ln {at} /tmp/hard"),
            format!("touch $(dirname {at})/new"),
        ] {
            assert_ne!(
                run(&mut *sandbox, &attack).status,
                ExitStatus::Exited(0),
                "{attack}"
            );
        }
        assert_eq!(output(&mut *sandbox, at), "ours\n");
    }
    // Files that come later, for grading, are just as safe.
    let late = InjectedFile {
        path: "/grading/hidden".into(),
        content: "later\n".into(),
        executable: false,
    };
    sandbox.write_files(&[late]).unwrap();
    assert_eq!(output(&mut *sandbox, "cat /grading/hidden"), "later\n");
    assert_eq!(
        run(&mut *sandbox, "echo x > /grading/hidden").status,
        ExitStatus::Exited(1)
    );
}

#[test]
fn a_start_of_another_owner_still_works() {
    if waived() {
        return;
    }
    let start_tree = tempfile::tempdir().unwrap();
    std::fs::write(start_tree.path().join("private"), "1\n").unwrap();
    std::fs::create_dir(start_tree.path().join("closed")).unwrap();
    std::fs::write(start_tree.path().join("closed/in"), "2\n").unwrap();
    for (name, mode) in [("private", 0o600), ("closed", 0o700), ("closed/in", 0o600)] {
        let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(start_tree.path().join(name), permissions).unwrap();
    }
    if nix_is_root() {
        for name in ["", "private", "closed", "closed/in"] {
            std::os::unix::fs::chown(start_tree.path().join(name), Some(4321), Some(4321)).unwrap();
        }
    }
    let mut sandbox = start(&spec(Some(start_tree.path())));
    let text = output(
        &mut *sandbox,
        "cat private closed/in; echo 3 >> private; echo 4 > closed/new; stat -c %U private",
    );
    assert_eq!(text, "1\n2\nagent\n");
    assert_eq!(sandbox.changes().unwrap().len(), 2);
}

fn nix_is_root() -> bool {
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}
