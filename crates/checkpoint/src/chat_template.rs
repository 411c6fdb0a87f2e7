//! Chat templates: Jinja as transformers runs it, under limits, and token ids in which content
//! cannot pose as markup.
//!
//! Templates come with models and are not trusted: loops, output and memory are bounded by fuel, and
//! there is nothing to reach beyond the values given. Content comes from commands, repositories and
//! models and is not trusted either: [`ChatTemplate::render_ids`] encodes the text of a control token
//! that stands in a message as ordinary text. How is described in `docs/chat-templates.md`.
//!
//! Against Jinja2: a list that is joined to a string with `~` or `join` is spelled with double quotes
//! around its strings; `{% generation %}` must not be empty of body; dates come from the caller.

mod additions;
mod clock;
mod environment;
mod literals;
mod mask;
mod message;
mod prefix;
mod python;
mod segment;
mod turns;

use std::io::{self, Write};

use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind};
use serde_json::{Map, Value};

use crate::tokenizer::{Tokenizer, TokenizerError};

pub use clock::CivilTime;
pub use message::{message_value, tool_value};
pub use prefix::{PrefixBreak, PrefixProperty};
pub use segment::{MessageSpan, RenderedIds};

/// The longest template, in bytes.
pub const MAX_TEMPLATE_BYTES: usize = 64 << 10;
/// The largest conversation, in bytes of its JSON.
pub const MAX_INPUT_BYTES: usize = 4 << 20;
/// What a template may write beyond eight times its input, in bytes.
const BASE_OUTPUT_BYTES: usize = 1 << 20;
/// Fuel for a conversation of no length; one fuel is an instruction or 64 bytes of values.
const BASE_FUEL: u64 = 20_000;
/// The name of the one template in its environment.
const TEMPLATE: &str = "chat_template";
/// Fuel for each message, on top of that for its bytes.
const FUEL_PER_MESSAGE: u64 = 500;
/// Stack of the thread that a template runs on: values nest as deep as fuel allows, and the engine
/// compares, prints and drops them recursively. Only what is used of it takes memory.
const BASE_STACK_BYTES: usize = 64 << 20;
/// Stack of the thread that parses: a template can nest as deep as it is long.
const PARSER_STACK_BYTES: usize = 512 << 20;
/// Stack for each unit of fuel.
const STACK_BYTES_PER_FUEL: usize = 2048;

/// Why a conversation could not be rendered.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// The template is not valid.
    #[error("read the chat template: {0}")]
    Syntax(String),
    /// The template or the conversation is larger than the limit.
    #[error("render a {what} of {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Which of the inputs.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The template refused the conversation by `raise_exception`.
    #[error("render the conversation: the chat template says {0:?}")]
    Raised(String),
    /// The template ran too long, or made too much.
    #[error("render the conversation: the chat template needs more than {fuel} units of work")]
    OutOfFuel {
        /// What it was given; one unit is an instruction or 64 bytes.
        fuel: u64,
    },
    /// The template wrote too much.
    #[error("render the conversation: the chat template writes more than {limit} bytes")]
    OutputTooLarge {
        /// What it was allowed.
        limit: usize,
    },
    /// The template failed on the conversation.
    #[error("render the conversation: {0}")]
    Failed(String),
    /// A message is no object, or its role is not a plain word.
    #[error("render message {index}: {problem}")]
    Message {
        /// Which message.
        index: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Markup and content of the output cannot be told apart.
    #[error("tell the chat template's markup from content: {0}")]
    Unsegmentable(String),
    /// The rendered text could not be encoded.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// What a template is rendered with.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conversation<'a> {
    /// The messages: objects with `role`, `content` and what the template knows besides.
    pub messages: &'a [Value],
    /// JSON schemas of the tools; none is not the same as an empty list.
    pub tools: Option<&'a [Value]>,
    /// Whether the text ends where the assistant is to go on.
    pub add_generation_prompt: bool,
    /// Further variables, as `enable_thinking`.
    pub extra: Option<&'a Map<String, Value>>,
    /// What `strftime_now` tells; without it the function is not defined.
    pub now: Option<CivilTime>,
}

