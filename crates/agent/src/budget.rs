//! Hard limits on tokens, money, calls and time, for a trial and for a whole job.
//!
//! Before a call the most it can use is reserved, afterwards what it used is booked, so trials
//! that run at the same time cannot pass a limit together. Where the reservations of other calls
//! are all that stands in the way, a call waits for them; it is refused when it could not fit even
//! alone.
//!
//! What a server does not report is not taken for zero: the whole reservation is booked instead,
//! and counted as assumed. What this cannot prevent: a server that gives more tokens than it was
//! asked for, and one that charges for calls it did not answer.

mod budgeted;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};
use temper_core::{
    Trial,
    trajectory::Limit,
    usage::{MicroDollars, Usage},
};

pub use budgeted::{BudgetError, Budgeted, BudgetedFactory, CallPrice, CallSize};

/// What may be used; an absent limit is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Prompt and completion tokens of all calls.
    pub tokens: Option<u64>,
    /// Money, in millionths of a dollar.
    pub money: Option<MicroDollars>,
    /// Calls that got a reply.
    pub calls: Option<u64>,
    /// Seconds since the ledger was opened, those of earlier sessions included.
    pub wall_seconds: Option<u64>,
}

/// What a ledger is about; it decides how a limit is named when it ends a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// One trial.
    Trial,
    /// All trials of a job.
    Job,
}

/// What was used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Spent {
    /// Tokens that servers reported.
    pub tokens: u64,
    /// Tokens booked for calls whose tokens were not reported.
    pub assumed_tokens: u64,
    /// Money that is known.
    pub money: MicroDollars,
    /// Money booked, up to the reservation, for calls whose price is not known.
    pub assumed_money: MicroDollars,
    /// Calls that got a reply.
    pub n_calls: u64,
    /// Those of them whose price is not known.
    pub n_unknown_price: u64,
    /// Those of them whose tokens were not reported.
    pub n_unknown_usage: u64,
    /// Calls that got none.
    pub n_unanswered: u64,
    /// Seconds.
    pub wall_seconds: f64,
}

impl Spent {
    /// Adds a finished trial, for a job whose own snapshot is lost: what the snapshot knows of
    /// unanswered calls and of assumed tokens and money is not in a trial, and neither is how
    /// much of its time passed beside that of others.
    pub fn add_trial(&mut self, trial: &Trial) {
        let n_calls = u64::from(trial.n_model_calls);
        self.n_calls = self.n_calls.saturating_add(n_calls);
        match (trial.usage.prompt_tokens, trial.usage.completion_tokens) {
            (Some(prompt), Some(completion)) => {
                let tokens = prompt.saturating_add(completion);
                self.tokens = self.tokens.saturating_add(tokens);
            }
            _ => self.n_unknown_usage = self.n_unknown_usage.saturating_add(n_calls),
        }
        match trial.cost {
            Some(cost) => self.money = plus(self.money, cost),
            None => self.n_unknown_price = self.n_unknown_price.saturating_add(n_calls),
        }
    }
}

/// Where a ledger stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// What the ledger is about.
    pub scope: Scope,
    /// What may be used.
    pub limits: Limits,
    /// What was used.
    pub spent: Spent,
    /// Tokens that calls under way have reserved.
    pub reserved_tokens: u64,
    /// Money that calls under way have reserved.
    pub reserved_money: MicroDollars,
    /// Calls under way.
    pub n_under_way: u64,
}

/// The most that a call can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Prompt and completion tokens.
    pub tokens: u64,
    /// Money.
    pub money: MicroDollars,
}

/// A call may not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A limit is reached.
    Limit(Limit),
    /// The deadline passed while other calls held the rest of the budget.
    Deadline,
}

/// The books of a trial or a job. Thread-safe; share it by [`Arc`].
#[derive(Debug)]
pub struct Ledger {
    scope: Scope,
    limits: Limits,
    opened: Instant,
    books: Mutex<Books>,
    released: Condvar,
    parent: Option<Arc<Ledger>>,
}

#[derive(Debug, Default)]
struct Books {
    spent: Spent,
    reserved: Estimate,
    n_under_way: u64,
}

