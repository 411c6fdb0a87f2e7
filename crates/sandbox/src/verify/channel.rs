//! The authenticated channel from a trusted process in a sandbox to Temper.
//!
//! A line `temper1 MAC JSON` is a record when MAC is the HMAC-SHA256 of the JSON under the run's
//! key and its field `n` is the number of the records before it. Anything else on the channel is
//! noise if it does not look like a record and a forgery if it does.

use serde::{Deserialize, de::DeserializeOwned};
use temper_core::{
    Failure,
    digest::{Digest, Hasher},
};

use super::random_hex;

/// The key of one run. It is given to the trusted process in a file that this process removes
/// before anything untrusted starts.
pub struct Key([u8; 32]);

impl Key {
    /// A key that nobody can guess.
    pub fn new() -> Result<Self, Failure> {
        let mut key = [0; 32];
        key.copy_from_slice(&from_hex(&random_hex(32)?));
        Ok(Key(key))
    }

    /// The key as hexadecimal digits, as the trusted process reads it.
    pub fn to_hex(&self) -> String {
        use std::fmt::Write;
        self.0.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("writing to a string succeeds");
            hex
        })
    }
}

/// One line that claims to be a record.
#[derive(Debug, PartialEq, Eq)]
pub enum Line<'a, T> {
    /// It is the next record.
    Record(T),
    /// It is not: what follows the prefix.
    Forged(&'a [u8]),
}

#[derive(Deserialize)]
struct Numbered<T> {
    n: u64,
    #[serde(flatten)]
    record: T,
}

/// The records and forgeries of an output, in order; noise is left out.
pub fn read<'a, T: DeserializeOwned>(
    output: &'a [u8],
    key: &'a Key,
) -> impl Iterator<Item = Line<'a, T>> {
    let mut next = 0;
    output.split(|byte| *byte == b'\n').filter_map(move |line| {
        let rest = line.strip_prefix(b"temper1 ")?;
        Some(match authentic::<T>(rest, key) {
            Some(numbered) if numbered.n == next => {
                next += 1;
                Line::Record(numbered.record)
            }
            _ => Line::Forged(rest),
        })
    })
}

fn authentic<T: DeserializeOwned>(rest: &[u8], key: &Key) -> Option<Numbered<T>> {
    let space = rest.iter().position(|byte| *byte == b' ')?;
    let (mac, payload) = (&rest[..space], &rest[space + 1..]);
    let expected = hmac_sha256(&key.0, payload);
    // The one who could measure the time of this comparison has no way to send another line.
    if mac != expected.as_str().as_bytes() {
        return None;
    }
    serde_json::from_slice(payload).ok()
}

/// HMAC-SHA256 (RFC 2104) with a key of at most one block.
fn hmac_sha256(key: &[u8], message: &[u8]) -> Digest {
    let padded = |pad: u8| {
        let mut block = [pad; 64];
        for (byte, key) in block.iter_mut().zip(key) {
            *byte ^= key;
        }
        block
    };
    let mut inner = Hasher::default();
    inner.update(&padded(0x36));
    inner.update(message);
    let mut outer = Hasher::default();
    outer.update(&padded(0x5c));
    outer.update(&from_hex(inner.finish().as_str()));
    outer.finish()
}

/// The bytes of pairs of hexadecimal digits; other characters end it.
fn from_hex(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks_exact(2)
        .map_while(|pair| {
            let pair = std::str::from_utf8(pair).ok()?;
            u8::from_str_radix(pair, 16).ok()
        })
        .collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn the_code_matches_the_published_vectors() {
        // RFC 4231, test cases 1 and 2.
        assert_eq!(
            hmac_sha256(&[0x0b; 20], b"Hi There").as_str(),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
        assert_eq!(
            hmac_sha256(b"Jefe", b"what do ya want for nothing?").as_str(),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
    }

    /// A key of equal bytes, and a line under it.
    pub fn key(byte: u8) -> Key {
        Key([byte; 32])
    }

    /// A line as the trusted process writes it.
    pub fn line(key: &Key, payload: &str) -> String {
        format!(
            "temper1 {} {payload}\n",
            hmac_sha256(&key.0, payload.as_bytes())
        )
    }

    #[test]
    fn a_key_survives_its_hexadecimal_form() {
        let key = Key::new().unwrap();
        assert_eq!(from_hex(&key.to_hex()), key.0);
    }
}
