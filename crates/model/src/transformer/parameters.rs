//! What is trained: values, f32 masters and f32 gradients, laid out side by side.
//!
//! All arrays of one kind lie in one tensor, so clearing gradients, taking their norm and updating
//! are few calls however many arrays there are. Each array starts at a multiple of 256 elements and
//! the gaps stay zero: blocks of 8-bit moments never span two arrays, and norms are not touched.

use std::ops::Range;

use super::Result;
use crate::{
    device::Device,
    tensor::{DType, Tensor},
};

/// Elements at multiples of which arrays start: the block of 8-bit optimizer states.
pub const PARAMETER_ALIGNMENT: usize = 256;

/// One trained array, maybe of several named parts that lie one after another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Names and shapes of the parts, in order.
    pub parts: Vec<(String, Vec<usize>)>,
    /// Whether weight decay applies: to matrices, not to norms and biases.
    pub decays: bool,
    range: Range<usize>,
}

impl Parameter {
    /// A parameter of these parts, to be placed by [`Parameters::new`].
    pub fn new(parts: Vec<(String, Vec<usize>)>, decays: bool) -> Self {
        Parameter {
            parts,
            decays,
            range: 0..0,
        }
    }

    /// Number of elements.
    pub fn n_elements(&self) -> usize {
        self.parts
            .iter()
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum()
    }

    /// Where the elements lie in the set's tensors.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

/// A set of trained arrays on a device.
#[derive(Debug)]
pub struct Parameters<S> {
    entries: Vec<Parameter>,
    n_decaying: usize,
    values: Tensor<S>,
    masters: Tensor<S>,
    gradients: Tensor<S>,
}

impl<S: Send + Sync + std::fmt::Debug + 'static> Parameters<S> {
    /// Places the entries, all zero; an entry keeps its index.
    ///
    /// Where activations are f32, the masters are the values themselves.
    pub fn new<D: Device<Storage = S>>(device: &D, mut entries: Vec<Parameter>) -> Result<Self> {
        let (len, n_decaying) = place(&mut entries);
        let masters = device.zeros(DType::F32, len)?;
        let values = match D::ACTIVATION {
            DType::F32 => masters.clone(),
            other => device.zeros(other, len)?,
        };
        Ok(Parameters {
            entries,
            n_decaying,
            values,
            masters,
            gradients: device.zeros(DType::F32, len)?,
        })
    }

    /// The entries, in the order they were given.
    pub fn entries(&self) -> &[Parameter] {
        &self.entries
    }

    /// Number of trained elements, without the gaps.
    pub fn n_elements(&self) -> usize {
        self.entries.iter().map(Parameter::n_elements).sum()
    }

    /// Bytes held.
    pub fn n_bytes(&self) -> usize {
        let values = match self.values.dtype() {
            DType::F32 => 0,
            _ => self.values.n_bytes(),
        };
        values + self.masters.n_bytes() + self.gradients.n_bytes()
    }

    /// Everything of the activation type, gaps among it.
    pub fn values(&self) -> &Tensor<S> {
        &self.values
    }

    /// Everything in f32, as the optimizer sees it.
    pub fn masters(&self) -> &Tensor<S> {
        &self.masters
    }

    /// The gradients, f32; they grow until [`Parameters::clear_gradients`].
    pub fn gradients(&self) -> &Tensor<S> {
        &self.gradients
    }

    /// The two ranges of the tensors: what decays, then what does not.
    pub fn ranges(&self) -> [(Range<usize>, bool); 2] {
        [
            (0..self.n_decaying, true),
            (self.n_decaying..self.masters.len(), false),
        ]
    }

    /// Entry `index`, of the activation type.
    pub fn value(&self, index: usize) -> Tensor<S> {
        self.values.slice(self.entries[index].range())
    }

    /// Entry `index` in f32.
    pub fn master(&self, index: usize) -> Tensor<S> {
        self.masters.slice(self.entries[index].range())
    }

    /// The gradient of entry `index`, f32.
    pub fn gradient(&self, index: usize) -> Tensor<S> {
        self.gradients.slice(self.entries[index].range())
    }

    /// Writes an entry's master, and its value rounded from it.
    pub fn set<D: Device<Storage = S>>(
        &self,
        device: &D,
        index: usize,
        values: &[f32],
    ) -> Result<()> {
        device.upload_f32(values, &self.master(index))?;
        if self.values.dtype() != DType::F32 {
            device.upload_f32(values, &self.value(index))?;
        }
        Ok(())
    }

    /// Writes all masters, gaps among them, from bytes of [`Parameters::export`], and the values.
    pub fn import<D: Device<Storage = S>>(&self, device: &D, bytes: &[u8]) -> Result<()> {
        if bytes.len() != self.masters.n_bytes() {
            return Err(super::ModelError::Input {
                operation: "restore parameters",
                reason: format!(
                    "{} bytes where {} are held",
                    bytes.len(),
                    self.masters.n_bytes()
                ),
            });
        }
        device.upload_bytes(bytes, &self.masters)?;
        if self.values.dtype() != DType::F32 && !self.masters.is_empty() {
            let len = self.masters.len();
            device.copy(&self.masters.view(len), &self.values.view(len))?;
        }
        Ok(())
    }

    /// The bytes of all masters, which [`Parameters::import`] takes back exactly.
    pub fn export<D: Device<Storage = S>>(&self, device: &D) -> Result<Vec<u8>> {
        Ok(device.download_bytes(&self.masters)?)
    }

    /// Sets all gradients to zero.
    pub fn clear_gradients<D: Device<Storage = S>>(&self, device: &D) -> Result<()> {
        Ok(device.fill_zero(&self.gradients)?)
    }
}

/// Bytes that a set of these entries takes on a device of this activation type, before it is made:
/// values, masters and gradients.
pub fn parameter_bytes(entries: &[Parameter], activation: DType) -> usize {
    let (len, _) = place(&mut entries.to_vec());
    let per_element = match activation {
        DType::F32 => 8,
        other => 8 + other.size(),
    };
    len * per_element
}

/// Gives each entry its range, the decaying ones first; returns the length of the tensors and of
/// their decaying beginning.
fn place(entries: &mut [Parameter]) -> (usize, usize) {
    let mut end = 0;
    let mut n_decaying = 0;
    for decays in [true, false] {
        for entry in entries.iter_mut().filter(|entry| entry.decays == decays) {
            let len = entry.n_elements();
            entry.range = end..end + len;
            end = (end + len).next_multiple_of(PARAMETER_ALIGNMENT);
        }
        if decays {
            n_decaying = end;
        }
    }
    (end, n_decaying)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_start_at_block_bounds_and_decaying_ones_come_first() {
        let entry = |n: usize, decays| Parameter::new(vec![("x".into(), vec![n])], decays);
        let mut entries = vec![
            entry(300, false),
            entry(256, true),
            entry(1, true),
            entry(5, false),
        ];
        assert_eq!(place(&mut entries), (1280, 512));
        let ranges: Vec<_> = entries.iter().map(Parameter::range).collect();
        assert_eq!(ranges, [512..812, 0..256, 256..257, 1024..1029]);
    }
}
