//! The agent that does nothing: it submits the start as it is.
//!
//! A suite on which it scores more than nothing has a fault: a task whose tests already pass, or a
//! grader that takes silence for success.

use temper_core::PreparedTask;

use super::submit;
use crate::model::{Model, ModelError, ModelFactory, ModelReply, ModelRequest};

/// Makes agents that submit at once.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoopFactory;

struct Noop;

impl Model for Noop {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        Ok(submit(request, "I change nothing and submit."))
    }
}

impl ModelFactory for NoopFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "noop",
            "language_model": false,
            "description": "submits without a change",
        })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, _task: &PreparedTask, _seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(Noop))
    }
}
