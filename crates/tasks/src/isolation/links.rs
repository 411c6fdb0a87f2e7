//! Why tasks belong together.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use temper_core::{SourceGroup, TaskId};

use super::evidence::Evidence;
use crate::similarity::{Bands, NgramSet, Permutations, candidate_pairs, jaccard};

/// 42 bands of 3: two functions that are 70 % alike are found with probability 1 - 2e-8, two files
/// that are 60 % alike with 1 - 4e-5.
pub const BANDS: Bands = Bands { bands: 42, rows: 3 };

/// The version of everything below and of the tokens, n-grams and permutations it builds on.
///
/// 1 read hunks as texts of their own, so that fixes of unlike code under docstrings were equal;
/// linked fixes of any length; linked short code that is not the same; and did not compare
/// statements. Splits of it are still verified and extended by it.
pub(super) const LINKS_VERSION: u32 = 2;
/// The permutations are the same for every suite, so that a link never depends on a suite's seed.
const PERMUTATION_SEED: u64 = 1;

/// Shared n-grams of code from which two stretches are near-duplicates, in thousandths. The value
/// that is common for deduplicating code (Lee et al. 2021 use 0.8 for documents; Allamanis 2019
/// finds most duplicates of files above 0.7).
const CODE_PERMILLE: u32 = 700;
/// The same for whole files, which drift apart from version to version.
const FILE_PERMILLE: u32 = 600;
/// The same with names left out, where chance agreement is much larger.
const BLIND_PERMILLE: u32 = 900;
/// Shorter code is alike by chance: 20 n-grams are 24 tokens.
pub(super) const MIN_NGRAMS: usize = 20;
/// Shorter code is alike by convention (an `__init__` that keeps its arguments, a property, a
/// one-line override): it has to be the same, not nearly so. 40 n-grams are 44 tokens.
const MIN_ALIKE_NGRAMS: usize = 40;
/// As [`MIN_NGRAMS`] when names are left out.
const MIN_BLIND_NGRAMS: usize = 60;
/// Share of the smaller tree's files that the larger has too, from which one is a copy or a fork of
/// the other.
const TREE_PERMILLE: u32 = 500;
/// A smaller tree has too few files to tell.
const MIN_TREE_FILES: usize = 4;

/// What is never divided between splits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// Functions. More groups, but a training task may show the rest of a test task's file, its
    /// known fix included.
    Function,
    /// Files.
    #[default]
    File,
    /// Whole upstream projects.
    Project,
}

/// What links tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkRule {
    /// [`LinkRule::default`]'s or an earlier one; an unknown one is refused.
    pub version: u32,
    /// What is never divided.
    pub granularity: Granularity,
    /// Whether tasks that name the same source group themselves are linked.
    pub declared: bool,
    /// Whether the trees of the starts were read, without which only patches are compared.
    pub sources: bool,
}

impl Default for LinkRule {
    fn default() -> Self {
        LinkRule {
            version: LINKS_VERSION,
            granularity: Granularity::default(),
            declared: false,
            sources: false,
        }
    }
}

/// Why some tasks are in one group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Reason {
    /// They come from one upstream project (only when whole projects are kept together).
    SameProject {
        /// By what it is known: `name:`, `home:`, `archive:` or `tree:`.
        project: String,
    },
    /// They change the same file of one project.
    SameFile {
        /// By what the project is known.
        project: String,
        /// The file.
        file: String,
    },
    /// They change the same function of one project.
    SameFunction {
        /// By what the project is known.
        project: String,
        /// `FILE::FUNCTION`.
        function: String,
    },
    /// They are made from the same change.
    SameLineage {
        /// `commit:ID` or `pull:PROJECT:NUMBER`.
        change: String,
    },
    /// Their statements are the same words ([`statement_words`](super::statement_words)).
    SameStatement {
        /// The digest of the words.
        digest: temper_core::Digest,
    },
    /// Their known fixes are the same change of the same lines.
    SameFix {
        /// The digest of its tokens.
        digest: temper_core::Digest,
    },
    /// The code that they change is nearly the same.
    NearDuplicateCode {
        /// One place, with its project.
        first: String,
        /// The other.
        second: String,
        /// Shared n-grams in thousandths.
        permille: u32,
        /// Whether that is so only when names are left out.
        renamed: bool,
    },
    /// The files that they change are nearly the same: a vendored copy, a fork, a renamed file.
    NearDuplicateFile {
        /// One file, with its project.
        first: String,
        /// The other.
        second: String,
        /// Shared n-grams in thousandths.
        permille: u32,
    },
    /// They change a file of the same name in two trees that are copies of each other for the most
    /// part: one project under two names.
    RelatedTrees {
        /// One file, with its project.
        first: String,
        /// The other.
        second: String,
        /// Share of the smaller tree's Python files that are in the other, in thousandths.
        permille: u32,
    },
    /// They name the same source group themselves.
    Declared {
        /// The group.
        group: SourceGroup,
    },
}

