//! Servers that break, lie or attack: every answer ends in a reply or an error, within bounds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_agent::model::{ModelError, ModelErrorClass, ModelReply};
use temper_core::trajectory::FinishReason;

use crate::server::*;

fn ask(answer: Answer) -> Result<ModelReply, ModelError> {
    let server = Server::start(vec![answer]);
    let mut config = server.config();
    config.retry.max_attempts = 2;
    config.attempt_timeout = Duration::from_secs(5);
    config.max_response_bytes = 100_000;
    client(config, &Arc::new(FakeClock::default())).query(&request(&opening()))
}

fn ok(body: &[u8]) -> Answer {
    Answer::Raw(http(200, "content-type: application/json\r\n", body))
}

#[test]
fn hostile_answers_are_errors_of_the_right_kind() {
    use ModelErrorClass::*;
    let deep = format!("{}{}", "[".repeat(40_000), "]".repeat(40_000));
    let many_calls: Vec<Value> = (0..1000)
        .map(|n| json!({"id": format!("c{n}"), "function": {"name": "f", "arguments": "{}"}}))
        .collect();
    let many_calls = json!({"choices": [{"message": {"tool_calls": many_calls}}]});
    let long_header = format!("x: {}\r\n", "y".repeat(200_000));
    let cases: Vec<(&str, Answer, ModelErrorClass, usize)> = vec![
        ("nothing at all", Answer::Raw(Vec::new()), Connection, 2),
        ("not HTTP", Answer::Raw(b"\x16\x03\x01garbage\r\n\r\n".to_vec()), InvalidResponse, 1),
        ("a broken status line", Answer::Raw(b"HTTP/1.1 abc\r\n\r\n".to_vec()), InvalidResponse, 1),
        ("an endless header", Answer::Raw(http(200, &long_header, b"{}")), InvalidResponse, 1),
        (
            "a flood of interim answers",
            Answer::Raw(b"HTTP/1.1 100 Continue\r\n\r\n".repeat(1000)),
            Connection,
            2,
        ),
        (
            "no content",
            Answer::Raw(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
            Connection,
            2,
        ),
        ("an empty body", ok(b""), Connection, 2),
        ("white space", ok(b"   "), Connection, 2),
        ("half a JSON text", ok(b"{\"choices\": [{\"mess"), Connection, 2),
        ("garbage", ok(&[0xff, 0xfe, 0, 1, 2]), InvalidResponse, 1),
        ("text that is not UTF-8", ok(b"{\"choices\": \"\xff\"}"), InvalidResponse, 1),
        ("a number out of range", ok(b"{\"a\": 1e999}"), InvalidResponse, 1),
        ("deep nesting", ok(deep.as_bytes()), InvalidResponse, 1),
        ("an HTML page", ok(b"<html><title>Sign in</title></html>"), InvalidResponse, 1),
        ("an HTML error page", Answer::Raw(http(502, "", b"<html>nginx</html>")), Server, 2),
        ("another JSON value", ok(b"[]"), InvalidResponse, 1),
        ("an empty object", ok(b"{}"), InvalidResponse, 1),
        ("no choices", ok(b"{\"choices\": []}"), InvalidResponse, 1),
        ("null choices", ok(b"{\"choices\": null}"), InvalidResponse, 1),
        ("choices of the wrong type", ok(b"{\"choices\": {\"0\": 1}}"), InvalidResponse, 1),
        ("a thousand calls", json_answer(200, &many_calls), InvalidResponse, 1),
        ("too long", ok(&[b' '; 100_001]), InvalidResponse, 1),
        (
            "a longer body than announced is cut by the length",
            Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{\"choices\"".to_vec()),
            Connection,
            2,
        ),
        (
            "a shorter body than announced",
            Answer::Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"choices\"".to_vec()),
            Connection,
            2,
        ),
        (
            "a broken chunk",
            Answer::Raw(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n".to_vec()),
            InvalidResponse,
            1,
        ),
        (
            "a reset in the middle",
            Answer::Reset(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{\"cho".to_vec()),
            Connection,
            2,
        ),
        (
            "not gzip",
            Answer::Raw(http(200, "content-encoding: gzip\r\n", b"plain")),
            InvalidResponse,
            1,
        ),
        ("an error in a good answer", ok(b"{\"error\": {\"code\": 429}}"), RateLimited, 2),
        ("a stream of nothing", stream_answer(b""), Connection, 2),
        ("a stream of comments", stream_answer(b": a\n\n: b\n\n"), Connection, 2),
        ("only the end", stream_answer(b"data: [DONE]\n\n"), InvalidResponse, 1),
        ("garbage in a stream", stream_answer(b"data: \xff\xfe\n\n"), InvalidResponse, 1),
        ("no JSON in a stream", stream_answer(b"data: hello\n\ndata: [DONE]\n\n"), InvalidResponse, 1),
        (
            "half an event at the end",
            stream_answer(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"cho"),
            Connection,
            2,
        ),
        (
            "a stream without its end",
            stream_answer(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n"),
            Connection,
            2,
        ),
        ("an endless event", stream_answer(&[b'a'; 200_000]), InvalidResponse, 1),
        (
            "an error in a stream",
            stream_answer(&stream_of(&[json!({"error": {"message": "x", "code": 400}})])),
            BadRequest,
            1,
        ),
        (
            "an error field in a stream",
            stream_answer(b"error: {\"code\":400,\"message\":\"m\",\"type\":\"exceed_context_size_error\",\"error\":{\"type\":\"exceed_context_size_error\",\"code\":400}}\n\n"),
            ContextExceeded,
            1,
        ),
    ];
    for (name, answer, class, n_attempts) in cases {
        let started = Instant::now();
        let error = ask(answer).expect_err(name);
        assert_eq!(
            (error.class, error.attempts.len()),
            (class, n_attempts),
            "{name}: {error:?}"
        );
        assert!(error.message.len() < 1000, "{name}");
        assert!(
            !error.message.chars().any(char::is_control),
            "{name}: {error:?}"
        );
        assert!(started.elapsed() < Duration::from_secs(4), "{name}");
    }
}

#[test]
fn odd_answers_are_read_as_far_as_they_can_be() {
    for (name, choice) in [
        ("nothing", json!({})),
        ("null message", json!({"message": null})),
        ("a number as content", json!({"message": {"content": 5}})),
        (
            "a list of numbers",
            json!({"message": {"content": [1, null, {"text": 2}]}}),
        ),
        (
            "calls that are none",
            json!({"message": {"tool_calls": "x"}}),
        ),
        (
            "odd logprobs",
            json!({"message": {"content": ""}, "logprobs": [1]}),
        ),
        (
            "an index that is none",
            json!({"index": null, "message": {"content": ""}}),
        ),
    ] {
        let reply = ask(json_answer(200, &json!({"choices": [choice]}))).expect(name);
        assert_eq!(reply.message.content, "", "{name}");
        assert_eq!(reply.finish, FinishReason::Other(String::new()), "{name}");
        assert_eq!(reply.tokens, None, "{name}");
    }
    // Calls whose fields have wrong types, or whose index is out of any range.
    let calls = json!([
        1, null, {"index": u64::MAX, "id": 5, "function": {"name": 5, "arguments": [1]}},
        {"function": "f"},
    ]);
    let reply = ask(json_answer(
        200,
        &json!({"choices": [{"message": {"tool_calls": calls}}]}),
    ))
    .unwrap();
    assert_eq!(reply.message.tool_calls.len(), 4);
    assert_eq!(reply.message.tool_calls[2].arguments, "[1]");
    // A gzip bomb is stopped by the limit on what it unpacks to.
    let bomb = ask(Answer::Raw(http(
        200,
        "content-encoding: gzip\r\n",
        &gzip_of_zeros(),
    )));
    assert_eq!(bomb.unwrap_err().class, ModelErrorClass::InvalidResponse);
}

/// A gzip file of ten million zero bytes, written by Python:
/// `gzip.compress(bytes(10_000_000), mtime=0)` is a header, runs of the longest match, a trailer.
fn gzip_of_zeros() -> Vec<u8> {
    include_bytes!("../fixtures/zeros.gz").to_vec()
}

#[test]
fn a_server_that_is_not_there_is_a_connection_error() {
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let mut config = server.config();
    config.retry.max_attempts = 3;
    drop(server);
    let error = client(config, &Arc::new(FakeClock::default()))
        .query(&request(&opening()))
        .unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Connection);
    assert_eq!(error.attempts.len(), 3);
    assert!(
        error
            .attempts
            .iter()
            .all(|attempt| attempt.status.is_none())
    );
}
