//! The device that is the processor: activations in f32, all operations on a pool of threads.
//!
//! Results do not depend on the number of threads: what one task computes and the order of every
//! sum are fixed by shapes alone.

mod attention;
mod attention_backward;
mod cache;
mod copy;
mod eight_bit;
mod embed;
mod int8;
mod linear;
mod log_softmax;
mod matrix;
mod nf4;
mod optimizer;
mod packed;
mod pool;
mod product;
mod rms_norm;
mod rotary;
mod sample;
mod simd;
mod storage;
mod swiglu;
#[cfg(test)]
mod tests;
mod tile;
mod transfer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use temper_checkpoint::tensor::TensorView;

use self::int8::Activations;
pub use self::{matrix::CpuMatrix, storage::CpuStorage};
use self::{pool::Pool, storage::Meter};
use crate::{
    device::{
        AdamW, Device, DeviceError, Draws, Heads, KvPages, Moments, PagedRows, Result, Segments,
        WeightFormat,
    },
    tensor::{DType, Tensor, View},
};

/// How products with quantised weights are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CpuMath {
    /// f32 activations times dequantised weights.
    #[default]
    Exact,
    /// Activations rounded to 8 bits in blocks of 32 where the weights are in 4, 5 or 8 bits in
    /// blocks of 32 and the processor has AVX-512 VNNI; exact elsewhere.
    Int8Activations,
}

/// The processor. A clone is the same device.
#[derive(Clone, Debug)]
pub struct Cpu {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    pool: Pool,
    math: CpuMath,
    meter: Arc<Meter>,
    /// Room for intermediate matrices of one operation.
    scratch: Mutex<Vec<f32>>,
    /// Room for rounded activations.
    activations: Mutex<Activations>,
}

/// Elements below which an operation stays on the calling thread, and in one task above.
const TASK_ELEMENTS: usize = 8_192;

impl Cpu {
    /// A device of `n_threads` threads, the calling one among them.
    ///
    /// # Errors
    /// When the threads cannot be started.
    pub fn new(n_threads: usize, math: CpuMath) -> Result<Self> {
        let pool = Pool::new(n_threads).map_err(|error| DeviceError::Failed {
            operation: "start threads",
            device: "the processor".into(),
            reason: error.to_string(),
        })?;
        Ok(Cpu {
            inner: Arc::new(Inner {
                pool,
                math,
                meter: Arc::default(),
                scratch: Mutex::default(),
                activations: Mutex::default(),
            }),
        })
    }

    /// How products with quantised weights are computed.
    pub fn math(&self) -> CpuMath {
        self.inner.math
    }

    /// Threads that share the work.
    pub fn n_threads(&self) -> usize {
        self.inner.pool.n_threads()
    }

    fn pool(&self) -> &Pool {
        &self.inner.pool
    }

