//! Models that keep to a ledger.

use std::{sync::Arc, time::Instant};

use temper_core::{
    Message, PreparedTask,
    trajectory::{Attempt, Limit},
    usage::MicroDollars,
};

use super::{Charge, Estimate, Ledger, Limits, Refusal};
use crate::model::{
    Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest, pricing::Price,
};

/// Tokens that a chat template may put around one message.
const TOKENS_AROUND_MESSAGE: u64 = 64;

/// Tokens that a chat template may put around a conversation.
const TOKENS_AROUND_CONVERSATION: u64 = 512;

/// What a call can cost, as far as it is known before.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CallPrice {
    /// Nothing is known. No money limit can be kept.
    Unknown,
    /// By its tokens.
    Tokens(Price),
    /// At most this much, whatever it is.
    AtMost(MicroDollars),
}

/// What is known of calls before they are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallSize {
    /// Price.
    pub price: CallPrice,
    /// Tokens to reserve for a reply whose length the request does not limit.
    pub reply_tokens: u64,
    /// The server's context in tokens, where known: no call is larger.
    pub context_tokens: Option<u64>,
}

/// The limits cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Money without prices.
    #[error(
        "limit the money: the model's price is not known; give its price per million tokens, or \
         limit tokens instead"
    )]
    UnknownPrice,
}

/// Passes calls on to another factory's models as long as the budget lasts.
///
/// The budget is no part of the description: it decides how far a job gets, not what a model
/// answers, and a job may be resumed with a larger one.
pub struct BudgetedFactory {
    inner: Arc<dyn ModelFactory>,
    job: Arc<Ledger>,
    trial_limits: Limits,
    size: CallSize,
}

impl BudgetedFactory {
    /// Sets limits for each trial, below those of the job.
    pub fn new(
        inner: Arc<dyn ModelFactory>,
        job: Arc<Ledger>,
        trial_limits: Limits,
        size: CallSize,
    ) -> Result<Self, BudgetError> {
        let limits_money = trial_limits.money.is_some() || job.limits_money();
        if limits_money && size.price == CallPrice::Unknown {
            return Err(BudgetError::UnknownPrice);
        }
        Ok(BudgetedFactory {
            inner,
            job,
            trial_limits,
            size,
        })
    }
}

impl ModelFactory for BudgetedFactory {
    fn describe(&self) -> serde_json::Value {
        self.inner.describe()
    }

    fn is_language_model(&self) -> bool {
        self.inner.is_language_model()
    }

    fn open(&self, task: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        Ok(Box::new(Budgeted {
            inner: self.inner.open(task, seed)?,
            ledger: self.job.trial(self.trial_limits),
            size: self.size,
            earlier: None,
        }))
    }
}

/// A model that keeps to a ledger.
pub struct Budgeted {
    inner: Box<dyn Model>,
    ledger: Arc<Ledger>,
    size: CallSize,
    /// Messages of the last request and its reply, and their tokens by the server's count.
    earlier: Option<(usize, u64)>,
}

impl Budgeted {
    /// Wraps one model. Refused when the ledger limits money and no price is known.
    pub fn new(
        inner: Box<dyn Model>,
        ledger: Arc<Ledger>,
        size: CallSize,
    ) -> Result<Self, BudgetError> {
        if ledger.limits_money() && size.price == CallPrice::Unknown {
            return Err(BudgetError::UnknownPrice);
        }
        Ok(Budgeted {
            inner,
            ledger,
            size,
            earlier: None,
        })
    }

