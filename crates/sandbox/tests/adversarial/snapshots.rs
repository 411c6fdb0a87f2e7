//! Snapshots of states that commands have made on purpose hard to keep.

use temper_core::{Bytes, task::InjectedFile};
use temper_sandbox::{Backend, Sandbox, SandboxError, Snapshot};

use crate::common::*;

const LIMIT: u64 = 16 << 20;

fn fork(snapshot: &Snapshot) -> Box<dyn Sandbox> {
    backend()
        .fork(snapshot, "fork")
        .unwrap_or_else(|error| panic!("failed to {error}"))
}

fn start_tree() -> tempfile::TempDir {
    let tree = tempfile::tempdir().unwrap();
    for (path, content) in [
        ("a.py", "a = 1\n"),
        ("b.py", "b = 1\n"),
        ("package/c.py", "c = 1\n"),
        ("package/inner/d.py", "d = 1\n"),
        ("other/e.py", "e = 1\n"),
        (".git/HEAD", "ref: main\n"),
    ] {
        let path = tree.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    tree
}

/// Everything there is to see in the places that can be written: names, kinds, modes, owners,
/// times, sizes, contents, links. The sizes of directories are the overlay's own.
const SEE: &str = "for place in /testbed /tmp /var/tmp /home/agent /logs /dev/shm; do \
    find $place -mindepth 1 \\( -type d -printf '%p %m %u %T@\\n' \\) \
    -o -printf '%p %y %m %u %T@ %s %n %l\\n'; done | sort; \
    find /testbed /tmp /var/tmp /home/agent /logs /dev/shm -type f -perm -400 | sort | xargs sha256sum";

#[test]
fn a_fork_sees_the_state_after_its_step_and_nothing_later() {
    if waived() {
        return;
    }
    let tree = start_tree();
    let mut parent = start(&spec(Some(tree.path())));
    output(
        &mut *parent,
        "echo 2 >> a.py; rm b.py; rm -r package; mkdir package; echo new > package/n.py; \
         rm -r other; echo file > other; mkdir -p deep/er; touch -d '2001-01-01 01:02:03.5' deep/x; \
         chmod 640 deep/x; echo t > /tmp/t; echo h > ~/h; echo s > /dev/shm/s; \
         git init -q . 2>/dev/null; echo index > .git/index; ln -s a.py link; ln a.py hard",
    );
    let then = output(&mut *parent, SEE);
    let snapshot = parent.snapshot(LIMIT).unwrap();
    output(
        &mut *parent,
        "echo later > later; echo 3 >> a.py; rm -r package; rm /tmp/t ~/h",
    );
    let after = output(&mut *parent, SEE);

    let mut one = fork(&snapshot);
    let mut two = fork(&snapshot);
    assert_eq!(output(&mut *one, SEE), then);
    output(&mut *one, "echo only here > one; rm a.py");
    assert_eq!(
        output(&mut *two, SEE),
        then,
        "a fork sees nothing of its sibling"
    );
    assert_eq!(output(&mut *parent, SEE), after, "nor does the parent");
    assert_eq!(
        output(&mut *two, "cat hard; echo x >> hard; tail -n 1 a.py"),
        "a = 1\n2\nx\n"
    );
    // The snapshot does not need its sandbox.
    parent.stop().unwrap();
    assert_eq!(output(&mut *fork(&snapshot), SEE), then);
    assert_eq!(
        std::fs::read_to_string(tree.path().join("a.py")).unwrap(),
        "a = 1\n"
    );
}

#[test]
fn a_fork_of_a_fork_is_the_same_state() {
    if waived() {
        return;
    }
    let tree = start_tree();
    let mut parent = start(&spec(Some(tree.path())));
    output(
        &mut *parent,
        "rm -r package/inner; echo 1 > package/new; rm a.py; mkdir a.py; echo 2 > a.py/b; \
         mkfifo /tmp/pipe; ln -s / /tmp/root; touch -h -d '2002-02-02' /tmp/root",
    );
    let first = parent.snapshot(LIMIT).unwrap();
    let again = parent.snapshot(LIMIT).unwrap();
    assert_eq!(first.digest(), again.digest(), "taking one changes nothing");
    let mut child = fork(&first);
    assert_eq!(child.changes().unwrap(), parent.changes().unwrap());
    assert_eq!(child.snapshot(LIMIT).unwrap().digest(), first.digest());
    let grandchild = fork(&child.snapshot(LIMIT).unwrap())
        .snapshot(LIMIT)
        .unwrap();
    assert_eq!(grandchild.digest(), first.digest());
    output(&mut *child, "echo >> package/new");
    assert_ne!(child.snapshot(LIMIT).unwrap().digest(), first.digest());
}

#[test]
fn hostile_leftovers_are_kept_as_they_are_or_refused() {
    if waived() {
        return;
    }
    let tree = start_tree();
    let mut parent = start(&spec(Some(tree.path())));
    output(
        &mut *parent,
        "python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/sock\")'; \
         mkfifo pipe; ln -s /etc/passwd outside; ln -s ../../../../etc/shadow climb; ln -s self self; \
         mkdir closed; echo secret > closed/in; chmod 000 closed/in; chmod 000 closed; \
         echo x > $'new\\nline \\xff'; truncate -s 60M sparse; printf end >> sparse; \
         mkdir sticky; chmod 3770 sticky; ln outside /testbed/link2 2>/dev/null; \
         rm -rf .git; mkdir .git; echo mine > .git/config",
    );
    let state = "stat -c '%n %F %a %s %U' /tmp/sock pipe outside climb self closed sticky sparse; \
         readlink outside climb self; du -k sparse | cut -f1; tail -c 3 sparse; cat .git/config; \
         ls .git; ls -b; chmod 700 closed && chmod 600 closed/in && cat closed/in; cat a.py";
    let snapshot = parent.snapshot(LIMIT).unwrap();
    assert!(
        snapshot.bytes() < 1 << 20,
        "holes are not kept: {}",
        snapshot.bytes()
    );
    let expected = output(&mut *parent, state);
    assert!(expected.contains("secret") && expected.contains("socket"));
    assert_eq!(output(&mut *fork(&snapshot), state), expected);

    // What is larger than asked for is refused, and the sandbox goes on.
    output(&mut *parent, "head -c 3000000 /dev/urandom > large");
    let refused = parent.snapshot(1 << 20).unwrap_err();
    assert!(
        matches!(
            &refused,
            SandboxError::File {
                operation: "snapshot",
                ..
            }
        ),
        "{refused}"
    );
    let large = parent.snapshot(LIMIT).unwrap();
    let sum = output(&mut *parent, "sha256sum large");
    assert_eq!(output(&mut *fork(&large), "sha256sum large"), sum);
    assert_alive(&mut *parent);
}

#[test]
fn what_is_no_file_is_refused() {
    in_sandbox(|sandbox| {
        output(
            sandbox,
            "python3 -c 'import ctypes; print(ctypes.CDLL(None).shmget(7, 4096, 0o1666) >= 0)'",
        );
        let refused = sandbox.snapshot(LIMIT).unwrap_err().to_string();
        assert!(refused.contains("System V"), "{refused}");
        assert_alive(sandbox);
    });
    // Whatever a command tries to leave running has ended with it.
    in_sandbox(|sandbox| {
        output(sandbox, "setsid sleep 1000 >/dev/null 2>&1 & echo > a");
        sandbox.snapshot(LIMIT).unwrap();
    });
}

#[test]
fn files_laid_by_the_caller_are_part_of_the_state() {
    if waived() {
        return;
    }
    let mut asked = spec(Some(start_tree().path()));
    let tree = start_tree();
    asked.work_tree.start = Some(tree.path().into());
    let file = |path: &str, content: &str| InjectedFile {
        path: path.into(),
        content: Bytes(content.into()),
        executable: true,
    };
    asked.files = vec![
        file("/opt/tool", "first"),
        file("/tmp/laid", "1"),
        file("/tmp/gone", "1"),
    ];
    let mut parent = start(&asked);
    parent
        .write_files(&[file("/opt/tool", "second"), file("/testbed/b.py", "laid")])
        .unwrap();
    output(&mut *parent, "rm /tmp/gone; echo 2 > /tmp/laid");
    let mut child = fork(&parent.snapshot(LIMIT).unwrap());
    let see = "cat /opt/tool /tmp/laid b.py; ls /tmp; test -x /opt/tool && echo executable";
    let expected = output(&mut *parent, see);
    assert_eq!(output(&mut *child, see), expected);
    assert!(expected.starts_with("second2\nlaid") && expected.ends_with("executable\n"));
}

#[test]
fn an_empty_work_tree_and_a_nested_home_are_kept() {
    if waived() {
        return;
    }
    let mut asked = spec(None);
    asked.environment.insert("HOME".into(), "/tmp/home".into());
    let mut parent = start(&asked);
    output(
        &mut *parent,
        "echo 1 > a; echo 2 > ~/b; echo 3 > /tmp/c; mkdir d",
    );
    let mut child = fork(&parent.snapshot(LIMIT).unwrap());
    assert_eq!(
        output(&mut *child, "cat a ~/b /tmp/c; ls /testbed"),
        "1\n2\n3\na\nd\n"
    );
}
