//! Sets of n-grams and how much of them two texts share.

use super::tokens::mix;

/// An odd multiplier, so that every token of an n-gram takes part in all high bits.
const BASE: u64 = 0x9e37_79b9_7f4a_7c15;

/// The distinct n-grams of a text, by hash, in order. Two different n-grams fall together with
/// probability 2^-64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NgramSet(Vec<u64>);

impl NgramSet {
    /// The set of some hashes.
    pub fn new(mut hashes: Vec<u64>) -> Self {
        hashes.sort_unstable();
        hashes.dedup();
        hashes.shrink_to_fit();
        NgramSet(hashes)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In ascending order.
    pub fn as_slice(&self) -> &[u64] {
        &self.0
    }
}

/// Hashes n-grams of a stream of token hashes, each in constant time: push a token, get the hash of
/// the last `n`.
#[derive(Clone, Debug)]
pub struct Rolling {
    window: Vec<u64>,
    next: usize,
    n_seen: usize,
    hash: u64,
    /// `BASE` to the power of `n`, which takes the oldest token out.
    power: u64,
}

/// Begins a stream of n-grams of `n` tokens, at least one.
pub fn rolling(n: usize) -> Rolling {
    let n = n.max(1);
    Rolling {
        window: vec![0; n],
        next: 0,
        n_seen: 0,
        hash: 0,
        power: (0..n).fold(1u64, |power, _| power.wrapping_mul(BASE)),
    }
}

impl Rolling {
    /// Adds a token; gives the n-gram that ends with it once there are enough.
    pub fn push(&mut self, token: u64) -> Option<u64> {
        let oldest = std::mem::replace(&mut self.window[self.next], token);
        self.next = (self.next + 1) % self.window.len();
        self.n_seen = self.n_seen.saturating_add(1);
        self.hash = self
            .hash
            .wrapping_mul(BASE)
            .wrapping_add(token)
            .wrapping_sub(oldest.wrapping_mul(self.power));
        (self.n_seen >= self.window.len()).then(|| mix(self.hash))
    }
}

/// The n-grams of a list of tokens. A list shorter than `n` has none.
pub fn ngrams(tokens: &[u64], n: usize) -> NgramSet {
    let mut stream = rolling(n);
    NgramSet::new(
        tokens
            .iter()
            .filter_map(|token| stream.push(*token))
            .collect(),
    )
}

/// How many n-grams both have.
pub fn intersection(a: &NgramSet, b: &NgramSet) -> usize {
    let (mut a, mut b) = (a.0.as_slice(), b.0.as_slice());
    let mut n = 0;
    while let (Some(x), Some(y)) = (a.first(), b.first()) {
        match x.cmp(y) {
            std::cmp::Ordering::Less => a = &a[1..],
            std::cmp::Ordering::Greater => b = &b[1..],
            std::cmp::Ordering::Equal => {
                n += 1;
                a = &a[1..];
                b = &b[1..];
            }
        }
    }
    n
}

/// Shared n-grams over all n-grams of both, from 0 to 1; `None` when both have none.
pub fn jaccard(a: &NgramSet, b: &NgramSet) -> Option<f64> {
    let shared = intersection(a, b);
    let all = a.len() + b.len() - shared;
    (all > 0).then(|| shared as f64 / all as f64)
}

/// The share of the n-grams of `a` that `b` has too; `None` when `a` has none (Broder 1997).
pub fn containment(a: &NgramSet, b: &NgramSet) -> Option<f64> {
    (!a.is_empty()).then(|| intersection(a, b) as f64 / a.len() as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn rolling_hashes_depend_on_the_window_alone() {
        let tokens: Vec<u64> = (0..400u64).map(|i| mix(i * i % 37)).collect();
        for n in [1, 2, 5, 13] {
            let mut stream = rolling(n);
            let rolled: Vec<u64> = tokens.iter().filter_map(|t| stream.push(*t)).collect();
            let fresh: Vec<u64> = tokens
                .windows(n)
                .map(|window| {
                    let mut one = rolling(n);
                    window.iter().filter_map(|t| one.push(*t)).last().unwrap()
                })
                .collect();
            assert_eq!(rolled, fresh);
            // Equal hashes exactly where the windows are equal.
            let distinct: BTreeSet<&[u64]> = tokens.windows(n).collect();
            assert_eq!(distinct.len(), NgramSet::new(rolled).len());
        }
    }

    #[test]
    fn measures_are_those_of_sets() {
        let mut state = 7u64;
        let mut draw = move |below: u64| {
            state = state.wrapping_add(BASE);
            mix(state) % below
        };
        for _ in 0..200 {
            let a: Vec<u64> = (0..draw(30)).map(|_| draw(40)).collect();
            let b: Vec<u64> = (0..draw(30)).map(|_| draw(40)).collect();
            let (x, y): (BTreeSet<u64>, BTreeSet<u64>) =
                (a.iter().copied().collect(), b.iter().copied().collect());
            let (a, b) = (NgramSet::new(a), NgramSet::new(b));
            let shared = x.intersection(&y).count();
            let all = x.union(&y).count();
            assert_eq!(intersection(&a, &b), shared);
            assert_eq!(
                jaccard(&a, &b),
                (all > 0).then(|| shared as f64 / all as f64)
            );
            assert_eq!(
                containment(&a, &b),
                (!x.is_empty()).then(|| shared as f64 / x.len() as f64)
            );
        }
    }

    #[test]
    fn a_text_shorter_than_an_ngram_has_none() {
        assert!(ngrams(&[1, 2, 3], 4).is_empty());
        assert_eq!(ngrams(&[1, 2, 3], 3).len(), 1);
    }
}
