//! Content hashes: what makes two things the same.

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// A SHA-256 digest, written as 64 lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

/// The text is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("read a SHA-256 digest: expected 64 hexadecimal digits, got {0:?}")]
pub struct InvalidDigest(String);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digest of a value's canonical JSON: keys sorted, no white space.
    ///
    /// Serialization of our own plain types into JSON cannot fail; a map with non-string keys
    /// would, and is a programming error.
    pub fn of_value<T: Serialize>(value: &T) -> Self {
        let value = serde_json::to_value(value).expect("plain data serializes to JSON");
        let mut text = String::new();
        write_canonical(&value, &mut text);
        Digest::of(text.as_bytes())
    }

    /// All 64 digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The first 12 digits, for people.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

/// Computes a [`Digest`] piece by piece.
#[derive(Default)]
pub struct Hasher(sha2::Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds a field with its length in front, so that neighbouring fields cannot run together.
    pub fn field(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// The digest of everything added.
    pub fn finish(self) -> Digest {
        use std::fmt::Write;
        let mut hex = String::with_capacity(64);
        for byte in self.0.finalize() {
            write!(hex, "{byte:02x}").expect("writing to a string succeeds");
        }
        Digest(hex)
    }
}

fn write_canonical(value: &serde_json::Value, out: &mut String) {
    match value {
        serde_json::Value::Object(map) => {
            let mut keys: Vec<_> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&serde_json::Value::String(key.clone()).to_string());
                out.push(':');
                write_canonical(&map[key], out);
            }
            out.push('}');
        }
        serde_json::Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

impl TryFrom<String> for Digest {
    type Error = InvalidDigest;
    fn try_from(text: String) -> Result<Self, InvalidDigest> {
        if text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Digest(text.to_ascii_lowercase()))
        } else {
            Err(InvalidDigest(text))
        }
    }
}

impl std::str::FromStr for Digest {
    type Err = InvalidDigest;
    fn from_str(text: &str) -> Result<Self, InvalidDigest> {
        text.to_owned().try_into()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_vector() {
        // FIPS 180-4, the one-block message "abc".
        assert_eq!(
            Digest::of(b"abc").as_str(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn key_order_does_not_change_a_value() {
        let a: serde_json::Value = serde_json::from_str(r#"{"a":1,"b":[{"y":2,"x":3}]}"#).unwrap();
        let b: serde_json::Value = serde_json::from_str(r#"{"b":[{"x":3,"y":2}],"a":1}"#).unwrap();
        assert_eq!(Digest::of_value(&a), Digest::of_value(&b));
    }
}
