//! Candidates collected in real sandboxes: what is kept, judged, taken again and continued.
//!
//! Its own `main`, because the embedded sandbox starts this program again as its launcher.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::ExitCode,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use temper_agent::{
    collect::{
        Branches, Candidate, CandidateKey, CollectTask, Collection, Graded, Progress, Run, Store,
        StoreError, TeacherKind, collect, fingerprint,
    },
    model::{Model, ModelError, ModelFactory, ModelReply, ModelRequest},
    profile::{ProfileName, ResolvedProfile},
    trajectory_file,
    trial::TrialContext,
};
use temper_core::{
    AgentName, Digest, Message, Patch, PreparedTask, Role, SourceGroup, Split, Task, TaskId,
    task::{Environment, Oracle, Origin, Start, TaskFormat, Verifier},
    trajectory::FinishReason,
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Demand, Limits, Network, namespaces::Namespaces};

/// Looks, writes a number that depends on its seed, tests it, and submits. In every call it says
/// how long the conversation was that it was shown.
struct Guesser {
    n_calls: std::sync::Arc<AtomicU32>,
}

struct Guess {
    seed: u64,
    n_calls: std::sync::Arc<AtomicU32>,
}

impl ModelFactory for Guesser {
    fn describe(&self) -> serde_json::Value {
        serde_json::json!({ "kind": "guesser" })
    }

    fn is_language_model(&self) -> bool {
        false
    }

    fn open(&self, _: &PreparedTask, seed: u64) -> Result<Box<dyn Model>, ModelError> {
        let n_calls = std::sync::Arc::clone(&self.n_calls);
        Ok(Box::new(Guess { seed, n_calls }))
    }
}

impl Model for Guess {
    fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
        self.n_calls.fetch_add(1, Ordering::Relaxed);
        let n_replies = request
            .messages
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .count();
        let guess = self.seed % 2;
        let command = match n_replies {
            0 => "cat number; echo note > /tmp/note".to_owned(),
            1 => format!("cat /tmp/note && echo {guess} > number"),
            2 => "cat number".to_owned(),
            _ => "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT".to_owned(),
        };
        let content = format!("THOUGHT: go\n\n```bash\n{command}\n```");
        Ok(ModelReply {
            message: Message::text(Role::Assistant, content),
            finish: FinishReason::Stop,
            usage: Usage {
                prompt_tokens: Some(100 * (n_replies as u64 + 1)),
                cached_tokens: None,
                completion_tokens: Some(10),
            },
            cost: Some(MicroDollars(7)),
            tokens: None,
            attempts: Vec::new(),
        })
    }
}

