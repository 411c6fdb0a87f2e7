//! A language model that runs and learns.
//!
//! [`device`] names every operation; `cpu` does them on the processor, the crate `temper-cuda` on
//! NVIDIA GPUs. The model, its training pass and its sampler are written once over them.

pub mod cpu;
pub mod device;
pub mod policy;
pub mod random;
pub mod sample;
pub mod tensor;
pub mod transformer;

pub use device::{Device, DeviceError};
pub use tensor::{DType, Tensor, View};
