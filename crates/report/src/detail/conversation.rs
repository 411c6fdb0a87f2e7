//! A trial's trajectory as turns that fit on the page.

use serde::Serialize;
use temper_core::{
    Message, Role,
    trajectory::{Action, Attempt, End, FinishReason, Header, Record, Step},
    usage::Usage,
};
use temper_eval::summary::exit_label;

use super::{Fact, LINE, PROMPT, cost, cut, fact, pretty, usage};
use crate::{visible::for_page, words};

/// Characters kept of an observation or an output: beginning and end.
const OBSERVATION: (usize, usize) = (3_000, 1_500);
/// Characters kept of what the model wrote.
const THOUGHT: (usize, usize) = (6_000, 2_000);
/// Characters kept of a command.
const COMMAND: (usize, usize) = (6_000, 2_000);
/// Characters kept of a trial's steps together; further steps show their numbers only.
const STEPS: usize = 600_000;
/// Bytes of the longest reply in which commands are looked for.
const STRIPPED: usize = 64 << 10;
/// Blocks shown of one step.
const PARTS: usize = 40;

/// A prompt, a step, or a note between steps.
#[derive(Debug, Default, Serialize)]
pub(super) struct Turn {
    title: String,
    /// Short facts beside the title.
    facts: Vec<String>,
    /// Whether it is shown folded at first.
    folded: bool,
    /// Whether it deserves attention.
    warn: bool,
    parts: Vec<Part>,
}

/// One block of text in a turn.
#[derive(Debug, Serialize)]
pub(super) struct Part {
    /// `text`, `command`, `output`, `quiet`.
    kind: &'static str,
    label: String,
    text: String,
}

/// The turns of a trajectory, and how it ended.
pub(super) fn conversation(records: &[Record]) -> (Vec<Turn>, Vec<Fact>) {
    let mut turns = Vec::new();
    let mut end = Vec::new();
    let mut room = STEPS;
    let mut n_left_out = 0u64;
    for record in records {
        let turn = match record {
            Record::Header(header) => self::header(header),
            Record::Prompt { .. } | Record::Step(_) if room == 0 => {
                n_left_out += 1;
                continue;
            }
            Record::Prompt { message } => prompt(message),
            Record::Step(step) => self::step(step),
            Record::End(record) => {
                end = self::end(record);
                continue;
            }
        };
        // A turn without text costs something too, so that their number is bounded.
        let size: usize = turn.parts.iter().map(|part| part.text.len()).sum();
        room = room.saturating_sub(size.max(200));
        turns.push(turn);
    }
    if n_left_out > 0 {
        turns.push(Turn {
            title: format!(
                "{} further turns are left out of this view; the trajectory file has them",
                words::thousands(n_left_out)
            ),
            warn: true,
            ..Turn::default()
        });
    }
    (turns, end)
}

fn header(header: &Header) -> Turn {
    let part = |label: &str, value: &serde_json::Value| Part {
        kind: "quiet",
        label: label.to_owned(),
        text: cut(&pretty(value), PROMPT),
    };
    Turn {
        title: format!("Profile {}", for_page(&header.profile)),
        facts: vec![format!("digest {}", header.profile_digest.short())],
        folded: true,
        parts: vec![
            part("model", &header.model),
            part("sandbox", &header.sandbox),
            part("agent configuration", &header.config),
        ],
        ..Turn::default()
    }
}

fn prompt(message: &Message) -> Turn {
    Turn {
        title: format!("Prompt: {}", role(message.role)),
        folded: true,
        parts: vec![Part {
            kind: "text",
            label: String::new(),
            text: cut(&message.content, PROMPT),
        }],
        ..Turn::default()
    }
}

fn role(role: Role) -> &'static str {
    match role {
        Role::System => "system",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
    }
}

