//! `temper dataset convert`: conversations in another shape.

use serde_json::json;
use temper_dataset::formats::convert::{ConvertError, Shape, convert};

use super::args::ConvertArgs;
use crate::{error::CliError, exit_code, output};

/// Converts and prints the number of rows.
pub fn run(args: &ConvertArgs) -> Result<u8, CliError> {
    let (from, to) = (Shape::from(args.from), Shape::from(args.to));
    let n_rows = convert(&args.input, from, &args.output, to).map_err(|error| {
        let code = match &error {
            ConvertError::Io { .. } | ConvertError::Parquet(_) => exit_code::FAILURE,
            ConvertError::Kinds { .. } | ConvertError::NoParquet { .. } => exit_code::USAGE,
            _ => exit_code::INPUT,
        };
        let hint = error.hint();
        CliError::new(code, error).maybe_hint(hint)
    })?;
    let value = json!({
        "n_rows": n_rows,
        "from": from.name(),
        "to": to.name(),
        "output": args.output,
    });
    let text = || format!("{n_rows} rows of {} as {}\n", from.name(), to.name());
    output::data(&args.format.format.one(&value, text));
    output::note(&format!("file: {}", args.output.display()));
    Ok(exit_code::SUCCESS)
}
