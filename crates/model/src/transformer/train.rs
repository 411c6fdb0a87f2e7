//! One forward and backward pass over a packed batch, in memory that a plan laid out.
//!
//! The objective stands outside: it sees log-probabilities (and entropies and values) of the
//! supervised rows and answers with gradients at them. Where it needs all rows first, score and
//! then go backward ([`TrainingPass::score`], [`Scored::backward`]); where each chunk of rows stands
//! for itself, both happen in one go ([`TrainingPass::forward_backward`]), and where the gradients
//! are known beforehand, without waiting for the device ([`TrainingPass::supervised`]).
//!
//! Gradients of what is trained grow by those of the batch, in f32; dividing them is up to the
//! objective, which knows the whole accumulation window.

use std::ops::Range;

use super::{
    Adapter, FullTuning, MemoryPlan, Model, ModelError, PackedBatch, Result, ValueHead,
    buffers::{LayerBuffers, RowBuffers, WorkBuffers},
    head::HeadRun,
    layer::LayerRun,
};
use crate::{
    device::{Device, Segments},
    tensor::{DType, Tensor, View},
};

/// A model with what is trained of it or added to it.
#[derive(Debug)]
pub struct Policy<'a, D: Device> {
    /// The weights.
    pub model: &'a Model<D>,
    /// An adapter, which learns where a pass goes backward.
    pub adapter: Option<&'a Adapter<D>>,
    /// Gradients of all weights, where all are trained.
    pub full: Option<&'a FullTuning<D>>,
    /// A value head, which learns where a pass goes backward.
    pub value: Option<&'a ValueHead<D>>,
}

impl<D: Device> Clone for Policy<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D: Device> Copy for Policy<'_, D> {}

impl<'a, D: Device> Policy<'a, D> {
    /// The bare model, nothing of it trained.
    pub fn frozen(model: &'a Model<D>) -> Self {
        Policy {
            model,
            adapter: None,
            full: None,
            value: None,
        }
    }

    /// A frozen model with a trained adapter.
    pub fn adapted(model: &'a Model<D>, adapter: &'a Adapter<D>) -> Self {
        Policy {
            adapter: Some(adapter),
            ..Self::frozen(model)
        }
    }

    /// A model trained whole.
    pub fn full(model: &'a Model<D>, full: &'a FullTuning<D>) -> Self {
        Policy {
            full: Some(full),
            ..Self::frozen(model)
        }
    }

    /// The same with a value head.
    pub fn with_value(self, value: &'a ValueHead<D>) -> Self {
        Policy {
            value: Some(value),
            ..self
        }
    }
}

/// What the model says about the supervised rows of a batch, in their order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scores {
    /// Numbers of the rows in the batch.
    pub rows: Vec<u32>,
    /// Natural-log probabilities of the rows' targets under `softmax(logits / temperature)`.
    pub logprobs: Vec<f32>,
    /// Entropies of the same distributions, nats; empty unless asked for.
    pub entropies: Vec<f32>,
    /// Values; empty without a value head.
    pub values: Vec<f32>,
}

/// A chunk of rows before its backward pass, as [`Scores`] name them, and the gradients that the
/// objective writes.
#[derive(Debug)]
pub struct Chunk<'a> {
    /// The scores of the chunk's rows.
    pub scores: &'a Scores,
    /// Gradient of the loss at each log-probability; zero where left alone.
    pub d_logprobs: &'a mut [f32],
    /// Gradient of the loss at each value; empty without a value head.
    pub d_values: &'a mut [f32],
}

/// How scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreOptions {
    /// What logits are divided by; above 0.
    pub temperature: f32,
    /// Whether entropies are wanted.
    pub entropies: bool,
}

impl Default for ScoreOptions {
    fn default() -> Self {
        ScoreOptions {
            temperature: 1.0,
            entropies: false,
        }
    }
}

