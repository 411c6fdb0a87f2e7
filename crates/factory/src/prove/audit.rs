//! What mutants of the fixed code say of a task's tests.
//!
//! A task's tests are meant to accept right fixes and nothing else. Every candidate whose places lie
//! in the functions that the task's fix restores is a wrong version of the fixed code, and the
//! screen has already said which tests notice it; so the audit of a task runs nothing. Code at the
//! level of a module or class has no function: there the lines must meet.
//!
//! Left out of the count are versions that compile to the same code, and the task's own bug, which
//! its tests notice by construction. A version whose changed lines no trusted test executes is
//! counted as uncovered and not as a survivor: no test of the repository can notice it, so it says
//! nothing of the choice of tests. Versions that could not be judged (`unstable`, `does-not-apply`)
//! are not counted at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::Deserialize;
use temper_core::{
    Bytes, Entry, Place, TestId, TreePath,
    construction::{MAX_SURVIVORS, MutationAudit, Survivor},
    task::TestLists,
};
use temper_sandbox::verify::{read_entry, shell_quote};

use super::{Screened, Status, screen::changes_of};
use crate::{
    Candidate,
    measure::{TestIndex, coverage::Index},
    pool::{self, Cost, PoolError, Subject, Workshop},
};

const EQUIVALENCE: &str = include_str!("../python/equivalence.py");
/// Sources that one sandbox compiles.
const CHUNK: usize = 200;

/// Which surviving candidates compile to the same code as the pristine file, docstrings and line
/// numbers left aside. Python's own compiler decides, in the sandbox; nothing is run. The result
/// holds positions in `candidates`.
pub fn equivalents(
    subject: &Subject,
    workshop: &Workshop<'_>,
    candidates: &[Candidate],
    screened: &[Screened],
) -> Result<(BTreeSet<usize>, Cost), PoolError> {
    let survivors: Vec<usize> = screened
        .iter()
        .enumerate()
        .filter(|(_, screened)| screened.status == Status::Survived)
        .map(|(number, _)| number)
        .collect();
    let mut found = BTreeSet::new();
    let mut cost = Cost::default();
    for chunk in survivors.chunks(CHUNK) {
        let mut lines = String::new();
        let mut pristine: BTreeSet<TreePath> = BTreeSet::new();
        let mut write = |number: Option<usize>, path: &TreePath, content: Vec<u8>| {
            let line = serde_json::json!({
                "n": number,
                "file": path.to_text(),
                "source": Bytes(content),
            });
            lines += &line.to_string();
            lines.push('\n');
        };
        for number in chunk {
            for (path, entry) in changes_of(subject, &candidates[*number]).unwrap_or_default() {
                if pristine.insert(path.clone())
                    && let Some(Entry::File { content, .. }) = read_entry(&subject.tree, &path)
                {
                    write(None, &path, content);
                }
                let content = match entry {
                    Some(Entry::File { content, .. }) => content,
                    _ => Vec::new(),
                };
                write(Some(*number), &path, content);
            }
        }
        let (execution, spent) = pool::execute(
            subject,
            workshop,
            &[
                ("equivalence.py", EQUIVALENCE.to_owned()),
                ("sources.jsonl", lines),
            ],
            |from| {
                format!(
                    "exec \"$python\" -I -S -B {}",
                    shell_quote(&format!("{from}/equivalence.py"))
                )
            },
            Duration::from_secs(600),
        )?;
        cost.add(spent);
        found.extend(same_code(&execution.output));
    }
    Ok((found, cost))
}

/// Candidates all of whose files have the pristine file's code.
fn same_code(output: &[u8]) -> BTreeSet<usize> {
    #[derive(Deserialize)]
    struct Line {
        n: Option<usize>,
        file: String,
        code: Option<String>,
    }
    let lines: Vec<Line> = output
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    let pristine: BTreeMap<&str, &Option<String>> = lines
        .iter()
        .filter(|line| line.n.is_none())
        .map(|line| (line.file.as_str(), &line.code))
        .collect();
    let mut same: BTreeMap<usize, bool> = BTreeMap::new();
    for line in &lines {
        let Some(number) = line.n else { continue };
        let equal = line.code.is_some() && pristine.get(line.file.as_str()) == Some(&&line.code);
        *same.entry(number).or_insert(true) &= equal;
    }
    same.into_iter()
        .filter(|(_, same)| *same)
        .map(|(number, _)| number)
        .collect()
}

/// The screen's results of one repository, by the code that candidates change.
pub struct Kills<'a> {
    index: &'a Index<'a>,
    candidates: &'a [Candidate],
    screened: &'a [Screened],
    equivalent: &'a BTreeSet<usize>,
    by_file: BTreeMap<&'a TreePath, Vec<usize>>,
    tests: BTreeMap<&'a TestId, TestIndex>,
}

/// A task's audit, and what strengthening can go by.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// The numbers.
    pub numbers: MutationAudit,
    /// The survivors, as positions in the repository's candidates.
    pub survivors: Vec<usize>,
}

