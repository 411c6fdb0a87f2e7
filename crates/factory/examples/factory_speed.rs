//! What measuring, screening and proving cost on a repository: core-seconds for each candidate.
//!
//!     factory_speed SOURCE CACHE [N_CANDIDATES [WORKERS [N_PROVEN [N_WHOLE]]]]
//!
//! SOURCE is what `temper tasks make` takes, CACHE a directory for files. The operators write
//! N_CANDIDATES (200) in code that trusted tests execute. N_PROVEN (0) tasks, spread over all, are
//! proven, once each. N_WHOLE (0) candidates, spread over all, are run with the whole test command
//! as well, and what fails is compared.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::{Duration, Instant},
};

use temper_core::{
    Digest, Entry, PreparedTask, Task, TaskId, TestId, TreePath, patch,
    task::{HiddenSource, Oracle, Start, Verifier},
    tree::Changes,
};
use temper_factory::{
    Candidate,
    hidden::{Division, TestSources},
    make::unprepared,
    measure::{MeasureOptions, coverage::Index, measure},
    pool::{Subject, Workshop},
    prove::{
        Kills, ListOptions, ScreenOptions, Status, equivalents, lists, prove, screen,
        screen::changes_of, whole::whole_command,
    },
    repository::{self, Overrides, Source},
    synth,
};
use temper_sandbox::{
    Limits,
    namespaces::{Namespaces, run_launcher_if_asked},
};
use temper_tasks::{
    cache::Cache,
    fetch::{FetchOptions, Fetcher},
    prepare::{Tools, prepare},
};

fn main() {
    run_launcher_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| {
        let given = arguments.get(at);
        given.map_or(otherwise, |text| text.parse().unwrap())
    };
    let (n_candidates, n_workers) = (number(2, 200), number(3, 1));
    let (n_proven, n_whole) = (number(4, 0), number(5, 0));

    let cache = Cache::open(&arguments[1]).unwrap();
    let archives = cache.root().join("archives");
    let index = std::env::var("PIP_INDEX_URL").unwrap_or("https://pypi.org/simple".into());
    let options = FetchOptions {
        index: Some(index),
        ..FetchOptions::default()
    };
    let fetcher = Fetcher::new(cache.clone(), options).unwrap();
    let search_path = std::env::var_os("PATH").unwrap_or_default();
    let tools = Tools::new(fetcher.with_directory(&archives), None, search_path);
    let source = Source::parse(&arguments[0]).unwrap();
    let repository =
        repository::open(&source, &Overrides::default(), &archives, &cache, &tools).unwrap();
    let environment = prepare(&unprepared(&repository).task, &cache, &tools)
        .unwrap()
        .task;
    let subject = Subject::new(&repository, &environment);
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
    let candidates = written(&subject, &index, n_candidates);
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
    println!("  digest {}", Digest::of_value(&screened).short());

    let (equivalent, cost) = equivalents(&subject, &workshop, &candidates, &screened).unwrap();
    println!(
        "equivalence: {} of the survivors; {:.1} core-seconds",
        equivalent.len(),
        cost.core_seconds
    );
    let kills = Kills::new(&index, &candidates, &screened, &equivalent);
    let ids: Vec<TestId> = measurement
        .tests
        .iter()
        .map(|test| test.id.clone())
        .chain(measurement.excluded.iter().map(|test| test.id.clone()))
        .collect();
    let read = |path: &TreePath| std::fs::read(subject.tree.join(path.as_os_path())).ok();
    let sources = TestSources::new(&ids, read);
    let mut tasks: Vec<(usize, Division)> = Vec::new();
    let (mut n_refused, mut n_survivors, mut n_mutants, mut n_added) = (0, 0, 0, 0);
    let mut n_hidden = 0;
    let begun = Instant::now();
    for (number, one) in screened.iter().enumerate() {
        if one.status != Status::Killed {
            continue;
        }
        let lists = lists(&measurement, one, &ListOptions::default());
        let Ok(mut division) = sources.divide(&one.candidate, &lists) else {
            n_refused += 1;
            continue;
        };
        let audit = kills.audit(number, &division.public, &division.hidden);
        let more = kills.strengthen(number, &audit, 10);
        n_added += more.len();
        division.add_hidden(more);
        let audit = kills.audit(number, &division.public, &division.hidden);
        n_mutants += audit.numbers.n_mutants;
        n_hidden += audit.numbers.n_killed_hidden;
        n_survivors += audit.survivors.len();
        tasks.push((number, division));
    }
    println!(
        "tasks: {} and {n_refused} with nothing to hide; {n_mutants} mutants of their fixes, {n_hidden} noticed by hidden tests only, {n_survivors} survive, {n_added} tests added; {:.2} s",
        tasks.len(),
        begun.elapsed().as_secs_f64()
    );

    let step = (tasks.len() / usize::max(n_proven, 1)).max(1);
    let directory = tempfile::tempdir().unwrap();
    let prepared: Vec<PreparedTask> = tasks
        .iter()
        .step_by(step)
        .take(n_proven)
        .map(|(number, division)| {
            lay_out(
                &environment,
                &subject,
                &candidates[*number],
                division,
                *number,
                directory.path(),
            )
        })
        .collect();
    let begun = Instant::now();
    let (proofs, cost) = prove(&workshop, &prepared, 1);
    if !proofs.is_empty() {
        println!(
            "prove: {} of {} hold; {:.1} core-seconds, {:.1} s, {:.3} core-seconds each, {:.1} sandboxes each",
            proofs.iter().filter(|proof| proof.holds()).count(),
            proofs.len(),
            cost.core_seconds,
            begun.elapsed().as_secs_f64(),
            cost.core_seconds / proofs.len() as f64,
            cost.n_sandboxes as f64 / proofs.len() as f64,
        );
    }
    for (proof, task) in proofs.iter().zip(&prepared) {
        if let Some(finding) = proof.findings.first() {
            println!("  {}: {finding:?}", task.task.id);
        }
    }

    let step = (candidates.len() / usize::max(n_whole, 1)).max(1);
    let chosen: Vec<usize> = (0..candidates.len()).step_by(step).take(n_whole).collect();
    let some: Vec<Candidate> = chosen.iter().map(|n| candidates[*n].clone()).collect();
    let begun = Instant::now();
    let (whole, cost) =
        whole_command(&subject, &workshop, &some, Duration::from_secs(120)).unwrap();
    if whole.is_empty() {
        return;
    }
    let trusted: BTreeSet<&str> = measurement.tests.iter().map(|t| t.id.as_str()).collect();
    let mut n_same = 0;
    for (number, failing) in chosen.iter().zip(&whole) {
        let one = &screened[*number];
        let ours: BTreeSet<&str> = one
            .failing
            .iter()
            .map(|t| measurement.id(*t).as_str())
            .collect();
        let theirs: BTreeSet<&str> = failing
            .iter()
            .flatten()
            .map(String::as_str)
            .filter(|id| trusted.contains(id))
            .collect();
        if ours == theirs {
            n_same += 1;
        } else {
            println!(
                "  {:?} {}: screen {} failing, whole command {:?}",
                one.status,
                candidates[*number].places[0].file,
                ours.len(),
                failing.as_ref().map(|_| theirs.len()),
            );
        }
    }
    println!(
        "whole command: {} candidates, the same tests fail for {n_same}; {:.1} core-seconds, {:.1} s, {:.3} core-seconds each",
        whole.len(),
        cost.core_seconds,
        begun.elapsed().as_secs_f64(),
        cost.core_seconds / whole.len() as f64,
    );
}

