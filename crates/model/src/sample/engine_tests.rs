use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use super::*;
use crate::{
    device::{DeviceError, PAGE_TOKENS},
    random::{mix, uniform},
    sample::{
        params::{PromptLogprobs, SamplingParams},
        request::{Completion, Event, FinishReason},
        runner::{Run, RunOutput, TokenLogprob},
        text::tests::ByteVocabulary,
    },
    transformer::ModelError,
};

const VOCABULARY: usize = 300;
/// The id that a pretended model never draws unless it is asked to.
const EOS: u32 = 299;

/// A pretended model: its cache holds ids, and what it draws is a function of the adapter and of
/// all ids that the pages lead to.
struct Pretended {
    limits: RunnerLimits,
    slots: Vec<Option<u32>>,
    scales: std::collections::HashMap<u64, u32>,
    n_loaded: Arc<AtomicUsize>,
    /// Called before each step with its number, from 1.
    before_step: Box<dyn FnMut(usize) -> Result<(), DeviceError> + Send>,
    n_steps: usize,
}

impl Pretended {
    fn new(max_rows: usize, max_runs: usize, n_pages: usize) -> Self {
        Pretended {
            limits: RunnerLimits {
                max_rows,
                max_runs,
                n_pages: n_pages + 1,
                max_context: n_pages * PAGE_TOKENS,
                vocabulary: VOCABULARY,
            },
            slots: vec![None; (n_pages + 1) * PAGE_TOKENS],
            scales: std::collections::HashMap::new(),
            n_loaded: Arc::default(),
            before_step: Box::new(|_| Ok(())),
            n_steps: 0,
        }
    }
}

/// The next token after a text, by what makes it: the adapter's scale, temperature, seed, draws.
fn next_token(scale: u32, text: &[u32], temperature: f32, seed: u64, n_drawn: u32) -> u32 {
    let hash = text
        .iter()
        .fold(u64::from(scale), |hash, &id| mix(hash ^ u64::from(id)));
    let draw = if temperature > 0.0 {
        (uniform(seed, u64::from(n_drawn)) * 1e6) as u64
    } else {
        0
    };
    (mix(hash ^ draw) % 256) as u32
}

fn logprob(scale: u32, text: &[u32], id: u32) -> f32 {
    -((next_token(scale, text, 0.0, 0, 0) ^ id) as f32)
}

impl Runner for Pretended {
    fn limits(&self) -> RunnerLimits {
        self.limits
    }

    fn copy_pages(&mut self, moves: &[(u32, u32)]) -> Result<(), DeviceError> {
        for &(from, to) in moves {
            let from = from as usize * PAGE_TOKENS;
            self.slots
                .copy_within(from..from + PAGE_TOKENS, to as usize * PAGE_TOKENS);
        }
        Ok(())
    }

    fn run(&mut self, adapter: u64, runs: &[Run<'_>]) -> Result<Vec<RunOutput>, DeviceError> {
        self.n_steps += 1;
        (self.before_step)(self.n_steps)?;
        let scale = match adapter {
            0 => 0,
            number => self.scales[&number],
        };
        let slot = |run: &Run<'_>, at: usize| {
            run.pages[at / PAGE_TOKENS] as usize * PAGE_TOKENS + at % PAGE_TOKENS
        };
        for run in runs {
            for at in run.start..run.start + run.n_rows {
                self.slots[slot(run, at)] = Some(run.tokens[at]);
            }
        }
        Ok(runs
            .iter()
            .map(|run| {
                let end = run.start + run.n_rows;
                let text: Vec<u32> = (0..end)
                    .map(|at| self.slots[slot(run, at)].expect("a slot that was written"))
                    .collect();
                let token = |text: &[u32], id: u32| TokenLogprob {
                    id,
                    logprob: logprob(scale, text, id),
                    raw_logprob: logprob(scale, text, id),
                    top: Vec::new(),
                };
                let drawn = run.draw.map(|draw| {
                    let id = next_token(scale, &text, draw.temperature, draw.seed, draw.n_drawn);
                    token(&text, id)
                });
                let scored = run.score.map_or(Vec::new(), |score| {
                    (0..score.n_rows)
                        .map(|row| {
                            let at = run.start + score.first + row;
                            token(&text[..=at], run.tokens[at + 1])
                        })
                        .collect()
                });
                RunOutput { drawn, scored }
            })
            .collect())
    }

    fn load_adapter(&mut self, adapter: u64, weights: &AdapterWeights) -> Result<(), ModelError> {
        if weights.rank > 8 {
            return Err(ModelError::Input {
                operation: "load an adapter",
                reason: "its rank is more than 8".into(),
            });
        }
        self.n_loaded.fetch_add(1, Ordering::SeqCst);
        self.scales.insert(adapter, weights.alpha as u32);
        Ok(())
    }

