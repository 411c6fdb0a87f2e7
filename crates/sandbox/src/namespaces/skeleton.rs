//! Which directories, links and mounts make up the root of a sandbox.
//!
//! The root is an empty file system into which read-only views of the host's system directories
//! (or of a given root directory) are laid. Where something of ours has to appear inside such a
//! view and there is nothing to mount it on, the view is split: its directory is made anew and
//! each of its entries becomes a view of its own. So a mount target can be anywhere.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

/// What of the host's root is shown, if it is there.
const SYSTEM: &[&str] = &[
    "bin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "sbin",
    "usr",
    "nix/store",
    // What programs need to start and to know about the world; nothing about this host.
    "etc/alternatives",
    "etc/ca-certificates",
    "etc/crypto-policies",
    "etc/ld.so.cache",
    "etc/ld.so.conf",
    "etc/ld.so.conf.d",
    "etc/mime.types",
    "etc/os-release",
    "etc/pki/ca-trust/extracted",
    "etc/pki/tls/certs",
    "etc/protocols",
    "etc/services",
    "etc/ssl/certs",
    "etc/ssl/openssl.cnf",
    "etc/terminfo",
];

/// Entries of a given root directory that are replaced by our own.
const OURS: &[&str] = &["dev", "proc", "sys", "tmp", "run"];

/// One thing to make, in order; paths are absolute in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Directory(PathBuf),
    Link {
        at: PathBuf,
        to: PathBuf,
    },
    /// A read-only view of `source`.
    View {
        source: PathBuf,
        at: PathBuf,
        directory: bool,
    },
}

/// What must be possible in the finished root.
pub struct Wanted<'a> {
    /// Directories to mount something on.
    pub directories: &'a BTreeSet<PathBuf>,
    /// Files to be made.
    pub files: &'a BTreeSet<PathBuf>,
}

/// The pieces that show the host's system directories.
pub fn of_host(wanted: &Wanted<'_>) -> io::Result<Vec<Piece>> {
    let mut pieces = vec![];
    for name in SYSTEM {
        let path = Path::new("/").join(name);
        if path.symlink_metadata().is_ok() {
            lay(&path, &path, wanted, &mut pieces)?;
        }
    }
    Ok(pieces)
}

/// The pieces that show a directory as the root.
pub fn of_directory(root: &Path, wanted: &Wanted<'_>) -> io::Result<Vec<Piece>> {
    let mut pieces = vec![];
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        if !OURS.iter().any(|ours| entry.file_name() == *ours) {
            let at = Path::new("/").join(entry.file_name());
            lay(&entry.path(), &at, wanted, &mut pieces)?;
        }
    }
    Ok(pieces)
}

fn lay(source: &Path, at: &Path, wanted: &Wanted<'_>, pieces: &mut Vec<Piece>) -> io::Result<()> {
    let metadata = source.symlink_metadata()?;
    if wanted.files.contains(at) {
        return Ok(());
    }
    if metadata.is_symlink() {
        pieces.push(Piece::Link {
            at: at.to_owned(),
            to: fs::read_link(source)?,
        });
    } else if !metadata.is_dir() {
        pieces.push(Piece::View {
            source: source.to_owned(),
            at: at.to_owned(),
            directory: false,
        });
    } else if must_split(source, at, wanted) {
        pieces.push(Piece::Directory(at.to_owned()));
        for entry in fs::read_dir(source)? {
            let name = entry?.file_name();
            lay(&source.join(&name), &at.join(&name), wanted, pieces)?;
        }
    } else {
        pieces.push(Piece::View {
            source: source.to_owned(),
            at: at.to_owned(),
            directory: true,
        });
    }
    Ok(())
}

fn must_split(source: &Path, at: &Path, wanted: &Wanted<'_>) -> bool {
    let below = |path: &Path| path != at && path.starts_with(at);
    wanted.files.iter().any(|path| below(path))
        || wanted.directories.iter().any(|path| {
            below(path)
                && path
                    .strip_prefix(at)
                    .is_ok_and(|rest| !is_plain_directory(source, rest))
        })
}

/// Whether `rest` below `source` is a directory reached through directories alone.
fn is_plain_directory(source: &Path, rest: &Path) -> bool {
    let mut path = source.to_owned();
    rest.components().all(|component| {
        path.push(component);
        path.symlink_metadata()
            .is_ok_and(|metadata| metadata.is_dir())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(directories: &[&str], files: &[&str]) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        for path in ["usr/bin", "usr/lib/deep", "opt", "proc/1"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        fs::write(root.path().join("usr/bin/sh"), "").unwrap();
        std::os::unix::fs::symlink("usr/bin", root.path().join("bin")).unwrap();
        let set = |list: &[&str]| list.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
        let (directories, files) = (set(directories), set(files));
        let wanted = Wanted {
            directories: &directories,
            files: &files,
        };
        let mut names: Vec<_> = of_directory(root.path(), &wanted)
            .unwrap()
            .into_iter()
            .map(|piece| match piece {
                Piece::Directory(at) => format!("new {}", at.display()),
                Piece::Link { at, to } => format!("{} -> {}", at.display(), to.display()),
                Piece::View { at, .. } => format!("view {}", at.display()),
            })
            .collect();
        names.sort();
        names
    }

    #[test]
    fn views_stay_whole_unless_something_new_must_appear_in_them() {
        let whole = ["/bin -> usr/bin", "view /opt", "view /usr"];
        assert_eq!(pieces(&[], &[]), whole);
        assert_eq!(pieces(&["/usr/lib/deep", "/elsewhere/x"], &[]), whole);
        assert_eq!(
            pieces(&["/usr/local"], &[]),
            [
                "/bin -> usr/bin",
                "new /usr",
                "view /opt",
                "view /usr/bin",
                "view /usr/lib"
            ]
        );
        assert_eq!(
            pieces(&[], &["/usr/bin/sh"]),
            [
                "/bin -> usr/bin",
                "new /usr",
                "new /usr/bin",
                "view /opt",
                "view /usr/lib"
            ]
        );
    }
}
