//! The agent's loop, its protocols and profiles, the models that drive it, and trials.

pub mod baselines;
pub mod budget;
pub mod canary;
pub mod collect;
pub mod context_gate;
pub mod context_guard;
pub mod context_probe;
pub mod edit_tool;
pub mod export;
pub mod job;
pub mod model;
pub mod profile;
pub mod protocol;
pub mod repetition;
pub mod rollout;
pub mod states;
pub mod template;
pub mod trajectory_file;
pub mod trial;
