//! A made-up evaluation of any size that looks like a real one, and says that it is made up.
//!
//! It holds one of everything a report can show: all outcomes, lost trials, tampering, hostile
//! texts, and a metric log with values that are not numbers.

use std::collections::BTreeMap;

use temper_core::{
    AgentName, Boundary, Bytes, Digest, Failure, Message, Patch, Role, SourceGroup, TaskId,
    TestOutcome, Trial, Verdict,
    manifest::{Manifest, Producer},
    task::{Origin, Split},
    trajectory::{Action, End, Exit, FinishReason, Header, Limit, Record, Step, StepOutcome},
    trial::{PatchSource, Timing},
    usage::{MicroDollars, Usage},
    verdict::{Layer, LayerName, LayerOutcome, Resolution, Tampering},
};
use temper_eval::{Arm, Comparison, MetricLog, Options, compare, random::Generator};
use temper_report::{ArmInput, Driver, MetricInput, ReportError, ReportInput, TaskInput};

/// Text that would act if any part of the page took it for markup, or a terminal for control.
pub const HOSTILE: &str = "</script><script>window.broken=1</script><img src=x onerror=\"window.broken=1\">\u{1b}[31mred\u{1b}[0m \u{1b}[2J \u{202e}live\u{202c} <!-- ' & \"";

/// A task of the sample.
pub struct SampleTask {
    id: TaskId,
    digest: Digest,
    group: SourceGroup,
    statement: String,
    origin: Origin,
}

/// An arm of the sample.
pub struct SampleArm {
    name: AgentName,
    driver: Driver,
    description: serde_json::Value,
    manifest: Manifest,
    protections: serde_json::Value,
    /// Its trials.
    pub trials: Vec<Trial>,
}

/// Everything.
pub struct Sample {
    /// Tasks.
    pub tasks: Vec<SampleTask>,
    /// Arms.
    pub arms: Vec<SampleArm>,
    /// Numbers.
    pub comparison: Comparison,
    metrics: MetricLog,
}

const METRICS: &str = include_str!("metrics.jsonl");

const PROJECTS: [(&str, &str, &[&str]); 5] = [
    ("calendar-kit", "MIT", &["recurrence", "parsing", "zones"]),
    ("tabular", "BSD-3-Clause", &["reader", "writer", "index"]),
    ("pathways", "Apache-2.0", &["glob", "walk"]),
    ("wireformat", "MIT", &["varint", "frames", "schema"]),
    ("ledger-lite", "ISC", &["rounding", "report"]),
];

const KINDS: [&str; 6] = [
    "off-by-one",
    "swapped-arguments",
    "missing-copy",
    "wrong-default",
    "lost-timezone",
    "empty-input",
];

impl Sample {
    /// Makes `n_tasks` tasks with `n_attempts` attempts in each of one to three arms.
    pub fn new(n_tasks: usize, n_attempts: u32, n_arms: usize) -> Self {
        let mut random = Generator::new(20_260_101);
        let tasks: Vec<SampleTask> = (0..n_tasks).map(|i| task(i, &mut random)).collect();
        let arms: Vec<SampleArm> = [
            ("baseline-loop", 0.42),
            ("patient-loop", 0.55),
            ("third-loop", 0.75),
        ][..n_arms]
            .iter()
            .map(|&(name, skill)| arm(name, skill, &tasks, n_attempts, &mut random))
            .collect();
        let views: Vec<Arm<'_>> = arms
            .iter()
            .map(|arm| Arm {
                name: arm.name.clone(),
                trials: &arm.trials,
            })
            .collect();
        let comparison = compare(
            &views,
            &Options {
                n_resamples: 10_000,
                seed: 1,
            },
        )
        .unwrap();
        let metrics = MetricLog::read(METRICS.as_bytes()).unwrap();
        Sample {
            tasks,
            arms,
            comparison,
            metrics,
        }
    }

