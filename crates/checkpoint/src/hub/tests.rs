use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};
use temper_core::Digest;

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub on the loopback interface with one repository of one commit.
struct Hub {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    files: BTreeMap<String, Vec<u8>>,
    listing: Value,
    requests: Vec<String>,
    /// Bodies of this file break off after so many bytes, once.
    breaks: Option<(String, usize)>,
    token: Option<String>,
}

fn git_id(content: &[u8]) -> String {
    use sha1::Digest as _;
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", content.len()));
    hasher.update(content);
    hasher
        .finalize()
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

impl Hub {
    fn new(files: &[(&str, &[u8])]) -> Self {
        let siblings: Vec<Value> = files
            .iter()
            .map(|(name, content)| {
                let mut sibling = json!({
                    "rfilename": name, "size": content.len(), "blobId": git_id(content),
                });
                if name.ends_with(".safetensors") || name.ends_with(".gguf") {
                    sibling["lfs"] = json!({
                        "sha256": Digest::of(content).as_str(), "size": content.len(),
                    });
                }
                sibling
            })
            .collect();
        let state = Arc::new(Mutex::new(State {
            files: files
                .iter()
                .map(|(name, content)| (name.to_string(), content.to_vec()))
                .collect(),
            listing: json!({ "sha": COMMIT, "siblings": siblings }),
            ..State::default()
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let served = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                answer(stream, &served);
            }
        });
        Hub { endpoint, state }
    }

    fn options(&self, cache: &Path) -> HubOptions {
        HubOptions {
            cache: cache.to_owned(),
            endpoint: Some(self.endpoint.clone()),
            token: None,
            proxy_from_environment: false,
            max_bytes: 1 << 20,
            without_weights: false,
        }
    }

    fn requests(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().requests)
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 || line == "\r\n" {
            break;
        }
        lines.push(line.trim().to_ascii_lowercase());
    }
    let Some(path) = lines.first().and_then(|line| line.split(' ').nth(1)) else {
        return;
    };
    let mut state = state.lock().unwrap();
    let header = |name: &str| {
        lines
            .iter()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")))
    };
    let from: Option<usize> = header("range").and_then(|range| {
        range
            .strip_prefix("bytes=")?
            .strip_suffix('-')?
            .parse()
            .ok()
    });
    state.requests.push(match from {
        Some(from) => format!("{path} from {from}"),
        None => path.to_owned(),
    });
    if let Some(token) = &state.token
        && header("authorization") != Some(&format!("bearer {token}"))
    {
        let _ =
            stream.write_all(b"HTTP/1.1 401 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        return;
    }
    let prefix = format!("/org/name/resolve/{COMMIT}/");
    let (status, body) = if path.starts_with("/api/models/org/name/revision/") {
        (200, state.listing.to_string().into_bytes())
    } else {
        match path
            .strip_prefix(&prefix)
            .and_then(|name| state.files.get(name))
        {
            Some(content) => (
                if from.is_some() { 206 } else { 200 },
                content[from.unwrap_or(0)..].to_vec(),
            ),
            None => (404, Vec::new()),
        }
    };
    let mut sent = body.as_slice();
    if let Some((file, n)) = &state.breaks
        && path.ends_with(file.as_str())
    {
        sent = &body[..*n];
        state.breaks = None;
    }
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(sent);
}

fn model_hub() -> Hub {
    Hub::new(&[
        ("README.md", b"text"),
        ("config.json", b"{}"),
        ("tokenizer.json", b"tokens"),
        (
            "model.safetensors.index.json",
            br#"{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}"#,
        ),
        ("model-1.safetensors", b"first shard"),
        ("model-2.safetensors", b"second shard"),
        ("pytorch_model.bin", b"pickle"),
        ("sub/model.safetensors", b"other"),
    ])
}

#[test]
fn names() {
    let name: HubName = "Qwen/Qwen3-8B".parse().unwrap();
    assert_eq!((name.revision.as_str(), &name.file), ("main", &None));
    assert_eq!(name.to_string(), "Qwen/Qwen3-8B@main");
    let name: HubName = "a/b.c@refs/pr/1:x.gguf".parse().unwrap();
    assert_eq!(
        (name.revision.as_str(), name.file.as_deref()),
        ("refs/pr/1", Some("x.gguf"))
    );
    for bad in [
        "",
        "a",
        "a/",
        "/a",
        "a/b/c",
        "a/..",
        "../b",
        "a/b@",
        "a/b@../x",
        "a/b@-x",
        "a/b:x",
        "a/b:../x.gguf",
        "a/b:y/x.gguf",
        "a b/c",
        "a/b?x",
        "a--b/c",
        "a/b#c",
        "https://x/y",
    ] {
        assert!(bad.parse::<HubName>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_model_is_fetched_once_and_found_offline() {
    let hub = model_hub();
    let cache = tempfile::tempdir().unwrap();
    let options = hub.options(cache.path());
    let name: HubName = "org/name".parse().unwrap();
    assert_eq!(find(&name, cache.path()), None);
    let mut events = Vec::new();
    let snapshot = fetch(&name, &options, |event| {
        if let HubEvent::Resolved {
            commit,
            n_files,
            n_bytes,
        } = event
        {
            events.push((commit.to_owned(), n_files, n_bytes));
        }
    })
    .unwrap();
    assert_eq!(events, [(COMMIT.to_owned(), 5, 99)]);
    assert_eq!(snapshot.commit, COMMIT);
    let mut files: Vec<String> = fs::read_dir(&snapshot.path)
        .unwrap()
        .map(|item| item.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "config.json",
            "model-1.safetensors",
            "model-2.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json"
        ]
    );
    assert_eq!(
        fs::read(snapshot.path.join("model-2.safetensors")).unwrap(),
        b"second shard"
    );
    hub.requests();
    // A branch may have moved, and is asked for; its files are here.
    assert_eq!(fetch(&name, &options, |_| {}).unwrap(), snapshot);
    assert_eq!(
        hub.requests(),
        ["/api/models/org/name/revision/main?blobs=true"]
    );
    // Offline there is nothing to ask.
    let offline = HubOptions {
        endpoint: None,
        ..options.clone()
    };
    assert_eq!(fetch(&name, &offline, |_| {}).unwrap(), snapshot);
    // A commit cannot move. Its files are known once it was asked for by that name.
    let pinned: HubName = format!("org/name@{COMMIT}").parse().unwrap();
    assert!(matches!(
        fetch(&pinned, &offline, |_| {}),
        Err(HubError::Offline { .. })
    ));
    assert_eq!(fetch(&pinned, &options, |_| {}).unwrap(), snapshot);
    hub.requests();
    assert_eq!(fetch(&pinned, &options, |_| {}).unwrap(), snapshot);
    assert_eq!(hub.requests(), Vec::<String>::new());
}

#[test]
fn a_transfer_that_broke_off_is_continued() {
    let hub = model_hub();
    hub.state.lock().unwrap().breaks = Some(("model-2.safetensors".into(), 7));
    let cache = tempfile::tempdir().unwrap();
    let name: HubName = "org/name@main".parse().unwrap();
    let snapshot = fetch(&name, &hub.options(cache.path()), |_| {}).unwrap();
    assert_eq!(
        fs::read(snapshot.path.join("model-2.safetensors")).unwrap(),
        b"second shard"
    );
    let requests = hub.requests();
    let of_shard = |path: &&String| path.contains("model-2");
    assert_eq!(
        Vec::from_iter(requests.iter().filter(of_shard)),
        [
            &format!("/org/name/resolve/{COMMIT}/model-2.safetensors"),
            &format!("/org/name/resolve/{COMMIT}/model-2.safetensors from 7"),
        ]
    );
}

#[test]
fn content_that_is_not_what_was_listed_is_not_kept() {
    for (file, content) in [
        ("model-1.safetensors", b"First shard".as_slice()),
        ("tokenizer.json", b"Tokens"),
        ("model-1.safetensors", b"first shard and more"),
    ] {
        let hub = model_hub();
        let cache = tempfile::tempdir().unwrap();
        hub.state
            .lock()
            .unwrap()
            .files
            .insert(file.into(), content.to_vec());
        let name: HubName = "org/name".parse().unwrap();
        let error = fetch(&name, &hub.options(cache.path()), |_| {}).unwrap_err();
        assert!(matches!(error, HubError::WrongContent { .. }), "{error}");
        assert_eq!(find(&name, cache.path()), None);
    }
}

#[test]
fn what_a_listing_says_is_not_believed() {
    let attempt = |change: &dyn Fn(&mut Value)| {
        let hub = model_hub();
        change(&mut hub.state.lock().unwrap().listing);
        let cache = tempfile::tempdir().unwrap();
        let name: HubName = "org/name".parse().unwrap();
        fetch(&name, &hub.options(cache.path()), |_| {})
            .unwrap_err()
            .to_string()
    };
    for (change, reason) in [
        (
            &(|listing: &mut Value| listing["sha"] = json!("../../x")) as &dyn Fn(&mut Value),
            "no commit",
        ),
        (
            &|listing| listing["siblings"][1]["blobId"] = json!("../../../x"),
            "no hash",
        ),
        (
            &|listing| listing["siblings"][1]["size"] = json!(-1),
            "integer",
        ),
        (
            &|listing| listing["siblings"][4]["lfs"]["size"] = json!(1u64 << 40),
            "are allowed",
        ),
        (
            &|listing| listing["siblings"] = json!([]),
            "neither safetensors",
        ),
        (&|listing| *listing = json!([]), "invalid"),
    ] {
        let error = attempt(change);
        assert!(error.contains(reason), "{error}: expected {reason}");
    }
    let index = br#"{"weight_map":{"a":"../../x.safetensors"}}"#.as_slice();
    let hub = Hub::new(&[
        ("config.json", b"{}"),
        (INDEX_NAME, index),
        ("../../x.safetensors", b"x"),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let name: HubName = "org/name".parse().unwrap();
    let error = fetch(&name, &hub.options(cache.path()), |_| {}).unwrap_err();
    assert!(error.to_string().contains("no file"), "{error}");
}

#[test]
fn a_gguf_file_is_chosen_by_name_or_alone() {
    let cache = tempfile::tempdir().unwrap();
    let one = Hub::new(&[("a.gguf", b"a"), ("README.md", b"x")]);
    let name: HubName = "org/name".parse().unwrap();
    // The snapshot of a repository with one GGUF file is a folder with one GGUF file.
    let snapshot = fetch(&name, &one.options(cache.path()), |_| {}).unwrap();
    assert_eq!(fs::read(snapshot.path.join("a.gguf")).unwrap(), b"a");
    let two = Hub::new(&[("a.gguf", b"a"), ("b.gguf", b"b")]);
    let cache = tempfile::tempdir().unwrap();
    let error = fetch(&name, &two.options(cache.path()), |_| {}).unwrap_err();
    assert!(error.to_string().contains("several GGUF files"), "{error}");
    let name: HubName = "org/name:b.gguf".parse().unwrap();
    let snapshot = fetch(&name, &two.options(cache.path()), |_| {}).unwrap();
    assert!(snapshot.path.ends_with("b.gguf"));
    assert_eq!(find(&name, cache.path()), Some(snapshot));
    let whole: HubName = "org/name".parse().unwrap();
    assert_eq!(find(&whole, cache.path()), None);
}

#[test]
fn a_gated_model_needs_its_token() {
    let hub = model_hub();
    hub.state.lock().unwrap().token = Some("secret".into());
    let cache = tempfile::tempdir().unwrap();
    let name: HubName = "org/name".parse().unwrap();
    let mut options = hub.options(cache.path());
    let error = fetch(&name, &options, |_| {}).unwrap_err();
    assert!(error.hint().unwrap().contains("HF_TOKEN"));
    options.token = Some("secret".into());
    assert!(!format!("{options:?}").contains("secret"));
    fetch(&name, &options, |_| {}).unwrap();
    let name: HubName = "org/absent".parse().unwrap();
    let error = fetch(&name, &options, |_| {}).unwrap_err();
    assert!(error.hint().unwrap().contains("check the name"), "{error}");
}

#[test]
fn a_model_without_its_weights_is_no_whole_one() {
    let hub = Hub::new(&[
        ("config.json", b"{}"),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", b"weights"),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let name: HubName = "org/name".parse().unwrap();
    let options = HubOptions {
        without_weights: true,
        ..hub.options(folder.path())
    };
    let snapshot = fetch(&name, &options, |_| {}).unwrap();
    assert!(snapshot.path.join("tokenizer.json").is_file());
    assert!(!snapshot.path.join("model.safetensors").exists());
    assert_eq!(find(&name, folder.path()), None);
    // The whole one is taken where it is there.
    let whole = fetch(&name, &hub.options(folder.path()), |_| {}).unwrap();
    assert!(whole.path.join("model.safetensors").is_file());
    assert_eq!(find(&name, folder.path()), Some(whole));
}
