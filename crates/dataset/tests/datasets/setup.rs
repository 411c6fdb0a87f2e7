//! Builds of trials made by hand.

use std::collections::BTreeMap;

use temper_checkpoint::{chat_template::ChatTemplate, tokenizer::Tokenizer};
use temper_core::{Digest, Split, Task, task::Oracle, verdict::Resolution};
use temper_dataset::{
    build::{BuildConfig, BuildError, Dataset, Sources, build},
    episode::Episode,
    filter::{FilterConfig, Replay, contamination::HeldOut},
    render::Renderer,
    sampled::OnBreak,
};

use crate::support::{Made, made, patch, step, task, template, tokenizer, tokens};

pub fn config() -> BuildConfig {
    BuildConfig {
        filter: FilterConfig {
            seed: 1,
            ..FilterConfig::default()
        },
        on_break: OnBreak::Split,
        max_tokens: None,
        ..BuildConfig::default()
    }
}

pub struct Spelling {
    pub tokenizer: Tokenizer,
    pub template: ChatTemplate,
}

pub fn spelling(template_name: &str) -> Spelling {
    let tokenizer = tokenizer("words");
    let template = template(&tokenizer, template_name);
    Spelling {
        tokenizer,
        template,
    }
}

impl Spelling {
    pub fn renderer(&self) -> Renderer<'_> {
        Renderer {
            tokenizer: &self.tokenizer,
            template: &self.template,
            template_name: "the template under test",
            extra: None,
            now: None,
        }
    }
}

pub fn run(episodes: &[Episode], config: &BuildConfig) -> Result<Dataset, BuildError> {
    run_with(episodes, config, &HeldOut::new([]), None)
}

pub fn run_with(
    episodes: &[Episode],
    config: &BuildConfig,
    held_out: &HeldOut,
    replay: Option<&mut dyn Replay>,
) -> Result<Dataset, BuildError> {
    let spelling = spelling("smollm2.jinja");
    let renderer = spelling.renderer();
    build(
        episodes,
        config,
        Sources {
            refused: Vec::new(),
            renderer: Some(&renderer),
            held_out,
            policy_of: &|_| Digest::of(b"policy"),
        },
        replay,
    )
}

pub fn dropped(dataset: &Dataset) -> BTreeMap<u32, &'static str> {
    let dropped = dataset.report.dropped.iter();
    dropped
        .map(|dropped| (dropped.origin.attempt, dropped.reason.kind()))
        .collect()
}

pub fn train(id: &str) -> Task {
    task(id, &format!("group-{id}"), "Fix f.", Split::Train)
}

pub fn with_fix(mut task: Task, fix: &str) -> Task {
    task.oracle = Some(Oracle::Patch { patch: patch(fix) });
    task
}

/// A trial of three steps with sampled ids; `own` are those of the second reply.
pub fn sampled_trial(task: &Task, attempt: u32, resolution: Resolution, own: &[u32]) -> Made {
    let mut trial = made(task, attempt, resolution, &format!("return {attempt}"));
    let mut last = trial.steps.pop().unwrap();
    trial.steps.push(step(2, "```bash\ncat a.py\n```", "x"));
    last.number = 3;
    trial.steps.push(last);
    let second: Vec<u32> = [1, 2, 3, 4, 5].to_vec();
    let third: Vec<u32> = [&second[..], own, &[6]].concat();
    trial.steps[0].tokens = tokens(&[1, 2], &[3, 4], Some(&[-0.1, -0.2]));
    trial.steps[1].tokens = tokens(&second, own, Some(&vec![-0.5; own.len()]));
    trial.steps[2].tokens = tokens(&third, &[9], Some(&[-0.1]));
    trial
}
