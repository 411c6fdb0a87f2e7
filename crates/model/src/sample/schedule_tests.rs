use super::*;
use crate::random::mix;

/// A device whose cache holds the ids themselves, so that every row can check what it attends to.
struct Tape {
    slots: Vec<Option<(u64, u32)>>,
}

impl Tape {
    fn new(n_pages: usize) -> Self {
        Tape {
            slots: vec![None; n_pages * PAGE_TOKENS],
        }
    }

    /// Runs a plan, checks it against the limits, and returns the drawn tokens.
    fn step(&mut self, schedule: &mut Schedule, plan: &Plan) -> HashMap<u64, u32> {
        for &(from, to) in &plan.copies {
            for offset in 0..PAGE_TOKENS {
                self.slots[to as usize * PAGE_TOKENS + offset] =
                    self.slots[from as usize * PAGE_TOKENS + offset];
            }
        }
        schedule.issued();
        let n_rows: usize = plan.runs.iter().map(|run| run.n_rows).sum();
        assert!(n_rows <= schedule.limits.max_rows, "{n_rows} rows");
        assert!(plan.runs.len() <= schedule.limits.max_running);
        let mut written = std::collections::HashSet::new();
        for run in &plan.runs {
            let sequence = schedule.running(run.id).unwrap();
            assert_eq!(sequence.adapter, plan.adapter);
            for position in run.start..run.start + run.n_rows {
                let slot = slot(&sequence.pages, position);
                assert!(written.insert(slot), "two rows write slot {slot}");
                self.slots[slot] = Some((plan.adapter, sequence.tokens[position]));
            }
        }
        let mut drawn = HashMap::new();
        for run in &plan.runs {
            let sequence = schedule.running(run.id).unwrap();
            let end = run.start + run.n_rows;
            for position in 0..end {
                assert_eq!(
                    self.slots[slot(&sequence.pages, position)],
                    Some((plan.adapter, sequence.tokens[position])),
                    "sequence {} at {position} of {end}",
                    run.id
                );
            }
            if run.draws {
                assert_eq!(end, sequence.tokens.len());
                drawn.insert(run.id, next_token(sequence.adapter, &sequence.tokens));
            }
        }
        drawn
    }
}

fn slot(pages: &[u32], position: usize) -> usize {
    assert_ne!(
        pages[position / PAGE_TOKENS],
        crate::sample::pages::PADDING_PAGE
    );
    pages[position / PAGE_TOKENS] as usize * PAGE_TOKENS + position % PAGE_TOKENS
}

/// The token that the pretended model draws after a text.
fn next_token(adapter: u64, tokens: &[u32]) -> u32 {
    let hash = tokens
        .iter()
        .fold(adapter, |hash, &token| mix(hash ^ u64::from(token)));
    (hash % 50) as u32
}

fn schedule(max_rows: usize, max_running: usize, n_pages: usize) -> Schedule {
    let mut schedule = Schedule::new(
        ScheduleLimits {
            max_rows,
            max_running,
        },
        n_pages + 1,
    );
    schedule.cache_mut().open(0);
    schedule
}

/// Plans and runs one step; ends sequences that have `n_new` tokens, and returns those.
fn step(schedule: &mut Schedule, tape: &mut Tape, n_new: usize) -> (Plan, Vec<Sequence>) {
    let plan = schedule.plan().expect("there is work");
    let drawn = tape.step(schedule, &plan);
    schedule.complete(&plan, &drawn);
    let done: Vec<u64> = plan
        .runs
        .iter()
        .filter_map(|run| schedule.running(run.id))
        .filter(|sequence| {
            sequence.n_left() == 0 || sequence.tokens.len() == sequence.n_prompt + n_new
        })
        .map(|sequence| sequence.id)
        .collect();
    let ended = done
        .into_iter()
        .map(|id| schedule.end(id).unwrap())
        .collect();
    (plan, ended)
}

fn prompt(seed: u64, n: usize) -> Vec<u32> {
    (0..n as u64)
        .map(|i| (mix(seed * 1000 + i) % 50) as u32)
        .collect()
}

