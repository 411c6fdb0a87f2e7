//! The state of a sandbox at one moment, from which any number of others can start.

use std::sync::Arc;

use temper_core::{Digest, digest::Hasher};

use crate::{SandboxError, SandboxSpec};

/// Everything that commands have written in a sandbox, beside the specification it was started
/// with. Holds the contents in memory; a clone shares them. It can be used after its sandbox has
/// ended, and by the backend it came from alone.
#[derive(Clone, Debug)]
pub struct Snapshot(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    backend: &'static str,
    spec: Arc<SandboxSpec>,
    n_paths: usize,
    state: State,
}

/// A state as its backend writes it.
#[derive(Debug)]
pub(crate) struct State {
    /// What there is, without contents.
    pub(crate) head: Vec<u8>,
    /// Contents, in the order of the head.
    pub(crate) contents: Vec<Vec<u8>>,
}

impl Snapshot {
    pub(crate) fn new(
        backend: &'static str,
        spec: Arc<SandboxSpec>,
        n_paths: usize,
        head: Vec<u8>,
        contents: Vec<Vec<u8>>,
    ) -> Self {
        Snapshot(Arc::new(Kept {
            backend,
            spec,
            n_paths,
            state: State { head, contents },
        }))
    }

    /// The state and the specification, for the backend that kept them.
    pub(crate) fn of(&self, backend: &str) -> Result<(&State, &SandboxSpec), SandboxError> {
        if self.0.backend == backend {
            return Ok((&self.0.state, &self.0.spec));
        }
        Err(SandboxError::Unsupported {
            backend: backend.into(),
            reason: format!("the snapshot is one of {}", self.0.backend),
        })
    }

    /// Bytes of contents that it holds.
    pub fn bytes(&self) -> u64 {
        let contents = self.0.state.contents.iter();
        contents.map(|content| content.len() as u64).sum()
    }

    /// Paths that were written or removed, directories included.
    pub fn n_paths(&self) -> usize {
        self.0.n_paths
    }

    /// The digest of everything it holds, times included: equal for equal states. Reads all of it.
    pub fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        hasher.field(&self.0.state.head);
        for content in &self.0.state.contents {
            hasher.field(content);
        }
        hasher.finish()
    }
}
