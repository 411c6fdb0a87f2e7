//! What is expected of the toy.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{
    Digest, Entry, PreparedTask, SourceGroup, Split, Task, TaskId, TestId, TestOutcome, TreePath,
    patch,
    task::{Environment, HiddenSource, Oracle, Origin, Start, TaskFormat, TestLists, Verifier},
};
use temper_factory::{
    Candidate,
    hidden::TestSources,
    measure::{Exclusion, coverage::Index},
    pool::{self, Ended, Job},
    prove::{
        Kills, ListOptions, ScreenOptions, Screened, Status, equivalents, lists, prove, screen,
        screen::changes_of,
    },
};
use temper_sandbox::verify::proof::Finding;

use crate::toy::{candidate, digest, measurement, misfit, path, subject, workshop};

/// Every case.
pub const CASES: &[(&str, fn())] = &[
    (
        "untrustworthy_tests_are_excluded_with_their_reason",
        excluded,
    ),
    (
        "coverage_says_what_runs_at_import_and_what_in_tests",
        covered,
    ),
    ("every_candidate_has_its_fate", fates),
    ("affected_tests_are_all_that_can_fail", brute_force),
    ("the_number_of_workers_changes_nothing", workers),
    ("a_hostile_candidate_ends_only_itself", hostile),
    ("the_same_code_is_equivalent", same_code),
    ("tasks_are_divided_audited_and_proven", tasks),
];

fn excluded() {
    let reasons: BTreeMap<&str, &Exclusion> = measurement()
        .excluded
        .iter()
        .map(|excluded| {
            let name = excluded.id.as_str().split("::").nth(1).unwrap();
            (name.split('[').next().unwrap(), &excluded.reason)
        })
        .collect();
    println!("{reasons:?}");
    let not_passing = |outcome| Exclusion::NotPassing { outcome };
    for (name, reason) in [
        ("test_needs_state", Exclusion::OrderDependent),
        ("test_fails", not_passing(TestOutcome::Failed)),
        ("test_skipped", not_passing(TestOutcome::Skipped)),
        ("test_expected", not_passing(TestOutcome::ExpectedFailure)),
        ("test_network", Exclusion::Network),
        ("test_home", Exclusion::WritesOutside),
        ("test_tree", Exclusion::ChangesWorkTree),
        ("test_address", Exclusion::UnstableId),
        ("test_exits", Exclusion::EndsInterpreter),
        ("test_fault", Exclusion::EndsInterpreter),
    ] {
        assert_eq!(reasons.get(name), Some(&&reason), "{name}");
    }
    assert!(matches!(reasons["test_slow"], Exclusion::TooSlow { .. }));
    assert!(reasons.contains_key("test_flaky"));
    let trusted: BTreeSet<&str> = measurement().tests.iter().map(|t| t.id.as_str()).collect();
    for name in [
        "bad.py::test_sets",
        "bad.py::test_after",
        "calc.py::test_double[40]",
    ] {
        assert!(
            trusted.contains(format!("tests/test_{name}").as_str()),
            "{name}"
        );
    }
    let broken: Vec<&str> = measurement()
        .files
        .iter()
        .filter(|file| file.broken)
        .map(|file| file.name.as_str())
        .collect();
    assert_eq!(broken, ["tests/test_broken.py"]);
}

fn affected(candidate: &Candidate) -> BTreeSet<String> {
    let index = Index::new(measurement());
    let affected = index.affected(&candidate.places);
    affected
        .iter()
        .map(|affected| measurement().id(affected.test).as_str())
        .map(|id| id.trim_start_matches("tests/test_").to_owned())
        .collect()
}

fn covered() {
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let area = candidate(Some("Box.area"), "self.size * self.size", "self.size");
    assert_eq!(affected(&area), names(&["calc.py::TestBox::test_area"]));
    let looped = candidate(Some("loop"), "i + 1", "i + 2");
    assert_eq!(affected(&looped), names(&["calc.py::test_loop"]));
    let double = candidate(Some("double"), "return x * 2", "return x");
    let of_double: BTreeSet<String> = names(&[
        "calc.py::test_double[0]",
        "calc.py::test_double[3]",
        "calc.py::test_double[40]",
        "more.py::test_limit",
        "more.py::test_twice",
        "more.py::test_type",
    ]);
    assert_eq!(affected(&double), of_double);
    // A class's body and what a module calls run at import, so all tests of both files count.
    let all: BTreeSet<String> = measurement()
        .tests
        .iter()
        .map(|test| {
            test.id
                .as_str()
                .trim_start_matches("tests/test_")
                .to_owned()
        })
        .filter(|id| !id.starts_with("bad"))
        .collect();
    assert_eq!(affected(&candidate(None, "size = 3", "size = 4")), all);
    assert_eq!(
        affected(&candidate(Some("build"), "\"a\": 1", "\"a\": 2")),
        all
    );
    assert!(affected(&candidate(Some("unused"), "x + 1", "x")).is_empty());
    let index = Index::new(measurement());
    let nearest = index.affected(&candidate(Some("double"), "LIMIT * 2", "LIMIT").places);
    let first = measurement().id(nearest[0].test).as_str();
    assert!(
        first.ends_with("[40]") || first.ends_with("test_limit"),
        "{first}"
    );
}

