//! The engine's thread: takes commands, runs steps, tells what came of them.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    engine::{Command, EngineConfig, Shared, Shutdown},
    params::SamplingParams,
    request::{Event, EventSink, Finish, FinishReason, Request, RequestError},
    runner::{AdapterWeights, Draw, Run, RunOutput, Runner, Score, TokenLogprob},
    schedule::{Plan, PlannedRun, Schedule, ScheduleLimits},
    text::{TextStream, Vocabulary},
};
use crate::device::DeviceError;

/// Steps that may fail one after another.
const MAX_FAILURES: usize = 3;

/// What the thread owns.
pub(super) struct Worker<R> {
    runner: R,
    shared: Arc<Shared>,
    vocabulary: Option<Arc<dyn Vocabulary>>,
    eos_ids: Vec<u32>,
    max_context: usize,
    schedule: Schedule,
    requests: HashMap<u64, Active>,
    n_requests: u64,
    /// Adapters that no request may name any more, but that some still use.
    retired: Vec<u64>,
    n_adapters: u64,
    n_failures: usize,
    counts: Counts,
}

/// A request from its submission to its last event.
struct Active {
    sink: Box<dyn EventSink>,
    params: SamplingParams,
    deadline: Option<Instant>,
    text: TextStream,
    n_prompt: usize,
    n_cached: Option<usize>,
    n_drawn: usize,
}

/// What is added to the metrics after a step.
#[derive(Default)]
struct Counts {
    n_finished: u64,
    n_cancelled: u64,
    n_failed: u64,
    n_prompt_tokens: u64,
    n_cached_tokens: u64,
}

/// Whether the loop goes on.
enum Flow {
    Continue,
    End,
}

impl<R: Runner> Worker<R> {
    pub(super) fn new(runner: R, config: EngineConfig, shared: Arc<Shared>) -> Self {
        let limits = runner.limits();
        let mut eos_ids = config.eos_ids;
        if let Some(vocabulary) = &config.vocabulary {
            eos_ids.extend_from_slice(vocabulary.eos_ids());
        }
        let mut schedule = Schedule::new(
            ScheduleLimits {
                max_rows: limits.max_rows,
                max_running: limits.max_runs,
            },
            limits.n_pages,
        );
        schedule.cache_mut().open(0);
        Worker {
            runner,
            shared,
            vocabulary: config.vocabulary,
            eos_ids,
            max_context: limits.max_context.min(schedule.capacity_tokens()),
            schedule,
            requests: HashMap::new(),
            n_requests: 0,
            retired: Vec::new(),
            n_adapters: 0,
            n_failures: 0,
            counts: Counts::default(),
        }
    }

