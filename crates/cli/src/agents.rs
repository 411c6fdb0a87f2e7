//! Turns an agent as typed into what drives trials.

use std::{collections::BTreeMap, path::Path, sync::Arc};

use serde_json::Value;
use temper_agent::{
    baselines::{
        demonstrator::{DemonstratorFactory, DemonstratorSettings, FirstTry, Procedure},
        mend::MendFactory,
        noop::NoopFactory,
        oracle::OracleFactory,
        search::SearchFactory,
    },
    budget::{BudgetedFactory, CallPrice, CallSize, Ledger, Limits},
    collect::TeacherKind,
    model::{
        ModelFactory,
        openai::{OpenAiConfig, OpenAiFactory},
        policy::{PolicyFactory, PolicySampling},
        pricing::Price,
        probe,
        record::RecordingFactory,
        replay::ReplayFactory,
        retry::SystemClock,
        scripted::ScriptedFactory,
        secret::Secret,
        spec::{Endpoint, ModelSpec, parse_model_spec},
    },
    profile::{ProfileName, ResolvedProfile},
};
use temper_core::{AgentName, policy::Policy, run_profile::ModelIdentity, usage::MicroDollars};
use temper_eval::mixing::ArmProfile;
use temper_model::{policy::EmbeddedPolicy, sample::Engine};

use crate::{
    args::{ModelArgs, ProfileArg, TrialArgs},
    engines::SamplingArgs,
    error::CliError,
    exit_code,
    places::Places,
    run_profile,
    verbs::model::locate::locate,
};

/// An arm, ready to run.
pub struct Agent {
    /// Its name in files and tables.
    pub name: AgentName,
    /// What drives it.
    pub models: Arc<dyn ModelFactory>,
    /// What is known of its calls, for the ledger.
    size: CallSize,
    /// Settings of the profile that are different for it.
    overrides: Vec<(String, Value)>,
    /// The engine, where the model runs in this process.
    pub engine: Option<Arc<Engine>>,
    /// What is known of the model's files.
    pub model: ModelIdentity,
    /// The window that the server declares, or that the engine has, in tokens.
    pub server_context: Option<u64>,
}

/// Agents that are programs of our own: they read no prompt of a profile and sample nothing.
pub const PROGRAMS: [&str; 4] = ["noop", "oracle", "search", "mend"];

/// Trials at a time that share an engine's steps: more rows in a step cost little.
const EMBEDDED_TRIALS: usize = 8;

impl Agent {
    /// The agent behind `text`: a baseline's name or a model.
    pub fn resolve(
        text: &str,
        args: &TrialArgs,
        profile: &ResolvedProfile,
        places: &Places,
    ) -> Result<Self, CliError> {
        let free = |name: &str, models: Arc<dyn ModelFactory>| {
            Ok(Agent {
                name: agent_name(name)?,
                models,
                size: size(MicroDollars(0)),
                overrides: Vec::new(),
                engine: None,
                model: ModelIdentity::unknown(),
                server_context: None,
            })
        };
        match text {
            "noop" => free("noop", Arc::new(NoopFactory)),
            "oracle" => free("oracle", Arc::new(OracleFactory)),
            "search" => free("search", Arc::new(SearchFactory::default())),
            "mend" => free("mend", Arc::new(MendFactory)),
            _ => Agent::of_model(text, args, profile, places),
        }
    }

    /// The teacher behind `text`: one that has the known fix, or an agent. `is_policy` says that
    /// the model is the one to be trained.
    pub fn resolve_teacher(
        text: &str,
        is_policy: bool,
        args: &TrialArgs,
        profile: &ResolvedProfile,
        places: &Places,
    ) -> Result<(Self, TeacherKind), CliError> {
        let refuse = |why: &str| Err(CliError::new(exit_code::USAGE, why));
        let demonstrates = match text {
            "demonstrator" => Some((Procedure::Varied, FirstTry::Right)),
            "demonstrator-recovery" => Some((Procedure::Varied, FirstTry::Wrong)),
            "demonstrator-plain" => Some((Procedure::Plain, FirstTry::Right)),
            "demonstrator-plain-recovery" => Some((Procedure::Plain, FirstTry::Wrong)),
            "demonstrator-search" => Some((Procedure::Search, FirstTry::Right)),
            _ => None,
        };
        if is_policy && (demonstrates.is_some() || PROGRAMS.contains(&text)) {
            return refuse("use --policy: it is for models, and this teacher is a program");
        }
        if let Some((procedure, first_try)) = demonstrates {
            let settings = DemonstratorSettings {
                first_try,
                procedure,
                ..DemonstratorSettings::default()
            };
            let agent = Agent {
                name: agent_name(text)?,
                models: Arc::new(DemonstratorFactory { settings }),
                size: size(MicroDollars(0)),
                overrides: Vec::new(),
                engine: None,
                model: ModelIdentity::unknown(),
                server_context: None,
            };
            return Ok((agent, TeacherKind::Demonstrator));
        }
        let kind = match text {
            "noop" | "oracle" => {
                return refuse("choose a teacher: there is nothing to learn from noop or oracle");
            }
            "search" | "mend" => TeacherKind::Search,
            _ if is_policy => TeacherKind::Policy,
            _ => TeacherKind::Model,
        };
        Ok((Agent::resolve(text, args, profile, places)?, kind))
    }

