//! What a job's directory keeps of the runs that made it.
//!
//! `run-profile.json` holds what may not change; a process that differs in it is refused by name.
//! Each process leaves a file below `sessions/`, so a job that several made is known for what it
//! is: a composite, not one clean run.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    path::Path,
};

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest,
    digest::Hasher,
    run_profile::{RunIdentity, RunOperation, RunProfile, differences},
};

use super::{
    JobDirectory, JobError, Plan,
    directory::{file_error, read_json},
    write_atomically,
};

const PROFILE_FILE: &str = "run-profile.json";
const SESSIONS: &str = "sessions";

/// One process that worked on a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// Version of this format.
    pub format: u32,
    /// Digest of the identity that it ran under.
    pub identity_digest: Digest,
    /// How it worked.
    pub operation: RunOperation,
}

impl Session {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;
}

/// The stored form of what may not change.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    format: u32,
    identity: RunIdentity,
}

/// Makes the job's directory or takes up the one that is there, before any trial is run. As
/// [`super::run`], it refuses a directory that holds another job.
pub fn prepare(plan: &Plan) -> Result<JobDirectory, JobError> {
    JobDirectory::create_or_resume(plan)
}

impl JobDirectory {
    /// Writes down the run that begins, or refuses one that differs from what the job is, with
    /// every field that differs.
    pub fn begin_session(&self, profile: &RunProfile) -> Result<(), JobError> {
        let path = self.path().join(PROFILE_FILE);
        if !path.exists() {
            self.write_json(
                PROFILE_FILE,
                &Stored {
                    format: profile.format,
                    identity: profile.identity.clone(),
                },
            )?;
        }
        // Read back whatever won the race to write it.
        let stored: Stored = read_json(&path)?;
        let value = |identity: &RunIdentity| {
            serde_json::to_value(identity).expect("an identity is plain data")
        };
        let differences = differences(&value(&stored.identity), &value(&profile.identity));
        if !differences.is_empty() {
            return Err(JobError::Differs {
                directory: self.path().to_owned(),
                differences,
            });
        }
        self.write_session(&Session {
            format: Session::FORMAT,
            identity_digest: Digest::of_value(&profile.identity),
            operation: profile.operation.clone(),
        })
    }

    /// Takes the next free number. A link is made only where no file is, so of two processes with
    /// the same number in mind one goes on to the next.
    fn write_session(&self, session: &Session) -> Result<(), JobError> {
        let folder = self.path().join(SESSIONS);
        fs::create_dir_all(&folder).map_err(|source| file_error("create", &folder, source))?;
        let whole = folder.join(format!("{}.whole", std::process::id()));
        let mut text = serde_json::to_vec_pretty(session).expect("a session is plain data");
        text.push(b'\n');
        write_atomically(&whole, &text).map_err(|source| file_error("write", &whole, source))?;
        let mut linked = Ok(());
        for number in 1u32.. {
            let path = folder.join(format!("{number:04}.json"));
            match fs::hard_link(&whole, &path) {
                Ok(()) => break,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    linked = Err(file_error("write", &path, source));
                    break;
                }
            }
        }
        let _ = fs::remove_file(&whole);
        linked
    }

    /// What a run of the job is; `None` for a job that wrote nothing of it.
    pub fn identity(&self) -> Result<Option<RunIdentity>, JobError> {
        let path = self.path().join(PROFILE_FILE);
        if !path.exists() {
            return Ok(None);
        }
        let stored: Stored = read_json(&path)?;
        if stored.format != RunProfile::FORMAT {
            let reason = format!(
                "it has format {}, this version reads {}",
                stored.format,
                RunProfile::FORMAT
            );
            return Err(JobError::Corrupt { path, reason });
        }
        Ok(Some(stored.identity))
    }

    /// The processes that worked on the job, in order.
    pub fn sessions(&self) -> Result<Vec<Session>, JobError> {
        let folder = self.path().join(SESSIONS);
        let mut paths: Vec<_> = match fs::read_dir(&folder) {
            Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(file_error("list", &folder, source)),
        };
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == "json")
        });
        paths.sort();
        paths.iter().map(|path| read_json(path)).collect()
    }

    /// The SHA-256 of every file that a result of the job rests on, by its path below the job.
    pub fn digests(&self) -> Result<BTreeMap<String, Digest>, JobError> {
        let mut digests = BTreeMap::new();
        for name in [
            "manifest.json",
            "tasks.json",
            PROFILE_FILE,
            SESSIONS,
            "trials",
        ] {
            let path = self.path().join(name);
            if path.symlink_metadata().is_ok() {
                hash_below(self.path(), &path, &mut digests)?;
            }
        }
        Ok(digests)
    }
}

fn hash_below(
    root: &Path,
    path: &Path,
    digests: &mut BTreeMap<String, Digest>,
) -> Result<(), JobError> {
    let failed = |operation, source| file_error(operation, path, source);
    let metadata = path
        .symlink_metadata()
        .map_err(|source| failed("read", source))?;
    if metadata.is_dir() {
        for entry in fs::read_dir(path).map_err(|source| failed("list", source))? {
            let entry = entry.map_err(|source| failed("list", source))?;
            hash_below(root, &entry.path(), digests)?;
        }
        return Ok(());
    }
    let name = path.strip_prefix(root).unwrap_or(path).to_string_lossy();
    let digest = if metadata.is_file() {
        let mut file = File::open(path).map_err(|source| failed("read", source))?;
        let mut hasher = Hasher::default();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break hasher.finish(),
                Ok(n) => hasher.update(&buffer[..n]),
                Err(source) => return Err(failed("read", source)),
            }
        }
    } else {
        // Temper writes no links; one in a file's place is another content.
        Digest::of(b"not a file")
    };
    digests.insert(name.into_owned(), digest);
    Ok(())
}
