//! Contracts and aggregates through the binary.

use std::{fs, path::Path};

use serde_json::Value;

use crate::{
    support::{Ran, Workspace, bash, files_named, submit, training, write_suite},
    tiny_model::write_model,
};

const RECIPE: &str = "[train]\nepochs = 1\n[select]\nlimit = 1\n";
const QUICK: &str = "[agent]\nsteps = 1\nreply_tokens = 4\n[train]\nepochs = 1\n\
                     rows_per_update = 1\n[train.method.lora]\nrank = 2\nalpha = 4.0\n\
                     [train.optimizer]\nlearning_rate = 1e-2\n";

fn contract(question: &str) -> String {
    let arm = |name: &str| {
        format!("[[arms]]\nname = \"{name}\"\ndata = [\"candidates\"]\nrecipe = \"recipe.toml\"\n")
    };
    format!(
        "format = 1\nname = \"small\"\nquestion = \"{question}\"\nseeds = [0, 1]\n\
         model = \"model\"\nselection = \"dev-execution\"\n\
         [equal]\nwhat = \"learned-tokens\"\n[test]\nsuite = \"suite\"\n{}{}",
        arm("one"),
        arm("two")
    )
}

#[test]
fn a_contract_is_frozen_and_changed_only_for_the_record() {
    let workspace = Workspace::new(1);
    let write = |name: &str, text: &str| fs::write(workspace.path(name), text).unwrap();
    let limited = contract("Is one better than two?").replace("[test]\n", "[test]\nlimit = 3\n");
    write("experiment.toml", &limited);
    write("recipe.toml", RECIPE);
    let declare = ["experiment", "declare", "experiment.toml", "-o", "e"];
    let json = |more: &[&'static str]| [&declare[..], more, &["--format", "json"]].concat();
    let first = workspace.run(&json(&[])).expect(0).json();
    // The same again is the same.
    let again = workspace.run(&json(&[])).expect(0).json();
    assert_eq!(again["digest"], first["digest"]);

    // A file that it names is part of it.
    write("recipe.toml", &RECIPE.replace("epochs = 1", "epochs = 2"));
    let refused = workspace.run(&declare).expect(6);
    assert!(
        refused.stderr.contains("files.recipe.toml differs"),
        "{}",
        refused.stderr
    );
    let refused = workspace.run(&["experiment", "run", "e"]).expect(6);
    assert!(refused.stderr.contains("--amend"), "{}", refused.stderr);
    let status = ["experiment", "status", "e", "--format", "json"];
    let status_json = || workspace.run(&status).expect(0).json();
    assert!(
        status_json()["changed"]
            .as_str()
            .unwrap()
            .contains("files.recipe.toml")
    );

    let amended = workspace
        .run(&json(&["--amend", "one epoch was a slip"]))
        .expect(0)
        .json();
    assert_ne!(amended["digest"], first["digest"]);
    let after = status_json();
    assert!(after["changed"].is_null());
    let events = after["events"].as_array().unwrap();
    assert_eq!(events.len(), 2);
    assert_eq!(events[1]["what"]["kind"], "amended");
    assert_eq!(events[1]["what"]["reason"], "one epoch was a slip");
    assert_eq!(events[1]["what"]["before"], first["digest"]);
    let table = workspace
        .run(&["experiment", "status", "e"])
        .expect(0)
        .stdout;
    assert!(table.contains("one epoch was a slip"), "{table}");
    assert!(
        table.contains("trials of each of at most 3 tasks: 1\n"),
        "{table}"
    );

    // What was declared cannot be edited in place.
    let path = workspace.path("e/contract.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("Is one better", "Is two better")).unwrap();
    let refused = workspace.run(&["experiment", "run", "e"]).expect(3);
    assert!(
        refused.stderr.contains("not what was declared"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_contract_that_cannot_be_kept_is_refused() {
    let workspace = Workspace::new(1);
    let good = contract("Why?");
    for (contract, recipe, words) in [
        (good.clone(), "[train]\n", "no [select]"),
        (
            good.clone(),
            "[train]\nseeds = [1]\n[select]\n",
            "train.seeds",
        ),
        (good.clone(), "[train]\nepochz = 1\n[select]\n", "epochz"),
        (
            good.replace("seeds = [0, 1]", "seeds = [1, 1]"),
            RECIPE,
            "each once",
        ),
        (
            good.replace("learned-tokens", "money"),
            RECIPE,
            "equal.amount",
        ),
        (
            good.replace("name = \"two\"", "name = \"one\""),
            RECIPE,
            "one is there twice",
        ),
        (
            good.replace("name = \"two\"", "name = \"../up\""),
            RECIPE,
            "no name of letters",
        ),
        (good.replace("question", "questoin"), RECIPE, "questoin"),
    ] {
        fs::write(workspace.path("experiment.toml"), contract).unwrap();
        fs::write(workspace.path("recipe.toml"), recipe).unwrap();
        let refused = workspace
            .run(&["experiment", "declare", "experiment.toml", "-o", "e"])
            .expect(3);
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
        assert!(!workspace.path("e").exists());
    }
    // One teacher cannot work under the prompts of two.
    let collected = "[[collections]]\nname = \"candidates\"\narguments = [\"--teacher\", \"t\"]\n";
    let two = good.replace("recipe.toml\"\n[[arms]]", "other.toml\"\n[[arms]]") + collected;
    fs::write(workspace.path("experiment.toml"), two).unwrap();
    fs::write(workspace.path("recipe.toml"), RECIPE).unwrap();
    let other = format!("{RECIPE}[agent]\nreply_tokens = 9\n");
    fs::write(workspace.path("other.toml"), other).unwrap();
    let refused = workspace
        .run(&["experiment", "declare", "experiment.toml", "-o", "e"])
        .expect(3);
    assert!(
        refused
            .stderr
            .contains("arms one and two learn from it, and profile"),
        "{}",
        refused.stderr
    );
    assert!(!workspace.path("e").exists());
}

#[test]
fn seeds_are_aggregated_by_task_with_their_regressions() {
    let workspace = training(2);
    let run = |name: &str, fix: &str| {
        let agent = workspace.script("agent", &[&bash(fix), &submit()]);
        let arguments = [
            "run", "--suite", "suite", "--agent", &agent, "-o", name, "-q",
        ];
        workspace.run(&arguments).expect(0);
    };
    run("base", "echo yes > answer.txt");
    run("seed-0", "echo yes > answer.txt");
    run("seed-1", "echo maybe > answer.txt");
    let arguments = [
        "aggregate",
        "seed-0",
        "seed-1",
        "--baseline",
        "base",
        "--seeds",
        "7,8",
        "--report",
        "page.html",
        "--format",
        "json",
    ];
    let result = workspace.run(&arguments).expect(0).json();
    assert_eq!(result["arms"][1]["mean"], 0.5);
    assert_eq!(result["arms"][1]["runs"][1]["seed"], 8);
    let difference = &result["differences"][0];
    assert_eq!(difference["mean"], -0.5);
    assert_eq!(difference["regressions"].as_array().unwrap().len(), 2);
    assert_eq!(difference["regressions"][0]["n_runs_below"], 1);
    let page = fs::read_to_string(workspace.path("page.html")).unwrap();
    assert!(page.contains("id=\"seeds\"") && page.contains("Regressions: 2"));
    let table = workspace.run(&arguments[..9]).expect(0).stdout;
    assert!(table.contains("solved less often"), "{table}");
    let refused = workspace
        .run(&["aggregate", "seed-0", "seed-1", "--seeds", "1"])
        .expect(2);
    assert!(
        refused.stderr.contains("as many as jobs"),
        "{}",
        refused.stderr
    );
}

/// An experiment with two arms of one collection, in `e`: two tasks in each split, and a model with
/// room for the profile's prompt that solves nothing.
fn declared(selection: &str, recipe: &str) -> Workspace {
    let workspace = written(selection, recipe);
    declare(&workspace);
    workspace
}

fn declare(workspace: &Workspace) {
    workspace
        .run(&["experiment", "declare", "experiment.toml", "-o", "e"])
        .expect(0);
}

/// The same, not declared yet.
fn written(selection: &str, recipe: &str) -> Workspace {
    let workspace = Workspace::new(6);
    write_suite(&workspace);
    let model = workspace.path("model");
    write_model(&model);
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let config = config.replace(
        "\"max_position_embeddings\":256",
        "\"max_position_embeddings\":8192",
    );
    assert!(config.contains("8192"), "{config}");
    fs::write(model.join("config.json"), config).unwrap();
    let teacher = workspace.script(
        "teacher",
        &[
            &bash("cat answer.txt"),
            &bash("echo yes > answer.txt"),
            &submit(),
        ],
    );
    let contract = contract("Is one better than two?")
        .replace("dev-execution", selection)
        .replace(
            "[[arms]]\nname = \"one\"",
            &format!(
                "[[collections]]\nname = \"candidates\"\narguments = [\"--teacher\", \"{teacher}\"]\n\
                 [[arms]]\nname = \"one\""
            ),
        );
    fs::write(workspace.path("experiment.toml"), contract).unwrap();
    fs::write(workspace.path("recipe.toml"), recipe).unwrap();
    workspace
}

/// Runs the experiment in `e`.
fn follow(workspace: &Workspace, more: &[&str], code: i32) -> Ran {
    let flags = ["--format", "json", "-q", "--", "--device", "cpu"];
    let threads = ["--threads", "1"];
    let arguments = [&["experiment", "run", "e"][..], more, &flags, &threads].concat();
    workspace.run(&arguments).expect(code)
}

#[test]
fn where_selection_keeps_the_start_its_trials_are_the_result_of_the_arms() {
    let workspace = declared("dev-execution", &format!("{QUICK}[select]\n"));
    let ran = follow(&workspace, &[], 0);
    let result = ran.json();
    let arms = result["arms"].as_array().unwrap();
    assert_eq!(arms.len(), 3);
    for arm in arms {
        assert_eq!((&arm["n_tasks"], &arm["mean"]), (&2.into(), &0.0.into()));
    }
    assert_eq!(arms[2]["n_runs"], 2);
    let aggregate = ["aggregate", "e", "--format", "json"];
    assert_eq!(workspace.run(&aggregate).expect(0).json(), result);
    let tests = fs::read_to_string(workspace.path("e/tests.json")).unwrap();
    let tests: Value = serde_json::from_str(&tests).unwrap();
    for arm in tests["arms"].as_array().unwrap() {
        assert_eq!(arm["kept_start"], serde_json::json!([0, 1]));
        // The tasks are the same, so it is one job that is compared.
        assert_eq!(arm["runs"]["1"], tests["baseline"]);
    }
}

#[test]
fn an_arm_that_is_told_its_tasks_otherwise_keeps_the_start_that_is_told_them_so() {
    let workspace = written("dev-execution", &format!("{QUICK}[select]\n"));
    copy(&workspace.path("suite"), &workspace.path("told"));
    for statement in files_named("statement.md", &workspace.path("told")) {
        let text = fs::read_to_string(&statement).unwrap();
        fs::write(statement, format!("{text}\nThe file is answer.txt.\n")).unwrap();
    }
    let contract = fs::read_to_string(workspace.path("experiment.toml")).unwrap();
    let arm = "name = \"two\"\ndata = [\"candidates\"]";
    assert!(contract.contains(arm), "{contract}");
    let collection = contract.split("[[collections]]").nth(1).unwrap();
    let collection = collection.split("[[arms]]").next().unwrap();
    let told = collection.replace("\"candidates\"", "\"candidates-told\"");
    let contract = contract.replace(
        arm,
        "name = \"two\"\nsuite = \"told\"\ndata = [\"candidates-told\"]",
    );
    fs::write(
        workspace.path("experiment.toml"),
        format!("{contract}\n[[collections]]\nsuite = \"told\"{told}"),
    )
    .unwrap();
    declare(&workspace);

    let result = follow(&workspace, &[], 0).json();
    assert_eq!(result["arms"].as_array().unwrap().len(), 3);
    let tests = fs::read_to_string(workspace.path("e/tests.json")).unwrap();
    let tests: Value = serde_json::from_str(&tests).unwrap();
    let [one, two] = [0, 1].map(|index| &tests["arms"][index]);
    assert_eq!(one["runs"]["0"], tests["baseline"]);
    assert_eq!(two["kept_start"], serde_json::json!([0, 1]));
    assert_ne!(two["runs"]["0"], tests["baseline"]);
    for (arm, is_told) in [(one, false), (two, true)] {
        let job = workspace.path("e").join(arm["runs"]["0"].as_str().unwrap());
        let trajectories = files_named("trajectory.jsonl", &job);
        assert_eq!(trajectories.len(), 2);
        for path in trajectories {
            let said = fs::read_to_string(path).unwrap();
            assert_eq!(said.contains("The file is answer.txt."), is_told, "{said}");
        }
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &to);
        } else {
            fs::copy(entry.path(), to).unwrap();
        }
    }
}

#[test]
fn an_experiment_is_followed_to_one_test_of_each_arm() {
    let workspace = declared("last-snapshot", QUICK);
    let run = |more: &[&str], code: i32| follow(&workspace, more, code);
    let kinds = || kinds(&workspace, "e");
    run(&["--until-test"], 0);
    let before = ["declared", "collected", "equalised", "trained", "trained"];
    assert_eq!(kinds(), before);
    // The demonstrations are shown under the prompt of the trained model, which says how long a
    // reply may be.
    let raw = workspace.path("e/collections/candidates/raw");
    let trajectories = files_named("trajectory.jsonl", &raw);
    assert_eq!(trajectories.len(), 2);
    for path in trajectories {
        let said = fs::read_to_string(path).unwrap();
        assert!(said.contains("A reply has at most 4 tokens."), "{said}");
    }
    let result = run(&[], 0).json();
    let tested = ["test-begun", "test-finished", "test-begun", "test-finished"];
    assert_eq!(kinds(), [&before[..], &tested].concat());
    assert_eq!(result["arms"].as_array().unwrap().len(), 3);
    for arm in result["arms"].as_array().unwrap() {
        assert_eq!(arm["n_tasks"], 2, "{arm}");
    }
    assert_eq!(result["arms"][1]["n_runs"], 2);
    assert!(workspace.path("e/report.html").is_file());
    // Again it is the same result, and no test is run.
    assert_eq!(run(&[], 0).json(), result);
    assert_eq!(kinds().len(), 9);
    let aggregate = ["aggregate", "e", "--format", "json"];
    assert_eq!(workspace.run(&aggregate).expect(0).json(), result);

    // Under another contract the tests are a second look.
    let recipe = fs::read_to_string(workspace.path("recipe.toml")).unwrap();
    fs::write(
        workspace.path("recipe.toml"),
        recipe.replace("1e-2", "2e-2"),
    )
    .unwrap();
    let amend = [
        "experiment",
        "declare",
        "experiment.toml",
        "-o",
        "e",
        "--amend",
        "too slow",
    ];
    workspace.run(&amend).expect(0);
    let refused = run(&[], 7);
    assert!(
        refused.stderr.contains("under another contract"),
        "{}",
        refused.stderr
    );
}

/// The events of an experiment's record, by kind.
fn kinds(workspace: &Workspace, experiment: &str) -> Vec<String> {
    let record = fs::read_to_string(workspace.path(&format!("{experiment}/record.jsonl"))).unwrap();
    let kind = |line: &str| {
        let event: Value = serde_json::from_str(line).unwrap();
        event["what"]["kind"].as_str().unwrap().to_owned()
    };
    record.lines().map(kind).collect()
}

#[test]
fn money_and_wall_time_end_a_collection_that_is_complete_then() {
    let workspace = training(6);
    for (number, split) in [(2, "dev"), (3, "dev"), (4, "test"), (5, "test")] {
        workspace.in_split(number, split);
    }
    write_model(&workspace.path("model"));
    fs::write(
        workspace.path("recipe.toml"),
        "[train]\nepochs = 1\nrows_per_update = 1\n",
    )
    .unwrap();
    let fix = [bash("echo yes > answer.txt"), submit()];
    let teacher = workspace.priced_script("priced", &[&fix[0], &fix[1]], 0.01);
    let slow = [bash("sleep 60; echo yes > answer.txt"), submit()];
    let slow = workspace.script("slow", &[&slow[0], &slow[1]]);
    for (what, amount, teacher, flag, n_candidates) in [
        // Three calls: a whole candidate, and half of one.
        ("money", "0.03", &teacher, "--max-cost", 1),
        ("wall-time", "2", &slow, "--max-seconds", 0),
    ] {
        let contract = contract("Is one better than two?")
            .replace("dev-execution", "last-snapshot")
            .replace(
                "what = \"learned-tokens\"",
                &format!("what = \"{what}\"\namount = {amount}"),
            )
            .replace(
                "[[arms]]\nname = \"one\"",
                &format!(
                    "[[collections]]\nname = \"candidates\"\narguments = [\"--teacher\", \
                     \"{teacher}\", \"-k\", \"3\", \"-j\", \"1\"]\n\
                     [[arms]]\nname = \"one\""
                ),
            );
        fs::write(workspace.path("experiment.toml"), contract).unwrap();
        let declare = ["experiment", "declare", "experiment.toml", "-o", what];
        workspace.run(&declare).expect(0);
        // What comes of so little data is not asked here.
        let ran = workspace.run(&["experiment", "run", what, "--until-test"]);
        assert!(
            ran.stderr.contains("the budget is spent"),
            "{what}: {}",
            ran.stderr
        );
        let kinds = kinds(&workspace, what);
        assert!(kinds.starts_with(&["declared".into(), "collected".into()]));
        let folder = format!("{what}/collections/candidates");
        let collect = [
            "collect",
            "--suite",
            "suite",
            "--teacher",
            teacher,
            "-o",
            &folder,
            "-k",
            "3",
            "-j",
            "1",
            flag,
            amount,
            "--format",
            "json",
        ];
        let there = workspace.run(&collect).expect(9).json();
        assert_eq!(there["n_candidates"], n_candidates, "{what}");
    }
}

#[test]
fn the_shipped_experiments_can_be_declared() {
    let workspace = Workspace::new(0);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/experiments");
    let mut n_declared = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path().join("experiment.toml");
        if path.is_file() {
            let contract = path.to_str().unwrap();
            workspace
                .run(&["experiment", "declare", contract])
                .expect(0);
            n_declared += 1;
        }
    }
    assert_eq!(n_declared, 4);
    // What the contract names is where it was put.
    assert!(
        workspace
            .path("experiments/data-quality/contract.json")
            .is_file()
    );
}
