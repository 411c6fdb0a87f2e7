use std::collections::BTreeMap;

use temper_core::{
    SourceGroup, Split, Task, TaskId,
    manifest::Producer,
    task::{Environment, Origin, Start, TaskFormat, Verifier},
};

use super::*;

fn task(repository: &str, number: usize, bug: &str) -> Task {
    Task {
        id: TaskId::new(format!("{repository}-{number:03}")).unwrap(),
        format: TaskFormat::Native,
        statement: "mend it".into(),
        start: Start::Image {
            base_commit: None,
            checkout: None,
        },
        environment: Environment::Host,
        verifier: Verifier::Harbor {
            tests: Default::default(),
            environment: BTreeMap::new(),
            timeout_seconds: 1,
        },
        oracle: None,
        origin: Origin {
            project: repository.into(),
            bug: Some(bug.into()),
            ..Origin::default()
        },
        source_group: SourceGroup::new(repository).unwrap(),
        split: Split::Test,
        metadata: serde_json::Map::new(),
        construction: None,
    }
}

fn suite() -> Vec<Task> {
    let mut tasks = Vec::new();
    for (repository, n) in [("large", 60), ("middle", 30), ("small", 10)] {
        tasks.extend((0..n).map(|i| task(repository, i, ["flip", "drop"][i % 2])));
    }
    tasks
}

fn draw(
    tasks: &[Task],
    request: &Request,
    unavailable: Option<&[&str]>,
) -> Result<Sample, SampleError> {
    let population = Population {
        suite: "suite".into(),
        choice: "all".into(),
        tasks,
        unavailable: unavailable.map(|ids| {
            ids.iter()
                .map(|id| (TaskId::new(*id).unwrap(), "gone".to_owned()))
                .collect()
        }),
    };
    let producer = Producer {
        name: "temper".into(),
        version: "0".into(),
    };
    Sample::draw(&population, request, producer)
}

fn request(n: usize, stratify: Stratify) -> Request {
    Request {
        n,
        seed: 7,
        per_repository: None,
        stratify,
    }
}

fn counts(sample: &Sample) -> BTreeMap<&str, usize> {
    sample
        .strata
        .iter()
        .map(|(name, stratum)| (name.as_str(), stratum.n_sampled))
        .collect()
}

#[test]
fn strata_get_their_share_and_the_sum_is_exact() {
    let tasks = suite();
    for n in 1..=100 {
        let sample = draw(&tasks, &request(n, Stratify::Repository), None).unwrap();
        assert_eq!(sample.tasks.len(), n);
        for (name, share) in [("large", 0.6), ("middle", 0.3), ("small", 0.1)] {
            let got = counts(&sample)[name] as f64;
            assert!((got - share * n as f64).abs() < 1.0, "{n} {name}: {got}");
        }
    }
    let sample = draw(&tasks, &request(27, Stratify::Kind), None).unwrap();
    let by_kind: Vec<usize> = counts(&sample).into_values().collect();
    assert!(by_kind == [13, 14] || by_kind == [14, 13], "{by_kind:?}");
}

#[test]
fn a_seed_draws_the_same_and_the_order_of_the_suite_is_nothing() {
    let tasks = suite();
    let mut reversed = tasks.clone();
    reversed.reverse();
    let first = draw(&tasks, &request(20, Stratify::Repository), None).unwrap();
    assert_eq!(
        first,
        draw(&reversed, &request(20, Stratify::Repository), None).unwrap()
    );
    let other = Request {
        seed: 8,
        ..request(20, Stratify::Repository)
    };
    assert_ne!(first.tasks, draw(&tasks, &other, None).unwrap().tasks);
}

#[test]
fn the_cap_and_what_cannot_be_had_are_kept_and_said() {
    let tasks = suite();
    let capped = Request {
        per_repository: Some(4),
        ..request(12, Stratify::Repository)
    };
    let sample = draw(&tasks, &capped, Some(&[])).unwrap();
    assert!(counts(&sample).values().all(|n| *n == 4));
    assert!(
        sample
            .does_not_stand_for
            .iter()
            .any(|line| line.contains("cap"))
    );
    let error = draw(&tasks, &Request { n: 13, ..capped }, None).unwrap_err();
    assert!(matches!(error, SampleError::TooFew { n_possible: 12, .. }));

    let gone: Vec<String> = (0..9).map(|i| format!("small-{i:03}")).collect();
    let gone: Vec<&str> = gone.iter().map(String::as_str).collect();
    let sample = draw(&tasks, &request(91, Stratify::None), Some(&gone)).unwrap();
    assert_eq!(sample.unavailable.len(), 9);
    assert!(sample.tasks.keys().all(|id| !gone.contains(&id.as_str())));
    assert!(
        sample
            .does_not_stand_for
            .iter()
            .any(|line| line.contains("9 tasks"))
    );
    assert!(draw(&tasks, &request(92, Stratify::None), Some(&gone)).is_err());
    assert_eq!(
        draw(&tasks, &request(0, Stratify::None), None),
        Err(SampleError::Empty)
    );
    let whole = draw(&tasks, &request(100, Stratify::None), Some(&[])).unwrap();
    assert!(
        whole
            .stands_for
            .iter()
            .any(|line| line.contains("whole population"))
    );
}

#[test]
fn every_task_can_be_drawn_and_about_as_often() {
    let tasks: Vec<Task> = (0..20).map(|i| task("one", i, "flip")).collect();
    let mut drawn: BTreeMap<TaskId, usize> = BTreeMap::new();
    for seed in 0..400 {
        let request = Request {
            seed,
            ..request(5, Stratify::None)
        };
        for id in draw(&tasks, &request, None).unwrap().tasks.into_keys() {
            *drawn.entry(id).or_default() += 1;
        }
    }
    // Expected 100 each, with a standard deviation of 8.7: five of them are allowed.
    assert_eq!(drawn.len(), 20);
    assert!(drawn.values().all(|n| (56..=144).contains(n)), "{drawn:?}");
}

#[test]
fn a_ladder_meets_every_repository_early_and_its_parts_are_nested() {
    let tasks = suite();
    let order = spread_order(&tasks, 1);
    let first: BTreeSet<String> = order[..3].iter().map(|task| repository(task)).collect();
    assert_eq!(first.len(), 3);
    assert_eq!(order.len(), tasks.len());
}

#[test]
fn a_list_is_what_it_says_or_an_error() {
    let tasks = suite();
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        TaskList::read(&path)
    };
    let sample = draw(&tasks, &request(5, Stratify::None), None).unwrap();
    let text = serde_json::to_string(&sample).unwrap();
    let list = write("sample.json", &text).unwrap();
    assert_eq!(list.choose(tasks.clone()).unwrap().len(), 5);
    let mut changed = tasks.clone();
    for task in &mut changed {
        task.statement.push('!');
    }
    let error = list.choose(changed).unwrap_err();
    assert!(error.to_string().contains("another task by now"), "{error}");
    assert!(list.choose(Vec::new()).is_err());
    let id = sample.tasks.keys().next().unwrap().as_str();
    assert!(write("edited.json", &text.replace(id, "large-999")).is_err());

    let list = write("ids.txt", "# two\nlarge-001\nsmall-002 # this one\n\n").unwrap();
    assert_eq!(list.choose(tasks).unwrap().len(), 2);
    for wrong in ["", "# none\n", "large-001\nlarge-001\n", "{}"] {
        assert!(write("wrong.txt", wrong).is_err(), "{wrong:?}");
    }
}
