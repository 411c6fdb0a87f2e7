//! Parts of the pipeline that need no sandbox.

use super::{tries::in_parallel, *};

#[test]
fn parallel_work_keeps_its_order() {
    let items: Vec<usize> = (0..100).collect();
    for n_workers in [0, 1, 3, 200] {
        let doubled = in_parallel(n_workers, &items, &|n| 2 * n);
        assert_eq!(doubled, (0..100).map(|n| 2 * n).collect::<Vec<_>>());
    }
}

#[test]
fn every_candidate_is_counted_once() {
    let candidate = |kind: &str, number: u32| Candidate {
        kind: kind.into(),
        places: Vec::new(),
        patch: temper_core::Patch(format!("{number}").as_str().into()),
        note: None,
    };
    let statuses = [
        Status::Killed,
        Status::Survived,
        Status::Survived,
        Status::Uncovered,
        Status::TimedOut,
        Status::Crashed,
        Status::Unstable,
    ];
    let candidates: Vec<Candidate> = (0..7)
        .map(|n| candidate(if n < 5 { "a" } else { "b" }, n))
        .collect();
    let screened: Vec<Screened> = candidates
        .iter()
        .zip(statuses)
        .map(|(candidate, status)| Screened {
            candidate: candidate.digest(),
            status,
            failing: Vec::new(),
            passing: Vec::new(),
        })
        .collect();
    let counts = count(&candidates, &screened, &BTreeSet::from([2]));
    let expected = KindCounts {
        candidates: 5,
        killed: 1,
        survived: 1,
        equivalent: 1,
        uncovered: 1,
        timed_out: 1,
        ..KindCounts::default()
    };
    assert_eq!(counts["a"], expected);
    assert_eq!((counts["b"].candidates, counts["b"].excluded), (2, 2));
}
