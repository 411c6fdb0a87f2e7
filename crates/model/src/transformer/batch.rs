//! Token sequences packed into the rows of one batch.

use temper_checkpoint::ModelConfig;

use super::{ModelError, Result};

/// Sequences that lie one after another, with the token that each row is to predict.
///
/// Attention does not cross from one sequence into another and positions start again in each, so a
/// packed batch gives what its sequences give one by one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PackedBatch {
    /// Token ids, `[n]`.
    pub ids: Vec<u32>,
    /// Position of each token in its sequence, `[n]`.
    pub positions: Vec<u32>,
    /// Where each sequence starts, and the end of the last; `[n_sequences + 1]`.
    pub starts: Vec<u32>,
    /// The next token of each row, `[n]`; read only where the row's weight is not 0.
    pub targets: Vec<u32>,
    /// How much each row's prediction counts, `[n]`; rows of weight 0 cost nothing in the head.
    pub weights: Vec<f32>,
}

impl PackedBatch {
    /// No sequences.
    pub fn new() -> Self {
        PackedBatch {
            starts: vec![0],
            ..Default::default()
        }
    }

    /// Appends a sequence. `weights[t]` is how much the prediction of token `t` counts, a loss
    /// mask; that of the first token is never predicted.
    ///
    /// # Panics
    /// When there are not as many weights as tokens.
    pub fn push(&mut self, ids: &[u32], weights: &[f32]) {
        assert_eq!(ids.len(), weights.len(), "a weight for every token");
        if self.starts.is_empty() {
            self.starts.push(0);
        }
        self.ids.extend_from_slice(ids);
        self.positions.extend(0..ids.len() as u32);
        self.targets.extend(ids.iter().skip(1));
        self.weights.extend(weights.iter().skip(1));
        if !ids.is_empty() {
            self.targets.push(0);
            self.weights.push(0.0);
        }
        self.starts.push(self.ids.len() as u32);
    }

    /// Number of tokens.
    pub fn n_tokens(&self) -> usize {
        self.ids.len()
    }

    /// The rows whose predictions count, in order.
    pub fn supervised_rows(&self) -> Vec<u32> {
        (0..self.weights.len() as u32)
            .filter(|&row| self.weights[row as usize] != 0.0)
            .collect()
    }

    /// Sum of the weights: the denominator of a mean over this batch alone.
    pub fn total_weight(&self) -> f64 {
        self.weights.iter().map(|&weight| f64::from(weight)).sum()
    }

    /// Checks that every array fits the others, the model and its rotary table.
    pub(super) fn check(&self, config: &ModelConfig, n_positions: usize) -> Result<()> {
        let refuse = |reason: String| {
            Err(ModelError::Input {
                operation: "take a batch",
                reason,
            })
        };
        let n = self.ids.len();
        if n == 0 {
            return refuse("it has no tokens".into());
        }
        for (what, len) in [
            ("positions", self.positions.len()),
            ("targets", self.targets.len()),
            ("weights", self.weights.len()),
        ] {
            if len != n {
                return refuse(format!("{len} {what} for {n} tokens"));
            }
        }
        let vocabulary = config.vocab_size;
        if let Some(id) = self.ids.iter().find(|&&id| id as usize >= vocabulary) {
            return refuse(format!("token {id} of a vocabulary of {vocabulary}"));
        }
        if let Some(position) = self
            .positions
            .iter()
            .find(|&&it| it as usize >= n_positions)
        {
            return refuse(format!("position {position} of {n_positions}"));
        }
        let rises = self.starts.windows(2).all(|pair| pair[0] < pair[1]);
        let ends = (self.starts.first(), self.starts.last());
        if !rises || ends != (Some(&0), Some(&(n as u32))) || self.starts.len() < 2 {
            return refuse(format!(
                "sequences that do not rise from 0 to {n}, or are empty"
            ));
        }
        for (row, (&weight, &target)) in self.weights.iter().zip(&self.targets).enumerate() {
            if !weight.is_finite() {
                return refuse(format!("weight {weight} of row {row}"));
            }
            if weight != 0.0 && target as usize >= vocabulary {
                return refuse(format!(
                    "target {target} of row {row} in a vocabulary of {vocabulary}"
                ));
            }
        }
        Ok(())
    }
}
