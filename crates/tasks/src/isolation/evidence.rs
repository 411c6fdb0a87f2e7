//! What one task says of the code it is about: the facts that links are made from.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use temper_core::{
    Digest, Entry, Patch, SourceGroup, Split, Task, TaskId, Tree, TreePath, patch,
    task::{Oracle, Start, Verifier},
};

use super::{
    content_digest,
    functions::{around, functions},
    hunks::{Hunk, hunks},
    links::{LinkRule, MIN_NGRAMS},
    statement_words,
};
use crate::{
    error::LoadError,
    similarity::{Names, NgramSet, code, code_lines, ngrams},
};

/// Tokens of an n-gram of code.
pub(super) const NGRAM: usize = 5;
/// A smaller file says nothing about where a tree comes from (an empty `__init__.py`).
const MIN_FILE_BYTES: usize = 100;

/// Where the files of a task's start are read from.
pub trait Sources {
    /// The tree that the start is made from, before its patch; `None` when it is not at hand.
    fn tree(&mut self, task: &Task) -> Option<Arc<Tree>>;
}

impl<F: FnMut(&Task) -> Option<Arc<Tree>>> Sources for F {
    fn tree(&mut self, task: &Task) -> Option<Arc<Tree>> {
        self(task)
    }
}

/// Knows no tree: then only what the patches themselves show is compared.
pub fn no_sources(_: &Task) -> Option<Arc<Tree>> {
    None
}

/// One stretch of changed code: a function where the tree is known, else the lines of a hunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// `FILE::FUNCTION`, or `FILE`.
    pub place: String,
    /// Its file.
    pub file: String,
    /// n-grams of its tokens.
    pub named: Arc<NgramSet>,
    /// The same with all identifiers as one.
    pub blind: Arc<NgramSet>,
}

/// A changed file as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeFile {
    /// Its path.
    pub file: String,
    /// n-grams of its tokens.
    pub named: Arc<NgramSet>,
}

/// What is known of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    /// The task.
    pub id: TaskId,
    /// The project's normalised name.
    pub project: String,
    /// Everything that names the upstream project: `name:`, `home:`, `archive:`, `tree:`.
    pub identities: BTreeSet<String>,
    /// How the bug came to be, for stratification.
    pub kind: String,
    /// Changed files without tests, as comparable paths ([`comparable_path`]).
    pub files: BTreeSet<String>,
    /// Changed functions, `FILE::FUNCTION`.
    pub functions: BTreeSet<String>,
    /// Changed files of which no function is known, so that only the file can be compared.
    pub without_function: BTreeSet<String>,
    /// Commits and pull requests that the task is made from.
    pub lineage: BTreeSet<String>,
    /// The digest of the fix without what differs between equal changes; `None` when it shows too
    /// little code to be told from others.
    pub fix: Option<Digest>,
    /// The digest of [`statement_words`].
    pub statement: Digest,
    /// Changed code.
    pub code: Vec<Code>,
    /// Changed files, where the tree is known.
    pub whole: Vec<WholeFile>,
    /// Digests of the tree's Python files, where it is known.
    pub tree: Option<Arc<BTreeSet<Digest>>>,
    /// The source group that the task names itself.
    pub declared: SourceGroup,
    /// The split that the task names itself.
    pub split: Split,
    /// [`content_digest`] of the task.
    pub digest: Digest,
}

/// Reads evidence from tasks, remembering files and trees that many tasks share. What it gives for
/// a task does not depend on the tasks before it.
#[derive(Debug, Default)]
pub struct Collector {
    reading: Reading,
    files: BTreeMap<Digest, Arc<Known>>,
    trees: BTreeMap<Digest, Arc<BTreeSet<Digest>>>,
}

#[derive(Debug)]
struct Known {
    functions: Vec<super::Function>,
    code: BTreeMap<String, (Arc<NgramSet>, Arc<NgramSet>)>,
    named: Arc<NgramSet>,
}

/// How the code in a hunk is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// As a text of its own. When the hunk begins inside a docstring, the quotes that end it seem
    /// to begin a string, which takes in all code below: hunks of unlike code are then alike.
    Whole,
    /// Line by line ([`code_lines`]), so that it does not matter in what the hunk begins.
    #[default]
    Lines,
}

impl Reading {
    fn tokens(self, text: &[u8], names: Names, each: &mut dyn FnMut(u64)) {
        match self {
            Reading::Whole => code(text, names, |token| each(token.hash)),
            Reading::Lines => code_lines(text, names, |token| each(token.hash)),
        }
    }

    fn set(self, text: &[u8], names: Names) -> NgramSet {
        let mut hashes = Vec::new();
        self.tokens(text, names, &mut |hash| hashes.push(hash));
        ngrams(&hashes, NGRAM)
    }

