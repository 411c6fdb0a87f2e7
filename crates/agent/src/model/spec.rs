//! What a user may write to name a model, and the server addresses in it.

use std::path::PathBuf;

use ureq::http::Uri;

/// The base address of an OpenAI-compatible server, without a slash at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(String);

/// A model as named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelSpec {
    /// A server that speaks the chat completions protocol.
    OpenAi {
        /// Where it is.
        endpoint: Endpoint,
        /// The model's name; where it is absent the server must offer exactly one.
        model: Option<String>,
    },
    /// A model that runs in this process, by file, folder or name.
    Embedded(String),
    /// Replies from a file.
    Scripted(PathBuf),
    /// A recorded session.
    Replay(PathBuf),
}

/// The text names no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// No known form.
    #[error(
        "read the model {0:?}: expected http://HOST[:PORT][/v1][#MODEL], https://…, openai:MODEL, \
         embedded[:MODEL], scripted:FILE or replay:FILE"
    )]
    Unknown(String),
    /// A prefix with nothing behind it.
    #[error("read the model {text:?}: {missing} is missing")]
    Missing {
        /// What was given.
        text: String,
        /// What is not there.
        missing: &'static str,
    },
    /// The address cannot be used. The text is left out where it may hold a password.
    #[error("read the server address: {0}")]
    Address(String),
}

/// The address that `openai:` stands for.
pub const OPENAI: &str = "https://api.openai.com/v1";

/// Reads `http://HOST[:PORT][/v1][#MODEL]`, `https://…`, `openai:MODEL`, `embedded[:MODEL]`,
/// `scripted:FILE` or `replay:FILE`.
pub fn parse_model_spec(text: &str) -> Result<ModelSpec, SpecError> {
    let missing = |missing| SpecError::Missing {
        text: text.to_owned(),
        missing,
    };
    if text.starts_with("http://") || text.starts_with("https://") {
        let (address, model) = match text.split_once('#') {
            Some((_, "")) => return Err(SpecError::Address("no model name follows the #".into())),
            Some((address, model)) => (address, Some(model.to_owned())),
            None => (text, None),
        };
        return Ok(ModelSpec::OpenAi {
            endpoint: Endpoint::parse(address)?,
            model,
        });
    }
    if text == "embedded" {
        return Ok(ModelSpec::Embedded("default".into()));
    }
    match text.split_once(':') {
        Some(("embedded", "")) => Err(missing("the model's name")),
        Some(("embedded", model)) => Ok(ModelSpec::Embedded(model.to_owned())),
        Some(("openai", "")) => Err(missing("the model's name")),
        Some(("openai", model)) => Ok(ModelSpec::OpenAi {
            endpoint: Endpoint(OPENAI.into()),
            model: Some(model.to_owned()),
        }),
        Some(("scripted" | "replay", "")) => Err(missing("the file")),
        Some(("scripted", file)) => Ok(ModelSpec::Scripted(file.into())),
        Some(("replay", file)) => Ok(ModelSpec::Replay(file.into())),
        _ => Err(SpecError::Unknown(text.to_owned())),
    }
}

impl Endpoint {
    /// Reads an address. One without a path gets `/v1`; a path is kept, without a final
    /// `/chat/completions` if somebody pasted the whole of it.
    ///
    /// Passwords and query parameters are refused: the address is written into reports.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let refuse = |why: &str| Err(SpecError::Address(why.into()));
        let uri: Uri = match text.parse() {
            Ok(uri) => uri,
            Err(error) => return refuse(&format!("{error}")),
        };
        let Some(authority) = uri.authority() else {
            return refuse("it has no host");
        };
        if authority.as_str().contains('@') {
            return refuse("it holds a user name or password, which would end up in reports");
        }
        if authority.host().is_empty() {
            return refuse("it has no host");
        }
        let after_host = &authority.as_str()[authority.host().len()..];
        let port = after_host.strip_prefix(':').map(str::parse::<u16>);
        if !after_host.is_empty() && !matches!(port, Some(Ok(1..))) {
            return refuse("its port is not a number from 1 to 65535");
        }
        if uri.query().is_some() {
            return refuse("it has query parameters, which would end up in reports");
        }
        let scheme = match uri.scheme_str() {
            Some(scheme @ ("http" | "https")) => scheme,
            _ => return refuse("it begins with neither http:// nor https://"),
        };
        let path = uri.path().trim_end_matches('/');
        let path = path.strip_suffix("/chat/completions").unwrap_or(path);
        let path = if path.is_empty() { "/v1" } else { path };
        Ok(Endpoint(format!("{scheme}://{authority}{path}")))
    }

    /// The address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The server without the `/v1` of its interface.
    pub(crate) fn root(&self) -> Endpoint {
        Endpoint(self.0.strip_suffix("/v1").unwrap_or(&self.0).to_owned())
    }

    /// The address of something below it.
    pub(crate) fn join(&self, path: &str) -> String {
        format!("{}/{path}", self.0)
    }

    /// Whether OpenAI itself answers there, whose newer models know only newer field names.
    pub(crate) fn is_openai(&self) -> bool {
        self.0
            .strip_prefix("https://")
            .and_then(|rest| rest.split('/').next())
            .is_some_and(|host| host == "api.openai.com" || host.ends_with(".openai.azure.com"))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_form() {
        let server = |text: &str| match parse_model_spec(text).unwrap() {
            ModelSpec::OpenAi { endpoint, model } => (endpoint.to_string(), model),
            other => panic!("{other:?}"),
        };
        for (text, address, model) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8000/v1", None),
            ("http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1", None),
            ("http://h:1/v1/#a/b#c", "http://h:1/v1", Some("a/b#c")),
            ("http://[::1]:80/v1", "http://[::1]:80/v1", None),
            (
                "https://h/api/v1/chat/completions",
                "https://h/api/v1",
                None,
            ),
            ("openai:gpt-x", OPENAI, Some("gpt-x")),
        ] {
            let expected = (address.to_owned(), model.map(str::to_owned));
            assert_eq!(server(text), expected, "{text}");
        }
        for (text, model) in [
            ("embedded", "default"),
            ("embedded:org/name@v1:x.gguf", "org/name@v1:x.gguf"),
        ] {
            assert_eq!(
                parse_model_spec(text).unwrap(),
                ModelSpec::Embedded(model.into())
            );
        }
        assert_eq!(
            parse_model_spec("scripted:a b.yaml").unwrap(),
            ModelSpec::Scripted("a b.yaml".into())
        );
        assert_eq!(
            parse_model_spec("replay:C:/x").unwrap(),
            ModelSpec::Replay("C:/x".into())
        );
    }

    #[test]
    fn refuses_what_names_nothing_or_holds_a_secret() {
        for text in [
            "",
            "gpt-4",
            "openai:",
            "embedded:",
            "scripted:",
            "replay:",
            "ftp://h",
            "http://",
            "http://#m",
            "http://h#",
            "http://h:99999",
            "http://h:0",
            "http://h:",
            "http://h/v1?key=s3cret",
            "http://me:s3cret@h/v1",
            "http:// h",
            "http://h\n/v1",
        ] {
            let error = parse_model_spec(text).expect_err(text).to_string();
            assert!(!error.contains("s3cret"), "{error}");
        }
    }
}