fn candidates() -> Vec<(Candidate, Status)> {
    let c = candidate;
    vec![
        (
            c(Some("double"), "return x * 2", "return x"),
            Status::Killed,
        ),
        (
            c(Some("double"), "x > LIMIT", "x >= LIMIT"),
            Status::Survived,
        ),
        (c(Some("double"), "LIMIT * 2", "LIMIT * 3"), Status::Killed),
        (
            c(Some("double"), "\"\"\"Twice.\"\"\"", "\"\"\"2x.\"\"\""),
            Status::Survived,
        ),
        (c(Some("loop"), "i + 1", "i + 0"), Status::TimedOut),
        (
            c(
                Some("loop"),
                "i = 0",
                "import time; time.sleep(1000); i = 0",
            ),
            Status::TimedOut,
        ),
        (c(Some("loop"), "i + 1", "os._exit(3)"), Status::Crashed),
        (
            c(Some("loop"), "i + 1", "os.kill(os.getpid(), 11)"),
            Status::Crashed,
        ),
        (
            c(Some("loop"), "i + 1", "len(bytearray(1 << 33))"),
            Status::OutOfMemory,
        ),
        (
            c(None, "LIMIT = 10", "LIMIT = 10 / 0"),
            Status::BreaksImport,
        ),
        (
            c(Some("build"), "return {\"a\": 1}", "raise KeyError"),
            Status::BreaksImport,
        ),
        (c(None, "size = 3", "size = 4"), Status::Killed),
        (c(Some("unused"), "x + 1", "x"), Status::Uncovered),
        (
            c(
                Some("Box.area"),
                "return self.size",
                "open('new', 'w').close(); return self.size",
            ),
            Status::Survived,
        ),
        (
            c(
                Some("Box.area"),
                "return self.size",
                "open('data.txt', 'w').close(); return self.size",
            ),
            Status::Survived,
        ),
        (
            c(Some("lookup"), "TABLE[key]", "TABLE.get(key, 2) + 1"),
            Status::Killed,
        ),
    ]
}

fn run(candidates: &[Candidate], n_workers: usize, batch: usize) -> Vec<Screened> {
    let options = ScreenOptions {
        batch,
        ..ScreenOptions::default()
    };
    let index = Index::new(measurement());
    let (screened, cost) = screen(
        subject(),
        &workshop(n_workers),
        &index,
        candidates,
        &options,
    )
    .unwrap();
    assert_eq!(cost.core_seconds > 0.0, cost.n_sandboxes > 0);
    screened
}

fn screened() -> &'static (Vec<Candidate>, Vec<Screened>) {
    static SCREENED: std::sync::OnceLock<(Vec<Candidate>, Vec<Screened>)> =
        std::sync::OnceLock::new();
    SCREENED.get_or_init(|| {
        let candidates: Vec<Candidate> = candidates().into_iter().map(|(c, _)| c).collect();
        let screened = run(&candidates, 1, 100);
        (candidates, screened)
    })
}

fn failing(screened: &Screened) -> Vec<&'static str> {
    let ids = screened.failing.iter();
    ids.map(|test| {
        measurement()
            .id(*test)
            .as_str()
            .trim_start_matches("tests/test_")
    })
    .collect()
}

fn fates() {
    let (_, screened) = screened();
    for (number, ((candidate, status), got)) in candidates().iter().zip(screened).enumerate() {
        assert_eq!(got.candidate, candidate.digest());
        assert_eq!(&got.status, status, "candidate {number}");
    }
    assert_eq!(
        failing(&screened[0]),
        ["calc.py::test_double[3]", "more.py::test_twice"]
    );
    assert_eq!(
        failing(&screened[2]),
        ["calc.py::test_double[40]", "more.py::test_limit"]
    );
    assert_eq!(failing(&screened[4]), ["calc.py::test_loop"]);
    assert_eq!(
        failing(&screened[11]),
        ["calc.py::TestBox::test_area", "calc.py::TestBox::test_size"]
    );
    assert_eq!(screened[0].passing.len(), 4);
    assert!(matches!(
        run(&[misfit()], 1, 1)[0].status,
        Status::DoesNotApply { .. }
    ));
}

