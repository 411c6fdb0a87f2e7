//! Model files: configuration, weights, tokenizer, chat template, and where they come from.
//!
//! Everything read here may come from a stranger, so sizes are checked before memory is taken and
//! nothing panics on what a file says. There is no arithmetic beyond dequantisation.

pub mod adapter;
pub mod audit;
pub mod chat_template;
pub mod config;
pub mod context;
pub mod dequantise;
pub mod export;
pub mod file;
pub mod gguf;
pub mod hub;
pub mod names;
pub mod packaged;
pub mod rope;
pub mod safetensors;
pub mod save;
pub mod tensor;
pub mod tokenizer;
pub mod weights;

pub use adapter::{Adapter, AdapterError, LoraPair};
pub use config::{Architecture, ConfigError, ModelConfig, RopeConfig, RopeScaling};
pub use file::FileError;
pub use gguf::{Gguf, GgufError};
pub use names::{Projection, TensorName};
pub use tensor::{DecodeError, Encoding, TensorView};
pub use weights::{Checkpoint, CheckpointError, Format, TensorFinding};
