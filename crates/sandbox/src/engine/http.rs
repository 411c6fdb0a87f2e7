//! A small HTTP/1.1 client for an engine's API: one connection a request, over a unix socket or
//! TCP, bounded in time and in every size that the other side chooses.
//!
//! It does no TLS, no redirects, no keep-alive and no compression: an engine's socket needs none.

use std::{
    io::{self, Read, Write},
    net::{TcpStream, ToSocketAddrs},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The longest head of an answer.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// The longest line that introduces a chunk, extensions included.
const MAX_CHUNK_LINE_BYTES: usize = 1024;
/// The most that trailers after the last chunk may take.
const MAX_TRAILER_BYTES: usize = 16 << 10;

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// `host:port`, without TLS.
    Tcp(String),
}

impl Address {
    /// Reads `unix:///path`, `http://host:port` or `tcp://host:port`.
    pub fn parse(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') && !path.contains('\0') {
                Ok(Address::Unix(path.into()))
            } else {
                Err(format!("{text:?} holds no absolute path"))
            };
        }
        let Some(rest) = ["http://", "tcp://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
        else {
            return Err(format!(
                "{text:?} is neither unix:///path nor http://host:port (TLS and ssh are not spoken)"
            ));
        };
        let rest = rest.trim_end_matches('/');
        let has_port = rest
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let is_clean =
            !rest.contains(['/', '@', '?', '#']) && rest.chars().all(|c| c.is_ascii_graphic());
        if has_port && is_clean {
            Ok(Address::Tcp(rest.to_owned()))
        } else {
            Err(format!("{text:?} is not of the form http://host:port"))
        }
    }

    /// Whether paths of this machine mean the same to the engine.
    pub fn is_local(&self) -> bool {
        match self {
            Address::Unix(_) => true,
            Address::Tcp(host) => host.rsplit_once(':').is_some_and(|(host, _)| {
                matches!(host, "localhost" | "[::1]") || host.starts_with("127.")
            }),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix://{}", path.display()),
            Address::Tcp(host) => write!(f, "http://{host}"),
        }
    }
}

/// Why a request got no answer that makes sense.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No connection.
    #[error("connect to {address}: {error}")]
    Connect {
        /// Where.
        address: Address,
        /// Why not.
        error: io::Error,
    },
    /// The connection broke, or the time ran out.
    #[error("talk to the engine: {0}")]
    Io(#[from] io::Error),
    /// What came is not HTTP.
    #[error("understand the engine's answer: {0}")]
    Malformed(String),
}

/// What a request carries.
pub enum Body<'a> {
    /// Nothing.
    Empty,
    /// JSON.
    Json(Vec<u8>),
    /// An archive that is made while it is sent.
    Tar(&'a mut dyn FnMut(&mut dyn Write) -> io::Result<()>),
}

/// One request.
pub struct Request<'a> {
    /// `GET`, `PUT`, …
    pub method: &'static str,
    /// Path and query, already encoded.
    pub target: String,
    /// What it carries.
    pub body: Body<'a>,
    /// Whether the connection shall become a raw one.
    pub upgrade: bool,
    /// How long connecting, sending and receiving may take together.
    pub patience: Duration,
}

/// The head of an answer, and the body still to be read.
#[derive(Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The body; its end has been checked when reading gives 0.
    pub body: BodyReader,
}

impl Response {
    /// A header's value; names are written in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

/// Sends a request and reads the head of the answer.
pub fn send(address: &Address, request: Request<'_>) -> Result<Response, HttpError> {
    let deadline = Instant::now() + request.patience;
    let mut connection = Connection::open(address, request.patience, deadline)?;
    let sent = write_request(
        &mut connection,
        request.method,
        request.target,
        request.body,
        request.upgrade,
    );
    // An engine may answer before it has taken everything, and then hang up: its answer says why.
    let head = match (read_head(&mut connection), sent) {
        (Ok(head), _) => head,
        (Err(_), Err(error)) => return Err(error.into()),
        (Err(error), Ok(())) => return Err(error),
    };
    let (status, headers) = head;
    let framing = if request.method == "HEAD" || matches!(status, 204 | 304) {
        Framing::Length(0)
    } else if status == 101 {
        Framing::UntilClose
    } else {
        framing(&headers)?
    };
    Ok(Response {
        status,
        headers,
        body: BodyReader {
            connection,
            framing,
        },
    })
}

fn write_request(
    connection: &mut Connection,
    method: &str,
    target: String,
    body: Body<'_>,
    upgrade: bool,
) -> io::Result<()> {
    let mut head = format!("{method} {target} HTTP/1.1\r\nHost: engine\r\nUser-Agent: temper\r\n");
    head.push_str(if upgrade {
        "Connection: Upgrade\r\nUpgrade: tcp\r\n"
    } else {
        "Connection: close\r\n"
    });
    match body {
        Body::Empty => {
            head.push_str(if method == "GET" || method == "HEAD" {
                "\r\n"
            } else {
                "Content-Length: 0\r\n\r\n"
            });
            connection.write_all(head.as_bytes())
        }
        Body::Json(json) => {
            head.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                json.len()
            ));
            let mut bytes = head.into_bytes();
            bytes.extend_from_slice(&json);
            connection.write_all(&bytes)
        }
        Body::Tar(fill) => {
            head.push_str("Content-Type: application/x-tar\r\nTransfer-Encoding: chunked\r\n\r\n");
            connection.write_all(head.as_bytes())?;
            let mut chunked = io::BufWriter::with_capacity(64 << 10, Chunked(&mut *connection));
            fill(&mut chunked)?;
            chunked.into_inner().map_err(|error| error.into_error())?;
            connection.write_all(b"0\r\n\r\n")
        }
    }
}

