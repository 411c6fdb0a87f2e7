//! Exit codes. They are part of the interface: `docs/exit-codes.md` lists them, and a test keeps
//! that page and this list the same.

/// Everything that was asked for was done. Tasks that stay unsolved are results, not errors.
pub const SUCCESS: u8 = 0;
/// Something outside of the categories below failed; the message says what.
pub const FAILURE: u8 = 1;
/// The command line is wrong.
pub const USAGE: u8 = 2;
/// A file that was given is malformed, unreadable or contradicts itself.
pub const INPUT: u8 = 3;
/// Something that must be installed or reachable is not.
pub const ENVIRONMENT: u8 = 4;
/// The sandbox lacks a protection that the run demands.
pub const SANDBOX_REFUSED: u8 = 5;
/// The job directory holds a different job; an experiment is not what was declared.
pub const JOB_DIFFERS: u8 = 6;
/// A check found what it looks for: a task that is not proven, a suite that changed, dev tasks that the final test shares, a second final test.
pub const FINDINGS: u8 = 7;
/// The run is over, but the infrastructure lost every trial: there is no result.
pub const ALL_LOST: u8 = 8;
/// A budget's hard stop ended the run; the job can be resumed with a larger one.
pub const BUDGET: u8 = 9;
/// Sides that must agree do not: what trained and what serves rotate differently, or profile,
/// server and training differ in their context.
pub const GATE_CLOSED: u8 = 10;
/// A rung of the canary ladder does not hold; the record says which gate and why.
pub const CANARY: u8 = 11;
/// Stopped by Ctrl-C or a termination signal; the job can be resumed.
pub const INTERRUPTED: u8 = 130;
