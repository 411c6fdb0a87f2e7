//! A checkpoint: one view over the weights of a model, whichever format holds them.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{
    config::{ConfigError, ModelConfig, generation_eos},
    file::{FileError, read_small},
    gguf::{Gguf, GgufError},
    names::TensorName,
    safetensors::{self, SafetensorsError, Shards},
    tensor::{DecodeError, TensorView},
    tokenizer::{Tokenizer, TokenizerError},
};

const MAX_CONFIG_BYTES: u64 = 16 << 20;

/// An opened checkpoint. Weights stay in the mapped files, so that opening costs as little for a
/// large model as for a small one, and a tensor is read when it is asked for.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    config: ModelConfig,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Safetensors(Shards),
    Gguf(Gguf),
}

/// The format of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A Hugging Face folder with safetensors.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// A difference between the tensors that a model needs and those that a checkpoint has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorFinding {
    /// It is not there.
    Missing {
        /// Its canonical name.
        name: String,
    },
    /// It has another shape.
    Shape {
        /// Its canonical name.
        name: String,
        /// As the configuration asks for.
        expected: Vec<usize>,
        /// As it is.
        got: Vec<usize>,
    },
    /// It is encoded in a way that is not read.
    Encoding {
        /// Its canonical name.
        name: String,
        /// Why.
        reason: String,
    },
    /// It is there and the model has no use for it.
    Extra {
        /// Its name in the file.
        name: String,
        /// Whether other programs would use it, so that their results would differ.
        is_used_elsewhere: bool,
    },
}

/// Why a checkpoint cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The path leads to no checkpoint.
    #[error("open the model {}: {reason}", .path.display())]
    NoModel {
        /// The path.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The safetensors cannot be used.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// The GGUF file cannot be used.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The configuration cannot be used.
    #[error("{source} ({})", .path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ConfigError,
    },
    /// Tensors are missing or do not fit.
    #[error("use the weights of {}: {}", .path.display(), list(.findings))]
    Tensors {
        /// The checkpoint.
        path: PathBuf,
        /// Which, and how.
        findings: Vec<TensorFinding>,
    },
    /// The checkpoint has no tensor of that name.
    #[error("read {name} in {}: there is no such tensor", .path.display())]
    NoTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name asked for.
        name: String,
    },
    /// The checkpoint comes without a tokenizer.
    #[error("read the tokenizer of {}: {reason}", .path.display())]
    NoTokenizer {
        /// The checkpoint.
        path: PathBuf,
        /// What was looked for.
        reason: &'static str,
    },
    /// Its tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A tensor's bytes do not fit its shape.
    #[error(transparent)]
    Decode(#[from] DecodeError),
}

fn list(findings: &[TensorFinding]) -> String {
    let mut text: Vec<String> = findings.iter().take(3).map(ToString::to_string).collect();
    if findings.len() > 3 {
        text.push(format!("and {} more findings", findings.len() - 3));
    }
    text.join("; ")
}

impl CheckpointError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            CheckpointError::NoModel { .. } => {
                Some("name a folder with config.json and safetensors, or a .gguf file".to_owned())
            }
            CheckpointError::Safetensors(SafetensorsError::Malformed { reason, .. })
            | CheckpointError::Gguf(GgufError::Malformed { reason, .. })
                if reason.contains("truncated") =>
            {
                Some("download the file again".to_owned())
            }
            CheckpointError::NoTokenizer { .. } => Some(
                "put tokenizer.json and tokenizer_config.json of the model beside its weights"
                    .to_owned(),
            ),
            CheckpointError::Gguf(GgufError::Unsupported { .. }) => Some(
                "use a file with the usual types, such as Q4_K_M or Q8_0, in one part".to_owned(),
            ),
            _ => None,
        }
    }
}

