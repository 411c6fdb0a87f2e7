//! The engine: a thread that owns a model, its cache and its schedule, and serves requests.
//!
//! Callers on any thread submit requests and get events. Requests are batched step by step, so
//! many callers share the device; a caller who stops listening is no longer computed for. A step
//! that fails fails the requests in it; where three in a row fail, or the code panics, every
//! request fails with the reason and the engine refuses what comes after.

use std::{
    collections::{BTreeMap, VecDeque},
    marker::PhantomData,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread::JoinHandle,
    time::Instant,
};

use super::{
    metrics::{Metrics, Rate},
    request::{EventSink, Events, Request, RequestError},
    runner::{AdapterWeights, Runner, RunnerLimits},
    text::Vocabulary,
    worker::Worker,
};

/// Settings of an engine.
#[derive(Clone)]
pub struct EngineConfig {
    /// Turns ids into text and looks for stop strings; `None` serves ids only.
    pub vocabulary: Option<Arc<dyn Vocabulary>>,
    /// Ids that end a text besides those of the vocabulary.
    pub eos_ids: Vec<u32>,
    /// Requests that may wait; more are refused. Default 1024.
    pub max_waiting: usize,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            vocabulary: None,
            eos_ids: Vec::new(),
            max_waiting: 1024,
        }
    }
}

/// A running engine. Dropping it cancels what runs and waits for the thread's end.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    limits: RunnerLimits,
    has_vocabulary: bool,
    max_waiting: usize,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What callers and the thread share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub inbox: VecDeque<Command>,
    /// Requests in the inbox.
    pub n_submitted: usize,
    pub stopping: Option<Shutdown>,
    pub failure: Option<String>,
    pub ended: bool,
    /// Adapters by name, as the thread knows them.
    pub adapters: BTreeMap<String, u64>,
    pub metrics: Metrics,
    pub rate: Rate,
}

/// What the thread is asked for.
pub(super) enum Command {
    Submit(Request, Box<dyn EventSink>),
    LoadAdapter(
        String,
        Box<AdapterWeights>,
        mpsc::Sender<Result<(), RequestError>>,
    ),
    UnloadAdapter(String, mpsc::Sender<Result<(), RequestError>>),
    /// Says that the thread has stopped between two steps, and waits for the answer: whether the
    /// weights were changed.
    Pause(mpsc::Sender<()>, mpsc::Receiver<bool>),
}

impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Command::Submit(..) => "Submit",
            Command::LoadAdapter(..) => "LoadAdapter",
            Command::UnloadAdapter(..) => "UnloadAdapter",
            Command::Pause(..) => "Pause",
        })
    }
}

/// How an engine is shut down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// After all requests that were submitted have ended.
    Finish,
    /// At once; requests end as cancelled.
    Cancel,
}

/// A pause between two steps; see [`Engine::pause`]. A shutdown waits for its end.
#[derive(Debug)]
pub struct Pause<'a> {
    resume: mpsc::Sender<bool>,
    /// The engine cannot be dropped meanwhile, which would wait for ever.
    engine: PhantomData<&'a Engine>,
}

impl Pause<'_> {
    /// Goes on with the same weights, so that what was computed stays valid.
    pub fn resume_unchanged(self) {
        // The thread waits for an answer, and it may have ended only with the process.
        let _ = self.resume.send(false);
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is a command or a shutdown, and returns the state.
    pub(super) fn wait(&self) -> MutexGuard<'_, State> {
        self.changed
            .wait_while(self.lock(), |state| {
                state.inbox.is_empty() && state.stopping.is_none()
            })
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why nothing can be asked any more, if so.
    fn refusal(&self) -> Option<RequestError> {
        if let Some(failure) = &self.failure {
            return Some(RequestError::EngineFailed(failure.clone()));
        }
        (self.ended || self.stopping.is_some()).then_some(RequestError::ShutDown)
    }
}

