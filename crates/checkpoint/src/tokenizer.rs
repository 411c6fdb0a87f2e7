//! Text to token ids and back: byte-pair encodings from a Hugging Face folder or a GGUF vocabulary.
//!
//! Encoding goes through the parts of the `tokenizers` crate (normalizer, pre-tokenizer, model), but
//! three things are done here. Added tokens are matched here, so that the text of a control token can
//! be kept ordinary text where it stands in content ([`Specials::Literal`]). Regular expressions run
//! under a budget of backtracking steps, because the crate's own pre-tokenizers silently stop
//! splitting when they meet its limit. Decoding goes through a table of bytes, so that pieces of a
//! character can be held back and nothing is lost.
//!
//! Not supported: WordPiece, Unigram and word-level models, dropout, normalizers with regular
//! expressions. They are refused with their name.

mod added;
mod bytes;
mod export;
mod folder;
mod gguf;
mod split;
mod stream;

use std::ops::Range;
use std::path::{Path, PathBuf};

use tokenizers::{
    Model, ModelWrapper, NormalizedString, Normalizer, NormalizerWrapper, OffsetType,
    PreTokenizedString, Token,
};

pub use added::Specials;
pub use export::ExportedTokenizer;
pub use gguf::{GgufVocabulary, token_type};
pub use stream::TokenStream;

use added::AddedTokens;
use bytes::TokenBytes;
use split::{BacktrackBudget, PreTokenization};

/// The largest tokenizer.json that is read, in bytes.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The largest text that is encoded in one call, in bytes.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// The largest vocabulary, and one more than the largest token id.
pub const MAX_TOKENS: usize = 1 << 20;

/// Why a tokenizer could not be read or a text not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is larger than the limit.
    #[error("read {path} of {bytes} bytes, the limit is {limit}")]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A file or a vocabulary says something that cannot be right.
    #[error("read the tokenizer: {0}")]
    Invalid(String),
    /// A kind of model, normalizer, pre-tokenizer or decoder that is not supported.
    #[error("read the tokenizer: {part} {kind:?} is not supported")]
    Unsupported {
        /// Which part of the tokenizer.
        part: &'static str,
        /// The kind it names.
        kind: String,
    },
    /// A text is longer than [`MAX_TEXT_BYTES`].
    #[error("encode a text of {bytes} bytes, the limit is {limit}")]
    TextTooLarge {
        /// The text's length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The tokenizer's regular expression took more backtracking steps than the text's length allows.
    #[error("encode {bytes} bytes: the pre-tokenizer's regular expression exceeds its step budget")]
    Backtracking {
        /// The text's length.
        bytes: usize,
    },
    /// Ordinary text has no encoding without a control token.
    #[error("encode {text:?} without the control token {id}")]
    OnlyControl {
        /// The piece of text.
        text: String,
        /// The token its encoding would need.
        id: u32,
    },
    /// The `tokenizers` crate refused.
    #[error("encode: {0}")]
    Encode(String),
    /// An id that the vocabulary does not have.
    #[error("decode token {id}, the vocabulary has {n_tokens}")]
    UnknownId {
        /// The id.
        id: u32,
        /// The size of the vocabulary.
        n_tokens: usize,
    },
}

/// A token with the bytes of the text that it covers.
///
/// Tokens that hold parts of one character all cover the whole character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The token.
    pub id: u32,
    /// Which bytes of the encoded text.
    pub range: Range<usize>,
    /// Whether it was matched as an added token and not encoded as text.
    pub added: bool,
}

/// A byte-pair encoding with its special tokens and its chat templates' texts.
#[derive(Debug)]
pub struct Tokenizer {
    model: ModelWrapper,
    normalizer: Option<NormalizerWrapper>,
    pre: PreTokenization,
    added: AddedTokens,
    bytes: TokenBytes,
    /// What the model gives for text that it cannot spell; it may be an added token.
    fallback: Option<u32>,
    meta: Meta,
}

