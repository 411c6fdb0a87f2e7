//! Runs every operation on the processor and on the GPU, on the same random inputs, and prints the
//! relative error of each result; then times what is bound by memory, and products.
//!
//! `device_check [FAMILY ...] [--cache FOLDER]`: without names, all families, each in a process of its own,
//! since an error on the GPU spoils all that follows in its process.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod cache;
mod head;
mod lab;
mod layers;
mod linear;
mod model;
mod moves;
mod timing;
mod training;

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use lab::relative_error;
use temper_cuda::{AttentionChoice, Cuda, CudaOptions, LibraryFolders};
use temper_model::cpu::{Cpu, CpuMath};

const FAMILIES: [&str; 11] = [
    "moves",
    "layers",
    "linear",
    "quantised",
    "head",
    "sample",
    "attention",
    "cache",
    "training",
    "model",
    "time",
];

/// Runs a case on both devices and compares.
pub struct Bench {
    /// What is right.
    pub cpu: Cpu,
    /// What is checked.
    pub cuda: Cuda,
    family: String,
    n_cases: usize,
    n_failed: usize,
}

/// A case: the same code on either device.
#[macro_export]
macro_rules! case {
    ($bench:expr, $name:expr, |$lab:ident| $body:expr) => {{
        let name: String = $name;
        let want = {
            let mut $lab = $crate::lab::Lab::new(&$bench.cpu);
            let done: temper_model::device::Result<()> = $body;
            done.map(|()| $lab.outputs)
        };
        let got = {
            let mut $lab = $crate::lab::Lab::new(&$bench.cuda);
            let done: temper_model::device::Result<()> = $body;
            done.map(|()| $lab.outputs)
        };
        $bench.compare(&name, got, want);
    }};
}

impl Bench {
    fn compare(
        &mut self,
        name: &str,
        got: temper_model::device::Result<Vec<lab::Output>>,
        want: temper_model::device::Result<Vec<lab::Output>>,
    ) {
        let (got, want) = match (got, want) {
            (Ok(got), Ok(want)) => (got, want),
            (got, want) => {
                self.n_cases += 1;
                self.n_failed += 1;
                let fault = |side: temper_model::device::Result<Vec<lab::Output>>| {
                    side.err()
                        .map_or("ok".to_owned(), |error| error.to_string())
                };
                println!(
                    "FAIL {} {name}: gpu {}; cpu {}",
                    self.family,
                    fault(got),
                    fault(want)
                );
                return;
            }
        };
        for (got, want) in got.iter().zip(&want) {
            let error = relative_error(&got.values, &want.values);
            self.verdict(name, got.what, error, got.tolerance);
        }
    }

    /// Prints one result.
    pub fn verdict(&mut self, name: &str, what: &str, error: f64, tolerance: f64) {
        self.n_cases += 1;
        let passed = error <= tolerance;
        if !passed {
            self.n_failed += 1;
        }
        println!(
            "{} {} {name} {what} {error:.2e} (<= {tolerance:.0e})",
            if passed { "PASS" } else { "FAIL" },
            self.family
        );
    }
}

fn main() {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let mut cache = None;
    if let Some(at) = words.iter().position(|word| word == "--cache") {
        cache = words.get(at + 1).map(PathBuf::from);
        words.drain(at..(at + 2).min(words.len()));
    }
    if words.len() != 1 {
        let wanted: Vec<&str> = FAMILIES
            .into_iter()
            .filter(|family| words.is_empty() || words.iter().any(|word| word == family))
            .collect();
        return each_in_its_process(&wanted, cache);
    }
    let family = words[0].clone();
    let start = Instant::now();
    let options = CudaOptions {
        folders: LibraryFolders::from_environment(),
        kernel_cache: cache,
        attention: AttentionChoice::Best,
        ..CudaOptions::default()
    };
    let cuda = match Cuda::open(&options) {
        Ok(cuda) => cuda,
        Err(error) => {
            println!("FAIL {family}: {error}");
            std::process::exit(1);
        }
    };
    let opened = start.elapsed();
    let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut bench = Bench {
        cpu: Cpu::new(n_threads, CpuMath::Exact).unwrap(),
        cuda,
        family: family.clone(),
        n_cases: 0,
        n_failed: 0,
    };
    match family.as_str() {
        "moves" => moves::run(&mut bench),
        "layers" => layers::run(&mut bench),
        "linear" => linear::run(&mut bench),
        "quantised" => linear::run_quantised(&mut bench),
        "head" => head::run(&mut bench),
        "sample" => head::run_sample(&mut bench),
        "attention" => cache::run_attention(&mut bench),
        "cache" => cache::run(&mut bench),
        "training" => training::run(&mut bench),
        "model" => model::run(&mut bench),
        "time" => timing::run(&bench.cuda),
        _ => println!("no family {family}"),
    }
    println!(
        "== {family}: {} of {} failed; opened in {:.2} s, {:.2} s in all",
        bench.n_failed,
        bench.n_cases,
        opened.as_secs_f64(),
        start.elapsed().as_secs_f64()
    );
    std::process::exit(i32::from(bench.n_failed > 0));
}

fn each_in_its_process(families: &[&str], cache: Option<PathBuf>) {
    let program = std::env::current_exe().unwrap();
    let mut failed = Vec::new();
    for family in families {
        let mut command = Command::new(&program);
        command.arg(family);
        if let Some(cache) = &cache {
            command.arg("--cache").arg(cache);
        }
        let mut child = command.spawn().unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if start.elapsed().as_secs() > 100 {
                child.kill().unwrap();
                child.wait().unwrap();
                println!("FAIL {family}: stopped after 100 s");
                break None;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        if !status.is_some_and(|status| status.success()) {
            failed.push(*family);
        }
    }
    println!("families that failed: {failed:?}");
    std::process::exit(i32::from(!failed.is_empty()));
}