    fn of_model(
        text: &str,
        args: &TrialArgs,
        profile: &ResolvedProfile,
        places: &Places,
    ) -> Result<Self, CliError> {
        let spec = parse_model_spec(text).map_err(|error| {
            CliError::new(exit_code::USAGE, error)
                .hint("an agent is noop, oracle, search, mend, embedded, or a model")
        })?;
        let mut agent = match spec {
            ModelSpec::OpenAi { endpoint, model } => open_ai(endpoint, model, args, profile)?,
            ModelSpec::Embedded(model) => embedded(&model, args, profile, places)?,
            ModelSpec::Scripted(path) => {
                let models = ScriptedFactory::read(&path)
                    .map_err(|error| CliError::new(exit_code::INPUT, error))?;
                Agent {
                    name: agent_name(&format!("scripted-{}", stem(&path)))?,
                    size: size(models.dearest_call().unwrap_or_default()),
                    models: Arc::new(models),
                    overrides: Vec::new(),
                    engine: None,
                    model: ModelIdentity::unknown(),
                    server_context: None,
                }
            }
            ModelSpec::Replay(path) => {
                let models = ReplayFactory::read(&path)
                    .map_err(|error| CliError::new(exit_code::INPUT, error))?;
                Agent {
                    name: agent_name(&format!("replay-{}", stem(&path)))?,
                    models: Arc::new(models),
                    size: size(MicroDollars(0)),
                    overrides: Vec::new(),
                    engine: None,
                    model: ModelIdentity::unknown(),
                    server_context: None,
                }
            }
        };
        if let Some(path) = &args.model.record {
            agent.models = Arc::new(
                RecordingFactory::new(agent.models, path)
                    .map_err(|error| CliError::new(exit_code::FAILURE, error))?,
            );
        }
        Ok(agent)
    }

    /// A model in this process as an agent, under an adapter that the engine has loaded by this
    /// name. The name is part of what the agent is, so it has to say which weights the adapter has.
    pub fn of_policy(
        name: &str,
        policy: Arc<EmbeddedPolicy>,
        engine: Arc<Engine>,
        adapter: Option<String>,
        sampling: &SamplingArgs,
    ) -> Result<Self, CliError> {
        let context_tokens = policy.context_tokens() as u64;
        let overrides = sampling.overrides();
        let sampling = PolicySampling {
            temperature: sampling.embedded_temperature.unwrap_or(0.0),
            max_tokens: sampling.embedded_reply_tokens.unwrap_or(1024) as usize,
            adapter,
        };
        Ok(Agent {
            name: agent_name(name)?,
            size: CallSize {
                price: CallPrice::AtMost(MicroDollars(0)),
                reply_tokens: sampling.max_tokens as u64,
                context_tokens: Some(context_tokens),
            },
            models: Arc::new(PolicyFactory::new(policy, sampling)),
            overrides,
            engine: Some(engine),
            model: ModelIdentity::unknown(),
            server_context: Some(context_tokens),
        })
    }

    /// The same agent, for which Temper's own profile takes the engine's window where that is less
    /// than the profile asks for, as a recorded override. The engine's window is Temper's own
    /// doing; the published profile stands for what others did and does not follow.
    pub fn following_engine(mut self, profile: &ResolvedProfile) -> Self {
        let wanted = profile.settings().context_tokens.map(u64::from);
        if let (Some(_), Some(engine), Some(wanted)) = (&self.engine, self.server_context, wanted)
            && profile.kind() == ProfileName::ProjectHardened
            && !profile.overrides().contains_key(CONTEXT_KEY)
            && engine < wanted
        {
            self.overrides.push((CONTEXT_KEY.to_owned(), engine.into()));
        }
        self
    }

    /// The profile as this agent runs under it.
    pub fn profile(&self, profile: &ResolvedProfile) -> Result<ResolvedProfile, CliError> {
        if self.overrides.is_empty() {
            return Ok(profile.clone());
        }
        profile
            .clone()
            .with_overrides(self.overrides.iter().cloned())
            .map_err(|error| CliError::new(exit_code::USAGE, error))
    }

