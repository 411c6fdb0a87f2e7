//! `temper train` through the binary, on a model of random weights.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use serde_json::Value;
use temper_core::{AgentName, SourceGroup, TaskId, manifest::Producer};
use temper_dataset::{
    build::{BuildReport, Dataset},
    pairs::{Hardness, PairRow},
    row::{RowOrigin, Span, SpanKind, TokenSource, TrainingRow},
    store,
};

use crate::{
    support::{Ran, Workspace, files_named, write_suite},
    tiny_model::write_model,
};

fn origin(task: &str, attempt: u32) -> RowOrigin {
    RowOrigin {
        task_id: TaskId::new(task).unwrap(),
        source_group: SourceGroup::new(format!("group/{task}")).unwrap(),
        agent: AgentName::new("teacher").unwrap(),
        attempt,
        seed: 1,
        teacher: None,
    }
}

/// A row of ids that depend on its number; the last half is learned.
fn row(task: &str, number: u32) -> TrainingRow {
    let n_ids = 16 + number as usize % 5;
    let ids = (0..n_ids as u32).map(|at| 100 + (at * 37 + number * 11) % 900);
    let span = |end, kind| Span {
        end,
        kind,
        message: None,
    };
    let spans = vec![
        span(n_ids / 2, SpanKind::Prompt),
        span(n_ids, SpanKind::Reply),
    ];
    TrainingRow::new(
        origin(task, number),
        TokenSource::Sampled,
        ids.collect(),
        spans,
        None,
    )
    .unwrap()
}

/// Writes a data set of rows and pairs of a task.
fn write_dataset(directory: &Path, task: &str, n_rows: u32) {
    let pair = |number| PairRow {
        chosen: row(task, number),
        rejected: row(task, number + 50),
        hardness: Hardness {
            passes_public: false,
            patch_distance: 0.5,
        },
        shared: None,
    };
    let dataset = Dataset {
        rows: (0..n_rows).map(|number| row(task, number)).collect(),
        pairs: (0..4).map(pair).collect(),
        groups: Vec::new(),
        report: BuildReport::default(),
    };
    let manifest = temper_core::manifest::Manifest {
        format: temper_core::manifest::Manifest::FORMAT,
        kind: store::KIND.into(),
        producer: Producer {
            name: "temper".into(),
            version: "0".into(),
        },
        inputs: Default::default(),
        config: Value::Null,
        seed: 0,
    };
    store::write(directory, &dataset, &manifest).unwrap();
}

const TRAIN: &str = r#"
[output]
directory = "run"
[model]
source = "model"
[data]
directory = "data"
[train]
rows_per_update = 2
epochs = EPOCHS
[train.method.lora]
rank = 4
alpha = 8.0
[train.optimizer]
learning_rate = 1e-2
[train.snapshots]
every_epoch = false
every_updates = 5
"#;

/// A workspace with a model, a data set of eight rows, and a recipe.
fn workspace(recipe: &str) -> Workspace {
    let workspace = Workspace::new(2);
    write_model(&workspace.path("model"));
    write_dataset(&workspace.path("data"), "train-me", 8);
    fs::write(workspace.path("recipe.toml"), recipe).unwrap();
    workspace
}

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments = vec!["train", "recipe.toml", "--device", "cpu", "--threads", "1"];
    arguments.extend(more);
    arguments
}

/// The only folder below one.
fn only(folder: &Path) -> PathBuf {
    let items: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|item| item.unwrap().path())
        .collect();
    assert_eq!(items.len(), 1, "{items:?}");
    items[0].clone()
}

fn adapter(run: &Path, update: u64) -> Vec<u8> {
    let snapshot = only(&run.join("train/seed-0")).join(format!("snapshots/update-{update:08}"));
    fs::read(snapshot.join("adapter/adapter_model.safetensors")).unwrap()
}

