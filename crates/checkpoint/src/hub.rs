//! Models from a Hugging Face hub, by name and pinned revision.
//!
//! The cache has the layout of `hf-hub` and `huggingface_hub`, whose names and addresses come from
//! that crate. Transfers are made here: every file is checked against the hash that the hub's
//! listing gives for it, only known file names are written, and names from response headers are
//! not believed. A revision is asked for once and resolved to a commit; all files are of that
//! commit. Nothing is asked when everything is there already.

#[cfg(test)]
mod tests;
mod transfer;

use std::{
    collections::BTreeSet,
    fmt, fs,
    path::{Path, PathBuf},
    str::FromStr,
};

use hf_hub::{Cache, Repo, RepoType};
use serde::Deserialize;

use crate::{
    file::{FileError, read_small},
    safetensors::{INDEX_NAME, SINGLE_NAME},
};
use transfer::{Client, Expected};

/// A model on a hub: `org/name`, `org/name@revision`, `org/name@revision:file.gguf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubName {
    /// `org/name`.
    pub repository: String,
    /// A branch, tag or commit.
    pub revision: String,
    /// The one GGUF file that is wanted.
    pub file: Option<String>,
}

/// The text names no model on a hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "read the model name {0:?}: expected org/name, org/name@revision or org/name@revision:file.gguf"
)]
pub struct BadHubName(pub String);

/// How the hub is reached.
#[derive(Clone)]
pub struct HubOptions {
    /// Where models are kept.
    pub cache: PathBuf,
    /// The hub, such as `https://huggingface.co`. `None` works offline.
    pub endpoint: Option<String>,
    /// What authorises to get gated and private models.
    pub token: Option<String>,
    /// Whether requests go through the proxy that `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` name.
    /// Choosing this is asking for the environment to be read.
    pub proxy_from_environment: bool,
    /// A larger model is refused.
    pub max_bytes: u64,
    /// Leave the safetensors where they are: configuration, index, tokenizer and template are
    /// enough. A GGUF file holds all of these and is fetched whole. What was fetched so does not
    /// count as the model.
    pub without_weights: bool,
}

/// Without the token.
impl fmt::Debug for HubOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HubOptions")
            .field("cache", &self.cache)
            .field("endpoint", &self.endpoint)
            .field("has_token", &self.token.is_some())
            .field("max_bytes", &self.max_bytes)
            .field("without_weights", &self.without_weights)
            .finish_non_exhaustive()
    }
}

/// What happens during a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HubEvent<'a> {
    /// The revision stands for this commit, of which these files are needed.
    Resolved {
        /// The commit.
        commit: &'a str,
        /// Number of files.
        n_files: usize,
        /// Bytes of all.
        n_bytes: u64,
    },
    /// A file is on its way, or was there already.
    File {
        /// Its name.
        name: &'a str,
        /// Bytes that are here.
        n_done: u64,
        /// Bytes in all.
        n_bytes: u64,
    },
}

/// Where a model lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The folder, or the GGUF file.
    pub path: PathBuf,
    /// The commit that the revision stood for.
    pub commit: String,
}

/// Why a model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// It is not here, and the hub may not be asked.
    #[error("fetch {name} offline: it is not in {}", .cache.display())]
    Offline {
        /// The model.
        name: String,
        /// Where it was looked for.
        cache: PathBuf,
    },
    /// The hub refuses or cannot be reached.
    #[error("get {url}: {reason}")]
    Request {
        /// The address.
        url: String,
        /// Why.
        reason: String,
        /// The status, where there was an answer.
        status: Option<u16>,
    },
    /// The hub's answer cannot be used.
    #[error("read the listing of {name}: {reason}")]
    Listing {
        /// The model.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A file is not the one that was listed.
    #[error("fetch {file}: expected {expected}, got {got}")]
    WrongContent {
        /// The file.
        file: String,
        /// Hash or length as listed.
        expected: String,
        /// As it came.
        got: String,
    },
    /// It has none of the files that are needed.
    #[error("fetch {name}: {reason}")]
    NoModel {
        /// The model.
        name: String,
        /// What was looked for.
        reason: String,
    },
    /// The cache cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

impl HubError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            HubError::Offline { .. } => Some(
                "fetch it while there is a network, or name a local folder or GGUF file".to_owned(),
            ),
            HubError::Request {
                status: Some(401 | 403),
                ..
            } => Some(
                "the model may be gated or private: set HF_TOKEN to a token that may read it"
                    .to_owned(),
            ),
            HubError::Request {
                status: Some(404), ..
            } => Some("check the name and the revision".to_owned()),
            HubError::Request { .. } => Some(
                "check the network and the proxy, or name a mirror with HF_ENDPOINT".to_owned(),
            ),
            HubError::WrongContent { .. } => Some("fetch it again".to_owned()),
            _ => None,
        }
    }
}

