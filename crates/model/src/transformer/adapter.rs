//! Low-rank adapters of the linear maps (LoRA, arXiv 2106.09685; rsLoRA, arXiv 2312.03732).
//!
//! `y = x W^T + scale * (x A^T) B^T`, with A from a uniform distribution and B zero at first, so a
//! fresh adapter changes nothing. The maps that read the same input share one matrix of stacked A
//! rows, as their weights do: one product makes `x A^T` for all of them. There is no dropout and no
//! adapter of the embedding or the head.

use std::{collections::BTreeMap, fmt, ops::Range};

use temper_checkpoint::{
    ModelConfig, Projection,
    adapter::{Adapter as AdapterFile, LoraPair},
};

use super::{ModelError, Parameter, Parameters, Result};
use crate::{
    device::Device,
    random::uniform,
    tensor::{Tensor, View},
};

/// What an adapter changes and how strongly.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterConfig {
    /// Rank of every pair of matrices; at least 1.
    pub rank: usize,
    /// Numerator of the scale.
    pub alpha: f64,
    /// Whether the scale is `alpha / sqrt(rank)` (rsLoRA) instead of `alpha / rank`.
    pub rank_stabilised: bool,
    /// The projections that are adapted, in every layer.
    pub targets: Vec<Projection>,
}

impl AdapterConfig {
    /// The configuration of an adapter that was read from files.
    pub fn of_file(file: &AdapterFile) -> Self {
        AdapterConfig {
            rank: file.rank,
            alpha: file.alpha,
            rank_stabilised: file.rank_stabilised,
            targets: file.targets().into_iter().collect(),
        }
    }

    /// What the low-rank product is multiplied by.
    pub fn scale(&self) -> f32 {
        let rank = self.rank as f64;
        let divisor = if self.rank_stabilised {
            rank.sqrt()
        } else {
            rank
        };
        (self.alpha / divisor) as f32
    }

    /// The sum of ranks within each of a layer's groups, in the order of [`Group::ALL`].
    pub fn group_ranks(&self) -> [usize; 4] {
        Group::ALL.map(|group| self.targets_of(group).len() * self.rank)
    }

    /// The arrays of an adapter for a model, in the order in which [`Adapter`] holds them.
    pub fn parameters(&self, model: &ModelConfig) -> Vec<Parameter> {
        let mut entries = Vec::new();
        for layer in 0..model.n_layers {
            for group in Group::ALL {
                let targets = self.targets_of(group);
                if targets.is_empty() {
                    continue;
                }
                let parts = targets
                    .iter()
                    .map(|&target| {
                        let [_, cols] = model.projection_shape(target);
                        (part_name(layer, target, Side::A), vec![self.rank, cols])
                    })
                    .collect();
                entries.push(Parameter::new(parts, true));
                for target in targets {
                    let [rows, _] = model.projection_shape(target);
                    let name = part_name(layer, target, Side::B);
                    entries.push(Parameter::new(vec![(name, vec![rows, self.rank])], true));
                }
            }
        }
        entries
    }

    fn targets_of(&self, group: Group) -> Vec<Projection> {
        group
            .projections()
            .iter()
            .copied()
            .filter(|projection| self.targets.contains(projection))
            .collect()
    }

    fn check(&self) -> Result<()> {
        let reason = if self.rank == 0 {
            "the rank is 0".into()
        } else if self.targets.is_empty() {
            "no projection is named".into()
        } else if !(self.alpha.is_finite() && self.alpha > 0.0) {
            format!("alpha is {}", self.alpha)
        } else {
            return Ok(());
        };
        Err(ModelError::Input {
            operation: "make an adapter",
            reason,
        })
    }
}

/// Linear maps of a layer that read the same input and whose weights are one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Query, key and value.
    Qkv,
    /// Output of attention.
    O,
    /// Gate and up.
    GateUp,
    /// Down.
    Down,
}

impl Group {
    /// All, in the order of the computation.
    pub const ALL: [Group; 4] = [Group::Qkv, Group::O, Group::GateUp, Group::Down];

