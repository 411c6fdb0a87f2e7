//! The inference pass over the paged cache: one step of the sampler's rows.
//!
//! A step embeds its rows, runs the layers with attention to the cached tokens of each row's
//! sequence, and makes logits only for the rows that need them. After the last layer's attention
//! the other rows are dropped. The arithmetic is that of the training pass, operation by operation.
//!
//! All memory is allocated when the pass is made. What a step needs from the host goes up in two
//! transfers (integers, numbers) and comes down in two. A step in which every row is a sequence of
//! its own is padded to one of a few batch sizes and goes through [`Device::replay`], so that a
//! device can record it once.

mod inputs;
mod workspace;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

pub use self::workspace::{PagedOptions, PagedPlan};
use self::{
    inputs::{StepInputs, StepShape},
    workspace::Workspace,
};
use super::{
    Adapter, AdapterConfig, Group, LayerAdapter, Model, ModelError, Result, split_gate_up,
    split_qkv,
};
use crate::{
    device::{self, Device, DeviceError, Draws, KvPages, PAGE_TOKENS, PagedRows},
    sample::runner::{
        AdapterWeights, Alternative, Run, RunOutput, Runner, RunnerLimits, TokenLogprob,
    },
    tensor::{Tensor, View},
};

/// A model with its paged cache, its adapters and the memory of a step.
pub struct PagedModel<D: Device> {
    model: Arc<Model<D>>,
    options: PagedOptions,
    plan: PagedPlan,
    pages: Vec<KvPages<D::Storage>>,
    work: Workspace<D::Storage>,
    adapters: HashMap<u64, Loaded<D>>,
    n_slots: u64,
    free_slots: Vec<(u64, Adapter<D>)>,
    /// Tells the recordings of this value's memory from those of others on the same device.
    instance: u64,
}

/// The number of the next paged model in this process.
static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(0);

/// An adapter in use. Its slot names its memory, which a recorded step refers to; slots are used
/// again, so that reloading does not make ever more recordings.
struct Loaded<D: Device> {
    slot: u64,
    adapter: Adapter<D>,
}

impl<D: Device> fmt::Debug for PagedModel<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagedModel")
            .field("options", &self.options)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

/// A row whose logits are made, in the order in which they are.
#[derive(Clone, Copy, Debug)]
struct ScoredRow {
    run: usize,
    /// Place among the run's scored rows.
    place: usize,
    /// Row of the step.
    row: usize,
    target: u32,
    temperature: f32,
    top: usize,
}

/// What is left of a step after the last layer: the rows that draw, then those that are scored,
/// and the next tokens of the latter.
struct Hidden<S> {
    normed: View<S>,
    targets: Tensor<S>,
}

