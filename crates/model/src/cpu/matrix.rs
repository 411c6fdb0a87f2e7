//! Matrices of weights: parts stacked by rows, each in its own encoding.

use std::ops::Range;

use half::f16;
use temper_checkpoint::{
    dequantise::dequantise,
    tensor::{Encoding, TensorView},
};

use super::{
    Cpu,
    nf4::Nf4,
    packed::{BLOCK, Layout, Panel, pack},
    simd::LANES,
    storage::{CpuStorage, Rows, apart, shape},
};
use crate::{
    device::{Result, WeightFormat},
    tensor::{DType, Tensor},
};

/// A matrix of weights `[out, in]`.
#[derive(Debug)]
pub struct CpuMatrix {
    parts: Vec<Part>,
    rows: usize,
    cols: usize,
}

/// Some rows of a matrix, in one encoding.
#[derive(Debug)]
pub(super) struct Part {
    /// The first row.
    pub start: usize,
    pub rows: usize,
    pub cols: usize,
    pub weights: Weights,
}

/// How the weights of a part are kept.
#[derive(Debug)]
pub(super) enum Weights {
    /// f32, row after row.
    Dense(Tensor<CpuStorage>),
    /// Encoded rows.
    Blocks {
        encoding: Encoding,
        bytes: Tensor<CpuStorage>,
    },
    /// Blocks of 32, laid out for vectors.
    Packed(PackedWeights),
    /// 4-bit NormalFloat.
    Nf4(Nf4),
}

/// Block-quantised rows in panels of 16.
#[derive(Debug)]
pub(super) struct PackedWeights {
    pub layout: Layout,
    pub n_blocks: usize,
    bytes: Tensor<CpuStorage>,
}

impl PackedWeights {
    /// Sixteen rows.
    pub fn panel(&self, i: usize) -> Panel<'_> {
        Panel::of(self.layout, self.n_blocks, byte_slice(&self.bytes), i)
    }
}

impl CpuMatrix {
    /// Rows: the elements of an output.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns: the elements of an input.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(super) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Bytes held.
    pub(super) fn n_bytes(&self) -> usize {
        self.parts.iter().map(Part::n_bytes).sum()
    }

    /// Checks that writing to `output` changes no weight.
    pub(super) fn apart(&self, operation: &'static str, output: Rows<f32>) -> Result<()> {
        for part in &self.parts {
            if let Weights::Dense(tensor) = &part.weights {
                let weights = Rows::<f32>::of_tensor(operation, tensor)?;
                apart(operation, "weights and output", output, weights)?;
            }
        }
        Ok(())
    }

    /// Row `i`, which exists, dequantised.
    pub(super) fn decode_row(&self, i: usize, out: &mut [f32]) {
        for part in &self.parts {
            if (part.start..part.start + part.rows).contains(&i) {
                part.decode(i - part.start..i - part.start + 1, out);
            }
        }
    }
}

impl Part {
    fn n_bytes(&self) -> usize {
        match &self.weights {
            Weights::Dense(tensor) => tensor.n_bytes(),
            Weights::Blocks { bytes, .. } => bytes.n_bytes(),
            Weights::Packed(packed) => packed.bytes.n_bytes(),
            Weights::Nf4(nf4) => nf4.n_bytes(),
        }
    }

    /// Rows of the part, which exist, dequantised, one after another.
    pub(super) fn decode(&self, rows: Range<usize>, out: &mut [f32]) {
        match &self.weights {
            Weights::Dense(tensor) => {
                out.copy_from_slice(&dense(tensor)[rows.start * self.cols..rows.end * self.cols]);
            }
            Weights::Blocks { encoding, bytes } => {
                let row_bytes = self.cols / encoding.block_len() * encoding.block_bytes();
                let bytes = &byte_slice(bytes)[rows.start * row_bytes..rows.end * row_bytes];
                dequantise(*encoding, bytes, out);
            }
            Weights::Packed(packed) => {
                for (i, out) in rows.zip(out.chunks_exact_mut(self.cols.max(1))) {
                    packed.panel(i / LANES).decode_row(i % LANES, out);
                }
            }
            Weights::Nf4(nf4) => nf4.decode(rows.start * self.cols, out),
        }
    }
}

/// The weights of a dense part.
pub(super) fn dense(tensor: &Tensor<CpuStorage>) -> &[f32] {
    match Rows::<f32>::of_tensor("matrix", tensor) {
        // SAFETY: operations that use the matrix check that they do not write to it.
        Ok(rows) => unsafe { rows.row(0) },
        Err(_) => &[],
    }
}

fn byte_slice(tensor: &Tensor<CpuStorage>) -> &[u8] {
    match Rows::<u8>::of_tensor("matrix", tensor) {
        // SAFETY: nothing writes to the bytes once the matrix is made.
        Ok(rows) => unsafe { rows.row(0) },
        Err(_) => &[],
    }
}

impl Cpu {
    pub(super) fn make_matrix(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
    ) -> Result<CpuMatrix> {
        let mut matrix = CpuMatrix {
            parts: Vec::with_capacity(parts.len()),
            rows: 0,
            cols: parts.first().map_or(0, TensorView::columns),
        };
        for view in parts {
            if view.columns() != matrix.cols {
                return Err(shape(
                    "matrix",
                    format!(
                        "{} has {} columns, not {}",
                        view.name,
                        view.columns(),
                        matrix.cols
                    ),
                ));
            }
            // Checks the length, too.
            view.rows(0..view.n_rows())?;
            let part = Part {
                start: matrix.rows,
                rows: view.n_rows(),
                cols: matrix.cols,
                weights: self.take_weights(view, format)?,
            };
            matrix.rows += part.rows;
            matrix.parts.push(part);
        }
        Ok(matrix)
    }

