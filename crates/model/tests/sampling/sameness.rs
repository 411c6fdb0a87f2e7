//! The same request gives the same, whatever else happens.

use temper_model::sample::{Completion, PromptLogprobs, Request, SamplingParams};

use super::*;
use temper_model_fixtures::{NAMES, fixture};

/// How much log-probabilities may differ.
const SAME: f32 = 0.0;

/// Checks that two requests drew the same, and said nearly the same of it.
fn assert_same(a: &Completion, b: &Completion, what: &str) {
    assert_eq!(a.ids(), b.ids(), "{what}");
    let logprobs = |completion: &Completion| -> Vec<f32> {
        let tokens = completion.prompt.iter().chain(&completion.tokens);
        tokens
            .flat_map(|token| [token.logprob, token.raw_logprob])
            .collect()
    };
    let difference = largest_difference(&logprobs(a), &logprobs(b));
    assert!(difference <= SAME, "{what}: {difference}");
}

#[test]
fn batches_chunks_padding_and_preemption_change_nothing() {
    for name in NAMES {
        let fixture = fixture(name);
        let model = model(&fixture);
        let requests: Vec<Request> = (0..10)
            .map(|n| {
                let ids = prompt(&fixture, n / 3, 9 + 11 * n as usize % 60);
                Request::new(ids, params(35, n as f32 * 0.2, n))
            })
            .collect();
        let alone: Vec<_> = requests
            .iter()
            .map(|request| engine(&model, WIDE).complete(request.clone()).unwrap())
            .collect();
        let few_pages = PagedOptions {
            n_pages: 14,
            ..OPTIONS
        };
        let padded = PagedOptions {
            pads_decoding: true,
            ..OPTIONS
        };
        for options in [OPTIONS, few_pages, padded] {
            let engine = engine(&model, options);
            let pause = engine.pause().unwrap();
            let events: Vec<_> = requests
                .iter()
                .map(|request| engine.submit(request.clone()).unwrap())
                .collect();
            drop(pause);
            for (alone, events) in alone.iter().zip(events) {
                let together = events.collect().unwrap();
                assert_same(alone, &together, &format!("{name} under {options:?}"));
            }
            let n_preemptions = engine.metrics().n_preemptions;
            assert_eq!(n_preemptions > 0, options == few_pages, "{n_preemptions}");
        }
    }
}

#[test]
fn a_hit_of_the_cache_changes_nothing() {
    for name in NAMES {
        let fixture = fixture(name);
        let model = model(&fixture);
        let ids = prompt(&fixture, 8, 75);
        let scoring = |from| {
            Request::new(
                ids.clone(),
                SamplingParams {
                    prompt_logprobs: Some(PromptLogprobs { from, top: 0 }),
                    ..params(10, 0.8, 3)
                },
            )
        };
        let engine = engine(&model, OPTIONS);
        let miss = engine.complete(scoring(50)).unwrap();
        assert_eq!(miss.finish.as_ref().unwrap().n_cached, 0);
        let hit = engine.complete(scoring(50)).unwrap();
        assert_eq!(hit.finish.as_ref().unwrap().n_cached, 49);
        let closer = engine.complete(scoring(75)).unwrap();
        assert_eq!(closer.finish.as_ref().unwrap().n_cached, 74);
        assert_same(&miss, &hit, name);
        assert_eq!(miss.ids(), closer.ids());
        assert_eq!(miss.prompt.len(), 25);

        // The next turn of a conversation, after what was drawn.
        let mut next = ids.clone();
        next.extend(miss.ids());
        next.extend(prompt(&fixture, 9, 7));
        let request = || Request::new(next.clone(), params(10, 0.8, 4));
        let hit = engine.complete(request()).unwrap();
        assert_eq!(hit.finish.as_ref().unwrap().n_cached, 84);
        let fresh = super::engine(&model, WIDE).complete(request()).unwrap();
        assert_same(&hit, &fresh, name);
    }
}

#[test]
fn a_group_shares_its_prompt_and_differs_by_seed() {
    let fixture = fixture("qwen3_yarn");
    let model = model(&fixture);
    let engine = engine(&model, OPTIONS);
    let ids = prompt(&fixture, 8, 60);
    let pause = engine.pause().unwrap();
    let events: Vec<_> = (0..6)
        .map(|seed| {
            let request = Request::new(ids.clone(), params(12, 1.0, seed));
            engine.submit(request).unwrap()
        })
        .collect();
    drop(pause);
    let group: Vec<Completion> = events
        .into_iter()
        .map(|events| events.collect().unwrap())
        .collect();
    let n_cached: Vec<usize> = group
        .iter()
        .map(|completion| completion.finish.as_ref().unwrap().n_cached)
        .collect();
    assert_eq!(
        n_cached.iter().filter(|&&n| n == 59).count(),
        5,
        "{n_cached:?}"
    );
    let texts: std::collections::HashSet<Vec<u32>> = group.iter().map(Completion::ids).collect();
    assert_eq!(texts.len(), 6, "different seeds, different ids");
    // The last step is counted after its events are sent; between two steps everything is.
    let pause = engine.pause().unwrap();
    let metrics = engine.metrics();
    pause.resume_unchanged();
    assert_eq!(metrics.n_rows, 60 + 5 + 6 * 11);
}
