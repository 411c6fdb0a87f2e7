//! The client of OpenAI-compatible servers against a scripted server: requests and replies.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use temper_agent::model::{
    ModelErrorClass, ModelFactory, ModelRequest, Tool,
    openai::{ConfigError, OpenAiConfig, OpenAiFactory, OutputLimitField, ReasoningHistory},
    pricing::Price,
    secret::Secret,
    spec::Endpoint,
};
use temper_core::{
    Message, Role, ToolCall,
    trajectory::FinishReason,
    usage::{MicroDollars, Usage},
};

use crate::server::*;

#[test]
fn a_request_says_what_was_configured_and_nothing_else() {
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let mut config = server.config();
    let kwargs = json!({"temperature": 1.0, "top_p": 0.9, "max_tokens": 512, "drop_params": true,
                        "chat_template_kwargs": {"enable_thinking": false}});
    config
        .set_model_kwargs(kwargs.as_object().unwrap())
        .unwrap();
    let messages = opening();
    let tools = [Tool {
        name: "bash".into(),
        description: "Run a command".into(),
        parameters: json!({"type": "object", "properties": {"command": {"type": "string"}}}),
    }];
    let request = ModelRequest {
        tools: &tools,
        temperature: Some(1.0),
        max_output_tokens: Some(512),
        ..request(&messages)
    };
    let mut client = client(config, &Arc::new(FakeClock::default()));
    client.query(&request).unwrap();
    client.query(&request).unwrap();
    let seen = server.requests();
    assert_eq!(seen[0].method, "POST");
    assert_eq!(seen[0].path, "/v1/chat/completions");
    assert_eq!(
        seen[0].header("authorization"),
        Some(&*format!("Bearer {KEY}"))
    );
    assert_eq!(seen[0].header("content-type"), Some("application/json"));
    let mut body = seen[0].json();
    assert_eq!(
        seen[1].json(),
        body,
        "the same request twice is the same bytes"
    );
    let seed = body.as_object_mut().unwrap().remove("seed").unwrap();
    assert!(seed.as_u64().unwrap() < 1 << 31);
    assert_eq!(
        body,
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "You repair code."},
                {"role": "user", "content": "Fix it."},
            ],
            "tools": [{"type": "function", "function": {
                "name": "bash", "description": "Run a command",
                "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
            }}],
            "temperature": 1.0, "top_p": 0.9, "max_tokens": 512,
            "chat_template_kwargs": {"enable_thinking": false},
        })
    );
}

