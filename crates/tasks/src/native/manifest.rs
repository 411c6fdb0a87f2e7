//! `temper-task.toml` as it stands on disk, format 1. Paths in it are relative to the task's
//! directory.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use temper_core::{
    Digest, SourceGroup, Split, TaskId, TestId,
    task::{Archive, Origin, ResolutionRules},
};

/// The version of the format that this code reads and writes.
pub(super) const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) format: u32,
    pub(super) id: TaskId,
    pub(super) split: Split,
    pub(super) source_group: SourceGroup,
    /// A text file.
    pub(super) statement: String,
    /// A JSON file with one object: fields of another format, kept for export.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) metadata: Option<String>,
    /// A JSON file: how Temper made the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) construction: Option<String>,
    pub(super) origin: OriginTable,
    pub(super) start: StartTable,
    pub(super) environment: EnvironmentTable,
    pub(super) verifier: VerifierTable,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) oracle: Option<OracleTable>,
}

/// [`Origin`], with what is unknown left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OriginTable {
    project: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    licence: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bug: Option<String>,
}

impl From<OriginTable> for Origin {
    fn from(table: OriginTable) -> Origin {
        let OriginTable {
            project,
            version,
            licence,
            url,
            bug,
        } = table;
        Origin {
            project,
            version,
            licence,
            url,
            bug,
        }
    }
}

impl From<Origin> for OriginTable {
    fn from(origin: Origin) -> OriginTable {
        let Origin {
            project,
            version,
            licence,
            url,
            bug,
        } = origin;
        OriginTable {
            project,
            version,
            licence,
            url,
            bug,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum StartTable {
    SourceDistribution {
        archive: Archive,
        /// A patch file; none if the distribution is the start as it is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
    },
    Directory {
        path: String,
    },
    GitCommit {
        repository: String,
        commit: String,
    },
    Image {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        base_commit: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        checkout: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum EnvironmentTable {
    Python {
        requires_python: String,
        python_path: Vec<String>,
        #[serde(default)]
        wheels: Vec<Archive>,
    },
    Image {
        image: String,
        work_tree: String,
    },
    Dockerfile {
        context: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work_tree: Option<String>,
    },
    Host {},
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum VerifierTable {
    Pytest {
        test_files: Vec<String>,
        hidden_source: HiddenSourceTable,
        #[serde(default)]
        arguments: Vec<String>,
        timeout_seconds: u64,
        public: TestListsTable,
        hidden: TestListsTable,
    },
    Log {
        parser: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        test_command: Option<String>,
        /// A patch file.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        test_patch: Option<String>,
        rules: ResolutionRules,
        timeout_seconds: u64,
        tests: TestListsTable,
    },
    Harbor {
        tests: String,
        timeout_seconds: u64,
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        environment: BTreeMap<String, String>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub(super) enum HiddenSourceTable {
    SourceDistribution {},
    Directory { path: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TestListsTable {
    pub(super) fail_to_pass: Vec<TestId>,
    pub(super) pass_to_pass: Vec<TestId>,
}

/// Exactly one of `patch`, `reverse_patch` and `script` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct OracleTable {
    /// A patch file against the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) patch: Option<String>,
    /// A patch file against the start, to be applied in reverse.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) reverse_patch: Option<String>,
    /// A directory with `solve.sh`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) script: Option<String>,
    /// Variables of the script.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) environment: BTreeMap<String, String>,
}

/// `suite.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SuiteManifest {
    pub(super) format: u32,
    pub(super) name: String,
    pub(super) description: String,
    /// What there is to say about the licences of the tasks' code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) licences: Option<String>,
    /// Where the tasks were imported from: the file's name and its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) imported: Option<Imported>,
    /// The tasks are the lines of one file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) packed: Option<Packed>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Packed {
    pub(super) n_tasks: usize,
    /// Of the file with the tasks.
    pub(super) sha256: Digest,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Imported {
    pub(super) file_name: String,
    /// The digest of the file, or of the tree of a directory.
    pub(super) digest: Digest,
}
