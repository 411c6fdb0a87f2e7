//! Parquet, row by row, as the data sets are published.

use std::{fs, panic, path::Path};

use ::parquet::{
    file::reader::{FileReader, SerializedFileReader},
    record::{Field, Row},
};
use serde_json::{Map, Number, Value};

use super::MAX_RECORDS;
use crate::error::{Cause, LoadError};

/// Uncompressed, by the file's own account. It bounds what an honest file costs.
const MAX_BYTES: i64 = 8 << 30;

pub(super) fn read(path: &Path) -> Result<Vec<Map<String, Value>>, LoadError> {
    let file = fs::File::open(path).map_err(|error| LoadError::read(path, error))?;
    // The reader has assertions that a damaged file can break; the file is at fault, not the
    // program.
    panic::catch_unwind(|| read_rows(path, file)).unwrap_or_else(|_| {
        let cause = Cause::Syntax("the Parquet file is damaged".to_owned());
        Err(LoadError::read(path, cause))
    })
}

fn read_rows(path: &Path, file: fs::File) -> Result<Vec<Map<String, Value>>, LoadError> {
    let syntax = |error: ::parquet::errors::ParquetError| {
        LoadError::read(path, Cause::Syntax(error.to_string()))
    };
    let reader = SerializedFileReader::new(file).map_err(syntax)?;
    let metadata = reader.metadata();
    let too_large = |what, limit| LoadError::read(path, Cause::TooLarge { what, limit });
    let n_rows = metadata.file_metadata().num_rows();
    if n_rows > MAX_RECORDS as i64 {
        return Err(too_large("records", MAX_RECORDS as u64));
    }
    let n_bytes = metadata
        .row_groups()
        .iter()
        .map(|group| group.total_byte_size().max(0))
        .fold(0i64, i64::saturating_add);
    if n_bytes > MAX_BYTES {
        return Err(too_large("bytes", MAX_BYTES as u64));
    }
    let mut records = Vec::new();
    for row in reader.get_row_iter(None).map_err(syntax)? {
        let number = records.len() + 1;
        if number > MAX_RECORDS {
            return Err(too_large("records", MAX_RECORDS as u64));
        }
        let fields = row
            .map_err(syntax)
            .and_then(|row| {
                object(row)
                    .and_then(with_own_fields)
                    .map_err(|(field, cause)| LoadError::read(path, cause).in_field(field))
            })
            .map_err(|error| error.in_record(number.to_string()))?;
        records.push(fields);
    }
    Ok(records)
}

/// Gives the rows one by one, in memory that a row group bounds.
pub(super) fn for_each(path: &Path, each: &mut super::stream::Each<'_>) -> Result<(), LoadError> {
    let file = fs::File::open(path).map_err(|error| LoadError::read(path, error))?;
    let read = panic::AssertUnwindSafe(|| {
        let syntax = |error: ::parquet::errors::ParquetError| {
            LoadError::read(path, Cause::Syntax(error.to_string()))
        };
        let reader = SerializedFileReader::new(file).map_err(syntax)?;
        for (index, row) in reader.get_row_iter(None).map_err(syntax)?.enumerate() {
            let fields = object(row.map_err(syntax)?).map_err(|(field, cause)| {
                LoadError::read(path, cause)
                    .in_record((index + 1).to_string())
                    .in_field(field)
            })?;
            each(fields);
        }
        Ok(())
    });
    panic::catch_unwind(read).unwrap_or_else(|_| {
        let cause = Cause::Syntax("the Parquet file is damaged".to_owned());
        Err(LoadError::read(path, cause))
    })
}

type Refused = (String, Cause);

fn object(row: Row) -> Result<Map<String, Value>, Refused> {
    row.into_columns()
        .into_iter()
        .map(|(name, field)| {
            let value = value(&field).map_err(|cause| (name.clone(), cause))?;
            Ok((name, value))
        })
        .collect()
}

/// Puts the fields that had no column of their own back into the row.
fn with_own_fields(mut fields: Map<String, Value>) -> Result<Map<String, Value>, Refused> {
    if let Some(own) = fields.shift_remove(super::FIELDS)
        && let Value::String(text) = own
    {
        let own: Map<String, Value> = serde_json::from_str(&text)
            .map_err(|error| (super::FIELDS.to_owned(), Cause::Syntax(error.to_string())))?;
        fields.extend(own);
    }
    Ok(fields)
}

fn value(field: &Field) -> Result<Value, Cause> {
    Ok(match field {
        Field::Str(text) => Value::String(text.clone()),
        // Writers that leave the annotation out store text as plain bytes.
        Field::Bytes(bytes) => Value::String(
            String::from_utf8(bytes.data().to_vec())
                .map_err(|_| Cause::Syntax("it is not valid UTF-8".to_owned()))?,
        ),
        Field::Float16(number) => float(f64::from(*number))?,
        Field::Float(number) => float(f64::from(*number))?,
        Field::Double(number) => float(*number)?,
        Field::Group(row) => Value::Object(object(row.clone()).map_err(|(_, cause)| cause)?),
        Field::ListInternal(list) => Value::Array(
            list.elements()
                .iter()
                .map(value)
                .collect::<Result<_, _>>()?,
        ),
        Field::MapInternal(map) => Value::Object(
            map.entries()
                .iter()
                .map(|(key, item)| {
                    let key = match key {
                        Field::Str(key) => key.clone(),
                        other => other.to_string(),
                    };
                    Ok((key, value(item)?))
                })
                .collect::<Result<_, Cause>>()?,
        ),
        Field::Null => Value::Null,
        Field::Bool(value) => (*value).into(),
        Field::Byte(number) => (*number).into(),
        Field::Short(number) => (*number).into(),
        Field::Int(number) | Field::Date(number) | Field::TimeMillis(number) => (*number).into(),
        Field::Long(number)
        | Field::TimeMicros(number)
        | Field::TimestampMillis(number)
        | Field::TimestampMicros(number) => (*number).into(),
        Field::UByte(number) => (*number).into(),
        Field::UShort(number) => (*number).into(),
        Field::UInt(number) => (*number).into(),
        Field::ULong(number) => (*number).into(),
        Field::Decimal(_) => Value::String(field.to_string()),
    })
}

fn float(number: f64) -> Result<Value, Cause> {
    Number::from_f64(number)
        .map(Value::Number)
        .ok_or_else(|| Cause::Syntax("it is NaN or Infinity".to_owned()))
}
