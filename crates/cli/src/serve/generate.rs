//! From a checked request to events, and from events to choices.

use std::sync::Arc;

use temper_model::sample::{
    params::{PromptLogprobs, SamplingParams},
    request::{Event, EventSink, Finish, FinishReason, Request, RequestError},
    runner::TokenLogprob,
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{error::ApiError, parameters::Resolved, server::Server};

/// A prompt and everything that decides on its continuation.
#[derive(Clone, Debug)]
pub struct Job {
    /// The prompt's ids.
    pub prompt: Arc<Vec<u32>>,
    /// The adapter by name.
    pub adapter: Option<String>,
    /// Alternatives per token.
    pub alternatives: usize,
    /// Whether the prompt is scored too.
    pub score_prompt: bool,
}

/// One finished choice.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Scores of the prompt's ids from the second on, where asked for.
    pub prompt: Vec<TokenLogprob>,
    /// What was drawn.
    pub tokens: Vec<TokenLogprob>,
    /// The text.
    pub text: String,
    /// How it ended.
    pub finish: Finish,
}

/// Gives the engine's events to a task.
struct Sink(UnboundedSender<Event>);

impl EventSink for Sink {
    fn send(&mut self, event: Event) {
        // Nobody listens: the engine asks and cancels.
        let _ = self.0.send(event);
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// How many tokens the reply may have, or the error that clients recognise.
pub fn reply_limit(
    context: usize,
    n_prompt: usize,
    asked: Option<usize>,
) -> Result<usize, ApiError> {
    match asked {
        Some(asked) if n_prompt.saturating_add(asked) <= context => Ok(asked),
        None if n_prompt < context => Ok(context - n_prompt),
        asked => Err(ApiError::context_length(
            context,
            n_prompt,
            asked.unwrap_or(1),
        )),
    }
}

/// Submits one choice; its events come through the receiver, and dropping it cancels.
pub fn submit(
    server: &Server,
    job: &Job,
    resolved: &Resolved,
    choice: u32,
) -> Result<UnboundedReceiver<Event>, ApiError> {
    let limit = reply_limit(
        server.engine.max_context(),
        job.prompt.len(),
        resolved.max_tokens,
    )?;
    let seed = match resolved.seed {
        Some(seed) => seed.wrapping_add(u64::from(choice)),
        None => temper_model::random::mix(server.started ^ (server.unique() << 32)),
    };
    let params = SamplingParams {
        temperature: resolved.temperature,
        top_k: resolved.top_k,
        top_p: resolved.top_p,
        min_p: resolved.min_p,
        seed,
        max_tokens: Some(limit),
        min_tokens: resolved.min_tokens.min(limit),
        stop: resolved.stop.clone(),
        stop_ids: resolved.stop_ids.clone(),
        ignore_eos: resolved.ignore_eos,
        skip_special: resolved.skip_special,
        top_logprobs: job.alternatives,
        prompt_logprobs: job.score_prompt.then_some(PromptLogprobs {
            from: 0,
            top: job.alternatives,
        }),
    };
    let request = Request {
        adapter: job.adapter.clone(),
        ..Request::new(job.prompt.to_vec(), params)
    };
    let (sender, receiver) = unbounded_channel();
    server
        .engine
        .submit_to(request, Box::new(Sink(sender)))
        .map_err(|error| api_error(&error))?;
    Ok(receiver)
}

/// Waits for a choice.
pub async fn collect(mut events: UnboundedReceiver<Event>) -> Result<Choice, ApiError> {
    let (mut prompt, mut tokens, mut text) = (Vec::new(), Vec::new(), String::new());
    while let Some(event) = events.recv().await {
        match event {
            Event::Scored { tokens, .. } => prompt.extend(tokens),
            Event::Token { token, text: piece } => {
                tokens.push(token);
                text.push_str(&piece);
            }
            Event::Finished(finish) => {
                if finish.reason == FinishReason::Cancelled {
                    return Err(ApiError::stopping());
                }
                text.push_str(&finish.text);
                return Ok(Choice {
                    prompt,
                    tokens,
                    text,
                    finish,
                });
            }
            Event::Failed(error) => return Err(api_error(&error)),
        }
    }
    Err(ApiError::stopping())
}

/// The engine's refusals as clients read them.
pub fn api_error(error: &RequestError) -> ApiError {
    match error {
        RequestError::ContextLength {
            n_prompt,
            max_context,
        } => ApiError::context_length(*max_context, *n_prompt, 1),
        RequestError::EmptyPrompt
        | RequestError::UnknownToken { .. }
        | RequestError::Param(_)
        | RequestError::NoTokenizer
        | RequestError::Adapter { .. } => ApiError::bad_request(error.to_string()),
        RequestError::UnknownAdapter(name) => ApiError::unknown_model(name),
        RequestError::QueueFull { .. } => ApiError::overloaded(error.to_string()),
        RequestError::ShutDown => ApiError::stopping(),
        RequestError::Device(_) | RequestError::EngineFailed(_) => {
            ApiError::internal(error.to_string())
        }
    }
}

/// `finish_reason`, and what of the request's own stops ended the text.
pub fn finish_reason(reason: &FinishReason, stops: &[String]) -> (&'static str, serde_json::Value) {
    use serde_json::Value;
    match reason {
        FinishReason::EndOfText(_) => ("stop", Value::Null),
        FinishReason::StopId(id) => ("stop", (*id).into()),
        FinishReason::StopString(index) => (
            "stop",
            stops.get(*index).cloned().map_or(Value::Null, Value::from),
        ),
        FinishReason::MaxTokens | FinishReason::Context | FinishReason::Deadline => {
            ("length", Value::Null)
        }
        FinishReason::Cancelled => ("abort", Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reply_fills_the_context_unless_it_is_told_less() {
        assert_eq!(reply_limit(100, 40, None).unwrap(), 60);
        assert_eq!(reply_limit(100, 40, Some(60)).unwrap(), 60);
        assert_eq!(reply_limit(100, 100, Some(0)).unwrap(), 0);
        for (n_prompt, asked) in [(100, None), (40, Some(61)), (40, Some(usize::MAX))] {
            let error = reply_limit(100, n_prompt, asked).unwrap_err();
            assert_eq!(error.code, Some("context_length_exceeded"));
        }
    }
}
