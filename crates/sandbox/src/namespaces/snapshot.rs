//! Everything that commands have written, as a list that can be laid into a fresh sandbox.
//!
//! Of the work tree only what its upper layer holds is kept, so the cost goes with what was
//! written and not with the size of the repository; the start is shared. Like the search for
//! changes this reads the difference between what is seen and the start, never the overlay's own
//! marks. Beside it the writable directories (`/tmp`, home, …) are kept whole.
//!
//! Kept are contents, holes, modes, times, links, hard links within a directory of the above, pipes
//! and sockets. Not kept are extended attributes and what is no file at all; a System V segment,
//! queue or semaphore that outlived its command is refused, as is a process that still runs.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ffi::{CStr, CString},
    fs,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::FileExt, fs::MetadataExt},
    },
    path::{Path, PathBuf},
    rc::Rc,
};

use nix::{
    fcntl::AtFlags,
    sys::stat::{FchmodatFlags, FileStat, Mode, SFlag, UtimensatFlags, fstatat},
    sys::time::TimeSpec,
    unistd::{Gid, LinkatFlags, Uid, UnlinkatFlags},
};
use temper_core::Bytes;

use super::{
    changes::{as_path, entries, join, open_directory, read_link, same_content},
    files::{self, Area},
    sys,
    wire::{Kept, KeptKind},
    work_tree::{Kind, WorkTree, kind_at, list},
};

/// A longer path cannot be named in one call.
const MAX_PATH_BYTES: usize = 4000;

/// What could not be kept or laid.
pub struct Refusal {
    pub path: String,
    pub error: io::Error,
}

/// A snapshot whose contents are still in the files.
pub struct Taken {
    pub kept: Vec<Kept>,
    /// The open file of each [`KeptKind::File`], in order.
    contents: Vec<fs::File>,
}

/// Keeps the state. The work tree is the first of the area's writable places.
pub fn take(area: &Area, tree: &WorkTree, max_bytes: u64) -> Result<Taken, Refusal> {
    let whole = |error: io::Error| Refusal {
        path: "the sandbox".into(),
        error,
    };
    nothing_runs().map_err(whole)?;
    let mut taking = Taking {
        area,
        tree,
        kept: vec![],
        contents: vec![],
        bytes_left: max_bytes,
    };
    for place in 0..area.writable.len() {
        taking.place(place)?;
    }
    Ok(Taken {
        kept: taking.kept,
        contents: taking.contents,
    })
}

impl Taken {
    /// The length of all contents.
    pub fn bytes(&self) -> u64 {
        let pieces = self.kept.iter().filter_map(|kept| match &kept.kind {
            KeptKind::File { pieces, .. } => Some(pieces),
            _ => None,
        });
        pieces.flatten().map(|(_, length)| length).sum()
    }

    /// Sends the contents, one file after the other, so that this process never holds them.
    pub fn send(self, to: &mut impl Write) -> io::Result<()> {
        let files = self.kept.into_iter().filter_map(|kept| match kept.kind {
            KeptKind::File { pieces, .. } => Some(pieces),
            _ => None,
        });
        let mut buffer = vec![0; 64 << 10];
        for (pieces, file) in files.zip(self.contents) {
            for (mut at, mut left) in pieces {
                while left > 0 {
                    let n = left.min(buffer.len() as u64) as usize;
                    file.read_exact_at(&mut buffer[..n], at)?;
                    to.write_all(&buffer[..n])?;
                    at += n as u64;
                    left -= n as u64;
                }
            }
        }
        Ok(())
    }
}

/// Refuses what lives on besides files.
fn nothing_runs() -> io::Result<()> {
    // The first process itself is not counted.
    match nix::sys::signal::kill(nix::unistd::Pid::from_raw(-1), None) {
        Err(nix::errno::Errno::ESRCH) => {}
        _ => return Err(io::Error::other("processes still run in it")),
    }
    for kind in ["shm", "msg", "sem"] {
        let table = fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        if table.lines().count() > 1 {
            return Err(io::Error::other(format!(
                "it holds System V objects ({kind}), which are no files"
            )));
        }
    }
    Ok(())
}

