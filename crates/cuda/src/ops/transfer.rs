//! Uploads, downloads, zeros.

use cudarc::driver::result as driver;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use temper_model::device::Result;
use temper_model::tensor::DType;

use super::{T, check_tensor, shape};
use crate::cuda::Cuda;
use crate::memory::Staging;

impl Cuda {
    pub(crate) fn op_upload_f32(&self, values: &[f32], to: &T) -> Result<()> {
        const OPERATION: &str = "upload";
        check_tensor(OPERATION, "the tensor", to, to.dtype(), values.len())?;
        let at = self.pointer(to);
        match to.dtype() {
            DType::F32 => self.upload_slice(values, at),
            DType::Bf16 => {
                let piece = Staging::SEGMENT / 2;
                for (i, values) in values.chunks(piece).enumerate() {
                    self.stage(at + (i * piece * 2) as u64, values.len() * 2, |bytes| {
                        // SAFETY: any bits are a bf16; staging memory is aligned.
                        let (_, out, _) = unsafe { bytes.align_to_mut::<bf16>() };
                        out.convert_from_f32_slice(values);
                        Ok(())
                    })?;
                }
                Ok(())
            }
            other => Err(shape(OPERATION, format!("f32 to {other:?}"))),
        }
    }

    pub(crate) fn op_upload_u32(&self, values: &[u32], to: &T) -> Result<()> {
        check_tensor("upload", "the tensor", to, DType::U32, values.len())?;
        self.upload_slice(values, self.pointer(to))
    }

    pub(crate) fn op_upload_bytes(&self, bytes: &[u8], to: &T) -> Result<()> {
        if bytes.len() != to.n_bytes() {
            return Err(shape(
                "upload",
                format!("{} bytes to {}", bytes.len(), to.n_bytes()),
            ));
        }
        self.upload_slice(bytes, self.pointer(to))
    }

    pub(crate) fn op_download_f32(&self, from: &T) -> Result<Vec<f32>> {
        let bytes = self.op_download_bytes(from)?;
        match from.dtype() {
            DType::F32 => Ok(bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect()),
            DType::Bf16 => Ok(bytes
                .chunks_exact(2)
                .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect()),
            other => Err(shape("download", format!("{other:?} as f32"))),
        }
    }

    pub(crate) fn op_download_u32(&self, from: &T) -> Result<Vec<u32>> {
        check_tensor("download", "the tensor", from, DType::U32, 0)?;
        Ok(self
            .op_download_bytes(from)?
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect())
    }

    pub(crate) fn op_download_bytes(&self, from: &T) -> Result<Vec<u8>> {
        if from.is_empty() {
            return Ok(Vec::new());
        }
        self.download_from(self.pointer(from), from.n_bytes())
    }

    pub(crate) fn op_fill_zero(&self, tensor: &T) -> Result<()> {
        if tensor.is_empty() {
            return Ok(());
        }
        let fail = |error| self.failed("fill with zeros", error);
        self.context().bind_to_thread().map_err(fail)?;
        // SAFETY: the memory is the tensor's.
        unsafe {
            driver::memset_d8_async(
                self.pointer(tensor),
                0,
                tensor.n_bytes(),
                self.stream().cu_stream(),
            )
        }
        .map_err(fail)
    }

    pub(crate) fn op_zeros(&self, dtype: DType, len: usize) -> Result<T> {
        let tensor = self.allocate_tensor(dtype, len)?;
        self.op_fill_zero(&tensor)?;
        Ok(tensor)
    }
}
