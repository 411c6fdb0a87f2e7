//! The agent's loop, its protocols and profiles, the models that drive it, and trials.

pub mod budget;
pub mod model;