/// The update numbers of a run's metrics.
fn updates(run: &Path) -> Vec<u64> {
    let text = fs::read_to_string(only(&run.join("train/seed-0")).join("metrics.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["event"] == "update")
        .map(|line| line["update"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_training_stage_is_planned_done_once_and_done_anew_when_settings_change() {
    let recipe = TRAIN.replace("EPOCHS", "2");
    let workspace = workspace(&recipe);
    let run = workspace.path("run");
    let plan = workspace
        .run(&train(&["--dry-run", "--format", "json"]))
        .expect(0)
        .json();
    assert_eq!(plan["stages"][0]["stage"], "train");
    assert_eq!(plan["stages"][0]["state"], "to do");
    // Rows have 16 to 20 tokens: 16+17+18+19+20+16+17+18, twice.
    assert_eq!(plan["stages"][0]["tokens"], 282);
    assert!(plan["stages"][0]["memory_bytes"].as_u64().unwrap() > 100_000);
    assert_eq!(plan["stages"][0]["seconds"], Value::Null);
    assert!(!run.join("train").exists());
    let table = workspace.run(&train(&["--dry-run"])).expect(0).stdout;
    assert!(table.contains("unknown"), "{table}");

    let first = workspace.run(&train(&["--format", "json"])).expect(0);
    for words in [
        "self-test:",
        "update 8/8, loss",
        "tokens/s",
        "8 updates are done",
    ] {
        assert!(first.stderr.contains(words), "{words}\n{}", first.stderr);
    }
    assert_eq!(updates(&run), [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(
        first.json()["trained"][0]["snapshots"],
        serde_json::json!(["sft-seed-0-update-5", "sft-seed-0-update-8"])
    );
    assert_eq!(
        first.json()["selected"][0]["candidate"],
        "sft-seed-0-update-8"
    );
    let folder = only(&run.join("train/seed-0"));
    let events: Vec<_> = fs::read_dir(folder.join("tensorboard")).unwrap().collect();
    assert_eq!(events.len(), 1);
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("gradient_norm") && page.contains("sft, seed 0"));

    let second = workspace.run(&train(&["--format", "json"])).expect(0);
    assert!(second.stderr.contains("train seed-0: done before, skipped"));
    assert_eq!(second.json(), first.json());
    let plan = workspace
        .run(&train(&["--dry-run", "--format", "json"]))
        .expect(0)
        .json();
    assert_eq!(plan["stages"][0]["state"], "done");
    assert!(plan["stages"][0]["seconds"].as_f64().unwrap() > 0.0);

    let changed = recipe.replace("1e-2", "2e-2");
    fs::write(workspace.path("recipe.toml"), changed).unwrap();
    let third = workspace.run(&train(&["--format", "json"])).expect(0);
    assert_ne!(third.json()["trained"], first.json()["trained"]);
    assert_eq!(fs::read_dir(run.join("train/seed-0")).unwrap().count(), 2);
    // The old run is there still, and other data is another run.
    fs::write(workspace.path("recipe.toml"), &recipe).unwrap();
    let fourth = workspace.run(&train(&["--format", "json"])).expect(0);
    assert!(fourth.stderr.contains("skipped"));
    fs::remove_dir_all(workspace.path("data")).unwrap();
    write_dataset(&workspace.path("data"), "train-me", 9);
    let fifth = workspace.run(&train(&["--format", "json"])).expect(0);
    assert!(!fifth.stderr.contains("skipped"), "{}", fifth.stderr);
    assert_eq!(fs::read_dir(run.join("train/seed-0")).unwrap().count(), 3);
}

#[test]
fn a_killed_or_stopped_run_goes_on_with_the_same_bits() {
    let recipe = TRAIN.replace("EPOCHS", "50");
    let workspace = workspace(&recipe);
    let whole = workspace.path("whole");
    workspace.run(&train(&["-o", "whole", "-q"])).expect(0);
    for signal in ["KILL", "INT"] {
        let output = format!("broken-{signal}");
        let run = workspace.path(&output);
        let mut child = workspace
            .temper(&train(&["-o", &output, "-q"]))
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // The first snapshot of forty is there: work is under way and far from done.
        let started = Instant::now();
        let has_snapshot = || {
            let folder = fs::read_dir(run.join("train/seed-0")).ok()?.next()?.ok()?;
            let first = folder
                .path()
                .join("snapshots/update-00000005/complete.json");
            first.exists().then_some(())
        };
        while has_snapshot().is_none() {
            assert!(started.elapsed() < Duration::from_secs(120), "no snapshot");
            assert!(child.try_wait().unwrap().is_none(), "it ended early");
            std::thread::sleep(Duration::from_millis(2));
        }
        // A second one would do the same beside it.
        let second = workspace.run(&train(&["-o", &output])).expect(3);
        assert!(
            second.stderr.contains("another process does"),
            "{}",
            second.stderr
        );
        let sent = std::process::Command::new("kill")
            .args(["-s", signal, &child.id().to_string()])
            .status();
        assert!(sent.unwrap().success());
        let ended = Ran::new(child.wait_with_output().unwrap());
        assert!(!run.join("report.html").exists());
        if signal == "INT" {
            let ended = ended.expect(130);
            assert!(ended.stderr.contains("run the same command again"));
        }
        let plan = train(&["-o", &output, "--dry-run", "--format", "json"]);
        let plan = workspace.run(&plan).expect(0).json();
        assert_eq!(plan["stages"][0]["state"], "unfinished");
        let from = workspace
            .run(&train(&["-o", &output, "--from", "report"]))
            .expect(3);
        assert!(from.stderr.contains("is not finished"), "{}", from.stderr);
        let again = workspace.run(&train(&["-o", &output])).expect(0);
        assert!(
            again.stderr.contains("goes on after update"),
            "{}",
            again.stderr
        );
        assert_eq!(updates(&run), (1..=200).collect::<Vec<u64>>());
        assert!(adapter(&run, 200) == adapter(&whole, 200));
    }
}

#[test]
fn preference_training_goes_on_from_the_adapter_and_begins_at_ln_2() {
    let recipe = format!(
        "{}\n[preference]\nobjective.dpo.beta = 0.1\nrows_per_update = 2\n",
        TRAIN.replace("EPOCHS", "2")
    );
    let workspace = workspace(&recipe);
    let first = workspace.run(&train(&["--format", "json"])).expect(0);
    let text = first.json();
    assert_eq!(text["trained"][1]["objective"], "dpo");
    let folder = only(&workspace.path("run/preference/seed-0"));
    let metrics = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    let first_update = metrics
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .find(|line| line["event"] == "update")
        .unwrap();
    assert_eq!(first_update["metrics"]["loss"], std::f64::consts::LN_2);
    let second = workspace.run(&train(&["--format", "json"])).expect(0);
    assert_eq!(second.json(), text);
    assert!(second.stderr.contains("preference seed-0: done before"));
}

#[test]
fn a_recipe_that_is_wrong_is_refused_before_anything_is_made() {
    let recipe = TRAIN.replace("EPOCHS", "2");
    let workspace = workspace(&recipe);
    let more = "epochs = 2\nepoch = 3";
    for (text, code, words) in [
        (
            recipe.replace("epochs = 2", more),
            3,
            "unknown field `epoch`",
        ),
        (
            recipe.replace("rows_per_update = 2", "rows_per_update = 20"),
            3,
            "every update would be smaller",
        ),
        (
            recipe.replace("source = \"model\"", "source = \"nowhere\""),
            3,
            "nowhere",
        ),
        (
            recipe.replace("directory = \"data\"", "directory = \"suite\""),
            3,
            "temper dataset build",
        ),
        (
            format!("{recipe}[select]\n[suite]\nname = \"suite\"\n"),
            3,
            "none matches",
        ),
        (
            format!(
                "{recipe}[select]\n[suite]\nname = \"suite\"\n[agent]\nprofile = \"official\"\n"
            ),
            3,
            "there is no profile \"official\"",
        ),
    ] {
        fs::write(workspace.path("recipe.toml"), &text).unwrap();
        for arguments in [train(&[]), train(&["--dry-run"])] {
            let refused = workspace.run(&arguments).expect(code);
            assert!(
                refused.stderr.contains(words),
                "{words}\n{}",
                refused.stderr
            );
        }
        assert!(!workspace.path("run/train/seed-0").exists(), "{words}");
    }
    fs::write(workspace.path("recipe.toml"), &recipe).unwrap();
    for (arguments, words) in [
        (train(&["--until", "select"]), "no such stage"),
        (train(&["--from", "build"]), "no such stage"),
        (train(&["--until", "train", "--again", "x"]), "final test"),
    ] {
        let refused = workspace.run(&arguments).expect(2);
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
}

#[test]
fn a_tie_keeps_the_start_and_shared_groups_are_refused() {
    // This model's context is shorter than the prompt, so nobody solves anything.
    let recipe = format!(
        "{}\n[suite]\nname = \"suite\"\n[agent]\nsteps = 1\n[select]\ntasks = [\"*-003\"]\n[evaluate]\n\
         resamples = 200\n",
        TRAIN.replace("EPOCHS", "2")
    );
    let workspace = Workspace::new(6);
    write_suite(&workspace);
    write_model(&workspace.path("model"));
    write_dataset(&workspace.path("data"), "train-me", 8);
    fs::write(workspace.path("recipe.toml"), &recipe).unwrap();
    let tied = workspace.run(&train(&["--format", "json"])).expect(0);
    let selected = &tied.json()["selected"][0];
    assert_eq!(selected["keeps_start"], true);
    assert_eq!(selected["selection"]["chosen"], 0);
    // One dev task of two fits the pattern.
    assert_eq!(selected["selection"]["n_compared"], 1);
    assert!(
        tied.stderr.contains("no candidate to test"),
        "{}",
        tied.stderr
    );
    assert!(!workspace.path("run/final-tests.jsonl").exists());
    // The start is tested all the same: its trials are the result.
    let job = tied.json()["tested"]["baseline_job"]
        .as_str()
        .unwrap()
        .to_owned();
    let trials = files_named("trial.json", &workspace.path("run").join(job));
    assert_eq!(trials.len(), 2, "{trials:?}");
    let page = fs::read_to_string(workspace.path("run/report.html")).unwrap();
    assert!(page.contains("which was kept"));

    the_context_gate_is_that_of_a_run(&workspace, &recipe);

    // A row of a dev task's group, though that task does not select, and then a dev task of a test
    // task's group.
    fs::rename(workspace.path("data"), workspace.path("good")).unwrap();
    write_dataset(&workspace.path("data"), "answer-002", 8);
    let refused = workspace.run(&train(&["-o", "other"])).expect(7);
    assert!(refused.stderr.contains("answer-002"), "{}", refused.stderr);
    fs::remove_dir_all(workspace.path("data")).unwrap();
    fs::rename(workspace.path("good"), workspace.path("data")).unwrap();
    let task = workspace.path("suite/tasks/answer-003/temper-task.toml");
    let text = fs::read_to_string(&task).unwrap();
    fs::write(&task, text.replace("answers/delta", "answers/omega")).unwrap();
    for arguments in [
        train(&["-o", "other"]),
        train(&["-o", "other", "--dry-run"]),
    ] {
        let refused = workspace.run(&arguments).expect(7);
        assert!(
            refused.stderr.contains("answers/omega"),
            "{}",
            refused.stderr
        );
    }
    assert!(!workspace.path("other/train").exists());
}

/// The profile, the engine and what was trained on must agree in trials of a recipe too.
fn the_context_gate_is_that_of_a_run(workspace: &Workspace, recipe: &str) {
    // Temper's own profile took the engine's window, and the record says so.
    let folder = only(&workspace.path("run/select/trials-model"));
    let text = fs::read_to_string(folder.join("job/run-profile.json")).unwrap();
    let identity = &serde_json::from_str::<Value>(&text).unwrap()["identity"];
    assert_eq!(identity["context"]["profile"], 256);
    assert_eq!(identity["context"]["server"], 256);
    assert_eq!(identity["profile"]["kind"], "project-hardened");
    let agent = |lines: &str| recipe.replace("steps = 1\n", &format!("steps = 1\n{lines}\n"));
    let model = |lines: &str| {
        recipe.replace(
            "source = \"model\"",
            &format!("source = \"model\"\n{lines}"),
        )
    };
    for (recipe, words) in [
        // The published profile stands for what others did, and does not follow.
        (
            agent("profile = \"official-public-repro\""),
            "the profile has 65536 tokens, the server declares 256",
        ),
        (
            model("context = 200").replace(
                "steps = 1",
                "steps = 1\nset.\"temper.context_tokens\" = 128",
            ),
            "the profile has 128 tokens, the server declares 200",
        ),
        // Rows have up to 20 tokens.
        (
            model("context = 19"),
            "the longest row that is trained on has 20 tokens, trials have 19",
        ),
    ] {
        fs::write(workspace.path("recipe.toml"), recipe).unwrap();
        let refused = workspace.run(&train(&[])).expect(10);
        for words in [words, "hint: "] {
            assert!(
                refused.stderr.contains(words),
                "{words}: {}",
                refused.stderr
            );
        }
    }
    // One length for both is as good as none.
    let agreed = agent("set.\"temper.context_tokens\" = 128");
    fs::write(workspace.path("recipe.toml"), agreed).unwrap();
    workspace.run(&train(&[])).expect(0);
    fs::write(workspace.path("recipe.toml"), recipe).unwrap();
}

/// The tiny model with room for a short prompt, and with norms that let it learn one reply by heart.
fn write_longer_model(folder: &Path) {
    write_model(folder);
    let path = folder.join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let (short, long) = (":256,", ":1024,");
    assert!(text.contains(short));
    fs::write(&path, text.replace(short, long)).unwrap();
    let path = folder.join("model.safetensors");
    let mut file = fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    for (name, value) in [
        ("model.norm.weight", 6.0f32),
        ("model.layers.0.input_layernorm.weight", 1.0),
        ("model.layers.0.post_attention_layernorm.weight", 1.0),
    ] {
        let at =
            |end: usize| 8 + length + header[name]["data_offsets"][end].as_u64().unwrap() as usize;
        for bytes in file[at(0)..at(1)].chunks_exact_mut(4) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
    fs::write(&path, file).unwrap();
}

const WHOLE: &str = r#"
[output]
directory = "run"
[model]
source = "model"
[suite]
name = "suite"
[agent]
reply_tokens = 120
steps = 1
[agent.set]
"agent.system_template" = "Repair."
"agent.instance_template" = "Go."
[[collect]]
teacher = "SOLVER"
[[collect]]
teacher = "LOSER"
[build]
[build.pairs]
max_per_task = 2
[train]
seeds = [0, 1]
rows_per_update = 2
epochs = 40
[train.method.lora]
rank = 16
alpha = 32.0
[train.optimizer]
learning_rate = 1e-2
decay = "linear"
[train.snapshots]
every_epoch = false
every_updates = 30
[select]
[preference]
objective.dpo.beta = 0.1
rows_per_update = 2
[preference.optimizer]
learning_rate = 1e-5
[evaluate]
resamples = 200
"#;

fn reply(word: &str) -> String {
    crate::support::bash(&format!(
        "echo {word} > answer.txt && echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    ))
}

/// The lines of the final tests' file.
fn final_tests(run: &Path) -> Vec<Value> {
    let text = fs::read_to_string(run.join("final-tests.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn teachers_show_what_they_do_under_the_prompt_of_the_trained_model() {
    let workspace = Workspace::new(6);
    write_suite(&workspace);
    write_longer_model(&workspace.path("model"));
    let solver = workspace.script("solver", &[&reply("yes")]);
    // Failures of the trained model and what the teacher shows are pairs only under one prompt, and
    // the prompt names the longest reply.
    let recipe = WHOLE
        .replace("SOLVER", &solver)
        .replace("LOSER", "policy")
        .replace("\"Go.\"", "\"Go {{max_output_tokens}}.\"");
    fs::write(workspace.path("recipe.toml"), recipe).unwrap();
    let built = workspace
        .run(&train(&["--until", "build"]))
        .expect(0)
        .stderr;
    assert!(built.contains("1-policy: 0 of 2 tasks"), "{built}");
    // Paired they are; no row comes of it only because an untrained model gives no command.
    assert!(!built.contains("other-prompt"), "{built}");
    assert_eq!(
        built.matches("make a row: 0 of its 0 tokens").count(),
        2,
        "{built}"
    );
}

#[test]
fn a_whole_recipe_makes_a_model_that_solves_what_its_start_does_not() {
    let workspace = Workspace::new(6);
    write_suite(&workspace);
    write_longer_model(&workspace.path("model"));
    let solver = workspace.script("solver", &[&reply("yes")]);
    let loser = workspace.script("loser", &[&reply("maybe")]);
    let recipe = WHOLE.replace("SOLVER", &solver).replace("LOSER", &loser);
    fs::write(workspace.path("recipe.toml"), &recipe).unwrap();
    let run = workspace.path("run");
    let json = ["--format", "json"];

    let plan = workspace.run(&train(&["--dry-run"])).expect(0).stdout;
    for words in [
        "collect",
        "select-preference",
        "the data set is not there yet",
        "unknown",
    ] {
        assert!(plan.contains(words), "{words}\n{plan}");
    }
    // Stage by stage, and a kill in the middle of the final test.
    let built = workspace.run(&train(&["--until", "build"])).expect(0);
    assert!(
        built
            .stderr
            .contains("2 of 2 tasks have a verified candidate")
    );
    assert!(!run.join("train").exists());
    let plan = workspace
        .run(&train(&["--dry-run", "--format", "json"]))
        .expect(0)
        .json();
    assert_eq!(plan["stages"][2]["stage"], "build");
    assert_eq!(plan["stages"][2]["state"], "done");
    let trained = workspace.run(&train(&["--until", "train"])).expect(0);
    assert!(trained.stderr.contains("build: done before, skipped"));
    let mut child = workspace.temper(&train(&["-q"])).spawn().unwrap();
    let started = Instant::now();
    while !run.join("final-tests.jsonl").exists() {
        assert!(
            started.elapsed() < Duration::from_secs(300),
            "no final test"
        );
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let whole = workspace.run(&train(&json)).expect(0);
    let result = whole.json();
    let selected = result["selected"].as_array().unwrap();
    assert_eq!(selected.len(), 4);
    for (index, selected) in selected.iter().enumerate() {
        let scores = &selected["selection"]["scores"];
        let chosen = selected["selection"]["chosen"].as_u64().unwrap() as usize;
        assert_eq!(scores[chosen]["n_solved"], 2, "{selected}");
        // The second two are preference training: what solves everything already is kept.
        assert_eq!(selected["keeps_start"], index >= 2);
        if index < 2 {
            assert_eq!(scores[0]["n_solved"], 0);
        }
    }
    let tested = result["tested"]["candidates"].as_array().unwrap();
    assert_eq!(tested.len(), 2);
    for tested in tested {
        let arms = &tested["comparison"]["arms"];
        assert_eq!(arms[0]["tasks_solved"]["n_solved"], 0);
        assert_eq!(arms[1]["tasks_solved"]["n_solved"], 2);
    }
    let lines = final_tests(&run);
    assert_eq!(lines.len(), 4);
    assert!(lines.iter().all(|line| line["run"]["number"] == 1));
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    for words in [
        "Final tests",
        "sft, seed 1",
        "dev trials solved",
        "learning_rate",
    ] {
        assert!(page.contains(words), "{words}");
    }

    // Nothing is done twice.
    let again = workspace.run(&train(&json)).expect(0);
    assert_eq!(again.json(), result);
    assert_eq!(
        again.stderr.matches("done before, skipped").count(),
        26,
        "{}",
        again.stderr
    );
    assert_eq!(final_tests(&run), lines);

    // A second look at the test needs a reason, which stays.
    fs::remove_dir_all(run.join("evaluate")).unwrap();
    let refused = workspace.run(&train(&[])).expect(7);
    assert!(
        refused.stderr.contains("--again REASON"),
        "{}",
        refused.stderr
    );
    let other = recipe.replace("[evaluate]", "[evaluate]\nseed = 5");
    fs::write(workspace.path("recipe.toml"), other).unwrap();
    let refused = workspace.run(&train(&[])).expect(7);
    assert!(
        refused.stderr.contains("with other settings"),
        "{}",
        refused.stderr
    );
    fs::write(workspace.path("recipe.toml"), &recipe).unwrap();
    let allowed = workspace
        .run(&train(&["--again", "the disk was lost"]))
        .expect(0);
    assert!(allowed.stderr.contains("number 2"), "{}", allowed.stderr);
    // What is said of a job is of that job, though one engine draws for all of them.
    let mut n_jobs = 0;
    for part in fs::read_dir(run.join("evaluate")).unwrap() {
        let part = part.unwrap().path();
        let name = part.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(contender) = name.strip_prefix("trials-") else {
            continue;
        };
        let trials = files_named("trial.json", &part).into_iter().map(|path| {
            let trial: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
            trial["usage"]["completion_tokens"].as_u64().unwrap()
        });
        let n_drawn: u64 = trials.sum();
        let done = format!("{contender}: 2/2 done");
        let mut said = allowed.stderr.lines().filter_map(|line| {
            let (before, _) = line.strip_prefix(&done)?.split_once(" tokens drawn in")?;
            before.rsplit(' ').next()?.parse::<u64>().ok()
        });
        let said = said.next_back().unwrap();
        // The engine counts its last tokens a moment after it gave them.
        assert!(
            (1..=n_drawn).contains(&said),
            "{contender}: {said}, not {n_drawn}"
        );
        n_jobs += 1;
    }
    assert_eq!(n_jobs, 3);
    assert_eq!(final_tests(&run).len(), 8);
    let page = fs::read_to_string(run.join("report.html")).unwrap();
    assert!(page.contains("the disk was lost"));
}
