//! `temper context probe`: what a live server does with prompts of known lengths.

use std::{sync::Arc, time::Duration};

use serde_json::{Map, Value};
use temper_agent::{
    context_probe::{
        LevelRecord, Listing, Outcome, Phase, Probe, ProbeError, ProbeRecord, ProbeSettings,
        RecordError, ServerFacts,
    },
    model::{
        openai::{OpenAiConfig, OpenAiFactory},
        probe,
        retry::{RetryPolicy, SystemClock},
        secret::Secret,
        spec::Endpoint,
    },
};
use temper_checkpoint::{
    Checkpoint,
    chat_template::{ChatTemplate, Conversation, message_value},
    context,
    tokenizer::{Specials, Tokenizer},
};
use temper_core::{Digest, Message, digest::Hasher};
use temper_report::table::{Align, Table};

use super::args::ProbeArgs;
use crate::{
    agents,
    args::ModelArgs,
    error::CliError,
    exit_code,
    output::{self, printable},
    places::Places,
    verbs::model::locate::locate_without_weights,
};

/// How long a server may take to say what it offers.
const LIST_TIMEOUT: Duration = Duration::from_secs(20);
/// The field of a request whose members are variables of the chat template.
const TEMPLATE_VARIABLES: &str = "chat_template_kwargs";

/// Runs the probe; a level that was not accepted is [`exit_code::FINDINGS`], a server that answered
/// nothing [`exit_code::ENVIRONMENT`].
pub fn run(args: &ProbeArgs, places: &Places) -> Result<u8, CliError> {
    let usage = |error: &dyn std::fmt::Display| CliError::new(exit_code::USAGE, error);
    let endpoint = Endpoint::parse(&args.base_url).map_err(|error| usage(&error))?;
    let key = agents::api_key(&ModelArgs {
        api_key_variable: args.api_key_variable.clone(),
        ..ModelArgs::default()
    })?;
    let (model, server) = server_facts(&endpoint, key.as_ref(), args.model.as_deref())?;
    let body: Map<String, Value> = agents::key_values(&args.model_kwargs, "--model-kwarg")?
        .into_iter()
        .collect();
    let counter = Counter::open(args, &model, &body, places)?;
    let mut config = OpenAiConfig::new(endpoint.clone(), model.clone());
    config
        .set_model_kwargs(&body)
        .map_err(|error| usage(&error))?;
    config
        .check_against(Some(0.0), Some(args.output_tokens))
        .map_err(|error| usage(&error))?;
    config.retry = RetryPolicy {
        max_attempts: 1,
        ..RetryPolicy::default()
    };
    config.proxy = agents::proxy(endpoint.as_str())
        .map(|address| Secret::new(&address))
        .transpose()
        .map_err(|error| usage(&error))?;
    let client =
        OpenAiFactory::new(config, key, Arc::new(SystemClock)).map_err(|error| usage(&error))?;
    let settings = ProbeSettings {
        base_url: endpoint.to_string(),
        model,
        tokenizer_digest: counter.digest(),
        config_digest: counter.config_digest.clone(),
        levels: args.levels.clone(),
        output_tokens: args.output_tokens,
        window: args.window,
        seed: args.seed,
        body,
    };
    let record = Probe {
        file: &args.output,
        settings,
        server,
        count: &|messages| counter.count(messages),
        timeout: Duration::from_secs(args.timeout),
        clock: &SystemClock,
    }
    .run(&mut *client.client(), &mut |level| {
        if !places.quiet {
            output::note(&progress(level));
        }
    })?;
    output::data(&args.format.format.one(&record, || table(&record)));
    output::note(&format!("record: {}", args.output.display()));
    let is_dropped = |level: &LevelRecord| matches!(level.outcome, Some(Outcome::Dropped { .. }));
    Ok(if record.is_accepted() {
        exit_code::SUCCESS
    } else if record.levels.iter().all(is_dropped) {
        exit_code::ENVIRONMENT
    } else {
        exit_code::FINDINGS
    })
}

