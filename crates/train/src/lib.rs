//! What changes weights: objectives, the optimizer and its schedule, and the loops that train.
//!
//! [`loss`] has the objectives as pure functions; [`sft`] trains on rows of token ids with a loss
//! mask ([`row`]), [`preference`] on pairs of them. A run is resumed from its [`snapshot`]s and tells what happens as [`events`],
//! which [`metrics`] writes to files.

pub mod config;
pub mod events;
pub mod learner;
pub mod loss;
pub mod merge;
pub mod method;
pub mod metrics;
pub mod optimizer;
pub mod order;
mod passes;
pub mod preference;
pub mod row;
mod run;
pub mod schedule;
pub mod sft;
pub mod snapshot;

pub use config::{SettingError, TrainingConfig};
pub use events::{Event, EventSink};
pub use learner::Learner;
pub use loss::{PreferenceObjective, WindowTokens};
pub use method::{Base, Method};
pub use metrics::{Metric, Metrics};
pub use optimizer::{
    MomentKind, Optimizer, OptimizerConfig, OptimizerError, OptimizerState, UpdateReport,
};
pub use order::DataOrder;
pub use passes::passes;
pub use preference::{PreferenceConfig, plan_preference, train_preference};
pub use row::{Pair, Row, RowError};
pub use run::{Outcome, Run, RunPlan, TrainError, adapter_digest};
pub use schedule::{Decay, Schedule};
pub use sft::{SftConfig, plan_sft, train_sft};
pub use snapshot::{Snapshot, SnapshotError, Snapshots};