struct Taking<'a> {
    area: &'a Area,
    tree: &'a WorkTree,
    kept: Vec<Kept>,
    contents: Vec<fs::File>,
    bytes_left: u64,
}

impl Taking<'_> {
    fn place(&mut self, place: usize) -> Result<(), Refusal> {
        let at = &self.area.writable[place];
        let refuse = |path: &[u8], error: io::Error| Refusal {
            path: at.join(as_path(path)).to_string_lossy().into_owned(),
            error,
        };
        let root = open_place(self.area, at).map_err(|error| refuse(b"", error))?;
        let mut links = BTreeMap::new();
        let is_tree = place == 0;
        let mut waiting = vec![Pending {
            path: vec![],
            in_lower: is_tree && self.tree.lower.is_some(),
            in_upper: is_tree && self.tree.upper.is_some(),
        }];
        let begun = self.kept.len();
        while let Some(directory) = waiting.pop() {
            self.directory(place, &root, &directory, &mut waiting, &mut links)
                .map_err(|(path, error)| refuse(&path, error))?;
        }
        // Contents are in the order of the files, so only what has none may be sorted apart.
        let mut kept = self.kept.split_off(begun);
        let files = kept
            .iter()
            .filter(|kept| matches!(kept.kind, KeptKind::File { .. }))
            .count();
        let mut contents = self
            .contents
            .split_off(self.contents.len() - files)
            .into_iter();
        let mut pairs: Vec<(Kept, Option<fs::File>)> = kept
            .drain(..)
            .map(|kept| {
                let content = match kept.kind {
                    KeptKind::File { .. } => contents.next(),
                    _ => None,
                };
                (kept, content)
            })
            .collect();
        pairs.sort_by(|(a, _), (b, _)| a.path.0.cmp(&b.path.0));
        for (kept, content) in pairs {
            self.kept.push(kept);
            self.contents.extend(content);
        }
        Ok(())
    }

    fn directory(
        &mut self,
        place: usize,
        root: &OwnedFd,
        directory: &Pending,
        waiting: &mut Vec<Pending>,
        links: &mut BTreeMap<u64, Vec<u8>>,
    ) -> Result<(), (Vec<u8>, io::Error)> {
        let of = |error: io::Error| (directory.path.clone(), error);
        let opened = open_directory(root.as_fd(), &directory.path).map_err(of)?;
        let own = nix::sys::stat::fstat(&opened).map_err(|error| of(error.into()))?;
        self.keep(place, directory.path.clone(), &own, KeptKind::Directory);
        let start = match (&self.tree.lower, directory.in_lower) {
            (Some(lower), true) => entries(lower, &directory.path).map_err(of)?,
            _ => BTreeMap::new(),
        };
        let written = match (&self.tree.upper, directory.in_upper) {
            (Some(upper), true) => Some(entries(upper, &directory.path).map_err(of)?),
            _ => None,
        };
        // An overlay gives a file of the start that was written to another number than its new names.
        let upper = match &self.tree.upper {
            Some(upper) if place == 0 => open_directory(upper.as_fd(), &directory.path).ok(),
            _ => None,
        };
        let mut seen = BTreeSet::new();
        for (name, kind) in list(opened.as_fd()).map_err(of)? {
            let path = join(&directory.path, &name);
            seen.insert(name.clone());
            if self.is_other_place(place, &path)
                || written
                    .as_ref()
                    .is_some_and(|written| !written.contains_key(&name))
            {
                continue;
            }
            if path.len() > MAX_PATH_BYTES {
                return Err((path, io::Error::other("its path is too long to be kept")));
            }
            let both = start.get(&name) == Some(&Kind::Directory);
            if kind == Kind::Directory {
                waiting.push(Pending {
                    path,
                    in_lower: both,
                    in_upper: both && directory.in_upper,
                });
                continue;
            }
            let before = start.get(&name).copied();
            let found = Found {
                place,
                root,
                directory: &opened,
                upper: upper.as_ref(),
                name: &name,
                path: &path,
                kind,
                before,
            };
            self.entry(&found, links)
                .map_err(|error| (path.clone(), error))?;
        }
        for name in start.keys().filter(|name| !seen.contains(*name)) {
            let path = join(&directory.path, name);
            self.kept.push(Kept {
                place: place as u32,
                path: Bytes(path),
                kind: KeptKind::Removed,
                mode: 0,
                modified: (0, 0),
            });
        }
        Ok(())
    }

    fn entry(&mut self, found: &Found<'_>, links: &mut BTreeMap<u64, Vec<u8>>) -> io::Result<()> {
        let Found {
            place, root, path, ..
        } = *found;
        let stat_in =
            |directory: &OwnedFd| fstatat(directory, found.name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let stat = stat_in(found.directory)?;
        let inode = found
            .upper
            .and_then(|upper| stat_in(upper).ok())
            .unwrap_or(stat);
        if inode.st_nlink > 1 {
            if let Some(first) = links.get(&inode.st_ino) {
                let to = Bytes(first.clone());
                self.keep(place, path.to_vec(), &stat, KeptKind::HardLink(to));
                return Ok(());
            }
            links.insert(inode.st_ino, path.to_vec());
        }
        let kept = match found.kind {
            Kind::Link => KeptKind::Link(Bytes(read_link(root, path)?)),
            Kind::File => {
                let name = as_path(found.name.to_bytes());
                let file = files::open_regular(found.directory.as_fd(), name)?
                    .ok_or_else(|| io::Error::other("it is no longer a regular file"))?;
                if self.is_as_at_start(path, &file, found.before)? {
                    return Ok(());
                }
                let (size, pieces) = pieces(&file)?;
                let length: u64 = pieces.iter().map(|(_, length)| length).sum();
                self.bytes_left = self.bytes_left.checked_sub(length).ok_or_else(|| {
                    io::Error::other("the files that were written hold more than the limit")
                })?;
                self.contents.push(file);
                KeptKind::File { size, pieces }
            }
            _ => match stat.st_mode & libc::S_IFMT {
                libc::S_IFIFO => KeptKind::Pipe,
                libc::S_IFSOCK => KeptKind::Socket,
                libc::S_IFCHR if stat.st_rdev == 0 => KeptKind::Nothing,
                _ => return Err(io::Error::other("it is a device")),
            },
        };
        self.keep(place, path.to_vec(), &stat, kept);
        Ok(())
    }

    fn keep(&mut self, place: usize, path: Vec<u8>, stat: &FileStat, kind: KeptKind) {
        self.kept.push(Kept {
            place: place as u32,
            path: Bytes(path),
            kind,
            mode: stat.st_mode & 0o7777,
            modified: (stat.st_mtime, stat.st_mtime_nsec),
        });
    }

    /// Whether a file of a copied work tree is the start's own. An overlay says so by itself.
    fn is_as_at_start(
        &self,
        path: &[u8],
        file: &fs::File,
        before: Option<Kind>,
    ) -> io::Result<bool> {
        let (Some(lower), None, Some(Kind::File)) = (&self.tree.lower, &self.tree.upper, before)
        else {
            return Ok(false);
        };
        let Some(start) = files::open_regular(lower.as_fd(), as_path(path))? else {
            return Ok(false);
        };
        let (now, then) = (file.metadata()?, start.metadata()?);
        Ok(now.size() == then.size()
            && now.mode() == then.mode()
            && (now.mtime(), now.mtime_nsec()) == (then.mtime(), then.mtime_nsec())
            && same_content(file.try_clone()?, start)?)
    }

    /// Whether another writable place is mounted there.
    fn is_other_place(&self, place: usize, path: &[u8]) -> bool {
        let places = &self.area.writable;
        let path = places[place].join(as_path(path));
        places.contains(&path)
    }
}

