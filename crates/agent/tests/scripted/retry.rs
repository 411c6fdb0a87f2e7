//! Retries, waits and deadlines of the client against a scripted server.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use temper_agent::model::{ModelErrorClass, ModelRequest};

use crate::server::*;

fn context_exceeded() -> Value {
    json!({"error": {
        "message": "This model's maximum context length is 4096 tokens.",
        "type": "invalid_request_error", "code": "context_length_exceeded",
    }})
}

#[test]
fn a_prompt_that_does_not_fit_is_asked_once() {
    let server = Server::start(vec![json_answer(400, &context_exceeded())]);
    let error = server.client().query(&request(&opening())).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::ContextExceeded);
    assert_eq!(server.requests().len(), 1);
    assert_eq!(error.attempts.len(), 1);
    assert_eq!(error.attempts[0].status, Some(400));
    assert_eq!(error.attempts[0].error.as_deref(), Some("ContextExceeded"));
}

#[test]
fn retry_after_is_waited_for() {
    let limited = json!({"error": {"message": "slow down"}});
    let server = Server::start(vec![
        with_headers(429, "retry-after: 2\r\n", &limited),
        json_answer(200, &says("done")),
    ]);
    let clock = Arc::new(FakeClock::default());
    let reply = client(server.config(), &clock)
        .query(&request(&opening()))
        .unwrap();
    assert_eq!(server.requests().len(), 2);
    let slept = clock.slept.lock().unwrap().clone();
    assert_eq!(slept.len(), 1);
    assert!(slept[0] >= Duration::from_secs(2) && slept[0] <= Duration::from_millis(2500));
    assert_eq!(reply.attempts.len(), 2);
    assert_eq!(reply.attempts[0].status, Some(429));
    assert_eq!(reply.attempts[0].error.as_deref(), Some("RateLimited"));
    assert_eq!(
        reply.attempts[0].message.as_deref(),
        Some("HTTP 429: slow down")
    );
    assert!(reply.attempts[0].waited_seconds >= 2.0);
    assert_eq!(reply.attempts[1].status, Some(200));
    assert_eq!(reply.attempts[1].error, None);
}

#[test]
fn server_errors_are_retried_within_bounds() {
    let broken = json_answer(500, &json!({"error": "boom"}));
    let server = Server::start(vec![
        broken.clone(),
        broken.clone(),
        json_answer(200, &says("done")),
    ]);
    let reply = server.client().query(&request(&opening())).unwrap();
    assert_eq!(server.requests().len(), 3);
    assert_eq!(reply.message.content, "done");
    assert_eq!(reply.attempts.len(), 3);

    let server = Server::start(vec![broken]);
    let clock = Arc::new(FakeClock::default());
    let error = client(server.config(), &clock)
        .query(&request(&opening()))
        .unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Server);
    assert_eq!(server.requests().len(), 10);
    assert_eq!(error.attempts.len(), 10);
    assert_eq!(clock.slept.lock().unwrap().len(), 9);
    assert!(error.to_string().contains("after 10 attempts"), "{error}");
}

#[test]
fn waits_are_the_same_for_the_same_seed_only() {
    let waits = |seed| {
        let server = Server::start(vec![json_answer(503, &json!({}))]);
        let clock = Arc::new(FakeClock::default());
        let messages = opening();
        let request = ModelRequest {
            seed,
            ..request(&messages)
        };
        client(server.config(), &clock).query(&request).unwrap_err();
        clock.slept.lock().unwrap().clone()
    };
    assert_eq!(waits(1), waits(1));
    assert_ne!(waits(1), waits(2));
}

