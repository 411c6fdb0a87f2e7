//! What a run says of itself, and what its result may be called.

use std::fs;

use serde_json::{Value, json};

use crate::{
    model_server::{Behaviour, ModelServer},
    support::{Ran, Workspace, bash, submit},
    tiny_model::write_model,
};

fn solver(workspace: &Workspace) -> String {
    workspace.script("solver", &[&bash("echo yes > answer.txt"), &submit()])
}

fn run(workspace: &Workspace, agent: &str, job: &str, more: &[&str]) -> Ran {
    let mut arguments = vec!["run", "--suite", "suite", "--agent", agent, "-o", job];
    arguments.extend(more);
    workspace.run(&arguments)
}

fn serving(windows: &[u64]) -> ModelServer {
    ModelServer::start(Behaviour {
        windows: windows.to_vec(),
        n_refused: 0,
        n_broken: 0,
    })
}

fn profile_line(ran: &Ran) -> Value {
    let line = ran
        .stderr
        .lines()
        .find_map(|line| line.strip_prefix("RUN_PROFILE "))
        .unwrap_or_else(|| panic!("{}", ran.stderr));
    serde_json::from_str(line).unwrap()
}

#[test]
fn the_ledger_alone_claims_nothing_and_fills_nothing_in() {
    let workspace = Workspace::new(0);
    let claims = workspace
        .run(&["claims", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(claims["wording"], "project-experiment");
    let rows = claims["jobs"][0]["rows"].as_array().unwrap();
    for row in rows {
        let undisclosed = row["provenance"] == "undisclosed";
        assert_eq!(undisclosed, row["published"].is_null(), "{row}");
        assert!(row["ours"].is_null(), "{row}");
    }
    let row = |key: &str| rows.iter().find(|row| row["key"] == key).unwrap();
    assert_eq!(row("training.rl.clip_bounds")["provenance"], "undisclosed");
    assert_eq!(
        row("training.rl.teacher")["alignment"],
        "cannot-be-reproduced"
    );
    assert_eq!(row("agent.step_limit")["published"], 200);
    let shown = workspace.run(&["claims"]).expect(0).stdout;
    for words in [
        "38.2",
        "not published",
        "cannot be reproduced",
        "strongest wording: project experiment",
    ] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    // A ledger that fills in what nobody published is refused.
    fs::write(
        workspace.path("ledger.toml"),
        "format = 1\nname = \"n\"\nsubject = \"s\"\n[[entry]]\nkey = \"clip\"\nstage = \"training\"\n\
         what = \"clip\"\nprovenance = \"undisclosed\"\nvalue = 0.2\nsource = \"a guess\"\nchecked = \"read\"\n",
    )
    .unwrap();
    let refused = workspace
        .run(&["claims", "--ledger", "ledger.toml"])
        .expect(3);
    assert!(
        refused
            .stderr
            .contains("clip is undisclosed and has a value"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_run_says_what_it_is_and_a_resumed_one_must_be_the_same() {
    let workspace = Workspace::new(2);
    let server = serving(&[32_768]);
    let flags = [
        "--dataset",
        "answers@1",
        "--training-context",
        "32768",
        "--model-kwarg",
        "top_p=0.9",
    ];
    let ran = run(&workspace, &server.address, "job", &flags).expect(0);
    let profile = profile_line(&ran);
    let identity = &profile["identity"];
    assert_eq!(identity["context"]["profile"], 32_768);
    assert_eq!(identity["context"]["server"], 32_768);
    assert_eq!(identity["context"]["training"], 32_768);
    assert_eq!(identity["model"]["audit_digest"], "unknown");
    assert_eq!(identity["dataset"]["stated"], "answers@1");
    assert_eq!(identity["dataset"]["n_tasks"], 2);
    let projects = identity["dataset"]["projects"].as_object().unwrap();
    let n_tasks: u64 = projects.values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(n_tasks, 2);
    let setting = |name: &str| identity["settings"][name].clone();
    assert_eq!(
        setting("sampling.top_p"),
        json!({"value": 0.9, "from": "flag"})
    );
    assert_eq!(
        setting("sampling.temperature"),
        json!({"value": "unset", "from": "server"})
    );
    assert_eq!(
        setting("sampling.max_output_tokens"),
        json!({"value": 896, "from": "profile"})
    );
    assert_eq!(
        setting("agent.context_guard_reserve_tokens"),
        json!({"value": 256, "from": "profile"})
    );
    assert_eq!(
        setting("trial.timeout_seconds"),
        json!({"value": 3600, "from": "default"})
    );
    let stored: Value =
        serde_json::from_slice(&fs::read(workspace.path("job/run-profile.json")).unwrap()).unwrap();
    assert_eq!(&stored["identity"], identity);
    assert_eq!(profile["operation"]["n_finished_before"], 0);

    // How it is worked on may change; what it is may not, and every difference is named.
    let more = [&flags[..], &["-j", "1", "--max-retries", "0"]].concat();
    run(&workspace, &server.address, "job", &more).expect(0);
    assert_eq!(
        workspace.path("job/sessions").read_dir().unwrap().count(),
        2
    );
    let refused = run(
        &workspace,
        &server.address,
        "job",
        &["--dataset", "others", "--model-kwarg", "top_p=0.9"],
    )
    .expect(6);
    for words in ["dataset.stated differs", "context.training differs"] {
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
    assert_eq!(
        workspace.path("job/sessions").read_dir().unwrap().count(),
        2
    );

    // A language model answered, and still nothing but a project experiment can be claimed.
    let claims = workspace
        .run(&["claims", "--job", "job", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(claims["wording"], "project-experiment");
    let reasons = claims["jobs"][0]["reasons"].to_string();
    for words in [
        "dataset.n_tasks",
        "composite of 2 runs",
        "checkpoint.revision",
    ] {
        assert!(reasons.contains(words), "{words}: {reasons}");
    }
    assert!(!reasons.contains("no language model"), "{reasons}");
}

#[test]
fn the_three_contexts_must_agree() {
    let workspace = Workspace::new(1);
    let server = serving(&[40_960]);
    let refused = run(
        &workspace,
        &server.address,
        "job",
        &["--training-context", "65536"],
    )
    .expect(10);
    for words in [
        "the profile has 32768",
        "declares 40960",
        "length is 65536",
        "hint:",
    ] {
        assert!(
            refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
    }
    assert!(!workspace.path("job").exists());
    run(
        &workspace,
        &server.address,
        "set",
        &["--set", "temper.context_tokens=40960"],
    )
    .expect(0);
    // A server that is named with its model is asked, too.
    let named = format!("{}#m", server.address);
    run(&workspace, &named, "job", &[]).expect(10);
    let evaluate = [
        "evaluate", "--suite", "suite", "--model", &named, "-o", "out",
    ];
    workspace.run(&evaluate).expect(10);
    let allowed = run(&workspace, &named, "job", &["--allow-context-mismatch"]).expect(0);
    assert!(
        allowed.stderr.contains("CONTEXT MISMATCH"),
        "{}",
        allowed.stderr
    );
    let claims = workspace
        .run(&["claims", "--job", "job", "--format", "json"])
        .expect(0);
    assert!(
        claims.stdout.contains("context lengths that disagree"),
        "{}",
        claims.stdout
    );
}

#[test]
fn profiles_do_not_mix_unless_they_must_and_then_it_shows() {
    let workspace = Workspace::new(2);
    let agent = solver(&workspace);
    run(&workspace, &agent, "a", &[]).expect(0);
    run(&workspace, &agent, "b", &["--set", "agent.step_limit=7"]).expect(0);
    run(&workspace, &agent, "c", &["--seed", "1"]).expect(0);
    run(&workspace, "noop", "n", &[]).expect(0);
    // One profile, whatever the seed; Temper's own program has no use for a model's settings.
    workspace.run(&["compare", "a", "c"]).expect(0);
    workspace.run(&["compare", "n", "b"]).expect(0);
    for verb in [
        &["compare", "a", "b"][..],
        &["report", "a", "b"],
        &["claims", "--job", "a", "--job", "b"],
    ] {
        let refused = workspace.run(verb).expect(3);
        for words in ["different profiles", "+overrides", "--allow-mixed"] {
            assert!(
                refused.stderr.contains(words),
                "{words}: {}",
                refused.stderr
            );
        }
    }
    assert!(!workspace.path("report.html").exists());
    let stamped = workspace
        .run(&["compare", "a", "b", "--allow-mixed"])
        .expect(0);
    assert!(
        stamped.stdout.starts_with("MIXED PROFILES"),
        "{}",
        stamped.stdout
    );
    let json = workspace
        .run(&["compare", "a", "b", "--allow-mixed", "--format", "json"])
        .expect(0)
        .json();
    assert_eq!(json["mixed_profiles"].as_array().unwrap().len(), 2);
    workspace
        .run(&["report", "a", "b", "--allow-mixed"])
        .expect(0);
    let page = fs::read_to_string(workspace.path("report.html")).unwrap();
    assert!(page.contains("MIXED PROFILES") && page.contains("class=\"notice\""));

    // An evaluation whose arms could not be compared is not begun.
    let model = workspace.path("model");
    write_model(&model);
    let embedded = format!("embedded:{}", model.display());
    let mut evaluate = vec![
        "evaluate",
        "--suite",
        "suite",
        "--baseline",
        &agent,
        "-o",
        "out",
    ];
    evaluate.extend([
        "--candidate",
        &embedded,
        "--embedded-steps",
        "1",
        "--device",
        "cpu",
    ]);
    let refused = workspace.run(&evaluate).expect(3);
    assert!(
        refused.stderr.contains("different profiles"),
        "{}",
        refused.stderr
    );
    assert!(!workspace.path("out").exists());
}

#[test]
fn the_report_carries_the_wording_and_takes_no_other() {
    let workspace = Workspace::new(1);
    run(
        &workspace,
        &solver(&workspace),
        "job",
        &["--dataset", "SWE-bench Verified"],
    )
    .expect(0);
    workspace.run(&["report", "job"]).expect(0);
    let page = fs::read_to_string(workspace.path("report.html")).unwrap();
    for words in [
        "id=\"claims\"",
        "Project experiment.",
        "do not reproduce, confirm or contradict",
        "no language model answered",
        "Record of job",
        "one clean run",
        "not published",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("This reproduces the published"));
    assert!(!page.contains("Not every job is one clean run"));
    for flag in ["--wording", "--claim", "--ledger"] {
        workspace.run(&["report", "job", flag, "x"]).expect(2);
    }
    // A resumed job is no clean run, and the page says so at its head.
    run(
        &workspace,
        &solver(&workspace),
        "job",
        &["--dataset", "SWE-bench Verified"],
    )
    .expect(0);
    workspace.run(&["report", "job"]).expect(0);
    let page = fs::read_to_string(workspace.path("report.html")).unwrap();
    assert!(page.contains("a composite of 2 runs of the command, not one clean run"));
    let resumed = workspace.run(&["run", "--suite", "suite", "--agent", "noop", "-o", "n"]);
    assert!(!resumed.stderr.contains("composite"), "{}", resumed.stderr);
    let compared = workspace.run(&["compare", "n", "job"]).expect(0);
    assert!(
        compared.stdout.contains("is a composite of 2 runs"),
        "{}",
        compared.stdout
    );
}

#[test]
fn the_two_profiles_have_the_values_they_stand_for() {
    let workspace = Workspace::new(0);
    let settings = |name: &str| {
        let shown = workspace
            .run(&["profile", name, "--format", "json"])
            .expect(0);
        shown.json()["config"]["settings"].clone()
    };
    let official = settings("official-public-repro");
    let variables = json!({
        "PAGER": "cat", "MANPAGER": "cat", "LESS": "-R", "PIP_PROGRESS_BAR": "off", "TQDM_DISABLE": "1",
    });
    for (key, value) in [
        ("step_limit", json!(200)),
        ("cost_limit", json!(3_000_000)),
        ("directory", json!("/testbed")),
        ("command_timeout", json!({"secs": 60, "nanos": 0})),
        ("variables", variables),
        ("temperature", json!(1.0)),
        ("max_output_tokens", Value::Null),
        ("context_tokens", json!(65_536)),
        ("context_guard", Value::Null),
        ("protocol", json!("bash-block")),
    ] {
        assert_eq!(official[key], value, "{key}");
    }
    let hardened = settings("project-hardened");
    for (key, value) in [
        ("step_limit", json!(100)),
        ("cost_limit", Value::Null),
        ("max_output_tokens", json!(896)),
        ("context_tokens", json!(32_768)),
        ("repetition_note_after", json!(3)),
    ] {
        assert_eq!(hardened[key], value, "{key}");
    }
    assert_eq!(hardened["context_guard"]["reserve_tokens"], 256);
    let instance = hardened["templates"]["instance"].as_str().unwrap();
    for rule in ["smallest change", "Do not repeat a command"] {
        assert!(instance.contains(rule), "{rule}");
    }
    // The ledger and the embedded profile say the same of the published configuration.
    let claims = workspace
        .run(&["claims", "--format", "json"])
        .expect(0)
        .json();
    let rows = claims["jobs"][0]["rows"].as_array().unwrap().clone();
    let published = |key: &str| {
        let row = rows.iter().find(|row| row["key"] == key).unwrap();
        row["published"].clone()
    };
    assert_eq!(published("agent.step_limit"), official["step_limit"]);
    assert_eq!(published("agent.variables"), official["variables"]);
    assert_eq!(published("agent.directory"), official["directory"]);
    assert_eq!(published("context.tokens"), official["context_tokens"]);
    assert_eq!(
        published("sampling.temperature").as_f64(),
        official["temperature"].as_f64()
    );
    assert_eq!(published("sampling.max_tokens"), "unset");
}

#[test]
fn an_audit_of_the_model_goes_into_the_identity() {
    let workspace = Workspace::new(1);
    let model = workspace.path("model");
    write_model(&model);
    let audited = workspace.run(&["model", "audit", "model", "--format", "json"]);
    fs::write(workspace.path("audit.json"), &audited.stdout).unwrap();
    let audit = audited.json();
    // In this process it is measured.
    let flags = [
        "--device",
        "cpu",
        "--embedded-steps",
        "1",
        "--embedded-reply-tokens",
        "8",
    ];
    let ran = run(&workspace, "embedded:model", "own", &flags).expect(0);
    let own = profile_line(&ran)["identity"].clone();
    assert_eq!(own["model"]["evidence"], "measured");
    assert_eq!(own["model"]["audit_digest"], audit["digest"]);
    // The profile follows the engine's window, by an override that shows.
    assert_eq!(own["context"]["profile"], own["context"]["server"]);
    assert_eq!(own["profile"]["name"], "project-hardened+overrides");
    // Of a server it is stated.
    let server = serving(&[32_768]);
    let flags = ["--model-audit", "audit.json"];
    let ran = run(&workspace, &server.address, "served", &flags).expect(0);
    let served = profile_line(&ran)["identity"].clone();
    assert_eq!(served["model"]["evidence"], "stated");
    assert_eq!(served["model"]["audit_digest"], audit["digest"]);
    assert_eq!(served["model"]["architecture"], audit["architecture"]);

    let record = ["record", "make", "own", "-o", "own.json", "-q"];
    workspace.run(&record).expect(0);
    let verify = ["record", "verify", "own.json", "--model", "model"];
    workspace.run(&verify).expect(0);
    let config = model.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text + "\n").unwrap();
    let differs = workspace.run(&verify).expect(7);
    assert!(
        differs.stdout.contains("model.audit_digest"),
        "{}",
        differs.stdout
    );
}

/// Every setting that a run writes down is held against something, so none can be changed without
/// a row that says so.
#[test]
fn no_setting_of_a_run_is_outside_of_the_ledger() {
    let workspace = Workspace::new(1);
    let server = serving(&[65_536]);
    let profile = ["--profile", "official-public-repro"];
    let plain = [&profile[..], &["--trial-timeout", "7200"]].concat();
    let ran = run(&workspace, &server.address, "plain", &plain).expect(0);
    let ledger = temper_eval::claims::Ledger::shipped();
    let settings = profile_line(&ran)["identity"]["settings"].clone();
    for name in settings.as_object().unwrap().keys() {
        let held = |entry: &temper_eval::claims::Entry| entry.fact.as_ref() == Some(name);
        assert!(ledger.entries.iter().any(held), "{name}");
    }
    let alignment = |job: &str, key: &str| {
        let claims = workspace
            .run(&["claims", "--job", job, "--format", "json"])
            .expect(0)
            .json();
        let rows = claims["jobs"][0]["rows"].as_array().unwrap().clone();
        let row = rows.iter().find(|row| row["key"] == key).unwrap().clone();
        row["alignment"].as_str().unwrap().to_owned()
    };
    for (job, more, key) in [
        ("top_k", &["--model-kwarg", "top_k=1"][..], "sampling.top_k"),
        (
            "other",
            &[
                "--model-kwarg",
                "chat_template_kwargs={\"enable_thinking\": false}",
            ],
            "sampling.other",
        ),
        (
            "timeout",
            &["--trial-timeout", "60"],
            "evaluation.trial_timeout",
        ),
    ] {
        let flags = [&profile[..], more].concat();
        run(&workspace, &server.address, job, &flags).expect(0);
        assert_eq!(alignment("plain", key), "exact", "{key}");
        assert_eq!(alignment(job, key), "not-aligned", "{key}");
    }
    // A job of a build that did not write such a setting down does not say that nobody set it.
    let path = workspace.path("plain/run-profile.json");
    let mut old: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let settings = old["identity"]["settings"].as_object_mut().unwrap();
    settings.remove("sampling.other").unwrap();
    fs::write(&path, old.to_string()).unwrap();
    assert_eq!(alignment("plain", "sampling.other"), "cannot-be-confirmed");
}

#[test]
fn checkpoint_and_profile_are_held_against_the_ledger_before_a_run() {
    let workspace = Workspace::new(0);
    let revision = "0da97e45dbbd44278bd55b878170ec369d2934fb";
    let folder = format!("models--org--name/snapshots/{revision}");
    let write = |dtype: &str, code| {
        let config = json!({
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
            "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8,
            "head_dim": 128, "rope_theta": 1000000, "rope_scaling": null,
            "max_position_embeddings": 65536, "torch_dtype": dtype,
        });
        fs::create_dir_all(workspace.path(&folder)).unwrap();
        fs::write(
            workspace.path(&format!("{folder}/config.json")),
            config.to_string(),
        )
        .unwrap();
        let audit = ["model", "audit", &folder, "--format", "json"];
        let audit = workspace.run(&audit).expect(code).stdout;
        fs::write(workspace.path("audit.json"), audit).unwrap();
    };
    let base = ["claims", "--model-audit", "audit.json", "--format", "json"];
    let official = ["--profile", "official-public-repro"];
    let rows = |more: &[&str], code| {
        let claims = workspace.run(&[&base[..], more].concat()).expect(code);
        let claims = claims.json();
        assert_eq!(claims["wording"], "project-experiment");
        let rows = claims["jobs"][0]["rows"].as_array().unwrap().clone();
        move |key: &str| {
            let row = rows.iter().find(|row| row["key"] == key).unwrap();
            (row["ours"].clone(), row["alignment"].clone())
        }
    };
    // There are no weights, which the audit finds; what is there is read all the same.
    write("bfloat16", 7);
    let row = rows(&official, 0);
    for (key, ours, alignment) in [
        ("checkpoint.revision", json!(revision), "approximate"),
        ("checkpoint.architecture", json!("qwen3"), "approximate"),
        ("checkpoint.dtype", json!("bfloat16"), "approximate"),
        (
            "checkpoint.max_position_embeddings",
            json!(65_536),
            "approximate",
        ),
        ("checkpoint.rope_scaling", json!("none"), "approximate"),
        (
            "scaffold.text",
            json!("official-public-repro embedded"),
            "approximate",
        ),
        ("agent.step_limit", json!(200), "exact"),
        ("agent.cost_limit", json!(3.0), "exact"),
        ("agent.directory", json!("/testbed"), "exact"),
        ("agent.command_timeout", json!(60), "exact"),
        ("context.tokens", json!(65_536), "exact"),
        ("sampling.temperature", json!(1.0), "exact"),
        ("sampling.max_tokens", json!("unset"), "exact"),
        ("sampling.top_p", Value::Null, "cannot-be-confirmed"),
        ("dataset.n_tasks", Value::Null, "cannot-be-confirmed"),
    ] {
        assert_eq!(row(key), (ours, json!(alignment)), "{key}");
    }
    assert_eq!(row("agent.variables").1, "exact");
    // Without a profile its rows are not known; with the other one they are not aligned.
    assert_eq!(rows(&[], 0)("agent.step_limit").0, Value::Null);
    let hardened = rows(&["--profile", "project-hardened"], 7);
    assert_eq!(hardened("agent.step_limit").1, "not-aligned");
    write("float16", 7);
    assert_eq!(rows(&official, 7)("checkpoint.dtype").1, "not-aligned");
    // Weights of another type: what the configuration says of them is not known to be so.
    let header = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 4]);
    fs::write(
        workspace.path(&format!("{folder}/model.safetensors")),
        bytes,
    )
    .unwrap();
    write("bfloat16", 0);
    assert_eq!(
        rows(&official, 0)("checkpoint.dtype"),
        (Value::Null, json!("cannot-be-confirmed"))
    );
    workspace
        .run(&[&base[..], &["--job", "job"]].concat())
        .expect(2);
}
