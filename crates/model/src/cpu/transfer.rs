//! Copies between a tensor and the caller's own memory.

use half::bf16;

use super::{
    Cpu,
    storage::{CpuStorage, Rows, equal, shape},
};
use crate::{
    device::Result,
    tensor::{DType, Tensor},
};

impl Cpu {
    pub(super) fn upload_floats(&self, values: &[f32], to: &Tensor<CpuStorage>) -> Result<()> {
        let operation = "upload_f32";
        room(operation, values.len(), to.len())?;
        // SAFETY: the caller's slice is no tensor's memory, and nothing else runs.
        unsafe {
            if to.dtype() == DType::Bf16 {
                let to = Rows::<bf16>::of_tensor(operation, to)?.row_mut(0);
                for (to, value) in to.iter_mut().zip(values) {
                    *to = bf16::from_f32(*value);
                }
            } else {
                let to = Rows::<f32>::of_tensor(operation, to)?.row_mut(0);
                to[..values.len()].copy_from_slice(values);
            }
        }
        Ok(())
    }

    pub(super) fn upload_numbers(&self, values: &[u32], to: &Tensor<CpuStorage>) -> Result<()> {
        let operation = "upload_u32";
        room(operation, values.len(), to.len())?;
        // SAFETY: the caller's slice is no tensor's memory, and nothing else runs.
        let to = unsafe { Rows::<u32>::of_tensor(operation, to)?.row_mut(0) };
        to[..values.len()].copy_from_slice(values);
        Ok(())
    }

    pub(super) fn download_floats(&self, from: &Tensor<CpuStorage>) -> Result<Vec<f32>> {
        let operation = "download_f32";
        // SAFETY: nothing writes to the tensor now.
        unsafe {
            if from.dtype() == DType::Bf16 {
                let from = Rows::<bf16>::of_tensor(operation, from)?.row(0);
                return Ok(from.iter().map(|x| x.to_f32()).collect());
            }
            Ok(Rows::<f32>::of_tensor(operation, from)?.row(0).to_vec())
        }
    }

    pub(super) fn download_numbers(&self, from: &Tensor<CpuStorage>) -> Result<Vec<u32>> {
        let from = Rows::<u32>::of_tensor("download_u32", from)?;
        // SAFETY: nothing writes to the tensor now.
        Ok(unsafe { from.row(0) }.to_vec())
    }

    pub(super) fn snapshot(&self, from: &Tensor<CpuStorage>) -> Result<Vec<u8>> {
        let bytes = Rows::of_bytes("download_bytes", from)?;
        // SAFETY: nothing writes to the tensor now.
        Ok(unsafe { bytes.row(0) }.to_vec())
    }

    pub(super) fn restore(&self, bytes: &[u8], to: &Tensor<CpuStorage>) -> Result<()> {
        let to = Rows::of_bytes("upload_bytes", to)?;
        equal("upload_bytes", "bytes", bytes.len(), to.cols)?;
        // SAFETY: the caller's slice is no tensor's memory, and nothing else runs.
        unsafe { to.row_mut(0) }.copy_from_slice(bytes);
        Ok(())
    }

    pub(super) fn clear(&self, tensor: &Tensor<CpuStorage>) -> Result<()> {
        let bytes = Rows::of_bytes("fill_zero", tensor)?;
        const PIECE: usize = 1 << 20;
        self.pool().run(bytes.cols.div_ceil(PIECE), &|task| {
            let len = PIECE.min(bytes.cols - task * PIECE);
            // SAFETY: each task has its own piece.
            unsafe { bytes.columns(task * PIECE, len).row_mut(0) }.fill(0);
        });
        Ok(())
    }
}

fn room(operation: &'static str, n: usize, room: usize) -> Result<()> {
    if n <= room {
        return Ok(());
    }
    Err(shape(operation, format!("{n} values for {room} elements")))
}
