//! What sandboxes consume.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use temper_core::{task::InjectedFile, tree::Changes};
use temper_sandbox::{
    Backend, Command, Execution, Protections, Sandbox, SandboxError, SandboxSpec, Usage,
};

/// What was consumed by sandboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Processor time of all sandboxes, in seconds; wall time of a sandbox whose backend does not
    /// measure it.
    pub core_seconds: f64,
    /// Sandboxes that were started.
    pub n_sandboxes: u64,
}

impl Cost {
    /// Adds what another part consumed.
    pub fn add(&mut self, other: Cost) {
        self.core_seconds += other.core_seconds;
        self.n_sandboxes += other.n_sandboxes;
    }
}

/// A backend that adds up what its sandboxes consumed.
pub struct Metered<'a> {
    inner: &'a dyn Backend,
    cost: Arc<Mutex<Cost>>,
}

impl<'a> Metered<'a> {
    /// Passes everything on to `inner`.
    pub fn new(inner: &'a dyn Backend) -> Self {
        Metered {
            inner,
            cost: Arc::default(),
        }
    }

    /// What the sandboxes that are gone consumed.
    pub fn cost(&self) -> Cost {
        *self.cost.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backend for Metered<'_> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn protections(&self) -> Result<Protections, SandboxError> {
        self.inner.protections()
    }

    fn start(&self, spec: &SandboxSpec) -> Result<Box<dyn Sandbox>, SandboxError> {
        Ok(Box::new(MeteredSandbox {
            inner: Some(self.inner.start(spec)?),
            cost: Arc::clone(&self.cost),
        }))
    }
}

struct MeteredSandbox {
    /// Present until it is stopped.
    inner: Option<Box<dyn Sandbox>>,
    cost: Arc<Mutex<Cost>>,
}

impl MeteredSandbox {
    fn live(&mut self) -> Result<&mut dyn Sandbox, SandboxError> {
        match &mut self.inner {
            Some(inner) => Ok(inner.as_mut()),
            None => Err(SandboxError::Ended("it was stopped".into())),
        }
    }

    fn end(&mut self) -> Result<Usage, SandboxError> {
        let Some(inner) = self.inner.take() else {
            return Ok(Usage::default());
        };
        let usage = inner.stop()?;
        let mut cost = self.cost.lock().unwrap_or_else(PoisonError::into_inner);
        cost.add(Cost {
            core_seconds: usage.cpu_seconds.unwrap_or(usage.wall_seconds),
            n_sandboxes: 1,
        });
        Ok(usage)
    }
}

impl Drop for MeteredSandbox {
    fn drop(&mut self) {
        // A sandbox that cannot say what it consumed is gone all the same.
        let _ = self.end();
    }
}

impl Sandbox for MeteredSandbox {
    fn exec(&mut self, command: &Command) -> Result<Execution, SandboxError> {
        self.live()?.exec(command)
    }

    fn write_files(&mut self, files: &[InjectedFile]) -> Result<(), SandboxError> {
        self.live()?.write_files(files)
    }

    fn read_file(&mut self, path: &str, max_bytes: u64) -> Result<Option<Vec<u8>>, SandboxError> {
        self.live()?.read_file(path, max_bytes)
    }

    fn changes(&mut self) -> Result<Changes, SandboxError> {
        self.live()?.changes()
    }

    fn stop(mut self: Box<Self>) -> Result<Usage, SandboxError> {
        self.end()
    }
}
