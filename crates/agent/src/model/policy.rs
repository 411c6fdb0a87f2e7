//! A policy in this process as the model of an agent: no server, no HTTP.
//!
//! The ids of a conversation are kept as they were sampled; a new turn extends them. Nothing is
//! tokenized twice, so a trajectory's token records are what the policy saw and drew.

use std::{sync::Arc, time::Instant};

use temper_core::{
    Message, PreparedTask, Role,
    policy::{Conversation, Policy, PolicyError, PolicyRequest},
    trajectory::{Attempt, FinishReason, TokenRecord},
    usage::{MicroDollars, Usage},
};

use super::{
    Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest, tool_text,
};

/// How a policy is sampled where the profile does not say.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySampling {
    /// Temperature; 0 takes the most likely token.
    pub temperature: f32,
    /// The longest reply in tokens.
    pub max_tokens: usize,
    /// An adapter by name.
    pub adapter: Option<String>,
}

/// Makes models that share one policy.
pub struct PolicyFactory {
    policy: Arc<dyn Policy>,
    sampling: PolicySampling,
}

impl PolicyFactory {
    /// Models over `policy`.
    pub fn new(policy: Arc<dyn Policy>, sampling: PolicySampling) -> Self {
        PolicyFactory { policy, sampling }
    }
}

impl ModelFactory for PolicyFactory {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({
            "kind": "embedded",
            "policy": self.policy.describe(),
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "adapter": self.sampling.adapter,
        })
    }

    fn is_language_model(&self) -> bool {
        true
    }

    fn open(&self, _: &PreparedTask, _: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(PolicyModel {
            policy: Arc::clone(&self.policy),
            sampling: self.sampling.clone(),
            conversation: Conversation::new(),
            n_calls: 0,
        }))
    }
}

struct PolicyModel {
    policy: Arc<dyn Policy>,
    sampling: PolicySampling,
    conversation: Conversation,
    n_calls: u64,
}

impl Model for PolicyModel {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let started = Instant::now();
        let outcome = self.sample(request);
        let attempt = Attempt {
            status: None,
            error: outcome.as_ref().err().map(|e| class(e).name().to_owned()),
            message: outcome.as_ref().err().map(ToString::to_string),
            wall_seconds: started.elapsed().as_secs_f64(),
            waited_seconds: 0.0,
        };
        match outcome {
            Ok(reply) => Ok(ModelReply {
                attempts: vec![attempt],
                ..reply
            }),
            Err(error) => Err(ModelError {
                class: class(&error),
                message: error.to_string(),
                attempts: vec![attempt],
            }),
        }
    }
}

impl PolicyModel {
    fn sample(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, PolicyError> {
        let prompt_ids =
            self.conversation
                .prompt_ids(self.policy.as_ref(), request.messages, request.tools)?;
        let n_prompt = prompt_ids.len();
        let max_context = self.policy.context_tokens();
        let room = max_context
            .checked_sub(n_prompt)
            .filter(|&room| room > 0)
            .ok_or(PolicyError::ContextLength {
                n_prompt,
                max_context,
            })?;
        let asked = request
            .max_output_tokens
            .map_or(self.sampling.max_tokens, |most| most as usize);
        let sampled = self.policy.sample(&PolicyRequest {
            max_tokens: Some(asked.min(room)),
            temperature: request
                .temperature
                .map_or(self.sampling.temperature, |t| t as f32),
            adapter: self.sampling.adapter.clone(),
            deadline: request.deadline,
            // Each turn draws anew; the trial's seed and the turn decide how.
            ..PolicyRequest::new(prompt_ids.clone(), request.seed ^ (self.n_calls << 40))
        })?;
        self.n_calls += 1;

        let mut message = Message::text(Role::Assistant, sampled.text.clone());
        let mut finish = sampled.finish.clone();
        if !request.tools.is_empty() {
            let prefix = format!("call-{}", self.n_calls);
            let reply = tool_text::split(&sampled.text, &prefix);
            if !reply.calls.is_empty() {
                message.content = reply.content.unwrap_or_default();
                message.tool_calls = reply.calls;
                if finish == FinishReason::Stop {
                    finish = FinishReason::ToolCalls;
                }
            }
        }
        let mut history = request.messages.to_vec();
        history.push(message.clone());
        self.conversation.record(history, &prompt_ids, &sampled.ids);
        Ok(ModelReply {
            message,
            finish,
            usage: Usage {
                prompt_tokens: Some(n_prompt as u64),
                cached_tokens: Some(sampled.n_cached_tokens as u64),
                completion_tokens: Some(sampled.ids.len() as u64),
            },
            // Sampling on the user's own machine has no price per token.
            cost: Some(MicroDollars(0)),
            tokens: Some(TokenRecord {
                prompt_ids: Some(prompt_ids),
                completion_ids: sampled.ids,
                logprobs: Some(sampled.logprobs),
                loss_mask: None,
            }),
            attempts: Vec::new(),
        })
    }
}

fn class(error: &PolicyError) -> ModelErrorClass {
    match error {
        PolicyError::ContextLength { .. } => ModelErrorClass::ContextExceeded,
        PolicyError::Conversation(_) | PolicyError::Request(_) => ModelErrorClass::BadRequest,
        PolicyError::Deadline => ModelErrorClass::Deadline,
        PolicyError::Failed(_) => ModelErrorClass::Server,
    }
}
