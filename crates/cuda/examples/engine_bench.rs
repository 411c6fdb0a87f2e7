//! Measures training and generation at the shape of Qwen3-8B with random weights, and prints JSON.
//!
//! `engine_bench [block] [step] [long] [nf4] [generate] [--layers N] [--cache FOLDER]`: without
//! words, everything. `benches/engine_gpu.py` measures the same shapes with PyTorch.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use temper_checkpoint::{ModelConfig, Projection};
use temper_cuda::{Cuda, CudaOptions, LibraryFolders};
use temper_model::device::{AdamW, Device, Moments, WeightFormat};
use temper_model::sample::engine::{Engine, EngineConfig};
use temper_model::sample::params::SamplingParams;
use temper_model::sample::request::Request;
use temper_model::tensor::DType;
use temper_model::transformer::paged::{PagedModel, PagedOptions};
use temper_model::transformer::{
    Adapter, AdapterConfig, Keep, LoadOptions, MemoryPlan, Model, PackedBatch, PlanRequest, Policy,
    Result, TrainingPass,
};

/// Dense bf16 products, by the data sheet of H100 and H200.
const PEAK_FLOPS: f64 = 989e12;

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut option = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        let value = words.get(at + 1).cloned();
        words.drain(at..(at + 2).min(words.len()));
        value
    };
    let n_layers = option("--layers").map_or(36, |n| n.parse().unwrap());
    let kernel_cache = option("--cache").map(PathBuf::from);
    let wants = |word: &str| words.is_empty() || words.iter().any(|it| it == word);
    let options = CudaOptions {
        folders: LibraryFolders::from_environment(),
        kernel_cache,
        ..CudaOptions::default()
    };
    let device = match Cuda::open(&options) {
        Ok(device) => device,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    };
    let mut report = json!({"device": device.name(), "layers": n_layers, "lora_rank": 32});
    let dense = WeightFormat::Dense;
    let nf4 = WeightFormat::Nf4 {
        double_quantised: true,
    };
    let mut put = |name: &str, wanted: bool, value: &mut dyn FnMut() -> Result<Value>| {
        if !wanted {
            return;
        }
        let start = Instant::now();
        report[name] = value().unwrap_or_else(|error| json!({"error": error.to_string()}));
        report[name]["bench_seconds"] = json!(start.elapsed().as_secs_f64());
        eprintln!("{name}: {}", report[name]);
    };
    put("block_8k", wants("block"), &mut || {
        block(&device, 8192, dense)
    });
    put("block_8k_nf4", wants("block") && wants("nf4"), &mut || {
        block(&device, 8192, nf4)
    });
    if ["step", "long", "generate"].into_iter().any(wants) {
        match load(&device, n_layers, dense, 65_536) {
            Ok(model) => {
                put("step_8k", wants("step"), &mut || {
                    step(&model, 8_192, 3, dense)
                });
                put("step_32k", wants("long"), &mut || {
                    step(&model, 32_768, 2, dense)
                });
                put("step_64k", wants("long"), &mut || {
                    step(&model, 65_536, 1, dense)
                });
                let model = Arc::new(model);
                put("generate", wants("generate"), &mut || {
                    generate(&model, 64, 1024, 1024)
                });
            }
            Err(error) => eprintln!("{error}"),
        }
    }
    if wants("nf4") {
        match load(&device, n_layers, nf4, 8_192) {
            Ok(model) => put("step_8k_nf4", true, &mut || step(&model, 8_192, 3, nf4)),
            Err(error) => eprintln!("{error}"),
        }
    }
    println!("{report:#}");
}

fn config(n_layers: usize) -> ModelConfig {
    let text = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": n_layers, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 65536, "rope_theta": 1e6, "tie_word_embeddings": false,
        "hidden_act": "silu", "torch_dtype": "bfloat16"
    });
    ModelConfig::from_json(text.to_string().as_bytes()).unwrap()
}

fn load(
    device: &Cuda,
    n_layers: usize,
    format: WeightFormat,
    max_positions: usize,
) -> Result<Model<Cuda>> {
    let options = LoadOptions {
        format,
        max_positions,
    };
    Model::random(device.clone(), &config(n_layers), 1, &options)
}

