//! What a server's refusal means. Servers and gateways wrap errors in many shapes; the reader
//! accepts all that are known and shows the rest as text.

use std::time::Duration;

use serde_json::Value;

use super::super::{ModelErrorClass, retry::Failed, secret::Secret};

/// The longest message that is kept.
const LONGEST_MESSAGE: usize = 600;

/// Classifies an answer with an error status, or an error inside a 200 answer. `key` is removed
/// from what the server says before it is shortened, so that no part of it can stay.
pub(super) fn classify(
    status: u16,
    body: &[u8],
    retry_after: Option<Duration>,
    key: Option<&Secret>,
) -> Failed {
    let json: Option<Value> = serde_json::from_slice(body).ok();
    let error = json.as_ref().map(find_error).unwrap_or_default();
    let message = match (&error.message, &json) {
        (Some(message), _) => message.clone(),
        (None, Some(json)) => json.to_string(),
        (None, None) => describe_text(body),
    };
    let message = clean(&key.map_or(message.clone(), |key| key.redact(&message)));
    let kind = if message.is_empty() {
        format!("HTTP {status}")
    } else {
        format!("HTTP {status}: {message}")
    };
    // An error inside a 200 answer carries the status that the server meant.
    let meant = match error.status {
        Some(meant) if status < 400 => meant,
        _ if status < 400 => 500,
        _ => status,
    };
    let (class, retry) = decide(meant, &error, &message);
    Failed {
        class,
        retry,
        status: Some(status),
        message: kind,
        retry_after,
    }
}

fn decide(status: u16, error: &ServerError, message: &str) -> (ModelErrorClass, bool) {
    let codes = [error.code.as_deref(), error.kind.as_deref()];
    let is = |name: &str| codes.iter().flatten().any(|code| *code == name);
    let may_be_context = !matches!(status, 401 | 403 | 404 | 429);
    if may_be_context && (is_context_code(&codes) || is_context_message(message)) {
        return (ModelErrorClass::ContextExceeded, false);
    }
    match status {
        401 | 403 => (ModelErrorClass::Authentication, false),
        404 => (ModelErrorClass::ModelNotFound, false),
        429 if is("insufficient_quota") || is("billing_hard_limit_reached") => {
            (ModelErrorClass::RateLimited, false)
        }
        429 => (ModelErrorClass::RateLimited, true),
        408 | 409 | 425 | 500..=599 => (ModelErrorClass::Server, true),
        _ => (ModelErrorClass::BadRequest, false),
    }
}

fn is_context_code(codes: &[Option<&str>]) -> bool {
    codes.iter().flatten().any(|code| {
        matches!(
            *code,
            "context_length_exceeded"
                | "exceed_context_size_error"
                | "context_window_exceeded"
                | "model_context_window_exceeded"
                | "string_above_max_length"
        )
    })
}

/// The wording of servers that give no code of their own.
fn is_context_message(message: &str) -> bool {
    let text = message.to_lowercase();
    [
        "maximum context length",                // OpenAI, vLLM, DeepSeek, Mistral
        "maximum model length",                  // vLLM, the engine's own check
        "model's context length",                // SGLang
        "context_length_exceeded",               // gateways that pass the code on as text
        "exceeds the available context size",    // llama.cpp
        "exceed context window",                 // llama-cpp-python
        "exceeds the model's context window",    // LM Studio and gateways
        "exceeds the context window",            // OpenAI, newer models
        "context window exceeds limit",          // MiniMax
        "prompt is too long",                    // Anthropic-compatible
        "input token count",                     // Gemini: "… exceeds the maximum number of tokens"
        "input is too long for requested model", // Bedrock
        "must have less than",                   // TGI: "`inputs` must have less than N tokens"
        "`max_new_tokens` must be <=",           // TGI
        "exceeds maximum input length",          // TensorRT-LLM
        "exceeds max_model_len",                 // vLLM forks
    ]
    .iter()
    .any(|marker| text.contains(marker))
}

#[derive(Default)]
struct ServerError {
    message: Option<String>,
    code: Option<String>,
    kind: Option<String>,
    status: Option<u16>,
}

/// The error object within an error body: `{"error": {…}}`, `{"error": "…"}`, vLLM's older flat
/// `{"object": "error", "message": …}`, FastAPI's `{"detail": …}`, and an error body that a
/// gateway packed into a string.
fn find_error(body: &Value) -> ServerError {
    fn look(value: &Value, depth: u8) -> ServerError {
        let nested = ["error", "detail"]
            .into_iter()
            .find_map(|key| value.get(key).filter(|inner| !inner.is_null()));
        if let (Some(inner), true) = (nested, depth < 4) {
            return look(inner, depth + 1);
        }
        match value {
            Value::String(text) => match serde_json::from_str::<Value>(text) {
                Ok(packed @ Value::Object(_)) if depth < 4 => look(&packed, depth + 1),
                _ => ServerError {
                    message: Some(text.clone()),
                    ..ServerError::default()
                },
            },
            Value::Array(items) if depth < 4 => match items.first() {
                Some(first) => look(first, depth + 1),
                None => ServerError::default(),
            },
            Value::Object(_) => {
                let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
                let status = ["code", "status"].into_iter().find_map(|key| {
                    let field = value.get(key)?;
                    let number = field.as_u64().or_else(|| field.as_str()?.parse().ok())?;
                    u16::try_from(number)
                        .ok()
                        .filter(|s| (400..600).contains(s))
                });
                // OpenRouter puts the words of the server behind it here.
                let raw = value
                    .pointer("/metadata/raw")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
                let message = match (text("message").or_else(|| text("msg")), raw) {
                    (Some(message), Some(raw)) => Some(format!("{message}: {raw}")),
                    (message, raw) => message.or(raw),
                };
                ServerError {
                    message,
                    code: text("code"),
                    kind: text("type"),
                    status,
                }
            }
            _ => ServerError::default(),
        }
    }
    look(body, 0)
}

