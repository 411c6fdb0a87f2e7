//! One tensor of a checkpoint, as it lies in the file.

use std::{borrow::Cow, fmt, ops::Range};

use half::bf16;

use crate::dequantise::dequantise;

/// How the elements of a tensor are encoded. The block types are those of GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// 32-bit floating point.
    F32,
    /// 16-bit floating point.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32: 4-bit codes, f16 scale.
    Q4_0,
    /// Blocks of 32: 4-bit codes, f16 scale and minimum.
    Q4_1,
    /// Blocks of 32: 5-bit codes, f16 scale.
    Q5_0,
    /// Blocks of 32: 5-bit codes, f16 scale and minimum.
    Q5_1,
    /// Blocks of 32: 8-bit codes, f16 scale.
    Q8_0,
    /// Super-blocks of 256, 2 bits.
    Q2K,
    /// Super-blocks of 256, 3 bits.
    Q3K,
    /// Super-blocks of 256, 4 bits.
    Q4K,
    /// Super-blocks of 256, 5 bits.
    Q5K,
    /// Super-blocks of 256, 6 bits.
    Q6K,
}

/// A tensor within a checkpoint, borrowed from the mapped file where it can be.
#[derive(Clone, Debug)]
pub struct TensorView<'a> {
    /// Its canonical (Hugging Face) name.
    pub name: String,
    /// Its shape, outermost first; a weight of a linear map is `[out, in]`.
    pub shape: Vec<usize>,
    /// How the elements are encoded.
    pub encoding: Encoding,
    /// The encoded elements, row after row; a row is a whole number of blocks.
    pub bytes: Cow<'a, [u8]>,
}

/// A tensor could not be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not as many as shape and encoding ask for.
    #[error("decode {name}: {got} bytes where shape and encoding ask for {expected}")]
    Length {
        /// The tensor.
        name: String,
        /// Bytes asked for.
        expected: usize,
        /// Bytes there.
        got: usize,
    },
    /// The rows asked for do not exist.
    #[error("decode {name}: rows {rows:?} of {n_rows}")]
    Rows {
        /// The tensor.
        name: String,
        /// Rows asked for.
        rows: Range<usize>,
        /// Rows there.
        n_rows: usize,
    },
    /// A row is no whole number of blocks.
    #[error("decode {name}: rows of {columns} elements are no whole number of {encoding} blocks")]
    Blocks {
        /// The tensor.
        name: String,
        /// Elements of a row.
        columns: usize,
        /// The encoding.
        encoding: Encoding,
    },
    /// The output has another length than the rows asked for.
    #[error("decode {name}: the output holds {got} elements and the rows have {expected}")]
    Output {
        /// The tensor.
        name: String,
        /// Elements asked for.
        expected: usize,
        /// Elements that fit.
        got: usize,
    },
}

impl Encoding {
    /// Elements of one block; 1 for plain floating point.
    pub const fn block_len(self) -> usize {
        match self {
            Encoding::F32 | Encoding::F16 | Encoding::Bf16 => 1,
            Encoding::Q4_0 | Encoding::Q4_1 | Encoding::Q5_0 | Encoding::Q5_1 | Encoding::Q8_0 => {
                32
            }
            Encoding::Q2K | Encoding::Q3K | Encoding::Q4K | Encoding::Q5K | Encoding::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Encoding::F32 => 4,
            Encoding::F16 | Encoding::Bf16 => 2,
            Encoding::Q4_0 => 18,
            Encoding::Q4_1 => 20,
            Encoding::Q5_0 => 22,
            Encoding::Q5_1 => 24,
            Encoding::Q8_0 => 34,
            Encoding::Q2K => 84,
            Encoding::Q3K => 110,
            Encoding::Q4K => 144,
            Encoding::Q5K => 176,
            Encoding::Q6K => 210,
        }
    }

    /// Bytes of `n` elements of a row; `None` when they are no whole number of blocks or too many
    /// to count.
    pub fn row_bytes(self, n: usize) -> Option<usize> {
        if !n.is_multiple_of(self.block_len()) {
            return None;
        }
        (n / self.block_len()).checked_mul(self.block_bytes())
    }

    /// Bits of one element on average, scales included.
    pub fn bits_per_element(self) -> f64 {
        8.0 * self.block_bytes() as f64 / self.block_len() as f64
    }

