//! The formats that every command offers.

use serde::Serialize;

/// How a command prints its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// Text tables for people.
    #[default]
    Table,
    /// One JSON document.
    Json,
    /// One JSON document a line.
    Jsonl,
}

impl Format {
    /// The names on the command line, in the order of the variants.
    pub const NAMES: [&'static str; 3] = ["table", "json", "jsonl"];

    /// A result as one value: its table, or its JSON, pretty in `json` and on one line in `jsonl`.
    pub fn one<T: Serialize>(self, value: &T, table: impl FnOnce() -> String) -> String {
        match self {
            Format::Table => table(),
            Format::Json => line(serde_json::to_string_pretty(value)),
            Format::Jsonl => line(serde_json::to_string(value)),
        }
    }

    /// A result as a list: its table, one JSON list, or one line per element.
    pub fn list<T: Serialize>(self, values: &[T], table: impl FnOnce() -> String) -> String {
        match self {
            Format::Table => table(),
            Format::Json => line(serde_json::to_string_pretty(values)),
            Format::Jsonl => values
                .iter()
                .map(|value| line(serde_json::to_string(value)))
                .collect(),
        }
    }
}

fn line(json: serde_json::Result<String>) -> String {
    let mut json = json.expect("plain data serializes to JSON");
    json.push('\n');
    json
}

/// The text names no format.
#[derive(Debug, thiserror::Error)]
#[error("read an output format: expected one of table, json, jsonl, got {0:?}")]
pub struct UnknownFormat(String);

impl std::str::FromStr for Format {
    type Err = UnknownFormat;
    fn from_str(text: &str) -> Result<Self, UnknownFormat> {
        match text {
            "table" => Ok(Format::Table),
            "json" => Ok(Format::Json),
            "jsonl" => Ok(Format::Jsonl),
            other => Err(UnknownFormat(other.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_formats_parse_back() {
        let values = vec!["a\nb".to_owned(), "c".to_owned()];
        let none = || unreachable!("a machine format makes no table");
        let jsonl = Format::Jsonl.list(&values, none);
        let back: Vec<String> = jsonl
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(back, values);
        let json = Format::Json.list(&values, none);
        assert_eq!(serde_json::from_str::<Vec<String>>(&json).unwrap(), values);
        assert_eq!(Format::Jsonl.one(&values, none).lines().count(), 1);
        assert_eq!(Format::Table.one(&values, || "t".into()), "t");
        for name in Format::NAMES {
            assert!(name.parse::<Format>().is_ok());
        }
        assert!("yaml".parse::<Format>().is_err());
    }
}