    /// Equal for equal changes of equal code, whatever the file is called and wherever in it they
    /// are.
    fn fix_digest(self, hunks: &[Hunk]) -> Option<Digest> {
        let mut hashes = Vec::new();
        let mut after = Vec::new();
        for hunk in hunks {
            self.tokens(&hunk.before, Names::Kept, &mut |hash| hashes.push(hash));
            self.tokens(&hunk.text, Names::Kept, &mut |hash| {
                hashes.push(hash);
                after.push(hash);
            });
        }
        let tells = match self {
            Reading::Whole => !hunks.is_empty(),
            Reading::Lines => ngrams(&after, NGRAM).len() >= MIN_NGRAMS,
        };
        tells.then(|| Digest::of_value(&hashes))
    }

    fn stretch(self, file: String, text: &[u8]) -> Code {
        Code {
            place: file.clone(),
            file,
            named: Arc::new(self.set(text, Names::Kept)),
            blind: Arc::new(self.set(text, Names::Blind)),
        }
    }
}

impl Collector {
    /// Reads what the rule's version compares. [`Collector::default`] reads for
    /// [`LinkRule::default`].
    pub fn of(rule: &LinkRule) -> Self {
        Collector {
            reading: if rule.version < 2 {
                Reading::Whole
            } else {
                Reading::Lines
            },
            ..Collector::default()
        }
    }

    /// The evidence of one task. Patches that cannot be read or applied give less of it, never an
    /// error: other checks name them. Fails when a directory of the task cannot be read.
    pub fn evidence(
        &mut self,
        task: &Task,
        sources: &mut dyn Sources,
    ) -> Result<Evidence, LoadError> {
        let fix = fix(task);
        let hunks: Vec<Hunk> = fix
            .as_ref()
            .map(|patch| hunks(&patch.0))
            .unwrap_or_default()
            .into_iter()
            .filter(|hunk| !is_test(task, &hunk.file))
            .collect();
        let mut found = Evidence {
            id: task.id.clone(),
            project: project_name(&task.origin.project),
            identities: identities(task),
            kind: kind(task),
            files: hunks
                .iter()
                .map(|hunk| comparable_path(&hunk.file))
                .collect(),
            functions: BTreeSet::new(),
            without_function: BTreeSet::new(),
            lineage: lineage(task),
            fix: self.reading.fix_digest(&hunks),
            statement: Digest::of(statement_words(&task.statement).as_bytes()),
            code: Vec::new(),
            whole: Vec::new(),
            tree: None,
            declared: task.source_group.clone(),
            split: task.split,
            digest: content_digest(task)?,
        };
        for place in task.construction.iter().flat_map(|made| &made.places) {
            let file = comparable_path(&place.file.to_text());
            if let Some(function) = &place.function {
                found.functions.insert(format!("{file}::{function}"));
            } else {
                found.without_function.insert(file.clone());
            }
            found.files.insert(file);
        }
        let tree = sources.tree(task);
        let fixed = match (&tree, &fix) {
            (Some(tree), Some(fix)) => fixed_files(task, fix, tree),
            _ => BTreeMap::new(),
        };
        for hunk in &hunks {
            let file = comparable_path(&hunk.file);
            let known = fixed.get(&hunk.file).map(|text| self.file(text));
            match known {
                Some(known) => match around(&known.functions, hunk.first_line, hunk.last_line) {
                    Some(function) => {
                        let place = format!("{file}::{}", function.name);
                        found.functions.insert(place.clone());
                        if let Some((named, blind)) = known.code.get(&function.name)
                            && !found.code.iter().any(|code| code.place == place)
                        {
                            found.code.push(Code {
                                place,
                                file,
                                named: named.clone(),
                                blind: blind.clone(),
                            });
                        }
                    }
                    None => {
                        found.without_function.insert(file.clone());
                        found.code.push(self.reading.stretch(file, &hunk.text));
                    }
                },
                None => {
                    let prefix = format!("{file}::");
                    if !found.functions.iter().any(|name| name.starts_with(&prefix)) {
                        found.without_function.insert(file.clone());
                    }
                    found.code.push(self.reading.stretch(file, &hunk.text));
                }
            }
        }
        for (path, text) in &fixed {
            if !is_test(task, path) {
                found.whole.push(WholeFile {
                    file: comparable_path(path),
                    named: self.file(text).named.clone(),
                });
            }
        }
        found.tree = tree.map(|tree| self.tree(task, &tree));
        Ok(found)
    }

