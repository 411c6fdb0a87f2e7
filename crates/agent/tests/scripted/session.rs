//! Recorded sessions: replayed exactly, by many trials at once, after crashes, and not otherwise.

use std::{io::Write, sync::Arc};

use temper_agent::model::{
    Model, ModelErrorClass, ModelFactory, ModelReply, ModelRequest,
    record::{RecordingFactory, SessionError},
    replay::ReplayFactory,
    scripted::{Script, ScriptedCall, ScriptedError, ScriptedFactory, ScriptedReply},
};
use temper_core::{
    Message, Role,
    trajectory::TokenRecord,
    usage::{MicroDollars, Usage},
};

use crate::server::*;

fn script() -> Script {
    Script {
        replies: vec![
            ScriptedReply {
                content: "one \u{2603}".into(),
                reasoning: Some("hm".into()),
                usage: Usage {
                    prompt_tokens: Some(5),
                    cached_tokens: None,
                    completion_tokens: Some(2),
                },
                cost: Some(0.25),
                tokens: Some(TokenRecord {
                    prompt_ids: Some(vec![1, 2]),
                    completion_ids: vec![3, 4],
                    logprobs: Some(vec![-0.1, -1.0e-7]),
                    loss_mask: None,
                }),
                ..ScriptedReply::default()
            },
            ScriptedReply {
                tool_calls: vec![ScriptedCall {
                    id: None,
                    name: "bash".into(),
                    arguments: "{\"broken".into(),
                }],
                ..ScriptedReply::default()
            },
            ScriptedReply {
                error: Some(ScriptedError::ContextExceeded),
                ..ScriptedReply::default()
            },
        ],
        ..Script::default()
    }
}

/// A loop of its own: asks, appends, asks again, until the model fails.
fn run(model: &mut dyn Model, statement: &str) -> Vec<String> {
    let mut messages = vec![Message::text(Role::User, statement)];
    let mut log = Vec::new();
    loop {
        match model.query(&request(&messages)) {
            Ok(reply) => {
                log.push(show(&reply));
                messages.push(reply.message);
                messages.push(Message::text(Role::User, "go on"));
            }
            Err(error) => {
                log.push(format!(
                    "{:?} {} {:?}",
                    error.class, error.message, error.attempts
                ));
                return log;
            }
        }
    }
}

fn show(reply: &ModelReply) -> String {
    format!("{reply:?}")
}

fn statement(task: &str, seed: u64) -> String {
    format!("{task} {seed}")
}

#[test]
fn many_trials_at_once_are_replayed_exactly() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session.jsonl");
    let trials: Vec<(String, u64)> = (0..24)
        .map(|n| (format!("task/{}", n % 6), n / 6))
        .collect();
    let together = |factory: &dyn ModelFactory| -> Vec<Vec<String>> {
        std::thread::scope(|scope| {
            let handles: Vec<_> = trials
                .iter()
                .map(|(id, seed)| {
                    scope.spawn(move || {
                        let mut model = factory.open(&task(id), *seed).unwrap();
                        run(&mut *model, &statement(id, *seed))
                    })
                })
                .collect();
            handles.into_iter().map(|h| h.join().unwrap()).collect()
        })
    };
    let inner = Arc::new(ScriptedFactory::new(script()));
    let recording = RecordingFactory::new(inner.clone(), &path).unwrap();
    assert_eq!(recording.describe(), inner.describe());
    let recorded = together(&recording);
    assert_eq!(recorded[0].len(), 3);
    let replay = ReplayFactory::read(&path).unwrap();
    assert_eq!(together(&replay), recorded);
    assert!(!replay.is_language_model());
    assert_eq!(replay.describe()["recorded_from"], inner.describe());
    assert_eq!(replay.header().model, inner.describe());
    // Everything was used: another trial of the same name is not in the session.
    let error = replay.open(&task("task/0"), 0).err().unwrap();
    assert_eq!(error.class, ModelErrorClass::Exhausted);
    let error = replay.open(&task("task/0"), 99).err().unwrap();
    assert!(
        error.message.contains("no trial of task/0 with seed 99"),
        "{error}"
    );
}

