//! MinHash signatures and banding: which pairs of many sets are worth comparing.
//!
//! Broder (1997): the smallest value under a random permutation is the same for two sets with
//! probability equal to their Jaccard similarity. Banding (Indyk and Motwani 1998; Leskovec,
//! Rajaraman, Ullman, *Mining of Massive Datasets*, 3.4): of `b` bands with `r` values each, two
//! sets with similarity `s` share one with probability `1 - (1 - s^r)^b`.

use std::collections::{BTreeMap, BTreeSet};

use super::{ngrams::NgramSet, tokens::mix};

/// The family of permutations: `x -> (a x + c) mod p` with `p = 2^61 - 1` over hashes reduced
/// modulo `p` (Carter and Wegman 1979), `a` in `1..p` and `c` in `0..p` drawn by SplitMix64 from
/// the seed, `a` first. Changes when any signature would.
pub const FAMILY: &str = "carter-wegman-61-splitmix64-1";

const P: u64 = (1 << 61) - 1;

/// Some permutations, drawn from a seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Permutations(Vec<(u64, u64)>);

/// The smallest value of a set under each permutation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature(Vec<u64>);

/// How a signature is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bands {
    /// How many bands.
    pub bands: usize,
    /// How many values of a band must agree.
    pub rows: usize,
}

impl Permutations {
    /// Draws `n` permutations.
    pub fn new(seed: u64, n: usize) -> Self {
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            mix(state) % below
        };
        Permutations((0..n).map(|_| (1 + draw(P - 1), draw(P))).collect())
    }

    /// The signature of a set; that of the empty set agrees with no other set's in practice, and
    /// [`candidate_pairs`] leaves it out.
    pub fn sign(&self, set: &NgramSet) -> Signature {
        let mut smallest = vec![u64::MAX; self.0.len()];
        for hash in set.as_slice() {
            let x = reduce(u128::from(*hash));
            for (smallest, (a, c)) in smallest.iter_mut().zip(&self.0) {
                let value = reduce(u128::from(*a) * u128::from(x) + u128::from(*c));
                *smallest = value.min(*smallest);
            }
        }
        Signature(smallest)
    }
}

/// `x mod (2^61 - 1)` for `x` below 2^122.
fn reduce(x: u128) -> u64 {
    let folded = (x & u128::from(P)) + (x >> 61);
    let folded = (folded & u128::from(P)) as u64 + (folded >> 61) as u64;
    if folded >= P { folded - P } else { folded }
}

impl Signature {
    /// The smallest values, in the order of the permutations.
    pub fn values(&self) -> &[u64] {
        &self.0
    }

    /// The share of values that agree: an estimate of the Jaccard similarity with variance
    /// `s (1 - s) / n`.
    pub fn estimate(&self, other: &Signature) -> f64 {
        let n = self.0.len().min(other.0.len()).max(1);
        let same = self.0.iter().zip(&other.0).filter(|(a, b)| a == b).count();
        same as f64 / n as f64
    }
}

impl Bands {
    /// The permutations it needs.
    pub fn n_permutations(self) -> usize {
        self.bands * self.rows
    }

    /// The probability that two sets with this similarity become candidates.
    pub fn probability(self, similarity: f64) -> f64 {
        1.0 - (1.0 - similarity.powi(self.rows as i32)).powi(self.bands as i32)
    }
}