/// One entry, and where it was found.
struct Found<'a> {
    place: usize,
    root: &'a OwnedFd,
    directory: &'a OwnedFd,
    upper: Option<&'a OwnedFd>,
    name: &'a CStr,
    path: &'a [u8],
    kind: Kind,
    before: Option<Kind>,
}

struct Pending {
    path: Vec<u8>,
    in_lower: bool,
    in_upper: bool,
}

fn open_place(area: &Area, at: &Path) -> io::Result<OwnedFd> {
    let path = at.as_os_str().as_bytes();
    let path = path.strip_prefix(b"/").unwrap_or(path);
    open_directory(area.visible.as_fd(), path)
}

/// The size of a file, and where it holds data.
fn pieces(file: &fs::File) -> io::Result<(u64, Vec<(u64, u64)>)> {
    let size = file.metadata()?.size();
    let fd = file.as_raw_fd();
    let seek = |at: u64, whence: i32| {
        // SAFETY: a system call on a descriptor that `file` keeps open.
        let found = unsafe { libc::lseek(fd, at as i64, whence) };
        u64::try_from(found).map_err(|_| io::Error::last_os_error())
    };
    let mut pieces = vec![];
    let mut at = 0;
    while at < size {
        let begin = match seek(at, libc::SEEK_DATA) {
            Ok(begin) => begin,
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => break,
            Err(error) => return Err(error),
        };
        let end = seek(begin, libc::SEEK_HOLE)?.min(size);
        pieces.push((begin, end - begin));
        at = end;
    }
    Ok((size, pieces))
}