/// The buffers of a pass, on a device.
#[derive(Debug)]
pub struct TrainingPass<D: Device> {
    device: D,
    plan: MemoryPlan,
    rows: RowBuffers<Tensor<D::Storage>>,
    /// The stream before every layer and after the last; two of them where nothing goes backward.
    residuals: Vec<Tensor<D::Storage>>,
    d_residual: Option<Tensor<D::Storage>>,
    /// Sets of the layers that keep theirs, then the one that the others share.
    layers: Vec<LayerBuffers<Tensor<D::Storage>>>,
    work: WorkBuffers<Tensor<D::Storage>>,
}

/// A batch that has gone forward and may go backward.
#[derive(Debug)]
pub struct Scored<'a, D: Device> {
    /// What the model says.
    pub scores: Scores,
    pass: &'a mut TrainingPass<D>,
    policy: Policy<'a, D>,
    options: ScoreOptions,
    segments: Segments<D::Storage>,
    /// Supervised rows whose logits the head holds.
    held: Range<usize>,
}

impl<D: Device> TrainingPass<D> {
    /// Allocates what the plan says, at once.
    pub fn new(device: &D, plan: MemoryPlan) -> Result<Self> {
        let region = |n_bytes: usize| device.zeros(DType::U8, n_bytes);
        let (slots, rows) = &plan.rows;
        let rows = slots.in_region(&region(rows.n_bytes())?);
        let (slot, residual) = plan.residual;
        let mut residuals = (0..plan.n_residuals)
            .map(|_| Ok(slot.in_region(&region(residual.n_bytes())?)))
            .collect::<Result<Vec<_>>>()?;
        let d_residual = if plan.backward { residuals.pop() } else { None };
        let (slots, layer) = &plan.layer;
        let layers = (0..=plan.n_kept)
            .map(|_| Ok(slots.in_region(&region(layer.n_bytes())?)))
            .collect::<Result<Vec<_>>>()?;
        let (slots, work) = &plan.work;
        let work = slots.in_region(&region(work.n_bytes())?);
        Ok(TrainingPass {
            device: device.clone(),
            rows,
            residuals,
            d_residual,
            layers,
            work,
            plan,
        })
    }

    /// The plan.
    pub fn plan(&self) -> &MemoryPlan {
        &self.plan
    }

