//! The work tree: a view of its start into which commands write without changing the start.
//!
//! An overlay where the start's files can be shown as the command's own; otherwise a copy. The
//! overlay keeps renamed directories apart from their origin (`redirect_dir=off`), so renaming a
//! directory of the start fails with `EXDEV` and `mv` copies it; what the upper layer holds is then
//! exactly what was written.

use std::{
    ffi::{CStr, CString},
    fs, io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
};

use nix::sys::stat::{FchmodatFlags, Mode};

use super::{
    files,
    setup::{During, Identity, Problem},
    sys,
    wire::WorkTreeKind,
};

/// How many entries of a start are looked at for foreign owners before an overlay is chosen.
const N_LOOKED_AT: usize = 512;

/// A start, opened before the new root covers it.
pub struct Start {
    mount: OwnedFd,
    path: PathBuf,
    pub kind: WorkTreeKind,
    mode: u32,
    bytes: u64,
}

/// What is kept to find out what changed.
pub struct WorkTree {
    /// What commands see.
    pub merged: OwnedFd,
    /// The start; `None` if it was empty.
    pub lower: Option<OwnedFd>,
    /// What was written; `None` if that can only be found by comparison.
    pub upper: Option<OwnedFd>,
}

/// A work tree that is ready to be mounted where commands see it.
pub struct Laid {
    pub mount: OwnedFd,
    pub tree: WorkTree,
}

impl Start {
    /// Opens a start and decides between overlay and copy.
    pub fn open(path: &Path, identity: &Identity) -> Result<Start, Problem> {
        let opening = || format!("open the start {}", path.display());
        let metadata = path.metadata().during(opening)?;
        if !metadata.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory)).during(opening);
        }
        let c_path = sys::c_path(path).during(opening)?;
        // A directory with mounts below it can only be had with them in a user namespace.
        let mount = sys::clone_mount(libc::AT_FDCWD, &c_path, false)
            .or_else(|_| sys::clone_mount(libc::AT_FDCWD, &c_path, true))
            .during(opening)?;
        let read_only = libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
        let kind = match identity.mapping_of(path) {
            Some(owners) => {
                match sys::set_mount_attributes(mount.as_fd(), read_only, Some(owners), false) {
                    Ok(()) => WorkTreeKind::Overlay,
                    Err(error) => WorkTreeKind::Copy(format!(
                        "the start's file system cannot map owners: {error}"
                    )),
                }
            }
            None if identity.privileged => {
                WorkTreeKind::Copy("owners cannot be mapped without user namespaces".into())
            }
            // In a user namespace only the user's own files have an owner that can be kept.
            None => match foreign_owner(path) {
                None => WorkTreeKind::Overlay,
                Some(foreign) => {
                    WorkTreeKind::Copy(format!("{} belongs to another user", foreign.display()))
                }
            },
        };
        sys::set_mount_attributes(mount.as_fd(), read_only, None, true).during(opening)?;
        let bytes = match kind {
            WorkTreeKind::Copy(_) => size_of_tree(path),
            _ => 0,
        };
        Ok(Start {
            mount,
            path: path.to_owned(),
            kind,
            mode: metadata.mode() & 0o777 | 0o700,
            bytes,
        })
    }

    /// What a copy takes on top of the disk limit.
    pub fn bytes_to_copy(&self) -> u64 {
        self.bytes
    }
}

/// Makes the work tree from its start, in the writable file system `scratch`, which is mounted at
/// `scratch_path`.
pub fn lay(
    start: &mut Option<Start>,
    scratch: BorrowedFd<'_>,
    scratch_path: &Path,
    owner: (u32, u32),
    privileged: bool,
) -> Result<Laid, Problem> {
    let Some(start) = start else {
        let made = make_directory(scratch, c"work", 0o755, owner)
            .and_then(|work| {
                let mount = sys::clone_mount(work.as_raw_fd(), c"", false)?;
                Ok((work, mount))
            })
            .during(|| "make the work tree".into())?;
        return Ok(Laid {
            mount: made.1,
            tree: WorkTree {
                merged: made.0,
                lower: None,
                upper: None,
            },
        });
    };
    if start.kind == WorkTreeKind::Overlay {
        match lay_overlay(start, scratch, scratch_path, owner, privileged) {
            Ok(laid) => return Ok(laid),
            Err(error) => {
                start.bytes = size_of_tree(&start.path);
                start.kind = WorkTreeKind::Copy(format!("no overlay can be mounted: {error}"));
            }
        }
    }
    lay_copy(start, scratch, owner)
}

