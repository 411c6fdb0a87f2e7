//! Records one by one, for files that are larger than memory. The shapes are those of [`super`],
//! and gzip around JSON; an object by id gives its values without looking at the keys.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::Path,
};

use serde::{
    Deserializer as _,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::error::{Cause, LoadError};

/// Receives a record.
pub(crate) type Each<'a> = dyn FnMut(Map<String, Value>) + 'a;

/// Calls `each` with every record. Records before a damaged one have been given when the error
/// comes back.
pub(crate) fn for_each(path: &Path, each: &mut Each<'_>) -> Result<(), LoadError> {
    let open = || File::open(path).map_err(|error| LoadError::read(path, error));
    let mut magic = Vec::new();
    open()?
        .take(4)
        .read_to_end(&mut magic)
        .map_err(|error| LoadError::read(path, error))?;
    if magic == b"PAR1" {
        return super::parquet::for_each(path, each);
    }
    let reader: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::read::MultiGzDecoder::new(BufReader::new(open()?)))
    } else {
        Box::new(open()?)
    };
    let mut deserializer =
        serde_json::Deserializer::from_reader(BufReader::with_capacity(1 << 20, reader));
    let failed = |error: serde_json::Error| {
        LoadError::read(path, Cause::Syntax(error.to_string()))
            .in_record(format!("near line {}", error.line()))
    };
    // `end` passes over white space and fails, having taken nothing, when there is more.
    while deserializer.end().is_err() {
        (&mut deserializer)
            .deserialize_any(Document(each))
            .map_err(failed)?;
    }
    Ok(())
}

struct Document<'a, 'b>(&'a mut Each<'b>);

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();
    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list or an object")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(Element(self.0))?.is_some() {}
        Ok(())
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        // A record has fields that are no objects; an object by id has nothing else.
        let mut fields = Map::new();
        while let Some((key, value)) = entries.next_entry::<String, Value>()? {
            match value {
                Value::Object(inner) if fields.is_empty() && inner.len() > 1 => (self.0)(inner),
                value => {
                    fields.insert(key, value);
                }
            }
        }
        if !fields.is_empty() {
            (self.0)(fields);
        }
        Ok(())
    }
}

struct Element<'a, 'b>(&'a mut Each<'b>);

impl<'de> DeserializeSeed<'de> for Element<'_, '_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value: Value = serde::Deserialize::deserialize(deserializer)?;
        match value {
            Value::Object(fields) => (self.0)(fields),
            other => {
                (self.0)(Map::from_iter([("text".to_owned(), other)]));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn ids(bytes: &[u8]) -> Result<Vec<String>, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        std::fs::write(&path, bytes).unwrap();
        let mut ids = Vec::new();
        for_each(&path, &mut |fields| {
            ids.push(fields.get("id").map_or(String::new(), Value::to_string));
        })?;
        Ok(ids)
    }

    #[test]
    fn every_shape_gives_its_records() {
        assert_eq!(
            ids(b"{\"id\":1}\n{\"id\":2,\"x\":{\"a\":1,\"b\":2}}\n\n").unwrap(),
            ["1", "2"]
        );
        assert_eq!(ids(b"[{\"id\":1}, {\"id\":2}]").unwrap(), ["1", "2"]);
        assert_eq!(
            ids(b"{\"a\":{\"id\":1,\"x\":0},\"b\":{\"id\":2,\"x\":0}}").unwrap(),
            ["1", "2"]
        );
        assert_eq!(ids(b"").unwrap(), [""; 0]);
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"{\"id\":1}\n{\"id\":2}").unwrap();
        assert_eq!(ids(&gzip.finish().unwrap()).unwrap(), ["1", "2"]);
    }

    #[test]
    fn damage_is_an_error() {
        for bytes in [
            &b"{\"id\":1}\n{\"id\":"[..],
            b"[{\"id\":1}",
            b"nonsense",
            b"[1,]",
        ] {
            assert!(ids(bytes).is_err(), "{bytes:?}");
        }
    }
}
