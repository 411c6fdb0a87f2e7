//! Times the processor's operations at the shapes of SmolLM2-135M: a roofline table.
//!
//!     cargo run --release -p temper-model --example cpu_ops [threads] [name]
//!
//! Columns: operation, rows, microseconds of processor time of the calling thread (the median of
//! some runs; with one thread this is robust against other load), GFLOP/s, GB/s of operands.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::borrow::Cow;

use temper_checkpoint::tensor::{Encoding, TensorView};
use temper_model::{
    DType, Device, Tensor, View,
    cpu::{Cpu, CpuMath, CpuStorage},
    device::{
        AdamW, Draws, Heads, KvPages, Moments, PAGE_TOKENS, PagedRows, Segments, WeightFormat,
    },
    random::uniform,
};

const HIDDEN: usize = 576;
const INNER: usize = 1536;
const VOCABULARY: usize = 49_152;
const HEADS: Heads = Heads {
    n_query: 9,
    n_kv: 3,
    dim: 64,
};

struct Bench {
    cpu: Cpu,
    filter: String,
}

/// Seconds that the calling thread has run.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for writing.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

impl Bench {
    fn time(&self, name: &str, rows: usize, flops: f64, bytes: f64, mut run: impl FnMut()) {
        if !name.contains(&self.filter) {
            return;
        }
        run();
        let mut seconds = Vec::new();
        let start = thread_seconds();
        while seconds.len() < 3 || (thread_seconds() - start < 0.2 && seconds.len() < 200) {
            let before = thread_seconds();
            run();
            seconds.push(thread_seconds() - before);
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[seconds.len() / 2];
        println!(
            "{name:<34} {rows:>5} {:>10.1} us {:>8.1} GFLOP/s {:>7.1} GB/s",
            median * 1e6,
            flops / median * 1e-9,
            bytes / median * 1e-9
        );
    }

    fn random(&self, n: usize) -> Tensor<CpuStorage> {
        let values: Vec<f32> = (0..n as u64).map(|i| uniform(1, i) - 0.5).collect();
        let tensor = self.cpu.zeros(DType::F32, n).unwrap();
        self.cpu.upload_f32(&values, &tensor).unwrap();
        tensor
    }

    fn matrix(&self, rows: usize, cols: usize) -> View<CpuStorage> {
        self.random(rows * cols).view(cols)
    }

    fn numbers(&self, values: &[u32]) -> Tensor<CpuStorage> {
        let tensor = self.cpu.zeros(DType::U32, values.len()).unwrap();
        self.cpu.upload_u32(values, &tensor).unwrap();
        tensor
    }
}

/// Weights whose bytes are made up: small scales, any codes.
fn weights(encoding: Encoding, rows: usize, cols: usize) -> TensorView<'static> {
    let n_bytes = encoding.row_bytes(cols).unwrap() * rows;
    let mut bytes: Vec<u8> = (0..n_bytes as u64)
        .map(|i| (uniform(2, i) * 256.0) as u8)
        .collect();
    match encoding {
        Encoding::F32 => {
            for (i, bytes) in bytes.chunks_exact_mut(4).enumerate() {
                bytes.copy_from_slice(&(uniform(3, i as u64) - 0.5).to_le_bytes());
            }
        }
        _ => {
            for block in bytes.chunks_exact_mut(encoding.block_bytes()) {
                block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes());
                if encoding == Encoding::Q4_1 {
                    block[2..4].copy_from_slice(&half::f16::from_f32(-0.08).to_le_bytes());
                }
            }
        }
    }
    TensorView {
        name: "w".into(),
        shape: vec![rows, cols],
        encoding,
        bytes: Cow::Owned(bytes),
    }
}

fn linear(bench: &Bench, name: &str, encoding: Encoding, format: WeightFormat, rows: &[usize]) {
    for (n_out, n_in) in [(2 * INNER, HIDDEN), (HIDDEN, INNER), (VOCABULARY, HIDDEN)] {
        let label = format!("linear {name} {n_in}x{n_out}");
        if !label.contains(&bench.filter) {
            continue;
        }
        let matrix = bench
            .cpu
            .matrix(&[weights(encoding, n_out, n_in)], format)
            .unwrap();
        let n_bytes = bench.cpu.matrix_bytes(&matrix) as f64;
        for &n in rows {
            if n > 16 && n_out == VOCABULARY {
                continue;
            }
            let (x, out) = (bench.matrix(n, n_in), bench.matrix(n, n_out));
            let flops = 2.0 * (n * n_in * n_out) as f64;
            bench.time(&label, n, flops, n_bytes, || {
                bench.cpu.linear(&x, &matrix, None, &out, false).unwrap();
            });
            if n > 16 {
                let label = format!("linear backward {name} {n_in}x{n_out}");
                bench.time(&label, n, flops, n_bytes, || {
                    bench
                        .cpu
                        .linear_backward_input(&out, &matrix, &x, false)
                        .unwrap();
                });
            }
        }
    }
}

