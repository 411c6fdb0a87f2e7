//! What changes weights: the optimizer and its schedule.

pub mod optimizer;
pub mod schedule;

pub use optimizer::{
    MomentKind, Optimizer, OptimizerConfig, OptimizerError, OptimizerState, UpdateReport,
};
pub use schedule::{Decay, Schedule};
