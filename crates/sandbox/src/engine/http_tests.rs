use std::{io::Read, os::unix::net::UnixListener, path::Path, thread};

use super::*;

/// Serves one connection: reads the request's head, then writes the pieces one by one and hangs up.
fn served(pieces: Vec<Vec<u8>>, check: impl FnOnce(&Address)) -> String {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = vec![];
        let mut byte = [0];
        while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
            request.push(byte[0]);
        }
        for piece in pieces {
            if stream.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // What is still being sent is read, so that the client sees an end and no reset.
        let mut rest = vec![];
        let _ = stream.read_to_end(&mut rest);
        request.extend(rest);
        String::from_utf8_lossy(&request).into_owned()
    });
    check(&Address::Unix(path));
    server.join().unwrap()
}

fn get(patience: Duration) -> Request<'static> {
    Request {
        method: "GET",
        target: "/x".into(),
        body: Body::Empty,
        upgrade: false,
        patience,
    }
}

const LONG: Duration = Duration::from_secs(20);

/// The status and the whole body, or what went wrong.
fn answer(bytes: &[u8], piece_bytes: usize) -> Result<(u16, Vec<u8>), String> {
    let pieces = bytes.chunks(piece_bytes).map(<[u8]>::to_vec).collect();
    let mut result = Err(String::new());
    served(pieces, |address| {
        result = send(address, get(LONG))
            .and_then(|mut response| Ok((response.status, response.body.read_all(1000)?)))
            .map_err(|error| error.to_string());
    });
    result
}

#[test]
fn bodies_are_the_same_however_they_come() {
    let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world and more";
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nTrailer: x\r\n\r\nmore";
    let closed = b"HTTP/1.0 200 OK\n\nhello world";
    let interim =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length:11\r\n\r\nhello world";
    for bytes in [&plain[..], chunked, closed, interim] {
        for piece_bytes in [1, 2, 7, 1000] {
            assert_eq!(
                answer(bytes, piece_bytes).unwrap(),
                (200, b"hello world".to_vec())
            );
        }
    }
    assert_eq!(
        answer(b"HTTP/1.1 204 No Content\r\n\r\nignored", 100).unwrap(),
        (204, vec![])
    );
}

#[test]
fn hostile_answers_are_refused() {
    let head = |text: &str| format!("HTTP/1.1 200 OK\r\n{text}\r\n\r\n").into_bytes();
    let body = |framing: &str, body: &str| [head(framing), body.into()].concat();
    let chunked = "Transfer-Encoding: chunked";
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![], "in the middle of a line"),
        (b"HTTP/1.1 200".to_vec(), "in the middle of a line"),
        (b"SSH-2.0-x\r\n\r\n".to_vec(), "it begins with"),
        (b"HTTP/1.1 999 No\r\n\r\n".to_vec(), "it begins with"),
        (b"HTTP/1.1 +20 No\r\n\r\n".to_vec(), "it begins with"),
        (vec![b'x'; 100_000], "a line has more than"),
        (head(&"a: b\r\n".repeat(20_000)), "a line has more than"),
        (head("no colon"), "no colon"),
        (
            head("Content-Length: 5\r\nContent-Length: 6"),
            "not one number",
        ),
        (head("Content-Length: -1"), "not one number"),
        (
            head("Content-Length: 99999999999999999999999"),
            "not one number",
        ),
        (body("Content-Length: 5", "four"), "hung up"),
        (
            body("Content-Length: 2000", &"x".repeat(2000)),
            "more than 1000 bytes",
        ),
        (head("Transfer-Encoding: gzip, chunked"), "is not known"),
        (body(chunked, "5\r\nhel"), "hung up"),
        (body(chunked, "5\r\nhello"), "in the middle of a line"),
        (
            body(chunked, "5\r\nhello!\r\n0\r\n\r\n"),
            "a line has more than 0 bytes",
        ),
        (body(chunked, "-5\r\nhello\r\n"), "not a number"),
        (body(chunked, "\r\n"), "not a number"),
        (body(chunked, "ffffffffffffffff\r\nx"), "not a number"),
        (body(chunked, "fffffffffffff\r\nx"), "hung up"),
        (body(chunked, &"0".repeat(5000)), "a line has more than"),
        (
            body(chunked, &format!("0\r\n{}", "t: x\r\n".repeat(10_000))),
            "a line has more than",
        ),
    ];
    for (bytes, expected) in cases {
        let error = answer(&bytes, 4096).unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_silent_engine_costs_no_more_than_the_time_that_was_given() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("api.sock");
    let _listener = UnixListener::bind(&path).unwrap();
    let begun = Instant::now();
    let error = send(&Address::Unix(path), get(Duration::from_millis(200))).unwrap_err();
    assert!(error.to_string().contains("time ran out"), "{error}");
    let waited = begun.elapsed();
    assert!(
        waited >= Duration::from_millis(200) && waited < LONG,
        "{waited:?}"
    );
}

#[test]
fn an_upload_arrives_in_chunks_and_an_early_refusal_is_heard() {
    let content = vec![b'x'; 200_000];
    let mut fill = |out: &mut dyn Write| out.write_all(&content);
    let upload = |address: &Address, fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>| {
        let request = Request {
            method: "PUT",
            target: "/archive".into(),
            body: Body::Tar(fill),
            upgrade: false,
            patience: LONG,
        };
        send(address, request).map(|response| response.status)
    };
    let request = served(vec![b"HTTP/1.1 200 OK\r\n\r\n".to_vec()], |address| {
        assert_eq!(upload(address, &mut fill).unwrap(), 200);
    });
    assert!(request.contains("Transfer-Encoding: chunked"));
    assert_eq!(request.matches('x').count(), 200_000 + "x-tar".len() - 4);
    assert!(request.ends_with("\r\n0\r\n\r\n"));

    // One that answers, and hangs up at once.
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .write_all(b"HTTP/1.1 507 Full\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
    });
    let big = vec![b'x'; 50_000_000];
    let mut fill = |out: &mut dyn Write| out.write_all(&big);
    assert_eq!(upload(&Address::Unix(path), &mut fill).unwrap(), 507);
    server.join().unwrap();
}

#[test]
fn addresses_are_read_strictly() {
    let unix = |path: &str| Address::Unix(path.into());
    assert_eq!(
        Address::parse("unix:///run/x.sock"),
        Ok(unix("/run/x.sock"))
    );
    for text in ["http://127.0.0.1:2375", "tcp://127.0.0.1:2375/"] {
        let address = Address::parse(text).unwrap();
        assert_eq!(address, Address::Tcp("127.0.0.1:2375".into()));
        assert!(address.is_local());
    }
    assert!(
        !Address::parse("tcp://engine.example:2375")
            .unwrap()
            .is_local()
    );
    for wrong in [
        "",
        "unix://relative",
        "/run/x.sock",
        "https://127.0.0.1:2376",
        "ssh://me@host",
        "http://host",
        "http://host:99999",
        "http://:80",
        "http://host:80/path",
        "http://user@host:80",
        "http://ho\r\nst:80",
    ] {
        assert!(Address::parse(wrong).is_err(), "{wrong:?}");
    }
    let missing = Address::Unix(Path::new("/no/such/socket").into());
    let error = send(&missing, get(LONG)).unwrap_err().to_string();
    assert!(
        error.contains("connect to unix:///no/such/socket"),
        "{error}"
    );
}
