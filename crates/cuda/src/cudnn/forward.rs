//! The forward pass as a graph: `out = softmax(mask(scale q kᵀ)) v`, and each row's log-sum-exp.

use super::CudnnError;
use super::descriptor::{DataType, PointwiseMode, Reduction};
use super::graph::{ProductSizes, Tensor};
use super::shape::{Form, Operand};

use DataType::{BFloat16, Boolean, Float, Int32};

/// Adds the operations of the forward pass.
pub(super) fn build(form: &mut Form<'_>) -> Result<(), CudnnError> {
    let shape = *form.shape;
    let (heads, key_value_heads) = (shape.query_heads, shape.key_value_heads);
    let q = form.rows(Operand::Q, heads, shape.strides.q)?;
    let k = form.columns(Operand::K, key_value_heads, shape.strides.k)?;
    let v = form.rows(Operand::V, key_value_heads, shape.strides.v)?;
    let out = form.rows(Operand::Out, heads, shape.strides.out)?;
    let lse = form.per_row(Operand::Lse)?;
    let scale = form.graph.scalar(Operand::Scale as i64, Float)?;
    let minus_infinity = form.graph.scalar(Operand::MinusInfinity as i64, Float)?;

    let scores = scaled_scores(form, q, k, scale)?;
    let scores = mask_beyond_length(form, scores, minus_infinity)?;
    let scores = mask_later(form, scores, minus_infinity)?;

    let graph = &mut form.graph;
    let maximum = row_vector(graph, scores)?;
    graph.reduce(Reduction::Maximum, scores, maximum)?;
    let shifted = graph.pointwise(PointwiseMode::Subtract, Float, &[scores, maximum], Float)?;
    let exponentials = graph.pointwise(PointwiseMode::Exponential, Float, &[shifted], Float)?;
    let sum = row_vector(graph, scores)?;
    graph.reduce(Reduction::Sum, exponentials, sum)?;
    let logarithm = graph.pointwise(PointwiseMode::Logarithm, Float, &[sum], Float)?;
    graph.pointwise_into(PointwiseMode::Add, Float, &[maximum, logarithm], lse)?;
    let weights = graph.pointwise(PointwiseMode::Divide, Float, &[exponentials, sum], BFloat16)?;

    let lengths = form.lengths();
    form.graph.matmul(
        weights,
        v,
        out,
        ProductSizes {
            m: lengths.map(|(query, _)| query),
            k: lengths.map(|(_, key)| key),
            n: None,
        },
    )
}

/// `scale q kᵀ`, `[batch, heads, rows, rows]`.
pub(super) fn scaled_scores(
    form: &mut Form<'_>,
    q: Tensor,
    k: Tensor,
    scale: Tensor,
) -> Result<Tensor, CudnnError> {
    let (batch, rows) = form.shape.batch_and_rows();
    let heads = form.shape.query_heads as i64;
    let scores = form.graph.virtual_tensor(
        Float,
        [batch, heads, rows, rows],
        [heads * rows * rows, rows * rows, rows, 1],
    )?;
    let lengths = form.lengths();
    form.graph.matmul(
        q,
        k,
        scores,
        ProductSizes {
            m: lengths.map(|(query, _)| query),
            n: lengths.map(|(_, key)| key),
            k: None,
        },
    )?;
    form.graph
        .pointwise(PointwiseMode::Multiply, Float, &[scores, scale], Float)
}

/// Replaces the scores of rows and columns beyond a sequence's length by minus infinity.
pub(super) fn mask_beyond_length(
    form: &mut Form<'_>,
    scores: Tensor,
    minus_infinity: Tensor,
) -> Result<Tensor, CudnnError> {
    let Some((query_lengths, key_lengths)) = form.lengths() else {
        return Ok(scores);
    };
    let graph = &mut form.graph;
    let row = graph.index(scores, 2, Int32)?;
    let column = graph.index(scores, 3, Int32)?;
    let row_in = graph.pointwise(PointwiseMode::Less, Boolean, &[row, query_lengths], Boolean)?;
    let column_in = graph.pointwise(
        PointwiseMode::Less,
        Boolean,
        &[column, key_lengths],
        Boolean,
    )?;
    let inside = graph.pointwise(PointwiseMode::And, Boolean, &[row_in, column_in], Boolean)?;
    graph.pointwise(
        PointwiseMode::Select,
        Float,
        &[scores, minus_infinity, inside],
        Float,
    )
}

/// Replaces the scores of columns after the row's own by minus infinity.
pub(super) fn mask_later(
    form: &mut Form<'_>,
    scores: Tensor,
    minus_infinity: Tensor,
) -> Result<Tensor, CudnnError> {
    let graph = &mut form.graph;
    let row = graph.index(scores, 2, Float)?;
    let column = graph.index(scores, 3, Float)?;
    let seen = graph.pointwise(
        PointwiseMode::GreaterOrEqual,
        Boolean,
        &[row, column],
        Boolean,
    )?;
    graph.pointwise(
        PointwiseMode::Select,
        Float,
        &[scores, minus_infinity, seen],
        Float,
    )
}

/// A virtual f32 vector with one element per row of `scores`.
fn row_vector(graph: &mut super::graph::Graph, scores: Tensor) -> Result<Tensor, CudnnError> {
    let [batch, heads, rows, _] = scores.dimensions;
    graph.virtual_tensor(Float, [batch, heads, rows, 1], [heads * rows, rows, 1, 1])
}