/// The operators' bugs in code that some trusted test executes, spread over all kinds and files.
fn written(subject: &Subject, index: &Index<'_>, n_candidates: usize) -> Vec<Candidate> {
    let files: BTreeMap<TreePath, Entry> = subject
        .sources
        .iter()
        .filter_map(|path| {
            let content = std::fs::read(subject.tree.join(path.as_os_path())).ok()?;
            Some((path.clone(), Entry::file(content)))
        })
        .collect();
    let mut candidates = synth::synthesize(&files, &synth::Options::default())
        .unwrap()
        .candidates;
    candidates.retain(|candidate| candidate.places.iter().any(|place| index.executes(place)));
    candidates.sort_by_key(Candidate::digest);
    candidates.truncate(n_candidates);
    candidates
}

/// A task whose start lies in a directory of its own.
fn lay_out(
    environment: &PreparedTask,
    subject: &Subject,
    candidate: &Candidate,
    division: &Division,
    number: usize,
    directory: &Path,
) -> PreparedTask {
    let own = directory.join(number.to_string());
    std::fs::create_dir_all(&own).unwrap();
    let (start, hidden) = (own.join("start"), own.join("hidden"));
    let copied = std::process::Command::new("cp")
        .arg("-r")
        .arg(&subject.tree)
        .arg(&start)
        .status()
        .unwrap();
    assert!(copied.success());
    write(&start, &changes_of(subject, candidate).unwrap());
    write(&start, &division.changes);
    for file in &division.test_files {
        let content = std::fs::read(subject.tree.join(file)).unwrap();
        let path = TreePath::new(file.as_str()).unwrap();
        write(&hidden, &[(path, Some(Entry::file(content)))].into());
    }
    PreparedTask {
        task: Task {
            id: TaskId::new(format!("task-{number}")).unwrap(),
            statement: "Mend it.".into(),
            start: Start::Directory {
                path: start.clone(),
                digest: Digest::of(b""),
            },
            verifier: Verifier::Pytest {
                public: division.public.clone(),
                hidden: division.hidden.clone(),
                test_files: division.test_files.clone(),
                hidden_source: HiddenSource::Directory {
                    path: hidden.clone(),
                },
                arguments: subject.arguments.clone(),
                timeout_seconds: 60,
            },
            oracle: Some(Oracle::Patch {
                patch: patch::reverse(&candidate.patch).unwrap(),
            }),
            ..environment.task.clone()
        },
        start_tree: Some(start),
        hidden_tests: Some(hidden),
        ..environment.clone()
    }
}

fn write(root: &Path, changes: &Changes) {
    for (path, entry) in changes {
        if let Some(Entry::File { content, .. }) = entry {
            let path = root.join(path.as_os_path());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
    }
}
