//! Files of records: a JSON list, a JSON object by id, JSON lines, Parquet. What a record means is
//! for the format that reads it; here it is an object with fields.

mod json;
mod parquet;
mod parquet_write;
mod stream;

use std::path::Path;

use serde_json::{Map, Value};
use temper_core::{Patch, TaskId, TestId};

use crate::error::{Cause, LoadError, shorten};

pub(crate) use parquet_write::write as write_parquet;

/// A column of Parquet files that holds, as JSON text, the fields of a row that have no column of
/// their own, because not every row has them or their types differ.
pub(crate) const FIELDS: &str = "temper_fields";
pub(crate) use stream::for_each;

/// More records than any published set of tasks holds.
const MAX_RECORDS: usize = 500_000;
/// A larger JSON file should be split, or be Parquet.
const MAX_JSON_BYTES: u64 = 1 << 30;
/// A text field of more than this is no statement, patch or list of tests.
const MAX_TEXT_BYTES: usize = 64 << 20;

/// One record, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    file: &'a Path,
    /// Its number counted from 1, and its id once that is known.
    name: String,
    fields: Map<String, Value>,
}

/// Whether a file is one that this module reads, by its name.
pub(crate) fn is_record_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| {
        ["json", "jsonl", "ndjson", "parquet"]
            .iter()
            .any(|known| extension.eq_ignore_ascii_case(known))
    })
}

/// Reads all records. With `id_field`, an object whose values are objects is taken as records by
/// id.
pub(crate) fn read<'a>(path: &'a Path, id_field: &str) -> Result<Vec<Record<'a>>, LoadError> {
    let starts_as_parquet = {
        use std::io::Read;
        let mut magic = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(4).read_to_end(&mut magic))
            .map_err(|error| LoadError::read(path, error))?;
        magic == b"PAR1"
    };
    let fields = if starts_as_parquet {
        parquet::read(path)?
    } else {
        json::read(path, id_field)?
    };
    if fields.is_empty() {
        let cause = Cause::Invalid("it holds no records".to_owned());
        return Err(LoadError::read(path, cause));
    }
    Ok(fields
        .into_iter()
        .enumerate()
        .map(|(index, fields)| Record {
            file: path,
            name: (index + 1).to_string(),
            fields,
        })
        .collect())
}

/// A list of tests as a field holds it: a list, or a text that holds one as JSON.
pub(crate) fn tests_of(value: Option<&Value>) -> Option<Vec<TestId>> {
    match value? {
        Value::String(text) => serde_json::from_str(text).ok(),
        list => serde_json::from_value(list.clone()).ok(),
    }
}

impl<'a> Record<'a> {
    /// A record of `file` that was not read from there.
    pub(crate) fn of(file: &'a Path, fields: Map<String, Value>) -> Record<'a> {
        Record {
            file,
            name: String::new(),
            fields,
        }
    }
}

impl Record<'_> {
    /// Every field that nobody took yet.
    pub(crate) fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// Takes a field away, whatever it holds.
    pub(crate) fn drop_field(&mut self, field: &str) {
        self.fields.shift_remove(field);
    }

    /// An error about this record.
    pub(crate) fn error(&self, cause: impl Into<Cause>, field: &str) -> LoadError {
        LoadError::read(self.file, cause)
            .in_record(self.name.clone())
            .in_field(field)
    }

    /// Whether the record has the field, and it is not null.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.get(field).is_some_and(|value| !value.is_null())
    }

    /// Takes the record's id. From then on errors name it.
    pub(crate) fn take_id(&mut self, field: &str) -> Result<TaskId, LoadError> {
        let text = self.take_text(field)?;
        let id = TaskId::new(text).map_err(|error| self.error(error.to_string(), field))?;
        self.name = format!("{} ({id})", self.name);
        Ok(id)
    }

    /// Takes a text that must be there.
    pub(crate) fn take_text(&mut self, field: &str) -> Result<String, LoadError> {
        self.take_optional_text(field)?
            .ok_or_else(|| self.error(Cause::Missing, field))
    }

    /// Takes a text that may be missing or null.
    pub(crate) fn take_optional_text(&mut self, field: &str) -> Result<Option<String>, LoadError> {
        match self.fields.shift_remove(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) if text.len() > MAX_TEXT_BYTES => Err(self.error(
                Cause::TooLarge {
                    what: "bytes",
                    limit: MAX_TEXT_BYTES as u64,
                },
                field,
            )),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong_type("text", &other, field)),
        }
    }

    /// Takes a patch; missing, null and empty are the same.
    pub(crate) fn take_patch(&mut self, field: &str) -> Result<Patch, LoadError> {
        let text = self.take_optional_text(field)?.unwrap_or_default();
        Ok(Patch(text.into_bytes().into()))
    }

    /// Takes a list of tests: a list, or a text that holds one as JSON.
    pub(crate) fn take_tests(&mut self, field: &str) -> Result<Vec<TestId>, LoadError> {
        let value = match self.fields.shift_remove(field) {
            None | Some(Value::Null) => return Err(self.error(Cause::Missing, field)),
            Some(Value::String(text)) => serde_json::from_str(&text).map_err(|error| {
                self.error(
                    format!("expected a JSON list inside the text: {error}"),
                    field,
                )
            })?,
            Some(value) => value,
        };
        let Value::Array(items) = value else {
            return Err(self.wrong_type("a list of tests", &value, field));
        };
        items
            .into_iter()
            .map(|item| match item {
                Value::String(text) if !text.is_empty() => Ok(TestId(text)),
                other => Err(self.wrong_type("the name of a test", &other, field)),
            })
            .collect()
    }

    /// What nobody took.
    pub(crate) fn into_rest(self) -> Map<String, Value> {
        self.fields
    }

    fn wrong_type(&self, expected: &'static str, got: &Value, field: &str) -> LoadError {
        let cause = Cause::Type {
            expected,
            got: shorten(&got.to_string()),
        };
        self.error(cause, field)
    }
}
