//! Budgets: nothing passes a limit, alone or together, and what is unknown is not free.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use temper_agent::{
    budget::{
        BudgetError, Budgeted, BudgetedFactory, CallPrice, CallSize, Charge, Estimate, Ledger,
        Limits, Refusal, Scope, Spent,
    },
    model::{
        Model, ModelError, ModelErrorClass, ModelFactory, ModelReply, ModelRequest,
        pricing::Price,
        scripted::{Script, ScriptedFactory, ScriptedModel, ScriptedReply},
    },
};
use temper_core::{
    AgentName, Digest, Message, Role, SourceGroup, TaskId, Trial, Verdict,
    trajectory::{Attempt, Exit, FinishReason, Limit},
    trial::{PatchSource, Timing},
    usage::{MicroDollars, Usage},
};

use crate::server::*;

fn size(price: CallPrice) -> CallSize {
    CallSize {
        price,
        reply_tokens: 100,
        context_tokens: None,
    }
}

fn used(prompt: u64, completion: u64) -> Usage {
    Usage {
        prompt_tokens: Some(prompt),
        cached_tokens: None,
        completion_tokens: Some(completion),
    }
}

fn script(usage: Usage, cost: Option<f64>, n: usize) -> Arc<Script> {
    let reply = ScriptedReply {
        content: "ok".into(),
        usage,
        cost,
        ..ScriptedReply::default()
    };
    Arc::new(Script {
        replies: vec![reply; n],
        ..Script::default()
    })
}

fn budgeted(script: &Arc<Script>, ledger: &Arc<Ledger>, price: CallPrice) -> Budgeted {
    let inner = Box::new(ScriptedModel::new(Arc::clone(script), "t"));
    Budgeted::new(inner, Arc::clone(ledger), size(price)).unwrap()
}

fn class(outcome: Result<ModelReply, ModelError>) -> Option<ModelErrorClass> {
    outcome.err().map(|error| error.class)
}

#[test]
fn each_limit_stops_before_the_call_that_could_pass_it() {
    let messages = opening();
    let calls_until = |limits: Limits, price: CallPrice| {
        let ledger = Ledger::new(Scope::Job, limits);
        let mut model = budgeted(&script(used(50, 10), Some(1.0), 20), &ledger, price);
        for n in 0..20 {
            if let Some(class) = class(model.query(&request(&messages))) {
                return (n, Some(class), ledger.snapshot());
            }
        }
        (20, None, ledger.snapshot())
    };
    let (n, why, snapshot) = calls_until(
        Limits {
            calls: Some(3),
            ..Limits::default()
        },
        CallPrice::Unknown,
    );
    assert_eq!((n, why), (3, Some(ModelErrorClass::Budget(Limit::Calls))));
    assert_eq!(snapshot.spent.n_calls, 3);
    assert_eq!(snapshot.n_under_way, 0);

    let (n, why, snapshot) = calls_until(
        Limits {
            money: Some(MicroDollars(3_500_000)),
            ..Limits::default()
        },
        CallPrice::AtMost(MicroDollars(1_000_000)),
    );
    assert_eq!((n, why), (3, Some(ModelErrorClass::Budget(Limit::Money))));
    assert_eq!(snapshot.spent.money, MicroDollars(3_000_000));
    assert_eq!(snapshot.reserved_money, MicroDollars(0));

    let limit = 1000;
    let (n, why, snapshot) = calls_until(
        Limits {
            tokens: Some(limit),
            ..Limits::default()
        },
        CallPrice::Unknown,
    );
    assert_eq!(why, Some(ModelErrorClass::Budget(Limit::Tokens)));
    assert!(n > 1);
    assert_eq!(snapshot.spent.tokens, n * 60);
    assert!(snapshot.spent.tokens <= limit);

    assert_eq!(calls_until(Limits::default(), CallPrice::Unknown).0, 20);
}

#[test]
fn a_trials_money_is_its_cost_limit_and_the_jobs_is_the_budget() {
    let job = Ledger::new(
        Scope::Job,
        Limits {
            money: Some(MicroDollars(5_000_000)),
            ..Limits::default()
        },
    );
    let trial_limits = Limits {
        money: Some(MicroDollars(2_000_000)),
        ..Limits::default()
    };
    let factory = BudgetedFactory::new(
        Arc::new(ScriptedFactory::new(Script {
            replies: vec![ScriptedReply::default(); 9],
            cost_per_call: Some(MicroDollars(1_000_000)),
            ..Script::default()
        })),
        Arc::clone(&job),
        trial_limits,
        size(CallPrice::AtMost(MicroDollars(1_000_000))),
    )
    .unwrap();
    let messages = opening();
    let run = |n_expected: usize, limit: Limit| {
        let mut model = factory.open(&task("t"), 1).unwrap();
        for _ in 0..n_expected {
            model.query(&request(&messages)).unwrap();
        }
        let outcome = model.query(&request(&messages));
        assert_eq!(class(outcome), Some(ModelErrorClass::Budget(limit)));
    };
    run(2, Limit::Cost);
    run(2, Limit::Cost);
    run(1, Limit::Money);
    run(0, Limit::Money);
    assert_eq!(job.snapshot().spent.money, MicroDollars(5_000_000));
    assert_eq!(job.snapshot().spent.n_calls, 5);
}

