//! `temper split verify`: proves a frozen split again.

use serde::Serialize;
use temper_report::Format;
use temper_tasks::isolation::{Finding, SplitManifest, verify};

use super::args::PlaceArgs;
use crate::{error::CliError, exit_code, output, places::Places, tasks};

#[derive(Serialize)]
struct Verified {
    holds: bool,
    n_tasks: usize,
    n_groups: usize,
    sources: bool,
    findings: Vec<Finding>,
}

/// Checks; exit code [`exit_code::FINDINGS`] when something is wrong.
pub fn run(place: &PlaceArgs, format: Format, places: &Places) -> Result<u8, CliError> {
    let (suite, path) = super::locate(place, places)?;
    let manifest = SplitManifest::read(&path).map_err(tasks::input_error)?;
    let tasks = super::load(&suite)?;
    let evidence = super::evidence(&suite, &tasks, &manifest.rule.links, places)?;
    let findings = verify(&manifest, &evidence).map_err(super::split_error)?;
    let verified = Verified {
        holds: findings.is_empty(),
        n_tasks: evidence.len(),
        n_groups: manifest.groups.len(),
        sources: manifest.rule.links.sources,
        findings,
    };
    output::data(&format.one(&verified, || text(&verified)));
    Ok(if verified.holds {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}

fn text(verified: &Verified) -> String {
    let mut text = String::new();
    for finding in &verified.findings {
        text.push_str(&format!("{finding}\n"));
    }
    let compared = if verified.sources {
        "patches and archives"
    } else {
        "patches alone"
    };
    text.push_str(&if verified.holds {
        format!(
            "{} tasks in {} source groups: no link between splits, nothing changed (by {compared})\n",
            verified.n_tasks, verified.n_groups
        )
    } else {
        format!("{} findings (by {compared})\n", verified.findings.len())
    });
    output::printable(&text)
}
