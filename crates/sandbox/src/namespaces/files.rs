//! File access in a tree that untrusted code has written: no link is followed, nothing but regular
//! files is opened, and every path is resolved by the kernel below a directory that is held open.

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

use super::{sys, wire::FileHead};

/// The file system of a sandbox as its first process reaches it.
pub struct Area {
    /// The root that commands see.
    pub visible: OwnedFd,
    /// The root file system alone and writable: files can still be laid where commands see it
    /// read-only.
    pub private: OwnedFd,
    /// What commands may write.
    pub writable: Vec<PathBuf>,
}

impl Area {
    /// Writes a file, replacing what is at the path unless that is a directory. Where commands may
    /// write it belongs to `owner`, elsewhere to the first process.
    pub fn write(&self, file: &FileHead, content: &[u8], owner: (u32, u32)) -> io::Result<()> {
        let path = clean_path(&file.path)?;
        let absolute = Path::new("/").join(&path);
        let theirs = self
            .writable
            .iter()
            .any(|place| absolute.starts_with(place));
        let (root, owner) = if theirs {
            (&self.visible, Some(owner))
        } else {
            (&self.private, None)
        };
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "it names no file",
            ));
        };
        if !theirs && self.is_view(parent)? {
            return Err(io::Error::new(
                io::ErrorKind::ReadOnlyFilesystem,
                "it lies in a read-only directory of the host",
            ));
        }
        let parent = make_owned_directories(root.as_fd(), parent, owner)?;
        replace(parent.as_fd(), name, content, file.executable, owner)
    }

    /// Whether the deepest existing directory of `parent` is not on the root file system itself.
    fn is_view(&self, parent: &Path) -> io::Result<bool> {
        let device = |fd: &OwnedFd| io::Result::Ok(nix::sys::stat::fstat(fd)?.st_dev);
        let root = device(&self.visible)?;
        for ancestor in parent.ancestors() {
            match open_path(self.visible.as_fd(), ancestor, libc::O_DIRECTORY) {
                Ok(directory) => return Ok(device(&directory)? != root),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    /// Reads a regular file of at most `max_bytes`; `None` if there is none.
    pub fn read(&self, path: &str, max_bytes: u64) -> io::Result<Option<Vec<u8>>> {
        let path = clean_path(path)?;
        match open_regular(self.visible.as_fd(), &path) {
            Ok(Some(file)) => read_at_most(file, max_bytes).map(Some),
            Ok(None) => Ok(None),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An absolute path without its root, with `.` and doubled slashes taken out.
pub fn clean_path(path: &str) -> io::Result<PathBuf> {
    let refuse = |why| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    if path.as_bytes().contains(&0) {
        return refuse("it contains a NUL byte");
    }
    let mut components = Path::new(path).components();
    if components.next() != Some(Component::RootDir) {
        return refuse("it is not absolute");
    }
    let mut clean = PathBuf::new();
    for component in components {
        match component {
            Component::Normal(name) => clean.push(name),
            _ => return refuse("it climbs with `..`"),
        }
    }
    if clean.as_os_str().is_empty() {
        return refuse("it is the root");
    }
    Ok(clean)
}

/// Opens the directory at `path`, making what is missing. Through no link.
pub fn make_directories(root: BorrowedFd<'_>, path: &Path) -> io::Result<OwnedFd> {
    make_owned_directories(root, path, None)
}

fn make_owned_directories(
    root: BorrowedFd<'_>,
    path: &Path,
    owner: Option<(u32, u32)>,
) -> io::Result<OwnedFd> {
    match open_path(root, path, libc::O_DIRECTORY) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    let mut directory = root.try_clone_to_owned()?;
    for name in path.components() {
        let name = sys::c_bytes(name.as_os_str().as_bytes())?;
        let mode = nix::sys::stat::Mode::from_bits_truncate(0o755);
        let made = match nix::sys::stat::mkdirat(&directory, name.as_c_str(), mode) {
            Ok(()) => true,
            Err(nix::errno::Errno::EEXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let flags = libc::O_DIRECTORY | libc::O_RDONLY | libc::O_NOFOLLOW;
        let next = sys::open_under(directory.as_fd(), &name, flags, 0, sys::BENEATH)?;
        if let (true, Some((uid, gid))) = (made, owner) {
            std::os::unix::fs::fchown(&next, Some(uid), Some(gid))?;
        }
        directory = next;
    }
    Ok(directory)
}

/// A descriptor that only names what is at `path`. The empty path is `root` itself.
pub fn open_path(root: BorrowedFd<'_>, path: &Path, flags: i32) -> io::Result<OwnedFd> {
    if path.as_os_str().is_empty() {
        return root.try_clone_to_owned();
    }
    sys::open_under(
        root,
        &sys::c_path(path)?,
        libc::O_PATH | flags,
        0,
        sys::BENEATH,
    )
}

/// Opens a regular file for reading. `None` if something else is there; opening a device or a pipe
/// could block or have effects, so what it is is found out first.
pub fn open_regular(root: BorrowedFd<'_>, path: &Path) -> io::Result<Option<fs::File>> {
    let path = sys::c_path(path)?;
    let named = sys::open_under(root, &path, libc::O_PATH, 0, sys::BENEATH)?;
    if !is_regular(&nix::sys::stat::fstat(&named)?) {
        return Ok(None);
    }
    // Nothing of the sandbox runs while its files are read, so the path still means the same; the
    // flags keep even a race harmless.
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let file = fs::File::from(sys::open_under(root, &path, flags, 0, sys::BENEATH)?);
    Ok(file.metadata()?.is_file().then_some(file))
}

/// The whole content, or an error if it is more than `max_bytes`.
pub fn read_at_most(file: fs::File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let size = file.metadata()?.size();
    let mut content = vec![];
    if size <= max_bytes {
        content.reserve_exact(size as usize);
        file.take(max_bytes.saturating_add(1))
            .read_to_end(&mut content)?;
    }
    if size > max_bytes || content.len() as u64 > max_bytes {
        return Err(io::Error::other(format!(
            "it holds {} bytes, more than the limit of {max_bytes}",
            size.max(content.len() as u64)
        )));
    }
    Ok(content)
}

/// Whether an error means that there is no such file.
pub fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG)
    )
}

/// Whether a file is a regular one.
pub fn is_regular(stat: &nix::sys::stat::FileStat) -> bool {
    stat.st_mode & libc::S_IFMT == libc::S_IFREG
}

fn replace(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    content: &[u8],
    executable: bool,
    owner: Option<(u32, u32)>,
) -> io::Result<()> {
    // Written beside and renamed over, so that a link, a pipe or a hard link at the path is
    // replaced and not written through.
    const BESIDE: &std::ffi::CStr = c".temper-being-written";
    let remove = |name: &std::ffi::CStr| {
        nix::unistd::unlinkat(parent, name, nix::unistd::UnlinkatFlags::NoRemoveDir)
    };
    let _ = remove(BESIDE);
    let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
    let mode = if executable { 0o755 } else { 0o644 };
    let mut file = fs::File::from(sys::open_under(parent, BESIDE, flags, mode, sys::BENEATH)?);
    let written = file
        .write_all(content)
        .and_then(|()| match owner {
            Some((uid, gid)) => std::os::unix::fs::fchown(&file, Some(uid), Some(gid)),
            None => Ok(()),
        })
        .and_then(|()| Ok(nix::fcntl::renameat(parent, BESIDE, parent, name)?));
    if written.is_err() {
        let _ = remove(BESIDE);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_that_do_not_climb_are_taken() {
        for bad in ["", "a", "./a", "/", "//", "/a/../b", "/..", "/a\0b"] {
            assert!(clean_path(bad).is_err(), "{bad:?}");
        }
        assert_eq!(clean_path("/a//b/./c/").unwrap(), Path::new("a/b/c"));
    }

    #[test]
    fn writing_replaces_links_and_reading_refuses_them() {
        let place = tempfile::tempdir().unwrap();
        let outside = tempfile::NamedTempFile::new().unwrap();
        let open = || OwnedFd::from(fs::File::open(place.path()).unwrap());
        let area = Area {
            visible: open(),
            private: open(),
            writable: vec!["/".into()],
        };
        let metadata = place.path().metadata().unwrap();
        let owner = (metadata.uid(), metadata.gid());
        std::os::unix::fs::symlink(outside.path(), place.path().join("link")).unwrap();
        std::os::unix::fs::symlink("/tmp", place.path().join("climb")).unwrap();
        nix::unistd::mkfifo(&place.path().join("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        for absent in ["/link", "/climb/x", "/pipe", "/missing/x", "/link/x"] {
            assert_eq!(area.read(absent, 10).unwrap(), None, "{absent}");
        }
        let head = |path: &str| FileHead {
            path: path.into(),
            executable: true,
        };
        area.write(&head("/link"), b"new", owner).unwrap();
        area.write(&head("/pipe"), b"new", owner).unwrap();
        area.write(&head("/a/b/c"), b"new", owner).unwrap();
        assert!(area.write(&head("/climb/x"), b"new", owner).is_err());
        assert!(area.write(&head("/a/b"), b"new", owner).is_err());
        for path in ["/link", "/pipe", "/a/b/c"] {
            assert_eq!(area.read(path, 3).unwrap().unwrap(), b"new");
        }
        assert!(area.read("/link", 2).is_err());
        assert_eq!(fs::read(outside.path()).unwrap(), b"");
    }
}
