//! The layout of a job on disk.
//!
//! ```text
//! JOB/manifest.json          what the job is
//! JOB/tasks.json             its tasks
//! JOB/run-profile.json       what a run of it is, and must stay
//! JOB/sessions/NUMBER.json   one file for each process that worked on it
//! JOB/trials/TASK/ATTEMPT/   finished trials: trial.json, trajectory.jsonl, patch.diff, logs
//! JOB/unfinished/NAME/       a trial being run; NAME.lock is held by the process that runs it
//! ```

use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

use serde::{Serialize, de::DeserializeOwned};
use temper_core::{Trial, manifest::Manifest, run_profile::differences};

use super::{JobError, Plan, TaskEntry, TrialKey};

/// A job on disk.
#[derive(Clone, Debug)]
pub struct JobDirectory {
    root: PathBuf,
}

/// A place for a trial while it runs. Dropping it removes what was written.
pub(super) struct Unfinished {
    pub path: PathBuf,
    lock_path: PathBuf,
    lock: Option<File>,
}

impl JobDirectory {
    /// Opens a job that exists.
    pub fn open(root: impl Into<PathBuf>) -> Result<Self, JobError> {
        let root = root.into();
        if root.join("manifest.json").is_file() {
            Ok(JobDirectory { root })
        } else {
            Err(JobError::NotAJob {
                directory: root,
                reason: "it has no manifest.json".into(),
            })
        }
    }

    /// Makes the directory of `plan`, or takes up the one that is there if it is the same job.
    /// Several processes may do this at once.
    pub(super) fn create_or_resume(plan: &Plan) -> Result<Self, JobError> {
        let job = JobDirectory {
            root: plan.directory.clone(),
        };
        let manifest_path = job.root.join("manifest.json");
        if !manifest_path.exists() {
            if let Ok(mut entries) = fs::read_dir(&job.root)
                && entries.any(|entry| {
                    entry.is_ok_and(|entry| !is_of_a_job(&entry.file_name().to_string_lossy()))
                })
            {
                return Err(JobError::NotAJob {
                    directory: job.root,
                    reason: "it holds other files".into(),
                });
            }
            for directory in ["trials", "unfinished"] {
                let path = job.root.join(directory);
                fs::create_dir_all(&path).map_err(|source| file_error("create", &path, source))?;
            }
            job.write_json("tasks.json", &plan.tasks)?;
            job.write_json("manifest.json", &plan.manifest)?;
        }
        // Read back whatever won the race to write it.
        let stored = job.manifest()?;
        // The producer's version counts: other code may give other results.
        let value = |manifest| serde_json::to_value(manifest).expect("a manifest is plain data");
        let differences = differences(&value(&stored), &value(&plan.manifest));
        if differences.is_empty() {
            Ok(job)
        } else {
            Err(JobError::Differs {
                directory: job.root,
                differences,
            })
        }
    }

    /// The job's directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// What the job is.
    pub fn manifest(&self) -> Result<Manifest, JobError> {
        read_json(&self.root.join("manifest.json"))
    }

    /// The job's tasks.
    pub fn tasks(&self) -> Result<Vec<TaskEntry>, JobError> {
        read_json(&self.root.join("tasks.json"))
    }

    /// Where a finished trial lies.
    pub fn trial_directory(&self, key: &TrialKey) -> PathBuf {
        self.root
            .join("trials")
            .join(key.task_id.directory_name())
            .join(key.attempt.to_string())
    }

    /// A finished trial, or `None` if it is not finished.
    pub fn trial(&self, key: &TrialKey) -> Result<Option<Trial>, JobError> {
        let path = self.trial_directory(key).join("trial.json");
        if !path.exists() {
            return Ok(None);
        }
        let trial: Trial = read_json(&path)?;
        if trial.task_id != key.task_id || trial.attempt != key.attempt {
            return Err(JobError::Corrupt {
                path,
                reason: format!(
                    "it belongs to task {} attempt {}",
                    trial.task_id, trial.attempt
                ),
            });
        }
        if trial.format != Trial::FORMAT {
            return Err(JobError::Corrupt {
                path,
                reason: format!(
                    "it has format {}, this version reads {}",
                    trial.format,
                    Trial::FORMAT
                ),
            });
        }
        Ok(Some(trial))
    }

    /// All finished trials, task by task in the job's order.
    pub fn trials(&self) -> Result<Vec<Trial>, JobError> {
        let mut trials = Vec::new();
        self.for_each_trial(|trial| trials.push(trial))?;
        Ok(trials)
    }

    /// Visits all finished trials, one in memory at a time.
    pub fn for_each_trial(&self, mut visit: impl FnMut(Trial)) -> Result<(), JobError> {
        for task in self.tasks()? {
            let directory = self.root.join("trials").join(task.id.directory_name());
            let mut attempts: Vec<u32> = match fs::read_dir(&directory) {
                Ok(entries) => entries
                    .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                    .collect(),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
                Err(source) => return Err(file_error("list", &directory, source)),
            };
            attempts.sort_unstable();
            for attempt in attempts {
                let key = TrialKey {
                    task_id: task.id.clone(),
                    attempt,
                };
                if let Some(trial) = self.trial(&key)? {
                    visit(trial);
                }
            }
        }
        Ok(())
    }

