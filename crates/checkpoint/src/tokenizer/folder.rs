//! Tokenizers in a Hugging Face folder.

use std::io::Read;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use serde_json::Value;
use tokenizers::{
    AddedToken, Model, ModelWrapper, NormalizedString, Normalizer, Tokenizer as Parts,
};

use super::added::AddedTokens;
use super::bytes::{TokenBytes, spelling_of};
use super::split::PreTokenization;
use super::{MAX_FILE_BYTES, MAX_TOKENS, Meta, Tokenizer, TokenizerError};

/// The largest of the small files beside tokenizer.json, in bytes.
const MAX_SIDE_FILE_BYTES: u64 = 8 << 20;
/// What a normalizer may put in place of something, in bytes.
const MAX_REPLACEMENT_BYTES: usize = 16;
const NORMALIZERS: [&str; 10] = [
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Prepend",
    "Replace",
    "Sequence",
    "Lowercase",
    "Strip",
    "StripAccents",
];
const PRE_TOKENIZERS: [&str; 9] = [
    "ByteLevel",
    "Split",
    "Digits",
    "Metaspace",
    "Whitespace",
    "WhitespaceSplit",
    "Punctuation",
    "Sequence",
    "CharDelimiterSplit",
];
/// Tokens that end a turn or a text in the families that Temper runs, for vocabularies that do not
/// list them.
pub(crate) const END_TEXTS: [&str; 8] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "</s>",
];

pub(crate) fn read(folder: &Path) -> Result<Tokenizer, TokenizerError> {
    let json = read_file(&folder.join("tokenizer.json"), MAX_FILE_BYTES)?.ok_or_else(|| {
        TokenizerError::Read {
            path: folder.join("tokenizer.json"),
            source: std::io::ErrorKind::NotFound.into(),
        }
    })?;
    let side = |name: &str| read_json(&folder.join(name));
    let config = side("tokenizer_config.json")?;
    let special_map = side("special_tokens_map.json")?;
    let generation = side("generation_config.json")?;
    let template = read_file(&folder.join("chat_template.jinja"), MAX_SIDE_FILE_BYTES)?
        .map(|bytes| utf8("chat_template.jinja", bytes))
        .transpose()?;
    build(&json, |tokenizer| {
        let role = |name: &str| {
            [&config, &special_map]
                .iter()
                .find_map(|file| token_name(file.get(name)?))
                .and_then(|text| tokenizer.token_id(&text))
        };
        let mut eos: Vec<u32> = role("eos_token").into_iter().collect();
        let listed = ids(generation.get("eos_token_id"));
        if listed.is_empty() {
            eos.extend(known_ends(tokenizer));
        }
        eos.extend(listed);
        eos.sort_unstable();
        eos.dedup();
        Ok(Meta {
            bos: role("bos_token"),
            pad: role("pad_token"),
            unknown: role("unk_token"),
            eos_token: role("eos_token"),
            eos,
            adds_bos: false,
            templates: templates(template, config.get("chat_template"))?,
        })
    })
}

/// Builds a tokenizer from the text of a tokenizer.json; `meta` sees it without its roles.
pub(crate) fn build(
    json: &[u8],
    meta: impl FnOnce(&Tokenizer) -> Result<Meta, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    if json.len() as u64 > MAX_FILE_BYTES {
        return Err(TokenizerError::Invalid(format!(
            "{} bytes, the limit is {MAX_FILE_BYTES}",
            json.len()
        )));
    }
    check(json)?;
    // The crate's deserializers hold assertions about vocabularies; a broken file must not end the
    // process. Nothing outlives the call when it unwinds.
    let parts = catch_unwind(AssertUnwindSafe(|| Parts::from_bytes(json)))
        .map_err(|_| TokenizerError::Invalid("inconsistent vocabulary".to_owned()))?
        .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
    let model = parts.get_model().clone();
    let unknown = match &model {
        ModelWrapper::BPE(bpe) => check_bpe(bpe)?,
        _ => return Err(unsupported("model", "other than BPE")),
    };
    let normalizer = parts.get_normalizer().cloned();
    let tokens: Vec<(u32, AddedToken)> = parts.get_added_tokens_decoder().into_iter().collect();
    let bytes = TokenBytes::new(
        spelling_of(parts.get_decoder())?,
        model.get_vocab().into_iter().map(|(text, id)| (id, text)),
        tokens
            .iter()
            .map(|(id, token)| (*id, token.content.clone())),
    )?;
    let added = AddedTokens::new(tokens, |text| {
        let mut string = NormalizedString::from(text);
        if let Some(normalizer) = &normalizer {
            normalizer
                .normalize(&mut string)
                .map_err(|error| TokenizerError::Invalid(error.to_string()))?;
        }
        Ok(string.get().to_owned())
    })?;
    let mut tokenizer = Tokenizer {
        pre: PreTokenization::new(parts.get_pre_tokenizer())?,
        model,
        normalizer,
        added,
        bytes,
        fallback: None,
        meta: Meta::default(),
    };
    tokenizer.fallback = unknown.and_then(|text| tokenizer.token_id(&text));
    let mut meta = meta(&tokenizer)?;
    meta.unknown = meta.unknown.or(tokenizer.fallback);
    // What the file's post-processor puts in front of an empty text is what it puts before any.
    if let Ok(encoding) = parts.encode_fast("", true) {
        meta.adds_bos |= meta.bos.is_some() && encoding.get_ids().first() == meta.bos.as_ref();
    }
    tokenizer.meta = meta;
    Ok(tokenizer)
}

