//! Connections: accepts them, bounds what each may take, and ends them in order.
//!
//! One client cannot hold the others up: a connection has a limit on the time for its headers, a
//! request one on its size and on the time for its body, and all connections together one on
//! their number.

use std::{future::Future, sync::Arc, time::Duration};

use axum::{Router, extract::Request, response::Response};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde::de::DeserializeOwned;
use tokio::{net::TcpListener, sync::Semaphore};

use super::error::ApiError;

/// The largest request body: a conversation of several million characters.
const MOST_BODY_BYTES: usize = 32 << 20;
/// How long the body of a request may take.
const BODY_PATIENCE: Duration = Duration::from_secs(60);
/// How long headers may take, and how long a connection may be idle.
const HEADER_PATIENCE: Duration = Duration::from_secs(30);
/// Connections at a time.
const MOST_CONNECTIONS: usize = 1024;

/// Serves until `stop` is done, then lets the requests under way end within `grace`.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    stop: impl Future<Output = ()>,
    grace: Duration,
) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(stop);
    loop {
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place.expect("never closed"),
            () = &mut stop => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => {
                    // Out of file descriptors, or a client that left at once: both pass.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_PATIENCE)
            .max_headers(64)
            .serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection);
        tokio::spawn(async move {
            // A client that breaks off is no event of ours.
            let _ = connection.await;
            drop(place);
        });
    }
    drop(listener);
    let _ = tokio::time::timeout(grace, connections.shutdown()).await;
}

/// Names the request's fields that nobody here knows in a header of the response.
pub fn naming_ignored(mut response: Response, names: &str) -> Response {
    if !names.is_empty()
        && let Ok(value) = names.parse()
    {
        response.headers_mut().insert("x-temper-ignored", value);
    }
    response
}

/// Reads a JSON body within its limits.
pub async fn json<T: DeserializeOwned + Send + 'static>(request: Request) -> Result<T, ApiError> {
    let bytes = match tokio::time::timeout(
        BODY_PATIENCE,
        axum::body::to_bytes(request.into_body(), MOST_BODY_BYTES),
    )
    .await
    {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(error)) => {
            return Err(ApiError {
                status: axum::http::StatusCode::PAYLOAD_TOO_LARGE,
                ..ApiError::bad_request(format!(
                    "the body could not be read, or is above {MOST_BODY_BYTES} bytes: {error}"
                ))
            });
        }
        Err(_) => {
            return Err(ApiError {
                status: axum::http::StatusCode::REQUEST_TIMEOUT,
                ..ApiError::bad_request("the body did not arrive in time")
            });
        }
    };
    // A large body is parsed beside the threads that serve connections.
    let parsed = tokio::task::spawn_blocking(move || {
        serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::bad_request(format!("the body is not as expected: {error}")))
    });
    parsed
        .await
        .unwrap_or_else(|_| Err(ApiError::internal("reading the body failed")))
}