/// The model's name, and what the server says of it and of itself.
fn server_facts(
    endpoint: &Endpoint,
    key: Option<&Secret>,
    name: Option<&str>,
) -> Result<(String, ServerFacts), CliError> {
    let listed = probe::list_models(endpoint, key, LIST_TIMEOUT);
    let (name, listing) = match (listed, name) {
        (Ok(models), Some(name)) => {
            let listing = match models.iter().find(|model| model.name == name) {
                Some(model) => Listing::Listed {
                    context_tokens: model.context_tokens,
                },
                None => Listing::NotListed,
            };
            (name.to_owned(), listing)
        }
        (Ok(models), None) => {
            let only = probe::only_model(&models).map_err(|error| {
                CliError::new(exit_code::USAGE, error).hint("name one with --model NAME")
            })?;
            let listing = Listing::Listed {
                context_tokens: only.context_tokens,
            };
            (only.name.clone(), listing)
        }
        (Err(error), Some(name)) => {
            let message = error.message.clone();
            (name.to_owned(), Listing::Unavailable { message })
        }
        (Err(error), None) => {
            return Err(CliError::new(exit_code::ENVIRONMENT, error).hint(format!(
                "is a server running at {endpoint}? If it has no list of models, name one with --model"
            )));
        }
    };
    let version = probe::server_version(endpoint, key, LIST_TIMEOUT);
    Ok((name, ServerFacts { listing, version }))
}

/// Counts tokens as the server should: by the model's tokenizer and chat template.
struct Counter {
    tokenizer: Tokenizer,
    template: ChatTemplate,
    variables: Option<Map<String, Value>>,
    /// Of the configuration that lies beside the tokenizer.
    config_digest: Option<Digest>,
}

impl Counter {
    fn open(
        args: &ProbeArgs,
        model: &str,
        body: &Map<String, Value>,
        places: &Places,
    ) -> Result<Self, CliError> {
        let input = |error: &dyn std::fmt::Display| CliError::new(exit_code::INPUT, error);
        let hint = "name the folder or file of the served model's tokenizer with --tokenizer";
        let name = args.tokenizer.as_deref().unwrap_or(model);
        let located =
            locate_without_weights(name, &args.hub, places).map_err(|error| error.hint(hint))?;
        let tokenizer = if located.path.join("tokenizer.json").is_file() {
            Tokenizer::from_folder(&located.path).map_err(|error| input(&error))?
        } else {
            Checkpoint::inspect(&located.path)?.tokenizer()?
        };
        let template = ChatTemplate::of_tokenizer(&tokenizer, None, false)
            .map_err(|error| input(&error))?
            .ok_or_else(|| {
                CliError::new(
                    exit_code::INPUT,
                    format!(
                        "count the tokens of prompts: {} has no chat template",
                        located.path.display()
                    ),
                )
                .hint(hint)
            })?;
        let variables = match body.get(TEMPLATE_VARIABLES) {
            None => None,
            Some(Value::Object(variables)) => Some(variables.clone()),
            Some(other) => {
                return Err(CliError::new(
                    exit_code::USAGE,
                    format!(
                        "read --model-kwarg {TEMPLATE_VARIABLES}: expected an object, got {other}"
                    ),
                ));
            }
        };
        let config = context::read_config(&located.path).ok();
        Ok(Counter {
            config_digest: config.map(|config| Digest::of_value(&config)),
            tokenizer,
            template,
            variables,
        })
    }

    fn count(&self, messages: &[Message]) -> Result<u64, String> {
        let messages: Vec<Value> = messages.iter().map(message_value).collect();
        let conversation = Conversation {
            messages: &messages,
            add_generation_prompt: true,
            extra: self.variables.as_ref(),
            ..Conversation::default()
        };
        let text = self
            .template
            .render(&conversation)
            .map_err(|error| error.to_string())?;
        // The prompt's own text holds the text of no token, so this is what a server encodes.
        let ids = self.tokenizer.encode(&text, Specials::Parse);
        Ok(ids.map_err(|error| error.to_string())?.len() as u64)
    }

    /// Of the tokens and of the template.
    fn digest(&self) -> Digest {
        let mut hasher = Hasher::default();
        for id in 0..self.tokenizer.n_tokens() as u32 {
            hasher.field(self.tokenizer.token_bytes(id).unwrap_or_default());
        }
        hasher.field(self.template.source().as_bytes());
        hasher.finish()
    }
}

