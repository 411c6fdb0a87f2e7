//! Which tasks share code, and how a suite is divided so that no part learns from another.
//!
//! `evidence` reads from a task what it says about its code; [`links`] are the reasons for which
//! two tasks belong together; a source group is what links connect; [`split`] divides groups, never
//! tasks; [`SplitManifest`] freezes the division, [`extend`] adds to it without moving anything,
//! and [`verify`] proves it again from the tasks themselves.
//!
//! Whether two tasks are linked depends on these two tasks alone, never on a third: so a task that
//! is added later cannot link two old ones.

mod evidence;
mod extend;
mod functions;
mod groups;
mod hunks;
mod links;
mod manifest;
mod sources;
mod split;
mod statement;
mod verify;

#[cfg(test)]
pub(crate) mod tests;

pub use evidence::{Code, Collector, Evidence, Sources, WholeFile, no_sources};
pub use evidence::{comparable_path, home, project_name};
pub(crate) use evidence::{fix_texts, identities, lineage, patch_texts};
pub use extend::{Extension, Refused, extend};
pub use functions::{Function, functions};
pub use groups::{Group, groups, why};
pub use links::{BANDS, Granularity, Link, LinkRule, Reason, links};
pub use manifest::{
    FrozenGroup, FrozenTask, MAX_SPLIT_BYTES, SPLIT_FILE, SplitManifest, apply, content_digest,
};
pub use sources::Archives;
pub use split::{Fractions, SplitError, SplitRule, split};
pub use statement::statement_words;
pub use verify::{Finding, verify};