impl Ledger {
    /// Opens a ledger.
    pub fn new(scope: Scope, limits: Limits) -> Arc<Self> {
        Ledger::resumed(scope, limits, Spent::default())
    }

    /// Opens a ledger that goes on from what finished trials used.
    pub fn resumed(scope: Scope, limits: Limits, spent: Spent) -> Arc<Self> {
        Ledger::open(scope, limits, spent, None)
    }

    /// Opens a trial's ledger below this one: its calls count in both.
    pub fn trial(self: &Arc<Self>, limits: Limits) -> Arc<Self> {
        Ledger::open(
            Scope::Trial,
            limits,
            Spent::default(),
            Some(Arc::clone(self)),
        )
    }

    fn open(scope: Scope, limits: Limits, spent: Spent, parent: Option<Arc<Ledger>>) -> Arc<Self> {
        Arc::new(Ledger {
            scope,
            limits,
            opened: Instant::now(),
            books: Mutex::new(Books {
                spent,
                ..Books::default()
            }),
            released: Condvar::new(),
            parent,
        })
    }

    /// Reserves a call, here and in the ledgers above. Waits, at most until `deadline`, while the
    /// call fits but for the reservations of others.
    pub fn reserve(
        self: &Arc<Self>,
        most: Estimate,
        deadline: Option<Instant>,
    ) -> Result<Reservation, Refusal> {
        self.hold(most, deadline)?;
        let above = match &self.parent {
            Some(parent) => match parent.reserve(most, deadline) {
                Ok(above) => Some(Box::new(above)),
                Err(refusal) => {
                    self.release(most);
                    return Err(refusal);
                }
            },
            None => None,
        };
        Ok(Reservation {
            ledger: Arc::clone(self),
            most,
            held: true,
            above,
        })
    }

    /// When the wall time of this ledger or one above it ends.
    pub fn deadline(&self) -> Option<Instant> {
        let carried = self.books().spent.wall_seconds;
        let own = self.limits.wall_seconds.and_then(|limit| {
            let left = (limit as f64 - carried).clamp(0.0, 1e9);
            self.opened.checked_add(Duration::from_secs_f64(left))
        });
        let above = self.parent.as_ref().and_then(|parent| parent.deadline());
        own.into_iter().chain(above).min()
    }

    /// Where the ledger stands.
    pub fn snapshot(&self) -> Snapshot {
        let books = self.books();
        Snapshot {
            scope: self.scope,
            limits: self.limits,
            spent: Spent {
                wall_seconds: books.spent.wall_seconds + self.opened.elapsed().as_secs_f64(),
                ..books.spent
            },
            reserved_tokens: books.reserved.tokens,
            reserved_money: books.reserved.money,
            n_under_way: books.n_under_way,
        }
    }

    /// Whether this ledger or one above it limits money.
    fn limits_money(&self) -> bool {
        self.limits.money.is_some() || self.parent.as_ref().is_some_and(|p| p.limits_money())
    }

    fn hold(&self, most: Estimate, deadline: Option<Instant>) -> Result<(), Refusal> {
        let mut books = self.books();
        loop {
            let now = Instant::now();
            let seconds = books.spent.wall_seconds + (now - self.opened).as_secs_f64();
            if self
                .limits
                .wall_seconds
                .is_some_and(|limit| seconds >= limit as f64)
            {
                return Err(Refusal::Limit(Limit::WallTime));
            }
            if let Some(limit) = self.exceeded(&books.spent, most, Estimate::default(), 0) {
                return Err(Refusal::Limit(limit));
            }
            let waiting_for = self.exceeded(&books.spent, most, books.reserved, books.n_under_way);
            if waiting_for.is_none() {
                books.reserved.tokens = books.reserved.tokens.saturating_add(most.tokens);
                books.reserved.money = plus(books.reserved.money, most.money);
                books.n_under_way += 1;
                return Ok(());
            }
            // Woken at least once a second, so that the wall time of the ledger is noticed.
            let mut patience = Duration::from_secs(1);
            if let Some(deadline) = deadline {
                if now >= deadline {
                    return Err(Refusal::Deadline);
                }
                patience = patience.min(deadline - now);
            }
            books = self
                .released
                .wait_timeout(books, patience)
                .unwrap_or_else(|error| error.into_inner())
                .0;
        }
    }

