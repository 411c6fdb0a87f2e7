//! A GGUF vocabulary as the files of a Hugging Face folder.

use serde_json::{Map, Value, json};

use super::gguf::tokenizer_json;
use super::{GgufVocabulary, Tokenizer, TokenizerError};

/// The texts of the files to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedTokenizer {
    /// `tokenizer.json`.
    pub tokenizer: String,
    /// `tokenizer_config.json`, with the chat templates.
    pub config: String,
    /// `generation_config.json`'s token ids: `eos_token_id`, `bos_token_id`, `pad_token_id`.
    pub generation: String,
}

impl GgufVocabulary {
    /// Writes the vocabulary as the files from which `transformers` and [`Tokenizer::from_folder`]
    /// read the same tokenizer.
    ///
    /// Errors: as [`Tokenizer::from_gguf`].
    pub fn export(&self) -> Result<ExportedTokenizer, TokenizerError> {
        let tokenizer = Tokenizer::from_gguf(self)?;
        let meta = tokenizer.meta();
        let mut config = Map::new();
        config.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        config.insert("clean_up_tokenization_spaces".into(), json!(false));
        // A config without the length makes transformers warn and take a number of its own.
        config.insert("model_max_length".into(), json!(1_000_000_000_u64));
        for (name, id) in [
            ("bos_token", meta.bos),
            ("eos_token", self.eos),
            ("unk_token", meta.unknown),
            ("pad_token", meta.pad),
        ] {
            if let Some(text) = id.and_then(|id| tokenizer.token_text(id)) {
                config.insert(name.into(), json!(text));
            }
        }
        match meta.templates.as_slice() {
            [] => {}
            [(name, text)] if name == "default" => {
                config.insert("chat_template".into(), json!(text));
            }
            named => {
                let list: Vec<Value> = named
                    .iter()
                    .map(|(name, text)| json!({"name": name, "template": text}))
                    .collect();
                config.insert("chat_template".into(), json!(list));
            }
        }
        let mut generation = Map::new();
        generation.insert("eos_token_id".into(), json!(meta.eos));
        for (name, id) in [("bos_token_id", meta.bos), ("pad_token_id", meta.pad)] {
            if let Some(id) = id {
                generation.insert(name.into(), json!(id));
            }
        }
        let text = |value: &Value| {
            serde_json::to_string_pretty(value)
                .map_err(|error| TokenizerError::Invalid(error.to_string()))
        };
        Ok(ExportedTokenizer {
            tokenizer: text(&tokenizer_json(self)?)?,
            config: text(&Value::Object(config))?,
            generation: text(&Value::Object(generation))?,
        })
    }
}
