//! From a model's files to a running engine: which device, in which form, with how much memory.

use std::{path::PathBuf, sync::Arc};

use clap::{Args as ClapArgs, ValueEnum};
use serde_json::{Value, json};
use temper_checkpoint::{
    Checkpoint, ModelConfig, chat_template::ChatTemplate, packaged::sha256, tokenizer::Tokenizer,
};
use temper_core::Digest;
use temper_cuda::{Cuda, CudaOptions, LibraryFolders, OpenError, ProbeError};
use temper_model::{
    cpu::{Cpu, CpuMath},
    device::{Device, WeightFormat},
    policy::EmbeddedPolicy,
    sample::{Engine, EngineConfig},
    transformer::{
        LoadOptions, Model,
        paged::{PagedModel, PagedOptions},
    },
};

use crate::{
    error::CliError,
    exit_code, output,
    places::Places,
    verbs::model::locate::{Located, Origin},
};

/// What computes.
#[derive(ClapArgs, Debug, Clone, Default)]
pub struct DeviceArgs {
    /// Where the embedded model runs [default: the first GPU that can, else the processor]
    #[arg(long, value_name = "DEVICE", help_heading = "Engine")]
    pub device: Option<DeviceArg>,
    /// Threads of the processor [default: the number of cores]
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub threads: Option<usize>,
}

/// How the embedded engine runs.
#[derive(ClapArgs, Debug, Clone)]
pub struct EngineArgs {
    /// On what.
    #[command(flatten)]
    pub device: DeviceArgs,
    /// In which form the weights are kept
    #[arg(long, default_value = "as-stored", help_heading = "Engine")]
    pub weights: WeightsArg,
    /// How the processor multiplies with quantised weights
    #[arg(long, default_value = "exact", help_heading = "Engine")]
    pub cpu_math: CpuMathArg,
    /// The longest sequence in tokens [default: what the model is made for, at most 32768]
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    pub context: Option<usize>,
    /// Sequences at a time
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub max_sequences: Option<usize>,
    /// Memory of the key-value cache, in MiB [default: what all
    /// sequences need and the device has]
    #[arg(long, value_name = "MIB", help_heading = "Engine")]
    pub kv_cache_mib: Option<usize>,
}

/// How an agent samples the embedded model.
#[derive(ClapArgs, Debug, Clone)]
pub struct SamplingArgs {
    /// Temperature of the embedded model where the profile names none [default: 0, which takes the
    /// most likely token]
    #[arg(long, value_name = "T", help_heading = "Engine")]
    pub embedded_temperature: Option<f32>,
    /// The longest reply of the embedded model in tokens, in place of the profile's
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    pub embedded_reply_tokens: Option<u32>,
    /// Steps of a trial of the embedded model, in place of the profile's
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub embedded_steps: Option<u32>,
}

/// The setting of a profile for the longest reply, in tokens; its prompt names it.
pub const REPLY_KEY: &str = "temper.max_output_tokens";

impl SamplingArgs {
    /// What replaces settings of the profile.
    pub fn overrides(&self) -> Vec<(String, Value)> {
        let steps = self.embedded_steps.map(|n| ("agent.step_limit", n));
        let reply = self.embedded_reply_tokens.map(|n| (REPLY_KEY, n));
        steps
            .into_iter()
            .chain(reply)
            .map(|(key, value)| (key.to_owned(), value.into()))
            .collect()
    }
}

/// A device, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArg {
    /// The processor
    Cpu,
    /// The first NVIDIA GPU
    Cuda,
}

/// A form of the weights, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsArg {
    /// As the file holds them where the device can multiply with that, else dense
    AsStored,
    /// f32 on the processor, bf16 on a GPU
    Dense,
    /// 4-bit NormalFloat with doubly quantised block maxima
    Nf4,
    /// 8-bit integers in blocks of 32
    Int8,
}

/// Arithmetic of the processor, as typed.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuMathArg {
    /// f32 activations times dequantised weights
    Exact,
    /// Activations rounded to 8 bits in blocks: faster
    Int8Activations,
}

/// A model that runs.
pub struct Embedded {
    /// Its name.
    pub name: String,
    /// Its configuration.
    pub config: ModelConfig,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversations to text; absent where the model has none.
    pub template: Option<ChatTemplate>,
    /// Draws the tokens.
    pub engine: Arc<Engine>,
    /// Where its files are.
    located: Located,
    /// The files that hold weights.
    weights: Vec<PathBuf>,
    /// How it is computed.
    computed: Value,
}

