//! Rows that are there more than once, word for word or nearly.
//!
//! Memory is bounded by tracking a bounded number of rows; figures say how many were.

use std::collections::HashMap;

use serde::Serialize;
use temper_core::Digest;
use temper_tasks::similarity::{Permutations, hash_bytes, ngrams, words};

use super::RowPlace;

/// Rows whose content and id are remembered.
pub const MAX_TRACKED: u64 = 3_500_000;
/// Rows whose edits are remembered.
pub const MAX_SIGNED: u64 = 500_000;
/// Words of an n-gram of edit commands.
pub const EDIT_NGRAM_WORDS: usize = 5;
/// Two rows are near duplicates from this estimate of the Jaccard similarity on.
pub const MIN_SIMILARITY: f64 = 0.9;

const N_BANDS: usize = 8;
const N_ROWS: usize = 8;
const SEED: u64 = 0;

/// A row that another is much like.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Near {
    /// The earlier row.
    pub row: RowPlace,
    /// Estimated Jaccard similarity of the n-grams of their edit commands.
    pub similarity: f64,
}

/// The MinHash values of a row's edits, shortened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sketch(Vec<u32>);

/// Makes sketches; can be shared by threads.
#[derive(Debug)]
pub(super) struct Sketcher(Permutations);

impl Sketcher {
    pub(super) fn new() -> Self {
        Sketcher(Permutations::new(SEED, N_BANDS * N_ROWS))
    }

    /// The sketch of edit commands; `None` for fewer words than an n-gram has.
    pub(super) fn sketch(&self, edits: &str) -> Option<Sketch> {
        let mut hashes = Vec::new();
        words(edits.as_bytes(), |hash, _| hashes.push(hash));
        let set = ngrams(&hashes, EDIT_NGRAM_WORDS);
        if set.is_empty() {
            return None;
        }
        let signature = self.0.sign(&set);
        Some(Sketch(
            signature
                .values()
                .iter()
                .map(|value| *value as u32)
                .collect(),
        ))
    }
}

impl Sketch {
    fn similarity(&self, other: &Sketch) -> f64 {
        let same = self.0.iter().zip(&other.0).filter(|(a, b)| a == b).count();
        same as f64 / self.0.len() as f64
    }

    fn bands(&self) -> impl Iterator<Item = u64> {
        self.0.chunks(N_ROWS).enumerate().map(|(band, values)| {
            let bytes: Vec<u8> = values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .chain([band as u8])
                .collect();
            hash_bytes(&bytes)
        })
    }
}

/// The rows seen so far.
#[derive(Debug, Default)]
pub(super) struct Seen {
    by_content: HashMap<[u8; 16], RowPlace>,
    by_band: HashMap<u64, u32>,
    sketches: Vec<(RowPlace, Sketch)>,
    /// How many rows were compared word for word, and by their edits.
    pub n_tracked: u64,
    pub n_signed: u64,
}

impl Seen {
    /// The earlier row with the same messages; remembers this one.
    pub(super) fn same(&mut self, place: RowPlace, digest: &Digest) -> Option<RowPlace> {
        if self.n_tracked >= MAX_TRACKED {
            return None;
        }
        self.n_tracked += 1;
        let key = key(digest.as_str().as_bytes());
        match self.by_content.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => Some(*entry.get()),
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(place);
                None
            }
        }
    }

    /// The earlier row with the most similar edits, if they are similar enough; remembers this one
    /// otherwise, so that each family has one representative.
    pub(super) fn near(&mut self, place: RowPlace, sketch: Sketch) -> Option<Near> {
        if self.n_signed >= MAX_SIGNED {
            return None;
        }
        self.n_signed += 1;
        let bands: Vec<u64> = sketch.bands().collect();
        let best = bands
            .iter()
            .filter_map(|band| self.by_band.get(band))
            .map(|index| &self.sketches[*index as usize])
            .map(|(row, other)| Near {
                row: *row,
                similarity: sketch.similarity(other),
            })
            .filter(|near| near.similarity >= MIN_SIMILARITY)
            .max_by(|a, b| {
                a.similarity
                    .total_cmp(&b.similarity)
                    .then(b.row.cmp(&a.row))
            });
        if best.is_some() {
            return best;
        }
        let index = self.sketches.len() as u32;
        for band in bands {
            self.by_band.entry(band).or_insert(index);
        }
        self.sketches.push((place, sketch));
        None
    }
}

/// The first 128 bits of a digest in hexadecimal digits.
fn key(hex: &[u8]) -> [u8; 16] {
    let digit = |byte: u8| (byte as char).to_digit(16).unwrap_or(0) as u8;
    std::array::from_fn(|at| digit(hex[2 * at]) << 4 | digit(hex[2 * at + 1]))
}

/// How often each instance id occurs.
#[derive(Debug, Default)]
pub(super) struct Instances {
    counts: HashMap<[u8; 16], u32>,
    pub n_rows: u64,
}

impl Instances {
    pub(super) fn add(&mut self, id: &str) {
        if self.n_rows >= MAX_TRACKED {
            return;
        }
        self.n_rows += 1;
        let digest = Digest::of(id.as_bytes());
        *self
            .counts
            .entry(key(digest.as_str().as_bytes()))
            .or_default() += 1;
    }

    pub(super) fn n_distinct(&self) -> u64 {
        self.counts.len() as u64
    }

    /// Ids with more than one row.
    pub(super) fn n_repeated(&self) -> u64 {
        self.counts.values().filter(|n| **n > 1).count() as u64
    }

    /// Rows of such ids.
    pub(super) fn n_repeated_rows(&self) -> u64 {
        let repeated = self.counts.values().filter(|n| **n > 1);
        repeated.map(|n| u64::from(*n)).sum()
    }

    pub(super) fn most_rows(&self) -> u64 {
        self.counts.values().max().copied().unwrap_or(0).into()
    }
}
