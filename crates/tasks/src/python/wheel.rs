//! Installing pure-Python wheels into one directory, without an installer.
//!
//! Every file must be listed in the wheel's `RECORD` with its hash, and every listed file must be
//! there. Only wheels for any platform and ABI are accepted (`py3-none-any`), because they are the
//! same on every machine. Scripts, headers and data files are left out; the console scripts that
//! entry points declare are made by [`console_scripts`].

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use temper_core::{Entry, Tree, TreePath};

use crate::{
    archive::{self, ArchiveError, ArchiveLimits},
    tree_io::{self, TreeIoError, TreeLimits},
};

/// Why a wheel was not installed.
#[derive(Debug, thiserror::Error)]
pub enum WheelError {
    /// It is for one platform, ABI or Python 2 only.
    #[error("use the wheel {0}: expected a pure-Python wheel (py3-none-any)")]
    NotPure(String),
    /// It cannot be unpacked.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// It is not laid out as a wheel.
    #[error("read the wheel {wheel}: {problem}")]
    Layout {
        /// The wheel.
        wheel: String,
        /// What is wrong.
        problem: String,
    },
    /// A file differs from the wheel's record of it.
    #[error("check {path} of the wheel {wheel}: {problem}")]
    Record {
        /// The wheel.
        wheel: String,
        /// The file.
        path: String,
        /// `its hash differs`, `it is not recorded`, …
        problem: &'static str,
    },
    /// Two wheels hold different files of the same path.
    #[error("install the wheel {wheel}: {path} is already there with other content")]
    Collision {
        /// The second wheel.
        wheel: String,
        /// The file.
        path: TreePath,
    },
    /// The files cannot be read back.
    #[error(transparent)]
    Files(#[from] TreeIoError),
    /// No place to unpack.
    #[error("unpack the wheel {wheel}: {source}")]
    Unpack {
        /// The wheel.
        wheel: String,
        /// Why.
        source: io::Error,
    },
}

/// Reads wheels into one tree, as `site-packages` would hold them.
pub fn install(wheels: &[PathBuf]) -> Result<Tree, WheelError> {
    let mut site = Tree::new();
    for path in wheels {
        let wheel = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !is_pure(&wheel) {
            return Err(WheelError::NotPure(wheel));
        }
        for (path, entry) in read(path, &wheel)? {
            match site.get(&path) {
                None => {
                    site.insert(path, entry);
                }
                // Namespace packages share such files.
                Some(present) if *present == entry => {}
                Some(_) => return Err(WheelError::Collision { wheel, path }),
            }
        }
    }
    Ok(site)
}

/// The programs that entry points of installed wheels declare, by name: each a small Python script
/// for the interpreter at `python`.
pub fn console_scripts(site: &Tree, python: &str) -> BTreeMap<String, String> {
    let mut scripts = BTreeMap::new();
    for (path, entry) in site {
        let Entry::File { content, .. } = entry else {
            continue;
        };
        if !path.as_bytes().ends_with(b".dist-info/entry_points.txt") {
            continue;
        }
        let text = String::from_utf8_lossy(content);
        let mut inside = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with('[') {
                inside = line == "[console_scripts]";
                continue;
            }
            let Some((name, target)) = line.split_once('=').filter(|_| inside) else {
                continue;
            };
            // Extras may follow in brackets; they say what else is needed, not what to call.
            let target = target.split('[').next().unwrap_or_default().trim();
            let (name, Some((module, function))) = (name.trim(), target.split_once(':')) else {
                continue;
            };
            let is_name = |text: &str| {
                !text.is_empty()
                    && text
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"._".contains(&byte))
            };
            let is_program = name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
                && !name.is_empty()
                && !name.starts_with('.')
                && !name.starts_with("python");
            if is_program && is_name(module.trim()) && is_name(function.trim()) {
                let (module, function) = (module.trim(), function.trim());
                scripts.insert(
                    name.to_owned(),
                    format!(
                        "#!{python}\nimport sys\nimport {module}\nsys.exit({module}.{function}())\n"
                    ),
                );
            }
        }
    }
    scripts
}

/// A wheel's name is `NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl`, each tag a set joined by dots.
fn is_pure(file_name: &str) -> bool {
    let Some(stem) = file_name.strip_suffix(".whl") else {
        return false;
    };
    let tags: Vec<_> = stem.rsplit('-').take(3).collect();
    match tags.as_slice() {
        ["any", "none", python] => python.split('.').any(|tag| tag == "py3"),
        _ => false,
    }
}

