//! Writing tasks as native directories.

use std::path::Path;

use temper_core::{
    Digest, Patch, Task,
    task::{Environment, HiddenSource, Oracle, Start, TestLists, Verifier},
};

use super::{
    SUITE_FILE, Suite, TASK_FILE,
    manifest::{
        EnvironmentTable, FORMAT, HiddenSourceTable, Imported, Manifest, OracleTable, StartTable,
        SuiteManifest, TestListsTable, VerifierTable,
    },
};
use crate::{
    error::LoadError,
    tree_io::{TreeLimits, read_tree, write_tree},
};

/// Writes a task as a native directory, which must not exist yet, with copies of every directory
/// that the task refers to. Reading it back gives the same task, but for the format and for paths.
pub fn write_task(task: &Task, directory: &Path) -> Result<(), LoadError> {
    std::fs::create_dir(directory).map_err(|error| LoadError::write(directory, error))?;
    let writer = Writer { directory };
    let manifest = Manifest {
        format: FORMAT,
        id: task.id.clone(),
        split: task.split,
        source_group: task.source_group.clone(),
        statement: writer.file("statement.md", task.statement.as_bytes())?,
        metadata: if task.metadata.is_empty() {
            None
        } else {
            let text = format!("{:#}\n", serde_json::Value::Object(task.metadata.clone()));
            Some(writer.file("metadata.json", text.as_bytes())?)
        },
        construction: match &task.construction {
            None => None,
            Some(construction) => {
                let text = serde_json::to_string_pretty(construction)
                    .expect("a construction is plain data");
                Some(writer.file("construction.json", format!("{text}\n").as_bytes())?)
            }
        },
        origin: task.origin.clone().into(),
        start: writer.start(&task.start)?,
        environment: writer.environment(&task.environment)?,
        verifier: writer.verifier(&task.verifier)?,
        oracle: task
            .oracle
            .as_ref()
            .map(|oracle| writer.oracle(oracle))
            .transpose()?,
    };
    writer.toml(TASK_FILE, &manifest)
}

/// Writes a suite's manifest into an existing directory. `imported` names what its tasks were made
/// from.
pub fn write_suite(
    suite: &Suite,
    imported: Option<(String, Digest)>,
    directory: &Path,
) -> Result<(), LoadError> {
    let manifest = SuiteManifest {
        format: FORMAT,
        name: suite.name.clone(),
        description: suite.description.clone(),
        licences: suite.licences.clone(),
        imported: imported.map(|(file_name, digest)| Imported { file_name, digest }),
        packed: None,
    };
    Writer { directory }.toml(SUITE_FILE, &manifest)
}

struct Writer<'a> {
    directory: &'a Path,
}

impl Writer<'_> {
    fn start(&self, start: &Start) -> Result<StartTable, LoadError> {
        Ok(match start {
            Start::SourceDistribution { archive, patch } => StartTable::SourceDistribution {
                archive: archive.clone(),
                patch: self.patch("start.patch", patch)?,
            },
            Start::Directory { path, .. } => StartTable::Directory {
                path: self.copy(path, "start")?,
            },
            Start::GitCommit { repository, commit } => StartTable::GitCommit {
                repository: repository.clone(),
                commit: commit.clone(),
            },
            Start::Image {
                base_commit,
                checkout,
            } => StartTable::Image {
                base_commit: base_commit.clone(),
                checkout: checkout.clone(),
            },
        })
    }

    fn environment(&self, environment: &Environment) -> Result<EnvironmentTable, LoadError> {
        Ok(match environment {
            Environment::Python {
                requires_python,
                wheels,
                python_path,
            } => EnvironmentTable::Python {
                requires_python: requires_python.clone(),
                python_path: python_path.clone(),
                wheels: wheels.clone(),
            },
            Environment::Image { image, work_tree } => EnvironmentTable::Image {
                image: image.clone(),
                work_tree: work_tree.clone(),
            },
            Environment::Dockerfile { context, work_tree } => EnvironmentTable::Dockerfile {
                context: self.copy(context, "environment")?,
                work_tree: work_tree.clone(),
            },
            Environment::Host => EnvironmentTable::Host {},
        })
    }

    fn verifier(&self, verifier: &Verifier) -> Result<VerifierTable, LoadError> {
        Ok(match verifier {
            Verifier::Pytest {
                public,
                hidden,
                test_files,
                hidden_source,
                arguments,
                timeout_seconds,
            } => VerifierTable::Pytest {
                test_files: test_files.clone(),
                hidden_source: match hidden_source {
                    HiddenSource::SourceDistribution => HiddenSourceTable::SourceDistribution {},
                    HiddenSource::Directory { path } => HiddenSourceTable::Directory {
                        path: self.copy(path, "hidden")?,
                    },
                },
                arguments: arguments.clone(),
                timeout_seconds: *timeout_seconds,
                public: lists(public),
                hidden: lists(hidden),
            },
            Verifier::Log {
                parser,
                test_command,
                test_patch,
                tests,
                rules,
                timeout_seconds,
            } => VerifierTable::Log {
                parser: parser.clone(),
                test_command: test_command.clone(),
                test_patch: self.patch("test.patch", test_patch)?,
                rules: *rules,
                timeout_seconds: *timeout_seconds,
                tests: lists(tests),
            },
            Verifier::Harbor {
                tests,
                environment,
                timeout_seconds,
            } => VerifierTable::Harbor {
                tests: self.copy(tests, "tests")?,
                timeout_seconds: *timeout_seconds,
                environment: environment.clone(),
            },
        })
    }

    fn oracle(&self, oracle: &Oracle) -> Result<OracleTable, LoadError> {
        let name = "oracle.patch";
        Ok(match oracle {
            Oracle::Patch { patch } => OracleTable {
                patch: Some(self.file(name, &patch.0)?),
                ..OracleTable::default()
            },
            Oracle::ReversePatch { patch } => OracleTable {
                reverse_patch: Some(self.file(name, &patch.0)?),
                ..OracleTable::default()
            },
            Oracle::Script {
                directory,
                environment,
            } => OracleTable {
                script: Some(self.copy(directory, "solution")?),
                environment: environment.clone(),
                ..OracleTable::default()
            },
        })
    }

    fn patch(&self, name: &str, patch: &Patch) -> Result<Option<String>, LoadError> {
        if patch.0.is_empty() {
            Ok(None)
        } else {
            self.file(name, &patch.0).map(Some)
        }
    }

    fn copy(&self, from: &Path, name: &str) -> Result<String, LoadError> {
        let tree = read_tree(from, &TreeLimits::default())
            .map_err(|error| LoadError::read(from, error))?;
        let to = self.directory.join(name);
        write_tree(&tree, &to).map_err(|error| LoadError::write(&to, error))?;
        Ok(name.to_owned())
    }

    fn file(&self, name: &str, content: &[u8]) -> Result<String, LoadError> {
        let path = self.directory.join(name);
        crate::tree_io::write_new(&path, content, false)
            .map_err(|error| LoadError::write(&path, error))?;
        Ok(name.to_owned())
    }

    fn toml<T: serde::Serialize>(&self, name: &str, value: &T) -> Result<(), LoadError> {
        let text = toml::to_string_pretty(value)
            .map_err(|error| LoadError::write(&self.directory.join(name), error.to_string()))?;
        self.file(name, text.as_bytes()).map(drop)
    }
}

fn lists(lists: &TestLists) -> TestListsTable {
    TestListsTable {
        fail_to_pass: lists.fail_to_pass.clone(),
        pass_to_pass: lists.pass_to_pass.clone(),
    }
}
