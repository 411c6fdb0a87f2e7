//! `temper experiment …`: a comparison that is declared before it runs.

pub mod args;
mod frozen;
mod recipe;
mod run;
pub mod tested;

use std::path::PathBuf;

use serde_json::{Value, json};
use temper_eval::experiment::{Event, What};
use temper_report::table::{Align, Table};

use self::{
    args::{DeclareArgs, ExperimentVerb, StatusArgs},
    frozen::{Frozen, Record},
};
use crate::{
    error::CliError,
    exit_code,
    output::{self, printable},
    places::Places,
};

/// Runs one of them.
pub fn run(verb: ExperimentVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        ExperimentVerb::Declare(args) => declare(&args),
        ExperimentVerb::Status(args) => status(&args),
        ExperimentVerb::Run(args) => run::run(&args, places),
    }
}

fn declare(args: &DeclareArgs) -> Result<u8, CliError> {
    let new = Frozen::from_source(&args.contract)?;
    for arm in &new.contract.arms {
        recipe::check(&new, arm)?;
    }
    for collecting in &new.contract.collections {
        recipe::prompt(&new, collecting)?;
    }
    let directory = args
        .output
        .clone()
        .unwrap_or_else(|| PathBuf::from("experiments").join(&new.contract.name));
    if directory.join("contract.json").exists() {
        let old = Frozen::read(&directory)?;
        if let Some(place) = old.difference(&new) {
            let Some(reason) = &args.amend else {
                return Err(CliError::new(
                    exit_code::JOB_DIFFERS,
                    format!(
                        "declare {}: {} holds another contract: {place} differs",
                        new.contract.name,
                        directory.display()
                    ),
                )
                .hint("name another directory, or change it for the record with --amend REASON"));
            };
            let mut record = Record::open(&directory)?;
            // The record first: a change that is not in it must not be in force.
            record.add(
                &new.digest,
                What::Amended {
                    before: old.digest,
                    first_difference: place,
                    reason: reason.clone(),
                },
            )?;
            new.write(&directory)?;
        }
    } else {
        std::fs::create_dir_all(&directory)?;
        new.write(&directory)?;
        Record::open(&directory)?.add(&new.digest, What::Declared)?;
    }
    let value = json!({
        "name": new.contract.name,
        "digest": new.digest,
        "directory": directory,
    });
    output::data(&args.format.format.one(&value, || {
        format!("{}  {}\n", new.contract.name, new.digest)
    }));
    output::note(&format!("experiment: {}", directory.display()));
    Ok(exit_code::SUCCESS)
}

fn status(args: &StatusArgs) -> Result<u8, CliError> {
    let frozen = Frozen::read(&args.directory)?;
    let record = Record::open(&args.directory)?;
    let changed = frozen.check_source().err().map(|error| error.message);
    let value = json!({
        "digest": frozen.digest,
        "contract": frozen.contract,
        "changed": changed,
        "events": record.events,
    });
    let test = &frozen.contract.test;
    let tasks = test.limit.map_or_else(
        || "of each task".to_owned(),
        |limit| format!("of each of at most {limit} tasks"),
    );
    output::data(&args.format.format.one(&value, || {
        let mut text = format!(
            "{}\n{}\n\ncontract  {}\nmodel     {}\nseeds     {:?}\ntest      {}, trials {tasks}: {}\n",
            printable(&frozen.contract.name),
            printable(&frozen.contract.question),
            frozen.digest,
            printable(&frozen.contract.model),
            frozen.contract.seeds,
            printable(&test.suite),
            test.attempts,
        );
        if let Some(changed) = &changed {
            text.push_str(&format!("changed   {}\n", printable(changed)));
        }
        let mut table = Table::new(&[
            ("at", Align::Left),
            ("contract", Align::Left),
            ("what", Align::Left),
            ("", Align::Left),
        ]);
        for event in &record.events {
            let (what, more) = words(event);
            table.row([event.at.as_str(), event.contract.short(), &what, &more]);
        }
        format!("{text}\n{table}")
    }));
    Ok(exit_code::SUCCESS)
}

/// An event's kind, and the rest of it in one line.
fn words(event: &Event) -> (String, String) {
    let mut value = serde_json::to_value(&event.what).unwrap_or_default();
    let kind = value["kind"].as_str().unwrap_or_default().to_owned();
    let fields = match &mut value {
        Value::Object(fields) => {
            fields.shift_remove("kind");
            let fields = fields.iter().map(|(name, value)| match value {
                Value::String(text) => format!("{name} {text}"),
                value => format!("{name} {value}"),
            });
            fields.collect::<Vec<_>>().join(", ")
        }
        _ => String::new(),
    };
    (kind, fields)
}
