//! Makes the archive that is unpacked in a container before anything runs there: the work tree's
//! start and injected files.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use temper_core::task::InjectedFile;

/// An archive under way. Paths are those in the container, without the leading slash.
pub struct Packer<'a> {
    builder: tar::Builder<&'a mut dyn Write>,
    made: BTreeSet<PathBuf>,
}

impl<'a> Packer<'a> {
    /// An empty archive.
    pub fn new(out: &'a mut dyn Write) -> Self {
        Packer {
            builder: tar::Builder::new(out),
            made: BTreeSet::new(),
        }
    }

    /// A directory; the second time nothing.
    pub fn directory(&mut self, path: &Path, owner: (u64, u64)) -> io::Result<()> {
        if self.made.insert(path.into()) {
            let mut header = header(tar::EntryType::Directory, 0o755, owner, 0);
            self.builder.append_data(&mut header, path, io::empty())?;
        }
        Ok(())
    }

    /// A file with its content.
    pub fn file(&mut self, path: &Path, file: &InjectedFile, owner: (u64, u64)) -> io::Result<()> {
        let mode = if file.executable { 0o755 } else { 0o644 };
        let mut header = header(tar::EntryType::Regular, mode, owner, 0);
        header.set_size(file.content.len() as u64);
        self.builder
            .append_data(&mut header, path, &file.content[..])
    }

    /// Everything below a directory of this machine, links as links; `path` itself as well.
    /// Sockets, pipes and devices are left out.
    pub fn tree(&mut self, path: &Path, source: &Path, owner: (u64, u64)) -> io::Result<()> {
        self.directory(path, owner)?;
        let mut waiting = vec![PathBuf::new()];
        while let Some(inner) = waiting.pop() {
            for entry in fs::read_dir(source.join(&inner))? {
                let entry = entry?;
                let kind = entry.file_type()?;
                let inner = inner.join(entry.file_name());
                let target = path.join(&inner);
                if kind.is_dir() {
                    self.directory(&target, owner)?;
                    waiting.push(inner);
                } else if kind.is_symlink() {
                    let points_to = fs::read_link(entry.path())?;
                    let mut header = header(tar::EntryType::Symlink, 0o777, owner, 0);
                    self.builder.append_link(&mut header, &target, &points_to)?;
                } else if kind.is_file() {
                    self.host_file(&target, &entry.path(), owner)?;
                }
            }
        }
        Ok(())
    }

    fn host_file(&mut self, target: &Path, source: &Path, owner: (u64, u64)) -> io::Result<()> {
        let file = open(source)?;
        let metadata = file.metadata()?;
        let mode = if metadata.mode() & 0o100 != 0 {
            0o755
        } else {
            0o644
        };
        let time = u64::try_from(metadata.mtime()).unwrap_or(0);
        let mut header = header(tar::EntryType::Regular, mode, owner, time);
        header.set_size(metadata.len());
        // One that changes now must not shift what follows.
        let exact = file.take(metadata.len());
        let mut exact = ExactLength {
            inner: exact,
            left: metadata.len(),
        };
        self.builder.append_data(&mut header, target, &mut exact)
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<()> {
        self.builder.finish()
    }
}

/// Opens a regular file of a start for reading.
pub fn open(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn header(kind: tar::EntryType, mode: u32, owner: (u64, u64), time: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(owner.0);
    header.set_gid(owner.1);
    header.set_mtime(time);
    header.set_size(0);
    header
}

/// Fails where a reader ends too early.
struct ExactLength<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for ExactLength<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.left -= n as u64;
        if n == 0 && self.left > 0 && !buffer.is_empty() {
            return Err(io::Error::other(
                "a file of the start shrank while it was read",
            ));
        }
        Ok(n)
    }
}

/// An absolute path in a container without its root. `..`, the root itself and NUL are refused.
pub fn inner_path(path: &str) -> Result<PathBuf, String> {
    if path.contains('\0') {
        return Err("it contains a NUL byte".into());
    }
    if !path.starts_with('/') {
        return Err("it is not absolute".into());
    }
    let mut clean = PathBuf::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => return Err("it climbs with `..`".into()),
            part => clean.push(part),
        }
    }
    if clean.as_os_str().as_bytes().is_empty() {
        return Err("it is the root".into());
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_that_do_not_climb_are_taken() {
        for bad in ["", "a", "./a", "/", "//", "/a/../b", "/..", "/a\0b"] {
            assert!(inner_path(bad).is_err(), "{bad:?}");
        }
        assert_eq!(inner_path("/a//b/./c/").unwrap(), Path::new("a/b/c"));
    }
}
