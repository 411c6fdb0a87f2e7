//! `POST /v1/completions`: text or ids as they are, without a chat template.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};
use temper_checkpoint::tokenizer::Specials;
use temper_model::sample::request::{Event, FinishReason};
use tokio::sync::mpsc::{Sender, UnboundedReceiver, channel};

use super::{
    chat,
    error::ApiError,
    generate::{self, Choice, Job},
    http,
    parameters::{self, Parameters, Resolved},
    server::Server,
    shape::{self, CompletionLogprobs},
};

/// Prompts of one request.
const MOST_PROMPTS: usize = 256;

/// The body.
#[derive(Debug, Deserialize)]
pub struct CompletionBody {
    /// One or several prompts, as text or ids.
    pub prompt: Prompt,
    /// Whether the text begins with the prompt, and the log-probabilities with its.
    #[serde(default)]
    pub echo: Option<bool>,
    /// Alternatives per token; present means that log-probabilities are given.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// Not supported.
    #[serde(default)]
    pub suffix: Option<String>,
    /// Whether a token that begins texts is put first; default: as the tokenizer says.
    #[serde(default)]
    pub add_special_tokens: Option<bool>,
    /// The rest.
    #[serde(flatten)]
    pub parameters: Parameters,
}

/// Prompts in every form that clients use.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Prompt {
    /// Ids.
    Ids(Vec<u32>),
    /// Text.
    Text(String),
    /// Several texts.
    Texts(Vec<String>),
    /// Several lists of ids.
    ManyIds(Vec<Vec<u32>>),
}

struct Asked {
    resolved: Resolved,
    jobs: Vec<Job>,
    logprobs: bool,
    echo: bool,
    model: String,
}

/// Serves the endpoint.
pub async fn handle(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<Response, ApiError> {
    let body: CompletionBody = http::json(request).await?;
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

fn check(server: &Server, body: CompletionBody) -> Result<Asked, ApiError> {
    let resolved = body.parameters.resolve()?;
    let adapter = server.adapter(&body.parameters)?;
    let echo = body.echo.unwrap_or(false);
    if resolved.max_tokens == Some(0) && !echo {
        return Err(ApiError::field(
            "max_tokens",
            "max_tokens 0 needs echo: there is nothing to give otherwise",
        ));
    }
    if echo && resolved.stream {
        return Err(ApiError::field("echo", "echo is not supported with stream"));
    }
    if body.suffix.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(ApiError::field("suffix", "suffix is not supported"));
    }
    let alternatives = parameters::alternatives("logprobs", body.logprobs.unwrap_or(0))?;
    let encode = |text: &String| encode(server, text, body.add_special_tokens);
    let prompts: Vec<Vec<u32>> = match &body.prompt {
        Prompt::Ids(ids) => vec![ids.clone()],
        Prompt::Text(text) => vec![encode(text)?],
        Prompt::Texts(texts) => texts.iter().map(encode).collect::<Result<_, _>>()?,
        Prompt::ManyIds(lists) => lists.clone(),
    };
    if prompts.is_empty() || prompts.len() > MOST_PROMPTS || prompts.iter().any(Vec::is_empty) {
        return Err(ApiError::field(
            "prompt",
            format!("give from 1 to {MOST_PROMPTS} prompts that are not empty"),
        ));
    }
    // OpenAI's default for this endpoint; a whole context would surprise.
    let resolved = Resolved {
        max_tokens: resolved.max_tokens.or(Some(16)),
        ..resolved
    };
    let jobs = prompts
        .into_iter()
        .map(|ids| Job {
            prompt: Arc::new(ids),
            adapter: adapter.clone(),
            alternatives,
            score_prompt: echo && body.logprobs.is_some(),
        })
        .collect();
    Ok(Asked {
        jobs,
        logprobs: body.logprobs.is_some(),
        echo,
        model: body
            .parameters
            .model
            .clone()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| server.name.clone()),
        resolved,
    })
}

/// Text to ids; control tokens in it count as such, as everywhere for plain prompts.
pub fn encode(
    server: &Server,
    text: &str,
    add_special: Option<bool>,
) -> Result<Vec<u32>, ApiError> {
    let mut ids = server
        .tokenizer
        .encode(text, Specials::Parse)
        .map_err(|error| ApiError::field("prompt", error.to_string()))?;
    let begin = server.tokenizer.bos_id();
    if add_special.unwrap_or(true)
        && server.tokenizer.adds_bos()
        && let Some(begin) = begin
    {
        ids.insert(0, begin);
    }
    Ok(ids)
}

async fn whole(server: &Server, asked: &Asked) -> Result<Value, ApiError> {
    let mut pending = Vec::new();
    for job in &asked.jobs {
        let group = (0..asked.resolved.n)
            .map(|choice| generate::submit(server, job, &asked.resolved, choice))
            .collect::<Result<Vec<_>, _>>()?;
        pending.push(group);
    }
    let mut groups: Vec<Vec<Choice>> = Vec::new();
    for group in pending {
        let mut choices = Vec::new();
        for events in group {
            choices.push(generate::collect(events).await?);
        }
        groups.push(choices);
    }
    let mut shown = Vec::new();
    for (job, choices) in asked.jobs.iter().zip(&groups) {
        for choice in choices {
            shown.push(completion_choice(server, asked, job, choice, shown.len())?);
        }
    }
    Ok(json!({
        "id": server.response_id("cmpl"),
        "object": "text_completion",
        "created": crate::clock::unix_seconds(),
        "model": asked.model,
        "choices": shown,
        "usage": shape::usage_of(&groups),
    }))
}

