//! The backward pass as a graph.
//!
//! With `P = exp(mask(scale q kᵀ) − lse)`, `dP = d_out vᵀ`, `r = rowsum(d_out ∘ out)` and
//! `dS = scale P ∘ (dP − r)`: `dv = Pᵀ d_out`, `dk = dSᵀ q`, `dq = dS k` (Dao, "FlashAttention-2",
//! 2023, algorithm 2). Gradients of a key/value head are summed over its group of query heads.

use super::CudnnError;
use super::descriptor::{DataType, PointwiseMode, Reduction};
use super::forward::{mask_beyond_length, mask_later, scaled_scores};
use super::graph::{ProductSizes, Tensor};
use super::shape::{Form, Operand, Packing};

use DataType::{BFloat16, Float};

/// A buffer of the workspace that the graph names as an operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scratch {
    pub(super) operand: Operand,
    pub(super) bytes: usize,
}

/// Adds the operations of the backward pass; returns the buffers that they need beside cuDNN's
/// own workspace.
pub(super) fn build(form: &mut Form<'_>) -> Result<Vec<Scratch>, CudnnError> {
    let shape = *form.shape;
    let (heads, key_value_heads) = (shape.query_heads, shape.key_value_heads);
    let mut scratch = Vec::new();
    let q = form.rows(Operand::Q, heads, shape.strides.q)?;
    let k = form.columns(Operand::K, key_value_heads, shape.strides.k)?;
    let v = form.columns(Operand::V, key_value_heads, shape.strides.v)?;
    let out = form.rows(Operand::Out, heads, shape.strides.out)?;
    let d_out = form.rows(Operand::DOut, heads, shape.strides.d_out)?;
    let lse = form.per_row(Operand::Lse)?;
    let dq = form.rows(Operand::Dq, heads, shape.strides.dq)?;
    let dk = form.rows(Operand::Dk, key_value_heads, shape.strides.dk)?;
    let dv = form.rows(Operand::Dv, key_value_heads, shape.strides.dv)?;
    let scale = form.graph.scalar(Operand::Scale as i64, Float)?;
    let minus_infinity = form.graph.scalar(Operand::MinusInfinity as i64, Float)?;
    let one = form.graph.scalar(Operand::One as i64, Float)?;
    let lengths = form.lengths();
    let query_lengths = lengths.map(|(query, _)| query);
    let key_lengths = lengths.map(|(_, key)| key);

    let row_dot = row_dot(form, d_out, out, one, &mut scratch)?;

    let scores = scaled_scores(form, q, k, scale)?;
    let scores = mask_beyond_length(form, scores, minus_infinity)?;
    let scores = form
        .graph
        .pointwise(PointwiseMode::Subtract, Float, &[scores, lse], Float)?;
    let scores = mask_later(form, scores, minus_infinity)?;
    let weights = form
        .graph
        .pointwise(PointwiseMode::Exponential, Float, &[scores], Float)?;

    let transposed = transpose(form, weights)?;
    let sizes = ProductSizes {
        m: key_lengths,
        k: query_lengths,
        n: None,
    };
    key_value_gradient(
        form,
        transposed,
        d_out,
        dv,
        Operand::DvHeads,
        sizes,
        &mut scratch,
    )?;

    let d_weights = form
        .graph
        .virtual_tensor(Float, weights.dimensions, weights.strides)?;
    form.graph.matmul(
        d_out,
        v,
        d_weights,
        ProductSizes {
            m: query_lengths,
            n: key_lengths,
            k: None,
        },
    )?;
    let graph = &mut form.graph;
    let centred = graph.pointwise(PointwiseMode::Subtract, Float, &[d_weights, row_dot], Float)?;
    let d_scores = graph.pointwise(PointwiseMode::Multiply, Float, &[centred, weights], Float)?;
    let d_scores = graph.pointwise(PointwiseMode::Multiply, Float, &[d_scores, scale], Float)?;

    let transposed = transpose(form, d_scores)?;
    key_value_gradient(
        form,
        transposed,
        q,
        dk,
        Operand::DkHeads,
        sizes,
        &mut scratch,
    )?;
    query_gradient(form, d_scores, k, dq, &mut scratch)?;
    Ok(scratch)
}

/// `rowsum(d_out ∘ out)`, kept in the workspace: a first kernel writes it, the main one reads it.
fn row_dot(
    form: &mut Form<'_>,
    d_out: Tensor,
    out: Tensor,
    one: Tensor,
    scratch: &mut Vec<Scratch>,
) -> Result<Tensor, CudnnError> {
    let [batch, heads, rows, dim] = out.dimensions;
    let products = form.graph.virtual_tensor(
        Float,
        out.dimensions,
        [heads * rows * dim, rows * dim, dim, 1],
    )?;
    form.graph
        .pointwise_into(PointwiseMode::Multiply, Float, &[d_out, out], products)?;
    let sums =
        form.graph
            .virtual_tensor(Float, [batch, heads, rows, 1], [heads * rows, rows, 1, 1])?;
    form.graph.reduce(Reduction::Sum, products, sums)?;
    // The factor is dropout's in the form that cuDNN knows; without dropout it is one.
    let row_dot = form.per_row(Operand::RowDot)?;
    form.graph
        .pointwise_into(PointwiseMode::Multiply, Float, &[sums, one], row_dot)?;
    scratch.push(Scratch {
        operand: Operand::RowDot,
        bytes: 4 * form.shape.lse_elements(),
    });
    Ok(row_dot)
}

