//! Measures the audit: text a second and the most memory that was resident.
//!
//! `cargo run --release -p temper-dataset --example audit_speed -- FILE…`
//!
//! Files are made by the example `trajectories`. Two threads take rows apart while one reads, so
//! two cores are used.

#![allow(clippy::print_stdout)]

use std::{error::Error, path::PathBuf, time::Instant};

use temper_dataset::audit::{Options, References, audit};

fn main() -> Result<(), Box<dyn Error>> {
    let files: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let references = References::default();
    let options = Options {
        workers: 2,
        references: &references,
        tokens: None,
        max_tokens: None,
    };
    let start = Instant::now();
    let report = audit(&files, &options, &mut |_| Ok(()))?;
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} rows, {:.1} MB of text in {seconds:.1} s: {:.1} MB/s",
        report.n_rows,
        report.n_bytes as f64 / 1e6,
        report.n_bytes as f64 / 1e6 / seconds
    );
    for figure in &report.figures {
        let of = figure.denominator.words();
        println!("{} {} of {} {of}", figure.n, figure.name.words(), figure.of);
    }
    let status = std::fs::read_to_string("/proc/self/status")?;
    let most = status.lines().find(|line| line.starts_with("VmHWM"));
    println!("{}", most.unwrap_or("VmHWM is not known here"));
    Ok(())
}
