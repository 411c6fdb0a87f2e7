//! Hostile commands against the embedded sandbox. Each test can fail: it asserts what the attack
//! would have changed, and where it can, that the attack was really tried.
//!
//! Where the kernel allows no sandbox the tests fail and say so. On such a machine
//! `TEMPER_TEST_WITHOUT_SANDBOX=1` turns them into passes; nothing else does.

#![allow(clippy::unwrap_used)]

mod basics;
mod common;
mod files;
mod leftovers;
mod limits;
mod network;
mod output;
mod privileges;
mod processes;
mod rootless;
mod secrets;
mod snapshots;
