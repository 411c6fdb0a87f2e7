//! `temper record …`: the record of a result, and whether the files still say so.

use std::path::{Path, PathBuf};

use clap::{Args as ClapArgs, Subcommand};
use serde_json::{Value, json};
use temper_agent::job::write_atomically;
use temper_core::run_profile::Difference;
use temper_eval::{Options, claims::Ledger, record::ResultRecord};
use temper_report::table::{Align, Table};

use super::model::{args::HubArgs, locate};
use crate::{
    args::FormatArgs, comparison, error::CliError, exit_code, output, places::Places, run_profile,
};

/// `temper record …`
#[derive(Subcommand, Debug)]
pub enum RecordVerb {
    /// Write everything that a job's result rests on into one file
    Make(MakeArgs),
    /// Check a record against the files, and name each difference
    Verify(VerifyArgs),
}

/// `temper record make`
#[derive(ClapArgs, Debug)]
pub struct MakeArgs {
    /// The job
    pub job: PathBuf,
    /// The record to write
    #[arg(long, short, default_value = "record.json", value_name = "FILE")]
    pub output: PathBuf,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// `temper record verify`
#[derive(ClapArgs, Debug)]
pub struct VerifyArgs {
    /// The record
    pub record: PathBuf,
    /// Where the job lies now [default: where it lay]
    #[arg(long, value_name = "DIR")]
    pub job: Option<PathBuf>,
    /// Also hash this model and compare it with the one of the record
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Where models come from.
    #[command(flatten)]
    pub hub: HubArgs,
    /// How.
    #[command(flatten)]
    pub format: FormatArgs,
}

/// Makes or checks a record.
pub fn run(verb: RecordVerb, places: &Places) -> Result<u8, CliError> {
    match verb {
        RecordVerb::Make(args) => make(&args),
        RecordVerb::Verify(args) => verify(&args, places),
    }
}

fn make(args: &MakeArgs) -> Result<u8, CliError> {
    let record = of_job(&args.job)?;
    let mut text = serde_json::to_vec_pretty(&record).expect("a record is plain data");
    text.push(b'\n');
    write_atomically(&args.output, &text).map_err(|error| {
        CliError::new(
            exit_code::FAILURE,
            format!("write {}: {error}", args.output.display()),
        )
    })?;
    output::data(&args.format.format.one(&record, || summary(&record)));
    output::note(&format!("record: {}", args.output.display()));
    Ok(exit_code::SUCCESS)
}

/// The record of a job as its files say it now.
fn of_job(job: &Path) -> Result<ResultRecord, CliError> {
    let records = comparison::read_jobs(&[job.to_owned()])?;
    let comparison = comparison::compare(&records, &Options::default())?;
    let claims = comparison::claims(&Ledger::shipped(), &records, false)?;
    let mut made = comparison::result_records(&records, &comparison, &claims)?;
    Ok(made.remove(0))
}

fn summary(record: &ResultRecord) -> String {
    let rate = &record.pass_rate;
    let range = |ends: Option<(f64, f64)>| {
        ends.map_or_else(
            || "none".into(),
            |(lower, upper)| temper_report::words::range(lower, upper),
        )
    };
    let mut text = String::new();
    for (name, value) in [
        ("job", record.job.clone()),
        ("class of claim", record.claims.wording.words().into()),
        ("continuity", record.continuity.words()),
        (
            "pass rate",
            format!(
                "{} of {} solved, {} scored, {} lost, bounds {}, 95% interval {}",
                rate.n_solved,
                rate.n,
                rate.n_scored,
                rate.n_lost,
                range(rate.bounds.map(|b| (b.lower, b.upper))),
                range(rate.interval.map(|i| (i.lower, i.upper)))
            ),
        ),
        (
            "trials",
            format!(
                "{} of {} planned are there, {} valid",
                record.trials.n_there, record.trials.n_planned, record.trials.n_valid
            ),
        ),
        ("files", format!("{} by SHA-256", record.files.len())),
    ] {
        text.push_str(&format!("{name:<15} {}\n", output::printable(&value)));
    }
    text
}

fn verify(args: &VerifyArgs, places: &Places) -> Result<u8, CliError> {
    let wrong = |reason: String| {
        CliError::new(
            exit_code::INPUT,
            format!("read the record {}: {reason}", args.record.display()),
        )
    };
    let text = std::fs::read(&args.record).map_err(|error| wrong(error.to_string()))?;
    let record: ResultRecord =
        serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
    if record.format != ResultRecord::FORMAT {
        return Err(wrong(format!(
            "it has format {}, this version reads {}",
            record.format,
            ResultRecord::FORMAT
        )));
    }
    let job = args
        .job
        .clone()
        .unwrap_or_else(|| record.job.clone().into());
    let mut differences = record.differences(&of_job(&job)?);
    if let Some(model) = &args.model {
        let located = locate::locate(model, &args.hub, places)?;
        let found = run_profile::of_files(&located)?;
        let recorded = record.identity.value().map(|identity| &identity.model);
        let recorded = recorded.and_then(|model| model.audit_digest.value());
        if recorded != found.audit_digest.value() {
            let text = |value: Value| value.to_string();
            differences.push(Difference {
                field: "model.audit_digest".into(),
                first: recorded.map_or("unknown".into(), |digest| text(json!(digest))),
                second: text(json!(found.audit_digest)),
            });
        }
    }
    if differences.iter().any(|one| one.field == "ledger.digest") {
        output::note(
            "the ledger is another one than the record's, so its rows and reasons are decided anew; \
             files, identity and counts are held against the record as they are",
        );
    }
    let value = json!({
        "record": args.record,
        "job": job,
        "holds": differences.is_empty(),
        "differences": differences,
    });
    output::data(&args.format.format.one(&value, || {
        if differences.is_empty() {
            return format!(
                "the record holds: {} files, {} trials\n",
                record.files.len(),
                record.trials.n_there
            );
        }
        let mut table = Table::new(&[
            ("differs", Align::Left),
            ("in the record", Align::Left),
            ("on disk", Align::Left),
        ]);
        for difference in &differences {
            table.row([&difference.field, &difference.first, &difference.second]);
        }
        format!("{table}\n{} differences\n", differences.len())
    }));
    Ok(if differences.is_empty() {
        exit_code::SUCCESS
    } else {
        exit_code::FINDINGS
    })
}
