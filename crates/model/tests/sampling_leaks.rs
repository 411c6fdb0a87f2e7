//! Ten thousand requests leave nothing behind. A program of its own, because it measures the
//! memory of the process.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use temper_model::{
    cpu::Cpu,
    device::{Device, WeightFormat},
    random::mix,
    sample::{Engine, EngineConfig, Request, SamplingParams},
    transformer::{
        Model,
        paged::{PagedModel, PagedOptions},
    },
};
use temper_model_fixtures::{Fixture, fixture};

#[test]
fn ten_thousand_requests_leave_nothing_behind() {
    let fixture = fixture("llama_tied");
    let model = Arc::new(fixture.model(&temper_model_fixtures::device(), WeightFormat::Dense));
    let options = PagedOptions {
        max_context: 128,
        max_sequences: 6,
        max_rows: 24,
        n_pages: 60,
        max_adapter_rank: 16,
        ..PagedOptions::default()
    };
    let paged = PagedModel::new(Arc::clone(&model), &options).unwrap();
    let engine = Engine::start(paged, EngineConfig::default()).unwrap();
    engine
        .load_adapter("tuned", fixture.adapter.clone())
        .unwrap();
    serve(&fixture, &engine, 2_000);
    let (device_before, host_before) = (model.device.memory_used(), host_bytes());
    for round in 0..4 {
        serve(&fixture, &engine, 2_000);
        // A reload in the same place takes no more memory.
        engine
            .load_adapter("tuned", fixture.adapter.clone())
            .unwrap();
        if round == 0 {
            engine.unload_adapter("tuned").unwrap();
            engine
                .load_adapter("tuned", fixture.adapter.clone())
                .unwrap();
        }
    }
    let metrics = engine.metrics();
    assert_eq!(metrics.n_finished + metrics.n_cancelled, 10_000);
    assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0));
    assert_eq!(metrics.n_pages_used, 0);
    let (device_after, host_after) = (model.device.memory_used(), host_bytes());
    // Two adapters at most: the one that was loaded first, and the one that took its place.
    let adapter = 2 * adapter_bytes(&fixture, &model);
    assert!(device_after.0 <= device_before.0 + adapter);
    if let (Some(before), Some(after)) = (host_before, host_after) {
        let grown = after.saturating_sub(before);
        assert!(grown < 8 << 20, "{grown} bytes more");
    }
}

fn adapter_bytes(fixture: &Fixture, model: &Model<Cpu>) -> usize {
    fixture.adapter(&model.device).parameters.n_bytes()
}

/// Serves requests of all kinds from several threads.
fn serve(fixture: &Fixture, engine: &Engine, n: u64) {
    const THREADS: u64 = 8;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for n in (thread..n).step_by(THREADS as usize) {
                    let request = Request {
                        adapter: (n % 5 == 0).then(|| "tuned".into()),
                        ..Request::new(
                            prompt(fixture, n % 50, 1 + (n % 40) as usize),
                            SamplingParams {
                                top_p: 0.9,
                                max_tokens: Some(1 + (n % 4) as usize),
                                seed: n,
                                ..SamplingParams::default()
                            },
                        )
                    };
                    let events = engine.submit(request).unwrap();
                    match n % 7 {
                        0 => drop(events),
                        _ => drop(events.collect().unwrap()),
                    }
                }
            });
        }
    });
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while engine.metrics().n_running + engine.metrics().n_waiting > 0 {
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
}

fn prompt(fixture: &Fixture, seed: u64, n: usize) -> Vec<u32> {
    let vocabulary = fixture.config().vocab_size as u64;
    (0..n as u64)
        .map(|i| (mix(seed * 7919 + i) % vocabulary) as u32)
        .collect()
}

/// Bytes of the process that lie in memory, where the system says.
fn host_bytes() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    let kib: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
