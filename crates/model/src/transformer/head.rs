//! The end of the model: final norm, logits and log-probabilities of the supervised rows, chunk by
//! chunk, forward and backward. No more than a chunk of logits ever exists.

use std::ops::Range;

use super::{
    Policy, Result,
    buffers::{HeadBuffers, RowBuffers},
};
use crate::{
    device::Device,
    tensor::{Tensor, View},
};

/// The head with the batch it runs on.
pub(super) struct HeadRun<'a, D: Device> {
    pub policy: Policy<'a, D>,
    pub rows: &'a RowBuffers<Tensor<D::Storage>>,
    pub buffers: &'a HeadBuffers<Tensor<D::Storage>>,
    /// The residual stream after the last layer, `[n, hidden]`.
    pub residual: &'a View<D::Storage>,
    pub temperature: f32,
    pub entropies: bool,
}

impl<D: Device> HeadRun<'_, D> {
    /// Log-probabilities, log-sum-exps and, where wanted, entropies and values of the supervised
    /// rows `chunk`; their logits stay for [`HeadRun::backward`].
    pub fn forward(&self, chunk: Range<usize>) -> Result<()> {
        let model = self.policy.model;
        let device = &model.device;
        let cut = |tensor: &Tensor<D::Storage>| tensor.slice(chunk.clone());
        let hidden = self.cut(&self.buffers.hidden, &chunk);
        let normed = self.cut(&self.buffers.normed, &chunk);
        device.gather_rows(self.residual, &cut(&self.rows.rows), &hidden)?;
        device.rms_norm(&hidden, &model.norm, model.config.rms_norm_eps, &normed)?;
        let logits = self.logits(&chunk);
        device.linear(&normed, model.head_matrix(), None, &logits, false)?;
        let entropies = self.entropies.then(|| cut(&self.rows.entropies));
        device.log_softmax_gather(
            &logits,
            &cut(&self.rows.targets),
            self.temperature,
            &cut(&self.rows.logprobs),
            &cut(&self.rows.lse),
            entropies.as_ref(),
        )?;
        if let Some(value) = self.policy.value {
            value.forward(device, &normed, &cut(&self.rows.values))?;
        }
        Ok(())
    }

    /// Adds to `d_residual`, `[n, hidden]`, what the gradients at the chunk's log-probabilities and
    /// values come to. [`HeadRun::forward`] of the same chunk ran last.
    pub fn backward(&self, chunk: Range<usize>, d_residual: &View<D::Storage>) -> Result<()> {
        let model = self.policy.model;
        let device = &model.device;
        let cut = |tensor: &Tensor<D::Storage>| tensor.slice(chunk.clone());
        let hidden = self.cut(&self.buffers.hidden, &chunk);
        let normed = self.cut(&self.buffers.normed, &chunk);
        let logits = self.logits(&chunk);
        let d_logits = match &self.buffers.d_logits {
            Some(buffer) => {
                let vocabulary = model.config.vocab_size;
                buffer.slice(0..chunk.len() * vocabulary).view(vocabulary)
            }
            None => logits.clone(),
        };
        let d_hidden = self.cut(
            self.buffers
                .d_hidden
                .as_ref()
                .expect("the plan was made for gradients"),
            &chunk,
        );
        device.log_softmax_gather_backward_into(
            &logits,
            &cut(&self.rows.targets),
            self.temperature,
            &cut(&self.rows.lse),
            &cut(&self.rows.d_logprobs),
            &d_logits,
        )?;
        device.linear_backward_input(&d_logits, model.head_matrix(), &d_hidden, false)?;
        if let Some(full) = self.policy.full {
            let d_head = full.d_head.as_ref().unwrap_or(&full.d_embed);
            let d_head = d_head.view(model.config.hidden_size);
            device.matmul((&d_logits, true), (&normed, false), 1.0, &d_head, true)?;
        }
        if let Some(value) = self.policy.value {
            value.backward(device, &normed, &cut(&self.rows.d_values), &d_hidden)?;
        }
        device.rms_norm_backward(
            &hidden,
            &model.norm,
            model.config.rms_norm_eps,
            &d_hidden,
            &d_hidden,
            false,
            self.policy.full.map(|full| &full.d_norm),
        )?;
        device.scatter_add_rows(&d_hidden, &cut(&self.rows.rows), d_residual)?;
        Ok(())
    }

    fn cut(&self, buffer: &Tensor<D::Storage>, chunk: &Range<usize>) -> View<D::Storage> {
        let hidden = self.policy.model.config.hidden_size;
        buffer.slice(0..chunk.len() * hidden).view(hidden)
    }

    fn logits(&self, chunk: &Range<usize>) -> View<D::Storage> {
        let vocabulary = self.policy.model.config.vocab_size;
        let buffer = &self.buffers.logits;
        buffer.slice(0..chunk.len() * vocabulary).view(vocabulary)
    }
}
