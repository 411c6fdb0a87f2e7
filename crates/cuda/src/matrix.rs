//! Matrices of weights: dense, 4-bit NormalFloat, 8-bit; loading, quantising, dequantising.

use std::ops::Range;

use half::bf16;
use temper_checkpoint::tensor::TensorView;
use temper_model::device::{DeviceError, Result, WeightFormat};
use temper_model::tensor::{DType, Tensor};

use crate::cuda::Cuda;
use crate::dynamic_map::dynamic_map;
use crate::launch::{Family, words};
use crate::memory::{Purpose, Staging, Storage};

/// Elements of a block of NF4 codes.
const NF4_BLOCK: usize = 64;
/// Block maxima that share a second-level maximum.
const SECOND_BLOCK: usize = 256;
/// Elements of a block of 8-bit codes.
const INT8_BLOCK: usize = 32;

/// Elements of a matrix that are dequantised at once; the rows of a larger one are taken in parts.
const SCRATCH_ELEMENTS: usize = 128 << 20;

/// A matrix of weights `[rows, cols]` on the device.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) weights: Weights,
}

/// How the elements are kept.
#[derive(Debug)]
pub(crate) enum Weights {
    /// bf16.
    Dense(Tensor<Storage>),
    /// Codes; parts that were quantised each for itself, stacked by rows.
    Quantised(Vec<Part>),
}

/// Rows that were quantised together.
#[derive(Debug)]
pub(crate) struct Part {
    rows: usize,
    codes: Storage,
    scales: Scales,
}

#[derive(Debug)]
enum Scales {
    /// Block maxima, f32.
    Nf4(Storage),
    /// 8-bit codes of block maxima, f32 maxima of these, and the mean that was subtracted.
    Nf4Double(Storage, Storage, f32),
    /// Block scales, f32.
    Int8(Storage),
}

impl Part {
    fn n_bytes(&self) -> usize {
        self.codes.n_bytes()
            + match &self.scales {
                Scales::Nf4(scales) | Scales::Int8(scales) => scales.n_bytes(),
                Scales::Nf4Double(codes, maxima, _) => codes.n_bytes() + maxima.n_bytes(),
            }
    }
}

impl Matrix {
    pub(crate) fn n_bytes(&self) -> usize {
        match &self.weights {
            Weights::Dense(tensor) => tensor.n_bytes(),
            Weights::Quantised(parts) => parts.iter().map(Part::n_bytes).sum(),
        }
    }

    /// Rows that are dequantised at once.
    pub(crate) fn rows_at_once(&self) -> usize {
        rows_at_once(self.cols)
    }
}

fn rows_at_once(cols: usize) -> usize {
    (SCRATCH_ELEMENTS / cols.max(1)).max(1)
}

/// Bytes of scratch that a `[rows, cols]` matrix of a format is dequantised into.
pub(crate) fn dequantised_bytes(format: WeightFormat, rows: usize, cols: usize) -> usize {
    match format {
        WeightFormat::Dense | WeightFormat::AsStored => 0,
        WeightFormat::Nf4 { .. } | WeightFormat::Int8 => rows.min(rows_at_once(cols)) * cols * 2,
    }
}