    /// Runs the batch forward. What [`Scored::backward`] needs stays in the pass.
    ///
    /// # Errors
    /// When the batch or the policy does not fit the plan, or the device fails.
    pub fn score<'a>(
        &'a mut self,
        policy: Policy<'a, D>,
        batch: &PackedBatch,
        options: ScoreOptions,
    ) -> Result<Scored<'a, D>> {
        let (segments, rows) = self.begin(policy, batch, options)?;
        self.forward_layers(policy, &segments)?;
        let n = segments.n_tokens();
        let residual = self.stream(n, policy.model.config.n_layers);
        let head = self.head(policy, &residual, options);
        let mut held = 0..0;
        for chunk in self.chunks(rows.len()) {
            held = chunk.clone();
            head.forward(chunk)?;
        }
        let scores = self.download(policy, options, rows, None)?;
        Ok(Scored {
            scores,
            held,
            pass: self,
            policy,
            options,
            segments,
        })
    }

    /// Runs the batch forward and backward; the objective sees each chunk of rows once, between the
    /// two, and writes its gradients.
    pub fn forward_backward(
        &mut self,
        policy: Policy<'_, D>,
        batch: &PackedBatch,
        options: ScoreOptions,
        objective: &mut dyn FnMut(Chunk<'_>),
    ) -> Result<Scores> {
        self.needs_backward()?;
        let (segments, rows) = self.begin(policy, batch, options)?;
        self.forward_layers(policy, &segments)?;
        let n = segments.n_tokens();
        let residual = self.stream(n, policy.model.config.n_layers);
        let d_residual = self.clear_d_residual(n)?;
        let head = self.head(policy, &residual, options);
        let mut all = Scores::default();
        for chunk in self.chunks(rows.len()) {
            head.forward(chunk.clone())?;
            let chunk_rows = rows[chunk.clone()].to_vec();
            let scores = self.download(policy, options, chunk_rows, Some(chunk.clone()))?;
            let mut d_logprobs = vec![0.0; chunk.len()];
            let mut d_values = vec![0.0; scores.values.len()];
            objective(Chunk {
                scores: &scores,
                d_logprobs: &mut d_logprobs,
                d_values: &mut d_values,
            });
            let to = &self.rows;
            self.device
                .upload_f32(&d_logprobs, &to.d_logprobs.slice(chunk.clone()))?;
            if policy.value.is_some() {
                self.device
                    .upload_f32(&d_values, &to.d_values.slice(chunk.clone()))?;
            }
            head.backward(chunk, &d_residual)?;
            all.rows.extend(scores.rows);
            all.logprobs.extend(scores.logprobs);
            all.entropies.extend(scores.entropies);
            all.values.extend(scores.values);
        }
        self.backward_layers(policy, &segments, &d_residual)?;
        Ok(all)
    }

    /// Runs the batch forward and backward for the weighted negative log-likelihood over
    /// `denominator`, the total weight of the whole accumulation window; the loss of this batch is
    /// `-sum(weight * logprob) / denominator`. A value head learns nothing here.
    pub fn supervised(
        &mut self,
        policy: Policy<'_, D>,
        batch: &PackedBatch,
        denominator: f64,
    ) -> Result<Scores> {
        self.needs_backward()?;
        if !(denominator.is_finite() && denominator > 0.0) {
            return Err(ModelError::Input {
                operation: "train on a batch",
                reason: format!("the denominator is {denominator}"),
            });
        }
        let policy = Policy {
            value: None,
            ..policy
        };
        let options = ScoreOptions::default();
        let (segments, rows) = self.begin(policy, batch, options)?;
        let d_logprobs: Vec<f32> = rows
            .iter()
            .map(|&row| (-f64::from(batch.weights[row as usize]) / denominator) as f32)
            .collect();
        self.device.upload_f32(&d_logprobs, &self.rows.d_logprobs)?;
        self.forward_layers(policy, &segments)?;
        let n = segments.n_tokens();
        let residual = self.stream(n, policy.model.config.n_layers);
        let d_residual = self.clear_d_residual(n)?;
        let head = self.head(policy, &residual, options);
        for chunk in self.chunks(rows.len()) {
            head.forward(chunk.clone())?;
            head.backward(chunk, &d_residual)?;
        }
        self.backward_layers(policy, &segments, &d_residual)?;
        self.download(policy, options, rows, None)
    }

    /// Checks batch and policy against the plan and brings the batch onto the device.
    fn begin(
        &self,
        policy: Policy<'_, D>,
        batch: &PackedBatch,
        options: ScoreOptions,
    ) -> Result<(Segments<D::Storage>, Vec<u32>)> {
        let refuse = |reason: String| {
            Err(ModelError::Input {
                operation: "take a batch",
                reason,
            })
        };
        if policy.model.config != self.plan.config {
            return refuse("the plan was made for another model".into());
        }
        let ranks = policy
            .adapter
            .map_or([0; 4], |adapter| adapter.config.group_ranks());
        if ranks
            .iter()
            .zip(self.plan.ranks)
            .any(|(&rank, planned)| rank > planned)
        {
            return refuse(format!(
                "ranks {ranks:?} where the plan was made for {:?}",
                self.plan.ranks
            ));
        }
        if !(options.temperature.is_finite() && options.temperature > 0.0) {
            return refuse(format!("temperature {}", options.temperature));
        }
        batch.check(&policy.model.config, policy.model.n_positions())?;
        if batch.n_tokens() > self.plan.max_tokens {
            return refuse(format!(
                "{} tokens where the plan was made for {}",
                batch.n_tokens(),
                self.plan.max_tokens
            ));
        }
        let rows = batch.supervised_rows();
        let targets: Vec<u32> = rows
            .iter()
            .map(|&row| batch.targets[row as usize])
            .collect();
        let to = &self.rows;
        let device_starts = to.starts.slice(0..batch.starts.len());
        self.device.upload_u32(&batch.ids, &to.ids)?;
        self.device.upload_u32(&batch.positions, &to.positions)?;
        self.device.upload_u32(&batch.starts, &device_starts)?;
        self.device.upload_u32(&rows, &to.rows)?;
        self.device.upload_u32(&targets, &to.targets)?;
        let segments = Segments {
            starts: batch.starts.clone(),
            device_starts,
        };
        Ok((segments, rows))
    }

    fn forward_layers(&self, policy: Policy<'_, D>, segments: &Segments<D::Storage>) -> Result<()> {
        let n = segments.n_tokens();
        let ids = self.rows.ids.slice(0..n);
        let model = policy.model;
        self.device.embed(&model.embed, &ids, &self.stream(n, 0))?;
        for layer in 0..model.config.n_layers {
            let run = self.layer(policy, segments, layer);
            run.forward(&self.stream(n, layer), Some(&self.stream(n, layer + 1)))?;
        }
        Ok(())
    }

    fn backward_layers(
        &self,
        policy: Policy<'_, D>,
        segments: &Segments<D::Storage>,
        d_residual: &View<D::Storage>,
    ) -> Result<()> {
        if policy.adapter.is_none() && policy.full.is_none() {
            return Ok(());
        }
        let n = segments.n_tokens();
        let n_layers = policy.model.config.n_layers;
        let buffers = self
            .work
            .backward
            .as_ref()
            .expect("the plan was made for gradients");
        for layer in (0..n_layers).rev() {
            let run = self.layer(policy, segments, layer);
            let x = self.stream(n, layer);
            if layer >= self.plan.n_kept && layer + 1 < n_layers {
                run.forward(&x, None)?;
            }
            let to_input = layer > 0 || policy.full.is_some();
            run.backward(buffers, &x, d_residual, to_input)?;
        }
        if let Some(full) = policy.full {
            let ids = self.rows.ids.slice(0..n);
            let d_embed = full.d_embed.view(policy.model.config.hidden_size);
            self.device.embed_backward(&ids, d_residual, &d_embed)?;
        }
        Ok(())
    }

    fn layer<'a>(
        &'a self,
        policy: Policy<'a, D>,
        segments: &'a Segments<D::Storage>,
        layer: usize,
    ) -> LayerRun<'a, D> {
        LayerRun {
            model: policy.model,
            layer: &policy.model.layers[layer],
            adapter: policy.adapter.map(|adapter| &adapter.layers[layer]),
            gradients: policy.full.map(|full| &full.layers[layer]),
            positions: &self.rows.positions,
            segments,
            activations: &self.layers[layer.min(self.plan.n_kept)],
            work: &self.work,
            n: segments.n_tokens(),
        }
    }

    fn head<'a>(
        &'a self,
        policy: Policy<'a, D>,
        residual: &'a View<D::Storage>,
        options: ScoreOptions,
    ) -> HeadRun<'a, D> {
        HeadRun {
            policy,
            rows: &self.rows,
            buffers: &self.work.head,
            residual,
            temperature: options.temperature,
            entropies: options.entropies,
        }
    }

    /// The residual stream of `n` tokens before a layer, `[n, hidden]`.
    fn stream(&self, n: usize, layer: usize) -> View<D::Storage> {
        let hidden = self.plan.config.hidden_size;
        let index = match self.plan.backward {
            true => layer,
            false => layer % 2,
        };
        self.residuals[index].slice(0..n * hidden).view(hidden)
    }

    fn clear_d_residual(&self, n: usize) -> Result<View<D::Storage>> {
        let hidden = self.plan.config.hidden_size;
        let d_residual = self
            .d_residual
            .as_ref()
            .expect("the plan was made for gradients")
            .slice(0..n * hidden);
        self.device.fill_zero(&d_residual)?;
        Ok(d_residual.view(hidden))
    }

    fn chunks(&self, n_rows: usize) -> impl Iterator<Item = Range<usize>> + use<D> {
        let step = self.plan.head_rows;
        (0..n_rows)
            .step_by(step)
            .map(move |start| start..n_rows.min(start + step))
    }

    /// Scores of all rows, or of a chunk of them.
    fn download(
        &self,
        policy: Policy<'_, D>,
        options: ScoreOptions,
        rows: Vec<u32>,
        chunk: Option<Range<usize>>,
    ) -> Result<Scores> {
        let range = chunk.unwrap_or(0..rows.len());
        let download = |wanted: bool, tensor: &Tensor<D::Storage>| {
            if !wanted || range.is_empty() {
                return Ok(Vec::new());
            }
            self.device.download_f32(&tensor.slice(range.clone()))
        };
        Ok(Scores {
            logprobs: download(true, &self.rows.logprobs)?,
            entropies: download(options.entropies, &self.rows.entropies)?,
            values: download(policy.value.is_some(), &self.rows.values)?,
            rows,
        })
    }

    fn needs_backward(&self) -> Result<()> {
        if self.plan.backward {
            return Ok(());
        }
        Err(ModelError::Input {
            operation: "train on a batch",
            reason: "the plan was made for scoring alone".into(),
        })
    }
}

