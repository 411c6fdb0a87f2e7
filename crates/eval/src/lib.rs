//! What the numbers of an evaluation mean: paired statistics, intervals, pass@k, comparisons.
//!
//! Everything here is a pure function from trials to values that serialize as strict JSON: no
//! I/O, no clock, no randomness but a seeded generator. Nothing is formatted for people except
//! the one-sentence conclusions, which the terminal and the web report share.
//!
//! Two rules hold throughout. An infrastructure failure is *lost*: it is neither solved nor
//! unsolved, it is counted, listed, and carried as a pair of bounds. And no rate is a bare
//! number: it has its denominator, what was scored, what was lost, and an interval.

pub mod aggregate;
pub mod arm;
pub mod bootstrap;
pub mod catalog;
pub mod claims;
pub mod compare;
pub mod experiment;
pub mod holm;
pub mod mcnemar;
pub mod metrics;
pub mod mixing;
pub mod pair;
pub mod pass_at_k;
pub mod random;
pub mod rate;
pub mod record;
pub mod selection;
pub mod summary;
pub mod text;
pub mod training_log;
pub mod wilson;

pub use aggregate::{Aggregate, SeedRun, SeededArm, aggregate};
pub use arm::{Arm, ArmError, TaskTally, TrialKey};
pub use compare::{Comparison, Options, compare};
pub use metrics::MetricLog;
pub use pair::{Conclusion, Pair, Standing};
pub use rate::{Interval, IntervalMethod, Rate};
pub use selection::{Contender, Selection, SelectionError, select};
pub use summary::ArmSummary;
