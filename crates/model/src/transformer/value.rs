//! A value head: one number for each row, linear in the hidden state after the final norm.

use super::{Parameter, Parameters, Result};
use crate::{
    device::Device,
    random::uniform,
    tensor::{Tensor, View},
};

/// `value = hidden · weight + bias`, trained with its trunk or without.
#[derive(Debug)]
pub struct ValueHead<D: Device> {
    /// Weight `[1, hidden]`, which decays, and bias `[1]`, which does not.
    pub parameters: Parameters<D::Storage>,
    matrix: D::Matrix,
}

const WEIGHT: usize = 0;
const BIAS: usize = 1;

impl<D: Device> ValueHead<D> {
    /// A head with a uniform weight of variance `1 / (hidden + 1)`, so that first values are of
    /// the order of one (the scale of arXiv 2009.01325), and no bias.
    pub fn new(device: &D, hidden: usize, seed: u64) -> Result<Self> {
        let parameters = Parameters::new(device, Self::parameters_of(hidden))?;
        let bound = (3.0 / (hidden as f32 + 1.0)).sqrt();
        let weight: Vec<f32> = (0..hidden as u64)
            .map(|i| bound * (2.0 * uniform(seed, i) - 1.0))
            .collect();
        parameters.set(device, WEIGHT, &weight)?;
        let matrix = device.matrix_over(&parameters.value(WEIGHT), 1, hidden)?;
        Ok(ValueHead { parameters, matrix })
    }

    /// The arrays of a head.
    pub fn parameters_of(hidden: usize) -> Vec<Parameter> {
        vec![
            Parameter::new(vec![("value_head.weight".into(), vec![1, hidden])], true),
            Parameter::new(vec![("value_head.bias".into(), vec![1])], false),
        ]
    }

    /// Values, f32 `[n]`, of hidden states `[n, hidden]`.
    pub fn forward(
        &self,
        device: &D,
        hidden: &View<D::Storage>,
        values: &Tensor<D::Storage>,
    ) -> Result<()> {
        let bias = self.parameters.value(BIAS);
        let values = values.view(1);
        Ok(device.linear(hidden, &self.matrix, Some(&bias), &values, false)?)
    }

    /// Lets the gradients of the head and `d_hidden` grow, given those at the values, f32 `[n]`.
    pub fn backward(
        &self,
        device: &D,
        hidden: &View<D::Storage>,
        d_values: &Tensor<D::Storage>,
        d_hidden: &View<D::Storage>,
    ) -> Result<()> {
        let d_values = d_values.view(1);
        let d_weight = self.parameters.gradient(WEIGHT).view(hidden.cols());
        device.matmul((&d_values, true), (hidden, false), 1.0, &d_weight, true)?;
        device.sum_rows(&d_values, &self.parameters.gradient(BIAS))?;
        let weight = self.parameters.value(WEIGHT).view(hidden.cols());
        device.matmul((&d_values, false), (&weight, false), 1.0, d_hidden, true)?;
        Ok(())
    }
}
