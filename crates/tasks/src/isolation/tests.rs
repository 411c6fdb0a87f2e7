//! Properties of groups and splits, over generated suites.

use std::collections::{BTreeMap, BTreeSet};

use temper_core::{
    Digest, Patch, SourceGroup, Split, Task, TaskId,
    task::{
        Archive, Environment, HiddenSource, Oracle, Origin, Start, TaskFormat, TestLists, Verifier,
    },
};

use super::*;

mod alike;

pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Draw(seed)
    }
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        // Knuth's generator; the high bits are good enough for tests.
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = self.below(at as u64 + 1) as usize;
            items.swap(at, other);
        }
    }
}

/// A function body that depends on `salt` in every line.
pub(crate) fn body(salt: u64) -> String {
    (0..8u64)
        .map(|line| {
            let n = salt * 31 + line;
            format!("    value_{n} = compute_{n}(left_{n}, right_{n})\n")
        })
        .collect()
}

/// A task whose fix changes one line of a hunk that shows `code`.
pub(crate) fn task(id: &str, project: &str, file: &str, code: &str) -> Task {
    let lines: Vec<&str> = code.lines().collect();
    let mut patch = format!(
        "--- a/{file}\n+++ b/{file}\n@@ -1,{n} +1,{n} @@\n-broken_{salt} = 1\n",
        n = lines.len(),
        salt = Digest::of(id.as_bytes()).short(),
    );
    for (at, line) in lines.iter().enumerate() {
        patch.push_str(&format!("{}{line}\n", if at == 0 { '+' } else { ' ' }));
    }
    Task {
        id: TaskId::new(id).unwrap(),
        format: TaskFormat::Native,
        statement: format!("mend {id}"),
        start: Start::SourceDistribution {
            archive: Archive {
                project: project.into(),
                file_name: format!("{project}-1.tar.gz"),
                sha256: Digest::of(project.as_bytes()),
            },
            patch: Patch::default(),
        },
        environment: Environment::Host,
        verifier: Verifier::Pytest {
            public: TestLists::default(),
            hidden: TestLists::default(),
            test_files: vec!["tests/test_a.py".into()],
            hidden_source: HiddenSource::SourceDistribution,
            arguments: Vec::new(),
            timeout_seconds: 60,
        },
        oracle: Some(Oracle::Patch {
            patch: Patch(patch.into_bytes().into()),
        }),
        origin: Origin {
            project: project.into(),
            bug: Some(format!("mutation:{}", id.len() % 3)),
            ..Origin::default()
        },
        source_group: SourceGroup::new("none").unwrap(),
        split: Split::Unassigned,
        metadata: serde_json::Map::new(),
        construction: None,
    }
}

fn evidence(tasks: &[Task]) -> Vec<Evidence> {
    Collector::default().all(tasks, &mut no_sources).unwrap()
}

/// Tasks in a few projects, files and functions, some of them copies from other projects, some
/// made from one upstream change.
fn suite(seed: u64, n: usize) -> Vec<Task> {
    let mut draw = Draw::new(seed);
    (0..n)
        .map(|index| {
            let project = format!("project{}", draw.below(6));
            let file = format!("{project}/m{}.py", draw.below(9));
            // One in eight has code that other files have too.
            let code = match draw.below(8) {
                0 => body(1_000_000 + draw.below(12)),
                _ => body(index as u64),
            };
            let mut task = task(&format!("t{index:03}"), &project, &file, &code);
            if draw.below(20) == 0 {
                task.statement = format!("Mend  {}\n", draw.below(6));
            }
            if draw.below(15) == 0 {
                let commit = format!("c{}", draw.below(4));
                task.metadata.insert("commit".into(), commit.into());
            }
            task
        })
        .collect()
}

fn rule(granularity: Granularity) -> SplitRule {
    SplitRule {
        seed: 7,
        links: LinkRule {
            granularity,
            ..LinkRule::default()
        },
        ..SplitRule::default()
    }
}

const ALL: [Granularity; 3] = [
    Granularity::Function,
    Granularity::File,
    Granularity::Project,
];

fn places(manifest: &SplitManifest) -> BTreeMap<TaskId, (SourceGroup, Split)> {
    let place = |task: &FrozenTask| (task.id.clone(), (task.group.clone(), task.split));
    manifest.tasks.iter().map(place).collect()
}

