//! `POST /v1/chat/completions`.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    response::{
        IntoResponse, Response,
        sse::{Event as SseEvent, KeepAlive, Sse},
    },
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use temper_agent::model::tool_text;
use temper_checkpoint::chat_template::{CivilTime, Conversation};
use temper_model::sample::{
    request::{Event, FinishReason},
    runner::TokenLogprob,
};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

use super::{
    error::ApiError,
    generate::{self, Choice, Job},
    http,
    parameters::{self, Parameters, Resolved},
    server::Server,
    shape,
};

/// Messages of one request.
const MOST_MESSAGES: usize = 10_000;
/// Pieces that wait for a client that reads slowly, before its request waits too.
const MOST_PIECES: usize = 64;

/// The body.
#[derive(Debug, Deserialize)]
pub struct ChatBody {
    /// The conversation.
    pub messages: Vec<Value>,
    /// What may be called.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// Whether something must be called.
    #[serde(default)]
    pub tool_choice: Option<Value>,
    /// Whether log-probabilities are given.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// Alternatives per token.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// Whether the prompt ends where the assistant is to go on; default true.
    #[serde(default)]
    pub add_generation_prompt: Option<bool>,
    /// Further variables of the template.
    #[serde(default)]
    pub chat_template_kwargs: Option<Map<String, Value>>,
    /// The rest.
    #[serde(flatten)]
    pub parameters: Parameters,
}

/// What is asked of one chat, checked.
struct Asked {
    resolved: Resolved,
    job: Job,
    logprobs: bool,
    tools: bool,
    /// The name the client used.
    model: String,
}

/// Serves the endpoint.
pub async fn handle(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body: ChatBody = http::json(request).await?;
    let ignored = body.parameters.ignored();
    let asked = {
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || check(&server, body))
            .await
            .unwrap_or_else(|_| Err(ApiError::internal("preparing the request failed")))?
    };
    let response = if asked.resolved.stream {
        stream(server, asked)?
    } else {
        Json(whole(&server, &asked).await?).into_response()
    };
    Ok(http::naming_ignored(response, &ignored))
}

fn check(server: &Server, body: ChatBody) -> Result<Asked, ApiError> {
    let resolved = body.parameters.resolve()?;
    if resolved.max_tokens == Some(0) {
        return Err(ApiError::field(
            "max_tokens",
            "max_tokens must be at least 1",
        ));
    }
    let adapter = server.adapter(&body.parameters)?;
    let logprobs = body.logprobs.unwrap_or(false);
    let asked = body.top_logprobs.unwrap_or(0);
    if asked > 0 && !logprobs {
        return Err(ApiError::field(
            "top_logprobs",
            "top_logprobs has no effect without logprobs",
        ));
    }
    let alternatives = parameters::alternatives("top_logprobs", asked)?;
    let tools = match &body.tool_choice {
        None | Some(Value::Null) => true,
        Some(Value::String(choice)) if choice == "auto" => true,
        Some(Value::String(choice)) if choice == "none" => false,
        Some(_) => {
            return Err(ApiError::field(
                "tool_choice",
                "only \"auto\" and \"none\" are supported: output is not constrained here",
            ));
        }
    };
    let tools = body.tools.filter(|list| tools && !list.is_empty());
    let ids = prompt_ids(
        server,
        &body.messages,
        tools.as_deref(),
        body.add_generation_prompt.unwrap_or(true),
        body.chat_template_kwargs.as_ref(),
    )?;
    Ok(Asked {
        job: Job {
            prompt: Arc::new(ids),
            adapter,
            alternatives,
            score_prompt: false,
        },
        logprobs,
        tools: tools.is_some(),
        model: body
            .parameters
            .model
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| server.name.clone()),
        resolved,
    })
}

/// Renders a conversation to ids; text in messages is never read as control tokens.
pub fn prompt_ids(
    server: &Server,
    messages: &[Value],
    tools: Option<&[Value]>,
    add_generation_prompt: bool,
    extra: Option<&Map<String, Value>>,
) -> Result<Vec<u32>, ApiError> {
    let Some(template) = &server.template else {
        return Err(ApiError::bad_request(
            "this model has no chat template; use /v1/completions",
        ));
    };
    if messages.is_empty() || messages.len() > MOST_MESSAGES {
        return Err(ApiError::field(
            "messages",
            format!("give from 1 to {MOST_MESSAGES} messages"),
        ));
    }
    let messages = messages
        .iter()
        .enumerate()
        .map(|(index, message)| normalised(index, message))
        .collect::<Result<Vec<_>, _>>()?;
    let conversation = Conversation {
        messages: &messages,
        tools,
        add_generation_prompt,
        extra,
        now: Some(CivilTime::from_unix_seconds(
            i64::try_from(crate::clock::unix_seconds()).unwrap_or(0),
        )),
    };
    template
        .render_ids(&server.tokenizer, &conversation)
        .map(|rendered| rendered.ids)
        .map_err(|error| ApiError::field("messages", error.to_string()))
}

