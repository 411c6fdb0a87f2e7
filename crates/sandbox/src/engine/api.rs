//! The calls of the Docker-compatible API that sandboxes need, with types.

use std::{
    fmt::Write as _,
    io::{self, Read, Write},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD as BASE64};
use serde::Deserialize;
use serde_json::{Value, json};

use super::http::{self, Address, Body, BodyReader, Connection, HttpError, Request, Response};

/// The newest version of the API whose meaning is known here.
const NEWEST: (u32, u32) = (1, 41);
/// The oldest version that has everything that is used.
const OLDEST: (u32, u32) = (1, 41);
/// The most that a plain answer may hold.
const MAX_JSON_BYTES: u64 = 16 << 20;
/// How long a plain call may take.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long moving a work tree may take.
pub const TREE_PATIENCE: Duration = Duration::from_secs(300);

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// No answer.
    #[error(transparent)]
    Http(#[from] HttpError),
    /// The engine says no.
    #[error("{what}: the engine answers {status}: {message}")]
    Refused {
        /// What was asked.
        what: &'static str,
        /// The HTTP status.
        status: u16,
        /// The engine's reason.
        message: String,
    },
    /// The answer lacks something.
    #[error("{what}: the engine's answer makes no sense: {why}")]
    Odd {
        /// What was asked.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
}

impl ApiError {
    /// Whether the thing that was asked for is not there.
    pub fn is_missing(&self) -> bool {
        matches!(self, ApiError::Refused { status: 404, .. })
    }
}

/// An engine and the version of its API.
#[derive(Debug)]
pub struct Api {
    /// Where.
    pub address: Address,
    prefix: String,
}

/// An engine's version.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Version {
    /// The engine's own.
    #[serde(default)]
    pub version: String,
    api_version: String,
    #[serde(default, rename = "MinAPIVersion")]
    min_api_version: String,
    #[serde(default)]
    components: Option<Vec<Component>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Component {
    #[serde(default)]
    name: String,
}

impl Version {
    /// Whether the engine is Podman.
    pub fn is_podman(&self) -> bool {
        self.components
            .iter()
            .flatten()
            .any(|component| component.name.starts_with("Podman"))
    }
}

/// What an engine says of itself and its machine. What it does not say counts as missing.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Info {
    /// Whether memory can be limited.
    pub memory_limit: bool,
    /// Whether swap can be limited.
    pub swap_limit: bool,
    /// Whether the number of processes can be limited.
    pub pids_limit: bool,
    /// Whether CPU time can be limited.
    #[serde(rename = "CpuCfsQuota")]
    pub cpu_quota: bool,
    /// `1` or `2`.
    pub cgroup_version: Option<String>,
    /// `name=seccomp,profile=default` and the like.
    pub security_options: Option<Vec<String>>,
    /// Podman says here that it has no root.
    pub rootless: Option<bool>,
}

/// What of an image matters here.
#[derive(Clone, Debug)]
pub struct Image {
    /// Its id, a hash of its content.
    pub id: String,
    /// The user commands run as, as the image names it.
    pub user: String,
    /// Whether the engine would run commands of its own to see how the container is.
    pub has_health_check: bool,
}

/// How a command in a container stands.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExecState {
    /// Whether it runs.
    pub running: bool,
    /// Its code, once it has ended.
    pub exit_code: Option<i64>,
}

/// How a container stands.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ContainerState {
    /// Whether it runs.
    pub running: bool,
    /// The first process, as the engine's machine numbers it.
    #[serde(default)]
    pub pid: i64,
}

/// What a container consumes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Stats {
    /// Processes and threads; `None` if the engine does not count them.
    pub n_tasks: Option<u64>,
    /// CPU time.
    pub cpu_seconds: Option<f64>,
    /// Highest memory use.
    pub peak_memory_bytes: Option<u64>,
}

/// What is at a path in a container. No link is followed at the end of the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// A regular file of this size.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link.
    Link,
    /// A pipe, a socket, a device.
    Other,
}

