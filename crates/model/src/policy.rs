//! The embedded policy: engine, tokenizer and chat template as one [`Policy`].
//!
//! A turn's prompt begins with the recorded ids of the turns before, exactly as they were sampled.
//! The template renders the whole history, so that it sees what it wants to see, but only what it
//! writes behind the last recorded message is taken. A recorded turn that no end-of-turn token
//! ended (the limit on tokens, a stop string) is closed with the template's.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use temper_checkpoint::{
    chat_template::{
        ChatTemplate, Conversation, RenderedIds, TemplateError, message_value, tool_value,
    },
    tokenizer::Tokenizer,
};
use temper_core::{
    policy::{Policy, PolicyError, PolicyPrompt, PolicyRequest, Recorded, Sampled},
    trajectory,
};

use crate::sample::{
    Engine, FinishReason, Request, RequestError, SamplingParams, request::Completion,
};

/// What stands for a recorded message of which the template writes nothing.
const PLACEHOLDER: &str = "-";

/// A model in this process as a policy.
#[derive(Debug)]
pub struct EmbeddedPolicy {
    engine: Arc<Engine>,
    tokenizer: Arc<Tokenizer>,
    template: ChatTemplate,
    tool_template: ChatTemplate,
    extra: Option<Map<String, Value>>,
    description: Value,
}

impl EmbeddedPolicy {
    /// A policy over a running engine. `extra` are further variables of the template, and
    /// `description` what [`Policy::describe`] gives besides them.
    ///
    /// # Errors
    /// When the tokenizer comes without a chat template, or with one that cannot be read.
    pub fn new(
        engine: Arc<Engine>,
        tokenizer: Arc<Tokenizer>,
        extra: Option<Map<String, Value>>,
        description: Value,
    ) -> Result<Self, PolicyError> {
        let template = |with_tools: bool| {
            ChatTemplate::of_tokenizer(&tokenizer, None, with_tools)
                .map_err(conversation_error)?
                .ok_or_else(|| {
                    PolicyError::Conversation("the model comes without a chat template".into())
                })
        };
        Ok(EmbeddedPolicy {
            template: template(false)?,
            tool_template: template(true)?,
            engine,
            tokenizer,
            extra,
            description,
        })
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    fn render(&self, messages: &[Value], tools: &[Value]) -> Result<RenderedIds, PolicyError> {
        let (template, tools) = match tools {
            [] => (&self.template, None),
            tools => (&self.tool_template, Some(tools)),
        };
        let conversation = Conversation {
            messages,
            tools,
            add_generation_prompt: true,
            extra: self.extra.as_ref(),
            now: None,
        };
        template
            .render_ids(&self.tokenizer, &conversation)
            .map_err(conversation_error)
    }

    /// What the template writes behind the recorded messages, after what was recorded.
    fn extend(
        &self,
        recorded: Recorded<'_>,
        messages: &mut [Value],
        tools: &[Value],
    ) -> Result<Vec<u32>, PolicyError> {
        let refuse = |problem: &str| Err(PolicyError::Conversation(problem.into()));
        let Some(last) = recorded.n_messages.checked_sub(1) else {
            return refuse("ids are recorded for no message");
        };
        if messages
            .get(last)
            .and_then(|message| message["role"].as_str())
            != Some("assistant")
        {
            return refuse("the last recorded message is not an assistant's");
        }
        let mut rendered = self.render(messages, tools)?;
        let mut end = sampled_end(&rendered, last);
        if end.is_none() {
            messages[last] = json!({"role": "assistant", "content": PLACEHOLDER});
            rendered = self.render(messages, tools)?;
            end = sampled_end(&rendered, last);
        }
        let Some(end) = end else {
            return refuse("the chat template does not show where an assistant's message ends");
        };
        let is_end = |id: Option<&u32>| id.is_some_and(|id| self.tokenizer.eos_ids().contains(id));
        let mut ids = recorded.ids.to_vec();
        if !is_end(ids.last()) {
            let closing = rendered.ids[..end].last();
            ids.extend(closing.filter(|&id| is_end(Some(id))));
        }
        ids.extend_from_slice(&rendered.ids[end..]);
        Ok(ids)
    }
}

/// Behind the last token of a message, the one that ends the turn included.
fn sampled_end(rendered: &RenderedIds, message: usize) -> Option<usize> {
    let span = rendered.spans.get(message)?;
    Some(span.sampled.as_ref()?.end)
}

impl Policy for EmbeddedPolicy {
    fn describe(&self) -> Value {
        json!({
            "kind": "embedded",
            "model": self.description,
            "template_variables": self.extra,
            "context_tokens": self.context_tokens(),
        })
    }

