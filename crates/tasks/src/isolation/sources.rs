//! Trees of starts from archives and directories, for evidence.

use std::sync::Arc;

use temper_core::{Task, TaskId, Tree, task::Start};

use super::evidence::Sources;
use crate::{
    cache::Cache,
    prepare::{Tools, source_tree},
    tree_io::{TreeLimits, read_tree},
};

/// Trees that are kept in memory. Tasks of one archive mostly follow each other.
const MAX_KEPT: usize = 4;

/// Fetches and unpacks source distributions by way of the cache, and reads directories. Starts from
/// commits and images have no tree here.
pub struct Archives<'a> {
    cache: &'a Cache,
    tools: &'a Tools,
    kept: Vec<(String, Arc<Tree>)>,
    /// Tasks whose tree should be there and is not, and why. What is linked then depends on this
    /// machine: nothing may be frozen or proven with it.
    pub failed: Vec<(TaskId, String)>,
}

impl<'a> Archives<'a> {
    /// Uses what preparation uses.
    pub fn new(cache: &'a Cache, tools: &'a Tools) -> Self {
        Archives {
            cache,
            tools,
            kept: Vec::new(),
            failed: Vec::new(),
        }
    }
}

impl Sources for Archives<'_> {
    fn tree(&mut self, task: &Task) -> Option<Arc<Tree>> {
        let key = match &task.start {
            Start::SourceDistribution { archive, .. } => archive.sha256.to_string(),
            Start::Directory { path, .. } => path.display().to_string(),
            Start::GitCommit { .. } | Start::Image { .. } => return None,
        };
        if let Some((_, tree)) = self.kept.iter().find(|(known, _)| *known == key) {
            return Some(tree.clone());
        }
        let read = match &task.start {
            Start::SourceDistribution { archive, .. } => {
                source_tree(archive, self.cache, self.tools).map_err(|error| error.to_string())
            }
            Start::Directory { path, .. } => Ok(path.clone()),
            Start::GitCommit { .. } | Start::Image { .. } => return None,
        };
        let tree = read.and_then(|path| {
            read_tree(&path, &TreeLimits::default()).map_err(|error| error.to_string())
        });
        match tree {
            Ok(tree) => {
                let tree = Arc::new(tree);
                if self.kept.len() >= MAX_KEPT {
                    self.kept.remove(0);
                }
                self.kept.push((key, tree.clone()));
                Some(tree)
            }
            Err(error) => {
                self.failed.push((task.id.clone(), error));
                None
            }
        }
    }
}
