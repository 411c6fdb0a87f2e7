//! The rules every member must pass, whichever format it comes from.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    io::{self, Read},
    os::unix::{
        ffi::OsStrExt,
        fs::{OpenOptionsExt, PermissionsExt},
    },
    path::{Path, PathBuf},
};

use temper_core::TreePath;

use super::{ArchiveError, ArchiveLimits, MemberProblem};

const FREE_BYTES: u64 = 16 << 20;
const MAX_LINK_HOPS: usize = 40;

/// What has been extracted so far. It is the whole truth about the directory it writes to, because
/// nobody else knows that directory.
pub(super) struct Members<'a> {
    archive: &'a Path,
    root: &'a Path,
    archive_size: u64,
    limits: ArchiveLimits,
    kinds: BTreeMap<TreePath, Kind>,
    links: BTreeMap<TreePath, Vec<u8>>,
    folded: HashMap<String, TreePath>,
    n_members: usize,
    total_bytes: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    File,
    Link,
}

impl<'a> Members<'a> {
    pub(super) fn new(
        archive: &'a Path,
        root: &'a Path,
        archive_size: u64,
        limits: ArchiveLimits,
    ) -> Self {
        Members {
            archive,
            root,
            archive_size,
            limits,
            kinds: BTreeMap::new(),
            links: BTreeMap::new(),
            folded: HashMap::new(),
            n_members: 0,
            total_bytes: 0,
        }
    }

    /// Counts a member, of whatever kind.
    pub(super) fn count(&mut self, name: &[u8]) -> Result<(), ArchiveError> {
        self.n_members += 1;
        if self.n_members > self.limits.max_members {
            return Err(self.limit(name, "members", self.limits.max_members as u64));
        }
        Ok(())
    }

    pub(super) fn directory(&mut self, name: &[u8]) -> Result<(), ArchiveError> {
        // `.` itself, or `./`, is how many archives name their top.
        if name
            .split(|byte| *byte == b'/')
            .all(|part| part.is_empty() || part == b".")
            && name.first() == Some(&b'.')
        {
            return Ok(());
        }
        let path = self.path(name)?;
        if self.kinds.get(&path) == Some(&Kind::Directory) {
            return Ok(());
        }
        self.claim(name, &path, Kind::Directory)?;
        self.make_directory(&path)
    }

