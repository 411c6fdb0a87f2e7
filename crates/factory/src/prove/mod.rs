//! From candidate bugs to proven tasks: the screen at scale, the test lists, the proof, and what
//! mutants say of the tests.

pub mod lists;
pub mod screen;

pub use lists::{ListOptions, lists};
pub use screen::{ScreenOptions, Screened, Status, screen};