#[test]
fn the_seed_differs_by_trial_and_by_turn() {
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let seeds = |seed: u64, n_messages: usize| {
        let messages = vec![Message::text(Role::User, "x"); n_messages];
        let request = ModelRequest {
            seed,
            ..request(&messages)
        };
        server.client().query(&request).unwrap();
        server.requests().last().unwrap().json()["seed"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(seeds(1, 2), seeds(1, 2));
    assert_ne!(seeds(1, 2), seeds(1, 4));
    assert_ne!(seeds(1, 2), seeds(2, 2));
    let mut config = server.config();
    config.send_seed = false;
    client(config, &Arc::new(FakeClock::default()))
        .query(&request(&opening()))
        .unwrap();
    assert_eq!(server.requests().last().unwrap().json().get("seed"), None);
}

#[test]
fn switches_reach_the_request() {
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let mut config = server.config();
    config.stream = true;
    config.logprobs = true;
    config.token_ids = true;
    config.output_limit_field = OutputLimitField::MaxCompletionTokens;
    config.reasoning_history = ReasoningHistory::ReasoningContent;
    let mut messages = opening();
    messages.push(Message {
        reasoning: Some("hm".into()),
        ..Message::text(Role::Assistant, "ok")
    });
    let with_limit = ModelRequest {
        max_output_tokens: Some(9),
        ..request(&messages)
    };
    client(config, &Arc::new(FakeClock::default()))
        .query(&with_limit)
        .unwrap();
    let body = server.requests()[0].json();
    assert_eq!(body["stream"], true);
    assert_eq!(body["stream_options"], json!({"include_usage": true}));
    assert_eq!(body["logprobs"], true);
    assert_eq!(body["return_token_ids"], true);
    assert_eq!(body["max_completion_tokens"], 9);
    assert_eq!(body.get("max_tokens"), None);
    assert_eq!(body["messages"][2]["reasoning_content"], "hm");
    // Without the switch reasoning stays here.
    server.client().query(&request(&messages)).unwrap();
    let body = server.requests()[1].json();
    assert_eq!(
        body["messages"][2],
        json!({"role": "assistant", "content": "ok"})
    );
    assert_eq!(body.get("stream"), None);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let endpoint = Endpoint::parse("http://127.0.0.1:9").unwrap();
    let set = |kwargs: Value| {
        OpenAiConfig::new(endpoint.clone(), "m").set_model_kwargs(kwargs.as_object().unwrap())
    };
    for name in [
        "model",
        "messages",
        "stream",
        "n",
        "seed",
        "api_key",
        "api_base",
        "logprobs",
        "timeout",
        "return_token_ids",
        "extra_headers",
    ] {
        let refused = set(json!({name: 1}));
        assert!(
            matches!(refused, Err(ConfigError::OwnField { .. })),
            "{name}"
        );
    }
    assert!(set(json!({"max_tokens": 1, "max_completion_tokens": 1})).is_err());
    assert!(set(json!({"max_tokens": 0})).is_err());
    assert!(set(json!({"max_tokens": "many"})).is_err());
    assert!(set(json!({"drop_params": true, "min_p": 0.1})).is_ok());

    let server = Server::start(vec![json_answer(200, &says(""))]);
    for kwargs in [json!({"temperature": 0.5}), json!({"max_tokens": 5})] {
        let mut config = server.config();
        config
            .set_model_kwargs(kwargs.as_object().unwrap())
            .unwrap();
        let messages = opening();
        let request = ModelRequest {
            temperature: Some(1.0),
            max_output_tokens: Some(6),
            ..request(&messages)
        };
        let error = client(config, &Arc::new(FakeClock::default()))
            .query(&request)
            .unwrap_err();
        assert_eq!(error.class, ModelErrorClass::BadRequest);
        assert!(error.message.contains("in model_kwargs"), "{error}");
    }
    assert_eq!(server.requests().len(), 0);
    let mut config = server.config();
    let kwargs = json!({"temperature": 1, "max_completion_tokens": 5});
    config
        .set_model_kwargs(kwargs.as_object().unwrap())
        .unwrap();
    assert_eq!(config.check_against(Some(1.0), Some(5)), Ok(()));
    assert_eq!(config.check_against(None, None), Ok(()));
    assert!(config.check_against(Some(0.9), None).is_err());
    assert!(config.check_against(None, Some(6)).is_err());
    assert_eq!(config.call_size(Some(100)).reply_tokens, 5);
    assert_eq!(server.config().call_size(Some(100)).reply_tokens, 100);
}

#[test]
fn replies_of_several_servers_are_read() {
    let server = |message: Value, finish: Value, usage: Value| {
        let answer = json!({
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": usage,
        });
        let server = Server::start(vec![json_answer(200, &answer)]);
        server.client().query(&request(&opening())).unwrap()
    };
    // vLLM with a reasoning parser and a prefix cache.
    let reply = server(
        json!({"role": "assistant", "reasoning_content": "hm", "content": "a", "tool_calls": []}),
        json!("stop"),
        json!({"prompt_tokens": 10, "total_tokens": 12, "completion_tokens": 2,
               "prompt_tokens_details": {"cached_tokens": 8}}),
    );
    assert_eq!(reply.message.reasoning.as_deref(), Some("hm"));
    assert_eq!(reply.finish, FinishReason::Stop);
    assert_eq!(
        reply.usage,
        Usage {
            prompt_tokens: Some(10),
            cached_tokens: Some(8),
            completion_tokens: Some(2)
        }
    );
    assert_eq!(reply.cost, None);
    // Newer vLLM and OpenRouter.
    let reply = server(
        json!({"reasoning": "hm", "content": null}),
        json!("length"),
        json!(null),
    );
    assert_eq!(reply.message.reasoning.as_deref(), Some("hm"));
    assert_eq!(reply.message.content, "");
    assert_eq!(reply.finish, FinishReason::Length);
    assert_eq!(reply.usage, Usage::default());
    // A thinking section in the text stays there.
    let text = "<think>\nno\n</think>\n```bash\nls\n```";
    let reply = server(json!({"content": text}), json!("stop"), json!({}));
    assert_eq!(reply.message.content, text);
    assert_eq!(reply.message.reasoning, None);
    // Content in parts, a refusal, an unknown reason, no reason.
    let parts = json!([{"type": "thinking"}, {"type": "text", "text": "a"}, {"text": "b"}]);
    let reply = server(json!({"content": parts}), json!("abort"), json!({}));
    assert_eq!(reply.message.content, "ab");
    assert_eq!(reply.finish, FinishReason::Other("abort".into()));
    let reply = server(
        json!({"content": null, "refusal": "no"}),
        json!("content_filter"),
        json!({}),
    );
    assert_eq!(reply.message.content, "no");
    assert_eq!(reply.finish, FinishReason::ContentFilter);
    // Tool calls: usual, without an id, arguments as an object, the old single form.
    let reply = server(
        json!({"content": null, "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "bash", "arguments": "{\"a\": 1}"}},
            {"function": {"name": "bash", "arguments": {"b": 2}}},
        ]}),
        json!("tool_calls"),
        json!({}),
    );
    assert_eq!(reply.finish, FinishReason::ToolCalls);
    assert_eq!(reply.message.tool_calls[0].id, "x");
    assert_eq!(reply.message.tool_calls[0].arguments, "{\"a\": 1}");
    assert!(!reply.message.tool_calls[1].id.is_empty());
    assert_eq!(reply.message.tool_calls[1].arguments, "{\"b\":2}");
    let reply = server(
        json!({"content": null, "function_call": {"name": "bash", "arguments": "{}"}}),
        json!("function_call"),
        json!({}),
    );
    assert_eq!(reply.message.tool_calls[0].name, "bash");
    assert_eq!(reply.finish, FinishReason::ToolCalls);
    // Counts that are none.
    let reply = server(
        json!({"content": "a"}),
        json!("stop"),
        json!({"prompt_tokens": -1, "completion_tokens": 1e300,
               "prompt_tokens_details": {"cached_tokens": "many"}}),
    );
    assert_eq!(reply.usage, Usage::default());
}

