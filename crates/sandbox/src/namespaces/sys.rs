//! Thin wrappers round the system calls that neither the standard library nor `nix` offers.
//! Every `unsafe` of this backend is here, in `filter` or in the `fork` of `exec`.

use std::{
    ffi::{CStr, CString},
    io,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    time::Duration,
};

/// Resolve below the directory, through no link of any kind.
pub const BENEATH: u64 = libc::RESOLVE_BENEATH | STRICT;
/// Resolve anywhere, through no link of any kind.
pub const STRICT: u64 = libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;

/// A path as the kernel takes it.
pub fn c_path(path: impl AsRef<Path>) -> io::Result<CString> {
    use std::os::unix::ffi::OsStrExt;
    c_bytes(path.as_ref().as_os_str().as_bytes())
}

/// Bytes as the kernel takes them.
pub fn c_bytes(bytes: &[u8]) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "it contains a NUL byte"))
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the kernel has just returned this descriptor, so nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A detached copy of the mount at `path`, with what is mounted below it if `recursive`.
pub fn clone_mount(directory: RawFd, path: &CStr, recursive: bool) -> io::Result<OwnedFd> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH as libc::c_uint;
    }
    // SAFETY: `path` is a valid C string for the duration of the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, directory, path.as_ptr(), flags) })
}

/// Attaches a detached mount over what `target` refers to.
pub fn attach_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both paths are valid C strings for the duration of the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            libc::MOVE_MOUNT_F_EMPTY_PATH | libc::MOVE_MOUNT_T_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// A new, detached mount of a new file system. Errors carry what the kernel says about the options.
pub fn new_filesystem(
    kind: &CStr,
    options: &[(&CStr, Option<&CStr>)],
    attributes: u64,
) -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: u32 = 1;
    const FSMOUNT_CLOEXEC: u32 = 1;
    const SET_FLAG: u32 = 0;
    const SET_STRING: u32 = 1;
    const CREATE: u32 = 6;
    // SAFETY: a valid C string for the duration of the call.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })?;
    let configure = |command: u32, key: *const libc::c_char, value: *const libc::c_char| {
        // SAFETY: key and value are null or valid C strings for the duration of the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                context.as_raw_fd(),
                command,
                key,
                value,
                0,
            )
        })
    };
    let null = std::ptr::null();
    let steps = options
        .iter()
        .try_for_each(|(key, value)| {
            match value {
                Some(value) => configure(SET_STRING, key.as_ptr(), value.as_ptr()),
                None => configure(SET_FLAG, key.as_ptr(), null),
            }
            .map(drop)
        })
        .and_then(|()| configure(CREATE, null, null));
    if let Err(error) = steps {
        let mut message = [0; 512];
        let n = nix::unistd::read(&context, &mut message).unwrap_or(0);
        if n == 0 {
            return Err(error);
        }
        let message = String::from_utf8_lossy(&message[..n]);
        return Err(io::Error::new(
            error.kind(),
            format!("{error} ({})", message.trim()),
        ));
    }
    // SAFETY: plain integers.
    owned(unsafe {
        libc::syscall(
            libc::SYS_fsmount,
            context.as_raw_fd(),
            FSMOUNT_CLOEXEC,
            attributes,
        )
    })
}

