//! Requests to a hub, and files that are checked as they come.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};

use sha1::Digest as _;
use temper_core::digest::Hasher;

use super::{HubError, HubOptions};
use crate::file::FileError;

/// A longer answer to a question is refused.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// How often a transfer that broke off is taken up again.
const ATTEMPTS: u32 = 5;

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    /// SHA-256 in 64 hexadecimal digits, or the Git blob id in 40.
    pub id: String,
    pub n_bytes: u64,
}

pub(super) struct Client {
    agent: ureq::Agent,
    token: Option<String>,
}

impl Client {
    pub fn new(options: &HubOptions) -> Self {
        let tls = ureq::tls::TlsConfig::builder()
            .root_certs(ureq::tls::RootCerts::PlatformVerifier)
            .build();
        let config = ureq::Agent::config_builder()
            .tls_config(tls)
            .proxy(match options.proxy_from_environment {
                true => ureq::Proxy::try_from_env(),
                false => None,
            })
            .redirect_auth_headers(ureq::config::RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(Duration::from_secs(60)))
            .user_agent(concat!("temper/", env!("CARGO_PKG_VERSION")))
            .build();
        Client {
            agent: config.new_agent(),
            token: options.token.clone(),
        }
    }

    /// The answer to a question.
    pub fn get_small(&self, url: &str) -> Result<Vec<u8>, HubError> {
        let mut response = self.request(url, None)?;
        response
            .body_mut()
            .with_config()
            .limit(MAX_ANSWER_BYTES)
            .read_to_vec()
            .map_err(|error| failed(url, &error))
    }

    /// Lays a file at `blob`, unless it is there. What came of an earlier attempt is continued;
    /// what has another hash does not stay.
    pub fn fetch(
        &self,
        url: &str,
        blob: &Path,
        expected: &Expected,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let on = |operation| FileError::on(operation, blob);
        let folder = blob.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder).map_err(FileError::on("make", folder))?;
        if blob.is_file() {
            on_progress(expected.n_bytes);
            return Ok(());
        }
        // Two processes that fetch the same file wait for one another.
        let lock = File::create(blob.with_extension("lock")).map_err(on("lock"))?;
        lock.lock().map_err(on("lock"))?;
        if blob.is_file() {
            on_progress(expected.n_bytes);
            return Ok(());
        }
        let partial = blob.with_extension("part");
        let mut attempt = 1;
        loop {
            match self.continue_file(url, &partial, expected, on_progress) {
                Ok(()) => break,
                Err(HubError::Request { status: None, .. }) if attempt < ATTEMPTS => {
                    std::thread::sleep(Duration::from_millis(500) * attempt);
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
        let got = identity(&partial, expected).map_err(FileError::on("read", &partial))?;
        if got != expected.id {
            fs::remove_file(&partial).map_err(FileError::on("remove", &partial))?;
            return Err(HubError::WrongContent {
                file: url.to_owned(),
                expected: expected.id.clone(),
                got,
            });
        }
        fs::rename(&partial, blob).map_err(on("write"))?;
        Ok(())
    }

    /// Appends what is missing of a file.
    fn continue_file(
        &self,
        url: &str,
        partial: &Path,
        expected: &Expected,
        on_progress: &mut dyn FnMut(u64),
    ) -> Result<(), HubError> {
        let on = |operation| FileError::on(operation, partial);
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(partial)
            .map_err(on("write"))?;
        let mut n_done = file.metadata().map_err(on("read"))?.len();
        if n_done > expected.n_bytes {
            file.set_len(0).map_err(on("write"))?;
            n_done = 0;
        }
        if n_done == expected.n_bytes {
            return Ok(());
        }
        let mut response = self.request(url, Some(n_done))?;
        if n_done > 0 && response.status() != 206 {
            file.set_len(0).map_err(on("write"))?;
            n_done = 0;
        }
        let left = expected.n_bytes - n_done;
        let mut body = response.body_mut().with_config().limit(left + 1).reader();
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => n,
                Err(error) => return Err(failed(url, &ureq::Error::from(error))),
            };
            n_done += n as u64;
            if n_done > expected.n_bytes {
                // Whatever it is, it is not the file.
                file.set_len(0).map_err(on("write"))?;
                return Err(HubError::WrongContent {
                    file: url.to_owned(),
                    expected: format!("{} bytes", expected.n_bytes),
                    got: "more".into(),
                });
            }
            file.write_all(&buffer[..n]).map_err(on("write"))?;
            on_progress(n_done);
        }
        file.sync_all().map_err(on("write"))?;
        if n_done < expected.n_bytes {
            return Err(HubError::Request {
                url: url.to_owned(),
                reason: format!("it ended after {n_done} of {} bytes", expected.n_bytes),
                status: None,
            });
        }
        Ok(())
    }

    fn request(
        &self,
        url: &str,
        from: Option<u64>,
    ) -> Result<ureq::http::Response<ureq::Body>, HubError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(from) = from.filter(|from| *from > 0) {
            request = request.header("Range", format!("bytes={from}-"));
        }
        request.call().map_err(|error| failed(url, &error))
    }
}

fn failed(url: &str, error: &ureq::Error) -> HubError {
    HubError::Request {
        url: url.to_owned(),
        reason: error.to_string(),
        status: match error {
            ureq::Error::StatusCode(status) => Some(*status),
            _ => None,
        },
    }
}

/// The hash of a file, of the kind that is expected.
fn identity(path: &Path, expected: &Expected) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 18];
    if expected.id.len() == 64 {
        let mut hasher = Hasher::default();
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.finish().as_str().to_owned()),
                n => hasher.update(&buffer[..n]),
            }
        }
    }
    let mut hasher = sha1::Sha1::new();
    hasher.update(format!("blob {}\0", expected.n_bytes));
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}
