//! The suite as references are held against it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::{Map, Value};
use temper_core::{Task, TaskId, task::Start};

use super::{KnownSet, Match, Matches, Overlap, Report, Thresholds};
use crate::{
    isolation::{fix_texts, home, identities, lineage, project_name},
    similarity::{self, Names, NgramSet, Rolling, rolling},
};

/// Tokens of an n-gram for similarity as a whole, as for source groups.
const NEAR_NGRAM: usize = 5;
/// Of each text around a match.
const EXCERPT_BYTES: usize = 320;
/// Nested fields of a record that are looked into.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stream {
    Words,
    Code,
    Near,
}

/// One text of one task.
#[derive(Debug)]
struct Part {
    task: usize,
    name: String,
    text: String,
    stream: Stream,
    n: usize,
}

/// A hash that is one already.
#[derive(Default, Clone)]
struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {}
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

type ByHash<T> = HashMap<u64, T, std::hash::BuildHasherDefault<Identity>>;

/// One kind of n-grams of all tasks.
#[derive(Debug)]
struct Index {
    n: usize,
    parts_of: ByHash<Vec<u32>>,
    /// A bit for each value of the low bits that occurs: most n-grams of a reference end here.
    filter: Vec<u64>,
}

const FILTER_BITS: u32 = 24;

impl Index {
    fn new(n: usize) -> Self {
        Index {
            n,
            parts_of: ByHash::default(),
            filter: vec![0; 1 << (FILTER_BITS - 6)],
        }
    }

    fn add(&mut self, set: &NgramSet, part: u32) {
        for hash in set.as_slice() {
            self.parts_of.entry(*hash).or_default().push(part);
            let low = (*hash >> (64 - FILTER_BITS)) as usize;
            self.filter[low / 64] |= 1 << (low % 64);
        }
    }

    fn get(&self, hash: u64) -> Option<&Vec<u32>> {
        let low = (hash >> (64 - FILTER_BITS)) as usize;
        if self.filter[low / 64] & (1 << (low % 64)) == 0 {
            return None;
        }
        self.parts_of.get(&hash)
    }
}

/// Tasks that references are compared with.
#[derive(Debug)]
pub struct Suite {
    tasks: Vec<TaskId>,
    identities: Vec<BTreeSet<String>>,
    commits: BTreeMap<String, Vec<usize>>,
    parts: Vec<Part>,
    words: Index,
    code: Index,
    near: Index,
    thresholds: Thresholds,
    same: BTreeMap<String, String>,
    matches: Matches,
    n_references: u64,
    n_bytes: u64,
}

impl Suite {
    /// Takes the tasks in. `renames` are pairs of repositories that are one (forks, moves), by
    /// `OWNER/NAME` or name.
    pub fn new(tasks: &[Task], thresholds: Thresholds, renames: &[(String, String)]) -> Self {
        let mut same: BTreeMap<String, String> = BTreeMap::new();
        for (a, b) in renames {
            let (a, b) = (
                representative(&same, project_name(a)),
                representative(&same, project_name(b)),
            );
            if a != b {
                same.insert(a.clone().max(b.clone()), a.min(b));
            }
        }
        let mut suite = Suite {
            tasks: tasks.iter().map(|task| task.id.clone()).collect(),
            identities: tasks.iter().map(identities).collect(),
            commits: BTreeMap::new(),
            parts: Vec::new(),
            words: Index::new(thresholds.words),
            code: Index::new(thresholds.tokens),
            near: Index::new(NEAR_NGRAM),
            thresholds,
            same,
            matches: Matches::default(),
            n_references: 0,
            n_bytes: 0,
        };
        for (at, task) in tasks.iter().enumerate() {
            suite.add_task(at, task);
        }
        suite
    }

