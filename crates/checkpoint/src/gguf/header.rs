//! The header: counts, metadata, tensor infos. Walked once, with every length checked against what
//! is left of the file before it is believed.

use std::{collections::BTreeMap, ops::Range, path::Path};

use super::{Array, GgufError, Value, encoding};
use crate::tensor::Encoding;

/// A longer key or tensor name is refused; the format's own limits are these or shorter.
const MAX_NAME_BYTES: usize = 65_535;
/// More keys or tensors are refused; large real files have a few thousand.
const MAX_ENTRIES: u64 = 1 << 16;
const MAX_DIMENSIONS: u32 = 4;
/// Lists within lists; real files have none.
const MAX_DEPTH: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
const MAX_ALIGNMENT: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Header {
    pub metadata: BTreeMap<String, Entry>,
    pub tensors: BTreeMap<String, TensorInfo>,
}

/// Where a metadata value lies.
#[derive(Debug)]
pub(super) struct Entry {
    pub kind: Kind,
    pub range: Range<usize>,
}

#[derive(Debug)]
pub(super) struct TensorInfo {
    /// Outermost first.
    pub shape: Vec<usize>,
    pub encoding: Encoding,
    pub range: Range<usize>,
}

/// The type of a metadata value, by the format's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl Kind {
    fn from_number(number: u32) -> Option<Self> {
        use Kind::*;
        const KINDS: [Kind; 13] = [
            U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64,
        ];
        KINDS.get(number as usize).copied()
    }

    /// Bytes of a value; `None` where they vary.
    fn size(self) -> Option<usize> {
        match self {
            Kind::U8 | Kind::I8 | Kind::Bool => Some(1),
            Kind::U16 | Kind::I16 => Some(2),
            Kind::U32 | Kind::I32 | Kind::F32 => Some(4),
            Kind::U64 | Kind::I64 | Kind::F64 => Some(8),
            Kind::String | Kind::Array => None,
        }
    }
}

/// What is wrong with a header; the file's name is added outside.
#[derive(Debug)]
pub(super) enum HeaderError {
    Magic,
    Unsupported(String),
    Malformed { offset: usize, reason: String },
}

impl HeaderError {
    pub(super) fn at(self, path: &Path) -> GgufError {
        let path = path.to_owned();
        match self {
            HeaderError::Magic => GgufError::Magic { path },
            HeaderError::Unsupported(what) => GgufError::Unsupported { path, what },
            HeaderError::Malformed { offset, reason } => GgufError::Malformed {
                path,
                offset,
                reason,
            },
        }
    }
}

pub(super) fn parse(bytes: &[u8]) -> Result<Header, HeaderError> {
    let mut reader = Reader { bytes, at: 0 };
    if bytes.len() < 4 || reader.take(4)? != b"GGUF" {
        return Err(HeaderError::Magic);
    }
    match reader.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err(HeaderError::Unsupported("it is a big-endian file".into()));
        }
        version => {
            return Err(HeaderError::Unsupported(format!(
                "its format is GGUF {version}, and 2 and 3 are read"
            )));
        }
    }
    let n_tensors = reader.count("tensors")?;
    let n_keys = reader.count("metadata keys")?;
    let metadata = reader.metadata(n_keys)?;
    let number = |key: &str| {
        metadata
            .get(key)
            .and_then(|entry| value(entry.kind, &bytes[entry.range.clone()]).as_u64())
    };
    if let Some(n_parts) = number("split.count").filter(|n_parts| *n_parts > 1) {
        return Err(HeaderError::Unsupported(format!(
            "it is one of {n_parts} parts of a model, and only whole files are read"
        )));
    }
    let alignment = match metadata.contains_key("general.alignment") {
        false => DEFAULT_ALIGNMENT,
        true => number("general.alignment")
            .filter(|value| value.is_power_of_two() && *value <= MAX_ALIGNMENT)
            .ok_or_else(|| {
                HeaderError::Unsupported("its alignment is no power of two up to a mebibyte".into())
            })?,
    };
    let tensors = reader.tensors(n_tensors, alignment)?;
    Ok(Header { metadata, tensors })
}