/// A chat template, with the special tokens it may name.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    specials: Map<String, Value>,
    /// Holds the parsed template; each rendering gets a copy with its own fuel and date.
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Takes a template's text; `specials` are variables such as `bos_token`.
    ///
    /// Errors: a text that is too long or no template.
    pub fn new(source: &str, specials: Map<String, Value>) -> Result<Self, TemplateError> {
        check_size("chat template", source.len(), MAX_TEMPLATE_BYTES)?;
        let text = environment::rewrite_generation(source).into_owned();
        let rewritten = additions::rewrite(&text);
        let environment = on_own_stack(PARSER_STACK_BYTES, || {
            let failed = |error: minijinja::Error| TemplateError::Syntax(describe(&error));
            let mut environment = environment::environment().map_err(failed)?;
            environment
                .add_template_owned(TEMPLATE, rewritten)
                .map_err(failed)?;
            Ok(environment)
        })?;
        Ok(Self {
            source: text,
            specials,
            environment,
        })
    }

    /// The template of that name that came with a tokenizer (without a name: the default, or
    /// `tool_use` if there is one and `with_tools`); `None` if it has none.
    pub fn of_tokenizer(
        tokenizer: &Tokenizer,
        name: Option<&str>,
        with_tools: bool,
    ) -> Result<Option<Self>, TemplateError> {
        let templates = tokenizer.chat_templates();
        let find = |name: &str| templates.iter().find(|(other, _)| other == name);
        let chosen = match name {
            Some(name) => find(name),
            None => with_tools
                .then(|| find("tool_use"))
                .flatten()
                .or_else(|| find("default"))
                .or(templates.first()),
        };
        let specials = tokenizer
            .special_tokens()
            .map(|(name, text)| (name.to_owned(), Value::String(text)))
            .collect();
        chosen
            .map(|(_, source)| Self::new(source, specials))
            .transpose()
    }

    /// The template's text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Renders a conversation to text, as `apply_chat_template(tokenize=False)`.
    ///
    /// Errors: what the template refuses, and what exceeds the limits.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        conversation.check()?;
        self.render_values(
            conversation,
            Value::Array(conversation.messages.to_vec()),
            conversation.tools.map(|tools| Value::Array(tools.to_vec())),
            None,
        )
    }

    /// Renders a conversation to token ids in which only the template's own markup is control
    /// tokens, with the place of each message and the tokens an assistant sampled.
    ///
    /// Where no content holds the text of a control token, the ids are those of
    /// `apply_chat_template(tokenize=True)`. Errors: those of [`Self::render`], roles that are not
    /// plain words, templates that change content so that it cannot be followed.
    pub fn render_ids(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<RenderedIds, TemplateError> {
        segment::render_ids(self, tokenizer, conversation)
    }

    /// Whether a conversation's rendering goes on where that of its first messages ended, for each
    /// number of messages.
    ///
    /// Errors: those of [`Self::render_ids`] for the whole conversation.
    pub fn prefix_property(
        &self,
        tokenizer: &Tokenizer,
        conversation: &Conversation,
    ) -> Result<PrefixProperty, TemplateError> {
        prefix::check(self, tokenizer, conversation)
    }

    /// Renders with other values in place of the messages and tools; `marks` are written around
    /// generation blocks.
    fn render_values(
        &self,
        conversation: &Conversation,
        messages: Value,
        tools: Option<Value>,
        marks: Option<[char; 2]>,
    ) -> Result<String, TemplateError> {
        let n_bytes = conversation.n_bytes();
        check_size("conversation", n_bytes, MAX_INPUT_BYTES)?;
        let fuel =
            BASE_FUEL + n_bytes as u64 / 2 + FUEL_PER_MESSAGE * conversation.messages.len() as u64;
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        if let Some(now) = conversation.now {
            environment::set_clock(&mut environment, now);
        }
        let mut variables = self.specials.clone();
        variables.insert("messages".to_owned(), messages);
        variables.insert("tools".to_owned(), tools.unwrap_or(Value::Null));
        variables.insert("documents".to_owned(), Value::Null);
        variables.insert(
            "add_generation_prompt".to_owned(),
            Value::Bool(conversation.add_generation_prompt),
        );
        if let Some(extra) = conversation.extra {
            variables.extend(extra.clone());
        }
        if let Some(marks) = marks {
            variables.insert(
                environment::MARKS.to_owned(),
                Value::String(marks.iter().collect()),
            );
        }
        let limit = BASE_OUTPUT_BYTES + 8 * n_bytes;
        let stack = BASE_STACK_BYTES + STACK_BYTES_PER_FUEL * fuel as usize;
        on_own_stack(stack, || {
            let mut out = BoundedOutput {
                bytes: Vec::new(),
                limit,
                exceeded: false,
            };
            let variables = minijinja::Value::from(Serde(&variables));
            let result = environment
                .get_template(TEMPLATE)
                .and_then(|template| template.render_captured_to(variables, &mut out).map(|_| ()));
            match result {
                Ok(()) => String::from_utf8(out.bytes)
                    .map_err(|error| TemplateError::Failed(error.to_string())),
                Err(_) if out.exceeded => Err(TemplateError::OutputTooLarge { limit }),
                Err(error) => Err(classify(&error, fuel)),
            }
        })
    }
}