fn adapter_config() -> AdapterConfig {
    AdapterConfig {
        rank: 32,
        alpha: 64.0,
        rank_stabilised: false,
        targets: Projection::ALL.to_vec(),
    }
}

/// One sequence of random tokens, the last `n_supervised` of which count.
fn batch(config: &ModelConfig, n: usize, n_supervised: usize) -> PackedBatch {
    let ids: Vec<u32> = (0..n as u64)
        .map(|i| (temper_model::random::mix(i) % config.vocab_size as u64) as u32)
        .collect();
    let weights: Vec<f32> = (0..n)
        .map(|i| if i + n_supervised >= n { 1.0 } else { 0.0 })
        .collect();
    let mut batch = PackedBatch::new();
    batch.push(&ids, &weights);
    batch
}

fn plan(
    model: &Model<Cuda>,
    adapter: &Adapter<Cuda>,
    n: usize,
    keep: Keep,
    format: WeightFormat,
) -> Result<MemoryPlan> {
    let request = PlanRequest {
        max_tokens: n,
        head_rows: 2048,
        adapter: Some(adapter_config()),
        backward: true,
        keep,
        format,
        held: vec![
            ("weights".to_owned(), model.weight_bytes()),
            ("adapter".to_owned(), adapter.parameters.n_bytes()),
            ("moments".to_owned(), 8 * adapter.parameters.masters().len()),
        ],
    };
    MemoryPlan::new(&model.device, &model.config, &request)
}

/// Forward and backward of one block: what four more layers cost, a quarter of it. One row is
/// supervised, so the head costs nothing.
fn block(device: &Cuda, n: usize, format: WeightFormat) -> Result<Value> {
    let time = |n_layers| -> Result<f64> {
        let model = load(device, n_layers, format, n)?;
        let adapter = Adapter::new(device, &model.config, &adapter_config(), 2)?;
        let plan = plan(&model, &adapter, n, Keep::All, format)?;
        let mut pass = TrainingPass::new(device, plan)?;
        let batch = batch(&model.config, n, 1);
        let policy = Policy::adapted(&model, &adapter);
        median(5, || {
            pass.supervised(policy, &batch, 1.0)?;
            Ok(device.synchronize()?)
        })
    };
    let seconds = (time(5)? - time(1)?) / 4.0;
    Ok(json!({"tokens": n, "milliseconds": seconds * 1e3}))
}

/// A whole training step: forward, backward, gradient norm, AdamW; every row supervised.
fn step(model: &Model<Cuda>, n: usize, times: usize, format: WeightFormat) -> Result<Value> {
    let device = &model.device;
    let config = &model.config;
    let adapter = Adapter::new(device, config, &adapter_config(), 2)?;
    let masters = adapter.parameters.masters();
    let moments = Moments::F32 {
        first: device.zeros(DType::F32, masters.len())?,
        second: device.zeros(DType::F32, masters.len())?,
    };
    let squares = device.zeros(DType::F32, 1)?;
    let (used, _) = device.memory_used();
    let free = device.memory_free().unwrap_or(0);
    // A little is left for the driver and for libraries.
    let plan = plan(
        model,
        &adapter,
        n,
        Keep::Within(used + free - (2 << 30)),
        format,
    )?;
    let (kept, planned) = (plan.n_kept, plan.total_bytes());
    let mut pass = TrainingPass::new(device, plan)?;
    let batch = batch(config, n, n - 1);
    let policy = Policy::adapted(model, &adapter);
    let mut update = 0;
    let mut run = || -> Result<()> {
        update += 1;
        pass.supervised(policy, &batch, batch.total_weight())?;
        device.sum_squares(adapter.parameters.gradients(), &squares)?;
        let norm = device.download_f32(&squares)?[0].sqrt();
        let settings = AdamW {
            learning_rate: 1e-5,
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            weight_decay: 0.0,
            update,
            gradient_scale: 1.0 / norm.max(1.0),
        };
        device.adamw(
            &settings,
            adapter.parameters.gradients(),
            masters,
            &moments,
            Some(adapter.parameters.values()),
        )?;
        adapter.parameters.clear_gradients(device)?;
        Ok(device.synchronize()?)
    };
    let seconds = median(times, &mut run)?;
    let (_, peak) = device.memory_used();
    // Forward and gradient of inputs, four operations a weight and token; adapters aside. Causal
    // attention: two products forward, five backward, over half the square.
    let weights = (config.n_parameters() - (config.vocab_size * config.hidden_size) as u64) as f64;
    let attention = 7.0 * (n as f64).powi(2) * (config.q_size() * config.n_layers) as f64;
    let flops = 4.0 * weights * n as f64 + attention;
    Ok(json!({
        "tokens": n, "seconds": seconds, "tokens_per_second": n as f64 / seconds,
        "mfu": flops / seconds / PEAK_FLOPS, "layers_kept": kept,
        "peak_bytes": peak, "planned_bytes": planned, "weight_bytes": model.weight_bytes(),
    }))
}

