//! Copies, sums, gathers, scatters, SwiGLU, rotary embedding.

use cudarc::driver::result as driver;
use temper_model::device::Result;
use temper_model::tensor::DType;

use super::{
    T, V, check_activations, check_floats, check_same, check_size, check_tensor, letter, shape,
    vector_width, walk,
};
use crate::cuda::Cuda;
use crate::launch::{Family, words};

impl Cuda {
    pub(crate) fn op_copy(&self, from: &V, to: &V) -> Result<()> {
        const OPERATION: &str = "copy";
        if (from.rows(), from.cols()) != (to.rows(), to.cols()) {
            return Err(shape(
                OPERATION,
                format!(
                    "[{}, {}] to [{}, {}]",
                    from.rows(),
                    from.cols(),
                    to.rows(),
                    to.cols()
                ),
            ));
        }
        if from.rows() == 0 || from.cols() == 0 || from.is_same(to) {
            return Ok(());
        }
        let same = from.dtype() == to.dtype();
        let contiguous = (from.is_contiguous() && to.is_contiguous()) || from.rows() == 1;
        if same && contiguous {
            return self.copy_memory(
                self.at(from),
                self.at(to),
                from.rows() * from.cols() * from.dtype().size(),
            );
        }
        // 4-byte integers move as f32 bits, which a copy leaves as they are.
        let movable = |dtype| matches!(dtype, DType::F32 | DType::Bf16);
        if !(movable(from.dtype()) && movable(to.dtype()) || same && from.dtype() == DType::U32) {
            return Err(shape(
                OPERATION,
                format!("{:?} to {:?}", from.dtype(), to.dtype()),
            ));
        }
        check_size(OPERATION, from.rows(), from.cols())?;
        let width = vector_width(&[from, to]);
        let (grid, block) = walk(from.rows(), from.cols().div_ceil(width));
        let kernel = format!(
            "copy_{}{}_{width}",
            letter(from.dtype()),
            letter(to.dtype())
        );
        // SAFETY: views lie within their tensors; the shapes are equal.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &kernel,
                grid,
                block,
                words![
                    self.at(from),
                    from.stride(),
                    self.at(to),
                    to.stride(),
                    from.rows(),
                    from.cols()
                ],
            )
        }
    }

    pub(crate) fn copy_memory(&self, from: u64, to: u64, n_bytes: usize) -> Result<()> {
        let fail = |error| self.failed("copy", error);
        self.context().bind_to_thread().map_err(fail)?;
        // SAFETY: callers pass addresses within tensors that have as many bytes.
        unsafe { driver::memcpy_dtod_async(to, from, n_bytes, self.stream().cu_stream()) }
            .map_err(fail)
    }

    pub(crate) fn op_gather_rows(&self, from: &V, rows: &T, to: &V) -> Result<()> {
        const OPERATION: &str = "gather_rows";
        check_floats(OPERATION, &[from, to])?;
        check_tensor(OPERATION, "rows", rows, DType::U32, to.rows())?;
        check_size(OPERATION, from.rows(), from.cols())?;
        if from.cols() != to.cols() {
            return Err(shape(
                OPERATION,
                format!("rows of {} to rows of {}", from.cols(), to.cols()),
            ));
        }
        if to.rows() == 0 || to.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&[from, to]);
        let (grid, block) = walk(to.rows(), to.cols().div_ceil(width));
        let kernel = format!(
            "gather_rows_{}{}_{width}",
            letter(from.dtype()),
            letter(to.dtype())
        );
        // SAFETY: views lie within their tensors; the kernel checks the row numbers.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &kernel,
                grid,
                block,
                words![
                    self.at(from),
                    from.stride(),
                    from.rows(),
                    self.pointer(rows),
                    self.at(to),
                    to.stride(),
                    to.rows(),
                    to.cols()
                ],
            )
        }
    }

    pub(crate) fn op_scatter_add_rows(&self, from: &V, rows: &T, to: &V) -> Result<()> {
        const OPERATION: &str = "scatter_add_rows";
        check_floats(OPERATION, &[from, to])?;
        check_tensor(OPERATION, "rows", rows, DType::U32, from.rows())?;
        check_size(OPERATION, to.rows(), to.cols())?;
        if from.cols() != to.cols() {
            return Err(shape(
                OPERATION,
                format!("rows of {} to rows of {}", from.cols(), to.cols()),
            ));
        }
        if from.rows() == 0 || from.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&[from, to]);
        let (grid, block) = walk(from.rows(), from.cols().div_ceil(width));
        let kernel = format!(
            "scatter_add_rows_{}{}_{width}",
            letter(from.dtype()),
            letter(to.dtype())
        );
        // SAFETY: views lie within their tensors; the kernel checks the row numbers.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &kernel,
                grid,
                block,
                words![
                    self.at(from),
                    from.stride(),
                    self.pointer(rows),
                    self.at(to),
                    to.stride(),
                    to.rows(),
                    from.rows(),
                    from.cols()
                ],
            )
        }
    }

    pub(crate) fn op_add_scaled(&self, from: &V, scale: f32, to: &V) -> Result<()> {
        const OPERATION: &str = "add_scaled";
        check_floats(OPERATION, &[from, to])?;
        check_same(OPERATION, &[from, to])?;
        if to.rows() == 0 || to.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&[from, to]);
        let (grid, block) = walk(to.rows(), to.cols().div_ceil(width));
        let kernel = format!(
            "add_scaled_{}{}_{width}",
            letter(from.dtype()),
            letter(to.dtype())
        );
        // SAFETY: views lie within their tensors; the shapes are equal.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &kernel,
                grid,
                block,
                words![
                    self.at(from),
                    from.stride(),
                    scale,
                    self.at(to),
                    to.stride(),
                    to.rows(),
                    to.cols()
                ],
            )
        }
    }

    pub(crate) fn op_swiglu(&self, gate: &V, up: &V, out: &V) -> Result<()> {
        const OPERATION: &str = "swiglu";
        let views = [gate, up, out];
        check_activations(OPERATION, &views)?;
        check_same(OPERATION, &views)?;
        if out.rows() == 0 || out.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&views);
        let (grid, block) = walk(out.rows(), out.cols().div_ceil(width));
        // SAFETY: views lie within their tensors; the shapes are equal.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &format!("swiglu_{width}"),
                grid,
                block,
                words![
                    self.at(gate),
                    gate.stride(),
                    self.at(up),
                    up.stride(),
                    self.at(out),
                    out.stride(),
                    out.rows(),
                    out.cols()
                ],
            )
        }
    }

    pub(crate) fn op_swiglu_backward(
        &self,
        gate: &V,
        up: &V,
        d_out: &V,
        d_gate: &V,
        d_up: &V,
    ) -> Result<()> {
        const OPERATION: &str = "swiglu_backward";
        let views = [gate, up, d_out, d_gate, d_up];
        check_activations(OPERATION, &views)?;
        check_same(OPERATION, &views)?;
        if d_out.rows() == 0 || d_out.cols() == 0 {
            return Ok(());
        }
        let width = vector_width(&views);
        let (grid, block) = walk(d_out.rows(), d_out.cols().div_ceil(width));
        // SAFETY: views lie within their tensors; the shapes are equal; a thread reads its
        // elements before it writes them, so outputs may be inputs.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &format!("swiglu_backward_{width}"),
                grid,
                block,
                words![
                    self.at(gate),
                    gate.stride(),
                    self.at(up),
                    up.stride(),
                    self.at(d_out),
                    d_out.stride(),
                    self.at(d_gate),
                    d_gate.stride(),
                    self.at(d_up),
                    d_up.stride(),
                    d_out.rows(),
                    d_out.cols()
                ],
            )
        }
    }

    pub(crate) fn op_rotary(
        &self,
        x: &V,
        head_dim: usize,
        positions: &T,
        table: &T,
        inverse: bool,
    ) -> Result<()> {
        const OPERATION: &str = "rotary";
        check_activations(OPERATION, &[x])?;
        check_size(OPERATION, x.rows(), x.cols())?;
        check_tensor(OPERATION, "positions", positions, DType::U32, x.rows())?;
        check_tensor(OPERATION, "the table", table, DType::F32, head_dim)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) || !x.cols().is_multiple_of(head_dim) {
            return Err(shape(
                OPERATION,
                format!("{} columns in heads of {head_dim}", x.cols()),
            ));
        }
        if x.rows() == 0 || x.cols() == 0 {
            return Ok(());
        }
        let aligned = self.pointer(table).is_multiple_of(16) && head_dim.is_multiple_of(16);
        let width = if aligned { vector_width(&[x]) } else { 1 };
        let (grid, block) = walk(x.rows(), (x.cols() / 2).div_ceil(width));
        let sign = if inverse { -1.0f32 } else { 1.0 };
        // SAFETY: the view lies within its tensor; the kernel checks positions against the table.
        unsafe {
            self.launch(
                OPERATION,
                Family::Elementwise,
                &format!("rotary_{width}"),
                grid,
                block,
                words![
                    self.at(x),
                    x.stride(),
                    head_dim,
                    self.pointer(positions),
                    self.pointer(table),
                    table.len() / head_dim,
                    sign,
                    x.rows(),
                    x.cols()
                ],
            )
        }
    }
}