/// A message as templates expect it: text parts joined, arguments of calls as objects.
fn normalised(index: usize, message: &Value) -> Result<Value, ApiError> {
    let wrong = |problem: &str| ApiError::field("messages", format!("messages[{index}] {problem}"));
    let Some(object) = message.as_object() else {
        return Err(wrong("is not an object"));
    };
    if !object.get("role").is_some_and(Value::is_string) {
        return Err(wrong("has no role"));
    }
    let mut object = object.clone();
    match object.get("content") {
        Some(Value::String(_)) => {}
        None | Some(Value::Null) => {
            object.insert("content".into(), "".into());
        }
        Some(Value::Array(parts)) => {
            let mut text = String::new();
            for part in parts {
                match (part["type"].as_str(), part["text"].as_str()) {
                    (Some("text"), Some(piece)) => text.push_str(piece),
                    _ => return Err(wrong("has a part that is not text")),
                }
            }
            object.insert("content".into(), text.into());
        }
        Some(_) => return Err(wrong("has content that is no text")),
    }
    if let Some(Value::Array(calls)) = object.get_mut("tool_calls") {
        for call in calls {
            let arguments = &mut call["function"]["arguments"];
            if let Some(text) = arguments.as_str()
                && let Ok(parsed @ Value::Object(_)) = serde_json::from_str(text)
            {
                *arguments = parsed;
            }
        }
    }
    Ok(Value::Object(object))
}

async fn whole(server: &Server, asked: &Asked) -> Result<Value, ApiError> {
    let pending = (0..asked.resolved.n)
        .map(|choice| generate::submit(server, &asked.job, &asked.resolved, choice))
        .collect::<Result<Vec<_>, _>>()?;
    let mut choices = Vec::new();
    for events in pending {
        choices.push(generate::collect(events).await?);
    }
    let id = server.response_id("chatcmpl");
    let shown: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| chat_choice(server, asked, index, choice, &id))
        .collect();
    let mut body = json!({
        "id": id,
        "object": "chat.completion",
        "created": crate::clock::unix_seconds(),
        "model": asked.model,
        "choices": shown,
        "usage": shape::usage_of(&[choices]),
    });
    if asked.resolved.token_ids {
        body["prompt_token_ids"] = json!(*asked.job.prompt);
    }
    Ok(body)
}

fn chat_choice(server: &Server, asked: &Asked, index: usize, choice: &Choice, id: &str) -> Value {
    let (mut reason, stop_reason) =
        generate::finish_reason(&choice.finish.reason, &asked.resolved.stop);
    let mut message = json!({"role": "assistant", "content": choice.text});
    if asked.tools {
        let reply = tool_text::split(&choice.text, &format!("call-{id}-{index}"));
        if !reply.calls.is_empty() {
            message["content"] = reply.content.into();
            message["tool_calls"] = reply.calls.iter().map(shape::tool_call).collect();
            reason = "tool_calls";
        }
    }
    let mut shown = json!({
        "index": index,
        "message": message,
        "logprobs": asked.logprobs.then(|| logprobs(server, asked, &choice.tokens)),
        "finish_reason": reason,
        "stop_reason": stop_reason,
    });
    if asked.resolved.token_ids {
        add_ids(&mut shown, &choice.tokens);
    }
    shown
}

fn logprobs(server: &Server, asked: &Asked, tokens: &[TokenLogprob]) -> Value {
    let entry = |token| shape::chat_logprob(&server.tokenizer, token, asked.resolved.tokens_as_ids);
    json!({"content": tokens.iter().map(entry).collect::<Vec<_>>()})
}

/// The sampled ids, and their log-probabilities under the tempered distribution that they were
/// drawn from, which a trainer needs.
pub fn add_ids(shown: &mut Value, tokens: &[TokenLogprob]) {
    shown["token_ids"] = tokens.iter().map(|token| token.id).collect();
    shown["token_logprobs"] = tokens.iter().map(|token| token.logprob).collect();
}

fn stream(server: Arc<Server>, asked: Asked) -> Result<Response, ApiError> {
    let pending = (0..asked.resolved.n)
        .map(|choice| generate::submit(&server, &asked.job, &asked.resolved, choice))
        .collect::<Result<Vec<_>, _>>()?;
    let id = server.response_id("chatcmpl");
    let created = crate::clock::unix_seconds();
    let asked = Arc::new(asked);
    let (sender, receiver) = channel::<Value>(MOST_PIECES);
    let chunk = {
        let (id, model) = (id.clone(), asked.model.clone());
        move |choices: Value| {
            json!({
                "id": id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": model,
                "choices": choices,
            })
        }
    };
    tokio::spawn(async move {
        let mut tasks = Vec::new();
        for (index, events) in pending.into_iter().enumerate() {
            let part = Part {
                server: Arc::clone(&server),
                asked: Arc::clone(&asked),
                index,
                id: id.clone(),
                sender: sender.clone(),
            };
            tasks.push(tokio::spawn(part.forward(events, chunk.clone())));
        }
        let (mut n_cached, mut n_drawn) = (0, 0);
        for task in tasks {
            if let Ok(Some((cached, drawn))) = task.await {
                n_cached = cached;
                n_drawn += drawn;
            }
        }
        if asked.resolved.stream_usage {
            let mut last = chunk(json!([]));
            last["usage"] = shape::usage(asked.job.prompt.len(), n_cached, n_drawn);
            let _ = sender.send(last).await;
        }
    });
    Ok(sse(receiver))
}

