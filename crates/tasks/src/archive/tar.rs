//! Tar members.

use std::{cell::Cell, io, rc::Rc};

use ::tar::EntryType;

use super::{ArchiveError, MemberProblem, members::Members};

/// Long names and extended headers are read into memory by the tar reader before their size can be
/// checked, so between two members no more than this may be read.
const MAX_HEADER_BYTES: u64 = 4 << 20;

pub(super) fn read(reader: impl io::Read, members: &mut Members<'_>) -> Result<(), ArchiveError> {
    let allowance = Rc::new(Cell::new(MAX_HEADER_BYTES));
    let mut archive = ::tar::Archive::new(Metered {
        reader,
        allowance: Rc::clone(&allowance),
    });
    let entries = archive
        .entries()
        .map_err(|source| members.unreadable(source))?;
    for entry in entries {
        let mut entry = entry.map_err(|source| members.unreadable(source))?;
        let name = entry.path_bytes().into_owned();
        members.count(&name)?;
        let size = entry.size();
        let limit = members.limits().max_total_bytes;
        allowance.set(size.min(limit).saturating_add(MAX_HEADER_BYTES));
        let executable = entry.header().mode().is_ok_and(|mode| mode & 0o100 != 0);
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Continuous => {
                members.file(&name, executable, size, &mut entry)?;
            }
            EntryType::Directory => members.directory(&name)?,
            EntryType::Symlink => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                members.link(&name, &target)?;
            }
            EntryType::Link => {
                let target = entry.link_name_bytes().unwrap_or_default().into_owned();
                members.hard_link(&name, &target)?;
            }
            // `git archive` puts the commit id there; it describes no member.
            EntryType::XGlobalHeader => {}
            _ => return Err(members.refuse(&name, MemberProblem::Special)),
        }
        allowance.set(allowance.get().max(MAX_HEADER_BYTES));
    }
    Ok(())
}

/// Stops a reader that takes more than it was allowed.
struct Metered<R> {
    reader: R,
    allowance: Rc<Cell<u64>>,
}

impl<R: io::Read> io::Read for Metered<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buffer)?;
        let left = self.allowance.get().checked_sub(n as u64);
        self.allowance.set(
            left.ok_or_else(|| io::Error::other("a header or member is larger than it may be"))?,
        );
        Ok(n)
    }
}
