//! Drawing a subset of a suite: the same one for the same seed, spread over strata, with a record
//! of what it can and cannot stand for.
//!
//! The order of tasks within a stratum is that of a hash of seed and id, so neither the order of
//! the suite nor the presence of other strata changes it. Places are given to strata in proportion
//! to their size among the tasks that can be had, by largest remainders.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::{Deserialize, Serialize};
use temper_core::{Digest, Task, TaskId, digest::Hasher, manifest::Producer};

/// What a sample is spread over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stratify {
    /// Nothing: every task has the same chance.
    None,
    /// The repository or project.
    Repository,
    /// How the bug came to be.
    Kind,
    /// Tasks that share code or lineage.
    SourceGroup,
}

impl Stratify {
    fn stratum(self, task: &Task) -> String {
        match self {
            Stratify::None => "all".into(),
            Stratify::Repository => repository(task),
            Stratify::Kind => match (&task.construction, &task.origin.bug) {
                (Some(construction), _) => construction.kind.clone(),
                (None, Some(bug)) => bug.clone(),
                (None, None) => "unknown".into(),
            },
            Stratify::SourceGroup => task.source_group.to_string(),
        }
    }
}

/// The repository of a task, or its project where it names none.
pub fn repository(task: &Task) -> String {
    if task.origin.project.is_empty() {
        task.source_group.to_string()
    } else {
        task.origin.project.clone()
    }
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Tasks to draw.
    pub n: usize,
    /// The seed.
    pub seed: u64,
    /// At most this many of one repository.
    pub per_repository: Option<usize>,
    /// What it is spread over.
    pub stratify: Stratify,
}

/// Why a sample cannot be drawn.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SampleError {
    /// Nothing was asked for.
    #[error("draw a sample of 0 tasks")]
    Empty,
    /// There are too few tasks.
    #[error(
        "draw {n} tasks: {n_population} tasks are there, {n_available} of them can be had, and a cap of {} for each repository leaves {n_possible}",
        .per_repository.map_or("any number".into(), |cap| cap.to_string())
    )]
    TooFew {
        /// Asked for.
        n: usize,
        /// In the population.
        n_population: usize,
        /// Available.
        n_available: usize,
        /// The cap.
        per_repository: Option<usize>,
        /// That the cap leaves.
        n_possible: usize,
    },
}

/// A drawn sample, as its file has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    /// Version of this format.
    pub format: u32,
    /// `task-sample`.
    pub kind: String,
    /// What drew it.
    pub producer: Producer,
    /// The suite as it was named.
    pub suite: String,
    /// How the population was chosen from it.
    pub population_choice: String,
    /// The seed.
    pub seed: u64,
    /// What it is spread over.
    pub stratify: Stratify,
    /// At most this many of one repository.
    pub per_repository: Option<usize>,
    /// Tasks drawn.
    pub n: usize,
    /// Tasks it was drawn from, available or not.
    pub n_population: usize,
    /// Over ids and digests of the population.
    pub population_digest: Digest,
    /// Over ids and digests of the sample.
    pub digest: Digest,
    /// Stratum by stratum.
    pub strata: BTreeMap<String, Stratum>,
    /// Tasks that could not be had, with the reason.
    pub unavailable: BTreeMap<TaskId, String>,
    /// Whether it was looked at which tasks can be had.
    pub availability_checked: bool,
    /// What a result on it may be said of.
    pub stands_for: Vec<String>,
    /// What it may not be said of.
    pub does_not_stand_for: Vec<String>,
    /// The tasks with their digests.
    pub tasks: BTreeMap<TaskId, Digest>,
}

/// One stratum of a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stratum {
    /// In the population.
    pub n_population: usize,
    /// That can be had.
    pub n_available: usize,
    /// Drawn.
    pub n_sampled: usize,
}

/// What a sample is drawn from.
pub struct Population<'a> {
    /// The suite as it was named.
    pub suite: String,
    /// How the tasks were chosen from it.
    pub choice: String,
    /// The tasks.
    pub tasks: &'a [Task],
    /// Tasks that cannot be had, with the reason; `None` where nobody looked.
    pub unavailable: Option<BTreeMap<TaskId, String>>,
}

impl Sample {
    /// The format that this code writes.
    pub const FORMAT: u32 = 1;

