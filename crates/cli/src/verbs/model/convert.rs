//! `temper model convert [MODEL]`: writes a model as a Hugging Face folder.

use serde_json::json;
use temper_checkpoint::{
    Checkpoint,
    export::{self, ExportOptions, ExportReport},
};

use super::{
    args::{ConvertArgs, TargetArgs},
    locate::locate,
    transfer::Transfer,
};
use crate::{error::CliError, exit_code, output, places::Places};

/// Converts the model.
pub fn run(args: &ConvertArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let checkpoint = Checkpoint::open(&located.path)?;
    let tokenizer_files = tokenizer_files(&checkpoint);
    let mut transfer = Transfer::new("writing", places.quiet);
    let report = export::convert(
        &checkpoint,
        &args.target.output,
        options(&args.target),
        &tokenizer_files,
        |progress| transfer.count(progress.n_done, progress.n_tensors, "tensors"),
    )?;
    drop(transfer);
    note_tokenizer(&report);
    let value = json!({
        "path": report.folder,
        "n_tensors": report.n_tensors,
        "n_parameters": report.n_parameters,
        "has_tokenizer": report.has_tokenizer,
    });
    output::data(
        &args
            .format
            .format
            .one(&value, || format!("{}\n", report.folder.display())),
    );
    Ok(exit_code::SUCCESS)
}

/// What the flags mean.
pub fn options(args: &TargetArgs) -> ExportOptions {
    ExportOptions {
        dtype: args.dtype.into(),
        max_shard_bytes: args.max_shard_mb * 1_000_000,
    }
}

/// The tokenizer of a GGUF file as files; a folder's own are taken over without this.
pub fn tokenizer_files(checkpoint: &Checkpoint) -> Vec<(&'static str, String)> {
    let Some(gguf) = checkpoint.gguf() else {
        return Vec::new();
    };
    let exported = match gguf.vocabulary() {
        Ok(None) => return Vec::new(),
        Ok(Some(vocabulary)) => vocabulary.export().map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match exported {
        Ok(exported) => vec![
            ("tokenizer.json", exported.tokenizer),
            ("tokenizer_config.json", exported.config),
            ("generation_config.json", exported.generation),
        ],
        Err(error) => {
            output::note(&format!("the tokenizer is not written: failed to {error}"));
            Vec::new()
        }
    }
}

/// Says when the folder lacks what it needs to be used for text.
pub fn note_tokenizer(report: &ExportReport) {
    if !report.has_tokenizer {
        output::note("no tokenizer is written: the model comes without one that can be");
    }
}
