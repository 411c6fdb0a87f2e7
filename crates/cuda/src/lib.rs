//! The model's operations on NVIDIA GPUs, without CUDA at build time.
//!
//! [`Cuda`] is the device. Libraries are found and opened when it is ([`libraries`]);
//! kernels are text in `kernels/`, compiled for the GPU found ([`nvrtc`]). Products go through
//! cublasLt, attention through kernels of our own ([`attention`]), or through [`cudnn`] for heads
//! that these do not have.

pub mod attention;
pub mod cudnn;
pub mod libraries;
pub mod nvrtc;

mod attend;
mod attend_cudnn;
mod cuda;
mod device;
mod dynamic_map;
mod gemm;
mod graphs;
mod launch;
mod matrix;
mod memory;
mod ops;
mod probe;

pub use cuda::{AttentionChoice, Cuda, CudaOptions, OpenError};
pub use launch::Family;
pub use libraries::LibraryFolders;
pub use matrix::Matrix;
pub use memory::Storage;
pub use probe::{GpuInfo, Probe, ProbeError};
