//! How an evaluation is shown: tables for the terminal and one HTML file for the browser.
//!
//! Nothing here computes a statistic. Every number comes from [`temper_eval`] or from a trial's
//! own record and is formatted in one place, [`words`], so the terminal and the page agree to the
//! digit. Task statements, commands, outputs, patches and test names come from untrusted programs:
//! they pass through [`visible`] before they reach a terminal, and through [`html`] or an inert
//! data block before they reach a browser.

pub mod aggregate;
pub mod cap;
pub mod chart;
pub mod detail;
pub mod figure;
pub mod html;
pub mod index;
pub mod input;
pub mod output;
pub mod page;
pub mod table;
pub mod terminal;
pub mod visible;
pub mod words;

pub use input::{
    ArmInput, Driver, MetricInput, ReportInput, SelectionInput, TaskInput, TrainingInput,
};
pub use output::Format;
pub use page::{ReportError, render, write};
