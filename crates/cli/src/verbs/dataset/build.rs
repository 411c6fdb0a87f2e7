//! `temper dataset build`: verified trials as rows, pairs and groups.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Value, json};
use temper_checkpoint::{Checkpoint, chat_template::ChatTemplate};
use temper_core::{Digest, Split, manifest::Producer};
use temper_dataset::{
    budget::{Budget, BudgetUnit},
    build::{BuildConfig, BuildError, BuildReport, Sources, build, episodes_digest},
    episode::Episode,
    filter::contamination::HeldOut,
    pairs::Unpaired,
    render::{Renderer, tokenizer_digest},
    store,
};
use temper_report::table::{Align, Table};

use super::{
    args::BuildArgs,
    gather::{Gathered, HowReplayed, Tasks},
    replay::{Place, Replays},
};
use crate::{
    error::CliError,
    exit_code,
    output::{self, printable},
    places::Places,
    sandboxes::Sandboxes,
    suites, tasks,
    verbs::model::locate::locate,
};

/// Trials that are left out and named in the table; the report has all.
const MAX_NAMED: usize = 20;

/// Builds, writes the directory and prints the report.
pub fn run(args: &BuildArgs, places: &Places) -> Result<u8, CliError> {
    let config = config(args)?;
    if args.print_config {
        let text = match &args.config {
            None => BuildConfig::DEFAULT_TEXT.to_owned(),
            Some(path) => read(path)?,
        };
        output::data(&args.format.format.one(&config, || text));
        return Ok(exit_code::SUCCESS);
    }
    let directory = args.output.clone().unwrap_or_default();
    let report = make(args, &config, &directory, places)?;
    let value = json!({ "directory": directory, "report": report });
    output::data(&args.format.format.one(&value, || text(&report)));
    output::note(&format!("data set: {}", directory.display()));
    Ok(exit_code::SUCCESS)
}

/// Builds and writes to a directory that must not be there; the report is in it too.
pub fn make(
    args: &BuildArgs,
    config: &BuildConfig,
    directory: &Path,
    places: &Places,
) -> Result<BuildReport, CliError> {
    if directory.exists() {
        return Err(store::StoreError::Exists(directory.to_owned()).into());
    }
    let path = suites::locate(&args.suite, &places.cache)?;
    let loaded = temper_tasks::load(&path, None).map_err(tasks::input_error)?;
    let mut others = Vec::new();
    for suite in &args.against {
        let path = suites::locate(suite, &places.cache)?;
        let loaded = temper_tasks::load(&path, None).map_err(tasks::input_error)?;
        others.extend(loaded.tasks);
    }
    let held_out_tasks = loaded.tasks.iter().chain(&others);
    let held_out = HeldOut::new(held_out_tasks.clone());
    let mut held_out_digests: Vec<Digest> = held_out_tasks
        .filter(|task| task.split != Split::Train)
        .map(|task| task.digest())
        .collect();
    held_out_digests.sort();
    let by_id: Tasks = loaded
        .tasks
        .into_iter()
        .map(|task| (task.id.clone(), task))
        .collect();

    let mut gathered = Gathered::default();
    for input in &args.inputs {
        gathered.add(input, &by_id)?;
    }
    let Gathered {
        episodes,
        refused,
        replays,
        ..
    } = gathered;

    let located = locate(&args.model, &args.hub, places)?;
    let tokenizer = Checkpoint::open(&located.path)?.tokenizer()?;
    let with_tools = episodes.iter().any(|episode| !episode.tools().is_empty());
    let template = ChatTemplate::of_tokenizer(&tokenizer, None, with_tools)
        .map_err(|error| CliError::new(exit_code::INPUT, error))?;
    let template_name = located.name();
    let renderer = template.as_ref().map(|template| Renderer {
        tokenizer: &tokenizer,
        template,
        template_name: &template_name,
        extra: None,
        now: None,
    });

    let runs_any = replays
        .values()
        .any(|how| matches!(how, HowReplayed::Run(_)));
    let place = if config.replay && runs_any {
        let sandboxes = Sandboxes::open_for_untrusted(&args.sandbox)?;
        output::note(&sandboxes.summary());
        let (cache, tools) = tasks::tools_of(&path, places)?;
        Some(Place {
            sandboxes,
            cache,
            tools,
        })
    } else {
        None
    };
    let mut replay = Replays::new(&replays, place);
    let mut inputs = BTreeMap::from([
        ("trials".to_owned(), episodes_digest(&episodes)),
        ("held-out".to_owned(), Digest::of_value(&held_out_digests)),
        ("tokenizer".to_owned(), tokenizer_digest(&tokenizer)),
    ]);
    if let Some(template) = &template {
        let digest = Digest::of(template.source().as_bytes());
        inputs.insert("chat-template".to_owned(), digest);
    }
    let sources = Sources {
        refused,
        renderer: renderer.as_ref(),
        held_out: &held_out,
        policy_of: &|episode: &Episode| episode.policy().clone(),
    };
    let dataset = build(&episodes, config, sources, Some(&mut replay)).map_err(build_error)?;
    if let Some((origin, problem)) = replay.lost.first() {
        return Err(CliError::new(
            exit_code::FAILURE,
            format!(
                "replay {} trials, {} {}/{} among them: {problem}",
                replay.lost.len(),
                origin.task_id,
                origin.agent,
                origin.attempt
            ),
        )
        .hint("that says nothing about them, so nothing was written; --no-replay does without"));
    }
    let model = json!({
        "name": template_name,
        "path": std::path::absolute(&located.path)?,
        "origin": located.origin,
    });
    let producer = Producer {
        name: "temper".into(),
        version: env!("CARGO_PKG_VERSION").into(),
    };
    let manifest = store::manifest(inputs, config, model, producer);
    store::write(directory, &dataset, &manifest)?;
    Ok(dataset.report)
}

