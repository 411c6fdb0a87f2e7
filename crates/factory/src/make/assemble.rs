//! A killed candidate as a task.

use temper_core::{
    Construction, Entry, Patch, SourceGroup, Split, Task, TaskId, TestId, Tree, TreePath,
    construction::MutationAudit,
    patch,
    task::{HiddenSource, Oracle, Origin, Start, TaskFormat, TestLists, Verifier},
    tree::Changes,
};

use super::{MakeOptions, environment_of};
use crate::{
    Candidate, Repository,
    hidden::{self, TestSources},
    measure::{Measurement, file_of},
    prove::{Kills, Screened, lists},
    statement::{self, Facts, Failure, HiddenTest, Subjects},
    synth::pr_mirror::{PR_MIRROR, RELEASE_HISTORY},
};

/// Time limits are multiples of this, so that they do not depend on the machine's speed.
const TIMEOUT_STEP_SECONDS: u64 = 60;
/// How much slower than measured a layer may be.
const TIMEOUT_FACTOR: f64 = 20.0;

/// Makes tasks of one repository's candidates. What it makes depends on the candidate alone.
pub(super) struct Assembler<'a> {
    repository: &'a Repository,
    tree: &'a Tree,
    measurement: &'a Measurement,
    options: &'a MakeOptions,
    candidates: &'a [Candidate],
    screened: &'a [Screened],
    kills: &'a Kills<'a>,
    sources: TestSources<'a>,
    subjects: Subjects<'a>,
}

/// Tests whose output a statement can use.
const MAX_EXPLAINED: usize = 3;

/// A task whose statement is missing.
pub(super) struct Draft {
    lists: TestLists,
    division: hidden::Division,
}

impl Draft {
    /// Failing tests that are worth running once more for what they print: public ones, or a hidden
    /// one for the exception alone.
    pub(super) fn to_explain(&self) -> &[TestId] {
        let public = &self.division.public.fail_to_pass;
        let hidden = &self.division.hidden.fail_to_pass;
        if public.is_empty() {
            &hidden[..hidden.len().min(1)]
        } else {
            &public[..public.len().min(MAX_EXPLAINED)]
        }
    }
}

impl<'a> Assembler<'a> {
    pub(super) fn new(
        repository: &'a Repository,
        tree: &'a Tree,
        measurement: &'a Measurement,
        (candidates, screened): (&'a [Candidate], &'a [Screened]),
        kills: &'a Kills<'a>,
        options: &'a MakeOptions,
    ) -> Self {
        let ids = measurement
            .tests
            .iter()
            .map(|test| &test.id)
            .chain(measurement.excluded.iter().map(|test| &test.id));
        let sources = TestSources::new(ids, |path| content(tree, path).map(<[u8]>::to_vec));
        Assembler {
            repository,
            tree,
            measurement,
            options,
            candidates,
            screened,
            kills,
            sources,
            subjects: Subjects::new(tree, tree, &repository.python_path),
        }
    }

    /// Divides the tests of candidate `number`, or says why it cannot be a task.
    pub(super) fn draft(&self, number: usize) -> Result<Draft, String> {
        let (candidate, screened) = (&self.candidates[number], &self.screened[number]);
        let lists = lists(self.measurement, screened, &self.options.lists);
        let division = self
            .sources
            .divide(&candidate.digest(), &lists)
            .map_err(|error| error.to_string())?;
        Ok(Draft { lists, division })
    }

    /// The task of candidate `number`, or why it cannot be one. `outputs` are what the tests that
    /// were to be explained print, where that is known.
    pub(super) fn task(
        &self,
        number: usize,
        draft: Draft,
        outputs: &[Option<String>],
    ) -> Result<Task, String> {
        let candidate = &self.candidates[number];
        let repository = self.repository;
        let digest = candidate.digest();
        let Draft {
            lists,
            mut division,
        } = draft;
        let mut read = |path: &TreePath| self.tree.get(path).cloned();
        let mut changes = patch::apply(&candidate.patch, &mut read)
            .map_err(|error| error.to_string())?
            .changes;
        for (path, entry) in &division.changes {
            if changes.insert(path.clone(), entry.clone()).is_some() {
                return Err(format!("the bug changes the test file {path}"));
            }
        }
        let audit = self.audit(number, &mut division);
        let start = patch::diff(&mut read, &changes);
        let fix = patch::reverse(&candidate.patch).map_err(|error| error.to_string())?;

        let statement = self.statement(candidate, &division, outputs, &changes, &fix)?;
        let version = repository.version.clone().or_else(|| {
            repository
                .commit
                .as_ref()
                .map(|commit| commit[..12].to_owned())
        });
        let label = version.clone().unwrap_or_else(|| "0".to_owned());
        let id = format!(
            "{}-{label}-{}-{}",
            repository.project,
            candidate.kind,
            &digest.as_str()[..10]
        );
        let bug = match candidate.kind.as_str() {
            kind @ (PR_MIRROR | RELEASE_HISTORY) => kind.replace('_', "-"),
            kind @ ("lm_rewrite" | "lm_modify") => format!("model:{kind}"),
            kind => format!("mutation:{kind}"),
        };
        Ok(Task {
            id: TaskId::new(id).map_err(|error| error.to_string())?,
            format: TaskFormat::Native,
            statement: statement.text,
            start: Start::SourceDistribution {
                archive: repository.archive.clone(),
                patch: start,
            },
            environment: environment_of(repository),
            verifier: Verifier::Pytest {
                timeout_seconds: self.timeout(lists.fail_to_pass.iter().chain(&lists.pass_to_pass)),
                public: division.public,
                hidden: division.hidden,
                test_files: division.test_files,
                hidden_source: HiddenSource::SourceDistribution,
                arguments: repository.arguments.clone(),
            },
            oracle: Some(Oracle::Patch { patch: fix }),
            origin: Origin {
                project: repository.project.clone(),
                version,
                licence: repository.licence.clone(),
                url: repository.url.clone(),
                bug: Some(bug),
            },
            source_group: self.group(candidate)?,
            split: Split::Unassigned,
            metadata: serde_json::Map::new(),
            construction: Some(Construction {
                kind: candidate.kind.clone(),
                seed: self.options.seed,
                places: candidate.places.clone(),
                hidden_rule: hidden::RULE.to_owned(),
                statement: statement.source.as_str().to_owned(),
                audit: Some(audit),
            }),
        })
    }

