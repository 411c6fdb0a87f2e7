//! Token ids and log-probabilities: kept as sent, refused where the parts do not agree.

use std::sync::Arc;

use serde_json::{Value, json};
use temper_agent::model::ModelReply;
use temper_core::{Message, Role, trajectory::TokenRecord};

use crate::server::*;

fn ask(answer: Value) -> ModelReply {
    let server = Server::start(vec![json_answer(200, &answer)]);
    let mut config = server.config();
    config.logprobs = true;
    config.token_ids = true;
    client(config, &Arc::new(FakeClock::default()))
        .query(&request(&opening()))
        .unwrap()
}

fn note(reply: &ModelReply) -> &str {
    reply
        .attempts
        .last()
        .unwrap()
        .message
        .as_deref()
        .unwrap_or("")
}

/// An answer with whatever a choice and the whole say beside the text.
fn answer(choice: Value, top: Value) -> Value {
    let mut answer = says("hello");
    answer["usage"]["completion_tokens"] = json!(2);
    for (into, from) in [(&mut answer["choices"][0], choice)] {
        for (name, value) in from.as_object().unwrap() {
            into[name] = value.clone();
        }
    }
    for (name, value) in top.as_object().unwrap() {
        answer[name] = value.clone();
    }
    answer
}

fn logprobs(values: &[Value]) -> Value {
    let entries: Vec<Value> = values
        .iter()
        .map(|value| json!({"token": "x", "logprob": value, "bytes": null, "top_logprobs": []}))
        .collect();
    json!({"content": entries})
}

fn record(prompt: Option<Vec<u32>>, logprobs: Option<Vec<f32>>) -> Option<TokenRecord> {
    Some(TokenRecord {
        prompt_ids: prompt,
        completion_ids: vec![11, 12],
        logprobs,
        loss_mask: None,
    })
}

#[test]
fn sampled_ids_are_kept_as_each_server_sends_them() {
    let two = logprobs(&[json!(-0.25), json!(-1.5)]);
    let whole = record(Some(vec![1, 2, 3]), Some(vec![-0.25, -1.5]));
    // vLLM: the prompt's ids are beside the choices.
    let reply = ask(answer(
        json!({"token_ids": [11, 12], "logprobs": two}),
        json!({"prompt_token_ids": [1, 2, 3], "prompt_logprobs": null}),
    ));
    assert_eq!(reply.tokens, whole);
    assert_eq!(note(&reply), "");
    // SGLang.
    let reply = ask(answer(
        json!({"response_token_ids": [11, 12], "prompt_token_ids": [1, 2, 3], "logprobs": null,
               "meta_info": {"output_token_logprobs": [[-0.25, 11, "hel"], [-1.5, 12, "lo"]]}}),
        json!({}),
    ));
    assert_eq!(reply.tokens, whole);
    let reply = ask(answer(
        json!({"meta_info": {"output_token_logprobs": [[-0.25, 11, null], [-1.5, 12, null]]}}),
        json!({}),
    ));
    assert_eq!(reply.tokens, record(None, Some(vec![-0.25, -1.5])));
    // llama.cpp: the id is beside the token. Older vLLM: in place of its text.
    let reply = ask(answer(
        json!({"logprobs": {"content": [
            {"id": 11, "token": "hel", "logprob": -0.25}, {"id": 12, "token": "lo", "logprob": -1.5},
        ]}}),
        json!({}),
    ));
    assert_eq!(reply.tokens, record(None, Some(vec![-0.25, -1.5])));
    let reply = ask(answer(
        json!({"logprobs": {"content": [
            {"token": "token_id:11", "logprob": -0.25}, {"token": "token_id:12", "logprob": -1.5},
        ]}}),
        json!({}),
    ));
    assert_eq!(reply.tokens, record(None, Some(vec![-0.25, -1.5])));
    // Ids without log-probabilities: they stay missing.
    let reply = ask(answer(json!({"token_ids": [11, 12]}), json!({})));
    assert_eq!(reply.tokens, record(None, None));
}