    /// Serves until the engine is shut down or fails, and tells everybody.
    pub(super) fn run_to_end(mut self) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.serve()));
        let failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(reason)) => Some(reason),
            Err(panic) => Some(format!("a panic: {}", panic_text(&*panic))),
        };
        let error = match &failure {
            Some(reason) => RequestError::EngineFailed(reason.clone()),
            None => RequestError::ShutDown,
        };
        // From here on nothing more gets into the inbox.
        let commands = {
            let mut state = self.shared.lock();
            state.failure = failure;
            state.ended = true;
            state.n_submitted = 0;
            std::mem::take(&mut state.inbox)
        };
        for command in commands {
            match command {
                Command::Submit(_, mut sink) => {
                    self.counts.n_failed += 1;
                    sink.send(Event::Failed(error.clone()));
                }
                Command::LoadAdapter(_, _, reply) | Command::UnloadAdapter(_, reply) => {
                    // Nobody may be waiting any more.
                    let _ = reply.send(Err(error.clone()));
                }
                Command::Pause(..) => {}
            }
        }
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            self.fail(id, error.clone());
        }
        self.publish(None);
    }

    fn serve(&mut self) -> Result<(), String> {
        loop {
            if let Flow::End = self.take_commands() {
                return Ok(());
            }
            self.end_unwanted();
            self.unload_retired();
            let Some(plan) = self.schedule.plan() else {
                self.publish(None);
                if self.requests.is_empty() {
                    continue;
                }
                return Err(format!("{} requests cannot go on", self.requests.len()));
            };
            let started = Instant::now();
            match self.step(&plan) {
                Ok(n_drawn) => {
                    self.n_failures = 0;
                    self.publish(Some((&plan, n_drawn, started.elapsed())));
                }
                Err(error) => self.step_failed(&plan, &error)?,
            }
        }
    }

    /// Takes what callers asked for; waits while there is nothing to do.
    fn take_commands(&mut self) -> Flow {
        let (commands, stopping) = {
            let mut state = if self.requests.is_empty() {
                self.shared.wait()
            } else {
                self.shared.lock()
            };
            // Submitted requests count as waiting until the schedule has them.
            state.metrics.n_waiting += state.n_submitted;
            state.n_submitted = 0;
            (std::mem::take(&mut state.inbox), state.stopping)
        };
        for command in commands {
            self.obey(command);
        }
        match stopping {
            Some(Shutdown::Cancel) => {
                let ids: Vec<u64> = self.requests.keys().copied().collect();
                for id in ids {
                    self.finish(id, FinishReason::Cancelled);
                }
                Flow::End
            }
            Some(Shutdown::Finish) if self.requests.is_empty() => Flow::End,
            _ => Flow::Continue,
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request, sink) => self.accept(request, sink),
            Command::LoadAdapter(name, weights, reply) => {
                // The caller may have gone; the adapter is loaded all the same.
                let _ = reply.send(self.load(name, &weights));
            }
            Command::UnloadAdapter(name, reply) => {
                let removed = self.shared.lock().adapters.remove(&name);
                let result = match removed {
                    Some(number) => {
                        self.retire(number);
                        Ok(())
                    }
                    None => Err(RequestError::UnknownAdapter(name)),
                };
                let _ = reply.send(result);
            }
            Command::Pause(paused, resumed) => {
                if paused.send(()).is_ok() && resumed.recv().unwrap_or(true) {
                    self.schedule.reset();
                }
            }
        }
    }

    fn accept(&mut self, request: Request, mut sink: Box<dyn EventSink>) {
        let adapter = match &request.adapter {
            None => 0,
            Some(name) => {
                let number = self.shared.lock().adapters.get(name).copied();
                let Some(number) = number else {
                    self.counts.n_failed += 1;
                    sink.send(Event::Failed(RequestError::UnknownAdapter(name.clone())));
                    return;
                };
                number
            }
        };
        let params = request.params;
        self.n_requests += 1;
        let id = self.n_requests;
        let n_prompt = request.prompt.len();
        self.schedule.submit(
            id,
            adapter,
            request.prompt,
            params.max_tokens != Some(0),
            params.prompt_logprobs.map(|prompt| prompt.from),
        );
        let active = Active {
            sink,
            deadline: request.deadline,
            text: TextStream::new(&params.stop, params.skip_special),
            params,
            n_prompt,
            n_cached: None,
            n_drawn: 0,
        };
        self.requests.insert(id, active);
    }

    fn load(&mut self, name: String, weights: &AdapterWeights) -> Result<(), RequestError> {
        let number = self.n_adapters + 1;
        self.runner
            .load_adapter(number, weights)
            .map_err(|error| RequestError::Adapter {
                name: name.clone(),
                reason: error.to_string(),
            })?;
        self.n_adapters = number;
        self.schedule.cache_mut().open(number);
        let replaced = self.shared.lock().adapters.insert(name, number);
        if let Some(old) = replaced {
            self.retire(old);
        }
        Ok(())
    }

    fn retire(&mut self, number: u64) {
        self.schedule.cache_mut().close(number);
        self.retired.push(number);
        self.unload_retired();
    }

    fn unload_retired(&mut self) {
        let (schedule, runner) = (&self.schedule, &mut self.runner);
        self.retired.retain(|&number| {
            let in_use = schedule.uses(number);
            if !in_use {
                runner.unload_adapter(number);
            }
            in_use
        });
    }

    /// Ends requests that nobody listens to or whose time is over.
    fn end_unwanted(&mut self) {
        let now = Instant::now();
        let unwanted: Vec<(u64, FinishReason)> = self
            .requests
            .iter()
            .filter_map(|(&id, request)| {
                if request.sink.is_closed() {
                    return Some((id, FinishReason::Cancelled));
                }
                let is_late = request.deadline.is_some_and(|deadline| deadline <= now);
                is_late.then_some((id, FinishReason::Deadline))
            })
            .collect();
        for (id, reason) in unwanted {
            self.finish(id, reason);
        }
    }

    /// Runs one step; returns how many tokens were drawn.
    fn step(&mut self, plan: &Plan) -> Result<usize, DeviceError> {
        if !plan.copies.is_empty() {
            self.runner.copy_pages(&plan.copies)?;
        }
        self.schedule.issued();
        let outputs = {
            let runs: Vec<Run<'_>> = plan
                .runs
                .iter()
                .filter_map(|planned| run_of(planned, &self.schedule, &self.requests))
                .collect();
            let outputs = self.runner.run(plan.adapter, &runs)?;
            if runs.len() != plan.runs.len() || outputs.len() != runs.len() {
                return Err(DeviceError::Shape {
                    operation: "run a step",
                    reason: format!(
                        "{} runs planned, {} made, {} done",
                        plan.runs.len(),
                        runs.len(),
                        outputs.len()
                    ),
                });
            }
            outputs
        };
        let drawn: HashMap<u64, u32> = plan
            .runs
            .iter()
            .zip(&outputs)
            .filter_map(|(run, output)| Some((run.id, output.drawn.as_ref()?.id)))
            .collect();
        self.schedule.complete(plan, &drawn);
        for (run, output) in plan.runs.iter().zip(outputs) {
            self.tell(run, output);
        }
        Ok(drawn.len())
    }

    /// Tells a request what a step brought, and ends it where it is over.
    fn tell(&mut self, run: &PlannedRun, output: RunOutput) {
        let Some(sequence) = self.schedule.running(run.id) else {
            return;
        };
        let n_tokens = sequence.tokens.len();
        let n_cached = sequence.n_cached;
        let is_computed = sequence.n_computed == n_tokens;
        let Some(request) = self.requests.get_mut(&run.id) else {
            return;
        };
        if request.n_cached.is_none() {
            request.n_cached = n_cached;
            self.counts.n_prompt_tokens += request.n_prompt as u64;
            self.counts.n_cached_tokens += n_cached.unwrap_or(0) as u64;
        }
        if !output.scored.is_empty() {
            request.sink.send(Event::Scored {
                first: run.start + run.scored.0 + 1,
                tokens: output.scored,
            });
        }
        let reason = match output.drawn {
            Some(token) => {
                request.take_token(token, &self.eos_ids, self.vocabulary.as_deref(), || {
                    n_tokens >= self.max_context
                })
            }
            // A request that only scores is over when its prompt is computed.
            None if is_computed => Some(FinishReason::MaxTokens),
            None => None,
        };
        if let Some(reason) = reason {
            self.finish(run.id, reason);
        }
    }

    fn finish(&mut self, id: u64, reason: FinishReason) {
        self.schedule.end(id);
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        if reason == FinishReason::Cancelled {
            self.counts.n_cancelled += 1;
        } else {
            self.counts.n_finished += 1;
        }
        let finish = Finish {
            reason,
            text: request.text.finish(),
            n_prompt: request.n_prompt,
            n_cached: request.n_cached.unwrap_or(0),
            n_drawn: request.n_drawn,
        };
        request.sink.send(Event::Finished(finish));
    }

    fn fail(&mut self, id: u64, error: RequestError) {
        self.schedule.end(id);
        if let Some(mut request) = self.requests.remove(&id) {
            self.counts.n_failed += 1;
            request.sink.send(Event::Failed(error));
        }
    }

    /// Fails the requests of a step. What the step may have left in the cache is forgotten, so
    /// the other requests are computed anew.
    fn step_failed(&mut self, plan: &Plan, error: &DeviceError) -> Result<(), String> {
        self.n_failures += 1;
        let reason = format!("failed to {error}");
        if self.n_failures >= MAX_FAILURES {
            return Err(reason);
        }
        for run in &plan.runs {
            self.fail(run.id, RequestError::Device(reason.clone()));
        }
        self.schedule.reset();
        self.publish(None);
        Ok(())
    }

    /// Brings the metrics up to date.
    fn publish(&mut self, step: Option<(&Plan, usize, Duration)>) {
        let counts = std::mem::take(&mut self.counts);
        let (n_waiting, n_running) = self.schedule.n_sequences();
        let cache = self.schedule.cache();
        let mut state = self.shared.lock();
        if let Some((_, n_drawn, _)) = step {
            state.rate.add(n_drawn, Instant::now());
        }
        let metrics = &mut state.metrics;
        metrics.n_waiting = n_waiting;
        metrics.n_running = n_running;
        metrics.n_pages = cache.capacity();
        metrics.n_pages_used = cache.capacity() - cache.n_available();
        metrics.n_pages_idle = cache.n_idle();
        metrics.n_preemptions = self.schedule.n_preemptions();
        metrics.n_finished += counts.n_finished;
        metrics.n_cancelled += counts.n_cancelled;
        metrics.n_failed += counts.n_failed;
        metrics.n_prompt_tokens += counts.n_prompt_tokens;
        metrics.n_cached_tokens += counts.n_cached_tokens;
        let Some((plan, n_drawn, time)) = step else {
            return;
        };
        let n_rows: usize = plan.runs.iter().map(|run| run.n_rows).sum();
        metrics.n_steps += 1;
        metrics.n_rows += n_rows as u64;
        metrics.n_drawn_tokens += n_drawn as u64;
        if plan.is_decode() {
            metrics.decode_time += time;
            metrics.n_decode_tokens += n_drawn as u64;
        } else {
            metrics.prefill_time += time;
            metrics.n_prefill_rows += n_rows as u64;
        }
    }
}