/// Runs on a thread with a stack of its own, so that recursion has a known bound.
fn on_own_stack<T: Send>(
    bytes: usize,
    run: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size(bytes)
            .spawn_scoped(scope, run)
            .map_err(|error| TemplateError::Failed(format!("no thread to render on: {error}")))?
            .join()
            .unwrap_or_else(|_| {
                Err(TemplateError::Failed(
                    "the template engine failed".to_owned(),
                ))
            })
    })
}

impl Conversation<'_> {
    fn check(&self) -> Result<(), TemplateError> {
        match self
            .messages
            .iter()
            .position(|message| !message.is_object())
        {
            Some(index) => Err(TemplateError::Message {
                index,
                problem: "it is no object".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// About the size of the conversation's JSON.
    fn n_bytes(&self) -> usize {
        let values = self.messages.iter().chain(self.tools.into_iter().flatten());
        let extra = self.extra.into_iter().flat_map(|extra| extra.values());
        values.chain(extra).map(n_bytes).sum()
    }
}

fn n_bytes(value: &Value) -> usize {
    8 + match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(n_bytes).sum(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| key.len() + n_bytes(value))
            .sum(),
        _ => 0,
    }
}

fn check_size(what: &'static str, bytes: usize, limit: usize) -> Result<(), TemplateError> {
    match bytes > limit {
        true => Err(TemplateError::TooLarge { what, bytes, limit }),
        false => Ok(()),
    }
}

fn classify(error: &minijinja::Error, fuel: u64) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(current) = source {
        if let Some(raised) = current.downcast_ref::<environment::Raised>() {
            return TemplateError::Raised(raised.0.clone());
        }
        if let Some(inner) = current.downcast_ref::<minijinja::Error>()
            && inner.kind() == ErrorKind::OutOfFuel
        {
            return TemplateError::OutOfFuel { fuel };
        }
        source = current.source();
    }
    TemplateError::Failed(describe(error))
}

fn describe(error: &minijinja::Error) -> String {
    let text = error.to_string();
    match text.char_indices().nth(500) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

struct BoundedOutput {
    bytes: Vec<u8>,
    limit: usize,
    exceeded: bool,
}

impl Write for BoundedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            self.exceeded = true;
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