    /// Renders it.
    pub fn render(&self) -> Result<Vec<u8>, ReportError> {
        let input = ReportInput {
            title: "Agent loops on a sample suite".into(),
            notice: Some(
                "Sample data. Every task, trial and number on this page is made up by a seeded \
                 generator to show what a report looks like; nothing was run."
                    .into(),
            ),
            generated_at: "2026-01-01T12:00:00Z".into(),
            producer: producer(),
            comparison: &self.comparison,
            aggregate: None,
            arms: self
                .arms
                .iter()
                .map(|arm| ArmInput {
                    job: format!("jobs/{}", arm.name),
                    driver: arm.driver,
                    description: &arm.description,
                    manifest: &arm.manifest,
                    protections: &arm.protections,
                    trials: &arm.trials,
                })
                .collect(),
            tasks: self
                .tasks
                .iter()
                .map(|task| TaskInput {
                    id: &task.id,
                    digest: &task.digest,
                    source_group: &task.group,
                    split: Split::Test,
                    statement: &task.statement,
                    origin: &task.origin,
                })
                .collect(),
            training: None,
            metrics: vec![MetricInput {
                label: "Made-up metric log".into(),
                log: &self.metrics,
            }],
            claims: None,
            records: &[],
        };
        let statements: BTreeMap<&TaskId, &str> = self
            .tasks
            .iter()
            .map(|task| (&task.id, task.statement.as_str()))
            .collect();
        temper_report::render(&input, &mut |arm, trial| {
            if trial.failure.is_some() {
                return Err("the trial has no trajectory: its sandbox did not start".into());
            }
            Ok(trajectory(
                &self.arms[arm],
                trial,
                statements[&trial.task_id],
            ))
        })
    }
}

fn producer() -> Producer {
    Producer {
        name: "temper".into(),
        version: "0.1.0".into(),
    }
}

fn pick<'a, T>(random: &mut Generator, items: &'a [T]) -> &'a T {
    &items[random.index(items.len())]
}

fn task(index: usize, random: &mut Generator) -> SampleTask {
    let (project, licence, modules) = PROJECTS[index % PROJECTS.len()];
    let module = pick(random, modules);
    let kind = pick(random, &KINDS);
    let id = TaskId::new(format!("{project}-{module}-{kind}-{index:04}")).unwrap();
    let hostile = if index == 3 { HOSTILE } else { "" };
    SampleTask {
        digest: Digest::of(id.as_str().as_bytes()),
        group: SourceGroup::new(format!("{project}/{module}")).unwrap(),
        statement: format!(
            "`{project}.{module}` gives a wrong result for an edge case ({kind}).\n\n\
             Calling it with an empty sequence, or with a single element, raises an exception or \
             returns the previous value. The public tests show one such case; there are others. \
             Fix the function without changing its signature. {hostile}\n\n\
             Run the public tests with:\n\n    python -m pytest -q {project}/tests/test_{module}.py\n"
        ),
        origin: Origin {
            project: project.into(),
            version: Some("2.4.0".into()),
            licence: Some(licence.into()),
            url: None,
            bug: Some(format!("mutation:{kind}")),
        },
        id,
    }
}

fn arm(
    name: &str,
    skill: f64,
    tasks: &[SampleTask],
    n_attempts: u32,
    random: &mut Generator,
) -> SampleArm {
    let is_model = name != "baseline-loop";
    let name = AgentName::new(name).unwrap();
    let mut trials = Vec::new();
    for (index, task) in tasks.iter().enumerate() {
        for attempt in 0..n_attempts {
            trials.push(trial(&name, is_model, skill, index, task, attempt, random));
        }
    }
    SampleArm {
        driver: if is_model {
            Driver::LanguageModel
        } else {
            Driver::Program
        },
        description: if is_model {
            serde_json::json!({"kind": "openai", "model": "made-up-coder", "temperature": 0.2})
        } else {
            serde_json::json!({"kind": "baseline", "program": "made-up-heuristics"})
        },
        manifest: Manifest {
            format: Manifest::FORMAT,
            kind: "job".into(),
            producer: producer(),
            inputs: [("suite", "profile"), ("profile", "text")]
                .map(|(key, text)| (key.to_owned(), Digest::of(text.as_bytes())))
                .into(),
            config: serde_json::json!({"step_limit": 30, "parallel": 4, "timeout_seconds": 60}),
            seed: 7,
        },
        protections: serde_json::json!({
            "host-files-hidden": {"strength": "enforced", "by": "mount namespace"},
            "network-isolated": {"strength": "enforced", "by": "network namespace"},
            "processes-isolated": {"strength": "enforced", "by": "pid namespace"},
            "memory-limit": {"strength": "per-process", "by": "RLIMIT_AS"},
            "landlock": {"strength": "absent", "why": "the kernel does not offer it"},
        }),
        name,
        trials,
    }
}