#[test]
fn a_money_limit_without_a_price_is_refused_at_the_start() {
    let limits = Limits {
        money: Some(MicroDollars(1)),
        ..Limits::default()
    };
    let free = Limits::default();
    for (job, trial) in [(limits, free), (free, limits)] {
        let factory = BudgetedFactory::new(
            Arc::new(ScriptedFactory::new(Script::default())),
            Ledger::new(Scope::Job, job),
            trial,
            size(CallPrice::Unknown),
        );
        assert_eq!(factory.err(), Some(BudgetError::UnknownPrice));
    }
    let below = Ledger::new(Scope::Job, limits).trial(free);
    let inner = Box::new(ScriptedModel::new(Arc::default(), "t"));
    let model = Budgeted::new(inner, below, size(CallPrice::Unknown));
    assert_eq!(model.err(), Some(BudgetError::UnknownPrice));
}

#[test]
fn what_is_not_reported_is_booked_as_reserved_and_counted() {
    let price = Price::per_million(1.0, None, 1.0).unwrap();
    let ledger = Ledger::new(
        Scope::Job,
        Limits {
            tokens: Some(10_000),
            money: Some(MicroDollars(10_000)),
            ..Limits::default()
        },
    );
    let silent = script(Usage::default(), None, 50);
    let mut model = budgeted(&silent, &ledger, CallPrice::Tokens(price));
    let messages = opening();
    let mut n = 0;
    while model.query(&request(&messages)).is_ok() {
        n += 1;
    }
    let spent = ledger.snapshot().spent;
    assert!(n > 1 && n < 50);
    assert_eq!(spent.n_unknown_usage, n);
    assert_eq!(spent.n_unknown_price, n);
    assert_eq!((spent.tokens, spent.money), (0, MicroDollars(0)));
    assert!(spent.assumed_tokens <= 10_000 && spent.assumed_tokens > 5_000);
    assert!(spent.assumed_money.0 <= 10_000);
}

#[test]
fn the_reservation_covers_the_call_and_uses_what_the_server_counted() {
    let ledger = Ledger::new(Scope::Job, Limits::default());
    /// Answers with the ledger's reservation in the content, so that the test can see it.
    struct Spy(Arc<Ledger>);
    impl Model for Spy {
        fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
            // One token for each byte is the most there can be.
            let bytes: usize = request.messages.iter().map(|m| m.content.len()).sum();
            let most = request.max_output_tokens.unwrap_or(100);
            Ok(ModelReply {
                message: Message::text(
                    Role::Assistant,
                    self.0.snapshot().reserved_tokens.to_string(),
                ),
                finish: FinishReason::Stop,
                usage: used(bytes as u64, u64::from(most)),
                cost: None,
                tokens: None,
                attempts: Vec::new(),
            })
        }
    }
    let spy = Box::new(Spy(Arc::clone(&ledger)));
    let mut model = Budgeted::new(spy, Arc::clone(&ledger), size(CallPrice::Unknown)).unwrap();
    let mut messages = vec![Message::text(Role::User, "x".repeat(100_000))];
    for _ in 0..5 {
        let limited = ModelRequest {
            max_output_tokens: Some(7),
            ..request(&messages)
        };
        let reply = model.query(&limited).unwrap();
        let reserved: u64 = reply.message.content.parse().unwrap();
        let used = reply.usage.prompt_tokens.unwrap() + 7;
        assert!(
            used <= reserved && reserved < used + 2000,
            "{used} {reserved}"
        );
        messages.push(reply.message);
        messages.push(Message::text(Role::User, "\u{2603}".repeat(50)));
    }
    // No call is larger than the context.
    let small = CallSize {
        context_tokens: Some(500),
        ..size(CallPrice::Unknown)
    };
    let spy = Box::new(Spy(Arc::clone(&ledger)));
    let mut model = Budgeted::new(spy, Arc::clone(&ledger), small).unwrap();
    let reply = model.query(&request(&messages)).unwrap();
    assert_eq!(reply.message.content, "500");
}