impl Engine {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(runner: impl Runner + 'static, config: EngineConfig) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State::default()),
            changed: Condvar::new(),
        });
        let limits = runner.limits();
        let engine = Engine {
            limits,
            has_vocabulary: config.vocabulary.is_some(),
            max_waiting: config.max_waiting,
            shared: Arc::clone(&shared),
            thread: Mutex::new(None),
        };
        let worker = Worker::new(runner, config, shared);
        let thread = std::thread::Builder::new()
            .name("sampling-engine".into())
            .spawn(move || worker.run_to_end())?;
        *engine.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(engine)
    }

    /// The longest sequence, prompt and drawn tokens together.
    pub fn max_context(&self) -> usize {
        self.limits.max_context
    }

    /// The runner's sizes.
    pub fn limits(&self) -> RunnerLimits {
        self.limits
    }

    /// Queues a request.
    ///
    /// # Errors
    /// When the request cannot be done, the queue is full, or the engine has ended.
    pub fn submit(&self, request: Request) -> Result<Events, RequestError> {
        let (sink, events) = Events::channel();
        self.submit_to(request, sink)?;
        Ok(events)
    }

    /// As [`Engine::submit`], with the events going to `sink`.
    pub fn submit_to(
        &self,
        request: Request,
        sink: Box<dyn EventSink>,
    ) -> Result<(), RequestError> {
        self.check(&request)?;
        let mut state = self.shared.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        if let Some(name) = &request.adapter
            && !state.adapters.contains_key(name)
        {
            return Err(RequestError::UnknownAdapter(name.clone()));
        }
        let n_waiting = state.n_submitted + state.metrics.n_waiting;
        if n_waiting >= self.max_waiting {
            return Err(RequestError::QueueFull { n_waiting });
        }
        state.n_submitted += 1;
        state.inbox.push_back(Command::Submit(request, sink));
        self.shared.changed.notify_one();
        Ok(())
    }

    /// Submits a request and waits for its end.
    ///
    /// # Errors
    /// As [`Engine::submit`], and when it fails.
    pub fn complete(&self, request: Request) -> Result<super::request::Completion, RequestError> {
        self.submit(request)?.collect()
    }

    /// The log-probability of each of `ids` but the first, given those before it, through the same
    /// pass that draws: `ids.len() - 1` numbers, natural logarithms under `softmax(logits)`.
    ///
    /// # Errors
    /// As [`Engine::complete`].
    pub fn score(&self, ids: &[u32], adapter: Option<&str>) -> Result<Vec<f32>, RequestError> {
        let params = super::params::SamplingParams {
            max_tokens: Some(0),
            prompt_logprobs: Some(super::params::PromptLogprobs::default()),
            ..Default::default()
        };
        let request = Request {
            adapter: adapter.map(Into::into),
            ..Request::new(ids.to_vec(), params)
        };
        let completion = self.complete(request)?;
        Ok(completion
            .prompt
            .iter()
            .map(|token| token.raw_logprob)
            .collect())
    }

    /// Loads an adapter, or puts another in the place of one of the same name: requests that run
    /// end with the old one, requests submitted after this returns use the new one.
    ///
    /// # Errors
    /// When it does not fit the model, or the engine has ended.
    pub fn load_adapter(&self, name: &str, weights: AdapterWeights) -> Result<(), RequestError> {
        self.ask(|reply| Command::LoadAdapter(name.into(), Box::new(weights), reply))
    }

    /// Unloads an adapter once the requests that use it have ended; new ones are refused at once.
    ///
    /// # Errors
    /// When it is not loaded, or the engine has ended.
    pub fn unload_adapter(&self, name: &str) -> Result<(), RequestError> {
        self.ask(|reply| Command::UnloadAdapter(name.into(), reply))
    }

    /// Names of the loaded adapters.
    pub fn adapters(&self) -> Vec<String> {
        self.shared.lock().adapters.keys().cloned().collect()
    }

    /// Stops the thread between two steps until the result is dropped, so that another thread can
    /// use the device. Everything that was computed is forgotten then, because the weights may have
    /// changed; [`Pause::resume_unchanged`] keeps it. Requests stay, and go on afterwards.
    ///
    /// # Errors
    /// When the engine has ended.
    pub fn pause(&self) -> Result<Pause<'_>, RequestError> {
        let (paused, is_paused) = mpsc::channel();
        let (resume, resumed) = mpsc::channel();
        self.command(Command::Pause(paused, resumed))?;
        is_paused.recv().map_err(|_| self.ended())?;
        Ok(Pause {
            resume,
            engine: PhantomData,
        })
    }

    /// What the engine did and is doing.
    pub fn metrics(&self) -> Metrics {
        let state = self.shared.lock();
        Metrics {
            n_waiting: state.metrics.n_waiting + state.n_submitted,
            tokens_per_second: state.rate.read(Instant::now()),
            failure: state.failure.clone(),
            ..state.metrics.clone()
        }
    }

    /// Ends the engine and waits for it. New requests are refused at once.
    pub fn shut_down(&self, how: Shutdown) {
        {
            let mut state = self.shared.lock();
            // A second call may be more urgent, not less.
            if state.stopping != Some(Shutdown::Cancel) {
                state.stopping = Some(how);
            }
            self.shared.changed.notify_all();
        }
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // The thread catches its own panics.
            let _ = thread.join();
        }
    }

    fn check(&self, request: &Request) -> Result<(), RequestError> {
        request.params.validate()?;
        let n_prompt = request.prompt.len();
        if n_prompt == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        let draws = request.params.max_tokens != Some(0);
        if n_prompt + usize::from(draws) > self.limits.max_context {
            return Err(RequestError::ContextLength {
                n_prompt,
                max_context: self.limits.max_context,
            });
        }
        let vocabulary = self.limits.vocabulary;
        let unknown = |&(_, &id): &(usize, &u32)| id as usize >= vocabulary;
        if let Some((position, &id)) = request.prompt.iter().enumerate().find(unknown) {
            return Err(RequestError::UnknownToken {
                id,
                position,
                vocabulary,
            });
        }
        if !request.params.stop.is_empty() && !self.has_vocabulary {
            return Err(RequestError::NoTokenizer);
        }
        Ok(())
    }

    fn command(&self, command: Command) -> Result<(), RequestError> {
        let mut state = self.shared.lock();
        if let Some(refusal) = state.refusal() {
            return Err(refusal);
        }
        state.inbox.push_back(command);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn ask(
        &self,
        command: impl FnOnce(mpsc::Sender<Result<(), RequestError>>) -> Command,
    ) -> Result<(), RequestError> {
        let (reply, replied) = mpsc::channel();
        self.command(command(reply))?;
        replied.recv().map_err(|_| self.ended())?
    }

    /// Why the thread does not answer.
    fn ended(&self) -> RequestError {
        self.shared
            .lock()
            .refusal()
            .unwrap_or(RequestError::ShutDown)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shut_down(Shutdown::Cancel);
    }
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
