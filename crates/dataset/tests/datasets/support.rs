//! Trials made by hand.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;
use temper_checkpoint::{chat_template::ChatTemplate, tokenizer::Tokenizer};
use temper_core::{
    AgentName, Digest, Message, Patch, Role, SourceGroup, Split, Task, TaskId, TestId, TestOutcome,
    Trial, Verdict,
    message::Tool,
    task::{
        Environment, HiddenSource, Origin, Start, TaskFormat, TestLists, TrainingTask, Verifier,
    },
    trajectory::{Branch, End, Exit, FinishReason, Header, Record, Step, StepOutcome, TokenRecord},
    trial::{PatchSource, Timing},
    usage::Usage,
    verdict::Resolution,
};
use temper_dataset::episode::Episode;

pub fn task(id: &str, group: &str, statement: &str, split: Split) -> Task {
    Task {
        id: TaskId::new(id).unwrap(),
        format: TaskFormat::Native,
        statement: statement.to_owned(),
        start: Start::Image {
            base_commit: None,
            checkout: None,
        },
        environment: Environment::Host,
        verifier: Verifier::Pytest {
            public: TestLists::default(),
            hidden: TestLists::default(),
            test_files: Vec::new(),
            hidden_source: HiddenSource::SourceDistribution,
            arguments: Vec::new(),
            timeout_seconds: 60,
        },
        oracle: None,
        origin: Origin::default(),
        source_group: SourceGroup::new(group).unwrap(),
        split,
        metadata: serde_json::Map::new(),
        construction: None,
    }
}

/// A patch that replaces a line by others.
pub fn patch(lines: &str) -> Patch {
    let added: String = lines.lines().map(|line| format!("+{line}\n")).collect();
    let n = lines.lines().count();
    let text = format!(
        "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,{} @@\n def f():\n-    return 0\n{added}",
        n + 1
    );
    Patch(text.into_bytes().into())
}

/// A trial to be changed by tests.
pub struct Made {
    pub task: Task,
    pub trial: Trial,
    pub prompt: Vec<Message>,
    pub steps: Vec<Step>,
    pub tools: Vec<Tool>,
    pub branch: Option<Branch>,
}

pub fn step(number: u32, reply: &str, observation: &str) -> Step {
    Step {
        number,
        reply: Message::text(Role::Assistant, reply),
        finish: FinishReason::Stop,
        actions: Vec::new(),
        observations: vec![Message::text(Role::User, observation)],
        outcome: StepOutcome::Ran,
        usage: Usage::default(),
        cost: None,
        tokens: None,
        attempts: Vec::new(),
        model_seconds: 0.0,
        action_seconds: 0.0,
    }
}

pub fn tokens(prompt: &[u32], sampled: &[u32], logprobs: Option<&[f32]>) -> Option<TokenRecord> {
    Some(TokenRecord {
        prompt_ids: Some(prompt.to_vec()),
        completion_ids: sampled.to_vec(),
        logprobs: logprobs.map(<[f32]>::to_vec),
        loss_mask: None,
    })
}

pub fn made(task: &Task, attempt: u32, resolution: Resolution, fix: &str) -> Made {
    let outcome = match resolution {
        Resolution::Resolved => TestOutcome::Passed,
        Resolution::Lost => TestOutcome::Lost,
        _ => TestOutcome::Failed,
    };
    let verdict = Verdict {
        fail_to_pass: BTreeMap::from([(TestId::from("t.py::t"), outcome)]),
        ..Verdict::bare(resolution, "pytest")
    };
    let trial = Trial {
        format: Trial::FORMAT,
        task_id: task.id.clone(),
        task_digest: task.digest(),
        source_group: task.source_group.clone(),
        agent: AgentName::new("policy").unwrap(),
        attempt,
        seed: u64::from(attempt) + 7,
        exit: Exit::Submitted,
        patch: Some(patch(fix)),
        patch_source: PatchSource::WorkTree,
        verdict,
        failure: None,
        n_model_calls: 2,
        n_steps: 2,
        usage: Usage::default(),
        cost: None,
        timing: Timing::default(),
        n_retries: 0,
        started_at: String::new(),
        finished_at: String::new(),
    };
    let mut last = step(
        2,
        "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```",
        "",
    );
    last.outcome = StepOutcome::Submitted;
    Made {
        task: task.clone(),
        trial,
        prompt: vec![
            Message::text(Role::System, "You act."),
            Message::text(Role::User, task.statement.clone()),
        ],
        steps: vec![
            step(1, "```bash\nls\n```", "<returncode>0</returncode>"),
            last,
        ],
        tools: Vec::new(),
        branch: None,
    }
}

impl Made {
    /// Says that its first steps are shared with another trial.
    pub fn branches_after(&mut self, n_steps: u32) {
        self.branch = Some(Branch {
            prefix: Digest::of_value(&(&self.prompt, &self.steps[..n_steps as usize])),
            n_steps,
            n_tokens: None,
            state: Digest::of(b"state"),
            usage: Usage::default(),
            cost: None,
        });
    }

    pub fn records(&self) -> Vec<Record> {
        let trial = &self.trial;
        let header = Header {
            branch: self.branch.clone(),
            format: Header::FORMAT,
            task_id: trial.task_id.clone(),
            agent: trial.agent.clone(),
            attempt: trial.attempt,
            seed: trial.seed,
            profile: String::new(),
            profile_digest: Digest::of(b""),
            config: Value::Null,
            model: Value::Null,
            sandbox: Value::Null,
            started_at: String::new(),
        };
        let end = End {
            exit: trial.exit.clone(),
            submission: None,
            message: None,
            usage: Usage::default(),
            cost: None,
            n_model_calls: 2,
            attempts: Vec::new(),
            finished_at: String::new(),
        };
        let prompt = self.prompt.iter().cloned();
        let steps = self.steps.iter().cloned();
        [Record::Header(header)]
            .into_iter()
            .chain(prompt.map(|message| Record::Prompt { message }))
            .chain(steps.map(|step| Record::Step(Box::new(step))))
            .chain([Record::End(end)])
            .collect()
    }

    pub fn episode(self) -> Episode {
        let records = self.records();
        let task = TrainingTask::try_from(self.task).unwrap();
        Episode::new(task, self.trial, records, self.tools).unwrap()
    }
}

fn chat() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../checkpoint/tests/fixtures/chat")
}

pub fn tokenizer(name: &str) -> Tokenizer {
    Tokenizer::from_folder(&chat().join(name)).unwrap()
}

pub fn template(tokenizer: &Tokenizer, name: &str) -> ChatTemplate {
    let source = std::fs::read_to_string(chat().join("templates").join(name)).unwrap();
    template_of(tokenizer, &source)
}

pub fn template_of(tokenizer: &Tokenizer, source: &str) -> ChatTemplate {
    let specials = tokenizer
        .special_tokens()
        .map(|(name, text)| (name.to_owned(), Value::String(text)))
        .collect();
    ChatTemplate::new(source, specials).unwrap()
}
