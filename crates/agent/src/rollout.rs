//! The loop: one agent in one sandbox, from the first prompt to the end of its trajectory.
//!
//! It follows mini-swe-agent: limits are tested before each call, the whole history is sent, the
//! reply is parsed, its commands run, an output may submit, and what came of it is appended. The
//! history is linear and never shortened. Where it departs from upstream, `docs/agent.md` says so
//! and why.
//!
//! A failure of the model, the sandbox or a template is the end of the trajectory, not an error of
//! this function: [`run`] always returns an [`End`].

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_core::{
    Boundary, Bytes, Failure, Message, Role,
    trajectory::{Attempt, End, Exit, FinishReason, Limit, Record, Step, StepOutcome, TokenRecord},
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Sandbox, SandboxError};

use crate::{
    context_guard::PromptSize,
    model::{Model, ModelError, ModelErrorClass, ModelReply, ModelRequest, Tool},
    profile::{ResolvedProfile, Settings},
    protocol::Protocol,
    repetition::Repetition,
    template::{self, TemplateError, Variables},
};

mod turn;

/// Everything one trial's loop needs.
pub struct Rollout<'a> {
    /// The settings and texts.
    pub profile: &'a ResolvedProfile,
    /// Template variables on top of the profile's own; [`task_variables`] makes the usual ones.
    pub variables: Variables,
    /// Where commands start. `None`: where the profile says, else the sandbox's work tree.
    pub directory: Option<&'a str>,
    /// The trial's seed, sent with every call.
    pub seed: u64,
    /// When the trial has to be over.
    pub deadline: Option<Instant>,
    /// Set from outside to end the trial at the next boundary.
    pub cancel: &'a AtomicBool,
    /// The time now as RFC 3339.
    pub now: &'a dyn Fn() -> String,
    /// Counts exactly, where a tokenizer is at hand.
    pub count_tokens: Option<&'a TokenCounter>,
    /// Answers.
    pub model: &'a mut dyn Model,
    /// Runs commands.
    pub sandbox: &'a mut dyn Sandbox,
    /// Takes every record as soon as it exists.
    pub recorder: &'a mut dyn Recorder,
    /// What has already happened; the sandbox is in the state after it.
    pub prefix: Option<Prefix<'a>>,
    /// Called after each step that goes on, with its number.
    pub after_step: Option<&'a mut AfterStep<'a>>,
}

/// Steps of another trajectory that this one goes on from. They are recorded again and count
/// towards the profile's limits, but nothing of them is asked or run.
#[derive(Clone, Copy)]
pub struct Prefix<'a> {
    /// The messages that open the conversation.
    pub prompts: &'a [Message],
    /// The steps, from the first.
    pub steps: &'a [Step],
}

/// Sees the sandbox between two steps.
pub type AfterStep<'a> = dyn FnMut(u32, &mut dyn Sandbox) + 'a;

/// Counts the tokens of a conversation.
pub type TokenCounter = dyn Fn(&[Message]) -> u64;

/// Takes the records of a trajectory in order.
pub trait Recorder {
    /// Takes one record. An error ends the trial: what is not recorded did not happen.
    fn record(&mut self, record: &Record) -> Result<(), RecordError>;
}

/// A record could not be kept.
#[derive(Debug, thiserror::Error)]
#[error("record a step: {0}")]
pub struct RecordError(pub String);

/// Records in memory.
impl Recorder for Vec<Record> {
    fn record(&mut self, record: &Record) -> Result<(), RecordError> {
        self.push(record.clone());
        Ok(())
    }
}

/// The variables of a task: `task`, its statement, and `working_dir`, where it lies.
pub fn task_variables(statement: &str, work_tree: &str) -> Variables {
    Variables::from_iter([
        ("task".to_owned(), json!(statement)),
        ("working_dir".to_owned(), json!(work_tree)),
    ])
}