#[test]
fn splits_are_disjoint_under_every_link_and_orders_do_not_matter() {
    for seed in 0..2 {
        for granularity in ALL {
            let mut tasks = suite(seed, 120);
            let found = evidence(&tasks);
            let first = split(&found, &rule(granularity)).unwrap();
            assert_eq!(verify(&first, &found).unwrap(), []);
            for link in links(&found, &first.rule.links) {
                let splits: BTreeSet<Split> = link
                    .members
                    .iter()
                    .map(|id| first.task(id).unwrap().split)
                    .collect();
                let groups: BTreeSet<&SourceGroup> = link
                    .members
                    .iter()
                    .map(|id| &first.task(id).unwrap().group)
                    .collect();
                assert_eq!((splits.len(), groups.len()), (1, 1), "{link:?}");
            }
            Draw::new(seed + 99).shuffle(&mut tasks);
            let mut again = Vec::new();
            // Each task by a collector of its own, as separate workers would.
            for task in &tasks {
                again.push(
                    Collector::default()
                        .evidence(task, &mut no_sources)
                        .unwrap(),
                );
            }
            assert_eq!(
                split(&again, &rule(granularity)).unwrap().to_bytes(),
                first.to_bytes()
            );
        }
    }
}

/// Links by comparing every pair of tasks alone, without signatures.
#[test]
fn whether_two_tasks_are_linked_depends_on_these_two_alone() {
    for granularity in ALL {
        let rule = rule(granularity).links;
        let found = evidence(&suite(3, 60));
        let all = links(&found, &rule);
        let mut together = BTreeSet::new();
        for link in &all {
            for a in &link.members {
                together.extend(
                    link.members
                        .iter()
                        .filter(|b| a < *b)
                        .map(|b| (a.clone(), b.clone())),
                );
            }
        }
        let mut alone = BTreeSet::new();
        for (at, a) in found.iter().enumerate() {
            for b in &found[at + 1..] {
                if !links(&[a.clone(), b.clone()], &rule).is_empty() {
                    alone.insert((a.id.clone(), b.id.clone()));
                }
            }
        }
        assert!(alone.len() > 20);
        assert_eq!(together, alone);
    }
}

#[test]
fn additions_in_any_order_never_move_an_old_task() {
    let mut n_refused = 0;
    for seed in 0..3 {
        for granularity in [Granularity::Function, Granularity::File] {
            let mut draw = Draw::new(seed + 1000);
            let mut tasks = suite(seed, 120);
            draw.shuffle(&mut tasks);
            let mut there: Vec<Task> = tasks.drain(..40).collect();
            let mut manifest = split(&evidence(&there), &rule(granularity)).unwrap();
            while !tasks.is_empty() {
                let n = (1 + draw.below(40) as usize).min(tasks.len());
                let batch: Vec<Task> = tasks.drain(..n).collect();
                let before = places(&manifest);
                there.extend(batch.clone());
                let extension = extend(&manifest, &evidence(&there)).unwrap();
                let mut backwards = there.clone();
                backwards.reverse();
                assert_eq!(extend(&manifest, &evidence(&backwards)).unwrap(), extension);
                let after = places(&extension.manifest);
                for (id, place) in &before {
                    assert_eq!(after.get(id), Some(place));
                }
                assert_eq!(extension.added.len() + extension.refused.len(), batch.len());
                for refused in &extension.refused {
                    let splits: BTreeSet<Split> = refused.because.iter().map(|b| b.split).collect();
                    assert!(splits.len() > 1, "{refused:?}");
                }
                n_refused += extension.refused.len();
                there.retain(|task| {
                    extension
                        .refused
                        .iter()
                        .all(|refused| refused.id != task.id)
                });
                manifest = extension.manifest;
                assert_eq!(verify(&manifest, &evidence(&there)).unwrap(), []);
            }
        }
    }
    assert!(n_refused > 10, "{n_refused}");
}

#[test]
fn a_task_that_would_join_two_splits_is_refused_with_both_links() {
    let tasks = [
        task("a", "one", "one/a.py", &body(1)),
        task("b", "two", "two/b.py", &body(2)),
    ];
    let rule = SplitRule {
        hold_out: [
            ("one".to_owned(), Split::Train),
            ("two".to_owned(), Split::Test),
        ]
        .into(),
        ..SplitRule::default()
    };
    let manifest = split(&evidence(&tasks), &rule).unwrap();
    let bridge = task("c", "three", "three/c.py", &(body(1) + &body(2)));
    let mut copied = bridge.clone();
    // Half of each is not alike enough; being the same change as one and a copy of the other is.
    copied.metadata.insert("commit".into(), "x".into());
    let with_both = |bridge: Task| {
        let mut a = tasks[0].clone();
        a.metadata.insert("commit".into(), "x".into());
        [a, tasks[1].clone(), bridge]
    };
    assert_eq!(
        extend(
            &manifest,
            &evidence(&[tasks[0].clone(), tasks[1].clone(), bridge])
        )
        .unwrap()
        .refused,
        []
    );
    let tasks = with_both(task("c", "three", "three/c.py", &body(2)));
    let manifest = split(&evidence(&tasks[..2]), &rule).unwrap();
    let mut tasks = tasks.to_vec();
    tasks[2].metadata = copied.metadata;
    tasks.push(task("d", "three", "three/c.py", &body(4)));
    let extension = extend(&manifest, &evidence(&tasks)).unwrap();
    assert_eq!(extension.added, [TaskId::new("d").unwrap()]);
    assert_eq!(extension.refused.len(), 1);
    let because: Vec<(Split, &str, &str)> = extension.refused[0]
        .because
        .iter()
        .map(|b| {
            let (task, reason) = (b.task.as_ref().unwrap(), b.reason.as_ref().unwrap());
            (b.split, task.as_str(), reason.kind())
        })
        .collect();
    assert_eq!(
        because,
        [
            (Split::Train, "a", "same-lineage"),
            (Split::Test, "b", "near-duplicate-code")
        ]
    );
}