    /// Draws a sample.
    pub fn draw(
        population: &Population<'_>,
        request: &Request,
        producer: Producer,
    ) -> Result<Self, SampleError> {
        if request.n == 0 {
            return Err(SampleError::Empty);
        }
        let nothing = BTreeMap::new();
        let unavailable = population.unavailable.as_ref().unwrap_or(&nothing);
        let mut strata: BTreeMap<String, Stratum> = BTreeMap::new();
        let mut candidates: BTreeMap<String, Vec<&Task>> = BTreeMap::new();
        // The cap takes the first of each repository in the hash's order, whatever the strata.
        let mut of_repository: BTreeMap<String, usize> = BTreeMap::new();
        let mut n_available = 0;
        for task in order(population.tasks, request.seed) {
            let name = request.stratify.stratum(task);
            let stratum = strata.entry(name.clone()).or_default();
            stratum.n_population += 1;
            if unavailable.contains_key(&task.id) {
                continue;
            }
            stratum.n_available += 1;
            n_available += 1;
            let taken = of_repository.entry(repository(task)).or_default();
            if request.per_repository.is_some_and(|cap| *taken >= cap) {
                continue;
            }
            *taken += 1;
            candidates.entry(name).or_default().push(task);
        }
        let n_possible: usize = candidates.values().map(Vec::len).sum();
        if n_possible < request.n {
            return Err(SampleError::TooFew {
                n: request.n,
                n_population: population.tasks.len(),
                n_available,
                per_repository: request.per_repository,
                n_possible,
            });
        }
        let sizes: BTreeMap<&String, usize> = candidates
            .iter()
            .map(|(name, tasks)| (name, tasks.len()))
            .collect();
        let mut tasks = BTreeMap::new();
        for (name, n) in allocate(&sizes, request.n) {
            strata.entry(name.clone()).or_default().n_sampled = n;
            for task in &candidates[name][..n] {
                tasks.insert(task.id.clone(), task.digest());
            }
        }
        let all: BTreeMap<&TaskId, Digest> = population
            .tasks
            .iter()
            .map(|task| (&task.id, task.digest()))
            .collect();
        let mut sample = Sample {
            format: Sample::FORMAT,
            kind: "task-sample".into(),
            producer,
            suite: population.suite.clone(),
            population_choice: population.choice.clone(),
            seed: request.seed,
            stratify: request.stratify,
            per_repository: request.per_repository,
            n: tasks.len(),
            n_population: population.tasks.len(),
            population_digest: Digest::of_value(&all),
            digest: Digest::of_value(&tasks),
            strata,
            unavailable: unavailable.clone(),
            availability_checked: population.unavailable.is_some(),
            stands_for: Vec::new(),
            does_not_stand_for: Vec::new(),
            tasks,
        };
        sample.say_what_it_stands_for();
        Ok(sample)
    }

    fn say_what_it_stands_for(&mut self) {
        let (n, of) = (self.n, self.n_population);
        let is_even = self.per_repository.is_none() && self.unavailable.is_empty();
        self.stands_for = vec!["comparisons of agents on these very tasks, paired by task".into()];
        if n == of {
            self.stands_for
                .push("the whole population: every task is in it".into());
        } else if is_even {
            self.stands_for.push(format!(
                "an estimate for the {of} tasks it was drawn from, with the interval of {n} tasks"
            ));
        }
        let mut not = vec!["tasks outside of the population it was drawn from".to_owned()];
        if n < of {
            not.push(format!(
                "a result on all {of} tasks: published numbers on them are not comparable"
            ));
        }
        if self.per_repository.is_some() {
            not.push(
                "the population's own mix: the cap changes the weight of large repositories".into(),
            );
        }
        if !self.unavailable.is_empty() {
            not.push(format!(
                "the {} tasks that could not be had, which may be harder or easier",
                self.unavailable.len()
            ));
        }
        if !self.availability_checked {
            not.push("a statement that its tasks can be had: nobody looked".into());
        }
        let unseen = self
            .strata
            .values()
            .filter(|stratum| stratum.n_sampled == 0)
            .count();
        if unseen > 0 {
            not.push(format!("{unseen} strata of which no task was drawn"));
        }
        self.does_not_stand_for = not;
    }
}

/// Tasks in the order in which a seed draws them.
pub fn order(tasks: &[Task], seed: u64) -> Vec<&Task> {
    let mut ordered: Vec<(Digest, &Task)> = tasks
        .iter()
        .map(|task| {
            let mut hasher = Hasher::default();
            hasher.field(&seed.to_le_bytes());
            hasher.field(task.id.as_str().as_bytes());
            (hasher.finish(), task)
        })
        .collect();
    ordered.sort_by(|a, b| (&a.0, &a.1.id).cmp(&(&b.0, &b.1.id)));
    ordered.into_iter().map(|(_, task)| task).collect()
}

/// Tasks in the order in which a ladder takes them: round by round one of each repository, so that
/// any first part has as many repositories as it can.
pub fn spread_order(tasks: &[Task], seed: u64) -> Vec<&Task> {
    let mut rounds: BTreeMap<String, usize> = BTreeMap::new();
    let mut placed: Vec<(usize, usize, &Task)> = order(tasks, seed)
        .into_iter()
        .enumerate()
        .map(|(position, task)| {
            let round = rounds.entry(repository(task)).or_default();
            *round += 1;
            (*round, position, task)
        })
        .collect();
    placed.sort_by_key(|(round, position, _)| (*round, *position));
    placed.into_iter().map(|(.., task)| task).collect()
}