/// A task that is solved when the file holds a 1.
struct Place {
    directory: tempfile::TempDir,
    profile: ResolvedProfile,
    backend: Namespaces,
    cancel: AtomicBool,
    models: Guesser,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(at("start")).unwrap();
        std::fs::write(at("start/number"), "5\n").unwrap();
        std::fs::create_dir_all(at("tests")).unwrap();
        let test = "#!/bin/bash\nmkdir -p /logs/verifier\n\
                    if [ \"$(cat number)\" = 1 ]; then r=1; else r=0; fi\n\
                    echo $r > /logs/verifier/reward.txt\n";
        std::fs::write(at("tests/test.sh"), test).unwrap();
        Place {
            directory,
            profile: ResolvedProfile::embedded(ProfileName::ProjectHardened).unwrap(),
            backend: Namespaces::new(),
            cancel: AtomicBool::new(false),
            models: Guesser {
                n_calls: std::sync::Arc::default(),
            },
        }
    }

    fn prepared(&self, id: &str, split: Split) -> PreparedTask {
        let start = self.directory.path().join("start");
        PreparedTask {
            task: Task {
                id: TaskId::new(id).unwrap(),
                format: TaskFormat::Harbor,
                statement: "Write a 1.".into(),
                start: Start::Directory {
                    path: start.clone(),
                    digest: Digest::of(b"start"),
                },
                environment: Environment::Host,
                verifier: Verifier::Harbor {
                    tests: self.directory.path().join("tests"),
                    environment: BTreeMap::new(),
                    timeout_seconds: 60,
                },
                oracle: None,
                origin: Origin::default(),
                source_group: SourceGroup::new("g").unwrap(),
                split,
                metadata: serde_json::Map::new(),
                construction: None,
            },
            start_tree: Some(start),
            hidden_tests: None,
            mounts: Vec::new(),
            variables: BTreeMap::from([
                ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned()),
                ("HOME".to_owned(), "/home/agent".to_owned()),
            ]),
            image: None,
            work_tree: "/testbed".into(),
            setup: Vec::new(),
            environment_digest: Digest::of(b"environment"),
        }
    }

    fn task(&self, id: &str) -> CollectTask {
        self.prepared(id, Split::Train).try_into().unwrap()
    }

    fn run(
        &self,
        store: &Path,
        tasks: &[CollectTask],
        branches: Option<Branches>,
        on_progress: &(dyn Fn(Progress<'_>) + Sync),
    ) -> Run {
        let context = TrialContext {
            agent: AgentName::new("guesser").unwrap(),
            profile: &self.profile,
            models: &self.models,
            tasks: BTreeMap::new(),
            backend: &self.backend,
            limits: Limits::default(),
            demand: Demand::default(),
            network: Network::None,
            wall_limit: Duration::from_secs(120),
            deadline: None,
            seed: 1,
            cancel: &self.cancel,
            is_job_limit: &|_| false,
            now: &|| "2000-01-01T00:00:00Z".into(),
        };
        let collection = Collection {
            context: &context,
            kind: TeacherKind::Policy,
            n_candidates: 4,
            branches,
            workers: 2,
            max_retries: 0,
        };
        let store = Store::open(store).unwrap();
        collect(&collection, tasks, &store, on_progress).unwrap()
    }

    fn store(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn n_calls(&self) -> u32 {
        self.models.n_calls.swap(0, Ordering::Relaxed)
    }
}

fn key(run: &Run, name: &str) -> CandidateKey {
    CandidateKey {
        content: run.tasks[0].content.clone(),
        request: run.request.clone(),
        name: name.into(),
    }
}

fn both(store: &Store, key: &CandidateKey) -> (Candidate, Graded) {
    (
        store.candidate(key).unwrap().unwrap(),
        store.graded(key).unwrap().unwrap(),
    )
}

fn candidates_are_kept_judged_and_taken_again() {
    let place = Place::new();
    let store = place.store("a");
    let first = place.run(&store, &[place.task("one")], None, &|_| {});
    assert_eq!(first.lost, []);
    assert_eq!(place.n_calls(), 16);
    let verified: Vec<_> = first.tasks[0].candidates.values().collect();
    assert_eq!(verified.len(), 4);
    let solved = verified.iter().filter(|v| ***v == Some(true)).count();
    assert!(
        (1..4).contains(&solved),
        "the seeds give both: {verified:?}"
    );
    assert_eq!(first.reused.n_candidates, 0);
    assert_eq!(first.total.money, MicroDollars(16 * 7));
    assert_eq!(first.saved(), [Some(0.0); 4]);
    {
        let opened = Store::open(&store).unwrap();
        assert!(matches!(Store::open(&store), Err(StoreError::Busy(_))));
        for (name, verified) in &first.tasks[0].candidates {
            let (candidate, graded) = both(&opened, &key(&first, name));
            assert_eq!(candidate.teacher.kind, TeacherKind::Policy);
            assert_eq!(graded.replay.same_patch, Some(true));
            assert_eq!(graded.replay.n_same_output, 4);
            assert_eq!(Some(graded.verified()), *verified);
            assert_eq!(candidate.patch.as_ref(), Some(&graded.patch));
            let raw = opened.raw_directory(&candidate.key);
            let text = std::fs::read(raw.join("patch.diff")).unwrap();
            assert_eq!(Patch(text.into()).digest(), graded.patch);
        }
        let spent = opened.spent(&first.request).unwrap();
        assert_eq!((spent.n_calls, spent.money), (16, MicroDollars(112)));
    }

    // Under another name, and beside a task that is new, nothing of the old one is done again.
    let mut changed = place.prepared("new", Split::Train);
    changed.task.statement.push_str(" Please.");
    let tasks = [place.task("renamed"), changed.try_into().unwrap()];
    let second = place.run(&store, &tasks, None, &|_| {});
    assert_eq!(place.n_calls(), 16);
    assert_eq!(second.tasks[0].candidates, first.tasks[0].candidates);
    assert_eq!(
        (second.reused.n_candidates, second.total.n_candidates),
        (4, 8)
    );
    assert_eq!(second.saved()[0], Some(0.5));
    // One content under two names counts once.
    let third = place.run(&store, &[place.task("x"), place.task("y")], None, &|_| {});
    assert_eq!((place.n_calls(), third.total.n_candidates), (0, 4));
    assert_eq!(third.tasks[0].candidates, third.tasks[1].candidates);

    // The same in another place gives the same candidates.
    let again = place.run(&place.store("b"), &[place.task("z")], None, &|_| {});
    assert_eq!(again.tasks[0].candidates, first.tasks[0].candidates);
}

fn held_out_tasks_cannot_be_given() {
    let place = Place::new();
    for split in [Split::Dev, Split::Test, Split::Unassigned] {
        assert!(CollectTask::try_from(place.prepared("t", split)).is_err());
    }
}

fn a_fingerprint_is_of_the_content() {
    let place = Place::new();
    let one = place.prepared("one", Split::Train);
    let mut other = place.prepared("other", Split::Test);
    other.task.source_group = SourceGroup::new("h").unwrap();
    other.task.origin.project = "p".into();
    other.task.oracle = Some(Oracle::Patch {
        patch: Patch::default(),
    });
    other.task.metadata.insert("k".into(), 1.into());
    assert_eq!(fingerprint(&one), fingerprint(&other));
    type Change = fn(&mut PreparedTask);
    let changes: [Change; 3] = [
        |task| task.task.statement.push('x'),
        |task| task.environment_digest = Digest::of(b"x"),
        |task| {
            if let Verifier::Harbor {
                timeout_seconds, ..
            } = &mut task.task.verifier
            {
                *timeout_seconds += 1;
            }
        },
    ];
    for change in changes {
        let mut changed = one.clone();
        change(&mut changed);
        assert_ne!(fingerprint(&one), fingerprint(&changed));
    }
}

fn a_stopped_run_is_taken_up() {
    let place = Place::new();
    let store = place.store("a");
    let tasks = [place.task("one")];
    let stopped = place.run(&store, &tasks, None, &|_| {
        place.cancel.store(true, Ordering::Relaxed);
    });
    assert!(stopped.n_left > 0, "{stopped:?}");
    place.cancel.store(false, Ordering::Relaxed);
    let n_before = place.n_calls();
    let whole = place.run(&store, &tasks, None, &|_| {});
    assert_eq!((whole.n_left, whole.total.n_candidates), (0, 4));
    assert_eq!(whole.reused.n_candidates, stopped.total.n_candidates);
    assert!(n_before + place.n_calls() <= 16 + 8);
    let elsewhere = place.run(&place.store("b"), &tasks, None, &|_| {});
    assert_eq!(whole.tasks, elsewhere.tasks);
}

fn failed_candidates_go_on_from_one_state() {
    let place = Place::new();
    let store = place.store("a");
    // Three steps back from the end of four is the state before the number is written.
    let branches = Branches {
        n_continuations: 4,
        steps_back: 3,
        ..Branches::default()
    };
    let run = place.run(&store, &[place.task("one")], Some(branches), &|_| {});
    assert_eq!(run.lost, []);
    let failed: BTreeSet<_> = run.tasks[0]
        .candidates
        .iter()
        .filter(|(name, verified)| !name.contains('-') && **verified == Some(false))
        .map(|(name, _)| name.clone())
        .collect();
    assert!(!failed.is_empty());
    let n_continuations = run.tasks[0]
        .candidates
        .keys()
        .filter(|n| n.contains('-'))
        .count();
    assert_eq!(n_continuations, failed.len() * 4);
    // A continuation makes three calls of its own.
    assert_eq!(place.n_calls() as usize, 16 + n_continuations * 3);
    let mut outcomes = BTreeSet::new();
    {
        let opened = Store::open(&store).unwrap();
        for parent in &failed {
            let read = |name: &str| {
                let raw = opened.raw_directory(&key(&run, name));
                trajectory_file::read(&raw.join("trajectory.jsonl")).unwrap()
            };
            let whole = read(parent);
            let mut prefixes = BTreeSet::new();
            for number in 0..4 {
                let name = format!("{parent}-1-{number}");
                let (candidate, graded) = both(&opened, &key(&run, &name));
                let branch = candidate.branch.clone().unwrap();
                assert_eq!((branch.n_steps, branch.n_tokens), (1, Some(200)));
                assert_eq!((candidate.n_steps, candidate.n_model_calls), (4, 3));
                assert_eq!(candidate.cost, Some(MicroDollars(21)));
                assert_eq!(candidate.usage.prompt_tokens, Some(200 + 300 + 400));
                let own = read(&name);
                assert_eq!(own.header.branch.as_ref(), Some(&branch));
                assert_eq!(own.prompts, whole.prompts);
                assert_eq!(own.steps[..1], whole.steps[..1]);
                // The state holds what the shared step wrote outside the work tree.
                assert_eq!(own.steps[1].actions[0].exit_code, Some(0));
                // Replayed from the start, a continuation gives its patch too.
                assert_eq!(graded.replay.same_patch, Some(true));
                outcomes.insert(graded.verified());
                prefixes.insert(branch.prefix.as_str().to_owned());
            }
            assert_eq!(prefixes.len(), 1, "siblings form a group");
        }
    }
    assert_eq!(
        outcomes.len(),
        2,
        "one state leads to pairs of right and wrong"
    );

    let again = place.run(&store, &[place.task("one")], Some(branches), &|_| {});
    assert_eq!(place.n_calls(), 0);
    assert_eq!(again.total.n_candidates, again.reused.n_candidates);
    assert_eq!(again.tasks, run.tasks);

    // Where the state is gone, the commands make it again.
    let other = place.store("b");
    place.run(&other, &[place.task("one")], None, &|_| {});
    place.n_calls();
    let later = place.run(&other, &[place.task("one")], Some(branches), &|_| {});
    assert_eq!(place.n_calls() as usize, n_continuations * 3);
    assert_eq!(later.tasks, run.tasks);
}

const CASES: [(&str, fn()); 5] = [
    (
        "candidates_are_kept_judged_and_taken_again",
        candidates_are_kept_judged_and_taken_again,
    ),
    (
        "held_out_tasks_cannot_be_given",
        held_out_tasks_cannot_be_given,
    ),
    (
        "a_fingerprint_is_of_the_content",
        a_fingerprint_is_of_the_content,
    ),
    ("a_stopped_run_is_taken_up", a_stopped_run_is_taken_up),
    (
        "failed_candidates_go_on_from_one_state",
        failed_candidates_go_on_from_one_state,
    ),
];

fn main() -> ExitCode {
    temper_sandbox::namespaces::run_launcher_if_asked();
    if std::env::var_os("TEMPER_TEST_WITHOUT_SANDBOX").is_some() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = std::env::args().skip(1);
    let filter = arguments.find(|argument| !argument.starts_with('-'));
    let mut failed = Vec::new();
    for (name, case) in CASES {
        if filter
            .as_ref()
            .is_some_and(|filter| !name.contains(filter.as_str()))
        {
            continue;
        }
        let passed = catch_unwind(AssertUnwindSafe(case)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("failed: {failed:?}");
        ExitCode::FAILURE
    }
}