fn lay_overlay(
    start: &Start,
    scratch: BorrowedFd<'_>,
    scratch_path: &Path,
    owner: (u32, u32),
    privileged: bool,
) -> io::Result<Laid> {
    let upper = make_directory(scratch, c"upper", start.mode, owner)?;
    make_directory(scratch, c"overlay", 0o755, owner)?;
    let lower = make_directory(scratch, c"lower", 0o700, owner)?;
    sys::attach_mount(start.mount.as_fd(), lower.as_fd())?;
    let option = |part: &str| sys::c_path(scratch_path.join(part));
    let (lower_path, upper_path, inner_path) =
        (option("lower")?, option("upper")?, option("overlay")?);
    let attributes = libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV;
    let mut options = vec![
        (c"source", Some(c"overlay")),
        (c"lowerdir", Some(lower_path.as_c_str())),
        (c"upperdir", Some(&upper_path)),
        (c"workdir", Some(&inner_path)),
    ];
    if privileged {
        options.push((c"redirect_dir", Some(c"off")));
        options.push((c"index", Some(c"off")));
        options.push((c"metacopy", Some(c"off")));
    } else {
        // Implies the above. Needs attributes that temporary file systems have since Linux 6.6;
        // without them an overlay mounts but cannot replace directories.
        options.push((c"userxattr", None));
        sys::set_user_attribute(upper.as_fd(), c"user.temper", b"1")?;
    }
    let mount = sys::new_filesystem(c"overlay", &options, attributes)?;
    Ok(Laid {
        tree: WorkTree {
            merged: open_root(mount.as_fd())?,
            lower: Some(open_root(start.mount.as_fd())?),
            upper: Some(upper),
        },
        mount,
    })
}

/// A directory descriptor that can be listed, from one that only names a mount.
fn open_root(mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    sys::open_under(
        mount,
        c".",
        libc::O_RDONLY | libc::O_DIRECTORY,
        0,
        sys::BENEATH,
    )
}

fn lay_copy(start: &Start, scratch: BorrowedFd<'_>, owner: (u32, u32)) -> Result<Laid, Problem> {
    let copying = || format!("copy the start {}", start.path.display());
    let lower = open_root(start.mount.as_fd()).during(copying)?;
    let work = make_directory(scratch, c"work", start.mode, owner).during(copying)?;
    copy_directory(lower.as_fd(), work.as_fd(), owner).during(copying)?;
    let mount = sys::clone_mount(work.as_raw_fd(), c"", false).during(copying)?;
    Ok(Laid {
        mount,
        tree: WorkTree {
            merged: work,
            lower: Some(lower),
            upper: None,
        },
    })
}

/// Copies files, directories and links; other things have no place in a work tree and are left out.
/// The file system it copies into bounds it.
fn copy_directory(from: BorrowedFd<'_>, to: BorrowedFd<'_>, owner: (u32, u32)) -> io::Result<()> {
    for (name, kind) in list(from)? {
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        match kind {
            Kind::Directory => {
                let flags = libc::O_RDONLY | libc::O_DIRECTORY;
                let inner = sys::open_under(from, &name, flags, 0, sys::BENEATH)?;
                let mode = nix::sys::stat::fstat(&inner)?.st_mode & 0o777 | 0o700;
                let made = make_directory(to, &name, mode, owner)?;
                copy_directory(inner.as_fd(), made.as_fd(), owner)?;
            }
            Kind::Link => {
                let target = nix::fcntl::readlinkat(from, name.as_c_str())?;
                nix::unistd::symlinkat(target.as_os_str(), to, name.as_c_str())?;
                chown_at(to, &name, owner)?;
            }
            Kind::File => {
                let Some(mut source) = files::open_regular(from, path)? else {
                    continue;
                };
                let mode = source.metadata()?.mode() & 0o777;
                let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY;
                let copy = sys::open_under(to, &name, flags, mode, sys::BENEATH)?;
                let mut copy = fs::File::from(copy);
                io::copy(&mut source, &mut copy)?;
                std::os::unix::fs::fchown(&copy, Some(owner.0), Some(owner.1))?;
                copy.set_times(fs::FileTimes::new().set_modified(source.metadata()?.modified()?))?;
            }
            Kind::Other => {}
        }
    }
    Ok(())
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    File,
    Directory,
    Link,
    Other,
}

