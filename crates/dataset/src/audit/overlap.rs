//! Which rows are about tasks that must not be trained on, or that belong to a known suite.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Serialize;
use temper_core::{Split, Task, TaskId};
use temper_tasks::similarity::{NgramSet, ngrams, words};

use crate::rows::Row;

/// Words of an n-gram: GPT-3 looked for this many (Brown et al. 2020, appendix C).
pub const NGRAM_WORDS: usize = 13;
/// A row matches a task's statement when it holds at least this share of its n-grams.
pub const MIN_TEXT_SHARE: f64 = 0.5;
/// Beyond this the first user message is no task's text.
const MAX_STATEMENT_BYTES: usize = 256 << 10;

/// How a row is tied to a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tie {
    /// It has the task's id.
    InstanceId,
    /// Its repository, as its id names it, is the task's.
    Repository,
    /// Its first user message holds the task's statement, or half of it.
    TaskText,
}

/// A tie of one row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Overlap {
    /// Name of the suite.
    pub suite: String,
    /// The part of the suite.
    pub split: Split,
    /// What ties them.
    pub tie: Tie,
    /// A task it is tied to; for a repository, the first of several.
    pub task: TaskId,
    /// For text: the share of the statement's n-grams that the row holds.
    pub share: Option<f64>,
}

/// The tasks that rows are compared with.
#[derive(Debug, Default)]
pub struct References {
    tasks: Vec<ReferenceTask>,
    by_id: HashMap<String, Vec<usize>>,
    /// First task of each suite and split, by `owner/name` and by `name` alone.
    by_repository: HashMap<String, BTreeMap<(String, Split), usize>>,
    by_ngram: HashMap<u64, Vec<u32>>,
}

#[derive(Debug)]
struct ReferenceTask {
    suite: String,
    split: Split,
    id: TaskId,
    n_ngrams: usize,
}

impl References {
    /// Adds the tasks of a suite.
    pub fn add(&mut self, suite: &str, tasks: &[Task]) {
        for task in tasks {
            let index = self.tasks.len();
            let statement = word_ngrams(&task.statement);
            self.by_id
                .entry(task.id.to_string())
                .or_default()
                .push(index);
            for name in repository_names(task) {
                self.by_repository
                    .entry(name)
                    .or_default()
                    .entry((suite.to_owned(), task.split))
                    .or_insert(index);
            }
            for hash in statement.as_slice() {
                self.by_ngram.entry(*hash).or_default().push(index as u32);
            }
            self.tasks.push(ReferenceTask {
                suite: suite.to_owned(),
                split: task.split,
                id: task.id.clone(),
                n_ngrams: statement.len(),
            });
        }
    }

    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Tasks by suite and split, and how many of them have a statement long enough for n-grams.
    pub fn parts(&self) -> BTreeMap<(String, Split), (u64, u64)> {
        let mut parts = BTreeMap::new();
        for task in &self.tasks {
            let part: &mut (u64, u64) = parts.entry((task.suite.clone(), task.split)).or_default();
            part.0 += 1;
            part.1 += u64::from(task.n_ngrams > 0);
        }
        parts
    }

    /// The ties of a row, at most one of each kind with each suite and split, in order.
    pub fn overlaps(&self, row: &Row<'_>) -> Vec<Overlap> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut found: BTreeMap<(&str, Split, Tie), (usize, Option<f64>)> = BTreeMap::new();
        let mut tie = |index: usize, tie: Tie, share: Option<f64>| {
            let task = &self.tasks[index];
            let entry = found
                .entry((&task.suite, task.split, tie))
                .or_insert((index, share));
            if share > entry.1 {
                *entry = (index, share);
            }
        };
        if let Some(id) = row.instance_id.as_deref() {
            for index in self.by_id.get(id).into_iter().flatten() {
                tie(*index, Tie::InstanceId, None);
            }
            for name in instance_repository(id) {
                for index in self
                    .by_repository
                    .get(&name)
                    .into_iter()
                    .flat_map(BTreeMap::values)
                {
                    tie(*index, Tie::Repository, None);
                }
            }
        }
        if let Some(text) = statement(row) {
            let mut n_shared: HashMap<u32, usize> = HashMap::new();
            for hash in word_ngrams(text).as_slice() {
                for index in self.by_ngram.get(hash).into_iter().flatten() {
                    *n_shared.entry(*index).or_default() += 1;
                }
            }
            let mut n_shared: Vec<_> = n_shared.into_iter().collect();
            n_shared.sort_unstable();
            for (index, n) in n_shared {
                let index = index as usize;
                let share = n as f64 / self.tasks[index].n_ngrams as f64;
                if share >= MIN_TEXT_SHARE {
                    tie(index, Tie::TaskText, Some(share));
                }
            }
        }
        found
            .into_iter()
            .map(|((suite, split, tie), (index, share))| Overlap {
                suite: suite.to_owned(),
                split,
                tie,
                task: self.tasks[index].id.clone(),
                share,
            })
            .collect()
    }
}

