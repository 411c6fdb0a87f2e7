//! Which candidates are looked at, and in which order they become tasks.
//!
//! Without a rule, large functions and productive kinds would fill a suite. So candidates are taken
//! in rounds: each round takes one candidate of every function, and a function gives its kinds in
//! turn. What is drawn depends on the seed and the candidates alone.

use std::collections::BTreeMap;

use temper_core::Digest;

use crate::{
    Candidate,
    prove::{Screened, Status},
};

/// At most `most` candidates, in their old order.
pub(super) fn thin(candidates: Vec<Candidate>, most: usize, seed: u64) -> Vec<Candidate> {
    if candidates.len() <= most {
        return candidates;
    }
    let all: Vec<usize> = (0..candidates.len()).collect();
    let mut kept: Vec<usize> = rounds(&candidates, &all, seed)
        .into_iter()
        .take(most)
        .collect();
    kept.sort_unstable();
    let mut kept = kept.into_iter().peekable();
    candidates
        .into_iter()
        .enumerate()
        .filter(|(number, _)| kept.next_if_eq(number).is_some())
        .map(|(_, candidate)| candidate)
        .collect()
}

/// Positions of the killed candidates, in the order in which they are tried.
pub(super) fn order(candidates: &[Candidate], screened: &[Screened], seed: u64) -> Vec<usize> {
    let killed: Vec<usize> = screened
        .iter()
        .enumerate()
        .filter(|(_, screened)| screened.status == Status::Killed)
        .map(|(number, _)| number)
        .collect();
    rounds(candidates, &killed, seed)
}

fn rounds(candidates: &[Candidate], chosen: &[usize], seed: u64) -> Vec<usize> {
    let mut by_place: BTreeMap<_, BTreeMap<&str, Vec<(Digest, usize)>>> = BTreeMap::new();
    for &number in chosen {
        let candidate = &candidates[number];
        let place = candidate
            .places
            .first()
            .map(|place| (&place.file, &place.function));
        let key = Digest::of_value(&(seed, candidate.digest()));
        by_place
            .entry(place)
            .or_default()
            .entry(&candidate.kind)
            .or_default()
            .push((key, number));
    }
    let mut queues: Vec<std::vec::IntoIter<(Digest, usize)>> = by_place
        .into_values()
        .map(|kinds| {
            let mut kinds: Vec<Vec<(Digest, usize)>> = kinds
                .into_values()
                .map(|mut list| {
                    list.sort();
                    list
                })
                .collect();
            // Kinds take turns; which begins is drawn as well.
            kinds.sort();
            let longest = kinds.iter().map(Vec::len).max().unwrap_or(0);
            let turns: Vec<(Digest, usize)> = (0..longest)
                .flat_map(|turn| kinds.iter().filter_map(move |list| list.get(turn).cloned()))
                .collect();
            turns.into_iter()
        })
        .collect();
    let mut order = Vec::with_capacity(chosen.len());
    while order.len() < chosen.len() {
        let mut round: Vec<(Digest, usize)> =
            queues.iter_mut().filter_map(Iterator::next).collect();
        round.sort();
        order.extend(round.into_iter().map(|(_, number)| number));
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use temper_core::{Patch, Place};

    fn candidate(function: &str, kind: &str, number: usize) -> Candidate {
        Candidate {
            kind: kind.into(),
            places: vec![Place {
                file: "a.py".parse().unwrap(),
                function: Some(function.into()),
                first_line: 1,
                last_line: 1,
            }],
            patch: Patch(format!("{function}{kind}{number}").as_str().into()),
            note: None,
        }
    }

    #[test]
    fn functions_and_kinds_take_turns_and_nothing_is_lost() {
        let mut candidates: Vec<Candidate> =
            (0..50).map(|n| candidate("large", "common", n)).collect();
        candidates.push(candidate("large", "rare", 0));
        candidates.push(candidate("small", "common", 0));
        let all: Vec<usize> = (0..candidates.len()).collect();
        let order = rounds(&candidates, &all, 1);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, all);
        assert!(
            order[..3].contains(&51),
            "the small function comes in the first round"
        );
        assert!(
            order[..3].contains(&50),
            "the rare kind comes with the second turn of its function"
        );
        assert_eq!(order, rounds(&candidates, &all, 1));
        assert_ne!(order, rounds(&candidates, &all, 2));
        let thinned = thin(candidates.clone(), 3, 1);
        let mut expected: Vec<usize> = order[..3].to_vec();
        expected.sort_unstable();
        let expected: Vec<Candidate> = expected
            .into_iter()
            .map(|n| candidates[n].clone())
            .collect();
        assert_eq!(thinned, expected);
        assert_eq!(thin(candidates.clone(), 1000, 1), candidates);
    }
}
