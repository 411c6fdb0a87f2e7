//! Files of a Python package index, named by project, file name and SHA-256.
//!
//! Local directories are looked at first, then the cache, then the index by its simple API (JSON
//! as in PEP 691, else HTML as in PEP 503). No file is used, or even kept, before its hash is the
//! one asked for; so neither a directory nor an index nor a mirror has to be trusted.
//!
//! This is not an installer: no dependency is resolved and no version is chosen.

mod simple;

use std::{
    fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use temper_core::{Digest, digest::Hasher, task::Archive};

use crate::cache::{Cache, CacheError};

/// Where files may come from.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// Directories that hold files by their names; tried first, in order.
    pub directories: Vec<PathBuf>,
    /// The index, such as `https://pypi.org/simple`. `None` works offline.
    pub index: Option<String>,
    /// How the index is reached.
    pub proxy: ProxyChoice,
    /// Wall-clock limit of one request, its body included.
    pub timeout: Duration,
    /// How often a request is tried.
    pub attempts: u32,
    /// The wait after the first failed attempt; it doubles with each further one.
    pub backoff: Duration,
    /// A larger file is refused.
    pub max_file_bytes: u64,
}

impl Default for FetchOptions {
    /// Offline, without directories.
    fn default() -> Self {
        FetchOptions {
            directories: Vec::new(),
            index: None,
            proxy: ProxyChoice::FromEnvironment,
            timeout: Duration::from_secs(180),
            attempts: 3,
            backoff: Duration::from_millis(500),
            max_file_bytes: 512 << 20,
        }
    }
}

/// Which proxy requests go through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyChoice {
    /// The one that `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` name. Choosing this is asking for
    /// the environment to be read.
    FromEnvironment,
    /// None.
    Direct,
    /// This one.
    Url(String),
}

/// A file that an index lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexFile {
    /// Its name.
    pub file_name: String,
    /// Its SHA-256, where the index says it.
    pub sha256: Option<Digest>,
}

/// Fetches files.
#[derive(Clone, Debug)]
pub struct Fetcher {
    options: FetchOptions,
    cache: Cache,
    agent: Option<ureq::Agent>,
}

/// Why a file could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The name could leave a directory or is otherwise none a package index gives.
    #[error("fetch {file_name:?}: it is not a plain file name")]
    BadName {
        /// The name.
        file_name: String,
    },
    /// The configured proxy is not one.
    #[error("use the proxy: {0}")]
    Proxy(String),
    /// It is not here, and the index may not be asked.
    #[error("fetch {file_name} offline: it is neither in the cache{}", in_directories(.directories))]
    Offline {
        /// The file.
        file_name: String,
        /// Directories that were looked at.
        directories: Vec<PathBuf>,
    },
    /// The project's page does not list the file.
    #[error(
        "fetch {file_name}: the index {index} lists {n_files} files for {project}, but not this one"
    )]
    NotListed {
        /// The file.
        file_name: String,
        /// The project.
        project: String,
        /// The index, without credentials.
        index: String,
        /// How many files it lists.
        n_files: usize,
    },
    /// The index gives another hash, or the content has another.
    #[error("fetch {file_name} from {from}: expected SHA-256 {expected}, got {got}")]
    WrongHash {
        /// The file.
        file_name: String,
        /// A URL without credentials, or a path.
        from: String,
        /// What the task asks for.
        expected: Digest,
        /// What it is.
        got: Digest,
    },
    /// The request failed, as often as it was tried.
    #[error("get {url} ({attempts} attempts): {reason}")]
    Request {
        /// Without credentials.
        url: String,
        /// How often it was tried.
        attempts: u32,
        /// The last reason.
        reason: String,
    },
    /// The answer is no page of a package index.
    #[error("read {url}: {reason}")]
    Page {
        /// Without credentials.
        url: String,
        /// Why.
        reason: String,
    },
    /// The cache or a local directory cannot be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// A local file cannot be read, or the download not be written.
    #[error("{operation} {}: {source}", .path.display())]
    Io {
        /// `read`, `write`.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl FetchError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            FetchError::Offline { file_name, .. } => Some(format!(
                "put {file_name} into the directory given for offline use, or allow the package index"
            )),
            FetchError::Request { .. } => Some(
                "check the network and the proxy, set the index that pip uses, or download the files elsewhere and use them offline".to_owned(),
            ),
            FetchError::NotListed { .. } => Some(
                "the index may be a partial mirror; use a full one such as https://pypi.org/simple".to_owned(),
            ),
            _ => None,
        }
    }
}

fn in_directories(directories: &[PathBuf]) -> String {
    let mut text = String::new();
    for directory in directories {
        text.push_str(&format!(" nor in {}", directory.display()));
    }
    if text.is_empty() {
        text.push_str(" nor in any local directory");
    }
    text
}

