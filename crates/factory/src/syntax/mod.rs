//! Python source as syntax: what is in a file, without running it.
//!
//! [`Source`] is a parsed file. From it come the index of its functions and classes
//! ([`definitions`]), its imports ([`imports`]) and normalised tokens for comparing code
//! ([`tokens`]). What tree-sitter cannot parse without an error, or what is too large or too
//! deeply nested to be code that a person wrote, is refused with the reason ([`Unreadable`]).
//!
//! Nothing here resolves names across files or knows types.

mod definitions;
mod imports;
mod source;
#[cfg(test)]
mod tests;
mod tokens;

pub(crate) use definitions::is_docstring_statement;
pub use definitions::{Definition, DefinitionKind, definitions};
pub(crate) use imports::is_type_checking;
pub use imports::{Import, ImportedName, imports, module_name};
pub use source::{Children, MAX_BYTES, MAX_DEPTH, Node, Source, Unreadable};
pub use tokens::{Identifiers, TokenOptions, tokens};