#[test]
fn every_damage_is_found() {
    let tasks = suite(5, 80);
    let found = evidence(&tasks);
    let good = split(&found, &rule(Granularity::File)).unwrap();
    let kinds = |manifest: &SplitManifest, found: &[Evidence]| -> BTreeSet<String> {
        verify(manifest, found)
            .unwrap()
            .iter()
            .map(|finding| {
                serde_json::to_value(finding).unwrap()["kind"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    };
    // A task moved to another split, with a digest that fits.
    let mut moved = good.clone();
    let group = moved
        .groups
        .iter()
        .find(|g| g.members.len() > 2 && g.split == Split::Train)
        .unwrap()
        .clone();
    moved
        .tasks
        .iter_mut()
        .find(|t| t.id == group.members[0])
        .unwrap()
        .split = Split::Test;
    assert!(kinds(&moved, &found).contains("edited"));
    moved.digest = moved.computed_digest();
    let got = kinds(&moved, &found);
    assert!(
        got.contains("crossing") && got.contains("group-contradicts") && !got.contains("edited")
    );
    // The whole account made consistent again: still two groups that share code.
    let name = SourceGroup::new("alone").unwrap();
    let task = moved
        .tasks
        .iter_mut()
        .find(|t| t.id == group.members[0])
        .unwrap();
    task.group = name.clone();
    let old = moved
        .groups
        .iter_mut()
        .find(|g| g.name == group.name)
        .unwrap();
    old.members.remove(0);
    moved.groups.push(FrozenGroup {
        name,
        split: Split::Test,
        members: vec![group.members[0].clone()],
        links: Vec::new(),
    });
    moved.digest = moved.computed_digest();
    assert_eq!(kinds(&moved, &found), ["crossing".to_owned()].into());
    // Missing, extra, changed, double, with another split of its own.
    assert_eq!(kinds(&good, &found[1..]), ["missing".to_owned()].into());
    let mut more = tasks.clone();
    more.push(super::tests::task("new", "other", "other/x.py", &body(77)));
    assert_eq!(kinds(&good, &evidence(&more)), ["extra".to_owned()].into());
    let mut changed = tasks.clone();
    changed[3].statement.push('!');
    assert_eq!(
        kinds(&good, &evidence(&changed)),
        ["changed".to_owned()].into()
    );
    let twice: Vec<Evidence> = found.iter().chain(&found[..1]).cloned().collect();
    assert_eq!(kinds(&good, &twice), ["duplicate".to_owned()].into());
    let mut own = tasks.clone();
    own[0].split = match good.task(&own[0].id).unwrap().split {
        Split::Train => Split::Test,
        _ => Split::Train,
    };
    assert_eq!(
        kinds(&good, &evidence(&own)),
        ["split-differs".to_owned()].into()
    );
    assert!(matches!(
        extend(&good, &evidence(&changed)),
        Err(SplitError::Moved { n: 1, .. })
    ));
}

#[test]
fn one_project_under_two_names_is_one() {
    let base = task("a", "toolz", "toolz/a.py", &body(1));
    let linked = |other: &Task| {
        let found = evidence(&[base.clone(), other.clone()]);
        let kinds: Vec<&str> = links(&found, &LinkRule::default())
            .iter()
            .map(|l| l.reason.kind())
            .collect();
        kinds.first().copied()
    };
    let mut other = task("b", "python-toolz", "src/toolz/a.py", &body(2));
    assert_eq!(linked(&other), Some("same-file"));
    other.origin.project = "unrelated".into();
    let Start::SourceDistribution { archive, .. } = &mut other.start else {
        panic!()
    };
    archive.project = "unrelated".into();
    assert_eq!(linked(&other), None);
    let Start::SourceDistribution { archive, .. } = &mut other.start else {
        panic!()
    };
    archive.sha256 = Digest::of(b"toolz");
    assert_eq!(linked(&other), Some("same-file"));
    // A copy of the function in a project of another name, once as it is and once renamed.
    let copy = task("c", "vendoring", "vendoring/_vendor/t.py", &body(1));
    assert_eq!(linked(&copy), Some("near-duplicate-code"));
    let renamed = body(1)
        .replace("value_", "v")
        .replace("compute_", "c")
        .replace("left_", "l");
    assert_eq!(linked(&task("d", "vendoring", "v/t.py", &renamed)), None);
}

#[test]
fn sizes_come_near_what_is_asked_for_in_every_project() {
    let mut draw = Draw::new(1);
    let tasks: Vec<Task> = (0..900)
        .map(|index| {
            let project = format!("project{}", index % 12);
            let file = format!("{project}/m{}.py", draw.below(25));
            task(&format!("t{index:04}"), &project, &file, &body(index))
        })
        .collect();
    let found = evidence(&tasks);
    let manifest = split(&found, &rule(Granularity::File)).unwrap();
    assert!(manifest.groups.len() >= 250, "{}", manifest.groups.len());
    let share = |split: Split, keep: &dyn Fn(&Evidence) -> bool| {
        let all: Vec<&Evidence> = found.iter().filter(|task| keep(task)).collect();
        let n = all
            .iter()
            .filter(|task| manifest.task(&task.id).unwrap().split == split)
            .count();
        n as f64 / all.len() as f64
    };
    for (split, asked) in [(Split::Train, 0.7), (Split::Dev, 0.1), (Split::Test, 0.2)] {
        assert!((share(split, &|_| true) - asked).abs() < 0.01);
        for project in 0..12 {
            let name = format!("project{project}");
            let got = share(split, &|task| task.project == name);
            assert!((got - asked).abs() < 0.06, "{name} {split:?}: {got}");
        }
    }
}

#[test]
fn the_file_comes_back_as_it_was_and_decides_when_tasks_are_read() {
    let mut tasks = suite(2, 30);
    let manifest = split(&evidence(&tasks), &rule(Granularity::File)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(SPLIT_FILE);
    manifest.write(&path).unwrap();
    assert_eq!(SplitManifest::read(&path).unwrap(), manifest);
    tasks[0].statement.push('!');
    tasks.push(task("new", "other", "other/x.py", &body(77)));
    let warnings = apply(&manifest, &mut tasks).unwrap();
    assert_eq!(warnings.len(), 2);
    assert_eq!(tasks[0].split, Split::Unassigned);
    assert_eq!(tasks[30].split, Split::Unassigned);
    for task in &tasks[1..30] {
        let frozen = manifest.task(&task.id).unwrap();
        assert_eq!(
            (task.split, &task.source_group),
            (frozen.split, &frozen.group)
        );
        // What is frozen does not change what a task is.
        assert_eq!(content_digest(task).unwrap(), frozen.digest);
    }
    let text = String::from_utf8(manifest.to_bytes()).unwrap();
    std::fs::write(&path, text.replace("\"format\": 1", "\"format\": 9")).unwrap();
    assert!(
        SplitManifest::read(&path)
            .unwrap_err()
            .to_string()
            .contains("format is 9")
    );
}

#[test]
fn a_chain_of_reasons_leads_from_one_task_to_the_other() {
    let mut a = task("a", "one", "one/a.py", &body(1));
    let mut b = task("b", "two", "two/b.py", &body(2));
    let c = task("c", "two", "two/b.py", &body(3));
    for task in [&mut a, &mut b] {
        task.metadata.insert("commit".into(), "x".into());
    }
    let links = links(&evidence(&[a.clone(), b, c.clone()]), &LinkRule::default());
    let chain: Vec<(&str, &str)> = why(&links, &a.id, &c.id)
        .into_iter()
        .map(|(link, to)| (link.reason.kind(), to.as_str()))
        .collect();
    assert_eq!(chain, [("same-lineage", "b"), ("same-file", "c")]);
    assert!(why(&links, &a.id, &a.id).is_empty());
}

#[test]
fn projects_can_be_held_out_as_a_whole() {
    let tasks = suite(4, 90);
    let found = evidence(&tasks);
    let mut rule = rule(Granularity::File);
    rule.hold_out.insert("Project3".into(), Split::Test);
    let manifest = split(&found, &rule).unwrap();
    for task in found.iter().filter(|task| task.project == "project3") {
        assert_eq!(manifest.task(&task.id).unwrap().split, Split::Test);
    }
    rule.hold_out.insert("absent".into(), Split::Test);
    assert!(matches!(
        split(&found, &rule),
        Err(SplitError::UnknownProject(_))
    ));
    assert!("8:1:1".parse::<Fractions>().is_ok());
    for wrong in ["", "0:0:0", "1:2", "1:2:x", "1:2:3:4"] {
        assert!(wrong.parse::<Fractions>().is_err(), "{wrong}");
    }
}