/// Runs the loop to its end. Prompts, steps and the end go to the recorder; the header is the
/// caller's.
pub fn run(rollout: Rollout<'_>) -> End {
    let settings = rollout.profile.settings();
    let mut conversation = Conversation {
        tools: settings.tools(),
        settings,
        messages: Vec::new(),
        size: PromptSize::default(),
        repetition: Repetition::default(),
        started: Instant::now(),
        usage: Usage::default(),
        cost: None,
        n_calls: 0,
        n_format_errors: 0,
        rollout,
    };
    let stop = match conversation.drive() {
        Ok(never) => match never {},
        Err(stop) => *stop,
    };
    conversation.finish(stop)
}

/// Why the loop stops, with what belongs into the end record.
struct Stop {
    exit: Exit,
    submission: Option<String>,
    message: Option<Message>,
    attempts: Vec<Attempt>,
}

impl Stop {
    fn new(exit: Exit) -> Box<Self> {
        Box::new(Stop {
            exit,
            submission: None,
            message: None,
            attempts: Vec::new(),
        })
    }

    fn failed(boundary: Boundary, class: &str, message: String, retryable: bool) -> Box<Self> {
        Stop::new(Exit::Failed {
            failure: Failure {
                boundary,
                class: class.to_owned(),
                message,
                retryable,
            },
        })
    }
}

type Flow<T> = Result<T, Box<Stop>>;

struct Conversation<'a> {
    rollout: Rollout<'a>,
    settings: &'a Settings,
    tools: Vec<Tool>,
    messages: Vec<Message>,
    size: PromptSize,
    repetition: Repetition,
    started: Instant,
    usage: Usage,
    cost: Option<MicroDollars>,
    n_calls: u32,
    /// Unusable replies in a row.
    n_format_errors: u32,
}

