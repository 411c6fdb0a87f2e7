//! The loop with the HTTP client and a server on the loopback interface: what the next request
//! holds after a reply that was cut off, and how a trial ends when the prompt is refused.

use serde_json::{Value, json};
use temper_core::trajectory::{Exit, StepOutcome};

use crate::{
    agent_loop::{Pretend, probe, probe_templates, run, task},
    server::{Server, json_answer},
};

fn calls(arguments: &str, completion_tokens: u64) -> Value {
    json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": null, "tool_calls": [{
                "id": "call-1", "type": "function",
                "function": {"name": "bash", "arguments": arguments},
            }]},
            "finish_reason": "tool_calls",
        }],
        "usage": {"prompt_tokens": 11, "completion_tokens": completion_tokens},
    })
}

#[test]
fn a_call_cut_inside_a_string_is_not_run_and_every_request_parses() {
    let server = Server::start(vec![
        json_answer(200, &calls(r#"{"command": "rm -rf /testbed/bui"#, 64)),
        json_answer(200, &calls(r#"{"command": "ls"}"#, 9)),
        json_answer(
            400,
            &json!({"error": {"code": "context_length_exceeded", "message": "too long"}}),
        ),
    ]);
    let mut agent = probe_templates();
    agent["format_error_template"] =
        json!("{% if finish_reason == 'length' %}CUT OFF{% else %}BAD{% endif %}");
    let profile = probe(
        &agent,
        10,
        json!({"protocol": "tool-call", "max_output_tokens": 64}),
    );
    let mut sandbox = Pretend::default();
    let mut client = server.client();
    let done = run(&profile, task("T"), client.as_mut(), &mut sandbox);

    let commands: Vec<_> = sandbox
        .commands
        .iter()
        .map(|command| command.text.as_str())
        .collect();
    assert_eq!(commands, ["ls"]);
    assert_eq!(done.steps()[0].outcome, StepOutcome::Truncated);
    assert_eq!(done.end.exit, Exit::ContextExceeded);
    assert_eq!(done.end.n_model_calls, 2);
    assert!(!done.end.attempts.is_empty());

    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    let mut told = false;
    for request in &requests {
        let body = request.json();
        for message in body["messages"].as_array().unwrap() {
            told |= message["content"] == "CUT OFF";
            for call in message["tool_calls"].as_array().into_iter().flatten() {
                let arguments = call["function"]["arguments"].as_str().unwrap();
                assert!(
                    serde_json::from_str::<Value>(arguments)
                        .unwrap()
                        .is_object()
                );
            }
        }
    }
    assert!(told);
}
