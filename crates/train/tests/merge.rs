//! A merged model is its base with the adapter, in every form that a base is held in.
#![allow(clippy::unwrap_used)]

use temper_checkpoint::{
    Checkpoint, TensorName,
    export::{ExportError, ExportOptions},
    save::SaveDtype,
};
use temper_model_fixtures::{Fixture, NAMES, device, fixture};
use temper_train::{
    Base,
    merge::{Merge, MergeError, merge},
};

fn options(dtype: SaveDtype) -> ExportOptions {
    ExportOptions {
        dtype,
        ..ExportOptions::default()
    }
}

fn prompts(fixture: &Fixture) -> Vec<Vec<u32>> {
    fixture
        .sequences
        .iter()
        .map(|(ids, _)| ids.clone())
        .collect()
}

const NF4: Base = Base::Nf4 {
    double_quantised: true,
};

#[test]
fn logits_of_the_merge_are_those_with_the_adapter() {
    let device = device();
    for name in NAMES {
        let fixture = fixture(name);
        let prompts = prompts(&fixture);
        for base in [Base::Dense, Base::AsStored, Base::Int8, NF4] {
            for (dtype, tolerance) in [(SaveDtype::F32, 1e-4), (SaveDtype::Bf16, 0.1)] {
                let folder = tempfile::tempdir().unwrap();
                let target = folder.path().join("merged");
                let request = Merge {
                    checkpoint: &fixture.checkpoint,
                    base,
                    adapter: &fixture.adapter,
                    target: &target,
                    options: options(dtype),
                    tokenizer_files: &[],
                    prompts: &prompts,
                };
                let (report, check) = merge(&device, &request, |_| {}).unwrap();
                assert!(report.change.unwrap().norm > 0.0);
                let share = check.difference / check.movement;
                assert!(share < tolerance, "{name} {base:?} {dtype:?}: {check:?}");
                if dtype == SaveDtype::F32 {
                    assert_eq!(check.n_same_greedy, check.n_tokens, "{name}");
                }
                // Tied heads stay tied.
                let merged = Checkpoint::open(&target).unwrap();
                assert_eq!(merged.config(), fixture.config());
                let has_head = merged.names().any(|name| name == TensorName::Head);
                assert_eq!(has_head, !fixture.config().tie_word_embeddings);
            }
        }
    }
}

#[test]
fn an_adapter_of_a_quantised_base_is_not_merged_into_another() {
    let (device, fixture) = (device(), fixture("llama_tied"));
    let folder = tempfile::tempdir().unwrap();
    let merged = |base: Base, name: &str| {
        let target = folder.path().join(name);
        let request = Merge {
            checkpoint: &fixture.checkpoint,
            base,
            adapter: &fixture.adapter,
            target: &target,
            options: options(SaveDtype::F32),
            tokenizer_files: &[],
            prompts: &prompts(&fixture),
        };
        merge(&device, &request, |_| {}).unwrap();
        let checkpoint = Checkpoint::open(&target).unwrap();
        let name = TensorName::Weight(1, temper_checkpoint::Projection::Up);
        checkpoint.get(name).unwrap().to_f32().unwrap()
    };
    let (dense, nf4) = (merged(Base::Dense, "dense"), merged(NF4, "nf4"));
    let largest = dense.iter().zip(&nf4).map(|(a, b)| (a - b).abs());
    assert!(largest.fold(0.0, f32::max) > 0.01);
}

#[test]
fn a_merge_that_loses_the_adapter_leaves_nothing() {
    let (device, fixture) = (device(), fixture("llama_untied"));
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("merged");
    let mut adapter = fixture.adapter.clone();
    let try_merge = |adapter: &temper_checkpoint::Adapter, prompts: &[Vec<u32>]| {
        let request = Merge {
            checkpoint: &fixture.checkpoint,
            base: Base::Dense,
            adapter,
            target: &target,
            options: options(SaveDtype::Bf16),
            tokenizer_files: &[],
            prompts,
        };
        merge(&device, &request, |_| {}).unwrap_err()
    };
    // Of a change that bfloat16 nearly rounds away, something is stored, and it is not the change.
    for pair in adapter.tensors.values_mut() {
        pair.b.iter_mut().for_each(|b| *b *= 1e-3);
    }
    let error = try_merge(&adapter, &prompts(&fixture));
    assert!(
        matches!(error, MergeError::Lost(check) if check.movement > 0.0),
        "{error}"
    );
    assert!(error.hint().is_some());
    for pair in adapter.tensors.values_mut() {
        pair.b.fill(0.0);
    }
    let error = try_merge(&adapter, &prompts(&fixture));
    let unchanged = matches!(error, MergeError::Export(ExportError::Unchanged { .. }));
    assert!(unchanged, "{error}");
    assert!(matches!(
        try_merge(&adapter, &[vec![1]]),
        MergeError::NoPrompts(1)
    ));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}