fn products(bench: &Bench) {
    let n = 512;
    for (n_out, n_in) in [(2 * INNER, HIDDEN), (HIDDEN, INNER)] {
        let (x, d_out) = (bench.matrix(n, n_in), bench.matrix(n, n_out));
        let d_w = bench.matrix(n_out, n_in);
        let flops = 2.0 * (n * n_in * n_out) as f64;
        let label = format!("weight gradient {n_in}x{n_out}");
        bench.time(&label, n, flops, 0.0, || {
            bench
                .cpu
                .matmul((&d_out, true), (&x, false), 1.0, &d_w, true)
                .unwrap();
        });
    }
}

fn attention(bench: &Bench) {
    for n in [512, 2048] {
        let starts = vec![0, n as u32];
        let segments = Segments {
            device_starts: bench.numbers(&starts),
            starts,
        };
        let qkv = bench.matrix(n, 15 * 64);
        let (q, k, v) = (
            qkv.columns(0..576),
            qkv.columns(576..768),
            qkv.columns(768..960),
        );
        let (out, lse) = (bench.matrix(n, 576), bench.random(9 * n));
        let flops = 2.0 * (n * n * 576) as f64;
        bench.time("attention", n, flops, 0.0, || {
            bench
                .cpu
                .attention(&q, &k, &v, HEADS, 0.125, &segments, &out, &lse)
                .unwrap();
        });
        let d_out = bench.matrix(n, 576);
        let d_qkv = bench.matrix(n, 15 * 64);
        let (d_q, d_k) = (d_qkv.columns(0..576), d_qkv.columns(576..768));
        let d_v = d_qkv.columns(768..960);
        bench.time("attention backward", n, 2.5 * flops, 0.0, || {
            bench
                .cpu
                .attention_backward(
                    &q, &k, &v, &out, &lse, &d_out, HEADS, 0.125, &segments, &d_q, &d_k, &d_v,
                )
                .unwrap();
        });
    }
    for context in [128usize, 1024] {
        let n_pages = context.div_ceil(PAGE_TOKENS);
        let pages = KvPages {
            keys: bench.random(n_pages * 3 * PAGE_TOKENS * 64),
            values: bench.random(n_pages * 3 * PAGE_TOKENS * 64),
        };
        let tables: Vec<u32> = (0..n_pages as u32).collect();
        let rows = PagedRows {
            n_rows: 1,
            sequence: bench.numbers(&[0]),
            position: bench.numbers(&[context as u32 - 1]),
            slot: bench.numbers(&[context as u32 - 1]),
            block_tables: bench.numbers(&tables),
            max_pages: n_pages,
            max_context: context,
            runs: Vec::new(),
        };
        let (q, out) = (bench.matrix(1, 576), bench.matrix(1, 576));
        let bytes = (context * 2 * 192 * 4) as f64;
        let flops = (4 * context * 576) as f64;
        bench.time(
            &format!("cached attention of {context}"),
            1,
            flops,
            bytes,
            || {
                bench
                    .cpu
                    .paged_attention(&q, HEADS, 0.125, &rows, &pages, &out)
                    .unwrap();
            },
        );
    }
}