    fn unload_adapter(&mut self, adapter: u64) {
        self.n_loaded.fetch_sub(1, Ordering::SeqCst);
        self.scales.remove(&adapter);
    }
}

fn adapter(scale: u32) -> AdapterWeights {
    AdapterWeights {
        rank: 1,
        alpha: f64::from(scale),
        rank_stabilised: false,
        base_model: None,
        tensors: Default::default(),
    }
}

fn start(runner: Pretended) -> Engine {
    let config = EngineConfig {
        vocabulary: Some(Arc::new(ByteVocabulary::new(&[EOS]))),
        ..EngineConfig::default()
    };
    Engine::start(runner, config).unwrap()
}

fn params(max_tokens: usize) -> SamplingParams {
    SamplingParams {
        max_tokens: Some(max_tokens),
        ..SamplingParams::greedy()
    }
}

/// What the pretended model draws after a prompt, alone.
fn expected(scale: u32, prompt: &[u32], params: &SamplingParams, n: usize) -> Vec<u32> {
    let mut text = prompt.to_vec();
    for drawn in 0..n as u32 {
        let next = next_token(scale, &text, params.temperature, params.seed, drawn);
        text.push(next);
    }
    text.split_off(prompt.len())
}

fn prompt(seed: u64, n: usize) -> Vec<u32> {
    (0..n as u64)
        .map(|i| (mix(seed * 7919 + i) % 256) as u32)
        .collect()
}

fn reason(completion: &Completion) -> &FinishReason {
    &completion.finish.as_ref().unwrap().reason
}

/// Waits until the engine's thread has published what is expected.
fn until(engine: &Engine, holds: impl Fn(&Metrics) -> bool) -> Metrics {
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let metrics = engine.metrics();
        if holds(&metrics) {
            return metrics;
        }
        assert!(Instant::now() < end, "{metrics:?}");
        std::thread::yield_now();
    }
}

#[test]
fn many_callers_get_what_each_would_get_alone() {
    // Few pages, so that requests are preempted.
    let engine = start(Pretended::new(64, 6, 24));
    std::thread::scope(|scope| {
        for caller in 0..8u64 {
            let engine = &engine;
            scope.spawn(move || {
                for round in 0..12 {
                    let prompt = prompt(caller % 3, 20 + 23 * (round as usize % 5));
                    let params = SamplingParams {
                        temperature: (round % 2) as f32,
                        seed: caller,
                        ..params(150 + caller as usize)
                    };
                    let expected = expected(0, &prompt, &params, 150 + caller as usize);
                    let got = engine
                        .complete(Request::new(prompt, params.clone()))
                        .unwrap();
                    assert_eq!(got.ids(), expected);
                    assert_eq!(reason(&got), &FinishReason::MaxTokens);
                }
            });
        }
    });
    let metrics = until(&engine, |metrics| metrics.n_finished == 96);
    assert!(metrics.n_preemptions > 0, "{metrics:?}");
    assert!(metrics.prefix_hit_rate().unwrap() > 0.5, "{metrics:?}");
    assert_eq!((metrics.n_pages_used, metrics.n_running), (0, 0));
    assert!(metrics.tokens_per_second > 0.0);
}

#[test]
fn a_request_ends_at_ids_strings_limits_and_the_full_context() {
    let engine = start(Pretended::new(64, 4, 40));
    let prompt = prompt(1, 20);
    let ids = expected(0, &prompt, &params(0), 40 * PAGE_TOKENS - 20);
    let complete = |params: SamplingParams| {
        engine
            .complete(Request::new(prompt.clone(), params))
            .unwrap()
    };
    let first_place = |id: u32| ids.iter().position(|&other| other == id).unwrap();

    let stop_id = ids[30];
    let got = complete(SamplingParams {
        stop_ids: vec![stop_id],
        ..params(100)
    });
    assert_eq!(reason(&got), &FinishReason::StopId(stop_id));
    assert_eq!(got.ids(), ids[..=first_place(stop_id)]);

    let got = complete(SamplingParams {
        stop_ids: vec![ids[30]],
        min_tokens: 100,
        ..params(100)
    });
    assert_eq!(got.ids().len(), 100, "no id ends it too early");

    // Ids are bytes, so a stop string is a run of ids; make one of ASCII bytes.
    let n = (1..).find(|&n| ids[n - 1] < 128 && ids[n] < 128).unwrap();
    let stop: String = ids[n - 1..=n]
        .iter()
        .map(|&id| char::from(id as u8))
        .collect();
    let got = complete(SamplingParams {
        stop: vec!["never this".into(), stop.clone()],
        ..params(600)
    });
    assert_eq!(reason(&got), &FinishReason::StopString(1));
    assert_eq!(got.ids(), ids[..=n], "the ids keep the stop string");
    let before: Vec<u8> = ids[..n - 1].iter().map(|&id| id as u8).collect();
    assert_eq!(
        got.text,
        String::from_utf8_lossy(&before),
        "the text does not"
    );

    let got = complete(SamplingParams::greedy());
    assert_eq!(reason(&got), &FinishReason::Context);
    assert_eq!(got.ids(), ids);
    let finish = got.finish.unwrap();
    assert_eq!((finish.n_prompt, finish.n_drawn), (20, ids.len()));
    assert!(finish.n_cached > 0);
}