    /// Its projections, in the order of their rows.
    pub fn projections(self) -> &'static [Projection] {
        match self {
            Group::Qkv => &[Projection::Q, Projection::K, Projection::V],
            Group::O => &[Projection::O],
            Group::GateUp => &[Projection::Gate, Projection::Up],
            Group::Down => &[Projection::Down],
        }
    }
}

/// One of the two matrices of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// `[rank, in]`.
    A,
    /// `[out, rank]`.
    B,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::A => "lora_A",
            Side::B => "lora_B",
        })
    }
}

/// An adapter of a model, on its device.
#[derive(Debug)]
pub struct Adapter<D: Device> {
    /// What it changes.
    pub config: AdapterConfig,
    /// Its arrays with masters and gradients.
    pub parameters: Parameters<D::Storage>,
    /// Its pairs, one entry a layer.
    pub layers: Vec<LayerAdapter<D::Storage>>,
}

/// The adapters within one layer.
#[derive(Debug)]
pub struct LayerAdapter<S> {
    /// Of query, key and value.
    pub qkv: Option<GroupAdapter<S>>,
    /// Of the output of attention.
    pub o: Option<GroupAdapter<S>>,
    /// Of gate and up.
    pub gate_up: Option<GroupAdapter<S>>,
    /// Of the down projection.
    pub down: Option<GroupAdapter<S>>,
}

impl<S> LayerAdapter<S> {
    /// The adapters of a group, where there are any.
    pub fn group(&self, group: Group) -> Option<&GroupAdapter<S>> {
        match group {
            Group::Qkv => self.qkv.as_ref(),
            Group::O => self.o.as_ref(),
            Group::GateUp => self.gate_up.as_ref(),
            Group::Down => self.down.as_ref(),
        }
    }
}

/// The adapters of the maps of one group.
#[derive(Debug)]
pub struct GroupAdapter<S> {
    /// A matrices, stacked by rows: `[sum of ranks, in]`, of the activation type.
    pub a: Tensor<S>,
    /// Gradient of `a`, f32.
    pub d_a: Tensor<S>,
    /// The adapted maps, in the order of their columns.
    pub parts: Vec<AdapterPart<S>>,
    /// What the low-rank product is multiplied by.
    pub scale: f32,
}

/// The adapter of one map within its group.
#[derive(Debug)]
pub struct AdapterPart<S> {
    /// Which map.
    pub projection: Projection,
    /// Its columns of the group's output.
    pub columns: Range<usize>,
    /// Its rows of the stacked A.
    pub ranks: Range<usize>,
    /// `[out, rank]`, of the activation type.
    pub b: Tensor<S>,
    /// Gradient of `b`, f32.
    pub d_b: Tensor<S>,
}

impl<D: Device> Adapter<D> {
    /// A fresh adapter: A uniform in `±1 / sqrt(in)`, as PEFT draws it (Kaiming with a = sqrt 5),
    /// from a random sequence of its own; B zero.
    ///
    /// # Errors
    /// When the rank is 0, no projection is named, alpha is not positive, or memory is short.
    pub fn new(device: &D, model: &ModelConfig, config: &AdapterConfig, seed: u64) -> Result<Self> {
        let adapter = Self::zeros(device, model, config)?;
        let mut counter = 0u64;
        for (index, entry) in adapter.parameters.entries().iter().enumerate() {
            // Every A part is [rank, in], and B starts at zero.
            if !entry.parts[0].0.contains("lora_A") {
                continue;
            }
            let bound = 1.0 / (entry.parts[0].1[1] as f32).sqrt();
            let values: Vec<f32> = (0..entry.n_elements())
                .map(|i| bound * (2.0 * uniform(seed, counter + i as u64) - 1.0))
                .collect();
            counter += values.len() as u64;
            adapter.parameters.set(device, index, &values)?;
        }
        Ok(adapter)
    }