    fn add_task(&mut self, at: usize, task: &Task) {
        let start = match &task.start {
            Start::GitCommit { commit, .. } => Some(commit.clone()),
            Start::Image { base_commit, .. } => base_commit.clone(),
            Start::SourceDistribution { .. } | Start::Directory { .. } => None,
        };
        let made_from = lineage(task);
        let commits = made_from
            .iter()
            .filter_map(|change| change.strip_prefix("commit:"));
        for commit in commits
            .map(str::to_owned)
            .chain(start)
            .filter(|commit| is_commit(commit))
        {
            self.commits
                .entry(commit.to_lowercase())
                .or_default()
                .push(at);
        }
        self.add_part(at, "statement", &task.statement, Stream::Words);
        for (file, after, before) in fix_texts(task) {
            for (name, text) in [("fix", after), ("code before", before)] {
                let name = format!("{name} {file}");
                self.add_part(at, &name, &text, Stream::Code);
                self.add_part(at, &name, &text, Stream::Near);
            }
        }
    }

    fn add_part(&mut self, task: usize, name: &str, text: &str, stream: Stream) {
        let index = match stream {
            Stream::Words => &mut self.words,
            Stream::Code => &mut self.code,
            Stream::Near => &mut self.near,
        };
        let set = whole_set(text.as_bytes(), stream, index.n);
        let min = if stream == Stream::Words {
            1
        } else {
            self.thresholds.min_code_ngrams
        };
        if set.len() >= min {
            index.add(&set, self.parts.len() as u32);
            self.parts.push(Part {
                task,
                name: name.to_owned(),
                text: text.to_owned(),
                stream,
                n: set.len(),
            });
        }
    }

    /// Compares with the repositories of a published set.
    pub fn check_known(&mut self, set: &KnownSet) {
        for repository in set.repositories {
            self.n_references += 1;
            self.check_repository(repository, set.name, None);
        }
    }

    /// Compares with one record: its repository and commits by the fields that published sets have,
    /// its texts wherever they are.
    pub fn check_record(&mut self, fields: &Map<String, Value>, file: &str, number: u64) {
        let text = |name: &str| match fields.get(name) {
            Some(Value::String(text)) if !text.is_empty() => Some(text.as_str()),
            _ => None,
        };
        let id = ["instance_id", "task_id", "id", "name"]
            .into_iter()
            .find_map(|name| match fields.get(name) {
                Some(Value::Number(number)) => Some(number.to_string()),
                _ => text(name).map(str::to_owned),
            });
        let record = Some(id.clone().unwrap_or_else(|| number.to_string()));
        self.n_references += 1;
        // `OWNER__NAME-123` and `OWNER__NAME.COMMIT.BUG` name the repository too.
        let named = id.as_deref().and_then(|id| {
            let (owner, rest) = id.split_once("__")?;
            let name = rest.split('.').next()?;
            let name = match name.rsplit_once('-') {
                Some((name, digits)) if digits.bytes().all(|b| b.is_ascii_digit()) => name,
                _ => name,
            };
            Some(format!("{owner}/{name}"))
        });
        let repository = ["repo", "repository", "repo_name"]
            .into_iter()
            .find_map(text);
        if let Some(repository) = repository.or(named.as_deref()) {
            self.check_repository(repository, file, record.as_deref());
        }
        for name in [
            "base_commit",
            "commit",
            "environment_setup_commit",
            "fix_commit",
            "merge_commit",
        ] {
            if let Some(tasks) = text(name)
                .and_then(|commit| self.commits.get(&commit.to_lowercase()))
                .cloned()
            {
                for task in tasks {
                    let overlap = Overlap::Commit {
                        commit: text(name).unwrap_or_default().to_owned(),
                    };
                    let place = Place {
                        file,
                        record: record.as_deref(),
                        field: Some(name),
                    };
                    self.found(task, overlap, "origin", &place, None);
                }
            }
        }
        for (field, value) in fields {
            self.check_value(value, file, record.as_deref(), field, 0);
        }
        // A prompt and its solution are one function.
        if let (Some(prompt), Some(solution)) = (text("prompt"), text("canonical_solution")) {
            let whole = format!("{prompt}{solution}");
            self.check_code(
                whole.as_bytes(),
                &Place {
                    file,
                    record: record.as_deref(),
                    field: Some("prompt+canonical_solution"),
                },
            );
        }
    }

