//! Safetensors files, alone or sharded by an index.
//!
//! Headers are parsed by the `safetensors` crate, after this module has bounded them; the data stay
//! in the mapped files.

#[cfg(test)]
mod tests;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use ::safetensors::tensor::{Dtype, Metadata};

use crate::{
    file::{FileError, MappedFile, read_small},
    tensor::{Encoding, TensorView},
};

/// The file that says which shard holds which tensor.
pub const INDEX_NAME: &str = "model.safetensors.index.json";
/// The weights of a model that is not sharded.
pub const SINGLE_NAME: &str = "model.safetensors";

/// A longer header is refused; one of a thousand tensors has about a hundred kilobytes.
const MAX_HEADER_BYTES: u64 = 8 << 20;
const MAX_INDEX_BYTES: u64 = 32 << 20;
const MAX_SHARDS: usize = 4096;
const MAX_DIMENSIONS: usize = 8;

/// One opened file.
#[derive(Debug)]
pub struct SafetensorsFile {
    file: MappedFile,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
}

/// The files of one model, seen as one.
#[derive(Debug)]
pub struct Shards {
    files: Vec<SafetensorsFile>,
    /// Which file holds a tensor.
    places: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct TensorInfo {
    shape: Vec<usize>,
    dtype: Dtype,
    range: Range<usize>,
}

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// A file cannot be opened.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is no safetensors file, or its header does not fit its length.
    #[error("read {}: {reason}", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A tensor is encoded in a way that models here are not.
    #[error("read {name} in {}: its elements are {dtype}, and F32, F16 and BF16 are read", .path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its data type.
        dtype: String,
    },
}

impl SafetensorsFile {
    /// Maps a file and checks its header: ranges in bounds, without gaps or overlaps, each as long
    /// as shape and data type ask for.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        SafetensorsFile::parse(MappedFile::open(path)?)
    }

    fn parse(file: MappedFile) -> Result<Self, SafetensorsError> {
        let malformed = |reason: String| SafetensorsError::Malformed {
            path: file.path().to_owned(),
            reason,
        };
        let bytes = file.bytes();
        let Some((length, rest)) = bytes.split_first_chunk::<8>() else {
            return Err(malformed("it is shorter than eight bytes".into()));
        };
        let length = u64::from_le_bytes(*length);
        if length > MAX_HEADER_BYTES {
            return Err(malformed(format!(
                "its header has {length} bytes, and {MAX_HEADER_BYTES} are allowed"
            )));
        }
        let length = length as usize;
        let Some(header) = rest.get(..length) else {
            return Err(malformed(format!(
                "its header has {length} bytes and the file {}; it may be truncated",
                bytes.len()
            )));
        };
        let header: Metadata =
            serde_json::from_slice(header).map_err(|error| malformed(error.to_string()))?;
        let data = 8 + length;
        if header.data_len() != bytes.len() - data {
            return Err(malformed(format!(
                "its tensors have {} bytes and the file holds {}; it may be truncated",
                header.data_len(),
                bytes.len() - data
            )));
        }
        let mut tensors = BTreeMap::new();
        for (name, info) in header.tensors() {
            if info.shape.len() > MAX_DIMENSIONS {
                return Err(malformed(format!(
                    "{name:?} has {} dimensions",
                    info.shape.len()
                )));
            }
            tensors.insert(
                name,
                TensorInfo {
                    shape: info.shape.clone(),
                    dtype: info.dtype,
                    range: data + info.data_offsets.0..data + info.data_offsets.1,
                },
            );
        }
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(SafetensorsFile {
            file,
            tensors,
            metadata: metadata.into_iter().collect(),
        })
    }

    /// The file's path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The file's length in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// The names of its tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Free-form texts of the header.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// A tensor; `None` when there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<Result<TensorView<'_>, SafetensorsError>> {
        let info = self.tensors.get(name)?;
        let encoding = match info.dtype {
            Dtype::F32 => Encoding::F32,
            Dtype::F16 => Encoding::F16,
            Dtype::BF16 => Encoding::Bf16,
            other => {
                return Some(Err(SafetensorsError::Dtype {
                    path: self.path().to_owned(),
                    name: name.to_owned(),
                    dtype: format!("{other:?}"),
                }));
            }
        };
        Some(Ok(TensorView {
            name: name.to_owned(),
            shape: info.shape.clone(),
            encoding,
            bytes: Cow::Borrowed(&self.file.bytes()[info.range.clone()]),
        }))
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        Some(&self.tensors.get(name)?.shape)
    }

    /// The data types with their numbers of elements.
    pub fn encodings(&self) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        for info in self.tensors.values() {
            *sums.entry(format!("{:?}", info.dtype)).or_default() +=
                info.shape.iter().product::<usize>() as u64;
        }
        sums
    }
}

impl Shards {
    /// One file as a whole model.
    pub fn single(path: &Path) -> Result<Self, SafetensorsError> {
        let file = SafetensorsFile::open(path)?;
        let places = file.names().map(|name| (name.to_owned(), 0)).collect();
        Ok(Shards {
            files: vec![file],
            places,
        })
    }

    /// The files that an index names, which must lie beside it and hold what it says.
    pub fn indexed(index: &Path) -> Result<Self, SafetensorsError> {
        let malformed = |reason: String| SafetensorsError::Malformed {
            path: index.to_owned(),
            reason,
        };
        #[derive(serde::Deserialize)]
        struct Index {
            weight_map: BTreeMap<String, String>,
        }
        let bytes = read_small(index, MAX_INDEX_BYTES)?;
        let parsed: Index =
            serde_json::from_slice(&bytes).map_err(|error| malformed(error.to_string()))?;
        let folder = index.parent().unwrap_or(Path::new("."));
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut files: Vec<SafetensorsFile> = Vec::new();
        let mut places = BTreeMap::new();
        for (name, file_name) in &parsed.weight_map {
            let number = match numbers.get(file_name.as_str()) {
                Some(number) => *number,
                None => {
                    let is_plain = Path::new(file_name).file_name() == Some(file_name.as_ref());
                    if !is_plain || files.len() == MAX_SHARDS {
                        return Err(malformed(format!(
                            "{file_name:?} is not the name of a file beside it, or too many are named"
                        )));
                    }
                    files.push(SafetensorsFile::open(&folder.join(file_name))?);
                    numbers.insert(file_name, files.len() - 1);
                    files.len() - 1
                }
            };
            if files[number].shape(name).is_none() {
                return Err(malformed(format!("{file_name} does not hold {name:?}")));
            }
            places.insert(name.clone(), number);
        }
        Ok(Shards { files, places })
    }

    /// The files.
    pub fn files(&self) -> &[SafetensorsFile] {
        &self.files
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// A tensor; `None` when there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<Result<TensorView<'_>, SafetensorsError>> {
        self.files[*self.places.get(name)?].tensor(name)
    }

    /// The shape of a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.files[*self.places.get(name)?].shape(name)
    }
}