/// Pieces as server-sent events, `[DONE]` last.
pub fn sse(receiver: tokio::sync::mpsc::Receiver<Value>) -> Response {
    let pieces = ReceiverStream::new(receiver)
        .map(|piece| Ok::<_, Infallible>(SseEvent::default().data(piece.to_string())));
    let end = tokio_stream::once(Ok(SseEvent::default().data("[DONE]")));
    Sse::new(pieces.chain(end))
        .keep_alive(KeepAlive::default())
        .into_response()
}

/// One choice of a streamed chat.
struct Part {
    server: Arc<Server>,
    asked: Arc<Asked>,
    index: usize,
    id: String,
    sender: Sender<Value>,
}

impl Part {
    /// Sends pieces until the choice ends or the client is gone; gives cached and drawn tokens.
    async fn forward(
        self,
        mut events: UnboundedReceiver<Event>,
        chunk: impl Fn(Value) -> Value,
    ) -> Option<(usize, usize)> {
        let asked = &self.asked;
        let piece =
            |delta: Value| json!({"index": self.index, "delta": delta, "finish_reason": null});
        let mut first = chunk(json!([piece(json!({"role": "assistant", "content": ""}))]));
        if asked.resolved.token_ids {
            first["prompt_token_ids"] = json!(*asked.job.prompt);
        }
        self.sender.send(first).await.ok()?;
        let mut held = String::new();
        let mut n_drawn = 0;
        loop {
            match events.recv().await? {
                Event::Scored { .. } => {}
                Event::Token { token, text } => {
                    n_drawn += 1;
                    // Calls can only be told from text once they are whole.
                    let text = if asked.tools {
                        held.push_str(&text);
                        String::new()
                    } else {
                        text
                    };
                    if text.is_empty() && !asked.logprobs && !asked.resolved.token_ids {
                        continue;
                    }
                    let mut shown = piece(json!({"content": text}));
                    if asked.logprobs {
                        shown["logprobs"] =
                            logprobs(&self.server, asked, std::slice::from_ref(&token));
                    }
                    if asked.resolved.token_ids {
                        add_ids(&mut shown, std::slice::from_ref(&token));
                    }
                    let mut whole = chunk(json!([shown]));
                    if asked.resolved.stream_usage_always {
                        whole["usage"] = shape::usage(asked.job.prompt.len(), 0, n_drawn);
                    }
                    self.sender.send(whole).await.ok()?;
                }
                Event::Finished(finish) => {
                    if finish.reason == FinishReason::Cancelled {
                        let _ = self.sender.send(ApiError::stopping().body()).await;
                        return None;
                    }
                    self.end(&finish, held, &piece, &chunk).await?;
                    return Some((finish.n_cached, finish.n_drawn));
                }
                Event::Failed(error) => {
                    let _ = self.sender.send(generate::api_error(&error).body()).await;
                    return None;
                }
            }
        }
    }

    async fn end(
        &self,
        finish: &temper_model::sample::request::Finish,
        held: String,
        piece: &impl Fn(Value) -> Value,
        chunk: &impl Fn(Value) -> Value,
    ) -> Option<()> {
        let (mut reason, stop_reason) =
            generate::finish_reason(&finish.reason, &self.asked.resolved.stop);
        let mut delta = json!({});
        let rest = held + &finish.text;
        if self.asked.tools {
            let reply = tool_text::split(&rest, &format!("call-{}-{}", self.id, self.index));
            if reply.calls.is_empty() {
                delta["content"] = rest.into();
            } else {
                reason = "tool_calls";
                if let Some(content) = reply.content {
                    delta["content"] = content.into();
                }
                let numbered = reply.calls.iter().enumerate().map(|(index, call)| {
                    let mut call = shape::tool_call(call);
                    call["index"] = index.into();
                    call
                });
                delta["tool_calls"] = numbered.collect();
            }
        } else if !rest.is_empty() {
            delta["content"] = rest.into();
        }
        let mut shown = piece(delta);
        shown["finish_reason"] = reason.into();
        shown["stop_reason"] = stop_reason;
        self.sender.send(chunk(json!([shown]))).await.ok()
    }
}