impl Embedded {
    /// The model as a policy that agents can drive.
    pub fn into_policy(self) -> Result<EmbeddedPolicy, CliError> {
        let description = json!({
            "name": self.name,
            "origin": self.located.origin,
            "files": self.identity()?,
            "computed": self.computed,
        });
        EmbeddedPolicy::new(self.engine, self.tokenizer, None, description)
            .map_err(|error| CliError::new(exit_code::INPUT, error))
    }

    /// What the model is: files of one's own by their hashes, since a job goes on only with the
    /// same model; a package or a commit of a hub says it already.
    fn identity(&self) -> Result<Vec<Value>, CliError> {
        identity(&self.located, &self.weights)
    }
}

/// The files of a checkpoint that hold weights.
pub fn weight_files(checkpoint: &Checkpoint) -> Vec<PathBuf> {
    let files = checkpoint.files().into_iter();
    files.map(|(file, _)| file.to_owned()).collect()
}

/// The digest of what a model is, wherever its files lie.
pub fn model_digest(located: &Located, checkpoint: &Checkpoint) -> Result<Digest, CliError> {
    let files = identity(located, &weight_files(checkpoint))?;
    Ok(Digest::of_value(
        &json!({"origin": located.origin, "files": files}),
    ))
}

/// What tells a model from another: see [`Embedded::identity`].
fn identity(located: &Located, weights: &[PathBuf]) -> Result<Vec<Value>, CliError> {
    if located.origin != Origin::Local {
        return Ok(Vec::new());
    }
    let beside = BESIDE_WEIGHTS.map(|name| located.path.join(name));
    weights
        .iter()
        .chain(beside.iter().filter(|path| path.is_file()))
        .map(|path| {
            let digest = sha256(path).map_err(|error| CliError::new(exit_code::INPUT, error))?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            Ok(json!({"name": name, "sha256": digest}))
        })
        .collect()
}

/// Files of a folder that change what its weights say.
const BESIDE_WEIGHTS: [&str; 6] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

/// The context of an engine for which nothing asks for another.
const DEFAULT_CONTEXT: usize = 32_768;

impl EngineArgs {
    /// Opens a model and starts its engine.
    ///
    /// `sequences` is how many run at a time where the flags do not say.
    pub fn open(
        &self,
        model: &Located,
        places: &Places,
        sequences: usize,
    ) -> Result<Embedded, CliError> {
        self.open_for(model, places, sequences, DEFAULT_CONTEXT)
    }

    /// As [`EngineArgs::open`], with the context that is wanted where the flags name none; the
    /// engine has it if the model does.
    pub fn open_for(
        &self,
        model: &Located,
        places: &Places,
        sequences: usize,
        wanted_context: usize,
    ) -> Result<Embedded, CliError> {
        let device = self.device.open(self.cpu_math, places)?;
        self.open_with(&device, model, sequences, wanted_context)
    }

    /// As [`EngineArgs::open_for`], on a device that is open; without a wanted context it is that
    /// of [`EngineArgs::open`].
    pub fn open_on(
        &self,
        device: &Chosen,
        model: &Located,
        sequences: usize,
        wanted_context: Option<usize>,
    ) -> Result<Embedded, CliError> {
        let wanted_context = wanted_context.unwrap_or(DEFAULT_CONTEXT);
        self.open_with(device, model, sequences, wanted_context)
    }

    fn open_with(
        &self,
        device: &Chosen,
        model: &Located,
        sequences: usize,
        wanted_context: usize,
    ) -> Result<Embedded, CliError> {
        let checkpoint = Checkpoint::open(&model.path)?;
        let tokenizer = checkpoint.tokenizer()?;
        let template = ChatTemplate::of_tokenizer(&tokenizer, None, false)
            .map_err(|error| CliError::new(exit_code::INPUT, error))?;
        let tokenizer = Arc::new(tokenizer);
        let engine = match device {
            Chosen::Gpu(gpu) => {
                let gpu = gpu.as_ref().clone();
                self.start(gpu, &checkpoint, &tokenizer, sequences, wanted_context)?
            }
            Chosen::Processor(cpu) => {
                let cpu = cpu.clone();
                self.start(cpu, &checkpoint, &tokenizer, sequences, wanted_context)?
            }
        };
        Ok(Embedded {
            name: model.name(),
            config: checkpoint.config().clone(),
            weights: weight_files(&checkpoint),
            located: model.clone(),
            computed: json!({
                "weights": format!("{:?}", self.weights),
                "device": device.name(),
                "context": engine.max_context(),
            }),
            tokenizer,
            template,
            engine: Arc::new(engine),
        })
    }

