//! The loop with a scripted model and a sandbox that runs nothing: every ending, both protocols,
//! and the additions of `project-hardened`.

use std::{
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_agent::{
    model::ModelErrorClass,
    profile::{ProfileName, ResolvedProfile},
    rollout::{self, RecordError, Recorder, Rollout},
};
use temper_core::{
    Boundary, Failure, Message, Role,
    trajectory::{Exit, FinishReason, Limit, Record, StepOutcome, TokenRecord},
    usage::Usage,
};
use temper_sandbox::{Execution, ExitStatus, SandboxError, backend::Omitted};

use crate::{
    agent_loop::{
        Done, Pretend, Scripted, model_error, printed, probe, probe_templates, run, run_until,
        task, text_reply,
    },
    calls::call_reply,
};

const LS: &str = "```bash\nls\n```";
const SUBMIT: &str = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```";

fn plain() -> ResolvedProfile {
    probe(&probe_templates(), 10, json!({}))
}

fn with_agent(key: &str, value: Value) -> ResolvedProfile {
    let mut agent = probe_templates();
    agent[key] = value;
    probe(&agent, 10, json!({}))
}

fn tools(temper: Value) -> ResolvedProfile {
    let mut temper = temper;
    temper["protocol"] = json!("tool-call");
    let mut agent = probe_templates();
    agent["format_error_template"] =
        json!("{% if finish_reason == 'length' %}CUT{% else %}BAD {{error}}{% endif %}");
    agent["action_observation_template"] =
        json!("{{output.exception_info}}|rc={{output.returncode}} out=[{{output.output}}]");
    probe(&agent, 10, temper)
}

fn failure(done: &Done) -> &Failure {
    match &done.end.exit {
        Exit::Failed { failure } => failure,
        other => panic!("{other:?}"),
    }
}

fn submitting() -> Execution {
    printed("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\nP\n")
}

#[test]
fn each_model_error_has_its_ending() {
    for (class, name, retryable) in [
        (ModelErrorClass::Authentication, "Authentication", false),
        (ModelErrorClass::RateLimited, "RateLimited", true),
        (ModelErrorClass::Server, "Server", true),
        (ModelErrorClass::Connection, "Connection", true),
        (ModelErrorClass::BadRequest, "BadRequest", false),
        (ModelErrorClass::Exhausted, "Exhausted", false),
    ] {
        let mut model = Scripted::default();
        let mut error = model_error(class);
        error.attempts =
            vec![serde_json::from_value(json!({"status": 500, "wall_seconds": 1.0})).unwrap()];
        model.replies.push_back(Err(error));
        let done = run(&plain(), task("T"), &mut model, &mut Pretend::default());
        let failure = failure(&done);
        assert_eq!(failure.boundary, Boundary::Model);
        assert_eq!(
            (failure.class.as_str(), failure.retryable),
            (name, retryable)
        );
        // The attempts of the call that failed are kept.
        assert_eq!(done.end.attempts[0].status, Some(500));
    }
    for (class, exit) in [
        (ModelErrorClass::ContextExceeded, Exit::ContextExceeded),
        (
            ModelErrorClass::Budget(Limit::Money),
            Exit::LimitReached {
                limit: Limit::Money,
            },
        ),
        (
            ModelErrorClass::Deadline,
            Exit::LimitReached {
                limit: Limit::WallTime,
            },
        ),
    ] {
        let mut model = Scripted::texts([LS]);
        model.replies.push_back(Err(model_error(class)));
        let done = run(&plain(), task("T"), &mut model, &mut Pretend::default());
        assert_eq!(done.end.exit, exit);
        assert_eq!(done.end.n_model_calls, 1);
    }
}

#[test]
fn a_trial_without_one_reply_is_a_failure_unless_the_prompt_was_refused() {
    let mut model = Scripted::default();
    model
        .replies
        .push_back(Err(model_error(ModelErrorClass::Budget(Limit::Tokens))));
    let done = run(&plain(), task("T"), &mut model, &mut Pretend::default());
    assert_eq!(failure(&done).class, "EmptyTrajectory");

    let past = Some(Instant::now());
    let mut model = Scripted::texts([LS]);
    let done = run_until(
        &plain(),
        task("T"),
        &mut model,
        &mut Pretend::default(),
        past,
    );
    assert_eq!(failure(&done).class, "EmptyTrajectory");
    assert!(model.requests.is_empty());

    let mut model = Scripted::default();
    model
        .replies
        .push_back(Err(model_error(ModelErrorClass::ContextExceeded)));
    let done = run(&plain(), task("T"), &mut model, &mut Pretend::default());
    assert_eq!(done.end.exit, Exit::ContextExceeded);
}

#[test]
fn a_broken_sandbox_keeps_the_reply_that_was_paid_for() {
    let mut sandbox = Pretend::default();
    sandbox
        .answers
        .push_back(Err(SandboxError::Ended("killed".into())));
    let done = run(
        &plain(),
        task("T"),
        &mut Scripted::texts([LS]),
        &mut sandbox,
    );
    let failure = failure(&done);
    assert_eq!(failure.boundary, Boundary::Sandbox);
    assert_eq!(
        (failure.class.as_str(), failure.retryable),
        ("SandboxEnded", true)
    );
    assert_eq!(done.steps().len(), 1);
    assert_eq!(done.steps()[0].reply.content, LS);
}

#[test]
fn an_unknown_name_in_an_observation_fails_the_trial_with_the_step_kept() {
    let profile = with_agent("action_observation_template", json!("{{nothing}}"));
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts([LS]),
        &mut Pretend::default(),
    );
    let failure = failure(&done);
    assert_eq!(failure.boundary, Boundary::Agent);
    assert_eq!(failure.class, "UndefinedVariable");
    assert_eq!(done.steps()[0].actions[0].command, "ls");
}

#[test]
fn cancelling_ends_the_trial_before_the_next_call() {
    let mut records: Vec<Record> = Vec::new();
    let mut model = Scripted::texts([LS]);
    let end = rollout::run(Rollout {
        profile: &plain(),
        variables: task("T"),
        directory: Some("/work"),
        seed: 0,
        deadline: None,
        cancel: &AtomicBool::new(true),
        now: &|| "2026-01-01T00:00:00Z".into(),
        count_tokens: None,
        model: &mut model,
        sandbox: &mut Pretend::default(),
        recorder: &mut records,
        prefix: None,
        after_step: None,
    });
    assert!(matches!(end.exit, Exit::Failed { failure } if failure.class == "Cancelled"));
    assert!(model.requests.is_empty());
}

#[test]
fn what_cannot_be_recorded_ends_the_trial() {
    struct Full(u32);
    impl Recorder for Full {
        fn record(&mut self, _: &Record) -> Result<(), RecordError> {
            self.0 += 1;
            match self.0 {
                1..=2 => Ok(()),
                _ => Err(RecordError("no space left".into())),
            }
        }
    }
    let mut sandbox = Pretend::default();
    let end = rollout::run(Rollout {
        profile: &plain(),
        variables: task("T"),
        directory: None,
        seed: 0,
        deadline: None,
        cancel: &AtomicBool::new(false),
        now: &|| "2026-01-01T00:00:00Z".into(),
        count_tokens: None,
        model: &mut Scripted::texts([LS, LS]),
        sandbox: &mut sandbox,
        recorder: &mut Full(0),
        prefix: None,
        after_step: None,
    });
    assert!(matches!(end.exit, Exit::Failed { failure } if failure.class == "TrajectoryWrite"));
    assert_eq!(sandbox.commands.len(), 1);
}

#[test]
fn a_deadline_shortens_the_last_command_and_then_ends_the_trial() {
    let mut sandbox = Pretend::default();
    sandbox.answers.push_back(Ok(Execution {
        status: ExitStatus::TimedOut,
        ..printed("part")
    }));
    // The pretended command takes no time, so that the deadline is met by waiting for it here.
    let deadline = Instant::now() + Duration::from_millis(300);
    struct Late<'a>(&'a mut Pretend, Instant);
    impl temper_sandbox::Sandbox for Late<'_> {
        fn exec(&mut self, command: &temper_sandbox::Command) -> Result<Execution, SandboxError> {
            let result = self.0.exec(command);
            std::thread::sleep(self.1.saturating_duration_since(Instant::now()));
            result
        }
        fn write_files(
            &mut self,
            _: &[temper_core::task::InjectedFile],
        ) -> Result<(), SandboxError> {
            Ok(())
        }
        fn read_file(&mut self, _: &str, _: u64) -> Result<Option<Vec<u8>>, SandboxError> {
            Ok(None)
        }
        fn changes(&mut self) -> Result<temper_core::tree::Changes, SandboxError> {
            Ok(Default::default())
        }
        fn stop(self: Box<Self>) -> Result<temper_sandbox::Usage, SandboxError> {
            Ok(Default::default())
        }
    }
    let mut model = Scripted::texts([LS, LS]);
    let mut late = Late(&mut sandbox, deadline);
    let done = run_until(&plain(), task("T"), &mut model, &mut late, Some(deadline));
    assert_eq!(
        done.end.exit,
        Exit::LimitReached {
            limit: Limit::WallTime
        }
    );
    assert_eq!(done.end.n_model_calls, 1);
    assert_eq!(done.steps()[0].outcome, StepOutcome::TimedOut);
    assert_eq!(done.messages().last(), Some(&Message::text(Role::User, "")));
    assert!(sandbox.commands[0].timeout <= Duration::from_millis(300));
}

#[test]
fn the_context_guard_stops_before_a_call_is_spent() {
    let temper = json!({
        "max_output_tokens": 10, "context_tokens": 100, "context_reserve_tokens": 5,
    });
    let profile = probe(&probe_templates(), 10, temper);
    let mut model = Scripted::default();
    for prompt_tokens in [50, 70] {
        let mut reply = text_reply(LS);
        reply.usage = Usage {
            prompt_tokens: Some(prompt_tokens),
            completion_tokens: Some(4),
            cached_tokens: None,
        };
        model.replies.push_back(Ok(reply));
    }
    // After the second call: 70 + 4 counted, and "rc=0 out=[]" estimated at 4 + 8, is 86 of 85.
    let done = run(&profile, task("T"), &mut model, &mut Pretend::default());
    assert_eq!(done.end.exit, Exit::ContextExceeded);
    assert_eq!(done.end.n_model_calls, 2);

    let mut model = Scripted::texts([LS]);
    let done = run(
        &profile,
        task(&"word ".repeat(100)),
        &mut model,
        &mut Pretend::default(),
    );
    assert_eq!(done.end.exit, Exit::ContextExceeded);
    assert!(model.requests.is_empty());
}

#[test]
fn a_repeated_command_without_news_gets_a_note() {
    let profile = probe(&probe_templates(), 10, json!({"repetition_note_after": 3}));
    let mut sandbox = Pretend::answering([
        printed("a"),
        printed("a"),
        printed("b"),
        printed("a"),
        printed("a"),
    ]);
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts([LS; 5]),
        &mut sandbox,
    );
    let notes: Vec<_> = done
        .steps()
        .iter()
        .map(|step| step.observations[0].content.contains("<note>"))
        .collect();
    assert_eq!(notes, [false, false, false, true, true]);
}

#[test]
fn unusable_replies_in_a_row_end_the_trial_where_the_profile_says_so() {
    let profile = with_agent("max_consecutive_format_errors", json!(2));
    let replies = ["none", LS, "none", "none", LS];
    let mut sandbox = Pretend::default();
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts(replies),
        &mut sandbox,
    );
    assert_eq!(done.end.exit, Exit::RepeatedFormatErrors);
    assert_eq!(done.end.n_model_calls, 4);
    assert_eq!(done.steps()[3].observations.len(), 1);
}

#[test]
fn output_that_was_left_out_is_always_said() {
    let cut = Execution {
        omitted: Some(Omitted { at: 2, bytes: 99 }),
        ..printed("abcd")
    };
    let profile = with_agent(
        "action_observation_template",
        json!("{{output.output[:1]}}"),
    );
    let mut sandbox = Pretend::answering([cut.clone()]);
    let done = run(
        &profile,
        task("T"),
        &mut Scripted::texts([LS]),
        &mut sandbox,
    );
    let shown = &done.steps()[0].observations[0].content;
    assert_eq!(shown, "a\n[99 bytes of output were left out here]");

    let mut sandbox = Pretend::answering([cut]);
    let done = run(
        &plain(),
        task("T"),
        &mut Scripted::texts([LS]),
        &mut sandbox,
    );
    let shown = &done.steps()[0].observations[0].content;
    assert_eq!(
        shown,
        "rc=0 out=[ab\n[99 bytes of output were left out here]\ncd]"
    );
}

#[test]
fn a_reply_cut_before_its_block_ended_is_called_truncated() {
    let profile = probe(&probe_templates(), 10, json!({"max_output_tokens": 20}));
    let mut reply = text_reply("```bash\nls");
    reply.finish = FinishReason::Length;
    let mut model = Scripted::default();
    model.replies.push_back(Ok(reply));
    let mut sandbox = Pretend::default();
    let done = run(&profile, task("T"), &mut model, &mut sandbox);
    assert_eq!(done.steps()[0].outcome, StepOutcome::Truncated);
    assert!(
        done.steps()[0].observations[0]
            .content
            .contains("limit of 20 tokens")
    );
    assert!(sandbox.commands.is_empty());
}