    pub(super) fn file(
        &mut self,
        name: &[u8],
        executable: bool,
        size: u64,
        content: &mut dyn Read,
    ) -> Result<(), ArchiveError> {
        let path = self.path(name)?;
        self.claim(name, &path, Kind::File)?;
        if size > self.limits.max_total_bytes {
            return Err(self.limit(name, "bytes", self.limits.max_total_bytes));
        }
        let on_disk = self.on_disk(&path);
        let write_failed = |source| ArchiveError::Write {
            path: on_disk.clone(),
            source,
        };
        let mode = if executable { 0o755 } else { 0o644 };
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&on_disk)
            .map_err(write_failed)?;
        file.set_permissions(fs::Permissions::from_mode(mode))
            .map_err(write_failed)?;
        // The declared size is a claim; what counts is what comes out.
        let mut buffer = vec![0; 64 << 10];
        let mut written = 0;
        loop {
            let n = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(self.unreadable(source)),
            };
            written += n as u64;
            self.charge(name, n as u64)?;
            io::Write::write_all(&mut file, &buffer[..n]).map_err(write_failed)?;
        }
        if written != size {
            return Err(self.refuse(name, MemberProblem::Truncated));
        }
        Ok(())
    }

    pub(super) fn link(&mut self, name: &[u8], target: &[u8]) -> Result<(), ArchiveError> {
        let path = self.path(name)?;
        self.claim(name, &path, Kind::Link)?;
        if target.is_empty() || target.contains(&0) || target.len() > self.limits.max_path_bytes {
            return Err(self.refuse(name, MemberProblem::LinkOutside));
        }
        let on_disk = self.on_disk(&path);
        std::os::unix::fs::symlink(std::ffi::OsStr::from_bytes(target), &on_disk).map_err(
            |source| ArchiveError::Write {
                path: on_disk,
                source,
            },
        )?;
        self.links.insert(path, target.to_owned());
        Ok(())
    }

    /// A hard link becomes a copy, so that files of the tree cannot share their content.
    pub(super) fn hard_link(&mut self, name: &[u8], target: &[u8]) -> Result<(), ArchiveError> {
        let source = match normalize(target, &self.limits) {
            Ok(path) if self.kinds.get(&path) == Some(&Kind::File) => self.on_disk(&path),
            _ => return Err(self.refuse(name, MemberProblem::HardLinkOutside)),
        };
        let opened = fs::File::open(&source).and_then(|file| Ok((file.metadata()?, file)));
        let (metadata, mut file) = opened.map_err(|error| ArchiveError::Write {
            path: source,
            source: error,
        })?;
        let executable = metadata.permissions().mode() & 0o100 != 0;
        self.file(name, executable, metadata.len(), &mut file)
    }

    /// Checks what can be checked only when all members are known: where links lead.
    pub(super) fn finish(self) -> Result<(), ArchiveError> {
        match self
            .links
            .keys()
            .find(|link| !stays_inside(&self.links, link))
        {
            Some(link) => Err(self.refuse(link.as_bytes(), MemberProblem::LinkOutside)),
            None => Ok(()),
        }
    }

    /// Counts unpacked bytes. Readers call it for what they must hold in memory, too.
    pub(super) fn charge(&mut self, name: &[u8], n_bytes: u64) -> Result<(), ArchiveError> {
        self.total_bytes = self.total_bytes.saturating_add(n_bytes);
        if self.total_bytes > self.limits.max_total_bytes {
            return Err(self.limit(name, "bytes", self.limits.max_total_bytes));
        }
        let allowed = self
            .archive_size
            .saturating_mul(self.limits.max_ratio)
            .max(FREE_BYTES);
        if self.total_bytes > allowed {
            return Err(self.limit(name, "times its size", self.limits.max_ratio));
        }
        Ok(())
    }

    pub(super) fn limits(&self) -> &ArchiveLimits {
        &self.limits
    }

    pub(super) fn refuse(&self, name: &[u8], problem: MemberProblem) -> ArchiveError {
        ArchiveError::Member {
            archive: self.archive.to_owned(),
            member: String::from_utf8_lossy(name).into_owned(),
            problem,
        }
    }

    pub(super) fn unreadable(&self, source: io::Error) -> ArchiveError {
        ArchiveError::Read {
            archive: self.archive.to_owned(),
            source,
        }
    }

    fn limit(&self, name: &[u8], what: &'static str, limit: u64) -> ArchiveError {
        ArchiveError::Limit {
            archive: self.archive.to_owned(),
            member: String::from_utf8_lossy(name).into_owned(),
            what,
            limit,
        }
    }

    fn path(&self, name: &[u8]) -> Result<TreePath, ArchiveError> {
        normalize(name, &self.limits).map_err(|problem| self.refuse(name, problem))
    }

    /// Takes a path for a member, making the directories above it.
    fn claim(&mut self, name: &[u8], path: &TreePath, kind: Kind) -> Result<(), ArchiveError> {
        let bytes = path.as_bytes();
        let parents: Vec<_> = bytes
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'/')
            .filter_map(|(index, _)| TreePath::new(&bytes[..index]).ok())
            .collect();
        for parent in parents {
            match self.kinds.get(&parent) {
                Some(Kind::Directory) => {}
                Some(Kind::File | Kind::Link) => {
                    return Err(self.refuse(name, MemberProblem::BelowLink));
                }
                None => {
                    self.insert(name, &parent, Kind::Directory)?;
                    self.make_directory(&parent)?;
                }
            }
        }
        if self.kinds.contains_key(path) {
            return Err(self.refuse(name, MemberProblem::Duplicate));
        }
        self.insert(name, path, kind)
    }

    fn insert(&mut self, name: &[u8], path: &TreePath, kind: Kind) -> Result<(), ArchiveError> {
        let folded = path.to_text().to_lowercase();
        if self
            .folded
            .insert(folded, path.clone())
            .is_some_and(|other| other != *path)
        {
            return Err(self.refuse(name, MemberProblem::CaseCollision));
        }
        self.kinds.insert(path.clone(), kind);
        Ok(())
    }

    fn make_directory(&self, path: &TreePath) -> Result<(), ArchiveError> {
        let on_disk = self.on_disk(path);
        fs::create_dir(&on_disk)
            .and_then(|()| crate::cache::set_mode(&on_disk, 0o755))
            .map_err(|source| ArchiveError::Write {
                path: on_disk,
                source,
            })
    }

    fn on_disk(&self, path: &TreePath) -> PathBuf {
        self.root.join(path.as_os_path())
    }
}

/// A member's name as a path: empty and `.` components go, anything that could leave is refused.
fn normalize(name: &[u8], limits: &ArchiveLimits) -> Result<TreePath, MemberProblem> {
    if name.first() == Some(&b'/') {
        return Err(MemberProblem::Absolute);
    }
    if name.len() > limits.max_path_bytes {
        return Err(MemberProblem::LongName);
    }
    let parts: Vec<_> = name
        .split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .collect();
    if parts.iter().any(|part| *part == b"..") {
        return Err(MemberProblem::Climbs);
    }
    if parts.len() > limits.max_depth || parts.iter().any(|part| part.len() > 255) {
        return Err(MemberProblem::LongName);
    }
    TreePath::new(parts.join(&b'/')).map_err(|_| MemberProblem::BadName)
}

/// Whether following the link, and every link on the way, stays below the root. The walk is done on
/// names alone; the disk is not asked.
fn stays_inside(links: &BTreeMap<TreePath, Vec<u8>>, link: &TreePath) -> bool {
    let components = |bytes: &[u8]| -> Vec<Vec<u8>> {
        bytes
            .split(|byte| *byte == b'/')
            .map(<[u8]>::to_vec)
            .collect()
    };
    let mut position: Vec<Vec<u8>> = Vec::new();
    let mut pending: VecDeque<_> = components(link.as_bytes()).into();
    let mut hops = 0;
    while let Some(part) = pending.pop_front() {
        match part.as_slice() {
            b"" | b"." => {}
            b".." => {
                if position.pop().is_none() {
                    return false;
                }
            }
            _ => {
                position.push(part);
                let here = TreePath::new(position.join(&b'/'));
                let Some(target) = here.ok().and_then(|here| links.get(&here)) else {
                    continue;
                };
                hops += 1;
                if hops > MAX_LINK_HOPS || target.first() == Some(&b'/') {
                    return false;
                }
                position.pop();
                for part in components(target).into_iter().rev() {
                    pending.push_front(part);
                }
            }
        }
    }
    true
}