#[test]
fn the_models_own_end_is_passed_over_only_on_request() {
    let prompt = prompt(1, 20);
    let ids = expected(0, &prompt, &params(0), 50);
    let config = EngineConfig {
        eos_ids: vec![ids[10]],
        ..EngineConfig::default()
    };
    let engine = Engine::start(Pretended::new(64, 4, 40), config).unwrap();
    let at = ids.iter().position(|&id| id == ids[10]).unwrap();
    let got = engine
        .complete(Request::new(prompt.clone(), params(50)))
        .unwrap();
    assert_eq!(reason(&got), &FinishReason::EndOfText(ids[10]));
    assert_eq!(got.ids(), ids[..=at]);
    let ignoring = SamplingParams {
        ignore_eos: true,
        ..params(50)
    };
    let got = engine.complete(Request::new(prompt, ignoring)).unwrap();
    assert_eq!(got.ids(), ids);
    assert!(got.text.is_empty(), "there is no tokenizer");
}

#[test]
fn scoring_gives_each_token_its_logprob_with_and_without_a_cache() {
    let engine = start(Pretended::new(40, 4, 100));
    let ids = prompt(5, 150);
    let wanted: Vec<f32> = (1..150).map(|at| logprob(0, &ids[..at], ids[at])).collect();
    for _ in 0..2 {
        assert_eq!(engine.score(&ids, None).unwrap(), wanted);
    }
    let from = 100;
    let request = Request::new(
        ids.clone(),
        SamplingParams {
            prompt_logprobs: Some(PromptLogprobs { from, top: 0 }),
            ..params(3)
        },
    );
    let got = engine.complete(request).unwrap();
    let raw: Vec<f32> = got.prompt.iter().map(|token| token.raw_logprob).collect();
    assert_eq!(raw, wanted[from - 1..]);
    assert_eq!(got.tokens.len(), 3);
    assert_eq!(got.finish.unwrap().n_cached, 99);
}

#[test]
fn what_cannot_be_done_is_refused_with_its_numbers() {
    let engine = start(Pretended::new(64, 4, 4));
    let refusal = |prompt: Vec<u32>, params: SamplingParams| {
        engine.submit(Request::new(prompt, params)).unwrap_err()
    };
    assert_eq!(refusal(vec![], params(1)), RequestError::EmptyPrompt);
    assert_eq!(
        refusal(prompt(1, 64), params(1)).to_string(),
        "fit a prompt of 64 tokens into a context of 64"
    );
    assert!(
        engine
            .submit(Request::new(prompt(1, 64), params(0)))
            .is_ok()
    );
    assert_eq!(
        refusal(vec![1, 300], params(1)).to_string(),
        "use token 300 at position 1: the vocabulary has 300 ids"
    );
    let mut wrong = params(1);
    wrong.top_p = 2.0;
    assert!(matches!(refusal(vec![1], wrong), RequestError::Param(_)));
    let named = Request {
        adapter: Some("none".into()),
        ..Request::new(vec![1], params(1))
    };
    assert_eq!(
        engine.submit(named).unwrap_err(),
        RequestError::UnknownAdapter("none".into())
    );
    let silent = Engine::start(Pretended::new(64, 4, 4), EngineConfig::default()).unwrap();
    let mut stopping = params(1);
    stopping.stop = vec!["x".into()];
    assert_eq!(
        silent.submit(Request::new(vec![1], stopping)).unwrap_err(),
        RequestError::NoTokenizer
    );
}

/// A runner whose steps wait for permission.
fn gated(mut runner: Pretended) -> (Pretended, mpsc::Sender<()>) {
    let (permit, permitted) = mpsc::channel();
    runner.before_step = Box::new(move |_| {
        // Without the test there is no need to wait.
        let _ = permitted.recv();
        Ok(())
    });
    (runner, permit)
}