    /// The most a request can use. Every token is at least one byte of text, so bytes bound
    /// tokens; what the server has counted before needs no bound.
    fn estimate(&self, request: &ModelRequest<'_>) -> Estimate {
        let (n_counted, counted) = match self.earlier {
            Some((n, tokens)) if n <= request.messages.len() => (n, tokens),
            _ => {
                let tools = request.tools.iter().map(|tool| {
                    (tool.name.len() + tool.description.len() + tool.parameters.to_string().len())
                        as u64
                        + TOKENS_AROUND_MESSAGE
                });
                (0, tools.sum())
            }
        };
        let new: u64 = request.messages[n_counted..].iter().map(bytes_of).sum();
        let prompt = counted
            .saturating_add(new)
            .saturating_add(TOKENS_AROUND_CONVERSATION);
        let reply = request
            .max_output_tokens
            .map_or(self.size.reply_tokens, u64::from);
        let (prompt, reply) = match self.size.context_tokens {
            Some(most) => (prompt.min(most), reply.min(most)),
            None => (prompt, reply),
        };
        let tokens = prompt.saturating_add(reply);
        Estimate {
            tokens: self
                .size
                .context_tokens
                .map_or(tokens, |most| tokens.min(most)),
            money: match self.size.price {
                CallPrice::Unknown => MicroDollars(0),
                CallPrice::Tokens(price) => price.ceiling(prompt, reply),
                CallPrice::AtMost(most) => most,
            },
        }
    }
}

impl Model for Budgeted {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        let budget_ends = self.ledger.deadline();
        let deadline = request.deadline.into_iter().chain(budget_ends).min();
        let most = self.estimate(request);
        let reservation = self
            .ledger
            .reserve(most, deadline)
            .map_err(|refusal| match refusal {
                Refusal::Limit(limit) => reached(limit),
                Refusal::Deadline => past(deadline, budget_ends, Vec::new()),
            })?;
        let outcome = self.inner.query(&ModelRequest {
            messages: request.messages,
            tools: request.tools,
            max_output_tokens: request.max_output_tokens,
            temperature: request.temperature,
            seed: request.seed,
            deadline,
        });
        match outcome {
            Ok(reply) => {
                reservation.settle(Charge {
                    answered: true,
                    usage: reply.usage,
                    cost: reply.cost,
                    n_lost_answers: n_lost_answers(&reply.attempts),
                });
                self.earlier = reply
                    .usage
                    .prompt_tokens
                    .zip(reply.usage.completion_tokens)
                    .map(|(prompt, completion)| {
                        let tokens = prompt.saturating_add(completion);
                        (request.messages.len() + 1, tokens)
                    });
                Ok(reply)
            }
            Err(error) => {
                reservation.settle(Charge {
                    n_lost_answers: n_lost_answers(&error.attempts),
                    ..Charge::default()
                });
                if error.class == ModelErrorClass::Deadline {
                    return Err(past(deadline, budget_ends, error.attempts));
                }
                Err(error)
            }
        }
    }
}

fn bytes_of(message: &Message) -> u64 {
    let calls: usize = message
        .tool_calls
        .iter()
        .map(|call| call.id.len() + call.name.len() + call.arguments.len())
        .sum();
    let reasoning = message.reasoning.as_ref().map_or(0, String::len);
    (message.content.len() + reasoning + calls) as u64 + TOKENS_AROUND_MESSAGE
}

/// Attempts that the server began to answer, or that the deadline cut while it was working.
fn n_lost_answers(attempts: &[Attempt]) -> u64 {
    let lost = attempts.iter().filter(|attempt| {
        let began = attempt
            .status
            .is_some_and(|status| (200..300).contains(&status));
        let cut = attempt.error.as_deref() == Some(ModelErrorClass::Deadline.name());
        attempt.error.is_some() && (began || cut)
    });
    lost.count() as u64
}

fn reached(limit: Limit) -> ModelError {
    ModelError {
        class: ModelErrorClass::Budget(limit),
        message: format!("the budget is used up ({limit:?})"),
        attempts: Vec::new(),
    }
}

/// Whose deadline it was: the budget's, or the caller's own.
fn past(
    deadline: Option<Instant>,
    budget_ends: Option<Instant>,
    attempts: Vec<Attempt>,
) -> ModelError {
    let class = if deadline.is_some() && deadline == budget_ends {
        ModelErrorClass::Budget(Limit::WallTime)
    } else {
        ModelErrorClass::Deadline
    };
    ModelError {
        class,
        message: "the time is up".into(),
        attempts,
    }
}