impl Conversation<'_> {
    fn drive(&mut self) -> Flow<std::convert::Infallible> {
        match self.rollout.prefix {
            Some(prefix) => self.resume(prefix)?,
            None => {
                self.prompt(Role::System)?;
                self.prompt(Role::User)?;
            }
        }
        loop {
            self.check_limits()?;
            let asked = Instant::now();
            let reply = self.ask()?;
            let model_seconds = asked.elapsed().as_secs_f64();
            self.step(reply, model_seconds)?;
            if let Some(after_step) = &mut self.rollout.after_step {
                after_step(self.n_calls, self.rollout.sandbox);
            }
        }
    }

    /// Takes up what has already happened.
    fn resume(&mut self, prefix: Prefix<'_>) -> Flow<()> {
        for message in prefix.prompts {
            self.messages.push(message.clone());
            self.record(&Record::Prompt {
                message: message.clone(),
            })?;
        }
        for step in prefix.steps {
            self.messages.push(step.reply.clone());
            self.size.counted(&step.usage, &self.messages);
            self.messages.extend(step.observations.iter().cloned());
            for action in &step.actions {
                self.repetition
                    .count(&action.command, action.exit_code, &action.output);
            }
            self.n_calls += 1;
            self.usage.add(step.usage);
            self.add_cost(step.cost);
            self.count_format_errors(step.outcome);
            self.record(&Record::Step(Box::new(step.clone())))?;
        }
        Ok(())
    }

    fn prompt(&mut self, role: Role) -> Flow<()> {
        let templates = &self.settings.templates;
        let text = match role {
            Role::System => self.render("system", &templates.system, [])?,
            _ => self.render("instance", &templates.instance, [])?,
        };
        let message = Message::text(role, text);
        self.messages.push(message.clone());
        self.record(&Record::Prompt { message })
    }

    /// What has to hold before a call is spent.
    fn check_limits(&self) -> Flow<()> {
        self.check_cancelled()?;
        let settings = self.settings;
        let limit = if settings
            .step_limit
            .is_some_and(|limit| limit <= self.n_calls)
        {
            Some(Limit::Steps)
        } else if settings
            .cost_limit
            .is_some_and(|limit| limit <= self.cost.unwrap_or_default())
        {
            Some(Limit::Cost)
        } else if self.remaining().is_some_and(|left| left.is_zero()) {
            Some(Limit::WallTime)
        } else {
            None
        };
        if let Some(limit) = limit {
            return Err(self.limit_reached(limit));
        }
        if let Some(guard) = settings.context_guard {
            let tokens = match self.rollout.count_tokens {
                Some(count) => count(&self.messages),
                None => self.size.tokens(&self.messages),
            };
            if !guard.fits(tokens) {
                return Err(Stop::new(Exit::ContextExceeded));
            }
        }
        Ok(())
    }

    fn limit_reached(&self, limit: Limit) -> Box<Stop> {
        let mut stop = Stop::new(Exit::LimitReached { limit });
        // Upstream's version 1 appends an empty message; version 2 has a message of its own kind,
        // which exports make from the exit.
        if self.settings.protocol == Protocol::BashBlock {
            stop.message = Some(Message::text(Role::User, ""));
        }
        stop
    }

    fn check_cancelled(&self) -> Flow<()> {
        if self.rollout.cancel.load(Ordering::Relaxed) {
            return Err(Stop::failed(
                Boundary::Agent,
                "Cancelled",
                "the trial was cancelled".into(),
                true,
            ));
        }
        Ok(())
    }

    /// The earlier of the caller's deadline and the profile's wall time.
    fn deadline(&self) -> Option<Instant> {
        let own = self
            .settings
            .wall_time_limit
            .and_then(|limit| self.started.checked_add(limit));
        [self.rollout.deadline, own].into_iter().flatten().min()
    }

    fn remaining(&self) -> Option<Duration> {
        self.deadline()
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn ask(&mut self) -> Flow<ModelReply> {
        let request = ModelRequest {
            messages: &self.messages,
            tools: &self.tools,
            max_output_tokens: self.settings.max_output_tokens,
            temperature: self.settings.temperature,
            seed: self.rollout.seed,
            deadline: self.deadline(),
        };
        let mut reply = match self.rollout.model.query(&request) {
            Ok(reply) => reply,
            Err(error) => return Err(self.model_failed(error)),
        };
        reply.message.role = Role::Assistant;
        self.n_calls += 1;
        self.usage.add(reply.usage);
        self.add_cost(reply.cost);
        if let Some(problem) = reply.tokens.as_ref().and_then(token_problem) {
            return Err(Stop::failed(
                Boundary::Model,
                "InvalidTokens",
                problem,
                false,
            ));
        }
        Ok(reply)
    }

    fn model_failed(&self, mut error: ModelError) -> Box<Stop> {
        let attempts = std::mem::take(&mut error.attempts);
        let mut stop = match error.class {
            ModelErrorClass::ContextExceeded => Stop::new(Exit::ContextExceeded),
            ModelErrorClass::Budget(limit) => self.limit_reached(limit),
            ModelErrorClass::Deadline => self.limit_reached(Limit::WallTime),
            _ => Stop::new(Exit::Failed {
                failure: model_failure(error),
            }),
        };
        stop.attempts = attempts;
        stop
    }

    /// Acts on a reply, appends what came of it, and records the step.
    fn step(&mut self, reply: ModelReply, model_seconds: f64) -> Flow<()> {
        let acted = Instant::now();
        let turn = match self.settings.protocol {
            Protocol::BashBlock => self.bash_block_turn(&reply),
            Protocol::ToolCall => self.tool_call_turn(&reply),
        };
        self.messages.push(turn.reply.clone());
        self.size.counted(&reply.usage, &self.messages);
        self.messages.extend(turn.observations.iter().cloned());
        let outcome = turn.outcome;
        self.record(&Record::Step(Box::new(Step {
            number: self.n_calls,
            reply: turn.reply,
            finish: reply.finish,
            actions: turn.actions,
            observations: turn.observations,
            outcome,
            usage: reply.usage,
            cost: reply.cost,
            tokens: reply.tokens,
            attempts: reply.attempts,
            model_seconds,
            action_seconds: acted.elapsed().as_secs_f64(),
        })))?;
        if let Some(stop) = turn.stop {
            return Err(stop);
        }
        self.count_format_errors(outcome);
        let limit = self.settings.max_consecutive_format_errors;
        if limit.is_some_and(|limit| limit <= self.n_format_errors) {
            return Err(Stop::new(if outcome == StepOutcome::Truncated {
                Exit::Truncated
            } else {
                Exit::RepeatedFormatErrors
            }));
        }
        Ok(())
    }

    fn add_cost(&mut self, cost: Option<MicroDollars>) {
        if let Some(cost) = cost {
            let total = self.cost.unwrap_or_default().0.saturating_add(cost.0);
            self.cost = Some(MicroDollars(total));
        }
    }

    fn count_format_errors(&mut self, outcome: StepOutcome) {
        self.n_format_errors = match outcome {
            StepOutcome::FormatError | StepOutcome::Truncated => self.n_format_errors + 1,
            StepOutcome::Ran | StepOutcome::TimedOut | StepOutcome::Submitted => 0,
        };
    }

    fn render<const N: usize>(
        &self,
        name: &'static str,
        source: &str,
        more: [(&str, Value); N],
    ) -> Flow<String> {
        let mut variables = self.rollout.profile.template_variables();
        if let Some(directory) = self.rollout.directory {
            variables.insert("cwd".into(), json!(directory));
        }
        let cost = self.cost.unwrap_or_default().dollars();
        variables.insert("n_model_calls".into(), json!(self.n_calls));
        variables.insert("model_cost".into(), json!(cost));
        variables.insert(
            "elapsed_seconds".into(),
            json!(self.started.elapsed().as_secs()),
        );
        variables.extend(self.rollout.variables.clone());
        variables.extend(more.map(|(name, value)| (name.to_owned(), value)));
        template::render(name, source, &variables).map_err(|error: TemplateError| {
            Stop::failed(
                Boundary::Agent,
                error.class.name(),
                error.to_string(),
                false,
            )
        })
    }

    fn record(&mut self, record: &Record) -> Flow<()> {
        self.rollout.recorder.record(record).map_err(|error| {
            Stop::failed(Boundary::Agent, "TrajectoryWrite", error.to_string(), true)
        })
    }

    fn finish(mut self, stop: Stop) -> End {
        let Stop {
            mut exit,
            submission,
            message,
            attempts,
        } = stop;
        // Ending at a limit without one reply is no attempt at the task. A refused prompt is: the
        // model was asked, and its context is a fact about it.
        if let (Exit::LimitReached { limit }, 0) = (&exit, self.n_calls) {
            exit = Exit::Failed {
                failure: Failure {
                    boundary: Boundary::Agent,
                    class: "EmptyTrajectory".into(),
                    message: format!("the limit {limit:?} ended the trial before the first reply"),
                    retryable: false,
                },
            };
        }
        let mut end = End {
            exit,
            submission: submission.map(|text| Bytes(text.into_bytes())),
            message,
            usage: self.usage,
            cost: self.cost,
            n_model_calls: self.n_calls,
            attempts,
            finished_at: (self.rollout.now)(),
        };
        if let Err(stop) = self.record(&Record::End(end.clone()))
            && !matches!(end.exit, Exit::Failed { .. })
        {
            end.exit = stop.exit;
        }
        end
    }
}