impl Api {
    /// Asks the engine which versions it speaks and settles on one.
    pub fn negotiate(address: Address, patience: Duration) -> Result<(Api, Version), ApiError> {
        const WHAT: &str = "ask for the engine's version";
        let mut api = Api {
            address,
            prefix: String::new(),
        };
        let version: Version = api.get(WHAT, "/version", patience)?;
        let odd = |why: String| ApiError::Odd { what: WHAT, why };
        let parse = |text: &str| -> Option<(u32, u32)> {
            let (major, minor) = text.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        let offered = parse(&version.api_version)
            .ok_or_else(|| odd(format!("its API has the version {:?}", version.api_version)))?;
        let least = parse(&version.min_api_version).unwrap_or((1, 0));
        let chosen = offered.min(NEWEST).max(least);
        if offered < OLDEST {
            return Err(odd(format!(
                "it speaks version {} of the API, and at least {}.{} is needed",
                version.api_version, OLDEST.0, OLDEST.1
            )));
        }
        api.prefix = format!("/v{}.{}", chosen.0, chosen.1);
        Ok((api, version))
    }

    /// What the engine says of itself.
    pub fn info(&self) -> Result<Info, ApiError> {
        self.get("ask what the engine can do", "/info", PATIENCE)
    }

    /// What an image is, or `None` if the engine has none of that name.
    pub fn image(&self, name: &str) -> Result<Option<Image>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Answer {
            id: String,
            config: Option<Config>,
        }
        #[derive(Deserialize, Default)]
        #[serde(rename_all = "PascalCase", default)]
        struct Config {
            user: String,
            healthcheck: Option<Value>,
        }
        let target = format!("/images/{}/json", encode(name, "/:@"));
        match self.get::<Answer>("look at an image", &target, PATIENCE) {
            Ok(answer) => {
                let config = answer.config.unwrap_or_default();
                Ok(Some(Image {
                    id: answer.id,
                    user: config.user,
                    has_health_check: config.healthcheck.is_some(),
                }))
            }
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Makes a container and gives its id.
    pub fn create(&self, specification: &Value) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Answer {
            id: String,
        }
        const WHAT: &str = "create a container";
        let answer: Answer = self.post(
            WHAT,
            "/containers/create",
            Some(specification),
            TREE_PATIENCE,
        )?;
        checked_id(WHAT, answer.id)
    }

    /// Starts a container.
    pub fn start(&self, id: &str) -> Result<(), ApiError> {
        let target = format!("/containers/{id}/start");
        self.call(
            "start a container",
            "POST",
            &target,
            Body::Empty,
            TREE_PATIENCE,
        )
        .map(drop)
    }

    /// The standard input of a container's first process.
    pub fn attach_input(&self, id: &str) -> Result<Connection, ApiError> {
        let target = format!("/containers/{id}/attach?stream=1&stdin=1");
        let response = self.send(
            "attach to a container",
            Request {
                method: "POST",
                target,
                body: Body::Empty,
                upgrade: true,
                patience: PATIENCE,
            },
        )?;
        Ok(response.body.into_connection())
    }

    /// Prepares a command in a container.
    pub fn exec_create(
        &self,
        id: &str,
        arguments: &[String],
        environment: &[String],
    ) -> Result<String, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Answer {
            id: String,
        }
        const WHAT: &str = "prepare a command";
        let specification = json!({
            "AttachStdin": false,
            "AttachStdout": true,
            "AttachStderr": true,
            "Tty": false,
            "Cmd": arguments,
            "Env": environment,
        });
        let target = format!("/containers/{id}/exec");
        let answer: Answer = self.post(WHAT, &target, Some(&specification), PATIENCE)?;
        checked_id(WHAT, answer.id)
    }

    /// Starts a prepared command; its output comes in frames.
    pub fn exec_start(&self, exec: &str) -> Result<BodyReader, ApiError> {
        let specification = json!({"Detach": false, "Tty": false});
        let response = self.send(
            "start a command",
            Request {
                method: "POST",
                target: format!("/exec/{exec}/start"),
                body: Body::Json(specification.to_string().into_bytes()),
                upgrade: true,
                patience: PATIENCE,
            },
        )?;
        Ok(response.body)
    }

