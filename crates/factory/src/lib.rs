//! The task factory: from a Python repository to proven repair tasks.
//!
//! `repository` finds out what a repository is (its code, its tests, its environment), `synth`
//! writes candidate bugs, `measure` learns once which tests cover what and which cannot be
//! trusted, `prove` runs candidates against the tests they can affect, and what survives becomes
//! a [`temper_core::Task`] with a statement, hidden tests and an audit.
//!
//! Nothing here trains, samples or splits; `temper_tasks::isolation` decides groups and splits.

pub mod candidate;
pub mod chat;
pub mod context;
pub mod hidden;
pub mod make;
pub mod measure;
pub mod pool;
pub mod prove;
pub mod repository;
pub mod statement;
pub mod syntax;
pub mod synth;

pub use candidate::{Candidate, Note};
pub use repository::Repository;
pub use temper_core::Place;
