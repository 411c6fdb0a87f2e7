//! Asks a live server for prompts of known lengths, to see which it accepts, counts and understands.
//!
//! Configuration files say what a server should do; engines read them differently, and gateways cut
//! prompts without a word. A probe sends one prompt for each level: filler of constant lines with
//! codes at several depths, and a question for the codes. The prompt's length is measured with the
//! tokenizer and the chat template that the caller gives, the server's own count is compared with
//! it, and an answer that names the codes shows that the whole prompt was read.
//!
//! Nothing is retried: a probe records what one request met. Its file is written before each phase,
//! so that one that was interrupted shows where it stood, and a later run goes on from there.

mod judge;
mod prompt;
mod record;

use std::{
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use temper_core::{Message, Role};

use crate::model::{Model, ModelRequest, retry::Clock};

pub use prompt::{MAX_COUNTS, Prompt, PromptError, PromptMaker, Slopes};
pub use record::{
    AnswerRecord, LevelRecord, Listing, NeedleRecord, OtherCheckpoint, Outcome, Phase, ProbeRecord,
    ProbeSettings, PromptRecord, RecordError, ServerFacts,
};

/// Counts the tokens of a conversation that ends where the model is to answer.
pub type CountTokens<'a> = dyn Fn(&[Message]) -> Result<u64, String> + 'a;

/// A probe, ready to run.
pub struct Probe<'a> {
    /// The file of the record.
    pub file: &'a Path,
    /// What is asked.
    pub settings: ProbeSettings,
    /// What the server says of itself.
    pub server: ServerFacts,
    /// Counts tokens as the server should.
    pub count: &'a CountTokens<'a>,
    /// The longest that one answer may take.
    pub timeout: Duration,
    /// The time of day.
    pub clock: &'a dyn Clock,
}

/// Why a probe cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The record cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The record cannot be written.
    #[error("write the probe's record {}: {source}", .path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Tokens cannot be counted.
    #[error("count the tokens of a prompt: {0}")]
    Count(String),
}

impl Probe<'_> {
    /// Runs the levels that have no answer yet, in the order of the settings. `on_level` hears of
    /// each before its request is sent and again when it is done.
    ///
    /// Errors: a file that holds another probe, one that cannot be written, a tokenizer that fails
    /// on a prompt of no length. What a server does is never an error but an [`Outcome`].
    pub fn run(
        &self,
        client: &mut dyn Model,
        on_level: &mut dyn FnMut(&LevelRecord),
    ) -> Result<ProbeRecord, ProbeError> {
        let mut record = ProbeRecord::open(self.file, &self.settings, &self.server)?;
        record.is_complete = false;
        let maker = PromptMaker::new(self.settings.seed, self.count)
            .map_err(|error| ProbeError::Count(error.to_string()))?;
        record.slopes = Some(maker.slopes());
        for index in 0..record.levels.len() {
            if record.levels[index].is_answered() {
                continue;
            }
            self.level(client, &maker, &mut record, index, on_level)?;
        }
        record.is_complete = true;
        self.save(&record)?;
        Ok(record)
    }

    fn level(
        &self,
        client: &mut dyn Model,
        maker: &PromptMaker<'_>,
        record: &mut ProbeRecord,
        index: usize,
        on_level: &mut dyn FnMut(&LevelRecord),
    ) -> Result<(), ProbeError> {
        self.enter(record, index, Phase::Building)?;
        let level = record.levels[index].level;
        let output = u64::from(self.settings.output_tokens);
        let window = self.settings.window.or(self.server.window());
        let target = match window {
            Some(window) if level > window => {
                record.levels[index].outcome = Some(Outcome::BeyondWindow { window });
                return self.finish(record, index, on_level);
            }
            Some(window) => level.min(window.saturating_sub(output)),
            None => level,
        };
        let prompt = match maker.make(target, level) {
            Ok(prompt) => prompt,
            Err(error) => {
                record.levels[index].outcome = Some(Outcome::Unbuildable {
                    reason: error.to_string(),
                });
                return self.finish(record, index, on_level);
            }
        };
        record.levels[index].prompt = Some(PromptRecord::of(&prompt, target));
        record.levels[index].timeout_seconds = Some(self.timeout.as_secs());
        self.enter(record, index, Phase::Sending)?;
        on_level(&record.levels[index]);
        let messages = [Message::text(Role::User, prompt.text.as_str())];
        let started = Instant::now();
        let answer = client.query(&ModelRequest {
            messages: &messages,
            tools: &[],
            max_output_tokens: Some(self.settings.output_tokens),
            temperature: Some(0.0),
            seed: self.settings.seed,
            deadline: Some(started + self.timeout),
        });
        let seconds = started.elapsed().as_secs_f64();
        let level = &mut record.levels[index];
        match answer {
            Ok(reply) => {
                let (answer, outcome) = judge::reply(&reply, &prompt, seconds);
                level.answer = Some(answer);
                level.outcome = Some(outcome);
            }
            Err(error) => level.outcome = Some(judge::error(&error, seconds)),
        }
        self.finish(record, index, on_level)
    }

    fn finish(
        &self,
        record: &mut ProbeRecord,
        index: usize,
        on_level: &mut dyn FnMut(&LevelRecord),
    ) -> Result<(), ProbeError> {
        self.enter(record, index, Phase::Done)?;
        on_level(&record.levels[index]);
        Ok(())
    }

    /// Notes a phase in the file before it begins.
    fn enter(
        &self,
        record: &mut ProbeRecord,
        index: usize,
        phase: Phase,
    ) -> Result<(), ProbeError> {
        let level = &mut record.levels[index];
        level.phase = phase;
        level.since_unix_seconds = Some(self.clock.unix_seconds());
        self.save(record)
    }

    fn save(&self, record: &ProbeRecord) -> Result<(), ProbeError> {
        record.write(self.file).map_err(|source| ProbeError::Write {
            path: self.file.to_owned(),
            source,
        })
    }
}
