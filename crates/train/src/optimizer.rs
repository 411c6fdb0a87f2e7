//! AdamW over sets of trained arrays, with moments on their device.
//!
//! Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2) for matrices, none
//! for norms and biases; gradients are clipped by their norm over all sets together.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use temper_model::{
    DType, Device, DeviceError, Tensor,
    device::{AdamW, Moments},
    transformer::{PARAMETER_ALIGNMENT, Parameters},
};

use crate::schedule::Schedule;

/// Settings of the optimizer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OptimizerConfig {
    /// Learning rate at its peak.
    pub learning_rate: f32,
    /// How the rate changes.
    pub schedule: Schedule,
    /// Decay of the first moment.
    pub beta1: f32,
    /// Decay of the second moment.
    pub beta2: f32,
    /// Added to the root of the second moment.
    pub epsilon: f32,
    /// Weight decay of matrices; multiplied by the learning rate.
    pub weight_decay: f32,
    /// The norm to which larger gradients are scaled down; none clips nothing.
    pub max_gradient_norm: Option<f32>,
    /// How moments are held.
    pub moments: MomentKind,
}

/// How moments are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MomentKind {
    /// 8 bytes an element.
    #[default]
    F32,
    /// 8-bit codes in blocks of 256 (arXiv 2110.02861), about 2 bytes an element.
    Int8,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        OptimizerConfig {
            learning_rate: 1e-4,
            schedule: Schedule::default(),
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.0,
            max_gradient_norm: Some(1.0),
            moments: MomentKind::F32,
        }
    }
}

impl MomentKind {
    /// Bytes of the moments of a set with tensors of `len` elements, for a memory plan.
    pub fn n_bytes(self, len: usize) -> usize {
        match self {
            MomentKind::F32 => 8 * len,
            MomentKind::Int8 => 2 * len + 8 * len.div_ceil(PARAMETER_ALIGNMENT),
        }
    }
}

/// Why the optimizer could not do its part.
#[derive(Debug, thiserror::Error)]
pub enum OptimizerError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The trained arrays are others than those the optimizer was made for.
    #[error("update: {got:?} elements in the sets where the optimizer was made for {expected:?}")]
    Sets {
        /// Elements of each set at first.
        expected: Vec<usize>,
        /// Elements of each set now.
        got: Vec<usize>,
    },
    /// A state does not fit.
    #[error("restore the optimizer: {reason}")]
    State {
        /// What does not fit, with values.
        reason: String,
    },
}

/// What an update did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UpdateReport {
    /// The number of the update, from 1.
    pub update: u64,
    /// Norm of all gradients before clipping.
    pub gradient_norm: f64,
    /// The learning rate that was used.
    pub learning_rate: f32,
    /// Whether weights changed: they do not where the norm is not finite.
    pub applied: bool,
}

/// AdamW's moments for some sets of trained arrays.
#[derive(Debug)]
pub struct Optimizer<D: Device> {
    device: D,
    config: OptimizerConfig,
    sets: Vec<MomentSet<D::Storage>>,
    update: u64,
    sum: Tensor<D::Storage>,
}

#[derive(Debug)]
struct MomentSet<S> {
    /// Elements of the set's tensors.
    len: usize,
    /// A range of the set, whether it decays, and its moments.
    groups: Vec<(Range<usize>, bool, Moments<S>)>,
}

/// Everything that an optimizer carries from one update to the next, exactly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimizerState {
    /// Updates done.
    pub update: u64,
    /// How moments are held.
    pub moments: MomentKind,
    /// The bytes of the moments' tensors, in the order of sets, groups and fields.
    pub tensors: Vec<Vec<u8>>,
}

impl<D: Device> Optimizer<D> {
    /// Moments of zero for these sets, which every update must be given in this order.
    pub fn new(
        device: &D,
        sets: &[&Parameters<D::Storage>],
        config: OptimizerConfig,
    ) -> Result<Self, OptimizerError> {
        let sets = sets
            .iter()
            .map(|set| {
                let groups = set
                    .ranges()
                    .into_iter()
                    .filter(|(range, _)| !range.is_empty())
                    .map(|(range, decays)| {
                        let moments = zero_moments(device, config.moments, range.len())?;
                        Ok((range, decays, moments))
                    })
                    .collect::<Result<_, DeviceError>>()?;
                Ok(MomentSet {
                    len: set.masters().len(),
                    groups,
                })
            })
            .collect::<Result<_, DeviceError>>()?;
        Ok(Optimizer {
            device: device.clone(),
            config,
            sets,
            update: 0,
            sum: device.zeros(DType::F32, 1)?,
        })
    }

    /// Updates done.
    pub fn n_updates(&self) -> u64 {
        self.update
    }

