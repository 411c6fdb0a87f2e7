//! Hostile commands against the embedded sandbox. Each test can fail: it asserts what the attack
//! would have changed, and where it can, that the attack was really tried.

#![allow(clippy::unwrap_used)]

mod basics;
mod common;
