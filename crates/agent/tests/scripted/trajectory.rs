//! Trajectories on disk and in the formats of other programs.
//!
//! `fixtures/atif/*.json` were accepted by Harbor's own models
//! (`fixtures/atif/validate.py`). To write them anew after a change of the export, run this test
//! with `TEMPER_WRITE_FIXTURES=1`, then validate them.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};
use temper_agent::{
    export::{atif, mini_swe_agent},
    profile::ResolvedProfile,
    rollout::Recorder,
    trajectory_file::{self, Trajectory, TrajectoryError, TrajectoryWriter},
};
use temper_core::{
    TaskId,
    trajectory::{Exit, Record, TokenRecord},
    usage::{MicroDollars, Usage},
};
use temper_sandbox::{Execution, ExitStatus};

use crate::{
    agent_loop::{Done, Pretend, Scripted, printed, probe, probe_templates, run, task, text_reply},
    calls::call_reply,
};

fn bash_block() -> (ResolvedProfile, Done) {
    let profile = probe(&probe_templates(), 10, json!({}));
    let mut first = text_reply("THOUGHT: look\n\n```bash\nls\n```");
    first.message.reasoning = Some("hidden thoughts".into());
    first.usage = Usage {
        prompt_tokens: Some(20),
        cached_tokens: Some(5),
        completion_tokens: Some(2),
    };
    first.cost = MicroDollars::from_dollars(0.25);
    first.tokens = Some(TokenRecord {
        prompt_ids: Some(vec![1, 2]),
        completion_ids: vec![7, 8],
        logprobs: Some(vec![-0.25, -0.5]),
        loss_mask: Some(vec![true, true]),
    });
    let mut model = Scripted::default();
    model.replies.extend([
        Ok(first),
        Ok(text_reply("no block")),
        Ok(text_reply("```bash\nsleep 9\n```")),
        Ok(text_reply("```bash\nsubmit\n```")),
    ]);
    let mut sandbox = Pretend::answering([
        printed(b"a\xff\r\n".to_vec()),
        Execution {
            status: ExitStatus::TimedOut,
            ..printed("part")
        },
        printed("MINI_SWE_AGENT_FINAL_OUTPUT\nP\n"),
    ]);
    let done = run(&profile, task("T"), &mut model, &mut sandbox);
    assert_eq!(done.end.exit, Exit::Submitted);
    (profile, done)
}

