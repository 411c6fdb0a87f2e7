//! The vocabulary in a GGUF file's metadata, as a tokenizer.json.
//!
//! GGUF names a pre-tokenizer by a word; the expressions behind the words are those of the models'
//! own tokenizer.json files. Where llama.cpp leaves out a step of theirs (Qwen's composition of
//! characters, NFC), this follows the model's tokenizer.

use serde_json::{Value, json};

use super::folder::{build as build_json, known_ends};
use super::split::GPT2_PATTERN;
use super::{MAX_TOKENS, Meta, Tokenizer, TokenizerError};

/// The kinds of tokens that `tokenizer.ggml.token_type` numbers.
pub mod token_type {
    /// An ordinary token.
    pub const NORMAL: i32 = 1;
    /// The unknown token.
    pub const UNKNOWN: i32 = 2;
    /// A control token.
    pub const CONTROL: i32 = 3;
    /// An added token that controls nothing.
    pub const USER_DEFINED: i32 = 4;
    /// A filler row.
    pub const UNUSED: i32 = 5;
    /// A byte of a SentencePiece vocabulary.
    pub const BYTE: i32 = 6;
}

/// What the `tokenizer.*` keys of a GGUF file hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufVocabulary {
    /// `tokenizer.ggml.model`: `gpt2` (byte-level) or `llama` (SentencePiece BPE).
    pub model: String,
    /// `tokenizer.ggml.pre`: the pre-tokenizer's name.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`, by id.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.scores`, by id or empty; needed for `llama`.
    pub scores: Vec<f32>,
    /// `tokenizer.ggml.token_type`, by id or empty; see [`token_type`].
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`: two tokens with a space between, by rank; needed for `gpt2`.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.bos_token_id`.
    pub bos: Option<u32>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos: Option<u32>,
    /// `tokenizer.ggml.eot_token_id`, the end of a turn.
    pub eot: Option<u32>,
    /// `tokenizer.ggml.eom_token_id`, the end of a message that awaits a tool.
    pub eom: Option<u32>,
    /// `tokenizer.ggml.unknown_token_id`.
    pub unknown: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub padding: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`.
    pub add_bos: Option<bool>,
    /// `tokenizer.ggml.add_space_prefix`.
    pub add_space_prefix: Option<bool>,
    /// `tokenizer.chat_template`.
    pub chat_template: Option<String>,
    /// `tokenizer.chat_template.NAME`: name and text.
    pub named_chat_templates: Vec<(String, String)>,
}

pub(crate) fn build(vocabulary: &GgufVocabulary) -> Result<Tokenizer, TokenizerError> {
    let json = serde_json::to_vec(&tokenizer_json(vocabulary)?)
        .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
    build_json(&json, |tokenizer| {
        let mut eos: Vec<u32> = [vocabulary.eos, vocabulary.eot, vocabulary.eom]
            .into_iter()
            .flatten()
            .chain(known_ends(tokenizer))
            .collect();
        eos.sort_unstable();
        eos.dedup();
        let default = vocabulary.chat_template.iter();
        Ok(Meta {
            bos: vocabulary.bos,
            pad: vocabulary.padding,
            unknown: vocabulary.unknown,
            eos_token: vocabulary.eos,
            eos,
            adds_bos: adds_bos(vocabulary),
            templates: default
                .map(|text| ("default".to_owned(), text.clone()))
                .chain(vocabulary.named_chat_templates.iter().cloned())
                .collect(),
        })
    })
}

/// The vocabulary as the value of a tokenizer.json.
pub(crate) fn tokenizer_json(vocabulary: &GgufVocabulary) -> Result<Value, TokenizerError> {
    check(vocabulary)?;
    let (model, normalizer, pre_tokenizer, decoder) = match vocabulary.model.as_str() {
        "gpt2" => byte_level(vocabulary)?,
        "llama" => sentence_piece(vocabulary)?,
        other => {
            return Err(TokenizerError::Unsupported {
                part: "GGUF tokenizer model",
                kind: other.to_owned(),
            });
        }
    };
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added_tokens(vocabulary),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": post_processor(vocabulary),
        "decoder": decoder,
        "model": model,
    }))
}

fn check(vocabulary: &GgufVocabulary) -> Result<(), TokenizerError> {
    let n = vocabulary.tokens.len();
    if n > MAX_TOKENS || vocabulary.merges.len() > 4 * MAX_TOKENS {
        return Err(TokenizerError::Invalid(format!(
            "{n} tokens and {} merges, the limit is {MAX_TOKENS} tokens",
            vocabulary.merges.len()
        )));
    }
    for (name, len) in [
        ("scores", vocabulary.scores.len()),
        ("token types", vocabulary.token_types.len()),
    ] {
        if len != 0 && len != n {
            return Err(TokenizerError::Invalid(format!(
                "{len} {name} for {n} tokens"
            )));
        }
    }
    let roles = [
        vocabulary.bos,
        vocabulary.eos,
        vocabulary.eot,
        vocabulary.eom,
        vocabulary.unknown,
        vocabulary.padding,
    ];
    match roles.into_iter().flatten().find(|id| *id as usize >= n) {
        Some(id) => Err(TokenizerError::UnknownId { id, n_tokens: n }),
        None => Ok(()),
    }
}

type Parts = (Value, Value, Value, Value);

fn byte_level(vocabulary: &GgufVocabulary) -> Result<Parts, TokenizerError> {
    let name = vocabulary.pre.as_deref().unwrap_or("default");
    let pre = pre_tokenizer(name)?;
    let merges = vocabulary
        .merges
        .iter()
        .map(|merge| match merge.split_once(' ') {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => {
                Ok(json!([left, right]))
            }
            _ => Err(TokenizerError::Invalid(format!("merge {merge:?}"))),
        })
        .collect::<Result<Vec<_>, _>>()?;
    let vocab = vocab(vocabulary)?;
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "ignore_merges": pre.ignore_merges, "vocab": vocab, "merges": merges,
    });
    let normalizer = match pre.composes {
        true => json!({"type": "NFC"}),
        false => Value::Null,
    };
    let mut stages = pre.stages;
    stages.push(json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
    }));
    let decoder = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    Ok((
        model,
        normalizer,
        json!({"type": "Sequence", "pretokenizers": stages}),
        decoder,
    ))
}

struct PreTokenizer {
    stages: Vec<Value>,
    /// Whether text is composed first (NFC).
    composes: bool,
    /// Whether a word that is a token is taken whole.
    ignore_merges: bool,
}

fn pre_tokenizer(name: &str) -> Result<PreTokenizer, TokenizerError> {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let words = |digits: &str| {
        split(&format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))
    };
    let plain = |stages| PreTokenizer {
        stages,
        composes: false,
        ignore_merges: false,
    };
    Ok(match name {
        "gpt-2" | "gpt2" => plain(vec![split(GPT2_PATTERN)]),
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" => plain(vec![
            json!({"type": "Digits", "individual_digits": true}),
            split(GPT2_PATTERN),
        ]),
        "default" => plain(vec![
            split(r"[\p{P}\$\+<=>\^~\|]+"),
            split(GPT2_PATTERN),
            split(r"\p{N}+"),
            split("[0-9][0-9][0-9]"),
        ]),
        "qwen2" | "deepseek-r1-qwen" => PreTokenizer {
            composes: true,
            ..plain(vec![words(r"\p{N}")])
        },
        "llama-bpe" | "llama3" | "llama-v3" => PreTokenizer {
            ignore_merges: true,
            ..plain(vec![words(r"\p{N}{1,3}")])
        },
        "tekken" => PreTokenizer {
            ignore_merges: true,
            ..plain(vec![split(
                r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
            )])
        },
        other => {
            return Err(TokenizerError::Unsupported {
                part: "GGUF pre-tokenizer",
                kind: other.to_owned(),
            });
        }
    })
}

/// Merges of a SentencePiece vocabulary are not stored; every pair of tokens that joins to a token is
/// one, better scores first, and where scores are equal the token with the smaller id.
fn sentence_piece(vocabulary: &GgufVocabulary) -> Result<Parts, TokenizerError> {
    if vocabulary.scores.is_empty() {
        return Err(TokenizerError::Invalid(
            "no scores for a llama vocabulary".to_owned(),
        ));
    }
    let vocab = vocab(vocabulary)?;
    let kind = |id: usize| {
        vocabulary
            .token_types
            .get(id)
            .copied()
            .unwrap_or(token_type::NORMAL)
    };
    let mut merges: Vec<(f32, usize, &str, &str)> = Vec::new();
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        // Longer tokens than any real vocabulary has would make this quadratic.
        if kind(id) != token_type::NORMAL || token.len() > 1024 {
            continue;
        }
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                merges.push((vocabulary.scores[id], id, left, right));
            }
        }
        if merges.len() > 4 * MAX_TOKENS {
            return Err(TokenizerError::Invalid("too many merges".to_owned()));
        }
    }
    let rank = |left: &str, right: &str| {
        let id = |text: &str| vocab.get(text).and_then(Value::as_u64);
        (id(left), id(right))
    };
    merges.sort_by(|a, b| {
        b.0.total_cmp(&a.0)
            .then(a.1.cmp(&b.1))
            .then_with(|| rank(a.2, a.3).cmp(&rank(b.2, b.3)))
    });
    let merges: Vec<Value> = merges.iter().map(|(_, _, l, r)| json!([l, r])).collect();
    let unknown = vocabulary.unknown.map(|id| &vocabulary.tokens[id as usize]);
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": unknown, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
        "vocab": vocab, "merges": merges,
    });
    let prefix = vocabulary.add_space_prefix.unwrap_or(true);
    let space = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
    let normalizer = match prefix {
        true => {
            json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u{2581}"}, space]})
        }
        false => space,
    };
    let mut decoders = vec![
        json!({"type": "Replace", "pattern": {"String": "\u{2581}"}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    let decoder = json!({"type": "Sequence", "decoders": decoders});
    Ok((model, normalizer, Value::Null, decoder))
}

fn vocab(vocabulary: &GgufVocabulary) -> Result<serde_json::Map<String, Value>, TokenizerError> {
    let mut vocab = serde_json::Map::with_capacity(vocabulary.tokens.len());
    for (id, token) in vocabulary.tokens.iter().enumerate() {
        let kind = vocabulary.token_types.get(id);
        if kind == Some(&token_type::UNUSED) {
            continue;
        }
        if vocab.insert(token.clone(), json!(id)).is_some() {
            return Err(TokenizerError::Invalid(format!("token {token:?} twice")));
        }
    }
    Ok(vocab)
}

fn added_tokens(vocabulary: &GgufVocabulary) -> Vec<Value> {
    let roles = [
        vocabulary.bos,
        vocabulary.eos,
        vocabulary.eot,
        vocabulary.eom,
        vocabulary.unknown,
    ];
    (0..vocabulary.tokens.len())
        .filter_map(|id| {
            let is_role = roles.contains(&Some(id as u32));
            let special = match vocabulary.token_types.get(id) {
                Some(&token_type::CONTROL | &token_type::UNKNOWN) => true,
                Some(&token_type::USER_DEFINED) => false,
                None if is_role => true,
                _ => return None,
            };
            Some(json!({
                "id": id, "content": vocabulary.tokens[id], "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false, "special": special,
            }))
        })
        .collect()
}

fn adds_bos(vocabulary: &GgufVocabulary) -> bool {
    let default = vocabulary.model == "llama"
        || matches!(
            vocabulary.pre.as_deref(),
            Some("llama-bpe" | "llama3" | "llama-v3" | "tekken")
        );
    vocabulary.bos.is_some() && vocabulary.add_bos.unwrap_or(default)
}

fn post_processor(vocabulary: &GgufVocabulary) -> Value {
    match vocabulary.bos {
        Some(bos) if adds_bos(vocabulary) => {
            let text = &vocabulary.tokens[bos as usize];
            let special = json!({"SpecialToken": {"id": text, "type_id": 0}});
            let first = json!({"Sequence": {"id": "A", "type_id": 0}});
            let second = json!({"Sequence": {"id": "B", "type_id": 1}});
            json!({
                "type": "TemplateProcessing",
                "single": [special, first],
                "pair": [special, first, {"SpecialToken": {"id": text, "type_id": 1}}, second],
                "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
            })
        }
        _ => Value::Null,
    }
}
