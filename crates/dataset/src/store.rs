//! A built data set as a directory: rows, pairs and groups as JSON Lines, the report, and a manifest
//! that is written last.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use temper_core::{
    Digest,
    digest::Hasher,
    manifest::{Manifest, Producer},
};

use crate::build::{BuildConfig, BuildReport, Dataset};

/// The manifest's `kind`.
pub const KIND: &str = "dataset";

const ROWS: &str = "rows.jsonl";
const PAIRS: &str = "pairs.jsonl";
const GROUPS: &str = "groups.jsonl";
const REPORT: &str = "report.json";
const MANIFEST: &str = "manifest.json";

/// Why a data set could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("read {}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The directory is there.
    #[error("write {}: it is there already", .0.display())]
    Exists(PathBuf),
}

/// A report, with the digests of the files beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredReport {
    files: BTreeMap<String, Digest>,
    report: BuildReport,
}

/// The manifest of a data set: inputs by digest (`trials`, `held-out`, `chat-template`,
/// `tokenizer`, …), configuration and code version. `model` says which checkpoint the rows are
/// spelled for.
pub fn manifest(
    inputs: BTreeMap<String, Digest>,
    config: &BuildConfig,
    model: Value,
    producer: Producer,
) -> Manifest {
    let mut resolved = serde_json::to_value(config).expect("plain data serializes to JSON");
    resolved["model"] = model;
    Manifest {
        format: Manifest::FORMAT,
        kind: KIND.to_owned(),
        producer,
        inputs,
        config: resolved,
        seed: config.filter.seed,
    }
}

/// Writes a data set to a directory that must not be there. It appears by one rename.
///
/// # Errors
/// When the directory exists or the file system refuses.
pub fn write(directory: &Path, dataset: &Dataset, manifest: &Manifest) -> Result<(), StoreError> {
    if directory.exists() {
        return Err(StoreError::Exists(directory.to_owned()));
    }
    let parent = match directory.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let failed = |operation, path: &Path| {
        let path = path.to_owned();
        move |source| StoreError::Io {
            operation,
            path,
            source,
        }
    };
    fs::create_dir_all(parent).map_err(failed("create", parent))?;
    let staging = tempfile::Builder::new()
        .prefix(".dataset-")
        .tempdir_in(parent)
        .map_err(failed("create a directory in", parent))?;
    let at = |name: &str| staging.path().join(name);
    let files = [
        (ROWS, write_lines(&at(ROWS), &dataset.rows)?),
        (PAIRS, write_lines(&at(PAIRS), &dataset.pairs)?),
        (GROUPS, write_lines(&at(GROUPS), &dataset.groups)?),
    ];
    let report = StoredReport {
        files: files.map(|(name, digest)| (name.to_owned(), digest)).into(),
        report: dataset.report.clone(),
    };
    write_json(&at(REPORT), &report)?;
    write_json(&at(MANIFEST), manifest)?;
    let staged = staging.keep();
    fs::rename(&staged, directory).map_err(|source| {
        let _ = fs::remove_dir_all(&staged);
        failed("rename to", directory)(source)
    })
}

/// Reads a data set whole, checking the digests of its files.
///
/// # Errors
/// When a file is missing, was changed, or is of another format.
pub fn read(directory: &Path) -> Result<(Dataset, Manifest), StoreError> {
    let at = |name: &str| directory.join(name);
    let manifest: Manifest = read_json(&at(MANIFEST))?;
    if manifest.kind != KIND || manifest.format != Manifest::FORMAT {
        return Err(StoreError::Malformed {
            path: at(MANIFEST),
            problem: format!(
                "it is the manifest of a {} of format {}",
                manifest.kind, manifest.format
            ),
        });
    }
    let stored: StoredReport = read_json(&at(REPORT))?;
    let dataset = Dataset {
        rows: read_lines(&at(ROWS), stored.files.get(ROWS))?,
        pairs: read_lines(&at(PAIRS), stored.files.get(PAIRS))?,
        groups: read_lines(&at(GROUPS), stored.files.get(GROUPS))?,
        report: stored.report,
    };
    Ok((dataset, manifest))
}

fn io(operation: &'static str, path: &Path) -> impl Fn(io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io {
        operation,
        path: path.clone(),
        source,
    }
}

fn write_lines<T: Serialize>(path: &Path, values: &[T]) -> Result<Digest, StoreError> {
    let mut hasher = Hasher::default();
    let file = fs::File::create(path).map_err(io("create", path))?;
    let mut output = BufWriter::new(file);
    for value in values {
        let mut line = serde_json::to_vec(value).expect("plain data serializes to JSON");
        line.push(b'\n');
        hasher.update(&line);
        output.write_all(&line).map_err(io("write", path))?;
    }
    let file = output
        .into_inner()
        .map_err(|error| io("write", path)(error.into_error()))?;
    file.sync_all().map_err(io("flush", path))?;
    Ok(hasher.finish())
}

fn write_json<T: Serialize>(path: &Path, value: &T) -> Result<(), StoreError> {
    let mut text = serde_json::to_vec_pretty(value).expect("plain data serializes to JSON");
    text.push(b'\n');
    let mut file = fs::File::create(path).map_err(io("create", path))?;
    file.write_all(&text).map_err(io("write", path))?;
    file.sync_all().map_err(io("flush", path))
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, StoreError> {
    let text = fs::read(path).map_err(io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| StoreError::Malformed {
        path: path.to_owned(),
        problem: error.to_string(),
    })
}

fn read_lines<T: DeserializeOwned>(
    path: &Path,
    digest: Option<&Digest>,
) -> Result<Vec<T>, StoreError> {
    let malformed = |problem: String| StoreError::Malformed {
        path: path.to_owned(),
        problem,
    };
    let mut input = BufReader::new(fs::File::open(path).map_err(io("read", path))?);
    let mut hasher = Hasher::default();
    let mut values = Vec::new();
    let mut line = Vec::new();
    while input
        .read_until(b'\n', &mut line)
        .map_err(io("read", path))?
        > 0
    {
        hasher.update(&line);
        let value = serde_json::from_slice(&line)
            .map_err(|error| malformed(format!("line {}: {error}", values.len() + 1)))?;
        values.push(value);
        line.clear();
    }
    if digest != Some(&hasher.finish()) {
        return Err(malformed("it is not the file that was written".to_owned()));
    }
    Ok(values)
}
