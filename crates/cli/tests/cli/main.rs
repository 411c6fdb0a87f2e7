//! Tests through the binary.

// Helpers of tests may unwrap as the tests themselves do.
#![allow(clippy::unwrap_used)]

mod canary;
mod claims;
mod collect;
mod context;
mod data;
mod dataset;
mod embedded;
mod experiment;
mod hostile;
mod interchange;
mod interface;
mod jobs;
mod make;
mod model_server;
mod models;
mod records;
mod serve;
mod splits;
mod support;
mod tiny_model;
mod train;
