//! The model's operations on NVIDIA GPUs, without CUDA at build time.

pub mod attention;
pub mod cudnn;
pub mod nvrtc;
