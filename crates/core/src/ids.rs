//! Names of things, as types that cannot be mixed up.

use serde::{Deserialize, Serialize};

/// The text cannot be used as a name.
#[derive(Debug, thiserror::Error)]
#[error("read a {kind}: {problem}, got {text:?}")]
pub struct InvalidName {
    kind: &'static str,
    problem: &'static str,
    text: String,
}

fn check(kind: &'static str, text: String) -> Result<String, InvalidName> {
    let problem = if text.is_empty() {
        "it is empty"
    } else if text.len() > 200 {
        "it is longer than 200 bytes"
    } else if text.chars().any(char::is_control) {
        "it contains a control character"
    } else {
        return Ok(text);
    };
    Err(InvalidName {
        kind,
        problem,
        text,
    })
}

macro_rules! name {
    ($(#[$doc:meta])* $type:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $type(String);

        impl $type {
            /// Checks and wraps a name: 1 to 200 bytes, no control characters.
            pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
                check($kind, text.into()).map($type)
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $type {
            type Error = InvalidName;
            fn try_from(text: String) -> Result<Self, InvalidName> {
                $type::new(text)
            }
        }

        impl std::str::FromStr for $type {
            type Err = InvalidName;
            fn from_str(text: &str) -> Result<Self, InvalidName> {
                $type::new(text)
            }
        }

        impl From<$type> for String {
            fn from(name: $type) -> String {
                name.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(&self.0)
            }
        }
    };
}

name!(
    /// Identifies a task within a suite, in the words of its source (`django__django-11099`,
    /// `org/name`).
    TaskId,
    "task id"
);
name!(
    /// Names one arm of an evaluation: the agent and what drives it.
    AgentName,
    "agent name"
);
name!(
    /// Tasks of one group share code or lineage: they are split together and resampled together.
    SourceGroup,
    "source group"
);

impl TaskId {
    /// A directory name that is unique to this id on every file system: ASCII letters, digits,
    /// `-`, `_` and `.` stay, every other byte becomes `%XX`, and so does a leading dot.
    pub fn directory_name(&self) -> String {
        use std::fmt::Write;
        let mut name = String::with_capacity(self.0.len());
        for (index, byte) in self.0.bytes().enumerate() {
            let plain = byte.is_ascii_alphanumeric()
                || matches!(byte, b'-' | b'_')
                || (byte == b'.' && index > 0);
            if plain {
                name.push(byte as char);
            } else {
                write!(name, "%{byte:02X}").expect("writing to a string succeeds");
            }
        }
        name
    }
}

/// Identifies one test as its runner prints it (`tests/test_a.py::test_b[1 - 2]`).
///
/// Unlike other names it may be long and may hold any character: parameters are part of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TestId(pub String);

impl TestId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for TestId {
    fn from(text: &str) -> Self {
        TestId(text.to_owned())
    }
}

impl std::fmt::Display for TestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_names_are_safe_and_distinct() {
        let names: Vec<_> = ["org/name", "org%2Fname", "..", ".hidden", "a__b-1", "é"]
            .iter()
            .map(|id| TaskId::new(*id).unwrap().directory_name())
            .collect();
        assert_eq!(
            names,
            [
                "org%2Fname",
                "org%252Fname",
                "%2E.",
                "%2Ehidden",
                "a__b-1",
                "%C3%A9"
            ]
        );
    }

    #[test]
    fn refuses_names_that_would_break_files_and_terminals() {
        assert!(TaskId::new("").is_err());
        assert!(TaskId::new("a\nb").is_err());
        assert!(TaskId::new("a\u{1b}[31m").is_err());
        assert!(TaskId::new("x".repeat(201)).is_err());
        assert!(serde_json::from_str::<TaskId>("\"\"").is_err());
    }
}
