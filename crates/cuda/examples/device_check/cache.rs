//! Attention over sequences and over the paged cache.

use temper_model::device::{Device, Heads, KvPages, PAGE_TOKENS, PagedRows, Result, Segments};
use temper_model::tensor::DType;

use crate::lab::{Lab, noise};
use crate::{Bench, case};

const HEADS: [(usize, usize, usize); 5] = [
    (9, 3, 64),
    (14, 2, 64),
    (32, 8, 128),
    (4, 4, 128),
    (16, 8, 128),
];

pub fn run_attention(bench: &mut Bench) {
    // The last is cuDNN's.
    for (n_query, n_kv, dim) in HEADS.into_iter().chain([(8, 2, 96)]) {
        for lengths in [&[1][..], &[77], &[5, 200, 107], &[300], &[64, 1, 129, 128]] {
            // cuDNN gets one token wrong, which the device refuses.
            if dim == 96 && lengths == [1] {
                continue;
            }
            case!(
                bench,
                format!("{n_query}/{n_kv}x{dim} {lengths:?}"),
                |lab| attention(&mut lab, Heads { n_query, n_kv, dim }, lengths)
            );
        }
    }
}

fn attention<D: Device>(lab: &mut Lab<'_, D>, heads: Heads, lengths: &[u32]) -> Result<()> {
    let device = lab.device;
    let (q_size, kv_size) = (heads.n_query * heads.dim, heads.n_kv * heads.dim);
    let mut starts = vec![0];
    for length in lengths {
        starts.push(starts[starts.len() - 1] + length);
    }
    let n = starts[starts.len() - 1] as usize;
    let segments = Segments {
        device_starts: lab.integers(&starts)?,
        starts,
    };
    let width = q_size + 2 * kv_size;
    let qkv = lab.activations(1, n, width, width)?;
    let split = |all: &temper_model::View<D::Storage>| {
        [
            all.columns(0..q_size),
            all.columns(q_size..q_size + kv_size),
            all.columns(q_size + kv_size..width),
        ]
    };
    let [q, k, v] = split(&qkv);
    let out = lab.activations(2, n, q_size, q_size)?;
    let lse = lab.floats(&noise(3, heads.n_query * n))?;
    let scale = 1.0 / (heads.dim as f32).sqrt();
    device.attention(&q, &k, &v, heads, scale, &segments, &out, &lse)?;
    lab.keep("out", &out, 6e-3)?;
    lab.keep_tensor("lse", &lse, 1e-4)?;
    let d_out = lab.activations(4, n, q_size, q_size)?;
    let d_qkv = lab.activations(5, n, width, width)?;
    let [d_q, d_k, d_v] = split(&d_qkv);
    device.attention_backward(
        &q, &k, &v, &out, &lse, &d_out, heads, scale, &segments, &d_q, &d_k, &d_v,
    )?;
    lab.keep_values("d_q", columns(device, &d_qkv, 0..q_size)?, 1e-2);
    lab.keep_values(
        "d_k",
        columns(device, &d_qkv, q_size..q_size + kv_size)?,
        1e-2,
    );
    lab.keep_values(
        "d_v",
        columns(device, &d_qkv, q_size + kv_size..width)?,
        1e-2,
    );
    Ok(())
}

fn columns<D: Device>(
    device: &D,
    view: &temper_model::View<D::Storage>,
    range: std::ops::Range<usize>,
) -> Result<Vec<f32>> {
    let all = device.download_f32(view.tensor())?;
    Ok(all
        .chunks(view.stride())
        .flat_map(|row| row[range.clone()].to_vec())
        .collect())
}

pub fn run(bench: &mut Bench) {
    for (n_query, n_kv, dim) in HEADS {
        let heads = Heads { n_query, n_kv, dim };
        // Each row is one token of a sequence: (sequence, first position, rows).
        for (what, runs) in [
            (
                "decode",
                &[(0, 0, 1), (1, 17, 1), (2, 15, 1), (3, 16, 1), (4, 250, 1)][..],
            ),
            ("prefill", &[(2, 0, 70)]),
            ("chunk", &[(1, 40, 33)]),
            (
                "mixed",
                &[(0, 5, 1), (1, 99, 1), (2, 0, 64), (3, 31, 20), (4, 200, 1)],
            ),
        ] {
            case!(
                bench,
                format!("{what} {n_query}/{n_kv}x{dim}"),
                |lab| paged(&mut lab, heads, runs)
            );
        }
    }
}

fn paged<D: Device>(lab: &mut Lab<'_, D>, heads: Heads, runs: &[(u32, u32, u32)]) -> Result<()> {
    let device = lab.device;
    let (n_sequences, max_pages) = (5, 17);
    let n_pages = n_sequences * max_pages;
    // Pages of a sequence lie scattered.
    let page_of = |sequence: u32, index: u32| (sequence * 17 + index) * 29 % n_pages as u32;
    let tables: Vec<u32> = (0..n_sequences as u32)
        .flat_map(|sequence| (0..max_pages as u32).map(move |index| (sequence, index)))
        .map(|(sequence, index)| page_of(sequence, index))
        .collect();
    let page_elements = heads.n_kv * PAGE_TOKENS * heads.dim;
    let cached = |seed| {
        let values = noise(seed, n_pages * page_elements);
        let tensor = device.zeros(D::ACTIVATION, values.len())?;
        device.upload_f32(&values, &tensor)?;
        Ok::<_, temper_model::DeviceError>(tensor)
    };
    let pages = KvPages {
        keys: cached(1)?,
        values: cached(2)?,
    };
    let mut rows = (Vec::new(), Vec::new(), Vec::new());
    let mut host_runs = Vec::new();
    for &(sequence, first, n) in runs {
        host_runs.push((rows.0.len() as u32, n, first + n - 1));
        for position in first..first + n {
            rows.0.push(sequence);
            rows.1.push(position);
            let page = page_of(sequence, position / PAGE_TOKENS as u32);
            rows.2
                .push(page * PAGE_TOKENS as u32 + position % PAGE_TOKENS as u32);
        }
    }
    let n = rows.0.len();
    if runs.iter().all(|run| run.2 == 1) {
        host_runs.clear();
    }
    let max_context = rows.1.iter().max().map_or(0, |&last| last as usize + 1);
    let paged_rows = PagedRows {
        n_rows: n,
        sequence: lab.integers(&rows.0)?,
        position: lab.integers(&rows.1)?,
        slot: lab.integers(&rows.2)?,
        block_tables: lab.integers(&tables)?,
        max_pages,
        max_context,
        runs: host_runs,
    };
    let (q_size, kv_size) = (heads.n_query * heads.dim, heads.n_kv * heads.dim);
    let width = q_size + 2 * kv_size;
    let qkv = lab.activations(4, n, width, width)?;
    let (k, v) = (
        qkv.columns(q_size..q_size + kv_size),
        qkv.columns(q_size + kv_size..width),
    );
    device.write_kv(&k, &v, heads, &paged_rows, &pages)?;
    let out = lab.activations(5, n, q_size, q_size)?;
    let scale = 1.0 / (heads.dim as f32).sqrt();
    device.paged_attention(
        &qkv.columns(0..q_size),
        heads,
        scale,
        &paged_rows,
        &pages,
        &out,
    )?;
    lab.keep("out", &out, 6e-3)?;
    device.copy_pages(&pages, heads, &[(0, 3), (7, 1)])?;
    lab.keep_tensor("keys", &pages.keys, 0.0)?;
    lab.keep_tensor("values", &pages.values, 0.0)?;
    debug_assert_eq!(paged_rows.slot.dtype(), DType::U32);
    Ok(())
}
