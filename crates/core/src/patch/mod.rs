//! Patches: bytes in git's unified format, made from trees, read, and applied to trees.

use serde::{Deserialize, Serialize};

use crate::{Bytes, Digest};

/// A patch, byte for byte as it was made or received.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Patch(pub Bytes);

impl Patch {
    /// Whether it changes nothing: no bytes, or white space only.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(u8::is_ascii_whitespace)
    }

    /// The digest of its bytes.
    pub fn digest(&self) -> Digest {
        Digest::of(&self.0)
    }
}
