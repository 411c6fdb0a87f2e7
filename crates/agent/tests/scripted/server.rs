//! A scripted server on the loopback interface, and the small things around it.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::{Value, json};
use temper_agent::model::{
    Model, ModelFactory, ModelRequest,
    openai::{OpenAiConfig, OpenAiFactory},
    retry::Clock,
    secret::Secret,
    spec::Endpoint,
};
use temper_core::{
    Digest, Message, PreparedTask, Role, SourceGroup, Split, Task, TaskId,
    task::{Environment, HiddenSource, Origin, Start, TaskFormat, TestLists, Verifier},
};

/// The key that every test client uses; no output may ever hold it.
pub const KEY: &str = "sk-loopback-0123456789abcdef";

/// What a server does with one request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// These pieces with a pause before each.
    Slow(Vec<Vec<u8>>, Duration),
    /// These bytes, then a reset: the request's body is left unread.
    Reset(Vec<u8>),
    /// Nothing, until the client goes away.
    Hold,
    /// What this makes of the request.
    By(fn(&Seen) -> Answer),
}

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Seen {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("every request body is JSON")
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self
            .headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// A server that gives the n-th request the n-th answer, and the last answer to all later ones.
pub struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(answers: Vec<Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let stop = Arc::new(AtomicBool::new(false));
        let thread = std::thread::spawn({
            let (seen, stop) = (Arc::clone(&seen), Arc::clone(&stop));
            move || {
                for stream in listener.incoming() {
                    if stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let Ok(stream) = stream else { continue };
                    let (seen, answers) = (Arc::clone(&seen), answers.clone());
                    std::thread::spawn(move || serve(stream, &seen, &answers));
                }
            }
        });
        Server {
            address,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::parse(&self.url()).unwrap()
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// A configuration for it with the model `m`.
    pub fn config(&self) -> OpenAiConfig {
        OpenAiConfig::new(self.endpoint(), "m")
    }

    /// A client with the test key and a clock that does not sleep.
    pub fn client(&self) -> Box<dyn Model> {
        client(self.config(), &Arc::new(FakeClock::default()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Seen>>, answers: &[Answer]) {
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut line = String::new();
    if reader.read_line(&mut line).unwrap_or(0) == 0 {
        return;
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end().split_once(':') {
            Some((name, value)) => headers.push((name.to_owned(), value.trim().to_owned())),
            None => break,
        }
    }
    let mut request = Seen {
        method,
        path,
        headers,
        body: Vec::new(),
    };
    let n_body: usize = request
        .header("content-length")
        .map_or(0, |n| n.parse().unwrap());
    let answer = {
        let seen = seen.lock().unwrap();
        answers[seen.len().min(answers.len() - 1)].clone()
    };
    if !matches!(answer, Answer::Reset(_)) {
        request.body = vec![0; n_body];
        reader.read_exact(&mut request.body).unwrap();
    }
    let answer = match answer {
        Answer::By(make) => make(&request),
        answer => answer,
    };
    seen.lock().unwrap().push(request);
    match answer {
        Answer::By(_) => unreachable!("an answer is made once"),
        Answer::Hold => {
            let _ = reader.read(&mut [0]);
        }
        Answer::Raw(bytes) => {
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            // Wait for the client to have read it, so that closing does not reset.
            let _ = reader.read(&mut [0]);
        }
        Answer::Slow(pieces, pause) => {
            for piece in pieces {
                std::thread::sleep(pause);
                if stream.write_all(&piece).is_err() {
                    break;
                }
            }
        }
        Answer::Reset(bytes) => {
            let _ = stream.write_all(&bytes);
        }
    }
}

/// A complete HTTP answer.
pub fn http(status: u16, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A JSON answer.
pub fn json_answer(status: u16, body: &Value) -> Answer {
    with_headers(status, "", body)
}

/// A JSON answer with more headers, each ended by CRLF.
pub fn with_headers(status: u16, headers: &str, body: &Value) -> Answer {
    let headers = format!("content-type: application/json\r\n{headers}");
    Answer::Raw(http(status, &headers, body.to_string().as_bytes()))
}

/// An event stream of these data fields.
pub fn stream_of<T: ToString>(events: &[T]) -> Vec<u8> {
    events
        .iter()
        .map(|event| format!("data: {}\n\n", event.to_string()))
        .collect::<String>()
        .into_bytes()
}

/// An event stream as an answer without a length.
pub fn stream_answer(stream: &[u8]) -> Answer {
    let mut bytes =
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
    bytes.extend_from_slice(stream);
    Answer::Raw(bytes)
}

/// A completion that says `text`.
pub fn says(text: &str) -> Value {
    json!({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14},
    })
}

/// A clock that notes what it was asked to sleep and returns at once.
#[derive(Default)]
pub struct FakeClock {
    pub slept: Mutex<Vec<Duration>>,
    pub unix_seconds: u64,
}

impl Clock for FakeClock {
    fn sleep(&self, duration: Duration) {
        self.slept.lock().unwrap().push(duration);
    }

    fn unix_seconds(&self) -> u64 {
        self.unix_seconds
    }
}

/// A client with the test key.
pub fn client(config: OpenAiConfig, clock: &Arc<FakeClock>) -> Box<dyn Model> {
    let clock: Arc<dyn Clock> = Arc::clone(clock) as _;
    let factory = OpenAiFactory::new(config, Some(Secret::new(KEY).unwrap()), clock).unwrap();
    factory.open(&task("t"), 1).unwrap()
}

/// Two messages that open a conversation.
pub fn opening() -> Vec<Message> {
    vec![
        Message::text(Role::System, "You repair code."),
        Message::text(Role::User, "Fix it."),
    ]
}

/// A request without limits.
pub fn request(messages: &[Message]) -> ModelRequest<'_> {
    ModelRequest {
        messages,
        tools: &[],
        max_output_tokens: None,
        temperature: None,
        seed: 7,
        deadline: None,
    }
}

/// A task with nothing but a name.
pub fn task(id: &str) -> PreparedTask {
    PreparedTask {
        task: Task {
            id: TaskId::new(id).unwrap(),
            format: TaskFormat::Native,
            statement: String::new(),
            start: Start::Image {
                base_commit: None,
                checkout: None,
            },
            environment: Environment::Host,
            verifier: Verifier::Pytest {
                public: TestLists::default(),
                hidden: TestLists::default(),
                test_files: Vec::new(),
                hidden_source: HiddenSource::SourceDistribution,
                arguments: Vec::new(),
                timeout_seconds: 1,
            },
            oracle: None,
            origin: Origin::default(),
            source_group: SourceGroup::new("g").unwrap(),
            split: Split::Test,
            metadata: serde_json::Map::new(),
            construction: None,
        },
        start_tree: None,
        hidden_tests: None,
        mounts: Vec::new(),
        variables: Default::default(),
        image: None,
        work_tree: "/testbed".into(),
        environment_digest: Digest::of(b""),
        setup: Vec::new(),
    }
}
