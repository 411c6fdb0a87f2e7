//! `temper profile [NAME]`: shows the agent profiles with every setting resolved.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde_json::json;
use temper_report::table::{Align, Table};

use crate::{
    agents,
    args::{FormatArgs, ProfileArg},
    error::CliError,
    exit_code, output,
};

/// `temper profile`
#[derive(Args, Debug)]
pub struct ProfileArgs {
    /// Which; all of them in short without it
    pub name: Option<ProfileArg>,
    /// The published YAML file of `official-public-repro`
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Shows one profile in full, or all embedded ones in short.
pub fn run(args: &ProfileArgs) -> Result<u8, CliError> {
    let Some(name) = args.name else {
        let mut rows = Vec::new();
        let mut table = Table::new(&[
            ("profile", Align::Left),
            ("steps", Align::Right),
            ("context", Align::Right),
            ("reply", Align::Right),
            ("cost", Align::Right),
            ("text", Align::Left),
        ]);
        for name in ProfileArg::value_variants() {
            if *name == ProfileArg::Custom {
                continue;
            }
            let profile = agents::profile_of(*name, None)?;
            let settings = profile.settings();
            let or_none = |value: Option<String>| value.unwrap_or_else(|| "no limit".into());
            table.row([
                profile.name(),
                or_none(settings.step_limit.map(|n| n.to_string())),
                or_none(settings.context_tokens.map(|n| n.to_string())),
                or_none(settings.max_output_tokens.map(|n| n.to_string())),
                or_none(
                    settings
                        .cost_limit
                        .map(|cost| format!("${:.2}", cost.dollars())),
                ),
                profile.statement(),
            ]);
            rows.push(json!({ "statement": profile.statement(), "config": profile.config() }));
        }
        output::data(&args.format.format.list(&rows, || table.to_string()));
        return Ok(exit_code::SUCCESS);
    };
    let profile = agents::profile_of(name, args.file.as_deref())?;
    let value = json!({
        "statement": profile.statement(),
        "digest": profile.digest(),
        "ignored": profile.ignored(),
        "config": profile.config(),
    });
    output::data(&args.format.format.one(&value, || {
        let mut text = format!("{}\n", output::printable(&profile.statement()));
        for ignored in profile.ignored() {
            text.push_str(&format!(
                "has no effect here: {}\n",
                output::printable(ignored)
            ));
        }
        let settings =
            serde_json::to_string_pretty(profile.settings()).expect("settings are plain data");
        text.push_str(&format!("\n{settings}\n"));
        text
    }));
    Ok(exit_code::SUCCESS)
}
