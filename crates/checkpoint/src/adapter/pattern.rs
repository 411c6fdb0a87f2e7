//! Ranks and alphas that differ between modules, as PEFT's `rank_pattern` and `alpha_pattern`.
//!
//! The engine has one rank and one scale for an adapter. A pair of a smaller rank is filled up with
//! zeros, and a pair of another scale has the quotient multiplied into its B, which says the same:
//! `scale_i * B A = scale * (scale_i / scale * B) A`.

use super::Adapter;
use crate::{config::ModelConfig, names::Projection};

/// The patterns of an adapter, in their order.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    pub ranks: Vec<(String, usize)>,
    pub alphas: Vec<(String, f64)>,
}

impl Patterns {
    /// Whether a key is the name of a module or the end of one.
    pub fn is_name(key: &str) -> bool {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.');
        !key.is_empty() && key.chars().all(is_plain)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.alphas.is_empty()
    }

    /// The rank of a projection, where a pattern names it.
    pub fn rank(&self, layer: usize, projection: Projection) -> Option<usize> {
        first(&self.ranks, layer, projection)
    }

    /// Gives all pairs the largest rank and the adapter's own alpha.
    pub fn make_uniform(&self, adapter: &mut Adapter, model: &ModelConfig) {
        if self.is_empty() {
            return;
        }
        let divisor = |rank: usize| match adapter.rank_stabilised {
            true => (rank as f64).sqrt(),
            false => rank as f64,
        };
        let own_rank = |&(layer, projection): &(usize, Projection)| {
            self.rank(layer, projection).unwrap_or(adapter.rank)
        };
        let largest = adapter.tensors.keys().map(own_rank).max();
        let largest = largest.unwrap_or(adapter.rank);
        let scale = adapter.alpha / divisor(largest);
        let keys: Vec<_> = adapter.tensors.keys().copied().collect();
        let changes: Vec<(usize, f64)> = keys
            .iter()
            .map(|key| {
                let rank = own_rank(key);
                let alpha = first(&self.alphas, key.0, key.1).unwrap_or(adapter.alpha);
                (rank, alpha / divisor(rank) / scale)
            })
            .collect();
        for (pair, (rank, factor)) in adapter.tensors.values_mut().zip(changes) {
            let columns = pair.a.len() / rank;
            pair.a.resize(largest * columns, 0.0);
            let rows = pair.b.chunks(rank);
            pair.b = rows
                .flat_map(|row| {
                    let scaled = row.iter().map(|&b| (f64::from(b) * factor) as f32);
                    scaled.chain(std::iter::repeat_n(0.0, largest - rank))
                })
                .collect();
        }
        adapter.rank = largest;
        debug_assert!(adapter.check(model).is_ok());
    }
}

/// What the first pattern that fits a projection says.
fn first<T: Copy>(patterns: &[(String, T)], layer: usize, projection: Projection) -> Option<T> {
    let name = format!("model.layers.{layer}.{}", projection.path());
    let fits = |key: &str| {
        name.strip_suffix(key)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    let found = patterns.iter().find(|(key, _)| fits(key));
    found.map(|&(_, value)| value)
}
