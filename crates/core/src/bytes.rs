//! Bytes that survive JSON: patches and command outputs are bytes, text is only a view.

use base64::Engine;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A byte string that serializes as a JSON string when it is valid UTF-8 and as
/// `{"base64": "…"}` when it is not, so that no byte is ever replaced or lost.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    /// The bytes as text for people, with invalid sequences shown as U+FFFD.
    pub fn to_text(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes(bytes)
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Bytes(text.as_bytes().to_vec())
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_text())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match std::str::from_utf8(&self.0) {
            Ok(text) => serializer.serialize_str(text),
            Err(_) => Encoded {
                base64: base64::engine::general_purpose::STANDARD.encode(&self.0),
            }
            .serialize(serializer),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encoded {
    base64: String,
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The two shapes are told apart by JSON type, so the order of variants decides nothing.
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Text(String),
            Encoded(Encoded),
        }
        match Either::deserialize(deserializer)? {
            Either::Text(text) => Ok(Bytes(text.into_bytes())),
            Either::Encoded(encoded) => base64::engine::general_purpose::STANDARD
                .decode(encoded.base64)
                .map(Bytes)
                .map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_string_survives_json() {
        for bytes in [
            b"".to_vec(),
            b"plain\r\n".to_vec(),
            vec![0x80, 0xff, b'a'],
            vec![0, 1, 2],
            "snow \u{2603}".as_bytes().to_vec(),
        ] {
            let json = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
            assert_eq!(serde_json::from_str::<Bytes>(&json).unwrap().0, bytes);
        }
        assert_eq!(
            serde_json::to_string(&Bytes(vec![0x80])).unwrap(),
            r#"{"base64":"gA=="}"#
        );
    }
}
