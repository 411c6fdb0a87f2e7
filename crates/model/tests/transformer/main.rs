//! The transformer and its training pass against PyTorch, and against itself.
#![allow(clippy::unwrap_used)]

mod equivalence;
mod plan;
mod reference;
