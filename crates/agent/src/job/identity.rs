//! Tells whether two manifests describe the same job, and if not, where they part.

use serde_json::Value;
use temper_core::manifest::Manifest;

/// The first field in which the manifests differ, with both values as short text. The producer's
/// version counts: other code may give other results.
pub(super) fn first_difference(
    stored: &Manifest,
    given: &Manifest,
) -> Option<(String, String, String)> {
    let value = |manifest| serde_json::to_value(manifest).expect("a manifest is plain data");
    difference("", &value(stored), &value(given))
}

fn difference(path: &str, a: &Value, b: &Value) -> Option<(String, String, String)> {
    let join = |key: &str| {
        if path.is_empty() {
            key.to_owned()
        } else {
            format!("{path}.{key}")
        }
    };
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let missing = Value::Null;
            let mut keys: Vec<&String> = a.keys().chain(b.keys()).collect();
            keys.sort();
            keys.dedup();
            keys.into_iter().find_map(|key| {
                match (a.get(key), b.get(key)) {
                    // A key that one side lacks is a difference even from an explicit null.
                    (Some(a), None) => Some((join(key), short(a), "nothing".into())),
                    (None, Some(b)) => Some((join(key), "nothing".into(), short(b))),
                    (a, b) => difference(&join(key), a.unwrap_or(&missing), b.unwrap_or(&missing)),
                }
            })
        }
        (a, b) if a == b => None,
        (a, b) => Some((path.to_owned(), short(a), short(b))),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
