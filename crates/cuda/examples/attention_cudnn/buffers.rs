//! Device memory for one shape, filled with reproducible values.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, result};
use half::bf16;
use temper_cuda::cudnn::{
    AttentionPlan, AttentionShape, BackwardPointers, ForwardPointers, Packing,
};

/// A bf16 that is not a number: what rows that a run must not touch are filled with.
pub const CANARY: u16 = 0x7fc1;

/// An operand inside a buffer: where its first element lies, its row stride, its heads.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    stride: usize,
    heads: usize,
}

/// Inputs and outputs of one shape: queries, keys and values share a buffer if rows are fused.
pub struct Buffers {
    _inputs: [CudaSlice<u16>; 3],
    gradients: [CudaSlice<u16>; 3],
    pub out: CudaSlice<u16>,
    pub lse: CudaSlice<f32>,
    pub forward: ForwardPointers,
    pub backward: BackwardPointers,
    /// Held for the addresses above.
    _held: (CudaSlice<u16>, CudaSlice<u8>, CudaSlice<u8>),
}

fn places(shape: &AttentionShape) -> [Place; 3] {
    let (query, key_value) = (shape.query_heads, shape.key_value_heads);
    let fused = shape.strides.q != query * shape.head_dim;
    let at = |heads_before: usize| {
        if fused {
            heads_before * shape.head_dim
        } else {
            0
        }
    };
    [
        Place {
            start: 0,
            stride: shape.strides.q,
            heads: query,
        },
        Place {
            start: at(query),
            stride: shape.strides.k,
            heads: key_value,
        },
        Place {
            start: at(query + key_value),
            stride: shape.strides.v,
            heads: key_value,
        },
    ]
}

/// Lays `[tokens, heads, dim]` values into a buffer of `size`, canaries elsewhere.
fn lay(values: &[f32], place: Place, dim: usize, buffer: &mut [u16]) {
    for (token, row) in values.chunks_exact(place.heads * dim).enumerate() {
        let at = place.start + token * place.stride;
        for (cell, &value) in buffer[at..].iter_mut().zip(row) {
            *cell = bf16::from_f32(value).to_bits();
        }
    }
}

fn take(buffer: &[u16], place: Place, dim: usize, tokens: Range<usize>) -> Vec<u16> {
    tokens
        .flat_map(|token| {
            let at = place.start + token * place.stride;
            buffer[at..at + place.heads * dim].iter().copied()
        })
        .collect()
}

impl Buffers {
    /// Fills inputs with `values` (queries, keys, values, output's gradient; dense), outputs
    /// with canaries and the workspace with ones.
    pub fn new(
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        plan: &AttentionPlan,
        lengths: &[usize],
        values: &[Vec<f32>; 4],
    ) -> Result<Self, Box<dyn Error>> {
        let places = places(shape);
        let fused = places[1].start > 0;
        let dim = shape.head_dim;
        let mut hosts = places.map(|place| vec![CANARY; shape.tokens * place.stride]);
        for (i, &place) in places.iter().enumerate() {
            lay(
                &values[i],
                place,
                dim,
                &mut hosts[if fused { 0 } else { i }],
            );
        }
        let row = shape.query_heads * dim;
        let dense = Place {
            start: 0,
            stride: row,
            heads: shape.query_heads,
        };
        let mut d_out = vec![CANARY; shape.tokens * row];
        lay(&values[3], dense, dim, &mut d_out);
        let inputs = [
            stream.clone_htod(&hosts[0])?,
            stream.clone_htod(&hosts[1])?,
            stream.clone_htod(&hosts[2])?,
        ];
        for host in &mut hosts {
            host.fill(CANARY);
        }
        let gradients = [
            stream.clone_htod(&hosts[0])?,
            stream.clone_htod(&hosts[1])?,
            stream.clone_htod(&hosts[2])?,
        ];
        let out = stream.clone_htod(&vec![CANARY; shape.tokens * row])?;
        let d_out = stream.clone_htod(&d_out)?;
        let lse = stream.clone_htod(&vec![f32::NAN; shape.lse_elements()])?;
        // Not zeros, so that a kernel that counts on zeros shows.
        let bytes = plan.workspace_bytes().max(256);
        // SAFETY: the memory is written before it is read.
        let workspace = unsafe {
            let workspace = stream.alloc::<u8>(bytes)?;
            let address = workspace.device_ptr(stream).0;
            result::memset_d8_async(address, 0xff, bytes, stream.cu_stream())?;
            workspace
        };
        let index = match shape.packing {
            Packing::Single => stream.clone_htod(&[0_u8; 16])?,
            Packing::Packed { .. } => stream.clone_htod(&plan.index(lengths)?)?,
        };
        let address = |slices: &[CudaSlice<u16>; 3], i: usize| {
            let base = slices[if fused { 0 } else { i }].device_ptr(stream).0;
            base + 2 * places[i].start as u64
        };
        let index_address = match shape.packing {
            Packing::Single => 0,
            Packing::Packed { .. } => index.device_ptr(stream).0,
        };
        let forward = ForwardPointers {
            q: address(&inputs, 0),
            k: address(&inputs, 1),
            v: address(&inputs, 2),
            out: out.device_ptr(stream).0,
            lse: lse.device_ptr(stream).0,
            workspace: workspace.device_ptr(stream).0,
            index: index_address,
        };
        let backward = BackwardPointers {
            q: forward.q,
            k: forward.k,
            v: forward.v,
            out: forward.out,
            lse: forward.lse,
            d_out: d_out.device_ptr(stream).0,
            dq: address(&gradients, 0),
            dk: address(&gradients, 1),
            dv: address(&gradients, 2),
            workspace: forward.workspace,
            index: index_address,
        };
        stream.synchronize()?;
        Ok(Self {
            _inputs: inputs,
            gradients,
            out,
            lse,
            forward,
            backward,
            _held: (d_out, workspace, index),
        })
    }

    /// The gradients on the host, one dense `[tokens, heads, dim]` per operand.
    pub fn gradients(
        &self,
        stream: &Arc<CudaStream>,
        shape: &AttentionShape,
        tokens: Range<usize>,
    ) -> Result<Vec<Vec<u16>>, Box<dyn Error>> {
        let places = places(shape);
        let fused = places[1].start > 0;
        let mut taken = Vec::new();
        for (i, &place) in places.iter().enumerate() {
            let host = stream.clone_dtoh(&self.gradients[if fused { 0 } else { i }])?;
            taken.push(take(&host, place, shape.head_dim, tokens.clone()));
        }
        Ok(taken)
    }
}

/// Reproducible values that bf16 holds exactly, roughly normal with unit variance.
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1_u32 << 24) as f32 - 0.5
    };
    let period = count.min(1 << 20);
    let first: Vec<f32> = (0..period)
        .map(|_| bf16::from_f32((next() + next() + next() + next()) * 1.732).to_f32())
        .collect();
    first.iter().copied().cycle().take(count).collect()
}

/// Queries, keys, values and the output's gradient for `rows` tokens, each dense.
pub fn inputs(shape: &AttentionShape, rows: usize) -> [Vec<f32>; 4] {
    let (query, key_value) = (
        shape.query_heads * shape.head_dim,
        shape.key_value_heads * shape.head_dim,
    );
    [
        random(1, rows * query),
        random(2, rows * key_value),
        random(3, rows * key_value),
        random(4, rows * query),
    ]
}
