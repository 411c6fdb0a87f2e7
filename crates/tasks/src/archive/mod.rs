//! Safe extraction of `.tar.gz`, `.tar` and `.zip` archives (task archives, sdists, wheels).
//!
//! Everything goes into a fresh directory beside the destination, which takes the destination's
//! name only when every member was accepted; otherwise nothing remains. No member is ever written
//! through a link, because a member below a link is refused whatever the link points to. Owners,
//! times and every permission other than the owner's executable bit are dropped, and with them
//! set-user-id bits.
//!
//! Two things are refused that common tools accept, since they make the result depend on the order
//! of members or on the file system: a path that appears twice, and two paths that differ only in
//! case.

mod members;
mod tar;
mod zip;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// How large an archive's content may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArchiveLimits {
    /// Members, directories included.
    pub max_members: usize,
    /// Bytes of everything unpacked.
    pub max_total_bytes: u64,
    /// Unpacked bytes for one byte of archive. The first 16 MiB are free, because small archives
    /// of repetitive text compress beyond any sensible ratio.
    pub max_ratio: u64,
    /// Bytes of a member's path.
    pub max_path_bytes: usize,
    /// Directories inside one another.
    pub max_depth: usize,
}

impl Default for ArchiveLimits {
    fn default() -> Self {
        ArchiveLimits {
            max_members: 100_000,
            max_total_bytes: 1 << 30,
            max_ratio: 200,
            max_path_bytes: 1024,
            max_depth: 64,
        }
    }
}

/// What is wrong with a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberProblem {
    /// Its name has a `..` component.
    #[error("its name climbs with `..`")]
    Climbs,
    /// Its name starts at the root.
    #[error("its name is absolute")]
    Absolute,
    /// Its name is empty, holds a NUL byte, or (in a zip) a backslash.
    #[error("its name is not a usable path")]
    BadName,
    /// Its name is too long or too deep.
    #[error("its name is too long or has too many directories")]
    LongName,
    /// Its link leads outside the archive's tree, or nowhere in a circle.
    #[error("its link leads outside the archive")]
    LinkOutside,
    /// A hard link to something that is not an earlier file of the archive.
    #[error("its hard link does not name an earlier file of the archive")]
    HardLinkOutside,
    /// It lies below a link or a file.
    #[error("it lies below a member that is not a directory")]
    BelowLink,
    /// Its path was there already.
    #[error("its path appears twice")]
    Duplicate,
    /// Its path differs from another only in case.
    #[error("its path differs from another member's only in upper and lower case")]
    CaseCollision,
    /// A device, a pipe, or a kind that is not understood.
    #[error("it is neither a file, a directory nor a link")]
    Special,
    /// It is encrypted.
    #[error("it is encrypted")]
    Encrypted,
    /// Its content ends early.
    #[error("its content ends early")]
    Truncated,
}