fn trial(
    agent: &AgentName,
    is_model: bool,
    skill: f64,
    index: usize,
    task: &SampleTask,
    attempt: u32,
    random: &mut Generator,
) -> Trial {
    // A task's difficulty is the same in both arms, so outcomes correlate as real ones do.
    let difficulty = Generator::new(index as u64).unit();
    let draw = random.unit();
    let resolution = if draw > 0.975 {
        Resolution::Lost
    } else if difficulty * 0.7 + random.unit() * 0.3 < skill {
        Resolution::Resolved
    } else {
        *pick(
            random,
            &[
                Resolution::Unresolved,
                Resolution::Unresolved,
                Resolution::Unresolved,
                Resolution::Partial,
                Resolution::EmptyPatch,
                Resolution::InvalidPatch,
            ],
        )
    };
    let lost = resolution == Resolution::Lost;
    let n_steps = if lost { 0 } else { 3 + random.index(18) as u32 };
    let failure = lost.then(|| Failure {
        boundary: *pick(random, &[Boundary::Sandbox, Boundary::Model]),
        class: "StartFailed".into(),
        message: "made-up failure: the sandbox did not start within 30 s".into(),
        retryable: true,
    });
    let limit = random.unit() > 0.9;
    let patch = match resolution {
        Resolution::Lost => None,
        Resolution::EmptyPatch => Some(Patch::default()),
        _ => Some(patch(task, agent, attempt, index)),
    };
    let (model, action) = (
        f64::from(n_steps) * (1.0 + 3.0 * random.unit()),
        f64::from(n_steps) * random.unit(),
    );
    Trial {
        format: Trial::FORMAT,
        task_id: task.id.clone(),
        task_digest: task.digest.clone(),
        source_group: task.group.clone(),
        agent: agent.clone(),
        attempt,
        seed: random.next_bits() >> 32,
        exit: match &failure {
            Some(failure) => Exit::Failed {
                failure: failure.clone(),
            },
            None if limit => Exit::LimitReached {
                limit: Limit::Steps,
            },
            None => Exit::Submitted,
        },
        patch,
        patch_source: PatchSource::WorkTree,
        verdict: verdict(task, resolution, index, is_model),
        failure,
        n_model_calls: n_steps,
        n_steps,
        usage: if is_model && !lost {
            Usage {
                prompt_tokens: Some(u64::from(n_steps) * (2_500 + random.index(2_000) as u64)),
                cached_tokens: Some(u64::from(n_steps) * 1_800),
                completion_tokens: Some(u64::from(n_steps) * (150 + random.index(200) as u64)),
            }
        } else {
            Usage::default()
        },
        cost: (is_model && !lost).then(|| MicroDollars(u64::from(n_steps) * 900)),
        timing: Timing {
            setup_seconds: 0.4 + random.unit(),
            model_seconds: if is_model { model } else { model * 0.02 },
            action_seconds: action,
            grading_seconds: 1.0 + 2.0 * random.unit(),
            total_seconds: 2.5 + action + if is_model { model } else { model * 0.02 },
        },
        n_retries: u32::from(lost) * 2,
        started_at: "2026-01-01T10:00:00Z".into(),
        finished_at: "2026-01-01T10:01:00Z".into(),
    }
}