fn completion_choice(
    server: &Server,
    asked: &Asked,
    job: &Job,
    choice: &Choice,
    index: usize,
) -> Result<Value, ApiError> {
    let (reason, stop_reason) =
        generate::finish_reason(&choice.finish.reason, &asked.resolved.stop);
    let mut text = String::new();
    let mut logprobs = CompletionLogprobs::default();
    let as_ids = asked.resolved.tokens_as_ids;
    if asked.echo {
        text = server
            .tokenizer
            .decode(&job.prompt, false)
            .map_err(|error| ApiError::internal(error.to_string()))?;
        if asked.logprobs {
            logprobs.push_first(&server.tokenizer, job.prompt[0], as_ids);
            for token in &choice.prompt {
                logprobs.push(&server.tokenizer, token, as_ids);
            }
        }
    }
    text.push_str(&choice.text);
    if asked.logprobs {
        for token in &choice.tokens {
            logprobs.push(&server.tokenizer, token, as_ids);
        }
    }
    let mut shown = json!({
        "index": index,
        "text": text,
        "logprobs": asked.logprobs.then(|| logprobs.into_value()),
        "finish_reason": reason,
        "stop_reason": stop_reason,
    });
    if asked.resolved.token_ids {
        chat::add_ids(&mut shown, &choice.tokens);
        shown["prompt_token_ids"] = json!(*job.prompt);
    }
    Ok(shown)
}

fn stream(server: Arc<Server>, asked: Asked) -> Result<Response, ApiError> {
    let mut pending = Vec::new();
    for job in &asked.jobs {
        for choice in 0..asked.resolved.n {
            pending.push(generate::submit(&server, job, &asked.resolved, choice)?);
        }
    }
    let head = json!({
        "id": server.response_id("cmpl"),
        "object": "text_completion",
        "created": crate::clock::unix_seconds(),
        "model": asked.model,
    });
    let asked = Arc::new(asked);
    let (sender, receiver) = channel::<Value>(64);
    tokio::spawn(async move {
        let mut tasks = Vec::new();
        for (index, events) in pending.into_iter().enumerate() {
            let (server, asked) = (Arc::clone(&server), Arc::clone(&asked));
            let (sender, head) = (sender.clone(), head.clone());
            tasks.push(tokio::spawn(async move {
                forward(&server, &asked, index, head, events, sender).await
            }));
        }
        let (mut n_cached, mut n_drawn) = (0, 0);
        for (index, task) in tasks.into_iter().enumerate() {
            if let Ok(Some((cached, drawn))) = task.await {
                n_drawn += drawn;
                if index % asked.resolved.n as usize == 0 {
                    n_cached += cached;
                }
            }
        }
        if asked.resolved.stream_usage {
            let n_prompt = asked.jobs.iter().map(|job| job.prompt.len()).sum();
            let mut last = head;
            last["choices"] = json!([]);
            last["usage"] = shape::usage(n_prompt, n_cached, n_drawn);
            let _ = sender.send(last).await;
        }
    });
    Ok(chat::sse(receiver))
}

async fn forward(
    server: &Server,
    asked: &Asked,
    index: usize,
    head: Value,
    mut events: UnboundedReceiver<Event>,
    sender: Sender<Value>,
) -> Option<(usize, usize)> {
    let mut offset = 0;
    loop {
        let mut shown =
            json!({"index": index, "text": "", "logprobs": null, "finish_reason": null});
        let mut ended = None;
        match events.recv().await? {
            Event::Scored { .. } => continue,
            Event::Token { token, text } => {
                if text.is_empty() && !asked.logprobs && !asked.resolved.token_ids {
                    continue;
                }
                if asked.logprobs {
                    let mut logprobs = CompletionLogprobs::starting_at(offset);
                    logprobs.push(&server.tokenizer, &token, asked.resolved.tokens_as_ids);
                    shown["logprobs"] = logprobs.into_value();
                }
                offset += text.chars().count();
                shown["text"] = text.into();
                if asked.resolved.token_ids {
                    chat::add_ids(&mut shown, std::slice::from_ref(&token));
                }
            }
            Event::Finished(finish) if finish.reason == FinishReason::Cancelled => {
                let _ = sender.send(ApiError::stopping().body()).await;
                return None;
            }
            Event::Finished(finish) => {
                let (reason, stop_reason) =
                    generate::finish_reason(&finish.reason, &asked.resolved.stop);
                shown["text"] = finish.text.clone().into();
                shown["finish_reason"] = reason.into();
                shown["stop_reason"] = stop_reason;
                ended = Some((finish.n_cached, finish.n_drawn));
            }
            Event::Failed(error) => {
                let _ = sender.send(generate::api_error(&error).body()).await;
                return None;
            }
        }
        let mut whole = head.clone();
        whole["choices"] = json!([shown]);
        sender.send(whole).await.ok()?;
        if ended.is_some() {
            return ended;
        }
    }
}
