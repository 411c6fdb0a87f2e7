//! `temper model merge [BASE] --adapter DIR`: writes a model with an adapter merged into it.

use serde_json::json;
use temper_checkpoint::{Adapter, Checkpoint, export};

use super::{
    args::MergeArgs,
    convert::{note_tokenizer, options, tokenizer_files},
    locate::locate,
    transfer::Transfer,
};
use crate::{error::CliError, exit_code, output, places::Places};

/// Merges, and says by how much the weights moved.
pub fn run(args: &MergeArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let checkpoint = Checkpoint::open(&located.path)?;
    let adapter = Adapter::read(&args.adapter, checkpoint.config()).map_err(|error| {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    })?;
    let tokenizer_files = tokenizer_files(&checkpoint);
    let mut transfer = Transfer::new("merging", places.quiet);
    let report = export::merge(
        &checkpoint,
        &adapter,
        &args.target.output,
        options(&args.target),
        &tokenizer_files,
        |progress| transfer.count(progress.n_done, progress.n_tensors, "tensors"),
    )?;
    drop(transfer);
    note_tokenizer(&report);
    let change = report.change.map(|change| {
        json!({
            "norm": change.norm,
            "stored_norm": change.stored_norm,
            "n_changed": change.n_changed,
            "n_adapted": change.n_adapted,
        })
    });
    let value = json!({
        "path": report.folder,
        "n_tensors": report.n_tensors,
        "n_parameters": report.n_parameters,
        "has_tokenizer": report.has_tokenizer,
        "adapter": { "rank": adapter.rank, "scale": adapter.scale(), "n_parameters": adapter.n_parameters() },
        "change": change,
    });
    output::data(&args.format.format.one(&value, || {
        let mut text = String::new();
        if let Some(change) = report.change {
            text.push_str(&format!(
                "change         norm {:.4e}, as stored {:.4e}, {} of {} adapted elements differ\n",
                change.norm, change.stored_norm, change.n_changed, change.n_adapted
            ));
        }
        text.push_str(&format!("model          {}\n", report.folder.display()));
        text
    }));
    Ok(exit_code::SUCCESS)
}