impl Reason {
    /// The kind as the manifest writes it.
    pub fn kind(&self) -> &'static str {
        match self {
            Reason::SameProject { .. } => "same-project",
            Reason::SameFile { .. } => "same-file",
            Reason::SameFunction { .. } => "same-function",
            Reason::SameLineage { .. } => "same-lineage",
            Reason::SameStatement { .. } => "same-statement",
            Reason::SameFix { .. } => "same-fix",
            Reason::NearDuplicateCode { .. } => "near-duplicate-code",
            Reason::NearDuplicateFile { .. } => "near-duplicate-file",
            Reason::RelatedTrees { .. } => "related-trees",
            Reason::Declared { .. } => "declared",
        }
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |permille: &u32| format!("{}.{} %", permille / 10, permille % 10);
        match self {
            Reason::SameProject { project } => write!(f, "same project ({project})"),
            Reason::SameFile { project, file } => write!(f, "same file {file} of {project}"),
            Reason::SameFunction { project, function } => {
                write!(f, "same function {function} of {project}")
            }
            Reason::SameLineage { change } => write!(f, "made from the same change ({change})"),
            Reason::SameStatement { digest } => write!(f, "same statement ({})", digest.short()),
            Reason::SameFix { digest } => write!(f, "same fix ({})", digest.short()),
            Reason::NearDuplicateCode {
                first,
                second,
                permille,
                renamed,
            } => write!(
                f,
                "{first} and {second} share {} of their n-grams{}",
                percent(permille),
                if *renamed {
                    " once names are left out"
                } else {
                    ""
                }
            ),
            Reason::NearDuplicateFile {
                first,
                second,
                permille,
            } => write!(
                f,
                "the files {first} and {second} share {} of their n-grams",
                percent(permille)
            ),
            Reason::RelatedTrees {
                first,
                second,
                permille,
            } => write!(
                f,
                "{first} and {second} lie in trees of which one holds {} of the other's files",
                percent(permille)
            ),
            Reason::Declared { group } => write!(f, "both name the group {group}"),
        }
    }
}

/// Tasks that belong together, and why. Any two of the members are linked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Why.
    pub reason: Reason,
    /// At least two tasks, in order of their ids.
    pub members: Vec<TaskId>,
}

/// Finds every link, in order. The order of the evidence does not matter.
pub fn links(evidence: &[Evidence], rule: &LinkRule) -> Vec<Link> {
    let mut found = Found::new();
    for task in evidence {
        let mut add = |reason| {
            found
                .entry((reason, 0))
                .or_default()
                .insert(task.id.clone());
        };
        for project in &task.identities {
            match rule.granularity {
                Granularity::Project => add(Reason::SameProject {
                    project: project.clone(),
                }),
                Granularity::File => {
                    for file in &task.files {
                        add(Reason::SameFile {
                            project: project.clone(),
                            file: file.clone(),
                        });
                    }
                }
                Granularity::Function => {
                    for function in &task.functions {
                        add(Reason::SameFunction {
                            project: project.clone(),
                            function: function.clone(),
                        });
                    }
                }
            }
        }
        for change in &task.lineage {
            add(Reason::SameLineage {
                change: change.clone(),
            });
        }
        if let Some(digest) = &task.fix {
            add(Reason::SameFix {
                digest: digest.clone(),
            });
        }
        if rule.version >= 2 {
            add(Reason::SameStatement {
                digest: task.statement.clone(),
            });
        }
        if rule.declared {
            add(Reason::Declared {
                group: task.declared.clone(),
            });
        }
    }
    if rule.granularity == Granularity::Function {
        unplaced(evidence, &mut found);
    }
    near_code(evidence, rule, &mut found);
    near_files(evidence, rule, &mut found);
    related_trees(evidence, &mut found);
    found
        .into_iter()
        .filter(|(_, members)| members.len() > 1)
        .map(|((reason, _), members)| Link {
            reason,
            members: members.into_iter().collect(),
        })
        .collect()
}

