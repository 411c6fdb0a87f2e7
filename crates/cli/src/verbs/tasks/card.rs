//! `temper tasks card`: what a suite holds, counted.

use temper_report::Format;
use temper_tasks::card::Card;

use crate::{args::SuiteArgs, error::CliError, exit_code, output, places::Places, tasks};

/// Prints the card, as Markdown unless a machine format is asked for.
pub fn run(args: &SuiteArgs, format: Format, places: &Places) -> Result<u8, CliError> {
    let suite = tasks::load(args, places)?;
    let card = Card::of(&suite.tasks);
    output::data(&format.one(&card, || card.markdown()));
    Ok(exit_code::SUCCESS)
}
