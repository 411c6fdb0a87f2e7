//! The protocol of mini-swe-agent 1 as pure rules over text: what is an action in a reply, what
//! submits, and how Python sees text. Who runs agents and who reads published trajectories must
//! agree on them.

pub mod bash_block;
pub mod shell_syntax;
pub mod text;

/// What a command prints on a line of its own to submit. Version 1 of the protocol knows both, the
/// tool-call protocol of version 2 only the last.
pub const SUBMISSION_MARKERS: [&str; 2] = [
    "MINI_SWE_AGENT_FINAL_OUTPUT",
    "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
];