impl Active {
    /// Takes a drawn token and tells it; returns why the request is over, if it is.
    fn take_token(
        &mut self,
        token: TokenLogprob,
        eos_ids: &[u32],
        vocabulary: Option<&dyn Vocabulary>,
        context_is_full: impl FnOnce() -> bool,
    ) -> Option<FinishReason> {
        self.n_drawn += 1;
        let id = token.id;
        let may_stop = self.n_drawn >= self.params.min_tokens;
        let mut reason = None;
        if may_stop && self.params.stop_ids.contains(&id) {
            reason = Some(FinishReason::StopId(id));
        } else if may_stop && !self.params.ignore_eos && eos_ids.contains(&id) {
            reason = Some(FinishReason::EndOfText(id));
        }
        let text = match (&reason, vocabulary) {
            (None, Some(vocabulary)) => self.text.push(id, vocabulary, may_stop),
            _ => String::new(),
        };
        reason = reason.or_else(|| self.text.stopped().map(FinishReason::StopString));
        self.sink.send(Event::Token { token, text });
        if reason.is_none() && self.params.max_tokens == Some(self.n_drawn) {
            reason = Some(FinishReason::MaxTokens);
        }
        reason.or_else(|| context_is_full().then_some(FinishReason::Context))
    }
}

/// A planned run with its tokens and settings.
fn run_of<'a>(
    planned: &PlannedRun,
    schedule: &'a Schedule,
    requests: &HashMap<u64, Active>,
) -> Option<Run<'a>> {
    let sequence = schedule.running(planned.id)?;
    let request = requests.get(&planned.id)?;
    let params = &request.params;
    let (first, n_rows) = planned.scored;
    Some(Run {
        tokens: &sequence.tokens,
        start: planned.start,
        n_rows: planned.n_rows,
        pages: &sequence.pages,
        draw: planned.draws.then_some(Draw {
            temperature: params.temperature,
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
            seed: params.seed,
            n_drawn: request.n_drawn as u32,
            top: params.top_logprobs,
        }),
        score: (n_rows > 0).then_some(Score {
            first,
            n_rows,
            temperature: params.temperature,
            top: params.prompt_logprobs.map_or(0, |prompt| prompt.top),
        }),
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("of an unknown kind")
}