    /// The limit that a call of size `most` passes beside what is spent and `reserved`.
    fn exceeded(
        &self,
        spent: &Spent,
        most: Estimate,
        reserved: Estimate,
        n_under_way: u64,
    ) -> Option<Limit> {
        let sum = |parts: [u64; 4]| parts.into_iter().fold(0u64, u64::saturating_add);
        let over = |limit: Option<u64>, sum: u64| limit.is_some_and(|limit| sum > limit);
        let calls = sum([spent.n_calls, n_under_way, 1, 0]);
        let tokens = sum([
            spent.tokens,
            spent.assumed_tokens,
            reserved.tokens,
            most.tokens,
        ]);
        let money = sum([
            spent.money.0,
            spent.assumed_money.0,
            reserved.money.0,
            most.money.0,
        ]);
        if over(self.limits.calls, calls) {
            Some(Limit::Calls)
        } else if over(self.limits.tokens, tokens) {
            Some(Limit::Tokens)
        } else if over(self.limits.money.map(|limit| limit.0), money) {
            Some(match self.scope {
                Scope::Trial => Limit::Cost,
                Scope::Job => Limit::Money,
            })
        } else {
            None
        }
    }

    fn release(&self, most: Estimate) {
        let mut books = self.books();
        release(&mut books, most);
        drop(books);
        self.released.notify_all();
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        // A panic elsewhere leaves the books as they were: every change is a few assignments.
        self.books.lock().unwrap_or_else(|error| error.into_inner())
    }
}

/// A reserved call. Dropping it gives the reservation back; [`Reservation::settle`] books what
/// was used.
#[derive(Debug)]
pub struct Reservation {
    ledger: Arc<Ledger>,
    most: Estimate,
    held: bool,
    above: Option<Box<Reservation>>,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// Whether there was a reply.
    pub answered: bool,
    /// Tokens, as reported.
    pub usage: Usage,
    /// Price, where known.
    pub cost: Option<MicroDollars>,
    /// Attempts that a server began to answer and did not finish: each is booked as a whole
    /// reservation, since it was probably charged.
    pub n_lost_answers: u64,
}

impl Reservation {
    /// Books a call, in this ledger and those above.
    pub fn settle(mut self, charge: Charge) {
        self.book(charge);
    }

    fn book(&mut self, charge: Charge) {
        {
            let mut books = self.ledger.books();
            let spent = &mut books.spent;
            let most = self.most;
            let mut assumed_calls = charge.n_lost_answers;
            let mut assumed_prices = charge.n_lost_answers;
            if charge.answered {
                spent.n_calls += 1;
                match (charge.usage.prompt_tokens, charge.usage.completion_tokens) {
                    (Some(prompt), Some(completion)) => {
                        let tokens = prompt.saturating_add(completion);
                        spent.tokens = spent.tokens.saturating_add(tokens);
                    }
                    _ => {
                        spent.n_unknown_usage += 1;
                        assumed_calls += 1;
                    }
                }
                match charge.cost {
                    Some(cost) => spent.money = plus(spent.money, cost),
                    None => {
                        spent.n_unknown_price += 1;
                        assumed_prices += 1;
                    }
                }
            } else {
                spent.n_unanswered += 1;
            }
            spent.assumed_tokens = spent
                .assumed_tokens
                .saturating_add(most.tokens.saturating_mul(assumed_calls));
            spent.assumed_money = plus(
                spent.assumed_money,
                MicroDollars(most.money.0.saturating_mul(assumed_prices)),
            );
            // Given back under the same lock, so that nobody sees the call counted twice.
            release(&mut books, most);
        }
        self.held = false;
        self.ledger.released.notify_all();
        if let Some(above) = &mut self.above {
            above.book(charge);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.held {
            self.ledger.release(self.most);
        }
    }
}

fn release(books: &mut Books, most: Estimate) {
    books.reserved.tokens = books.reserved.tokens.saturating_sub(most.tokens);
    books.reserved.money = MicroDollars(books.reserved.money.0.saturating_sub(most.money.0));
    books.n_under_way = books.n_under_way.saturating_sub(1);
}

fn plus(a: MicroDollars, b: MicroDollars) -> MicroDollars {
    MicroDollars(a.0.saturating_add(b.0))
}