impl Checkpoint {
    /// Opens a Hugging Face folder, one of its safetensors files, a GGUF file or a folder with one
    /// GGUF file, and checks that every tensor of the model is there with its right shape.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let checkpoint = Checkpoint::inspect(path)?;
        let mut findings = checkpoint.findings();
        findings.retain(TensorFinding::is_fatal);
        if findings.is_empty() {
            return Ok(checkpoint);
        }
        Err(CheckpointError::Tensors {
            path: path.to_owned(),
            findings,
        })
    }

    /// Opens a checkpoint without the check of its tensors, to be looked at.
    pub fn inspect(path: &Path) -> Result<Self, CheckpointError> {
        let no_model = |reason: &str| CheckpointError::NoModel {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        if path.is_dir() {
            if path.join("config.json").is_file() {
                return Checkpoint::open_folder(path, None);
            }
            return match gguf_files(path)?.as_slice() {
                [file] => Checkpoint::open_gguf(file),
                [] => Err(no_model("it holds neither config.json nor a .gguf file")),
                _ => Err(no_model("it holds several .gguf files; name one of them")),
            };
        }
        if !path.exists() {
            return Err(no_model("it does not exist"));
        }
        if path
            .extension()
            .is_some_and(|extension| extension == "safetensors")
        {
            let folder = path.parent().unwrap_or(Path::new("."));
            return Checkpoint::open_folder(folder, Some(path));
        }
        Checkpoint::open_gguf(path)
    }

    fn open_gguf(path: &Path) -> Result<Self, CheckpointError> {
        let gguf = Gguf::open(path)?;
        Ok(Checkpoint {
            path: path.to_owned(),
            config: gguf.config()?,
            source: Source::Gguf(gguf),
        })
    }

    fn open_folder(folder: &Path, file: Option<&Path>) -> Result<Self, CheckpointError> {
        let config_path = folder.join("config.json");
        let in_config = |path: &Path| {
            let path = path.to_owned();
            move |source| CheckpointError::Config { path, source }
        };
        let bytes = read_small(&config_path, MAX_CONFIG_BYTES)?;
        let mut config = ModelConfig::from_json(&bytes).map_err(in_config(&config_path))?;
        let generation_path = folder.join("generation_config.json");
        if generation_path.is_file() {
            let bytes = read_small(&generation_path, MAX_CONFIG_BYTES)?;
            if let Some(ids) = generation_eos(&bytes).map_err(in_config(&generation_path))? {
                config.eos_token_ids = ids;
            }
        }
        let index = folder.join(safetensors::INDEX_NAME);
        let single = folder.join(safetensors::SINGLE_NAME);
        let shards = match file {
            Some(file) => Shards::single(file)?,
            None if index.is_file() => Shards::indexed(&index)?,
            None if single.is_file() => Shards::single(&single)?,
            None => {
                return Err(CheckpointError::NoModel {
                    path: folder.to_owned(),
                    reason: format!(
                        "it holds neither {} nor {}",
                        safetensors::SINGLE_NAME,
                        safetensors::INDEX_NAME
                    ),
                });
            }
        };
        Ok(Checkpoint {
            path: folder.to_owned(),
            config,
            source: Source::Safetensors(shards),
        })
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The folder or the GGUF file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format.
    pub fn format(&self) -> Format {
        match self.source {
            Source::Safetensors(_) => Format::Safetensors,
            Source::Gguf(_) => Format::Gguf,
        }
    }

    /// The GGUF file, when the checkpoint is one: its metadata also hold tokenizer and template.
    pub fn gguf(&self) -> Option<&Gguf> {
        match &self.source {
            Source::Gguf(gguf) => Some(gguf),
            Source::Safetensors(_) => None,
        }
    }

    /// Reads the tokenizer that comes with the weights.
    ///
    /// # Errors
    /// [`CheckpointError::NoTokenizer`] when the checkpoint has none.
    pub fn tokenizer(&self) -> Result<Tokenizer, CheckpointError> {
        let no_tokenizer = |reason: &'static str| CheckpointError::NoTokenizer {
            path: self.path.clone(),
            reason,
        };
        match &self.source {
            Source::Safetensors(_) if !self.path.join("tokenizer.json").is_file() => {
                Err(no_tokenizer("tokenizer.json is not beside the weights"))
            }
            Source::Safetensors(_) => Ok(Tokenizer::from_folder(&self.path)?),
            Source::Gguf(gguf) => {
                let vocabulary = gguf
                    .vocabulary()?
                    .ok_or_else(|| no_tokenizer("the file holds no vocabulary"))?;
                Ok(Tokenizer::from_gguf(&vocabulary)?)
            }
        }
    }

    /// The files that hold weights, sorted, with their lengths in bytes.
    pub fn files(&self) -> Vec<(&Path, u64)> {
        match &self.source {
            Source::Gguf(gguf) => vec![(gguf.path(), gguf.n_bytes())],
            Source::Safetensors(shards) => {
                let files = shards.files().iter();
                let mut files: Vec<_> = files.map(|file| (file.path(), file.n_bytes())).collect();
                files.sort();
                files
            }
        }
    }

    /// The encodings of all stored tensors by name, with their numbers of elements.
    pub fn encodings(&self) -> BTreeMap<String, u64> {
        match &self.source {
            Source::Gguf(gguf) => gguf
                .encodings()
                .into_iter()
                .map(|(name, n)| (name.to_owned(), n))
                .collect(),
            Source::Safetensors(shards) => {
                let mut sums = BTreeMap::new();
                for file in shards.files() {
                    for (name, n) in file.encodings() {
                        *sums.entry(name).or_default() += n;
                    }
                }
                sums
            }
        }
    }

    /// The canonical names of the model's tensors that are there, in the order of the computation.
    pub fn names(&self) -> impl Iterator<Item = TensorName> + '_ {
        self.config
            .tensor_names()
            .filter(|name| self.shape(*name).is_some())
    }

    /// A tensor by its canonical name, such as `model.layers.3.self_attn.q_proj.weight`.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, CheckpointError> {
        let found = match &self.source {
            Source::Safetensors(shards) => shards.tensor(name).transpose()?,
            Source::Gguf(gguf) => TensorName::from_str(name)
                .ok()
                .and_then(|name| gguf.tensor(name, &self.config)),
        };
        found.ok_or_else(|| CheckpointError::NoTensor {
            path: self.path.clone(),
            name: name.to_owned(),
        })
    }

    /// A tensor of the model.
    pub fn get(&self, name: TensorName) -> Result<TensorView<'_>, CheckpointError> {
        self.tensor(&name.to_string())
    }

    /// How the tensors differ from those that the model needs.
    pub fn findings(&self) -> Vec<TensorFinding> {
        let mut findings = Vec::new();
        for name in self.config.tensor_names() {
            let expected = self.config.shape_of(name).unwrap_or_default();
            match self.shape(name) {
                None => findings.push(TensorFinding::Missing {
                    name: name.to_string(),
                }),
                Some(got) if got != expected => findings.push(TensorFinding::Shape {
                    name: name.to_string(),
                    expected,
                    got,
                }),
                Some(_) => {
                    if let Source::Safetensors(shards) = &self.source
                        && let Some(Err(error)) = shards.tensor(&name.to_string())
                    {
                        findings.push(TensorFinding::Encoding {
                            name: name.to_string(),
                            reason: error.to_string(),
                        });
                    }
                }
            }
        }
        let known = |stored: fn(TensorName) -> String| -> std::collections::BTreeSet<String> {
            self.config.tensor_names().map(stored).collect()
        };
        match &self.source {
            Source::Safetensors(shards) => {
                let known = known(|name| name.to_string());
                // Other programs ignore what the architecture does not name, too.
                findings.extend(
                    shards
                        .names()
                        .filter(|name| !known.contains(*name))
                        .map(|name| TensorFinding::Extra {
                            name: name.to_owned(),
                            is_used_elsewhere: false,
                        }),
                );
            }
            Source::Gguf(gguf) => {
                let known = known(TensorName::gguf);
                // Other programs use what is there, such as biases, whatever the architecture.
                findings.extend(
                    gguf.tensor_names()
                        .filter(|name| *name != "rope_freqs.weight" && !known.contains(*name))
                        .map(|name| TensorFinding::Extra {
                            name: name.to_owned(),
                            is_used_elsewhere: true,
                        }),
                );
            }
        }
        findings
    }

    fn shape(&self, name: TensorName) -> Option<Vec<usize>> {
        match &self.source {
            Source::Safetensors(shards) => shards.shape(&name.to_string()).map(<[_]>::to_vec),
            Source::Gguf(gguf) => gguf.raw_tensor(&name.gguf()).map(|view| view.shape),
        }
    }
}