    /// Writes a JSON file of the job by rename.
    pub fn write_json<T: Serialize>(&self, name: &str, value: &T) -> Result<(), JobError> {
        let mut text = serde_json::to_vec_pretty(value).expect("results are plain data");
        text.push(b'\n');
        self.write(name, &text)
    }

    /// Writes a file of the job by rename.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<(), JobError> {
        let path = self.root.join(name);
        write_atomically(&path, content).map_err(|source| file_error("write", &path, source))
    }

    /// A place for one trial while it runs.
    pub(super) fn begin(&self, key: &TrialKey) -> Result<Unfinished, JobError> {
        let unfinished = self.root.join("unfinished");
        fs::create_dir_all(&unfinished)
            .map_err(|source| file_error("create", &unfinished, source))?;
        for number in 0u32.. {
            let name = format!(
                "{}.{}.{}.{number}",
                key.task_id.directory_name(),
                key.attempt,
                std::process::id()
            );
            let lock_path = unfinished.join(format!("{name}.lock"));
            let lock = match File::create_new(&lock_path) {
                Ok(file) => file,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(source) => return Err(file_error("create", &lock_path, source)),
            };
            lock.lock()
                .map_err(|source| file_error("lock", &lock_path, source))?;
            if !lock_path.exists() {
                // A clean-up elsewhere took the file in the moment before it was locked.
                continue;
            }
            let path = unfinished.join(name);
            fs::create_dir(&path).map_err(|source| file_error("create", &path, source))?;
            return Ok(Unfinished {
                path,
                lock_path,
                lock: Some(lock),
            });
        }
        unreachable!("the loop ends only by returning")
    }

    /// Moves a trial to its place. If another process finished the same trial meanwhile, that one
    /// stays and this one is dropped: the first durable record counts.
    pub(super) fn finish(&self, key: &TrialKey, place: Unfinished) -> Result<(), JobError> {
        let target = self.trial_directory(key);
        let parent = target.parent().expect("a trial lies below its task");
        fs::create_dir_all(parent).map_err(|source| file_error("create", parent, source))?;
        if let Ok(directory) = File::open(&place.path) {
            // Durability of the names is best effort; the rename below is what makes the trial.
            let _ = directory.sync_all();
        }
        match fs::rename(&place.path, &target) {
            Ok(()) => Ok(()),
            Err(_) if target.join("trial.json").is_file() => Ok(()),
            Err(source) => Err(file_error("rename into", &target, source)),
        }
    }

    /// Takes a finished trial away so that it can be run again.
    pub(super) fn discard(&self, key: &TrialKey) -> Result<(), JobError> {
        let path = self.trial_directory(key);
        fs::remove_dir_all(&path).map_err(|source| file_error("remove", &path, source))
    }

    /// Removes what dead processes left under `unfinished`. Those of live ones are locked.
    pub(super) fn clean_up(&self) -> Result<(), JobError> {
        let unfinished = self.root.join("unfinished");
        let entries = match fs::read_dir(&unfinished) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(file_error("list", &unfinished, source)),
        };
        for entry in entries.flatten() {
            let lock_path = entry.path();
            if lock_path
                .extension()
                .is_none_or(|extension| extension != "lock")
            {
                continue;
            }
            let Ok(lock) = File::open(&lock_path) else {
                continue;
            };
            match lock.try_lock() {
                Ok(()) => {
                    let _ = fs::remove_dir_all(lock_path.with_extension(""));
                    let _ = fs::remove_file(&lock_path);
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(source)) => {
                    return Err(file_error("lock", &lock_path, source));
                }
            }
        }
        Ok(())
    }
}

/// Whether a directory without a manifest may hold this and still become a job: a run that was
/// killed while it made the job leaves these, a file about to be renamed among them.
fn is_of_a_job(name: &str) -> bool {
    matches!(name, "tasks.json" | "trials" | "unfinished")
        || (name.ends_with(".new")
            && (name.starts_with("tasks.json.") || name.starts_with("manifest.json.")))
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // After `finish` the directory is gone already.
        let _ = fs::remove_dir_all(&self.path);
        let _ = fs::remove_file(&self.lock_path);
        self.lock = None;
    }
}

/// Writes a file so that a reader sees the old content or the new, never a part.
pub fn write_atomically(path: &Path, content: &[u8]) -> std::io::Result<()> {
    static COUNTER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = COUNTER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.{number}.new", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

pub(super) fn file_error(operation: &'static str, path: &Path, source: std::io::Error) -> JobError {
    JobError::File {
        operation,
        path: path.to_owned(),
        source,
    }
}

pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, JobError> {
    let text = fs::read(path).map_err(|source| file_error("read", path, source))?;
    serde_json::from_slice(&text).map_err(|error| JobError::Corrupt {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}