/// Each write becomes a chunk.
struct Chunked<'a>(&'a mut Connection);

impl Write for Chunked<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !bytes.is_empty() {
            write!(self.0, "{:x}\r\n", bytes.len())?;
            self.0.write_all(bytes)?;
            self.0.write_all(b"\r\n")?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection with a deadline for everything that is done with it.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    unread: Vec<u8>,
    n_taken: usize,
    deadline: Instant,
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Connection {
    fn open(address: &Address, patience: Duration, deadline: Instant) -> Result<Self, HttpError> {
        let failed = |error| HttpError::Connect {
            address: address.clone(),
            error,
        };
        let stream = match address {
            Address::Unix(path) => Stream::Unix(UnixStream::connect(path).map_err(failed)?),
            Address::Tcp(host) => {
                let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
                let mut found = None;
                for socket in host.to_socket_addrs().map_err(failed)? {
                    match TcpStream::connect_timeout(&socket, patience.min(Duration::from_secs(10)))
                    {
                        Ok(stream) => {
                            found = Some(stream);
                            break;
                        }
                        Err(error) => last = error,
                    }
                }
                let stream = found.ok_or(last).map_err(failed)?;
                let _ = stream.set_nodelay(true);
                Stream::Tcp(stream)
            }
        };
        Ok(Connection {
            stream,
            unread: vec![],
            n_taken: 0,
            deadline,
        })
    }

    /// Moves the moment at which reading and writing fail with `TimedOut`.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the time ran out"));
        }
        // The kernel rounds, and zero would mean "for ever".
        Ok(left.max(Duration::from_millis(1)))
    }

    fn receive(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let left = Some(self.left()?);
            let result = match &mut self.stream {
                Stream::Unix(stream) => {
                    stream.set_read_timeout(left)?;
                    stream.read(buffer)
                }
                Stream::Tcp(stream) => {
                    stream.set_read_timeout(left)?;
                    stream.read(buffer)
                }
            };
            match result {
                // The deadline decides, not how the kernel counts.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                other => return other,
            }
        }
    }

    /// One byte of what is not read yet.
    fn byte(&mut self) -> io::Result<Option<u8>> {
        let mut byte = [0];
        Ok((self.read(&mut byte)? == 1).then_some(byte[0]))
    }

    /// A line without its end, which is at most `max_bytes` long.
    fn line(&mut self, max_bytes: usize) -> Result<String, HttpError> {
        let mut line = vec![];
        loop {
            match self.byte()? {
                None => {
                    return Err(HttpError::Malformed(
                        "it ends in the middle of a line".into(),
                    ));
                }
                Some(b'\n') => break,
                // One more than the limit, for it may be the carriage return.
                Some(_) if line.len() > max_bytes => {
                    return Err(HttpError::Malformed(format!(
                        "a line has more than {max_bytes} bytes"
                    )));
                }
                Some(byte) => line.push(byte),
            }
        }
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        if line.len() > max_bytes {
            return Err(HttpError::Malformed(format!(
                "a line has more than {max_bytes} bytes"
            )));
        }
        String::from_utf8(line)
            .map_err(|_| HttpError::Malformed("a line of its head is not text".into()))
    }
}

impl Read for Connection {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.n_taken == self.unread.len() {
            if buffer.len() >= 16 << 10 {
                return self.receive(buffer);
            }
            let mut more = std::mem::take(&mut self.unread);
            more.resize(16 << 10, 0);
            let n = self.receive(&mut more);
            more.truncate(*n.as_ref().unwrap_or(&0));
            self.unread = more;
            self.n_taken = 0;
            n?;
        }
        let ready = &self.unread[self.n_taken..];
        let n = ready.len().min(buffer.len());
        buffer[..n].copy_from_slice(&ready[..n]);
        self.n_taken += n;
        Ok(n)
    }
}