/// What the files beside the vocabulary say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meta {
    pub(crate) bos: Option<u32>,
    pub(crate) pad: Option<u32>,
    pub(crate) unknown: Option<u32>,
    /// The one of `eos` that templates know as `eos_token`.
    pub(crate) eos_token: Option<u32>,
    /// Sorted, without repeats.
    pub(crate) eos: Vec<u32>,
    pub(crate) adds_bos: bool,
    /// Name and text; the first is the default.
    pub(crate) templates: Vec<(String, String)>,
}

impl Tokenizer {
    /// Reads `tokenizer.json` and what lies beside it (`tokenizer_config.json`,
    /// `special_tokens_map.json`, `generation_config.json`, `chat_template.jinja`) from a folder.
    ///
    /// Errors: a missing or oversized file, an unsupported kind, an inconsistent vocabulary.
    pub fn from_folder(folder: &Path) -> Result<Self, TokenizerError> {
        folder::read(folder)
    }

    /// Reads the text of a `tokenizer.json`; no special roles and no template are known then.
    pub fn from_json(json: &[u8]) -> Result<Self, TokenizerError> {
        folder::build(json, |_| Ok(Meta::default()))
    }

    /// Builds the tokenizer that a GGUF file describes.
    ///
    /// Errors: an unknown kind of model or pre-tokenizer, inconsistent lists.
    pub fn from_gguf(vocabulary: &GgufVocabulary) -> Result<Self, TokenizerError> {
        gguf::build(vocabulary)
    }

    /// Encodes a text; nothing is added in front or behind.
    ///
    /// A byte that the vocabulary has no token for is left out, as transformers and llama.cpp do
    /// (SmolLM2 lacks some that only rare characters of four bytes need).
    ///
    /// Errors: a text beyond [`MAX_TEXT_BYTES`], or one that the tokenizer cannot express.
    pub fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, TokenizerError> {
        Ok(self
            .encode_with(text, text, specials, OffsetType::None)?
            .into_iter()
            .map(|piece| piece.id)
            .collect())
    }

    /// Encodes a text and says which bytes each token covers.
    pub fn encode_pieces(
        &self,
        text: &str,
        specials: Specials,
    ) -> Result<Vec<Piece>, TokenizerError> {
        self.encode_with(text, text, specials, OffsetType::Byte)
    }

