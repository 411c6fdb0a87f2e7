//! What a step needs from the host, packed into two transfers.

use super::{ScoredRow, workspace::Workspace};
use crate::{
    device::{self, Device, Draws, PAGE_TOKENS, PagedRows},
    sample::{
        pages::PADDING_PAGE,
        runner::{Draw, Run},
    },
    tensor::Tensor,
};

/// Elements at multiples of which the packed vectors start.
pub(super) const ALIGNMENT: usize = 64;

/// Sizes of a step after padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepShape {
    pub n_rows: usize,
    pub n_sequences: usize,
    pub n_pages: usize,
}

/// The numbers of a step on the host.
#[derive(Debug)]
pub(super) struct StepInputs {
    shape: StepShape,
    n_out: usize,
    n_scored: usize,
    runs: Vec<(u32, u32, u32)>,
    max_context: usize,
    integers: Packed<u32>,
    numbers: Packed<f32>,
    /// Tokens that are drawn.
    pub n_drawn: usize,
    /// Rows that draw, those of padding among them.
    pub n_draw_rows: usize,
}

/// The tensors of a step on the device.
#[derive(Debug)]
pub(super) struct Uploaded<S> {
    pub ids: Tensor<S>,
    pub rows: PagedRows<S>,
    pub out_rows: Tensor<S>,
    pub targets: Tensor<S>,
    pub draws: Draws<S>,
}

/// Places of the vectors among the integers.
const IDS: usize = 0;
const SEQUENCE: usize = 1;
const POSITION: usize = 2;
const SLOT: usize = 3;
const OUT_ROWS: usize = 4;
const TARGETS: usize = 5;
const TOP_K: usize = 6;
const SEED: usize = 7;
const DRAW: usize = 8;
const TABLES: usize = 9;
/// Places of the vectors among the numbers.
const TEMPERATURE: usize = 0;
const TOP_P: usize = 1;
const MIN_P: usize = 2;

/// How a row of padding draws.
const PADDING_DRAW: Draw = Draw {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 0,
    n_drawn: 0,
    top: 0,
};

