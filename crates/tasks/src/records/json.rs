//! JSON in its three shapes. Nesting is bounded by the parser (128 levels).

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use super::{MAX_JSON_BYTES, MAX_RECORDS};
use crate::error::{Cause, LoadError, read_bounded};

pub(super) fn read(path: &Path, id_field: &str) -> Result<Vec<Map<String, Value>>, LoadError> {
    let bytes = read_bounded(path, MAX_JSON_BYTES)?;
    let mut records = Vec::new();
    let mut n_documents = 0;
    let mut lone_list = false;
    let failed = |record: usize, cause| LoadError::read(path, cause).in_record(record.to_string());
    for document in serde_json::Deserializer::from_slice(&bytes).into_iter::<Document>() {
        let document = document
            .map_err(|error| failed(records.len() + 1, Cause::Syntax(explain(&error, &bytes))))?;
        n_documents += 1;
        if lone_list {
            let cause = Cause::Syntax("there is more after the list or object by id".to_owned());
            return Err(LoadError::read(path, cause));
        }
        match document {
            Document::List(items) => {
                lone_list = true;
                for item in items {
                    let record = records.len() + 1;
                    match item {
                        Value::Object(fields) => push(path, &mut records, fields)?,
                        _ => return Err(failed(record, expected_object(&item))),
                    }
                }
            }
            Document::Pairs(pairs) => {
                // An instance has its id as a field; an object by id has instances as values.
                let by_id = n_documents == 1
                    && !pairs.iter().any(|(key, _)| key == id_field)
                    && pairs.iter().all(|(_, value)| value.is_object());
                if by_id {
                    lone_list = true;
                    for fields in by_id_records(path, id_field, pairs)? {
                        push(path, &mut records, fields)?;
                    }
                } else {
                    let record = records.len() + 1;
                    let mut fields = Map::new();
                    for (key, value) in pairs {
                        if fields.insert(key.clone(), value).is_some() {
                            let cause = Cause::Invalid("it appears twice".to_owned());
                            return Err(failed(record, cause).in_field(key));
                        }
                    }
                    push(path, &mut records, fields)?;
                }
            }
            Document::Other(value) => {
                return Err(failed(records.len() + 1, expected_object(&value)));
            }
        }
        if n_documents > 1 && lone_list {
            let cause = Cause::Syntax("a list cannot be a line among others".to_owned());
            return Err(LoadError::read(path, cause));
        }
    }
    Ok(records)
}

fn by_id_records(
    path: &Path,
    id_field: &str,
    pairs: Vec<(String, Value)>,
) -> Result<Vec<Map<String, Value>>, LoadError> {
    let mut records = Vec::new();
    for (id, value) in pairs {
        let Value::Object(mut fields) = value else {
            return Err(LoadError::read(path, expected_object(&value)).in_record(id));
        };
        let own = fields
            .entry(id_field)
            .or_insert_with(|| Value::String(id.clone()));
        if *own != Value::String(id.clone()) {
            let cause = Cause::Invalid(format!("it stands under the id {id:?}, but says {own}"));
            return Err(LoadError::read(path, cause)
                .in_record(id)
                .in_field(id_field));
        }
        records.push(fields);
    }
    Ok(records)
}

fn push(
    path: &Path,
    records: &mut Vec<Map<String, Value>>,
    fields: Map<String, Value>,
) -> Result<(), LoadError> {
    if records.len() >= MAX_RECORDS {
        let cause = Cause::TooLarge {
            what: "records",
            limit: MAX_RECORDS as u64,
        };
        return Err(LoadError::read(path, cause));
    }
    records.push(fields);
    Ok(())
}

fn expected_object(got: &Value) -> Cause {
    Cause::Type {
        expected: "an object with fields",
        got: crate::error::shorten(&got.to_string()),
    }
}

/// The parser's message, and the word at the place, since `NaN` is what Python writes there.
fn explain(error: &serde_json::Error, bytes: &[u8]) -> String {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .nth(error.line().saturating_sub(1))
        .unwrap_or_default();
    let from = error.column().saturating_sub(2).min(line.len());
    let word: Vec<u8> = line[from..]
        .iter()
        .copied()
        .skip_while(|byte| !byte.is_ascii_alphabetic())
        .take_while(u8::is_ascii_alphabetic)
        .take(10)
        .collect();
    match word.as_slice() {
        b"NaN" | b"Infinity" | b"aN" => format!("{error} (NaN or Infinity is no JSON)"),
        _ => error.to_string(),
    }
}

/// A JSON document, its top level kept in order and with repeated keys.
enum Document {
    List(Vec<Value>),
    Pairs(Vec<(String, Value)>),
    Other(Value),
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Document;
            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list or an object")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Document, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Document::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Document, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = entries.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Document::Pairs(pairs))
            }
            fn visit_str<E>(self, text: &str) -> Result<Document, E> {
                Ok(Document::Other(text.into()))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Document, E> {
                Ok(Document::Other(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Document, E> {
                Ok(Document::Other(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Document, E> {
                Ok(Document::Other(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Document, E> {
                Ok(Document::Other(value.into()))
            }
            fn visit_unit<E>(self) -> Result<Document, E> {
                Ok(Document::Other(Value::Null))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}