impl fmt::Display for HubName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repository, self.revision)?;
        match &self.file {
            Some(file) => write!(f, ":{file}"),
            None => Ok(()),
        }
    }
}

impl FromStr for HubName {
    type Err = BadHubName;

    fn from_str(text: &str) -> Result<Self, BadHubName> {
        let parse = || {
            let (text, file) = match text.split_once(':') {
                Some((text, file)) => (text, Some(file)),
                None => (text, None),
            };
            let (repository, revision) = text.split_once('@').unwrap_or((text, "main"));
            let (org, name) = repository.split_once('/')?;
            let fits = is_name(org)
                && is_name(name)
                && revision.split('/').all(is_name)
                && revision.len() <= 200
                && file.is_none_or(|file| file.ends_with(".gguf") && is_name(file));
            fits.then(|| HubName {
                repository: repository.to_owned(),
                revision: revision.to_owned(),
                file: file.map(str::to_owned),
            })
        };
        parse().ok_or_else(|| BadHubName(text.to_owned()))
    }
}

/// One component of a path that no file system or address gives another meaning.
fn is_name(text: &str) -> bool {
    (1..=96).contains(&text.len())
        && !text.starts_with(['.', '-'])
        && !text.contains("--")
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte))
}

/// Where a model lies that was fetched whole before; `None` when it was not.
pub fn find(name: &HubName, cache: &Path) -> Option<Snapshot> {
    let repository = Place::new(name, cache);
    let commit = read_small(&repository.marker(), 100).ok()?;
    let commit = String::from_utf8(commit).ok()?.trim().to_owned();
    is_commit(&commit).then(|| repository.snapshot(&commit, name))?
}