    fn check_value(
        &mut self,
        value: &Value,
        file: &str,
        record: Option<&str>,
        field: &str,
        depth: usize,
    ) {
        match value {
            Value::String(text) => {
                let place = Place {
                    file,
                    record,
                    field: Some(field),
                };
                if field.ends_with("patch") || text.starts_with("diff --git ") {
                    self.n_bytes += text.len() as u64;
                    for (_, after, before) in crate::isolation::patch_texts(text.as_bytes()) {
                        self.check_code(after.as_bytes(), &place);
                        self.check_code(before.as_bytes(), &place);
                    }
                } else {
                    self.check_text(text.as_bytes(), &place);
                }
            }
            Value::Array(items) if depth < MAX_DEPTH => {
                for item in items {
                    self.check_value(item, file, record, field, depth + 1);
                }
            }
            Value::Object(inner) if depth < MAX_DEPTH => {
                for (key, item) in inner {
                    self.check_value(item, file, record, &format!("{field}.{key}"), depth + 1);
                }
            }
            _ => {}
        }
    }

    /// Compares with a file of text or code.
    pub fn check_file(&mut self, text: &[u8], file: &str) {
        self.n_references += 1;
        let place = Place {
            file,
            record: None,
            field: None,
        };
        self.check_text(text, &place);
        if file.ends_with(".py") {
            for function in crate::isolation::functions(text) {
                let record = format!("{} (line {})", function.name, function.first_line);
                let place = Place {
                    file,
                    record: Some(&record),
                    field: None,
                };
                self.check_stream(&text[function.start..function.end], Stream::Near, &place);
            }
        }
    }

    fn check_text(&mut self, text: &[u8], place: &Place<'_>) {
        self.n_bytes += text.len() as u64;
        self.check_stream(text, Stream::Words, place);
        self.check_code(text, place);
    }

    fn check_code(&mut self, text: &[u8], place: &Place<'_>) {
        self.check_stream(text, Stream::Code, place);
        self.check_stream(text, Stream::Near, place);
    }

    fn check_stream(&mut self, text: &[u8], stream: Stream, place: &Place<'_>) {
        let index = match stream {
            Stream::Words => &self.words,
            Stream::Code => &self.code,
            Stream::Near => &self.near,
        };
        let mut shared: HashSet<u64, std::hash::BuildHasherDefault<Identity>> = HashSet::default();
        let mut first: BTreeMap<u32, (u64, usize)> = BTreeMap::new();
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        each_ngram(text, stream, index.n, |hash, end| {
            if let Some(parts) = index.get(hash)
                && shared.insert(hash)
            {
                for part in parts {
                    first.entry(*part).or_insert((hash, end));
                    *counts.entry(*part).or_default() += 1;
                }
            }
        });
        if counts.is_empty() {
            return;
        }
        let n_all = match stream {
            Stream::Near => whole_set(text, stream, index.n).len(),
            Stream::Words | Stream::Code => 0,
        };
        for (part, n_shared) in counts {
            let (hash, end) = first[&part];
            let part = &self.parts[part as usize];
            debug_assert_eq!(part.stream, stream);
            let permille = (n_shared * 1000 / part.n) as u32;
            let t = &self.thresholds;
            let overlap = match stream {
                Stream::Words => {
                    (n_shared >= t.min_word_ngrams).then_some(Overlap::Words { n_shared, permille })
                }
                Stream::Code => (permille >= t.containment_permille)
                    .then_some(Overlap::Code { n_shared, permille }),
                Stream::Near => {
                    let permille = (n_shared * 1000 / (part.n + n_all - n_shared)) as u32;
                    (permille >= t.jaccard_permille).then_some(Overlap::NearDuplicate { permille })
                }
            };
            let Some(overlap) = overlap else { continue };
            let own_end = end_of(part.text.as_bytes(), stream, self.n_of(stream), hash);
            let excerpts = (excerpt(part.text.as_bytes(), own_end), excerpt(text, end));
            let (task, name) = (part.task, part.name.clone());
            self.found(task, overlap, &name, place, Some(excerpts));
        }
    }

