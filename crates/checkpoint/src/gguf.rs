//! GGUF files, versions 2 and 3: typed metadata and tensors in one file.
//!
//! The reader is this crate's own. A header is walked once and checked whole; metadata stays in
//! the mapped file and is decoded when it is asked for, so a header of a gigabyte takes no more
//! memory than one of a kilobyte. Big-endian files, version 1 and files split into parts are
//! refused with the reason.

mod config;
mod header;
#[cfg(test)]
mod tests;
mod vocabulary;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use crate::{
    config::{Architecture, ConfigError, ModelConfig},
    file::{FileError, MappedFile},
    names::{Projection, TensorName},
    tensor::{Encoding, TensorView},
    tokenizer::GgufVocabulary,
};
use header::{Header, TensorInfo};

/// An opened GGUF file.
#[derive(Debug)]
pub struct Gguf {
    file: MappedFile,
    header: Header,
}

/// A metadata value, borrowed from the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// An unsigned integer of 8 to 64 bits.
    Unsigned(u64),
    /// A signed integer of 8 to 64 bits.
    Signed(i64),
    /// A floating-point number of 32 or 64 bits.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text; formally UTF-8, which [`Value::as_str`] checks.
    String(&'a [u8]),
    /// A list of values of one type.
    Array(Array<'a>),
}

/// A list of metadata values, decoded as it is walked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Array<'a> {
    kind: header::Kind,
    len: usize,
    bytes: &'a [u8],
}

/// Why a GGUF file cannot be used. Every message names the file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// It cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// It does not begin as a GGUF file.
    #[error("read {}: it is no GGUF file", .path.display())]
    Magic {
        /// The file.
        path: PathBuf,
    },
    /// It is of a kind that is not read.
    #[error("read {}: {what}", .path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: String,
    },
    /// Its header contradicts itself or the file's length.
    #[error("read {} at byte {offset}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        offset: usize,
        /// What is wrong.
        reason: String,
    },
    /// A metadata value is missing or has another type.
    #[error("read {}: {key} is {got}, expected {expected}", .path.display())]
    Metadata {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        got: String,
    },
    /// The model it describes cannot be used.
    #[error("{source} ({})", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
}

impl Gguf {
    /// Maps a file and checks its header.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let file = MappedFile::open(path)?;
        let header = header::parse(file.bytes()).map_err(|error| error.at(path))?;
        Ok(Gguf { file, header })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file's length in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// The metadata keys, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.header.metadata.keys().map(String::as_str)
    }

    /// A metadata value.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        let entry = self.header.metadata.get(key)?;
        Some(header::value(
            entry.kind,
            &self.file.bytes()[entry.range.clone()],
        ))
    }

    /// A text of the metadata; `None` when the key is absent.
    pub fn string(&self, key: &str) -> Result<Option<&str>, GgufError> {
        self.typed(key, "a text", |value| value.as_str())
    }

    /// A whole number of the metadata; `None` when the key is absent.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        self.typed(key, "a whole number", |value| value.as_u64())
    }

    /// A number of the metadata; `None` when the key is absent.
    pub fn float(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.typed(key, "a number", |value| match value {
            Value::Float(value) => Some(value),
            Value::Unsigned(value) => Some(value as f64),
            Value::Signed(value) => Some(value as f64),
            _ => None,
        })
    }

    /// A truth value of the metadata; `None` when the key is absent.
    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.typed(key, "true or false", |value| match value {
            Value::Bool(value) => Some(value),
            _ => None,
        })
    }

    /// A list of the metadata; `None` when the key is absent.
    pub fn array(&self, key: &str) -> Result<Option<Array<'_>>, GgufError> {
        self.typed(key, "a list", |value| match value {
            Value::Array(array) => Some(array),
            _ => None,
        })
    }

    /// The names of the tensors as the file has them, sorted.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(String::as_str)
    }

    /// A tensor by the file's own name for it, with its shape outermost first.
    pub fn raw_tensor(&self, name: &str) -> Option<TensorView<'_>> {
        let info = self.header.tensors.get(name)?;
        Some(self.view(name.to_owned(), info))
    }

    /// What the model is.
    pub fn config(&self) -> Result<ModelConfig, GgufError> {
        config::read(self)
    }

    /// The tokenizer's vocabulary, templates included; `None` when the file holds none.
    pub fn vocabulary(&self) -> Result<Option<GgufVocabulary>, GgufError> {
        vocabulary::read(self)
    }

    /// A tensor of the model `config`, as the rest of Temper expects it: the query and key rows of
    /// Llama files, which are stored for rotation of neighbouring elements, are put back into the
    /// order of rotation by halves. `None` when the file has no such tensor.
    pub fn tensor(&self, name: TensorName, config: &ModelConfig) -> Option<TensorView<'_>> {
        let info = self.header.tensors.get(&name.gguf())?;
        let mut view = self.view(name.to_string(), info);
        if config.architecture == Architecture::Llama
            && let TensorName::Weight(_, Projection::Q | Projection::K) = name
        {
            view.bytes = Cow::Owned(rows_by_halves(&view.bytes, view.n_rows(), config.head_dim));
        }
        Some(view)
    }

    /// The encodings of all tensors with their numbers of elements.
    pub fn encodings(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for info in self.header.tensors.values() {
            *sums.entry(info.encoding.name()).or_default() +=
                info.shape.iter().product::<usize>() as u64;
        }
        sums
    }

    fn view(&self, name: String, info: &TensorInfo) -> TensorView<'_> {
        TensorView {
            name,
            shape: info.shape.clone(),
            encoding: info.encoding,
            bytes: Cow::Borrowed(&self.file.bytes()[info.range.clone()]),
        }
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match read(value) {
            Some(value) => Ok(Some(value)),
            None => Err(GgufError::Metadata {
                path: self.path().to_owned(),
                key: key.to_owned(),
                expected,
                got: value.describe(),
            }),
        }
    }
}