impl<D: Device> Scored<'_, D> {
    /// Logits of some of the supervised rows, f32 `[rows, vocab_size]`, before the temperature.
    ///
    /// # Errors
    /// When there are no such rows, or more than the plan's chunk.
    pub fn logits(&mut self, rows: Range<usize>) -> Result<Vec<f32>> {
        let pass = &self.pass;
        let n_rows = self.scores.rows.len();
        if rows.start >= rows.end || rows.end > n_rows || rows.len() > pass.plan.head_rows {
            return Err(ModelError::Input {
                operation: "show logits",
                reason: format!("rows {rows:?} of {n_rows}, {} at once", pass.plan.head_rows),
            });
        }
        let config = &self.policy.model.config;
        let residual = pass.stream(self.segments.n_tokens(), config.n_layers);
        let head = pass.head(self.policy, &residual, self.options);
        self.held = rows.clone();
        head.forward(rows.clone())?;
        let logits = &pass.work.head.logits;
        let logits = logits.slice(0..rows.len() * config.vocab_size);
        Ok(pass.device.download_f32(&logits)?)
    }

    /// Runs the batch backward from gradients of the loss at the log-probabilities of the
    /// supervised rows and, where there is a value head, at their values.
    ///
    /// # Errors
    /// When there are not as many gradients as rows, the plan was made for scoring, or the device
    /// fails.
    pub fn backward(self, d_logprobs: &[f32], d_values: Option<&[f32]>) -> Result<()> {
        let pass = self.pass;
        pass.needs_backward()?;
        let n_rows = self.scores.rows.len();
        let n_values = d_values.map_or(n_rows, <[f32]>::len);
        if d_logprobs.len() != n_rows || n_values != n_rows {
            return Err(ModelError::Input {
                operation: "go backward",
                reason: format!(
                    "{} gradients at log-probabilities and {n_values} at values of {n_rows} rows",
                    d_logprobs.len()
                ),
            });
        }
        let policy = Policy {
            value: self.policy.value.filter(|_| d_values.is_some()),
            ..self.policy
        };
        let device = &pass.device;
        device.upload_f32(d_logprobs, &pass.rows.d_logprobs)?;
        if let Some(d_values) = d_values {
            device.upload_f32(d_values, &pass.rows.d_values)?;
        }
        let n = self.segments.n_tokens();
        let residual = pass.stream(n, policy.model.config.n_layers);
        let d_residual = pass.clear_d_residual(n)?;
        let head = pass.head(policy, &residual, self.options);
        for chunk in pass.chunks(n_rows) {
            // A single chunk's logits still lie where the forward pass left them; of several,
            // the next has overwritten them.
            if n_rows > pass.plan.head_rows || chunk != self.held {
                head.forward(chunk.clone())?;
            }
            head.backward(chunk, &d_residual)?;
        }
        pass.backward_layers(policy, &self.segments, &d_residual)
    }
}
