//! What all requests share: the engine, the tokenizer, names.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use temper_checkpoint::{Adapter, ModelConfig, chat_template::ChatTemplate, tokenizer::Tokenizer};
use temper_model::{random::mix, sample::engine::Engine};

use super::{error::ApiError, parameters::Parameters};

/// A server's state.
pub struct Server {
    /// Draws the tokens.
    pub engine: Arc<Engine>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's configuration, which adapters must fit.
    pub config: ModelConfig,
    /// Conversations to text; absent where the model has none.
    pub template: Option<ChatTemplate>,
    /// The model's name in requests.
    pub name: String,
    /// What clients must send as bearer token.
    pub key: Option<String>,
    /// Adapters may be loaded from below this directory while the server runs.
    pub adapter_root: Option<PathBuf>,
    /// Where each loaded adapter came from.
    pub adapters: Mutex<BTreeMap<String, PathBuf>>,
    /// Seconds since 1970 at the start.
    pub started: u64,
    /// Requests by how they ended.
    pub counts: Counts,
    /// Set once the server is going down.
    pub stopping: AtomicBool,
    /// Seeds of requests that bring none, and ids.
    pub next: AtomicU64,
}

/// Requests that were answered, by status.
#[derive(Debug, Default)]
pub struct Counts {
    /// Served.
    pub ok: AtomicU64,
    /// Refused: the client's fault.
    pub refused: AtomicU64,
    /// Failed here.
    pub failed: AtomicU64,
}

impl Server {
    /// The adapter that a request's model names; none for the model itself.
    pub fn adapter(&self, parameters: &Parameters) -> Result<Option<String>, ApiError> {
        match parameters.model.as_deref() {
            None | Some("") => Ok(None),
            Some(name) if name == self.name => Ok(None),
            Some(name) if self.adapters().contains_key(name) => Ok(Some(name.to_owned())),
            Some(name) => Err(ApiError::unknown_model(name)),
        }
    }

    /// The adapters by name.
    pub fn adapters(&self) -> MutexGuard<'_, BTreeMap<String, PathBuf>> {
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that no other request of this server has.
    pub fn unique(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// An id of a response.
    pub fn response_id(&self, prefix: &str) -> String {
        format!("{prefix}-{:016x}", mix(self.started ^ mix(self.unique())))
    }

    /// The path that a client named, if it lies below the directory that adapters may come from.
    pub fn adapter_path(&self, asked: &str) -> Result<PathBuf, ApiError> {
        let Some(root) = &self.adapter_root else {
            return Err(ApiError {
                status: axum::http::StatusCode::FORBIDDEN,
                ..ApiError::bad_request(
                    "adapters cannot be loaded while the server runs: it was started without \
                     --lora-root",
                )
            });
        };
        let outside = || {
            ApiError::field(
                "lora_path",
                "lora_path must be a directory below the server's --lora-root",
            )
        };
        let root = root.canonicalize().map_err(|_| outside())?;
        let path = root
            .join(Path::new(asked))
            .canonicalize()
            .map_err(|_| outside())?;
        if !path.starts_with(&root) || !path.is_dir() {
            return Err(outside());
        }
        Ok(path)
    }
}

impl Server {
    /// Reads a PEFT folder and gives it to the engine under a name.
    pub fn load_adapter(&self, name: &str, path: &Path) -> Result<(), ApiError> {
        let weights = Adapter::read(path, &self.config)
            .map_err(|error| ApiError::field("lora_path", error.to_string()))?;
        self.engine
            .load_adapter(name, weights)
            .map_err(|error| super::generate::api_error(&error))?;
        self.adapters().insert(name.to_owned(), path.to_owned());
        Ok(())
    }
}
