//! Tokens and chat template: what different files say of one thing, and what a template does to a
//! conversation.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;
use serde_json::{Value, json};

use super::{Finding, MAX_SIDE_FILE_BYTES};
use crate::{
    chat_template::{ChatTemplate, Conversation},
    file::read_small,
    tokenizer::Tokenizer,
};

/// What is known of the tokens and the template.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Words {
    /// Tokens of the tokenizer; `None` when it could not be read.
    pub n_tokens: Option<usize>,
    /// Ids that end generation.
    pub end_ids: Vec<u32>,
    /// The first control token behind a reply, by the template.
    pub end_of_turn: Option<String>,
    /// Whether a longer conversation begins with the tokens of a shorter one.
    pub prefix_property: Option<bool>,
    /// Whether the thinking of earlier turns stays.
    pub keeps_thinking: Option<bool>,
}

/// Checks a folder's or a GGUF file's tokenizer against its configuration.
pub(super) fn check(path: &Path, config: &Value, findings: &mut Vec<Finding>) -> Words {
    let mut words = Words::default();
    let tokenizer = if path.is_dir() {
        if !path.join("tokenizer.json").is_file() {
            findings.push(Finding::Words {
                reason: "there is no tokenizer.json".into(),
            });
            return words;
        }
        Tokenizer::from_folder(path).map_err(|error| error.to_string())
    } else {
        crate::gguf::Gguf::open(path)
            .map_err(|error| error.to_string())
            .and_then(|gguf| gguf.vocabulary().map_err(|error| error.to_string()))
            .and_then(|vocabulary| {
                vocabulary.ok_or_else(|| "the file has no vocabulary".to_owned())
            })
            .and_then(|vocabulary| {
                Tokenizer::from_gguf(&vocabulary).map_err(|error| error.to_string())
            })
    };
    let tokenizer = match tokenizer {
        Ok(tokenizer) => tokenizer,
        Err(reason) => {
            findings.push(Finding::Words { reason });
            return words;
        }
    };
    words.n_tokens = Some(tokenizer.n_tokens());
    words.end_ids = tokenizer.eos_ids().to_vec();
    if path.is_dir() {
        special_tokens(path, config, &tokenizer, findings);
        template_files(path, findings);
    }
    let added = tokenizer.added_tokens().map(|(id, _, _)| id).max();
    let highest = added
        .max(tokenizer.n_tokens().checked_sub(1).map(|id| id as u32))
        .unwrap_or(0);
    if let Some(vocab_size) = config.get("vocab_size").and_then(Value::as_u64)
        && u64::from(highest) >= vocab_size
    {
        findings.push(Finding::TokenOutsideVocabulary {
            highest_id: highest,
            vocab_size,
        });
    }
    match ChatTemplate::of_tokenizer(&tokenizer, None, false) {
        Ok(Some(template)) => conversations(&template, &tokenizer, &mut words, findings),
        Ok(None) => findings.push(Finding::NoTemplate {
            looked_at: "neither chat_template.jinja nor the tokenizer's configuration has one"
                .into(),
        }),
        Err(error) => findings.push(Finding::Words {
            reason: error.to_string(),
        }),
    }
    words
}

/// Ids by role and file; roles that are null somewhere are not compared there.
fn special_tokens(
    folder: &Path,
    config: &Value,
    tokenizer: &Tokenizer,
    findings: &mut Vec<Finding>,
) {
    let side = |name: &str| -> Value {
        read_small(&folder.join(name), MAX_SIDE_FILE_BYTES)
            .ok()
            .and_then(|bytes| serde_json::from_slice(&bytes).ok())
            .unwrap_or_default()
    };
    let generation = side("generation_config.json");
    let named = [
        ("tokenizer_config.json", side("tokenizer_config.json")),
        ("special_tokens_map.json", side("special_tokens_map.json")),
    ];
    for role in ["bos", "eos", "pad"] {
        let mut ids: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for (file, value) in [
            ("config.json", config),
            ("generation_config.json", &generation),
        ] {
            let listed = listed_ids(value.get(format!("{role}_token_id")));
            if !listed.is_empty() {
                ids.insert(file.to_owned(), listed);
            }
        }
        for (file, value) in &named {
            let token = value.get(format!("{role}_token"));
            let token = token.and_then(|token| {
                token
                    .as_str()
                    .or_else(|| token.get("content").and_then(Value::as_str))
            });
            let Some(token) = token else { continue };
            match tokenizer.token_id(token) {
                Some(id) => {
                    ids.insert((*file).to_owned(), vec![id]);
                }
                None => findings.push(Finding::UnknownToken {
                    file: (*file).to_owned(),
                    role: role.to_owned(),
                    token: token.to_owned(),
                }),
            }
        }
        let lists: Vec<_> = ids.values().collect();
        let differ = lists.iter().enumerate().any(|(at, one)| {
            lists[at + 1..]
                .iter()
                .any(|other| !one.iter().any(|id| other.contains(id)))
        });
        if differ {
            findings.push(Finding::SpecialToken {
                role: role.to_owned(),
                ids,
            });
        }
    }
}

