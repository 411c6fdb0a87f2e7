//! Verdicts: logs read, rules applied, and submissions judged in real sandboxes.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod fixture;
mod grading;
mod parsers;
mod pytest;