    fn context_tokens(&self) -> usize {
        self.engine.max_context()
    }

    fn tokenize(&self, prompt: &PolicyPrompt<'_>) -> Result<Vec<u32>, PolicyError> {
        let mut messages: Vec<Value> = prompt.messages.iter().map(message_value).collect();
        let tools: Vec<Value> = prompt.tools.iter().map(tool_value).collect();
        match prompt.recorded {
            Some(recorded) => self.extend(recorded, &mut messages, &tools),
            None => Ok(self.render(&messages, &tools)?.ids),
        }
    }

    fn sample(&self, request: &PolicyRequest) -> Result<Sampled, PolicyError> {
        let params = SamplingParams {
            temperature: request.temperature,
            top_k: request.top_k,
            top_p: request.top_p,
            min_p: request.min_p,
            seed: request.seed,
            max_tokens: request.max_tokens,
            stop: request.stop.clone(),
            ..SamplingParams::default()
        };
        let completion = self
            .engine
            .complete(Request {
                prompt: request.prompt_ids.clone(),
                params,
                adapter: request.adapter.clone(),
                deadline: request.deadline,
            })
            .map_err(request_error)?;
        sampled(completion)
    }
}

fn sampled(completion: Completion) -> Result<Sampled, PolicyError> {
    let Some(finish) = &completion.finish else {
        return Err(PolicyError::Failed("the engine gave no end".into()));
    };
    let reason = match finish.reason {
        FinishReason::EndOfText(_) | FinishReason::StopId(_) | FinishReason::StopString(_) => {
            trajectory::FinishReason::Stop
        }
        FinishReason::MaxTokens | FinishReason::Context => trajectory::FinishReason::Length,
        FinishReason::Deadline if completion.tokens.is_empty() => {
            return Err(PolicyError::Deadline);
        }
        FinishReason::Deadline => trajectory::FinishReason::Other("deadline".into()),
        FinishReason::Cancelled => {
            return Err(PolicyError::Failed("the engine was shut down".into()));
        }
    };
    Ok(Sampled {
        ids: completion.ids(),
        logprobs: completion
            .tokens
            .iter()
            .map(|token| token.logprob)
            .collect(),
        finish: reason,
        n_cached_tokens: finish.n_cached,
        text: completion.text,
    })
}

fn conversation_error(error: TemplateError) -> PolicyError {
    PolicyError::Conversation(error.to_string())
}

fn request_error(error: RequestError) -> PolicyError {
    match error {
        RequestError::ContextLength {
            n_prompt,
            max_context,
        } => PolicyError::ContextLength {
            n_prompt,
            max_context,
        },
        RequestError::EmptyPrompt
        | RequestError::UnknownToken { .. }
        | RequestError::Param(_)
        | RequestError::NoTokenizer
        | RequestError::UnknownAdapter(_) => PolicyError::Request(error.to_string()),
        RequestError::QueueFull { .. }
        | RequestError::ShutDown
        | RequestError::Device(_)
        | RequestError::EngineFailed(_)
        | RequestError::Adapter { .. } => PolicyError::Failed(error.to_string()),
    }
}