    /// An adapter that was read from files. Projections that it leaves out in some layers and has
    /// in others get pairs of zeros there.
    pub fn load(device: &D, model: &ModelConfig, file: &AdapterFile) -> Result<Self> {
        let adapter = Self::zeros(device, model, &AdapterConfig::of_file(file))?;
        adapter.refill(device, model, file)?;
        Ok(adapter)
    }

    /// Puts what was read from files into an adapter of the same configuration.
    ///
    /// # Errors
    /// When the file does not fit the model or the adapter; the adapter is then of no use.
    pub fn refill(&self, device: &D, model: &ModelConfig, file: &AdapterFile) -> Result<()> {
        file.check(model)?;
        device.fill_zero(self.parameters.masters())?;
        device.fill_zero(self.parameters.values())?;
        for (&(layer, projection), pair) in &file.tensors {
            self.set(device, layer, projection, Side::A, &pair.a)?;
            self.set(device, layer, projection, Side::B, &pair.b)?;
        }
        Ok(())
    }

    /// The masters as files hold them.
    pub fn to_file(&self, device: &D, base_model: Option<String>) -> Result<AdapterFile> {
        let mut tensors = BTreeMap::new();
        for layer in 0..self.layers.len() {
            for &projection in &self.config.targets {
                let get = |side| self.get(device, layer, projection, side);
                if let (Some(a), Some(b)) = (get(Side::A)?, get(Side::B)?) {
                    tensors.insert((layer, projection), LoraPair { a, b });
                }
            }
        }
        Ok(AdapterFile {
            rank: self.config.rank,
            alpha: self.config.alpha,
            rank_stabilised: self.config.rank_stabilised,
            base_model,
            tensors,
        })
    }

    /// An adapter of zeros, to be filled by [`Adapter::set`].
    pub fn zeros(device: &D, model: &ModelConfig, config: &AdapterConfig) -> Result<Self> {
        config.check()?;
        let parameters = Parameters::new(device, config.parameters(model))?;
        let mut next = 0;
        let mut take = || {
            let index = next;
            next += 1;
            (parameters.value(index), parameters.gradient(index))
        };
        let mut group = |group: Group| {
            let targets = config.targets_of(group);
            if targets.is_empty() {
                return None;
            }
            let (a, d_a) = take();
            let mut parts = Vec::new();
            let mut column = 0;
            for &projection in group.projections() {
                let [rows, _] = model.projection_shape(projection);
                if targets.contains(&projection) {
                    let (b, d_b) = take();
                    let rank = parts.len() * config.rank;
                    parts.push(AdapterPart {
                        projection,
                        columns: column..column + rows,
                        ranks: rank..rank + config.rank,
                        b,
                        d_b,
                    });
                }
                column += rows;
            }
            Some(GroupAdapter {
                a,
                d_a,
                parts,
                scale: config.scale(),
            })
        };
        let layers = (0..model.n_layers)
            .map(|_| LayerAdapter {
                qkv: group(Group::Qkv),
                o: group(Group::O),
                gate_up: group(Group::GateUp),
                down: group(Group::Down),
            })
            .collect();
        Ok(Adapter {
            config: config.clone(),
            parameters,
            layers,
        })
    }

    /// One matrix of a pair in f32, row-major; `None` where the projection is not adapted.
    pub fn get(
        &self,
        device: &D,
        layer: usize,
        projection: Projection,
        side: Side,
    ) -> Result<Option<Vec<f32>>> {
        let Some(range) = self.find(layer, projection, side) else {
            return Ok(None);
        };
        Ok(Some(
            device.download_f32(&self.parameters.masters().slice(range))?,
        ))
    }

