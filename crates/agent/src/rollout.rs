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
    trajectory::{
        Action, Attempt, End, Exit, FinishReason, Limit, Record, Step, StepOutcome, TokenRecord,
    },
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Command, ExitStatus, Sandbox, SandboxError};

use crate::{
    context_guard::PromptSize,
    model::{Model, ModelError, ModelErrorClass, ModelReply, ModelRequest, Tool},
    profile::{ResolvedProfile, Settings},
    protocol::{
        self, Protocol,
        bash_block::{self, BlockError},
        shell_syntax::Open,
        tool_call,
    },
    repetition::{self, Repetition},
    template::{self, TemplateError, Variables},
};

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
    /// Counts the tokens of a conversation exactly, where a tokenizer is at hand.
    pub count_tokens: Option<&'a dyn Fn(&[Message]) -> u64>,
    /// Answers.
    pub model: &'a mut dyn Model,
    /// Runs commands.
    pub sandbox: &'a mut dyn Sandbox,
    /// Takes every record as soon as it exists.
    pub recorder: &'a mut dyn Recorder,
}

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
        tools: match settings.protocol {
            Protocol::BashBlock => Vec::new(),
            Protocol::ToolCall => vec![tool_call::bash_tool()],
        },
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

/// What a reply came to.
struct Turn {
    /// The reply as it goes into the history.
    reply: Message,
    actions: Vec<Action>,
    observations: Vec<Message>,
    outcome: StepOutcome,
    /// Set when the trial ends with this turn.
    stop: Option<Box<Stop>>,
}

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
        self.prompt(Role::System)?;
        self.prompt(Role::User)?;
        loop {
            self.check_limits()?;
            let asked = Instant::now();
            let reply = self.ask()?;
            let model_seconds = asked.elapsed().as_secs_f64();
            self.step(reply, model_seconds)?;
        }
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
        if let Some(cost) = reply.cost {
            let total = self.cost.unwrap_or_default().0.saturating_add(cost.0);
            self.cost = Some(MicroDollars(total));
        }
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
        self.n_format_errors = match outcome {
            StepOutcome::FormatError | StepOutcome::Truncated => self.n_format_errors + 1,
            StepOutcome::Ran | StepOutcome::TimedOut | StepOutcome::Submitted => 0,
        };
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

    fn bash_block_turn(&mut self, reply: &ModelReply) -> Turn {
        let cut = tool_call::was_cut(
            &Message::text(Role::Assistant, ""),
            &reply.finish,
            reply.usage.completion_tokens,
            self.settings.max_output_tokens,
        ) && reply.finish != FinishReason::ToolCalls;
        let parsed = bash_block::parse(&reply.message.content, self.settings.nested_fences, cut);
        // No tools are offered in this protocol; a call that came anyway stays as text.
        let mut turn = Turn::new(tool_call::calls_as_text(reply.message.clone()));
        let command = match parsed {
            Ok(command) => command,
            Err(error) => {
                turn.outcome = if cut {
                    StepOutcome::Truncated
                } else {
                    StepOutcome::FormatError
                };
                match self.block_error(&error, cut) {
                    Ok(text) => turn.observations.push(Message::text(Role::User, text)),
                    Err(stop) => turn.stop = Some(stop),
                }
                return turn;
            }
        };
        match self.action(command, None, &mut turn) {
            Ok(text) => turn.observations.push(Message::text(Role::User, text)),
            Err(stop) => turn.stop = Some(stop),
        }
        turn
    }

    fn block_error(&self, error: &BlockError, cut: bool) -> Flow<String> {
        match error {
            BlockError::NotExactlyOne(bodies) => {
                let template = &self.settings.templates.format_error;
                let mut text =
                    self.render("format error", template, [("actions", json!(bodies))])?;
                // Upstream says nothing of a cut, and its limit is not in the profile's hands.
                if let Some(limit) = self.settings.max_output_tokens.filter(|_| cut) {
                    text.push_str(&format!(
                        "\nYour reply was cut off at the limit of {limit} tokens. Be briefer."
                    ));
                }
                Ok(text)
            }
            BlockError::NestedFence { fence, line, open } => {
                Ok(nested_fence_text(fence, *line, open))
            }
        }
    }

    fn tool_call_turn(&mut self, reply: &ModelReply) -> Turn {
        let cut = tool_call::was_cut(
            &reply.message,
            &reply.finish,
            reply.usage.completion_tokens,
            self.settings.max_output_tokens,
        );
        let problem = if cut {
            Some("the reply reached the limit on its length and was cut off".to_owned())
        } else {
            None
        };
        let calls = match problem.map_or_else(|| tool_call::parse(&reply.message), Err) {
            Ok(calls) => calls,
            Err(problem) => return self.refused(reply, &problem, cut),
        };
        let mut turn = Turn::new(reply.message.clone());
        for call in calls {
            match self.action(call.command, Some(&call.id), &mut turn) {
                Ok(text) => turn
                    .observations
                    .push(tool_call::observation(&call.id, text)),
                Err(stop) => {
                    // When one of several calls submits, upstream answers none of them.
                    turn.observations.clear();
                    turn.stop = Some(stop);
                    break;
                }
            }
        }
        turn
    }

    fn refused(&self, reply: &ModelReply, problem: &str, cut: bool) -> Turn {
        let template = &self.settings.templates.format_error;
        // A template that looks at the finish reason is told `length` for every cut, so that it
        // says the right thing whatever the server called it.
        let finish = if cut {
            "length"
        } else {
            finish_name(&reply.finish)
        };
        let variables = [
            ("error", json!(problem)),
            ("actions", json!([])),
            (
                "has_tool_calls",
                json!(!reply.message.tool_calls.is_empty()),
            ),
            ("finish_reason", json!(finish)),
        ];
        let mut turn = Turn::new(reply.message.clone());
        turn.outcome = if cut {
            StepOutcome::Truncated
        } else {
            StepOutcome::FormatError
        };
        match self.render("format error", template, variables) {
            Ok(text) => {
                (turn.reply, turn.observations) = tool_call::refuse(reply.message.clone(), &text);
            }
            Err(stop) => {
                turn.reply = tool_call::calls_as_text(turn.reply);
                turn.stop = Some(stop);
            }
        }
        turn
    }

    /// Runs one command, adds it to the turn, and gives what the model sees of it.
    fn action(&mut self, command: String, call: Option<&str>, turn: &mut Turn) -> Flow<String> {
        self.check_cancelled()?;
        let settings = self.settings;
        let timeout = self.remaining().map_or(settings.command_timeout, |left| {
            left.min(settings.command_timeout)
        });
        if timeout.is_zero() {
            return Err(self.limit_reached(Limit::WallTime));
        }
        let execution = self
            .rollout
            .sandbox
            .exec(&Command {
                text: command.clone(),
                shell: settings.shell.into(),
                directory: self
                    .rollout
                    .directory
                    .map(str::to_owned)
                    .or_else(|| settings.directory.clone()),
                environment: settings.variables.clone(),
                timeout,
                output_bytes: None,
            })
            .map_err(sandbox_failed)?;
        let exit_code = match execution.status {
            ExitStatus::Exited(code) => Some(code),
            ExitStatus::Signaled(signal) => Some(-signal),
            ExitStatus::TimedOut => None,
        };
        let shown = protocol::output_text(&execution, exit_code.is_none());
        let n_times = self
            .repetition
            .count(&command, exit_code, &execution.output);
        turn.actions.push(Action {
            command: command.clone(),
            tool_call_id: call.map(str::to_owned),
            exit_code,
            timed_out: exit_code.is_none(),
            output: Bytes(execution.output),
            omitted_bytes: execution.omitted.map_or(0, |omitted| omitted.bytes),
            wall_seconds: execution.wall.as_secs_f64(),
        });
        let mut text = match exit_code {
            Some(code) => {
                if let Some(submission) = settings.protocol.submission(&shown.text, code) {
                    turn.outcome = StepOutcome::Submitted;
                    let mut stop = Stop::new(Exit::Submitted);
                    stop.submission = Some(submission.to_owned());
                    if settings.protocol == Protocol::BashBlock {
                        stop.message = Some(Message::text(Role::User, submission));
                    }
                    return Err(stop);
                }
                self.observation(&shown.text, code, "")?
            }
            None => {
                turn.outcome = StepOutcome::TimedOut;
                self.timeout(&command, &shown.text, timeout, turn)?
            }
        };
        if let Some(gap) = shown.gap.filter(|gap| !text.contains(gap.as_str())) {
            text.push_str(&format!("\n{gap}"));
        }
        if execution.out_of_memory {
            text.push_str("\n<note>The sandbox's memory limit was reached, and a process of this command was killed.</note>");
        }
        if settings
            .repetition_note_after
            .is_some_and(|after| n_times >= after)
        {
            text.push_str(&repetition::note(n_times));
        }
        Ok(text)
    }

    fn observation(&self, output: &str, code: i32, exception: &str) -> Flow<String> {
        let variables = [(
            "output",
            json!({"output": output, "returncode": code, "exception_info": exception}),
        )];
        self.render(
            "observation",
            &self.settings.templates.observation,
            variables,
        )
    }

    fn timeout(&self, command: &str, output: &str, timeout: Duration, turn: &Turn) -> Flow<String> {
        match &self.settings.templates.timeout {
            Some(template) => {
                let action = json!({
                    "action": command, "role": "assistant", "content": turn.reply.content,
                });
                let variables = [("action", action), ("output", json!(output))];
                self.render("timeout", template, variables)
            }
            None => {
                let seconds = timeout.as_secs_f64();
                let exception = format!("the command was stopped at its limit of {seconds} s");
                self.observation(output, -1, &exception)
            }
        }
    }

    fn render<const N: usize>(
        &self,
        name: &'static str,
        source: &str,
        more: [(&str, Value); N],
    ) -> Flow<String> {
        let mut variables = self.rollout.profile.template_variables();
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

impl Turn {
    fn new(reply: Message) -> Self {
        Turn {
            reply,
            actions: Vec::new(),
            observations: Vec::new(),
            outcome: StepOutcome::Ran,
            stop: None,
        }
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

fn nested_fence_text(fence: &str, line: usize, open: &Open) -> String {
    let open = match open {
        Open::HereDocument { delimiter } => {
            format!("its here-document that ends at {delimiter:?} is not closed there")
        }
        Open::Quote { quote } => format!("its quote {quote} is not closed there"),
    };
    let shown: String = fence.chars().take(80).collect();
    format!(
        "Nothing was run: your command contains a code fence. The bash block ends at its line \
         {line}, `{shown}`, and {open}, so the command would have been cut off.\nA line inside the \
         command must not start with three backticks. Write such a line in another way, for \
         example with printf '\\140\\140\\140\\n' in a separate command, or as ~~~."
    )
}
