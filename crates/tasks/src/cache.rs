//! A directory of things that were made once and are found again by the digest of what determines
//! their content.
//!
//! An entry appears by rename and holds a marker that was written last, so a reader sees all of it
//! or nothing, whatever was killed when. Preparers of the same entry wait for one another by a lock
//! file; preparers of different entries do not.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use temper_core::Digest;

/// The cache. It is opened by making its directory, and may be shared by any number of processes.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// The cache's own files could not be used.
#[derive(Debug, thiserror::Error)]
#[error("{operation} {} in the cache: {source}", .path.display())]
pub struct CacheError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

const MARKER: &str = "complete";
const CONTENT: &str = "content";

impl Cache {
    /// Uses the cache at `root`, which is made if it is missing.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, CacheError> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(failed("make", &root))?;
        // Paths into the cache are mounted into sandboxes, so they must not depend on the working
        // directory.
        let root = fs::canonicalize(&root).map_err(failed("find", &root))?;
        Ok(Cache { root })
    }

    /// Where the cache lies.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory of the entry `key` of a `kind`, made by `make` when it is not there yet. `make`
    /// gets the path of an empty directory and fills it; when it fails, nothing remains.
    pub fn entry<E: From<CacheError>>(
        &self,
        kind: &str,
        key: &Digest,
        make: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<PathBuf, E> {
        let shelf = self.root.join(kind);
        let entry = shelf.join(key.as_str());
        if entry.join(MARKER).is_file() {
            return Ok(entry.join(CONTENT));
        }
        fs::create_dir_all(&shelf).map_err(failed("make", &shelf))?;
        let lock_path = shelf.join(format!("{}.lock", key.as_str()));
        let lock = fs::File::create(&lock_path).map_err(failed("make", &lock_path))?;
        lock.lock().map_err(failed("lock", &lock_path))?;
        // Whoever held the lock before may have made the entry.
        if entry.join(MARKER).is_file() {
            return Ok(entry.join(CONTENT));
        }
        if entry.exists() {
            fs::remove_dir_all(&entry).map_err(failed("remove", &entry))?;
        }
        let work = tempfile::Builder::new()
            .prefix(".making-")
            .tempdir_in(&shelf)
            .map_err(failed("make a directory below", &shelf))?;
        let content = work.path().join(CONTENT);
        fs::create_dir(&content).map_err(failed("make", &content))?;
        make(&content)?;
        // A temporary directory is private to its owner; what is mounted from the cache is read by
        // other users.
        set_mode(work.path(), 0o755).map_err(failed("open up", work.path()))?;
        let marker = work.path().join(MARKER);
        fs::write(&marker, b"").map_err(failed("write", &marker))?;
        fs::File::open(&marker)
            .and_then(|file| file.sync_all())
            .map_err(failed("write", &marker))?;
        let work = work.keep();
        fs::rename(&work, &entry).map_err(failed("rename to", &entry))?;
        Ok(entry.join(CONTENT))
    }
}

fn failed(operation: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CacheError {
    let path = path.to_owned();
    move |source| CacheError {
        operation,
        path,
        source,
    }
}

pub(crate) fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(path)
            .unwrap()
            .map(|item| item.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".lock"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn an_entry_is_made_once_by_any_number_of_preparers() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        let key = Digest::of(b"k");
        let made = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let content = cache
                        .entry::<CacheError>("kind", &key, |path| {
                            made.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                            fs::write(path.join("a"), "1").unwrap();
                            Ok(())
                        })
                        .unwrap();
                    assert_eq!(fs::read_to_string(content.join("a")).unwrap(), "1");
                });
            }
        });
        assert_eq!(made.into_inner(), 1);
    }

    #[test]
    fn a_failed_or_interrupted_making_leaves_nothing_that_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path()).unwrap();
        let key = Digest::of(b"k");
        let failing = cache.entry::<CacheError>("kind", &key, |path| {
            fs::write(path.join("half"), "1").unwrap();
            Err(failed("test", path)(io::Error::other("stop")))
        });
        assert!(failing.is_err());
        assert_eq!(names(&cache.root().join("kind")), Vec::<String>::new());

        // A directory without its marker, as a crash of an older writer might leave it.
        let half = cache.root().join("kind").join(key.as_str()).join(CONTENT);
        fs::create_dir_all(&half).unwrap();
        fs::write(half.join("half"), "1").unwrap();
        let content = cache
            .entry::<CacheError>("kind", &key, |path| {
                fs::write(path.join("whole"), "1").unwrap();
                Ok(())
            })
            .unwrap();
        assert_eq!(names(&content), ["whole"]);
    }
}
