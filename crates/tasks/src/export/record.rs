//! What a record says that a task has no place for: the shape of its fields.
//!
//! After a record was read, the record that would be written for the task is made and compared.
//! Fields that differ (a list written as text, a null instead of nothing) are kept in the task's
//! metadata under [`KEY`] and put back when the task is written in the same format. Records in the
//! usual shape keep nothing.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The key in a task's metadata.
pub(crate) const KEY: &str = "temper_record";

/// How a record differs from the one that is written for its task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Differences {
    /// The record's format.
    format: String,
    /// Fields with their own values.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    set: Map<String, Value>,
    /// Fields that the record does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    absent: Vec<String>,
}

/// Keeps in `metadata` what `written` would lose of `original`.
pub(crate) fn keep(
    format: &str,
    original: &Map<String, Value>,
    written: &Map<String, Value>,
    metadata: &mut Map<String, Value>,
) {
    let set: Map<String, Value> = original
        .iter()
        .filter(|(field, value)| written.get(*field) != Some(*value))
        .map(|(field, value)| (field.clone(), value.clone()))
        .collect();
    let absent: Vec<String> = written
        .keys()
        .filter(|field| !original.contains_key(*field))
        .cloned()
        .collect();
    if set.is_empty() && absent.is_empty() {
        return;
    }
    let differences = Differences {
        format: format.to_owned(),
        set,
        absent,
    };
    let value = serde_json::to_value(differences).expect("differences are plain data");
    metadata.insert(KEY.to_owned(), value);
}

/// Puts back into a record what was kept when a record of the same format was read.
pub(crate) fn put_back(
    format: &str,
    metadata: &Map<String, Value>,
    record: &mut Map<String, Value>,
) {
    let Some(differences) = metadata
        .get(KEY)
        .and_then(|value| serde_json::from_value::<Differences>(value.clone()).ok())
        .filter(|differences| differences.format == format)
    else {
        return;
    };
    for field in &differences.absent {
        record.shift_remove(field);
    }
    record.extend(differences.set);
}