impl<D: Device> PagedModel<D> {
    /// Allocates the cache and the memory of a step.
    ///
    /// # Errors
    /// When the options do not fit the model, or memory is short.
    pub fn new(model: Arc<Model<D>>, options: &PagedOptions) -> Result<Self> {
        let options = options.resolve(&model)?;
        let plan = PagedPlan::new(&model, &options);
        let device = &model.device;
        let per_layer = model.config.kv_size() * PAGE_TOKENS * options.n_pages;
        let pages = (0..model.config.n_layers)
            .map(|_| {
                Ok(KvPages {
                    keys: device.zeros(D::ACTIVATION, per_layer)?,
                    values: device.zeros(D::ACTIVATION, per_layer)?,
                })
            })
            .collect::<device::Result<Vec<_>>>()?;
        let work = Workspace::new(&model, &options)?;
        Ok(PagedModel {
            model,
            options,
            plan,
            pages,
            work,
            adapters: HashMap::new(),
            n_slots: 0,
            free_slots: Vec::new(),
            instance: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// The bytes of each part, for messages.
    pub fn plan(&self) -> &PagedPlan {
        &self.plan
    }

    /// The options with every default filled in.
    pub fn options(&self) -> &PagedOptions {
        &self.options
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model<D>> {
        &self.model
    }

    /// Rows after padding, and columns of the block tables.
    fn shape(&self, runs: &[Run<'_>], n_rows: usize, is_decode: bool) -> StepShape {
        let n_pages = runs
            .iter()
            .map(|run| (run.start + run.n_rows).div_ceil(PAGE_TOKENS))
            .max()
            .unwrap_or(1);
        if is_decode && self.options.pads_decoding {
            let most = self.options.max_context.div_ceil(PAGE_TOKENS);
            return StepShape {
                n_rows: bucket(n_rows).min(self.options.max_rows),
                n_sequences: bucket(n_rows).min(self.options.max_rows),
                n_pages: n_pages.next_power_of_two().max(8).min(most),
            };
        }
        StepShape {
            n_rows,
            n_sequences: runs.len(),
            n_pages,
        }
    }

    /// One step; see [`Runner::run`].
    fn step(&mut self, adapter: u64, runs: &[Run<'_>]) -> device::Result<Vec<RunOutput>> {
        let adapter = match adapter {
            0 => None,
            number => Some(
                self.adapters
                    .get(&number)
                    .ok_or_else(|| DeviceError::Shape {
                        operation: "run a step",
                        reason: format!("adapter {number} is not loaded"),
                    })?,
            ),
        };
        let n_rows: usize = runs.iter().map(|run| run.n_rows).sum();
        let is_decode = runs
            .iter()
            .all(|run| run.n_rows == 1 && run.draw.is_some() && run.score.is_none());
        if n_rows == 0 || n_rows > self.options.max_rows || runs.len() > self.options.max_sequences
        {
            return Err(DeviceError::Shape {
                operation: "run a step",
                reason: format!(
                    "{n_rows} rows of {} sequences where at most {} of {} fit",
                    runs.len(),
                    self.options.max_rows,
                    self.options.max_sequences
                ),
            });
        }
        let shape = self.shape(runs, n_rows, is_decode);
        let scored = scored_rows(runs);
        let inputs = StepInputs::new(runs, shape, is_decode, &scored);
        let uploaded = inputs.upload(&self.model.device, &self.work)?;
        let layers = adapter.map(|loaded| loaded.adapter.layers.as_slice());
        if is_decode && self.options.pads_decoding {
            let slot = adapter.map_or(0, |loaded| loaded.slot);
            let key = replay_key(self.instance, slot, shape);
            self.model.device.replay(key, &mut || {
                self.decode(layers, &uploaded.rows, &uploaded.ids, &uploaded.draws)
            })?;
        } else if is_decode {
            self.decode(layers, &uploaded.rows, &uploaded.ids, &uploaded.draws)?;
        } else {
            let n_drawn = inputs.n_drawn;
            let n_out = n_drawn + scored.len();
            let (normed, _) = self.layers(
                layers,
                &uploaded.rows,
                &uploaded.ids,
                Some((&uploaded.out_rows, n_out)),
            )?;
            if n_drawn > 0 {
                self.draw(&normed.row_range(0..n_drawn), &uploaded.draws)?;
            }
            return self.outputs(
                runs,
                &inputs,
                &uploaded.draws,
                &scored,
                Some(&Hidden {
                    normed,
                    targets: uploaded.targets,
                }),
            );
        }
        self.outputs(runs, &inputs, &uploaded.draws, &scored, None)
    }

    /// All of a decode step that happens on the device.
    fn decode(
        &self,
        adapter: Option<&[LayerAdapter<D::Storage>]>,
        rows: &PagedRows<D::Storage>,
        ids: &Tensor<D::Storage>,
        draws: &Draws<D::Storage>,
    ) -> device::Result<()> {
        let (normed, _) = self.layers(adapter, rows, ids, None)?;
        self.draw(&normed, draws)
    }

    fn draw(&self, normed: &View<D::Storage>, draws: &Draws<D::Storage>) -> device::Result<()> {
        let device = &self.model.device;
        let logits = self.logits(normed.rows());
        device.linear(normed, self.model.head_matrix(), None, &logits, false)?;
        device.sample(&logits, draws)
    }

    /// The first rows of the memory for logits.
    fn logits(&self, n_rows: usize) -> View<D::Storage> {
        let cols = self.model.config.vocab_size;
        self.work.logits.slice(0..n_rows * cols).view(cols)
    }

    /// Runs all layers and the last norm. Where `keep` names rows (and how many), only these come
    /// out, in its order. Also returns how many rows came out.
    fn layers(
        &self,
        adapter: Option<&[LayerAdapter<D::Storage>]>,
        rows: &PagedRows<D::Storage>,
        ids: &Tensor<D::Storage>,
        keep: Option<(&Tensor<D::Storage>, usize)>,
    ) -> device::Result<(View<D::Storage>, usize)> {
        let model = &*self.model;
        let (device, config, heads) = (&model.device, &model.config, model.heads());
        let work = &self.work;
        let mut n = rows.n_rows;
        let cut = |tensor: &Tensor<D::Storage>, n: usize, cols: usize| {
            tensor.slice(0..n * cols).view(cols)
        };
        let mut stream = cut(&work.stream, n, config.hidden_size);
        device.embed(&model.embed, ids, &stream)?;
        let last = config.n_layers - 1;
        for (index, (layer, pages)) in model.layers.iter().zip(&self.pages).enumerate() {
            let adapter = adapter.map(|layers| &layers[index]);
            let adapt = |group: Group, x: &View<D::Storage>, out: &View<D::Storage>| {
                let Some(pairs) = adapter.and_then(|layer| layer.group(group)) else {
                    return Ok(());
                };
                let rank = pairs.rank();
                let x_a = cut(&work.low_rank, x.rows(), rank);
                pairs
                    .forward(device, x, &x_a, out)
                    .map_err(|error| match error {
                        ModelError::Device(error) => error,
                        other => DeviceError::Shape {
                            operation: "adapt",
                            reason: other.to_string(),
                        },
                    })
            };
            let epsilon = config.rms_norm_eps;
            let normed = cut(&work.normed, n, config.hidden_size);
            let qkv = cut(&work.qkv, n, config.q_size() + 2 * config.kv_size());
            device.rms_norm(&stream, &layer.input_norm, epsilon, &normed)?;
            device.linear(&normed, &layer.qkv, layer.qkv_bias.as_ref(), &qkv, false)?;
            adapt(Group::Qkv, &normed, &qkv)?;
            let [q, k, v] = split_qkv(&qkv, heads);
            if let (Some(q_norm), Some(k_norm)) = (&layer.q_norm, &layer.k_norm) {
                device.rms_norm(&q, q_norm, epsilon, &q)?;
                device.rms_norm(&k, k_norm, epsilon, &k)?;
            }
            let q_and_k = qkv.columns(0..config.q_size() + config.kv_size());
            device.rotary(
                &q_and_k,
                config.head_dim,
                &rows.position,
                &model.rope_table,
                false,
            )?;
            device.write_kv(&k, &v, heads, rows, pages)?;
            if index == last && keep.is_some_and(|(_, n_out)| n_out == 0) {
                return Ok((cut(&work.normed, 0, config.hidden_size), 0));
            }
            let mut attention = cut(&work.attention, n, config.q_size());
            device.paged_attention(&q, heads, model.attention_scale(), rows, pages, &attention)?;
            if let (true, Some((keep, n_out))) = (index == last, keep) {
                let kept = cut(&work.kept_attention, n_out, config.q_size());
                device.gather_rows(&attention, keep, &kept)?;
                attention = kept;
                let kept = cut(&work.kept_stream, n_out, config.hidden_size);
                device.gather_rows(&stream, keep, &kept)?;
                stream = kept;
                n = n_out;
            }
            device.linear(&attention, &layer.o, None, &stream, true)?;
            adapt(Group::O, &attention, &stream)?;

            let normed = cut(&work.normed, n, config.hidden_size);
            let gate_up = cut(&work.gate_up, n, 2 * config.intermediate_size);
            let product = cut(&work.product, n, config.intermediate_size);
            device.rms_norm(&stream, &layer.post_norm, epsilon, &normed)?;
            device.linear(&normed, &layer.gate_up, None, &gate_up, false)?;
            adapt(Group::GateUp, &normed, &gate_up)?;
            let [gate, up] = split_gate_up(&gate_up);
            device.swiglu(&gate, &up, &product)?;
            device.linear(&product, &layer.down, None, &stream, true)?;
            adapt(Group::Down, &product, &stream)?;
        }
        let normed = cut(&work.normed, n, config.hidden_size);
        device.rms_norm(&stream, &model.norm, config.rms_norm_eps, &normed)?;
        Ok((normed, n))
    }

    /// Brings the results of a step down, and scores the rows that are scored.
    fn outputs(
        &self,
        runs: &[Run<'_>],
        inputs: &StepInputs,
        draws: &Draws<D::Storage>,
        scored: &[ScoredRow],
        hidden: Option<&Hidden<D::Storage>>,
    ) -> device::Result<Vec<RunOutput>> {
        let device = &self.model.device;
        let mut outputs: Vec<RunOutput> = runs.iter().map(|_| RunOutput::default()).collect();
        if inputs.n_drawn > 0 {
            let n = inputs.n_draw_rows;
            let tokens = device.download_u32(&draws.token)?;
            let logprobs = device.download_f32(&self.work.drawn_logprobs.slice(0..2 * n))?;
            let drawing = runs.iter().zip(&mut outputs);
            let drawing = drawing.filter_map(|(run, output)| Some((run.draw?, output)));
            for (row, (draw, output)) in drawing.enumerate() {
                let mut token = TokenLogprob {
                    id: tokens[row],
                    logprob: logprobs[row],
                    raw_logprob: logprobs[n + row],
                    top: Vec::new(),
                };
                if draw.top > 0 {
                    token.top = self.alternatives(row, draw.temperature, draw.top, &token)?;
                }
                output.drawn = Some(token);
            }
        }
        let Some(Hidden { normed, targets }) = hidden else {
            return Ok(outputs);
        };
        for piece in slabs(scored, self.options.max_logit_rows) {
            let first = inputs.n_drawn + piece.start;
            let n = piece.len();
            let logits = self.logits(n);
            let head = self.model.head_matrix();
            device.linear(
                &normed.row_range(first..first + n),
                head,
                None,
                &logits,
                false,
            )?;
            let targets = targets.slice(piece.clone());
            let (logprob, lse) = (
                self.work.scored_logprobs.slice(0..n),
                self.work.scored_lse.slice(0..n),
            );
            let gather = |temperature: f32| -> device::Result<Vec<f32>> {
                device.log_softmax_gather(&logits, &targets, temperature, &logprob, &lse, None)?;
                device.download_f32(&logprob)
            };
            let temperature = scored[piece.start].temperature;
            let raw = gather(1.0)?;
            let tempered = match temperature {
                1.0 => raw.clone(),
                _ => gather(temperature)?,
            };
            for (row, scored) in scored[piece].iter().enumerate() {
                let mut token = TokenLogprob {
                    id: scored.target,
                    logprob: tempered[row],
                    raw_logprob: raw[row],
                    top: Vec::new(),
                };
                if scored.top > 0 {
                    token.top = self.alternatives(row, temperature, scored.top, &token)?;
                }
                let of_run = &mut outputs[scored.run].scored;
                debug_assert_eq!(of_run.len(), scored.place);
                of_run.push(token);
            }
        }
        Ok(outputs)
    }

    /// The most likely tokens by the logits that lie in row `row` now, of which `known` is one.
    fn alternatives(
        &self,
        row: usize,
        temperature: f32,
        n: usize,
        known: &TokenLogprob,
    ) -> device::Result<Vec<Alternative>> {
        let cols = self.model.config.vocab_size;
        let of_row = self.work.logits.slice(row * cols..(row + 1) * cols);
        let logits = self.model.device.download_f32(&of_row)?;
        let scale = if temperature > 0.0 {
            1.0 / temperature
        } else {
            1.0
        };
        let of_known = logits.get(known.id as usize).copied().unwrap_or_default();
        let raw_lse = of_known - known.raw_logprob;
        let lse = of_known * scale - known.logprob;
        Ok(largest(&logits, n)
            .into_iter()
            .map(|id| {
                let logit = logits[id as usize];
                Alternative {
                    id,
                    logprob: logit * scale - lse,
                    raw_logprob: logit - raw_lse,
                }
            })
            .collect())
    }
}

impl<D: Device> Runner for PagedModel<D> {
    fn limits(&self) -> RunnerLimits {
        RunnerLimits {
            max_rows: self.options.max_rows,
            max_runs: self.options.max_sequences,
            n_pages: self.options.n_pages,
            max_context: self.options.max_context,
            vocabulary: self.model.config.vocab_size,
        }
    }

    fn copy_pages(&mut self, moves: &[(u32, u32)]) -> device::Result<()> {
        let heads = self.model.heads();
        for pages in &self.pages {
            self.model.device.copy_pages(pages, heads, moves)?;
        }
        Ok(())
    }

    fn run(&mut self, adapter: u64, runs: &[Run<'_>]) -> device::Result<Vec<RunOutput>> {
        self.step(adapter, runs)
    }

    fn load_adapter(&mut self, adapter: u64, weights: &AdapterWeights) -> Result<()> {
        let most = self.options.max_adapter_rank;
        if weights.rank > most {
            return Err(ModelError::Input {
                operation: "load an adapter",
                reason: format!("its rank is {}, room was made for {most}", weights.rank),
            });
        }
        let (device, config) = (&self.model.device, &self.model.config);
        let wanted = AdapterConfig::of_file(weights);
        let fits = |(_, spare): &(u64, Adapter<D>)| spare.config == wanted;
        let loaded = match self.free_slots.iter().position(fits) {
            Some(at) => {
                let (slot, adapter) = self.free_slots.swap_remove(at);
                if let Err(error) = adapter.refill(device, config, weights) {
                    self.free_slots.push((slot, adapter));
                    return Err(error);
                }
                Loaded { slot, adapter }
            }
            None => {
                let adapter = Adapter::load(device, config, weights)?;
                self.n_slots += 1;
                Loaded {
                    slot: self.n_slots,
                    adapter,
                }
            }
        };
        self.adapters.insert(adapter, loaded);
        Ok(())
    }

    fn unload_adapter(&mut self, adapter: u64) {
        if let Some(loaded) = self.adapters.remove(&adapter) {
            self.free_slots.push((loaded.slot, loaded.adapter));
        }
    }
}

/// The rows to score, those of one temperature together, else in order.
fn scored_rows(runs: &[Run<'_>]) -> Vec<ScoredRow> {
    let mut rows = Vec::new();
    let mut first_row = 0;
    for (index, run) in runs.iter().enumerate() {
        if let Some(score) = run.score {
            for place in 0..score.n_rows {
                let offset = score.first + place;
                rows.push(ScoredRow {
                    run: index,
                    place,
                    row: first_row + offset,
                    target: run.tokens[run.start + offset + 1],
                    temperature: if score.temperature > 0.0 {
                        score.temperature
                    } else {
                        1.0
                    },
                    top: score.top,
                });
            }
        }
        first_row += run.n_rows;
    }
    rows.sort_by(|a, b| a.temperature.total_cmp(&b.temperature));
    rows
}

/// Cuts rows into pieces of one temperature and at most `most` rows.
fn slabs(rows: &[ScoredRow], most: usize) -> Vec<std::ops::Range<usize>> {
    let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        match pieces.last_mut() {
            Some(piece)
                if piece.len() < most && rows[piece.start].temperature == row.temperature =>
            {
                piece.end = at + 1;
            }
            _ => pieces.push(at..at + 1),
        }
    }
    pieces
}

/// The `n` largest numbers, the largest first, by index; of equal ones the lower index first.
fn largest(values: &[f32], n: usize) -> Vec<u32> {
    let order = |a: &u32, b: &u32| {
        values[*b as usize]
            .total_cmp(&values[*a as usize])
            .then(a.cmp(b))
    };
    let mut ids: Vec<u32> = (0..values.len() as u32).collect();
    let n = n.min(ids.len());
    if n > 0 && n < ids.len() {
        ids.select_nth_unstable_by(n - 1, order);
    }
    ids.truncate(n);
    ids.sort_unstable_by(order);
    ids
}

/// The batch size that `n` rows are padded to: powers of two up to 8, then multiples of 8.
fn bucket(n: usize) -> usize {
    if n <= 8 {
        n.next_power_of_two()
    } else {
        n.next_multiple_of(8)
    }
}

fn replay_key(instance: u64, slot: u64, shape: StepShape) -> u64 {
    use crate::random::mix;
    let sizes = (shape.n_rows as u64) << 32 | shape.n_pages as u64;
    mix(mix(mix(instance ^ 0x7061_6765_6473_7465) ^ slot) ^ sizes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_come_in_order_and_equal_ones_by_index() {
        let values = [1.0, 5.0, f32::NEG_INFINITY, 5.0, 3.0];
        assert_eq!(largest(&values, 3), [1, 3, 4]);
        assert_eq!(largest(&values, 1), [1]);
        assert_eq!(largest(&values, 9), [1, 3, 4, 0, 2]);
        assert!(largest(&values, 0).is_empty());
    }

    #[test]
    fn batch_sizes_are_few() {
        let sizes: Vec<usize> = [1, 2, 3, 5, 8, 9, 16, 17, 64].map(bucket).to_vec();
        assert_eq!(sizes, [1, 2, 4, 8, 8, 16, 16, 24, 64]);
    }
}