fn word_ngrams(text: &str) -> NgramSet {
    let mut hashes = Vec::new();
    words(text.as_bytes(), |hash, _| hashes.push(hash));
    ngrams(&hashes, NGRAM_WORDS)
}

/// The text of a row that states its task: what stands between the tags of the published profile,
/// or the whole first user message.
fn statement<'a>(row: &'a Row<'_>) -> Option<&'a str> {
    let message = row.messages.iter().find(|message| message.role == "user")?;
    let text = message.content.as_ref();
    let tagged = text
        .split_once("<pr_description>")
        .and_then(|(_, rest)| rest.split_once("</pr_description>"))
        .map(|(inside, _)| inside);
    let text = tagged.unwrap_or(text);
    let mut end = text.len().min(MAX_STATEMENT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Some(&text[..end])
}

/// `owner/name` and `name` of an instance id: `owner__name.commit.bug` of SWE-smith,
/// `owner__name-number` of SWE-bench.
fn instance_repository(id: &str) -> Vec<String> {
    let Some((owner, rest)) = id.split_once("__") else {
        return Vec::new();
    };
    let mut parts = rest.rsplitn(3, '.');
    let (last, middle, first) = (parts.next(), parts.next(), parts.next());
    let is_commit = |text: &str| text.len() == 8 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let name = match (last, middle, first) {
        (Some(_), Some(commit), Some(name)) if is_commit(commit) => name,
        _ => match rest.rsplit_once('-') {
            Some((name, number)) if number.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => return Vec::new(),
        },
    };
    names(owner, name)
}

fn names(owner: &str, name: &str) -> Vec<String> {
    let name = plain(name);
    vec![format!("{}/{name}", plain(owner)), name]
}

/// Names of one project are written in several ways.
fn plain(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// A task's repository: `owner/name` where that is known, else the name alone.
fn repository_names(task: &Task) -> BTreeSet<String> {
    let origin = &task.origin;
    let from_url = origin.url.as_deref().and_then(|url| {
        let path = url.split_once("github.com/")?.1;
        let mut parts = path.trim_end_matches('/').split('/');
        Some((parts.next()?, parts.next()?.trim_end_matches(".git")))
    });
    let owned = origin.project.split_once('/').or(from_url);
    let name = match owned {
        Some((owner, name)) => format!("{}/{}", plain(owner), plain(name)),
        None => plain(&origin.project),
    };
    BTreeSet::from([name])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repositories_are_read_from_ids() {
        for (id, name) in [
            (
                "oauthlib__oauthlib.1fd52536.combine_file__09vlzwgc",
                Some("oauthlib/oauthlib"),
            ),
            (
                "Cog-Creators__Red-DiscordBot.33e0eac7.pr_5970",
                Some("cog-creators/red-discordbot"),
            ),
            ("django__django-11099", Some("django/django")),
            ("pallets__flask.a.b", None),
            ("toolz-1.0.0-x", None),
            ("a__b.c.1fd52536.x", Some("a/b.c")),
        ] {
            assert_eq!(
                instance_repository(id).first().map(String::as_str),
                name,
                "{id}"
            );
        }
    }
}
