//! Drawing tokens from a model: paged cache, continuous batching, sampling parameters, and the
//! engine that serves many requests at once.
//!
//! [`pages`] knows who holds which page and what is in it, [`schedule`] which rows come next,
//! [`runner`] what is asked of the model, [`text`] what the ids say; [`engine`] is the thread that
//! owns them. `docs/sampling.md` defines the parameters and what is promised of the numbers.

pub mod pages;
pub mod params;
pub mod runner;
pub mod schedule;
pub mod text;
