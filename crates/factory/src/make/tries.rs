//! Candidates in their fixed order, tried until enough of them are proven tasks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use temper_core::{Digest, PreparedTask, Task, TestId};
use temper_sandbox::verify::proof::Finding;
use temper_tasks::{cache::Cache, isolation::statement_words, prepare::prepare};

use super::{
    Event, Factory, KindCounts, MakeError, MakeOptions, Rejected, Resumed, Stage,
    assemble::{Assembler, Draft},
    journal::{self, Journal},
};
use crate::{
    Candidate,
    measure::coverage::Index,
    pool::{Cost, Subject},
    prove,
};

/// Tasks that are tried between two looks at the limit and at interruptions.
const PROVE_CHUNK: usize = 32;

/// What is known when tasks are tried.
pub(super) struct Tries<'a> {
    pub(super) assembler: &'a Assembler<'a>,
    /// Positions of candidates, in the order in which they are tried.
    pub(super) order: &'a [usize],
    pub(super) candidates: &'a [Candidate],
    /// Names what else bears on proofs.
    pub(super) measured: &'a Digest,
    pub(super) subject: &'a Subject,
    pub(super) index: &'a Index<'a>,
    pub(super) options: &'a MakeOptions,
    pub(super) factory: &'a Factory<'a>,
}

/// Why a candidate is left out whose statement a task has already: nothing that an agent is told
/// would tell the two apart, and equal statements join the source groups of their files.
const SAME_STATEMENT: &str = "tell it from another task: both have the same statement";

/// A try, with the words of the statement where one was written.
struct Try {
    words: Option<String>,
    tried: Tried,
}

/// What came of one try.
enum Tried {
    Proven(Box<Task>),
    Rejected(Rejected),
    Unusable(String),
}

