//! What the tests of the operations share: random operands, and gradients by central differences.

use crate::{
    device::{Device, Heads, KvPages, PAGE_TOKENS, PagedRows, Segments},
    random::uniform,
    tensor::{DType, Tensor, View},
};

use super::{Cpu, CpuMath, CpuStorage};

pub(super) fn cpu() -> Cpu {
    Cpu::new(2, CpuMath::Exact).unwrap()
}

/// Numbers in `[-1, 1)`.
pub(super) fn random(seed: u64, n: usize) -> Vec<f32> {
    (0..n as u64)
        .map(|i| 2.0 * uniform(seed, i) - 1.0)
        .collect()
}

pub(super) fn tensor(cpu: &Cpu, values: &[f32]) -> Tensor<CpuStorage> {
    let tensor = cpu.zeros(DType::F32, values.len()).unwrap();
    cpu.upload_f32(values, &tensor).unwrap();
    tensor
}

pub(super) fn numbers(cpu: &Cpu, values: &[u32]) -> Tensor<CpuStorage> {
    let tensor = cpu.zeros(DType::U32, values.len()).unwrap();
    cpu.upload_u32(values, &tensor).unwrap();
    tensor
}

pub(super) fn values(cpu: &Cpu, tensor: &Tensor<CpuStorage>) -> Vec<f32> {
    cpu.download_f32(tensor).unwrap()
}

pub(super) fn segments(cpu: &Cpu, starts: &[u32]) -> Segments<CpuStorage> {
    Segments {
        starts: starts.to_vec(),
        device_starts: numbers(cpu, starts),
    }
}

/// Compares `gradient` with central differences of `loss` at `x`, element by element.
///
/// The loss is computed in f32, so the step is large and the tolerance that of its square.
pub(super) fn check_gradient(x: &[f32], gradient: &[f32], mut loss: impl FnMut(&[f32]) -> f64) {
    assert_eq!(x.len(), gradient.len());
    let largest = gradient.iter().fold(0.0f32, |max, g| max.max(g.abs()));
    assert!(largest > 0.0, "a gradient of zeros proves nothing");
    let step = 1.0 / 128.0;
    let mut x = x.to_vec();
    for i in 0..x.len() {
        let centre = x[i];
        let mut at = |offset: f32| {
            x[i] = centre + offset;
            loss(&x)
        };
        // Two steps cancel the error of the square.
        let near = (at(step) - at(-step)) / f64::from(2.0 * step);
        let far = (at(2.0 * step) - at(-2.0 * step)) / f64::from(4.0 * step);
        x[i] = centre;
        let expected = (4.0 * near - far) / 3.0;
        let error = (f64::from(gradient[i]) - expected).abs() / f64::from(largest);
        assert!(error < 2e-3, "element {i}: {}, not {expected}", gradient[i]);
    }
}

/// The sum of products of two lists, in f64.
pub(super) fn inner(a: &[f32], b: &[f32]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| f64::from(*a) * f64::from(*b))
        .sum()
}

/// The cache of one sequence in shuffled pages, filled with `k` and `v`, and rows that attend to
/// it from the given positions on.
pub(super) struct Cache {
    pub pages: KvPages<CpuStorage>,
    pub rows: PagedRows<CpuStorage>,
}

pub(super) fn cache(
    cpu: &Cpu,
    heads: Heads,
    (k, v): (&View<CpuStorage>, &View<CpuStorage>),
    queries: std::ops::Range<usize>,
) -> Cache {
    let n = k.rows();
    let max_pages = n.div_ceil(PAGE_TOKENS) + 1;
    let len = (max_pages + 3) * heads.n_kv * PAGE_TOKENS * heads.dim;
    let pages = KvPages {
        keys: cpu.zeros(DType::F32, len).unwrap(),
        values: cpu.zeros(DType::F32, len).unwrap(),
    };
    // Sequence 1 of two, its pages in reverse order.
    let mut tables = vec![0u32; 2 * max_pages];
    for (i, page) in tables[max_pages..].iter_mut().enumerate() {
        *page = (max_pages + 2 - i) as u32;
    }
    let table = tables[max_pages..].to_vec();
    let rows_at = |positions: std::ops::Range<usize>| {
        let slots: Vec<u32> = positions
            .clone()
            .map(|p| table[p / PAGE_TOKENS] * PAGE_TOKENS as u32 + (p % PAGE_TOKENS) as u32)
            .collect();
        let positions: Vec<u32> = positions.map(|p| p as u32).collect();
        PagedRows {
            n_rows: positions.len(),
            sequence: numbers(cpu, &vec![1; positions.len()]),
            runs: vec![(0, positions.len() as u32, *positions.last().unwrap())],
            position: numbers(cpu, &positions),
            slot: numbers(cpu, &slots),
            block_tables: numbers(cpu, &tables),
            max_pages,
            max_context: n,
        }
    };
    cpu.write_kv(k, v, heads, &rows_at(0..n), &pages).unwrap();
    Cache {
        rows: rows_at(queries),
        pages,
    }
}
