//! The test at launch that one batch gives one gradient, however it is split into passes.
//!
//! Gradient accumulation that divides by each micro-batch's own count passes every other check
//! and trains another objective (huggingface/transformers#34191). So before the first update some
//! of the data goes through the very code that the loop uses, whole and split, and the gradients
//! are compared.

use std::fmt;

use serde::Serialize;
use temper_model::{DType, Device, transformer::PackedBatch};

use crate::{
    learner::{Learner, activation},
    loss::WindowTokens,
    passes::passes,
    row::Row,
    run::TrainError,
};

/// What the test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelfTest {
    /// Supervised tokens of each row of the batch.
    pub supervised: Vec<usize>,
    /// Loss of the batch in one pass.
    pub loss: f64,
    /// Euclidean norm of its gradient.
    pub gradient_norm: f64,
    /// The same batch in several passes.
    pub splits: Vec<Split>,
    /// The largest error that rounding explains.
    pub tolerance: f64,
}

/// A batch in several passes, against one pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Split {
    /// Rows of each pass.
    pub rows: Vec<usize>,
    /// Difference of the losses over the loss.
    pub loss_error: f64,
    /// Norm of the gradients' difference over the gradient's norm.
    pub gradient_error: f64,
}

impl SelfTest {
    /// Whether all splits agree.
    pub fn is_passed(&self) -> bool {
        let agrees = |split: &Split| {
            split.loss_error <= self.tolerance && split.gradient_error <= self.tolerance
        };
        self.gradient_norm > 0.0 && self.splits.iter().all(agrees)
    }
}

impl fmt::Display for SelfTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.gradient_norm.is_nan() || self.gradient_norm <= 0.0 {
            return write!(
                f,
                "start training: the gradient of the first batch has norm {}, so nothing would be \
                 learned",
                self.gradient_norm
            );
        }
        write!(
            f,
            "start training: a batch with {:?} supervised tokens in its rows has another gradient \
             when it is split:",
            self.supervised
        )?;
        for split in &self.splits {
            write!(
                f,
                " passes of {:?} rows differ by {:.1e} in loss and {:.1e} in gradient;",
                split.rows, split.loss_error, split.gradient_error
            )?;
        }
        write!(f, " {:.0e} is allowed", self.tolerance)
    }
}

/// Rows of the batch.
const N_ROWS: usize = 3;

/// Pieces of the data that fit into one pass together and differ in their supervised tokens, as a
/// mean of means shows only then.
pub(super) fn sample(rows: &[Row], max_tokens: usize) -> Vec<Row> {
    let budget = (max_tokens / N_ROWS).max(2);
    let mut pieces: Vec<Row> = rows
        .iter()
        .filter_map(|row| piece(row, budget))
        .take(N_ROWS)
        .collect();
    // With a single row, or with equal counts, shorter ends of the masks make them differ.
    while pieces.len() < N_ROWS
        && let Some(first) = pieces.first().cloned()
    {
        pieces.push(first);
    }
    for (drop, row) in pieces.iter_mut().enumerate() {
        if let Some(fewer) = keep_supervised(row, row.n_supervised().saturating_sub(drop).max(1)) {
            *row = fewer;
        }
    }
    while pieces.len() > 1 && pieces.iter().map(Row::n_tokens).sum::<usize>() > max_tokens {
        pieces.pop();
    }
    pieces
}

/// A stretch of at most `n` tokens that begins before a row's first supervised token.
fn piece(row: &Row, n: usize) -> Option<Row> {
    let first = row.mask().iter().position(|&kept| kept)?;
    let start = first.saturating_sub(n / 2).min(first - 1);
    let end = row.n_tokens().min(start + n);
    let mut mask = row.mask()[start..end].to_vec();
    mask[0] = false;
    Row::new(row.ids()[start..end].to_vec(), mask).ok()
}

/// The row with only the last `n` of its supervised tokens.
fn keep_supervised(row: &Row, n: usize) -> Option<Row> {
    let mut left = n;
    let mut mask = row.mask().to_vec();
    for kept in mask.iter_mut().rev().filter(|kept| **kept) {
        *kept = left > 0;
        left = left.saturating_sub(1);
    }
    Row::new(row.ids().to_vec(), mask).ok()
}