    fn n_of(&self, stream: Stream) -> usize {
        match stream {
            Stream::Words => self.words.n,
            Stream::Code => self.code.n,
            Stream::Near => self.near.n,
        }
    }

    fn check_repository(&mut self, repository: &str, file: &str, record: Option<&str>) {
        let address = if repository.contains("://") || repository.starts_with("git@") {
            repository.to_owned()
        } else {
            format!("github.com/{repository}")
        };
        let home = home(&address).map(|home| format!("home:{home}"));
        let name = representative(&self.same, project_name(repository));
        for task in 0..self.tasks.len() {
            let own = &self.identities[task];
            let exact = home.as_ref().is_some_and(|home| own.contains(home));
            let by_name = own
                .iter()
                .filter_map(|identity| identity.strip_prefix("name:"))
                .any(|own| representative(&self.same, own.to_owned()) == name);
            if exact || by_name {
                let overlap = Overlap::Repository {
                    repository: repository.to_owned(),
                    exact,
                };
                self.found(
                    task,
                    overlap,
                    "origin",
                    &Place {
                        file,
                        record,
                        field: None,
                    },
                    None,
                );
            }
        }
    }

    fn found(
        &mut self,
        task: usize,
        overlap: Overlap,
        part: &str,
        place: &Place<'_>,
        excerpts: Option<(String, String)>,
    ) {
        let (task_excerpt, reference_excerpt) = excerpts.unzip();
        self.matches.add(Match {
            task: self.tasks[task].clone(),
            overlap,
            part: part.to_owned(),
            file: place.file.to_owned(),
            record: place.record.map(str::to_owned),
            field: place.field.map(str::to_owned),
            task_excerpt,
            reference_excerpt,
        });
    }

    /// What was found so far.
    pub fn report(self) -> Report {
        let overlapping: BTreeSet<&TaskId> =
            self.matches.kept.keys().map(|(task, _, _)| task).collect();
        Report {
            thresholds: self.thresholds,
            n_tasks: self.tasks.len(),
            n_tasks_overlapping: overlapping.len(),
            n_references: self.n_references,
            n_bytes: self.n_bytes,
            n_not_listed: self.matches.n_not_listed,
            matches: self.matches.kept.into_values().flatten().collect(),
        }
    }
}

struct Place<'a> {
    file: &'a str,
    record: Option<&'a str>,
    field: Option<&'a str>,
}

fn representative(same: &BTreeMap<String, String>, mut name: String) -> String {
    while let Some(other) = same.get(&name) {
        name = other.clone();
    }
    name
}

/// Short ones fall together by chance.
fn is_commit(text: &str) -> bool {
    text.len() >= 12 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Calls `each` with every n-gram and the byte behind it.
fn each_ngram(text: &[u8], stream: Stream, n: usize, mut each: impl FnMut(u64, usize)) {
    let mut rolling: Rolling = rolling(n);
    let mut push = |token: u64, end: usize| {
        if let Some(hash) = rolling.push(token) {
            each(hash, end);
        }
    };
    match stream {
        Stream::Words => similarity::words(text, push),
        // A fix or a reference may begin inside a docstring; both are read in one way.
        Stream::Code | Stream::Near => {
            similarity::code_lines(text, Names::Kept, |token| push(token.hash, token.end));
        }
    }
}

fn whole_set(text: &[u8], stream: Stream, n: usize) -> NgramSet {
    let mut hashes = Vec::new();
    each_ngram(text, stream, n, |hash, _| hashes.push(hash));
    NgramSet::new(hashes)
}

fn end_of(text: &[u8], stream: Stream, n: usize, wanted: u64) -> usize {
    let mut found = text.len();
    each_ngram(text, stream, n, |hash, end| {
        if hash == wanted {
            found = found.min(end);
        }
    });
    found
}

/// The text that ends a little behind `end`.
fn excerpt(text: &[u8], end: usize) -> String {
    let to = (end + EXCERPT_BYTES / 4).min(text.len());
    let from = to.saturating_sub(EXCERPT_BYTES);
    String::from_utf8_lossy(&text[from..to]).into_owned()
}
