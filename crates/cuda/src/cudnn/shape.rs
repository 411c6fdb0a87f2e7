//! What an attention plan is made for: sizes, layouts, packing.

use std::collections::BTreeMap;

use super::CudnnError;
use super::descriptor::DataType;
use super::graph::{ALIGNMENT, Graph, Tensor};

/// Bounds of sizes, far beyond any device, within which no product of them overflows.
const MOST_ELEMENTS: usize = 1 << 24;
const MOST_HEADS: usize = 1 << 12;

/// Causal grouped-query attention over rows of heads, in bf16.
///
/// Queries are `[tokens, query_heads, head_dim]`, keys and values `[tokens, key_value_heads,
/// head_dim]`; within a row heads follow each other densely, and rows lie [`RowStrides`] apart.
/// Query head `h` reads key/value head `h / (query_heads / key_value_heads)`. A token attends to
/// itself and to the earlier tokens of its own sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Rows of all sequences together.
    pub tokens: usize,
    /// Whether the rows are one sequence or several.
    pub packing: Packing,
    /// Heads of the queries; a multiple of `key_value_heads`.
    pub query_heads: usize,
    /// Heads of the keys and of the values.
    pub key_value_heads: usize,
    /// Elements of a head; a multiple of 8, at most 256.
    pub head_dim: usize,
    /// What a dot product is multiplied by before the softmax, commonly `head_dim^-½`.
    pub softmax_scale: f32,
    /// Distances between rows.
    pub strides: RowStrides,
    /// Whether a backward plan is needed too.
    pub backward: bool,
    /// Whether the gradients must have the same bits on every run. cuDNN's usual backward adds
    /// up the queries' gradients in whatever order blocks of keys come, so from some length on
    /// their last bits vary. The other one is hardly slower but keeps the gradients of all
    /// scores: 2 bytes × query heads × tokens² of workspace.
    pub deterministic: bool,
}

/// How sequences share the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// All rows are one sequence.
    Single,
    /// Sequences one behind the other, none seeing another: the mask is block-diagonal. Their
    /// lengths are given at run time through [`AttentionPlan::index`].
    ///
    /// [`AttentionPlan::index`]: super::AttentionPlan::index
    Packed {
        /// The most sequences that a run can have.
        sequences: usize,
        /// The most rows that a sequence can have.
        longest: usize,
    },
}

/// Distances in elements between neighbouring rows of each operand: `heads × head_dim` where an
/// operand stands alone, more where it is a slice of a fused buffer. Multiples of 8.
///
/// The backward of packed sequences with grouped queries takes workspace in proportion to the
/// strides of `dq`, `dk` and `dv`, about `4 tokens (dq + group (dk + dv) / 2)` bytes, so dense
/// gradients need much less of it than fused ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowStrides {
    /// Of the queries.
    pub q: usize,
    /// Of the keys.
    pub k: usize,
    /// Of the values.
    pub v: usize,
    /// Of the output.
    pub out: usize,
    /// Of the output's gradient.
    pub d_out: usize,
    /// Of the queries' gradient.
    pub dq: usize,
    /// Of the keys' gradient.
    pub dk: usize,
    /// Of the values' gradient.
    pub dv: usize,
}

impl RowStrides {
    /// Every operand dense in a buffer of its own.
    pub fn dense(query_heads: usize, key_value_heads: usize, head_dim: usize) -> Self {
        let (query, key_value) = (query_heads * head_dim, key_value_heads * head_dim);
        Self {
            q: query,
            k: key_value,
            v: key_value,
            out: query,
            d_out: query,
            dq: query,
            dk: key_value,
            dv: key_value,
        }
    }

    /// As [`Self::dense`], but queries, keys and values are slices of one buffer of rows
    /// `[query_heads + 2 key_value_heads, head_dim]`, and so are their gradients.
    pub fn fused(query_heads: usize, key_value_heads: usize, head_dim: usize) -> Self {
        let row = (query_heads + 2 * key_value_heads) * head_dim;
        Self {
            q: row,
            k: row,
            v: row,
            dq: row,
            dk: row,
            dv: row,
            ..Self::dense(query_heads, key_value_heads, head_dim)
        }
    }
}