/// Lays a snapshot into a fresh sandbox of the same specification. `contents` are those of the
/// files, in order, without anything between them.
pub fn lay(
    area: &Area,
    tree: &WorkTree,
    kept: &[Kept],
    mut contents: &[u8],
    owner: (u32, u32),
) -> Result<(), Refusal> {
    let refuse = |at: &Path, path: &[u8], error: io::Error| Refusal {
        path: at.join(as_path(path)).to_string_lossy().into_owned(),
        error,
    };
    // A set-group bit can be given only by somebody who belongs to the group.
    nix::unistd::setfsgid(Gid::from_raw(owner.1));
    for (place, at) in area.writable.iter().enumerate() {
        let root = open_place(area, at).map_err(|error| refuse(at, b"", error))?;
        let of_place: Vec<&Kept> = kept.iter().filter(|k| k.place as usize == place).collect();
        let laying = Laying {
            root: &root,
            owner,
            opened: RefCell::default(),
        };
        let lower = if place == 0 {
            tree.lower.as_ref()
        } else {
            None
        };
        laying
            .clear(&of_place, lower, &|path| {
                area.writable.contains(&at.join(as_path(path)))
            })
            .map_err(|(path, error)| refuse(at, &path, error))?;
        for kept in &of_place {
            laying
                .entry(kept, &mut contents)
                .map_err(|error| refuse(at, &kept.path.0, error))?;
        }
        // What is put into a directory changes its time, so directories get theirs last.
        for kept in of_place.iter().rev() {
            if matches!(kept.kind, KeptKind::Directory) {
                laying
                    .finish_directory(kept)
                    .map_err(|error| refuse(at, &kept.path.0, error))?;
            }
        }
    }
    Ok(())
}

struct Laying<'a> {
    root: &'a OwnedFd,
    owner: (u32, u32),
    /// The directory that was opened last: entries come directory by directory.
    opened: RefCell<Option<(Vec<u8>, Rc<OwnedFd>)>>,
}

type At<T> = Result<T, (Vec<u8>, io::Error)>;

