//! Where tasks come from, and how their files are laid ready on this machine.
//!
//! One module reads one source format into [`temper_core::Task`]s. [`prepare`] then lays out what a
//! trial needs: the starting tree, the hidden tests, the Python environment.

pub mod archive;
pub mod cache;
pub mod fetch;
pub mod git;
pub mod history;
pub mod prepare;
pub mod python;
pub mod tree_io;
