//! What is not generation: models, adapters, health, metrics.

use std::{
    fmt::Write as _,
    sync::{Arc, atomic::Ordering},
};

use axum::{
    Json,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{error::ApiError, generate, http, server::Server};

/// `GET /v1/models`: the model, then its adapters.
pub async fn models(State(server): State<Arc<Server>>) -> Json<Value> {
    let context = server.engine.max_context();
    let entry = |id: &str, parent: Option<&str>, root: String| {
        json!({
            "id": id,
            "object": "model",
            "created": server.started,
            "owned_by": "temper",
            "root": root,
            "parent": parent,
            "max_model_len": context,
        })
    };
    let mut list = vec![entry(&server.name, None, server.name.clone())];
    for (name, path) in server.adapters().iter() {
        let folder = path.file_name().unwrap_or_default().to_string_lossy();
        list.push(entry(name, Some(&server.name), folder.into_owned()));
    }
    Json(json!({"object": "list", "data": list}))
}

/// `GET /health`.
pub async fn health(State(server): State<Arc<Server>>) -> Response {
    match server.engine.metrics().failure {
        Some(reason) => ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            ..ApiError::internal(reason)
        }
        .into_response(),
        None if server.stopping.load(Ordering::Relaxed) => ApiError::stopping().into_response(),
        None => StatusCode::OK.into_response(),
    }
}

/// `GET /version`.
pub async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "engine": "temper"}))
}

/// The body of the adapter endpoints, as vLLM has them.
#[derive(Debug, Deserialize)]
pub struct AdapterBody {
    /// The name that requests will use as model.
    pub lora_name: String,
    /// A PEFT folder, relative to the directory that the server was started with.
    #[serde(default)]
    pub lora_path: Option<String>,
}

/// `POST /v1/load_lora_adapter`: loads an adapter, or replaces one of the same name. Requests
/// that run keep the weights they began with.
pub async fn load_adapter(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<String, ApiError> {
    let body: AdapterBody = http::json(request).await?;
    let name = body.lora_name;
    let usable = !name.is_empty()
        && name.len() <= 200
        && name != server.name
        && !name.chars().any(char::is_control);
    if !usable {
        return Err(ApiError::field(
            "lora_name",
            "lora_name must be a short name that is not the model's",
        ));
    }
    let asked = body
        .lora_path
        .ok_or_else(|| ApiError::field("lora_path", "lora_path is missing"))?;
    tokio::task::spawn_blocking(move || {
        let path = server.adapter_path(&asked)?;
        server.load_adapter(&name, &path)?;
        Ok(format!(
            "Success: LoRA adapter '{name}' added successfully.\n"
        ))
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::internal("loading the adapter failed")))
}

/// `POST /v1/unload_lora_adapter`.
pub async fn unload_adapter(
    State(server): State<Arc<Server>>,
    request: Request,
) -> Result<String, ApiError> {
    let body: AdapterBody = http::json(request).await?;
    tokio::task::spawn_blocking(move || {
        let name = body.lora_name;
        if server.adapters().remove(&name).is_none() {
            return Err(ApiError::unknown_model(&name));
        }
        server
            .engine
            .unload_adapter(&name)
            .map_err(|error| generate::api_error(&error))?;
        Ok(format!(
            "Success: LoRA adapter '{name}' removed successfully.\n"
        ))
    })
    .await
    .unwrap_or_else(|_| Err(ApiError::internal("unloading the adapter failed")))
}

/// `GET /metrics`, in Prometheus' text format.
pub async fn metrics(State(server): State<Arc<Server>>) -> Response {
    let engine = server.engine.metrics();
    let counts = &server.counts;
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(&str, f64)]| {
        let _ = writeln!(
            text,
            "# HELP temper_{name} {help}\n# TYPE temper_{name} {kind}"
        );
        for (labels, value) in values {
            let _ = writeln!(text, "temper_{name}{labels} {value}");
        }
    };
    let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed) as f64;
    metric(
        "requests_total",
        "counter",
        "Answered HTTP requests by outcome.",
        &[
            ("{outcome=\"ok\"}", load(&counts.ok)),
            ("{outcome=\"refused\"}", load(&counts.refused)),
            ("{outcome=\"failed\"}", load(&counts.failed)),
        ],
    );
    metric(
        "completions_total",
        "counter",
        "Completions by how they ended.",
        &[
            ("{end=\"finished\"}", engine.n_finished as f64),
            ("{end=\"cancelled\"}", engine.n_cancelled as f64),
            ("{end=\"failed\"}", engine.n_failed as f64),
        ],
    );
    let gauges: [(&str, &str, f64); 6] = [
        (
            "requests_running",
            "Requests that hold cache pages.",
            engine.n_running as f64,
        ),
        (
            "requests_waiting",
            "Requests that wait.",
            engine.n_waiting as f64,
        ),
        ("cache_pages", "Pages of the cache.", engine.n_pages as f64),
        (
            "cache_pages_used",
            "Pages that running requests hold.",
            engine.n_pages_used as f64,
        ),
        (
            "cache_pages_idle",
            "Pages kept for later requests.",
            engine.n_pages_idle as f64,
        ),
        (
            "tokens_per_second",
            "Tokens drawn in a second, lately.",
            engine.tokens_per_second,
        ),
    ];
    for (name, help, value) in gauges {
        metric(name, "gauge", help, &[("", value)]);
    }
    let counters: [(&str, &str, f64); 7] = [
        (
            "prompt_tokens_total",
            "Prompt tokens of admitted requests.",
            engine.n_prompt_tokens as f64,
        ),
        (
            "cached_tokens_total",
            "Prompt tokens that came from the cache.",
            engine.n_cached_tokens as f64,
        ),
        (
            "drawn_tokens_total",
            "Tokens drawn.",
            engine.n_drawn_tokens as f64,
        ),
        ("steps_total", "Steps of the engine.", engine.n_steps as f64),
        (
            "preemptions_total",
            "Requests that gave up their pages.",
            engine.n_preemptions as f64,
        ),
        (
            "decode_seconds_total",
            "Time in steps that only draw.",
            engine.decode_time.as_secs_f64(),
        ),
        (
            "prefill_seconds_total",
            "Time in steps with prompts.",
            engine.prefill_time.as_secs_f64(),
        ),
    ];
    for (name, help, value) in counters {
        metric(name, "counter", help, &[("", value)]);
    }
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
