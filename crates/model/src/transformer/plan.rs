//! The memory of a training pass, laid out before any of it is taken.
//!
//! A pass takes the residual stream before every layer, what the backward pass needs of the layers
//! whose activations are kept, one more set that all other layers share, and working memory that
//! the head and the parts of a layer use in turn. A layer whose set is not kept runs forward again
//! before it runs backward, except the last, whose activations still lie in the shared set.

use std::fmt;

use temper_checkpoint::ModelConfig;

use super::{
    AdapterConfig, ModelError, Result,
    buffers::{LayerBuffers, Region, RowBuffers, Slot, WorkBuffers},
};
use crate::device::{Device, Heads, WeightFormat};

/// Which layers keep all that their backward pass needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// As many as there are: nothing is computed twice.
    All,
    /// This many; at most all but the last are of use.
    Layers(usize),
    /// As many as fit when everything, [`PlanRequest::held`] included, takes this many bytes.
    Within(usize),
}

/// What a pass must be able to do.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// Tokens of the largest batch.
    pub max_tokens: usize,
    /// Supervised rows whose logits exist at once.
    pub head_rows: usize,
    /// The adapter that is trained or scored with, where there is one.
    pub adapter: Option<AdapterConfig>,
    /// Whether gradients are wanted; without, the pass only scores.
    pub backward: bool,
    /// Which layers keep their activations.
    pub keep: Keep,
    /// Form of the layers' matrices, which may need scratch to be multiplied with.
    pub format: WeightFormat,
    /// What else is held on the device meanwhile: weights, trained arrays, optimizer states.
    pub held: Vec<(String, usize)>,
}

/// Where every buffer of a pass lies, and how much that takes.
#[derive(Debug)]
pub struct MemoryPlan {
    /// Tokens of the largest batch.
    pub max_tokens: usize,
    /// Supervised rows whose logits exist at once.
    pub head_rows: usize,
    /// Layers that keep all their activations.
    pub n_kept: usize,
    /// Layers that run forward a second time.
    pub n_recomputed: usize,
    /// Whether the pass makes gradients.
    pub backward: bool,
    /// Sums of ranks in a layer's groups that the buffers can take.
    pub ranks: [usize; 4],
    pub(super) config: ModelConfig,
    pub(super) rows: (RowBuffers<Slot>, Region),
    /// Bytes of the residual stream at one place.
    pub(super) residual: (Slot, Region),
    pub(super) n_residuals: usize,
    pub(super) layer: (LayerBuffers<Slot>, Region),
    pub(super) work: (WorkBuffers<Slot>, Region),
    scratch: usize,
    device: usize,
    held: Vec<(String, usize)>,
}

impl MemoryPlan {
    /// Lays out a pass.
    ///
    /// # Errors
    /// When the request has no tokens or rows, or does not fit into the bytes it names even with
    /// every layer run twice.
    pub fn new<D: Device>(device: &D, config: &ModelConfig, request: &PlanRequest) -> Result<Self> {
        let refuse = |reason: String| {
            Err(ModelError::Input {
                operation: "plan the memory of a pass",
                reason,
            })
        };
        if request.max_tokens == 0 || request.head_rows == 0 {
            return refuse(format!(
                "{} tokens and {} rows of logits",
                request.max_tokens, request.head_rows
            ));
        }
        let n = request.max_tokens;
        let head_rows = request.head_rows.min(n);
        let ranks = request
            .adapter
            .as_ref()
            .map_or([0; 4], AdapterConfig::group_ranks);
        let mut rows = Region::default();
        let row_buffers = RowBuffers::layout(n, &mut rows);
        let mut residual = Region::default();
        let residual_slot = residual.place(D::ACTIVATION, n * config.hidden_size);
        let mut layer = Region::default();
        let layer_buffers = LayerBuffers::layout(config, n, ranks, D::ACTIVATION, &mut layer);
        let mut work = Region::default();
        let work_buffers = WorkBuffers::layout(
            config,
            n,
            head_rows,
            ranks,
            request.backward,
            D::ACTIVATION,
            &mut work,
        );
        let heads = Heads {
            n_query: config.n_heads,
            n_kv: config.n_kv_heads,
            dim: config.head_dim,
        };
        let scratch = device.attention_scratch_bytes(heads, n, request.backward)
            + largest_linear_scratch(device, config, request.format);
        let mut plan = MemoryPlan {
            max_tokens: n,
            head_rows,
            n_kept: 0,
            n_recomputed: config.n_layers - 1,
            backward: request.backward,
            ranks,
            config: config.clone(),
            rows: (row_buffers, rows),
            residual: (residual_slot, residual),
            // The inputs of all layers, the output of the last, and the gradient; without
            // gradients, layers read one and write the other of two.
            n_residuals: if request.backward {
                config.n_layers + 2
            } else {
                2
            },
            layer: (layer_buffers, layer),
            work: (work_buffers, work),
            scratch,
            device: device.own_bytes(),
            held: request.held.clone(),
        };
        if !request.backward {
            plan.n_recomputed = 0;
            return match request.keep {
                Keep::Within(budget) if plan.total_bytes() > budget => plan.refuse(budget),
                _ => Ok(plan),
            };
        }
        match request.keep {
            Keep::All => plan.keep(config.n_layers),
            Keep::Layers(wanted) => plan.keep(wanted),
            Keep::Within(budget) => {
                let Some(free) = budget.checked_sub(plan.total_bytes()) else {
                    return plan.refuse(budget);
                };
                plan.keep(free / layer.n_bytes().max(1));
            }
        }
        Ok(plan)
    }

