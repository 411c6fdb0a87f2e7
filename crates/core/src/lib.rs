//! The vocabulary of Temper: what a task, a trial, a trajectory and a verdict are.
//!
//! Everything here is data and pure functions. This crate does no I/O, reads no clock, no
//! environment and no randomness; the stages built on it exchange values of these types, in
//! memory or as files that carry a format version.

pub mod bytes;
pub mod construction;
pub mod digest;
pub mod evidence;
pub mod ids;
pub mod manifest;
pub mod message;
pub mod metric;
pub mod patch;
pub mod policy;
pub mod protocol;
pub mod run_profile;
pub mod task;
pub mod trajectory;
pub mod tree;
pub mod trial;
pub mod usage;
pub mod verdict;

pub use bytes::Bytes;
pub use construction::{Construction, Place};
pub use digest::Digest;
pub use ids::{AgentName, SourceGroup, TaskId, TestId};
pub use message::{Message, Role, ToolCall};
pub use patch::Patch;
pub use task::{PreparedTask, Split, Task};
pub use tree::{Entry, Tree, TreePath};
pub use trial::{Boundary, Failure, Trial};
pub use verdict::{TestOutcome, Verdict};
