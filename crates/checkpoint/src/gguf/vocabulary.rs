//! The tokenizer's keys of GGUF metadata.

use super::{Array, Gguf, GgufError, Value};
use crate::tokenizer::GgufVocabulary;

/// More tokens or merges are refused; the largest vocabularies have a quarter of this.
const MAX_ENTRIES: usize = 1 << 20;
const TEMPLATE: &str = "tokenizer.chat_template";

/// `None` when the file holds no vocabulary.
pub(super) fn read(gguf: &Gguf) -> Result<Option<GgufVocabulary>, GgufError> {
    let Some(model) = gguf.string("tokenizer.ggml.model")? else {
        return Ok(None);
    };
    let text = |key: &str| Ok::<_, GgufError>(gguf.string(key)?.map(str::to_owned));
    let id = |key: &str| {
        let value = gguf.unsigned(key)?;
        // Converters write -1 or the like, as an unsigned number, where there is none.
        Ok::<_, GgufError>(
            value
                .and_then(|id| u32::try_from(id).ok())
                .filter(|id| *id != u32::MAX),
        )
    };
    let prefix = format!("{TEMPLATE}.");
    let mut named_chat_templates = Vec::new();
    for key in gguf.keys().filter(|key| key.starts_with(&prefix)) {
        if let Some(template) = gguf.string(key)? {
            named_chat_templates.push((key[prefix.len()..].to_owned(), template.to_owned()));
        }
    }
    Ok(Some(GgufVocabulary {
        model: model.to_owned(),
        pre: text("tokenizer.ggml.pre")?,
        tokens: list(gguf, "tokenizer.ggml.tokens", "texts", |value| {
            value.as_str().map(str::to_owned)
        })?,
        scores: list(
            gguf,
            "tokenizer.ggml.scores",
            "numbers",
            |value| match value {
                Value::Float(score) => Some(score as f32),
                _ => None,
            },
        )?,
        token_types: list(
            gguf,
            "tokenizer.ggml.token_type",
            "whole numbers",
            |value| value.as_u64().and_then(|kind| i32::try_from(kind).ok()),
        )?,
        merges: list(gguf, "tokenizer.ggml.merges", "texts", |value| {
            value.as_str().map(str::to_owned)
        })?,
        bos: id("tokenizer.ggml.bos_token_id")?,
        eos: id("tokenizer.ggml.eos_token_id")?,
        eot: id("tokenizer.ggml.eot_token_id")?,
        eom: id("tokenizer.ggml.eom_token_id")?,
        unknown: id("tokenizer.ggml.unknown_token_id")?,
        padding: id("tokenizer.ggml.padding_token_id")?,
        add_bos: gguf.flag("tokenizer.ggml.add_bos_token")?,
        add_space_prefix: gguf.flag("tokenizer.ggml.add_space_prefix")?,
        chat_template: text(TEMPLATE)?,
        named_chat_templates,
    }))
}

/// An absent list is an empty one.
fn list<T>(
    gguf: &Gguf,
    key: &str,
    expected: &'static str,
    read: impl Fn(Value<'_>) -> Option<T>,
) -> Result<Vec<T>, GgufError> {
    let Some(array): Option<Array<'_>> = gguf.array(key)? else {
        return Ok(Vec::new());
    };
    let wrong = |got: String| GgufError::Metadata {
        path: gguf.path().to_owned(),
        key: key.to_owned(),
        expected,
        got,
    };
    if array.len() > MAX_ENTRIES {
        return Err(wrong(format!("a list of {}", array.len())));
    }
    array
        .iter()
        .map(|value| read(value).ok_or_else(|| wrong(format!("a list with {}", value.describe()))))
        .collect()
}