fn read(path: &Path, wheel: &str) -> Result<Tree, WheelError> {
    let folder = tempfile::tempdir().map_err(|source| WheelError::Unpack {
        wheel: wheel.to_owned(),
        source,
    })?;
    let root = folder.path().join("wheel");
    archive::extract(path, &root, &ArchiveLimits::default())?;
    let files = tree_io::read_tree(&root, &TreeLimits::default())?;

    let layout = |problem: String| WheelError::Layout {
        wheel: wheel.to_owned(),
        problem,
    };
    let records: Vec<_> = files
        .keys()
        .filter(|path| {
            path.as_bytes().ends_with(b".dist-info/RECORD")
                && path.as_bytes().iter().filter(|b| **b == b'/').count() == 1
        })
        .collect();
    let [record_path] = records.as_slice() else {
        return Err(layout(format!(
            "expected one RECORD, found {}",
            records.len()
        )));
    };
    let Some(Entry::File { content, .. }) = files.get(record_path) else {
        return Err(layout("its RECORD is a link".to_owned()));
    };
    let text = std::str::from_utf8(content)
        .map_err(|_| layout("its RECORD is not valid UTF-8".to_owned()))?;
    let record = parse_record(text).map_err(layout)?;
    verify(&files, record_path, &record, wheel)?;

    let data = record_path.to_text().replace(".dist-info/RECORD", ".data/");
    let mut site = Tree::new();
    for (path, entry) in files {
        let place = match path.as_bytes().strip_prefix(data.as_bytes()) {
            None => path.as_bytes(),
            Some(below) => {
                match below
                    .strip_prefix(b"purelib/")
                    .or_else(|| below.strip_prefix(b"platlib/"))
                {
                    Some(below) => below,
                    None => continue,
                }
            }
        };
        let place = TreePath::new(place).map_err(|error| layout(error.to_string()))?;
        if site.insert(place, entry).is_some() {
            return Err(layout(format!("{path} is there twice")));
        }
    }
    Ok(site)
}

fn verify(
    files: &Tree,
    record_path: &TreePath,
    record: &BTreeMap<String, (String, String)>,
    wheel: &str,
) -> Result<(), WheelError> {
    let wrong = |path: &str, problem| WheelError::Record {
        wheel: wheel.to_owned(),
        path: path.to_owned(),
        problem,
    };
    for (path, entry) in files {
        let name = path.to_text();
        let Entry::File { content, .. } = entry else {
            return Err(wrong(&name, "it is a link"));
        };
        // The record cannot hold its own hash, and a signature is made after it.
        let unhashed = path == record_path
            || [".jws", ".p7s"]
                .iter()
                .any(|suffix| name == format!("{record_path}{suffix}"));
        if unhashed {
            continue;
        }
        let Some((hash, size)) = record.get(name.as_ref()) else {
            return Err(wrong(&name, "it is not recorded"));
        };
        let expected = hash
            .strip_prefix("sha256=")
            .ok_or_else(|| wrong(&name, "its recorded hash is not SHA-256"))?;
        if url_safe_sha256(content) != expected.trim_end_matches('=') {
            return Err(wrong(&name, "its hash differs"));
        }
        if !size.is_empty() && *size != content.len().to_string() {
            return Err(wrong(&name, "its size differs"));
        }
    }
    match record
        .keys()
        .find(|name| !TreePath::new(name.as_bytes()).is_ok_and(|path| files.contains_key(&path)))
    {
        Some(absent) => Err(wrong(absent, "it is recorded but not there")),
        None => Ok(()),
    }
}

/// `RECORD` is CSV: path, hash, size.
fn parse_record(text: &str) -> Result<BTreeMap<String, (String, String)>, String> {
    let mut record = BTreeMap::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() {
            continue;
        }
        let fields = parse_csv_line(line)
            .filter(|fields| fields.len() == 3)
            .ok_or_else(|| format!("line {} of its RECORD is not path, hash, size", index + 1))?;
        let mut fields = fields.into_iter();
        if let (Some(path), Some(hash), Some(size)) = (fields.next(), fields.next(), fields.next())
        {
            record.insert(path, (hash, size));
        }
    }
    Ok(record)
}

fn parse_csv_line(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut()?;
        match (quoted, character) {
            (true, '"') if characters.peek() == Some(&'"') => {
                characters.next();
                field.push('"');
            }
            (true, '"') => quoted = false,
            (false, '"') if field.is_empty() => quoted = true,
            (false, ',') => fields.push(String::new()),
            (_, character) => field.push(character),
        }
    }
    (!quoted).then_some(fields)
}

fn url_safe_sha256(content: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let hash = <sha2::Sha256 as sha2::Digest>::digest(content);
    let mut text = String::with_capacity(43);
    for chunk in hash.chunks(3) {
        let bits = chunk
            .iter()
            .fold(0u32, |bits, byte| (bits << 8) | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for index in 0..=chunk.len() {
            let sextet = (bits >> (18 - 6 * index)) & 63;
            text.push(char::from(ALPHABET[sextet as usize]));
        }
    }
    text
}

#[cfg(test)]
mod tests;