impl AttentionShape {
    /// One sequence of `tokens` rows, every operand dense, scale `head_dim^-½`, with a backward.
    pub fn single(
        tokens: usize,
        query_heads: usize,
        key_value_heads: usize,
        head_dim: usize,
    ) -> Self {
        Self {
            tokens,
            packing: Packing::Single,
            query_heads,
            key_value_heads,
            head_dim,
            softmax_scale: 1.0 / (head_dim as f32).sqrt(),
            strides: RowStrides::dense(query_heads, key_value_heads, head_dim),
            backward: true,
            deterministic: false,
        }
    }

    /// Elements of the log-sum-exp buffer, f32 `[query_heads, tokens]`.
    pub fn lse_elements(&self) -> usize {
        self.query_heads * self.tokens
    }

    /// Checks what cuDNN would otherwise answer obscurely, or not at all.
    pub(super) fn check(&self, version: u64) -> Result<(), CudnnError> {
        let refuse = |reason: String| Err(CudnnError::Shape { reason });
        if self.tokens == 0 || self.query_heads == 0 || self.key_value_heads == 0 {
            return refuse(format!("{self:?} is empty"));
        }
        if self.tokens > MOST_ELEMENTS || self.query_heads > MOST_HEADS {
            return refuse(format!(
                "{} tokens and {} heads exceed {MOST_ELEMENTS} and {MOST_HEADS}",
                self.tokens, self.query_heads
            ));
        }
        if !self.query_heads.is_multiple_of(self.key_value_heads) {
            return refuse(format!(
                "{} query heads are no multiple of {} key/value heads",
                self.query_heads, self.key_value_heads
            ));
        }
        if self.head_dim == 0 || self.head_dim > 256 || !self.head_dim.is_multiple_of(8) {
            return refuse(format!(
                "head dimension {} is no multiple of 8 up to 256",
                self.head_dim
            ));
        }
        let (query, key_value) = (
            self.query_heads * self.head_dim,
            self.key_value_heads * self.head_dim,
        );
        let strides = &self.strides;
        for (name, stride, row) in [
            ("q", strides.q, query),
            ("k", strides.k, key_value),
            ("v", strides.v, key_value),
            ("out", strides.out, query),
            ("d_out", strides.d_out, query),
            ("dq", strides.dq, query),
            ("dk", strides.dk, key_value),
            ("dv", strides.dv, key_value),
        ] {
            if stride < row || !stride.is_multiple_of(8) {
                return refuse(format!(
                    "row stride {stride} of {name} is below its row of {row} or no multiple of 8"
                ));
            }
            if stride > MOST_ELEMENTS {
                return refuse(format!(
                    "row stride {stride} of {name} exceeds {MOST_ELEMENTS}"
                ));
            }
        }
        if let Packing::Packed { sequences, longest } = self.packing
            && (sequences == 0
                || sequences > MOST_ELEMENTS
                || longest == 0
                || longest > self.tokens)
        {
            return refuse(format!(
                "{sequences} sequences of up to {longest} of {} tokens",
                self.tokens
            ));
        }
        // Releases up to 9.15.0 read past the keys of a single sequence in the backward pass
        // unless its length is a multiple of the tile.
        if self.backward
            && self.packing == Packing::Single
            && version <= 91500
            && !self.tokens.is_multiple_of(128)
        {
            return refuse(format!(
                "cuDNN {version} needs a multiple of 128 tokens for the backward, got {}",
                self.tokens
            ));
        }
        Ok(())
    }

    /// Batch entries and rows per entry as cuDNN counts them.
    pub(super) fn batch_and_rows(&self) -> (i64, i64) {
        match self.packing {
            Packing::Single => (1, self.tokens as i64),
            Packing::Packed { sequences, longest } => (sequences as i64, longest as i64),
        }
    }
}