    /// The name that tools of both formats print: `BF16`, `Q4_K`.
    pub const fn name(self) -> &'static str {
        match self {
            Encoding::F32 => "F32",
            Encoding::F16 => "F16",
            Encoding::Bf16 => "BF16",
            Encoding::Q4_0 => "Q4_0",
            Encoding::Q4_1 => "Q4_1",
            Encoding::Q5_0 => "Q5_0",
            Encoding::Q5_1 => "Q5_1",
            Encoding::Q8_0 => "Q8_0",
            Encoding::Q2K => "Q2_K",
            Encoding::Q3K => "Q3_K",
            Encoding::Q4K => "Q4_K",
            Encoding::Q5K => "Q5_K",
            Encoding::Q6K => "Q6_K",
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl TensorView<'_> {
    /// Elements of a row: the last dimension, and 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Rows: the product of all dimensions but the last, so 1 for a vector.
    pub fn n_rows(&self) -> usize {
        let outer = self.shape.len().saturating_sub(1);
        self.shape[..outer].iter().product()
    }

    /// Elements of the whole tensor.
    pub fn n_elements(&self) -> usize {
        self.n_rows() * self.columns()
    }

    /// The encoded bytes of some rows.
    pub fn rows(&self, rows: Range<usize>) -> Result<&[u8], DecodeError> {
        let row_bytes =
            self.encoding
                .row_bytes(self.columns())
                .ok_or_else(|| DecodeError::Blocks {
                    name: self.name.clone(),
                    columns: self.columns(),
                    encoding: self.encoding,
                })?;
        let n_rows = self.n_rows();
        if rows.start > rows.end || rows.end > n_rows {
            return Err(DecodeError::Rows {
                name: self.name.clone(),
                rows,
                n_rows,
            });
        }
        let expected = row_bytes.saturating_mul(n_rows);
        if self.bytes.len() != expected {
            return Err(DecodeError::Length {
                name: self.name.clone(),
                expected,
                got: self.bytes.len(),
            });
        }
        Ok(&self.bytes[rows.start * row_bytes..rows.end * row_bytes])
    }

    /// Decodes some rows into `out`, `[rows, columns]`. Infinities and NaN pass through.
    pub fn to_f32_into(&self, rows: Range<usize>, out: &mut [f32]) -> Result<(), DecodeError> {
        let bytes = self.rows(rows.clone())?;
        self.check_output(&rows, out.len())?;
        dequantise(self.encoding, bytes, out);
        Ok(())
    }

    /// Decodes some rows into `out`, `[rows, columns]`, rounded to the nearest bfloat16, ties to
    /// even; bfloat16 is copied as it is.
    pub fn to_bf16_into(&self, rows: Range<usize>, out: &mut [bf16]) -> Result<(), DecodeError> {
        let bytes = self.rows(rows.clone())?;
        self.check_output(&rows, out.len())?;
        if self.encoding == Encoding::Bf16 {
            for (out, bytes) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *out = bf16::from_le_bytes([bytes[0], bytes[1]]);
            }
            return Ok(());
        }
        // A piece is a whole number of blocks of every encoding.
        const PIECE: usize = 4096;
        let mut piece = [0f32; PIECE];
        let piece_bytes = PIECE / self.encoding.block_len() * self.encoding.block_bytes();
        for (out, bytes) in out.chunks_mut(PIECE).zip(bytes.chunks(piece_bytes)) {
            let piece = &mut piece[..out.len()];
            dequantise(self.encoding, bytes, piece);
            for (out, value) in out.iter_mut().zip(piece) {
                *out = bf16::from_f32(*value);
            }
        }
        Ok(())
    }

    /// All elements, `[rows, columns]`. For small tensors; larger ones are decoded by rows.
    pub fn to_f32(&self) -> Result<Vec<f32>, DecodeError> {
        let n_rows = self.n_rows();
        // The bytes are there before memory is taken for what they decode to.
        self.rows(0..n_rows)?;
        let mut out = vec![0.0; self.n_elements()];
        self.to_f32_into(0..n_rows, &mut out)?;
        Ok(out)
    }

    fn check_output(&self, rows: &Range<usize>, got: usize) -> Result<(), DecodeError> {
        let expected = rows.len() * self.columns();
        if got == expected {
            return Ok(());
        }
        Err(DecodeError::Output {
            name: self.name.clone(),
            expected,
            got,
        })
    }
}
