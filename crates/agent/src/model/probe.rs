//! What a server offers, asked before any trial: for `temper doctor`, and to find the model's name
//! where the user gave only an address.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::{
    ModelError, ModelErrorClass,
    openai::http::Transport,
    retry::{Failed, SystemClock},
    secret::Secret,
    spec::Endpoint,
};

/// A list of models beyond this is refused.
const LONGEST_LIST: u64 = 8 * 1024 * 1024;

/// So is an answer to the question for a release.
const LONGEST_VERSION: u64 = 64 * 1024;

/// A model that a server offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// The name to ask for it.
    pub name: String,
    /// The longest context it serves, in tokens, where the server says so.
    pub context_tokens: Option<u64>,
}

/// What a server answered.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The server.
    pub endpoint: Endpoint,
    /// How long the answer took.
    pub seconds: f64,
    /// The models, or why there is no list.
    pub models: Result<Vec<ListedModel>, ModelError>,
}

impl Probe {
    /// Whether anything answered, be it with a refusal.
    pub fn is_reachable(&self) -> bool {
        match &self.models {
            Ok(_) => true,
            Err(error) => error.class != ModelErrorClass::Connection,
        }
    }
}

/// Asks once which models a server offers.
pub fn probe(endpoint: &Endpoint, key: Option<&Secret>, timeout: Duration) -> Probe {
    let started = Instant::now();
    let models = list_models(endpoint, key, timeout);
    Probe {
        endpoint: endpoint.clone(),
        seconds: started.elapsed().as_secs_f64(),
        models,
    }
}

/// The models a server offers, by `GET /models`.
pub fn list_models(
    endpoint: &Endpoint,
    key: Option<&Secret>,
    timeout: Duration,
) -> Result<Vec<ListedModel>, ModelError> {
    let transport = Transport::new(endpoint.clone(), key.cloned(), timeout, LONGEST_LIST, None);
    let fail = |failed: Failed| ModelError {
        class: failed.class,
        message: format!("{} at {}", failed.message, transport.endpoint()),
        attempts: Vec::new(),
    };
    let invalid = |message: String| ModelError {
        class: ModelErrorClass::InvalidResponse,
        message: format!("{message} at {}", transport.endpoint()),
        attempts: Vec::new(),
    };
    let until = Instant::now() + timeout;
    let answer = transport
        .get("models", timeout, &SystemClock)
        .map_err(fail)?;
    let bytes = answer.read_all(&transport, until).map_err(fail)?;
    let value: Value = serde_json::from_slice(&bytes)
        .map_err(|error| invalid(format!("the list of models is not JSON ({error})")))?;
    let list = value
        .get("data")
        .unwrap_or(&value)
        .as_array()
        .ok_or_else(|| invalid("the answer holds no list of models".into()))?;
    Ok(list.iter().filter_map(read_model).collect())
}

/// The release that a server says it is, by `GET /version` beside its interface, as vLLM and Temper
/// have it; `None` where it does not tell.
pub fn server_version(
    endpoint: &Endpoint,
    key: Option<&Secret>,
    timeout: Duration,
) -> Option<String> {
    let transport = Transport::new(
        endpoint.root(),
        key.cloned(),
        timeout,
        LONGEST_VERSION,
        None,
    );
    let until = Instant::now() + timeout;
    let answer = transport.get("version", timeout, &SystemClock).ok()?;
    let bytes = answer.read_all(&transport, until).ok()?;
    let value: Value = serde_json::from_slice(&bytes).ok()?;
    let version = value.get("version")?.as_str()?;
    let is_plain = |c: char| c.is_ascii_graphic();
    (version.len() <= 100 && version.chars().all(is_plain)).then(|| version.to_owned())
}

/// The model of a server that offers exactly one.
pub fn only_model(models: &[ListedModel]) -> Result<&ListedModel, ModelError> {
    let problem = match models {
        [only] => return Ok(only),
        [] => "the server offers no model".to_owned(),
        several => {
            let names: Vec<&str> = several.iter().take(10).map(|m| m.name.as_str()).collect();
            format!(
                "the server offers {} models and none is named; add #NAME to the address, with one \
                 of: {}",
                several.len(),
                names.join(", ")
            )
        }
    };
    Err(ModelError {
        class: ModelErrorClass::ModelNotFound,
        message: problem,
        attempts: Vec::new(),
    })
}

fn read_model(value: &Value) -> Option<ListedModel> {
    let name = value.get("id").or_else(|| value.get("name"))?.as_str()?;
    if name.is_empty() || name.len() > 500 || name.chars().any(char::is_control) {
        return None;
    }
    // vLLM and SGLang, OpenRouter, Mistral, llama.cpp. The length a model was trained with
    // (`n_ctx_train`) is not what the server serves and is not taken for it.
    let context_tokens = [
        "/max_model_len",
        "/context_length",
        "/max_context_length",
        "/context_window",
        "/meta/n_ctx",
    ]
    .into_iter()
    .find_map(|pointer| value.pointer(pointer)?.as_u64());
    Some(ListedModel {
        name: name.to_owned(),
        context_tokens,
    })
}