#[test]
fn the_queue_is_bounded() {
    let (runner, permit) = gated(Pretended::new(64, 1, 40));
    let config = EngineConfig {
        max_waiting: 3,
        ..EngineConfig::default()
    };
    let engine = Engine::start(runner, config).unwrap();
    let running = engine
        .submit(Request::new(prompt(0, 5), params(2)))
        .unwrap();
    permit.send(()).unwrap();
    until(&engine, |metrics| metrics.n_running == 1);
    let waiting: Vec<Events> = (1..4)
        .map(|n| {
            engine
                .submit(Request::new(prompt(n, 5), params(2)))
                .unwrap()
        })
        .collect();
    assert_eq!(
        engine
            .submit(Request::new(prompt(9, 5), params(2)))
            .unwrap_err(),
        RequestError::QueueFull { n_waiting: 3 }
    );
    drop(permit);
    for events in std::iter::once(running).chain(waiting) {
        assert_eq!(events.collect().unwrap().tokens.len(), 2);
    }
}

#[test]
fn a_caller_who_leaves_is_no_longer_computed_for() {
    let engine = start(Pretended::new(64, 2, 2000));
    let endless = || Request::new(prompt(1, 10), params(30_000));
    let first = engine.submit(endless()).unwrap();
    assert!(matches!(first.next_event(), Some(Event::Token { .. })));
    // Two more: one runs, one waits.
    let (second, third) = (
        engine.submit(endless()).unwrap(),
        engine.submit(endless()).unwrap(),
    );
    drop((first, second, third));
    let metrics = until(&engine, |metrics| metrics.n_cancelled == 3);
    assert_eq!((metrics.n_running, metrics.n_waiting), (0, 0));
    assert_eq!(metrics.n_pages_used, 0);
}

#[test]
fn a_deadline_ends_a_request_with_what_was_reached() {
    let engine = start(Pretended::new(64, 2, 2000));
    let request = Request {
        deadline: Some(Instant::now() + Duration::from_millis(30)),
        ..Request::new(prompt(1, 10), params(30_000))
    };
    let got = engine.complete(request).unwrap();
    assert_eq!(reason(&got), &FinishReason::Deadline);
    assert_eq!(
        got.ids(),
        expected(0, &prompt(1, 10), &params(0), got.tokens.len())
    );
    let request = Request {
        deadline: Some(Instant::now()),
        ..Request::new(prompt(1, 10), params(30_000))
    };
    assert!(engine.complete(request).unwrap().tokens.is_empty());
}

#[test]
fn a_failed_step_fails_its_requests_and_no_others() {
    let mut runner = Pretended::new(64, 1, 40);
    runner.before_step = Box::new(|step| match step {
        3 => Err(DeviceError::Failed {
            operation: "launch a kernel",
            device: "the test".into(),
            reason: "it was told to".into(),
        }),
        _ => Ok(()),
    });
    let engine = start(runner);
    let events: Vec<Events> = (0..3)
        .map(|n| {
            engine
                .submit(Request::new(prompt(n, 20), params(5)))
                .unwrap()
        })
        .collect();
    let results: Vec<_> = events.into_iter().map(Events::collect).collect();
    assert_eq!(
        results[0],
        Err(RequestError::Device(
            "failed to launch a kernel on the test: it was told to".into()
        ))
    );
    for (n, result) in results.iter().enumerate().skip(1) {
        let ids = result.as_ref().unwrap().ids();
        assert_eq!(ids, expected(0, &prompt(n as u64, 20), &params(0), 5));
    }
    assert_eq!(engine.metrics().failure, None);
}

#[test]
fn an_engine_that_keeps_failing_or_panics_tells_everybody() {
    for panics in [false, true] {
        let mut runner = Pretended::new(64, 1, 40);
        runner.before_step = Box::new(move |step| match step {
            0..=2 => Ok(()),
            _ if panics => panic!("the test's panic"),
            _ => Err(DeviceError::Failed {
                operation: "compute",
                device: "the test".into(),
                reason: "broken".into(),
            }),
        });
        let engine = start(runner);
        let pause = engine.pause().unwrap();
        let events: Vec<Events> = (0..6)
            .map(|n| {
                engine
                    .submit(Request::new(prompt(n, 20), params(5)))
                    .unwrap()
            })
            .collect();
        drop(pause);
        let errors: Vec<String> = events
            .into_iter()
            .map(|events| events.collect().unwrap_err().to_string())
            .collect();
        let cause = if panics {
            "a panic: the test's panic"
        } else {
            "failed to compute on the test: broken"
        };
        assert!(
            errors.iter().all(|error| error.contains(cause)),
            "{errors:?}"
        );
        let refusal = engine.submit(Request::new(vec![1], params(1))).unwrap_err();
        assert_eq!(refusal, RequestError::EngineFailed(cause.into()));
        let metrics = until(&engine, |metrics| metrics.n_failed == 6);
        assert_eq!(metrics.failure.as_deref(), Some(cause));
        assert!(engine.load_adapter("late", adapter(1)).is_err());
    }
}