#[test]
fn a_request_that_differs_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session.jsonl");
    let factory = Arc::new(ScriptedFactory::new(Script::of_texts(["a", "b"])));
    let recording = RecordingFactory::new(factory, &path).unwrap();
    let mut model = recording.open(&task("t"), 1).unwrap();
    let mut messages = opening();
    model.query(&request(&messages)).unwrap();
    messages.push(Message::text(Role::Assistant, "a"));
    messages.push(Message::text(Role::User, "two"));
    model.query(&request(&messages)).unwrap();

    let differing = |change: &dyn Fn(&mut Vec<Message>)| {
        let replay = ReplayFactory::read(&path).unwrap();
        let mut model = replay.open(&task("t"), 1).unwrap();
        model.query(&request(&opening())).unwrap();
        let mut changed = messages.clone();
        change(&mut changed);
        model.query(&request(&changed))
    };
    assert!(differing(&|_| {}).is_ok());
    for (change, expected) in [
        (
            (&|m: &mut Vec<Message>| m[3].content.push('!')) as &dyn Fn(&mut Vec<Message>),
            "message 4 was User",
        ),
        (
            &|m| m[2].reasoning = Some(String::new()),
            "message 3 was Assistant",
        ),
        (&|m| m[0].content.clear(), "message 1 was System"),
        (&|m| drop(m.pop()), "it had 4 messages and has 3"),
        (&|m| m.push(m[0].clone()), "it had 4 messages and has 5"),
    ] {
        let error = differing(change).unwrap_err();
        assert_eq!(error.class, ModelErrorClass::BadRequest);
        assert!(error.message.contains(expected), "{}", error.message);
        assert!(error.message.contains("call 2 of t"), "{}", error.message);
    }
    // The settings of a call count too, its deadline does not.
    let replay = ReplayFactory::read(&path).unwrap();
    let mut model = replay.open(&task("t"), 1).unwrap();
    let messages = opening();
    let hot = ModelRequest {
        temperature: Some(1.0),
        ..request(&messages)
    };
    assert!(
        model
            .query(&hot)
            .unwrap_err()
            .message
            .contains("temperature")
    );
    let timed = ModelRequest {
        deadline: Some(std::time::Instant::now()),
        ..request(&messages)
    };
    assert!(model.query(&timed).is_ok());
}

#[test]
fn a_killed_recording_goes_on_and_replays_as_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session.jsonl");
    let inner: Arc<dyn ModelFactory> = Arc::new(ScriptedFactory::new(script()));
    // A process that is killed in its second call: the first is whole, the second half written.
    {
        let recording = RecordingFactory::new(Arc::clone(&inner), &path).unwrap();
        let mut model = recording.open(&task("t"), 1).unwrap();
        let first = vec![Message::text(Role::User, "s")];
        model.query(&request(&first)).unwrap();
        recording.open(&task("opened only"), 1).unwrap();
    }
    let whole = std::fs::read(&path).unwrap();
    let mut file = std::fs::File::options().append(true).open(&path).unwrap();
    file.write_all(b"{\"record\":\"call\",\"task_id\":\"t\",\"se")
        .unwrap();
    drop(file);
    // It is resumed: the trial starts over.
    let recording = RecordingFactory::new(Arc::clone(&inner), &path).unwrap();
    assert_eq!(
        std::fs::read(&path).unwrap(),
        whole,
        "the half line is gone"
    );
    let log = run(&mut *recording.open(&task("t"), 1).unwrap(), "s");
    assert_eq!(log.len(), 3);
    // Nobody kills the replay, so it sees one trial.
    let replay = ReplayFactory::read(&path).unwrap();
    assert_eq!(run(&mut *replay.open(&task("t"), 1).unwrap(), "s"), log);
    assert!(replay.open(&task("t"), 1).is_err());

    // A trial that was started over after an error keeps both.
    let again = run(&mut *recording.open(&task("t"), 1).unwrap(), "s");
    let replay = ReplayFactory::read(&path).unwrap();
    assert_eq!(run(&mut *replay.open(&task("t"), 1).unwrap(), "s"), log);
    assert_eq!(run(&mut *replay.open(&task("t"), 1).unwrap(), "s"), again);
}