    /// One update from the gradients of the sets, which are cleared.
    ///
    /// A norm that is not finite leaves weights and moments as they are, and the update counts.
    /// Clipping scales by `max / (norm + 1e-6)` where that is below 1, as PyTorch does.
    pub fn update(
        &mut self,
        sets: &[&Parameters<D::Storage>],
    ) -> Result<UpdateReport, OptimizerError> {
        let expected: Vec<usize> = self.sets.iter().map(|set| set.len).collect();
        let got: Vec<usize> = sets.iter().map(|set| set.masters().len()).collect();
        if got != expected {
            return Err(OptimizerError::Sets { expected, got });
        }
        self.update += 1;
        self.device.fill_zero(&self.sum)?;
        for set in sets {
            self.device.sum_squares(set.gradients(), &self.sum)?;
        }
        let squares = self.device.download_f32(&self.sum)?;
        let gradient_norm = f64::from(squares[0]).sqrt();
        let learning_rate = (f64::from(self.config.learning_rate)
            * self.config.schedule.factor(self.update)) as f32;
        let applied = gradient_norm.is_finite();
        if applied {
            let clip = self.config.max_gradient_norm.map_or(1.0, |max| {
                (f64::from(max) / (gradient_norm + 1e-6)).min(1.0)
            });
            for (set, moments) in sets.iter().zip(&self.sets) {
                for (range, decays, moments) in &moments.groups {
                    let settings = AdamW {
                        learning_rate,
                        beta1: self.config.beta1,
                        beta2: self.config.beta2,
                        epsilon: self.config.epsilon,
                        weight_decay: if *decays {
                            self.config.weight_decay
                        } else {
                            0.0
                        },
                        update: self.update,
                        gradient_scale: clip as f32,
                    };
                    // Where activations are f32, the values are the masters themselves.
                    let copy =
                        (D::ACTIVATION != DType::F32).then(|| set.values().slice(range.clone()));
                    self.device.adamw(
                        &settings,
                        &set.gradients().slice(range.clone()),
                        &set.masters().slice(range.clone()),
                        moments,
                        copy.as_ref(),
                    )?;
                }
            }
        }
        for set in sets {
            self.device.fill_zero(set.gradients())?;
        }
        Ok(UpdateReport {
            update: self.update,
            gradient_norm,
            learning_rate,
            applied,
        })
    }

    /// What [`Optimizer::import`] takes back exactly. Masters belong to their sets.
    pub fn export(&self) -> Result<OptimizerState, OptimizerError> {
        let tensors = self
            .tensors()
            .map(|tensor| self.device.download_bytes(tensor))
            .collect::<Result<_, _>>()?;
        Ok(OptimizerState {
            update: self.update,
            moments: self.config.moments,
            tensors,
        })
    }

    /// Goes on where the state was taken.
    ///
    /// # Errors
    /// When the state is of other sets or moments are held in another way; nothing has changed
    /// then.
    pub fn import(&mut self, state: &OptimizerState) -> Result<(), OptimizerError> {
        if state.moments != self.config.moments {
            return Err(OptimizerError::State {
                reason: format!(
                    "moments are {:?} where {:?} are set",
                    state.moments, self.config.moments
                ),
            });
        }
        let expected: Vec<usize> = self.tensors().map(Tensor::n_bytes).collect();
        let got: Vec<usize> = state.tensors.iter().map(Vec::len).collect();
        if got != expected {
            return Err(OptimizerError::State {
                reason: format!("tensors of {got:?} bytes where {expected:?} are held"),
            });
        }
        for (tensor, bytes) in self.tensors().zip(&state.tensors) {
            self.device.upload_bytes(bytes, tensor)?;
        }
        self.update = state.update;
        Ok(())
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor<D::Storage>> {
        self.sets
            .iter()
            .flat_map(|set| &set.groups)
            .flat_map(|(_, _, moments)| match moments {
                Moments::F32 { first, second } => vec![first, second],
                Moments::Int8 {
                    first,
                    first_max,
                    second,
                    second_max,
                } => vec![first, first_max, second, second_max],
            })
    }
}

fn zero_moments<D: Device>(
    device: &D,
    kind: MomentKind,
    len: usize,
) -> Result<Moments<D::Storage>, DeviceError> {
    let n_blocks = len.div_ceil(PARAMETER_ALIGNMENT);
    Ok(match kind {
        MomentKind::F32 => Moments::F32 {
            first: device.zeros(DType::F32, len)?,
            second: device.zeros(DType::F32, len)?,
        },
        MomentKind::Int8 => Moments::Int8 {
            first: device.zeros(DType::U8, len)?,
            first_max: device.zeros(DType::F32, n_blocks)?,
            second: device.zeros(DType::U8, len)?,
            second_max: device.zeros(DType::F32, n_blocks)?,
        },
    })
}