impl Cuda {
    pub(crate) fn load_matrix(
        &self,
        parts: &[TensorView<'_>],
        format: WeightFormat,
    ) -> Result<Matrix> {
        let cols = parts.first().map_or(0, TensorView::columns);
        let rows = parts.iter().map(TensorView::n_rows).sum::<usize>();
        if parts.iter().any(|part| part.columns() != cols) || rows == 0 || cols == 0 {
            return Err(DeviceError::Shape {
                operation: "matrix",
                reason: format!(
                    "parts of {:?} columns are stacked",
                    parts.iter().map(TensorView::columns).collect::<Vec<_>>()
                ),
            });
        }
        for part in parts {
            // The length is checked before memory is taken for it.
            part.rows(0..part.n_rows())?;
        }
        let weights = match format {
            // cublasLt multiplies bf16; encodings of files are decoded to it.
            WeightFormat::Dense | WeightFormat::AsStored => {
                Weights::Dense(self.load_dense(parts, rows, cols)?)
            }
            WeightFormat::Nf4 { .. } | WeightFormat::Int8 => {
                if !cols.is_multiple_of(8) {
                    return Err(self.unsupported(
                        "matrix",
                        format!("{cols} columns: quantised rows need a multiple of 8"),
                    ));
                }
                let parts = parts
                    .iter()
                    .map(|part| self.load_quantised(part, format))
                    .collect::<Result<_>>()?;
                Weights::Quantised(parts)
            }
        };
        // Taken now, so that no product has to grow it.
        let n_bytes = dequantised_bytes(format, rows, cols);
        if n_bytes > 0 {
            self.scratch(Purpose::Dequantised, n_bytes)?;
        }
        Ok(Matrix {
            rows,
            cols,
            weights,
        })
    }

    fn load_dense(
        &self,
        parts: &[TensorView<'_>],
        rows: usize,
        cols: usize,
    ) -> Result<Tensor<Storage>> {
        let tensor = self.allocate_tensor(DType::Bf16, rows * cols)?;
        let mut to = self.pointer(&tensor);
        for part in parts {
            let at_once = (Staging::SEGMENT / 2 / cols).max(1);
            for first in (0..part.n_rows()).step_by(at_once) {
                let range = first..part.n_rows().min(first + at_once);
                self.upload_decoded(part, range.clone(), to)?;
                to += (range.len() * cols * 2) as u64;
            }
        }
        Ok(tensor)
    }

    /// Decodes rows to bf16 at `to`; a row wider than a staging segment passes through a buffer.
    fn upload_decoded(&self, part: &TensorView<'_>, rows: Range<usize>, to: u64) -> Result<()> {
        let elements = rows.len() * part.columns();
        if elements * 2 <= Staging::SEGMENT {
            return self.stage(to, elements * 2, |bytes| {
                part.to_bf16_into(rows, as_elements(bytes))?;
                Ok(())
            });
        }
        let mut values = vec![bf16::ZERO; elements];
        part.to_bf16_into(rows, &mut values)?;
        self.upload_slice(&values, to)
    }

    fn load_quantised(&self, part: &TensorView<'_>, format: WeightFormat) -> Result<Part> {
        const OPERATION: &str = "quantise a matrix";
        let (rows, cols) = (part.n_rows(), part.columns());
        let n = rows * cols;
        let block = if format == WeightFormat::Int8 {
            INT8_BLOCK
        } else {
            NF4_BLOCK
        };
        // What fills the last block up counts as zeros.
        let n_blocks = n.div_ceil(block);
        let code_bytes = |elements: usize| match format {
            WeightFormat::Int8 => elements,
            _ => elements / 2,
        };
        let codes = self.allocate(code_bytes(n_blocks * block))?;
        let scales = self.allocate(n_blocks * 4)?;

        // Pieces of whole rows and of whole blocks, but for the last.
        let rows_per_block = block / gcd(cols, block);
        let at_once = ((16 << 20) / cols / rows_per_block).max(1) * rows_per_block;
        let buffer = self.allocate((at_once.min(rows) * cols).next_multiple_of(block) * 4)?;
        let mut values = vec![0f32; 0];
        for first in (0..rows).step_by(at_once) {
            let range = first..rows.min(first + at_once);
            let elements = range.len() * cols;
            values.clear();
            values.resize(elements.next_multiple_of(block), 0.0);
            part.to_f32_into(range, &mut values[..elements])?;
            self.upload_slice(&values, buffer.pointer())?;
            let done = first * cols;
            let kernel = match format {
                WeightFormat::Int8 => "quantise_int8",
                _ => "quantise_nf4",
            };
            // SAFETY: the buffer holds the elements, codes and scales have room for them.
            unsafe {
                self.launch(
                    OPERATION,
                    Family::Quantised,
                    kernel,
                    (self.n_multiprocessors() * 8, 1, 1),
                    (256, 1, 1),
                    words![
                        buffer.pointer(),
                        values.len(),
                        codes.pointer() + code_bytes(done) as u64,
                        scales.pointer() + (done / block * 4) as u64,
                    ],
                )
            }?;
        }
        let scales = match format {
            WeightFormat::Int8 => Scales::Int8(scales),
            WeightFormat::Nf4 {
                double_quantised: true,
            } => self.quantise_maxima(&scales, n_blocks)?,
            _ => Scales::Nf4(scales),
        };
        Ok(Part {
            rows,
            codes,
            scales,
        })
    }

    /// The second level of double quantisation: 8-bit codes of the maxima less their mean.
    fn quantise_maxima(&self, maxima: &Storage, n_blocks: usize) -> Result<Scales> {
        let bytes = self.download_from(maxima.pointer(), n_blocks * 4)?;
        let sum: f64 = bytes
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .sum();
        let offset = (sum / n_blocks as f64) as f32;
        let codes = self.allocate(n_blocks)?;
        let n_second = n_blocks.div_ceil(SECOND_BLOCK);
        let second = self.allocate(n_second * 4)?;
        // SAFETY: the maxima are there, codes and second maxima have room.
        unsafe {
            self.launch(
                "quantise a matrix",
                Family::Quantised,
                "quantise_maxima",
                (grid_x(n_second)?, 1, 1),
                (256, 1, 1),
                words![
                    maxima.pointer(),
                    n_blocks,
                    offset,
                    self.maps().pointer(),
                    codes.pointer(),
                    second.pointer(),
                ],
            )
        }?;
        Ok(Scales::Nf4Double(codes, second, offset))
    }

    /// Rows of a matrix as bf16 in device memory, `[rows.len(), cols]` without gaps; those of a
    /// quantised one stay until the next such call. At most [`Matrix::rows_at_once`] of these.
    pub(crate) fn dense_rows(&self, matrix: &Matrix, rows: Range<usize>) -> Result<u64> {
        let parts = match &matrix.weights {
            Weights::Dense(tensor) => {
                return Ok(self.pointer(tensor) + (rows.start * matrix.cols * 2) as u64);
            }
            Weights::Quantised(parts) => parts,
        };
        let scratch = self.scratch(Purpose::Dequantised, rows.len() * matrix.cols * 2)?;
        let mut part_start = 0;
        for part in parts {
            let wanted = rows.start.max(part_start)..rows.end.min(part_start + part.rows);
            if wanted.start < wanted.end {
                let first = (wanted.start - part_start) * matrix.cols;
                let n = wanted.len() * matrix.cols;
                let out = scratch + ((wanted.start - rows.start) * matrix.cols * 2) as u64;
                self.dequantise(part, first, n, out)?;
            }
            part_start += part.rows;
        }
        Ok(scratch)
    }

    fn dequantise(&self, part: &Part, first: usize, n: usize, out: u64) -> Result<()> {
        let (kernel, mut arguments) = self.quantised_arguments(part);
        arguments.extend_from_slice(words![first, n, out]);
        let blocks = (n / 8).div_ceil(256 * 4);
        let grid = (grid_x(blocks)?.min(self.n_multiprocessors() * 32), 1, 1);
        // SAFETY: the elements are within the part, and `out` has room for them.
        unsafe {
            self.launch(
                "dequantise a matrix",
                Family::Quantised,
                &format!("dequantise_{kernel}"),
                grid,
                (256, 1, 1),
                &arguments,
            )
        }
    }

    /// The ending of the kernels that read a part, and their first arguments.
    pub(crate) fn quantised_arguments(&self, part: &Part) -> (&'static str, Vec<u64>) {
        let codes = part.codes.pointer();
        match &part.scales {
            Scales::Nf4(maxima) => ("nf4", words![codes, maxima.pointer()].to_vec()),
            Scales::Nf4Double(maxima, second, offset) => (
                "nf4_double",
                words![
                    codes,
                    maxima.pointer(),
                    second.pointer(),
                    self.maps().pointer(),
                    *offset
                ]
                .to_vec(),
            ),
            Scales::Int8(scales) => ("int8", words![codes, scales.pointer()].to_vec()),
        }
    }
}

/// The 8-bit maps that kernels look up: the signed, then the unsigned one.
pub(crate) fn map_bytes() -> Vec<u8> {
    [true, false]
        .into_iter()
        .flat_map(dynamic_map)
        .flat_map(f32::to_le_bytes)
        .collect()
}

/// Bytes of staging memory, which is 256-byte aligned, as elements.
fn as_elements(bytes: &mut [u8]) -> &mut [bf16] {
    // SAFETY: any bits are a bf16; the middle is what is aligned, which here is everything.
    let (before, elements, after) = unsafe { bytes.align_to_mut::<bf16>() };
    assert!(before.is_empty() && after.is_empty(), "unaligned staging");
    elements
}

/// A number of blocks as a grid's first dimension.
fn grid_x(n_blocks: usize) -> Result<u32> {
    u32::try_from(n_blocks)
        .ok()
        .filter(|&n| n <= i32::MAX as u32)
        .ok_or_else(|| DeviceError::Shape {
            operation: "launch",
            reason: format!("{n_blocks} blocks in one grid"),
        })
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
