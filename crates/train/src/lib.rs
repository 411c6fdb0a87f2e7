//! What changes weights: objectives, the optimizer and its schedule, and the loops that train.

pub mod loss;
pub mod optimizer;
pub mod order;
pub mod row;
pub mod schedule;

pub use loss::{PreferenceObjective, WindowTokens};
pub use optimizer::{
    MomentKind, Optimizer, OptimizerConfig, OptimizerError, OptimizerState, UpdateReport,
};
pub use order::DataOrder;
pub use row::{Pair, Row, RowError};
pub use schedule::{Decay, Schedule};
