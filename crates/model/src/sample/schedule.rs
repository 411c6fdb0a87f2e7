//! Which rows the next step computes: continuous batching over the pages of the cache.
//!
//! Every step takes one row of each sequence that is drawing tokens, and fills up to the budget of
//! rows with pieces of prompts. Rules, so that every request ends and none waits for ever:
//!
//! - A request takes the pages of its whole prompt when it is admitted. Only sequences that draw
//!   tokens need more; where none is left, the youngest running sequence gives its pages up and
//!   waits again (it is computed anew, mostly from the cache). The oldest therefore always goes on.
//! - A waiting request that does not fit lets at most [`MAX_PASSES`] others pass.
//! - Of the rows for prompts, the oldest prompt has a quarter; the rest goes to those that had the
//!   fewest rows so far, so that a huge prompt does not hold up small ones, nor they it.
//! - A request whose prompt begins like one that is being computed waits for that one's pages: a
//!   group of samples of one prompt pays for it once.
//! - A step serves one adapter; adapters take turns.
//!
//! Nothing here touches a device or a clock.

use std::collections::{HashMap, VecDeque};

use super::pages::{PageCache, Place};
use crate::device::PAGE_TOKENS;

/// How many requests may be admitted before one that came earlier and does not fit.
pub const MAX_PASSES: u32 = 32;
/// How many waiting requests are looked at in one step, and how many of them may not fit.
const LOOK_AHEAD: usize = 64;
const MAX_BLOCKED: usize = 4;

/// Sizes that the schedule keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleLimits {
    /// Rows of one step; at least a page more than `max_running`.
    pub max_rows: usize,
    /// Sequences that hold pages at one time.
    pub max_running: usize,
}

/// A request as the schedule sees it.
#[derive(Debug)]
pub struct Sequence {
    /// The caller's name for it.
    pub id: u64,
    /// Which adapter it is computed with.
    pub adapter: u64,
    /// The prompt and what was drawn since.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Whether a token is drawn once all of `tokens` are computed.
    pub draws: bool,
    /// The first position whose log-probability is still wanted; `usize::MAX` for none.
    pub score_from: usize,
    /// Its pages, in order; empty while it waits.
    pub pages: Vec<u32>,
    /// How many of `tokens` are in the cache.
    pub n_computed: usize,
    /// Prompt tokens that came from the cache when it was first admitted.
    pub n_cached: Option<usize>,
    place: Option<Place>,
    arrival: u64,
    /// Rows computed since it was admitted.
    n_served: usize,
    n_passes: u32,
    shared_prompt: bool,
}

impl Sequence {
    fn n_left(&self) -> usize {
        self.tokens.len() - self.n_computed
    }

    /// Whether all but the newest token are computed.
    fn is_decoding(&self) -> bool {
        self.draws && self.n_left() == 1 && self.tokens.len() > self.n_prompt
    }
}

/// Rows of one sequence in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRun {
    /// The sequence.
    pub id: u64,
    /// Position of the first row.
    pub start: usize,
    /// Number of rows.
    pub n_rows: usize,
    /// Whether the last row draws a token.
    pub draws: bool,
    /// The first row whose next token's log-probability is wanted, counted from `start`, and how
    /// many.
    pub scored: (usize, usize),
}

/// What a step does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The adapter of all rows.
    pub adapter: u64,
    /// Pages to copy before anything is computed: from, to.
    pub copies: Vec<(u32, u32)>,
    /// The rows, by sequence.
    pub runs: Vec<PlannedRun>,
}

impl Plan {
    /// Whether each row is a sequence of its own that draws: a step of pure decoding.
    pub fn is_decode(&self) -> bool {
        self.runs
            .iter()
            .all(|run| run.n_rows == 1 && run.draws && run.scored.1 == 0)
    }
}

/// Waiting and running sequences, and the pages they hold.
#[derive(Debug)]
pub struct Schedule {
    limits: ScheduleLimits,
    cache: PageCache,
    /// By arrival.
    waiting: VecDeque<Sequence>,
    /// By arrival.
    running: Vec<Sequence>,
    n_arrived: u64,
    n_steps: u64,
    last_served: HashMap<u64, u64>,
    /// Pages that a planned copy reads; given back once the step was issued.
    copied_from: Vec<u32>,
    n_preemptions: u64,
}

impl Schedule {
    /// An empty schedule over `n_pages` pages, one of which is for padding.
    pub fn new(limits: ScheduleLimits, n_pages: usize) -> Self {
        assert!(
            limits.max_rows >= limits.max_running + PAGE_TOKENS && limits.max_running > 0,
            "{limits:?} leave no rows for prompts"
        );
        Schedule {
            limits,
            cache: PageCache::new(n_pages),
            waiting: VecDeque::new(),
            running: Vec::new(),
            n_arrived: 0,
            n_steps: 0,
            last_served: HashMap::new(),
            copied_from: Vec::new(),
            n_preemptions: 0,
        }
    }

