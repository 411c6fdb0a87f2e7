//! Whether a trial's task or patch is too like a task that is held out.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
};

use serde::{Deserialize, Serialize};
use temper_core::{Patch, SourceGroup, Split, Task, TaskId, task::Oracle};
use temper_tasks::similarity::{
    Names, NgramSet, Permutations, Signature, code, jaccard, ngrams, words,
};

use crate::{audit::NGRAM_WORDS, episode::Episode};

/// Tokens of an n-gram of changed code.
const CODE_NGRAM: usize = 5;
/// MinHash values of a patch.
const N_PERMUTATIONS: usize = 128;
/// Pairs whose estimate is below are not compared: five deviations below [`MIN_CODE_SIMILARITY`].
const MIN_ESTIMATE: f64 = 0.5;
/// A patch is like another from this Jaccard similarity of its tokens on.
pub const MIN_CODE_SIMILARITY: f64 = 0.7;
/// A statement is like another when it holds this share of its n-grams.
pub const MIN_STATEMENT_SHARE: f64 = 0.5;
const SEED: u64 = 0;

/// What a trial shares with a held-out task.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Contamination {
    /// Its source group.
    Group {
        /// The group.
        group: SourceGroup,
        /// A task in it.
        task: TaskId,
    },
    /// N-grams of the statement.
    Statement {
        /// The task.
        task: TaskId,
        /// The share of the task's n-grams.
        share: f64,
    },
    /// The known fix is like the trial's patch.
    Code {
        /// The task.
        task: TaskId,
        /// Jaccard similarity of their tokens' n-grams.
        similarity: f64,
    },
}

impl fmt::Display for Contamination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Contamination::Group { group, task } => {
                write!(f, "{task} is of the same source group {group}")
            }
            Contamination::Statement { task, share } => {
                write!(f, "the statement holds {share:.2} of the n-grams of {task}")
            }
            Contamination::Code { task, similarity } => {
                write!(f, "the patch is {similarity:.2} like the fix of {task}")
            }
        }
    }
}

/// Held-out tasks, ready for comparison.
#[derive(Debug)]
pub struct HeldOut {
    tasks: Vec<TaskId>,
    groups: BTreeMap<SourceGroup, usize>,
    statements: Vec<NgramSet>,
    by_ngram: HashMap<u64, Vec<u32>>,
    fixes: Vec<(usize, NgramSet, Signature)>,
    permutations: Permutations,
}

impl HeldOut {
    /// Takes the tasks in that are not for training.
    pub fn new<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Self {
        let mut held_out = HeldOut {
            tasks: Vec::new(),
            groups: BTreeMap::new(),
            statements: Vec::new(),
            by_ngram: HashMap::new(),
            fixes: Vec::new(),
            permutations: Permutations::new(SEED, N_PERMUTATIONS),
        };
        for task in tasks.into_iter().filter(|task| task.split != Split::Train) {
            held_out.add(task);
        }
        held_out
    }

    fn add(&mut self, task: &Task) {
        let index = self.tasks.len();
        self.tasks.push(task.id.clone());
        self.groups
            .entry(task.source_group.clone())
            .or_insert(index);
        let statement = statement_ngrams(&task.statement);
        for hash in statement.as_slice() {
            self.by_ngram.entry(*hash).or_default().push(index as u32);
        }
        self.statements.push(statement);
        if let Some(Oracle::Patch { patch } | Oracle::ReversePatch { patch }) = &task.oracle {
            let set = patch_ngrams(patch);
            if !set.is_empty() {
                let signature = self.permutations.sign(&set);
                self.fixes.push((index, set, signature));
            }
        }
    }

    /// How many tasks there are.
    pub fn n_tasks(&self) -> usize {
        self.tasks.len()
    }

    /// What a trial shares with one of them; the first that is found of group, statement, code.
    pub fn check(&self, episode: &Episode) -> Option<Contamination> {
        let task = episode.task();
        if let Some(index) = self.groups.get(&task.source_group) {
            return Some(Contamination::Group {
                group: task.source_group.clone(),
                task: self.tasks[*index].clone(),
            });
        }
        self.statement(&task.statement)
            .or_else(|| self.code(episode.trial().patch.as_ref()?))
    }

    fn statement(&self, statement: &str) -> Option<Contamination> {
        let mut n_shared: BTreeMap<u32, usize> = BTreeMap::new();
        for hash in statement_ngrams(statement).as_slice() {
            for index in self.by_ngram.get(hash).into_iter().flatten() {
                *n_shared.entry(*index).or_default() += 1;
            }
        }
        let shares = n_shared.into_iter().map(|(index, n)| {
            let n_all = self.statements[index as usize].len();
            (index as usize, n as f64 / n_all as f64)
        });
        let (index, share) = shares.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (share >= MIN_STATEMENT_SHARE).then(|| Contamination::Statement {
            task: self.tasks[index].clone(),
            share,
        })
    }

    fn code(&self, patch: &Patch) -> Option<Contamination> {
        let set = patch_ngrams(patch);
        if set.is_empty() {
            return None;
        }
        let signature = self.permutations.sign(&set);
        let similar = self
            .fixes
            .iter()
            .filter(|(_, _, other)| signature.estimate(other) >= MIN_ESTIMATE)
            .filter_map(|(index, other, _)| Some((*index, jaccard(&set, other)?)));
        let (index, similarity) = similar.max_by(|a, b| a.1.total_cmp(&b.1))?;
        (similarity >= MIN_CODE_SIMILARITY).then(|| Contamination::Code {
            task: self.tasks[index].clone(),
            similarity,
        })
    }
}

fn statement_ngrams(text: &str) -> NgramSet {
    let mut hashes = Vec::new();
    words(text.as_bytes(), |hash, _| hashes.push(hash));
    ngrams(&hashes, NGRAM_WORDS)
}

/// N-grams of the tokens of changed lines, whichever way they change: a bug that is put in and its
/// fix have the same.
fn patch_ngrams(patch: &Patch) -> NgramSet {
    let mut text = Vec::new();
    for line in patch.0.split(|byte| *byte == b'\n') {
        let changed = matches!(line.first(), Some(b'+' | b'-'));
        if changed && !line.starts_with(b"+++ ") && !line.starts_with(b"--- ") {
            text.extend_from_slice(&line[1..]);
            text.push(b'\n');
        }
    }
    let mut hashes = Vec::new();
    code(&text, Names::Kept, |token| hashes.push(token.hash));
    ngrams(&hashes, CODE_NGRAM)
}
