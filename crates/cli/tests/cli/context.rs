//! `temper context …`.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::Duration,
};

use serde_json::{Value, json};
use temper_checkpoint::tokenizer::{Specials, Tokenizer};

use crate::{serve::Server, support::Workspace, tiny_model::write_model};

fn write(workspace: &Workspace, name: &str, value: &Value) -> String {
    let path = workspace.path(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, value.to_string()).unwrap();
    path.display().to_string()
}

/// A Qwen3-8B-shaped configuration with changes.
fn qwen3_8b(change: Value) -> Value {
    let mut config = json!({
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096,
        "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "rope_theta": 1000000,
        "max_position_embeddings": 65536, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    });
    for (key, value) in change.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn the_three_configurations_that_engines_read_differently() {
    let workspace = Workspace::new(0);
    let yarn = |kind: &str, declared: u64| {
        qwen3_8b(json!({
            "max_position_embeddings": declared,
            "rope_scaling": {"type": kind, "factor": 4.0, "original_max_position_embeddings": 32768},
        }))
    };
    for (name, config, code, words) in [
        ("a/config.json", yarn("yarn", 131_072), 0, "131072"),
        ("b/config.json", yarn("vendor_yarn", 131_072), 0, "131072"),
        (
            "c/config.json",
            yarn("yarn", 32_768),
            7,
            "undecided: 32768 tokens by one reading, 131072 by the other",
        ),
    ] {
        let path = write(&workspace, name, &config);
        let ran = workspace.run(&["context", "plan", &path]).expect(code);
        assert!(ran.stdout.contains(words), "{}", ran.stdout);
        assert!(!ran.stdout.contains("524288"), "{}", ran.stdout);
        assert!(!ran.stdout.contains("hf-overrides"), "{}", ran.stdout);
        let plan = workspace
            .run(&["context", "plan", &path, "--format", "json"])
            .json();
        assert_eq!(plan["lengths"]["scaled"], 131_072);
        assert_eq!(plan["commands"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn a_window_beyond_the_declared_one_names_every_argument() {
    let workspace = Workspace::new(0);
    let path = write(
        &workspace,
        "m/config.json",
        &qwen3_8b(json!({"max_position_embeddings": 32768})),
    );
    let line = |version: &str| {
        let plan = workspace
            .run(&[
                "context",
                "plan",
                &path,
                "--vllm-version",
                version,
                "--revision",
                "abc",
                "--format",
                "json",
            ])
            .expect(0)
            .json();
        assert_eq!(plan["factor"], 2.0);
        plan["commands"][0]["line"].as_str().unwrap().to_owned()
    };
    let parameters = r#"{"rope_type":"yarn","factor":2.0,"original_max_position_embeddings":32768,"rope_theta":1000000.0}"#;
    assert!(line("0.11.2").ends_with(&format!(
        r#"--revision abc --max-model-len 65536 --hf-overrides '{{"rope_parameters":{parameters}}}'"#
    )));
    assert!(line("0.10.2").ends_with(&format!(
        "--max-model-len 65536 --rope-scaling '{parameters}'"
    )));
    // Without a release both shapes are shown; the one on PATH is taken where there is one.
    let ran = workspace.run(&["context", "plan", &path]).expect(0);
    assert!(ran.stdout.contains("--hf-overrides") && ran.stdout.contains("--rope-scaling"));
    let packages = workspace.path("venv/lib/python3.12/site-packages/vllm-0.10.1.dist-info");
    fs::create_dir_all(packages).unwrap();
    fs::create_dir_all(workspace.path("venv/bin")).unwrap();
    fs::write(workspace.path("venv/bin/vllm"), "exit 1").unwrap();
    let output = workspace
        .temper(&["context", "plan", &path, "--format", "json"])
        .env("PATH", workspace.path("venv/bin"))
        .env("VLLM_API_KEY", "sk-not-to-be-shown-0123")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let plan: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(plan["vllm_version"], "0.10.1");
    assert_eq!(plan["commands"].as_array().unwrap().len(), 1);
    assert!(!text.contains("sk-not-to-be-shown"), "{text}");
    // Without a base there is nothing to scale from.
    let mut without = qwen3_8b(json!({"max_position_embeddings": 32768}));
    without.as_object_mut().unwrap().remove("rope_theta");
    let path = write(&workspace, "n/config.json", &without);
    let ran = workspace.run(&["context", "plan", &path]).expect(7);
    assert!(ran.stdout.contains("never guessed"), "{}", ran.stdout);
}

#[test]
fn memory_says_how_many_windows_fit() {
    let workspace = Workspace::new(0);
    let path = write(&workspace, "m/config.json", &qwen3_8b(json!({})));
    let plan = |more: &[&str], code| {
        let mut arguments = vec!["context", "plan", &path, "--format", "json"];
        arguments.extend(more);
        workspace.run(&arguments).expect(code).json()["memory"].clone()
    };
    let memory = plan(&["--gpu-memory", "80"], 0);
    assert_eq!(memory["weight_source"], "configuration");
    // 8,190,735,360 parameters of two bytes; 2 x 36 layers x 8 heads x 128 x 2 bytes a token.
    assert_eq!(memory["weight_bytes"], 16_381_470_720_u64);
    assert_eq!(memory["cache_bytes_per_token"], 147_456);
    assert_eq!(memory["n_concurrent"], 6);
    assert_eq!(
        plan(&["--gpu-memory", "80GiB", "--kv-cache-bits", "8"], 0)["n_concurrent"],
        12
    );
    assert_eq!(plan(&["--gpu-memory", "20GiB"], 7)["n_concurrent"], 0);
    assert_eq!(plan(&[], 0)["n_concurrent"], Value::Null);
    workspace
        .run(&["context", "plan", &path, "--gpu-memory", "many"])
        .expect(2);
    // The files' lengths count where they are there.
    let model = workspace.path("tiny");
    write_model(&model);
    let model = model.display().to_string();
    let plan = workspace
        .run(&[
            "context", "plan", &model, "--window", "256", "--format", "json",
        ])
        .expect(0)
        .json();
    assert_eq!(plan["memory"]["weight_source"], "files");
}

#[test]
fn the_gate_between_trainer_and_server_has_an_exit_code_of_its_own() {
    let workspace = Workspace::new(0);
    let served = qwen3_8b(json!({
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768},
    }));
    let path = write(&workspace, "served/config.json", &served);
    let plan = workspace
        .run(&["context", "plan", &path, "--format", "json"])
        .expect(0);
    fs::write(workspace.path("plan.json"), &plan.stdout).unwrap();
    workspace
        .run(&["context", "plan", &path, "--trainer", "plan.json"])
        .expect(0);
    // An older library took the ramp from the declared length.
    let mut trained = served.clone();
    trained["rope_scaling"]["original_max_position_embeddings"] = json!(65536);
    let trainer = write(&workspace, "trained/config.json", &trained);
    let ran = workspace
        .run(&["context", "plan", &path, "--trainer", &trainer])
        .expect(10);
    for words in [
        "gate         closed",
        "low: 26 in the trainer, 23 in the server",
        "high: 43 in the trainer, 40 in the server",
    ] {
        assert!(ran.stdout.contains(words), "{words}: {}", ran.stdout);
    }
    // The server's own statement wins over the plan.
    workspace
        .run(&[
            "context",
            "plan",
            &path,
            "--trainer",
            &trainer,
            "--server-config",
            &trainer,
        ])
        .expect(0);
    let other = write(&workspace, "other.json", &json!({"learning_rate": 1}));
    let ran = workspace
        .run(&["context", "plan", &path, "--trainer", &other])
        .expect(3);
    assert!(ran.stderr.contains("hint: "), "{}", ran.stderr);
}

/// Answers as an OpenAI-compatible server of the tiny model's tokenizer would that reads everything,
/// but holds the requests for chat completions that `holds` names by their number.
struct Loopback {
    url: String,
    n_chats: Arc<AtomicUsize>,
    held: mpsc::Receiver<()>,
}

impl Loopback {
    fn start(model: &Path, context_tokens: Option<u64>, holds: &'static [usize]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let n_chats = Arc::new(AtomicUsize::new(0));
        let (hold, held) = mpsc::channel();
        let tokenizer = Tokenizer::from_folder(model).unwrap();
        let counter = Arc::clone(&n_chats);
        // The thread ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &tokenizer, context_tokens, holds, &counter, &hold);
            }
        });
        Loopback { url, n_chats, held }
    }
}

fn answer(
    mut stream: TcpStream,
    tokenizer: &Tokenizer,
    context_tokens: Option<u64>,
    holds: &[usize],
    n_chats: &AtomicUsize,
    hold: &mpsc::Sender<()>,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    let (status, value) = if head.starts_with("GET /v1/models") {
        let mut model = json!({"id": "tiny", "object": "model"});
        if let Some(n) = context_tokens {
            model["max_model_len"] = json!(n);
        }
        (200, json!({"object": "list", "data": [model]}))
    } else if head.starts_with("GET /version") {
        (200, json!({"version": "0.9.2"}))
    } else if head.starts_with("POST /v1/chat/completions") {
        let number = n_chats.fetch_add(1, Ordering::SeqCst);
        if holds.contains(&number) {
            hold.send(()).unwrap();
            let _ = reader.read(&mut [0]);
            return;
        }
        let request: Value = serde_json::from_slice(&body).unwrap();
        let text = request["messages"][0]["content"].as_str().unwrap();
        let codes: Vec<_> = text.split("box is ").skip(1).map(|t| &t[..6]).collect();
        // What the tiny model's template makes of one message of a user.
        let rendered = format!("<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n");
        let n = tokenizer.encode(&rendered, Specials::Parse).unwrap().len();
        let message = json!({"role": "assistant", "content": codes.join(", ")});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        let usage = json!({"prompt_tokens": n, "completion_tokens": 9});
        (200, json!({"choices": [choice], "usage": usage}))
    } else {
        (404, json!({"detail": "Not Found"}))
    };
    let body = value.to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
}

#[test]
fn a_probe_that_was_killed_shows_where_it_stood_and_goes_on() {
    let workspace = Workspace::new(0);
    let model = workspace.path("model");
    write_model(&model);
    // Two readings: 2,048 tokens as declared, 8,192 as scaled.
    let config = qwen3_8b(json!({
        "max_position_embeddings": 2048,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048},
    }));
    write(&workspace, "model/config.json", &config);
    // An older server, whose list names no window.
    let server = Loopback::start(&model, None, &[1]);
    let arguments = [
        "context",
        "probe",
        "--base-url",
        &server.url,
        "--tokenizer",
        "model",
        "--levels",
        "1500,2500,4000",
        "--output",
        "probe.json",
    ];
    let mut child = workspace
        .temper(&arguments)
        .env("OPENAI_API_KEY", "sk-loopback-0123456789")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    server.held.recv_timeout(Duration::from_secs(120)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let text = fs::read_to_string(workspace.path("probe.json")).unwrap();
    let record: Value = serde_json::from_str(&text).unwrap();
    let phases: Vec<_> = record["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level["phase"].as_str().unwrap())
        .collect();
    assert_eq!(phases, ["done", "sending", "waiting"]);
    assert_eq!(record["is_complete"], false);
    let ran = workspace.run(&arguments).expect(0);
    assert!(ran.stdout.contains("4/4"), "{}", ran.stdout);
    assert!(ran.stderr.contains("record: probe.json"), "{}", ran.stderr);
    assert_eq!(server.n_chats.load(Ordering::SeqCst), 4);
    let text = fs::read_to_string(workspace.path("probe.json")).unwrap();
    assert!(!text.contains("sk-loopback"));
    let record: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["server"]["version"], "0.9.2");
    assert_eq!(record["server"]["listing"]["context_tokens"], Value::Null);
    assert_eq!(record["levels"][1]["n_interrupted"], 1);
    for level in record["levels"].as_array().unwrap() {
        let (prompt, answer) = (&level["prompt"], &level["answer"]);
        assert_eq!(answer["server_tokens"], prompt["local_tokens"]);
        let missing = level["level"].as_u64().unwrap() - prompt["local_tokens"].as_u64().unwrap();
        assert!(missing <= 4, "{level}");
    }
    // Other settings are another probe.
    let mut other = arguments.to_vec();
    other.extend(["--seed", "1"]);
    let ran = workspace.run(&other).expect(6);
    assert!(ran.stderr.contains("seed 0, not 1"), "{}", ran.stderr);
    // The record decides what a configuration leaves open, if it is of this checkpoint.
    let plan = |model: &str, probe: &str, code| {
        let plan = ["context", "plan", model, "--window", "4096"];
        workspace
            .run(&plan)
            .expect(if model == "model" { 7 } else { 0 });
        let decided = [&plan[..], &["--probe", probe]].concat();
        workspace.run(&decided).expect(code)
    };
    let ran = plan("model", "probe.json", 0);
    assert!(
        ran.stdout.contains("takes the longer reading"),
        "{}",
        ran.stdout
    );
    let other = write(
        &workspace,
        "other/config.json",
        &qwen3_8b(json!({"max_position_embeddings": 4096})),
    );
    let refused = plan(&other, "probe.json", 6);
    for words in ["use the probe for this checkpoint", "hint: "] {
        assert!(refused.stderr.contains(words), "{}", refused.stderr);
    }
    // Nor does a record whose tokenizer had no configuration beside it.
    let mut silent = record.clone();
    silent["settings"]
        .as_object_mut()
        .unwrap()
        .remove("config_digest");
    fs::write(workspace.path("silent.json"), silent.to_string()).unwrap();
    let refused = plan("model", "silent.json", 6);
    assert!(
        refused.stderr.contains("has digest unknown"),
        "{}",
        refused.stderr
    );
}

#[test]
fn a_server_that_is_not_there_is_an_error_of_the_environment() {
    let workspace = Workspace::new(0);
    write_model(&workspace.path("model"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let base = [
        "context",
        "probe",
        "--base-url",
        &url,
        "--tokenizer",
        "model",
        "--output",
        "probe.json",
        "--levels",
        "1500",
    ];
    let ran = workspace.run(&base).expect(4);
    assert!(ran.stderr.contains("hint: "), "{}", ran.stderr);
    let mut named = base.to_vec();
    named.extend(["--model", "m"]);
    let ran = workspace.run(&named).expect(4);
    assert!(ran.stdout.contains("dropped"), "{}", ran.stdout);
}

#[test]
fn tempers_own_server_counts_as_its_tokenizer_does() {
    let workspace = Workspace::new(0);
    let model = workspace.path("model");
    write_model(&model);
    let path = model.join("config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["max_position_embeddings"] = json!(2048);
    fs::write(&path, config.to_string()).unwrap();
    let server = Server::of_written_model(&workspace, &[]);
    let url = format!("http://{}", server.address);
    let record = workspace
        .run(&[
            "context",
            "probe",
            "--base-url",
            &url,
            "--tokenizer",
            "model",
            "--levels",
            "1000,2048,3000",
            "--output-tokens",
            "16",
            "--output",
            "probe.json",
            "--format",
            "json",
        ])
        .expect(7)
        .json();
    let kinds: Vec<_> = record["levels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|level| level["outcome"]["kind"].as_str().unwrap())
        .collect();
    // Random weights find nothing, but what they were shown was counted alike.
    assert_eq!(kinds, ["nonsense", "nonsense", "beyond-window"]);
    assert_eq!(record["server"]["listing"]["context_tokens"], 2048);
    for level in &record["levels"].as_array().unwrap()[..2] {
        assert_eq!(
            level["answer"]["server_tokens"],
            level["prompt"]["local_tokens"]
        );
    }
    assert!(
        record["levels"][1]["prompt"]["local_tokens"]
            .as_u64()
            .unwrap()
            <= 2048 - 16
    );
    // A window that is the checkpoint's own is not assured by a server that did not take it.
    let plan = ["context", "plan", "model", "--window", "2048"];
    workspace.run(&plan).expect(0);
    let probed = [&plan[..], &["--probe", "probe.json", "--format", "json"]].concat();
    let shown = workspace.run(&probed).expect(7).json()["probe"].clone();
    assert_eq!(shown["stated_window"], 2048);
    assert_eq!(shown["accepted"], Value::Null);
    assert_eq!(shown["not_accepted"][0]["level"], 1000);
    assert_eq!(shown["not_accepted"][0]["outcome"]["kind"], "nonsense");
}

/// A plan with a probe holds only where the probe shows the window: each way of not showing it is
/// named, also the quiet ones.
#[test]
fn a_probe_that_does_not_show_the_window_closes_the_plan() {
    let workspace = Workspace::new(0);
    let model = workspace.path("model");
    write_model(&model);
    write(
        &workspace,
        "model/config.json",
        &qwen3_8b(json!({"max_position_embeddings": 4096})),
    );
    let server = Loopback::start(&model, Some(4096), &[]);
    let levels = ["--levels", "1500,2500", "--output", "probe.json"];
    let probe = ["context", "probe", "--base-url", &server.url];
    let tokenizer = ["--tokenizer", "model"];
    workspace
        .run(&[&probe[..], &tokenizer, &levels].concat())
        .expect(0);
    let text = fs::read_to_string(workspace.path("probe.json")).unwrap();
    let record: Value = serde_json::from_str(&text).unwrap();
    let plan = |record: &Value, code| {
        fs::write(workspace.path("changed.json"), record.to_string()).unwrap();
        let plan = ["context", "plan", "model", "--window", "4096"];
        workspace
            .run(&[&plan[..], &["--probe", "changed.json"]].concat())
            .expect(code)
            .stdout
    };
    let shown = plan(&record, 0);
    assert!(
        shown.contains("accepted up to the level of 2500 tokens"),
        "{shown}"
    );
    let counts = json!({"server_tokens": 2400, "local_tokens": 2499});
    let with = |kind: &str, fields: &Value| {
        let mut outcome = fields.clone();
        outcome["kind"] = kind.into();
        outcome
    };
    for (outcome, words) in [
        (
            with("needles-missed", &json!({"n_found": 3, "n": 4})),
            "3 of 4 codes found; missing at 2 %",
        ),
        (with("nonsense", &json!({})), "makes no sense"),
        (with("uncounted", &json!({})), "does not count"),
        (with("miscounted", &counts), "counted differently"),
        (with("truncated", &counts), "2400 of 2499 tokens"),
        (
            with("rejected", &json!({"stated_limit": 2048, "message": "m"})),
            "the limit is 2048",
        ),
        (with("timed-out", &json!({"seconds": 9.0})), "no answer"),
        (with("dropped", &json!({"message": "m"})), "dropped: m"),
        (
            with("failed", &json!({"class": "Server", "message": "m"})),
            "failed (Server)",
        ),
    ] {
        let mut changed = record.clone();
        changed["levels"][1]["outcome"] = outcome;
        changed["levels"][1]["answer"]["needles"][0]["is_found"] = false.into();
        let shown = plan(&changed, 7);
        for words in [
            "up to the level of 1500",
            "against the window: 2500:",
            words,
        ] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
    }
    let mut interrupted = record.clone();
    interrupted["levels"][1]["phase"] = "sending".into();
    interrupted["levels"][1]["outcome"] = Value::Null;
    assert!(plan(&interrupted, 7).contains("2500: not answered yet"));
    let mut smaller = record.clone();
    smaller["server"]["listing"]["context_tokens"] = 3000.into();
    assert!(plan(&smaller, 7).contains("the server states a window of 3000 tokens"));
    let mut longer = record;
    longer["levels"].as_array_mut().unwrap().clear();
    assert!(plan(&longer, 7).contains("no level lies within the window"));
}
