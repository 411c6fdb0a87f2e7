//! One decoder layer, forward and backward, over the buffers of a plan.

use super::{
    Group, Layer, LayerAdapter, LayerGradients, Model, Result,
    buffers::{BackwardBuffers, LayerBuffers, WorkBuffers},
    split_gate_up, split_qkv,
};
use crate::{
    device::{Device, Segments},
    tensor::{Tensor, View},
};

/// A layer with what is trained of it, and the batch it runs on.
pub(super) struct LayerRun<'a, D: Device> {
    pub model: &'a Model<D>,
    pub layer: &'a Layer<D>,
    pub adapter: Option<&'a LayerAdapter<D::Storage>>,
    pub gradients: Option<&'a LayerGradients<D::Storage>>,
    pub positions: &'a Tensor<D::Storage>,
    pub segments: &'a Segments<D::Storage>,
    pub activations: &'a LayerBuffers<Tensor<D::Storage>>,
    pub work: &'a WorkBuffers<Tensor<D::Storage>>,
    /// Tokens of the batch.
    pub n: usize,
}

/// The buffers of a layer, cut to the batch and to the columns of their parts.
struct Activations<S> {
    qkv: View<S>,
    /// Queries and keys as one run of heads, after norm and rotation.
    rotated: View<S>,
    q: View<S>,
    k: View<S>,
    v: View<S>,
    attention: View<S>,
    lse: Tensor<S>,
    middle: View<S>,
    gate_up: View<S>,
}