/// Compares the gradients of a batch in one pass and in several, as `accumulate` makes them.
/// Gradients are clear afterwards.
pub(super) fn run<D: Device>(
    learner: &mut Learner<D>,
    rows: &[Row],
    mut accumulate: impl FnMut(&mut Learner<D>, &[PackedBatch], WindowTokens) -> Result<f64, TrainError>,
) -> Result<SelfTest, TrainError> {
    let supervised: Vec<usize> = rows.iter().map(Row::n_supervised).collect();
    let counts: Vec<u64> = supervised.iter().map(|&n| n as u64).collect();
    let Some(window) = WindowTokens::of_ranks(&counts) else {
        return Err(TrainError::NoRows);
    };
    let mut gradient_of = |split: &[usize]| -> Result<(f64, Vec<f32>), TrainError> {
        let mut batches = Vec::new();
        let mut rest = rows;
        for &n in split {
            let (here, later) = rest.split_at(n);
            batches.extend(passes(here, true, usize::MAX));
            rest = later;
        }
        learner.clear_gradients()?;
        let loss = accumulate(learner, &batches, window)?;
        let gradients = learner.gradients()?;
        learner.clear_gradients()?;
        Ok((loss, gradients))
    };
    let (loss, whole) = gradient_of(&[rows.len()])?;
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let gradient_norm = norm(&mut whole.iter().map(|&x| f64::from(x)));
    let ways = match rows.len() {
        0 | 1 => vec![],
        2 => vec![vec![1, 1]],
        n => vec![vec![1; n], vec![1, n - 1], vec![n - 1, 1]],
    };
    let splits = ways
        .into_iter()
        .map(|rows| {
            let (split_loss, split) = gradient_of(&rows)?;
            let pairs = split.iter().zip(&whole);
            let difference = norm(&mut pairs.map(|(a, b)| f64::from(*a) - f64::from(*b)));
            Ok(Split {
                rows,
                loss_error: (split_loss - loss).abs() / loss.abs().max(1e-12),
                gradient_error: difference / gradient_norm.max(1e-30),
            })
        })
        .collect::<Result<_, TrainError>>()?;
    Ok(SelfTest {
        supervised,
        loss,
        gradient_norm,
        splits,
        tolerance: match activation::<D>() {
            DType::F32 => 1e-4,
            _ => 3e-2,
        },
    })
}

#[cfg(test)]
mod tests {
    use temper_model::cpu::Cpu;
    use temper_model_fixtures::{device, fixture};

    use super::*;
    use crate::{
        OptimizerConfig, config::Activations, learner::LearnerSpec, method::Method, sft::accumulate,
    };

    fn row(n: usize, n_supervised: usize) -> Row {
        let ids = (0..n as u32).map(|at| 3 + (at * 7 + n as u32) % 60);
        Row::new(
            ids.collect(),
            (0..n).map(|at| at >= n - n_supervised).collect(),
        )
        .unwrap()
    }

    fn learner(method: &Method) -> Learner<Cpu> {
        let spec = LearnerSpec {
            checkpoint: &fixture("qwen2").checkpoint,
            adapter: None,
            method,
            seed: 1,
            max_tokens: 48,
            max_positions: 48,
            activations: Activations::KeepAll,
            optimizer: OptimizerConfig::default(),
        };
        Learner::new(&device(), &spec).unwrap()
    }

    /// What divides by each pass's own tokens, and then by the passes: the fault that this is for.
    fn mean_of_means(
        learner: &mut Learner<Cpu>,
        batches: &[PackedBatch],
        _: WindowTokens,
    ) -> Result<f64, TrainError> {
        let n = batches.len() as u64;
        let mut loss = 0.0;
        for batch in batches {
            let own = batch.total_weight() as u64;
            let window = WindowTokens::of_ranks(&[own * n]).unwrap();
            loss += accumulate(learner, std::slice::from_ref(batch), window)?;
        }
        Ok(loss)
    }

    #[test]
    fn the_loop_passes_and_a_mean_of_means_does_not() {
        let rows = [row(20, 12), row(16, 12), row(30, 2), row(9, 1)];
        for method in [Method::default(), Method::Full] {
            let mut learner = learner(&method);
            let batch = sample(&rows, 48);
            assert_eq!(batch.len(), 3);
            let good = run(&mut learner, &batch, accumulate).unwrap();
            assert!(good.is_passed(), "{good}");
            assert_eq!(good.splits.len(), 3);
            assert!(learner.gradients().unwrap().iter().all(|&it| it == 0.0));
            let bad = run(&mut learner, &batch, mean_of_means).unwrap();
            assert!(!bad.is_passed());
            assert!(bad.splits[0].gradient_error > 0.01, "{bad:?}");
            let text = bad.to_string();
            assert!(text.contains("another gradient when it is split"), "{text}");
        }
    }

    #[test]
    fn pieces_fit_into_a_pass_and_differ_in_their_counts() {
        for rows in [
            vec![row(40, 20)],
            vec![row(6, 1)],
            vec![row(40, 3), row(40, 3), row(40, 3), row(40, 3)],
            vec![row(1000, 1), row(10, 9)],
        ] {
            let longest = rows.iter().map(Row::n_tokens).max().unwrap();
            let pieces = sample(&rows, longest);
            let n_tokens: usize = pieces.iter().map(Row::n_tokens).sum();
            assert!(n_tokens <= longest && !pieces.is_empty());
            let counts: Vec<usize> = pieces.iter().map(Row::n_supervised).collect();
            if rows.iter().any(|row| row.n_supervised() > 2) {
                assert!(counts.iter().any(|it| it != &counts[0]), "{counts:?}");
            }
        }
    }

    #[test]
    fn a_batch_that_teaches_nothing_is_no_pass() {
        let mut learner = learner(&Method::Full);
        let nothing = run(&mut learner, &[row(9, 2)], |_, _, _| Ok(1.0)).unwrap();
        assert!(!nothing.is_passed());
        assert!(nothing.to_string().contains("nothing would be learned"));
    }
}