#[test]
fn records_that_do_not_agree_are_refused_with_the_reason() {
    let ids = json!([11, 12]);
    for (choice, reason) in [
        (
            json!({"logprobs": logprobs(&[json!(-1), json!(-2)])}),
            "log-probabilities without token ids",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1)])}),
            "2 token ids and 1 log-probabilities",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[])}),
            "2 token ids and 0 log-probabilities",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1), json!(-2), json!(-3)])}),
            "2 token ids and 3 log-probabilities",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1), json!(null)])}),
            "a log-probability is missing",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1), json!(0.5)])}),
            "0.5 is not a log-probability",
        ),
        (
            json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1), json!(-1e300)])}),
            "is not a log-probability",
        ),
        (json!({"token_ids": [11, -1]}), "not a token id"),
        (json!({"token_ids": [11, 1u64 << 32]}), "not a token id"),
        (json!({"token_ids": [11, "12"]}), "not a token id"),
        (json!({"token_ids": "11"}), "not a list"),
        (
            json!({"token_ids": ids, "prompt_token_ids": [1.5]}),
            "prompt_token_ids",
        ),
        (
            json!({"logprobs": {"content": [{"id": 11, "logprob": -1}, {"logprob": -2}]}}),
            "without token ids",
        ),
    ] {
        let reply = ask(answer(choice.clone(), json!({})));
        assert_eq!(reply.tokens, None, "{choice}");
        assert!(note(&reply).contains(reason), "{choice}: {}", note(&reply));
        assert_eq!(reply.message.content, "hello");
    }
    // A server that was asked and gave nothing needs no excuse.
    let reply = ask(answer(
        json!({"logprobs": null, "token_ids": null}),
        json!({}),
    ));
    assert_eq!(reply.tokens, None);
    assert_eq!(note(&reply), "");
    // A count that differs is said; the ids themselves are what was sent.
    let mut other = answer(json!({"token_ids": [11, 12]}), json!({}));
    other["usage"]["completion_tokens"] = json!(1);
    let reply = ask(other);
    assert_eq!(reply.tokens, record(None, None));
    assert!(
        note(&reply).contains("2 token ids, but 1 tokens"),
        "{}",
        note(&reply)
    );
}

#[test]
fn a_stream_gives_the_same_record_and_loses_none() {
    let chunk = |delta: Value, ids: Value, logprobs: Value, finish: Value| {
        json!({"choices": [{"index": 0, "delta": delta, "token_ids": ids, "logprobs": logprobs,
                            "finish_reason": finish}]})
    };
    let mut first = chunk(
        json!({"role": "assistant", "content": ""}),
        json!(null),
        json!(null),
        json!(null),
    );
    first["prompt_token_ids"] = json!([1, 2, 3]);
    let middle = chunk(
        json!({"content": "hel"}),
        json!([11]),
        logprobs(&[json!(-0.25)]),
        json!(null),
    );
    let last = chunk(
        json!({"content": "lo"}),
        json!([12]),
        logprobs(&[json!(-1.5)]),
        json!("stop"),
    );
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}});
    let ask = |events: &[&Value]| {
        let server = Server::start(vec![stream_answer(&stream_of(events))]);
        server.client().query(&request(&opening())).unwrap()
    };
    let reply = ask(&[&first, &middle, &last, &usage]);
    assert_eq!(reply.message.content, "hello");
    assert_eq!(
        reply.tokens,
        record(Some(vec![1, 2, 3]), Some(vec![-0.25, -1.5]))
    );
    assert_eq!(reply.usage.completion_tokens, Some(2));
    // A chunk that a parser on the server held back took its ids with it.
    let reply = ask(&[&first, &last, &usage]);
    assert_eq!(reply.tokens, None);
    assert!(
        note(&reply).contains("1 token ids, but 2 tokens"),
        "{}",
        note(&reply)
    );
}

#[test]
fn a_history_that_is_tokenized_anew_is_said() {
    let turn = |prompt: Value, ids: Value| {
        let choice = json!({"token_ids": ids, "logprobs": logprobs(&[json!(-1), json!(-1)])});
        json_answer(200, &answer(choice, json!({"prompt_token_ids": prompt})))
    };
    let run = |second_prompt: Value| {
        let server = Server::start(vec![
            turn(json!([1, 2, 3]), json!([11, 12])),
            turn(second_prompt, json!([21, 22])),
        ]);
        let mut client = server.client();
        let mut messages = opening();
        let first = client.query(&request(&messages)).unwrap();
        messages.push(first.message);
        messages.push(Message::text(Role::User, "go on"));
        client.query(&request(&messages)).unwrap()
    };
    // The sampled ids begin the next prompt unchanged.
    let reply = run(json!([1, 2, 3, 11, 12, 4]));
    assert_eq!(
        reply.tokens.as_ref().unwrap().prompt_ids,
        Some(vec![1, 2, 3, 11, 12, 4])
    );
    assert_eq!(note(&reply), "");
    // The server's tokenizer makes one token of the two.
    let reply = run(json!([1, 2, 3, 99, 4]));
    assert_eq!(
        reply.tokens.as_ref().unwrap().prompt_ids,
        Some(vec![1, 2, 3, 99, 4])
    );
    assert!(note(&reply).contains("at position 3"), "{}", note(&reply));
}
