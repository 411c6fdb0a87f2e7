//! Zip members.

use std::{fs, io};

use ::zip::result::ZipError;

use super::{ArchiveError, MemberProblem, members::Members};

const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

pub(super) fn read(file: fs::File, members: &mut Members<'_>) -> Result<(), ArchiveError> {
    let mut archive = ::zip::ZipArchive::new(io::BufReader::new(file))
        .map_err(|error| members.unreadable(io_error(error)))?;
    // The reader keeps one member of each name, so duplicates have to be asked for.
    if archive.has_duplicate_names() {
        return Err(members.refuse(b"", MemberProblem::Duplicate));
    }
    for index in 0..archive.len() {
        let name = match archive.by_index_raw(index) {
            Ok(entry) => {
                let name = entry.name_raw().to_vec();
                if entry.encrypted() {
                    return Err(members.refuse(&name, MemberProblem::Encrypted));
                }
                name
            }
            Err(error) => return Err(members.unreadable(io_error(error))),
        };
        members.count(&name)?;
        if name.contains(&b'\\') {
            return Err(members.refuse(&name, MemberProblem::BadName));
        }
        let mut entry = archive
            .by_index(index)
            .map_err(|error| members.unreadable(io_error(error)))?;
        let mode = entry.unix_mode().unwrap_or(0);
        let size = entry.size();
        match mode & S_IFMT {
            S_IFDIR => members.directory(&name)?,
            S_IFLNK => {
                let limit = members.limits().max_path_bytes as u64;
                if size > limit {
                    return Err(members.refuse(&name, MemberProblem::LongName));
                }
                let mut target = Vec::new();
                io::Read::read_to_end(&mut io::Read::take(&mut entry, limit), &mut target)
                    .map_err(|source| members.unreadable(source))?;
                members.link(&name, &target)?;
            }
            S_IFREG | 0 if name.ends_with(b"/") => members.directory(&name)?,
            S_IFREG | 0 => members.file(&name, mode & 0o100 != 0, size, &mut entry)?,
            _ => return Err(members.refuse(&name, MemberProblem::Special)),
        }
    }
    Ok(())
}

fn io_error(error: ZipError) -> io::Error {
    match error {
        ZipError::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}
