//! The engine over real models on the processor: what it draws and says must be what the training
//! pass says, and must not depend on batches, chunks, caches or preemption.
#![allow(clippy::unwrap_used)]
mod numbers;
mod sameness;
mod sizes;

use std::sync::Arc;

use temper_model::{
    cpu::Cpu,
    device::WeightFormat,
    random::mix,
    sample::{Engine, EngineConfig, SamplingParams},
    transformer::{
        Adapter, Model, PackedBatch, Policy, ScoreOptions,
        paged::{PagedModel, PagedOptions},
    },
};
use temper_model_fixtures::Fixture;

/// Small sizes under which prompts come in pieces.
pub(crate) const OPTIONS: PagedOptions = PagedOptions {
    max_context: 128,
    max_sequences: 6,
    max_rows: 24,
    max_logit_rows: 8,
    n_pages: 60,
    cache_bytes: 0,
    max_adapter_rank: 16,
    pads_decoding: false,
};

/// Sizes under which a prompt is one step.
pub(crate) const WIDE: PagedOptions = PagedOptions {
    max_rows: 160,
    max_logit_rows: 64,
    ..OPTIONS
};

pub(crate) fn model(fixture: &Fixture) -> Arc<Model<Cpu>> {
    Arc::new(fixture.model(&temper_model_fixtures::device(), WeightFormat::Dense))
}

pub(crate) fn engine(model: &Arc<Model<Cpu>>, options: PagedOptions) -> Engine {
    let paged = PagedModel::new(Arc::clone(model), &options).unwrap();
    Engine::start(paged, EngineConfig::default()).unwrap()
}

pub(crate) fn prompt(fixture: &Fixture, seed: u64, n: usize) -> Vec<u32> {
    let vocabulary = fixture.config().vocab_size as u64;
    (0..n as u64)
        .map(|i| (mix(seed * 7919 + i) % vocabulary) as u32)
        .collect()
}

pub(crate) fn params(max_tokens: usize, temperature: f32, seed: u64) -> SamplingParams {
    SamplingParams {
        max_tokens: Some(max_tokens),
        temperature,
        seed,
        ..SamplingParams::default()
    }
}

/// What the training pass says of every token but the first.
pub(crate) fn trainer_logprobs(
    fixture: &Fixture,
    model: &Model<Cpu>,
    adapter: Option<&Adapter<Cpu>>,
    ids: &[u32],
    temperature: f32,
) -> Vec<f32> {
    let mut batch = PackedBatch::new();
    batch.push(ids, &vec![1.0; ids.len()]);
    let mut pass = fixture.pass(&model.device, adapter, temper_model::transformer::Keep::All);
    let policy = match adapter {
        Some(adapter) => Policy::adapted(model, adapter),
        None => Policy::frozen(model),
    };
    let options = ScoreOptions {
        temperature,
        entropies: false,
    };
    let scored = pass.score(policy, &batch, options).unwrap();
    scored.scores.logprobs.clone()
}

pub(crate) fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}
