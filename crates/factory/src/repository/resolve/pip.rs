//! pip as a program: what it is asked, and what it says.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use serde::Deserialize;
use temper_core::{Digest, task::Archive};
use temper_tasks::{fetch::FetchError, prepare::Tools};

use crate::repository::{
    RepositoryError,
    requirements::{name_of, normalize},
};

/// One run of pip.
const LIMIT: Duration = Duration::from_secs(300);

/// pip, and how often it was run.
pub(super) struct Pip {
    /// The program and its first arguments.
    command: (PathBuf, Vec<String>),
    index: Option<String>,
    directories: Vec<PathBuf>,
    python: String,
    /// So many runs so far.
    pub(super) n_runs: usize,
}

impl Pip {
    /// The interpreter's own pip, or the index's when it has none that can report.
    pub(super) fn find(tools: &Tools) -> Result<Pip, RepositoryError> {
        let interpreter = tools.interpreter()?;
        let options = tools.fetcher().options();
        let (major, minor, _) = interpreter.version;
        let mut pip = Pip {
            command: (
                interpreter.executable.clone(),
                ["-I", "-m", "pip"].map(str::to_owned).to_vec(),
            ),
            index: options.index.clone(),
            directories: options.directories.clone(),
            python: format!("{major}.{minor}"),
            n_runs: 0,
        };
        let output = Command::new(&pip.command.0)
            .args(&pip.command.1)
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        // Reports came with 22.2, and 23.0 can be told which platform to report on.
        let recent = output.is_ok_and(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let version = text
                .split(' ')
                .nth(1)
                .and_then(|v| v.split('.').next()?.parse::<u32>().ok());
            output.status.success() && version >= Some(23)
        });
        if !recent {
            let wheel = newest_pip(tools)?;
            pip.command.1 = vec!["-I".to_owned(), format!("{}/pip", wheel.display())];
        }
        Ok(pip)
    }

    /// Why there are no wheels of what must be there.
    pub(super) fn failed(&self, problem: Problem) -> RepositoryError {
        match problem.requirement() {
            Some((requirement, _)) if self.index.is_none() => FetchError::Offline {
                file_name: format!("a wheel of {requirement}"),
                directories: self.directories.clone(),
            }
            .into(),
            _ => problem.into_error(),
        }
    }

    /// The wheels that satisfy all requirements, or why there are none.
    pub(super) fn run(
        &mut self,
        requirements: &[&str],
    ) -> Result<Result<Vec<Archive>, Problem>, RepositoryError> {
        self.n_runs += 1;
        let io = |operation, path: &Path| {
            let path = path.to_owned();
            move |source| RepositoryError::Io {
                operation,
                path,
                source,
            }
        };
        let folder = tempfile::tempdir().map_err(io("make", Path::new("a temporary directory")))?;
        let report = folder.path().join("report.json");
        // A file, so that no requirement is ever an option or a path of the command line.
        let list = folder.path().join("requirements.txt");
        fs::write(&list, requirements.join("\n") + "\n").map_err(io("write", &list))?;
        let mut command = Command::new(&self.command.0);
        command
            .args(&self.command.1)
            .args([
                "install",
                "--dry-run",
                "--ignore-installed",
                "--disable-pip-version-check",
                "--no-input",
                "--no-color",
            ])
            .args([
                "--only-binary",
                ":all:",
                "--platform",
                "any",
                "--implementation",
                "py",
                "--abi",
                "none",
            ])
            .args(["--python-version", &self.python])
            .arg("--target")
            .arg(folder.path().join("target"))
            .arg("--report")
            .arg(&report)
            .arg("--requirement")
            .arg(&list)
            // Its own temporary files too lie where their names can be told.
            .env("TMPDIR", folder.path())
            .current_dir(folder.path());
        for name in [
            "PIP_FIND_LINKS",
            "PIP_EXTRA_INDEX_URL",
            "PIP_REQUIRE_VIRTUALENV",
            "PIP_USER",
            "PIP_PREFIX",
            "PIP_TARGET",
            "PIP_CONSTRAINT",
            "PIP_QUIET",
            "PIP_VERBOSE",
            "PIP_PRE",
            "PIP_NO_DEPS",
        ] {
            command.env_remove(name);
        }
        match &self.index {
            // In the environment, since an address may hold a password.
            Some(index) => {
                command.env("PIP_INDEX_URL", index);
            }
            None => {
                command.arg("--no-index");
            }
        }
        for directory in &self.directories {
            command.arg("--find-links").arg(directory);
        }
        let log = folder.path().join("log");
        let status = run_to_file(&mut command, &log)?;
        let errors = fs::read(&log).map_err(io("read", &log))?;
        let errors = String::from_utf8_lossy(&errors[errors.len().saturating_sub(64 << 10)..]);
        let errors = without_folder(&errors, folder.path());
        if !status.success() {
            let broken = [
                "Retrying (Retry",
                "NewConnectionError",
                "HTTP error",
                "ConnectionError",
                "SSLError",
                "No module named pip",
            ];
            if let Some(line) = errors
                .lines()
                .find(|line| broken.iter().any(|word| line.contains(word)))
            {
                return Err(RepositoryError::Pip(
                    line.trim_start_matches("WARNING: ")
                        .chars()
                        .take(300)
                        .collect(),
                ));
            }
            if errors.contains("Invalid requirement") {
                let line = errors
                    .lines()
                    .find(|line| line.contains("Invalid requirement"))
                    .unwrap_or_default();
                return Err(RepositoryError::Resolve(
                    line.trim_start_matches("ERROR: ").to_owned(),
                ));
            }
            return Ok(Err(Problem { errors }));
        }
        let bytes = fs::read(&report).map_err(io("read", &report))?;
        parse_report(&bytes).map(Ok)
    }
}