impl<'a> Kills<'a> {
    /// `screened` and `candidates` belong together, position by position.
    pub fn new(
        index: &'a Index<'a>,
        candidates: &'a [Candidate],
        screened: &'a [Screened],
        equivalent: &'a BTreeSet<usize>,
    ) -> Self {
        let mut by_file: BTreeMap<&TreePath, Vec<usize>> = BTreeMap::new();
        for (number, candidate) in candidates.iter().enumerate() {
            if let Some(place) = candidate.places.first() {
                by_file.entry(&place.file).or_default().push(number);
            }
        }
        let tests = index.measurement().tests.iter().enumerate();
        Kills {
            index,
            candidates,
            screened,
            equivalent,
            by_file,
            tests: tests
                .map(|(number, test)| (&test.id, TestIndex(number as u32)))
                .collect(),
        }
    }

    /// Audits the task that was made of candidate number `own`.
    pub fn audit(&self, own: usize, public: &TestLists, hidden: &TestLists) -> Audit {
        let public = self.indices(public);
        let hidden = self.indices(hidden);
        let mut numbers = MutationAudit {
            n_mutants: 0,
            n_killed_public: 0,
            n_killed_hidden: 0,
            survivors: Vec::new(),
            n_survivors: 0,
            n_equivalent: 0,
            n_uncovered: 0,
            n_added_tests: 0,
        };
        let mut survivors = Vec::new();
        for number in self.mutants(own) {
            let (candidate, screened) = (&self.candidates[number], &self.screened[number]);
            let noticed_by =
                |tests: &BTreeSet<TestIndex>| screened.failing.iter().any(|t| tests.contains(t));
            match screened.status {
                Status::Unstable | Status::DoesNotApply { .. } => continue,
                // What broke the pool was noticed, by nobody knows which test.
                Status::Crashed if screened.failing.is_empty() => continue,
                Status::Uncovered => {
                    numbers.n_uncovered += 1;
                    continue;
                }
                Status::Survived if self.equivalent.contains(&number) => {
                    numbers.n_equivalent += 1;
                    continue;
                }
                Status::Survived if !candidate.places.iter().any(|p| self.is_executed(p)) => {
                    numbers.n_uncovered += 1;
                    continue;
                }
                _ if noticed_by(&public) => numbers.n_killed_public += 1,
                _ if noticed_by(&hidden) => numbers.n_killed_hidden += 1,
                _ => {
                    survivors.push(number);
                    numbers.n_survivors += 1;
                    if numbers.survivors.len() < MAX_SURVIVORS {
                        numbers.survivors.push(Survivor {
                            kind: candidate.kind.clone(),
                            digest: candidate.patch.digest(),
                            patch: candidate.patch.clone(),
                        });
                    }
                }
            }
            numbers.n_mutants += 1;
        }
        Audit { numbers, survivors }
    }

    /// The repository's other tests that notice survivors of a task, so that they can join its
    /// hidden pass-to-pass tests: few that together notice all that can be noticed, in file order,
    /// at most `most`. Tests that the task's own bug makes fail are none of them.
    pub fn strengthen(&self, own: usize, audit: &Audit, most: usize) -> Vec<TestId> {
        let failing: BTreeSet<TestIndex> = self.screened[own].failing.iter().copied().collect();
        let mut left: Vec<BTreeSet<TestIndex>> = audit
            .survivors
            .iter()
            .map(|number| {
                let tests = self.screened[*number].failing.iter().copied();
                tests.filter(|test| !failing.contains(test)).collect()
            })
            .filter(|tests: &BTreeSet<TestIndex>| !tests.is_empty())
            .collect();
        let mut chosen = BTreeSet::new();
        while !left.is_empty() && chosen.len() < most {
            let mut votes: BTreeMap<TestIndex, usize> = BTreeMap::new();
            for test in left.iter().flatten() {
                *votes.entry(*test).or_default() += 1;
            }
            let best = votes
                .into_iter()
                .max_by_key(|(test, n)| (*n, std::cmp::Reverse(*test)));
            let Some((best, _)) = best else { break };
            left.retain(|tests| !tests.contains(&best));
            chosen.insert(best);
        }
        chosen
            .into_iter()
            .map(|test| self.index.measurement().id(test).clone())
            .collect()
    }

    /// Other candidates all of whose places lie in what candidate `own` changes.
    fn mutants(&self, own: usize) -> Vec<usize> {
        let places = &self.candidates[own].places;
        let files: BTreeSet<&TreePath> = places.iter().map(|place| &place.file).collect();
        let mut found: Vec<usize> = files
            .iter()
            .filter_map(|file| self.by_file.get(*file))
            .flatten()
            .copied()
            .filter(|number| {
                let other = &self.candidates[*number];
                *number != own
                    && other.patch != self.candidates[own].patch
                    && other
                        .places
                        .iter()
                        .all(|place| places.iter().any(|own| lies_in(place, own)))
            })
            .collect();
        found.sort_unstable();
        found
    }

    fn is_executed(&self, place: &Place) -> bool {
        self.index.executes(place)
    }

    fn indices(&self, lists: &TestLists) -> BTreeSet<TestIndex> {
        lists
            .fail_to_pass
            .iter()
            .chain(&lists.pass_to_pass)
            .filter_map(|id| self.tests.get(id).copied())
            .collect()
    }
}

/// Whether a change lies in the code that another one changes.
fn lies_in(place: &Place, own: &Place) -> bool {
    let same_lines = place.first_line <= own.last_line && own.first_line <= place.last_line;
    place.file == own.file
        && place.function == own.function
        && (place.function.is_some() || same_lines)
}