/// Why an archive was not extracted. In every case the destination is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The archive itself cannot be read.
    #[error("read the archive {}: {source}", .archive.display())]
    Read {
        /// The archive.
        archive: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its first bytes are none of the three formats'.
    #[error("read the archive {}: it is neither tar, gzipped tar nor zip", .0.display())]
    Unrecognized(PathBuf),
    /// A member is refused.
    #[error("extract {member:?} from {}: {problem}", .archive.display())]
    Member {
        /// The archive.
        archive: PathBuf,
        /// The member's name.
        member: String,
        /// Why.
        problem: MemberProblem,
    },
    /// A limit is exceeded.
    #[error("extract {member:?} from {}: more than {limit} {what}", .archive.display())]
    Limit {
        /// The archive.
        archive: PathBuf,
        /// The member at which it was noticed.
        member: String,
        /// `members`, `bytes`, `times its size`.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// Something is at the destination already.
    #[error("extract to {}: something is there already", .0.display())]
    Occupied(PathBuf),
    /// The destination's disk refused.
    #[error("write {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There must be exactly one directory at the top, and nothing else.
    #[error("find the single top directory of {}: there are {found} entries at the top", .archive.display())]
    TopLevel {
        /// The archive.
        archive: PathBuf,
        /// How many there are.
        found: usize,
    },
}

/// Extracts `archive` to `into`, which must be missing or an empty directory. Its parent must
/// exist.
pub fn extract(archive: &Path, into: &Path, limits: &ArchiveLimits) -> Result<(), ArchiveError> {
    extract_part(archive, into, limits, false)
}

/// Extracts the content of the archive's single top directory, as source distributions have one.
pub fn extract_single_top(
    archive: &Path,
    into: &Path,
    limits: &ArchiveLimits,
) -> Result<(), ArchiveError> {
    extract_part(archive, into, limits, true)
}

fn extract_part(
    archive: &Path,
    into: &Path,
    limits: &ArchiveLimits,
    single_top: bool,
) -> Result<(), ArchiveError> {
    let write_failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ArchiveError::Write { path, source }
    };
    match fs::read_dir(into).map(|mut items| items.next().is_none()) {
        Ok(true) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return Err(ArchiveError::Occupied(into.to_owned())),
    }
    let parent = match into.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let work = tempfile::Builder::new()
        .prefix(".extracting-")
        .tempdir_in(parent)
        .map_err(write_failed(parent))?;
    let root = work.path().join("tree");
    fs::create_dir(&root).map_err(write_failed(&root))?;

    let read_failed = |source| ArchiveError::Read {
        archive: archive.to_owned(),
        source,
    };
    let mut file = fs::File::open(archive).map_err(read_failed)?;
    let size = file.metadata().map_err(read_failed)?.len();
    let mut members = members::Members::new(archive, &root, size, *limits);
    match recognize(&mut file).map_err(read_failed)? {
        Some(Kind::TarGz) => tar::read(flate2::read::MultiGzDecoder::new(file), &mut members)?,
        Some(Kind::Tar) => tar::read(file, &mut members)?,
        Some(Kind::Zip) => zip::read(file, &mut members)?,
        None => return Err(ArchiveError::Unrecognized(archive.to_owned())),
    }
    members.finish()?;

    let from = if single_top {
        only_directory(&root).map_err(|found| ArchiveError::TopLevel {
            archive: archive.to_owned(),
            found,
        })?
    } else {
        root
    };
    fs::rename(&from, into).map_err(write_failed(into))
}

/// Whether a file starts as one of the three formats does.
pub fn is_archive(path: &Path) -> bool {
    path.is_file()
        && fs::File::open(path)
            .and_then(|mut file| recognize(&mut file))
            .is_ok_and(|kind| kind.is_some())
}

enum Kind {
    TarGz,
    Tar,
    Zip,
}

/// Tells the format by content; names of files are not believed.
fn recognize(file: &mut fs::File) -> io::Result<Option<Kind>> {
    use io::{Read, Seek};
    let mut start = Vec::new();
    file.take(512).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(if start.starts_with(&[0x1f, 0x8b]) {
        Some(Kind::TarGz)
    } else if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        Some(Kind::Zip)
    } else if start.len() == 512 && (start[257..].starts_with(b"ustar") || tar_checksum(&start)) {
        Some(Kind::Tar)
    } else {
        None
    })
}

/// Whether a block is a tar header of the oldest kind, which has no magic: its checksum counts the
/// checksum field itself as eight spaces.
fn tar_checksum(block: &[u8]) -> bool {
    let text: String = block[148..156]
        .iter()
        .map(|byte| *byte as char)
        .filter(|character| character.is_digit(8))
        .collect();
    let sum: u64 = block
        .iter()
        .enumerate()
        .map(|(index, byte)| {
            if (148..156).contains(&index) {
                u64::from(b' ')
            } else {
                u64::from(*byte)
            }
        })
        .sum();
    u64::from_str_radix(&text, 8) == Ok(sum)
}

fn only_directory(root: &Path) -> Result<PathBuf, usize> {
    let items: Vec<_> = fs::read_dir(root)
        .map_err(|_| 0usize)?
        .filter_map(Result::ok)
        .collect();
    match items.as_slice() {
        [only] if only.file_type().is_ok_and(|kind| kind.is_dir()) => Ok(only.path()),
        items => Err(items.len()),
    }
}

#[cfg(test)]
mod tests;