/// The model, from the cache or the hub. With a hub, a revision that is no commit is resolved anew,
/// so that a branch may move; offline it stands for what it stood for last.
pub fn fetch(
    name: &HubName,
    options: &HubOptions,
    mut on_event: impl FnMut(HubEvent<'_>),
) -> Result<Snapshot, HubError> {
    let found = find(name, &options.cache);
    let Some(endpoint) = &options.endpoint else {
        return found.ok_or_else(|| HubError::Offline {
            name: name.to_string(),
            cache: options.cache.clone(),
        });
    };
    if let Some(found) = found
        && found.commit == name.revision
    {
        return Ok(found);
    }
    let place = Place::new(name, &options.cache);
    let client = Client::new(options);
    let listing = listing(name, endpoint, &place, &client)?;
    let at_commit = Repo::with_revision(
        name.repository.clone(),
        RepoType::Model,
        listing.sha.clone(),
    );
    let address = |file: &str| {
        format!(
            "{}/{}/resolve/{}/{file}",
            endpoint.trim_end_matches('/'),
            at_commit.url(),
            at_commit.url_revision()
        )
    };
    let get = |sibling: &Sibling, on_event: &mut dyn FnMut(HubEvent<'_>)| {
        let expected = sibling.expected(name)?;
        let blob = place.repository().blob_path(&expected.id);
        client.fetch(
            &address(&sibling.rfilename),
            &blob,
            &expected,
            &mut |n_done| {
                on_event(HubEvent::File {
                    name: &sibling.rfilename,
                    n_done,
                    n_bytes: expected.n_bytes,
                });
            },
        )?;
        place.link(&listing.sha, &sibling.rfilename, &blob)
    };
    let mut wanted = wanted_files(name, &listing, |sibling| {
        get(sibling, &mut |_| {})?;
        Ok(place
            .repository()
            .pointer_path(&listing.sha)
            .join(&sibling.rfilename))
    })?;
    if options.without_weights {
        wanted.retain(|sibling| !sibling.rfilename.ends_with(".safetensors"));
    }
    let mut n_bytes = 0u64;
    for sibling in &wanted {
        n_bytes = n_bytes.saturating_add(sibling.expected(name)?.n_bytes);
    }
    if n_bytes > options.max_bytes {
        return Err(HubError::NoModel {
            name: name.to_string(),
            reason: format!(
                "it has {n_bytes} bytes, and {} are allowed",
                options.max_bytes
            ),
        });
    }
    on_event(HubEvent::Resolved {
        commit: &listing.sha,
        n_files: wanted.len(),
        n_bytes,
    });
    for sibling in &wanted {
        get(sibling, &mut on_event)?;
    }
    let is_whole = !options.without_weights || wanted.iter().all(|one| is_gguf(one));
    if is_whole {
        // Readers believe in what this names, so it is written last.
        place.write_marker(&listing.sha)?;
    }
    place
        .snapshot(&listing.sha, name)
        .ok_or_else(|| HubError::NoModel {
            name: name.to_string(),
            reason: "the files are gone from the cache again".into(),
        })
}

/// The hub's description of a commit.
#[derive(Debug, Deserialize)]
struct Listing {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Debug, Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Debug, Deserialize)]
struct Lfs {
    sha256: String,
    size: u64,
}

impl Sibling {
    fn expected(&self, name: &HubName) -> Result<Expected, HubError> {
        let is_hex =
            |text: &str, len| text.len() == len && text.bytes().all(|b| b.is_ascii_hexdigit());
        let expected = match (&self.lfs, &self.blob_id, self.size) {
            (Some(lfs), _, _) if is_hex(&lfs.sha256, 64) => Some(Expected {
                id: lfs.sha256.to_ascii_lowercase(),
                n_bytes: lfs.size,
            }),
            (None, Some(id), Some(n_bytes)) if is_hex(id, 40) => Some(Expected {
                id: id.to_ascii_lowercase(),
                n_bytes,
            }),
            _ => None,
        };
        expected.ok_or_else(|| HubError::Listing {
            name: name.to_string(),
            reason: format!("it gives no hash and size for {:?}", self.rfilename),
        })
    }
}

fn listing(
    name: &HubName,
    endpoint: &str,
    place: &Place,
    client: &Client,
) -> Result<Listing, HubError> {
    let url = format!(
        "{}/api/{}?blobs=true",
        endpoint.trim_end_matches('/'),
        place.repo.api_url()
    );
    let wrong = |reason: String| HubError::Listing {
        name: name.to_string(),
        reason,
    };
    let listing: Listing = serde_json::from_slice(&client.get_small(&url)?)
        .map_err(|error| wrong(error.to_string()))?;
    if !is_commit(&listing.sha) {
        return Err(wrong(format!("{:?} is no commit", listing.sha)));
    }
    Ok(listing)
}

