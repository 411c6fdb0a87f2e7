//! Log-probabilities against the training pass, which is checked against PyTorch.

use temper_model::sample::{PromptLogprobs, Request, SamplingParams};

use super::*;
use temper_model_fixtures::{NAMES, fixture};

/// The bound on the difference between sampler and trainer.
const TOLERANCE: f32 = 1e-4;

#[test]
fn scoring_through_the_cache_is_the_trainers_score() {
    for name in NAMES {
        let fixture = fixture(name);
        let model = model(&fixture);
        for options in [OPTIONS, WIDE] {
            let engine = engine(&model, options);
            for n in [2, 17, 48, 100] {
                let ids = prompt(&fixture, n as u64, n);
                let expected = trainer_logprobs(&fixture, &model, None, &ids, 1.0);
                let got = engine.score(&ids, None).unwrap();
                let difference = largest_difference(&got, &expected[..n - 1]);
                assert!(difference <= TOLERANCE, "{name}, {n} ids: {difference}");
            }
        }
    }
}

#[test]
fn what_is_said_of_drawn_tokens_is_the_trainers_score() {
    for name in NAMES {
        let fixture = fixture(name);
        let model = model(&fixture);
        let engine = engine(&model, OPTIONS);
        for (seed, temperature) in [(1, 0.0), (2, 0.6), (3, 1.0), (4, 1.7)] {
            let ids = prompt(&fixture, seed, 30);
            let truncated = SamplingParams {
                top_k: 20,
                top_p: 0.9,
                min_p: 0.01,
                ..params(40, temperature, seed)
            };
            let got = engine
                .complete(Request::new(ids.clone(), truncated))
                .unwrap();
            let mut all = ids;
            all.extend(got.ids());
            for (tempered, divisor) in [(false, 1.0), (true, temperature)] {
                // A greedy request speaks of the model's own distribution.
                let divisor = if divisor > 0.0 { divisor } else { 1.0 };
                let expected = trainer_logprobs(&fixture, &model, None, &all, divisor);
                let said: Vec<f32> = got
                    .tokens
                    .iter()
                    .map(|token| match tempered {
                        true => token.logprob,
                        false => token.raw_logprob,
                    })
                    .collect();
                let difference = largest_difference(&said, &expected[29..69]);
                assert!(
                    difference <= TOLERANCE,
                    "{name} at {temperature}, divided by {divisor}: {difference}"
                );
            }
        }
    }
}

#[test]
fn an_adapter_gives_what_it_gives_in_training() {
    for name in NAMES {
        let fixture = fixture(name);
        let model = model(&fixture);
        let adapter = fixture.adapter(&model.device);
        let engine = engine(&model, OPTIONS);
        let base = engine.score(&prompt(&fixture, 1, 60), None).unwrap();
        for _ in 0..2 {
            // The second time its memory is that of the first.
            engine
                .load_adapter("tuned", fixture.adapter.clone())
                .unwrap();
            let ids = prompt(&fixture, 1, 60);
            let expected = trainer_logprobs(&fixture, &model, Some(&adapter), &ids, 1.0);
            let got = engine.score(&ids, Some("tuned")).unwrap();
            let difference = largest_difference(&got, &expected[..59]);
            assert!(difference <= TOLERANCE, "{name}: {difference}");
            assert!(largest_difference(&got, &base) > 100.0 * TOLERANCE);

            let request = Request {
                adapter: Some("tuned".into()),
                ..Request::new(ids.clone(), params(30, 1.0, 5))
            };
            let drawn = engine.complete(request).unwrap();
            let mut all = ids;
            all.extend(drawn.ids());
            let expected = trainer_logprobs(&fixture, &model, Some(&adapter), &all, 1.0);
            let said: Vec<f32> = drawn.tokens.iter().map(|token| token.logprob).collect();
            let difference = largest_difference(&said, &expected[59..89]);
            assert!(difference <= TOLERANCE, "{name}: {difference}");
            engine.unload_adapter("tuned").unwrap();
        }
        let after = engine.score(&prompt(&fixture, 1, 60), None).unwrap();
        assert_eq!(after, base);
    }
}

#[test]
fn alternatives_are_the_most_likely_tokens_with_their_own_scores() {
    let fixture = fixture("qwen2");
    let model = model(&fixture);
    let engine = engine(&model, OPTIONS);
    let ids = prompt(&fixture, 3, 25);
    for temperature in [0.0, 0.7] {
        let request = Request::new(
            ids.clone(),
            SamplingParams {
                top_logprobs: 20,
                prompt_logprobs: Some(PromptLogprobs { from: 20, top: 3 }),
                ..params(1, temperature, 9)
            },
        );
        let got = engine.complete(request).unwrap();
        let token = &got.tokens[0];
        assert_eq!(token.top.len(), 20);
        let divisor = if temperature > 0.0 { temperature } else { 1.0 };
        if temperature == 0.0 {
            assert_eq!(token.id, token.top[0].id);
            assert_eq!(token.logprob, token.raw_logprob);
        }
        for pair in token.top.windows(2) {
            assert!(pair[0].raw_logprob >= pair[1].raw_logprob);
        }
        for alternative in &token.top {
            let mut all = ids.clone();
            all.push(alternative.id);
            let raw = trainer_logprobs(&fixture, &model, None, &all, 1.0)[24];
            let tempered = trainer_logprobs(&fixture, &model, None, &all, divisor)[24];
            assert!((alternative.raw_logprob - raw).abs() <= TOLERANCE);
            assert!((alternative.logprob - tempered).abs() <= TOLERANCE);
        }
        // Nothing that was left out is more likely.
        let least = token.top[19].raw_logprob;
        let n_better = (0..fixture.config().vocab_size as u32)
            .filter(|&id| {
                let mut all = ids.clone();
                all.push(id);
                trainer_logprobs(&fixture, &model, None, &all, 1.0)[24] > least + TOLERANCE
            })
            .count();
        assert!(n_better <= 19, "{n_better}");
        assert_eq!(got.prompt.len(), 5);
        for (place, token) in got.prompt.iter().enumerate() {
            assert_eq!((token.id, token.top.len()), (ids[20 + place], 3));
        }
    }
}

/// Draws follow the distribution that is said: the counts of many draws of one position.
#[test]
fn draws_follow_their_probabilities() {
    let fixture = fixture("llama_tied");
    let model = model(&fixture);
    let engine = engine(&model, OPTIONS);
    let ids = prompt(&fixture, 4, 20);
    let n = 3000;
    let events: Vec<_> = (0..n)
        .map(|seed| {
            let request = SamplingParams {
                top_logprobs: 5,
                ..params(1, 0.25, seed)
            };
            let events = engine.submit(Request::new(ids.clone(), request));
            match events {
                Ok(events) => events.collect().unwrap(),
                Err(error) => panic!("{error}"),
            }
        })
        .collect();
    let top = events[0].tokens[0].top.clone();
    for alternative in top {
        let p = f64::from(alternative.logprob).exp();
        let count = events
            .iter()
            .filter(|completion| completion.tokens[0].id == alternative.id)
            .count() as f64;
        let deviation = (n as f64 * p * (1.0 - p)).sqrt();
        let distance = (count - n as f64 * p).abs() / deviation;
        assert!(
            distance < 4.5,
            "{count} of {n} at {p}: {distance} deviations"
        );
    }
}