#[test]
fn the_providers_price_wins_and_an_unknown_one_stays_unknown() {
    let cost = |usage: Value, headers: &str, price: Option<Price>| {
        let mut answer = says("a");
        answer["usage"] = usage;
        let server = Server::start(vec![with_headers(200, headers, &answer)]);
        let mut config = server.config();
        config.price = price;
        let reply = client(config, &Arc::new(FakeClock::default()))
            .query(&request(&opening()))
            .unwrap();
        reply.cost
    };
    let table = Some(Price::per_million(2.0, None, 10.0).unwrap());
    let tokens = json!({"prompt_tokens": 1000, "completion_tokens": 100});
    assert_eq!(cost(tokens.clone(), "", None), None);
    assert_eq!(cost(tokens.clone(), "", table), Some(MicroDollars(3000)));
    assert_eq!(cost(json!({}), "", table), None);
    let reported = json!({"prompt_tokens": 1000, "completion_tokens": 100, "cost": 0.0125});
    assert_eq!(cost(reported, "", table), Some(MicroDollars(12_500)));
    let own_key = json!({"cost": 0.001, "is_byok": true,
                         "cost_details": {"upstream_inference_cost": 0.02}});
    assert_eq!(cost(own_key, "", None), Some(MicroDollars(21_000)));
    assert_eq!(
        cost(tokens.clone(), "x-litellm-response-cost: 0.5\r\n", table),
        Some(MicroDollars(500_000))
    );
    for nonsense in [json!(-1), json!(1e300), json!("free"), json!(null)] {
        let usage = json!({"prompt_tokens": 1000, "completion_tokens": 100, "cost": nonsense});
        assert_eq!(cost(usage, "", table), Some(MicroDollars(3000)));
    }
}

/// A tool call whose arguments stop inside a string.
fn cut_call(completion_tokens: u64, finish: &str) -> Value {
    json!({
        "choices": [{"index": 0, "finish_reason": finish, "message": {
            "role": "assistant", "content": null,
            "tool_calls": [{"id": "c1", "type": "function", "function": {
                "name": "bash", "arguments": "{\"command\": \"cat > a <<EOF\\nhello"}}],
        }}],
        "usage": {"prompt_tokens": 5, "completion_tokens": completion_tokens},
    })
}

