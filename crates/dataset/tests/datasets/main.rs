//! Data sets of trials made by hand, and audits of sets in which it is known what is wrong.
#![allow(clippy::unwrap_used)]

mod audit;
mod kept;
mod pairs;
mod rendering;
mod sampled;
mod setup;
mod support;
