//! The bytes of each token: byte-level spelling, and the spelling of SentencePiece.

use std::collections::HashMap;

use tokenizers::DecoderWrapper;

use super::{MAX_TOKENS, TokenizerError};

/// How a vocabulary spells bytes in its tokens' texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spelling {
    /// One printable character for each byte, as GPT-2.
    ByteLevel,
    /// `▁` for a space and `<0xAB>` for a byte; `strip` spaces are taken off the front of a text.
    SentencePiece { strip: usize },
}

/// What each id contributes to a text.
#[derive(Debug)]
pub(crate) struct TokenBytes {
    spelling: Spelling,
    data: Vec<u8>,
    /// Ends in `data`; an id without a token has the end of its predecessor and is not `known`.
    ends: Vec<u32>,
    known: Vec<bool>,
}

impl TokenBytes {
    /// `tokens` are ids with the text the model gives them, `added` those with literal text.
    pub(crate) fn new(
        spelling: Spelling,
        tokens: impl Iterator<Item = (u32, String)>,
        added: impl Iterator<Item = (u32, String)>,
    ) -> Result<Self, TokenizerError> {
        let mut texts: HashMap<u32, (String, bool)> = HashMap::new();
        texts.extend(tokens.map(|(id, text)| (id, (text, false))));
        texts.extend(added.map(|(id, text)| (id, (text, true))));
        let len = texts.keys().max().map_or(0, |id| *id as usize + 1);
        if len > MAX_TOKENS {
            return Err(TokenizerError::Invalid(format!(
                "the largest token id is {}, the limit is {}",
                len - 1,
                MAX_TOKENS - 1
            )));
        }
        let bytes_of = byte_of_character();
        let mut table = Self {
            spelling,
            data: Vec::new(),
            ends: Vec::with_capacity(len),
            known: vec![false; len],
        };
        for id in 0..len {
            if let Some((text, literal)) = texts.get(&(id as u32)) {
                table.known[id] = true;
                match (literal, spelling) {
                    (true, _) => table.data.extend_from_slice(text.as_bytes()),
                    (false, Spelling::ByteLevel) => {
                        push_byte_level(&mut table.data, text, &bytes_of)
                    }
                    (false, Spelling::SentencePiece { .. }) => {
                        push_sentence_piece(&mut table.data, text)
                    }
                }
            }
            let end = u32::try_from(table.data.len())
                .map_err(|_| TokenizerError::Invalid("token texts exceed 4 GiB".to_owned()))?;
            table.ends.push(end);
        }
        Ok(table)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        if !*self.known.get(id)? {
            return None;
        }
        let start = match id {
            0 => 0,
            _ => self.ends[id - 1] as usize,
        };
        self.data.get(start..self.ends[id] as usize)
    }

    /// How many spaces the front of a decoded text loses.
    pub(crate) fn strip(&self) -> usize {
        match self.spelling {
            Spelling::ByteLevel => 0,
            Spelling::SentencePiece { strip } => strip,
        }
    }
}

/// The spelling that a decoder undoes.
///
/// Errors: a decoder of another kind.
pub(crate) fn spelling_of(decoder: Option<&DecoderWrapper>) -> Result<Spelling, TokenizerError> {
    match decoder {
        Some(DecoderWrapper::ByteLevel(_)) => Ok(Spelling::ByteLevel),
        Some(DecoderWrapper::Metaspace(_)) => Ok(Spelling::SentencePiece { strip: 1 }),
        Some(DecoderWrapper::Sequence(sequence)) => {
            let parts = sequence.get_decoders();
            if parts
                .iter()
                .any(|part| matches!(part, DecoderWrapper::ByteLevel(_)))
            {
                return Ok(Spelling::ByteLevel);
            }
            let mut strip = 0;
            for part in parts {
                match part {
                    DecoderWrapper::Replace(_)
                    | DecoderWrapper::ByteFallback(_)
                    | DecoderWrapper::Fuse(_) => {}
                    DecoderWrapper::Strip(part) => strip = part.start.min(16),
                    DecoderWrapper::Metaspace(_) => strip = 1,
                    other => return unsupported(other),
                }
            }
            Ok(Spelling::SentencePiece { strip })
        }
        Some(other) => unsupported(other),
        None => Err(TokenizerError::Unsupported {
            part: "decoder",
            kind: "none".to_owned(),
        }),
    }
}

fn unsupported<T>(decoder: &DecoderWrapper) -> Result<T, TokenizerError> {
    let kind = format!("{decoder:?}");
    Err(TokenizerError::Unsupported {
        part: "decoder",
        kind: kind
            .split(['(', ' ', '{'])
            .next()
            .unwrap_or_default()
            .to_owned(),
    })
}

/// The character that stands for each byte in byte-level vocabularies: printable Latin-1 stands for
/// itself, the other bytes for U+0100 and following in order.
pub(crate) fn character_of_byte() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    for byte in 0..=255u8 {
        table[byte as usize] = match byte {
            b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap_or('\0')
            }
        };
    }
    table
}

fn byte_of_character() -> HashMap<char, u8> {
    let table = character_of_byte();
    (0..=255u8)
        .map(|byte| (table[byte as usize], byte))
        .collect()
}

fn push_byte_level(out: &mut Vec<u8>, text: &str, bytes_of: &HashMap<char, u8>) {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| bytes_of.get(&c).copied()).collect();
    match bytes {
        Some(bytes) => out.extend(bytes),
        // A token with a character outside the table stands for its own text.
        None => out.extend_from_slice(text.as_bytes()),
    }
}

fn push_sentence_piece(out: &mut Vec<u8>, text: &str) {
    let byte = text
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .filter(|digits| digits.len() == 2)
        .and_then(|digits| u8::from_str_radix(digits, 16).ok());
    match byte {
        Some(byte) => out.push(byte),
        None => out.extend_from_slice(text.replace('\u{2581}', " ").as_bytes()),
    }
}
