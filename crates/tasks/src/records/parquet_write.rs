//! Parquet, as data sets are published: one column per field that every row has, with one simple
//! type. Everything else of a row is in the column [`super::FIELDS`], so nothing is lost.

use std::{io::Write, sync::Arc};

use ::parquet::{
    basic::Compression,
    column::writer::ColumnWriter,
    data_type::ByteArray,
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};
use serde_json::{Map, Value};

const ROWS_PER_GROUP: usize = 10_000;

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Text,
    Integer,
    Float,
    Boolean,
    Texts,
}

/// Writes rows. A row that is read back has the same fields with the same values.
pub(crate) fn write(
    rows: &[Map<String, Value>],
    file: &mut (impl Write + Send),
) -> Result<(), String> {
    write_rows(rows, file).map_err(|error| error.to_string())
}

fn write_rows(
    rows: &[Map<String, Value>],
    file: &mut (impl Write + Send),
) -> Result<(), ParquetError> {
    let columns = columns(rows);
    let rest: Vec<Value> = rows
        .iter()
        .map(|row| {
            let rest: Map<String, Value> = row
                .iter()
                .filter(|(field, _)| !columns.iter().any(|(column, _)| column == *field))
                .map(|(field, value)| (field.clone(), value.clone()))
                .collect();
            if rest.is_empty() {
                Value::Null
            } else {
                Value::String(Value::Object(rest).to_string())
            }
        })
        .collect();
    let has_rest = rest.iter().any(|value| !value.is_null());
    let schema = Arc::new(parse_message_type(&message(&columns, has_rest))?);
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        // The library's version would make equal exports differ.
        .set_created_by("temper".to_owned())
        .build();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties))?;
    for from in (0..rows.len()).step_by(ROWS_PER_GROUP) {
        let to = (from + ROWS_PER_GROUP).min(rows.len());
        let mut group = writer.next_row_group()?;
        for (column, kind) in &columns {
            let values: Vec<&Value> = rows[from..to].iter().map(|row| &row[column]).collect();
            write_column(&mut group, *kind, &values)?;
        }
        if has_rest {
            let values: Vec<&Value> = rest[from..to].iter().collect();
            write_column(&mut group, Type::Text, &values)?;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(())
}

/// The fields with a column of their own, in the order of the first row.
fn columns(rows: &[Map<String, Value>]) -> Vec<(String, Type)> {
    let Some(first) = rows.first() else {
        return Vec::new();
    };
    first
        .keys()
        .filter(|field| is_plain(field) && *field != super::FIELDS)
        .filter_map(|field| {
            let mut kind = None;
            for row in rows {
                let found = match row.get(field)? {
                    Value::Null => continue,
                    value => type_of(value)?,
                };
                if *kind.get_or_insert(found) != found {
                    return None;
                }
            }
            Some((field.clone(), kind?))
        })
        .collect()
}

/// Whether a schema's text can hold the name.
fn is_plain(field: &str) -> bool {
    field.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && field
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn type_of(value: &Value) -> Option<Type> {
    match value {
        Value::String(_) => Some(Type::Text),
        Value::Bool(_) => Some(Type::Boolean),
        Value::Number(number) if number.is_i64() => Some(Type::Integer),
        Value::Number(number) if number.is_f64() => Some(Type::Float),
        Value::Array(items) if items.iter().all(Value::is_string) => Some(Type::Texts),
        _ => None,
    }
}

fn message(columns: &[(String, Type)], has_rest: bool) -> String {
    let mut text = String::from("message row {\n");
    for (name, kind) in columns {
        text.push_str(&match kind {
            Type::Text => format!("optional binary {name} (UTF8);\n"),
            Type::Integer => format!("optional int64 {name};\n"),
            Type::Float => format!("optional double {name};\n"),
            Type::Boolean => format!("optional boolean {name};\n"),
            Type::Texts => format!(
                "optional group {name} (LIST) {{ repeated group list {{ optional binary element (UTF8); }} }}\n"
            ),
        });
    }
    if has_rest {
        text.push_str(&format!("optional binary {} (UTF8);\n", super::FIELDS));
    }
    text.push('}');
    text
}

fn write_column(
    group: &mut ::parquet::file::writer::SerializedRowGroupWriter<'_, impl Write + Send>,
    kind: Type,
    values: &[&Value],
) -> Result<(), ParquetError> {
    let mut column = group
        .next_column()?
        .ok_or_else(|| ParquetError::General("the schema has too few columns".to_owned()))?;
    let present: Vec<i16> = values
        .iter()
        .map(|value| i16::from(!value.is_null()))
        .collect();
    match (kind, column.untyped()) {
        (Type::Text, ColumnWriter::ByteArrayColumnWriter(writer)) => {
            let texts: Vec<ByteArray> = values
                .iter()
                .filter_map(|v| v.as_str())
                .map(ByteArray::from)
                .collect();
            writer.write_batch(&texts, Some(&present), None)?;
        }
        (Type::Integer, ColumnWriter::Int64ColumnWriter(writer)) => {
            let numbers: Vec<i64> = values.iter().filter_map(|v| v.as_i64()).collect();
            writer.write_batch(&numbers, Some(&present), None)?;
        }
        (Type::Float, ColumnWriter::DoubleColumnWriter(writer)) => {
            let numbers: Vec<f64> = values.iter().filter_map(|v| v.as_f64()).collect();
            writer.write_batch(&numbers, Some(&present), None)?;
        }
        (Type::Boolean, ColumnWriter::BoolColumnWriter(writer)) => {
            let flags: Vec<bool> = values.iter().filter_map(|v| v.as_bool()).collect();
            writer.write_batch(&flags, Some(&present), None)?;
        }
        (Type::Texts, ColumnWriter::ByteArrayColumnWriter(writer)) => {
            let (mut texts, mut definition, mut repetition) = (Vec::new(), Vec::new(), Vec::new());
            for value in values {
                match value.as_array().map(Vec::as_slice) {
                    None => {
                        definition.push(0);
                        repetition.push(0);
                    }
                    Some([]) => {
                        definition.push(1);
                        repetition.push(0);
                    }
                    Some(items) => {
                        for (index, item) in items.iter().enumerate() {
                            definition.push(3);
                            repetition.push(i16::from(index > 0));
                            texts.push(ByteArray::from(item.as_str().unwrap_or_default()));
                        }
                    }
                }
            }
            writer.write_batch(&texts, Some(&definition), Some(&repetition))?;
        }
        (kind, _) => {
            return Err(ParquetError::General(format!(
                "the schema has no column of type {kind:?} here"
            )));
        }
    }
    column.close()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rows_come_back_as_they_were() {
        let rows: Vec<Map<String, Value>> = [
            json!({"id": "a", "n": 1, "x": 0.5, "is": true, "list": ["é", ""], "odd name": 1, "mixed": 1, "object": {"a": [null]}, "null": null, "some": 1, "huge": u64::MAX}),
            json!({"id": "", "n": null, "x": -1.0, "is": false, "list": [], "odd name": [], "mixed": "1", "object": null, "null": null, "huge": 1}),
            json!({"id": "c", "n": i64::MIN, "x": null, "is": null, "list": null, "odd name": {}, "mixed": null, "object": {}, "null": null, "late": "x", "huge": 2}),
        ]
        .into_iter()
        .map(|row| row.as_object().unwrap().clone())
        .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        for rows in [&rows[..], &rows[..1], &rows[1..2]] {
            write(rows, &mut std::fs::File::create(&path).unwrap()).unwrap();
            assert_eq!(super::super::parquet::read(&path).unwrap(), rows);
        }
        let many: Vec<_> = (0..2 * ROWS_PER_GROUP + 1)
            .map(|n| {
                json!({"n": n, "list": vec![n.to_string(); n % 3]})
                    .as_object()
                    .unwrap()
                    .clone()
            })
            .collect();
        write(&many, &mut std::fs::File::create(&path).unwrap()).unwrap();
        assert_eq!(super::super::parquet::read(&path).unwrap(), many);
    }
}
