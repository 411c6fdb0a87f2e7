//! Files mapped into memory.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use memmap2::Mmap;

/// A file's content without a copy of it. It must not shrink while it is open: the operating
/// system ends a process that reads a mapped page that is gone, and no check can prevent it.
/// Checkpoints are replaced by rename, which leaves an opened one whole.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Mapped(Mmap),
    /// An empty file cannot be mapped.
    Empty,
    #[cfg(test)]
    Owned(Vec<u8>),
}

/// A file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {}: {source}", .path.display())]
pub struct FileError {
    /// `read`, `write` and the like.
    pub operation: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl FileError {
    /// For `map_err`.
    pub(crate) fn on(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| FileError {
            operation,
            path,
            source,
        }
    }
}

impl MappedFile {
    /// Maps a regular file.
    pub fn open(path: &Path) -> Result<Self, FileError> {
        let failed = FileError::on("read", path);
        let opened = File::open(path).and_then(|file| {
            let metadata = file.metadata()?;
            if !metadata.is_file() {
                return Err(io::Error::other("it is no regular file"));
            }
            if metadata.len() == 0 {
                return Ok(Content::Empty);
            }
            // SAFETY: the map is only read, as bytes, for which every value is valid. That the file
            // is not shortened or rewritten meanwhile is asked of the user in the documentation.
            unsafe { Mmap::map(&file) }.map(Content::Mapped)
        });
        Ok(MappedFile {
            path: path.to_owned(),
            content: opened.map_err(failed)?,
        })
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        match &self.content {
            Content::Mapped(map) => map,
            Content::Empty => &[],
            #[cfg(test)]
            Content::Owned(bytes) => bytes,
        }
    }

    /// Bytes as if they were a file's.
    #[cfg(test)]
    pub(crate) fn of(bytes: Vec<u8>) -> Self {
        MappedFile {
            path: PathBuf::from("test"),
            content: Content::Owned(bytes),
        }
    }
}

/// Reads a small file whole; a longer one than `limit` bytes is an error.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    use std::io::Read;
    let read = || {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut bytes = Vec::new();
        file.take(limit + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it has more than {limit} bytes")));
        }
        Ok(bytes)
    };
    read().map_err(FileError::on("read", path))
}
