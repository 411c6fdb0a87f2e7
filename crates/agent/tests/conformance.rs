//! The golden cases of mini-swe-agent 1, made by running the Python programs
//! (`fixtures/mini-swe-agent/README.md`), against the real loop and real sandboxes.
//!
//! This test has a `main` of its own, because the sandbox starts this very program as its launcher.
//! Cases 08 and 09 hold digests of texts of the published profile. They are checked in full when
//! `TEMPER_PUBLISHED_PROFILE` names that file; without it the same cases run with Temper's
//! equivalent, and what cannot be compared is said.

// A test with a `main` of its own is no test to the compiler.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

#[path = "scripted/agent_loop.rs"]
mod agent_loop;

use std::{
    os::unix::fs::{PermissionsExt, symlink},
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use agent_loop::{Done, Pretend, Scripted, probe, probe_templates, run, task};
use serde_json::{Value, json};
use temper_agent::{
    edit_tool,
    export::mini_swe_agent::{self, Prediction, python_class},
    model::Model,
    profile::{PUBLISHED_SHA256, ProfileName, Provenance, ResolvedProfile},
    protocol::{
        bash_block::{self, BlockError, NestedFences},
        output_text, text,
    },
    template::Variables,
};
use temper_core::{
    Bytes, Digest, Patch, TaskId,
    trajectory::{Exit, StepOutcome},
    usage::MicroDollars,
};
use temper_sandbox::{
    Backend, Command, Demand, ExitStatus, Limits, Network, Root, Sandbox, SandboxSpec, Shell,
    WorkTree,
    namespaces::{Namespaces, run_launcher_if_asked},
};

const CASES: &[(&str, fn())] = &[
    ("01_parse_action", parse_action),
    ("02_loop_submit", || loop_case("02_loop_submit")),
    ("03_format_error_then_recover", || {
        loop_case("03_format_error_then_recover")
    }),
    ("04_timeout_then_recover", || {
        loop_case("04_timeout_then_recover")
    }),
    ("05_step_limit", || loop_case("05_step_limit")),
    ("06_cost_limit", || loop_case("06_cost_limit")),
    ("07_submission_marker", submission_marker),
    ("08_observation_published_template", observation),
    ("09_published_profile", published_profile),
    ("10_model_error", || loop_case("10_model_error")),
    ("11_local_environment", local_environment),
    ("12_edit_via_str_replace", edit_via_str_replace),
    ("13_batch_files", batch_files),
    ("nested_fence_is_refused_or_run_whole", nested_fence),
    ("binary_output_stays_valid_text", binary_output),
    ("published_edit_command_works_in_a_sandbox", edit_in_sandbox),
];

fn main() -> ExitCode {
    run_launcher_if_asked();
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let mut failed = Vec::new();
    for (name, case) in CASES {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
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

impl Scripted {
    fn costing(mut self, dollars: f64) -> Self {
        self.cost = MicroDollars::from_dollars(dollars);
        self
    }
}

fn golden(case: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/mini-swe-agent")
        .join(format!("{case}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn table(case: &str) -> Vec<Value> {
    golden(case)["table"].as_array().unwrap().clone()
}

fn sandbox() -> Box<dyn Sandbox> {
    let variables = [
        ("PATH", "/opt/temper/bin:/usr/local/bin:/usr/bin:/bin"),
        ("HOME", "/home/agent"),
        ("TMPDIR", "/tmp"),
        ("LANG", "C.UTF-8"),
    ];
    let spec = SandboxSpec {
        root: Root::Host,
        work_tree: WorkTree {
            start: None,
            path: "/testbed".into(),
        },
        mounts: Vec::new(),
        files: edit_tool::injected_files(),
        environment: variables
            .map(|(name, value)| (name.into(), value.into()))
            .into(),
        limits: Limits::default(),
        network: Network::None,
        demand: Demand(Default::default()),
        label: "conformance".into(),
    };
    Namespaces::new()
        .start(&spec)
        .unwrap_or_else(|error| panic!("failed to {error}"))
}

/// The exit status in Python's words.
fn status(exit: &Exit) -> String {
    let own = exit.mini_swe_agent_status();
    python_class(&own).map_or(own, str::to_owned)
}

/// A probe prints a list as Python does, which is not part of the interface.
fn without_list(text: &str) -> &str {
    text.split(" list=[").next().unwrap()
}

fn parse_action() {
    let agent = golden("01_parse_action")["probe_templates"].clone();
    let profile = probe(&agent, 10, json!({}));
    for row in table("01_parse_action") {
        let name = row["name"].as_str().unwrap();
        let reply = row["reply"].as_str().unwrap();
        let bodies = bash_block::blocks(reply);
        let parsed = bash_block::parse(reply, NestedFences::Refuse, false);
        let mut sandbox = Pretend::default();
        let done = run(
            &profile,
            task("T"),
            &mut Scripted::texts([reply]),
            &mut sandbox,
        );
        let step = &done.steps()[0];
        if let Some(action) = row["action"].as_str() {
            assert_eq!(bodies.len(), 1, "{name}");
            assert_eq!(text::strip(bodies[0]), action, "{name}");
            if name == "heredoc_with_inner_fence_is_cut" {
                // Deliberate difference: the rule finds the same piece, and it is not run.
                assert!(
                    matches!(parsed, Err(BlockError::NestedFence { .. })),
                    "{name}"
                );
                assert_eq!(step.outcome, StepOutcome::FormatError, "{name}");
                assert!(step.observations[0].content.contains("```python"), "{name}");
                assert!(sandbox.commands.is_empty(), "{name}");
                continue;
            }
            assert_eq!(parsed.unwrap(), action, "{name}");
            assert_eq!(sandbox.commands[0].text, action, "{name}");
        } else {
            let n = row["n_actions"].as_u64().unwrap() as usize;
            let Err(BlockError::NotExactlyOne(found)) = parsed else {
                panic!("{name}: {parsed:?}");
            };
            assert_eq!(found.len(), n, "{name}");
            assert_eq!(bodies.len(), n, "{name}");
            assert_eq!(step.outcome, StepOutcome::FormatError, "{name}");
            assert_eq!(
                without_list(&step.observations[0].content),
                without_list(row["feedback_with_probe_template"].as_str().unwrap()),
                "{name}"
            );
            assert!(sandbox.commands.is_empty(), "{name}");
        }
    }
}

fn loop_case(name: &str) {
    let case = golden(name);
    let timeout = case["env_config"]["timeout"].as_u64().unwrap();
    let profile = probe(&case["agent_config"], timeout, json!({"shell": "sh"}));
    let outputs = case["model"]["outputs"].as_array().unwrap();
    let mut model = Scripted::texts(outputs.iter().map(|output| output.as_str().unwrap()))
        .costing(case["model"]["cost_per_call"].as_f64().unwrap());
    let mut sandbox = sandbox();
    let done = run(
        &profile,
        task(case["task"].as_str().unwrap()),
        &mut model,
        sandbox.as_mut(),
    );
    compare_end(&case["expected"], &done);
    let messages = done.messages();
    let expected = case["expected"]["messages_after_prompt"]
        .as_array()
        .unwrap();
    assert_eq!(messages.len(), expected.len() + 2);
    for (message, expected) in messages[2..].iter().zip(expected) {
        assert_eq!(
            without_list(&message.content),
            without_list(expected.as_str().unwrap())
        );
    }
    // Each call was sent the whole history up to it.
    for (index, request) in model.requests.iter().enumerate() {
        assert_eq!(request[..], messages[..2 + 2 * index]);
    }
}

fn compare_end(expected: &Value, done: &Done) {
    assert_eq!(json!(status(&done.end.exit)), expected["exit_status"]);
    assert_eq!(json!(done.end.n_model_calls), expected["model_calls"]);
    let cost = done.end.cost.map_or(0.0, |cost| cost.dollars());
    assert_eq!(json!(cost), expected["cost"]);
    let raised = matches!(done.end.exit, Exit::Failed { .. });
    assert_eq!(json!(raised), expected["raised_out_of_run"]);
    if !raised {
        let submission = done.end.submission.clone().unwrap_or_default();
        assert_eq!(json!(submission.to_text()), expected["submission"]);
    }
    let roles: Vec<_> = done
        .messages()
        .iter()
        .map(|message| json!(message.role))
        .collect();
    assert_eq!(json!(roles), expected["roles"]);
}

fn submission_marker() {
    let profile = probe(&probe_templates(), 10, json!({"shell": "sh"}));
    let mut sandbox = sandbox();
    for row in table("07_submission_marker") {
        let reply = format!("```bash\n{}\n```", row["command"].as_str().unwrap());
        let mut model = Scripted::texts([reply]);
        let done = run(&profile, task("T"), &mut model, sandbox.as_mut());
        let submitted = done.end.exit == Exit::Submitted;
        let submission = done.end.submission.as_ref().map(Bytes::to_text);
        assert_eq!(json!(submitted), row["submitted"], "{row}");
        assert_eq!(json!(submission), row["submission"], "{row}");
    }
}

/// The profile of cases 08 and 09, run by `/bin/sh` as they were, and whether it is the published
/// file itself.
fn official() -> (ResolvedProfile, bool) {
    let profile = match std::env::var_os("TEMPER_PUBLISHED_PROFILE") {
        Some(path) => {
            let text = std::fs::read_to_string(path).unwrap();
            let profile =
                ResolvedProfile::from_text(ProfileName::OfficialPublicRepro, &text).unwrap();
            assert_eq!(profile.provenance(), Provenance::Published);
            assert_eq!(profile.digest().as_str(), PUBLISHED_SHA256);
            assert!(profile.statement().contains("the published file"));
            profile
        }
        None => ResolvedProfile::embedded(ProfileName::OfficialPublicRepro).unwrap(),
    };
    let published = profile.provenance() == Provenance::Published;
    if !published {
        println!(
            "TEMPER_PUBLISHED_PROFILE is not set: digests of published texts are not compared"
        );
    }
    let shell = [("temper.shell".to_owned(), json!("sh"))];
    (profile.with_overrides(shell).unwrap(), published)
}

fn observation() {
    let (profile, published) = official();
    assert_eq!(
        golden("08_observation_published_template")["config_sha256"],
        PUBLISHED_SHA256
    );
    let mut sandbox = sandbox();
    for row in table("08_observation_published_template") {
        let name = row["name"].as_str().unwrap();
        let reply = format!("```bash\n{}\n```", row["command"].as_str().unwrap());
        let done = run(
            &profile,
            task("T"),
            &mut Scripted::texts([reply]),
            sandbox.as_mut(),
        );
        let observation = done.steps()[0].observations[0].content.clone();
        let long = row["truncated"].as_bool().unwrap();
        if published || !long {
            assert_eq!(
                json!(observation.chars().count()),
                row["observation_chars"],
                "{name}"
            );
            let digest = Digest::of(observation.as_bytes());
            assert_eq!(json!(digest), row["observation_sha256"], "{name}");
        }
        if long {
            let n = |key: &str| row[key].as_u64().unwrap();
            let (_, rest) = observation
                .split_once(row["warning_then_head"].as_str().unwrap())
                .unwrap();
            let (head, rest) = rest.split_once("\n</output_head>\n").unwrap();
            assert_eq!(
                head.trim_start_matches('\n').chars().count() as u64,
                n("head_chars")
            );
            let elided = format!(
                "<elided_chars>\n{} characters elided\n</elided_chars>\n",
                n("elided_chars")
            );
            let tail = rest
                .strip_prefix(elided.as_str())
                .unwrap_or_else(|| panic!("{name}: {rest:?}"));
            let tail = tail.strip_prefix("<output_tail>\n").unwrap();
            let tail = tail.strip_suffix("\n</output_tail>").unwrap();
            assert_eq!(tail.chars().count() as u64, n("tail_chars"), "{name}");
        }
    }
}

fn published_profile() {
    let (profile, published) = official();
    let case = golden("09_published_profile");
    let mut sandbox = sandbox();

    let only_task = Variables::from_iter([("task".to_owned(), json!("TASKTEXT"))]);
    let mut model = Scripted::texts(["unused"]);
    let done = run(&profile, only_task, &mut model, sandbox.as_mut());
    compare_end(&case["without_working_dir"], &done);
    let Exit::Failed { failure } = &done.end.exit else {
        panic!("{:?}", done.end.exit);
    };
    assert_eq!(failure.class, "UndefinedVariable");
    assert!(
        failure.message.contains("working_dir"),
        "{}",
        failure.message
    );
    assert!(model.requests.is_empty());

    let case = &case["with_working_dir"];
    let outputs = case["model_outputs"].as_array().unwrap();
    let mut model = Scripted::texts(outputs.iter().map(|output| output.as_str().unwrap()));
    let done = run(&profile, task("TASKTEXT"), &mut model, sandbox.as_mut());
    compare_end(&case["expected"], &done);
    let expected = case["messages"].as_array().unwrap();
    for (message, expected) in done.messages().iter().zip(expected) {
        if published || message.role == temper_core::Role::Assistant || expected["chars"] == 0 {
            assert_eq!(json!(message.content.chars().count()), expected["chars"]);
            assert_eq!(
                json!(Digest::of(message.content.as_bytes())),
                expected["sha256"]
            );
        }
    }
    // The short form says how many actions there were, whichever text it is in.
    let messages = done.messages();
    assert!(messages[3].content.contains('0') && messages[5].content.contains('2'));
    assert_eq!(messages[3].content.len(), messages[5].content.len());
}

fn local_environment() {
    let mut sandbox = sandbox();
    for row in table("11_local_environment") {
        let variables = row["env"]["env"].as_object().cloned().unwrap_or_default();
        let execution = sandbox
            .exec(&Command {
                text: row["command"].as_str().unwrap().into(),
                shell: Shell::Sh,
                directory: None,
                environment: variables
                    .into_iter()
                    .map(|(name, value)| (name, value.as_str().unwrap().to_owned()))
                    .collect(),
                timeout: Duration::from_secs(10),
                output_bytes: None,
            })
            .unwrap();
        let code = match execution.status {
            ExitStatus::Exited(code) => code,
            ExitStatus::Signaled(signal) => -signal,
            ExitStatus::TimedOut => panic!("{row}"),
        };
        assert_eq!(json!(code), row["returncode"], "{row}");
        if row["output"] != "<shell message>" {
            assert_eq!(
                json!(output_text(&execution, false).text),
                row["output"],
                "{row}"
            );
        } else {
            assert!(!execution.output.is_empty(), "{row}");
        }
    }
}

fn edit_via_str_replace() {
    let program = tempfile::tempdir().unwrap();
    let program = program.path().join("edit_via_str_replace");
    std::fs::write(&program, edit_tool::PROGRAM).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    for row in table("12_edit_via_str_replace") {
        let name = row["name"].as_str().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("f.txt");
        let before = content(&row, "file_before").unwrap();
        let is_link = name == "symlink_is_replaced_by_a_file";
        let real = if is_link {
            directory.path().join("real.txt")
        } else {
            file.clone()
        };
        std::fs::write(&real, &before).unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o644)).unwrap();
        if is_link {
            symlink("real.txt", &file).unwrap();
        }
        let arguments = row["args"].as_array().unwrap();
        let output = std::process::Command::new(&program)
            .args(arguments.iter().map(|argument| argument.as_str().unwrap()))
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert_eq!(json!(output.status.code()), row["exit"], "{name}");
        assert_eq!(
            json!(String::from_utf8_lossy(&output.stdout)),
            row["stdout"],
            "{name}"
        );
        let stderr = String::from_utf8_lossy(&output.stderr);
        match row.get("stderr_kind") {
            Some(_) => assert!(stderr.starts_with("usage: "), "{name}: {stderr}"),
            None => assert_eq!(json!(stderr), row["stderr"], "{name}"),
        }
        let mut after = content(&row, "file_after").unwrap_or(before);
        if name == "crlf_file_is_rewritten_as_lf" {
            // Deliberate difference: the line ends stay.
            after = b"a\r\nX\r\nc\r\n".to_vec();
        }
        assert_eq!(std::fs::read(&file).unwrap(), after, "{name}");
        // Deliberate differences: the mode stays, and a link stays a link.
        let mode = std::fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o644, "{name}");
        assert_eq!(
            std::fs::symlink_metadata(&file).unwrap().is_symlink(),
            is_link,
            "{name}"
        );
        let mut others: Vec<_> = std::fs::read_dir(directory.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|other| other != "f.txt")
            .collect();
        others.sort();
        let expected = row.get("other_files").cloned().unwrap_or(json!([]));
        assert_eq!(json!(others), expected, "{name}");
    }
}

fn content(row: &Value, key: &str) -> Option<Vec<u8>> {
    if let Some(text) = row[key].as_str() {
        return Some(text.as_bytes().to_vec());
    }
    let hex = row[format!("{key}_hex").as_str()].as_str()?;
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    Some((0..hex.len()).step_by(2).map(byte).collect())
}

fn batch_files() {
    let files = golden("13_batch_files")["files"].clone();
    let mut exits = Vec::new();
    let mut patches = Vec::new();
    let (published, _) = official();
    for id in ["a__b-1", "a__b-2", "a__b-3"] {
        let expected = &files[format!("{id}/{id}.traj.json").as_str()];
        let config = &expected["info"]["config"];
        let mut agent = config["agent"].clone();
        agent.as_object_mut().unwrap().remove("timeout_template");
        let outputs: Vec<_> = config["model"]["outputs"].as_array().unwrap().clone();
        let mut model = Scripted::texts(outputs.iter().map(|output| output.as_str().unwrap()))
            .costing(config["model"]["cost_per_call"].as_f64().unwrap());
        let (profile, variables) = if id == "a__b-3" {
            // The published templates without the variable that they need.
            (
                published.clone(),
                Variables::from_iter([("task".to_owned(), json!("P"))]),
            )
        } else {
            (probe(&agent, 5, json!({"shell": "sh"})), task("P"))
        };
        let done = run(
            &profile,
            variables,
            &mut model as &mut dyn Model,
            sandbox().as_mut(),
        );
        let trajectory = mini_swe_agent::trajectory(&done.trajectory(id, &profile));
        compare_trajectory(&trajectory, expected, id);
        exits.push((TaskId::new(id).unwrap(), done.end.exit.clone()));
        patches.push(done.end.submission.clone().map(Patch));
    }
    let (predictions, replaced) =
        mini_swe_agent::predictions(exits.iter().zip(&patches).map(|((task, _), patch)| {
            Prediction {
                task,
                model: "scripted",
                patch: patch.as_ref(),
            }
        }));
    assert!(replaced.is_empty());
    for (id, expected) in files["preds.json"].as_object().unwrap() {
        let mut expected = expected.clone();
        if id != "a__b-1" {
            // Deliberate difference: the text of an error is no patch.
            expected["model_patch"] = json!("");
        }
        assert_eq!(predictions[id], expected);
    }
    let yaml = mini_swe_agent::exit_statuses(exits.iter().map(|(task, exit)| (task, exit)));
    let statuses: Value = serde_saphyr::from_str(&yaml).unwrap();
    let expected = &files["exit_statuses_0.yaml"]["instances_by_exit_status"];
    let statuses = statuses["instances_by_exit_status"].as_object().unwrap();
    assert_eq!(statuses.len(), expected.as_object().unwrap().len());
    for (own, ids) in statuses {
        assert_eq!(ids, &expected[python_class(own).unwrap_or(own)], "{own}");
    }
}

/// Everything of upstream's file except what names upstream's own program and Python's errors.
fn compare_trajectory(own: &Value, expected: &Value, id: &str) {
    let status = own["info"]["exit_status"].as_str().unwrap();
    assert_eq!(
        python_class(status).unwrap_or(status),
        expected["info"]["exit_status"]
    );
    for key in ["trajectory_format", "instance_id"] {
        assert_eq!(own[key], expected[key], "{id} {key}");
    }
    let keys = |value: &Value| {
        let mut keys: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(own), keys(expected));
    for place in [
        "/info",
        "/info/config",
        "/info/config/agent",
        "/info/config/environment",
    ] {
        let (own, expected) = (
            own.pointer(place).unwrap(),
            expected.pointer(place).unwrap(),
        );
        assert_eq!(keys(own), keys(expected), "{id} {place}");
    }
    assert_eq!(
        own["info"]["model_stats"], expected["info"]["model_stats"],
        "{id}"
    );
    if id == "a__b-3" {
        assert_eq!(own["messages"].as_array().unwrap().len(), 1);
        assert_eq!(own["messages"][0]["role"], "system");
        assert!(
            own["info"]["submission"]
                .as_str()
                .unwrap()
                .contains("working_dir")
        );
        return;
    }
    assert_eq!(own["messages"], expected["messages"], "{id}");
    if id == "a__b-1" {
        assert_eq!(own["info"]["submission"], expected["info"]["submission"]);
    }
    for key in [
        "system_template",
        "instance_template",
        "action_observation_template",
        "step_limit",
        "cost_limit",
    ] {
        let agent = &own["info"]["config"]["agent"];
        assert_eq!(
            agent[key], expected["info"]["config"]["agent"][key],
            "{id} {key}"
        );
    }
}

const README: &str = "# Title\n\n```bash\nls\n```\n\nThe end.\n";

fn nested_fence() {
    let command = format!("cat > README.md <<'EOF'\n{README}EOF");
    let replies = [
        format!("THOUGHT: write it\n\n```bash  \n{command}\n```\n"),
        "```bash\ncat README.md\n```".to_owned(),
    ];
    for (mode, whole) in [("refuse", false), ("run-whole", true)] {
        let mut sandbox = sandbox();
        let profile = probe(
            &probe_templates(),
            10,
            json!({"shell": "sh", "nested_fences": mode}),
        );
        let done = run(
            &profile,
            task("T"),
            &mut Scripted::texts(replies.clone()),
            sandbox.as_mut(),
        );
        let file = sandbox.read_file("/testbed/README.md", 1 << 20).unwrap();
        let first = &done.steps()[0];
        if whole {
            assert_eq!(first.outcome, StepOutcome::Ran);
            assert_eq!(file.as_deref(), Some(README.as_bytes()));
        } else {
            assert_eq!(first.outcome, StepOutcome::FormatError);
            assert!(first.observations[0].content.contains("```bash"));
            assert_eq!(file, None);
        }
    }
}

fn binary_output() {
    let profile = probe(&probe_templates(), 10, json!({"shell": "sh"}));
    let mut sandbox = sandbox();
    // 9 MiB of a three-byte character behind two invalid bytes: the limit falls inside one.
    let command = "printf '\\200\\377'; python3 -c \"import sys; sys.stdout.buffer.write('€'.encode()*3145728)\"";
    let reply = format!("```bash\n{command}\n```");
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts([reply]),
        sandbox.as_mut(),
    );
    let step = &done.steps()[0];
    assert_eq!(step.outcome, StepOutcome::Ran);
    let shown = &step.observations[0].content;
    assert!(
        shown.starts_with("rc=0 out=[\u{fffd}\u{fffd}€"),
        "{:?}",
        &shown[..30]
    );
    assert_eq!(shown.matches('\u{fffd}').count(), 2);
    let (before, after) = shown.split_once("\n[").unwrap();
    let (missing, after) = after
        .split_once(" bytes of output were left out here]\n")
        .unwrap();
    let kept = before.matches('€').count() + after.matches('€').count();
    assert_eq!(missing.parse::<usize>().unwrap() + 3 * kept, 9 << 20);
    assert!(step.actions[0].omitted_bytes > 0);
    for record in &done.records {
        let json = serde_json::to_vec(record).unwrap();
        let text = std::str::from_utf8(&json).unwrap();
        let _: Value = serde_json::from_str(text).unwrap();
    }
}

fn edit_in_sandbox() {
    let profile = probe(&probe_templates(), 10, json!({"shell": "bash"}));
    let mut sandbox = sandbox();
    let edit = "printf 'def f(r):\\n    return 1\\n' > g.py && old=$(cat <<'OLD'\ndef f(r):\nOLD\n) && \
                new=$(cat <<'NEW'\ndef f(r: float):\nNEW\n) && python edit_via_str_replace g.py -- \"$old\" \"$new\"";
    let commands = [
        edit,
        "cat g.py; ls",
        "python -c 'print(6*7)'; python3 --version >/dev/null",
    ];
    let replies = commands.map(|command| format!("```bash\n{command}\n```"));
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts(replies),
        sandbox.as_mut(),
    );
    let shown: Vec<_> = done
        .steps()
        .iter()
        .map(|s| s.observations[0].content.clone())
        .collect();
    assert!(shown[0].contains("edited successfully"), "{}", shown[0]);
    assert_eq!(
        shown[1],
        "rc=0 out=[def f(r: float):\n    return 1\ng.py\n]"
    );
    assert_eq!(shown[2], "rc=0 out=[42\n]");

    // In an image whose own Python comes first, a script in the work tree leads to the tool.
    sandbox
        .write_files(&[edit_tool::work_tree_launcher("/testbed")])
        .unwrap();
    let own = "/usr/bin/python3 edit_via_str_replace g.py -- 'return 1' 'return 2' && cat g.py";
    let mut model = Scripted::texts([format!("```bash\n{own}\n```")]);
    let done = run(&profile, task("T"), &mut model, sandbox.as_mut());
    let shown = &done.steps()[0].observations[0].content;
    assert!(shown.ends_with("    return 2\n]"), "{shown}");
}