fn listed_ids(value: Option<&Value>) -> Vec<u32> {
    let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A template that stands in several files must be the same: loaders prefer different ones.
fn template_files(folder: &Path, findings: &mut Vec<Finding>) {
    let text = |name: &str| {
        let bytes = read_small(&folder.join(name), MAX_SIDE_FILE_BYTES).ok()?;
        String::from_utf8(bytes).ok()
    };
    let member = |name: &str| {
        let value: Value = serde_json::from_str(&text(name)?).ok()?;
        Some(value.get("chat_template")?.as_str()?.to_owned())
    };
    let found: Vec<(&str, String)> = [
        ("chat_template.jinja", text("chat_template.jinja")),
        ("chat_template.json", member("chat_template.json")),
        ("tokenizer_config.json", member("tokenizer_config.json")),
    ]
    .into_iter()
    .filter_map(|(file, text)| Some((file, text?)))
    .collect();
    // One trailing line feed is what separates a file from a JSON string.
    let same = found
        .windows(2)
        .all(|pair| pair[0].1.trim_end_matches('\n') == pair[1].1.trim_end_matches('\n'));
    if !same {
        findings.push(Finding::TemplateDiffers {
            files: found.iter().map(|(file, _)| (*file).to_owned()).collect(),
        });
    }
}

fn conversations(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    words: &mut Words,
    findings: &mut Vec<Finding>,
) {
    let turn = |role: &str, content: &str| json!({"role": role, "content": content});
    let plain = [
        turn("user", "first question"),
        turn("assistant", "first answer"),
        turn("user", "second question"),
        turn("assistant", "second answer"),
    ];
    let of = |messages| Conversation {
        messages,
        ..Conversation::default()
    };
    if let Err(reason) = end_of_turn(template, tokenizer, &of(&plain[..2]), words, findings) {
        findings.push(Finding::Words { reason });
        return;
    }
    if let Ok(property) = template.prefix_property(tokenizer, &of(&plain)) {
        words.prefix_property = Some(property.holds());
        if let Some(first) = property.breaks.first() {
            findings.push(Finding::PrefixProperty {
                reason: first.reason.clone(),
            });
        }
    }
    const THOUGHT: &str = "a thought of the first turn";
    let thinking = [
        plain[0].clone(),
        turn(
            "assistant",
            &format!("<think>\n{THOUGHT}\n</think>\n\nfirst answer"),
        ),
        plain[2].clone(),
        plain[3].clone(),
    ];
    if let Ok(text) = template.render(&of(&thinking)) {
        let keeps = text.contains(THOUGHT);
        words.keeps_thinking = Some(keeps);
        if !keeps {
            findings.push(Finding::DropsThinking {
                reason: "a block between <think> and </think> of an earlier reply is not in the rendered text"
                    .into(),
            });
        }
    }
}

/// What follows a reply, against what ends generation.
fn end_of_turn(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    conversation: &Conversation,
    words: &mut Words,
    findings: &mut Vec<Finding>,
) -> Result<(), String> {
    let rendered = template
        .render_ids(tokenizer, conversation)
        .map_err(|error| error.to_string())?;
    let content = rendered.spans.last().and_then(|span| span.content.clone());
    let Some(content) = content else {
        return Err("the chat template does not show a reply".into());
    };
    let behind = &rendered.ids[content.end.min(rendered.ids.len())..];
    match behind.iter().find(|id| tokenizer.is_control(**id)) {
        Some(id) => {
            let token = tokenizer.token_text(*id).unwrap_or_default();
            words.end_of_turn = Some(token.clone());
            if !tokenizer.eos_ids().contains(id) {
                findings.push(Finding::EndOfTurn {
                    token,
                    id: *id,
                    ends: tokenizer.eos_ids().to_vec(),
                });
            }
        }
        None => findings.push(Finding::NoEndOfTurn {
            follows: tokenizer.decode(behind, false).unwrap_or_default(),
        }),
    }
    Ok(())
}