/// Running every trusted test on each candidate finds no failing test that the coverage left out.
fn brute_force() {
    let (candidates, screened) = screened();
    let ids = measurement().tests.iter().map(|test| test.id.0.clone());
    // One of the flaky tests may have passed in every run so far.
    let tests: Vec<String> = ids.filter(|id| !id.contains("test_bad")).collect();
    let chosen: Vec<usize> = (0..candidates.len())
        .filter(|n| matches!(screened[*n].status, Status::Killed | Status::Survived))
        .collect();
    let (found, _) = pool::run(
        subject(),
        &workshop(1),
        &measurement().imports,
        100,
        chosen.len(),
        &|turn| Job {
            changes: changes_of(subject(), &candidates[chosen[turn]]).unwrap(),
            ..Job::new(subject().test_files.clone(), Some(tests.clone()))
        },
        &|_, ended| match ended {
            Ended::Reported(report) => report
                .runs
                .iter()
                .filter(|run| run.outcome != TestOutcome::Passed)
                .map(|run| report.tests[run.index].clone())
                .collect::<BTreeSet<String>>(),
            Ended::BrokePool(reason) => panic!("{reason}"),
        },
    )
    .unwrap();
    for (number, found) in chosen.iter().zip(found) {
        let ours = screened[*number].failing.iter();
        let ours: BTreeSet<String> = ours.map(|t| measurement().id(*t).0.clone()).collect();
        assert_eq!(ours, found, "candidate {number}");
    }
}

fn workers() {
    let (candidates, screened) = screened();
    let quick: Vec<usize> = (0..candidates.len())
        .filter(|n| screened[*n].status != Status::TimedOut)
        .collect();
    let some: Vec<Candidate> = quick.iter().map(|n| candidates[*n].clone()).collect();
    let again = run(&some, 2, 3);
    for (number, again) in quick.iter().zip(again) {
        assert_eq!(digest(&screened[*number]), digest(&again));
    }
}

fn hostile() {
    let kill = "os.kill(os.getppid(), 9); i = 0";
    // The worker's parent is the pool: it is ended, and the candidate after it is judged all the
    // same, as is one that leaves a process behind that writes into the work tree.
    let kill_pool = "exec(\"for p in os.listdir('/proc'):\\n  if p.isdigit() and p != '1':\\n    \
         try: os.kill(int(p), 9)\\n    except OSError: pass\"); i = 0";
    let daemon = "if os.fork() == 0:\n        os.setsid()\n        while True:\n            \
         open('/testbed/pkg/calc.py', 'a').write('raise SystemError\\n')\n    i = 0";
    let candidates = [
        candidate(Some("loop"), "i = 0", kill),
        candidate(Some("double"), "return x * 2", "return x"),
        candidate(Some("loop"), "i = 0", kill_pool),
        candidate(Some("double"), "LIMIT * 2", "LIMIT * 3"),
        candidate(Some("loop"), "i = 0", daemon),
        candidate(Some("double"), "x > LIMIT", "x >= LIMIT"),
    ];
    let screened = run(&candidates, 1, 100);
    let statuses: Vec<&Status> = screened.iter().map(|screened| &screened.status).collect();
    println!("{statuses:?}");
    assert_eq!(statuses[0], &Status::Crashed);
    assert_eq!(statuses[2], &Status::Crashed);
    for number in [1, 3] {
        assert_eq!(statuses[number], &Status::Killed);
        assert_eq!(screened[number].failing.len(), 2);
    }
    assert_eq!(statuses[5], &Status::Survived);
}

fn same_code() {
    let (candidates, screened) = screened();
    let (found, _) = equivalents(subject(), &workshop(1), candidates, screened).unwrap();
    // Only the docstring: `>=` at the limit gives the same value but other code.
    assert_eq!(found, [3].into());
}

