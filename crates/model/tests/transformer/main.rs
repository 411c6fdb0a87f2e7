//! The transformer and its training pass against PyTorch, and against itself.
#![allow(clippy::unwrap_used)]

mod fixture;
mod reference;