fn tool_call() -> (ResolvedProfile, Done) {
    let mut agent = probe_templates();
    agent["format_error_template"] = json!("BAD {{error}}");
    let profile = probe(&agent, 10, json!({"protocol": "tool-call"}));
    let mut model = Scripted::default();
    model.replies.extend([
        Ok(call_reply(&[
            ("a", "bash", r#"{"command": "one"}"#),
            ("b", "bash", r#"{"command": "two"}"#),
        ])),
        Ok(call_reply(&[("c", "python", "{}")])),
        Ok(call_reply(&[("d", "bash", "{\"command\": \"cut")])),
        Ok(call_reply(&[("e", "bash", r#"{"command": "submit"}"#)])),
    ]);
    let mut sandbox = Pretend::answering([
        printed("1\n"),
        Execution {
            status: ExitStatus::TimedOut,
            ..printed("2")
        },
        printed("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nP\n"),
    ]);
    let done = run(&profile, task("T"), &mut model, &mut sandbox);
    assert_eq!(done.end.exit, Exit::Submitted);
    (profile, done)
}

/// Times are measured; in fixtures they are nothing.
fn timeless((profile, done): (ResolvedProfile, Done)) -> Trajectory {
    let mut trajectory = done.trajectory("org__name-1", &profile);
    for step in &mut trajectory.steps {
        step.model_seconds = 0.0;
        step.action_seconds = 0.0;
    }
    trajectory
}

fn write(path: &Path, trajectory: &Trajectory) {
    let mut writer = TrajectoryWriter::create(path, &trajectory.header)
        .unwrap()
        .sync_each_step(true);
    for message in &trajectory.prompts {
        let message = message.clone();
        writer.record(&Record::Prompt { message }).unwrap();
    }
    for step in &trajectory.steps {
        writer
            .record(&Record::Step(Box::new(step.clone())))
            .unwrap();
    }
    if let Some(end) = &trajectory.end {
        writer.record(&Record::End(end.clone())).unwrap();
    }
    writer.finish().unwrap();
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

#[test]
fn what_is_written_is_read() {
    let directory = tempfile::tempdir().unwrap();
    for (name, trajectory) in [("a", timeless(bash_block())), ("b", timeless(tool_call()))] {
        let path = directory.path().join(name);
        write(&path, &trajectory);
        assert_eq!(trajectory_file::read(&path).unwrap(), trajectory);
        // Never continued, never overwritten.
        assert!(TrajectoryWriter::create(&path, &trajectory.header).is_err());
        // Strict UTF-8, one JSON value a line.
        let text = String::from_utf8(std::fs::read(&path).unwrap()).unwrap();
        for line in text.lines() {
            let _: Value = serde_json::from_str(line).unwrap();
        }
    }
}

#[test]
fn a_kill_at_any_byte_leaves_a_readable_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whole");
    let whole = timeless(bash_block());
    write(&path, &whole);
    let bytes = std::fs::read(&path).unwrap();
    let header_end = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let cut = directory.path().join("cut");
    for length in (0..bytes.len())
        .step_by(7)
        .chain([header_end, bytes.len() - 1])
    {
        std::fs::write(&cut, &bytes[..length]).unwrap();
        let read = trajectory_file::read(&cut);
        if length < header_end {
            assert!(
                matches!(read, Err(TrajectoryError::Malformed { .. })),
                "{length}"
            );
            continue;
        }
        let read = read.unwrap();
        assert_eq!(read.torn, bytes[length - 1] != b'\n', "{length}");
        assert_eq!(read.steps[..], whole.steps[..read.steps.len()], "{length}");
        assert_eq!(read.end, None, "{length}");
    }
}

#[test]
fn a_file_of_the_first_format_is_still_read() {
    let trajectory = trajectory_file::read(&fixture("trajectory/format-1.jsonl")).unwrap();
    assert_eq!(
        trajectory.header.task_id,
        TaskId::new("org__name-1").unwrap()
    );
    assert_eq!(trajectory.steps.len(), 4);
    assert_eq!(trajectory.messages().len(), 10);
    assert!(!trajectory.torn && trajectory.end.is_some());
    // Bytes that are not UTF-8 came through.
    assert_eq!(trajectory.steps[0].actions[0].output[..], b"a\xff\r\n"[..]);
}

#[test]
fn broken_files_are_named_by_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trajectory.jsonl");
    let text = std::fs::read_to_string(fixture("trajectory/format-1.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let check = |lines: Vec<String>, part: &str| {
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        let error = trajectory_file::read(&path).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    };
    let owned = |lines: &[&str]| {
        lines
            .iter()
            .map(|line| (*line).to_owned())
            .collect::<Vec<_>>()
    };
    let mut broken = owned(&lines);
    broken[2].truncate(9);
    check(broken, "line 3");
    check(owned(&lines[1..]), "first record is no header");
    check(owned(&[lines[0], lines[0]]), "second header");
    check(owned(&[lines[0], lines[4]]), "expected step 1");
    check(
        owned(&[lines[0], lines[3], lines[1]]),
        "prompt after a step",
    );
    let mut after = owned(&lines);
    after.push(lines[1].to_owned());
    check(after, "follows the end");
    check(
        vec![lines[0].replace("\"format\":1", "\"format\":99")],
        "its format is 99",
    );
    let unequal = lines[3].replace("\"loss_mask\":[true,true]", "\"loss_mask\":[true]");
    assert_ne!(unequal, lines[3]);
    check(vec![lines[0].to_owned(), unequal], "mask");
    let extra = lines[1].replacen('{', "{\"surprise\":1,", 1);
    check(vec![lines[0].to_owned(), extra], "surprise");

    let mut file = std::fs::File::create(&path).unwrap();
    file.write_all(&[0xff, b'\n']).unwrap();
    assert!(trajectory_file::read(&path).is_err());
}

#[test]
fn version_2_trajectories_have_upstreams_shape() {
    let trajectory = timeless(tool_call());
    let value = mini_swe_agent::trajectory(&trajectory);
    assert_eq!(value["trajectory_format"], "mini-swe-agent-1.1");
    let messages = value["messages"].as_array().unwrap();
    let roles: Vec<_> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(
        roles,
        [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
            "assistant",
            "tool",
            "assistant",
            "user",
            "assistant",
            "exit"
        ]
    );
    assert_eq!(
        messages[2]["tool_calls"][0],
        json!({"id": "a", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"one\"}"}})
    );
    assert_eq!(
        messages[2]["extra"]["actions"][1],
        json!({"command": "two", "tool_call_id": "b"})
    );
    assert_eq!(messages[3]["tool_call_id"], "a");
    assert_eq!(
        messages[3]["extra"],
        json!({"raw_output": "1\n", "returncode": 0, "exception_info": ""})
    );
    assert_eq!(messages[4]["extra"]["returncode"], -1);
    assert_ne!(messages[4]["extra"]["exception_info"], "");
    assert_eq!(messages[6]["extra"]["interrupt_type"], "FormatError");
    assert_eq!(
        messages[10],
        json!({"role": "exit", "content": "P\n", "extra": {"exit_status": "Submitted", "submission": "P\n"}})
    );
}

#[test]
fn atif_files_are_those_that_harbor_accepted() {
    for (name, trajectory) in [
        ("atif/bash-block.json", timeless(bash_block())),
        ("atif/tool-call.json", timeless(tool_call())),
    ] {
        let mut value = atif::trajectory(&trajectory).unwrap();
        // The version of this crate is no reason to validate anew.
        value["agent"]["version"] = json!("0");
        if std::env::var_os("TEMPER_WRITE_FIXTURES").is_some() {
            let text = serde_json::to_string_pretty(&value).unwrap() + "\n";
            std::fs::write(fixture(name), text).unwrap();
        }
        let text = std::fs::read_to_string(fixture(name)).unwrap();
        assert_eq!(
            value,
            serde_json::from_str::<Value>(&text).unwrap(),
            "{name}"
        );
    }
}

#[test]
fn a_trial_that_never_began_exports_without_steps() {
    let (profile, done) = bash_block();
    let mut trajectory = done.trajectory("org__name-1", &profile);
    trajectory.prompts.clear();
    trajectory.steps.clear();
    trajectory.end = None;
    assert_eq!(atif::trajectory(&trajectory), None);
    let value = mini_swe_agent::trajectory(&trajectory);
    assert_eq!(value["messages"], json!([]));
    assert_eq!(value["info"].get("config"), None);
}