/// Tokens of [`END_TEXTS`] that the vocabulary has as control tokens.
pub(crate) fn known_ends(tokenizer: &Tokenizer) -> Vec<u32> {
    END_TEXTS
        .iter()
        .filter_map(|text| tokenizer.added.id(text))
        .filter(|id| tokenizer.is_control(*id))
        .collect()
}

/// Refuses what could cost without bound before the crate sees it.
fn check(json: &[u8]) -> Result<(), TokenizerError> {
    let value: Value = serde_json::from_slice(json)
        .map_err(|error| TokenizerError::Invalid(format!("tokenizer.json: {error}")))?;
    let model = &value["model"];
    let kind = model["type"].as_str().unwrap_or("BPE");
    if kind != "BPE" {
        return Err(unsupported("model", kind));
    }
    let vocabulary = model["vocab"].as_object().map_or(0, |vocab| vocab.len());
    let merges = model["merges"].as_array().map_or(0, Vec::len);
    let added = value["added_tokens"].as_array().map_or(0, Vec::len);
    if vocabulary > MAX_TOKENS || added > MAX_TOKENS || merges > 4 * MAX_TOKENS {
        return Err(TokenizerError::Invalid(format!(
            "{vocabulary} tokens, {added} added tokens and {merges} merges, the limit is {MAX_TOKENS} tokens"
        )));
    }
    check_parts(
        &value["normalizer"],
        "normalizer",
        "normalizers",
        &NORMALIZERS,
    )?;
    check_parts(
        &value["pre_tokenizer"],
        "pre-tokenizer",
        "pretokenizers",
        &PRE_TOKENIZERS,
    )
}

fn check_parts(
    value: &Value,
    part: &'static str,
    inner: &str,
    allowed: &[&str],
) -> Result<(), TokenizerError> {
    if value.is_null() {
        return Ok(());
    }
    let kind = value["type"].as_str().unwrap_or_default();
    if !allowed.contains(&kind) {
        return Err(unsupported(part, kind));
    }
    if part == "normalizer" {
        if value["pattern"].get("Regex").is_some() {
            return Err(unsupported(part, "Replace with a regular expression"));
        }
        let inserted = [&value["content"], &value["prepend"]];
        if inserted.iter().any(|text| {
            text.as_str()
                .is_some_and(|text| text.len() > MAX_REPLACEMENT_BYTES)
        }) {
            return Err(unsupported(part, "a long replacement"));
        }
    }
    for value in value[inner].as_array().into_iter().flatten() {
        check_parts(value, part, inner, allowed)?;
    }
    Ok(())
}

fn check_bpe(bpe: &tokenizers::models::bpe::BPE) -> Result<Option<String>, TokenizerError> {
    if bpe.dropout.is_some_and(|dropout| dropout > 0.0) {
        return Err(unsupported("model", "BPE with dropout"));
    }
    if bpe
        .continuing_subword_prefix
        .as_ref()
        .is_some_and(|text| !text.is_empty())
        || bpe
            .end_of_word_suffix
            .as_ref()
            .is_some_and(|text| !text.is_empty())
    {
        return Err(unsupported("model", "BPE with affixes"));
    }
    Ok(bpe.unk_token.clone())
}

/// The named templates: the file's, then those of tokenizer_config.json, the default first.
fn templates(
    file: Option<String>,
    config: Option<&Value>,
) -> Result<Vec<(String, String)>, TokenizerError> {
    let mut templates: Vec<(String, String)> = Vec::new();
    let named = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    templates.extend(file.map(|text| named("default", &text)));
    match config {
        Some(Value::String(text)) => templates.push(named("default", text)),
        Some(Value::Array(list)) => {
            for entry in list {
                match (entry["name"].as_str(), entry["template"].as_str()) {
                    (Some(name), Some(text)) => templates.push(named(name, text)),
                    _ => {
                        return Err(TokenizerError::Invalid(
                            "a chat template without a name or a text".to_owned(),
                        ));
                    }
                }
            }
        }
        Some(Value::Object(map)) => {
            templates.extend(
                map.iter()
                    .filter_map(|(name, text)| Some(named(name, text.as_str()?))),
            );
        }
        _ => {}
    }
    let mut seen = std::collections::HashSet::new();
    templates.retain(|(name, _)| seen.insert(name.clone()));
    templates.sort_by_key(|(name, _)| name != "default");
    Ok(templates)
}

/// A token is named by its text or by an object that holds it.
fn token_name(value: &Value) -> Option<String> {
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

fn read_json(path: &Path) -> Result<Value, TokenizerError> {
    match read_file(path, MAX_SIDE_FILE_BYTES)? {
        Some(bytes) => serde_json::from_slice(&bytes)
            .map_err(|error| TokenizerError::Invalid(format!("{}: {error}", path.display()))),
        None => Ok(Value::Null),
    }
}

/// Reads at most `limit` bytes; `None` where there is no such file.
fn read_file(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, TokenizerError> {
    let failed = |source| TokenizerError::Read {
        path: path.to_owned(),
        source,
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(TokenizerError::FileTooLarge {
            path: path.to_owned(),
            bytes: bytes.len() as u64,
            limit,
        });
    }
    Ok(Some(bytes))
}

fn utf8(name: &str, bytes: Vec<u8>) -> Result<String, TokenizerError> {
    String::from_utf8(bytes).map_err(|error| TokenizerError::Invalid(format!("{name}: {error}")))
}

fn unsupported(part: &'static str, kind: impl Into<String>) -> TokenizerError {
    TokenizerError::Unsupported {
        part,
        kind: kind.into(),
    }
}