/// The configuration: the default or the file, then the flags.
pub fn config(args: &BuildArgs) -> Result<BuildConfig, CliError> {
    let mut config = match &args.config {
        None => BuildConfig::from_toml(BuildConfig::DEFAULT_TEXT)
            .map_err(|error| CliError::new(exit_code::FAILURE, error))?,
        Some(path) => BuildConfig::from_toml(&read(path)?).map_err(|error| {
            CliError::new(
                exit_code::INPUT,
                format!("read {}: {error}", path.display()),
            )
            .hint("`temper dataset build --print-config` shows one with its comments")
        })?,
    };
    config.replay &= !args.no_replay;
    if let Some(seed) = args.seed {
        config.filter.seed = seed;
    }
    let mut learned_tokens = args.learned_tokens.map(|n| n as usize);
    for path in &args.equal_budget {
        let (dataset, _) = store::read(path)?;
        let n = dataset.report.n_learned_tokens;
        learned_tokens = Some(learned_tokens.map_or(n, |least| least.min(n)));
    }
    if let Some(n) = learned_tokens {
        config.budget = Some(Budget {
            unit: BudgetUnit::LearnedTokens,
            n,
        });
    }
    Ok(config)
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        CliError::new(
            exit_code::INPUT,
            format!("read {}: {error}", path.display()),
        )
    })
}

fn build_error(error: BuildError) -> CliError {
    let hint = error.hint().map(str::to_owned);
    CliError::new(exit_code::INPUT, error).maybe_hint(hint)
}

/// The report in words.
pub fn text(report: &BuildReport) -> String {
    let mut figures = Table::new(&[("", Align::Left), ("n", Align::Right), ("", Align::Left)]);
    let mut figure = |name: &str, n: usize, note: String| {
        figures.row([name.to_owned(), n.to_string(), note]);
    };
    figure("trials", report.n_trials, String::new());
    figure("kept", report.n_kept_trials, String::new());
    figure(
        "rows",
        report.n_rows,
        format!(
            "{} sampled, {} rendered",
            report.n_sampled_rows,
            report.n_rows - report.n_sampled_rows
        ),
    );
    figure("tokens", report.n_tokens, String::new());
    figure("learned tokens", report.n_learned_tokens, String::new());
    figure(
        "pairs",
        report.n_pairs,
        format!("{} from one state", report.n_same_state_pairs),
    );
    figure(
        "groups",
        report.n_groups,
        format!("{} with different rewards", report.n_groups_with_signal),
    );
    let mut text = figures.to_string();
    if !report.n_dropped.is_empty() {
        let mut reasons = Table::new(&[("left out", Align::Left), ("n", Align::Right)]);
        for (reason, n) in &report.n_dropped {
            reasons.row([reason.clone(), n.to_string()]);
        }
        text.push_str(&format!("\n{reasons}"));
    }
    if !report.unpaired.is_empty() {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for (_, reason) in &report.unpaired {
            *counts.entry(why_unpaired(reason)).or_default() += 1;
        }
        let mut reasons =
            Table::new(&[("failed and in no pair", Align::Left), ("n", Align::Right)]);
        for (reason, n) in counts {
            reasons.row([reason, n.to_string()]);
        }
        text.push_str(&format!("\n{reasons}"));
    }
    let lines = report.dropped.iter().map(|dropped| {
        let origin = &dropped.origin;
        format!(
            "{} {}/{}: {}",
            origin.task_id, origin.agent, origin.attempt, dropped.reason
        )
    });
    let unpaired = report.unpaired.iter().map(|(origin, reason)| {
        let reason = why_unpaired(reason);
        format!(
            "{} {}/{}: in no pair: {reason}",
            origin.task_id, origin.agent, origin.attempt
        )
    });
    let lines: Vec<String> = lines.chain(unpaired).collect();
    if !lines.is_empty() {
        text.push('\n');
    }
    for line in lines.iter().take(MAX_NAMED) {
        text.push_str(&format!("{}\n", printable(line)));
    }
    if lines.len() > MAX_NAMED {
        text.push_str(&format!(
            "… and {} more in report.json\n",
            lines.len() - MAX_NAMED
        ));
    }
    text
}

/// The kind of a reason, as the report has it.
fn why_unpaired(reason: &Unpaired) -> String {
    match serde_json::to_value(reason) {
        Ok(Value::Object(fields)) => fields["kind"].as_str().unwrap_or_default().to_owned(),
        _ => String::new(),
    }
}