/// Tokens per second of `n` requests that start together, and the share of what reading the
/// weights once a step, and the cache once a token, would allow.
fn generate(model: &Arc<Model<Cuda>>, n: usize, n_prompt: usize, n_drawn: usize) -> Result<Value> {
    let config = &model.config;
    let options = PagedOptions {
        max_context: n_prompt + n_drawn,
        max_sequences: n,
        max_rows: 4096,
        max_logit_rows: 0,
        n_pages: 0,
        cache_bytes: 0,
        max_adapter_rank: 0,
        pads_decoding: true,
    };
    let paged = PagedModel::new(Arc::clone(model), &options)?;
    let engine = Engine::start(paged, EngineConfig::default()).unwrap();
    let run = |n_drawn: usize, seed: u64| {
        let start = Instant::now();
        let events: Vec<_> = (0..n as u64)
            .map(|i| {
                let prompt = (0..n_prompt as u64)
                    .map(|t| {
                        let bits = temper_model::random::mix(seed ^ (i << 32) ^ t);
                        (bits % config.vocab_size as u64) as u32
                    })
                    .collect();
                let params = SamplingParams {
                    seed: i,
                    max_tokens: Some(n_drawn),
                    ignore_eos: true,
                    ..SamplingParams::default()
                };
                engine.submit(Request::new(prompt, params)).unwrap()
            })
            .collect();
        for events in events {
            events.collect().unwrap();
        }
        start.elapsed().as_secs_f64()
    };
    run(8, 1 << 40);
    let prefill = run(1, 2 << 40);
    let whole = run(n_drawn, 3 << 40);
    let decode = whole - prefill;
    let embedding = (config.vocab_size * config.hidden_size * 2) as f64;
    let read = model.weight_bytes() as f64 - embedding;
    let per_token = (config.n_layers * 2 * config.kv_size() * 2) as f64;
    let cache = per_token * (n_prompt as f64 + n_drawn as f64 / 2.0) * n as f64;
    let bandwidth = copy_bandwidth(&model.device)?;
    let limit = (read + cache) / bandwidth;
    Ok(json!({
        "sequences": n, "prompt": n_prompt, "drawn": n_drawn, "seconds": whole,
        "prefill_seconds": prefill, "tokens_per_second": (n * n_drawn) as f64 / whole,
        "decode_tokens_per_second": (n * (n_drawn - 1)) as f64 / decode,
        "step_milliseconds": decode / (n_drawn - 1) as f64 * 1e3,
        "limit_milliseconds": limit * 1e3, "copy_bytes_per_second": bandwidth,
        "share_of_limit": limit * (n_drawn - 1) as f64 / decode,
    }))
}

/// Bytes read and written per second by a large copy.
fn copy_bandwidth(device: &Cuda) -> Result<f64> {
    let n = 512 << 20;
    let [from, to] = [(); 2].map(|()| device.zeros(DType::U8, n));
    let (from, to) = (from?.view(n), to?.view(n));
    let seconds = median(5, || {
        for _ in 0..10 {
            device.copy(&from, &to)?;
        }
        Ok(device.synchronize()?)
    })?;
    Ok((2 * 10 * n) as f64 / seconds)
}

/// Seconds of a call, the median of some after one that does not count.
fn median(times: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    let mut seconds = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        call()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[seconds.len() / 2])
}
