//! A loopback server with the OpenAI interface that declares a window and says what it is told to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde_json::json;

use crate::support::{bash, submit};

/// Serves until the test ends. Its threads end with the process.
pub struct ModelServer {
    pub address: String,
    pub n_lists: Arc<AtomicUsize>,
}

/// What the server does.
#[derive(Clone)]
pub struct Behaviour {
    /// The window that the n-th list of models declares; the last one goes on.
    pub windows: Vec<u64>,
    /// How many chat calls are refused as too long, from the first.
    pub n_refused: usize,
    /// How many chat calls end with status 500, from the first.
    pub n_broken: usize,
}

impl ModelServer {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/v1", listener.local_addr().unwrap());
        let n_lists = Arc::new(AtomicUsize::new(0));
        let n_chats = Arc::new(AtomicUsize::new(0));
        let lists = Arc::clone(&n_lists);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (behaviour, lists, chats) =
                    (behaviour.clone(), Arc::clone(&lists), Arc::clone(&n_chats));
                std::thread::spawn(move || answer(stream, &behaviour, &lists, &chats));
            }
        });
        ModelServer { address, n_lists }
    }
}

fn answer(stream: TcpStream, behaviour: &Behaviour, lists: &AtomicUsize, chats: &AtomicUsize) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let length = head
        .lines()
        .find_map(|line| {
            line.to_ascii_lowercase()
                .strip_prefix("content-length:")?
                .trim()
                .parse()
                .ok()
        })
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, value) = if head.starts_with("GET") {
        let n = lists.fetch_add(1, Ordering::SeqCst);
        let window = behaviour.windows[n.min(behaviour.windows.len() - 1)];
        (200, json!({"data": [{"id": "m", "max_model_len": window}]}))
    } else {
        let n = chats.fetch_add(1, Ordering::SeqCst);
        let request: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let turn = request["messages"].as_array().unwrap().len();
        let content = if turn <= 2 {
            bash("echo yes > answer.txt")
        } else {
            submit()
        };
        if n < behaviour.n_refused {
            let message = "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens. Please reduce the length of the messages.";
            (
                400,
                json!({"error": {"message": message, "code": "context_length_exceeded"}}),
            )
        } else if n < behaviour.n_broken {
            (500, json!({"error": {"message": "out of order"}}))
        } else {
            (
                200,
                json!({
                    "choices": [{"message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
                    "usage": {"prompt_tokens": 10, "completion_tokens": 5},
                }),
            )
        }
    };
    let text = value.to_string();
    let mut stream = stream;
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{text}",
        text.len()
    );
}