fn step(step: &Step) -> Turn {
    let mut parts = Vec::new();
    if let Some(reasoning) = &step.reply.reasoning {
        parts.push(Part {
            kind: "quiet",
            label: "reasoning".into(),
            text: cut(reasoning, THOUGHT),
        });
    }
    let thought = without_commands(&step.reply.content, &step.actions);
    if !thought.trim().is_empty() {
        parts.push(Part {
            kind: "text",
            label: "thought".into(),
            text: cut(thought.trim(), THOUGHT),
        });
    }
    for call in step.reply.tool_calls.iter().take(PARTS) {
        let ran = step
            .actions
            .iter()
            .any(|action| action.tool_call_id.as_ref() == Some(&call.id));
        if !ran {
            parts.push(Part {
                kind: "command",
                label: format!("call of {}, not run", for_page(&call.name)),
                text: cut(&call.arguments, COMMAND),
            });
        }
    }
    for action in step.actions.iter().take(PARTS) {
        parts.push(command(action));
        if step.observations.is_empty() {
            parts.push(output(action));
        }
    }
    for message in step.observations.iter().take(PARTS) {
        parts.push(Part {
            kind: "output",
            label: format!("observation, as the model saw it ({})", role(message.role)),
            text: cut(&message.content, OBSERVATION),
        });
    }
    parts.extend(failed_attempts(&step.attempts));
    let longest = [
        step.reply.tool_calls.len(),
        step.actions.len(),
        step.observations.len(),
    ];
    if parts.len() > PARTS || longest.iter().any(|&n| n > PARTS) {
        parts.truncate(PARTS);
        parts.push(Part {
            kind: "text",
            label: format!(
                "further blocks are left out of this view; the step has {} tool calls, {} commands and {} observations",
                longest[0], longest[1], longest[2]
            ),
            text: String::new(),
        });
    }
    let mut facts = vec![
        format!("model {}", words::seconds(step.model_seconds)),
        format!("actions {}", words::seconds(step.action_seconds)),
    ];
    if step.usage != Usage::default() {
        facts.push(format!("{} tokens", usage(&step.usage)));
    }
    facts.extend(step.cost.map(words::money));
    match &step.finish {
        FinishReason::Stop | FinishReason::ToolCalls => {}
        FinishReason::Length => facts.push("stopped at the output limit".into()),
        FinishReason::ContentFilter => facts.push("withheld by the provider".into()),
        FinishReason::Other(other) => facts.push(format!("stopped: {}", cut(other, LINE))),
    }
    if let Some(tokens) = &step.tokens {
        facts.push(format!(
            "{} sampled ids",
            words::thousands(tokens.completion_ids.len() as u64)
        ));
    }
    use temper_core::trajectory::StepOutcome::{FormatError, Ran, Submitted, TimedOut, Truncated};
    Turn {
        title: format!(
            "Step {}: {}",
            step.number,
            words::step_outcome(step.outcome)
        ),
        facts,
        folded: false,
        warn: match step.outcome {
            Ran | Submitted => false,
            FormatError | Truncated | TimedOut => true,
        },
        parts,
    }
}

/// A reply without the fenced blocks that were run, since they are shown as commands.
fn without_commands(content: &str, actions: &[Action]) -> String {
    let mut out = content.to_owned();
    if content.len() > STRIPPED {
        return out;
    }
    for action in actions.iter().take(PARTS) {
        let command = action.command.trim();
        let Some(at) = out.find(command).filter(|_| !command.is_empty()) else {
            continue;
        };
        let before = &out[..at];
        let after = &out[at + command.len()..];
        // Only a block that is fenced on both sides is taken out; prose that quotes it stays.
        let Some(open) = before
            .rfind("```")
            .filter(|&open| !before[open + 3..].trim().contains('\n'))
        else {
            continue;
        };
        let Some(close) = after
            .find("```")
            .filter(|&close| after[..close].trim().is_empty())
        else {
            continue;
        };
        out = format!("{}{}", &before[..open], &after[close + 3..]);
    }
    out
}

fn command(action: &Action) -> Part {
    let status = match action.exit_code {
        _ if action.timed_out => "timed out".into(),
        Some(code) if code < 0 => format!("signal {}", code.unsigned_abs()),
        Some(code) => format!("exit {code}"),
        None => "no exit status".into(),
    };
    Part {
        kind: "command",
        label: format!("command, {status}, {}", words::seconds(action.wall_seconds)),
        text: cut(&action.command, COMMAND),
    }
}

