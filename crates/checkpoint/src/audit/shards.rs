//! The index of the weights against the headers of the files. Only headers are read.
//!
//! The reader here is lenient where the loader's is strict, so that everything that is wrong is
//! said at once.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Read,
    marker::PhantomData,
    path::Path,
};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use super::{Finding, MAX_SIDE_FILE_BYTES, WeightsSummary};
use crate::{
    file::read_small,
    safetensors::{INDEX_NAME, SINGLE_NAME},
};

/// The limit of the format itself.
const MAX_HEADER_BYTES: u64 = 100 << 20;
const MAX_NAMED: usize = 3;
/// More findings of one kind say no more.
const MAX_FINDINGS: usize = 100;

/// More tensors than this in one header or index are refused: a published model has at most some
/// ten thousand in a file.
const MAX_ENTRIES: usize = 1_000_000;
/// A longer name of a tensor is refused.
const MAX_NAME_BYTES: usize = 4096;
/// A longer description of a tensor is not taken apart.
const MAX_ENTRY_BYTES: usize = 4096;

/// A header's entries in their order, doubled names kept, each with its value or why there is none.
/// Values are taken apart one by one, because as a tree of JSON values they would need many times
/// the memory of their text.
struct Entries<T>(Vec<(String, Result<T, String>)>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All<T>(PhantomData<T>);
        impl<'de, T: DeserializeOwned> Visitor<'de> for All<T> {
            type Value = Entries<T>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries<T>, A::Error> {
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if name.len() > MAX_NAME_BYTES {
                        let n = name.len();
                        return Err(A::Error::custom(format!("a name in it has {n} bytes")));
                    }
                    if entries.len() == MAX_ENTRIES {
                        return Err(A::Error::custom(format!(
                            "it has more than {MAX_ENTRIES} entries"
                        )));
                    }
                    let value: Box<RawValue> = map.next_value()?;
                    entries.push((name, one(&value)));
                }
                Ok(Entries(entries))
            }
        }
        deserializer.deserialize_map(All(PhantomData))
    }
}

/// The value of one entry, or why there is none.
fn one<T: DeserializeOwned>(value: &RawValue) -> Result<T, String> {
    let text = value.get();
    if text.len() > MAX_ENTRY_BYTES {
        return Err(format!("its description has {} bytes", text.len()));
    }
    serde_json::from_str(text).map_err(|error| error.to_string())
}

#[derive(Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: BTreeMap<String, serde_json::Value>,
    weight_map: Entries<String>,
}

/// Checks the weights of a folder.
pub(super) fn check(folder: &Path, findings: &mut Vec<Finding>) -> WeightsSummary {
    let mut summary = WeightsSummary {
        format: "safetensors".into(),
        ..WeightsSummary::default()
    };
    let present = weight_files(folder);
    let index_path = folder.join(INDEX_NAME);
    if index_path.is_file() {
        let index = read_small(&index_path, MAX_SIDE_FILE_BYTES)
            .map_err(|error| error.to_string())
            .and_then(|bytes| {
                serde_json::from_slice::<Index>(&bytes).map_err(|error| error.to_string())
            });
        match index {
            Ok(index) => against_index(folder, &index, &present, &mut summary, findings),
            Err(reason) => findings.push(Finding::Unreadable {
                file: INDEX_NAME.to_owned(),
                reason,
            }),
        }
    } else if present.contains(SINGLE_NAME) || present.contains("adapter_model.safetensors") {
        for file in &present {
            read_header(folder, file, &mut summary, findings);
        }
    } else {
        summary.format = "none".into();
        findings.push(Finding::NoWeights {
            looked_for: format!("neither {SINGLE_NAME} nor {INDEX_NAME}"),
        });
    }
    summary
}

fn weight_files(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".safetensors"))
        .collect()
}