/// Adds attributes to the mount (and those below it), and maps its owners if asked to.
pub fn set_mount_attributes(
    mount: BorrowedFd<'_>,
    add: u64,
    owners: Option<BorrowedFd<'_>>,
    recursive: bool,
) -> io::Result<()> {
    let mut attributes = libc::mount_attr {
        attr_set: add,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    if let Some(owners) = owners {
        attributes.attr_set |= libc::MOUNT_ATTR_IDMAP;
        attributes.userns_fd = owners.as_raw_fd() as u64;
    }
    let mut flags = libc::AT_EMPTY_PATH;
    if recursive {
        flags |= libc::AT_RECURSIVE;
    }
    // SAFETY: the attributes live for the duration of the call and their size is given.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw mut attributes,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// `openat2`: opens `path` below `directory` under the rules of `resolve`.
pub fn open_under(
    directory: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    mode: u32,
    resolve: u64,
) -> io::Result<OwnedFd> {
    // SAFETY: `open_how` is plain data for which zero is valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = u64::from(mode);
    how.resolve = resolve;
    loop {
        // SAFETY: path and `how` live for the duration of the call and the size is given.
        let result = owned(unsafe {
            libc::syscall(
                libc::SYS_openat2,
                directory.as_raw_fd(),
                path.as_ptr(),
                &raw mut how,
                size_of::<libc::open_how>(),
            )
        });
        match result {
            // The kernel asks to try again when a rename raced with the resolution.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            other => return other,
        }
    }
}

/// `fork` into new namespaces; returns 0 in the child. Only for a process with a single thread.
pub fn fork_into(namespaces: libc::c_int) -> io::Result<libc::pid_t> {
    // SAFETY: without a stack and without CLONE_VM this is `fork`; the caller has one thread, so
    // no lock can be held by a thread that the child lacks.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone,
            (namespaces | libc::SIGCHLD) as libc::c_ulong,
            0,
            0,
            0,
            0,
        )
    })?;
    Ok(pid as libc::pid_t)
}

/// `fork` whose child is born in a version 2 control group; returns 0 in the child. Only for a
/// process with a single thread.
pub fn fork_into_group(group: BorrowedFd<'_>) -> io::Result<libc::pid_t> {
    // The constant of `libc` has a type that is too small for it.
    const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
    // SAFETY: `clone_args` is plain data for which zero is valid.
    let mut arguments: libc::clone_args = unsafe { std::mem::zeroed() };
    arguments.flags = CLONE_INTO_CGROUP;
    arguments.exit_signal = libc::SIGCHLD as u64;
    arguments.cgroup = group.as_raw_fd() as u64;
    // SAFETY: as for `fork_into`; the arguments live for the duration of the call.
    let pid = check(unsafe {
        libc::syscall(
            libc::SYS_clone3,
            &raw mut arguments,
            size_of::<libc::clone_args>(),
        )
    })?;
    Ok(pid as libc::pid_t)
}