impl Write for Connection {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            let left = Some(self.left()?);
            let result = match &mut self.stream {
                Stream::Unix(stream) => {
                    stream.set_write_timeout(left)?;
                    stream.write(bytes)
                }
                Stream::Tcp(stream) => {
                    stream.set_write_timeout(left)?;
                    stream.write(bytes)
                }
            };
            match result {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                other => return other,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Head = (u16, Vec<(String, String)>);

fn read_head(connection: &mut Connection) -> Result<Head, HttpError> {
    let mut left = MAX_HEAD_BYTES;
    // Interim answers (100 Continue) announce the real one.
    loop {
        let status_line = connection.line(left)?;
        left = left.saturating_sub(status_line.len() + 2);
        let mut words = status_line.splitn(3, ' ');
        let status = match (words.next(), words.next().map(str::parse::<u16>)) {
            (Some("HTTP/1.1" | "HTTP/1.0"), Some(Ok(status))) if (100..600).contains(&status) => {
                status
            }
            _ => {
                return Err(HttpError::Malformed(format!(
                    "it begins with {:?}",
                    status_line.chars().take(80).collect::<String>()
                )));
            }
        };
        let mut headers = vec![];
        loop {
            let line = connection.line(left)?;
            left = left.saturating_sub(line.len() + 2);
            if line.is_empty() {
                break;
            }
            let Some((name, value)) = line.split_once(':') else {
                return Err(HttpError::Malformed("a header has no colon".into()));
            };
            headers.push((name.trim().to_ascii_lowercase(), value.trim().to_owned()));
        }
        if status >= 200 || status == 101 {
            return Ok((status, headers));
        }
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers
        .iter()
        .find(|(found, _)| found == name)
        .map(|(_, value)| value.as_str())
}

fn framing(headers: &[(String, String)]) -> Result<Framing, HttpError> {
    if let Some(coding) = find(headers, "transfer-encoding") {
        return if coding.eq_ignore_ascii_case("chunked") {
            Ok(Framing::Chunked {
                left: 0,
                first: true,
            })
        } else {
            Err(HttpError::Malformed(format!(
                "the coding {coding:?} is not known"
            )))
        };
    }
    let mut lengths = headers
        .iter()
        .filter(|(name, _)| name == "content-length")
        .map(|(_, value)| value.parse::<u64>());
    match (lengths.next(), lengths.next()) {
        (None, _) => Ok(Framing::UntilClose),
        (Some(Ok(length)), None) => Ok(Framing::Length(length)),
        _ => Err(HttpError::Malformed("its length is not one number".into())),
    }
}

#[derive(Debug)]
enum Framing {
    Length(u64),
    Chunked { left: u64, first: bool },
    UntilClose,
    Ended,
}

/// The body of an answer.
#[derive(Debug)]
pub struct BodyReader {
    connection: Connection,
    framing: Framing,
}

impl BodyReader {
    /// Moves the moment at which reading fails with `TimedOut`.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.connection.set_deadline(deadline);
    }

    /// The raw connection of an upgraded request.
    pub fn into_connection(self) -> Connection {
        self.connection
    }

    /// Everything, or an error if it is more than `max_bytes`.
    pub fn read_all(&mut self, max_bytes: u64) -> Result<Vec<u8>, HttpError> {
        let mut bytes = vec![];
        self.by_ref()
            .take(max_bytes.saturating_add(1))
            .read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(HttpError::Malformed(format!(
                "it holds more than {max_bytes} bytes"
            )));
        }
        Ok(bytes)
    }

    fn next_chunk(&mut self, first: bool) -> io::Result<u64> {
        let wrong = |error: HttpError| match error {
            HttpError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        };
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        if !first && !self.connection.line(0).map_err(wrong)?.is_empty() {
            return Err(bad("a chunk is longer than it says"));
        }
        let line = self.connection.line(MAX_CHUNK_LINE_BYTES).map_err(wrong)?;
        let digits = line.split(';').next().unwrap_or("").trim();
        if digits.is_empty() || digits.len() > 15 || !digits.bytes().all(|b| b.is_ascii_hexdigit())
        {
            return Err(bad("a chunk's size is not a number"));
        }
        let size =
            u64::from_str_radix(digits, 16).map_err(|_| bad("a chunk's size is not a number"))?;
        if size == 0 {
            let mut left = MAX_TRAILER_BYTES;
            loop {
                let line = self.connection.line(left).map_err(wrong)?;
                if line.is_empty() {
                    break;
                }
                left = left.saturating_sub(line.len() + 2);
            }
        }
        Ok(size)
    }
}

impl Read for BodyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        if let Framing::Chunked { left: 0, first } = self.framing {
            self.framing = match self.next_chunk(first)? {
                0 => Framing::Ended,
                left => Framing::Chunked { left, first: false },
            };
        }
        let left = match self.framing {
            Framing::Ended | Framing::Length(0) => return Ok(0),
            Framing::UntilClose => return self.connection.read(buffer),
            Framing::Length(left) | Framing::Chunked { left, .. } => left,
        };
        let room = usize::try_from(left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let n = self.connection.read(&mut buffer[..room])?;
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the engine hung up in the middle of its answer",
            ));
        }
        match &mut self.framing {
            Framing::Length(left) | Framing::Chunked { left, .. } => *left -= n as u64,
            Framing::UntilClose | Framing::Ended => {}
        }
        Ok(n)
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
