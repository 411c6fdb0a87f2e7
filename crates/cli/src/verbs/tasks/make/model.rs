//! The model that writes bugs, where the user names one.

use std::sync::Arc;

use temper_agent::model::{Model, ModelFactory, ModelRequest};
use temper_core::{Message, Role};
use temper_factory::{
    Repository,
    chat::{ChatError, ChatModel, Prompt},
    make,
};

use super::args::MakeArgs;
use crate::{
    agents::{self, Agent},
    args::TrialArgs,
    error::CliError,
    exit_code,
    places::Places,
};

/// A model, and how often it may be asked.
pub struct Writer {
    models: Arc<dyn ModelFactory>,
    seed: u64,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    /// The most questions for one repository.
    pub n_calls: usize,
}

impl Writer {
    /// The model that the flags name.
    pub fn open(args: &MakeArgs, places: &Places) -> Result<Option<Writer>, CliError> {
        let (Some(text), Some(n_calls)) = (&args.model, args.model_calls) else {
            return Ok(None);
        };
        let trials = TrialArgs {
            seed: args.seed,
            model: args.call.clone(),
            engine: args.engine.clone(),
            hub: args.hub.clone(),
            ..TrialArgs::default()
        };
        if agents::PROGRAMS.contains(&text.as_str()) {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("ask {text} for bugs: it is no model"),
            ));
        }
        let profile = agents::profile(&trials)?;
        let agent = Agent::resolve(text, &trials, &profile, places)?;
        let profile = agent.profile(&profile)?;
        let settings = profile.settings();
        Ok(Some(Writer {
            models: agent.models,
            seed: args.seed,
            max_output_tokens: settings.max_output_tokens,
            temperature: settings.temperature,
            n_calls,
        }))
    }

    /// Everything that can change its answers.
    pub fn name(&self) -> String {
        let settings = (self.max_output_tokens, self.temperature);
        format!("{} {settings:?}", self.models.describe())
    }

    /// A conversation of single questions about a repository.
    pub fn ask(&self, repository: &Repository) -> Result<Asked<'_>, CliError> {
        let place = make::unprepared(repository);
        let model = self
            .models
            .open(&place, self.seed)
            .map_err(|error| CliError::new(exit_code::ENVIRONMENT, error))?;
        Ok(Asked {
            writer: self,
            model,
        })
    }
}

/// A model that answers the factory.
pub struct Asked<'a> {
    writer: &'a Writer,
    model: Box<dyn Model>,
}

impl ChatModel for Asked<'_> {
    fn answer(&mut self, prompt: &Prompt) -> Result<String, ChatError> {
        let messages = [
            Message::text(Role::System, prompt.system.clone()),
            Message::text(Role::User, prompt.user.clone()),
        ];
        self.model
            .query(&ModelRequest {
                messages: &messages,
                tools: &[],
                max_output_tokens: self.writer.max_output_tokens,
                temperature: self.writer.temperature,
                seed: self.writer.seed,
                deadline: None,
            })
            .map(|reply| reply.message.content)
            .map_err(|error| ChatError(error.message))
    }
}