    /// Overwrites one matrix of a pair.
    ///
    /// # Errors
    /// When the projection is not adapted, or the number of values is another.
    pub fn set(
        &self,
        device: &D,
        layer: usize,
        projection: Projection,
        side: Side,
        values: &[f32],
    ) -> Result<()> {
        let range = self
            .find(layer, projection, side)
            .ok_or_else(|| ModelError::Input {
                operation: "fill an adapter",
                reason: format!("{projection} of layer {layer} is not adapted"),
            })?;
        if values.len() != range.len() {
            return Err(ModelError::Input {
                operation: "fill an adapter",
                reason: format!(
                    "{} values for {projection} {side} of layer {layer}, which has {}",
                    values.len(),
                    range.len()
                ),
            });
        }
        device.upload_f32(values, &self.parameters.masters().slice(range.clone()))?;
        device.upload_f32(values, &self.parameters.values().slice(range))?;
        Ok(())
    }

    /// Where a matrix lies in the tensors of the parameters.
    fn find(&self, layer: usize, projection: Projection, side: Side) -> Option<Range<usize>> {
        let name = part_name(layer, projection, side);
        self.parameters.entries().iter().find_map(|entry| {
            let mut start = entry.range().start;
            for (part, shape) in &entry.parts {
                let len: usize = shape.iter().product();
                if *part == name {
                    return Some(start..start + len);
                }
                start += len;
            }
            None
        })
    }
}

impl<S: Send + Sync + fmt::Debug + 'static> GroupAdapter<S> {
    /// Sum of the ranks.
    pub fn rank(&self) -> usize {
        self.parts.last().map_or(0, |part| part.ranks.end)
    }

    /// `out += scale * (x A^T) B^T` in the columns of the adapted maps. `x` is `[n, in]`; `x_a`,
    /// `[n, sum of ranks]` of the activation type, receives `x A^T`, which the backward pass needs.
    pub fn forward<D: Device<Storage = S>>(
        &self,
        device: &D,
        x: &View<S>,
        x_a: &View<S>,
        out: &View<S>,
    ) -> Result<()> {
        self.reduce(device, x, x_a)?;
        for part in &self.parts {
            device.matmul(
                (&x_a.columns(part.ranks.clone()), false),
                (&part.b.view(part.ranks.len()), true),
                self.scale,
                &out.columns(part.columns.clone()),
                true,
            )?;
        }
        Ok(())
    }

    /// The first product of [`GroupAdapter::forward`]: `x_a = x A^T`.
    pub fn reduce<D: Device<Storage = S>>(
        &self,
        device: &D,
        x: &View<S>,
        x_a: &View<S>,
    ) -> Result<()> {
        Ok(device.matmul((x, false), (&self.a.view(x.cols()), true), 1.0, x_a, false)?)
    }

    /// Gradients of [`GroupAdapter::forward`]: those of A and B grow, and so does `d_x` where
    /// given. `x_a` is what the forward pass left; `d_x_a` is scratch of the same shape.
    pub fn backward<D: Device<Storage = S>>(
        &self,
        device: &D,
        x: &View<S>,
        x_a: &View<S>,
        d_out: &View<S>,
        d_x_a: &View<S>,
        d_x: Option<&View<S>>,
    ) -> Result<()> {
        for part in &self.parts {
            let rank = part.ranks.len();
            let d_out = d_out.columns(part.columns.clone());
            let x_a = x_a.columns(part.ranks.clone());
            device.matmul(
                (&d_out, true),
                (&x_a, false),
                self.scale,
                &part.d_b.view(rank),
                true,
            )?;
            device.matmul(
                (&d_out, false),
                (&part.b.view(rank), false),
                self.scale,
                &d_x_a.columns(part.ranks.clone()),
                false,
            )?;
        }
        device.matmul(
            (d_x_a, true),
            (x, false),
            1.0,
            &self.d_a.view(x.cols()),
            true,
        )?;
        if let Some(d_x) = d_x {
            device.matmul(
                (d_x_a, false),
                (&self.a.view(x.cols()), false),
                1.0,
                d_x,
                true,
            )?;
        }
        Ok(())
    }
}

/// The name of a matrix, in PEFT's words without its prefix.
fn part_name(layer: usize, projection: Projection, side: Side) -> String {
    format!("model.layers.{layer}.{}.{side}.weight", projection.path())
}
