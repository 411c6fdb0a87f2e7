//! A tiny model on both devices: scores, and every gradient of an adapter.

use std::borrow::Cow;

use temper_checkpoint::ModelConfig;
use temper_checkpoint::tensor::{Encoding, TensorView};
use temper_model::device::{Device, WeightFormat};
use temper_model::transformer::{
    Adapter, AdapterConfig, Keep, LoadOptions, MemoryPlan, Model, PackedBatch, PlanRequest, Policy,
    ScoreOptions, TrainingPass,
};

use crate::Bench;
use crate::lab::{noise, numbers, relative_error};

pub fn run(bench: &mut Bench) {
    for format in [
        WeightFormat::Dense,
        WeightFormat::Nf4 {
            double_quantised: true,
        },
    ] {
        let want = pass(&bench.cpu, format);
        let got = pass(&bench.cuda, format);
        match (got, want) {
            (Ok(got), Ok(want)) => {
                for ((what, got, tolerance), (_, want, _)) in got.iter().zip(&want) {
                    let error = relative_error(got, want);
                    bench.verdict(&format!("{format:?}"), what, error, *tolerance);
                }
            }
            (got, want) => {
                println!("{format:?}: gpu {:?}, cpu {:?}", got.err(), want.err());
                bench.verdict(&format!("{format:?}"), "ran", 1.0, 0.0);
            }
        }
    }
}

type Results = Vec<(String, Vec<f32>, f64)>;

fn pass<D: Device>(device: &D, format: WeightFormat) -> temper_model::transformer::Result<Results> {
    let config = config();
    let options = LoadOptions {
        format,
        max_positions: 512,
    };
    let mut seed = 0;
    let model = Model::from_tensors(device.clone(), &config, &options, |name| {
        seed += 1;
        let shape = config.shape_of(name).unwrap_or_default();
        let n: usize = shape.iter().product();
        let is_norm = shape.len() == 1;
        // Large enough that activations are far from zero.
        let bytes = noise(seed, n)
            .iter()
            .map(|x| if is_norm { 1.0 + 0.125 * x } else { 0.0625 * x })
            .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
            .collect();
        Ok(TensorView {
            name: format!("{name:?}"),
            shape,
            encoding: Encoding::Bf16,
            bytes: Cow::Owned(bytes),
        })
    })?;
    let adapter_config = AdapterConfig {
        rank: 8,
        alpha: 16.0,
        rank_stabilised: false,
        targets: temper_checkpoint::Projection::ALL.to_vec(),
    };
    let adapter = Adapter::zeros(device, &config, &adapter_config)?;
    for index in 0..adapter.parameters.entries().len() {
        let n = adapter.parameters.entries()[index].n_elements();
        let values: Vec<f32> = noise(1000 + index as u64, n)
            .iter()
            .map(|x| 0.0625 * x)
            .collect();
        adapter.parameters.set(device, index, &values)?;
    }
    let mut batch = PackedBatch::new();
    for (i, length) in [37, 64, 5].into_iter().enumerate() {
        let ids = numbers(50 + i as u64, length, config.vocab_size as u32);
        let weights: Vec<f32> = (0..length)
            .map(|t| if t % 3 == 0 { 0.0 } else { 1.0 })
            .collect();
        batch.push(&ids, &weights);
    }
    let request = PlanRequest {
        max_tokens: 128,
        head_rows: 32,
        adapter: Some(adapter_config),
        backward: true,
        keep: Keep::Layers(1),
        format,
        held: Vec::new(),
    };
    let plan = MemoryPlan::new(device, &config, &request)?;
    let mut training = TrainingPass::new(device, plan)?;
    let policy = Policy::adapted(&model, &adapter);
    let scored = training.score(
        policy,
        &batch,
        ScoreOptions {
            temperature: 0.8,
            entropies: true,
        },
    )?;
    let mut results = vec![
        (
            "log-probabilities".to_owned(),
            scored.scores.logprobs.clone(),
            1e-2,
        ),
        (
            "entropies".to_owned(),
            scored.scores.entropies.clone(),
            1e-2,
        ),
    ];
    let scores = training.supervised(policy, &batch, batch.total_weight())?;
    results.push(("supervised".to_owned(), scores.logprobs, 1e-2));
    for (index, entry) in adapter.parameters.entries().iter().enumerate() {
        let gradient = device.download_f32(&adapter.parameters.gradient(index))?;
        results.push((format!("d {}", entry.parts[0].0), gradient, 4e-2));
    }
    Ok(results)
}

fn config() -> ModelConfig {
    let text = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256,
        "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 1024, "rope_theta": 10000.0, "tie_word_embeddings": false,
        "hidden_act": "silu", "torch_dtype": "bfloat16"}"#;
    ModelConfig::from_json(text.as_bytes()).unwrap()
}
