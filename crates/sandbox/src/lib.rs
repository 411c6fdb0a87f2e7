//! Where untrusted commands run, and what turns a final state into a verdict.
//!
//! A [`Backend`] starts one [`Sandbox`] per trial (and one more per grading layer). `namespaces`
//! needs no daemon; `engine` drives Docker or Podman through the Docker-compatible API.

pub mod backend;
#[cfg(unix)]
pub mod engine;
pub mod limits;
#[cfg(target_os = "linux")]
pub mod namespaces;
#[cfg(unix)]
mod output;
pub mod protections;
pub mod snapshot;
pub mod verify;

pub use backend::{
    Backend, Command, Execution, ExitStatus, Mount, Network, Root, Sandbox, SandboxError,
    SandboxSpec, Shell, Usage, WorkTree,
};
pub use limits::Limits;
pub use protections::{Demand, Protection, Protections, Strength};
pub use snapshot::Snapshot;
