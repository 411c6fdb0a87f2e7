//! Trajectories and results in the formats of other programs.

pub mod atif;
pub mod mini_swe_agent;
