//! From candidate bugs to proven tasks: the screen at scale, the test lists, the proof, and what
//! mutants say of the tests.

pub mod audit;
pub mod explain;
pub mod lists;
pub mod proof;
pub mod screen;
pub mod whole;

pub use audit::{Audit, Kills, equivalents};
pub use explain::{Outputs, explain};
pub use lists::{ListOptions, lists};
pub use proof::{Proof, prove};
pub use screen::{ScreenOptions, Screened, Status, screen};
