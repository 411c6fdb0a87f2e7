//! Decoding one id at a time without ever cutting a character.

use super::{Tokenizer, TokenizerError};

/// Decodes ids as they come; what it gave so far, joined, is the decoded text.
///
/// The bytes of an unfinished character are held back until they are complete, turn out to be no
/// UTF-8 (one U+FFFD for each maximal part of a sequence, as the Unicode standard advises), or the
/// stream ends.
#[derive(Debug)]
pub struct TokenStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    held: Vec<u8>,
    /// Spaces still to be taken off the front.
    strip: usize,
}

impl<'a> TokenStream<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        Self {
            tokenizer,
            skip_special,
            held: Vec::new(),
            strip: tokenizer.bytes.strip(),
        }
    }

    /// Takes an id and gives the text that is certain now, often empty.
    ///
    /// Errors: an id that the vocabulary does not have; the stream is unchanged then.
    pub fn push(&mut self, id: u32) -> Result<String, TokenizerError> {
        let mut bytes = self
            .tokenizer
            .token_bytes(id)
            .ok_or(TokenizerError::UnknownId {
                id,
                n_tokens: self.tokenizer.n_tokens(),
            })?;
        if self.skip_special && self.tokenizer.is_control(id) {
            return Ok(String::new());
        }
        while self.strip > 0 && !bytes.is_empty() {
            match bytes.strip_prefix(b" ") {
                Some(rest) => {
                    bytes = rest;
                    self.strip -= 1;
                }
                None => self.strip = 0,
            }
        }
        self.held.extend_from_slice(bytes);
        let ready = self.held.len() - incomplete_tail(&self.held);
        let text = String::from_utf8_lossy(&self.held[..ready]).into_owned();
        self.held.drain(..ready);
        Ok(text)
    }

    /// Gives what was held back: U+FFFD if a character was left unfinished.
    pub fn finish(&mut self) -> String {
        let text = String::from_utf8_lossy(&self.held).into_owned();
        self.held.clear();
        text
    }
}

/// How many bytes at the end are the start of a character that more bytes could complete.
fn incomplete_tail(bytes: &[u8]) -> usize {
    (1..=bytes.len().min(3))
        .find(|&n| {
            let tail = &bytes[bytes.len() - n..];
            matches!(std::str::from_utf8(tail), Err(error)
                if error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}