/// What the tensors of a model must be: canonical names with shapes, in the order of the
/// computation.
pub fn expected_tensors(config: &ModelConfig) -> Vec<(TensorName, Vec<usize>)> {
    config
        .tensor_names()
        .filter_map(|name| Some((name, config.shape_of(name)?)))
        .collect()
}

impl TensorFinding {
    /// Whether the model cannot be run as it was meant with this.
    pub fn is_fatal(&self) -> bool {
        !matches!(
            self,
            TensorFinding::Extra {
                is_used_elsewhere: false,
                ..
            }
        )
    }
}

impl fmt::Display for TensorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TensorFinding::Missing { name } => write!(f, "{name} is missing"),
            TensorFinding::Shape {
                name,
                expected,
                got,
            } => write!(f, "{name} has shape {got:?}, expected {expected:?}"),
            TensorFinding::Encoding { name: _, reason } => f.write_str(reason),
            TensorFinding::Extra {
                name,
                is_used_elsewhere: true,
            } => write!(
                f,
                "{name:?} is there, and this architecture has no use for it"
            ),
            TensorFinding::Extra { name, .. } => write!(f, "{name:?} is there and not used"),
        }
    }
}

fn gguf_files(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let read = || {
        let mut files = Vec::new();
        for item in std::fs::read_dir(folder)? {
            let path = item?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == "gguf")
            {
                files.push(path);
            }
        }
        files.sort();
        Ok(files)
    };
    read().map_err(FileError::on("read", folder))
}