    fn take_weights(&self, view: &TensorView<'_>, format: WeightFormat) -> Result<Weights> {
        match format {
            WeightFormat::AsStored if view.encoding != Encoding::F32 => {
                self.encoded_weights(view.encoding, view.columns(), &view.bytes)
            }
            WeightFormat::Dense | WeightFormat::AsStored => self.dense_weights(view),
            WeightFormat::Int8 if !view.columns().is_multiple_of(32) => self.dense_weights(view),
            WeightFormat::Int8 => self.int8_weights(view),
            WeightFormat::Nf4 { double_quantised } => {
                let values = view.to_f32()?;
                let nf4 = Nf4::quantise(values.len(), double_quantised, |start, out| {
                    out.copy_from_slice(&values[start..start + out.len()]);
                });
                Ok(Weights::Nf4(nf4))
            }
        }
    }

    fn dense_weights(&self, view: &TensorView<'_>) -> Result<Weights> {
        let tensor = self.allocate(DType::F32, view.n_elements())?;
        let rows = Rows::<f32>::of_tensor("matrix", &tensor)?;
        // SAFETY: the tensor is fresh, so nobody else has it.
        view.to_f32_into(0..view.n_rows(), unsafe { rows.row_mut(0) })?;
        Ok(Weights::Dense(tensor))
    }

    /// Blocks of 32 with an f16 scale, in the encoding that checkpoints have for it.
    fn int8_weights(&self, view: &TensorView<'_>) -> Result<Weights> {
        let encoding = Encoding::Q8_0;
        let cols = view.columns();
        let n_bytes = view.n_elements() / encoding.block_len() * encoding.block_bytes();
        let mut bytes = vec![0; n_bytes];
        let row_bytes = cols / encoding.block_len() * encoding.block_bytes();
        let mut row = vec![0.0; cols];
        for (i, bytes) in bytes.chunks_exact_mut(row_bytes.max(1)).enumerate() {
            view.to_f32_into(i..i + 1, &mut row)?;
            let blocks = bytes.chunks_exact_mut(encoding.block_bytes());
            for (block, values) in blocks.zip(row.chunks_exact(encoding.block_len())) {
                int8_block(values, block);
            }
        }
        self.encoded_weights(encoding, cols, &bytes)
    }

    /// Takes encoded rows over, in panels where there is a layout for the encoding.
    fn encoded_weights(&self, encoding: Encoding, cols: usize, rows: &[u8]) -> Result<Weights> {
        let Some(layout) = Layout::of(encoding) else {
            let tensor = self.allocate(DType::U8, rows.len())?;
            self.restore(rows, &tensor)?;
            return Ok(Weights::Blocks {
                encoding,
                bytes: tensor,
            });
        };
        let n_blocks = cols / BLOCK;
        let row_bytes = n_blocks * encoding.block_bytes();
        let n_panels = rows
            .len()
            .checked_div(row_bytes)
            .unwrap_or(0)
            .div_ceil(LANES);
        let tensor = self.allocate(DType::U8, n_panels * layout.panel_bytes(n_blocks))?;
        let bytes = Rows::<u8>::of_tensor("matrix", &tensor)?;
        // SAFETY: the tensor is fresh, so nobody else has it.
        pack(encoding, layout, n_blocks, rows, unsafe {
            bytes.row_mut(0)
        });
        Ok(Weights::Packed(PackedWeights {
            layout,
            n_blocks,
            bytes: tensor,
        }))
    }

    pub(super) fn matrix_over_tensor(
        &self,
        tensor: &Tensor<CpuStorage>,
        rows: usize,
        cols: usize,
    ) -> Result<CpuMatrix> {
        Rows::<f32>::of_tensor("matrix_over", tensor)?;
        if rows.checked_mul(cols) != Some(tensor.len()) {
            return Err(shape(
                "matrix_over",
                format!("[{rows}, {cols}] over {} elements", tensor.len()),
            ));
        }
        let weights = Weights::Dense(tensor.clone());
        let part = Part {
            start: 0,
            rows,
            cols,
            weights,
        };
        Ok(CpuMatrix {
            parts: vec![part],
            rows,
            cols,
        })
    }

    pub(super) fn rows_of_matrix(
        &self,
        matrix: &CpuMatrix,
        rows: Range<usize>,
    ) -> Result<Vec<f32>> {
        if rows.start > rows.end || rows.end > matrix.rows {
            return Err(shape(
                "matrix_rows",
                format!("rows {rows:?} of {}", matrix.rows),
            ));
        }
        let mut out = vec![0.0; rows.len() * matrix.cols];
        if matrix.cols > 0 {
            for (i, out) in rows.zip(out.chunks_exact_mut(matrix.cols)) {
                matrix.decode_row(i, out);
            }
        }
        Ok(out)
    }
}

/// Quantises 32 numbers to the nearest of 255 equal steps.
fn int8_block(values: &[f32], block: &mut [u8]) {
    let max = values.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let scale = f16::from_f32((max / 127.0).min(f16::MAX.to_f32()));
    let inverse = if scale > f16::ZERO {
        1.0 / scale.to_f32()
    } else {
        0.0
    };
    block[..2].copy_from_slice(&scale.to_le_bytes());
    for (code, x) in block[2..].iter_mut().zip(values) {
        *code = (x * inverse).round_ties_even().clamp(-127.0, 127.0) as i8 as u8;
    }
}
