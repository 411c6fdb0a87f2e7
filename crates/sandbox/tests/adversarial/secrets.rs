//! Looking for what the host would rather keep.

use std::io::Write;

use crate::common::*;

const SECRET: &str = "swordfish-5b1c";

#[test]
fn the_host_environment_and_home_are_out_of_reach() {
    if waived() {
        return;
    }
    let mut secret = tempfile::NamedTempFile::new().unwrap();
    writeln!(secret, "{SECRET}").unwrap();
    // A process of its own whose environment holds the secret, and whose sandbox is searched.
    let probe = env!("CARGO_BIN_EXE_temper-sandbox-init");
    let search = format!(
        "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; \
         grep -rsl {} / --include='*environ*' 2>/dev/null; cat {} 2>&1; \
         ls -a /root /home /mnt /media /work 2>&1; exit 0",
        // Not spelled out, or the search would find itself.
        "sword''fish-5b1c",
        secret.path().display(),
    );
    let result = std::process::Command::new(probe)
        .args(["exec", &search])
        .env("PLANTED_SECRET", SECRET)
        .env("API_KEY", SECRET)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&result.stdout);
    assert!(
        result.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&result.stderr)
    );
    assert!(text.contains("PATH="), "the search did not run: {text}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!text.contains("PLANTED_SECRET"), "{text}");
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".into());
    if home != "/home/agent" {
        assert!(
            text.contains("cannot access '/root'") || !text.contains(".bashrc"),
            "{text}"
        );
    }
}

#[test]
fn the_root_holds_nothing_but_system_directories() {
    in_sandbox(|sandbox| {
        let text = output(sandbox, "ls -A /");
        let known = [
            "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "logs", "nix", "proc",
            "sbin", "testbed", "tmp", "usr", "var",
        ];
        for name in text.lines() {
            assert!(known.contains(&name), "/{name} is visible");
        }
        let text = output(sandbox, "ls -A /etc");
        for name in [
            "shadow",
            "ssh",
            "sudoers",
            "machine-id",
            "fstab",
            "gshadow",
            "gitconfig",
        ] {
            assert!(
                !text.lines().any(|line| line == name),
                "/etc/{name} is visible"
            );
        }
        assert_eq!(
            output(sandbox, "ls -A /home/agent /var /dev/shm /tmp"),
            "/dev/shm:\n\n/home/agent:\n\n/tmp:\n\n/var:\ntmp\n"
        );
        assert_eq!(
            output(
                sandbox,
                "ls /sys 2>/dev/null; cat /proc/cmdline /proc/keys /proc/kallsyms"
            ),
            ""
        );
        assert_eq!(
            output(sandbox, "hostname; cat /etc/hostname"),
            "sandbox\nsandbox\n"
        );
    });
}

#[test]
fn no_host_device_is_there() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "find /usr /etc /dev /home /tmp /var 2>/dev/null | /usr/bin/python3 -c 'import os, stat, sys\n\
             for line in sys.stdin:\n\
             \x20   mode = os.lstat(line[:-1]).st_mode\n\
             \x20   if stat.S_ISCHR(mode) or stat.S_ISBLK(mode): print(line[:-1])' | sort",
        );
        assert_eq!(
            text,
            "/dev/full\n/dev/null\n/dev/pts/ptmx\n/dev/random\n/dev/urandom\n/dev/zero\n"
        );
    });
}
