//! Which candidates are looked at, and in which order they become tasks.
//!
//! Without a rule, large files, large functions and productive kinds would fill a suite. So files
//! take turns; in its turn a file gives its next function, and a function its next kind. Candidates
//! are screened several of a function at once, since those that become no task are the wrong
//! versions by which the others' tests are judged; tasks are tried one of a function at a time. What
//! is drawn depends on the seed and the candidates alone.

use std::{
    collections::{BTreeMap, VecDeque},
    vec::IntoIter,
};

use temper_core::Digest;

use crate::{
    Candidate,
    prove::{Screened, Status},
};

/// Candidates of one function that are screened together.
const VISIT: usize = 8;

/// The first `most` candidates in the order in which they are screened.
pub(super) fn to_screen(candidates: Vec<Candidate>, most: usize, seed: u64) -> Vec<Candidate> {
    let all: Vec<usize> = (0..candidates.len()).collect();
    let order = turns(&candidates, &all, seed, VISIT);
    let mut candidates: Vec<Option<Candidate>> = candidates.into_iter().map(Some).collect();
    order
        .into_iter()
        .take(most)
        .filter_map(|number| candidates[number].take())
        .collect()
}

/// Positions of the killed candidates, in the order in which they are tried.
pub(super) fn to_try(candidates: &[Candidate], screened: &[Screened], seed: u64) -> Vec<usize> {
    let killed: Vec<usize> = screened
        .iter()
        .enumerate()
        .filter(|(_, screened)| screened.status == Status::Killed)
        .map(|(number, _)| number)
        .collect();
    turns(candidates, &killed, seed, 1)
}

/// The chosen positions, `visit` of one function in each turn of its file.
fn turns(candidates: &[Candidate], chosen: &[usize], seed: u64, visit: usize) -> Vec<usize> {
    type Kinds<'a> = BTreeMap<&'a str, Vec<(Digest, usize)>>;
    let mut by_file: BTreeMap<_, BTreeMap<_, Kinds<'_>>> = BTreeMap::new();
    for &number in chosen {
        let candidate = &candidates[number];
        let place = candidate.places.first();
        by_file
            .entry(place.map(|place| &place.file))
            .or_default()
            .entry(place.map(|place| &place.function))
            .or_default()
            .entry(&candidate.kind)
            .or_default()
            .push((Digest::of_value(&(seed, candidate.digest())), number));
    }
    let mut files: Vec<VecDeque<IntoIter<(Digest, usize)>>> = by_file
        .into_values()
        .map(|functions| {
            in_drawn_order(functions.into_values().map(|kinds| {
                let kinds = in_drawn_order(kinds.into_values().map(|mut list| {
                    list.sort();
                    list
                }));
                // Kinds take turns.
                let longest = kinds.iter().map(Vec::len).max().unwrap_or(0);
                (0..longest)
                    .flat_map(|turn| kinds.iter().filter_map(move |list| list.get(turn).cloned()))
                    .collect()
            }))
        })
        .map(|functions| functions.into_iter().map(Vec::into_iter).collect())
        .collect();
    let mut order = Vec::with_capacity(chosen.len());
    while order.len() < chosen.len() {
        let mut round: Vec<Vec<(Digest, usize)>> = Vec::new();
        for functions in &mut files {
            if let Some(mut function) = functions.pop_front() {
                round.push(function.by_ref().take(visit).collect());
                if function.len() > 0 {
                    functions.push_back(function);
                }
            }
        }
        round.sort();
        order.extend(round.into_iter().flatten().map(|(_, number)| number));
    }
    order
}

/// Lists by their first elements' digests: which begins is drawn as well.
fn in_drawn_order(lists: impl Iterator<Item = Vec<(Digest, usize)>>) -> Vec<Vec<(Digest, usize)>> {
    let mut lists: Vec<_> = lists.collect();
    lists.sort();
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_core::{Patch, Place};

    fn candidate(file: &str, function: &str, kind: &str, number: usize) -> Candidate {
        Candidate {
            kind: kind.into(),
            places: vec![Place {
                file: file.parse().unwrap(),
                function: Some(function.into()),
                first_line: 1,
                last_line: 1,
            }],
            patch: Patch(format!("{file}{function}{kind}{number}").as_str().into()),
            note: None,
        }
    }

    fn many() -> Vec<Candidate> {
        let mut candidates: Vec<Candidate> = (0..50)
            .map(|n| candidate("a.py", "large", "common", n))
            .collect();
        candidates.push(candidate("a.py", "large", "rare", 0));
        candidates.push(candidate("a.py", "small", "common", 0));
        candidates.extend((0..3).map(|n| candidate("b.py", "other", "common", n)));
        candidates
    }

    #[test]
    fn files_functions_and_kinds_take_turns_and_nothing_is_lost() {
        let candidates = many();
        let all: Vec<usize> = (0..candidates.len()).collect();
        let order = turns(&candidates, &all, 1, 1);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, all);
        let is_other = |number: &usize| (52..55).contains(number);
        for round in 0..3 {
            let round = &order[2 * round..2 * round + 2];
            assert_eq!(
                round.iter().filter(|n| is_other(n)).count(),
                1,
                "files take turns"
            );
        }
        let of_first: Vec<usize> = order.iter().copied().filter(|n| !is_other(n)).collect();
        assert!(
            of_first[..2].contains(&51),
            "each function of a file has its turn"
        );
        assert!(
            of_first[..4].contains(&50),
            "a function gives its kinds in turn"
        );
        assert_eq!(order, turns(&candidates, &all, 1, 1));
        assert_ne!(order, turns(&candidates, &all, 2, 1));
    }

    #[test]
    fn a_function_is_screened_several_candidates_at_once() {
        let candidates = many();
        let chosen = to_screen(candidates.clone(), 20, 1);
        assert_eq!(chosen.len(), 20);
        let functions: Vec<&str> = chosen
            .iter()
            .map(|candidate| candidate.places[0].function.as_deref().unwrap())
            .collect();
        let mut visits: Vec<(&str, usize)> = Vec::new();
        for function in functions {
            match visits.last_mut() {
                Some((last, n)) if *last == function => *n += 1,
                _ => visits.push((function, 1)),
            }
        }
        let of = |name: &str| -> Vec<usize> {
            let of = visits.iter().filter(|(function, _)| *function == name);
            of.map(|(_, n)| *n).collect()
        };
        assert!(of("large").iter().all(|n| n % VISIT == 0), "{visits:?}");
        assert_eq!((of("other"), of("small")), (vec![3], vec![1]));
        assert_eq!(
            to_screen(candidates.clone(), 1000, 1).len(),
            candidates.len()
        );
    }
}
