//! The same sandbox, started by a user without any privilege.

use std::{os::unix::fs::PermissionsExt, process::Command};

use crate::common::*;

/// Runs this crate's launcher as `nobody` where this test runs as root, otherwise as who we are.
fn as_user(arguments: &[&str]) -> (bool, String) {
    // The build directory need not be readable to others.
    let place = tempfile::tempdir().unwrap();
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = place.path().join("launcher");
    std::fs::copy(env!("CARGO_BIN_EXE_temper-sandbox-init"), &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = if is_root() {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&program);
        command
    } else {
        Command::new(&program)
    };
    let result = command
        .args(arguments)
        .env("PLANTED_SECRET", "swordfish-rootless")
        .current_dir("/")
        .output()
        .expect("setpriv (util-linux) is needed to test as another user");
    let text = String::from_utf8_lossy(&result.stdout).into_owned()
        + &String::from_utf8_lossy(&result.stderr);
    (result.status.success(), text)
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn a_user_without_privileges_gets_what_is_demanded() {
    if waived() {
        return;
    }
    let (success, text) = as_user(&["protections"]);
    assert!(success, "{text}");
    let protections: serde_json::Value = serde_json::from_str(&text).unwrap();
    for name in [
        "host-files-hidden",
        "read-only-root",
        "processes-isolated",
        "network-isolated",
        "syscall-filter",
        "disk-limit",
        "whole-tree-killed",
        "environment-scrubbed",
        "unprivileged",
        "process-limit",
    ] {
        assert_eq!(protections[name]["strength"], "enforced", "{name}: {text}");
    }
    // Either a delegated control group, or the truth.
    let memory = &protections["memory-limit"];
    let honest = memory["by"].as_str().unwrap().contains("RLIMIT_AS");
    assert_eq!(memory["strength"] == "per-process", honest, "{memory}");
}

#[test]
fn a_user_gets_a_work_tree_over_own_and_foreign_files() {
    if waived() {
        return;
    }
    let start = tempfile::tempdir().unwrap();
    std::fs::set_permissions(start.path(), PermissionsExt::from_mode(0o755)).unwrap();
    for path in ["kept", "edited", "gone", "dir/moved", ".git/HEAD"] {
        let path = start.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "start\n").unwrap();
    }
    std::os::unix::fs::symlink("kept", start.path().join("link")).unwrap();
    let check = || {
        let (success, text) = as_user(&[
            "changes",
            start.path().to_str().unwrap(),
            "cat edited link; echo x >> edited; rm gone; mv dir other; touch kept; echo y > .git/HEAD",
        ]);
        assert!(success, "{text}");
        assert_eq!(
            text,
            "start\nstart\n- dir/moved\n+ edited\n- gone\n+ other/moved\n"
        );
        assert_eq!(
            std::fs::read(start.path().join("edited")).unwrap(),
            b"start\n"
        );
    };
    // As root these files are foreign to the user, and are copied.
    check();
    if is_root() {
        for path in [
            "",
            "kept",
            "edited",
            "gone",
            "dir",
            "dir/moved",
            ".git",
            ".git/HEAD",
        ] {
            std::os::unix::fs::chown(start.path().join(path), Some(65534), Some(65534)).unwrap();
        }
        std::os::unix::fs::lchown(start.path().join("link"), Some(65534), Some(65534)).unwrap();
        check();
    }
}

#[test]
fn the_process_limit_of_users_is_their_sandbox_own() {
    if waived() {
        return;
    }
    // More than the limit at the user's other processes would change nothing: 600 above 512.
    let (success, text) = as_user(&[
        "exec",
        "for i in $(seq 600); do sleep 20 & done; ls -d /proc/[0-9]* | wc -l",
    ]);
    assert!(text.contains("fork"), "no limit was met: {success} {text}");
    let (success, text) = as_user(&[
        "exec",
        "for i in $(seq 300); do sleep 5 & done; echo enough",
    ]);
    assert!(success && text.contains("enough"), "{text}");
}

#[test]
fn attacks_by_a_user_fail_as_well() {
    if waived() {
        return;
    }
    let (success, text) = as_user(&[
        "exec",
        "id -u; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n' | grep swordfish; \
         ls -d /home/* /root /work 2>/dev/null; { kill -9 1; kill -9 -1; } 2>/dev/null; \
         (echo x > /usr/x) 2>/dev/null && echo wrote; unshare -Ur true 2>/dev/null && echo unshared; \
         cat /proc/1/mem /proc/1/maps 2>/dev/null | head -c 10; ls /proc/1/fd 2>/dev/null; \
         for i in 1 2 3 4 5 6; do head -c 400M /dev/zero > /tmp/$i; head -c 400M /dev/zero > /dev/shm/$i; done 2>/dev/null; \
         du -cm /tmp /dev/shm | tail -1 | cut -f1; rm /tmp/* /dev/shm/*; \
         touch x && ln -s x y && mv x z && git init -q . && stat -c %u z; \
         /usr/bin/python3 -c 'import resource\n\
         try: resource.prlimit(1, resource.RLIMIT_CPU, (1, 1)); print(\"limited\")\n\
         except PermissionError: print(\"refused\")'; exit 0",
    ]);
    assert!(success, "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.first(), Some(&"1000"), "{text}");
    assert_eq!(lines[1], "/home/agent", "{text}");
    let written: u64 = lines[2].parse().unwrap();
    assert!((900..=1024).contains(&written), "{text}");
    assert_eq!(lines[3..], ["1000", "refused"], "{text}");
}
