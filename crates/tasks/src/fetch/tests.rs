use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    sync::{Arc, Mutex},
};

use super::*;

/// A loopback index that answers each request from a list of canned answers by path, and records
/// the paths.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
}

type Answer = (u16, &'static str, Vec<u8>);

fn serve(answer: impl Fn(&str, usize) -> Answer + Send + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(request)) = lines.next() else {
                continue;
            };
            while lines
                .next()
                .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
            {}
            let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
            let n_before = {
                let mut log = log.lock().unwrap();
                log.push(path.clone());
                log.iter().filter(|seen| **seen == path).count() - 1
            };
            let (status, kind, body) = answer(&path, n_before);
            let _ = write!(
                stream,
                "HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                body.len()
            );
            let _ = stream.write_all(&body);
        }
    });
    Server { url, seen }
}

const CONTENT: &[u8] = b"the content of a wheel";

fn archive() -> Archive {
    Archive {
        project: "Some_Project".into(),
        file_name: "some_project-1.0-py3-none-any.whl".into(),
        sha256: Digest::of(CONTENT),
    }
}

fn page() -> Vec<u8> {
    format!(
        r#"{{"files":[{{"filename":"some_project-1.0-py3-none-any.whl","url":"/files/w","hashes":{{"sha256":"{}"}}}}]}}"#,
        Digest::of(CONTENT)
    )
    .into_bytes()
}

const JSON: &str = "application/vnd.pypi.simple.v1+json";

fn fetcher(folder: &Path, index: Option<String>, directories: Vec<PathBuf>) -> Fetcher {
    let options = FetchOptions {
        directories,
        index,
        proxy: ProxyChoice::Direct,
        backoff: Duration::ZERO,
        max_file_bytes: 1000,
        ..FetchOptions::default()
    };
    Fetcher::new(Cache::open(folder.join("cache")).unwrap(), options).unwrap()
}

#[test]
fn a_file_is_fetched_once_and_then_found_offline() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(|path, _| match path {
        "/simple/some-project/" => (200, JSON, page()),
        "/files/w" => (200, "application/octet-stream", CONTENT.to_vec()),
        _ => (404, "text/plain", vec![]),
    });
    let online = fetcher(
        folder.path(),
        Some(format!("{}/simple", server.url)),
        vec![],
    );
    let path = online.fetch(&archive()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), CONTENT);
    assert_eq!(
        path.file_name().unwrap(),
        "some_project-1.0-py3-none-any.whl"
    );
    assert_eq!(online.fetch(&archive()).unwrap(), path);
    let offline = fetcher(folder.path(), None, vec![]);
    assert_eq!(offline.fetch(&archive()).unwrap(), path);
    assert_eq!(
        *server.seen.lock().unwrap(),
        ["/simple/some-project/", "/files/w"]
    );
}

#[test]
fn html_pages_and_transient_faults_are_lived_with() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(|path, n_before| match (path, n_before) {
        ("/some-project/", 0) => (503, "text/plain", vec![]),
        ("/some-project/", _) => (
            200,
            "text/html",
            b"<a href=\"../files/w\">some_project-1.0-py3-none-any.whl</a>".to_vec(),
        ),
        ("/files/w", 0) => (500, "text/plain", vec![]),
        ("/files/w", _) => (200, "application/octet-stream", CONTENT.to_vec()),
        _ => (404, "text/plain", vec![]),
    });
    let online = fetcher(folder.path(), Some(server.url.clone()), vec![]);
    online.fetch(&archive()).unwrap();
    assert_eq!(server.seen.lock().unwrap().len(), 4);
}

#[test]
fn nothing_with_another_hash_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(|path, _| match path {
        "/some-project/" => (200, JSON, page()),
        _ => (200, "application/octet-stream", b"something else".to_vec()),
    });
    let online = fetcher(folder.path(), Some(server.url.clone()), vec![]);
    let error = online.fetch(&archive()).unwrap_err();
    assert!(
        matches!(&error, FetchError::WrongHash { got, .. } if *got == Digest::of(b"something else")),
        "{error}"
    );
    let offline = fetcher(folder.path(), None, vec![]);
    assert!(matches!(
        offline.fetch(&archive()),
        Err(FetchError::Offline { .. })
    ));
}

#[test]
fn an_index_that_promises_another_hash_is_not_asked_for_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(|_, _| {
        let other = Digest::of(b"other");
        let page = format!(
            r#"{{"files":[{{"filename":"some_project-1.0-py3-none-any.whl","url":"w","hashes":{{"sha256":"{other}"}}}}]}}"#
        );
        (200, JSON, page.into_bytes())
    });
    let online = fetcher(folder.path(), Some(server.url.clone()), vec![]);
    assert!(matches!(
        online.fetch(&archive()),
        Err(FetchError::WrongHash { .. })
    ));
    assert_eq!(server.seen.lock().unwrap().len(), 1);
}

#[test]
fn refusals_are_final_and_sizes_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(|path, _| match path {
        "/some-project/" => (200, JSON, page()),
        "/other/" => (403, "text/plain", vec![]),
        _ => (200, "application/octet-stream", vec![0; 2000]),
    });
    let index = server.url.replace("http://", "http://user:secret@");
    let online = fetcher(folder.path(), Some(index), vec![]);
    let error = online.fetch(&archive()).unwrap_err();
    assert!(
        matches!(error, FetchError::Request { attempts: 1, .. }),
        "{error}"
    );
    let mut other = archive();
    other.project = "other".into();
    let error = online.fetch(&other).unwrap_err();
    assert!(
        matches!(error, FetchError::Request { attempts: 1, .. }),
        "{error}"
    );
    assert!(!error.to_string().contains("secret"), "{error}");
    assert!(error.hint().is_some());
    let mut unlisted = archive();
    unlisted.file_name = "some_project-2.0-py3-none-any.whl".into();
    assert!(matches!(
        online.fetch(&unlisted),
        Err(FetchError::NotListed { n_files: 1, .. })
    ));
}

#[test]
fn local_directories_come_first_and_are_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let (bad, good) = (folder.path().join("bad"), folder.path().join("good"));
    for (directory, content) in [(&bad, b"x".as_slice()), (&good, CONTENT)] {
        fs::create_dir(directory).unwrap();
        fs::write(directory.join(archive().file_name), content).unwrap();
    }
    let offline = fetcher(folder.path(), None, vec![bad.clone(), good.clone()]);
    assert_eq!(
        offline.fetch(&archive()).unwrap(),
        good.join(archive().file_name)
    );
    let offline = fetcher(folder.path(), None, vec![bad]);
    let error = offline.fetch(&archive()).unwrap_err();
    assert!(error.to_string().contains("bad"), "{error}");
}

#[test]
fn names_cannot_leave_a_directory() {
    let folder = tempfile::tempdir().unwrap();
    let offline = fetcher(folder.path(), None, vec![folder.path().to_owned()]);
    for name in ["../x", "a/b", "", ".hidden", "-x", "a\0b", "a b", "a\\b"] {
        let mut archive = archive();
        archive.file_name = name.into();
        assert!(
            matches!(offline.fetch(&archive), Err(FetchError::BadName { .. })),
            "{name:?}"
        );
    }
}