/// Tensors that get an address, and what that address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(i64)]
pub(super) enum Operand {
    Q = 1,
    K,
    V,
    Out,
    Lse,
    DOut,
    Dq,
    Dk,
    Dv,
    /// The softmax scale, on the host.
    Scale,
    /// Minus infinity, on the host.
    MinusInfinity,
    /// One, on the host.
    One,
    /// Sums of the queries' gradient, f32, in the workspace.
    DqSum,
    /// Each row's dot product of output and its gradient, f32, in the workspace.
    RowDot,
    /// The keys' gradient before it is summed over a group of query heads, in the workspace.
    DkHeads,
    /// The values' gradient before it is summed over a group of query heads, in the workspace.
    DvHeads,
    /// How many rows each sequence has, in the index, for the queries.
    QueryLengths,
    /// The same for keys and values.
    KeyLengths,
}

/// Ids of offset tensors are those of their operands, this much higher.
pub(super) const OFFSETS_ID: i64 = 100;

/// A graph under construction with the shape it is for.
pub(super) struct Form<'a> {
    pub(super) shape: &'a AttentionShape,
    pub(super) graph: Graph,
    offsets: BTreeMap<i64, (usize, Tensor)>,
    lengths: Option<(Tensor, Tensor)>,
}

impl<'a> Form<'a> {
    /// An empty graph for `shape`, with its sequences' lengths where they vary.
    pub(super) fn new(shape: &'a AttentionShape, mut graph: Graph) -> Result<Self, CudnnError> {
        let lengths = match shape.packing {
            Packing::Single => None,
            Packing::Packed { sequences, .. } => {
                let mut lengths = |operand: Operand| {
                    graph.tensor(
                        operand as i64,
                        DataType::Int32,
                        [sequences as i64, 1, 1, 1],
                        [1; 4],
                    )
                };
                Some((
                    lengths(Operand::QueryLengths)?,
                    lengths(Operand::KeyLengths)?,
                ))
            }
        };
        Ok(Self {
            shape,
            graph,
            offsets: BTreeMap::new(),
            lengths,
        })
    }

    /// The sequences' lengths as queries and as keys see them, where they vary.
    pub(super) fn lengths(&self) -> Option<(Tensor, Tensor)> {
        self.lengths
    }

    /// A bf16 operand `[batch, heads, rows, head_dim]` whose rows lie `stride` apart.
    pub(super) fn rows(
        &mut self,
        operand: Operand,
        heads: usize,
        stride: usize,
    ) -> Result<Tensor, CudnnError> {
        let (batch, rows) = self.shape.batch_and_rows();
        let (dim, stride_i) = (self.shape.head_dim as i64, stride as i64);
        self.operand(
            operand,
            DataType::BFloat16,
            [batch, heads as i64, rows, dim],
            [rows * stride_i, dim, stride_i, 1],
            stride,
        )
    }

    /// As [`Self::rows`], transposed: `[batch, heads, head_dim, rows]`.
    pub(super) fn columns(
        &mut self,
        operand: Operand,
        heads: usize,
        stride: usize,
    ) -> Result<Tensor, CudnnError> {
        let (batch, rows) = self.shape.batch_and_rows();
        let (dim, stride_i) = (self.shape.head_dim as i64, stride as i64);
        self.operand(
            operand,
            DataType::BFloat16,
            [batch, heads as i64, dim, rows],
            [rows * stride_i, dim, 1, stride_i],
            stride,
        )
    }

    /// One f32 per query head and row, `[batch, heads, rows, 1]`, laid out `[heads, tokens]`.
    pub(super) fn per_row(&mut self, operand: Operand) -> Result<Tensor, CudnnError> {
        let (batch, rows) = self.shape.batch_and_rows();
        let (heads, tokens) = (self.shape.query_heads as i64, self.shape.tokens as i64);
        self.operand(
            operand,
            DataType::Float,
            [batch, heads, rows, 1],
            [heads * rows, tokens, 1, 1],
            1,
        )
    }