#[test]
fn a_cut_tool_call_is_seen_as_cut() {
    let ask = |answer: Value| {
        let server = Server::start(vec![json_answer(200, &answer)]);
        let messages = opening();
        let request = ModelRequest {
            max_output_tokens: Some(16),
            ..request(&messages)
        };
        server.client().query(&request).unwrap()
    };
    for finish in ["tool_calls", "stop"] {
        let reply = ask(cut_call(16, finish));
        assert_eq!(reply.finish, FinishReason::Length, "{finish}");
        assert_eq!(
            reply.message.tool_calls[0].arguments,
            "{\"command\": \"cat > a <<EOF\nhello".replace('\n', "\\n")
        );
        let note = reply.attempts[0].message.as_deref().unwrap();
        assert!(note.contains("cut off"), "{note}");
        assert_eq!(reply.attempts[0].error, None);
    }
    // Broken, but not at the limit: that is the model's own mistake.
    assert_eq!(
        ask(cut_call(9, "tool_calls")).finish,
        FinishReason::ToolCalls
    );
    // Whole, and exactly at the limit.
    let mut whole = cut_call(16, "tool_calls");
    whole["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"] =
        json!("{\"command\": \"ls\"}");
    assert_eq!(ask(whole).finish, FinishReason::ToolCalls);
}

#[test]
fn broken_arguments_are_never_sent_as_arguments() {
    let server = Server::start(vec![json_answer(200, &says(""))]);
    for broken in [
        "{\"command\": \"cat",
        "",
        "[1]",
        "\"text\"",
        "null",
        "{\"a\": NaN}",
        "{'a': 1}",
        "{\"a\": \"\\ud800\"}",
        "{}{}",
        "{\"a\": 1} trailing",
        "\u{0}",
        &format!("{{\"a\": {}1{}}}", "[".repeat(5000), "]".repeat(5000)),
    ] {
        let mut messages = opening();
        messages.push(Message {
            tool_calls: vec![ToolCall {
                id: "c1".into(),
                name: "bash".into(),
                arguments: broken.into(),
            }],
            ..Message::text(Role::Assistant, "")
        });
        messages.push(Message {
            tool_call_id: Some("c1".into()),
            ..Message::text(Role::Tool, "not run")
        });
        let reply = server.client().query(&request(&messages)).unwrap();
        let body = server.requests().last().unwrap().json();
        let sent = &body["messages"][2]["tool_calls"][0]["function"]["arguments"];
        let arguments: Value = serde_json::from_str(sent.as_str().unwrap()).unwrap();
        assert_eq!(arguments, json!({"invalid_arguments": broken}));
        let note = reply.attempts[0].message.as_deref().unwrap();
        assert!(note.contains("not a JSON object"), "{note}");
        assert_eq!(body["messages"][2]["content"], Value::Null);
        assert_eq!(body["messages"][3]["tool_call_id"], "c1");
    }
    // It is said once, not again on every later turn.
    let mut client = server.client();
    let mut messages = opening();
    messages.push(Message {
        tool_calls: vec![ToolCall {
            id: "c1".into(),
            name: "bash".into(),
            arguments: "{".into(),
        }],
        ..Message::text(Role::Assistant, "")
    });
    let first = client.query(&request(&messages)).unwrap();
    assert!(first.attempts[0].message.is_some());
    messages.push(Message::text(Role::User, "go on"));
    let second = client.query(&request(&messages)).unwrap();
    assert_eq!(second.attempts[0].message, None);
    // Good arguments go back byte for byte.
    let good = "{ \"command\" : \"ls\",\n\"z\":1.0, \"a\":1e2 }";
    let mut messages = opening();
    messages.push(Message {
        tool_calls: vec![ToolCall {
            id: "c1".into(),
            name: "bash".into(),
            arguments: good.into(),
        }],
        ..Message::text(Role::Assistant, "")
    });
    server.client().query(&request(&messages)).unwrap();
    let body = server.requests().last().unwrap().json();
    assert_eq!(
        body["messages"][2]["tool_calls"][0]["function"]["arguments"],
        good
    );
}

