//! The host's Python, described well enough to be seen inside a sandbox.

mod requirement;
pub mod wheel;

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde::{Deserialize, Serialize};

pub use requirement::{InvalidRequirement, Requirement};

/// An interpreter on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interpreter {
    /// The program itself, links resolved: no virtual environment, no shim.
    pub executable: PathBuf,
    /// Major, minor, patch.
    pub version: (u64, u64, u64),
    /// `sys.version`, which also tells builds of one version apart.
    pub build: String,
    /// `CPython`, `PyPy`.
    pub implementation: String,
    /// `sys.base_prefix` and `sys.base_exec_prefix`.
    pub prefixes: BTreeSet<PathBuf>,
    /// Directories of the shared libraries that it and its extension modules load.
    pub libraries: BTreeSet<PathBuf>,
    /// Top-level modules of its standard library; empty before Python 3.10, which does not list them.
    #[serde(default)]
    pub standard_modules: BTreeSet<String>,
}

/// Why there is no usable Python.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// There is none.
    #[error("find Python: there is no python3 in the search path")]
    Missing,
    /// It does not run, or does not answer.
    #[error("run {}: {reason}", .program.display())]
    Broken {
        /// The program.
        program: PathBuf,
        /// Why.
        reason: String,
    },
    /// It is too old or too new for the task.
    #[error("use Python {} at {}: the task requires {required}", version_text(*.version), .program.display())]
    WrongVersion {
        /// The program.
        program: PathBuf,
        /// What it is.
        version: (u64, u64, u64),
        /// What the task asks for.
        required: String,
    },
    /// The version requirement of the task cannot be read.
    #[error(transparent)]
    Requirement(#[from] InvalidRequirement),
    /// It lies where a mount would show more than Python.
    #[error("mount {} for Python: it holds more than Python", .0.display())]
    TooWide(PathBuf),
}

impl PythonError {
    /// What the user can do, where there is something.
    pub fn hint(&self) -> Option<String> {
        match self {
            PythonError::Missing | PythonError::WrongVersion { .. } => Some(
                "install Python 3 (`apt install python3` on Debian and Ubuntu, `dnf install python3` on Fedora and RHEL, `apk add python3` on Alpine, `pacman -S python` on Arch, `zypper install python3` on openSUSE), or name an interpreter of your own"
                    .to_owned(),
            ),
            PythonError::Broken { .. } => {
                Some("name a working interpreter of your own".to_owned())
            }
            _ => None,
        }
    }
}

/// Directories that a sandbox on the host's root shows anyway.
const SYSTEM: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];

/// Importing these makes the loader map every library that the standard library's own extension
/// modules need, and the process's memory map then lists them.
const PROBE: &str = r#"
import sys, os, json, platform
for name in ("ssl", "sqlite3", "ctypes", "hashlib", "zlib", "bz2", "lzma", "readline", "curses", "uuid", "decimal"):
    try:
        __import__(name)
    except Exception:
        pass
libraries = set()
try:
    with open("/proc/self/maps") as maps:
        for line in maps:
            parts = line.split(None, 5)
            if len(parts) == 6 and parts[5].startswith("/") and ".so" in parts[5]:
                libraries.add(os.path.dirname(parts[5].rstrip("\n")))
except OSError:
    pass
base = getattr(sys, "_base_executable", None) or sys.executable
print(json.dumps({
    "executable": os.path.realpath(base),
    "version": list(sys.version_info[:3]),
    "build": sys.version,
    "implementation": platform.python_implementation(),
    "prefixes": sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.base_exec_prefix), sys.base_prefix}),
    "libraries": sorted(libraries),
    "standard_modules": sorted(getattr(sys, "stdlib_module_names", ())),
}))
"#;