#[test]
fn adapters_are_loaded_replaced_and_unloaded_while_requests_run() {
    let runner = Pretended::new(64, 4, 100);
    let n_loaded = Arc::clone(&runner.n_loaded);
    let engine = start(runner);
    let text = prompt(3, 40);
    let with = |name: &str, n: usize| Request {
        adapter: Some(name.into()),
        ..Request::new(text.clone(), params(n))
    };
    engine.load_adapter("a", adapter(1)).unwrap();
    engine.load_adapter("b", adapter(2)).unwrap();
    assert_eq!(engine.adapters(), ["a", "b"]);
    let long = engine.submit(with("a", 500)).unwrap();
    assert!(long.next_event().is_some());
    // The old one serves the request that runs, the new one those that come.
    engine.load_adapter("a", adapter(9)).unwrap();
    let new = engine.complete(with("a", 20)).unwrap();
    assert_eq!(new.ids(), expected(9, &text, &params(0), 20));
    assert_eq!(new.finish.unwrap().n_cached, 0, "another adapter's pages");
    let b = engine.complete(with("b", 20)).unwrap();
    assert_eq!(b.ids(), expected(2, &text, &params(0), 20));
    let mut ids = vec![expected(1, &text, &params(0), 1)[0]];
    ids.extend(long.collect().unwrap().ids());
    assert_eq!(ids, expected(1, &text, &params(0), 500));

    engine.unload_adapter("a").unwrap();
    assert_eq!(
        engine.submit(with("a", 1)).unwrap_err(),
        RequestError::UnknownAdapter("a".into())
    );
    assert!(engine.unload_adapter("a").is_err());
    assert_eq!(n_loaded.load(Ordering::SeqCst), 1, "only b is left");
    let mut wide = adapter(1);
    wide.rank = 9;
    assert_eq!(
        engine.load_adapter("wide", wide).unwrap_err().to_string(),
        "load the adapter \"wide\": load an adapter: its rank is more than 8"
    );
}

#[test]
fn a_pause_lets_the_weights_change() {
    let engine = start(Pretended::new(64, 4, 100));
    let text = prompt(3, 40);
    let n_cached = || {
        let got = engine
            .complete(Request::new(text.clone(), params(2)))
            .unwrap();
        assert_eq!(got.ids(), expected(0, &text, &params(0), 2));
        got.finish.unwrap().n_cached
    };
    assert_eq!(n_cached(), 0);
    engine.pause().unwrap().resume_unchanged();
    assert_eq!(n_cached(), 39);
    let pause = engine.pause().unwrap();
    let events = engine
        .submit(Request::new(text.clone(), params(2)))
        .unwrap();
    assert_eq!(events.next_within(Duration::from_millis(20)), None);
    drop(pause);
    assert_eq!(events.collect().unwrap().finish.unwrap().n_cached, 0);
    assert_eq!(n_cached(), 39);
}

#[test]
fn shutting_down_finishes_or_cancels() {
    let engine = start(Pretended::new(64, 2, 100));
    let events: Vec<Events> = (0..5)
        .map(|n| {
            engine
                .submit(Request::new(prompt(n, 20), params(50)))
                .unwrap()
        })
        .collect();
    engine.shut_down(Shutdown::Finish);
    for events in events {
        assert_eq!(events.collect().unwrap().tokens.len(), 50);
    }
    assert_eq!(
        engine.submit(Request::new(vec![1], params(1))).unwrap_err(),
        RequestError::ShutDown
    );
    assert_eq!(engine.pause().err(), Some(RequestError::ShutDown));

    let engine = start(Pretended::new(64, 2, 2000));
    let events: Vec<Events> = (0..5)
        .map(|n| {
            let request = Request::new(prompt(n, 20), params(30_000));
            engine.submit(request).unwrap()
        })
        .collect();
    assert!(events[0].next_event().is_some());
    drop(engine);
    for events in events {
        let got = events.collect().unwrap();
        assert_eq!(reason(&got), &FinishReason::Cancelled);
    }
}