impl<D: Device> LayerRun<'_, D> {
    /// Computes the residual stream after the layer, `out`, of that before it, `x`, both
    /// `[n, hidden]`, and leaves in the activations what the backward pass needs; without `out`,
    /// that alone.
    pub fn forward(&self, x: &View<D::Storage>, out: Option<&View<D::Storage>>) -> Result<()> {
        let device = &self.model.device;
        let config = &self.model.config;
        let acts = self.cut();
        let normed = self.rows(&self.work.normed, config.hidden_size);
        let product = self.rows(&self.work.product, config.intermediate_size);

        device.rms_norm(x, &self.layer.input_norm, config.rms_norm_eps, &normed)?;
        let bias = self.layer.qkv_bias.as_ref();
        device.linear(&normed, &self.layer.qkv, bias, &acts.qkv, false)?;
        self.adapt(Group::Qkv, &normed, &acts.qkv)?;
        if let (Some(q_norm), Some(k_norm)) = (&self.layer.q_norm, &self.layer.k_norm) {
            let [q, k, _] = split_qkv(&acts.qkv, self.model.heads());
            device.rms_norm(&q, q_norm, config.rms_norm_eps, &acts.q)?;
            device.rms_norm(&k, k_norm, config.rms_norm_eps, &acts.k)?;
        }
        self.rotate(&acts.rotated, false)?;
        device.attention(
            &acts.q,
            &acts.k,
            &acts.v,
            self.model.heads(),
            self.model.attention_scale(),
            self.segments,
            &acts.attention,
            &acts.lse,
        )?;
        device.linear_residual(&acts.attention, &self.layer.o, x, &acts.middle)?;
        self.adapt(Group::O, &acts.attention, &acts.middle)?;

        let post_norm = &self.layer.post_norm;
        device.rms_norm(&acts.middle, post_norm, config.rms_norm_eps, &normed)?;
        device.linear(&normed, &self.layer.gate_up, None, &acts.gate_up, false)?;
        self.adapt(Group::GateUp, &normed, &acts.gate_up)?;
        let down = self.adapter.and_then(|it| it.group(Group::Down));
        if out.is_none() && down.is_none() {
            return Ok(());
        }
        let [gate, up] = split_gate_up(&acts.gate_up);
        device.swiglu(&gate, &up, &product)?;
        match (out, down) {
            (Some(out), _) => {
                device.linear_residual(&product, &self.layer.down, &acts.middle, out)?;
                self.adapt(Group::Down, &product, out)
            }
            (None, Some(down)) => {
                down.reduce(device, &product, &self.x_a(Group::Down, down.rank()))
            }
            (None, None) => Ok(()),
        }
    }

    /// Turns `d`, the gradient at the layer's output, into that at its input `x`; gradients of what
    /// is trained grow. Gate and up are overwritten. Where nothing before the layer is trained,
    /// `to_input` is false and `d` is left half-way.
    pub fn backward(
        &self,
        backward: &BackwardBuffers<Tensor<D::Storage>>,
        x: &View<D::Storage>,
        d: &View<D::Storage>,
        to_input: bool,
    ) -> Result<()> {
        let device = &self.model.device;
        let config = &self.model.config;
        let heads = self.model.heads();
        let epsilon = config.rms_norm_eps;
        let acts = self.cut();
        let normed = self.rows(&self.work.normed, config.hidden_size);
        let d_normed = self.rows(&backward.d_normed, config.hidden_size);
        let gradient =
            |of: fn(&LayerGradients<D::Storage>) -> &Tensor<D::Storage>| self.gradients.map(of);

        let product = self.rows(&self.work.product, config.intermediate_size);
        let d_product = self.rows(&backward.d_product, config.intermediate_size);
        let [gate, up] = split_gate_up(&acts.gate_up);
        if self.learns(Group::Down) {
            device.swiglu(&gate, &up, &product)?;
        }
        self.linear_backward(Group::Down, backward, &product, d, Some(&d_product))?;
        device.swiglu_backward(&gate, &up, &d_product, &gate, &up)?;
        let d_gate_up = &acts.gate_up;
        if self.learns(Group::GateUp) {
            device.rms_norm(&acts.middle, &self.layer.post_norm, epsilon, &normed)?;
        }
        self.linear_backward(Group::GateUp, backward, &normed, d_gate_up, Some(&d_normed))?;
        device.rms_norm_backward(
            &acts.middle,
            &self.layer.post_norm,
            epsilon,
            &d_normed,
            d,
            true,
            gradient(|it| &it.post_norm),
        )?;

        let d_attention = self.rows(&backward.d_attention, config.q_size());
        let d_qkv = self.rows(&backward.d_qkv, config.q_size() + 2 * config.kv_size());
        let [d_q, d_k, d_v] = split_qkv(&d_qkv, heads);
        self.linear_backward(Group::O, backward, &acts.attention, d, Some(&d_attention))?;
        device.attention_backward(
            &acts.q,
            &acts.k,
            &acts.v,
            &acts.attention,
            &acts.lse,
            &d_attention,
            heads,
            self.model.attention_scale(),
            self.segments,
            &d_q,
            &d_k,
            &d_v,
        )?;
        self.rotate(&d_qkv.columns(0..config.q_size() + config.kv_size()), true)?;
        if let (Some(q_norm), Some(k_norm)) = (&self.layer.q_norm, &self.layer.k_norm) {
            let [q, k, _] = split_qkv(&acts.qkv, heads);
            let d_q_norm = self.gradients.and_then(|it| it.q_norm.as_ref());
            let d_k_norm = self.gradients.and_then(|it| it.k_norm.as_ref());
            device.rms_norm_backward(&q, q_norm, epsilon, &d_q, &d_q, false, d_q_norm)?;
            device.rms_norm_backward(&k, k_norm, epsilon, &d_k, &d_k, false, d_k_norm)?;
        }
        if let Some(d_bias) = self.gradients.and_then(|it| it.qkv_bias.as_ref()) {
            device.sum_rows(&d_qkv, d_bias)?;
        }
        if self.learns(Group::Qkv) {
            device.rms_norm(x, &self.layer.input_norm, epsilon, &normed)?;
        }
        let d_input = to_input.then_some(&d_normed);
        self.linear_backward(Group::Qkv, backward, &normed, &d_qkv, d_input)?;
        if to_input {
            device.rms_norm_backward(
                x,
                &self.layer.input_norm,
                epsilon,
                &d_normed,
                d,
                true,
                gradient(|it| &it.input_norm),
            )?;
        }
        Ok(())
    }

    /// Whether gradients of a group's weights or adapters need the group's input.
    fn learns(&self, group: Group) -> bool {
        self.gradients.is_some() || self.adapter.is_some_and(|it| it.group(group).is_some())
    }

    fn matrix(&self, group: Group) -> &D::Matrix {
        match group {
            Group::Qkv => &self.layer.qkv,
            Group::O => &self.layer.o,
            Group::GateUp => &self.layer.gate_up,
            Group::Down => &self.layer.down,
        }
    }

    /// Adds a group's adapters to what its matrix has made of `x`.
    fn adapt(&self, group: Group, x: &View<D::Storage>, out: &View<D::Storage>) -> Result<()> {
        let Some(adapter) = self.adapter.and_then(|it| it.group(group)) else {
            return Ok(());
        };
        let x_a = self.x_a(group, adapter.rank());
        adapter.forward(&self.model.device, x, &x_a, out)
    }

    /// Gradients of a linear map with its adapters; `d_x` is overwritten where given.
    fn linear_backward(
        &self,
        group: Group,
        backward: &BackwardBuffers<Tensor<D::Storage>>,
        x: &View<D::Storage>,
        d_out: &View<D::Storage>,
        d_x: Option<&View<D::Storage>>,
    ) -> Result<()> {
        let device = &self.model.device;
        if let Some(d_x) = d_x {
            device.linear_backward_input(d_out, self.matrix(group), d_x, false)?;
        }
        if let Some(gradients) = self.gradients {
            let d_weight = gradients.group(group).view(x.cols());
            device.matmul((d_out, true), (x, false), 1.0, &d_weight, true)?;
        }
        if let Some(adapter) = self.adapter.and_then(|it| it.group(group)) {
            let rank = adapter.rank();
            let x_a = self.x_a(group, rank);
            let d_x_a = self.rows(&backward.d_x_a, rank);
            adapter.backward(device, x, &x_a, d_out, &d_x_a, d_x)?;
        }
        Ok(())
    }

    fn rotate(&self, heads: &View<D::Storage>, inverse: bool) -> Result<()> {
        Ok(self.model.device.rotary(
            heads,
            self.model.config.head_dim,
            self.positions,
            &self.model.rope_table,
            inverse,
        )?)
    }

    /// The first rows of a buffer.
    fn rows(&self, buffer: &Tensor<D::Storage>, cols: usize) -> View<D::Storage> {
        buffer.slice(0..self.n * cols).view(cols)
    }

    fn x_a(&self, group: Group, rank: usize) -> View<D::Storage> {
        let buffer = self.activations.x_a[group as usize]
            .as_ref()
            .expect("the plan was checked against the adapter");
        self.rows(buffer, rank)
    }

    fn cut(&self) -> Activations<D::Storage> {
        let config = &self.model.config;
        let (q_size, kv_size) = (config.q_size(), config.kv_size());
        let qkv = self.rows(&self.activations.qkv, q_size + 2 * kv_size);
        let rotated = match &self.activations.rotated {
            Some(rotated) => self.rows(rotated, q_size + kv_size),
            None => qkv.columns(0..q_size + kv_size),
        };
        Activations {
            q: rotated.columns(0..q_size),
            k: rotated.columns(q_size..q_size + kv_size),
            v: qkv.columns(q_size + kv_size..q_size + 2 * kv_size),
            attention: self.rows(&self.activations.attention, q_size),
            lse: self.activations.lse.slice(0..self.n * config.n_heads),
            middle: self.rows(&self.activations.middle, config.hidden_size),
            gate_up: self.rows(&self.activations.gate_up, 2 * config.intermediate_size),
            qkv,
            rotated,
        }
    }
}