impl Interpreter {
    /// Finds the interpreter: `chosen` if it is given, else `python3` in the search path. Shims and
    /// virtual environments are seen through, because the program itself is asked where it lives.
    pub fn find(chosen: Option<&Path>, search_path: &OsStr) -> Result<Self, PythonError> {
        let program = match chosen {
            Some(program) => program.to_owned(),
            None => find_program("python3", search_path).ok_or(PythonError::Missing)?,
        };
        let broken = |reason: String| PythonError::Broken {
            program: program.clone(),
            reason,
        };
        let output = Command::new(&program)
            .args(["-I", "-c", PROBE])
            .env("PATH", search_path)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| broken(error.to_string()))?;
        if !output.status.success() {
            return Err(broken(format!(
                "{}: {}",
                output.status,
                crate::git::last_words(&output.stderr)
            )));
        }
        let found: Interpreter = serde_json::from_slice(&output.stdout)
            .map_err(|error| broken(format!("its answer cannot be read: {error}")))?;
        Ok(found)
    }

    /// Checks a requirement such as `>=3.9,<3.14`.
    pub fn check(&self, required: &str) -> Result<(), PythonError> {
        if required.parse::<Requirement>()?.allows(self.version) {
            Ok(())
        } else {
            Err(PythonError::WrongVersion {
                program: self.executable.clone(),
                version: self.version,
                required: required.to_owned(),
            })
        }
    }

    /// `3.11.7`
    pub fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// The directories that must be mounted at their own paths for it to run, none below another:
    /// those of its prefix and libraries that lie outside the system's directories.
    pub fn mounts(&self) -> Result<Vec<PathBuf>, PythonError> {
        let mut wanted: BTreeSet<PathBuf> = self.prefixes.clone();
        wanted.extend(self.libraries.iter().cloned());
        wanted.extend(self.executable.parent().map(Path::to_owned));
        wanted.retain(|path| !SYSTEM.iter().any(|system| path.starts_with(system)));
        for path in &wanted {
            // `/`, `/home`, `/root`, `/opt` and the like: Python shares them with everything else.
            if path.components().count() < 3 {
                return Err(PythonError::TooWide(path.clone()));
            }
        }
        let all = wanted.clone();
        wanted.retain(|path| {
            !all.iter()
                .any(|other| other != path && path.starts_with(other))
        });
        Ok(wanted.into_iter().collect())
    }
}

fn version_text((major, minor, patch): (u64, u64, u64)) -> String {
    format!("{major}.{minor}.{patch}")
}

/// Looks for an executable file in the directories of a search path. Relative directories are
/// skipped: what they hold depends on where a program was started.
pub(crate) fn find_program(name: &str, search_path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|path| {
            path.metadata()
                .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Interpreter {
        Interpreter {
            executable: "/home/u/.pyenv/versions/3.11.7/bin/python3.11".into(),
            version: (3, 11, 7),
            build: String::new(),
            implementation: "CPython".into(),
            prefixes: ["/home/u/.pyenv/versions/3.11.7".into()].into(),
            libraries: [
                "/usr/lib/x86_64-linux-gnu".into(),
                "/home/u/.pyenv/versions/3.11.7/lib/python3.11/lib-dynload".into(),
                "/opt/openssl/lib".into(),
            ]
            .into(),
            standard_modules: BTreeSet::new(),
        }
    }

    #[test]
    fn only_what_lies_outside_the_system_is_mounted() {
        assert_eq!(
            example().mounts().unwrap(),
            [
                PathBuf::from("/home/u/.pyenv/versions/3.11.7"),
                PathBuf::from("/opt/openssl/lib")
            ]
        );
        let system = Interpreter {
            executable: "/usr/bin/python3.11".into(),
            prefixes: ["/usr".into()].into(),
            libraries: ["/lib/x86_64-linux-gnu".into()].into(),
            ..example()
        };
        assert_eq!(system.mounts().unwrap(), Vec::<PathBuf>::new());
        let wide = Interpreter {
            libraries: ["/root".into()].into(),
            ..example()
        };
        assert!(matches!(wide.mounts(), Err(PythonError::TooWide(_))));
    }

    #[test]
    fn a_missing_or_broken_python_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let error = Interpreter::find(None, folder.path().as_os_str()).unwrap_err();
        assert!(matches!(error, PythonError::Missing));
        assert!(error.hint().unwrap().contains("apt install python3"));
        let script = folder.path().join("python3");
        std::fs::write(&script, "#!/bin/sh\necho not json\n").unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let error = Interpreter::find(None, folder.path().as_os_str()).unwrap_err();
        assert!(matches!(error, PythonError::Broken { .. }), "{error}");
    }

    #[test]
    fn the_version_is_checked() {
        assert!(example().check(">=3.9").is_ok());
        let error = example().check(">=3.12").unwrap_err();
        assert!(error.to_string().contains("3.11.7"), "{error}");
        assert!(example().check("three").is_err());
    }
}
