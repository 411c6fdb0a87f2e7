//! [`Cuda`] as a [`Device`]: the operations, put together.

use std::ops::Range;

use half::bf16;
use temper_checkpoint::tensor::TensorView;
use temper_model::device::{
    AdamW, Device, Draws, Heads, KvPages, Moments, PagedRows, Result, Segments, WeightFormat,
};
use temper_model::tensor::{DType, Tensor, View};

use crate::cuda::Cuda;
use crate::matrix::{Matrix, Weights, dequantised_bytes};
use crate::memory::Storage;

type T = Tensor<Storage>;
type V = View<Storage>;

impl Device for Cuda {
    type Storage = Storage;
    type Matrix = Matrix;

    const ACTIVATION: DType = DType::Bf16;

    fn name(&self) -> String {
        self.gpu_name().to_owned()
    }

    fn memory_used(&self) -> (usize, usize) {
        self.memory().usage()
    }

    fn own_bytes(&self) -> usize {
        self.own_storage_bytes()
    }

    fn memory_free(&self) -> Option<usize> {
        self.context().bind_to_thread().ok()?;
        let (free, _) = self.context().mem_get_info().ok()?;
        Some(free)
    }

    fn synchronize(&self) -> Result<()> {
        self.stream()
            .synchronize()
            .map_err(|error| self.failed("synchronize", error))
    }

    fn replay(&self, key: u64, body: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.run_recorded(key, body)
    }

    fn zeros(&self, dtype: DType, len: usize) -> Result<T> {
        self.op_zeros(dtype, len)
    }

    fn upload_f32(&self, values: &[f32], to: &T) -> Result<()> {
        self.op_upload_f32(values, to)
    }

    fn upload_u32(&self, values: &[u32], to: &T) -> Result<()> {
        self.op_upload_u32(values, to)
    }

    fn download_f32(&self, from: &T) -> Result<Vec<f32>> {
        self.op_download_f32(from)
    }

    fn download_u32(&self, from: &T) -> Result<Vec<u32>> {
        self.op_download_u32(from)
    }

    fn download_bytes(&self, from: &T) -> Result<Vec<u8>> {
        self.op_download_bytes(from)
    }

    fn upload_bytes(&self, bytes: &[u8], to: &T) -> Result<()> {
        self.op_upload_bytes(bytes, to)
    }

    fn fill_zero(&self, tensor: &T) -> Result<()> {
        self.op_fill_zero(tensor)
    }

    fn copy(&self, from: &V, to: &V) -> Result<()> {
        self.op_copy(from, to)
    }

    fn gather_rows(&self, from: &V, rows: &T, to: &V) -> Result<()> {
        self.op_gather_rows(from, rows, to)
    }

    fn scatter_add_rows(&self, from: &V, rows: &T, to: &V) -> Result<()> {
        self.op_scatter_add_rows(from, rows, to)
    }

    fn add_scaled(&self, from: &V, scale: f32, to: &V) -> Result<()> {
        self.op_add_scaled(from, scale, to)
    }