/// A descriptor that becomes readable when the process has ended.
pub fn pidfd(pid: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: plain integers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Waits until one of the descriptors is readable, closed on its other side, or broken; says which.
/// None is when the time was over or a signal came.
pub fn wait_readable<const N: usize>(
    files: [Option<BorrowedFd<'_>>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut waiting = files.map(|file| libc::pollfd {
        // Negative ones are passed over.
        fd: file.map_or(-1, |file| file.as_raw_fd()),
        events: libc::POLLIN | libc::POLLRDHUP,
        revents: 0,
    });
    let milliseconds = timeout.map_or(-1, |timeout| {
        i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
    });
    // SAFETY: the array lives for the duration of the call and its length is given.
    match check(unsafe { libc::poll(waiting.as_mut_ptr(), N as libc::nfds_t, milliseconds) }.into())
    {
        Ok(_) => Ok(waiting.map(|file| file.revents != 0)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// Whether the other side of a socket is closed.
pub fn is_hung_up(socket: BorrowedFd<'_>) -> bool {
    let mut byte = [0u8];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: the buffer is valid for the one byte that is asked for.
    let n = unsafe { libc::recv(socket.as_raw_fd(), byte.as_mut_ptr().cast(), 1, flags) };
    n == 0
}

/// Closes every descriptor from `first` on; with `on_exec` only when a program is started.
pub fn close_from(first: u32, on_exec: bool) -> io::Result<()> {
    let flags = if on_exec {
        libc::CLOSE_RANGE_CLOEXEC
    } else {
        0
    };
    // SAFETY: plain integers. The caller uses no descriptor above `first` afterwards.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, flags) })?;
    Ok(())
}

/// Makes `to` refer to what `from` does, without the mark that closes it when a program starts.
pub fn duplicate_to(from: RawFd, to: RawFd) -> io::Result<()> {
    // SAFETY: plain integers; the caller owns what `to` referred to.
    check(unsafe { libc::dup2(from, to) }.into())?;
    Ok(())
}

/// `prctl` with one argument.
pub fn prctl(option: libc::c_int, argument: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: every option used here takes plain integers.
    check(unsafe { libc::prctl(option, argument, 0, 0, 0) }.into()).map(|value| value as i32)
}

/// The name under which process lists show this process.
pub fn set_process_name(name: &CStr) -> io::Result<()> {
    // SAFETY: a valid C string; the kernel copies at most 16 bytes of it.
    check(unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) }.into())?;
    Ok(())
}

/// Capability numbers used here; `libc` does not name them.
pub mod capability {
    pub const CHOWN: u32 = 0;
    pub const DAC_OVERRIDE: u32 = 1;
    pub const DAC_READ_SEARCH: u32 = 2;
    pub const FOWNER: u32 = 3;
    pub const KILL: u32 = 5;
    pub const SETGID: u32 = 6;
    pub const SETUID: u32 = 7;
    pub const SYS_ADMIN: u32 = 21;
}

/// Reduces the permitted and effective capabilities to `keep` and clears the inheritable ones.
pub fn keep_capabilities(keep: &[u32]) -> io::Result<()> {
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let mask = keep.iter().fold(0u64, |mask, bit| mask | 1 << bit);
    let half = |bits: u64| Data {
        effective: bits as u32,
        permitted: bits as u32,
        inheritable: 0,
    };
    let mut header = Header {
        version: VERSION_3,
        pid: 0,
    };
    let data = [half(mask), half(mask >> 32)];
    // SAFETY: header and data have the layout of version 3 and live for the duration of the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, data.as_ptr()) })?;
    Ok(())
}

/// Empties the bounding set, so that no program can ever give capabilities back.
pub fn drop_bounding_set() -> io::Result<()> {
    for capability in 0..64 {
        match prctl(libc::PR_CAPBSET_DROP, capability) {
            Ok(_) => {}
            // The first number that the kernel does not know.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sets soft and hard limit. A hard limit that is already lower stays.
pub fn set_limit(resource: libc::__rlimit_resource_t, value: u64) -> io::Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is valid for writing.
    check(unsafe { libc::getrlimit(resource, &raw mut limit) }.into())?;
    limit.rlim_max = limit.rlim_max.min(value);
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reading.
    check(unsafe { libc::setrlimit(resource, &raw const limit) }.into())?;
    Ok(())
}

/// Sets an extended attribute of an open directory.
pub fn set_user_attribute(file: BorrowedFd<'_>, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: name and value live for the duration of the call and the length is given.
    check(
        unsafe {
            libc::fsetxattr(
                file.as_raw_fd(),
                name.as_ptr(),
                value.as_ptr().cast(),
                value.len(),
                0,
            )
        }
        .into(),
    )?;
    Ok(())
}

/// The version of Landlock that the kernel offers.
pub fn landlock_version() -> io::Result<u32> {
    const CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag the kernel reads no memory.
    let version = check(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0,
            CREATE_RULESET_VERSION,
        )
    })?;
    Ok(version as u32)
}

/// Brings the loopback of the current network namespace up.
pub fn raise_loopback() -> io::Result<()> {
    // SAFETY: plain integers.
    let socket = owned(
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) }.into(),
    )?;
    // SAFETY: `ifreq` is plain data for which zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request lives for the duration of the call and has the layout SIOCSIFFLAGS takes.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) }.into())?;
    Ok(())
}

/// Gives every signal its default again; what was ignored would be inherited by every command.
pub fn reset_signals() {
    const N_SIGNALS: libc::c_int = 64;
    const SET_BYTES: usize = 8;
    // The kernel's own layout: a null handler is the default, no flags, an empty mask.
    let defaults = [0u64; 4];
    for signal in (1..=N_SIGNALS).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: `defaults` is as large as the kernel's structure and outlives the call. The two
        // signals that cannot be set are refused, which changes nothing.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                defaults.as_ptr(),
                std::ptr::null::<libc::c_void>(),
                SET_BYTES,
            )
        };
    }
}

/// Ends the process at once, without running anything that the parent may also run.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return and touches no memory.
    unsafe { libc::_exit(code) }
}