    /// How a command stands.
    pub fn exec_state(&self, exec: &str) -> Result<ExecState, ApiError> {
        self.get("look at a command", &format!("/exec/{exec}/json"), PATIENCE)
    }

    /// How a container stands, or `None` if there is none.
    pub fn container(&self, id: &str) -> Result<Option<ContainerState>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Answer {
            state: ContainerState,
        }
        let target = format!("/containers/{id}/json");
        match self.get::<Answer>("look at a container", &target, PATIENCE) {
            Ok(answer) => Ok(Some(answer.state)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a container consumes.
    pub fn stats(&self, id: &str) -> Result<Stats, ApiError> {
        let target = format!("/containers/{id}/stats?stream=false&one-shot=true");
        let answer: Value = self.get("count a container's processes", &target, PATIENCE)?;
        let number = |pointer: &str| answer.pointer(pointer).and_then(Value::as_u64);
        Ok(Stats {
            n_tasks: number("/pids_stats/current"),
            cpu_seconds: number("/cpu_stats/cpu_usage/total_usage").map(|ns| ns as f64 / 1e9),
            peak_memory_bytes: number("/memory_stats/max_usage").filter(|bytes| *bytes > 0),
        })
    }

    /// What is at a path.
    pub fn path_kind(&self, id: &str, path: &str) -> Result<Option<PathKind>, ApiError> {
        #[derive(Deserialize)]
        struct Stat {
            #[serde(default)]
            size: i64,
            mode: u32,
        }
        const WHAT: &str = "look at a path in a container";
        let request = Request {
            method: "HEAD",
            target: archive(id, path),
            body: Body::Empty,
            upgrade: false,
            patience: PATIENCE,
        };
        let response = match self.send(WHAT, request) {
            Ok(response) => response,
            Err(error) if error.is_missing() => return Ok(None),
            Err(error) => return Err(error),
        };
        let odd = |why: String| ApiError::Odd { what: WHAT, why };
        let header = response
            .header("x-docker-container-path-stat")
            .ok_or_else(|| odd("it does not say what is there".into()))?;
        let text = BASE64
            .decode(header)
            .map_err(|error| odd(error.to_string()))?;
        let stat: Stat = serde_json::from_slice(&text).map_err(|error| odd(error.to_string()))?;
        // The bits are those of Go's `os.FileMode`, not those of the kernel.
        const DIRECTORY: u32 = 1 << 31;
        const LINK: u32 = 1 << 27;
        const OTHER: u32 = 1 << 26 | 1 << 25 | 1 << 24 | 1 << 21 | 1 << 19;
        Ok(Some(match stat.mode {
            mode if mode & LINK != 0 => PathKind::Link,
            mode if mode & DIRECTORY != 0 => PathKind::Directory,
            mode if mode & OTHER != 0 => PathKind::Other,
            _ => PathKind::File(u64::try_from(stat.size).unwrap_or(0)),
        }))
    }

    /// What is at a path, as an archive; `None` if there is nothing.
    pub fn download(&self, id: &str, path: &str) -> Result<Option<BodyReader>, ApiError> {
        let request = Request {
            method: "GET",
            target: archive(id, path),
            body: Body::Empty,
            upgrade: false,
            patience: TREE_PATIENCE,
        };
        match self.send("read from a container", request) {
            Ok(response) => Ok(Some(response.body)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Unpacks an archive at the root of a container.
    pub fn upload(
        &self,
        id: &str,
        fill: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), ApiError> {
        let target = format!("{}&noOverwriteDirNonDir=1", archive(id, "/"));
        self.call(
            "write into a container",
            "PUT",
            &target,
            Body::Tar(fill),
            TREE_PATIENCE,
        )
        .map(drop)
    }

    /// Kills and removes a container with its volumes. One that is gone is no error.
    pub fn remove(&self, id: &str) -> Result<(), ApiError> {
        let target = format!("/containers/{id}?force=1&v=1");
        match self.call(
            "remove a container",
            "DELETE",
            &target,
            Body::Empty,
            PATIENCE,
        ) {
            Ok(_) => Ok(()),
            // Gone, or being removed because its first process ended.
            Err(ApiError::Refused {
                status: 404 | 409, ..
            }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Ids and labels of all containers that have a label.
    pub fn list(&self, label: &str) -> Result<Vec<(String, Value)>, ApiError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Answer {
            id: String,
            #[serde(default)]
            labels: Value,
        }
        const WHAT: &str = "list containers";
        let filters = json!({"label": [label]}).to_string();
        let target = format!("/containers/json?all=1&filters={}", encode(&filters, ""));
        let answers: Vec<Answer> = self.get(WHAT, &target, PATIENCE)?;
        answers
            .into_iter()
            .map(|answer| Ok((checked_id(WHAT, answer.id)?, answer.labels)))
            .collect()
    }

    fn get<T: for<'de> Deserialize<'de>>(
        &self,
        what: &'static str,
        target: &str,
        patience: Duration,
    ) -> Result<T, ApiError> {
        let bytes = self.call(what, "GET", target, Body::Empty, patience)?;
        serde_json::from_slice(&bytes).map_err(|error| ApiError::Odd {
            what,
            why: error.to_string(),
        })
    }

    fn post<T: for<'de> Deserialize<'de>>(
        &self,
        what: &'static str,
        target: &str,
        body: Option<&Value>,
        patience: Duration,
    ) -> Result<T, ApiError> {
        let body = body.map_or(Body::Empty, |value| {
            Body::Json(value.to_string().into_bytes())
        });
        let bytes = self.call(what, "POST", target, body, patience)?;
        serde_json::from_slice(&bytes).map_err(|error| ApiError::Odd {
            what,
            why: error.to_string(),
        })
    }

    fn call(
        &self,
        what: &'static str,
        method: &'static str,
        target: &str,
        body: Body<'_>,
        patience: Duration,
    ) -> Result<Vec<u8>, ApiError> {
        let mut response = self.send(
            what,
            Request {
                method,
                target: target.to_owned(),
                body,
                upgrade: false,
                patience,
            },
        )?;
        Ok(response.body.read_all(MAX_JSON_BYTES)?)
    }

    fn send(&self, what: &'static str, mut request: Request<'_>) -> Result<Response, ApiError> {
        request.target = format!("{}{}", self.prefix, request.target);
        let mut response = http::send(&self.address, request)?;
        if response.status < 300 {
            return Ok(response);
        }
        #[derive(Deserialize)]
        struct Refusal {
            message: String,
        }
        let mut text = vec![];
        let _ = response.body.by_ref().take(64 << 10).read_to_end(&mut text);
        let message = match serde_json::from_slice::<Refusal>(&text) {
            Ok(refusal) => refusal.message,
            Err(_) => String::from_utf8_lossy(&text).into_owned(),
        };
        Err(ApiError::Refused {
            what,
            status: response.status,
            message: message.trim().chars().take(2000).collect(),
        })
    }
}

fn archive(id: &str, path: &str) -> String {
    format!("/containers/{id}/archive?path={}", encode(path, ""))
}

/// An id becomes part of later requests, so it must not change what they mean.
fn checked_id(what: &'static str, id: String) -> Result<String, ApiError> {
    if (8..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        Ok(id)
    } else {
        Err(ApiError::Odd {
            what,
            why: format!("{:?} is no id", id.chars().take(80).collect::<String>()),
        })
    }
}

/// Percent-encodes all but letters, digits, `-._~` and the characters of `keep`.
fn encode(text: &str, keep: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric()
            || b"-._~".contains(&byte)
            || keep.as_bytes().contains(&byte)
        {
            encoded.push(byte.into());
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_into_a_request_cannot_change_it() {
        assert_eq!(encode("a/b:c@d", "/:@"), "a/b:c@d");
        assert_eq!(encode("a b\r\n?&#/ä", ""), "a%20b%0D%0A%3F%26%23%2F%C3%A4");
        assert!(checked_id("test", "0123456789ab".into()).is_ok());
        for bad in ["", "short", "0123/../4567", "0123456789ab?x"] {
            assert!(checked_id("test", bad.into()).is_err());
        }
    }
}