/// `[.., rows, columns]` in f32 to `[.., columns, rows]` in bf16.
fn transpose(form: &mut Form<'_>, x: Tensor) -> Result<Tensor, CudnnError> {
    let [batch, heads, rows, columns] = x.dimensions;
    let [b, h, r, c] = x.strides;
    let y = form
        .graph
        .virtual_tensor(BFloat16, [batch, heads, columns, rows], [b, h, c, r])?;
    form.graph.reshape(x, y)?;
    Ok(y)
}

/// `gradient = left right`, where each head of the gradient takes the sum over its group.
fn key_value_gradient(
    form: &mut Form<'_>,
    left: Tensor,
    right: Tensor,
    gradient: Tensor,
    by_query_head: Operand,
    sizes: ProductSizes,
    scratch: &mut Vec<Scratch>,
) -> Result<(), CudnnError> {
    let shape = *form.shape;
    if shape.query_heads == shape.key_value_heads {
        return form.graph.matmul(left, right, gradient, sizes);
    }
    let group = (shape.query_heads / shape.key_value_heads) as i64;
    let heads = shape.query_heads as i64;
    let [batch, _, rows, dim] = gradient.dimensions;
    let dimensions = [batch, heads, rows, dim];
    let products = match shape.packing {
        Packing::Single => form.graph.virtual_tensor(
            BFloat16,
            dimensions,
            [heads * rows * dim, rows * dim, dim, 1],
        )?,
        Packing::Packed { .. } => {
            // cuDNN multiplies the offsets of the gradient by the group's size to find those of
            // this buffer, so its rows must be exactly that many times as long. With offsets of
            // its own the kernel reads and writes elsewhere.
            let [b, h, r, c] = gradient.strides;
            let (source, row) = match by_query_head {
                Operand::DvHeads => (Operand::Dv, shape.strides.dv),
                _ => (Operand::Dk, shape.strides.dk),
            };
            let offsets = form.offsets_of(source, row)?;
            scratch.push(Scratch {
                operand: by_query_head,
                bytes: 2 * shape.tokens * row * group as usize,
            });
            form.graph.ragged_tensor(
                by_query_head as i64,
                BFloat16,
                dimensions,
                [b * group, h, r * group, c],
                offsets,
            )?
        }
    };
    form.graph.matmul(left, right, products, sizes)?;
    form.graph.reduce(Reduction::Sum, products, gradient)
}

/// `dq = d_scores k`.
fn query_gradient(
    form: &mut Form<'_>,
    d_scores: Tensor,
    k: Tensor,
    dq: Tensor,
    scratch: &mut Vec<Scratch>,
) -> Result<(), CudnnError> {
    let shape = *form.shape;
    let [batch, heads, dim, rows] = k.dimensions;
    let [b, h, d, r] = k.strides;
    let (dimensions, strides) = ([batch, heads, rows, dim], [b, h, r, d]);
    let keys = match shape.packing {
        Packing::Single => form.graph.virtual_tensor(Float, dimensions, strides)?,
        Packing::Packed { .. } => {
            let offsets = form.offsets_of(Operand::K, shape.strides.k)?;
            form.graph
                .virtual_ragged_tensor(Float, dimensions, strides, offsets)?
        }
    };
    form.graph.reshape(k, keys)?;
    let sizes = ProductSizes {
        m: form.lengths().map(|(query, _)| query),
        k: form.lengths().map(|(_, key)| key),
        n: None,
    };
    if shape.deterministic {
        return form.graph.matmul(d_scores, keys, dq, sizes);
    }
    // Blocks of keys add to the same rows of dq at once, in f32; a last kernel rounds the sums.
    let [batch, heads, rows, dim] = dq.dimensions;
    let (strides, row) = match shape.packing {
        Packing::Single => (
            [heads * rows * dim, rows * dim, dim, 1],
            shape.query_heads * shape.head_dim,
        ),
        Packing::Packed { .. } => (dq.strides, shape.strides.dq),
    };
    let sums = match shape.packing {
        Packing::Single => form.graph.tensor(
            Operand::DqSum as i64,
            Float,
            [batch, heads, rows, dim],
            strides,
        )?,
        Packing::Packed { .. } => {
            let offsets = form.offsets_of(Operand::Dq, row)?;
            form.graph.ragged_tensor(
                Operand::DqSum as i64,
                Float,
                [batch, heads, rows, dim],
                strides,
                offsets,
            )?
        }
    };
    scratch.push(Scratch {
        operand: Operand::DqSum,
        bytes: 4 * shape.tokens * row,
    });
    form.graph.matmul(d_scores, keys, sums, sizes)?;
    form.graph
        .pointwise_into(PointwiseMode::Identity, Float, &[sums], dq)
}