    /// Tokens that one sequence can hold.
    pub fn capacity_tokens(&self) -> usize {
        self.cache.capacity() * PAGE_TOKENS
    }

    /// The pages.
    pub fn cache(&self) -> &PageCache {
        &self.cache
    }

    /// The pages, to open and close adapters.
    pub fn cache_mut(&mut self) -> &mut PageCache {
        &mut self.cache
    }

    /// Number of sequences that wait and that run.
    pub fn n_sequences(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// How often a sequence gave its pages up.
    pub fn n_preemptions(&self) -> u64 {
        self.n_preemptions
    }

    /// A running sequence.
    pub fn running(&self, id: u64) -> Option<&Sequence> {
        self.running.iter().find(|sequence| sequence.id == id)
    }

    /// Whether any sequence of an adapter waits or runs.
    pub fn uses(&self, adapter: u64) -> bool {
        self.waiting
            .iter()
            .chain(&self.running)
            .any(|sequence| sequence.adapter == adapter)
    }

    /// Takes a request. Its prompt is not empty and, with one token more where it draws, not
    /// longer than [`Schedule::capacity_tokens`].
    pub fn submit(
        &mut self,
        id: u64,
        adapter: u64,
        prompt: Vec<u32>,
        draws: bool,
        score_from: Option<usize>,
    ) {
        let n_prompt = prompt.len();
        debug_assert!(n_prompt > 0 && n_prompt + usize::from(draws) <= self.capacity_tokens());
        self.n_arrived += 1;
        self.waiting.push_back(Sequence {
            id,
            adapter,
            tokens: prompt,
            n_prompt,
            draws,
            score_from: score_from.map_or(usize::MAX, |from| from.max(1)),
            pages: Vec::new(),
            n_computed: 0,
            n_cached: None,
            place: None,
            arrival: self.n_arrived,
            n_served: 0,
            n_passes: 0,
            shared_prompt: false,
        });
    }

    /// Ends a sequence; what it computed stays in the cache until the memory is needed.
    pub fn end(&mut self, id: u64) -> Option<Sequence> {
        if let Some(at) = self.waiting.iter().position(|sequence| sequence.id == id) {
            return self.waiting.remove(at);
        }
        let at = self.running.iter().position(|sequence| sequence.id == id)?;
        let mut sequence = self.running.remove(at);
        self.give_up_pages(&mut sequence);
        Some(sequence)
    }

    /// Forgets everything that was computed, for instance because the weights changed or a step
    /// failed. Running sequences start anew.
    pub fn reset(&mut self) {
        for sequence in std::mem::take(&mut self.running) {
            self.preempt(sequence);
        }
        self.issued();
        self.cache.clear();
    }

    /// The next step, or `None` where there is nothing to compute.
    pub fn plan(&mut self) -> Option<Plan> {
        // Where the only running sequences gave up their pages in the first pass, the second
        // admits one of them.
        for _ in 0..2 {
            for adapter in self.turns() {
                let plan = self.plan_for(adapter);
                if !plan.runs.is_empty() {
                    self.n_steps += 1;
                    self.last_served.insert(adapter, self.n_steps);
                    return Some(plan);
                }
            }
        }
        None
    }

    /// The copies of a plan were issued to the device, so their sources may be given up.
    pub fn issued(&mut self) {
        for page in std::mem::take(&mut self.copied_from) {
            self.cache.release(page);
        }
    }

    /// Records that a plan was computed; `drawn` are the tokens of the runs that draw.
    pub fn complete(&mut self, plan: &Plan, drawn: &HashMap<u64, u32>) {
        for run in &plan.runs {
            let Some(sequence) = self.running.iter_mut().find(|other| other.id == run.id) else {
                continue;
            };
            let before = sequence.n_computed;
            sequence.n_computed = run.start + run.n_rows;
            sequence.n_served += run.n_rows;
            if run.scored.1 > 0 {
                sequence.score_from = run.start + run.scored.0 + run.scored.1 + 1;
            }
            if sequence.score_from >= sequence.n_prompt {
                sequence.score_from = usize::MAX;
            }
            if let Some(place) = &mut sequence.place {
                for page in before / PAGE_TOKENS..sequence.n_computed / PAGE_TOKENS {
                    let tokens = &sequence.tokens[page * PAGE_TOKENS..(page + 1) * PAGE_TOKENS];
                    let held = sequence.pages[page];
                    sequence.pages[page] = self.cache.insert_full(place, tokens, held);
                }
                if !sequence.shared_prompt && sequence.n_computed >= sequence.n_prompt {
                    sequence.shared_prompt = true;
                    share_last_page(&mut self.cache, sequence);
                }
            }
            if run.draws
                && let Some(&token) = drawn.get(&run.id)
            {
                sequence.tokens.push(token);
            }
        }
    }

    /// Adapters with work, the one that was served longest ago first.
    fn turns(&mut self) -> Vec<u64> {
        let mut adapters: Vec<u64> = self
            .running
            .iter()
            .chain(&self.waiting)
            .map(|sequence| sequence.adapter)
            .collect();
        adapters.sort_unstable();
        adapters.dedup();
        self.last_served
            .retain(|adapter, _| adapters.binary_search(adapter).is_ok());
        adapters.sort_by_key(|adapter| self.last_served.get(adapter).copied().unwrap_or(0));
        adapters
    }

    fn plan_for(&mut self, adapter: u64) -> Plan {
        let mut plan = Plan {
            adapter,
            ..Plan::default()
        };
        self.plan_decoding(&mut plan);
        self.admit(&mut plan);
        self.plan_prompts(&mut plan);
        plan
    }

    /// One row of each sequence that draws, the oldest first.
    fn plan_decoding(&mut self, plan: &mut Plan) {
        let mut at = 0;
        while at < self.running.len() {
            let sequence = &self.running[at];
            if sequence.adapter != plan.adapter || !sequence.is_decoding() {
                at += 1;
                continue;
            }
            if sequence.n_computed == sequence.pages.len() * PAGE_TOKENS {
                match self.cache.allocate() {
                    Some(page) => self.running[at].pages.push(page),
                    None => {
                        // The youngest may be this one; then the loop ends.
                        if let Some(youngest) = self.running.pop() {
                            self.preempt(youngest);
                        }
                        continue;
                    }
                }
            }
            plan.runs.push(run_of(&self.running[at], 1));
            at += 1;
        }
    }

    fn admit(&mut self, plan: &mut Plan) {
        let mut at = 0;
        let mut blocked: Vec<u64> = Vec::new();
        let mut n_looked = 0;
        while self.running.len() < self.limits.max_running
            && at < self.waiting.len()
            && n_looked < LOOK_AHEAD
            && blocked.len() < MAX_BLOCKED
        {
            if self.waiting[at].adapter != plan.adapter {
                // Pages are one store for all, so the queue is one as well: what waits for pages
                // is passed by other adapters' requests no more often than by its own.
                if self.waiting[at].n_passes >= MAX_PASSES {
                    break;
                }
                at += 1;
                continue;
            }
            n_looked += 1;
            match self.try_admit(at, plan) {
                Admission::Admitted => {
                    for sequence in &mut self.waiting {
                        if blocked.contains(&sequence.id) {
                            sequence.n_passes += 1;
                        }
                    }
                }
                Admission::Expects => at += 1,
                Admission::NoPages => {
                    if self.waiting[at].n_passes >= MAX_PASSES {
                        break;
                    }
                    blocked.push(self.waiting[at].id);
                    at += 1;
                }
            }
        }
    }

    fn try_admit(&mut self, at: usize, plan: &mut Plan) -> Admission {
        let waiting = &self.waiting[at];
        // The last token is computed in any case, and so is all that is scored.
        let limit = (waiting.tokens.len() - 1).min(waiting.score_from - 1);
        let mut hit = self.cache.look_up(waiting.adapter, &waiting.tokens, limit);
        if self.is_expected(waiting, hit.n_tokens(), limit) {
            self.cache.release_hit(&hit);
            return Admission::Expects;
        }
        let n_pages = (waiting.tokens.len() + usize::from(waiting.draws)).div_ceil(PAGE_TOKENS);
        let n_new = n_pages - hit.pages.len();
        // Room for the others to go on for a while, or this one would soon be preempted.
        let n_reserved = self
            .running
            .iter()
            .filter(|sequence| sequence.draws)
            .count();
        let n_needed = n_new + n_reserved;
        if self.cache.n_available() < n_needed
            && let Some((page, _)) = hit.partial.take()
        {
            // The page to copy may be the one that is missing.
            self.cache.release(page);
        }
        if self.cache.n_available() < n_needed {
            self.cache.release_hit(&hit);
            return Admission::NoPages;
        }
        let n_known = hit.n_tokens();
        let mut pages = hit.pages;
        let first_new = pages.len();
        for _ in 0..n_new {
            pages.push(
                self.cache
                    .allocate()
                    .expect("as many pages as were counted can be allocated"),
            );
        }
        if let Some((from, _)) = hit.partial {
            plan.copies.push((from, pages[first_new]));
            self.copied_from.push(from);
        }
        let Some(mut sequence) = self.waiting.remove(at) else {
            return Admission::NoPages;
        };
        sequence.pages = pages;
        sequence.n_computed = n_known;
        sequence.place = hit.place;
        sequence.n_served = 0;
        sequence.shared_prompt = false;
        sequence
            .n_cached
            .get_or_insert(n_known.min(sequence.n_prompt));
        let place = self
            .running
            .partition_point(|other| other.arrival < sequence.arrival);
        self.running.insert(place, sequence);
        Admission::Admitted
    }

    /// Whether a running sequence is about to compute more of the beginning of `waiting` than the
    /// cache has: the next page, or all up to `limit`.
    fn is_expected(&self, waiting: &Sequence, n_known: usize, limit: usize) -> bool {
        let wanted = (n_known + PAGE_TOKENS).min(limit);
        wanted > n_known
            && self.running.iter().any(|sequence| {
                sequence.adapter == waiting.adapter
                    && sequence.place.is_some()
                    && sequence.n_computed < wanted
                    && sequence.tokens.len() >= wanted
                    && sequence.tokens[n_known..wanted] == waiting.tokens[n_known..wanted]
                    && sequence.tokens[..n_known] == waiting.tokens[..n_known]
            })
    }

    /// Fills the step with pieces of prompts.
    fn plan_prompts(&mut self, plan: &mut Plan) {
        let mut budget = self.limits.max_rows - plan.runs.len();
        let mut order: Vec<usize> = (0..self.running.len())
            .filter(|&at| {
                let sequence = &self.running[at];
                sequence.adapter == plan.adapter && !sequence.is_decoding() && sequence.n_left() > 0
            })
            .collect();
        let Some(&oldest) = order.first() else {
            return;
        };
        order.sort_by_key(|&at| (self.running[at].n_served, at));
        let mut taken: HashMap<usize, usize> = HashMap::new();
        let guaranteed = (budget / 4).max(PAGE_TOKENS.min(budget));
        let turns = std::iter::once((oldest, guaranteed))
            .chain(order.iter().map(|&at| (at, usize::MAX)))
            .collect::<Vec<_>>();
        for (at, share) in turns {
            let sequence = &self.running[at];
            let had = taken.get(&at).copied().unwrap_or(0);
            let start = sequence.n_computed + had;
            let n = piece(start, sequence.tokens.len(), share.min(budget));
            budget -= n;
            *taken.entry(at).or_insert(0) += n;
        }
        // Single rows come first, so that they lie beside those of the sequences that draw.
        order.sort_unstable_by_key(|at| (taken[at] > 1, *at));
        for at in order {
            let n_rows = taken[&at];
            if n_rows > 0 {
                plan.runs.push(run_of(&self.running[at], n_rows));
            }
        }
    }

    /// Takes a sequence's pages; it waits again, before all that came later.
    fn preempt(&mut self, mut sequence: Sequence) {
        self.n_preemptions += 1;
        self.give_up_pages(&mut sequence);
        let place = self
            .waiting
            .partition_point(|other| other.arrival < sequence.arrival);
        self.waiting.insert(place, sequence);
    }

    fn give_up_pages(&mut self, sequence: &mut Sequence) {
        share_last_page(&mut self.cache, sequence);
        let pages = std::mem::take(&mut sequence.pages);
        self.cache.release_all(&pages);
        sequence.n_computed = 0;
        sequence.place = None;
    }
}

enum Admission {
    Admitted,
    /// It waits for what another sequence is computing.
    Expects,
    NoPages,
}

/// Records the computed part of the page that is not full.
fn share_last_page(cache: &mut PageCache, sequence: &Sequence) {
    let n_full = sequence.n_computed / PAGE_TOKENS;
    let tokens = &sequence.tokens[n_full * PAGE_TOKENS..sequence.n_computed];
    if let (Some(place), Some(&page)) = (sequence.place, sequence.pages.get(n_full)) {
        cache.insert_partial(place, tokens, page);
    }
}

/// Rows from `start` on, at most `most`, that end at the end of a page or of the tokens.
fn piece(start: usize, end: usize, most: usize) -> usize {
    let n = (end - start).min(most);
    if start + n == end {
        return n;
    }
    let aligned = (start + n) / PAGE_TOKENS * PAGE_TOKENS;
    aligned.saturating_sub(start)
}

fn run_of(sequence: &Sequence, n_rows: usize) -> PlannedRun {
    let start = sequence.n_computed;
    let end = start + n_rows;
    // Row p says how likely token p + 1 is.
    let first = (sequence.score_from.saturating_sub(1)).max(start);
    let last = end.min(sequence.n_prompt - 1);
    PlannedRun {
        id: sequence.id,
        start,
        n_rows,
        draws: sequence.draws && end == sequence.tokens.len(),
        scored: match last.checked_sub(first) {
            Some(n) if n > 0 && sequence.score_from != usize::MAX => (first - start, n),
            _ => (0, 0),
        },
    }
}

#[cfg(test)]
#[path = "schedule_tests.rs"]
mod tests;