/// Why pip found nothing, in its words.
#[derive(Debug)]
pub(super) struct Problem {
    errors: String,
}

impl Problem {
    /// `NAME>=1 (from other)` of what cannot be had.
    fn requirement(&self) -> Option<(String, Option<String>)> {
        let line = self.errors.lines().find_map(|line| {
            line.split_once("satisfies the requirement ")
                .map(|(_, rest)| rest)
        })?;
        let mut parts = line.split(" (from ");
        let requirement = parts.next()?.trim().to_owned();
        let from = parts
            .next()
            .map(|from| from.trim_end_matches(')').to_owned())
            .filter(|from| !from.starts_with("versions:") && !from.starts_with("-r "));
        Some((requirement, from))
    }

    /// Normalized names of what pip complains of: what is missing, and what asks for it.
    pub(super) fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        if let Some((requirement, from)) = self.requirement() {
            names.insert(name_of(&requirement));
            // `a->b` is a chain; its first link stands in the list.
            names.extend(from.iter().map(|from| name_of(from)));
        }
        names
    }

    /// In one line.
    pub(super) fn reason(&self) -> String {
        match self.requirement() {
            Some((requirement, Some(from))) => {
                format!("{from} needs {requirement}, which has no pure-Python wheel that fits")
            }
            Some((requirement, None)) => {
                format!("{requirement} has no pure-Python wheel that fits")
            }
            None => self
                .errors
                .lines()
                .rev()
                .find(|line| line.starts_with("ERROR") && !line.contains("ResolutionImpossible"))
                .map_or_else(
                    || "it does not fit the others".to_owned(),
                    |line| line.trim_start_matches("ERROR: ").to_owned(),
                ),
        }
    }

    fn into_error(self) -> RepositoryError {
        match self.requirement() {
            Some((requirement, from)) => RepositoryError::NoPureWheel { requirement, from },
            None => RepositoryError::Resolve(self.reason()),
        }
    }
}

