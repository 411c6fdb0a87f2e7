//! `temper serve`, over HTTP, with a tiny model of random weights.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{support::Workspace, tiny_model::write_model};

/// A running server; ended with a termination signal.
pub struct Server {
    child: Child,
    pub address: String,
}

impl Server {
    fn start(workspace: &Workspace, more: &[&str]) -> Self {
        write_model(&workspace.path("model"));
        Server::of_written_model(workspace, more)
    }

    /// Serves the folder `model` of the workspace.
    pub fn of_written_model(workspace: &Workspace, more: &[&str]) -> Self {
        let model = workspace.path("model");
        let mut arguments = vec!["serve", model.to_str().unwrap(), "--port", "0"];
        arguments.extend(["--device", "cpu", "--threads", "1", "--kv-cache-mib", "16"]);
        arguments.extend(more);
        let mut child = workspace
            .temper(&arguments)
            .env("KEY", "opensesame")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let Some(address) = line.trim().strip_prefix("http://") else {
            let mut said = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut said)
                .unwrap();
            panic!("no address: {line:?} {said}");
        };
        let address = address.strip_suffix("/v1").unwrap().to_owned();
        Server { child, address }
    }

    /// Sends a request; gives the status and the body, chunks joined.
    fn send(&self, method: &str, path: &str, key: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        if !head.contains("transfer-encoding: chunked") {
            return (status, body.to_owned());
        }
        let (mut whole, mut rest) = (String::new(), body);
        while let Some((length, after)) = rest.split_once("\r\n") {
            let length = usize::from_str_radix(length.trim(), 16).unwrap();
            whole.push_str(&after[..length]);
            rest = after[length..].strip_prefix("\r\n").unwrap_or("");
        }
        (status, whole)
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text) = self.send("POST", path, "opensesame", body.to_string().as_bytes());
        (status, serde_json::from_str(&text).unwrap_or(Value::Null))
    }

    /// Asks the server to stop and gives its exit code.
    fn stop(mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        let told = std::process::Command::new("kill")
            .arg(&id)
            .status()
            .unwrap();
        assert!(told.success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ended already where the test stopped it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "model", "messages": [{"role": "user", "content": "some words"}],
        "max_tokens": 12, "temperature": 0, "ignore_eos": true,
    });
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

#[test]
fn conversations_are_answered_the_same_whole_in_pieces_and_in_company() {
    let workspace = Workspace::new(0);
    let server = Server::start(&workspace, &[]);
    let path = "/v1/chat/completions";
    let (status, whole) = server.post(
        path,
        &chat(json!({"return_token_ids": true, "logprobs": true})),
    );
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    let text = choice["message"]["content"].as_str().unwrap();
    assert_eq!(choice["token_ids"].as_array().unwrap().len(), 12);
    assert_eq!(choice["token_logprobs"].as_array().unwrap().len(), 12);
    assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 12);
    assert_eq!(choice["finish_reason"], "length");
    let n_prompt = whole["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        n_prompt as usize,
        whole["prompt_token_ids"].as_array().unwrap().len()
    );

    let (status, stream) = server.send(
        "POST",
        path,
        "",
        chat(json!({"stream": true, "stream_options": {"include_usage": true}}))
            .to_string()
            .as_bytes(),
    );
    assert_eq!(status, 200);
    let pieces: Vec<&str> = stream
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(pieces.last(), Some(&"[DONE]"));
    let pieces: Vec<Value> = pieces[..pieces.len() - 1]
        .iter()
        .map(|piece| serde_json::from_str(piece).unwrap())
        .collect();
    let joined: String = pieces
        .iter()
        .filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(joined, text);
    assert_eq!(pieces.last().unwrap()["usage"]["completion_tokens"], 12);

    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| server.post(path, &chat(json!({}))).1))
            .collect();
        for answer in answers {
            let answer = answer.join().unwrap();
            assert_eq!(answer["choices"][0]["message"]["content"], text);
        }
    });
    let (_, again) = server.post(path, &chat(json!({})));
    assert!(again["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() > Some(0));
    // Control text in a message stays text: the id of `<|im_end|>` comes from the template alone.
    let ids = |content: &str| {
        let body = json!({"messages": [{"role": "user", "content": content}]});
        server.post("/tokenize", &body).1["tokens"].clone()
    };
    let ends = |ids: &Value| {
        ids.as_array()
            .unwrap()
            .iter()
            .filter(|id| **id == 2)
            .count()
    };
    assert_eq!(ends(&ids("a")), ends(&ids("a <|im_end|> b")));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn what_cannot_be_served_is_refused_and_harms_nobody() {
    let workspace = Workspace::new(0);
    let server = Server::start(&workspace, &["--api-key-variable", "KEY"]);
    let path = "/v1/chat/completions";
    let code = |body: Value| {
        let (status, answer) = server.post(path, &body);
        (status, answer["error"]["code"].clone())
    };
    assert_eq!(
        code(chat(json!({"max_tokens": 5000}))),
        (400, json!("context_length_exceeded"))
    );
    assert_eq!(
        code(chat(json!({"model": "other"}))),
        (404, json!("model_not_found"))
    );
    for wrong in [
        json!({"temperature": -1}),
        json!({"presence_penalty": 1}),
        json!({"messages": []}),
        json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        json!({"top_logprobs": 3}),
        json!({"tool_choice": "required", "tools": [{}]}),
        json!({"n": 1000}),
    ] {
        assert_eq!(code(chat(wrong.clone())).0, 400, "{wrong}");
    }
    for body in [&b"{"[..], b"[1]", b"\xff\xfe", &[b'['; 100_000][..]] {
        assert_eq!(server.send("POST", path, "opensesame", body).0, 400);
    }
    assert_eq!(server.send("POST", path, "wrong", b"{}").0, 401);
    assert_eq!(server.send("GET", "/v1/models", "", b"").0, 401);
    assert_eq!(server.send("GET", "/nowhere", "opensesame", b"").0, 404);
    assert_eq!(server.send("GET", path, "opensesame", b"").0, 405);
    let load = json!({"lora_name": "a", "lora_path": "/etc"});
    assert_eq!(server.post("/v1/load_lora_adapter", &load).0, 403);

    // A client that leaves in the middle of a stream, and one that never says what it wants.
    let long = chat(json!({"stream": true, "max_tokens": 200})).to_string();
    let mut leaving = TcpStream::connect(&server.address).unwrap();
    write!(
        leaving,
        "POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer opensesame\r\ncontent-length: {}\r\n\r\n{long}",
        long.len()
    )
    .unwrap();
    let mut first = [0; 64];
    leaving.read_exact(&mut first).unwrap();
    drop(leaving);
    let silent = TcpStream::connect(&server.address).unwrap();
    assert_eq!(server.post(path, &chat(json!({}))).0, 200);
    let (_, metrics) = server.send("GET", "/metrics", "", b"");
    assert!(
        metrics.contains("temper_requests_total{outcome=\"refused\"}"),
        "{metrics}"
    );
    assert!(!metrics.contains("opensesame"));
    drop(silent);
    assert_eq!(server.stop(), Some(0));
}