/// By reason, and by what keeps apart links that read the same.
type Found = BTreeMap<(Reason, u64), BTreeSet<TaskId>>;

/// A task of which no function is known is linked with everything in its file, each pair by itself
/// so that two others of the file are not linked through it.
fn unplaced(evidence: &[Evidence], found: &mut Found) {
    for task in evidence {
        for file in &task.without_function {
            for other in evidence
                .iter()
                .filter(|other| other.id != task.id && other.files.contains(file))
            {
                let Some(project) = task.identities.intersection(&other.identities).next() else {
                    continue;
                };
                let (a, b) = (
                    task.id.clone().min(other.id.clone()),
                    task.id.clone().max(other.id.clone()),
                );
                let reason = Reason::SameFunction {
                    project: project.clone(),
                    function: format!("{file} ({a} and {b}: not known which)"),
                };
                found.entry((reason, 0)).or_default().extend([a, b]);
            }
        }
    }
}

/// One thing that is compared, and the tasks that have it.
struct Item<'a> {
    /// Place with project.
    name: String,
    /// What the project is known by, and the file.
    identities: &'a BTreeSet<String>,
    file: &'a str,
    set: &'a NgramSet,
    tasks: BTreeSet<&'a TaskId>,
}

/// Makes each different thing once.
fn items<'a>(
    all: impl Iterator<Item = (&'a Evidence, &'a str, &'a str, &'a NgramSet)>,
    min: usize,
) -> Vec<Item<'a>> {
    let mut unique: BTreeMap<(String, &BTreeSet<String>, &[u64]), Item<'a>> = BTreeMap::new();
    for (task, place, file, set) in all.filter(|(_, _, _, set)| set.len() >= min) {
        let name = format!("{}: {place}", task.project);
        unique
            .entry((name.clone(), &task.identities, set.as_slice()))
            .or_insert_with(|| Item {
                name,
                identities: &task.identities,
                file,
                set,
                tasks: BTreeSet::new(),
            })
            .tasks
            .insert(&task.id);
    }
    unique.into_values().collect()
}