impl Fetcher {
    /// Checks the options and prepares a client. Nothing is requested yet.
    pub fn new(cache: Cache, options: FetchOptions) -> Result<Self, FetchError> {
        let agent = match options.index {
            Some(_) => Some(agent(&options)?),
            None => None,
        };
        Ok(Fetcher {
            options,
            cache,
            agent,
        })
    }

    /// The same fetcher, looking into one more directory before the others.
    pub fn with_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.options.directories.insert(0, directory.into());
        self
    }

    /// Where files come from.
    pub fn options(&self) -> &FetchOptions {
        &self.options
    }

    /// The files that the index lists for a project, in the index's order. Offline there are none.
    pub fn list(&self, project: &str) -> Result<Vec<IndexFile>, FetchError> {
        if !is_plain(project) {
            return Err(FetchError::BadName {
                file_name: project.to_owned(),
            });
        }
        let (Some(agent), Some(index)) = (&self.agent, &self.options.index) else {
            return Ok(Vec::new());
        };
        let (_, files) = self.page(agent, index, project)?;
        Ok(files
            .into_iter()
            .map(|file| IndexFile {
                file_name: file.file_name,
                sha256: file.sha256,
            })
            .collect())
    }

    /// The path of the file, its hash verified. It must not be changed.
    pub fn fetch(&self, archive: &Archive) -> Result<PathBuf, FetchError> {
        self.fetch_with(archive, &mut |_, _| {})
    }

    /// As [`Fetcher::fetch`]. During a download, `on_progress` gets the bytes received and, where
    /// the index says it, how many there are; an attempt that is begun anew counts from zero.
    pub fn fetch_with(
        &self,
        archive: &Archive,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<PathBuf, FetchError> {
        let name = &archive.file_name;
        if !is_plain(name) || !is_plain(&archive.project) {
            return Err(FetchError::BadName {
                file_name: name.clone(),
            });
        }
        for directory in &self.options.directories {
            let path = directory.join(name);
            // A file of that name with another content is no harm: the next place may have it.
            if path.is_file() && self.hash_file(&path)? == archive.sha256 {
                return Ok(path);
            }
        }
        let content = self
            .cache
            .entry::<FetchError>("files", &archive.sha256, |content| {
                self.download(archive, &content.join(name), on_progress)
            })?;
        let path = content.join(name);
        if path.is_file() {
            return Ok(path);
        }
        // The same content is cached under another name. The name matters (a wheel's says what it
        // is), so it gets a second one.
        let other = fs::read_dir(&content)
            .and_then(|mut items| items.next().ok_or(io::ErrorKind::NotFound)?)
            .map(|item| item.path())
            .map_err(io_failed("read", &content))?;
        match fs::hard_link(&other, &path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(io_failed("write", &path)(error))
            }
            _ => Ok(path),
        }
    }

    fn download(
        &self,
        archive: &Archive,
        to: &Path,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<(), FetchError> {
        let (Some(agent), Some(index)) = (&self.agent, &self.options.index) else {
            return Err(FetchError::Offline {
                file_name: archive.file_name.clone(),
                directories: self.options.directories.clone(),
            });
        };
        let (base, files) = self.page(agent, index, &archive.project)?;
        let Some(listed) = files
            .iter()
            .find(|file| file.file_name == archive.file_name)
        else {
            return Err(FetchError::NotListed {
                file_name: archive.file_name.clone(),
                project: archive.project.clone(),
                index: redact(index),
                n_files: files.len(),
            });
        };
        let wrong_hash = |from: &str, got: Digest| FetchError::WrongHash {
            file_name: archive.file_name.clone(),
            from: redact(from),
            expected: archive.sha256.clone(),
            got,
        };
        if let Some(got) = listed.sha256.clone().filter(|got| *got != archive.sha256) {
            return Err(wrong_hash(&base, got));
        }
        let url = simple::join_url(&base, &listed.url).ok_or_else(|| FetchError::Page {
            url: redact(&base),
            reason: format!("it gives no usable address for {}", archive.file_name),
        })?;
        let got = self.with_retries(&url, || self.get_file(agent, &url, to, on_progress))?;
        if got != archive.sha256 {
            return Err(wrong_hash(&url, got));
        }
        Ok(())
    }

    /// The final URL of a project's page after redirects, and the files that it lists.
    fn page(
        &self,
        agent: &ureq::Agent,
        index: &str,
        project: &str,
    ) -> Result<(String, Vec<simple::ListedFile>), FetchError> {
        let url = format!(
            "{}/{}/",
            index.trim_end_matches('/'),
            simple::normalize_project(project)
        );
        let (base, kind, page) = self.get_page(agent, &url)?;
        let files = simple::parse(&kind, &page).map_err(|reason| FetchError::Page {
            url: redact(&url),
            reason,
        })?;
        Ok((base, files))
    }

    /// The final URL after redirects, the content type and the body.
    fn get_page(
        &self,
        agent: &ureq::Agent,
        url: &str,
    ) -> Result<(String, String, Vec<u8>), FetchError> {
        self.with_retries(url, || {
            let mut response = agent
                .get(url)
                .header("Accept", simple::ACCEPT)
                .call()
                .map_err(Attempt::from)?;
            let base = ureq::ResponseExt::get_uri(&response).to_string();
            let kind = response.body().mime_type().unwrap_or_default().to_owned();
            let page = response
                .body_mut()
                .with_config()
                .limit(simple::MAX_PAGE_BYTES)
                .read_to_vec()
                .map_err(Attempt::from)?;
            Ok((base, kind, page))
        })
    }

    fn get_file(
        &self,
        agent: &ureq::Agent,
        url: &str,
        to: &Path,
        on_progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Result<Digest, Attempt> {
        let mut response = agent.get(url).call()?;
        let n_bytes = response.body().content_length();
        let mut n_received = 0;
        let mut body = response
            .body_mut()
            .with_config()
            .limit(self.options.max_file_bytes)
            .reader();
        let mut file = fs::File::create(to).map_err(|error| Attempt::local(to, error))?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 64 << 10];
        loop {
            let n = body
                .read(&mut buffer)
                .map_err(|error| Attempt::from(ureq::Error::from(error)))?;
            if n == 0 {
                return Ok(hasher.finish());
            }
            hasher.update(&buffer[..n]);
            file.write_all(&buffer[..n])
                .map_err(|error| Attempt::local(to, error))?;
            n_received += n as u64;
            on_progress(n_received, n_bytes);
        }
    }

    fn with_retries<T>(
        &self,
        url: &str,
        mut attempt: impl FnMut() -> Result<T, Attempt>,
    ) -> Result<T, FetchError> {
        let mut wait = self.options.backoff;
        let mut n = 1;
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(Attempt::Local(error)) => return Err(error),
                Err(Attempt::Remote { reason, transient }) => {
                    if !transient || n >= self.options.attempts {
                        return Err(FetchError::Request {
                            url: redact(url),
                            attempts: n,
                            reason,
                        });
                    }
                }
            }
            std::thread::sleep(wait);
            wait = wait.saturating_mul(2);
            n += 1;
        }
    }

    fn hash_file(&self, path: &Path) -> Result<Digest, FetchError> {
        let failed = io_failed("read", path);
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 64 << 10];
        let mut file = match fs::File::open(path) {
            Ok(file) => file.take(self.options.max_file_bytes),
            Err(error) => return Err(failed(error)),
        };
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(n) => hasher.update(&buffer[..n]),
                Err(error) => return Err(failed(error)),
            }
        }
    }
}