    fn matrix(&self, parts: &[TensorView<'_>], format: WeightFormat) -> Result<Matrix> {
        self.load_matrix(parts, format)
    }

    fn matrix_over(&self, tensor: &T, rows: usize, cols: usize) -> Result<Matrix> {
        if tensor.dtype() != DType::Bf16 || tensor.len() < rows * cols {
            return Err(temper_model::DeviceError::Shape {
                operation: "matrix",
                reason: format!(
                    "[{rows}, {cols}] over {} elements of {:?}",
                    tensor.len(),
                    tensor.dtype()
                ),
            });
        }
        Ok(Matrix {
            rows,
            cols,
            weights: Weights::Dense(tensor.slice(0..rows * cols)),
        })
    }

    fn matrix_shape(&self, matrix: &Matrix) -> (usize, usize) {
        (matrix.rows, matrix.cols)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> usize {
        matrix.n_bytes()
    }

    fn matrix_rows(&self, matrix: &Matrix, rows: Range<usize>) -> Result<Vec<f32>> {
        if rows.start > rows.end || rows.end > matrix.rows {
            return Err(temper_model::DeviceError::Shape {
                operation: "matrix_rows",
                reason: format!("rows {rows:?} of {}", matrix.rows),
            });
        }
        let mut values = Vec::with_capacity(rows.len() * matrix.cols);
        for first in rows.clone().step_by(matrix.rows_at_once()) {
            let piece = first..rows.end.min(first + matrix.rows_at_once());
            let n_bytes = piece.len() * matrix.cols * 2;
            let bytes = self.download_from(self.dense_rows(matrix, piece)?, n_bytes)?;
            values.extend(
                bytes
                    .chunks_exact(2)
                    .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()),
            );
        }
        Ok(values)
    }

    fn linear(&self, x: &V, w: &Matrix, bias: Option<&T>, out: &V, accumulate: bool) -> Result<()> {
        self.op_linear(x, w, bias, out, accumulate.then_some(out))
    }

    fn linear_residual(&self, x: &V, w: &Matrix, residual: &V, out: &V) -> Result<()> {
        self.op_linear(x, w, None, out, Some(residual))
    }

    fn linear_scratch_bytes(&self, format: WeightFormat, n_out: usize, n_in: usize) -> usize {
        dequantised_bytes(format, n_out, n_in)
    }

    fn linear_backward_input(
        &self,
        d_out: &V,
        w: &Matrix,
        d_x: &V,
        accumulate: bool,
    ) -> Result<()> {
        self.op_linear_backward_input(d_out, w, d_x, accumulate)
    }

    fn matmul(
        &self,
        a: (&V, bool),
        b: (&V, bool),
        scale: f32,
        out: &V,
        accumulate: bool,
    ) -> Result<()> {
        self.op_matmul(a, b, scale, out, accumulate)
    }

    fn sum_rows(&self, d_out: &V, d_bias: &T) -> Result<()> {
        self.op_sum_rows(d_out, d_bias)
    }

    fn embed(&self, table: &Matrix, ids: &T, out: &V) -> Result<()> {
        self.op_embed(table, ids, out)
    }

    fn embed_backward(&self, ids: &T, d_out: &V, d_table: &V) -> Result<()> {
        self.op_embed_backward(ids, d_out, d_table)
    }

    fn rms_norm(&self, x: &V, weight: &T, epsilon: f32, out: &V) -> Result<()> {
        self.op_rms_norm(x, weight, epsilon, out)
    }

    fn add_rms_norm(&self, delta: &V, sum: &V, weight: &T, epsilon: f32, out: &V) -> Result<()> {
        self.op_add_rms_norm(delta, sum, weight, epsilon, out)
    }

    fn rms_norm_backward(
        &self,
        x: &V,
        weight: &T,
        epsilon: f32,
        d_out: &V,
        d_x: &V,
        accumulate: bool,
        d_weight: Option<&T>,
    ) -> Result<()> {
        self.op_rms_norm_backward(x, weight, epsilon, d_out, d_x, accumulate, d_weight)
    }

    fn rotary(
        &self,
        x: &V,
        head_dim: usize,
        positions: &T,
        table: &T,
        inverse: bool,
    ) -> Result<()> {
        self.op_rotary(x, head_dim, positions, table, inverse)
    }

    fn attention(
        &self,
        q: &V,
        k: &V,
        v: &V,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
        out: &V,
        lse: &T,
    ) -> Result<()> {
        self.op_attention(q, k, v, heads, scale, segments, out, lse)
    }

    fn attention_backward(
        &self,
        q: &V,
        k: &V,
        v: &V,
        out: &V,
        lse: &T,
        d_out: &V,
        heads: Heads,
        scale: f32,
        segments: &Segments<Storage>,
        d_q: &V,
        d_k: &V,
        d_v: &V,
    ) -> Result<()> {
        self.op_attention_backward(
            q, k, v, out, lse, d_out, heads, scale, segments, d_q, d_k, d_v,
        )
    }

    fn attention_scratch_bytes(&self, heads: Heads, n_tokens: usize, backward: bool) -> usize {
        self.attention_bytes(heads, n_tokens, backward)
    }

    fn swiglu(&self, gate: &V, up: &V, out: &V) -> Result<()> {
        self.op_swiglu(gate, up, out)
    }

    fn swiglu_backward(&self, gate: &V, up: &V, d_out: &V, d_gate: &V, d_up: &V) -> Result<()> {
        self.op_swiglu_backward(gate, up, d_out, d_gate, d_up)
    }

    fn log_softmax_gather(
        &self,
        logits: &V,
        targets: &T,
        temperature: f32,
        logprob: &T,
        lse: &T,
        entropy: Option<&T>,
    ) -> Result<()> {
        self.op_log_softmax_gather(logits, targets, temperature, logprob, lse, entropy)
    }

    fn log_softmax_gather_backward(
        &self,
        logits: &V,
        targets: &T,
        temperature: f32,
        lse: &T,
        d_logprob: &T,
    ) -> Result<()> {
        self.op_log_softmax_gather_backward(logits, targets, temperature, lse, d_logprob, logits)
    }

    fn log_softmax_gather_backward_into(
        &self,
        logits: &V,
        targets: &T,
        temperature: f32,
        lse: &T,
        d_logprob: &T,
        d_logits: &V,
    ) -> Result<()> {
        self.op_log_softmax_gather_backward(logits, targets, temperature, lse, d_logprob, d_logits)
    }

    fn sample(&self, logits: &V, draws: &Draws<Storage>) -> Result<()> {
        self.op_sample(logits, draws)
    }

    fn write_kv(
        &self,
        k: &V,
        v: &V,
        heads: Heads,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
    ) -> Result<()> {
        self.op_write_kv(k, v, heads, rows, pages)
    }

    fn paged_attention(
        &self,
        q: &V,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<Storage>,
        pages: &KvPages<Storage>,
        out: &V,
    ) -> Result<()> {
        self.op_paged_attention(q, heads, scale, rows, pages, out)
    }

    fn copy_pages(
        &self,
        pages: &KvPages<Storage>,
        heads: Heads,
        moves: &[(u32, u32)],
    ) -> Result<()> {
        self.op_copy_pages(pages, heads, moves)
    }

    fn sum_squares(&self, x: &T, sum: &T) -> Result<()> {
        self.op_sum_squares(x, sum)
    }

    fn adamw(
        &self,
        settings: &AdamW,
        gradient: &T,
        master: &T,
        moments: &Moments<Storage>,
        copy: Option<&T>,
    ) -> Result<()> {
        self.op_adamw(settings, gradient, master, moments, copy)
    }
}