#[test]
fn a_group_pays_its_prompt_once() {
    let mut schedule = schedule(256, 16, 100);
    let mut tape = Tape::new(101);
    for id in 0..8 {
        schedule.submit(id, 0, prompt(1, 100), true, None);
    }
    let (first, _) = step(&mut schedule, &mut tape, 5);
    assert_eq!(first.runs.len(), 1, "the others wait for the prompt");
    assert_eq!(first.runs[0].n_rows, 100);
    let (second, _) = step(&mut schedule, &mut tape, 5);
    assert_eq!(second.runs.len(), 8);
    assert!(second.runs.iter().all(|run| run.n_rows == 1));
    assert_eq!(second.copies.len(), 7, "each copies the last page");
    let mut cached: Vec<_> = (0..8)
        .map(|id| schedule.running(id).unwrap().n_cached.unwrap())
        .collect();
    cached.sort_unstable();
    assert_eq!(cached, [0, 99, 99, 99, 99, 99, 99, 99]);
}

#[test]
fn a_turn_reuses_the_turn_before_with_what_was_drawn() {
    let mut schedule = schedule(256, 16, 100);
    let mut tape = Tape::new(101);
    schedule.submit(1, 0, prompt(1, 50), true, None);
    let turn = loop {
        let (_, mut ended) = step(&mut schedule, &mut tape, 30);
        if let Some(sequence) = ended.pop() {
            break sequence;
        }
    };
    assert_eq!(turn.tokens.len(), 80);
    let mut next = turn.tokens;
    next.extend(prompt(2, 20));
    schedule.submit(2, 0, next, true, None);
    let (plan, _) = step(&mut schedule, &mut tape, 30);
    // All but the token drawn last, which was never computed.
    assert_eq!(schedule.running(2).unwrap().n_cached, Some(79));
    assert_eq!(plan.runs[0].n_rows, 21);
}

#[test]
fn a_huge_prompt_does_not_hold_up_small_ones_nor_they_it() {
    let mut schedule = schedule(80, 16, 2000);
    let mut tape = Tape::new(2001);
    schedule.submit(0, 0, prompt(0, 20_000), true, None);
    step(&mut schedule, &mut tape, 4);
    let mut n_huge = 0;
    for round in 1..50 {
        schedule.submit(round, 0, prompt(round, 40), true, None);
        let (plan, _) = step(&mut schedule, &mut tape, 4);
        let small = plan.runs.iter().find(|run| run.id == round).unwrap();
        assert!(small.draws && small.n_rows > 30, "round {round}: {small:?}");
        n_huge += plan.runs.iter().find(|run| run.id == 0).unwrap().n_rows;
    }
    assert!(n_huge >= 49 * 16, "{n_huge}");
}

#[test]
fn a_request_that_does_not_fit_is_passed_a_bounded_number_of_times() {
    let mut schedule = schedule(64, 8, 40);
    let mut tape = Tape::new(41);
    schedule.submit(0, 0, prompt(0, 200), true, None);
    step(&mut schedule, &mut tape, 5);
    // It needs 32 pages of 40, and small ones keep coming.
    schedule.submit(1, 0, prompt(1, 500), true, None);
    let mut n_passed = 0;
    for id in 2.. {
        schedule.submit(id, 0, prompt(id, 64), true, None);
        let (plan, _) = step(&mut schedule, &mut tape, 5);
        if plan.runs.iter().any(|run| run.id == 1) {
            break;
        }
        n_passed += plan.runs.iter().filter(|run| run.start == 0).count();
        assert!(id < 500, "it never came");
    }
    assert!(n_passed <= MAX_PASSES as usize + 8, "{n_passed}");
}

#[test]
fn adapters_take_turns() {
    let mut schedule = schedule(64, 8, 100);
    let mut tape = Tape::new(101);
    for adapter in [0, 5, 9] {
        schedule.cache_mut().open(adapter);
        for n in 0..2 {
            schedule.submit(adapter * 10 + n, adapter, prompt(1, 20), true, None);
        }
    }
    let served: Vec<u64> = (0..9)
        .map(|_| step(&mut schedule, &mut tape, 100).0.adapter)
        .collect();
    for window in served.windows(3) {
        let mut window = window.to_vec();
        window.sort_unstable();
        assert_eq!(window, [0, 5, 9], "{served:?}");
    }
}

