//! One exchange with a server, within bounds of time and size.
//!
//! Redirects are not followed: the key would go with them. Proxies are not looked up in the
//! environment; the caller names one.

use std::{
    io::Read,
    time::{Duration, Instant},
};

use ureq::{
    Agent, Body, Timeout,
    http::{HeaderMap, Response, Uri},
    tls::{RootCerts, TlsConfig},
};

use super::super::{
    ModelErrorClass,
    retry::{Clock, Failed, retry_after},
    secret::Secret,
    spec::Endpoint,
};
use super::classify::{classify, clean};

/// Error bodies are read no further than this.
const LONGEST_ERROR_BODY: u64 = 64 * 1024;

/// Header sections beyond this are refused.
const LONGEST_HEADER: usize = 64 * 1024;

/// Where and how to reach a server.
#[derive(Clone)]
pub(in super::super) struct Transport {
    agent: Agent,
    endpoint: Endpoint,
    key: Option<Secret>,
    max_response_bytes: u64,
}

/// A 2xx answer whose body is still to be read.
pub(in super::super) struct Answer {
    pub(in super::super) status: u16,
    pub(in super::super) headers: HeaderMap,
    body: Body,
    max_response_bytes: u64,
}

impl Transport {
    pub(in super::super) fn new(
        endpoint: Endpoint,
        key: Option<Secret>,
        connect_timeout: Duration,
        max_response_bytes: u64,
        proxy: Option<ureq::Proxy>,
    ) -> Self {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_response_header_size(LONGEST_HEADER)
            .timeout_connect(Some(connect_timeout))
            .proxy(proxy)
            .tls_config(
                TlsConfig::builder()
                    .root_certs(RootCerts::PlatformVerifier)
                    .build(),
            )
            .user_agent(concat!("temper/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Transport {
            agent,
            endpoint,
            key,
            max_response_bytes,
        }
    }

    pub(in super::super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    pub(in super::super) fn key(&self) -> Option<&Secret> {
        self.key.as_ref()
    }

    /// Sends a JSON body and gives the answer, if it is a good one.
    pub(in super::super) fn post(
        &self,
        path: &str,
        body: &[u8],
        timeout: Duration,
        clock: &dyn Clock,
    ) -> Result<Answer, Failed> {
        let mut request = self
            .agent
            .post(self.endpoint.join(path))
            .config()
            .timeout_global(Some(timeout))
            .build()
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream");
        if let Some(value) = self.authorization() {
            request = request.header("authorization", value);
        }
        self.receive(request.send(body), clock)
    }

    /// Asks for something.
    pub(in super::super) fn get(
        &self,
        path: &str,
        timeout: Duration,
        clock: &dyn Clock,
    ) -> Result<Answer, Failed> {
        let mut request = self
            .agent
            .get(self.endpoint.join(path))
            .config()
            .timeout_global(Some(timeout))
            .build()
            .header("accept", "application/json");
        if let Some(value) = self.authorization() {
            request = request.header("authorization", value);
        }
        self.receive(request.call(), clock)
    }

    fn authorization(&self) -> Option<ureq::http::HeaderValue> {
        let text = format!("Bearer {}", self.key.as_ref()?.expose());
        let mut value =
            ureq::http::HeaderValue::from_str(&text).expect("a secret holds only printable ASCII");
        value.set_sensitive(true);
        Some(value)
    }

    fn receive(
        &self,
        answer: Result<Response<Body>, ureq::Error>,
        clock: &dyn Clock,
    ) -> Result<Answer, Failed> {
        let answer = answer.map_err(|error| self.broken(&error, None))?;
        let (parts, body) = answer.into_parts();
        let status = parts.status.as_u16();
        if parts.status.is_success() {
            return Ok(Answer {
                status,
                headers: parts.headers,
                body,
                max_response_bytes: self.max_response_bytes,
            });
        }
        if parts.status.is_redirection() {
            // Only the host is shown: the rest of the address may hold a token.
            let host = parts
                .headers
                .get("location")
                .and_then(|value| value.to_str().ok()?.parse::<Uri>().ok())
                .and_then(|uri| Some(uri.host()?.to_owned()))
                .unwrap_or_else(|| "another address of this server".into());
            return Err(Failed {
                class: ModelErrorClass::BadRequest,
                retry: false,
                status: Some(status),
                message: format!(
                    "HTTP {status}: redirected to {}; redirects are not followed",
                    clean(&host)
                ),
                retry_after: None,
            });
        }
        let wait = retry_after(&parts.headers, clock.unix_seconds());
        let mut text = Vec::new();
        // What of an error body arrives is enough to classify it.
        let _ = body
            .into_reader()
            .take(LONGEST_ERROR_BODY)
            .read_to_end(&mut text);
        Err(classify(status, &text, wait, self.key()))
    }

    /// An exchange that broke off. A connection that could not be made and one that broke are
    /// worth another attempt; an answer beyond the limits or against the protocol is not.
    pub(in super::super) fn broken(&self, error: &ureq::Error, status: Option<u16>) -> Failed {
        let (class, retry, message) = match error {
            ureq::Error::Timeout(Timeout::Global) => (
                ModelErrorClass::Connection,
                true,
                "no complete answer within the attempt's time".to_owned(),
            ),
            ureq::Error::Timeout(_) | ureq::Error::Io(_) | ureq::Error::ConnectionFailed => {
                (ModelErrorClass::Connection, true, error.to_string())
            }
            ureq::Error::HostNotFound => (
                ModelErrorClass::Connection,
                true,
                format!("the host of {} is not known", self.endpoint),
            ),
            ureq::Error::BodyExceedsLimit(limit) => (
                ModelErrorClass::InvalidResponse,
                false,
                format!("the answer is longer than {limit} bytes"),
            ),
            ureq::Error::LargeResponseHeader(_, limit) => (
                ModelErrorClass::InvalidResponse,
                false,
                format!("the answer's header is longer than {limit} bytes"),
            ),
            ureq::Error::Protocol(_) | ureq::Error::Http(_) | ureq::Error::Decompress(..) => {
                (ModelErrorClass::InvalidResponse, false, error.to_string())
            }
            _ => (ModelErrorClass::Connection, true, error.to_string()),
        };
        let message = self
            .key
            .as_ref()
            .map_or(message.clone(), |key| key.redact(&message));
        Failed {
            class,
            retry,
            status,
            message: clean(&message),
            retry_after: None,
        }
    }
}

impl Answer {
    /// Whether the body is an event stream, whatever was asked for.
    pub(in super::super) fn is_event_stream(&self) -> bool {
        self.headers
            .get("content-type")
            .and_then(|value| value.to_str().ok())
            .is_some_and(|value| value.trim_start().starts_with("text/event-stream"))
    }

    /// Reads the body piece by piece. `on_bytes` says whether it wants more.
    pub(in super::super) fn read(
        self,
        transport: &Transport,
        until: Instant,
        mut on_bytes: impl FnMut(&[u8]) -> Result<bool, Failed>,
    ) -> Result<(), Failed> {
        let status = Some(self.status);
        let mut reader = self
            .body
            .into_with_config()
            .limit(self.max_response_bytes)
            .reader();
        let mut buffer = [0; 16 * 1024];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(transport.broken(&ureq::Error::from(error), status)),
            };
            if n == 0 || !on_bytes(&buffer[..n])? {
                return Ok(());
            }
            // The transport's own timer stops a silent server; this one also stops a server that
            // sends just enough to keep the transport busy.
            if Instant::now() >= until {
                return Err(transport.broken(&ureq::Error::Timeout(Timeout::Global), status));
            }
        }
    }

    /// Reads the whole body.
    pub(in super::super) fn read_all(
        self,
        transport: &Transport,
        until: Instant,
    ) -> Result<Vec<u8>, Failed> {
        let mut body = Vec::new();
        self.read(transport, until, |bytes| {
            body.extend_from_slice(bytes);
            Ok(true)
        })?;
        Ok(body)
    }
}