/// Largest remainders: no stratum gets more than it has, and the sum is `n`, which is at most the
/// sum of all sizes. Equal remainders go to the name that comes first.
fn allocate<'a>(sizes: &BTreeMap<&'a String, usize>, n: usize) -> Vec<(&'a String, usize)> {
    let total: usize = sizes.values().sum();
    let mut given: Vec<(&String, usize, usize)> = sizes
        .iter()
        .map(|(name, size)| {
            let product = size * n;
            (*name, product / total, product % total)
        })
        .collect();
    let mut left = n - given.iter().map(|(_, n, _)| n).sum::<usize>();
    let mut by_remainder: Vec<usize> = (0..given.len()).collect();
    by_remainder.sort_by_key(|index| std::cmp::Reverse(given[*index].2));
    for index in by_remainder {
        if left == 0 {
            break;
        }
        given[index].1 += 1;
        left -= 1;
    }
    given.into_iter().map(|(name, n, _)| (name, n)).collect()
}

/// A list of tasks from a file: a [`Sample`], or ids, one a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskList {
    path: String,
    digest: Digest,
    tasks: BTreeMap<TaskId, Option<Digest>>,
}

/// Why a list of tasks cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("choose the tasks of {path}: {reason}")]
pub struct TaskListError {
    path: String,
    reason: String,
}

impl TaskListError {
    /// What the user can do.
    pub fn hint(&self) -> &'static str {
        "`temper tasks sample` writes such a list; one of ids has one id a line, and # begins a comment"
    }
}

impl TaskList {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, TaskListError> {
        let shown = path.display().to_string();
        let wrong = |reason: String| TaskListError {
            path: shown.clone(),
            reason,
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let digest = Digest::of(text.as_bytes());
        if text.trim_start().starts_with('{') {
            let sample: Sample =
                serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            if sample.format != Sample::FORMAT {
                return Err(wrong(format!(
                    "it has format {}, this version reads {}",
                    sample.format,
                    Sample::FORMAT
                )));
            }
            if Digest::of_value(&sample.tasks) != sample.digest {
                return Err(wrong(
                    "its tasks are not those that its digest names".into(),
                ));
            }
            return Ok(TaskList {
                tasks: sample
                    .tasks
                    .into_iter()
                    .map(|(id, digest)| (id, Some(digest)))
                    .collect(),
                path: shown,
                digest,
            });
        }
        let mut tasks = BTreeMap::new();
        let lines = text
            .lines()
            .map(|line| line.split('#').next().unwrap_or("").trim());
        for line in lines.filter(|line| !line.is_empty()) {
            let id = TaskId::new(line).map_err(|error| wrong(error.to_string()))?;
            if tasks.insert(id, None).is_some() {
                return Err(wrong(format!("{line} is there twice")));
            }
        }
        if tasks.is_empty() {
            return Err(wrong("it names no task".into()));
        }
        Ok(TaskList {
            path: shown,
            digest,
            tasks,
        })
    }

    /// Digest of the file.
    pub fn digest(&self) -> &Digest {
        &self.digest
    }

    /// The named tasks. One that is missing, or is another task by now, is an error: a smaller or
    /// changed set would be another experiment.
    pub fn choose(&self, tasks: Vec<Task>) -> Result<Vec<Task>, TaskListError> {
        let wrong = |reason: String| TaskListError {
            path: self.path.clone(),
            reason,
        };
        let chosen: Vec<Task> = tasks
            .into_iter()
            .filter(|task| self.tasks.contains_key(&task.id))
            .collect();
        let there: BTreeSet<&TaskId> = chosen.iter().map(|task| &task.id).collect();
        let missing: Vec<&str> = self
            .tasks
            .keys()
            .filter(|id| !there.contains(id))
            .map(TaskId::as_str)
            .collect();
        if !missing.is_empty() {
            let n = missing.len();
            let some = missing.into_iter().take(5).collect::<Vec<_>>().join(", ");
            return Err(wrong(format!(
                "{n} of its tasks are not in the suite: {some}"
            )));
        }
        for task in &chosen {
            let digest = task.digest();
            if let Some(Some(listed)) = self.tasks.get(&task.id)
                && *listed != digest
            {
                return Err(wrong(format!(
                    "{} is another task by now: drawn as {}, here {}",
                    task.id,
                    listed.short(),
                    digest.short()
                )));
            }
        }
        Ok(chosen)
    }
}

#[cfg(test)]
mod tests;
