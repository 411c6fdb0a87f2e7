//! Recording what a step issues, to issue it again as one graph.
//!
//! The first call of a key runs as it is, so that every library has its plans and every scratch
//! buffer its size; the second is recorded; later ones replay the recording. A recording holds
//! addresses, so one that is older than the last freeing of memory is made anew.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use temper_model::device::Result;

use crate::cuda::Cuda;

enum Recording {
    /// Run once.
    Seen,
    /// Recorded, when so many pieces of memory had been freed.
    Graph(SendGraph, usize),
    /// Something in it cannot be recorded, so it runs as it is.
    Refused,
}

struct SendGraph(CudaGraph);

// SAFETY: a graph may be used from any thread, one at a time, which the lock sees to.
unsafe impl Send for SendGraph {}

/// The recordings of a device, by key.
#[derive(Default)]
pub(crate) struct Graphs {
    recordings: Mutex<HashMap<u64, Recording>>,
}

impl std::fmt::Debug for Graphs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Graphs")
    }
}

impl Cuda {
    pub(crate) fn run_recorded(
        &self,
        key: u64,
        body: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        const OPERATION: &str = "replay";
        let mut recordings = self
            .graphs()
            .recordings
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        match recordings.get(&key) {
            None => {
                body()?;
                recordings.insert(key, Recording::Seen);
                return Ok(());
            }
            Some(Recording::Graph(graph, n_freed)) if *n_freed == self.memory().n_freed() => {
                return graph
                    .0
                    .launch()
                    .map_err(|error| self.failed(OPERATION, error));
            }
            Some(Recording::Refused) => return body(),
            Some(Recording::Seen | Recording::Graph(..)) => {}
        }
        self.keep_scratch();
        self.stream()
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(|error| self.failed(OPERATION, error))?;
        let issued = body();
        // Capturing ends in any case, or the stream stays unusable.
        let graph = self.stream().end_capture(CUgraphInstantiate_flags(0));
        if let (Ok(()), Ok(Some(graph))) = (issued, graph) {
            let launched = graph.launch();
            let n_freed = self.memory().n_freed();
            recordings.insert(key, Recording::Graph(SendGraph(graph), n_freed));
            return launched.map_err(|error| self.failed(OPERATION, error));
        }
        recordings.insert(key, Recording::Refused);
        body()
    }
}