fn verdict(task: &SampleTask, resolution: Resolution, index: usize, is_model: bool) -> Verdict {
    let mut verdict = Verdict::bare(resolution, "pytest runner 1, layered");
    verdict.wall_seconds = 1.7;
    if matches!(resolution, Resolution::Lost | Resolution::InvalidPatch) {
        verdict.detail = "made-up: src/module.py: hunk 1 does not apply at line 14".into();
        return verdict;
    }
    let solved = resolution == Resolution::Resolved;
    let file = format!("tests/test_{}.py", task.group.as_str().replace('/', "_"));
    let outcome = |passed: bool| {
        if passed {
            TestOutcome::Passed
        } else {
            TestOutcome::Failed
        }
    };
    let test = |name: &str| temper_core::TestId(format!("{file}::{name}"));
    verdict.fail_to_pass = [
        (
            test("test_empty_sequence"),
            outcome(solved || resolution == Resolution::Partial),
        ),
        (test("test_single_element[deg - x]"), outcome(solved)),
    ]
    .into();
    verdict.pass_to_pass = (0..40)
        .map(|i| {
            (
                test(&format!("test_regular_case[{i}]")),
                outcome(solved || i != 7),
            )
        })
        .collect();
    if index == 3 {
        verdict
            .pass_to_pass
            .insert(temper_core::TestId(HOSTILE.into()), TestOutcome::Passed);
    }
    let layer = |name, outcome, seconds| Layer {
        name,
        outcome,
        tests: BTreeMap::new(),
        detail: String::new(),
        wall_seconds: seconds,
    };
    verdict.layers = vec![
        layer(LayerName::Syntax, LayerOutcome::Passed, 0.05),
        layer(LayerName::Public, LayerOutcome::Passed, 0.6),
        Layer {
            tests: verdict.fail_to_pass.clone(),
            detail: if solved {
                "all tests hold".into()
            } else {
                "test_single_element failed first".into()
            },
            ..layer(
                LayerName::Hidden,
                if solved {
                    LayerOutcome::Passed
                } else {
                    LayerOutcome::Failed
                },
                1.0,
            )
        },
    ];
    if is_model && index % 17 == 5 {
        verdict.tampering.push(Tampering::RunnerFileChanged {
            path: "conftest.py".into(),
        });
    }
    verdict
}

fn patch(task: &SampleTask, agent: &AgentName, attempt: u32, index: usize) -> Patch {
    // Some trials of both arms arrive at the same bytes.
    let who = if index.is_multiple_of(4) {
        "shared".to_owned()
    } else {
        format!("{agent} {attempt}")
    };
    let module = task
        .group
        .as_str()
        .split('/')
        .next_back()
        .unwrap_or("module");
    let hostile = if index == 3 { HOSTILE } else { "" };
    let text = format!(
        "diff --git a/src/{module}.py b/src/{module}.py\nindex 3b18e51..8f2c1aa 100644\n\
         --- a/src/{module}.py\n+++ b/src/{module}.py\n@@ -12,9 +12,11 @@ def resolve(values, default=None):\n     \
         \"\"\"Return the last value, or the default.\"\"\"\n-    last = values[-1]\n--- a removed line that looks like a header\n\
         +    # {who}\n+    if not values:\n+        return default\n+    last = values[len(values) - 1]\n     \
         total = 0\n     for value in values:\n         total += value\n     check(total)\n     log(last)\n-    return last  \n\
         +    return last  # {hostile}\n\
         diff --git a/README.md b/README.md\nindex 1111111..2222222 100644\n--- a/README.md\n+++ b/README.md\n\
         @@ -1,2 +1,3 @@\n # {module}\n+Edge cases are covered.\n A small library.\n\\ No newline at end of file\n"
    );
    Patch(Bytes(text.into_bytes()))
}

fn trajectory(arm: &SampleArm, trial: &Trial, statement: &str) -> Vec<Record> {
    let mut random = Generator::new(trial.seed);
    let mut records = vec![
        Record::Header(Header {
            branch: None,
            format: Header::FORMAT,
            task_id: trial.task_id.clone(),
            agent: trial.agent.clone(),
            attempt: trial.attempt,
            seed: trial.seed,
            profile: "sample".into(),
            profile_digest: Digest::of(b"sample"),
            config: serde_json::json!({"step_limit": 30, "protocol": "bash-block"}),
            model: arm.description.clone(),
            sandbox: arm.protections.clone(),
            started_at: trial.started_at.clone(),
        }),
        Record::Prompt {
            message: Message::text(
                Role::System,
                "You work in a repository with one command per turn. Reply with a thought and one \
                 fenced bash block. When you are done, submit.\n",
            ),
        },
        Record::Prompt {
            message: Message::text(Role::User, statement),
        },
    ];
    for number in 1..=trial.n_steps {
        records.push(Record::Step(Box::new(step(trial, number, &mut random))));
    }
    records.push(Record::End(End {
        exit: trial.exit.clone(),
        submission: None,
        message: None,
        usage: trial.usage,
        cost: trial.cost,
        attempts: Vec::new(),
        n_model_calls: trial.n_model_calls,
        finished_at: trial.finished_at.clone(),
    }));
    records
}

const WORDS: [&str; 24] = [
    "value", "index", "window", "offset", "buffer", "result", "token", "cursor", "parent",
    "branch", "record", "schema", "column", "header", "cache", "length", "handle", "scope",
    "event", "target", "source", "limit", "factor", "stamp",
];