    /// The profile as arms are held together by it.
    pub fn arm_profile(&self, profile: &ResolvedProfile) -> ArmProfile {
        ArmProfile {
            arm: self.name.clone(),
            kind: Some(profile.kind().as_str().to_owned()),
            name: profile.name(),
            digest: Some(profile.digest()),
            is_own_program: PROGRAMS.contains(&self.name.as_str())
                && !self.models.is_language_model(),
        }
    }

    /// Trials at a time.
    pub fn workers(&self, asked: Option<usize>) -> usize {
        match (asked, &self.engine) {
            (None, Some(_)) => EMBEDDED_TRIALS,
            _ => crate::places::workers(asked),
        }
    }

    /// Trials at a time of a model in this process.
    pub fn embedded_workers(asked: Option<usize>) -> usize {
        asked.unwrap_or(EMBEDDED_TRIALS).max(1)
    }

    /// Whether a language model answers or a program, in words.
    pub fn kind(&self) -> &'static str {
        if self.models.is_language_model() {
            "a language model"
        } else {
            "a program, not a language model"
        }
    }

    /// The same agent under a job's budget.
    pub fn with_budget(&self, ledger: &Arc<Ledger>) -> Result<BudgetedFactory, CliError> {
        BudgetedFactory::new(
            Arc::clone(&self.models),
            Arc::clone(ledger),
            Limits::default(),
            self.size,
        )
        .map_err(|error| {
            CliError::new(exit_code::USAGE, error).hint("give it with --price INPUT/OUTPUT")
        })
    }
}

/// Calls of a program, or of replies that are known before: they cost at most this much.
fn size(most: MicroDollars) -> CallSize {
    CallSize {
        price: CallPrice::AtMost(most),
        reply_tokens: 0,
        context_tokens: None,
    }
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .map_or("file".into(), |stem| stem.to_string_lossy().into_owned())
}

fn agent_name(name: &str) -> Result<AgentName, CliError> {
    AgentName::new(name).map_err(|error| CliError::new(exit_code::INPUT, error))
}

/// The profile's key of the context that prompt and reply share.
pub const CONTEXT_KEY: &str = "temper.context_tokens";

/// A model in this process. Its replies have no price.
fn embedded(
    model: &str,
    args: &TrialArgs,
    profile: &ResolvedProfile,
    places: &Places,
) -> Result<Agent, CliError> {
    let located = locate(model, &args.hub, places)?;
    let sequences = Agent::embedded_workers(args.workers);
    let wanted = profile.settings().context_tokens;
    let embedded = match wanted {
        Some(tokens) => args
            .engine
            .open_for(&located, places, sequences, tokens as usize)?,
        None => args.engine.open(&located, places, sequences)?,
    };
    let identity = run_profile::of_files(&located)?;
    let name = embedded.name.clone();
    let engine = Arc::clone(&embedded.engine);
    let policy = Arc::new(embedded.into_policy()?);
    let mut agent = Agent::of_policy(&name, policy, engine, None, &args.sampling)?;
    agent.model = identity;
    Ok(agent.following_engine(profile))
}

fn open_ai(
    endpoint: Endpoint,
    model: Option<String>,
    args: &TrialArgs,
    profile: &ResolvedProfile,
) -> Result<Agent, CliError> {
    let key = api_key(&args.model)?;
    let (model, context_tokens) = match model {
        Some(model) => {
            // What a server says of itself is worth a moment's asking; one that says nothing is
            // found out by the trials.
            let timeout = std::time::Duration::from_secs(5);
            let listed = probe::list_models(&endpoint, key.as_ref(), timeout).unwrap_or_default();
            let found = listed.iter().find(|listed| listed.name == model);
            let context = found.and_then(|listed| listed.context_tokens);
            (model, context)
        }
        None => {
            let timeout = std::time::Duration::from_secs(20);
            let listed = probe::list_models(&endpoint, key.as_ref(), timeout).map_err(|error| {
                CliError::new(exit_code::ENVIRONMENT, error)
                    .hint(format!("is a server running at {endpoint}?"))
            })?;
            let only = probe::only_model(&listed).map_err(|error| {
                CliError::new(exit_code::USAGE, error).hint("name one: http://HOST:PORT#MODEL")
            })?;
            (only.name.clone(), only.context_tokens)
        }
    };
    let mut config = OpenAiConfig::new(endpoint, model.clone());
    let kwargs = key_values(&args.model.model_kwargs, "--model-kwarg")?;
    config
        .set_model_kwargs(&kwargs.into_iter().collect())
        .map_err(|error| CliError::new(exit_code::USAGE, error))?;
    config.stream = args.model.stream;
    config.token_ids = args.model.token_ids;
    config.logprobs = args.model.token_ids;
    config.price = args.model.price.as_deref().map(price).transpose()?;
    config.proxy = proxy(config.endpoint.as_str())
        .map(|address| Secret::new(&address))
        .transpose()
        .map_err(|error| CliError::new(exit_code::USAGE, error))?;
    let settings = profile.settings();
    config
        .check_against(settings.temperature, settings.max_output_tokens)
        .map_err(|error| CliError::new(exit_code::USAGE, error))?;
    let size = config.call_size(context_tokens.or(settings.context_tokens.map(u64::from)));
    let models = OpenAiFactory::new(config, key, Arc::new(SystemClock))
        .map_err(|error| CliError::new(exit_code::USAGE, error))?;
    let identity = match &args.identity.model_audit {
        Some(path) => run_profile::of_audit_file(path)?,
        None => ModelIdentity::unknown(),
    };
    Ok(Agent {
        name: agent_name(&model)?,
        models: Arc::new(models),
        size,
        overrides: Vec::new(),
        engine: None,
        model: identity,
        server_context: context_tokens,
    })
}