#[test]
fn sessions_are_not_mixed_and_not_guessed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("session.jsonl");
    let one: Arc<dyn ModelFactory> = Arc::new(ScriptedFactory::new(script()));
    let other: Arc<dyn ModelFactory> = Arc::new(ScriptedFactory::new(Script::default()));
    let recording = RecordingFactory::new(one, &path).unwrap();
    run(&mut *recording.open(&task("t"), 1).unwrap(), "s");
    assert!(matches!(
        RecordingFactory::new(other, &path).err(),
        Some(SessionError::OtherModel(_))
    ));
    let good = std::fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = good.lines().collect();
    assert_eq!(lines.len(), 4);
    for (text, expected) in [
        (String::new(), "line 1"),
        (
            good.replace("\"format\":1", "\"format\":2"),
            "expected format 1, got 2",
        ),
        (lines[1..].join("\n") + "\n", "expected a header"),
        (format!("{good}{}\n", lines[0]), "a second header"),
        (format!("{good}nonsense\n"), "line 5"),
        (
            format!("{}\n{}\n{}\n", lines[0], lines[1], lines[3]),
            "expected call 1, got 2",
        ),
        (
            good.replace("\"n_shared_messages\":1", "\"n_shared_messages\":9"),
            "shared messages",
        ),
        (
            good.replace("\"opening\":0", "\"opening\":4000000000"),
            "out of order",
        ),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = ReplayFactory::read(&path)
            .err()
            .expect(expected)
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn scripts_say_what_they_say_and_then_nothing() {
    let yaml = r#"
cost_per_call: 0.5
replies:
  - plain text
  - content: |
      THOUGHT

      ```bash
      ls
      ```
    usage: {prompt_tokens: 3, cached_tokens: null, completion_tokens: 4}
    cost: 0.125
  - tool_calls: [{name: bash, arguments: {command: ls}}]
    finish: length
tasks:
  special: [only this, {error: rate-limited}]
"#;
    let factory = ScriptedFactory::new(Script::parse(yaml).unwrap());
    let messages = opening();
    let mut model = factory.open(&task("any"), 1).unwrap();
    let reply = model.query(&request(&messages)).unwrap();
    assert_eq!(reply.message.content, "plain text");
    assert_eq!(reply.cost, Some(MicroDollars(500_000)));
    let reply = model.query(&request(&messages)).unwrap();
    assert_eq!(reply.message.content, "THOUGHT\n\n```bash\nls\n```\n");
    assert_eq!(reply.cost, Some(MicroDollars(125_000)));
    assert_eq!(reply.usage.completion_tokens, Some(4));
    let reply = model.query(&request(&messages)).unwrap();
    assert_eq!(
        reply.message.tool_calls[0].arguments,
        "{\"command\":\"ls\"}"
    );
    assert_eq!(reply.finish, temper_core::trajectory::FinishReason::Length);
    let error = model.query(&request(&messages)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Exhausted);

    let mut model = factory.open(&task("special"), 1).unwrap();
    assert_eq!(
        model.query(&request(&messages)).unwrap().message.content,
        "only this"
    );
    let error = model.query(&request(&messages)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::RateLimited);
    assert_eq!(factory.dearest_call(), Some(MicroDollars(500_000)));
    assert_eq!(
        ScriptedFactory::new(Script::of_texts(["a"])).dearest_call(),
        None
    );

    // JSON is YAML too; a list alone is enough.
    let list = Script::parse("[\"a\", {\"content\": \"b\"}]").unwrap();
    assert_eq!(list, Script::of_texts(["a", "b"]));
    for bad in [
        "",
        "a text",
        "5",
        "[5]",
        "[{contnet: a}]",
        "{reply: []}",
        "[{cost: -1}]",
        "cost_per_call: .nan",
        "[{error: unheard-of}]",
        "[{tool_calls: [{name: a}]}]",
        "[",
    ] {
        assert!(Script::parse(bad).is_err(), "{bad:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.yaml");
    assert!(ScriptedFactory::read(&path).is_err());
    std::fs::write(&path, yaml).unwrap();
    let from_file = ScriptedFactory::read(&path).unwrap();
    std::fs::write(&path, yaml.replace("plain", "other")).unwrap();
    let changed = ScriptedFactory::read(&path).unwrap();
    assert_ne!(from_file.describe(), changed.describe());
}