fn code(random: &mut Generator, n_lines: usize) -> String {
    (0..n_lines)
        .map(|line| {
            let (a, b, c) = (
                *pick(random, &WORDS),
                *pick(random, &WORDS),
                random.index(500),
            );
            match line % 5 {
                0 => format!("def {a}_{b}_{c}(self, {b}, {a}=None):\n"),
                1 => format!("    if {b} is None or len({a}) <= {c}:\n"),
                2 => format!("        raise ValueError(f\"{a} {{{b}!r}} exceeds {c}\")\n"),
                3 => format!("    {a} = self.{b}.get({c}, default={a})\n"),
                _ => format!("    return {a}[{b}:{c}]\n"),
            }
        })
        .collect()
}

fn step(trial: &Trial, number: u32, random: &mut Generator) -> Step {
    let last = number == trial.n_steps;
    let format_error = !last && random.unit() > 0.95;
    let timed_out = !last && !format_error && random.unit() > 0.97;
    let (thought, command, output) = match number % 4 {
        1 => (
            "Let me look at the module and at the tests that fail.",
            format!("sed -n '1,{}p' src/module.py", 20 + random.index(60)),
            {
                let n = 15 + random.index(50);
                code(random, n)
            },
        ),
        2 => (
            "I want to see where this is used before I change it.",
            format!(
                "grep -rn '{}' --include='*.py' . | head -40",
                pick(random, &WORDS)
            ),
            (0..random.index(30))
                .map(|i| {
                    format!(
                        "./src/{}.py:{}:    {} = {}\n",
                        pick(random, &WORDS),
                        10 + i * 7,
                        pick(random, &WORDS),
                        pick(random, &WORDS)
                    )
                })
                .collect(),
        ),
        3 => (
            "An empty sequence falls through to the last line. I will handle it first.",
            format!(
                "python - <<'EOF'\nfrom pathlib import Path\npath = Path('src/module.py')\ntext = path.read_text()\ntext = text.replace('values[-1]', 'values[len(values) - {}]')\npath.write_text(text)\nEOF",
                1 + random.index(3)
            ),
            String::new(),
        ),
        _ => ("Now the public tests.", "python -m pytest -q".to_owned(), {
            let n = 20 + random.index(60);
            format!(
                "{}\n=================================== FAILURES ===================================\n{}\u{1b}[31m1 failed\u{1b}[0m, {} passed in 0.{}s\n",
                ".".repeat(72),
                code(random, n),
                random.index(90),
                random.index(99)
            )
        }),
    };
    let hostile = if trial.task_id.as_str().ends_with("-0003") {
        HOSTILE
    } else {
        ""
    };
    let output = format!("{output}{hostile}");
    let reply = if format_error {
        format!("{thought} I would run the tests next.")
    } else {
        format!("THOUGHT: {thought} {hostile}\n\n```bash\n{command}\n```\n")
    };
    let observation = if format_error {
        "Your reply holds no fenced bash block. Reply with exactly one.".to_owned()
    } else {
        format!(
            "<returncode>{}</returncode>\n<output>\n{output}</output>",
            i32::from(number.is_multiple_of(4))
        )
    };
    Step {
        number,
        reply: Message::text(Role::Assistant, reply),
        finish: FinishReason::Stop,
        actions: if format_error {
            Vec::new()
        } else {
            vec![Action {
                command,
                tool_call_id: None,
                exit_code: (!timed_out).then_some(i32::from(number.is_multiple_of(4))),
                timed_out,
                output: Bytes(output.into_bytes()),
                omitted_bytes: 0,
                wall_seconds: 0.2 + random.unit(),
            }]
        },
        observations: vec![Message::text(Role::User, observation)],
        outcome: match (last, format_error, timed_out) {
            (true, ..) => StepOutcome::Submitted,
            (_, true, _) => StepOutcome::FormatError,
            (.., true) => StepOutcome::TimedOut,
            _ => StepOutcome::Ran,
        },
        usage: if trial.usage == Usage::default() {
            Usage::default()
        } else {
            Usage {
                prompt_tokens: Some(1_500 + 900 * u64::from(number)),
                cached_tokens: None,
                completion_tokens: Some(180),
            }
        },
        cost: None,
        tokens: None,
        attempts: Vec::new(),
        model_seconds: 1.0 + 3.0 * random.unit(),
        action_seconds: 0.2 + random.unit(),
    }
}
