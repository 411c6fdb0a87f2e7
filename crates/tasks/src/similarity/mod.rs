//! How alike two texts are: tokens, n-grams of them, exact set measures, MinHash and banding.
//!
//! Every number here is a function of the two texts alone and of a version that is written down
//! with it ([`FAMILY`], [`TOKENS`]), so that what was frozen years ago can be computed again.
//! MinHash only proposes pairs; whether a pair is alike is always decided on the sets themselves
//! ([`jaccard`]).
//!
//! Not found: code that was rewritten, reordered below the length of an n-gram, or translated.

mod minhash;
mod ngrams;
mod tokens;

pub use minhash::{Bands, FAMILY, Permutations, Signature, candidate_pairs};
pub use ngrams::{NgramSet, Rolling, containment, intersection, jaccard, ngrams, rolling};
pub use tokens::{Kind, Names, TOKENS, Token, code, code_lines, hash_bytes, words};
