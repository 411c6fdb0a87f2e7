//! Attention over pages.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream};
use half::bf16;
use temper_cuda::attention::{AttentionKernels, PagedShape, Rows};

use super::{Heads, Noise, at, captured, errors, median_ms, poisoned};

struct Paged {
    shape: PagedShape,
    lines: Vec<i32>,
    positions: Vec<i32>,
    tables: Vec<i32>,
    q: Vec<bf16>,
    pages: [Vec<bf16>; 2],
    out: CudaSlice<bf16>,
    scratch: CudaSlice<f32>,
    device_pages: [CudaSlice<bf16>; 2],
    device_q: CudaSlice<bf16>,
    device_tables: [CudaSlice<i32>; 3],
}

impl Paged {
    /// Rows as (line, position). Slots of pages that no position reaches hold NaN when `holes`.
    fn new(
        stream: &Arc<CudaStream>,
        kernels: &AttentionKernels,
        (q_heads, kv_heads, head_dim): Heads,
        rows: &[(i32, i32)],
        max_pages: usize,
        holes: bool,
    ) -> Self {
        let n_lines = rows.iter().map(|row| row.0).max().unwrap() as usize + 1;
        let mut noise = Noise(77 + rows.len() as u64);
        let mut reach = vec![-1_i32; n_lines];
        for &(line, position) in rows {
            reach[line as usize] = reach[line as usize].max(position);
        }
        let n_pages: usize = reach.iter().map(|&p| (p / 16 + 1) as usize).sum::<usize>() + 1;
        // Page 0 belongs to nobody; the others are dealt out in a scrambled order.
        let mut order: Vec<i32> = (1..n_pages as i32).collect();
        for i in (1..order.len()).rev() {
            order.swap(i, noise.next() as usize % (i + 1));
        }
        let mut tables = vec![0; n_lines * max_pages];
        let mut taken = 0;
        let page_size = kv_heads * 16 * head_dim;
        let mut pages = [
            noise.fill(n_pages * page_size),
            noise.fill(n_pages * page_size),
        ];
        for (line, &last) in reach.iter().enumerate() {
            for page in 0..=last / 16 {
                let number = order[taken];
                taken += 1;
                tables[line * max_pages + page as usize] = number;
                for slot in 0..16 {
                    if holes && page * 16 + slot > last {
                        for head in 0..kv_heads {
                            let from = ((number as usize * kv_heads + head) * 16 + slot as usize)
                                * head_dim;
                            for pages in &mut pages {
                                pages[from..from + head_dim].fill(bf16::NAN);
                            }
                        }
                    }
                }
            }
        }
        let q = noise.fill(rows.len() * q_heads * head_dim);
        let shape = PagedShape {
            n_rows: rows.len(),
            q_heads,
            kv_heads,
            head_dim,
            max_pages,
            scale: 1.0 / (head_dim as f32).sqrt(),
        };
        let lines: Vec<i32> = rows.iter().map(|row| row.0).collect();
        let positions: Vec<i32> = rows.iter().map(|row| row.1).collect();
        let scratch = kernels.paged_scratch_bytes(&shape) / 4;
        Self {
            out: poisoned(stream, q.len()),
            scratch: stream.clone_htod(&vec![f32::NAN; scratch.max(1)]).unwrap(),
            device_pages: [0, 1].map(|i| stream.clone_htod(&pages[i]).unwrap()),
            device_q: stream.clone_htod(&q).unwrap(),
            device_tables: [&lines, &positions, &tables].map(|x| stream.clone_htod(x).unwrap()),
            shape,
            lines,
            positions,
            tables,
            q,
            pages,
        }
    }

    fn run(&self, stream: &Arc<CudaStream>, kernels: &AttentionKernels, chunks: Option<&[i32]>) {
        let stride = self.shape.q_heads * self.shape.head_dim;
        let [k, v] = [0, 1].map(|i| at(&self.device_pages[i], stream));
        let [line, position, table] = [0, 1, 2].map(|i| at(&self.device_tables[i], stream));
        let q = Rows {
            at: at(&self.device_q, stream),
            stride,
        };
        let out = Rows {
            at: at(&self.out, stream),
            stride,
        };
        match chunks {
            None => {
                let scratch = at(&self.scratch, stream);
                // SAFETY: buffers of these sizes live in `self`.
                unsafe {
                    kernels.paged(
                        stream,
                        &self.shape,
                        q,
                        k,
                        v,
                        out,
                        line,
                        position,
                        table,
                        scratch,
                    )
                }
                .unwrap();
            }
            Some(offsets) => {
                let device = stream.clone_htod(offsets).unwrap();
                let offsets_at = at(&device, stream);
                let n = offsets.len() - 1;
                // SAFETY: as above; `device` lives until the stream is synchronised.
                unsafe {
                    kernels.paged_chunks(
                        stream,
                        &self.shape,
                        q,
                        k,
                        v,
                        out,
                        line,
                        position,
                        table,
                        offsets_at,
                        n,
                    )
                }
                .unwrap();
                stream.synchronize().unwrap();
            }
        }
    }

