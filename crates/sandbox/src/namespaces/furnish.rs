//! What every sandbox has besides views of the host: devices, a `/proc`, made-up system files.

use std::{
    fs, io,
    io::Write,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

use super::{
    files,
    setup::{AGENT, During, Problem, VIEW},
    sys,
};

/// Mounts something at a path, making what it is mounted on if it is not there.
pub fn place(
    root: BorrowedFd<'_>,
    at: &Path,
    directory: bool,
    mount: BorrowedFd<'_>,
) -> io::Result<()> {
    let at = relative(at);
    let target = if directory {
        files::make_directories(root, at)?
    } else {
        let parent = files::make_directories(root, at.parent().unwrap_or(Path::new("")))?;
        let name = sys::c_bytes(at.file_name().unwrap_or_default().as_bytes())?;
        match sys::open_under(
            parent.as_fd(),
            &name,
            libc::O_CREAT | libc::O_WRONLY,
            0o644,
            sys::BENEATH,
        ) {
            Ok(_) => {}
            // It is there, on a read-only view.
            Err(error) if error.raw_os_error() == Some(libc::EROFS) => {}
            Err(error) => return Err(error),
        }
        sys::open_under(parent.as_fd(), &name, libc::O_PATH, 0, sys::BENEATH)?
    };
    sys::attach_mount(mount, target.as_fd())
}

/// Lays `/dev`.
pub fn make_devices(
    root: BorrowedFd<'_>,
    devices: &[(&'static str, OwnedFd)],
    shm: BorrowedFd<'_>,
) -> io::Result<()> {
    for (name, device) in devices {
        place(root, &Path::new("dev").join(name), false, device.as_fd())?;
    }
    place(root, Path::new("dev/shm"), true, shm)?;
    let terminals = sys::new_filesystem(
        c"devpts",
        &[
            (c"newinstance", None),
            (c"ptmxmode", Some(c"0666")),
            (c"mode", Some(c"0620")),
            (c"max", Some(c"64")),
        ],
        libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC,
    )?;
    place(root, Path::new("dev/pts"), true, terminals.as_fd())?;
    for (name, to) in [
        ("fd", "/proc/self/fd"),
        ("ptmx", "pts/ptmx"),
        ("stderr", "/proc/self/fd/2"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
    ] {
        make_link(root, &Path::new("dev").join(name), Path::new(to))?;
    }
    Ok(())
}

/// A process file system of the new PID namespace, read-only as a whole: nothing in it needs to be
/// written, and much of it belongs to the machine.
pub fn make_proc(root: BorrowedFd<'_>, devices: &[(&'static str, OwnedFd)]) -> Result<(), Problem> {
    let proc = sys::new_filesystem(c"proc", &[], VIEW | libc::MOUNT_ATTR_NOEXEC)
        .during(|| "mount a fresh /proc".into())?;
    place(root, Path::new("proc"), true, proc.as_fd()).during(|| "mount a fresh /proc".into())?;
    let (_, nothing) = &devices[0];
    for name in [
        "cmdline",
        "config.gz",
        "kallsyms",
        "kcore",
        "keys",
        "key-users",
        "modules",
        "timer_list",
    ] {
        let path = Path::new("proc").join(name);
        if let Ok(target) = files::open_path(root, &path, 0) {
            sys::clone_mount(nothing.as_raw_fd(), c"", false)
                .and_then(|mask| sys::attach_mount(mask.as_fd(), target.as_fd()))
                .during(|| format!("cover /{}", path.display()))?;
        }
    }
    Ok(())
}

/// Writes the files of `/etc` that name users and hosts.
pub fn write_identity_files(
    root: BorrowedFd<'_>,
    home: &Path,
    host_network: bool,
) -> io::Result<()> {
    let passwd = format!(
        "root:x:0:0:root:/nonexistent:/bin/false\n\
         agent:x:{AGENT}:{AGENT}:agent:{}:/bin/bash\n\
         nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
        home.display()
    );
    let group = format!("root:x:0:\nagent:x:{AGENT}:\nnogroup:x:65534:\n");
    let mut hosts = String::from("127.0.0.1 localhost sandbox\n::1 localhost\n");
    let mut resolver = String::new();
    if host_network {
        hosts = fs::read_to_string("/etc/hosts").unwrap_or(hosts);
        resolver = fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    }
    let etc = files::make_directories(root, Path::new("etc"))?;
    for (name, text) in [
        ("passwd", passwd.as_str()),
        ("group", &group),
        ("hosts", &hosts),
        ("hostname", "sandbox\n"),
        (
            "nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files dns\n",
        ),
        ("resolv.conf", &resolver),
    ] {
        let name = sys::c_bytes(name.as_bytes())?;
        let file = sys::open_under(
            etc.as_fd(),
            &name,
            libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC,
            0o644,
            sys::BENEATH,
        )?;
        fs::File::from(file).write_all(text.as_bytes())?;
    }
    Ok(())
}

/// Makes a symbolic link.
pub fn make_link(root: BorrowedFd<'_>, at: &Path, to: &Path) -> io::Result<()> {
    let at = relative(at);
    let parent = files::make_directories(root, at.parent().unwrap_or(Path::new("")))?;
    nix::unistd::symlinkat(to, parent, at.file_name().unwrap_or_default())?;
    Ok(())
}

/// The path below the root.
pub fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}
