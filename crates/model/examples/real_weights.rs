//! Scores a text with a checkpoint and an adapter and writes logits and gradients, for
//! `benches/real_weights.py` to compare with PyTorch's.
//!
//! `real_weights CHECKPOINT ADAPTER_FOLDER IDS_JSON OUT_SAFETENSORS N_THREADS N_RUNS`; prints the
//! seconds of each forward and backward pass over the adapter.
#![allow(clippy::print_stdout)]

use std::{collections::BTreeMap, error::Error, path::Path, time::Instant};

use safetensors::{Dtype, tensor::TensorView};
use temper_checkpoint::{Checkpoint, adapter::Adapter as AdapterFile};
use temper_model::{
    cpu::{Cpu, CpuMath},
    device::{Device, WeightFormat},
    transformer::{
        Adapter, Keep, LoadOptions, MemoryPlan, Model, PackedBatch, PlanRequest, Policy,
        ScoreOptions, TrainingPass,
    },
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [checkpoint, adapter, ids, out, n_threads, n_runs] = &arguments[..] else {
        return Err("expected CHECKPOINT ADAPTER IDS OUT N_THREADS N_RUNS".into());
    };
    let ids: Vec<u32> = serde_json::from_str(&std::fs::read_to_string(ids)?)?;
    let device = Cpu::new(n_threads.parse()?, CpuMath::Exact)?;
    let checkpoint = Checkpoint::open(Path::new(checkpoint))?;
    let config = checkpoint.config();
    let options = LoadOptions {
        format: WeightFormat::Dense,
        max_positions: ids.len(),
    };
    let model = Model::load(device.clone(), &checkpoint, &options)?;
    let file = AdapterFile::read(Path::new(adapter), config)?;
    let adapter = Adapter::load(&device, config, &file)?;
    let plan = MemoryPlan::new(
        &device,
        config,
        &PlanRequest {
            max_tokens: ids.len(),
            head_rows: 128,
            adapter: Some(adapter.config.clone()),
            backward: true,
            keep: Keep::All,
            format: WeightFormat::Dense,
            held: vec![("weights".into(), model.weight_bytes())],
        },
    )?;
    println!("{plan}");
    let mut pass = TrainingPass::new(&device, plan)?;
    let policy = Policy::adapted(&model, &adapter);
    let mut batch = PackedBatch::new();
    batch.push(&ids, &vec![1.0; ids.len()]);

    let mut scored = pass.score(policy, &batch, ScoreOptions::default())?;
    let n_rows = scored.scores.rows.len();
    let mut logits = Vec::new();
    for start in (0..n_rows).step_by(128) {
        logits.extend(scored.logits(start..n_rows.min(start + 128))?);
    }
    for _ in 0..n_runs.parse::<usize>()? {
        adapter.parameters.clear_gradients(&device)?;
        let start = Instant::now();
        pass.supervised(policy, &batch, n_rows as f64)?;
        println!("seconds {}", start.elapsed().as_secs_f64());
    }

    let mut tensors = BTreeMap::new();
    tensors.insert(
        "logits".to_string(),
        (vec![n_rows, config.vocab_size], bytes(&logits)),
    );
    for (index, entry) in adapter.parameters.entries().iter().enumerate() {
        let gradient = device.download_f32(&adapter.parameters.gradient(index))?;
        let mut start = 0;
        for (name, shape) in &entry.parts {
            let len: usize = shape.iter().product();
            let part = bytes(&gradient[start..start + len]);
            tensors.insert(name.clone(), (shape.clone(), part));
            start += len;
        }
    }
    let views = tensors
        .iter()
        .map(|(name, (shape, bytes))| {
            let view = TensorView::new(Dtype::F32, shape.clone(), bytes)?;
            Ok((name.as_str(), view))
        })
        .collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, Path::new(out))?;
    Ok(())
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}
