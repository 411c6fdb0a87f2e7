//! Writing of safetensors files and model folders.
//!
//! A folder appears under its name by one rename when all of it is written; a process that dies
//! before leaves a hidden folder beside it, which nothing reads. Tensors stream through: a file's
//! header is known from shapes alone.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use half::bf16;
use serde_json::{Map, Value, json};

use crate::{
    file::FileError,
    safetensors::{INDEX_NAME, SINGLE_NAME},
};

/// How elements are saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveDtype {
    /// bfloat16, rounded to nearest, ties to even.
    Bf16,
    /// 32-bit floating point.
    F32,
}

/// A tensor that will be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// Its name in the file.
    pub name: String,
    /// Its shape, outermost first.
    pub shape: Vec<usize>,
}

/// Why something could not be written.
#[derive(Debug, thiserror::Error)]
pub enum SaveError {
    /// A file or folder cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// Something else has the name.
    #[error("write {}: it exists already", .path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// A tensor got another number of elements than its shape says.
    #[error("write {name}: {got} elements where its shape has {expected}")]
    Length {
        /// The tensor.
        name: String,
        /// As the shape says.
        expected: u64,
        /// As was written.
        got: u64,
    },
}

/// A folder in the making, beside the place where it will be.
#[derive(Debug)]
pub struct NewFolder {
    work: tempfile::TempDir,
    target: PathBuf,
}

/// Takes the elements of one tensor in order.
#[derive(Debug)]
pub struct TensorSink<'a> {
    file: &'a mut BufWriter<File>,
    path: &'a Path,
    dtype: SaveDtype,
    n_written: u64,
    buffer: Vec<u8>,
}

impl SaveDtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            SaveDtype::Bf16 => 2,
            SaveDtype::F32 => 4,
        }
    }

    /// Its name in safetensors headers.
    fn safetensors(self) -> &'static str {
        match self {
            SaveDtype::Bf16 => "BF16",
            SaveDtype::F32 => "F32",
        }
    }

    /// Its name in `config.json`.
    pub fn config_name(self) -> &'static str {
        match self {
            SaveDtype::Bf16 => "bfloat16",
            SaveDtype::F32 => "float32",
        }
    }
}

impl TensorPlan {
    fn n_elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }
}

impl NewFolder {
    /// Begins a folder that will be at `target`, which must not exist or be an empty folder.
    pub fn create(target: &Path) -> Result<Self, SaveError> {
        let is_free = match fs::read_dir(target) {
            Ok(mut items) => items.next().is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        let (Some(name), true) = (target.file_name(), is_free) else {
            return Err(SaveError::Exists {
                path: target.to_owned(),
            });
        };
        let parent = match target.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        fs::create_dir_all(parent).map_err(FileError::on("make", parent))?;
        let work = tempfile::Builder::new()
            .prefix(&format!(".{}.", name.to_string_lossy()))
            .tempdir_in(parent)
            .map_err(FileError::on("make a folder in", parent))?;
        Ok(NewFolder {
            work,
            target: target.to_owned(),
        })
    }

    /// Where files are put meanwhile.
    pub fn path(&self) -> &Path {
        self.work.path()
    }

    /// Writes a small file.
    pub fn file(&self, name: &str, content: &[u8]) -> Result<(), SaveError> {
        let path = self.path().join(name);
        let write = || {
            let mut file = File::create(&path)?;
            file.write_all(content)?;
            file.sync_all()
        };
        Ok(write().map_err(FileError::on("write", &path))?)
    }

    /// Gives the folder its name.
    pub fn finish(self) -> Result<(), SaveError> {
        // A temporary folder is private to its owner; this one is to be as any other.
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(self.path(), fs::Permissions::from_mode(0o755))
                .map_err(FileError::on("open up", self.path()))?;
        }
        let work = self.work.keep();
        fs::rename(&work, &self.target).map_err(|source| {
            // Nothing may be left over, and the first error is the one to tell.
            let _ = fs::remove_dir_all(&work);
            FileError {
                operation: "write",
                path: self.target,
                source,
            }
        })?;
        Ok(())
    }
}

impl TensorSink<'_> {
    /// Appends elements.
    pub fn write(&mut self, values: &[f32]) -> Result<(), SaveError> {
        for piece in values.chunks(1 << 14) {
            self.buffer.clear();
            match self.dtype {
                SaveDtype::F32 => {
                    for value in piece {
                        self.buffer.extend(value.to_le_bytes());
                    }
                }
                SaveDtype::Bf16 => {
                    for value in piece {
                        self.buffer.extend(bf16::from_f32(*value).to_le_bytes());
                    }
                }
            }
            self.file
                .write_all(&self.buffer)
                .map_err(FileError::on("write", self.path))?;
            self.n_written += piece.len() as u64;
        }
        Ok(())
    }
}

