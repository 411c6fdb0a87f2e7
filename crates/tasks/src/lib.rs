//! Where tasks come from, and how their files are laid ready on this machine.

pub mod archive;
pub mod cache;
pub mod fetch;
pub mod tree_io;
