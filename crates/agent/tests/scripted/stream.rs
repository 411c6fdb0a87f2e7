//! Streams: the same reply as without one, for every way the bytes may arrive.

use std::time::Duration;

use serde_json::{Value, json};
use temper_agent::model::ModelReply;
use temper_core::trajectory::FinishReason;

use crate::server::*;

fn events() -> Vec<Value> {
    let delta = |delta: Value| json!({"choices": [{"index": 0, "delta": delta}]});
    vec![
        delta(json!({"role": "assistant", "content": null, "reasoning_content": "h\u{e9}"})),
        delta(json!({"reasoning_content": "m"})),
        delta(json!({"content": "snow \u{2603} "})),
        delta(json!({"content": "\u{1f980}"})),
        delta(
            json!({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "bash", "arguments": "{\"a\""}}]}),
        ),
        delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": ": \"\u{e9}\"}"}}]})),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}),
        json!({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
    ]
}

fn check(reply: &ModelReply, what: &str) {
    assert_eq!(reply.message.content, "snow \u{2603} \u{1f980}", "{what}");
    assert_eq!(
        reply.message.reasoning.as_deref(),
        Some("h\u{e9}m"),
        "{what}"
    );
    assert_eq!(
        reply.message.tool_calls[0].arguments, "{\"a\": \"\u{e9}\"}",
        "{what}"
    );
    assert_eq!(reply.finish, FinishReason::ToolCalls, "{what}");
    assert_eq!(reply.usage.completion_tokens, Some(2), "{what}");
}

fn ask(answer: Answer) -> ModelReply {
    let server = Server::start(vec![answer]);
    server.client().query(&request(&opening())).unwrap()
}

#[test]
fn endings_and_line_ends_do_not_matter() {
    let lines = stream_of(&events());
    check(&ask(stream_answer(&lines)), "no [DONE]");
    let done = [&lines[..], b"data: [DONE]\n\n"].concat();
    check(&ask(stream_answer(&done)), "[DONE]");
    let more = [&done[..], b"data: {\"error\": \"ignored\"}\n\n"].concat();
    check(&ask(stream_answer(&more)), "text after the end");
    let text = String::from_utf8(done).unwrap();
    check(
        &ask(stream_answer(text.replace('\n', "\r\n").as_bytes())),
        "CRLF",
    );
    check(
        &ask(stream_answer(text.replace("data: ", "data:").as_bytes())),
        "no space",
    );
    let commented = text.replace("data: {", ": ping\n\nevent: message\ndata: {");
    check(&ask(stream_answer(commented.as_bytes())), "comments");
    check(
        &ask(stream_answer(text.trim_end().as_bytes())),
        "no last blank line",
    );
}

#[test]
fn the_bytes_may_arrive_in_any_pieces() {
    let body = [&stream_of(&events())[..], b"data: [DONE]\n\n"].concat();
    let head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\
                 content-type: text/event-stream; charset=utf-8\r\n\r\n";
    for size in [1, 7, 64, body.len()] {
        let mut bytes = head.to_vec();
        for chunk in body.chunks(size) {
            bytes.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            bytes.extend_from_slice(chunk);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
        check(
            &ask(Answer::Raw(bytes.clone())),
            &format!("chunks of {size}"),
        );
        // The same with real pauses, at a few places that cut lines and characters.
        let third = bytes.len() / 3;
        let pieces = vec![
            bytes[..third].to_vec(),
            bytes[third..2 * third].to_vec(),
            bytes[2 * third..].to_vec(),
        ];
        let slow = Answer::Slow(pieces, Duration::from_millis(2));
        check(&ask(slow), &format!("slow chunks of {size}"));
    }
}

#[test]
fn a_whole_answer_where_a_stream_was_asked_for_is_taken() {
    let server = Server::start(vec![json_answer(200, &says("whole"))]);
    let mut config = server.config();
    config.stream = true;
    let mut client = client(config, &std::sync::Arc::new(FakeClock::default()));
    let reply = client.query(&request(&opening())).unwrap();
    assert_eq!(reply.message.content, "whole");
}

#[test]
fn a_stream_that_breaks_is_asked_for_again() {
    let body = stream_of(&events());
    let server = Server::start(vec![
        stream_answer(&body[..body.len() / 2]),
        stream_answer(&body),
    ]);
    let reply = server.client().query(&request(&opening())).unwrap();
    check(&reply, "second attempt");
    assert_eq!(reply.attempts.len(), 2);
    assert_eq!(reply.attempts[0].status, Some(200));
    assert_eq!(reply.attempts[0].error.as_deref(), Some("Connection"));
}