#[test]
fn many_threads_never_pass_a_limit_together() {
    for round in 0..6u64 {
        // Each limit is the tight one in some round.
        let limits = Limits {
            tokens: Some(if round % 3 == 0 { 20_000 } else { 400_000 }),
            money: Some(MicroDollars(if round % 3 == 1 { 20_000 } else { 400_000 })),
            calls: Some(if round % 3 == 2 { 70 } else { 3_000 }),
            wall_seconds: None,
        };
        let job = Ledger::new(Scope::Job, limits);
        let n_refused = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..64u64 {
                let (job, n_refused) = (Arc::clone(&job), &n_refused);
                scope.spawn(move || {
                    let trial = job.trial(Limits {
                        calls: Some(20),
                        ..Limits::default()
                    });
                    for call in 0..40u64 {
                        let most = Estimate {
                            tokens: 500,
                            money: MicroDollars(400),
                        };
                        let Ok(reservation) = trial.reserve(most, None) else {
                            n_refused.fetch_add(1, Ordering::Relaxed);
                            continue;
                        };
                        let now = job.snapshot();
                        let held = now.spent.tokens + now.spent.assumed_tokens;
                        assert!(held <= limits.tokens.unwrap(), "{now:?}");
                        assert!(now.spent.n_calls + now.n_under_way <= limits.calls.unwrap());
                        // Any use up to the reservation, unknown use, and lost calls.
                        let draw = (round * 7919 + thread * 104_729 + call * 1_299_709) % 501;
                        match draw % 5 {
                            0 => drop(reservation),
                            1 => reservation.settle(Charge::default()),
                            2 => reservation.settle(Charge {
                                answered: true,
                                ..Charge::default()
                            }),
                            _ => reservation.settle(Charge {
                                answered: true,
                                usage: used(draw / 2, draw / 2),
                                cost: Some(MicroDollars(draw % 401)),
                                n_lost_answers: 0,
                            }),
                        }
                    }
                });
            }
        });
        let end = job.snapshot();
        let tokens = end.spent.tokens + end.spent.assumed_tokens;
        let money = end.spent.money.0 + end.spent.assumed_money.0;
        assert!(tokens <= limits.tokens.unwrap(), "{end:?}");
        assert!(money <= limits.money.unwrap().0, "{end:?}");
        assert!(end.spent.n_calls <= limits.calls.unwrap(), "{end:?}");
        assert_eq!(
            (end.reserved_tokens, end.reserved_money.0, end.n_under_way),
            (0, 0, 0)
        );
        assert!(n_refused.into_inner() > 0);
        // Nearly all of the tight one was used: waiting for others does not give up early.
        match round % 3 {
            0 => assert!(tokens > 19_400, "{end:?}"),
            1 => assert!(money > 19_500, "{end:?}"),
            _ => assert_eq!(end.spent.n_calls, 70, "{end:?}"),
        }
    }
}

#[test]
fn a_call_waits_for_reservations_and_not_for_what_is_spent() {
    let ledger = Ledger::new(
        Scope::Job,
        Limits {
            tokens: Some(100),
            ..Limits::default()
        },
    );
    let most = |tokens| Estimate {
        tokens,
        money: MicroDollars(0),
    };
    let first = ledger.reserve(most(80), None).unwrap();
    // It does not fit beside the first, but would fit after it: the deadline ends the wait.
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(
        ledger.reserve(most(50), Some(soon)).err(),
        Some(Refusal::Deadline)
    );
    // It never fits.
    assert_eq!(
        ledger.reserve(most(101), None).err(),
        Some(Refusal::Limit(Limit::Tokens))
    );
    let second = std::thread::spawn({
        let ledger = Arc::clone(&ledger);
        move || ledger.reserve(most(50), None).map(drop)
    });
    first.settle(Charge {
        answered: true,
        usage: used(20, 10),
        ..Charge::default()
    });
    assert_eq!(second.join().unwrap(), Ok(()));
    // Calls under way count against the limit on calls.
    let two = Ledger::new(
        Scope::Job,
        Limits {
            calls: Some(2),
            ..Limits::default()
        },
    );
    let held = [two.reserve(most(1), None), two.reserve(most(1), None)];
    assert_eq!(two.snapshot().n_under_way, 2);
    let soon = Instant::now() + Duration::from_millis(20);
    assert_eq!(
        two.reserve(most(1), Some(soon)).err(),
        Some(Refusal::Deadline)
    );
    drop(held);
    assert!(two.reserve(most(1), None).is_ok());
    // A reservation that is refused above leaves nothing below.
    let trial = ledger.trial(Limits::default());
    assert!(trial.reserve(most(90), None).is_err());
    assert_eq!(trial.snapshot().reserved_tokens, 0);
    assert_eq!(trial.snapshot().n_under_way, 0);
}