    /// What the screen says of the task's tests, after those were added that alone notice wrong
    /// versions of the fix.
    fn audit(&self, number: usize, division: &mut hidden::Division) -> MutationAudit {
        let before = self.kills.audit(number, &division.public, &division.hidden);
        let most = self.options.max_added_tests;
        let added = self.kills.strengthen(number, &before, most);
        if added.is_empty() {
            return before.numbers;
        }
        for id in &added {
            let file = file_of(id.as_str()).to_owned();
            if let Err(place) = division.test_files.binary_search(&file) {
                division.test_files.insert(place, file);
            }
        }
        let n_added_tests = added.len() as u32;
        division.hidden.pass_to_pass.extend(added);
        let after = self.kills.audit(number, &division.public, &division.hidden);
        MutationAudit {
            n_added_tests,
            ..after.numbers
        }
    }

    /// Tasks about one file of one project: what can be said of a task by itself. Comparing tasks
    /// with one another may join groups later.
    fn group(&self, candidate: &Candidate) -> Result<SourceGroup, String> {
        let file = candidate
            .places
            .first()
            .map(|place| place.file.to_text().into_owned());
        let mut name = format!("{}/{}", self.repository.project, file.unwrap_or_default());
        let mut end = name.len().min(200);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        name.truncate(end);
        SourceGroup::new(name).map_err(|error| error.to_string())
    }

    fn statement(
        &self,
        candidate: &Candidate,
        division: &hidden::Division,
        outputs: &[Option<String>],
        changes: &Changes,
        fix: &Patch,
    ) -> Result<statement::Statement, String> {
        // Without public ones the outputs are those of hidden tests, which nobody is shown.
        let public = &division.public.fail_to_pass;
        let failures: Vec<Failure<'_>> = public
            .iter()
            .enumerate()
            .map(|(place, test)| Failure {
                test,
                output: outputs.get(place).and_then(Option::as_deref),
            })
            .collect();
        let mut exceptions = outputs
            .iter()
            .map(|output| statement::exception(output.as_deref()?));
        let exception = exceptions
            .next()
            .flatten()
            .filter(|first| exceptions.all(|other| other.as_ref() == Some(first)));
        let all_failing = public.iter().chain(&division.hidden.fail_to_pass);
        let subjects = self.subjects.of(all_failing, changes);
        let hidden: Vec<(&TestId, String)> = division
            .hidden
            .fail_to_pass
            .iter()
            .chain(&division.hidden.pass_to_pass)
            .map(|id| (id, self.subjects.test_source(id).unwrap_or_default()))
            .collect();
        let hidden: Vec<HiddenTest<'_>> = hidden
            .iter()
            .map(|(id, source)| HiddenTest { id, source })
            .collect();
        let visible: Vec<String> = division
            .test_files
            .iter()
            .filter_map(|file| {
                let path: TreePath = file.parse().ok()?;
                let content = match division.changes.get(&path) {
                    Some(Some(Entry::File { content, .. })) => content,
                    _ => content(self.tree, &path)?,
                };
                Some(String::from_utf8_lossy(content).into_owned())
            })
            .collect();
        let visible: Vec<&str> = visible.iter().map(String::as_str).collect();
        let test_arguments = statement::test_arguments(
            &self.repository.arguments,
            &self.repository.pytest_plugins,
            &division.test_files,
        );
        let facts = Facts {
            project: &self.repository.project,
            failures: &failures,
            subjects: &subjects,
            exception: exception.as_deref(),
            note: candidate.note.as_ref(),
            test_arguments: &test_arguments,
            fix,
            places: &candidate.places,
            hidden: &hidden,
            visible: &visible,
            may_name_place: false,
        };
        statement::write(&self.options.statements, &facts, None).map_err(|error| error.to_string())
    }

    fn timeout<'t>(&self, tests: impl Iterator<Item = &'t TestId>) -> u64 {
        let wanted: std::collections::BTreeSet<&TestId> = tests.collect();
        let mut files = std::collections::BTreeSet::new();
        let mut seconds = 0.0;
        for test in self
            .measurement
            .tests
            .iter()
            .filter(|test| wanted.contains(&test.id))
        {
            seconds += test.seconds;
            if files.insert(test.file) {
                seconds += self.measurement.files[test.file as usize].collect_seconds;
            }
        }
        // A machine twice as slow must not give another task, so only really slow tests count.
        let steps = (seconds * TIMEOUT_FACTOR / TIMEOUT_STEP_SECONDS as f64)
            .ceil()
            .max(1.0);
        (steps as u64).min(60) * TIMEOUT_STEP_SECONDS
    }
}

fn content<'t>(tree: &'t Tree, path: &TreePath) -> Option<&'t [u8]> {
    match tree.get(path) {
        Some(Entry::File { content, .. }) => Some(content),
        _ => None,
    }
}