/// The entries of a directory, in name order.
pub fn list(directory: BorrowedFd<'_>) -> io::Result<Vec<(CString, Kind)>> {
    use nix::dir::{Dir, Type};
    // A fresh descriptor, because listing moves the position of the one it uses.
    let mut entries = vec![];
    let mut opened = Dir::from_fd(open_root(directory)?)?;
    for entry in opened.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        let kind = match entry.file_type() {
            Some(Type::File) => Kind::File,
            Some(Type::Directory) => Kind::Directory,
            Some(Type::Symlink) => Kind::Link,
            Some(_) => Kind::Other,
            None => kind_at(directory, name)?,
        };
        entries.push((name.to_owned(), kind));
    }
    entries.sort();
    Ok(entries)
}

/// What is at a name.
pub fn kind_at(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> io::Result<Kind> {
    let stat = nix::sys::stat::fstatat(directory, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)?;
    Ok(match stat.st_mode & libc::S_IFMT {
        libc::S_IFREG => Kind::File,
        libc::S_IFDIR => Kind::Directory,
        libc::S_IFLNK => Kind::Link,
        _ => Kind::Other,
    })
}

/// Makes a directory with exactly this mode and owner.
pub fn make_directory(
    parent: BorrowedFd<'_>,
    name: &CStr,
    mode: u32,
    owner: (u32, u32),
) -> io::Result<OwnedFd> {
    nix::sys::stat::mkdirat(parent, name, Mode::from_bits_truncate(0o700))?;
    let mode = Mode::from_bits_truncate(mode);
    nix::sys::stat::fchmodat(parent, name, mode, FchmodatFlags::FollowSymlink)?;
    chown_at(parent, name, owner)?;
    sys::open_under(
        parent,
        name,
        libc::O_RDONLY | libc::O_DIRECTORY,
        0,
        sys::BENEATH,
    )
}

fn chown_at(parent: BorrowedFd<'_>, name: &CStr, owner: (u32, u32)) -> io::Result<()> {
    use nix::unistd::{Gid, Uid};
    nix::unistd::fchownat(
        parent,
        name,
        Some(Uid::from_raw(owner.0)),
        Some(Gid::from_raw(owner.1)),
        nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW,
    )?;
    Ok(())
}

/// The first of some entries that does not belong to this user.
fn foreign_owner(root: &Path) -> Option<PathBuf> {
    let mut waiting = std::collections::VecDeque::from([root.to_owned()]);
    let mut n_left = N_LOOKED_AT;
    while let Some(path) = waiting.pop_front() {
        let Ok(metadata) = path.symlink_metadata() else {
            continue;
        };
        // The user's own files already appear under the command's number.
        if metadata.uid() != super::setup::AGENT {
            return Some(path);
        }
        n_left = n_left.checked_sub(1)?;
        if metadata.is_dir() {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            waiting.extend(entries.take(n_left).map(|entry| entry.path()));
        }
    }
    None
}

fn size_of_tree(path: &Path) -> u64 {
    let mut total = 0u64;
    let mut waiting = vec![path.to_owned()];
    while let Some(path) = waiting.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() {
                waiting.push(entry.path());
            } else if metadata.is_file() {
                // In whole pages, as the file system it is copied to counts.
                total = total.saturating_add(metadata.len().div_ceil(4096) * 4096);
            }
        }
    }
    total
}
