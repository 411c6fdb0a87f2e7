//! Drawing tokens from a model: paged cache, continuous batching, sampling parameters, and the
//! engine that serves many requests at once.
//!
//! [`pages`] knows who holds which page and what is in it, [`schedule`] which rows come next,
//! [`runner`] what is asked of the model, [`text`] what the ids say; [`engine`] is the thread that
//! owns them. `docs/sampling.md` defines the parameters and what is promised of the numbers.

pub mod engine;
pub mod metrics;
pub mod pages;
pub mod params;
pub mod request;
pub mod runner;
pub mod schedule;
pub mod text;
mod worker;

pub use engine::{Engine, EngineConfig, Shutdown};
pub use metrics::Metrics;
pub use params::{PromptLogprobs, SamplingParams};
pub use request::{Completion, Event, Events, Finish, FinishReason, Request, RequestError};