    /// Decodes ids to text; bytes that are not UTF-8 become U+FFFD.
    ///
    /// With `skip_special`, control tokens give nothing. Errors: an id the vocabulary does not have.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, TokenizerError> {
        let mut stream = self.stream(skip_special);
        let mut text = String::new();
        for &id in ids {
            text.push_str(&stream.push(id)?);
        }
        text.push_str(&stream.finish());
        Ok(text)
    }

    /// A decoder that takes one id at a time.
    pub fn stream(&self, skip_special: bool) -> TokenStream<'_> {
        TokenStream::new(self, skip_special)
    }

    /// The bytes of a token, as they stand in the middle of a text; `None` for an id that has none.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id)
    }

    /// One more than the largest id; the model's embedding may have more rows.
    pub fn n_tokens(&self) -> usize {
        self.bytes.len()
    }

    /// The id of a token's text as the vocabulary spells it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.added
            .id(token)
            .or_else(|| self.model.token_to_id(token))
    }

    /// Whether an id is a control token: an added token flagged as special.
    pub fn is_control(&self, id: u32) -> bool {
        self.added.is_control(id)
    }

    /// The added tokens (special or not): id, text, whether it is a control token.
    pub fn added_tokens(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        self.added.iter()
    }

    /// The ids that end a turn or a text, sorted.
    pub fn eos_ids(&self) -> &[u32] {
        &self.meta.eos
    }

    /// The token that begins a text, if there is one.
    pub fn bos_id(&self) -> Option<u32> {
        self.meta.bos
    }

    /// The token that fills batches, if there is one.
    pub fn pad_id(&self) -> Option<u32> {
        self.meta.pad
    }

    /// Whether a plain text (without a chat template) is meant to begin with [`Self::bos_id`].
    pub fn adds_bos(&self) -> bool {
        self.meta.adds_bos
    }

    /// The chat templates that came with the tokenizer, the default first: name and text.
    pub fn chat_templates(&self) -> &[(String, String)] {
        &self.meta.templates
    }

    /// The special tokens that templates may name, as transformers gives them: `bos_token`,
    /// `eos_token`, `unk_token`, `pad_token`, as far as there are any, with their texts.
    pub fn special_tokens(&self) -> impl Iterator<Item = (&'static str, String)> {
        [
            ("bos_token", self.meta.bos),
            ("eos_token", self.meta.eos_token),
            ("unk_token", self.meta.unknown),
            ("pad_token", self.meta.pad),
        ]
        .into_iter()
        .filter_map(|(name, id)| Some((name, self.token_text(id?)?)))
    }

    /// The text of a token by id, for templates that name it (`bos_token`, `eos_token`).
    pub fn token_text(&self, id: u32) -> Option<String> {
        self.added
            .text(id)
            .map(str::to_owned)
            .or_else(|| self.model.id_to_token(id))
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Encodes `text`, matching added tokens in `masked`: the same characters, except that some are
    /// replaced by others that no token holds.
    pub(crate) fn encode_masked(
        &self,
        text: &str,
        masked: &str,
    ) -> Result<Vec<Piece>, TokenizerError> {
        self.encode_with(text, masked, Specials::Parse, OffsetType::Byte)
    }

    fn encode_with(
        &self,
        text: &str,
        masked: &str,
        specials: Specials,
        offsets: OffsetType,
    ) -> Result<Vec<Piece>, TokenizerError> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(TokenizerError::TextTooLarge {
                bytes: text.len(),
                limit: MAX_TEXT_BYTES,
            });
        }
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let budget = BacktrackBudget::for_text(text.len());
        self.encode_budgeted(text, masked, specials, offsets, &budget)
            .map_err(|error| match error.downcast::<TokenizerError>() {
                Ok(own) => *own,
                Err(_) if budget.is_spent() => TokenizerError::Backtracking { bytes: text.len() },
                Err(other) => TokenizerError::Encode(other.to_string()),
            })
    }

    fn encode_budgeted(
        &self,
        text: &str,
        masked: &str,
        specials: Specials,
        offsets: OffsetType,
        budget: &BacktrackBudget,
    ) -> tokenizers::Result<Vec<Piece>> {
        let normalize = |string: &mut NormalizedString| match &self.normalizer {
            Some(normalizer) => normalizer.normalize(string),
            None => Ok(()),
        };
        let mut pieces = PreTokenizedString::from(text);
        let mut added = self.added.split(&mut pieces, masked, specials, normalize)?;
        self.pre.apply(&mut pieces, budget)?;
        pieces.tokenize(|word| self.tokenize_word(word.get()))?;
        let encoding = pieces.into_encoding(None, 0, offsets)?;
        added.reverse();
        let mut out = Vec::with_capacity(encoding.len());
        for (&id, &(start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            let added = match added.last() {
                Some(next) if *next == id => {
                    added.pop();
                    true
                }
                _ => false,
            };
            out.push(Piece {
                id,
                range: start..end,
                added,
            });
        }
        Ok(out)
    }

    /// Encodes one word of ordinary text, never to a control token.
    fn tokenize_word(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let tokens = self.model.tokenize(word)?;
        if tokens.iter().all(|token| !self.is_forbidden(token.id)) {
            return Ok(tokens);
        }
        let mut out = Vec::with_capacity(tokens.len());
        for token in tokens {
            if !self.is_forbidden(token.id) {
                out.push(token);
                continue;
            }
            let (start, end) = token.offsets;
            let text = word.get(start..end).unwrap_or(word);
            for (offset, character) in text.char_indices() {
                let character = character.to_string();
                for single in self.model.tokenize(&character)? {
                    if self.is_forbidden(single.id) {
                        return Err(Box::new(TokenizerError::OnlyControl {
                            text: character,
                            id: single.id,
                        }));
                    }
                    out.push(Token {
                        offsets: (
                            start + offset + single.offsets.0,
                            start + offset + single.offsets.1,
                        ),
                        ..single
                    });
                }
            }
        }
        Ok(out)
    }

    fn is_forbidden(&self, id: u32) -> bool {
        self.added.is_reserved(id) && self.fallback != Some(id)
    }
}