/// Compares all items by way of their signatures and calls `link` with those alike enough.
fn compare(
    items: &[Item<'_>],
    permille: u32,
    rule: &LinkRule,
    mut link: impl FnMut(&[&Item<'_>], u32),
) {
    // Identical sets are compared once and stand for each other: a thousand copies are no million
    // pairs.
    let mut copies: BTreeMap<&[u64], Vec<&Item<'_>>> = BTreeMap::new();
    for item in items {
        copies.entry(item.set.as_slice()).or_default().push(item);
    }
    for same in copies.values().filter(|same| same.len() > 1) {
        link(same, 1000);
    }
    let copies: Vec<Vec<&Item<'_>>> = copies.into_values().collect();
    let sets: Vec<&NgramSet> = copies.iter().map(|same| same[0].set).collect();
    let permutations = Permutations::new(PERMUTATION_SEED, BANDS.n_permutations());
    for (a, b) in candidate_pairs(&sets, &permutations, BANDS) {
        if rule.version >= 2 && sets[a].len().min(sets[b].len()) < MIN_ALIKE_NGRAMS {
            continue;
        }
        let alike = jaccard(sets[a], sets[b]).map_or(0, |share| (share * 1000.0) as u32);
        if alike >= permille {
            link(
                &[copies[a].as_slice(), copies[b].as_slice()].concat(),
                alike,
            );
        }
    }
}

fn near_code(evidence: &[Evidence], rule: &LinkRule, found: &mut Found) {
    for (renamed, permille, min) in [
        (false, CODE_PERMILLE, MIN_NGRAMS),
        (true, BLIND_PERMILLE, MIN_BLIND_NGRAMS),
    ] {
        let all = evidence.iter().flat_map(|task| {
            task.code.iter().map(move |code| {
                let set = if renamed { &code.blind } else { &code.named };
                (task, code.place.as_str(), code.file.as_str(), set.as_ref())
            })
        });
        let items = items(all, min);
        compare(&items, permille, rule, |alike, permille| {
            if alike
                .windows(2)
                .all(|pair| already_together(pair[0], pair[1], rule))
            {
                return;
            }
            add_alike(found, alike, |first, second| Reason::NearDuplicateCode {
                first,
                second,
                permille,
                renamed,
            });
        });
    }
}

fn near_files(evidence: &[Evidence], rule: &LinkRule, found: &mut Found) {
    let all = evidence.iter().flat_map(|task| {
        task.whole.iter().map(move |whole| {
            (
                task,
                whole.file.as_str(),
                whole.file.as_str(),
                whole.named.as_ref(),
            )
        })
    });
    let items = items(all, MIN_NGRAMS);
    compare(&items, FILE_PERMILLE, rule, |alike, permille| {
        // One project's file is alike itself in every version; finer groups must not undo that.
        let one_file = |a: &Item<'_>, b: &Item<'_>| {
            a.file == b.file && !a.identities.is_disjoint(b.identities)
        };
        if alike
            .windows(2)
            .all(|pair| already_together(pair[0], pair[1], rule) || one_file(pair[0], pair[1]))
        {
            return;
        }
        add_alike(found, alike, |first, second| Reason::NearDuplicateFile {
            first,
            second,
            permille,
        });
    });
}

/// Whether another link holds all tasks of both anyway.
fn already_together(a: &Item<'_>, b: &Item<'_>, rule: &LinkRule) -> bool {
    let one_project = !a.identities.is_disjoint(b.identities);
    match rule.granularity {
        Granularity::Project => one_project,
        Granularity::File => one_project && a.file == b.file,
        Granularity::Function => false,
    }
}

/// Links the tasks of all these items. Different texts at places of the same name stay apart.
fn add_alike(
    found: &mut Found,
    alike: &[&Item<'_>],
    reason: impl FnOnce(String, String) -> Reason,
) {
    let name = |item: Option<&&Item<'_>>| item.map_or(String::new(), |item| item.name.clone());
    let mut names = [name(alike.first()), name(alike.last())];
    names.sort();
    let [first, second] = names;
    let sets: BTreeSet<u64> = alike.iter().map(|item| ngrams_hash(item.set)).collect();
    let apart = sets
        .iter()
        .fold(0u64, |all, set| all.wrapping_mul(31).wrapping_add(*set));
    let members = found.entry((reason(first, second), apart)).or_default();
    members.extend(
        alike
            .iter()
            .flat_map(|item| item.tasks.iter().map(|id| (*id).clone())),
    );
}

fn ngrams_hash(set: &NgramSet) -> u64 {
    let bytes: Vec<u8> = set
        .as_slice()
        .iter()
        .flat_map(|hash| hash.to_le_bytes())
        .collect();
    crate::similarity::hash_bytes(&bytes)
}

/// Links files of the same name in two trees that are copies of each other for the most part.
fn related_trees(evidence: &[Evidence], found: &mut Found) {
    type Facts<'a> = (&'a BTreeSet<String>, &'a BTreeSet<temper_core::Digest>);
    let mut trees: BTreeMap<Facts<'_>, Vec<&Evidence>> = BTreeMap::new();
    for task in evidence {
        if let Some(tree) = task
            .tree
            .as_deref()
            .filter(|tree| tree.len() >= MIN_TREE_FILES)
        {
            trees
                .entry((&task.identities, tree))
                .or_default()
                .push(task);
        }
    }
    let trees: Vec<_> = trees.into_iter().collect();
    for (at, (a, tasks_a)) in trees.iter().enumerate() {
        for (b, tasks_b) in &trees[at + 1..] {
            if !a.0.is_disjoint(b.0) {
                continue;
            }
            let shared = a.1.intersection(b.1).count();
            let permille = (shared * 1000 / a.1.len().min(b.1.len())) as u32;
            if permille >= TREE_PERMILLE {
                let apart = crate::similarity::hash_bytes(format!("{a:?}{b:?}").as_bytes());
                link_tails(tasks_a, tasks_b, permille, apart, found);
            }
        }
    }
}

/// The package of a renamed project has another name, so its first directory is not compared.
fn tail(file: &str) -> &str {
    file.split_once('/').map_or(file, |(_, rest)| rest)
}

fn link_tails(a: &[&Evidence], b: &[&Evidence], permille: u32, apart: u64, found: &mut Found) {
    for first in a {
        for second in b {
            for x in &first.files {
                for y in second.files.iter().filter(|y| tail(x) == tail(y)) {
                    let mut names = [
                        format!("{}: {x}", first.project),
                        format!("{}: {y}", second.project),
                    ];
                    names.sort();
                    let [first_name, second_name] = names;
                    let reason = Reason::RelatedTrees {
                        first: first_name,
                        second: second_name,
                        permille,
                    };
                    found
                        .entry((reason, apart))
                        .or_default()
                        .extend([first.id.clone(), second.id.clone()]);
                }
            }
        }
    }
}
