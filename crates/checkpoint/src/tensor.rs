//! One tensor of a checkpoint, as it lies in the file.

use std::{borrow::Cow, ops::Range};

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
}