#[test]
fn wall_time_ends_calls_and_is_told_from_the_callers_deadline() {
    let limited = |seconds: u64, spent: f64| {
        Ledger::resumed(
            Scope::Job,
            Limits {
                wall_seconds: Some(seconds),
                ..Limits::default()
            },
            Spent {
                wall_seconds: spent,
                ..Spent::default()
            },
        )
    };
    let messages = opening();
    let mut model = budgeted(
        &script(used(1, 1), None, 5),
        &limited(10, 10.0),
        CallPrice::Unknown,
    );
    assert_eq!(
        class(model.query(&request(&messages))),
        Some(ModelErrorClass::Budget(Limit::WallTime))
    );
    /// Runs into its deadline.
    struct Late;
    impl Model for Late {
        fn query(&mut self, request: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
            assert!(request.deadline.is_some());
            Err(ModelError {
                class: ModelErrorClass::Deadline,
                message: String::new(),
                attempts: Vec::new(),
            })
        }
    }
    let ask = |own: Option<Duration>| {
        let ledger = limited(100, 0.0);
        let mut model = Budgeted::new(Box::new(Late), ledger, size(CallPrice::Unknown)).unwrap();
        let request = ModelRequest {
            deadline: own.map(|own| Instant::now() + own),
            ..request(&messages)
        };
        class(model.query(&request))
    };
    assert_eq!(ask(None), Some(ModelErrorClass::Budget(Limit::WallTime)));
    assert_eq!(
        ask(Some(Duration::from_secs(1))),
        Some(ModelErrorClass::Deadline)
    );
}

#[test]
fn a_ledger_goes_on_where_finished_trials_left_it() {
    let spent = Spent {
        n_calls: 9,
        tokens: 500,
        ..Spent::default()
    };
    let limits = Limits {
        calls: Some(10),
        ..Limits::default()
    };
    let ledger = Ledger::resumed(Scope::Job, limits, spent);
    let mut model = budgeted(&script(used(1, 1), None, 5), &ledger, CallPrice::Unknown);
    let messages = opening();
    assert!(model.query(&request(&messages)).is_ok());
    assert_eq!(
        class(model.query(&request(&messages))),
        Some(ModelErrorClass::Budget(Limit::Calls))
    );
    let mut sum = Spent::default();
    let mut trial = trial();
    sum.add_trial(&trial);
    (trial.cost, trial.usage) = (None, Usage::default());
    sum.add_trial(&trial);
    assert_eq!(
        sum,
        Spent {
            tokens: 12,
            money: MicroDollars(5),
            n_calls: 6,
            n_unknown_price: 3,
            n_unknown_usage: 3,
            ..Spent::default()
        }
    );
    let text = serde_json::to_string(&ledger.snapshot()).unwrap();
    let back: temper_agent::budget::Snapshot = serde_json::from_str(&text).unwrap();
    assert_eq!(back.spent.tokens, 502);
    let limits: Limits = serde_json::from_value(json!({"tokens": 5})).unwrap();
    assert_eq!(limits.tokens, Some(5));
    assert!(serde_json::from_value::<Limits>(json!({"token": 5})).is_err());
}

/// A finished trial of three calls.
fn trial() -> Trial {
    Trial {
        format: Trial::FORMAT,
        task_id: TaskId::new("t").unwrap(),
        task_digest: Digest::of(b""),
        source_group: SourceGroup::new("g").unwrap(),
        agent: AgentName::new("a").unwrap(),
        attempt: 0,
        seed: 1,
        exit: Exit::Submitted,
        patch: None,
        patch_source: PatchSource::WorkTree,
        verdict: Verdict::lost("v", ""),
        failure: None,
        n_model_calls: 3,
        n_steps: 3,
        usage: used(10, 2),
        cost: Some(MicroDollars(5)),
        timing: Timing::default(),
        n_retries: 0,
        started_at: String::new(),
        finished_at: String::new(),
    }
}

#[test]
fn an_answer_that_broke_off_is_booked_because_it_was_probably_charged() {
    struct Broken;
    impl Model for Broken {
        fn query(&mut self, _: &ModelRequest<'_>) -> Result<ModelReply, ModelError> {
            let attempt = |status, error: &str| Attempt {
                status,
                error: Some(error.into()),
                message: None,
                wall_seconds: 0.0,
                waited_seconds: 0.0,
            };
            Err(ModelError {
                class: ModelErrorClass::Connection,
                message: String::new(),
                attempts: vec![
                    attempt(Some(200), "Connection"),
                    attempt(Some(500), "Server"),
                    attempt(None, "Connection"),
                ],
            })
        }
    }
    let ledger = Ledger::new(Scope::Job, Limits::default());
    let mut model = Budgeted::new(
        Box::new(Broken),
        Arc::clone(&ledger),
        size(CallPrice::Unknown),
    )
    .unwrap();
    assert!(model.query(&request(&[])).is_err());
    let spent = ledger.snapshot().spent;
    assert_eq!((spent.n_calls, spent.n_unanswered), (0, 1));
    // One whole reservation: 512 tokens around the conversation and 100 for the reply.
    assert_eq!(spent.assumed_tokens, 612);
}
