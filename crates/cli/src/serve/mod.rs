//! The OpenAI-compatible server: the embedded engine behind the field's HTTP interface.
//!
//! It differs from its models (OpenAI's API, vLLM's server) in refusing what it cannot honour
//! instead of passing over it, in reading text in messages never as control tokens, and in giving
//! the sampled ids' log-probabilities as a trainer needs them (`token_logprobs`, beside
//! `token_ids`). `docs/serving.md` lists every endpoint and field.

mod admin;
mod chat;
mod completions;
mod error;
mod generate;
mod http;
mod parameters;
pub mod server;
mod shape;
mod tokens;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use error::ApiError;
use server::Server;
use temper_model::sample::engine::Shutdown;
use tokio::{net::TcpListener, sync::watch};

/// How long requests under way may take once the server is told to stop.
const GRACE: Duration = Duration::from_secs(30);

/// Serves until `stopped` turns true, lets requests under way end within a grace time, then ends
/// the engine.
pub async fn run(server: Arc<Server>, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
    let router = router(Arc::clone(&server));
    let ending = Arc::clone(&server);
    let stop = async move {
        // An error says that nobody can tell us any more, which is an end too.
        let _ = stopped.wait_for(|stopped| *stopped).await;
        ending.stopping.store(true, Ordering::Relaxed);
    };
    http::serve(listener, router, stop, GRACE).await;
    let _ = tokio::task::spawn_blocking(move || server.engine.shut_down(Shutdown::Cancel)).await;
}

fn router(server: Arc<Server>) -> Router {
    let open = Router::new()
        .route("/health", get(admin::health))
        .route("/ping", get(admin::health))
        .route("/version", get(admin::version))
        .route("/metrics", get(admin::metrics));
    let guarded = Router::new()
        .route("/v1/models", get(admin::models))
        .route("/v1/chat/completions", post(chat::handle))
        .route("/v1/completions", post(completions::handle))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/v1/load_lora_adapter", post(admin::load_adapter))
        .route("/v1/unload_lora_adapter", post(admin::unload_adapter))
        .layer(middleware::from_fn_with_state(Arc::clone(&server), guard));
    open.merge(guarded)
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(middleware::from_fn_with_state(Arc::clone(&server), count))
        .with_state(server)
}

async fn no_route(request: Request) -> ApiError {
    ApiError {
        status: StatusCode::NOT_FOUND,
        ..ApiError::bad_request(format!("there is nothing at {}", request.uri().path()))
    }
}

async fn no_method(request: Request) -> ApiError {
    ApiError {
        status: StatusCode::METHOD_NOT_ALLOWED,
        ..ApiError::bad_request(format!(
            "{} does not take {}",
            request.uri().path(),
            request.method()
        ))
    }
}

/// Lets in who has the key, and nobody while the server is going down.
async fn guard(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    if server.stopping.load(Ordering::Relaxed) {
        return ApiError::stopping().into_response();
    }
    if let Some(key) = &server.key {
        let given = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "))
            .unwrap_or_default();
        if !same(given.as_bytes(), key.as_bytes()) {
            return ApiError {
                status: StatusCode::UNAUTHORIZED,
                kind: "authentication_error",
                code: Some("invalid_api_key"),
                ..ApiError::bad_request("the API key is missing or wrong")
            }
            .into_response();
        }
    }
    next.run(request).await
}

/// Compares in a time that does not depend on where the texts differ.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (x, y)| differ | (x ^ y)) == 0
}

async fn count(State(server): State<Arc<Server>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    let status = response.status();
    let counter = if status.is_server_error() {
        &server.counts.failed
    } else if status.is_client_error() {
        &server.counts.refused
    } else {
        &server.counts.ok
    };
    counter.fetch_add(1, Ordering::Relaxed);
    response
}