impl Tries<'_> {
    /// Tries candidates until enough tasks are proven.
    pub(super) fn prove(
        &self,
        counts: &mut BTreeMap<String, KindCounts>,
        cost: &mut Cost,
        on_event: &mut dyn FnMut(Event),
    ) -> Result<(Vec<Task>, Vec<Rejected>), MakeError> {
        let stage = Stage::Prove;
        let limit = self.options.limit.unwrap_or(usize::MAX);
        let n_total = limit.min(self.order.len());
        on_event(Event::Started { stage, n_total });
        let cache = self.factory.cache;
        let key = Digest::of_value(&("proofs", self.measured, self.options.repeat));
        let journal = Journal::open(cache, &key)?;
        // Nobody needs the starts of these tasks again: trials prepare them in their own cache.
        let folder = tempfile::Builder::new()
            .prefix("proving-")
            .tempdir_in(cache.root())
            .map_err(|source| MakeError::Stage {
                operation: "make",
                path: cache.root().to_owned(),
                source,
            })?;
        let scratch = Cache::open(folder.path())?;
        let mut tasks = Vec::new();
        let mut stated = BTreeSet::new();
        let mut rejected = Vec::new();
        let mut unusable: BTreeMap<String, usize> = BTreeMap::new();
        let (mut n_known, mut n_new) = (0, 0);
        let mut n_tried = 0;
        let mut left = self.order;
        while !left.is_empty() && tasks.len() < limit && !(self.factory.stopped)() {
            // Near the limit, no more is tried at once than may be needed.
            let most = PROVE_CHUNK.min((limit - tasks.len()).max(self.factory.workshop.n_workers));
            let numbers = left.split_off(..most.min(left.len())).unwrap_or_default();
            let (tries, n_proved) = self.try_chunk(numbers, &stated, &journal, &scratch, cost)?;
            let n_usable = tries
                .iter()
                .filter(|one| !matches!(one.tried, Tried::Unusable(_)));
            n_known += n_usable.count() - n_proved;
            n_new += n_proved;
            for (number, Try { words, tried }) in numbers.iter().zip(tries) {
                // How many are tried at once depends on the workers, what is counted does not.
                if tasks.len() >= limit {
                    break;
                }
                let kind = &self.candidates[*number].kind;
                let count = counts.entry(kind.clone()).or_default();
                n_tried += 1;
                let tried = match &words {
                    Some(words) if stated.contains(words) => {
                        Tried::Unusable(SAME_STATEMENT.to_owned())
                    }
                    _ => tried,
                };
                match tried {
                    Tried::Proven(task) => {
                        count.proven += 1;
                        tasks.push(*task);
                        stated.extend(words);
                    }
                    Tried::Rejected(one) => {
                        count.unproven += 1;
                        rejected.push(one);
                    }
                    Tried::Unusable(reason) => {
                        count.unusable += 1;
                        *unusable.entry(reason).or_default() += 1;
                    }
                }
            }
            let n_done = if limit == usize::MAX {
                n_tried
            } else {
                tasks.len()
            };
            on_event(Event::Advanced {
                stage,
                n_done,
                n_total,
            });
        }
        tasks.sort_by(|a, b| a.id.cmp(&b.id));
        for (reason, n) in unusable {
            on_event(Event::Note(format!(
                "{n} candidates become no tasks: failed to {reason}"
            )));
        }
        on_event(Event::Finished {
            stage,
            summary: format!("{} tasks proven of {n_tried} tried", tasks.len()),
            resumed: Resumed::of(n_known, n_new),
        });
        Ok((tasks, rejected))
    }

    /// What failing tests of the candidates print.
    fn outputs(
        &self,
        numbers: &[usize],
        drafts: &[Result<Draft, String>],
        cost: &mut Cost,
    ) -> Result<Vec<prove::Outputs>, MakeError> {
        let asked: Vec<(&Candidate, &[TestId])> = numbers
            .iter()
            .zip(drafts)
            .map(|(number, draft)| {
                let tests = draft.as_ref().map_or(&[][..], Draft::to_explain);
                (&self.candidates[*number], tests)
            })
            .collect();
        let names: Vec<(Digest, &[TestId])> = asked
            .iter()
            .map(|(candidate, tests)| (candidate.digest(), *tests))
            .collect();
        let key = Digest::of_value(&("outputs", self.measured, &self.options.screen, names));
        let (outputs, _) = journal::stage(self.factory.cache, &key, || {
            let (outputs, spent) = prove::explain(
                self.subject,
                &self.factory.workshop,
                self.index,
                &asked,
                &self.options.screen,
            )?;
            cost.add(spent);
            Ok::<_, MakeError>(outputs)
        })?;
        Ok(outputs)
    }

    /// Tries candidates, in parallel; what comes out is in their order. Nothing is proven whose
    /// statement is among `stated`. The second value says how many were proven now.
    fn try_chunk(
        &self,
        numbers: &[usize],
        stated: &BTreeSet<String>,
        journal: &Journal,
        scratch: &Cache,
        cost: &mut Cost,
    ) -> Result<(Vec<Try>, usize), MakeError> {
        enum Step {
            Done(Tried),
            ToProve(Box<PreparedTask>),
        }
        let n_workers = self.factory.workshop.n_workers;
        let drafts = in_parallel(n_workers, numbers, &|number| self.assembler.draft(number));
        let outputs = self.outputs(numbers, &drafts, cost)?;
        let drafts: Vec<_> = drafts
            .into_iter()
            .map(|draft| Mutex::new(Some(draft)))
            .collect();
        let step = |place: usize| -> Result<(Option<String>, Step), MakeError> {
            let draft = drafts[place]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take()
                .expect("every place is taken once");
            let task =
                draft.and_then(|draft| self.assembler.task(numbers[place], draft, &outputs[place]));
            let task = match task {
                Ok(task) => task,
                Err(reason) => return Ok((None, Step::Done(Tried::Unusable(reason)))),
            };
            let words = statement_words(&task.statement);
            if stated.contains(&words) {
                let reason = SAME_STATEMENT.to_owned();
                return Ok((Some(words), Step::Done(Tried::Unusable(reason))));
            }
            let step = match journal.get(&proof_key(&task)) {
                Some(None) => Step::Done(Tried::Proven(Box::new(task))),
                Some(Some(reason)) => Step::Done(Tried::Rejected(Rejected {
                    id: task.id,
                    reason,
                })),
                None => {
                    let prepared = prepare(&task, scratch, self.factory.tools)?;
                    Step::ToProve(Box::new(prepared.task))
                }
            };
            Ok((Some(words), step))
        };
        let places: Vec<usize> = (0..numbers.len()).collect();
        let steps = in_parallel(n_workers, &places, &step);
        let mut words = Vec::with_capacity(numbers.len());
        let mut tried = Vec::with_capacity(numbers.len());
        let mut places = Vec::new();
        let mut prepared = Vec::new();
        for step in steps {
            let (statement, step) = step?;
            words.push(statement);
            match step {
                Step::Done(done) => tried.push(Some(done)),
                Step::ToProve(task) => {
                    places.push(tried.len());
                    tried.push(None);
                    prepared.push(*task);
                }
            }
        }
        let n_proved = prepared.len();
        let (proofs, spent) = prove::prove(&self.factory.workshop, &prepared, self.options.repeat);
        cost.add(spent);
        for ((place, prepared), proof) in places.into_iter().zip(prepared).zip(proofs) {
            if let Some(entry) = prepared
                .start_tree
                .as_ref()
                .and_then(|tree| tree.parent()?.parent())
            {
                let _ = std::fs::remove_dir_all(entry);
            }
            tried[place] = Some(conclude(prepared.task, &proof.findings, journal)?);
        }
        let tries = words.into_iter().zip(tried.into_iter().flatten());
        Ok((
            tries.map(|(words, tried)| Try { words, tried }).collect(),
            n_proved,
        ))
    }
}

/// What a proof is kept by: all of the task but how it was made. Further candidates change what its
/// audit says and not whether it holds.
fn proof_key(task: &Task) -> Digest {
    Digest::of_value(&Task {
        construction: None,
        ..task.clone()
    })
}

/// Keeps the result of a proof. What was lost says nothing of the task, so it is not kept and tried
/// again next time.
fn conclude(task: Task, findings: &[Finding], journal: &Journal) -> Result<Tried, MakeError> {
    let text = |finding: &Finding| serde_json::to_string(finding).expect("findings are plain data");
    let lost = findings
        .iter()
        .find(|finding| matches!(finding, Finding::Lost { .. }));
    if let Some(lost) = lost {
        return Ok(Tried::Rejected(Rejected {
            id: task.id,
            reason: text(lost),
        }));
    }
    let reason = findings.first().map(text);
    journal.put(&proof_key(&task), reason.as_deref())?;
    Ok(match reason {
        None => Tried::Proven(Box::new(task)),
        Some(reason) => Tried::Rejected(Rejected {
            id: task.id,
            reason,
        }),
    })
}

/// Applies a function to everything, by several threads; results are in order.
pub(super) fn in_parallel<T: Copy + Sync, R: Send>(
    n_workers: usize,
    items: &[T],
    work: &(dyn Fn(T) -> R + Sync),
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, R>> = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..n_workers.max(1) {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(turn) else {
                        return;
                    };
                    let result = work(*item);
                    results
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .insert(turn, result);
                }
            });
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.into_values().collect()
}