/// The key, from the environment variable that the user names. It leaves this process only in a
/// request's header.
pub fn api_key(args: &ModelArgs) -> Result<Option<Secret>, CliError> {
    match std::env::var(&args.api_key_variable) {
        Ok(text) if !text.is_empty() => Secret::new(&text)
            .map(Some)
            .map_err(|error| CliError::new(exit_code::USAGE, error)),
        _ => Ok(None),
    }
}

/// The proxy that the environment asks for. Servers on this machine are never behind one.
pub fn proxy(endpoint: &str) -> Option<String> {
    let local = ["http://127.", "http://localhost", "http://[::1]"];
    if local.iter().any(|prefix| endpoint.starts_with(prefix)) {
        return None;
    }
    let names: &[&str] = if endpoint.starts_with("https:") {
        &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"]
    } else {
        &["http_proxy", "ALL_PROXY", "all_proxy"]
    };
    names
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn price(text: &str) -> Result<Price, CliError> {
    let wrong = || {
        CliError::new(
            exit_code::USAGE,
            format!(
                "read the price {text:?}: expected INPUT/OUTPUT or INPUT/CACHED/OUTPUT in dollars per million tokens"
            ),
        )
    };
    let parts: Vec<f64> = text
        .split('/')
        .map(|part| part.parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    match parts[..] {
        [input, output] => Price::per_million(input, None, output),
        [input, cached, output] => Price::per_million(input, Some(cached), output),
        _ => return Err(wrong()),
    }
    .map_err(|error| CliError::new(exit_code::USAGE, error))
}

/// `KEY=VALUE` flags; a value that is not JSON is taken as text.
pub fn key_values(flags: &[String], name: &str) -> Result<BTreeMap<String, Value>, CliError> {
    let mut values = BTreeMap::new();
    for flag in flags {
        let Some((key, value)) = flag.split_once('=').filter(|(key, _)| !key.is_empty()) else {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("read {name} {flag:?}: expected KEY=VALUE"),
            ));
        };
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.into()));
        if values.insert(key.to_owned(), value).is_some() {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("read {name}: {key} is given twice"),
            ));
        }
    }
    Ok(values)
}

/// The profile that the flags ask for.
pub fn profile(args: &TrialArgs) -> Result<ResolvedProfile, CliError> {
    let overrides = key_values(&args.overrides, "--set")?;
    let profile = profile_of(args.profile, args.profile_file.as_deref())?;
    if overrides.is_empty() {
        return Ok(profile);
    }
    profile
        .with_overrides(overrides)
        .map_err(|error| CliError::new(exit_code::USAGE, error))
}

/// A profile by name, from the user's file where one is given.
pub fn profile_of(name: ProfileArg, file: Option<&Path>) -> Result<ResolvedProfile, CliError> {
    let name = match name {
        ProfileArg::ProjectHardened => ProfileName::ProjectHardened,
        ProfileArg::OfficialPublicRepro => ProfileName::OfficialPublicRepro,
        ProfileArg::Custom => ProfileName::Custom,
    };
    match file {
        None => ResolvedProfile::embedded(name),
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(|error| {
                CliError::new(
                    exit_code::INPUT,
                    format!("read {}: {error}", file.display()),
                )
            })?;
            ResolvedProfile::from_text(name, &text)
        }
    }
    .map_err(|error| CliError::new(exit_code::INPUT, error))
}
