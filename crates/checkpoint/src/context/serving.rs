//! How a vLLM server is started for a plan. Nothing is started here.

use std::fmt;

use serde::Serialize;

use super::{ContextPlan, Decision};

/// A release of vLLM: its first three numbers. What follows them (`rc1`, `+cu128`) is not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Version(pub [u32; 3]);

/// `--rope-scaling` is gone since this release; configurations are overridden instead.
const OVERRIDES_SINCE: Version = Version([0, 11, 1]);

impl std::str::FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = [0; 3];
        let mut parts = text.trim().trim_start_matches('v').split('.');
        for (at, number) in numbers.iter_mut().enumerate() {
            let part = parts.next().unwrap_or(if at == 2 { "0" } else { "" });
            let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
            *number = digits
                .parse()
                .map_err(|_| format!("expected a version such as 0.11.2, got {text:?}"))?;
        }
        Ok(Version(numbers))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// The command of a server.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerCommand {
    /// The words of the command, unquoted.
    pub arguments: Vec<String>,
    /// For which releases they hold.
    pub holds_for: String,
}

impl fmt::Display for ServerCommand {
    /// As a line for a shell.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.arguments.iter().enumerate() {
            let plain = !word.is_empty()
                && word
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"-_./:@=".contains(&byte));
            let space = if at == 0 { "" } else { " " };
            if plain {
                write!(f, "{space}{word}")?;
            } else {
                write!(f, "{space}'{}'", word.replace('\'', "'\\''"))?;
            }
        }
        Ok(())
    }
}

/// What is served, and how.
#[derive(Clone, Debug, Default)]
pub struct Serving<'a> {
    /// Folder or name on a hub.
    pub model: &'a str,
    /// Commit.
    pub revision: Option<&'a str>,
    /// The release, where it is known.
    pub version: Option<Version>,
    /// The share of a GPU's memory that the server may take, where it is not left to its default.
    pub utilisation: Option<f64>,
    /// Whether keys and values are kept in 8 bits.
    pub is_cache_8bit: bool,
}

/// The commands that start a model for a plan: one for a known release, one for each shape of the
/// arguments when the release is unknown, none for what cannot be planned. Keys are never part of
/// them: the server reads `VLLM_API_KEY`.
pub fn server_command(plan: &ContextPlan, serving: &Serving<'_>) -> Vec<ServerCommand> {
    let base = || {
        let mut words = vec!["vllm".to_owned(), "serve".into(), serving.model.into()];
        if let Some(revision) = serving.revision {
            words.extend(["--revision".into(), revision.to_owned()]);
        }
        words.extend(["--max-model-len".into(), plan.window.to_string()]);
        if let Some(utilisation) = serving.utilisation {
            words.extend(["--gpu-memory-utilization".into(), utilisation.to_string()]);
        }
        if serving.is_cache_8bit {
            words.extend(["--kv-cache-dtype".into(), "fp8".into()]);
        }
        words
    };
    let parameters = match &plan.decision {
        Decision::Impossible { .. } => return Vec::new(),
        // For an undecided configuration the plain command is what a probe tries.
        Decision::Native | Decision::Undecided { .. } => {
            return vec![ServerCommand {
                arguments: base(),
                holds_for: "every release".into(),
            }];
        }
        decision @ Decision::Yarn { .. } => decision.rope_parameters().unwrap_or_default(),
    };
    let with = |flag: &str, value: String, holds_for: String| {
        let mut arguments = base();
        arguments.extend([flag.to_owned(), value]);
        ServerCommand {
            arguments,
            holds_for,
        }
    };
    let new = || {
        let value = serde_json::json!({ "rope_parameters": parameters }).to_string();
        with(
            "--hf-overrides",
            value,
            format!("{OVERRIDES_SINCE} and later"),
        )
    };
    let old = || {
        let value = parameters.to_string();
        with("--rope-scaling", value, format!("before {OVERRIDES_SINCE}"))
    };
    match serving.version {
        Some(version) if version >= OVERRIDES_SINCE => vec![new()],
        Some(_) => vec![old()],
        None => vec![new(), old()],
    }
}