    /// Bytes that the pass allocates when it is made.
    pub fn pass_bytes(&self) -> usize {
        self.parts()
            .iter()
            .map(|(_, count, n_bytes)| count * n_bytes)
            .sum()
    }

    /// Bytes at the peak: the pass, the device's scratch and own buffers, and what else is held.
    pub fn total_bytes(&self) -> usize {
        self.device + self.bytes_to_take()
    }

    /// The same without what the device has taken already: what has to be free.
    pub fn bytes_to_take(&self) -> usize {
        let held: usize = self.held.iter().map(|(_, n_bytes)| n_bytes).sum();
        self.pass_bytes() + self.scratch + held
    }

    /// Lets the first layers keep their activations. The last one's are in the shared set anyway,
    /// so all but one kept is all kept.
    fn keep(&mut self, wanted: usize) {
        let n_layers = self.config.n_layers;
        self.n_kept = wanted.min(n_layers - 1);
        self.n_recomputed = n_layers - 1 - self.n_kept;
    }

    /// Name, count and bytes of what the pass allocates.
    fn parts(&self) -> Vec<(&'static str, usize, usize)> {
        vec![
            ("rows of the batch", 1, self.rows.1.n_bytes()),
            (
                "residual stream",
                self.n_residuals,
                self.residual.1.n_bytes(),
            ),
            (
                "activations of a layer",
                self.n_kept + 1,
                self.layer.1.n_bytes(),
            ),
            ("working memory", 1, self.work.1.n_bytes()),
        ]
    }

    fn refuse(&self, budget: usize) -> Result<Self> {
        Err(ModelError::Input {
            operation: "plan the memory of a pass",
            reason: format!(
                "{} bytes are needed even if every layer is computed twice, and {budget} may be used",
                self.total_bytes()
            ),
        })
    }
}

/// The plan as a table: what, how often, MiB.
impl fmt::Display for MemoryPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |what: &str, count: usize, n_bytes: usize| {
            let total = (count * n_bytes) as f64 / (1 << 20) as f64;
            if count == 1 {
                writeln!(f, "{what:<34}{:>7}{total:>14.1} MiB", "")
            } else {
                writeln!(f, "{what:<34}{:>7}{total:>14.1} MiB", format!("x {count}"))
            }
        };
        for (what, n_bytes) in &self.held {
            line(what, 1, *n_bytes)?;
        }
        for (what, count, n_bytes) in self.parts() {
            line(what, count, n_bytes)?;
        }
        line("scratch of the device", 1, self.scratch)?;
        if self.device > 0 {
            line("buffers of the device's own", 1, self.device)?;
        }
        line("total", 1, self.total_bytes())?;
        write!(
            f,
            "{} tokens, {} rows of logits at once; {} of {} layers run forward twice",
            self.max_tokens, self.head_rows, self.n_recomputed, self.config.n_layers
        )
    }
}

/// The most scratch that any product of the model takes.
fn largest_linear_scratch<D: Device>(
    device: &D,
    config: &ModelConfig,
    format: WeightFormat,
) -> usize {
    let hidden = config.hidden_size;
    let outer = match format {
        WeightFormat::Nf4 { .. } => WeightFormat::Dense,
        format => format,
    };
    [
        (format, config.q_size() + 2 * config.kv_size(), hidden),
        (format, hidden, config.q_size()),
        (format, 2 * config.intermediate_size, hidden),
        (format, hidden, config.intermediate_size),
        (outer, config.vocab_size, hidden),
    ]
    .into_iter()
    .map(|(format, out, inner)| device.linear_scratch_bytes(format, out, inner))
    .max()
    .unwrap_or(0)
}
