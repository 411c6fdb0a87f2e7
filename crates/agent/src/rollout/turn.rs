//! One turn: what a reply asks for, what running it gives, and what the model is told.

use std::time::Duration;

use serde_json::json;
use temper_core::{
    Bytes, Message, Role,
    trajectory::{Action, Exit, Limit, StepOutcome},
};
use temper_sandbox::{Command, ExitStatus};

use super::{Conversation, Flow, Stop, finish_name, sandbox_failed};
use crate::{
    model::ModelReply,
    protocol::{
        self, Protocol,
        bash_block::{self, BlockError},
        shell_syntax::Open,
        tool_call,
    },
    repetition,
};

/// What a reply came to.
pub(super) struct Turn {
    /// The reply as it goes into the history.
    pub reply: Message,
    pub actions: Vec<Action>,
    pub observations: Vec<Message>,
    pub outcome: StepOutcome,
    /// Set when the trial ends with this turn.
    pub stop: Option<Box<Stop>>,
}

impl Conversation<'_> {
    pub(super) fn bash_block_turn(&mut self, reply: &ModelReply) -> Turn {
        let cut = self.reached_limit(reply);
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

    fn reached_limit(&self, reply: &ModelReply) -> bool {
        protocol::reached_limit(
            &reply.finish,
            reply.usage.completion_tokens,
            self.settings.max_output_tokens,
        )
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

    pub(super) fn tool_call_turn(&mut self, reply: &ModelReply) -> Turn {
        let cut = self.reached_limit(reply) || tool_call::looks_cut(&reply.message, &reply.finish);
        let parsed = if cut {
            Err("the reply reached the limit on its length and was cut off".to_owned())
        } else {
            tool_call::parse(&reply.message)
        };
        let calls = match parsed {
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
                    if stop.exit == Exit::Submitted {
                        turn.observations.clear();
                    }
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