/// Why one attempt failed, and whether another may succeed.
enum Attempt {
    Remote { reason: String, transient: bool },
    Local(FetchError),
}

impl Attempt {
    fn local(path: &Path, error: io::Error) -> Self {
        Attempt::Local(io_failed("write", path)(error))
    }
}

impl From<ureq::Error> for Attempt {
    fn from(error: ureq::Error) -> Self {
        let transient = match &error {
            ureq::Error::StatusCode(code) => *code >= 500 || *code == 429 || *code == 408,
            ureq::Error::Io(_)
            | ureq::Error::Timeout(_)
            | ureq::Error::HostNotFound
            | ureq::Error::ConnectionFailed
            | ureq::Error::Protocol(_) => true,
            _ => false,
        };
        Attempt::Remote {
            reason: error.to_string(),
            transient,
        }
    }
}

fn agent(options: &FetchOptions) -> Result<ureq::Agent, FetchError> {
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::PlatformVerifier)
        .build();
    let proxy = match &options.proxy {
        ProxyChoice::FromEnvironment => ureq::Proxy::try_from_env(),
        ProxyChoice::Direct => None,
        ProxyChoice::Url(url) => {
            Some(ureq::Proxy::new(url).map_err(|error| FetchError::Proxy(error.to_string()))?)
        }
    };
    let config = ureq::Agent::config_builder()
        .tls_config(tls)
        .proxy(proxy)
        .timeout_global(Some(options.timeout))
        .timeout_connect(Some(options.timeout.min(Duration::from_secs(30))))
        .user_agent(concat!("temper/", env!("CARGO_PKG_VERSION")))
        .build();
    Ok(config.new_agent())
}

/// Whether a name is one component that no shell, URL or file system gives another meaning.
pub(crate) fn is_plain(name: &str) -> bool {
    (1..=200).contains(&name.len())
        && !name.starts_with(['.', '-'])
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-+!".contains(&byte))
}

/// The URL without user name and password.
fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

fn io_failed(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> FetchError {
    let path = path.to_owned();
    move |source| FetchError::Io {
        operation,
        path: path.clone(),
        source,
    }
}

#[cfg(test)]
mod tests;