    /// The room for rounded activations, where products round them.
    fn activations(&self) -> Option<MutexGuard<'_, Activations>> {
        (self.inner.math == CpuMath::Int8Activations && int8::is_supported()).then(|| {
            self.inner
                .activations
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn scratch(&self) -> MutexGuard<'_, Vec<f32>> {
        self.inner
            .scratch
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn allocate(&self, dtype: DType, len: usize) -> Result<Tensor<CpuStorage>> {
        let n_bytes = len.saturating_mul(dtype.size());
        let storage = CpuStorage::zeroed(n_bytes, &self.inner.meter)?;
        Ok(Tensor::new(Arc::new(storage), 0, len, dtype))
    }

    /// Runs `work` for every row; `cols` is what a row costs, in elements that are read or
    /// written.
    fn rows(&self, (rows, cols): (usize, usize), work: impl Fn(usize) + Sync) {
        let rows_per_task = TASK_ELEMENTS.div_ceil(cols.max(1));
        let n_tasks = rows.div_ceil(rows_per_task);
        self.pool().run(n_tasks, &|task| {
            let end = ((task + 1) * rows_per_task).min(rows);
            (task * rows_per_task..end).for_each(&work);
        });
    }
}

impl Device for Cpu {
    type Storage = CpuStorage;
    type Matrix = CpuMatrix;

    const ACTIVATION: DType = DType::F32;

    fn name(&self) -> String {
        format!("the processor ({} threads)", self.n_threads())
    }

    fn memory_used(&self) -> (usize, usize) {
        self.inner.meter.read()
    }

    fn memory_free(&self) -> Option<usize> {
        available_memory()
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn replay(&self, _key: u64, body: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        body()
    }

    fn zeros(&self, dtype: DType, len: usize) -> Result<Tensor<CpuStorage>> {
        self.allocate(dtype, len)
    }

    fn upload_f32(&self, values: &[f32], to: &Tensor<CpuStorage>) -> Result<()> {
        self.upload_floats(values, to)
    }

    fn upload_u32(&self, values: &[u32], to: &Tensor<CpuStorage>) -> Result<()> {
        self.upload_numbers(values, to)
    }

    fn download_f32(&self, from: &Tensor<CpuStorage>) -> Result<Vec<f32>> {
        self.download_floats(from)
    }

    fn download_u32(&self, from: &Tensor<CpuStorage>) -> Result<Vec<u32>> {
        self.download_numbers(from)
    }

    fn download_bytes(&self, from: &Tensor<CpuStorage>) -> Result<Vec<u8>> {
        self.snapshot(from)
    }

    fn upload_bytes(&self, bytes: &[u8], to: &Tensor<CpuStorage>) -> Result<()> {
        self.restore(bytes, to)
    }

    fn fill_zero(&self, tensor: &Tensor<CpuStorage>) -> Result<()> {
        self.clear(tensor)
    }

    fn copy(&self, from: &View<CpuStorage>, to: &View<CpuStorage>) -> Result<()> {
        self.copy_view(from, to)
    }

    fn gather_rows(
        &self,
        from: &View<CpuStorage>,
        rows: &Tensor<CpuStorage>,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        self.gather(from, rows, to)
    }

    fn scatter_add_rows(
        &self,
        from: &View<CpuStorage>,
        rows: &Tensor<CpuStorage>,
        to: &View<CpuStorage>,
    ) -> Result<()> {
        self.scatter_add(from, rows, to)
    }

    fn add_scaled(&self, from: &View<CpuStorage>, scale: f32, to: &View<CpuStorage>) -> Result<()> {
        self.add_scaled_view(from, scale, to)
    }

    fn matrix(&self, parts: &[TensorView<'_>], format: WeightFormat) -> Result<CpuMatrix> {
        self.make_matrix(parts, format)
    }

    fn matrix_over(
        &self,
        tensor: &Tensor<CpuStorage>,
        rows: usize,
        cols: usize,
    ) -> Result<CpuMatrix> {
        self.matrix_over_tensor(tensor, rows, cols)
    }

    fn matrix_shape(&self, matrix: &CpuMatrix) -> (usize, usize) {
        (matrix.rows(), matrix.cols())
    }

    fn matrix_bytes(&self, matrix: &CpuMatrix) -> usize {
        matrix.n_bytes()
    }

    fn matrix_rows(&self, matrix: &CpuMatrix, rows: std::ops::Range<usize>) -> Result<Vec<f32>> {
        self.rows_of_matrix(matrix, rows)
    }

    fn linear(
        &self,
        x: &View<CpuStorage>,
        w: &CpuMatrix,
        bias: Option<&Tensor<CpuStorage>>,
        out: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        self.linear_forward(x, w, bias, out, accumulate)
    }

    fn linear_backward_input(
        &self,
        d_out: &View<CpuStorage>,
        w: &CpuMatrix,
        d_x: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        self.linear_input_gradient(d_out, w, d_x, accumulate)
    }

    fn matmul(
        &self,
        a: (&View<CpuStorage>, bool),
        b: (&View<CpuStorage>, bool),
        scale: f32,
        out: &View<CpuStorage>,
        accumulate: bool,
    ) -> Result<()> {
        self.matmul_of_views(a, b, scale, out, accumulate)
    }

    fn sum_rows(&self, d_out: &View<CpuStorage>, d_bias: &Tensor<CpuStorage>) -> Result<()> {
        self.sum_rows_into(d_out, d_bias)
    }

    fn embed(
        &self,
        table: &CpuMatrix,
        ids: &Tensor<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        self.embed_forward(table, ids, out)
    }

    fn embed_backward(
        &self,
        ids: &Tensor<CpuStorage>,
        d_out: &View<CpuStorage>,
        d_table: &View<CpuStorage>,
    ) -> Result<()> {
        self.embed_backward_into(ids, d_out, d_table)
    }

    fn rms_norm(
        &self,
        x: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        self.rms_norm_forward(x, weight, epsilon, out)
    }

    fn add_rms_norm(
        &self,
        delta: &View<CpuStorage>,
        sum: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        self.add_rms_norm_forward(delta, sum, weight, epsilon, out)
    }

    #[allow(clippy::too_many_arguments)]
    fn rms_norm_backward(
        &self,
        x: &View<CpuStorage>,
        weight: &Tensor<CpuStorage>,
        epsilon: f32,
        d_out: &View<CpuStorage>,
        d_x: &View<CpuStorage>,
        accumulate: bool,
        d_weight: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        self.rms_norm_backward_into(x, weight, epsilon, d_out, d_x, accumulate, d_weight)
    }

    fn rotary(
        &self,
        x: &View<CpuStorage>,
        head_dim: usize,
        positions: &Tensor<CpuStorage>,
        table: &Tensor<CpuStorage>,
        inverse: bool,
    ) -> Result<()> {
        self.rotate(x, head_dim, positions, table, inverse)
    }

    #[allow(clippy::too_many_arguments)]
    fn attention(
        &self,
        q: &View<CpuStorage>,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<CpuStorage>,
        out: &View<CpuStorage>,
        lse: &Tensor<CpuStorage>,
    ) -> Result<()> {
        self.attention_forward(q, k, v, heads, scale, segments, out, lse)
    }

    #[allow(clippy::too_many_arguments)]
    fn attention_backward(
        &self,
        q: &View<CpuStorage>,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        out: &View<CpuStorage>,
        lse: &Tensor<CpuStorage>,
        d_out: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        segments: &Segments<CpuStorage>,
        d_q: &View<CpuStorage>,
        d_k: &View<CpuStorage>,
        d_v: &View<CpuStorage>,
    ) -> Result<()> {
        self.attention_backward_into(
            q, k, v, out, lse, d_out, heads, scale, segments, d_q, d_k, d_v,
        )
    }

    fn attention_scratch_bytes(&self, heads: Heads, n_tokens: usize, backward: bool) -> usize {
        if backward {
            heads.n_query * n_tokens * 4
        } else {
            0
        }
    }

    fn swiglu(
        &self,
        gate: &View<CpuStorage>,
        up: &View<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        self.swiglu_forward(gate, up, out)
    }

    fn swiglu_backward(
        &self,
        gate: &View<CpuStorage>,
        up: &View<CpuStorage>,
        d_out: &View<CpuStorage>,
        d_gate: &View<CpuStorage>,
        d_up: &View<CpuStorage>,
    ) -> Result<()> {
        self.swiglu_backward_into(gate, up, d_out, d_gate, d_up)
    }

    fn log_softmax_gather(
        &self,
        logits: &View<CpuStorage>,
        targets: &Tensor<CpuStorage>,
        temperature: f32,
        logprob: &Tensor<CpuStorage>,
        lse: &Tensor<CpuStorage>,
        entropy: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        self.log_softmax_gather_forward(logits, targets, temperature, logprob, lse, entropy)
    }

    fn log_softmax_gather_backward(
        &self,
        logits: &View<CpuStorage>,
        targets: &Tensor<CpuStorage>,
        temperature: f32,
        lse: &Tensor<CpuStorage>,
        d_logprob: &Tensor<CpuStorage>,
    ) -> Result<()> {
        self.log_softmax_gather_backward_into(logits, targets, temperature, lse, d_logprob)
    }

    fn sample(&self, logits: &View<CpuStorage>, draws: &Draws<CpuStorage>) -> Result<()> {
        self.sample_rows(logits, draws)
    }

    fn write_kv(
        &self,
        k: &View<CpuStorage>,
        v: &View<CpuStorage>,
        heads: Heads,
        rows: &PagedRows<CpuStorage>,
        pages: &KvPages<CpuStorage>,
    ) -> Result<()> {
        self.write_kv_rows(k, v, heads, rows, pages)
    }

    fn paged_attention(
        &self,
        q: &View<CpuStorage>,
        heads: Heads,
        scale: f32,
        rows: &PagedRows<CpuStorage>,
        pages: &KvPages<CpuStorage>,
        out: &View<CpuStorage>,
    ) -> Result<()> {
        self.paged_attention_rows(q, heads, scale, rows, pages, out)
    }

    fn copy_pages(
        &self,
        pages: &KvPages<CpuStorage>,
        heads: Heads,
        moves: &[(u32, u32)],
    ) -> Result<()> {
        self.move_pages(pages, heads, moves)
    }

    fn sum_squares(&self, x: &Tensor<CpuStorage>, sum: &Tensor<CpuStorage>) -> Result<()> {
        self.add_sum_squares(x, sum)
    }

    fn adamw(
        &self,
        settings: &AdamW,
        gradient: &Tensor<CpuStorage>,
        master: &Tensor<CpuStorage>,
        moments: &Moments<CpuStorage>,
        copy: Option<&Tensor<CpuStorage>>,
    ) -> Result<()> {
        self.adamw_update(settings, gradient, master, moments, copy)
    }
}

/// Bytes that the kernel thinks it can give without swapping.
fn available_memory() -> Option<usize> {
    let report = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = report
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
