//! One trial in full, as the page's drill-down shows it, and the compression that keeps thousands
//! of them in one file.
//!
//! Everything is formatted and cut here. What is cut is said in the text itself.

mod conversation;

use std::{collections::BTreeMap, io::Write as _};

use base64::Engine as _;
use serde::Serialize;
use temper_core::{
    TestId, Trial,
    trajectory::Record,
    usage::{MicroDollars, Usage},
    verdict::{Layer, Resolution, TestOutcome, Verdict},
};
use temper_eval::summary::exit_label;

use self::conversation::{Turn, conversation};
use crate::{cap::middle_out, input::TaskInput, visible::for_page, words};

/// Characters kept of a prompt message or a task statement.
const PROMPT: (usize, usize) = (8_000, 2_000);
/// Characters kept of a patch.
const PATCH: (usize, usize) = (60_000, 10_000);
/// Characters kept of a message of one line.
const LINE: (usize, usize) = (600, 200);
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

/// JSON for people.
pub fn pretty(value: &serde_json::Value) -> String {
    serde_json::to_string_pretty(value).expect("plain data serializes to JSON")
}

#[cfg(test)]
mod tests {
    use super::*;

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