    /// A device tensor, ragged where sequences vary, with `row` elements from row to row.
    pub(super) fn operand(
        &mut self,
        operand: Operand,
        data_type: DataType,
        dimensions: [i64; 4],
        strides: [i64; 4],
        row: usize,
    ) -> Result<Tensor, CudnnError> {
        match self.shape.packing {
            Packing::Single => self
                .graph
                .tensor(operand as i64, data_type, dimensions, strides),
            Packing::Packed { .. } => {
                let offsets = self.offsets_of(operand, row)?;
                self.graph
                    .ragged_tensor(operand as i64, data_type, dimensions, strides, offsets)
            }
        }
    }

    /// The tensor of where each sequence starts in `operand`, `row` elements per row.
    pub(super) fn offsets_of(
        &mut self,
        operand: Operand,
        row: usize,
    ) -> Result<Tensor, CudnnError> {
        let (batch, _) = self.shape.batch_and_rows();
        let id = OFFSETS_ID + operand as i64;
        if let Some(&(_, tensor)) = self.offsets.get(&id) {
            return Ok(tensor);
        }
        let tensor = self
            .graph
            .tensor(id, DataType::Int64, [batch + 1, 1, 1, 1], [1; 4])?;
        self.offsets.insert(id, (row, tensor));
        Ok(tensor)
    }

    /// The finished graph, and for each offset tensor in it its id and the elements per row of
    /// the operand that it is for.
    pub(super) fn finish(self) -> (Graph, Vec<(i64, usize)>) {
        let offsets = self
            .offsets
            .iter()
            .map(|(&id, &(row, _))| (id, row))
            .collect();
        (self.graph, offsets)
    }
}

/// Where the parts of a packed run's index lie: the lengths first, then one table of offsets for
/// each distinct number of elements per row.
pub(super) struct IndexLayout {
    sequences: usize,
    longest: usize,
    tokens: usize,
    /// Byte position of the offset table for each row size.
    tables: BTreeMap<usize, usize>,
    bytes: usize,
}

impl IndexLayout {
    /// The layout for a packed shape whose graphs use these row sizes.
    pub(super) fn new(shape: &AttentionShape, rows: impl Iterator<Item = usize>) -> Option<Self> {
        let Packing::Packed { sequences, longest } = shape.packing else {
            return None;
        };
        let aligned = |bytes: usize| bytes.next_multiple_of(ALIGNMENT as usize);
        let mut bytes = aligned(4 * sequences);
        let mut tables = BTreeMap::new();
        for row in rows {
            tables.entry(row).or_insert_with(|| {
                let at = bytes;
                bytes += aligned(8 * (sequences + 1));
                at
            });
        }
        Some(Self {
            sequences,
            longest,
            tokens: shape.tokens,
            tables,
            bytes,
        })
    }

    /// Bytes of the whole index.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Byte position of the offset table for a row size.
    pub(super) fn table(&self, row: usize) -> Option<usize> {
        self.tables.get(&row).copied()
    }

    /// The index for sequences of these lengths, in order, from row 0 without gaps. Sequences
    /// that the plan has room for beyond those given have no rows.
    pub(super) fn fill(&self, lengths: &[usize]) -> Result<Vec<u8>, CudnnError> {
        let total = lengths
            .iter()
            .try_fold(0_usize, |sum, &length| sum.checked_add(length));
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if lengths.len() > self.sequences
            || longest > self.longest
            || total.is_none_or(|total| total > self.tokens)
        {
            return Err(CudnnError::Shape {
                reason: format!(
                    "{} sequences, the longest of {longest} tokens, exceed a plan for {} of up \
                     to {}, {} in all",
                    lengths.len(),
                    self.sequences,
                    self.longest,
                    self.tokens
                ),
            });
        }
        let mut index = vec![0_u8; self.bytes];
        for (place, &length) in index.chunks_exact_mut(4).zip(lengths) {
            place.copy_from_slice(&(length as i32).to_ne_bytes());
        }
        for (&row, &at) in &self.tables {
            let mut start = 0_usize;
            for i in 0..=self.sequences {
                let offset = (start * row) as i64;
                index[at + 8 * i..at + 8 * i + 8].copy_from_slice(&offset.to_ne_bytes());
                start += lengths.get(i).copied().unwrap_or(0);
            }
        }
        Ok(index)
    }
}