fn against_index(
    folder: &Path,
    index: &Index,
    present: &BTreeSet<String>,
    summary: &mut WeightsSummary,
    findings: &mut Vec<Finding>,
) {
    let mut mapped: BTreeMap<&str, &str> = BTreeMap::new();
    let mut by_file: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    let mut n_bad = 0;
    for (tensor, file) in &index.weight_map.0 {
        let reason = match file {
            Ok(file) if is_plain_name(file) => {
                if mapped.insert(tensor, file).is_none() {
                    by_file.entry(file).or_default().push(tensor);
                    continue;
                }
                format!("it maps {tensor:?} twice")
            }
            Ok(file) => format!("it maps {tensor:?} to {file:?}, which is no file's name"),
            Err(error) => format!("it maps {tensor:?} to no file's name: {error}"),
        };
        n_bad += 1;
        if n_bad <= MAX_FINDINGS {
            findings.push(Finding::Header {
                file: INDEX_NAME.to_owned(),
                reason,
            });
        }
    }
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut complete = true;
    for (file, tensors) in &by_file {
        if !present.contains(*file) {
            complete = false;
            findings.push(Finding::ShardMissing {
                file: (*file).to_owned(),
                tensors: tensors
                    .iter()
                    .take(MAX_NAMED)
                    .map(|name| (*name).to_owned())
                    .collect(),
                n_tensors: tensors.len(),
            });
        }
    }
    for file in present {
        let is_named = by_file.contains_key(file.as_str());
        if !is_named {
            findings.push(Finding::ShardNotInIndex { file: file.clone() });
        }
        for tensor in read_header(folder, file, summary, findings) {
            if is_named {
                places.entry(tensor).or_default().push(file.clone());
            }
        }
    }
    let mut wrong = Vec::new();
    for (tensor, file) in &mapped {
        let found_in = places.get(*tensor).cloned().unwrap_or_default();
        if present.contains(*file) && !found_in.iter().any(|found| found == file) {
            wrong.push(Finding::TensorMissing {
                tensor: (*tensor).to_owned(),
                file: (*file).to_owned(),
                found_in,
            });
        }
    }
    for (tensor, files) in &places {
        if !mapped.contains_key(tensor.as_str()) {
            wrong.push(Finding::TensorNotInIndex {
                tensor: tensor.clone(),
                file: files.join(", "),
            });
        }
        if files.len() > 1 {
            wrong.push(Finding::TensorTwice {
                tensor: tensor.clone(),
                files: files.clone(),
            });
        }
    }
    wrong.truncate(MAX_FINDINGS);
    findings.extend(wrong);
    let declared = index.metadata.get("total_size").and_then(|size| {
        // transformers has written it as a float.
        size.as_u64()
            .or_else(|| size.as_f64().map(|size| size as u64))
    });
    if let Some(declared) = declared
        && declared != summary.n_bytes
    {
        findings.push(Finding::TotalSize {
            declared,
            found: summary.n_bytes,
            complete,
        });
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != ".."
}

/// Checks one file's header against itself and the file's length; returns its tensors.
fn read_header(
    folder: &Path,
    file: &str,
    summary: &mut WeightsSummary,
    findings: &mut Vec<Finding>,
) -> Vec<String> {
    summary.n_files += 1;
    let (entries, n_data) = match header(&folder.join(file)) {
        Ok(header) => header,
        Err(reason) => {
            findings.push(Finding::Header {
                file: file.to_owned(),
                reason,
            });
            return Vec::new();
        }
    };
    let mut names = BTreeSet::new();
    let mut ranges = Vec::new();
    let mut wrong = Vec::new();
    for (tensor, value) in entries.0 {
        if tensor == "__metadata__" {
            continue;
        }
        let mut bad = |reason: String| {
            wrong.push(Finding::Range {
                file: file.to_owned(),
                tensor: tensor.clone(),
                reason,
            });
        };
        if !names.insert(tensor.clone()) {
            bad("its name is there twice".into());
            continue;
        }
        let entry: TensorEntry = match value {
            Ok(entry) => entry,
            Err(error) => {
                bad(error);
                continue;
            }
        };
        let (start, end) = entry.data_offsets;
        if start > end || end > n_data {
            bad(format!(
                "its range {start} to {end} does not lie in {n_data} bytes"
            ));
            continue;
        }
        let n_elements = entry
            .shape
            .iter()
            .try_fold(1_u64, |product, n| product.checked_mul(*n));
        let n_bits = bits(&entry.dtype);
        match (n_elements, n_bits) {
            (None, _) => bad(format!("its shape {:?} is impossible", entry.shape)),
            (_, None) => bad(format!("its data type {:?} is unknown", entry.dtype)),
            (Some(n), Some(bits)) => {
                if n.checked_mul(bits).map(|n| n.div_ceil(8)) != Some(end - start) {
                    bad(format!(
                        "its shape {:?} of {} does not fit its {} bytes",
                        entry.shape,
                        entry.dtype,
                        end - start
                    ));
                }
                summary.n_elements = summary.n_elements.saturating_add(n);
                let sum = summary.dtypes.entry(entry.dtype).or_default();
                *sum = sum.saturating_add(n);
            }
        }
        summary.n_tensors += 1;
        summary.n_bytes += end - start;
        ranges.push((start, end, tensor));
    }
    ranges.sort();
    let mut at = 0;
    let mut before = "";
    for (start, end, tensor) in &ranges {
        if *start < at {
            wrong.push(Finding::Range {
                file: file.to_owned(),
                tensor: tensor.clone(),
                reason: format!("its bytes overlap those of {before}"),
            });
        } else if *start > at {
            wrong.push(Finding::Range {
                file: file.to_owned(),
                tensor: tensor.clone(),
                reason: format!("{} bytes before it belong to no tensor", start - at),
            });
        }
        at = at.max(*end);
        before = tensor;
    }
    if at != n_data {
        wrong.push(Finding::Header {
            file: file.to_owned(),
            reason: format!("its tensors end at {at} of {n_data} bytes"),
        });
    }
    wrong.truncate(MAX_FINDINGS);
    findings.extend(wrong);
    names.into_iter().collect()
}

/// The header's entries, and the number of bytes behind it.
fn header(path: &Path) -> Result<(Entries<TensorEntry>, u64), String> {
    let mut file = File::open(path).map_err(|error| error.to_string())?;
    let n_file = file.metadata().map_err(|error| error.to_string())?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length)
        .map_err(|_| "the file is shorter than eight bytes".to_owned())?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || length > n_file - 8 {
        return Err(format!(
            "it declares {length} bytes, the file has {n_file} and the limit is {MAX_HEADER_BYTES}"
        ));
    }
    let mut bytes = Vec::new();
    file.take(length)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    let entries = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    Ok((entries, n_file - 8 - length))
}

/// Bits of one element.
fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ"
        | "F8_E5M2FNUZ" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}