impl Laying<'_> {
    /// Takes away what a fresh sandbox holds and the state does not: files that were laid into it
    /// and that a command removed.
    fn clear(
        &self,
        kept: &[&Kept],
        lower: Option<&OwnedFd>,
        is_place: &dyn Fn(&[u8]) -> bool,
    ) -> At<()> {
        let names: BTreeSet<&[u8]> = kept.iter().map(|kept| kept.path.0.as_slice()).collect();
        let mut waiting = vec![vec![]];
        while let Some(path) = waiting.pop() {
            let of = |error: io::Error| (path.clone(), error);
            let directory = open_directory(self.root.as_fd(), &path).map_err(of)?;
            let start = match lower {
                Some(lower) => entries(lower, &path).unwrap_or_default(),
                None => BTreeMap::new(),
            };
            for (name, kind) in list(directory.as_fd()).map_err(of)? {
                let inner = join(&path, &name);
                if is_place(&inner) || start.contains_key(&name) {
                    continue;
                }
                if !names.contains(inner.as_slice()) {
                    remove(directory.as_fd(), &name, kind).map_err(|error| (inner, error))?;
                } else if kind == Kind::Directory {
                    waiting.push(inner);
                }
            }
        }
        Ok(())
    }

    fn entry(&self, kept: &Kept, contents: &mut &[u8]) -> io::Result<()> {
        if kept.path.0.is_empty() {
            return Ok(());
        }
        let (parent, name) = self.parent(&kept.path.0)?;
        let there = match kind_at(parent.as_fd(), &name) {
            Ok(kind) => Some(kind),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let is_directory = matches!(kept.kind, KeptKind::Directory);
        match there {
            Some(Kind::Directory) if is_directory => return Ok(()),
            Some(kind) => {
                remove(parent.as_fd(), &name, kind)?;
                // What was opened may have been below it.
                self.opened.replace(None);
            }
            None => {}
        }
        let mode = Mode::from_bits_truncate(0o600);
        match &kept.kind {
            KeptKind::Removed => return Ok(()),
            KeptKind::Directory => {
                nix::sys::stat::mkdirat(&parent, name.as_c_str(), Mode::S_IRWXU)?;
                return self.own(&parent, &name);
            }
            KeptKind::HardLink(first) => {
                let (directory, first) = self.parent(&first.0)?;
                nix::unistd::linkat(
                    &directory,
                    first.as_c_str(),
                    &parent,
                    name.as_c_str(),
                    LinkatFlags::empty(),
                )?;
                return Ok(());
            }
            KeptKind::Link(target) => {
                let target = sys::c_bytes(&target.0)?;
                nix::unistd::symlinkat(target.as_c_str(), &parent, name.as_c_str())?;
                self.own(&parent, &name)?;
                return set_time(&parent, &name, kept.modified);
            }
            KeptKind::File { size, pieces } => {
                self.file(&parent, &name, *size, pieces, contents)?;
            }
            KeptKind::Pipe => special(&parent, &name, SFlag::S_IFIFO, mode)?,
            KeptKind::Socket => special(&parent, &name, SFlag::S_IFSOCK, mode)?,
            KeptKind::Nothing => special(&parent, &name, SFlag::S_IFCHR, mode)?,
        }
        self.own(&parent, &name)?;
        set_mode(&parent, &name, kept.mode)?;
        set_time(&parent, &name, kept.modified)
    }

    fn file(
        &self,
        parent: &OwnedFd,
        name: &CStr,
        size: u64,
        pieces: &[(u64, u64)],
        contents: &mut &[u8],
    ) -> io::Result<()> {
        let flags = libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY | libc::O_NOFOLLOW;
        let file = sys::open_under(parent.as_fd(), name, flags, 0o600, sys::BENEATH)?;
        let file = fs::File::from(file);
        for (at, length) in pieces {
            let (piece, behind) = contents
                .split_at_checked(*length as usize)
                .ok_or_else(|| io::Error::other("its content is too short"))?;
            file.write_all_at(piece, *at)?;
            *contents = behind;
        }
        // A hole at the end is no piece.
        match pieces.last() {
            Some((at, length)) if at + length == size => Ok(()),
            _ => file.set_len(size),
        }
    }

    fn finish_directory(&self, kept: &Kept) -> io::Result<()> {
        if kept.path.0.is_empty() {
            // The place itself: reached through its own descriptor, which stays what it is.
            nix::sys::stat::fchmod(self.root, Mode::from_bits_truncate(kept.mode))?;
            return set_time(self.root, c".", kept.modified);
        }
        let (parent, name) = self.parent(&kept.path.0)?;
        set_mode(&parent, &name, kept.mode)?;
        set_time(&parent, &name, kept.modified)
    }

    fn own(&self, parent: &OwnedFd, name: &CStr) -> io::Result<()> {
        nix::unistd::fchownat(
            parent,
            name,
            Some(Uid::from_raw(self.owner.0)),
            Some(Gid::from_raw(self.owner.1)),
            AtFlags::AT_SYMLINK_NOFOLLOW,
        )?;
        Ok(())
    }

    /// The directory that holds a path, and the name in it.
    fn parent(&self, path: &[u8]) -> io::Result<(Rc<OwnedFd>, CString)> {
        let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&b""[..], path),
        };
        if name.is_empty() || name == b".." || name == b"." {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let name = sys::c_bytes(name)?;
        let mut opened = self.opened.borrow_mut();
        if let Some((_, fd)) = opened.as_ref().filter(|(known, _)| known == directory) {
            return Ok((Rc::clone(fd), name));
        }
        let fd = Rc::new(open_directory(self.root.as_fd(), directory)?);
        *opened = Some((directory.to_vec(), Rc::clone(&fd)));
        Ok((fd, name))
    }
}

