//! Continues a prompt with a model on the processor, and says how fast.
//!
//! ```text
//! cargo run --release -p temper-model --example generate -- MODEL [--prompt TEXT] [--chat TEXT]
//!     [--max-tokens 64] [--temperature 0] [--seed 0] [--n 1] [--threads N] [--int8] [--dense]
//!     [--ignore-eos] [--json] [--check]
//! ```
//!
//! MODEL is a GGUF file or a folder of Hugging Face. `--prompt` is taken as it is, `--chat` goes
//! through the chat template. `--n` continues it that many times at once, with seeds one apart.
//! `--int8` rounds activations to 8 bits where weights are quantised; `--dense` dequantises all
//! weights first. `--json` prints one object. `--check` also scores what was drawn, through the
//! engine and through the training pass, and gives the largest differences. Prefill counts steps in which prompts are computed,
//! decoding those in which every sequence draws a token.
#![allow(clippy::print_stdout)]

use std::{error::Error, path::PathBuf, sync::Arc, time::Instant};

use serde_json::json;
use temper_checkpoint::{
    Checkpoint,
    chat_template::{ChatTemplate, Conversation},
    tokenizer::Specials,
};
use temper_model::{
    cpu::{Cpu, CpuMath},
    device::WeightFormat,
    sample::{Completion, Engine, EngineConfig, Request, SamplingParams},
    transformer::{
        Keep, LoadOptions, MemoryPlan, Model, PackedBatch, PlanRequest, Policy, ScoreOptions,
        TrainingPass,
        paged::{PagedModel, PagedOptions},
    },
};

struct Arguments {
    model: PathBuf,
    prompt: String,
    is_chat: bool,
    n: u64,
    threads: usize,
    math: CpuMath,
    format: WeightFormat,
    params: SamplingParams,
    json: bool,
    check: bool,
}

