//! Errors as clients of the field expect them: a status and one JSON object.

use axum::{
    Json,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

/// A request that was not served.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The class that clients switch on.
    pub kind: &'static str,
    /// OpenAI's finer code, where there is one.
    pub code: Option<&'static str>,
    /// The field at fault.
    pub parameter: Option<String>,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl ApiError {
    /// A request that cannot be served as it is.
    pub fn bad_request(message: impl Into<String>) -> Self {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            kind: "invalid_request_error",
            code: None,
            parameter: None,
            message: message.into(),
        }
    }

    /// A field whose value cannot be used.
    pub fn field(name: &str, message: impl Into<String>) -> Self {
        ApiError {
            parameter: Some(name.into()),
            ..ApiError::bad_request(message)
        }
    }

    /// More tokens than the context holds. Clients recognise the wording and the code.
    pub fn context_length(context: usize, prompt: usize, completion: usize) -> Self {
        ApiError {
            code: Some("context_length_exceeded"),
            parameter: Some("messages".into()),
            ..ApiError::bad_request(format!(
                "This model's maximum context length is {context} tokens. However, you requested \
                 {} tokens ({prompt} in the messages, {completion} in the completion). Please \
                 reduce the length of the messages or completion.",
                prompt.saturating_add(completion)
            ))
        }
    }

    /// No model or adapter of this name.
    pub fn unknown_model(name: &str) -> Self {
        ApiError {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            parameter: Some("model".into()),
            ..ApiError::bad_request(format!("The model `{name}` does not exist."))
        }
    }

    /// Too much is waiting already.
    pub fn overloaded(message: impl Into<String>) -> Self {
        ApiError {
            status: StatusCode::TOO_MANY_REQUESTS,
            kind: "rate_limit_error",
            code: Some("queue_full"),
            parameter: None,
            message: message.into(),
        }
    }

    /// The server is going down.
    pub fn stopping() -> Self {
        ApiError {
            status: StatusCode::SERVICE_UNAVAILABLE,
            kind: "server_error",
            code: Some("shutting_down"),
            parameter: None,
            message: "the server is shutting down".into(),
        }
    }

    /// Something failed here.
    pub fn internal(message: impl Into<String>) -> Self {
        ApiError {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            kind: "server_error",
            code: None,
            parameter: None,
            message: message.into(),
        }
    }

    /// The object that is sent.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind,
            "param": self.parameter,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::TOO_MANY_REQUESTS {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_errors_have_the_wording_and_code_that_clients_look_for() {
        let error = ApiError::context_length(4096, 4000, 1000);
        let text = error.body().to_string();
        assert!(text.contains("This model's maximum context length is 4096 tokens"));
        assert!(text.contains("5000 tokens (4000 in the messages, 1000 in the completion)"));
        assert_eq!(error.body()["error"]["code"], "context_length_exceeded");
        assert_eq!(error.status, StatusCode::BAD_REQUEST);
    }
}
