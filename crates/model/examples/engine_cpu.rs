//! Measures prefill, decoding and training on the processor; one JSON line each on stdout.
//!
//!     engine_cpu prefill|decode MODEL.gguf THREADS exact|int8 TOKENS
//!     engine_cpu train MODEL THREADS exact TOKENS UPDATES
//!
//! Prefill runs TOKENS rows of one sequence in one step. Decoding goes on from 16 tokens with a
//! greedy draw. Training is a full-weight update of AdamW in f32 on one sequence: forward,
//! backward, clip norm, update. Each is repeated inside; the best of three is given, as wall time
//! and as processor time of the whole process, which other load on the machine disturbs less.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{path::Path, sync::Arc, time::Instant};

use temper_checkpoint::Checkpoint;
use temper_model::{
    DType, Device,
    cpu::{Cpu, CpuMath},
    device::{AdamW, Moments, WeightFormat},
    sample::runner::{Draw, Run, Runner},
    transformer::{
        FullTuning, Keep, LoadOptions, MemoryPlan, Model, PackedBatch, PlanRequest, Policy,
        TrainingPass,
        paged::{PagedModel, PagedOptions},
    },
};

const CONTEXT: usize = 2048;

fn process_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Runs three times and prints the best.
fn report(math: CpuMath, what: &str, n_tokens: usize, mut run: impl FnMut()) {
    let (mut wall, mut process) = (f64::MAX, f64::MAX);
    for _ in 0..3 {
        let (start, before) = (Instant::now(), process_seconds());
        run();
        wall = wall.min(start.elapsed().as_secs_f64());
        process = process.min(process_seconds() - before);
    }
    let engine = match math {
        CpuMath::Exact => "temper exact",
        CpuMath::Int8Activations => "temper int8",
    };
    println!(
        "{{\"engine\":\"{engine}\",\"what\":\"{what}\",\"tokens\":{n_tokens},\
         \"tokens_per_second\":{:.1},\"tokens_per_process_second\":{:.1}}}",
        n_tokens as f64 / wall,
        n_tokens as f64 / process
    );
}

fn token(i: usize, vocabulary: usize) -> u32 {
    (i * 7919 % (vocabulary - 200) + 100) as u32
}

fn greedy(n_drawn: usize) -> Draw {
    Draw {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        seed: 0,
        n_drawn: n_drawn as u32,
        top: 0,
    }
}

fn sample(what: &str, cpu: Cpu, path: &Path, n_tokens: usize) {
    let math = cpu.math();
    let checkpoint = Checkpoint::open(path).unwrap();
    let options = LoadOptions {
        format: WeightFormat::AsStored,
        max_positions: CONTEXT,
    };
    let model = Arc::new(Model::load(cpu, &checkpoint, &options).unwrap());
    let vocabulary = model.config.vocab_size;
    let n_pages = CONTEXT / temper_model::device::PAGE_TOKENS + 1;
    let mut paged = PagedModel::new(
        model,
        &PagedOptions {
            max_context: CONTEXT,
            max_sequences: 1,
            max_rows: 1024,
            n_pages,
            ..PagedOptions::default()
        },
    )
    .unwrap();
    let pages: Vec<u32> = (1..n_pages as u32).collect();
    let prompt: Vec<u32> = (0..n_tokens.max(16))
        .map(|i| token(i, vocabulary))
        .collect();
    let mut step = |tokens: &[u32], start: usize| {
        let run = Run {
            tokens,
            start,
            n_rows: tokens.len() - start,
            pages: &pages,
            draw: Some(greedy(tokens.len())),
            score: None,
        };
        let outputs = paged.run(0, &[run]).unwrap();
        outputs[0].drawn.as_ref().unwrap().id
    };
    if what == "prefill" {
        report(math, what, n_tokens, || {
            step(&prompt[..n_tokens], 0);
        });
        return;
    }
    report(math, what, n_tokens, || {
        let mut tokens = prompt[..16].to_vec();
        tokens.push(step(&tokens, 0));
        for _ in 0..n_tokens {
            let next = step(&tokens, tokens.len() - 1);
            tokens.push(next);
        }
    });
}

fn train(cpu: Cpu, path: &Path, n_tokens: usize, n_updates: usize) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let (model, tuning) = FullTuning::load(cpu.clone(), &checkpoint, n_tokens).unwrap();
    let plan = MemoryPlan::new(
        &cpu,
        &model.config,
        &PlanRequest {
            max_tokens: n_tokens,
            head_rows: 128,
            adapter: None,
            backward: true,
            keep: Keep::All,
            format: WeightFormat::Dense,
            held: Vec::new(),
        },
    )
    .unwrap();
    let mut pass = TrainingPass::new(&cpu, plan).unwrap();
    let mut batch = PackedBatch::new();
    let ids: Vec<u32> = (0..n_tokens)
        .map(|i| token(i, model.config.vocab_size))
        .collect();
    batch.push(&ids, &vec![1.0; n_tokens]);
    let total = batch.total_weight();
    let parameters = &tuning.parameters;
    let n = parameters.masters().len();
    let moments = Moments::F32 {
        first: cpu.zeros(DType::F32, n).unwrap(),
        second: cpu.zeros(DType::F32, n).unwrap(),
    };
    let norm = cpu.zeros(DType::F32, 1).unwrap();
    let mut update = 0;
    report(cpu.math(), "train", n_tokens * n_updates, || {
        for _ in 0..n_updates {
            update += 1;
            parameters.clear_gradients(&cpu).unwrap();
            pass.supervised(Policy::full(&model, &tuning), &batch, total)
                .unwrap();
            cpu.fill_zero(&norm).unwrap();
            cpu.sum_squares(parameters.gradients(), &norm).unwrap();
            let norm = cpu.download_f32(&norm).unwrap()[0].sqrt();
            let settings = AdamW {
                learning_rate: 1e-5,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-8,
                weight_decay: 0.01,
                update,
                gradient_scale: (1.0 / (norm + 1e-6)).min(1.0),
            };
            let copy = Some(parameters.values());
            cpu.adamw(
                &settings,
                parameters.gradients(),
                parameters.masters(),
                &moments,
                copy,
            )
            .unwrap();
        }
    });
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, what, path, threads, math, n_tokens, rest @ ..] = &arguments[..] else {
        panic!("engine_cpu prefill|decode|train MODEL THREADS exact|int8 TOKENS [UPDATES]");
    };
    let math = match math.as_str() {
        "int8" => CpuMath::Int8Activations,
        _ => CpuMath::Exact,
    };
    let cpu = Cpu::new(threads.parse().unwrap(), math).unwrap();
    let n_tokens = n_tokens.parse().unwrap();
    if what == "train" {
        let n_updates = rest.first().map_or(1, |n| n.parse().unwrap());
        train(cpu, Path::new(path), n_tokens, n_updates);
    } else {
        sample(what, cpu, Path::new(path), n_tokens);
    }
}
