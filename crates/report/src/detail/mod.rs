//! One trial in full, as the page's drill-down shows it, and the compression that keeps thousands
//! of them in one file.
//!
//! Everything is formatted and cut here. What is cut is said in the text itself.

use std::{collections::BTreeMap, io::Write as _};

use base64::Engine as _;
use serde::Serialize;
use temper_core::{
    Message, Role, TestId, Trial,
    trajectory::{Action, Attempt, End, FinishReason, Header, Record, Step},
    usage::{MicroDollars, Usage},
    verdict::{Layer, Resolution, TestOutcome, Verdict},
};
use temper_eval::summary::exit_label;

use crate::{cap::middle_out, input::TaskInput, visible::for_page, words};

/// Characters kept of an observation or an output: beginning and end.
const OBSERVATION: (usize, usize) = (3_000, 1_500);
/// Characters kept of what the model wrote.
const THOUGHT: (usize, usize) = (6_000, 2_000);
/// Characters kept of a command.
const COMMAND: (usize, usize) = (6_000, 2_000);
/// Characters kept of a prompt message or a task statement.
const PROMPT: (usize, usize) = (8_000, 2_000);
/// Characters kept of a patch.
const PATCH: (usize, usize) = (60_000, 10_000);
/// Characters kept of a message of one line.
const LINE: (usize, usize) = (600, 200);
/// Characters kept of a trial's steps together; further steps show their numbers only.
const STEPS: usize = 600_000;
/// Bytes of the longest reply in which commands are looked for.
const STRIPPED: usize = 64 << 10;
/// Blocks shown of one step.
const PARTS: usize = 40;
/// Lines shown of a list of findings or notes.
const LINES: usize = 100;
/// Tests listed of one list, those that did not pass first.
const TESTS: usize = 300;

/// A label and its value.
type Fact = (String, String);

/// Everything of one task: what was asked, and every trial of every arm.
#[derive(Debug, Serialize)]
pub struct TaskDetail {
    facts: Vec<Fact>,
    statement: String,
    trials: Vec<TrialDetail>,
}

