//! Where the files of a task come from: source distributions, directories.

use std::{collections::BTreeMap, path::Path};

use temper_core::{
    Digest, Task, Tree, TreePath,
    task::{Archive, HiddenSource, Start, Verifier},
};

use super::super::{ExportOptions, NotExpressible};
use crate::{
    archive::{ArchiveLimits, extract_single_top},
    tree_io::{TreeLimits, read_tree},
};

/// Unpacks archives, each once.
pub(super) struct Sources<'a> {
    options: &'a ExportOptions<'a>,
    work: &'a Path,
    unpacked: BTreeMap<Digest, Tree>,
}

impl<'a> Sources<'a> {
    pub(super) fn new(options: &'a ExportOptions<'a>, work: &'a Path) -> Self {
        Sources {
            options,
            work,
            unpacked: BTreeMap::new(),
        }
    }

    /// The content of an archive that no index has.
    pub(super) fn local(&self, archive: &Archive) -> Result<Option<Vec<u8>>, NotExpressible> {
        let Some(directory) = self.options.archives else {
            return Ok(None);
        };
        if TreePath::new(archive.file_name.as_bytes()).is_err() || archive.file_name.contains('/') {
            return Err(NotExpressible(format!(
                "{:?} is not a plain file name",
                archive.file_name
            )));
        }
        let path = directory.join(&archive.file_name);
        if !path.is_file() {
            return Ok(None);
        }
        let content = std::fs::read(&path)
            .map_err(|error| NotExpressible(format!("read {}: {error}", path.display())))?;
        // A file of that name with another content may be another archive of the index.
        Ok((Digest::of(&content) == archive.sha256).then_some(content))
    }

    /// The start.
    pub(super) fn start(&mut self, task: &Task) -> Result<Tree, NotExpressible> {
        match &task.start {
            Start::SourceDistribution { archive, patch } => {
                let pristine = self.unpack(archive)?;
                let mut start = pristine.clone();
                let applied =
                    temper_core::patch::apply(patch, &mut |path| pristine.get(path).cloned())
                        .map_err(|error| NotExpressible(format!("its start: {error}")))?;
                for (path, entry) in applied.changes {
                    match entry {
                        Some(entry) => start.insert(path, entry),
                        None => start.remove(&path),
                    };
                }
                Ok(start)
            }
            Start::Directory { path, .. } => read(path),
            Start::GitCommit { .. } => Err(NotExpressible::new(
                "its start is a commit; make it a source distribution first",
            )),
            Start::Image { .. } => Err(NotExpressible::new("its start is inside an image")),
        }
    }

    /// The hidden versions of the test files, and what else a directory of them holds.
    pub(super) fn hidden(&mut self, task: &Task) -> Result<Tree, NotExpressible> {
        let Verifier::Pytest {
            test_files,
            hidden_source,
            ..
        } = &task.verifier
        else {
            return Ok(Tree::new());
        };
        match (hidden_source, &task.start) {
            (HiddenSource::Directory { path }, _) => read(path),
            (HiddenSource::SourceDistribution, Start::SourceDistribution { archive, .. }) => {
                let is_test = |path: &TreePath| {
                    test_files
                        .iter()
                        .any(|file| file.as_bytes() == path.as_bytes())
                };
                Ok(self
                    .unpack(archive)?
                    .iter()
                    .filter(|(path, _)| is_test(path))
                    .map(|(path, entry)| (path.clone(), entry.clone()))
                    .collect())
            }
            _ => Err(NotExpressible::new(
                "its hidden tests come from a source distribution, but its start does not",
            )),
        }
    }

    fn unpack(&mut self, archive: &Archive) -> Result<&Tree, NotExpressible> {
        if !self.unpacked.contains_key(&archive.sha256) {
            let failed = |error: String| NotExpressible(error);
            let packed = match self.local(archive)? {
                Some(content) => {
                    let path = self.work.join(&archive.file_name);
                    std::fs::write(&path, content).map_err(|error| failed(error.to_string()))?;
                    path
                }
                None => self
                    .options
                    .fetcher
                    .ok_or_else(|| {
                        NotExpressible(format!(
                            "{} is needed for its test files, and nothing may be fetched",
                            archive.file_name
                        ))
                    })?
                    .fetch(archive)
                    .map_err(|error| failed(error.to_string()))?,
            };
            let into = self.work.join(archive.sha256.as_str());
            extract_single_top(&packed, &into, &ArchiveLimits::default())
                .map_err(|error| failed(error.to_string()))?;
            let tree = read(&into)?;
            let _ = std::fs::remove_dir_all(&into);
            // One tree at a time: tasks of a suite come project by project.
            self.unpacked.clear();
            self.unpacked.insert(archive.sha256.clone(), tree);
        }
        Ok(&self.unpacked[&archive.sha256])
    }
}

fn read(path: &Path) -> Result<Tree, NotExpressible> {
    read_tree(path, &TreeLimits::default()).map_err(|error| NotExpressible(error.to_string()))
}