/// What pip says, with the requirements' file by its name and other files of its folder by none:
/// they are called otherwise in every run, and notes of pip's words are part of what is written.
fn without_folder(text: &str, folder: &Path) -> String {
    let mut text = text.to_owned();
    let real = folder.canonicalize();
    for name in [Some(folder), real.as_deref().ok()].into_iter().flatten() {
        let name = name.display().to_string();
        let mut rest = text.as_str();
        let mut plain = String::new();
        while let Some((before, after)) = rest.split_once(&name) {
            plain.push_str(before.strip_suffix("file://").unwrap_or(before));
            let ends = |c: char| c.is_whitespace() || "'\"`,;:()[]<>".contains(c);
            let end = after.find(ends).unwrap_or(after.len());
            plain.push_str(match &after[..end] {
                "/requirements.txt" => "requirements.txt",
                _ => "a temporary file",
            });
            rest = &after[end..];
        }
        plain.push_str(rest);
        text = plain;
    }
    text
}

/// Runs with both outputs in one file and a time limit.
fn run_to_file(command: &mut Command, log: &Path) -> Result<ExitStatus, RepositoryError> {
    let pip = |source: std::io::Error| RepositoryError::Pip(source.to_string());
    let file = fs::File::create(log).map_err(pip)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(pip)?)
        .stderr(file)
        .spawn()
        .map_err(pip)?;
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(pip)? {
            return Ok(status);
        }
        if started.elapsed() > LIMIT {
            let _ = child.kill();
            let _ = child.wait();
            return Err(RepositoryError::Pip(format!(
                "it did not end within {} s",
                LIMIT.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[derive(Deserialize)]
struct Report {
    install: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Name,
    download_info: Download,
}

#[derive(Deserialize)]
struct Name {
    name: String,
}

#[derive(Deserialize)]
struct Download {
    url: String,
    #[serde(default)]
    archive_info: Hashes,
}

#[derive(Default, Deserialize)]
struct Hashes {
    #[serde(default)]
    hash: Option<String>,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

/// Reads pip's report (format 1 of its installation report).
fn parse_report(bytes: &[u8]) -> Result<Vec<Archive>, RepositoryError> {
    let unreadable =
        |what: String| RepositoryError::Pip(format!("its report cannot be read: {what}"));
    let report: Report =
        serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
    let mut wheels = Vec::new();
    for item in report.install {
        let url = item.download_info.url;
        let file_name = url
            .split(['?', '#'])
            .next()
            .and_then(|path| path.rsplit('/').next())
            .map(percent_decoded)
            .filter(|name| name.ends_with(".whl"))
            .ok_or_else(|| unreadable(format!("{url} is no wheel")))?;
        let info = item.download_info.archive_info;
        let hash = info.hashes.get("sha256").cloned().or_else(|| {
            info.hash
                .as_deref()?
                .strip_prefix("sha256=")
                .map(str::to_owned)
        });
        let sha256 = match hash.and_then(|hash| hash.parse().ok()) {
            Some(digest) => digest,
            None => hash_of_local(&url)
                .ok_or_else(|| unreadable(format!("{file_name} has no SHA-256")))?,
        };
        wheels.push(Archive {
            project: normalize(&item.metadata.name),
            file_name,
            sha256,
        });
    }
    wheels.sort();
    Ok(wheels)
}

/// pip does not hash files of a directory that it was only shown.
fn hash_of_local(url: &str) -> Option<Digest> {
    let path = percent_decoded(url.strip_prefix("file://")?);
    Some(Digest::of(&fs::read(path).ok()?))
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let code = (*first == b'%')
            .then(|| std::str::from_utf8(more.get(..2)?).ok())
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match code {
            Some(byte) => {
                bytes.push(byte);
                rest = &more[2..];
            }
            None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The newest wheel of pip that the index has, which runs without being installed.
fn newest_pip(tools: &Tools) -> Result<PathBuf, RepositoryError> {
    let files = tools.fetcher().list("pip")?;
    let newest = files
        .into_iter()
        .filter_map(|file| {
            let version = file
                .file_name
                .strip_prefix("pip-")?
                .strip_suffix("-py3-none-any.whl")?;
            let parts: Vec<u32> = version
                .split('.')
                .map(|part| part.parse().ok())
                .collect::<Option<_>>()?;
            Some((
                parts,
                Archive {
                    project: "pip".to_owned(),
                    sha256: file.sha256.clone()?,
                    file_name: file.file_name,
                },
            ))
        })
        .max_by(|a, b| a.0.cmp(&b.0))
        .ok_or_else(|| {
            RepositoryError::Pip("this Python has no pip, and the index offers none".to_owned())
        })?;
    Ok(tools.fetcher().fetch(&newest.1)?)
}

#[cfg(test)]
mod tests {
    use temper_tasks::cache::Cache;

    use super::*;

    #[test]
    fn what_pip_cannot_find_is_named() {
        let problem = Problem {
            errors: "ERROR: Could not find a version that satisfies the requirement markupsafe>=2.0 (from jinja2) (from versions: none)\nERROR: No matching distribution found for markupsafe>=2.0\n".into(),
        };
        assert_eq!(
            problem.requirement(),
            Some(("markupsafe>=2.0".into(), Some("jinja2".into())))
        );
        let names: Vec<_> = problem.names().into_iter().collect();
        assert_eq!(names, ["jinja2", "markupsafe"]);
        let problem = Problem {
            errors: "ERROR: Could not find a version that satisfies the requirement numpy (from versions: none)\n".into(),
        };
        assert_eq!(problem.requirement(), Some(("numpy".into(), None)));
        assert!(matches!(
            problem.into_error(),
            RepositoryError::NoPureWheel { from: None, .. }
        ));
    }

    #[test]
    fn temporary_paths_are_not_quoted() {
        let plain = |folder: &str| {
            let text = format!(
                "WARNING: x\nERROR: Cannot install -r {folder}/requirements.txt (line 2) and b==1 because these package versions have conflicting dependencies.\nERROR: Could not open '{folder}/pip-req-8a/b.whl': file://{folder}/pip-req-8a gone\nERROR: ResolutionImpossible"
            );
            without_folder(&text, Path::new(folder))
        };
        let text = plain("/tmp/.tmpA1b2C3");
        assert_eq!(text, plain("/var/folders/q/T/.tmpZ9"));
        let problem = Problem { errors: text };
        assert_eq!(
            problem.reason(),
            "Could not open 'a temporary file': a temporary file gone"
        );
        assert!(
            problem
                .errors
                .contains("Cannot install -r requirements.txt (line 2) and b==1 because")
        );
    }

    /// pip itself is asked for what it cannot read; its complaints name its folder.
    #[test]
    fn what_pip_says_is_the_same_in_every_run() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(folder.path().join("cache")).unwrap();
        let fetcher = temper_tasks::fetch::Fetcher::new(cache, Default::default()).unwrap();
        let tools = Tools::new(fetcher, None, std::env::var_os("PATH").unwrap());
        let mut pip = Pip::find(&tools).unwrap();
        for (requirement, expected) in [
            ("absent-1-py3-none-any.whl", "'a temporary file'"),
            ("a b c", "line 1 of requirements.txt"),
        ] {
            let mut say = || match pip.run(&[requirement]).unwrap_or_else(|error| {
                Err(Problem {
                    errors: error.to_string(),
                })
            }) {
                Ok(wheels) => panic!("{wheels:?}"),
                Err(problem) => problem.reason() + &problem.errors,
            };
            let said = say();
            assert_eq!(said, say());
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn reports_of_old_and_new_pip_are_read() {
        let report = br#"{"version":"1","install":[
            {"metadata":{"name":"B_c"},"download_info":{"url":"https://x/b_c-1%2B2-py3-none-any.whl#x","archive_info":{"hash":"sha256=ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}},
            {"metadata":{"name":"a"},"download_info":{"url":"https://x/a-1-py3-none-any.whl","archive_info":{"hashes":{"sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}}}]}"#;
        let wheels = parse_report(report).unwrap();
        assert_eq!(wheels[0].project, "a");
        assert_eq!(wheels[1].project, "b-c");
        assert_eq!(wheels[1].file_name, "b_c-1+2-py3-none-any.whl");
        assert!(parse_report(b"{}").is_err());
        let sdist = br#"{"install":[{"metadata":{"name":"a"},"download_info":{"url":"https://x/a-1.tar.gz"}}]}"#;
        assert!(parse_report(sdist).is_err());
    }
}
