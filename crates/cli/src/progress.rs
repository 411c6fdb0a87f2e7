//! Shows a job's events: one line that renews itself on a terminal, plain lines elsewhere.

use std::{
    sync::{Mutex, mpsc},
    time::{Duration, Instant},
};

use temper_agent::job::Event;
use temper_model::sample::Engine;

use crate::live_line::{LiveLine, PLAIN_INTERVAL, duration};

/// How often the line of a terminal is renewed while an engine draws.
const TICK: Duration = Duration::from_secs(1);

/// Prints progress to standard error.
pub struct Progress<'a> {
    /// The engine whose speed is shown, where the model runs in this process.
    engine: Option<&'a Engine>,
    label: String,
    line: LiveLine,
    state: Mutex<State>,
}

struct State {
    started: Instant,
    last_line: Instant,
    n_trials: usize,
    n_resumed: usize,
    n_done: usize,
    n_solved: usize,
    n_lost: usize,
    /// Tokens that the engine had drawn for others when the job began.
    n_drawn_before: u64,
    running: Vec<String>,
}

impl<'a> Progress<'a> {
    /// Progress of the job called `label`.
    pub fn new(label: &str, quiet: bool, engine: Option<&'a Engine>) -> Self {
        let now = Instant::now();
        Progress {
            engine,
            label: label.to_owned(),
            line: LiveLine::new(quiet),
            state: Mutex::new(State {
                started: now,
                last_line: now,
                n_trials: 0,
                n_resumed: 0,
                n_done: 0,
                n_solved: 0,
                n_lost: 0,
                n_drawn_before: engine.map_or(0, |it| it.metrics().n_drawn_tokens),
                running: Vec::new(),
            }),
        }
    }

    /// Runs a job, and shows every few seconds how fast an engine draws meanwhile.
    pub fn while_running<T>(&self, job: impl FnOnce() -> T) -> T {
        if self.engine.is_none() {
            return job();
        }
        let (done, is_done) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let interval = if self.line.is_terminal {
                    TICK
                } else {
                    PLAIN_INTERVAL
                };
                while is_done.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                    if let Ok(mut state) = self.state.lock() {
                        self.show(&mut state);
                    }
                }
            });
            let result = job();
            drop(done);
            result
        })
    }

    /// Takes in one event.
    pub fn on_event(&self, event: Event<'_>) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        match event {
            Event::Started {
                n_trials,
                n_finished,
            } => {
                state.n_trials = n_trials;
                state.n_resumed = n_finished;
                state.n_done = n_finished;
                state.started = Instant::now();
                let resumed = if n_finished > 0 {
                    format!(", {n_finished} of them finished before")
                } else {
                    String::new()
                };
                self.line(&format!("{}: {n_trials} trials{resumed}", self.label));
            }
            Event::TrialStarted { key } => state.running.push(key.task_id.to_string()),
            Event::TrialRetried { key, trial } => {
                if let Some(failure) = &trial.failure {
                    self.line(&format!(
                        "{}: {} starts over after {}: {}",
                        self.label, key.task_id, failure.class, failure.message
                    ));
                }
            }
            Event::TrialFinished { trial } => {
                state.n_done += 1;
                match trial.solved() {
                    Some(true) => state.n_solved += 1,
                    Some(false) => {}
                    None => state.n_lost += 1,
                }
                let id = trial.task_id.as_str();
                if let Some(at) = state.running.iter().position(|running| running == id) {
                    state.running.swap_remove(at);
                }
                if state.n_done == state.n_trials {
                    self.finish(&state);
                    return;
                }
            }
        }
        self.show(&mut state);
    }

    fn show(&self, state: &mut State) {
        if self.line.is_terminal {
            self.renew(state);
        } else if state.last_line.elapsed() >= PLAIN_INTERVAL {
            state.last_line = Instant::now();
            self.line(&self.summary(state));
        }
    }

    fn summary(&self, state: &State) -> String {
        let n_here = state.n_done - state.n_resumed;
        let eta = if n_here > 0 && state.n_done < state.n_trials {
            let left = state.n_trials - state.n_done;
            let seconds = state.started.elapsed().as_secs_f64() / n_here as f64 * left as f64;
            format!(", about {} left", duration(seconds))
        } else {
            String::new()
        };
        let lost = if state.n_lost > 0 {
            format!(", {} lost", state.n_lost)
        } else {
            String::new()
        };
        let speed = self.engine.map_or(String::new(), |engine| {
            let metrics = engine.metrics();
            format!(
                ", {:.0} tokens/s, {} tokens drawn",
                metrics.tokens_per_second,
                metrics.n_drawn_tokens.saturating_sub(state.n_drawn_before)
            )
        });
        format!(
            "{}: {}/{} done, {} solved{lost}{speed}{eta}",
            self.label, state.n_done, state.n_trials, state.n_solved
        )
    }

    fn renew(&self, state: &State) {
        let mut line = self.summary(state);
        if let Some(id) = state.running.last() {
            line.push_str(&format!(" · {id}"));
        }
        self.line.renew(&line);
    }

    fn finish(&self, state: &State) {
        let elapsed = duration(state.started.elapsed().as_secs_f64());
        self.line(&format!("{} in {elapsed}", self.summary(state)));
    }

    fn line(&self, text: &str) {
        self.line.line(text);
    }
}