#[test]
fn the_key_appears_nowhere_but_in_its_header() {
    let mut shown = String::new();
    let echo = format!("bad key {KEY}. Authorization: Bearer {KEY}");
    let answers = vec![
        json_answer(401, &json!({"error": {"message": echo}})),
        json_answer(401, &json!({"unknown": echo})),
        Answer::Raw(http(401, "", echo.as_bytes())),
        Answer::Raw(http(
            401,
            "",
            format!("<html><title>{echo}</title>").as_bytes(),
        )),
        Answer::Raw(http(
            401,
            "",
            format!("{}{echo}", "x".repeat(585)).as_bytes(),
        )),
        Answer::Raw(http(302, &format!("location: http://h/?k={KEY}\r\n"), b"")),
        Answer::Raw(http(200, "", echo.as_bytes())),
        Answer::Raw(echo.clone().into_bytes()),
        json_answer(200, &says(&echo)),
        json_answer(200, &cut_call(1, &echo)),
        stream_answer(&stream_of(&[json!({"error": {"message": echo}})])),
    ];
    for answer in answers {
        let server = Server::start(vec![answer]);
        let mut config = server.config();
        config.retry.max_attempts = 2;
        match client(config, &Arc::new(FakeClock::default())).query(&request(&opening())) {
            Ok(reply) => {
                shown += &format!("{reply:?}");
                shown += &serde_json::to_string(&reply.message).unwrap();
                shown += &serde_json::to_string(&reply.attempts).unwrap();
            }
            Err(error) => shown += &format!("{error} {error:?}"),
        }
        assert!(
            server.requests()[0]
                .headers
                .iter()
                .any(|(_, v)| v.contains(KEY)),
            "the key was sent"
        );
        assert!(!String::from_utf8_lossy(&server.requests()[0].body).contains(KEY));
    }
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let key = Secret::new(KEY).unwrap();
    let clock = Arc::new(FakeClock::default());
    let factory = OpenAiFactory::new(server.config(), Some(key.clone()), clock.clone()).unwrap();
    shown += &format!("{factory:?} {key:?} {}", factory.describe());
    let mut config = server.config();
    config.proxy = Some(Secret::new("http://me:0123456789abcdef@127.0.0.1:9").unwrap());
    shown += &format!("{config:?}");
    for tail in [KEY, &KEY[..20], "0123456789abcdef"] {
        assert!(!shown.contains(tail), "{shown}");
    }
    assert!(shown.contains("[redacted]"));

    let mut config = server.config();
    config.body.insert("user".into(), json!(KEY));
    let error = OpenAiFactory::new(config, Some(key), clock).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(KEY));
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Server::start(vec![json_answer(200, &says("stolen"))]);
    for status in [301, 302, 303, 307, 308] {
        let location = format!("location: {}/v1/chat/completions\r\n", elsewhere.url());
        let server = Server::start(vec![Answer::Raw(http(status, &location, b""))]);
        let error = server.client().query(&request(&opening())).unwrap_err();
        assert_eq!(error.class, ModelErrorClass::BadRequest, "{status}");
        assert!(error.message.contains("127.0.0.1"), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
    assert_eq!(elsewhere.requests().len(), 0);
}

#[test]
fn a_description_names_what_can_change_an_answer() {
    let describe = |change: &dyn Fn(&mut OpenAiConfig)| {
        let mut config = OpenAiConfig::new(Endpoint::parse("http://127.0.0.1:9/v1").unwrap(), "m");
        change(&mut config);
        OpenAiFactory::new(config, None, Arc::new(FakeClock::default()))
            .unwrap()
            .describe()
    };
    let base = describe(&|_| {});
    assert_eq!(base["endpoint"], "http://127.0.0.1:9/v1");
    assert_ne!(describe(&|c| c.model = "n".into()), base);
    assert_ne!(
        describe(&|c| drop(c.body.insert("top_p".into(), json!(0.5)))),
        base
    );
    assert_ne!(describe(&|c| c.send_seed = false), base);
    assert_eq!(describe(&|c| c.retry.max_attempts = 1), base);
    assert_eq!(
        describe(&|c| c.attempt_timeout = Duration::from_secs(1)),
        base
    );
}
