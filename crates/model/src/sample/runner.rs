//! What the engine asks of a model on a device: one step of rows over the paged cache.

pub use temper_checkpoint::adapter::Adapter as AdapterWeights;

use crate::{device::DeviceError, transformer::ModelError};

/// How one token is drawn; see [`crate::device::Draws`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// The request's seed.
    pub seed: u64,
    /// Tokens that the request drew before.
    pub n_drawn: u32,
    /// How many of the most likely tokens are reported.
    pub top: usize,
}

/// Which rows of a run tell how likely the token after them was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Score {
    /// The first row, counted from the run's start.
    pub first: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// As in [`Draw`].
    pub temperature: f32,
    /// How many of the most likely tokens are reported for each.
    pub top: usize,
}

/// Consecutive positions of one sequence.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// All ids of the sequence that are known, those of the rows among them, and the one behind
    /// the last row where that row is scored.
    pub tokens: &'a [u32],
    /// Position of the first row.
    pub start: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// The pages of the sequence, in order, enough for all rows.
    pub pages: &'a [u32],
    /// How the token behind the last row is drawn.
    pub draw: Option<Draw>,
    /// Which rows are scored.
    pub score: Option<Score>,
}

/// A token that could have stood at a position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alternative {
    /// The token.
    pub id: u32,
    /// As [`TokenLogprob::logprob`].
    pub logprob: f32,
    /// As [`TokenLogprob::raw_logprob`].
    pub raw_logprob: f32,
}

/// How likely a token was, natural logarithms, before any truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub id: u32,
    /// Under `softmax(logits / temperature)`; under `softmax(logits)` for a greedy request.
    pub logprob: f32,
    /// Under `softmax(logits)`.
    pub raw_logprob: f32,
    /// The most likely tokens, the likeliest first, as many as were asked for; equal ones by id.
    pub top: Vec<Alternative>,
}

/// What came of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutput {
    /// The token that was drawn, where one was.
    pub drawn: Option<TokenLogprob>,
    /// The scored tokens, in order.
    pub scored: Vec<TokenLogprob>,
}

/// Sizes of a runner that the schedule must keep to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerLimits {
    /// Rows of one step.
    pub max_rows: usize,
    /// Runs of one step.
    pub max_runs: usize,
    /// Pages of the cache, the padding page among them.
    pub n_pages: usize,
    /// The longest sequence in tokens.
    pub max_context: usize,
    /// Ids are below this.
    pub vocabulary: usize,
}

/// A model over a paged cache.
pub trait Runner: Send {
    /// Its sizes.
    fn limits(&self) -> RunnerLimits;

    /// Copies pages of the cache: from, to.
    fn copy_pages(&mut self, moves: &[(u32, u32)]) -> Result<(), DeviceError>;

    /// Computes the rows of all runs with one adapter (0 for none), and returns one output a run.
    fn run(&mut self, adapter: u64, runs: &[Run<'_>]) -> Result<Vec<RunOutput>, DeviceError>;

    /// Makes an adapter usable under a number that is not in use and not 0.
    fn load_adapter(&mut self, adapter: u64, weights: &AdapterWeights) -> Result<(), ModelError>;

    /// Ends the use of an adapter.
    fn unload_adapter(&mut self, adapter: u64);
}
