//! What the tests of training share: rows of random ids, and a run in a temporary folder.

use std::{cell::Cell, io, path::Path};

use temper_checkpoint::{Adapter as AdapterFile, Checkpoint};
use temper_core::{Digest, manifest::Producer, metric::MetricValue};
use temper_model::{cpu::Cpu, random::mix};
use temper_model_fixtures::{Fixture, device, fixture};
use temper_train::{
    Base, Event, Method, Metric, Outcome, Pair, Row, Run, SftConfig, TrainError, TrainingConfig,
    config::OptimizerSettings, events::UpdateRecord, train_sft,
};
use tempfile::TempDir;

/// A row of `n` ids below 64, of which those after a prompt are supervised.
pub fn row(seed: u64, n: usize) -> Row {
    let ids = (0..n as u64).map(|at| (mix(seed << 20 | at) % 64) as u32);
    let prompt = 1 + (mix(seed) % (n as u64 - 1)) as usize;
    Row::new(ids.collect(), (0..n).map(|at| at >= prompt).collect()).unwrap()
}

/// Rows of 4 to 23 tokens.
pub fn rows(n: u64) -> Vec<Row> {
    (0..n)
        .map(|seed| row(seed, 4 + (mix(seed ^ 77) % 20) as usize))
        .collect()
}

/// Pairs of replies to one prompt.
pub fn pairs(n: u64) -> Vec<Pair> {
    (0..n)
        .map(|seed| {
            let prompt = 2 + (mix(seed) % 5) as usize;
            let reply = |side: u64| {
                let n = prompt + 2 + (mix(seed ^ side) % 9) as usize;
                let ids = (0..n as u64).map(|at| match at < prompt as u64 {
                    true => (mix(seed << 20 | at) % 64) as u32,
                    false => (mix(seed << 24 | side << 16 | at) % 64) as u32,
                });
                Row::new(ids.collect(), (0..n).map(|at| at >= prompt).collect()).unwrap()
            };
            Pair::new(reply(1), reply(2)).unwrap()
        })
        .collect()
}

/// An adapter of rank 4 on everything.
pub fn lora(base: Base) -> Method {
    let Method::Lora { targets, .. } = Method::default() else {
        unreachable!("the default is an adapter");
    };
    Method::Lora {
        rank: 4,
        alpha: 8.0,
        rank_stabilised: false,
        targets,
        base,
    }
}

/// Settings that learn quickly: four rows an update, snapshots every three updates.
pub fn settings(method: Method) -> TrainingConfig {
    TrainingConfig {
        method,
        epochs: 2,
        rows_per_update: 4,
        seed: 11,
        optimizer: OptimizerSettings {
            learning_rate: 0.01,
            warmup_updates: 2,
            decay: temper_train::config::DecayKind::Cosine,
            weight_decay: 0.1,
            ..OptimizerSettings::default()
        },
        ..TrainingConfig::default()
    }
}

/// What a run said.
#[derive(Debug, Default)]
pub struct Told(pub Vec<Event>);

impl Told {
    pub fn updates(&self) -> impl Iterator<Item = &UpdateRecord> {
        self.0.iter().filter_map(|event| match event {
            Event::Update(record) => Some(record),
            _ => None,
        })
    }

    /// A metric of every update.
    pub fn series(&self, metric: Metric) -> Vec<MetricValue> {
        self.updates().map(|it| it.metrics.get(metric)).collect()
    }

    pub fn losses(&self) -> Vec<f64> {
        let losses = self.series(Metric::Loss).into_iter();
        losses.map(|it| it.finite().unwrap()).collect()
    }
}

/// A tiny model, a device to train it on, and a folder that is removed at the end.
pub struct Bench {
    pub fixture: Fixture,
    pub device: Cpu,
    pub folder: TempDir,
}

impl Bench {
    pub fn of(name: &'static str) -> Self {
        Bench {
            fixture: fixture(name),
            device: device(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// There, from a fresh adapter or the whole model.
    pub fn place(&self) -> Place<'_> {
        Place {
            device: &self.device,
            checkpoint: &self.fixture.checkpoint,
            adapter: None,
            folder: self.folder.path(),
        }
    }
}

/// Where a test trains.
pub struct Place<'a> {
    pub device: &'a Cpu,
    pub checkpoint: &'a Checkpoint,
    pub adapter: Option<&'a AdapterFile>,
    pub folder: &'a Path,
}

impl Place<'_> {
    /// Trains with `body`, asked to stop after `stop_after` updates.
    pub fn run<T>(
        &self,
        stop_after: Option<u64>,
        body: impl FnOnce(&mut Run<'_, Cpu>) -> T,
    ) -> (T, Told) {
        let mut told = Told::default();
        let n_done = Cell::new(0);
        let mut events = |_: f64, event: &Event| -> io::Result<()> {
            if let Event::Update(_) = event {
                n_done.set(n_done.get() + 1);
            }
            told.0.push(event.clone());
            Ok(())
        };
        let stop = || Some(n_done.get()) == stop_after;
        let result = body(&mut Run {
            device: self.device,
            checkpoint: self.checkpoint,
            base: Digest::of(b"a tiny model"),
            adapter: self.adapter,
            tokenizer_files: &[],
            folder: self.folder,
            producer: Producer {
                name: "test".into(),
                version: "0".into(),
            },
            clock: &|| 0.0,
            stop: &stop,
            events: &mut events,
        });
        (result, told)
    }

    pub fn sft(
        &self,
        config: &SftConfig,
        rows: &[Row],
        stop_after: Option<u64>,
    ) -> (Result<Outcome, TrainError>, Told) {
        self.run(stop_after, |run| train_sft(run, config, rows))
    }
}