    fn reference(&self) -> Vec<f64> {
        let PagedShape {
            q_heads,
            kv_heads,
            head_dim: d,
            max_pages,
            ..
        } = self.shape;
        let mut out = Vec::new();
        for (row, (&line, &position)) in self.lines.iter().zip(&self.positions).enumerate() {
            for head in 0..q_heads {
                let q = &self.q[(row * q_heads + head) * d..][..d];
                let slot = |pages: usize, i: i32| {
                    let page = self.tables[line as usize * max_pages + i as usize / 16] as usize;
                    let head = head / (q_heads / kv_heads);
                    &self.pages[pages][((page * kv_heads + head) * 16 + i as usize % 16) * d..][..d]
                };
                let s: Vec<f64> = (0..=position)
                    .map(|i| {
                        let dot: f64 = q
                            .iter()
                            .zip(slot(0, i))
                            .map(|(x, y)| x.to_f64() * y.to_f64())
                            .sum();
                        dot * f64::from(self.shape.scale)
                    })
                    .collect();
                let top = s.iter().copied().fold(f64::MIN, f64::max);
                let sum: f64 = s.iter().map(|x| (x - top).exp()).sum();
                let mut values = vec![0.0; d];
                for (i, x) in s.iter().enumerate() {
                    for (o, v) in values.iter_mut().zip(slot(1, i as i32)) {
                        *o += (x - top).exp() / sum * v.to_f64();
                    }
                }
                out.extend(values);
            }
        }
        out
    }

    fn judge(&self, stream: &Arc<CudaStream>, what: &str) -> usize {
        let reference = self.reference();
        let out = stream.clone_dtoh(&self.out).unwrap();
        let (norm, largest) = errors(
            out.iter().take(reference.len()).map(|x| x.to_f64()),
            &reference,
        );
        let ok = norm <= 1e-2 && largest <= 2e-2;
        let PagedShape {
            q_heads,
            kv_heads,
            head_dim,
            max_pages,
            ..
        } = self.shape;
        println!(
            "{} {what} ({q_heads}, {kv_heads}, {head_dim}) of {max_pages} pages  {norm:.1e} {largest:.1e}",
            if ok { "ok  " } else { "FAIL" }
        );
        usize::from(!ok)
    }
}

/// Checks rows and chunks of one size; the number of failures.
pub fn check(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    max_pages: usize,
) -> usize {
    let rows = [
        (0, 0),
        (1, 15),
        (2, 16),
        (3, 100),
        (2, 7),
        (4, -1),
        (5, 777),
        (6, 255),
    ];
    let case = Paged::new(stream, kernels, heads, &rows, max_pages, true);
    let splits = kernels.paged_splits(&case.shape);
    // Through a captured graph, as decoding runs it.
    captured(stream, || case.run(stream, kernels, None))
        .launch()
        .unwrap();
    let mut failures = case.judge(stream, &format!("paged rows, {splits} splits,"));
    let mut rows = Vec::new();
    let mut offsets = vec![0];
    for (line, past, length) in [(1, 0, 77), (0, 100, 200), (3, 33, 1), (2, 17, 128)] {
        rows.extend((past..past + length).map(|position| (line, position)));
        offsets.push(rows.len() as i32);
    }
    let case = Paged::new(stream, kernels, heads, &rows, max_pages, true);
    case.run(stream, kernels, Some(&offsets));
    failures += case.judge(stream, "paged chunks");
    failures
}

/// Times rows of one context length each, and once chunks.
pub fn time(
    stream: &Arc<CudaStream>,
    kernels: &AttentionKernels,
    heads: Heads,
    n_rows: usize,
    context: i32,
) {
    let rows: Vec<(i32, i32)> = (0..n_rows as i32).map(|line| (line, context - 1)).collect();
    let case = Paged::new(
        stream,
        kernels,
        heads,
        &rows,
        (context as usize).div_ceil(16),
        false,
    );
    let graph = captured(stream, || {
        (0..10).for_each(|_| case.run(stream, kernels, None))
    });
    let ms = median_ms(stream, 20, || graph.launch().unwrap()) / 10.0;
    let bytes = 4.0 * (n_rows * context as usize * heads.1 * heads.2) as f32;
    println!(
        "paged {heads:?} {n_rows} rows x {context}: {ms:.4} ms, {:.2} TB/s, {} splits",
        bytes / ms / 1e9,
        kernels.paged_splits(&case.shape)
    );
    if n_rows == 64 && heads.2 == 128 && context == 1536 {
        // Eight prompts, each with its last 512 tokens as one chunk.
        let mut rows = Vec::new();
        let mut offsets = vec![0];
        for line in 0..8 {
            rows.extend((1024..1536).map(|position| (line, position)));
            offsets.push(rows.len() as i32);
        }
        let case = Paged::new(stream, kernels, heads, &rows, 96, false);
        let ms = median_ms(stream, 10, || case.run(stream, kernels, Some(&offsets)));
        let flop = 4.0 * 8.0 * (512.0 * 1280.5) * (heads.0 * heads.2) as f32;
        println!(
            "paged chunks {heads:?} 8 x 512 after 1024: {ms:.3} ms, {:.0} TFLOP/s (with a copy and a wait)",
            flop / ms / 1e9
        );
    }
}