    fn start<D: Device>(
        &self,
        device: D,
        checkpoint: &Checkpoint,
        tokenizer: &Arc<Tokenizer>,
        sequences: usize,
        wanted_context: usize,
    ) -> Result<Engine, CliError> {
        let failed = |error: &dyn std::fmt::Display| CliError::new(exit_code::FAILURE, error);
        let name = device.name();
        let on_processor = D::ACTIVATION == temper_model::DType::F32;
        let most = checkpoint.config().max_position_embeddings;
        let context = self.context.unwrap_or(most.min(wanted_context));
        if context > most {
            return Err(CliError::new(
                exit_code::USAGE,
                format!("use a context of {context} tokens: the model is made for {most}"),
            ));
        }
        let options = LoadOptions {
            format: match self.weights {
                WeightsArg::AsStored => WeightFormat::AsStored,
                WeightsArg::Dense => WeightFormat::Dense,
                WeightsArg::Int8 => WeightFormat::Int8,
                WeightsArg::Nf4 => WeightFormat::Nf4 {
                    double_quantised: true,
                },
            },
            max_positions: context,
        };
        let model = Model::load(device, checkpoint, &options).map_err(|error| failed(&error))?;
        let paged = PagedModel::new(
            Arc::new(model),
            &PagedOptions {
                max_context: context,
                max_sequences: self.max_sequences.unwrap_or(sequences),
                cache_bytes: match self.kv_cache_mib {
                    Some(mib) => mib << 20,
                    None if on_processor => host_cache_bytes(),
                    None => 0,
                },
                max_adapter_rank: 64,
                pads_decoding: !on_processor,
                ..PagedOptions::default()
            },
        )
        .map_err(|error| failed(&error))?;
        output::note(&format!("engine: {name}; {}", paged.plan()));
        let engine = Engine::start(
            paged,
            EngineConfig {
                vocabulary: Some(tokenizer.clone()),
                ..EngineConfig::default()
            },
        )?;
        Ok(engine)
    }
}

impl DeviceArgs {
    /// Opens the device that the flags ask for; `math` is for the processor.
    pub fn open(&self, math: CpuMathArg, places: &Places) -> Result<Chosen, CliError> {
        if self.device != Some(DeviceArg::Cpu) {
            match Cuda::open(&cuda_options(places)) {
                Ok(gpu) => return Ok(Chosen::Gpu(Box::new(gpu))),
                Err(error) if self.device == Some(DeviceArg::Cuda) => {
                    return Err(CliError::new(exit_code::ENVIRONMENT, error)
                        .hint("`temper doctor` says what was found and what is missing"));
                }
                Err(OpenError::Probe(ProbeError::NoDriver | ProbeError::NoGpu)) => {}
                // There is something of a GPU: the user should know why it is idle.
                Err(error) => output::note(&format!("no GPU is used: failed to {error}")),
            }
        }
        let threads = crate::places::workers(self.threads);
        let math = match math {
            CpuMathArg::Exact => CpuMath::Exact,
            CpuMathArg::Int8Activations => CpuMath::Int8Activations,
        };
        Cpu::new(threads, math)
            .map(Chosen::Processor)
            .map_err(|error| CliError::new(exit_code::FAILURE, error))
    }
}

/// A quarter of the memory that is free, at most 2 GiB: the machine is the user's, too.
fn host_cache_bytes() -> usize {
    let available = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text
                .lines()
                .find(|line| line.starts_with("MemAvailable:"))?;
            line.split_whitespace().nth(1)?.parse::<usize>().ok()
        })
        .map_or(2 << 30, |kib| kib << 10);
    (available / 4).min(2 << 30)
}

/// A device that is open.
pub enum Chosen {
    /// A GPU.
    Gpu(Box<Cuda>),
    /// The processor.
    Processor(Cpu),
}

impl Chosen {
    /// What it is called where results depend on it. Threads change nothing in a result.
    pub fn name(&self) -> String {
        match self {
            Chosen::Gpu(gpu) => gpu.name(),
            Chosen::Processor(cpu) => format!("processor, {:?}", cpu.math()),
        }
    }
}

/// Where CUDA's libraries are looked for and compiled kernels kept.
pub fn cuda_options(places: &Places) -> CudaOptions {
    CudaOptions {
        folders: LibraryFolders::from_environment(),
        kernel_cache: Some(places.cache.join("kernels")),
        ..CudaOptions::default()
    }
}
