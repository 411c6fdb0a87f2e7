//! What a caller asks of the engine, and what it is told.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Instant,
};

use super::{
    params::{ParamError, SamplingParams},
    runner::TokenLogprob,
};

/// One completion, or one scoring, to be done.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Ids of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// How tokens are drawn and when to stop.
    pub params: SamplingParams,
    /// The adapter by name; `None` for the model alone.
    pub adapter: Option<String>,
    /// When to end whatever was reached.
    pub deadline: Option<Instant>,
}

impl Request {
    /// A completion of `prompt`.
    pub fn new(prompt: Vec<u32>, params: SamplingParams) -> Self {
        Request {
            prompt,
            params,
            ..Request::default()
        }
    }
}

/// News of a request, in this order: scored pieces of the prompt, tokens, and one last event.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Log-probabilities of prompt tokens from position `first` on.
    Scored {
        /// Position of the first.
        first: usize,
        /// One for each position.
        tokens: Vec<TokenLogprob>,
    },
    /// A token was drawn.
    Token {
        /// The token.
        token: TokenLogprob,
        /// Text that is certain now; may be empty, and may belong to earlier tokens.
        text: String,
    },
    /// The last event of a request that ended.
    Finished(Finish),
    /// The last event of a request that could not be done.
    Failed(RequestError),
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until the end.
    pub text: String,
    /// Tokens of the prompt.
    pub n_prompt: usize,
    /// Of these, tokens that came from the cache when the request was first admitted.
    pub n_cached: usize,
    /// Tokens drawn.
    pub n_drawn: usize,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model drew one of its end-of-text ids.
    EndOfText(u32),
    /// It drew an id of [`SamplingParams::stop_ids`].
    StopId(u32),
    /// It completed a string of [`SamplingParams::stop`], by place.
    StopString(usize),
    /// [`SamplingParams::max_tokens`].
    MaxTokens,
    /// The context is full.
    Context,
    /// The deadline passed.
    Deadline,
    /// The caller went away, or the engine was shut down.
    Cancelled,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to go on from.
    #[error("complete an empty prompt")]
    EmptyPrompt,
    /// The prompt does not fit, with one token to draw.
    #[error("fit a prompt of {n_prompt} tokens into a context of {max_context}")]
    ContextLength {
        /// Tokens of the prompt.
        n_prompt: usize,
        /// Tokens of the context, prompt and drawn ones together.
        max_context: usize,
    },
    /// An id that the model does not have.
    #[error("use token {id} at position {position}: the vocabulary has {vocabulary} ids")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Where in the prompt.
        position: usize,
        /// Ids of the model.
        vocabulary: usize,
    },
    /// A parameter is out of its range.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// Stop strings were asked of an engine that has no tokenizer.
    #[error("look for stop strings without a tokenizer")]
    NoTokenizer,
    /// No adapter of this name is loaded.
    #[error("use the adapter {0:?}: it is not loaded")]
    UnknownAdapter(String),
    /// Too many requests wait.
    #[error("queue a request: {n_waiting} wait already")]
    QueueFull {
        /// Requests that wait.
        n_waiting: usize,
    },
    /// The engine was shut down.
    #[error("reach the engine: it was shut down")]
    ShutDown,
    /// The step that computed this request failed; others may be served.
    #[error("compute the request: {0}")]
    Device(String),
    /// The engine failed and serves nobody any more.
    #[error("reach the engine: it stopped after a failure: {0}")]
    EngineFailed(String),
    /// An adapter could not be loaded.
    #[error("load the adapter {name:?}: {reason}")]
    Adapter {
        /// Its name.
        name: String,
        /// Why not.
        reason: String,
    },
}

/// Where the events of a request go.
pub trait EventSink: Send {
    /// Takes an event; must not block.
    fn send(&mut self, event: Event);
    /// Whether nobody listens any more; the request is then cancelled.
    fn is_closed(&self) -> bool;
}

/// The receiving end of a request's events; dropping it cancels the request.
#[derive(Debug)]
pub struct Events {
    receiver: mpsc::Receiver<Event>,
    closed: Arc<AtomicBool>,
}

/// The sending end.
struct Channel {
    sender: mpsc::Sender<Event>,
    closed: Arc<AtomicBool>,
}

impl EventSink for Channel {
    fn send(&mut self, event: Event) {
        if self.sender.send(event).is_err() {
            self.closed.store(true, Ordering::Relaxed);
        }
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Events {
    /// Both ends.
    pub(super) fn channel() -> (Box<dyn EventSink>, Events) {
        let (sender, receiver) = mpsc::channel();
        let closed = Arc::new(AtomicBool::new(false));
        let sink = Channel {
            sender,
            closed: Arc::clone(&closed),
        };
        (Box::new(sink), Events { receiver, closed })
    }

    /// The next event; `None` after the last.
    pub fn next_event(&self) -> Option<Event> {
        self.receiver.recv().ok()
    }

    /// The next event if it comes before the time is over.
    pub fn next_within(&self, timeout: std::time::Duration) -> Option<Event> {
        self.receiver.recv_timeout(timeout).ok()
    }

    /// Waits for the end and puts everything together.
    ///
    /// # Errors
    /// What the last event says.
    pub fn collect(self) -> Result<Completion, RequestError> {
        let mut completion = Completion::default();
        while let Some(event) = self.next_event() {
            match event {
                Event::Scored { tokens, .. } => completion.prompt.extend(tokens),
                Event::Token { token, text } => {
                    completion.tokens.push(token);
                    completion.text.push_str(&text);
                }
                Event::Finished(finish) => {
                    completion.text.push_str(&finish.text);
                    completion.finish = Some(finish);
                    return Ok(completion);
                }
                Event::Failed(error) => return Err(error),
            }
        }
        Err(RequestError::ShutDown)
    }
}

/// All of a finished request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Completion {
    /// Log-probabilities of the prompt, from the first that was asked for.
    pub prompt: Vec<TokenLogprob>,
    /// What was drawn, the token that ended it included.
    pub tokens: Vec<TokenLogprob>,
    /// The text, without the stop string.
    pub text: String,
    /// How it ended; always there in what [`Events::collect`] returns.
    pub finish: Option<Finish>,
}

impl Completion {
    /// The drawn ids.
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.id).collect()
    }
}