fn tasks() {
    let (candidates, screened) = screened();
    let index = Index::new(measurement());
    let equivalent = BTreeSet::from([3]);
    let kills = Kills::new(&index, candidates, screened, &equivalent);
    let tree = &subject().tree;
    let ids: Vec<TestId> = measurement().tests.iter().map(|t| t.id.clone()).collect();
    let read = |path: &TreePath| std::fs::read(tree.join(path.as_os_path())).ok();
    let sources = TestSources::new(&ids, read);

    let found = lists(measurement(), &screened[0], &ListOptions::default());
    let capped = ListOptions {
        max_fail_to_pass: 1,
        max_pass_to_pass: 2,
    };
    let capped = lists(measurement(), &screened[0], &capped);
    assert_eq!(
        (capped.fail_to_pass.len(), capped.pass_to_pass.len()),
        (1, 2)
    );
    let mut division = sources.divide(&screened[0].candidate, &found).unwrap();
    assert_eq!(division.hidden.fail_to_pass.len(), 1);
    assert_eq!(division.public.fail_to_pass.len(), 1);

    // Mutants of `double`: one equivalent, one that survives everything, one noticed.
    let audit = kills.audit(0, &division.public, &division.hidden);
    let numbers = &audit.numbers;
    assert_eq!((numbers.n_mutants, numbers.n_equivalent), (2, 1));
    assert_eq!(audit.survivors, [1]);
    assert_eq!(numbers.n_killed_public + numbers.n_killed_hidden, 1);
    assert!(kills.strengthen(0, &audit, 5).is_empty());
    // With fewer tests the other one survives as well, until a test is added that notices it.
    let few = TestLists {
        pass_to_pass: Vec::new(),
        ..found.clone()
    };
    let weak = kills.audit(0, &few, &TestLists::default());
    assert_eq!(weak.survivors, [1, 2]);
    let added = kills.strengthen(0, &weak, 5);
    assert_eq!(added.len(), 1);
    let stronger = TestLists {
        pass_to_pass: added,
        ..few
    };
    let audit = kills.audit(0, &stronger, &TestLists::default());
    assert_eq!(audit.survivors, [1]);
    division.add_hidden(stronger.pass_to_pass);

    let directory = tempfile::tempdir().unwrap();
    let good = prepared(directory.path(), "good", &candidates[0], &division);
    let mut wrong = division.clone();
    wrong
        .hidden
        .fail_to_pass
        .extend(wrong.public.pass_to_pass.pop());
    let wrong = prepared(directory.path(), "wrong", &candidates[0], &wrong);
    let (proofs, cost) = prove(&workshop(2), &[good, wrong], 2);
    println!("{:?}", proofs[0].findings);
    assert!(proofs[0].holds());
    assert_eq!((proofs[0].start.len(), proofs[0].oracle.len()), (2, 2));
    assert!(matches!(
        proofs[1].findings[..],
        [Finding::PassesUnfixed { .. }]
    ));
    assert_eq!(proofs[1].start.len(), 1);
    assert!(cost.core_seconds > 0.0);
}

fn prepared(
    directory: &std::path::Path,
    name: &str,
    candidate: &Candidate,
    division: &temper_factory::hidden::Division,
) -> PreparedTask {
    let (start, hidden) = (
        directory.join(format!("{name}/start")),
        directory.join(format!("{name}/hidden")),
    );
    let put = |root: &std::path::Path, file: &str, content: &[u8]| {
        let path = root.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    };
    for file in [
        "pkg/__init__.py",
        "tests/test_calc.py",
        "tests/test_more.py",
    ] {
        put(
            &start,
            file,
            &std::fs::read(subject().tree.join(file)).unwrap(),
        );
    }
    for file in &division.test_files {
        put(
            &hidden,
            file,
            &std::fs::read(subject().tree.join(file)).unwrap(),
        );
    }
    let bug = changes_of(subject(), candidate).unwrap();
    for (path, entry) in bug.iter().chain(&division.changes) {
        let Some(Entry::File { content, .. }) = entry else {
            panic!("a file")
        };
        put(&start, &path.to_text(), content);
    }
    assert_eq!(bug.keys().collect::<Vec<_>>(), [&path("pkg/calc.py")]);
    PreparedTask {
        task: Task {
            id: TaskId::new(name).unwrap(),
            format: TaskFormat::Native,
            statement: "Mend it.".into(),
            start: Start::Directory {
                path: start.clone(),
                digest: Digest::of(b""),
            },
            environment: Environment::Python {
                requires_python: ">=3.9".into(),
                wheels: Vec::new(),
                python_path: vec![".".into()],
            },
            verifier: Verifier::Pytest {
                public: division.public.clone(),
                hidden: division.hidden.clone(),
                test_files: division.test_files.clone(),
                hidden_source: HiddenSource::Directory {
                    path: hidden.clone(),
                },
                arguments: Vec::new(),
                timeout_seconds: 60,
            },
            oracle: Some(Oracle::Patch {
                patch: patch::reverse(&candidate.patch).unwrap(),
            }),
            origin: Origin::default(),
            source_group: SourceGroup::new("toy").unwrap(),
            split: Split::Train,
            metadata: Default::default(),
            construction: None,
        },
        start_tree: Some(start),
        hidden_tests: Some(hidden),
        mounts: subject().mounts.clone(),
        variables: subject().variables.clone(),
        image: None,
        work_tree: "/testbed".into(),
        setup: Vec::new(),
        environment_digest: Digest::of(b""),
    }
}