#[test]
fn token_records_of_unequal_length_are_refused_and_whole_ones_kept() {
    let record = TokenRecord {
        prompt_ids: Some(vec![1, 2, 3]),
        completion_ids: vec![5, 6],
        logprobs: Some(vec![-0.5, -1.5]),
        loss_mask: None,
    };
    let mut whole = text_reply(LS);
    whole.tokens = Some(record.clone());
    let mut broken = text_reply(LS);
    broken.tokens = Some(TokenRecord {
        logprobs: Some(vec![-0.5]),
        ..record.clone()
    });
    let mut model = Scripted::default();
    model.replies.extend([Ok(whole), Ok(broken)]);
    let done = run(&plain(), task("T"), &mut model, &mut Pretend::default());
    assert_eq!(done.steps()[0].tokens.as_ref(), Some(&record));
    assert_eq!(failure(&done).class, "InvalidTokens");
}

#[test]
fn several_calls_run_in_order_and_each_is_answered() {
    let mut model = Scripted::default();
    model.replies.extend([
        Ok(call_reply(&[
            ("a", "bash", r#"{"command": "one"}"#),
            ("b", "bash", r#"{"command": "two"}"#),
        ])),
        Ok(call_reply(&[("c", "bash", r#"{"command": "three"}"#)])),
    ]);
    let mut sandbox = Pretend::answering([
        printed("1"),
        Execution {
            status: ExitStatus::TimedOut,
            ..printed("2")
        },
        submitting(),
    ]);
    let done = run(&tools(json!({})), task("T"), &mut model, &mut sandbox);
    let ran: Vec<_> = sandbox
        .commands
        .iter()
        .map(|command| command.text.as_str())
        .collect();
    assert_eq!(ran, ["one", "two", "three"]);
    let first = &done.steps()[0];
    assert_eq!(first.outcome, StepOutcome::TimedOut);
    let answers: Vec<_> = first
        .observations
        .iter()
        .map(|m| (m.role, m.tool_call_id.as_deref(), m.content.as_str()))
        .collect();
    assert_eq!(answers[0], (Role::Tool, Some("a"), "|rc=0 out=[1]"));
    assert_eq!((answers[1].0, answers[1].1), (Role::Tool, Some("b")));
    assert!(
        answers[1].2.contains("limit of 10 s|rc=-1 out=[2]"),
        "{}",
        answers[1].2
    );
    assert_eq!(done.end.exit, Exit::Submitted);
    assert_eq!(done.end.submission.as_deref(), Some(&b"P\n"[..]));
    assert_eq!(done.end.message, None);
}

#[test]
fn a_call_that_submits_ends_the_turn() {
    let mut model = Scripted::default();
    model.replies.push_back(Ok(call_reply(&[
        ("a", "bash", r#"{"command": "one"}"#),
        ("b", "bash", r#"{"command": "submit"}"#),
        ("c", "bash", r#"{"command": "never"}"#),
    ])));
    let mut sandbox = Pretend::answering([printed("1"), submitting()]);
    let done = run(&tools(json!({})), task("T"), &mut model, &mut sandbox);
    assert_eq!(sandbox.commands.len(), 2);
    assert_eq!(done.end.exit, Exit::Submitted);
    assert!(done.steps()[0].observations.is_empty());
    assert_eq!(done.steps()[0].actions.len(), 2);
}

#[test]
fn three_bad_calls_in_a_row_end_the_tool_protocol() {
    let mut model = Scripted::default();
    for reply in [
        call_reply(&[("a", "python", r#"{"command": "x"}"#)]),
        text_reply("no call"),
        call_reply(&[("b", "bash", "{\"command\": ]}")]),
    ] {
        model.replies.push_back(Ok(reply));
    }
    let mut sandbox = Pretend::default();
    let done = run(&tools(json!({})), task("T"), &mut model, &mut sandbox);
    assert_eq!(done.end.exit, Exit::RepeatedFormatErrors);
    assert!(sandbox.commands.is_empty());
    let steps = done.steps();
    assert_eq!(steps[0].observations[0].tool_call_id.as_deref(), Some("a"));
    assert!(
        steps[0].observations[0]
            .content
            .starts_with("BAD there is no tool")
    );
    assert_eq!(steps[1].observations[0].role, Role::User);
    assert!(steps[2].reply.tool_calls.is_empty());
}

#[test]
fn truncated_arguments_are_neither_run_nor_replayed() {
    // The server says "tool calls" although it stopped inside a string at the requested maximum.
    let mut cut = call_reply(&[("a", "bash", r#"{"command": "rm -rf bui"#)]);
    cut.usage.completion_tokens = Some(64);
    let mut model = Scripted::default();
    model.replies.extend([
        Ok(cut),
        Ok(call_reply(&[("b", "bash", r#"{"command": "ls"}"#)])),
    ]);
    let mut sandbox = Pretend::default();
    let done = run(
        &tools(json!({"max_output_tokens": 64})),
        task("T"),
        &mut model,
        &mut sandbox,
    );
    let first = &done.steps()[0];
    assert_eq!(first.outcome, StepOutcome::Truncated);
    assert_eq!(first.observations, [Message::text(Role::User, "CUT")]);
    assert_eq!(sandbox.commands.len(), 1);
    assert_eq!(sandbox.commands[0].text, "ls");
    for request in &model.requests {
        for call in request.iter().flat_map(|message| &message.tool_calls) {
            let _: Value = serde_json::from_str(&call.arguments).unwrap();
        }
    }
    // Nothing the model wrote is lost.
    assert!(model.requests[1][2].content.contains("rm -rf bui"));
}

#[test]
fn the_embedded_profiles_render_in_both_protocols() {
    for name in [
        ProfileName::ProjectHardened,
        ProfileName::OfficialPublicRepro,
    ] {
        let profile = ResolvedProfile::embedded(name).unwrap();
        let replies = ["none", LS, LS, SUBMIT];
        let mut sandbox = Pretend::answering([
            printed("x".repeat(20_000)),
            Execution {
                status: ExitStatus::TimedOut,
                ..printed("part")
            },
            submitting(),
        ]);
        let done = run(
            &profile,
            task("STATEMENT"),
            &mut Scripted::texts(replies),
            &mut sandbox,
        );
        assert_eq!(done.end.exit, Exit::Submitted, "{name:?}");
        let messages = done.messages();
        assert!(messages[1].content.contains("STATEMENT"));
        assert!(messages[1].content.contains("/testbed"));
        assert_eq!(sandbox.commands[0].environment["PAGER"], "cat");
        assert_eq!(sandbox.commands[0].directory.as_deref(), Some("/testbed"));
        assert_eq!(sandbox.commands[0].timeout, Duration::from_secs(60));
    }
    let profile = ResolvedProfile::embedded(ProfileName::ProjectHardened)
        .unwrap()
        .with_overrides([("temper.protocol".to_owned(), json!("tool-call"))])
        .unwrap();
    let mut model = Scripted::default();
    model.replies.extend([
        Ok(text_reply("no call")),
        Ok(call_reply(&[("a", "bash", r#"{"command": "x"}"#)])),
    ]);
    let mut sandbox = Pretend::answering([submitting()]);
    let done = run(&profile, task("STATEMENT"), &mut model, &mut sandbox);
    assert_eq!(done.end.exit, Exit::Submitted);
    assert!(
        !done.messages()[..2]
            .iter()
            .any(|message| message.content.contains("```"))
    );
}
