//! The staged run from tasks to a tested candidate: collect, build, train, select, preference,
//! evaluate, report.
//!
//! [`config`] is the recipe as a person writes it. [`stage`] keeps what each stage did: its folder is
//! named by the digest of its inputs and settings, so a stage whose inputs are the same is skipped
//! and one whose inputs changed gets another folder. [`final_test`] keeps which candidate saw the
//! test tasks, and lets none see them twice in silence. [`overlap`] finds what selection data and
//! final test share. Nothing here runs a model or a sandbox.

pub mod config;
pub mod final_test;
pub mod overlap;
pub mod rate;
pub mod stage;

pub use config::{Recipe, RecipeError, StageName};
pub use final_test::{Admission, FinalTestError, FinalTests, TestRun};
pub use stage::{Stage, StageError, StageRecord, Stages};
