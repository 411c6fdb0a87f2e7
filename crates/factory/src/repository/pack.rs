//! A tree as a source distribution of our own: the same tree always gives the same bytes.

use std::io::{self, Write};

use temper_core::{Entry, Tree};

/// The tree as a `.tar.gz` with one directory `top` around it: names in order, no owner, no time,
/// permissions 0644 or 0755.
pub(super) fn tar_gz(tree: &Tree, top: &str) -> io::Result<Vec<u8>> {
    // The header of gzip then holds neither a time nor a name.
    let encoder = flate2::GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), flate2::Compression::new(6));
    let mut archive = tar::Builder::new(encoder);
    for (path, entry) in tree {
        let name = format!("{top}/{path}");
        let mut header = tar::Header::new_gnu();
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        match entry {
            Entry::File {
                content,
                executable,
            } => {
                header.set_entry_type(tar::EntryType::Regular);
                header.set_mode(if *executable { 0o755 } else { 0o644 });
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, &name, content.as_slice())?;
            }
            Entry::Symlink { target } => {
                header.set_entry_type(tar::EntryType::Symlink);
                header.set_mode(0o777);
                header.set_size(0);
                let target = String::from_utf8_lossy(target).into_owned();
                archive.append_link(&mut header, &name, target)?;
            }
        }
    }
    let encoder = archive.into_inner()?;
    let mut bytes = encoder.finish()?;
    bytes.flush()?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_tasks::{
        archive::{ArchiveLimits, extract_single_top},
        tree_io::{TreeLimits, read_tree},
    };

    #[test]
    fn a_tree_comes_back_and_its_bytes_are_always_the_same() {
        let long = format!("a/{}/b.py", "x".repeat(150));
        let tree: Tree = [
            (
                "run.sh",
                Entry::File {
                    content: b"#!/bin/sh\n".to_vec(),
                    executable: true,
                },
            ),
            (long.as_str(), Entry::file("pass\n")),
            (
                "link",
                Entry::Symlink {
                    target: b"run.sh".to_vec(),
                },
            ),
            ("empty.py", Entry::file("")),
        ]
        .into_iter()
        .map(|(path, entry)| (path.parse().unwrap(), entry))
        .collect();
        let bytes = tar_gz(&tree, "thing-1.0").unwrap();
        assert_eq!(bytes, tar_gz(&tree.clone(), "thing-1.0").unwrap());
        assert_eq!(&bytes[4..8], [0; 4]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tar.gz");
        std::fs::write(&file, &bytes).unwrap();
        let into = folder.path().join("out");
        extract_single_top(&file, &into, &ArchiveLimits::default()).unwrap();
        assert_eq!(read_tree(&into, &TreeLimits::default()).unwrap(), tree);
        // Python's own reader agrees on owners and times.
        let output = std::process::Command::new("python3")
            .args(["-c", "import sys,tarfile; print({(m.mtime, m.uid, m.gid, m.uname) for m in tarfile.open(sys.argv[1])}, [m.name for m in tarfile.open(sys.argv[1])][-1])"])
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim(),
            "{(0, 0, 0, '')} thing-1.0/run.sh"
        );
    }
}