impl<'a> Value<'a> {
    /// The text, when it is one and valid UTF-8.
    pub fn as_str(self) -> Option<&'a str> {
        match self {
            Value::String(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The whole number, when it is one and not negative.
    pub fn as_u64(self) -> Option<u64> {
        match self {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    fn describe(self) -> String {
        match self {
            Value::Unsigned(value) => value.to_string(),
            Value::Signed(value) => value.to_string(),
            Value::Float(value) => value.to_string(),
            Value::Bool(value) => value.to_string(),
            Value::String(bytes) => {
                let start = &bytes[..bytes.len().min(400)];
                format!(
                    "{:?}",
                    crate::config::shorten(&String::from_utf8_lossy(start))
                )
            }
            Value::Array(array) => format!("a list of {}", array.len),
        }
    }
}

impl<'a> Array<'a> {
    /// How many values it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its values in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        header::values(self.kind, self.len, self.bytes)
    }
}

/// Rows `[head, pair, half]` put into the order `[head, half, pair]`. Blocks lie along rows, so
/// this holds for quantised rows too.
fn rows_by_halves(bytes: &[u8], n_rows: usize, head_dim: usize) -> Vec<u8> {
    // Shapes are checked against the configuration later; until then, what does not fit stays.
    if n_rows == 0 || !n_rows.is_multiple_of(head_dim) {
        return bytes.to_vec();
    }
    let row_bytes = bytes.len() / n_rows;
    let mut out = Vec::with_capacity(bytes.len());
    for head in 0..n_rows / head_dim {
        for half in 0..2 {
            for pair in 0..head_dim / 2 {
                let row = head * head_dim + 2 * pair + half;
                out.extend_from_slice(&bytes[row * row_bytes..(row + 1) * row_bytes]);
            }
        }
    }
    out
}

/// The encoding that a tensor type of the file format means, or its name when it is not read.
fn encoding(kind: u32) -> Result<Encoding, String> {
    Ok(match kind {
        0 => Encoding::F32,
        1 => Encoding::F16,
        2 => Encoding::Q4_0,
        3 => Encoding::Q4_1,
        6 => Encoding::Q5_0,
        7 => Encoding::Q5_1,
        8 => Encoding::Q8_0,
        10 => Encoding::Q2K,
        11 => Encoding::Q3K,
        12 => Encoding::Q4K,
        13 => Encoding::Q5K,
        14 => Encoding::Q6K,
        30 => Encoding::Bf16,
        9 => return Err("Q8_1".into()),
        15 => return Err("Q8_K".into()),
        16 => return Err("IQ2_XXS".into()),
        17 => return Err("IQ2_XS".into()),
        18 => return Err("IQ3_XXS".into()),
        19 => return Err("IQ1_S".into()),
        20 => return Err("IQ4_NL".into()),
        21 => return Err("IQ3_S".into()),
        22 => return Err("IQ2_S".into()),
        23 => return Err("IQ4_XS".into()),
        28 => return Err("F64".into()),
        29 => return Err("IQ1_M".into()),
        34 => return Err("TQ1_0".into()),
        35 => return Err("TQ2_0".into()),
        39 => return Err("MXFP4".into()),
        other => return Err(format!("type {other}")),
    })
}
