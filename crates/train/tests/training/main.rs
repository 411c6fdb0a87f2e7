//! Training as a whole, on tiny models.
#![allow(clippy::unwrap_used)]

mod common;
mod kill;
mod metrics;
mod preference;
mod sft;
mod snapshots;
mod trl;