    /// The evidence of all tasks, in order of their ids.
    pub fn all(
        &mut self,
        tasks: &[Task],
        sources: &mut dyn Sources,
    ) -> Result<Vec<Evidence>, LoadError> {
        let mut found = tasks
            .iter()
            .map(|task| self.evidence(task, sources))
            .collect::<Result<Vec<_>, _>>()?;
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    fn file(&mut self, text: &[u8]) -> Arc<Known> {
        let known = self.files.entry(Digest::of(text)).or_insert_with(|| {
            let functions = functions(text);
            // A file or a function begins outside of strings.
            let set = |text: &[u8], names| Arc::new(Reading::Whole.set(text, names));
            let sets = |text: &[u8]| (set(text, Names::Kept), set(text, Names::Blind));
            Arc::new(Known {
                code: functions
                    .iter()
                    .map(|f| (f.name.clone(), sets(&text[f.start..f.end])))
                    .collect(),
                functions,
                named: set(text, Names::Kept),
            })
        });
        known.clone()
    }

    fn tree(&mut self, task: &Task, tree: &Tree) -> Arc<BTreeSet<Digest>> {
        let key = match &task.start {
            Start::SourceDistribution { archive, .. } => archive.sha256.clone(),
            Start::Directory { digest, .. } => digest.clone(),
            other => Digest::of_value(other),
        };
        let files = self.trees.entry(key).or_insert_with(|| {
            let digests = tree.iter().filter_map(|(path, entry)| match entry {
                Entry::File { content, .. }
                    if path.as_bytes().ends_with(b".py") && content.len() >= MIN_FILE_BYTES =>
                {
                    Some(Digest::of(content))
                }
                _ => None,
            });
            Arc::new(digests.collect())
        });
        files.clone()
    }
}

/// A project's name as package indexes compare it (PEP 503), without its owner and without the
/// word `python` at either end, so that `python-dateutil` is `dateutil/dateutil`.
pub fn project_name(name: &str) -> String {
    let last = name
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or(name);
    let last = last.strip_suffix(".git").unwrap_or(last).to_lowercase();
    let mut normal = String::new();
    for part in last.split(['-', '_', '.']).filter(|part| !part.is_empty()) {
        if !normal.is_empty() {
            normal.push('-');
        }
        normal.push_str(part);
    }
    let short = normal
        .strip_prefix("python-")
        .or(normal.strip_suffix("-python"));
    match short {
        Some(short) if !short.is_empty() => short.to_owned(),
        _ => normal,
    }
}

/// A repository's home on a forge as `HOST/OWNER/NAME`; `None` for other addresses, which projects
/// may share.
pub fn home(url: &str) -> Option<String> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let rest = rest
        .strip_prefix("git@")
        .unwrap_or(rest)
        .replacen(':', "/", 1)
        .to_lowercase();
    let rest = rest.strip_prefix("www.").unwrap_or(&rest);
    let mut parts = rest.split(['/', '#', '?']).filter(|part| !part.is_empty());
    let (host, owner, name) = (parts.next()?, parts.next()?, parts.next()?);
    let name = name.strip_suffix(".git").unwrap_or(name);
    ["github.com", "gitlab.com", "bitbucket.org", "codeberg.org"]
        .contains(&host)
        .then(|| format!("{host}/{owner}/{name}"))
}

/// A path as versions and layouts of one project share it: without a leading `src/` or `lib/`.
pub fn comparable_path(path: &str) -> String {
    let path = path.trim_start_matches("./");
    path.strip_prefix("src/")
        .or(path.strip_prefix("lib/"))
        .unwrap_or(path)
        .to_owned()
}

pub(crate) fn identities(task: &Task) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let name = project_name(&task.origin.project);
    if !name.is_empty() {
        found.insert(format!("name:{name}"));
    }
    let urls = task.origin.url.iter().map(String::as_str);
    let project = task.origin.project.as_str();
    let repository = match &task.start {
        Start::GitCommit { repository, .. } => Some(repository.as_str()),
        _ => None,
    };
    let homes = urls.chain(repository).filter_map(home);
    let on_github = (project.split('/').count() == 2)
        .then(|| home(&format!("github.com/{project}")))
        .flatten();
    for home in homes.chain(on_github) {
        if let Some(name) = home.rsplit('/').next() {
            found.insert(format!("name:{}", project_name(name)));
        }
        found.insert(format!("home:{home}"));
    }
    match &task.start {
        Start::SourceDistribution { archive, .. } => {
            found.insert(format!("archive:{}", archive.sha256));
            found.insert(format!("name:{}", project_name(&archive.project)));
        }
        Start::Directory { digest, .. } => {
            found.insert(format!("tree:{digest}"));
        }
        Start::GitCommit { .. } | Start::Image { .. } => {}
    }
    found
}