/// What is wrong with a token record, if anything is.
pub(crate) fn token_problem(tokens: &TokenRecord) -> Option<String> {
    let n = tokens.completion_ids.len();
    let logprobs = tokens.logprobs.as_ref().map(Vec::len);
    let mask = tokens.loss_mask.as_ref().map(Vec::len);
    (logprobs.is_some_and(|len| len != n) || mask.is_some_and(|len| len != n)).then(|| {
        format!(
            "the reply has {n} token ids, {logprobs:?} log-probabilities and {mask:?} mask entries"
        )
    })
}

/// A model's error as a trial records it, where it is a failure. Starting over can help where the
/// server or the way to it was the trouble.
pub(crate) fn model_failure(error: ModelError) -> Failure {
    Failure {
        boundary: Boundary::Model,
        class: error.class.name().to_owned(),
        message: error.message,
        retryable: matches!(
            error.class,
            ModelErrorClass::RateLimited | ModelErrorClass::Server | ModelErrorClass::Connection
        ),
    }
}

/// A finish reason in the words of the OpenAI protocol.
pub(crate) fn finish_name(reason: &FinishReason) -> &str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::ContentFilter => "content_filter",
        FinishReason::Other(other) => other,
    }
}

fn sandbox_failed(error: SandboxError) -> Box<Stop> {
    Stop::new(Exit::Failed {
        failure: error.failure(),
    })
}
