//! `POST /tokenize` and `POST /detokenize`, as vLLM has them.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{chat, completions, error::ApiError, http, server::Server, shape};

/// The body of `/tokenize`: a prompt or a conversation.
#[derive(Debug, Deserialize)]
pub struct TokenizeBody {
    /// Whose tokenizer.
    #[serde(default)]
    pub model: Option<String>,
    /// Text.
    #[serde(default)]
    pub prompt: Option<String>,
    /// A conversation.
    #[serde(default)]
    pub messages: Option<Vec<Value>>,
    /// What may be called in it.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// As for chats; default true.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// As for completions.
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// Further variables of the template.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// Whether the tokens' texts are given too.
    #[serde(default)]
    pub return_token_strs: Option<bool>,
}

/// The body of `/detokenize`.
#[derive(Debug, Deserialize)]
pub struct DetokenizeBody {
    /// Whose tokenizer.
    #[serde(default)]
    pub model: Option<String>,
    /// Ids.
    pub tokens: Vec<u32>,
}

/// Serves `/tokenize`.
pub async fn tokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body: TokenizeBody = http::json(request).await?;
    known(&server, body.model.as_deref())?;
    tokio::task::spawn_blocking(move || {
        let ids = match (&body.prompt, &body.messages) {
            (Some(text), None) => completions::encode(&server, text, body.add_special_tokens)?,
            (None, Some(messages)) => chat::prompt_ids(
                &server,
                messages,
                body.tools.as_deref().filter(|tools| !tools.is_empty()),
                body.add_generation_prompt.unwrap_or(true),
                body.chat_template_kwargs.as_ref(),
            )?,
            _ => return Err(ApiError::bad_request("give either prompt or messages")),
        };
        let mut answer = json!({
            "count": ids.len(),
            "max_model_len": server.engine.max_context(),
            "tokens": ids,
        });
        if body.return_token_strs == Some(true) {
            answer["token_strs"] = ids
                .iter()
                .map(|&id| shape::token_name(&server.tokenizer, id, false))
                .collect();
        }
        Ok(Json(answer))
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::internal("tokenizing failed")))
}

/// Serves `/detokenize`.
pub async fn detokenize(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let body: DetokenizeBody = http::json(request).await?;
    known(&server, body.model.as_deref())?;
    tokio::task::spawn_blocking(move || {
        let text = server
            .tokenizer
            .decode(&body.tokens, false)
            .map_err(|error| ApiError::field("tokens", error.to_string()))?;
        Ok(Json(json!({"prompt": text})))
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::internal("detokenizing failed")))
}

fn known(server: &Server, model: Option<&str>) -> Result<(), ApiError> {
    match model {
        Some(name)
            if !name.is_empty() && name != server.name && !server.adapters().contains_key(name) =>
        {
            Err(ApiError::unknown_model(name))
        }
        _ => Ok(()),
    }
}
