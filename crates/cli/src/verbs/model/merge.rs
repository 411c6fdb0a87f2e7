//! `temper model merge [BASE] --adapter DIR`: writes a model with an adapter merged into it.

use serde_json::json;
use temper_checkpoint::{Adapter, Checkpoint, tokenizer::Specials};
use temper_model::cpu::{Cpu, CpuMath};
use temper_train::merge::{Merge, MergeError, merge};

use super::{
    args::MergeArgs,
    convert::{note_tokenizer, options, tokenizer_files},
    locate::locate,
    transfer::Transfer,
};
use crate::{
    error::CliError,
    exit_code, output,
    places::{Places, workers},
};

/// What the merged model's logits are compared on.
const TEXTS: [&str; 3] = [
    "def area(width, height):\n    if width < 0 or height < 0:\n        return 0\n    return width * height\n",
    "The test fails because the upper bound is left out. Look at the loop, change the condition, run the tests again.",
    "diff --git a/shapes.py b/shapes.py\n--- a/shapes.py\n+++ b/shapes.py\n@@ -4,1 +4,1 @@\n-    return width + height\n+    return width * height\n",
];
/// Tokens of one text, at most.
const MAX_TOKENS: usize = 64;

/// Merges, compares the logits of the merged model with those of base and adapter, and says by how
/// much the weights moved.
pub fn run(args: &MergeArgs, places: &Places) -> Result<u8, CliError> {
    let located = locate(&args.source.model, &args.source.hub, places)?;
    let checkpoint = Checkpoint::open(&located.path)?;
    let adapter = Adapter::read(&args.adapter, checkpoint.config()).map_err(|error| {
        let hint = error.hint();
        CliError::new(exit_code::INPUT, error).maybe_hint(hint)
    })?;
    let device = Cpu::new(workers(None), CpuMath::Exact)
        .map_err(|error| CliError::new(exit_code::FAILURE, error))?;
    let tokenizer_files = tokenizer_files(&checkpoint);
    let mut transfer = Transfer::new("merging", places.quiet);
    let prompts = prompts(&checkpoint);
    let (report, check) = merge(
        &device,
        &Merge {
            checkpoint: &checkpoint,
            base: args.base_format.into(),
            adapter: &adapter,
            target: &args.target.output,
            options: options(&args.target),
            tokenizer_files: &tokenizer_files,
            prompts: &prompts,
        },
        |progress| transfer.count(progress.n_done, progress.n_tensors, "tensors"),
    )
    .map_err(|error| match error {
        MergeError::Export(error) => error.into(),
        MergeError::Checkpoint(error) => error.into(),
        error => {
            let code = match error {
                MergeError::Lost(_) => exit_code::FINDINGS,
                _ => exit_code::FAILURE,
            };
            let hint = error.hint();
            CliError::new(code, error).maybe_hint(hint)
        }
    })?;
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
        "logits": check,
    });
    output::data(&args.format.format.one(&value, || {
        let mut text = String::new();
        if let Some(change) = report.change {
            text.push_str(&format!(
                "change         norm {:.4e}, as stored {:.4e}, {} of {} adapted elements differ\n",
                change.norm, change.stored_norm, change.n_changed, change.n_adapted
            ));
        }
        text.push_str(&format!(
            "logits         the adapter moves them by {:.3e}, the merged model differs from it by {:.3e} (at most {:.3e}); same likeliest token after {} of {}\n",
            check.movement,
            check.difference,
            check.largest_difference,
            check.n_same_greedy,
            check.n_tokens
        ));
        text.push_str(&format!("model          {}\n", report.folder.display()));
        text
    }));
    Ok(exit_code::SUCCESS)
}

/// Token ids of the texts; without a tokenizer, ids from all over the vocabulary.
fn prompts(checkpoint: &Checkpoint) -> Vec<Vec<u32>> {
    let encoded = checkpoint.tokenizer().ok().map(|tokenizer| {
        let ids = TEXTS.iter().filter_map(|text| {
            let mut ids = tokenizer.encode(text, Specials::Literal).ok()?;
            ids.truncate(MAX_TOKENS);
            Some(ids)
        });
        ids.filter(|ids| ids.len() > 1).collect::<Vec<_>>()
    });
    match encoded {
        Some(prompts) if !prompts.is_empty() => prompts,
        _ => {
            let vocab_size = checkpoint.config().vocab_size as u32;
            let ids = (0..MAX_TOKENS as u32).map(|n| n.wrapping_mul(2_654_435_761) % vocab_size);
            vec![ids.collect()]
        }
    }
}