#[test]
fn scored_rows_are_those_before_the_scored_tokens_each_once() {
    let mut schedule = schedule(64, 8, 100);
    let mut tape = Tape::new(101);
    let tokens = prompt(1, 200);
    schedule.submit(1, 0, tokens.clone(), false, None);
    while step(&mut schedule, &mut tape, 1).1.is_empty() {}
    for (id, from) in [(2, 0), (3, 1), (4, 150), (5, 199), (6, 200)] {
        schedule.submit(id, 0, tokens.clone(), false, Some(from));
        let mut scored = Vec::new();
        loop {
            let (plan, ended) = step(&mut schedule, &mut tape, 1);
            for run in &plan.runs {
                let (first, n) = run.scored;
                assert!(first + n <= run.n_rows);
                scored.extend((0..n).map(|i| run.start + first + i + 1));
            }
            if !ended.is_empty() {
                break;
            }
        }
        let expected: Vec<usize> = (from.max(1)..200).collect();
        assert_eq!(scored, expected, "from {from}");
    }
}

#[test]
fn after_a_reset_running_sequences_start_anew_and_old_pages_are_not_used() {
    let mut schedule = schedule(64, 8, 100);
    let mut tape = Tape::new(101);
    for id in 0..3 {
        schedule.submit(id, 0, prompt(id, 30), true, None);
    }
    step(&mut schedule, &mut tape, 10);
    step(&mut schedule, &mut tape, 10);
    schedule.reset();
    tape.slots.fill(None);
    let mut n_ended = 0;
    while n_ended < 3 {
        n_ended += step(&mut schedule, &mut tape, 10).1.len();
    }
    assert_eq!(schedule.cache().n_available(), 100);
}

/// Random requests, few pages: every request ends with the tokens it would have had alone.
#[test]
fn random_loads_end_with_the_tokens_of_each_alone() {
    for seed in 0..30u64 {
        let mut state = seed;
        let mut random = move |n: usize| {
            state = mix(state);
            (state % n as u64) as usize
        };
        let n_pages = 12 + random(30);
        let mut schedule = schedule(20 + random(100), 1 + random(4), n_pages);
        let mut tape = Tape::new(n_pages + 1);
        schedule.cache_mut().open(1);
        let (mut n_done, mut next_id) = (0, 0);
        let mut wanted: HashMap<u64, (u64, usize, usize)> = HashMap::new();
        for _ in 0..100_000 {
            if next_id < 150 && random(3) > 0 {
                let family = random(4) as u64;
                let n = 1 + random(n_pages * PAGE_TOKENS / 2);
                let n_new = 1 + random(40);
                let n = n.min(n_pages * PAGE_TOKENS - n_new);
                let adapter = random(2) as u64;
                schedule.submit(next_id, adapter, prompt(family, n), true, None);
                wanted.insert(next_id, (adapter, n, n_new));
                next_id += 1;
            }
            if random(20) == 0 && next_id > 0 {
                let victim = random(next_id as usize) as u64;
                n_done += u64::from(schedule.end(victim).is_some());
            }
            let Some(plan) = schedule.plan() else {
                assert_eq!(schedule.n_sequences(), (0, 0), "seed {seed}");
                if next_id == 150 {
                    break;
                }
                continue;
            };
            let drawn = tape.step(&mut schedule, &plan);
            schedule.complete(&plan, &drawn);
            for run in &plan.runs {
                let sequence = schedule.running(run.id).unwrap();
                let (adapter, n, n_new) = wanted[&run.id];
                if sequence.tokens.len() == n + n_new {
                    let ended = schedule.end(run.id).unwrap();
                    for at in n..ended.tokens.len() {
                        assert_eq!(ended.tokens[at], next_token(adapter, &ended.tokens[..at]));
                    }
                    n_done += 1;
                }
            }
        }
        assert_eq!(n_done, 150, "seed {seed}");
        assert_eq!(schedule.cache().n_available(), n_pages, "seed {seed}");
    }
}