#[test]
fn every_form_of_retry_after() {
    // 784111777 is Sun, 06 Nov 1994 08:49:37 GMT.
    for (headers, expected) in [
        ("retry-after-ms: 1500\r\n", 1.5),
        ("retry-after: 3\r\n", 3.0),
        ("retry-after: 0.5\r\n", 0.5),
        ("retry-after: Sun, 06 Nov 1994 08:49:47 GMT\r\n", 10.0),
        (
            "date: Sun, 06 Nov 1994 08:49:40 GMT\r\nretry-after: Sun, 06 Nov 1994 08:49:47 GMT\r\n",
            7.0,
        ),
    ] {
        let server = Server::start(vec![
            with_headers(503, headers, &json!({})),
            json_answer(200, &says("")),
        ]);
        let clock = Arc::new(FakeClock {
            unix_seconds: 784_111_777,
            ..FakeClock::default()
        });
        client(server.config(), &clock)
            .query(&request(&opening()))
            .unwrap();
        let slept = clock.slept.lock().unwrap()[0].as_secs_f64();
        assert!(
            slept >= expected && slept <= expected * 1.25,
            "{headers} {slept}"
        );
    }
    // Nonsense and the past count as absent; an hour is not waited for.
    for headers in [
        "retry-after: -1\r\n",
        "retry-after: soon\r\n",
        "retry-after: Sun, 06 Nov 1970 08:49:37 GMT\r\n",
    ] {
        let server = Server::start(vec![
            with_headers(503, headers, &json!({})),
            json_answer(200, &says("")),
        ]);
        let clock = Arc::new(FakeClock {
            unix_seconds: 784_111_777,
            ..FakeClock::default()
        });
        client(server.config(), &clock)
            .query(&request(&opening()))
            .unwrap();
        assert!(clock.slept.lock().unwrap()[0] <= Duration::from_secs(4));
    }
    for headers in [
        "retry-after: 3600\r\n",
        "retry-after: 99999999999999999999999\r\n",
    ] {
        let server = Server::start(vec![with_headers(429, headers, &json!({}))]);
        let error = server.client().query(&request(&opening())).unwrap_err();
        assert_eq!(error.class, ModelErrorClass::RateLimited);
        assert_eq!(server.requests().len(), 1);
    }
}

#[test]
fn refusals_are_not_repeated() {
    for (status, body, class) in [
        (401, json!({}), ModelErrorClass::Authentication),
        (403, json!({}), ModelErrorClass::Authentication),
        (404, json!({}), ModelErrorClass::ModelNotFound),
        (400, json!({}), ModelErrorClass::BadRequest),
        (422, json!({}), ModelErrorClass::BadRequest),
        (
            429,
            json!({"error": {"code": "insufficient_quota"}}),
            ModelErrorClass::RateLimited,
        ),
    ] {
        let server = Server::start(vec![json_answer(status, &body)]);
        let error = server.client().query(&request(&opening())).unwrap_err();
        assert_eq!(error.class, class, "{status}");
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

#[test]
fn no_attempt_starts_or_goes_on_after_the_deadline() {
    let messages = opening();
    let within = |milliseconds| ModelRequest {
        deadline: Some(Instant::now() + Duration::from_millis(milliseconds)),
        ..request(&messages)
    };
    // It has passed: nothing is sent.
    let server = Server::start(vec![json_answer(200, &says(""))]);
    let error = server.client().query(&within(0)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Deadline);
    assert_eq!(server.requests().len(), 0);

    // A server that sends a byte now and then.
    let dribble = http(200, "", &[b' '; 400])
        .chunks(1)
        .map(<[u8]>::to_vec)
        .collect();
    let server = Server::start(vec![Answer::Slow(dribble, Duration::from_millis(20))]);
    let started = Instant::now();
    let error = server.client().query(&within(300)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Deadline);
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(error.attempts.len(), 1);
    assert_eq!(error.attempts[0].error.as_deref(), Some("Deadline"));

    // A server that says nothing at all.
    let silent = Answer::Slow(vec![http(200, "", b"{}")], Duration::from_secs(8));
    let server = Server::start(vec![silent]);
    let started = Instant::now();
    let error = server.client().query(&within(200)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Deadline);
    assert!(started.elapsed() < Duration::from_secs(4));

    // A stream that never ends.
    let mut pieces = vec![b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec()];
    pieces.extend(std::iter::repeat_n(b": ping\n\n".to_vec(), 400));
    let server = Server::start(vec![Answer::Slow(pieces, Duration::from_millis(20))]);
    let error = server.client().query(&within(300)).unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Deadline);

    // A wait that would pass it is not begun, and it is the server that was at fault.
    let server = Server::start(vec![with_headers(429, "retry-after: 60\r\n", &json!({}))]);
    let clock = Arc::new(FakeClock::default());
    let error = client(server.config(), &clock)
        .query(&within(5000))
        .unwrap_err();
    assert_eq!(error.class, ModelErrorClass::RateLimited);
    assert_eq!(clock.slept.lock().unwrap().len(), 0);
}

#[test]
fn a_slow_server_fails_its_attempt() {
    let dribble = http(200, "", &[b' '; 400])
        .chunks(1)
        .map(<[u8]>::to_vec)
        .collect();
    let server = Server::start(vec![Answer::Slow(dribble, Duration::from_millis(20))]);
    let mut config = server.config();
    config.attempt_timeout = Duration::from_millis(200);
    config.retry.max_attempts = 2;
    let error = client(config, &Arc::new(FakeClock::default()))
        .query(&request(&opening()))
        .unwrap_err();
    assert_eq!(error.class, ModelErrorClass::Connection);
    assert_eq!(error.attempts.len(), 2);
}
