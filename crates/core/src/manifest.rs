//! What every stage writes beside its output: what made it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Digest;

/// Names the program that wrote a file, and the version of its code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Producer {
    /// `temper`.
    pub name: String,
    /// The crate version of the binary.
    pub version: String,
}

/// The manifest of one stage's output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of this file's format.
    pub format: u32,
    /// What the output is: `job`, `comparison`, `suite`, …
    pub kind: String,
    /// The program that made it.
    pub producer: Producer,
    /// Inputs by name and content.
    pub inputs: BTreeMap<String, Digest>,
    /// The resolved configuration, with nothing secret in it.
    pub config: serde_json::Value,
    /// The seed that all randomness derives from.
    pub seed: u64,
}

impl Manifest {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}
