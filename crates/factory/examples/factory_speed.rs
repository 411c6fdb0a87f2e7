//! What measuring, screening and proving cost on a repository: core-seconds for each candidate.
//!
//!     factory_speed TREE SITE_PACKAGES CANDIDATES.jsonl [WORKERS] [--whole N]
//!
//! TREE is a repository, SITE_PACKAGES a directory with pytest, CANDIDATES one candidate a line.
//! `--whole N` also runs the whole test command for each of the first N candidates.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{collections::BTreeMap, path::Path, time::Instant};

use temper_core::{TreePath, task::PreparedMount};
use temper_factory::{
    Candidate,
    measure::{MeasureOptions, coverage::Index, measure},
    pool::{Subject, Workshop},
    prove::{ScreenOptions, screen},
};
use temper_sandbox::{
    Limits,
    namespaces::{Namespaces, run_launcher_if_asked},
};

fn python_files(root: &Path, below: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(root.join(below))
        .unwrap()
        .flatten()
        .collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            python_files(root, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "py") {
            found.push(path.to_string_lossy().into_owned());
        }
    }
}

fn main() {
    run_launcher_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let tree = Path::new(&arguments[0]);
    let candidates: Vec<Candidate> = std::fs::read_to_string(&arguments[2])
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let n_workers = arguments.get(3).map_or(1, |n| n.parse().unwrap());
    let mut files = Vec::new();
    python_files(tree, Path::new(""), &mut files);
    let is_test = |file: &String| {
        let name = file.rsplit('/').next().unwrap();
        name.starts_with("test_") || name.ends_with("_test.py")
    };
    let in_tests = |file: &String| {
        file.split('/')
            .any(|part| part == "tests" || part == "test")
    };
    let test_files: Vec<String> = files.iter().filter(|f| is_test(f)).cloned().collect();
    let sources = files
        .iter()
        .filter(|f| !is_test(f) && !in_tests(f))
        .map(|f| TreePath::new(f.as_str()).unwrap())
        .collect();
    let site = "/opt/temper/env/site-packages";
    let variables: BTreeMap<String, String> = [
        ("PATH", "/usr/bin:/bin"),
        ("HOME", "/home/agent"),
        ("TMPDIR", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("PYTHONHASHSEED", "0"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONPATH", "/testbed:/opt/temper/env/site-packages"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    let subject = Subject {
        tree: tree.to_owned(),
        mounts: vec![PreparedMount {
            source: arguments[1].clone().into(),
            target: site.into(),
        }],
        variables,
        work_tree: "/testbed".into(),
        test_files,
        sources,
        arguments: Vec::new(),
    };
    let backend = Namespaces::new();
    let workshop = Workshop {
        backend: &backend,
        limits: Limits::default(),
        demand: Default::default(),
        n_workers,
        label: "factory-speed".into(),
    };
    let begun = Instant::now();
    let (measurement, cost) = measure(&subject, &workshop, &MeasureOptions::default())
        .unwrap_or_else(|e| panic!("{e:?}"));
    println!(
        "measure: {} tests, {} excluded, {} blocks; {:.1} core-seconds, {:.1} s",
        measurement.tests.len(),
        measurement.excluded.len(),
        measurement.blocks.len(),
        cost.core_seconds,
        begun.elapsed().as_secs_f64()
    );
    for excluded in measurement.excluded.iter().take(10) {
        println!("  {}: {:?}", excluded.id.as_str(), excluded.reason);
    }
    let index = Index::new(&measurement);
    let begun = Instant::now();
    let (screened, cost) = screen(
        &subject,
        &workshop,
        &index,
        &candidates,
        &ScreenOptions::default(),
    )
    .unwrap();
    let mut by_status: BTreeMap<String, usize> = BTreeMap::new();
    for one in &screened {
        *by_status.entry(format!("{:?}", one.status)).or_default() += 1;
    }
    println!(
        "screen: {} candidates, {by_status:?}; {:.1} core-seconds, {:.1} s, {:.3} core-seconds each, {} sandboxes",
        candidates.len(),
        cost.core_seconds,
        begun.elapsed().as_secs_f64(),
        cost.core_seconds / candidates.len() as f64,
        cost.n_sandboxes,
    );
    let n_tests: usize = screened
        .iter()
        .map(|s| s.failing.len() + s.passing.len())
        .sum();
    println!(
        "  {:.1} tests for each",
        n_tests as f64 / screened.len() as f64
    );
    println!(
        "  digest {}",
        temper_core::Digest::of_value(&screened).short()
    );
}