fn kind(task: &Task) -> String {
    match &task.construction {
        Some(made) => made.kind.clone(),
        None => task
            .origin
            .bug
            .clone()
            .unwrap_or_else(|| "unknown".to_owned()),
    }
}

/// Fields in which published sets and our own candidates keep the change that a task is made from.
pub(crate) fn lineage(task: &Task) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let text = |field: &str| match task.metadata.get(field) {
        Some(serde_json::Value::String(text)) if !text.is_empty() => Some(text.clone()),
        Some(serde_json::Value::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    for field in ["commit", "fix_commit", "merge_commit", "upstream_commit"] {
        found.extend(text(field).map(|commit| format!("commit:{commit}")));
    }
    let project = project_name(&task.origin.project);
    for field in ["pull_number", "pull_request"] {
        found.extend(text(field).map(|number| format!("pull:{project}:{number}")));
    }
    found
}

/// File, text after and text before of what a task's fix changes, without tests.
pub(crate) fn fix_texts(task: &Task) -> Vec<(String, String, String)> {
    let mut texts = fix(task)
        .map(|patch| patch_texts(&patch.0))
        .unwrap_or_default();
    texts.retain(|(file, _, _)| !is_test(task, file));
    texts
}

/// The same of any patch. Hunks of one file are one text.
pub(crate) fn patch_texts(patch: &[u8]) -> Vec<(String, String, String)> {
    let mut texts: BTreeMap<String, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
    for hunk in hunks(patch) {
        let (after, before) = texts.entry(hunk.file).or_default();
        after.extend(hunk.text);
        before.extend(hunk.before);
    }
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    texts
        .into_iter()
        .map(|(file, (after, before))| (file, text(after), text(before)))
        .collect()
}

fn fix(task: &Task) -> Option<Patch> {
    match task.oracle.as_ref()? {
        Oracle::Patch { patch } => Some(patch.clone()),
        Oracle::ReversePatch { patch } => patch::reverse(patch).ok(),
        Oracle::Script { .. } => None,
    }
}

fn is_test(task: &Task, file: &str) -> bool {
    let listed = match &task.verifier {
        Verifier::Pytest { test_files, .. } => test_files.iter().any(|test| test == file),
        Verifier::Log { .. } | Verifier::Harbor { .. } => false,
    };
    let name = file.rsplit('/').next().unwrap_or(file);
    listed
        || name.starts_with("test_")
        || name.ends_with("_test.py")
        || name == "conftest.py"
        || file
            .split('/')
            .any(|part| part == "tests" || part == "test")
}

/// The files that the fix touches, as they are after it. Without the start's patch when that does
/// not apply, and none when the fix does not.
fn fixed_files(task: &Task, fix: &Patch, tree: &Tree) -> BTreeMap<String, Vec<u8>> {
    let start = match &task.start {
        Start::SourceDistribution { patch, .. } if !patch.is_empty() => {
            patch::apply(patch, &mut |path| tree.get(path).cloned())
                .map(|applied| applied.changes)
                .unwrap_or_default()
        }
        _ => Default::default(),
    };
    let read = &mut |path: &TreePath| match start.get(path) {
        Some(changed) => changed.clone(),
        None => tree.get(path).cloned(),
    };
    let Ok(applied) = patch::apply(fix, read) else {
        return BTreeMap::new();
    };
    let files = applied
        .changes
        .into_iter()
        .filter_map(|(path, entry)| match entry {
            Some(Entry::File { content, .. }) => Some((path.to_text().into_owned(), content)),
            _ => None,
        });
    files.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_homes_and_paths_are_compared_without_what_varies() {
        for (name, expected) in [
            ("Ruamel.YAML", "ruamel-yaml"),
            ("python-dateutil", "dateutil"),
            ("dateutil/dateutil", "dateutil"),
            ("zope__interface", "zope-interface"),
            ("python", "python"),
            ("pallets/Click.git", "click"),
        ] {
            assert_eq!(project_name(name), expected);
        }
        for (url, expected) in [
            (
                "https://github.com/PyToolz/toolz",
                Some("github.com/pytoolz/toolz"),
            ),
            (
                "git@github.com:pytoolz/toolz.git",
                Some("github.com/pytoolz/toolz"),
            ),
            (
                "https://www.github.com/pytoolz/toolz/tree/main#x",
                Some("github.com/pytoolz/toolz"),
            ),
            ("https://github.com/pallets", None),
            ("https://docs.example.org/a/b", None),
        ] {
            assert_eq!(home(url).as_deref(), expected);
        }
        assert_eq!(comparable_path("src/attr/a.py"), "attr/a.py");
        assert_eq!(comparable_path("attr/src/a.py"), "attr/src/a.py");
    }
}