impl StepInputs {
    pub(super) fn new(
        runs: &[Run<'_>],
        shape: StepShape,
        is_decode: bool,
        scored: &[ScoredRow],
    ) -> Self {
        let mut drawing: Vec<(u32, Draw)> = Vec::new();
        let (mut ids, mut sequence, mut position, mut slot) = (
            Vec::with_capacity(shape.n_rows),
            Vec::with_capacity(shape.n_rows),
            Vec::with_capacity(shape.n_rows),
            Vec::with_capacity(shape.n_rows),
        );
        let mut tables = vec![PADDING_PAGE; shape.n_sequences * shape.n_pages];
        let mut spans = Vec::new();
        for (index, run) in runs.iter().enumerate() {
            let first = ids.len() as u32;
            let end = run.start + run.n_rows;
            ids.extend_from_slice(&run.tokens[run.start..end]);
            for at in run.start..end {
                sequence.push(index as u32);
                position.push(at as u32);
                slot.push(
                    run.pages[at / PAGE_TOKENS] * PAGE_TOKENS as u32 + (at % PAGE_TOKENS) as u32,
                );
            }
            let line = &run.pages[..end.div_ceil(PAGE_TOKENS)];
            tables[index * shape.n_pages..][..line.len()].copy_from_slice(line);
            if let Some(draw) = run.draw {
                drawing.push((ids.len() as u32 - 1, draw));
            }
            if !is_decode {
                spans.push((first, run.n_rows as u32, end as u32 - 1));
            }
        }
        let n_drawn = drawing.len();
        for row in ids.len()..shape.n_rows {
            ids.push(0);
            sequence.push(row.min(shape.n_sequences - 1) as u32);
            position.push(0);
            slot.push(PADDING_PAGE * PAGE_TOKENS as u32);
            if is_decode {
                drawing.push((row as u32, PADDING_DRAW));
            }
        }
        let out_rows: Vec<u32> = drawing
            .iter()
            .map(|&(row, _)| row)
            .chain(scored.iter().map(|scored| scored.row as u32))
            .collect();
        let targets: Vec<u32> = scored.iter().map(|scored| scored.target).collect();
        let draws = || drawing.iter().map(|&(_, draw)| draw);
        let top_k: Vec<u32> = draws().map(|draw| draw.top_k).collect();
        let seed: Vec<u32> = draws()
            .flat_map(|draw| [draw.seed as u32, (draw.seed >> 32) as u32])
            .collect();
        let n_before: Vec<u32> = draws().map(|draw| draw.n_drawn).collect();
        let temperature: Vec<f32> = draws().map(|draw| draw.temperature).collect();
        let top_p: Vec<f32> = draws().map(|draw| draw.top_p).collect();
        let min_p: Vec<f32> = draws().map(|draw| draw.min_p).collect();
        // In a recorded step the bound must not depend on the moment.
        let max_context = shape.n_pages * PAGE_TOKENS;
        StepInputs {
            shape,
            n_out: out_rows.len(),
            n_scored: scored.len(),
            runs: spans,
            max_context,
            integers: Packed::new(&[
                &ids, &sequence, &position, &slot, &out_rows, &targets, &top_k, &seed, &n_before,
                &tables,
            ]),
            numbers: Packed::new(&[&temperature, &top_p, &min_p]),
            n_drawn,
            n_draw_rows: drawing.len(),
        }
    }

    pub(super) fn upload<D: Device>(
        &self,
        device: &D,
        work: &Workspace<D::Storage>,
    ) -> device::Result<Uploaded<D::Storage>> {
        device.upload_u32(&self.integers.values, &work.integers)?;
        if !self.numbers.values.is_empty() {
            device.upload_f32(&self.numbers.values, &work.numbers)?;
        }
        let integers = |part: usize| self.integers.part(part, &work.integers);
        let numbers = |part: usize| self.numbers.part(part, &work.numbers);
        let n = self.n_draw_rows;
        debug_assert_eq!(integers(OUT_ROWS).len(), self.n_out);
        debug_assert_eq!(integers(TARGETS).len(), self.n_scored);
        Ok(Uploaded {
            ids: integers(IDS),
            rows: PagedRows {
                n_rows: self.shape.n_rows,
                sequence: integers(SEQUENCE),
                position: integers(POSITION),
                slot: integers(SLOT),
                block_tables: integers(TABLES),
                max_pages: self.shape.n_pages,
                max_context: self.max_context,
                runs: self.runs.clone(),
            },
            out_rows: integers(OUT_ROWS),
            targets: integers(TARGETS),
            draws: Draws {
                temperature: numbers(TEMPERATURE),
                top_k: integers(TOP_K),
                top_p: numbers(TOP_P),
                min_p: numbers(MIN_P),
                seed: integers(SEED),
                draw: integers(DRAW),
                token: work.drawn.slice(0..n),
                logprob: work.drawn_logprobs.slice(0..n),
                raw_logprob: work.drawn_logprobs.slice(n..2 * n),
            },
        })
    }
}

/// Vectors laid one after another, each at a multiple of [`ALIGNMENT`] elements.
#[derive(Debug)]
struct Packed<T> {
    values: Vec<T>,
    parts: Vec<std::ops::Range<usize>>,
}

impl<T: Copy + Default> Packed<T> {
    fn new(vectors: &[&[T]]) -> Self {
        let mut packed = Packed {
            values: Vec::new(),
            parts: Vec::new(),
        };
        for vector in vectors {
            let start = packed.values.len().next_multiple_of(ALIGNMENT);
            packed.values.resize(start, T::default());
            packed.values.extend_from_slice(vector);
            packed.parts.push(start..start + vector.len());
        }
        packed
    }

    fn part<S>(&self, part: usize, tensor: &Tensor<S>) -> Tensor<S> {
        tensor.slice(self.parts[part].clone())
    }
}