/// What to show of a body that is not JSON.
fn describe_text(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(16_384)]);
    let lower = text.to_ascii_lowercase();
    if !lower.contains("<html") && !lower.contains("<!doctype html") {
        return text.into_owned();
    }
    let title = lower.find("<title>").and_then(|start| {
        let start = start + "<title>".len();
        let end = lower[start..].find("</title>")? + start;
        // Lower-casing ASCII keeps every offset.
        text.get(start..end)
    });
    match title {
        Some(title) => format!("an HTML page titled {:?}", title.trim()),
        None => "an HTML page".into(),
    }
}

/// Text for a log: no control characters, which could steer a terminal, and not too long.
pub(super) fn clean(text: &str) -> String {
    let mut out = String::new();
    let mut space = true;
    for c in text.chars() {
        if c.is_control() || c.is_whitespace() {
            if !space {
                out.push(' ');
            }
            space = true;
        } else {
            out.push(c);
            space = false;
        }
        if out.len() >= LONGEST_MESSAGE {
            out.push('…');
            break;
        }
    }
    out.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ModelErrorClass::*;

    #[test]
    fn classes_of_known_answers() {
        for (status, body, class, retry) in [
            // OpenAI.
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}"#,
                ContextExceeded,
                false,
            ),
            // vLLM: a number as code, older flat form, and the engine's own wording.
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 4096 tokens. However, you requested 5000 tokens","type":"BadRequestError","param":null,"code":400}}"#,
                ContextExceeded,
                false,
            ),
            (
                400,
                r#"{"object":"error","message":"The decoder prompt (length 5000) is longer than the maximum model length of 4096.","type":"BadRequestError","code":400}"#,
                ContextExceeded,
                false,
            ),
            // SGLang.
            (
                400,
                r#"{"object":"error","message":"The input (5000 tokens) is longer than the model's context length (4096 tokens).","type":"BadRequestError","param":null,"code":400}"#,
                ContextExceeded,
                false,
            ),
            // llama.cpp.
            (
                400,
                r#"{"error":{"code":400,"message":"request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9412,"n_ctx":8192}}"#,
                ContextExceeded,
                false,
            ),
            // A gateway that packs the body into a string.
            (
                400,
                r#"{"detail":"{\"error\":{\"code\":400,\"type\":\"exceed_context_size_error\"}}"}"#,
                ContextExceeded,
                false,
            ),
            // TGI, Gemini, and a server that answers 500.
            (
                422,
                r#"{"error":"Input validation error: `inputs` must have less than 1024 tokens. Given: 2000","error_type":"validation"}"#,
                ContextExceeded,
                false,
            ),
            (
                400,
                r#"[{"error":{"code":400,"message":"The input token count (99) exceeds the maximum number of tokens allowed (9)."}}]"#,
                ContextExceeded,
                false,
            ),
            (500, "maximum context length", ContextExceeded, false),
            (400, "{}", BadRequest, false),
            (400, "", BadRequest, false),
            (401, "no", Authentication, false),
            (
                403,
                r#"{"error":"maximum context length"}"#,
                Authentication,
                false,
            ),
            (404, r#"{"detail":"Not Found"}"#, ModelNotFound, false),
            (
                422,
                r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#,
                BadRequest,
                false,
            ),
            (413, "too large", BadRequest, false),
            (301, "", Server, true),
            (429, "", RateLimited, true),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                RateLimited,
                false,
            ),
            (
                429,
                r#"{"error":{"message":"Request too large: maximum context length per minute"}}"#,
                RateLimited,
                true,
            ),
            (408, "", Server, true),
            (409, "", Server, true),
            (500, "\u{1b}[31mboom", Server, true),
            (503, r#"{"error":{"message":null}}"#, Server, true),
            // An error inside a 200 answer (OpenRouter).
            (
                200,
                r#"{"error":{"code":429,"message":"slow down"}}"#,
                RateLimited,
                true,
            ),
            (
                200,
                r#"{"error":{"code":401,"message":"who?"}}"#,
                Authentication,
                false,
            ),
            (200, r#"{"error":"overloaded"}"#, Server, true),
            (
                200,
                r#"{"error":{"code":"context_length_exceeded"}}"#,
                ContextExceeded,
                false,
            ),
        ] {
            let failed = classify(status, body.as_bytes(), None, None);
            assert_eq!(
                (failed.class, failed.retry),
                (class, retry),
                "{status} {body}"
            );
            assert!(
                !failed.message.chars().any(char::is_control),
                "{}",
                failed.message
            );
        }
    }

    #[test]
    fn shows_pages_and_long_texts_briefly() {
        let page = b"<!DOCTYPE html><HTML><head><Title>502 Bad\nGateway</title></head>...";
        assert_eq!(
            classify(502, page, None, None).message,
            "HTTP 502: an HTML page titled \"502 Bad\\nGateway\""
        );
        assert!(
            classify(502, "é".repeat(10_000).as_bytes(), None, None)
                .message
                .len()
                < 700
        );
        let nested = format!("{}1{}", "{\"error\":".repeat(100), "}".repeat(100));
        assert_eq!(classify(500, nested.as_bytes(), None, None).class, Server);
    }
}
