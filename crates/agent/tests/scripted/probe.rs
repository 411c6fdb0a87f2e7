//! Asking a server what it offers.

use std::time::Duration;

use serde_json::json;
use temper_agent::model::{
    ModelErrorClass,
    probe::{ListedModel, list_models, only_model, probe},
    secret::Secret,
};

use crate::server::*;

const TIMEOUT: Duration = Duration::from_secs(5);

#[test]
fn names_and_context_lengths_are_read_from_each_server() {
    let answer = json!({"object": "list", "data": [
        {"id": "vllm/model", "object": "model", "max_model_len": 32768},
        {"id": "openrouter", "context_length": 8192},
        {"id": "llama", "meta": {"n_ctx_train": 131072, "n_ctx": 4096}},
        {"id": "openai"},
        {"id": ""}, {"id": 5}, {}, null, {"id": "bad\u{1b}[31m"},
    ]});
    let server = Server::start(vec![json_answer(200, &answer)]);
    let key = Secret::new(KEY).unwrap();
    let found = probe(&server.endpoint(), Some(&key), TIMEOUT);
    assert!(found.is_reachable());
    let model = |name: &str, context_tokens| ListedModel {
        name: name.into(),
        context_tokens,
    };
    assert_eq!(
        found.models.unwrap(),
        [
            model("vllm/model", Some(32768)),
            model("openrouter", Some(8192)),
            model("llama", Some(4096)),
            model("openai", None),
        ]
    );
    let seen = &server.requests()[0];
    assert_eq!(
        (seen.method.as_str(), seen.path.as_str()),
        ("GET", "/v1/models")
    );
    assert_eq!(
        seen.header("authorization"),
        Some(&*format!("Bearer {KEY}"))
    );
}

#[test]
fn a_model_is_picked_only_where_there_is_no_choice() {
    let list = |names: &[&str]| -> Vec<ListedModel> {
        names
            .iter()
            .map(|name| ListedModel {
                name: (*name).into(),
                context_tokens: None,
            })
            .collect()
    };
    assert_eq!(only_model(&list(&["m"])).unwrap().name, "m");
    assert_eq!(
        only_model(&list(&[])).unwrap_err().class,
        ModelErrorClass::ModelNotFound
    );
    let error = only_model(&list(&["a", "b"])).unwrap_err();
    assert!(
        error.message.contains("add #NAME") && error.message.contains("a, b"),
        "{error}"
    );
}

#[test]
fn servers_that_refuse_or_lie_are_told_apart_from_absent_ones() {
    for (answer, class) in [
        (
            json_answer(401, &json!({"error": KEY})),
            ModelErrorClass::Authentication,
        ),
        (json_answer(404, &json!({})), ModelErrorClass::ModelNotFound),
        (
            json_answer(200, &json!({"data": 5})),
            ModelErrorClass::InvalidResponse,
        ),
        (
            Answer::Raw(http(200, "", b"<html>")),
            ModelErrorClass::InvalidResponse,
        ),
    ] {
        let server = Server::start(vec![answer]);
        let key = Secret::new(KEY).unwrap();
        let found = probe(&server.endpoint(), Some(&key), TIMEOUT);
        assert!(found.is_reachable());
        let error = found.models.unwrap_err();
        assert_eq!(error.class, class);
        assert!(error.message.contains("127.0.0.1"), "{error}");
        assert!(!format!("{error:?}").contains(KEY));
    }
    let server = Server::start(vec![json_answer(200, &json!({}))]);
    let endpoint = server.endpoint();
    drop(server);
    assert!(!probe(&endpoint, None, TIMEOUT).is_reachable());
    assert_eq!(
        list_models(&endpoint, None, TIMEOUT).unwrap_err().class,
        ModelErrorClass::Connection
    );
}