/// The pairs of sets that share a band, each once, smaller index first, in order. Empty sets are in
/// no pair.
pub fn candidate_pairs(
    sets: &[&NgramSet],
    permutations: &Permutations,
    bands: Bands,
) -> BTreeSet<(usize, usize)> {
    let signatures: Vec<Option<Signature>> = sets
        .iter()
        .map(|set| (!set.is_empty()).then(|| permutations.sign(set)))
        .collect();
    let mut pairs = BTreeSet::new();
    for band in 0..bands.bands {
        let mut buckets: BTreeMap<&[u64], Vec<usize>> = BTreeMap::new();
        for (index, signature) in signatures.iter().enumerate() {
            let rows = signature
                .as_ref()
                .and_then(|s| s.0.get(band * bands.rows..(band + 1) * bands.rows));
            if let Some(rows) = rows {
                buckets.entry(rows).or_default().push(index);
            }
        }
        for bucket in buckets.into_values() {
            for (at, a) in bucket.iter().enumerate() {
                pairs.extend(bucket[at + 1..].iter().map(|b| (*a, *b)));
            }
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::similarity::jaccard;

    /// Two sets of which `shared` are common and `own` are each one's own.
    fn pair(salt: u64, shared: u64, own: u64) -> (NgramSet, NgramSet) {
        let set = |from: u64| {
            NgramSet::new(
                (0..shared)
                    .chain(from..from + own)
                    .map(|i| mix(salt.wrapping_mul(0x1_0000_0001).wrapping_add(i)))
                    .collect(),
            )
        };
        (set(1 << 20), set(1 << 21))
    }

    #[test]
    fn reduction_is_the_remainder() {
        for x in [
            0,
            1,
            u128::from(P),
            u128::from(P) + 1,
            u128::from(u64::MAX),
            u128::from(P) * u128::from(P),
            (1 << 122) - 1,
        ] {
            assert_eq!(u128::from(reduce(x)), x % u128::from(P));
        }
    }

    #[test]
    fn estimates_are_unbiased_and_as_wide_as_they_should_be() {
        for (shared, own) in [(10, 45), (50, 25), (80, 10)] {
            let (a, b) = pair(1, shared, own);
            let s = jaccard(&a, &b).unwrap();
            let n = 8192;
            let permutations = Permutations::new(11, n);
            let got = permutations.sign(&a).estimate(&permutations.sign(&b));
            let deviation = (s * (1.0 - s) / n as f64).sqrt();
            assert!((got - s).abs() < 4.0 * deviation, "{s} {got} {deviation}");
        }
    }

    #[test]
    fn candidates_come_as_often_as_the_formula_says() {
        let bands = Bands { bands: 6, rows: 2 };
        for (shared, own) in [(10, 45), (30, 35), (60, 20)] {
            let trials = 600;
            let mut n = 0;
            let mut s = 0.0;
            for trial in 0..trials {
                let (a, b) = pair(trial, shared, own);
                s = jaccard(&a, &b).unwrap();
                let permutations = Permutations::new(trial, bands.n_permutations());
                n += candidate_pairs(&[&a, &b], &permutations, bands).len();
            }
            let expected = bands.probability(s);
            let got = n as f64 / trials as f64;
            let deviation = (expected * (1.0 - expected) / trials as f64).sqrt();
            assert!(
                (got - expected).abs() < 4.0 * deviation,
                "{s}: {got} and {expected}"
            );
        }
    }

    #[test]
    fn verified_candidates_are_what_brute_force_finds() {
        let bands = crate::isolation::BANDS;
        let mut sets = Vec::new();
        for salt in 0..40 {
            let (a, b) = pair(salt, 40 + salt, 30 - salt.min(25));
            sets.extend([a, b]);
        }
        let sets: Vec<&NgramSet> = sets.iter().collect();
        let permutations = Permutations::new(5, bands.n_permutations());
        let candidates = candidate_pairs(&sets, &permutations, bands);
        let mut brute = BTreeSet::new();
        for a in 0..sets.len() {
            for b in a + 1..sets.len() {
                if jaccard(sets[a], sets[b]).unwrap() >= 0.7 {
                    brute.insert((a, b));
                }
            }
        }
        assert!(brute.len() > 10);
        let verified: BTreeSet<_> = candidates
            .into_iter()
            .filter(|(a, b)| jaccard(sets[*a], sets[*b]).unwrap() >= 0.7)
            .collect();
        assert_eq!(verified, brute);
        assert!(1.0 - bands.probability(0.7) < 1e-7);
    }

    #[test]
    fn empty_sets_are_like_nothing() {
        let empty = NgramSet::default();
        let permutations = Permutations::new(0, 4);
        assert!(
            candidate_pairs(
                &[&empty, &empty],
                &permutations,
                Bands { bands: 2, rows: 2 }
            )
            .is_empty()
        );
    }
}