fn output(action: &Action) -> Part {
    let omitted = match action.omitted_bytes {
        0 => String::new(),
        n => format!(", {} bytes beyond the sandbox's limit", words::thousands(n)),
    };
    Part {
        kind: "output",
        label: format!("output{omitted}"),
        text: cut(&action.output.to_text(), OBSERVATION),
    }
}

fn failed_attempts(attempts: &[Attempt]) -> Option<Part> {
    let failed: Vec<String> = attempts
        .iter()
        .filter_map(|attempt| {
            let error = attempt.error.as_ref()?;
            let status = attempt
                .status
                .map_or_else(String::new, |status| format!(" ({status})"));
            let message = attempt.message.as_deref().unwrap_or("no message");
            Some(format!(
                "{error}{status}: {message}; waited {}",
                words::seconds(attempt.waited_seconds)
            ))
        })
        .collect();
    (!failed.is_empty()).then(|| Part {
        kind: "quiet",
        label: format!("{} failed attempts at the model call", failed.len()),
        text: cut(&failed.join("\n"), PROMPT),
    })
}

fn end(end: &End) -> Vec<Fact> {
    let mut facts = vec![
        fact("ended", exit_label(&end.exit).replace('-', " ")),
        fact("tokens of all calls", usage(&end.usage)),
        fact("cost", cost(end.cost)),
    ];
    if let Some(message) = &end.message {
        facts.push(fact("last message", &message.content));
    }
    if let Some(failed) = failed_attempts(&end.attempts) {
        facts.push((failed.label, failed.text));
    }
    if let Some(submission) = &end.submission {
        facts.push(fact(
            "submission",
            format!(
                "{} bytes of text",
                words::thousands(submission.len() as u64)
            ),
        ));
    }
    facts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(command: &str) -> Action {
        Action {
            command: command.into(),
            tool_call_id: None,
            exit_code: Some(0),
            timed_out: false,
            output: temper_core::Bytes::default(),
            omitted_bytes: 0,
            wall_seconds: 0.0,
        }
    }

    #[test]
    fn a_command_is_not_shown_twice() {
        for (content, command, thought) in [
            ("Look.\n\n```bash\nls -l\n```\n", "ls -l", "Look.\n\n\n"),
            (
                "Look.\n\n```mswea_bash_command\nls\n```",
                "ls\n",
                "Look.\n\n",
            ),
            ("I will run ls now.", "ls", "I will run ls now."),
            ("```bash\nls\nrm x\n```", "ls", "```bash\nls\nrm x\n```"),
            ("nothing", "", "nothing"),
        ] {
            assert_eq!(without_commands(content, &[action(command)]), thought);
        }
    }

    #[test]
    fn a_huge_trajectory_stays_small_and_says_so() {
        let step = Step {
            number: 1,
            reply: Message::text(Role::Assistant, "x".repeat(100_000)),
            finish: FinishReason::Stop,
            actions: vec![action("ls"); 1_000],
            observations: vec![Message::text(Role::User, "y".repeat(100_000))],
            outcome: temper_core::trajectory::StepOutcome::Ran,
            usage: Usage::default(),
            cost: None,
            tokens: None,
            attempts: Vec::new(),
            model_seconds: 1.0,
            action_seconds: 1.0,
        };
        let records = vec![Record::Step(Box::new(step)); 300];
        let (turns, end) = conversation(&records);
        assert!(end.is_empty());
        let shown: usize = turns
            .iter()
            .flat_map(|turn| &turn.parts)
            .map(|part| part.text.len())
            .sum();
        assert!(shown < STEPS + 20_000, "{shown}");
        let last = &turns.last().unwrap().title;
        assert_eq!(
            *last,
            format!(
                "{} further turns are left out of this view; the trajectory file has them",
                words::thousands(301 - turns.len() as u64)
            )
        );
        assert!(
            turns[0].parts[0]
                .text
                .contains("bytes left out of this view")
        );
        assert!(
            turns[0]
                .parts
                .last()
                .unwrap()
                .label
                .contains("further blocks")
        );
        let prompts = vec![
            Record::Prompt {
                message: Message::text(Role::User, "")
            };
            100_000
        ];
        assert!(conversation(&prompts).0.len() < 3_100);
    }
}
