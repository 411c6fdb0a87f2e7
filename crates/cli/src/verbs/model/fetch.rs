//! `temper model fetch [MODEL]`: gets a model into the cache and prints where it lies.

use serde_json::json;
use temper_checkpoint::Checkpoint;

use super::{
    args::FetchArgs,
    locate::{Origin, locate},
};
use crate::{error::CliError, exit_code, output, places::Places};

/// Fetches the model and opens it once, so that what is printed can be used.
pub fn run(args: &FetchArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let checkpoint = Checkpoint::open(&located.path)?;
    let n_bytes: u64 = checkpoint.files().iter().map(|(_, n)| n).sum();
    let value = json!({
        "path": located.path,
        "origin": located.origin,
        "n_parameters": checkpoint.config().n_parameters(),
        "n_bytes": n_bytes,
    });
    if !places.quiet {
        output::note(&match &located.origin {
            Origin::Local => "it is a local model; there is nothing to fetch".to_owned(),
            Origin::Package {
                package,
                sha256,
                licence,
                ..
            } => format!("{package}, SHA-256 of the model {sha256}, licence {licence}"),
            Origin::Hub { repository, commit } => format!("{repository} at commit {commit}"),
        });
    }
    output::data(
        &args
            .format
            .format
            .one(&value, || format!("{}\n", located.path.display())),
    );
    Ok(exit_code::SUCCESS)
}