fn rest(bench: &Bench) {
    let cpu = &bench.cpu;
    for n in [1, 512] {
        let (x, y) = (bench.matrix(n, HIDDEN), bench.matrix(n, HIDDEN));
        let (sum, weight) = (bench.matrix(n, HIDDEN), bench.random(HIDDEN));
        let moved = |n_matrices: usize| (n * HIDDEN * 4 * n_matrices) as f64;
        bench.time("rms_norm", n, 0.0, moved(2), || {
            cpu.rms_norm(&x, &weight, 1e-5, &y).unwrap();
        });
        bench.time("add_rms_norm", n, 0.0, moved(4), || {
            cpu.add_rms_norm(&x, &sum, &weight, 1e-5, &y).unwrap();
        });
        bench.time("rms_norm_backward", n, 0.0, moved(3), || {
            cpu.rms_norm_backward(
                &x,
                &weight,
                1e-5,
                &y,
                &sum,
                false,
                Some(&weight_gradient(bench)),
            )
            .unwrap();
        });
        let (positions, table) = (bench.numbers(&vec![7; n]), bench.random(64 * 64));
        bench.time("rotary", n, 0.0, moved(2), || {
            cpu.rotary(&x, 64, &positions, &table, false).unwrap();
        });
        let both = bench.matrix(n, 2 * INNER);
        let (gate, up) = (both.columns(0..INNER), both.columns(INNER..2 * INNER));
        let inner = bench.matrix(n, INNER);
        let moved = (n * INNER * 12) as f64;
        bench.time("swiglu", n, 0.0, moved, || {
            cpu.swiglu(&gate, &up, &inner).unwrap()
        });
        bench.time("swiglu_backward", n, 0.0, moved, || {
            cpu.swiglu_backward(&gate, &up, &inner, &gate, &up).unwrap();
        });
    }
    let n = 64;
    let logits = bench.matrix(n, VOCABULARY);
    let targets = bench.numbers(&vec![5; n]);
    let (logprob, lse) = (bench.random(n), bench.random(n));
    let bytes = (n * VOCABULARY * 4) as f64;
    bench.time("log_softmax_gather", n, 0.0, bytes, || {
        cpu.log_softmax_gather(&logits, &targets, 1.0, &logprob, &lse, None)
            .unwrap();
    });
    bench.time("log_softmax_gather_backward", n, 0.0, 2.0 * bytes, || {
        cpu.log_softmax_gather_backward(&logits, &targets, 1.0, &lse, &logprob)
            .unwrap();
    });
    let one = |value: f32| {
        let tensor = cpu.zeros(DType::F32, 1).unwrap();
        cpu.upload_f32(&[value], &tensor).unwrap();
        tensor
    };
    for (name, temperature, top_p) in [
        ("greedy", 0.0, 1.0),
        ("plain", 1.0, 1.0),
        ("top_p", 1.0, 0.9),
    ] {
        let draws = Draws {
            temperature: one(temperature),
            top_k: bench.numbers(&[0]),
            top_p: one(top_p),
            min_p: one(0.0),
            seed: bench.numbers(&[1, 2]),
            draw: bench.numbers(&[3]),
            token: bench.numbers(&[0]),
            logprob: one(0.0),
            raw_logprob: one(0.0),
        };
        let bytes = (VOCABULARY * 4) as f64;
        bench.time(&format!("sample {name}"), 1, 0.0, bytes, || {
            cpu.sample(&logits.row_range(0..1), &draws).unwrap();
        });
    }
    let n = 1 << 22;
    let (gradient, master) = (bench.random(n), bench.random(n));
    let settings = AdamW {
        learning_rate: 1e-4,
        beta1: 0.9,
        beta2: 0.95,
        epsilon: 1e-8,
        weight_decay: 0.1,
        update: 3,
        gradient_scale: 1.0,
    };
    let full = Moments::F32 {
        first: bench.random(n),
        second: bench.random(n),
    };
    bench.time("adamw f32", n, 0.0, (n * 28) as f64, || {
        cpu.adamw(&settings, &gradient, &master, &full, None)
            .unwrap();
    });
    let small = Moments::Int8 {
        first: cpu.zeros(DType::U8, n).unwrap(),
        first_max: cpu.zeros(DType::F32, n / 256).unwrap(),
        second: cpu.zeros(DType::U8, n).unwrap(),
        second_max: cpu.zeros(DType::F32, n / 256).unwrap(),
    };
    bench.time("adamw int8", n, 0.0, (n * 16) as f64, || {
        cpu.adamw(&settings, &gradient, &master, &small, None)
            .unwrap();
    });
    let sum = bench.random(1);
    bench.time("sum_squares", n, 0.0, (n * 4) as f64, || {
        cpu.sum_squares(&gradient, &sum).unwrap()
    });
}

fn weight_gradient(bench: &Bench) -> Tensor<CpuStorage> {
    bench.cpu.zeros(DType::F32, HIDDEN).unwrap()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let n_threads = arguments.next().and_then(|n| n.parse().ok()).unwrap_or(1);
    let filter = arguments.next().unwrap_or_default();
    for math in [CpuMath::Exact, CpuMath::Int8Activations] {
        let bench = Bench {
            cpu: Cpu::new(n_threads, math).unwrap(),
            filter: filter.clone(),
        };
        println!("{}, {math:?}", bench.cpu.name());
        let as_stored = WeightFormat::AsStored;
        if math == CpuMath::Exact {
            linear(
                &bench,
                "f32",
                Encoding::F32,
                WeightFormat::Dense,
                &[1, 8, 512],
            );
            linear(&bench, "bf16", Encoding::Bf16, as_stored, &[1, 512]);
            let nf4 = WeightFormat::Nf4 {
                double_quantised: true,
            };
            linear(&bench, "nf4", Encoding::F32, nf4, &[1, 512]);
            products(&bench);
            attention(&bench);
            rest(&bench);
        }
        linear(&bench, "q4_1", Encoding::Q4_1, as_stored, &[1, 8, 512]);
        linear(&bench, "q8_0", Encoding::Q8_0, as_stored, &[1, 8, 512]);
    }
}