/// Writes one safetensors file, through a temporary one beside it. `fill` is called once for each
/// tensor in the order of the plan.
pub fn write_file<E: From<SaveError>>(
    path: &Path,
    plan: &[TensorPlan],
    dtype: SaveDtype,
    metadata: &BTreeMap<String, String>,
    mut fill: impl FnMut(usize, &mut TensorSink<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let failed = |source| SaveError::from(FileError::on("write", path)(source));
    let temporary = tempfile::Builder::new()
        .prefix(".writing-")
        .tempfile_in(parent)
        .map_err(failed)?;
    let (file, temporary) = temporary.into_parts();
    let mut file = BufWriter::with_capacity(1 << 20, file);
    file.write_all(&header(plan, dtype, metadata))
        .map_err(failed)?;
    for (number, tensor) in plan.iter().enumerate() {
        let mut sink = TensorSink {
            file: &mut file,
            path,
            dtype,
            n_written: 0,
            buffer: Vec::new(),
        };
        fill(number, &mut sink)?;
        let got = sink.n_written;
        if got != tensor.n_elements() {
            return Err(E::from(SaveError::Length {
                name: tensor.name.clone(),
                expected: tensor.n_elements(),
                got,
            }));
        }
    }
    let file = file
        .into_inner()
        .map_err(|error| failed(error.into_error()))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        file.set_permissions(fs::Permissions::from_mode(0o644))
            .map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    temporary
        .persist(path)
        .map_err(|error| failed(error.error))?;
    Ok(())
}

/// Writes the weights of a model into `folder`: one file, or shards of at most `max_shard_bytes`
/// (a larger tensor gets a shard of its own) and the index that names them. `fill` is called once
/// for each tensor in the order of the plan.
pub fn write_weights<E: From<SaveError>>(
    folder: &Path,
    plan: &[TensorPlan],
    dtype: SaveDtype,
    max_shard_bytes: u64,
    mut fill: impl FnMut(usize, &mut TensorSink<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes_of = |tensor: &TensorPlan| tensor.n_elements() * dtype.size() as u64;
    let mut shards: Vec<std::ops::Range<usize>> = Vec::new();
    let mut shard_bytes = 0;
    for (number, tensor) in plan.iter().enumerate() {
        let bytes = bytes_of(tensor);
        match shards.last_mut() {
            Some(shard) if shard_bytes + bytes <= max_shard_bytes => {
                shard.end = number + 1;
                shard_bytes += bytes;
            }
            _ => {
                shards.push(number..number + 1);
                shard_bytes = bytes;
            }
        }
    }
    let n_shards = shards.len();
    let mut weight_map = Map::new();
    for (at, shard) in shards.into_iter().enumerate() {
        let name = match n_shards {
            1 => SINGLE_NAME.to_owned(),
            _ => format!("model-{:05}-of-{n_shards:05}.safetensors", at + 1),
        };
        let tensors = &plan[shard.clone()];
        write_file(
            &folder.join(&name),
            tensors,
            dtype,
            &metadata,
            |number, sink| fill(shard.start + number, sink),
        )?;
        for tensor in tensors {
            weight_map.insert(tensor.name.clone(), Value::String(name.clone()));
        }
    }
    if n_shards > 1 {
        // Without its index a sharded model is not one, so it comes last.
        let total: u64 = plan.iter().map(bytes_of).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
        let path = folder.join(INDEX_NAME);
        let mut text = format!("{index:#}");
        text.push('\n');
        fs::write(&path, text)
            .map_err(|error| SaveError::from(FileError::on("write", &path)(error)))?;
    }
    Ok(())
}

/// Length and JSON of a header, padded so that the data begin at a multiple of eight.
fn header(plan: &[TensorPlan], dtype: SaveDtype, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let mut map = Map::new();
    if !metadata.is_empty() {
        map.insert("__metadata__".into(), json!(metadata));
    }
    let mut offset = 0u64;
    for tensor in plan {
        let end = offset + tensor.n_elements() * dtype.size() as u64;
        map.insert(
            tensor.name.clone(),
            json!({
                "dtype": dtype.safetensors(),
                "shape": tensor.shape,
                "data_offsets": [offset, end],
            }),
        );
        offset = end;
    }
    let mut text = Value::Object(map).to_string();
    let padded = text.len().next_multiple_of(8);
    text.extend(std::iter::repeat_n(' ', padded - text.len()));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.into_bytes());
    bytes
}
