//! The system call filter of a sandbox: what no build tool, interpreter or test needs and what has
//! let processes out of sandboxes before.
//!
//! It is a list of what is refused, because code to be repaired may call anything else. Refusals are
//! errors rather than signals, so that programs that merely probe go on.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen::Dword, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule,
};

/// Refused with `EPERM` whatever the arguments.
const FORBIDDEN: &[i64] = &[
    // Mounts and namespaces.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_fanotify_init,
    // Kernel keyrings are not bound to namespaces.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Large kernel interfaces with a history of escapes.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    // The machine itself.
    libc::SYS_kexec_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // Memory placement and inspection across processes.
    libc::SYS_kcmp,
    libc::SYS_migrate_pages,
    libc::SYS_move_pages,
];

#[cfg(target_arch = "x86_64")]
const FORBIDDEN_HERE: &[i64] = &[
    libc::SYS_kexec_file_load,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS__sysctl,
    libc::SYS_lookup_dcookie,
];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[i64] = &[];

/// Answered as if the kernel did not know them, so that callers fall back: `clone3` takes its flags
/// from memory, where a filter cannot look; the other two bypass filters or accounting.
const UNKNOWN: &[i64] = &[
    libc::SYS_clone3,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_memfd_secret,
];

/// Flags of `clone` and `unshare` that make namespaces.
const NEW_NAMESPACES: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
    0x80,
];

/// Families of sockets that stay inside a network namespace. Others do not: `AF_VSOCK` reaches the
/// machine that runs a virtual machine.
const FAMILIES: &[i32] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// The filter, ready to be put on each command.
pub struct Filter(Vec<BpfProgram>);

impl Filter {
    /// Compiles the filter, and asks the kernel whether it takes filters.
    pub fn new() -> io::Result<Filter> {
        super::sys::prctl(libc::PR_GET_SECCOMP, 0)?;
        programs().map(Filter)
    }

    /// Puts the filter on this process and everything it will start. Needs `NO_NEW_PRIVS`.
    pub fn enter(&self) -> io::Result<()> {
        self.0
            .iter()
            .try_for_each(|program| seccompiler::apply_filter(program))
            .map_err(io::Error::other)
    }
}

fn programs() -> io::Result<Vec<BpfProgram>> {
    let mut forbidden: Rules = FORBIDDEN
        .iter()
        .chain(FORBIDDEN_HERE)
        .map(|number| (*number, vec![]))
        .collect();
    forbidden.insert(libc::SYS_clone, any_flag(0, NEW_NAMESPACES)?);
    forbidden.insert(libc::SYS_unshare, any_flag(0, NEW_NAMESPACES)?);
    // The first process may have the command's uid; its limits and priority are not the command's
    // to set.
    for (number, argument) in [
        (libc::SYS_prlimit64, 0),
        (libc::SYS_sched_setaffinity, 0),
        (libc::SYS_sched_setscheduler, 0),
        (libc::SYS_sched_setparam, 0),
        (libc::SYS_sched_setattr, 0),
    ] {
        forbidden.insert(number, vec![rule([equal(argument, 1)?])?]);
    }
    for (number, whole_user) in [
        (libc::SYS_setpriority, libc::PRIO_USER as u64),
        (libc::SYS_ioprio_set, 3),
    ] {
        let rules = vec![rule([equal(1, 1)?])?, rule([equal(0, whole_user)?])?];
        forbidden.insert(number, rules);
    }
    // Typing into a terminal on behalf of its user.
    forbidden.insert(
        libc::SYS_ioctl,
        vec![
            rule([equal(1, libc::TIOCSTI)?])?,
            rule([equal(1, libc::TIOCLINUX)?])?,
        ],
    );
    let unknown: Rules = UNKNOWN.iter().map(|number| (*number, vec![])).collect();
    let foreign = FAMILIES
        .iter()
        .map(|family| condition(0, SeccompCmpOp::Ne, *family as u64))
        .collect::<io::Result<Vec<_>>>()?;
    let sockets: Rules = [libc::SYS_socket, libc::SYS_socketpair]
        .into_iter()
        .map(|number| Ok((number, vec![rule(foreign.clone())?])))
        .collect::<io::Result<_>>()?;
    let mut programs = vec![
        compile(forbidden, libc::EPERM)?,
        compile(unknown, libc::ENOSYS)?,
        compile(sockets, libc::EAFNOSUPPORT)?,
    ];
    if cfg!(target_arch = "x86_64") {
        programs.push(refuse_x32());
    }
    Ok(programs)
}

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

fn compile(rules: Rules, errno: i32) -> io::Result<BpfProgram> {
    let architecture = std::env::consts::ARCH
        .try_into()
        .map_err(io::Error::other)?;
    SeccompFilter::new(
        rules,
        SeccompAction::Allow,
        SeccompAction::Errno(errno as u32),
        architecture,
    )
    .and_then(TryInto::try_into)
    .map_err(io::Error::other)
}

/// The x32 numbers of x86-64 would pass every rule above under another number.
fn refuse_x32() -> BpfProgram {
    const X32_BIT: u32 = 0x4000_0000;
    let instruction = |code: u32, jt, jf, k| seccompiler::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    vec![
        // The system call's number is the first word of what a filter sees.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32_BIT),
        instruction(
            libc::BPF_RET | libc::BPF_K,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32,
        ),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn any_flag(argument: u8, flags: &[i32]) -> io::Result<Vec<SeccompRule>> {
    flags
        .iter()
        .map(|flag| {
            let flag = *flag as u32 as u64;
            rule([condition(argument, SeccompCmpOp::MaskedEq(flag), flag)?])
        })
        .collect()
}

fn equal(argument: u8, value: u64) -> io::Result<SeccompCondition> {
    condition(argument, SeccompCmpOp::Eq, value)
}

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> io::Result<SeccompCondition> {
    SeccompCondition::new(argument, Dword, operator, value).map_err(io::Error::other)
}

fn rule(conditions: impl Into<Vec<SeccompCondition>>) -> io::Result<SeccompRule> {
    SeccompRule::new(conditions.into()).map_err(io::Error::other)
}