impl Arguments {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let mut words = std::env::args().skip(1);
        let mut arguments = Arguments {
            model: words.next().ok_or("which model?")?.into(),
            prompt: "The capital of France is".into(),
            is_chat: false,
            n: 1,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            math: CpuMath::Exact,
            format: WeightFormat::AsStored,
            params: SamplingParams {
                max_tokens: Some(64),
                ..SamplingParams::greedy()
            },
            json: false,
            check: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} of what?"));
            match word.as_str() {
                "--prompt" => arguments.prompt = value()?,
                "--chat" => {
                    arguments.prompt = value()?;
                    arguments.is_chat = true;
                }
                "--max-tokens" => arguments.params.max_tokens = Some(value()?.parse()?),
                "--temperature" => arguments.params.temperature = value()?.parse()?,
                "--seed" => arguments.params.seed = value()?.parse()?,
                "--n" => arguments.n = value()?.parse()?,
                "--threads" => arguments.threads = value()?.parse()?,
                "--int8" => arguments.math = CpuMath::Int8Activations,
                "--dense" => arguments.format = WeightFormat::Dense,
                "--ignore-eos" => arguments.params.ignore_eos = true,
                "--json" => arguments.json = true,
                "--check" => arguments.check = true,
                other => return Err(format!("what is {other}?").into()),
            }
        }
        Ok(arguments)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse()?;
    let checkpoint = Checkpoint::open(&arguments.model)?;
    let tokenizer = Arc::new(checkpoint.tokenizer()?);
    let prompt = if arguments.is_chat {
        let template = ChatTemplate::of_tokenizer(&tokenizer, None, false)?
            .ok_or("the model comes without a chat template")?;
        let messages = [json!({"role": "user", "content": arguments.prompt})];
        let conversation = Conversation {
            messages: &messages,
            add_generation_prompt: true,
            ..Conversation::default()
        };
        template.render_ids(&tokenizer, &conversation)?.ids
    } else {
        tokenizer.encode(&arguments.prompt, Specials::Parse)?
    };

    let started = Instant::now();
    let device = Cpu::new(arguments.threads, arguments.math)?;
    let options = LoadOptions {
        format: arguments.format,
        max_positions: checkpoint.config().max_position_embeddings.min(8192),
    };
    let model = Arc::new(Model::load(device, &checkpoint, &options)?);
    let sequences = arguments.n as usize;
    let paged = PagedModel::new(
        Arc::clone(&model),
        &PagedOptions {
            max_sequences: sequences.clamp(1, 256),
            ..PagedOptions::default()
        },
    )?;
    let plan = paged.plan().to_string();
    let config = EngineConfig {
        vocabulary: Some(Arc::clone(&tokenizer) as _),
        eos_ids: checkpoint.config().eos_token_ids.clone(),
        ..EngineConfig::default()
    };
    let engine = Engine::start(paged, config)?;
    let load_seconds = started.elapsed().as_secs_f64();

    let events = (0..arguments.n)
        .map(|n| {
            let params = SamplingParams {
                seed: arguments.params.seed + n,
                ..arguments.params.clone()
            };
            engine.submit(Request::new(prompt.clone(), params))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let completions = events
        .into_iter()
        .map(|events| events.collect())
        .collect::<Result<Vec<_>, _>>()?;
    let metrics = engine.metrics();
    let differences = match arguments.check {
        true => Some(check(&arguments, &engine, &model, &prompt, &completions)?),
        false => None,
    };
    let rate = |n: u64, time: std::time::Duration| n as f64 / time.as_secs_f64().max(1e-9);
    let prefill = rate(metrics.n_prefill_rows, metrics.prefill_time);
    let decode = rate(metrics.n_decode_tokens, metrics.decode_time);
    if arguments.json {
        let completions: Vec<_> = completions
            .iter()
            .map(|completion| {
                let logprobs: Vec<f32> = completion.tokens.iter().map(|it| it.logprob).collect();
                json!({"ids": completion.ids(), "logprobs": logprobs, "text": completion.text})
            })
            .collect();
        println!(
            "{}",
            json!({
                "prompt_ids": prompt,
                "completions": completions,
                "plan": plan,
                "load_seconds": load_seconds,
                "prefill_tokens": metrics.n_prefill_rows,
                "prefill_tokens_per_second": prefill,
                "decode_tokens": metrics.n_decode_tokens,
                "decode_tokens_per_second": decode,
                "cached_tokens": metrics.n_cached_tokens,
                "max_difference_from_scoring": differences.map(|it| it.0),
                "max_difference_from_training_pass": differences.map(|it| it.1),
            })
        );
        return Ok(());
    }
    println!("{plan}; loaded in {load_seconds:.2} s");
    println!("prompt {prompt:?}");
    for completion in &completions {
        println!("{:?}\n{}", completion.ids(), completion.text);
    }
    if let Some((scoring, training)) = differences {
        println!(
            "log-probabilities differ by at most {scoring} from scoring, {training} from the training pass"
        );
    }
    println!(
        "prefill {} tokens, {prefill:.1} a second; decoding {} tokens, {decode:.1} a second",
        metrics.n_prefill_rows, metrics.n_decode_tokens
    );
    Ok(())
}

/// The largest differences of the drawn tokens' raw log-probabilities from those of scoring the
/// same ids through the engine, and through the training pass.
fn check(
    arguments: &Arguments,
    engine: &Engine,
    model: &Model<Cpu>,
    prompt: &[u32],
    completions: &[Completion],
) -> Result<(f32, f32), Box<dyn Error>> {
    let mut differences = (0f32, 0f32);
    for completion in completions {
        let ids = [prompt, &completion.ids()].concat();
        let request = PlanRequest {
            max_tokens: ids.len(),
            head_rows: 64,
            adapter: None,
            backward: false,
            keep: Keep::All,
            format: arguments.format,
            held: Vec::new(),
        };
        let plan = MemoryPlan::new(&model.device, &model.config, &request)?;
        let mut pass = TrainingPass::new(&model.device, plan)?;
        let mut batch = PackedBatch::new();
        batch.push(&ids, &vec![1.0; ids.len()]);
        let scored = engine.score(&ids, None)?;
        let trained = pass.score(Policy::frozen(model), &batch, ScoreOptions::default())?;
        let places = prompt.len() - 1..;
        for (token, at) in completion.tokens.iter().zip(places) {
            let from = |other: f32| (token.raw_logprob - other).abs();
            differences.0 = differences.0.max(from(scored[at]));
            differences.1 = differences.1.max(from(trained.scores.logprobs[at]));
        }
    }
    Ok(differences)
}
