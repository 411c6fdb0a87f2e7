//! Trying to become more than a user without capabilities.

use crate::common::*;

#[test]
fn no_call_makes_mounts_namespaces_or_worse() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import ctypes, errno, platform\n\
             libc = ctypes.CDLL(None, use_errno=True)\n\
             x86 = platform.machine() == 'x86_64'\n\
             calls = {\n\
             \x20   'mount': (165 if x86 else 40, b'tmpfs', b'/tmp', b'tmpfs', 0, 0),\n\
             \x20   'umount': (166 if x86 else 39, b'/proc', 2),\n\
             \x20   'pivot_root': (155 if x86 else 41, b'/', b'/'),\n\
             \x20   'chroot': (161 if x86 else 51, b'/tmp'),\n\
             \x20   'unshare user': (272 if x86 else 97, 0x10000000),\n\
             \x20   'unshare mount': (272 if x86 else 97, 0x20000),\n\
             \x20   'setns': (308 if x86 else 268, 0, 0),\n\
             \x20   'open_tree': (428, -100, b'/', 1),\n\
             \x20   'fsopen': (430, b'tmpfs', 0),\n\
             \x20   'mount_setattr': (442, -100, b'/', 0, 0, 0),\n\
             \x20   'keyctl': (250 if x86 else 219, 0, -3, 0),\n\
             \x20   'add_key': (248 if x86 else 217, b'user', b'a', b'b', 1, -3),\n\
             \x20   'bpf': (321 if x86 else 280, 0, 0, 0),\n\
             \x20   'perf_event_open': (298 if x86 else 241, 0, 0, -1, -1, 0),\n\
             \x20   'userfaultfd': (323 if x86 else 282, 1),\n\
             \x20   'kexec_load': (246 if x86 else 104, 0, 0, 0, 0),\n\
             \x20   'init_module': (175 if x86 else 105, 0, 0, b''),\n\
             \x20   'reboot': (169 if x86 else 142, 0, 0, 0, 0),\n\
             \x20   'syslog': (103 if x86 else 116, 3, 0, 0),\n\
             \x20   'sethostname': (170 if x86 else 161, b'x', 1),\n\
             \x20   'open_by_handle_at': (304 if x86 else 265, -100, 0, 0),\n\
             \x20   'io_uring_setup': (425, 1, 0),\n\
             \x20   'clone3': (435, 0, 0),\n\
             }\n\
             for name, (number, *arguments) in calls.items():\n\
             \x20   ctypes.set_errno(0)\n\
             \x20   result = libc.syscall(number, *arguments)\n\
             \x20   print(name, result, errno.errorcode.get(ctypes.get_errno()))\n\
             END",
        );
        assert_eq!(text.lines().count(), 23, "{text}");
        for line in text.lines() {
            let unknown = line.starts_with("io_uring") || line.starts_with("clone3");
            let expected = if unknown { "-1 ENOSYS" } else { "-1 EPERM" };
            assert!(line.ends_with(expected), "{line}");
        }
        for attack in [
            "unshare -Ur true",
            "unshare -m true",
            "mount -t tmpfs none /tmp",
            "umount /proc",
            "umount -l /testbed",
            "mount -o remount,rw /usr",
            "mount --bind /usr /tmp",
            "nsenter -t 1 -m true",
        ] {
            assert_ne!(
                run(sandbox, attack).status,
                temper_sandbox::ExitStatus::Exited(0),
                "{attack}"
            );
        }
    });
}

#[test]
fn programs_with_the_set_user_id_bit_give_nothing() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "for p in /usr/bin/su /usr/bin/sudo /usr/bin/mount /usr/bin/passwd /usr/bin/newgrp; do \
             test -e $p && timeout 2 $p -c id </dev/null 2>/dev/null | grep uid=0; done; \
             cp /usr/bin/id /tmp/id; chmod u+s /tmp/id; /tmp/id -u; \
             findmnt -rno OPTIONS 2>/dev/null | grep -vc nosuid; true",
        );
        let mut lines = text.lines();
        assert_eq!(lines.next(), Some("1000"), "{text}");
        assert!(
            lines.next().is_none_or(|n| n == "0"),
            "a mount honours set-user-id: {text}"
        );
    });
}

#[test]
fn kernel_files_cannot_be_written() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname \
             /proc/sys/vm/drop_caches /proc/self/oom_score_adj /proc/self/uid_map /proc/1/oom_score_adj \
             /proc/self/attr/current /proc/self/mem /dev/mem /dev/kmsg /proc/self/exe /proc/1/exe; do \
             (echo 0 > $f) 2>/dev/null && echo $f; done; true",
        );
        assert_eq!(text, "");
        // Writing the interpreter that runs, through every name it has.
        let text = output(
            sandbox,
            "/usr/bin/python3 - <<'END'\n\
             import os\n\
             for name in '/proc/self/exe', os.path.realpath('/proc/self/exe'), '/proc/1/exe':\n\
             \x20   for flags in os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC:\n\
             \x20       try: os.open(name, flags); print('opened', name)\n\
             \x20       except OSError: pass\n\
             END",
        );
        assert_eq!(text, "");
        for escape in [
            "ls /proc/1/root/",
            "ls /proc/1/cwd/",
            "cat /proc/1/root/etc/shadow",
            "ls /proc/self/root/work /proc/self/cwd/../work",
        ] {
            assert_ne!(
                run(sandbox, escape).status,
                temper_sandbox::ExitStatus::Exited(0),
                "{escape}"
            );
        }
    });
}

#[test]
fn commands_are_not_root_of_the_host() {
    in_sandbox(|sandbox| {
        let text = output(sandbox, "cut -d' ' -f1-40 /proc/self/uid_map; id -G; id -u");
        assert!(
            text.ends_with("1000\n1000\n") || text.contains("65534"),
            "{text}"
        );
        // The host sees another user than root: a file that commands make does not belong to it.
        let protections = temper_sandbox::Backend::protections(&backend()).unwrap();
        let unprivileged = &protections[&temper_sandbox::Protection::Unprivileged];
        assert!(
            matches!(unprivileged, temper_sandbox::Strength::Enforced { by } if !by.contains("id 0 "))
        );
    });
}
