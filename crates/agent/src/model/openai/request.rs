//! From a conversation to a request body.

use serde_json::{Map, Value, json};
use temper_core::{Message, Role, ToolCall};

use super::super::{ModelRequest, Tool, retry::mix};
use super::{OpenAiConfig, OutputLimitField, ReasoningHistory};

/// Request fields that belong to Temper, and what to use instead.
pub(super) const OWN_FIELDS: &[(&str, &str)] = &[
    ("model", "the model is named with the server's address"),
    ("messages", "they are the trial's history"),
    ("tools", "they are the protocol's"),
    ("functions", "they are the protocol's"),
    ("function_call", "the protocol decides"),
    ("stream", "streaming is a setting of its own"),
    ("stream_options", "streaming is a setting of its own"),
    ("n", "one reply is asked for"),
    ("best_of", "one reply is asked for"),
    ("seed", "it is derived from the trial's seed"),
    ("logprobs", "token records are a setting of their own"),
    (
        "return_token_ids",
        "token records are a setting of their own",
    ),
    (
        "return_tokens_as_token_ids",
        "token records are a setting of their own",
    ),
    (
        "return_meta_info",
        "token records are a setting of their own",
    ),
    ("api_key", "keys are read from the environment or a file"),
    ("api_base", "the server's address names it"),
    ("base_url", "the server's address names it"),
    ("custom_llm_provider", "the server's address names it"),
    ("extra_headers", "headers cannot be set"),
    ("headers", "headers cannot be set"),
    (
        "timeout",
        "the attempt's time limit is a setting of its own",
    ),
    ("num_retries", "retries are a setting of their own"),
    ("max_retries", "retries are a setting of their own"),
];

/// The fields of `model_kwargs` that limit the reply; they are one setting under two names.
pub(super) const LIMIT_FIELDS: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// A request body and what was done to the history to make it sendable.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    /// The most tokens the reply may have.
    pub(super) max_output_tokens: Option<u64>,
    /// What was done to messages, by their place.
    pub(super) notes: Vec<(usize, String)>,
}

/// Builds the body, or says which two settings contradict each other.
pub(super) fn build(config: &OpenAiConfig, request: &ModelRequest<'_>) -> Result<Body, String> {
    let mut notes = Vec::new();
    let messages: Vec<Value> = request
        .messages
        .iter()
        .enumerate()
        .map(|(index, message)| write_message(config, index, message, &mut notes))
        .collect();
    let mut body = Map::new();
    body.insert("model".into(), config.model.clone().into());
    body.insert("messages".into(), messages.into());
    if !request.tools.is_empty() {
        body.insert(
            "tools".into(),
            request.tools.iter().map(write_tool).collect(),
        );
    }
    for (name, value) in &config.body {
        if !LIMIT_FIELDS.contains(&name.as_str()) {
            body.insert(name.clone(), value.clone());
        }
    }
    config
        .check_against(request.temperature, request.max_output_tokens)
        .map_err(|error| error.to_string())?;
    if let Some(temperature) = request.temperature {
        if !temperature.is_finite() {
            return Err(format!("the temperature is {temperature}"));
        }
        body.insert("temperature".into(), json!(temperature));
    }
    let limit = request
        .max_output_tokens
        .map(u64::from)
        .or(config.max_output_tokens());
    if let Some(limit) = limit {
        let newer = match config.output_limit_field {
            OutputLimitField::MaxTokens => false,
            OutputLimitField::MaxCompletionTokens => true,
            OutputLimitField::ByServer => config.endpoint.is_openai(),
        };
        body.insert(LIMIT_FIELDS[usize::from(newer)].into(), limit.into());
    }
    if config.send_seed {
        body.insert("seed".into(), seed_of_call(request).into());
    }
    if config.logprobs {
        body.insert("logprobs".into(), true.into());
    }
    if config.token_ids {
        // vLLM and SGLang know the first, SGLang gives log-probabilities with ids by the second;
        // llama.cpp needs neither.
        body.insert("return_token_ids".into(), true.into());
        if config.logprobs {
            body.insert("return_meta_info".into(), true.into());
        }
    }
    if config.stream {
        body.insert("stream".into(), true.into());
        body.insert("stream_options".into(), json!({"include_usage": true}));
    }
    Ok(Body {
        bytes: Value::Object(body).to_string().into_bytes(),
        max_output_tokens: limit,
        notes,
    })
}

/// The seed of one call: it depends on the trial's seed and on how long the history is, so that
/// the calls of a trial do not all draw the same numbers, and stays below 2^31, which every server
/// accepts.
pub(super) fn seed_of_call(request: &ModelRequest<'_>) -> u32 {
    (mix(request.seed ^ mix(request.messages.len() as u64)) >> 33) as u32
}

/// Arguments that every later request can carry: the model's own text where it is a JSON object,
/// and otherwise an object that shows the text. Servers parse the arguments of past calls to
/// render their chat template, so one broken call would make every later request fail.
pub(super) fn sendable_arguments(arguments: &str) -> Result<&str, String> {
    match serde_json::from_str::<Map<String, Value>>(arguments) {
        Ok(_) => Ok(arguments),
        Err(_) => Err(json!({"invalid_arguments": arguments}).to_string()),
    }
}

fn write_message(
    config: &OpenAiConfig,
    index: usize,
    message: &Message,
    notes: &mut Vec<(usize, String)>,
) -> Value {
    let role = match message.role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    };
    let mut out = Map::new();
    out.insert("role".into(), role.into());
    let only_calls = message.content.is_empty() && !message.tool_calls.is_empty();
    out.insert(
        "content".into(),
        if only_calls {
            Value::Null
        } else {
            message.content.clone().into()
        },
    );
    let field = match config.reasoning_history {
        ReasoningHistory::Omit => None,
        ReasoningHistory::ReasoningContent => Some("reasoning_content"),
        ReasoningHistory::Reasoning => Some("reasoning"),
    };
    if let (Some(field), Some(reasoning)) = (field, &message.reasoning) {
        out.insert(field.into(), reasoning.clone().into());
    }
    if !message.tool_calls.is_empty() {
        let calls = message
            .tool_calls
            .iter()
            .map(|call| write_call(index, call, notes))
            .collect();
        out.insert("tool_calls".into(), Value::Array(calls));
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), id.clone().into());
    }
    Value::Object(out)
}

fn write_call(index: usize, call: &ToolCall, notes: &mut Vec<(usize, String)>) -> Value {
    let arguments = match sendable_arguments(&call.arguments) {
        Ok(arguments) => arguments.to_owned(),
        Err(wrapped) => {
            let note = format!(
                "message {} was sent with the arguments of {:?} as text, because they are not a \
                 JSON object",
                index + 1,
                call.name
            );
            notes.push((index, note));
            wrapped
        }
    };
    json!({
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    })
}

fn write_tool(tool: &Tool) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
        },
    })
}