/// The files of a listing that a model needs. `read` fetches the index, which names the shards.
fn wanted_files<'a>(
    name: &HubName,
    listing: &'a Listing,
    read: impl FnOnce(&Sibling) -> Result<PathBuf, HubError>,
) -> Result<Vec<&'a Sibling>, HubError> {
    let sibling = |file: &str| listing.siblings.iter().find(|one| one.rfilename == file);
    let no_model = |reason: &str| HubError::NoModel {
        name: name.to_string(),
        reason: reason.to_owned(),
    };
    let ggufs: Vec<&Sibling> = listing
        .siblings
        .iter()
        .filter(|one| is_gguf(one) && is_name(&one.rfilename))
        .collect();
    if let Some(file) = &name.file {
        let file = sibling(file).ok_or_else(|| no_model("it has no such file"))?;
        return Ok(vec![file]);
    }
    let mut wanted: BTreeSet<String> = BTreeSet::new();
    if let Some(index) = sibling(INDEX_NAME) {
        #[derive(Deserialize)]
        struct Index {
            weight_map: std::collections::BTreeMap<String, String>,
        }
        let path = read(index)?;
        let bytes = read_small(&path, 32 << 20)?;
        let index: Index = serde_json::from_slice(&bytes)
            .map_err(|error| no_model(&format!("its index is malformed: {error}")))?;
        wanted.insert(INDEX_NAME.to_owned());
        wanted.extend(index.weight_map.into_values());
    } else if sibling(SINGLE_NAME).is_some() {
        wanted.insert(SINGLE_NAME.to_owned());
    } else {
        return match ggufs.as_slice() {
            [file] => Ok(vec![file]),
            [] => Err(no_model("it has neither safetensors nor a GGUF file")),
            _ => Err(no_model(
                "it has several GGUF files; name one as org/name:FILE.gguf",
            )),
        };
    }
    wanted.insert("config.json".to_owned());
    for file in [
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
        "chat_template.json",
    ] {
        if sibling(file).is_some() {
            wanted.insert(file.to_owned());
        }
    }
    wanted
        .iter()
        .map(|file| {
            sibling(file)
                .filter(|_| is_name(file))
                .ok_or_else(|| no_model(&format!("it has no file {file:?}")))
        })
        .collect()
}

fn is_gguf(sibling: &Sibling) -> bool {
    sibling.rfilename.ends_with(".gguf")
}

/// A repository in the cache.
struct Place {
    cache: Cache,
    root: PathBuf,
    repo: Repo,
    file: Option<String>,
}

impl Place {
    fn new(name: &HubName, cache: &Path) -> Self {
        let repo = Repo::with_revision(
            name.repository.clone(),
            RepoType::Model,
            name.revision.clone(),
        );
        Place {
            cache: Cache::new(cache.to_owned()),
            root: cache.join(repo.folder_name()),
            repo,
            file: name.file.clone(),
        }
    }

    fn repository(&self) -> hf_hub::CacheRepo {
        self.cache.repo(self.repo.clone())
    }

    /// Names the commit of a revision whose files are all here. (`refs`, which other programs
    /// write, says nothing about that.)
    fn marker(&self) -> PathBuf {
        let mut name = self.repo.url_revision();
        if let Some(file) = &self.file {
            // One file of a repository is not the whole.
            name = format!("{name}:{file}");
        }
        self.root.join("complete").join(name)
    }

    fn write_marker(&self, commit: &str) -> Result<(), FileError> {
        let marker = self.marker();
        let folder = self.root.join("complete");
        let write = || {
            fs::create_dir_all(&folder)?;
            let temporary = tempfile::NamedTempFile::new_in(&folder)?;
            fs::write(temporary.path(), commit)?;
            temporary.as_file().sync_all()?;
            temporary.persist(&marker)?;
            Ok(())
        };
        write().map_err(FileError::on("write", &marker))
    }

    fn snapshot(&self, commit: &str, name: &HubName) -> Option<Snapshot> {
        let folder = self.repository().pointer_path(commit);
        let path = match &name.file {
            Some(file) => folder.join(file),
            None => folder,
        };
        path.exists().then(|| Snapshot {
            path,
            commit: commit.to_owned(),
        })
    }

    fn link(&self, commit: &str, file: &str, blob: &Path) -> Result<(), HubError> {
        let folder = self.repository().pointer_path(commit);
        let path = folder.join(file);
        let link = || {
            fs::create_dir_all(&folder)?;
            if path.exists() {
                return Ok(());
            }
            // A link to nothing may be left from a blob that was removed.
            let _ = fs::remove_file(&path);
            let relative = Path::new("../../blobs").join(blob.file_name().unwrap_or_default());
            #[cfg(unix)]
            return std::os::unix::fs::symlink(&relative, &path);
            #[cfg(not(unix))]
            return fs::copy(blob, &path).map(|_| ());
        };
        link().map_err(FileError::on("write", &path))?;
        Ok(())
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
