//! Where tasks come from, and how their files are laid ready on this machine.
//!
//! [`load`] reads one source format or another into [`temper_core::Task`]s; each format is one
//! module. [`prepare`] then lays out what a trial needs: the starting tree, the hidden tests, the
//! Python environment.

pub mod archive;
pub mod cache;
pub mod card;
pub mod decontaminate;
mod error;
pub mod export;
pub mod fetch;
pub mod git;
pub mod harbor;
pub mod history;
pub mod isolation;
mod load;
pub mod native;
pub mod prepare;
pub mod python;
mod records;
pub mod sample;
pub mod select;
pub mod similarity;
pub mod swebench;
pub mod swesmith;
pub mod tree_io;

pub use error::{Cause, LoadError, Operation};
pub use load::{Imported, LoadOptions, Loaded, import, load, load_with};