/// Decodes a value whose bytes [`parse`] checked.
pub(super) fn value(kind: Kind, bytes: &[u8]) -> Value<'_> {
    let mut reader = Reader { bytes, at: 0 };
    // The header was checked whole, so that the bytes suffice.
    reader.value(kind).unwrap_or(Value::Bool(false))
}

/// Decodes the values of a list whose bytes [`parse`] checked.
pub(super) fn values(kind: Kind, len: usize, bytes: &[u8]) -> impl Iterator<Item = Value<'_>> {
    let mut reader = Reader { bytes, at: 0 };
    (0..len).map_while(move |_| reader.value(kind).ok())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn malformed<T>(&self, reason: impl Into<String>) -> Result<T, HeaderError> {
        Err(HeaderError::Malformed {
            offset: self.at,
            reason: reason.into(),
        })
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], HeaderError> {
        match self.bytes[self.at..].get(..n) {
            Some(taken) => {
                self.at += n;
                Ok(taken)
            }
            None => self.malformed(format!(
                "{n} bytes are announced and {} are left",
                self.bytes.len() - self.at
            )),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32, HeaderError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, HeaderError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn count(&mut self, what: &str) -> Result<u64, HeaderError> {
        let count = self.u64()?;
        if count > MAX_ENTRIES {
            return self.malformed(format!(
                "{count} {what} are announced, and {MAX_ENTRIES} are allowed"
            ));
        }
        Ok(count)
    }

    fn length(&mut self) -> Result<usize, HeaderError> {
        let length = self.u64()?;
        match usize::try_from(length) {
            Ok(length) => Ok(length),
            Err(_) => self.malformed(format!("a length of {length}")),
        }
    }

    fn string(&mut self) -> Result<&'a [u8], HeaderError> {
        let length = self.length()?;
        self.take(length)
    }

    fn name(&mut self) -> Result<String, HeaderError> {
        let bytes = self.string()?;
        if bytes.len() > MAX_NAME_BYTES {
            return self.malformed(format!("a name of {} bytes", bytes.len()));
        }
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => self.malformed("a name that is not UTF-8"),
        }
    }

    fn kind(&mut self) -> Result<Kind, HeaderError> {
        let number = self.u32()?;
        match Kind::from_number(number) {
            Some(kind) => Ok(kind),
            None => self.malformed(format!("a metadata value of the unknown type {number}")),
        }
    }

    fn metadata(&mut self, n: u64) -> Result<BTreeMap<String, Entry>, HeaderError> {
        let mut metadata = BTreeMap::new();
        for _ in 0..n {
            let key = self.name()?;
            let kind = self.kind()?;
            let start = self.at;
            self.skip(kind, MAX_DEPTH)?;
            let entry = Entry {
                kind,
                range: start..self.at,
            };
            if metadata.contains_key(&key) {
                return self.malformed(format!("the metadata key {key:?} is there twice"));
            }
            metadata.insert(key, entry);
        }
        Ok(metadata)
    }

    fn skip(&mut self, kind: Kind, depth: u32) -> Result<(), HeaderError> {
        match kind {
            Kind::String => {
                self.string()?;
            }
            Kind::Array => {
                if depth == 0 {
                    return self.malformed("lists within lists, too deep");
                }
                let kind = self.kind()?;
                let length = self.length()?;
                match kind.size() {
                    Some(size) => match length.checked_mul(size) {
                        Some(n) => {
                            self.take(n)?;
                        }
                        None => return self.malformed(format!("a list of {length} values")),
                    },
                    // Each takes at least eight bytes, so the file's length bounds the walk.
                    None => {
                        for _ in 0..length {
                            self.skip(kind, depth - 1)?;
                        }
                    }
                }
            }
            _ => {
                self.take(kind.size().unwrap_or(0))?;
            }
        }
        Ok(())
    }

    fn value(&mut self, kind: Kind) -> Result<Value<'a>, HeaderError> {
        Ok(match kind {
            Kind::U8 => Value::Unsigned(u8::from_le_bytes(self.array()?).into()),
            Kind::U16 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            Kind::U32 => Value::Unsigned(self.u32()?.into()),
            Kind::U64 => Value::Unsigned(self.u64()?),
            Kind::I8 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            Kind::I16 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            Kind::I32 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            Kind::I64 => Value::Signed(i64::from_le_bytes(self.array()?)),
            Kind::F32 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            Kind::F64 => Value::Float(f64::from_le_bytes(self.array()?)),
            Kind::Bool => Value::Bool(self.take(1)? != [0]),
            Kind::String => Value::String(self.string()?),
            Kind::Array => {
                let kind = self.kind()?;
                let len = self.length()?;
                let start = self.at;
                match kind.size() {
                    Some(size) => self.at += (len * size).min(self.bytes.len() - start),
                    None => {
                        for _ in 0..len {
                            self.skip(kind, MAX_DEPTH)?;
                        }
                    }
                }
                Value::Array(Array {
                    kind,
                    len,
                    bytes: &self.bytes[start..self.at],
                })
            }
        })
    }

    /// Reads the tensor infos and places them in the data that follows.
    fn tensors(
        &mut self,
        n: u64,
        alignment: u64,
    ) -> Result<BTreeMap<String, TensorInfo>, HeaderError> {
        let mut tensors = BTreeMap::new();
        for _ in 0..n {
            let name = self.name()?;
            let n_dimensions = self.u32()?;
            if n_dimensions > MAX_DIMENSIONS {
                return self
                    .malformed(format!("the tensor {name:?} has {n_dimensions} dimensions"));
            }
            let mut shape = Vec::new();
            let mut n_elements = 1usize;
            for _ in 0..n_dimensions {
                let size = self.length()?;
                shape.push(size);
                n_elements = match n_elements.checked_mul(size) {
                    Some(n_elements) if size > 0 => n_elements,
                    _ => {
                        return self.malformed(format!("the tensor {name:?} has sizes {shape:?}"));
                    }
                };
            }
            // Files name the innermost dimension first.
            shape.reverse();
            let encoding = encoding(self.u32()?).map_err(|other| {
                HeaderError::Unsupported(format!(
                    "the tensor {name:?} is encoded as {other}, which is not supported"
                ))
            })?;
            let offset = self.length()?;
            let columns = shape.last().copied().unwrap_or(1);
            let n_bytes = encoding
                .row_bytes(columns)
                .and_then(|row| row.checked_mul(n_elements / columns));
            let (Some(n_bytes), true) = (n_bytes, (offset as u64).is_multiple_of(alignment)) else {
                return self.malformed(format!(
                    "the tensor {name:?} of sizes {shape:?} as {encoding} at {offset} does not fit its blocks or the alignment {alignment}"
                ));
            };
            // Relative to the data until it is known where they begin.
            let Some(end) = offset.checked_add(n_bytes) else {
                return self.malformed(format!("the tensor {name:?} begins at {offset}"));
            };
            if tensors.contains_key(&name) {
                return self.malformed(format!("the tensor {name:?} is there twice"));
            }
            tensors.insert(
                name,
                TensorInfo {
                    shape,
                    encoding,
                    range: offset..end,
                },
            );
        }
        self.place(&mut tensors, alignment as usize)?;
        Ok(tensors)
    }

    fn place(
        &self,
        tensors: &mut BTreeMap<String, TensorInfo>,
        alignment: usize,
    ) -> Result<(), HeaderError> {
        let data = self.at.next_multiple_of(alignment);
        for (name, info) in tensors.iter_mut() {
            let range = data
                .checked_add(info.range.start)
                .zip(data.checked_add(info.range.end));
            match range {
                Some((start, end)) if end <= self.bytes.len() => info.range = start..end,
                _ => {
                    return self.malformed(format!(
                        "the tensor {name:?} ends {} bytes into the data, and the file has {}; it may be truncated",
                        info.range.end,
                        self.bytes.len().saturating_sub(data)
                    ));
                }
            }
        }
        let mut order: Vec<(&String, &TensorInfo)> = tensors.iter().collect();
        order.sort_by_key(|(_, info)| info.range.start);
        for pair in order.windows(2) {
            if pair[1].1.range.start < pair[0].1.range.end {
                return self.malformed(format!(
                    "the tensors {:?} and {:?} overlap",
                    pair[0].0, pair[1].0
                ));
            }
        }
        Ok(())
    }
}