fn special(parent: &OwnedFd, name: &CStr, kind: SFlag, mode: Mode) -> io::Result<()> {
    nix::sys::stat::mknodat(parent, name, kind, mode, 0)?;
    Ok(())
}

fn set_mode(parent: &OwnedFd, name: &CStr, mode: u32) -> io::Result<()> {
    // The name has just been made by this process and is no link.
    let mode = Mode::from_bits_truncate(mode);
    nix::sys::stat::fchmodat(parent, name, mode, FchmodatFlags::FollowSymlink)?;
    Ok(())
}

fn set_time(parent: &OwnedFd, name: &CStr, (seconds, nanoseconds): (i64, i64)) -> io::Result<()> {
    let time = TimeSpec::new(seconds, nanoseconds);
    nix::sys::stat::utimensat(parent, name, &time, &time, UtimensatFlags::NoFollowSymlink)?;
    Ok(())
}

/// Removes whatever is at a name, with all that is below it.
fn remove(parent: BorrowedFd<'_>, name: &CStr, kind: Kind) -> io::Result<()> {
    if kind != Kind::Directory {
        nix::unistd::unlinkat(parent, name, UnlinkatFlags::NoRemoveDir)?;
        return Ok(());
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = sys::open_under(parent, name, flags, 0, sys::BENEATH)?;
    for (name, kind) in list(directory.as_fd())? {
        remove(directory.as_fd(), &name, kind)?;
    }
    nix::unistd::unlinkat(parent, name, UnlinkatFlags::RemoveDir)?;
    Ok(())
}

/// Files that were laid where commands cannot write, and that a state therefore holds apart.
#[derive(Default)]
pub struct Private(BTreeMap<PathBuf, (bool, Vec<u8>)>);

impl Private {
    /// Remembers a file that was laid at an absolute path, unless it lies in a writable place.
    pub fn laid(&mut self, area: &Area, path: &str, executable: bool, content: &[u8]) {
        let path = PathBuf::from(path);
        if !area.writable.iter().any(|place| path.starts_with(place)) {
            self.0.insert(path, (executable, content.to_vec()));
        }
    }

    /// The files as requests to lay them.
    pub fn files(&self) -> impl Iterator<Item = (String, bool, &[u8])> {
        self.0.iter().map(|(path, (executable, content))| {
            let path = path.to_string_lossy().into_owned();
            (path, *executable, content.as_slice())
        })
    }
}