/// Everything of one trial.
#[derive(Debug, Serialize)]
pub struct TrialDetail {
    arm: usize,
    attempt: u32,
    outcome: [&'static str; 3],
    facts: Vec<Fact>,
    failure: Vec<Fact>,
    verdict: VerdictDetail,
    tampering: Vec<Fact>,
    patch: Option<String>,
    patch_note: String,
    conversation: Vec<Turn>,
    end: Vec<Fact>,
    problem: Option<String>,
}

#[derive(Debug, Serialize)]
struct VerdictDetail {
    facts: Vec<Fact>,
    notes: Vec<String>,
    layers: Vec<LayerDetail>,
    lists: Vec<TestList>,
}

#[derive(Debug, Serialize)]
struct LayerDetail {
    name: &'static str,
    outcome: (&'static str, &'static str),
    time: String,
    detail: String,
    tests: TestList,
}

#[derive(Debug, Serialize)]
struct TestList {
    title: String,
    summary: String,
    /// Style key, outcome in words, test.
    tests: Vec<(&'static str, &'static str, String)>,
}

/// A prompt, a step, or a note between steps.
#[derive(Debug, Default, Serialize)]
struct Turn {
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
struct Part {
    /// `text`, `command`, `output`, `quiet`.
    kind: &'static str,
    label: String,
    text: String,
}

/// A trial with the index of its arm and its trajectory, or why that could not be read.
pub type TrialRecords<'a> = (usize, &'a Trial, Result<Vec<Record>, String>);

/// Gathers one task.
pub fn task(input: Option<&TaskInput<'_>>, trials: Vec<TrialRecords<'_>>) -> TaskDetail {
    let mut facts = Vec::new();
    if let Some(task) = input {
        let origin = task.origin;
        let optional =
            |label: &str, value: &Option<String>| value.as_ref().map(|value| fact(label, value));
        facts.push(fact("source group", task.source_group.as_str()));
        facts.push(fact("split", format!("{:?}", task.split).to_lowercase()));
        facts.push(fact("project", &origin.project));
        facts.extend(optional("version", &origin.version));
        facts.extend(optional("licence", &origin.licence));
        facts.extend(optional("home", &origin.url));
        facts.extend(optional("origin of the bug", &origin.bug));
        facts.push(fact("digest", task.digest.as_str()));
    }
    TaskDetail {
        facts,
        statement: input.map_or_else(String::new, |task| cut(task.statement, PROMPT)),
        trials: trials
            .into_iter()
            .map(|(arm, trial, records)| self::trial(arm, trial, records))
            .collect(),
    }
}

/// Compresses a task's details into text that is safe inside a `<script>` data block.
pub fn compress(detail: &TaskDetail) -> String {
    let json = serde_json::to_vec(detail).expect("plain data serializes to JSON");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    encoder
        .write_all(&json)
        .expect("writing to memory succeeds");
    let bytes = encoder.finish().expect("writing to memory succeeds");
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// The resolution that counts: a trial whose infrastructure failed is lost, whatever its verdict.
pub fn effective(trial: &Trial) -> Resolution {
    match trial.solved() {
        None => Resolution::Lost,
        Some(_) => trial.verdict.resolution,
    }
}

fn fact(label: &str, value: impl AsRef<str>) -> Fact {
    (label.to_owned(), cut(value.as_ref(), LINE))
}

fn cut(text: &str, (head, tail): (usize, usize)) -> String {
    for_page(&middle_out(text, head, tail))
}

fn trial(arm: usize, trial: &Trial, records: Result<Vec<Record>, String>) -> TrialDetail {
    let (key, sign, name) = words::resolution(effective(trial));
    let (conversation, end, problem) = match records {
        Ok(records) => {
            let (conversation, end) = self::conversation(&records);
            let problem = (end.is_empty() && !conversation.is_empty())
                .then(|| "the trajectory has no end: the trial was cut off".to_owned());
            (conversation, end, problem)
        }
        Err(reason) => (Vec::new(), Vec::new(), Some(cut(&reason, LINE))),
    };
    TrialDetail {
        arm,
        attempt: trial.attempt,
        outcome: [key, sign, name],
        facts: facts(trial),
        failure: trial.failure.as_ref().map_or_else(Vec::new, |failure| {
            vec![
                fact("broke at", words::boundary(failure.boundary)),
                fact("kind", &failure.class),
                fact("cause", &failure.message),
                fact(
                    "starting over can help",
                    if failure.retryable { "yes" } else { "no" },
                ),
            ]
        }),
        verdict: verdict(&trial.verdict),
        tampering: trial
            .verdict
            .tampering
            .iter()
            .take(LINES)
            .map(|finding| {
                let (what, place) = words::tampering(finding);
                fact(what, place)
            })
            .collect(),
        patch: trial
            .patch
            .as_ref()
            .filter(|patch| !patch.is_empty())
            .map(|patch| cut(&patch.0.to_text(), PATCH)),
        patch_note: match &trial.patch {
            None => "there was no state to take a patch from".into(),
            Some(patch) if patch.is_empty() => "the trial left no change".into(),
            Some(patch) => format!(
                "{} bytes, from the {}, SHA-256 {}",
                words::thousands(patch.0.len() as u64),
                match trial.patch_source {
                    temper_core::trial::PatchSource::WorkTree => "work tree",
                    temper_core::trial::PatchSource::Submission => "agent's submission",
                    temper_core::trial::PatchSource::Predictions => "predictions file",
                },
                patch.digest()
            ),
        },
        conversation,
        end,
        problem,
    }
}

fn facts(trial: &Trial) -> Vec<Fact> {
    let timing = &trial.timing;
    let mut facts = vec![
        fact("ended", exit_label(&trial.exit).replace('-', " ")),
        fact("steps", words::thousands(trial.n_steps.into())),
        fact("model calls", words::thousands(trial.n_model_calls.into())),
        fact("tokens", usage(&trial.usage)),
        fact("cost", cost(trial.cost)),
        fact("total time", words::seconds(timing.total_seconds)),
        fact(
            "time by phase",
            format!(
                "{} set-up, {} model, {} actions, {} grading",
                words::seconds(timing.setup_seconds),
                words::seconds(timing.model_seconds),
                words::seconds(timing.action_seconds),
                words::seconds(timing.grading_seconds)
            ),
        ),
        fact("seed", trial.seed.to_string()),
        fact("started", &trial.started_at),
        fact("finished", &trial.finished_at),
    ];
    if trial.n_retries > 0 {
        facts.push(fact("started over", format!("{} times", trial.n_retries)));
    }
    facts
}

/// Tokens in words; what the server did not report is said to be so.
pub fn usage(usage: &Usage) -> String {
    let part = |n: Option<u64>, name: &str| match n {
        Some(n) => format!("{} {name}", words::thousands(n)),
        None => format!("{name} not reported"),
    };
    let cached = usage.cached_tokens.map_or_else(String::new, |n| {
        format!(" ({} cached)", words::thousands(n))
    });
    match (usage.prompt_tokens, usage.completion_tokens) {
        (None, None) => "not reported".into(),
        (prompt, completion) => {
            format!(
                "{}{cached}, {}",
                part(prompt, "prompt"),
                part(completion, "completion")
            )
        }
    }
}

fn cost(cost: Option<MicroDollars>) -> String {
    cost.map_or_else(|| "unknown".into(), words::money)
}

fn verdict(verdict: &Verdict) -> VerdictDetail {
    let mut facts = vec![
        fact("verifier", &verdict.verifier),
        fact("grading time", words::seconds(verdict.wall_seconds)),
    ];
    if !verdict.detail.is_empty() {
        facts.insert(0, fact("in short", &verdict.detail));
    }
    for (name, reward) in verdict.rewards.iter().take(LINES) {
        facts.push(fact(
            &format!("reward {}", for_page(name)),
            reward.to_string(),
        ));
    }
    let lists = [
        ("fail-to-pass", &verdict.fail_to_pass),
        ("pass-to-pass", &verdict.pass_to_pass),
    ];
    VerdictDetail {
        facts,
        notes: verdict
            .notes
            .iter()
            .take(LINES)
            .map(|note| cut(note, LINE))
            .collect(),
        layers: verdict.layers.iter().map(layer).collect(),
        lists: lists
            .into_iter()
            .filter(|(_, tests)| !tests.is_empty())
            .map(|(title, tests)| test_list(title, tests))
            .collect(),
    }
}

fn layer(layer: &Layer) -> LayerDetail {
    LayerDetail {
        name: words::layer(layer.name),
        outcome: words::layer_outcome(layer.outcome),
        time: words::seconds(layer.wall_seconds),
        detail: cut(&layer.detail, LINE),
        tests: test_list("tests", &layer.tests),
    }
}

fn test_list(title: &str, tests: &BTreeMap<TestId, TestOutcome>) -> TestList {
    let mut counts = BTreeMap::<TestOutcome, u64>::new();
    for outcome in tests.values() {
        *counts.entry(*outcome).or_default() += 1;
    }
    let mut summary: Vec<String> = counts
        .iter()
        .map(|(outcome, n)| {
            let words = words::test_outcome(*outcome).1;
            let name = words.split_once(' ').map_or(words, |(_, name)| name);
            format!("{} {name}", words::thousands(*n))
        })
        .collect();
    if tests.len() > TESTS {
        summary.push(format!(
            "first {TESTS} listed, those that did not pass before the others"
        ));
    }
    let mut order: Vec<_> = tests.iter().collect();
    order.sort_by_key(|(_, outcome)| **outcome == TestOutcome::Passed);
    TestList {
        title: title.to_owned(),
        summary: summary.join(", "),
        tests: order
            .into_iter()
            .take(TESTS)
            .map(|(test, outcome)| {
                let (key, words) = words::test_outcome(*outcome);
                (key, words, cut(test.as_str(), LINE))
            })
            .collect(),
    }
}

fn conversation(records: &[Record]) -> (Vec<Turn>, Vec<Fact>) {
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

/// JSON for people.
pub fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).expect("plain data serializes to JSON")
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
    fn compressed_details_come_back() {
        let detail = TaskDetail {
            facts: vec![fact("a", "</script>\u{1b}[2J")],
            statement: "x".repeat(100_000),
            trials: Vec::new(),
        };
        let text = compress(&detail);
        assert!(
            text.bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
        );
        assert!(text.len() < 2_000);
        let bytes = base64::engine::general_purpose::STANDARD
            .decode(text)
            .unwrap();
        let json: serde_json::Value =
            serde_json::from_reader(flate2::read::GzDecoder::new(&bytes[..])).unwrap();
        assert_eq!(json["facts"][0][1], "</script>\u{27e8}U+001B\u{27e9}[2J");
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

    #[test]
    fn tests_that_did_not_pass_come_first_and_long_lists_are_cut() {
        let mut tests: BTreeMap<TestId, TestOutcome> = (0..1_000)
            .map(|i| (TestId(format!("t.py::test_{i}")), TestOutcome::Passed))
            .collect();
        tests.insert("t.py::test_zz".into(), TestOutcome::Failed);
        let list = test_list("pass-to-pass", &tests);
        assert_eq!(list.tests.len(), TESTS);
        assert_eq!(list.tests[0].2, "t.py::test_zz");
        assert_eq!(
            list.summary,
            "1,000 passed, 1 failed, first 300 listed, those that did not pass before the others"
        );
    }
}