fn progress(level: &LevelRecord) -> String {
    let tokens = level.prompt.as_ref().map(|prompt| prompt.local_tokens);
    match (level.phase, tokens, &level.outcome) {
        (Phase::Done, _, Some(_)) => format!("{}: {}", level.level, described(level)),
        (_, Some(tokens), _) => format!("{}: sending {tokens} tokens", level.level),
        _ => format!("{}: {:?}", level.level, level.phase),
    }
}

/// What a level came to, and where in the prompt codes are missing: the depth of a gap tells a
/// prompt whose beginning was cut off from a model that loses its way.
pub(super) fn described(level: &LevelRecord) -> String {
    let Some(outcome) = &level.outcome else {
        return "not answered yet".to_owned();
    };
    let needles = level.answer.iter().flat_map(|answer| &answer.needles);
    let missing: Vec<String> = needles
        .filter(|needle| !needle.is_found)
        .map(|needle| format!("{:.0} %", 100.0 * needle.depth))
        .collect();
    match outcome {
        Outcome::NeedlesMissed { .. } | Outcome::Truncated { .. } if !missing.is_empty() => {
            format!("{}; missing at {}", words(outcome), missing.join(", "))
        }
        _ => words(outcome),
    }
}

fn words(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Accepted => "accepted".into(),
        Outcome::NeedlesMissed { n_found, n } => {
            format!("accepted, but {n_found} of {n} codes found")
        }
        Outcome::Nonsense => "accepted, but the answer makes no sense".into(),
        Outcome::Uncounted => "accepted; the server does not count".into(),
        Outcome::Miscounted {
            server_tokens,
            local_tokens,
        } => format!("counted differently: {server_tokens} by the server, {local_tokens} here"),
        Outcome::Truncated {
            server_tokens,
            local_tokens,
        } => format!("cut by the server: {server_tokens} of {local_tokens} tokens"),
        Outcome::Rejected {
            stated_limit,
            message,
        } => match stated_limit {
            Some(limit) => format!("rejected, the limit is {limit}"),
            None => format!("rejected: {message}"),
        },
        Outcome::BeyondWindow { window } => format!("not sent, the window is {window}"),
        Outcome::Unbuildable { reason } => format!("not sent, failed to {reason}"),
        Outcome::TimedOut { seconds } => format!("no answer in {seconds:.0} s"),
        Outcome::Dropped { message } => format!("dropped: {message}"),
        Outcome::Failed { class, message } => format!("failed ({class}): {message}"),
    }
}

fn table(record: &ProbeRecord) -> String {
    let mut rows = Table::new(&[
        ("level", Align::Right),
        ("sent", Align::Right),
        ("counted", Align::Right),
        ("seconds", Align::Right),
        ("codes", Align::Right),
        ("outcome", Align::Left),
    ]);
    for level in &record.levels {
        let shown = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let answer = level.answer.as_ref();
        rows.row([
            level.level.to_string(),
            shown(level.prompt.as_ref().map(|p| p.local_tokens.to_string())),
            shown(answer.and_then(|a| Some(a.server_tokens?.to_string()))),
            shown(answer.map(|a| format!("{:.1}", a.seconds))),
            shown(answer.map(|a| {
                let n_found = a.needles.iter().filter(|needle| needle.is_found).count();
                format!("{n_found}/{}", a.needles.len())
            })),
            printable(&described(level)),
        ]);
    }
    rows.to_string()
}

impl From<ProbeError> for CliError {
    fn from(error: ProbeError) -> Self {
        let (code, hint) = match &error {
            ProbeError::Record(RecordError::Differs { .. }) => (
                exit_code::JOB_DIFFERS,
                Some("name another --output, or remove the file to begin anew".to_owned()),
            ),
            ProbeError::Record(_) | ProbeError::Count(_) => (exit_code::INPUT, None),
            ProbeError::Write { .. } => (exit_code::FAILURE, None),
        };
        CliError::new(code, error).maybe_hint(hint)
    }
}
