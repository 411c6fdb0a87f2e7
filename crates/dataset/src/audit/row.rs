//! What is said of one row. A row says that work was submitted, never that it was right: nothing
//! here can hold such a statement.

use serde::{Deserialize, Serialize};
use temper_core::{
    digest::Hasher,
    protocol::{
        bash_block::{self, NestedFences},
        shell_syntax,
    },
};

use super::work::{Reader, Submit, Work};
use crate::rows::{Row, RowFault, RowMessage};

/// What was found in one row, before it is compared with others.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowFacts {
    /// The task, in the row's own words.
    pub instance_id: Option<String>,
    /// Bytes of text.
    pub n_bytes: u64,
    /// Messages.
    pub n_messages: u32,
    /// Messages of the assistant.
    pub n_assistant_turns: u32,
    /// Why the row cannot be read; everything below is then empty.
    pub unreadable: Option<RowFault>,
    /// What is wrong with its form, each kind once, in the order of the kinds.
    pub format: Vec<FormatFault>,
    /// How it ends.
    pub ending: Ending,
    /// Whether the agent tested its work.
    pub self_test: SelfTest,
    /// Why it seems cut off.
    pub truncated: Option<Truncation>,
    /// Turns whose command was cut off by a code fence inside it.
    pub n_cut_commands: u32,
    /// Actions that change files.
    pub n_edits: u32,
    /// Tokens of the text of all messages, where they were counted; a chat template adds more.
    pub n_tokens: Option<u64>,
    /// SHA-256 over roles and contents.
    pub content_digest: Option<temper_core::Digest>,
}

/// What keeps a row from being a conversation of the bash-block protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FormatFault {
    /// There is no message.
    NoMessages,
    /// A role is none of system, user, assistant.
    UnknownRole,
    /// Messages are not: system, then user and assistant in turns.
    RolesDoNotAlternate,
    /// There is no assistant message.
    NoAssistantTurn,
    /// A turn of the assistant has no block that is an action.
    TurnWithoutAction,
    /// A turn of the assistant has several.
    TurnWithSeveralActions,
    /// A message of the assistant is empty.
    EmptyTurn,
}

impl FormatFault {
    /// Every kind, in order.
    pub const ALL: [FormatFault; 7] = [
        FormatFault::NoMessages,
        FormatFault::UnknownRole,
        FormatFault::RolesDoNotAlternate,
        FormatFault::NoAssistantTurn,
        FormatFault::TurnWithoutAction,
        FormatFault::TurnWithSeveralActions,
        FormatFault::EmptyTurn,
    ];
}

/// How a row ends. None of these says anything about the work that was submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// The action of the last assistant turn prints a submission marker before anything else.
    SubmitReady,
    /// It prints one, but after commands that may have printed: the marker is no first line then.
    MarkerAfterOutput,
    /// The last assistant turn has a usable action, which prints no marker.
    NoMarker,
    /// The last assistant turn has no usable action.
    NoAction,
    /// There is no assistant turn, or the row cannot be read.
    Nothing,
}

impl Ending {
    /// Every kind, in order.
    pub const ALL: [Ending; 5] = [
        Ending::SubmitReady,
        Ending::MarkerAfterOutput,
        Ending::NoMarker,
        Ending::NoAction,
        Ending::Nothing,
    ];
}

/// Whether the agent ran tests or a reproduction before it submitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfTest {
    /// It ran tests.
    pub tests: bool,
    /// It ran code of its own that shows the fault.
    pub reproduction: bool,
    /// One of them came after the last edit.
    pub after_last_edit: bool,
}

impl SelfTest {
    /// Whether there was either.
    pub fn any(self) -> bool {
        self.tests || self.reproduction
    }
}

/// Why a row seems cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Truncation {
    /// The last message is not the assistant's, and the one before does not submit.
    EndsWithObservation,
    /// The last turn opens a block and does not close it.
    OpenBlock,
    /// The last turn's command ends within a quotation or a here-document.
    OpenCommand,
}

impl Truncation {
    /// Every kind, in order.
    pub const ALL: [Truncation; 3] = [
        Truncation::EndsWithObservation,
        Truncation::OpenBlock,
        Truncation::OpenCommand,
    ];
}

impl RowFacts {
    /// A row that could not be read.
    pub(super) fn unreadable(n_bytes: u64, fault: RowFault) -> Self {
        RowFacts {
            instance_id: None,
            n_bytes,
            n_messages: 0,
            n_assistant_turns: 0,
            unreadable: Some(fault),
            format: Vec::new(),
            ending: Ending::Nothing,
            self_test: SelfTest::default(),
            truncated: None,
            n_cut_commands: 0,
            n_edits: 0,
            n_tokens: None,
            content_digest: None,
        }
    }

    /// Reads a row; gives the texts of its edits too, one behind the other.
    pub(super) fn of(row: &Row<'_>, n_bytes: u64) -> (Self, String) {
        let turns: Vec<Turn<'_>> = row
            .messages
            .iter()
            .filter(|message| message.role == "assistant")
            .map(Turn::of)
            .collect();
        let (works, edits) = works(&turns);
        let facts = RowFacts {
            instance_id: row.instance_id.as_deref().map(str::to_owned),
            n_bytes,
            n_messages: row.messages.len() as u32,
            n_assistant_turns: turns.len() as u32,
            unreadable: None,
            format: format_faults(row, &turns),
            ending: ending(&turns, &works),
            self_test: self_test(&works),
            truncated: truncation(row, &turns, &works),
            n_cut_commands: turns.iter().filter(|turn| turn.cut).count() as u32,
            n_edits: works.iter().filter(|work| work.edits).count() as u32,
            n_tokens: None,
            content_digest: Some(content_digest(row)),
        };
        (facts, edits)
    }

    /// Whether nothing is wrong with its form.
    pub fn is_format_valid(&self) -> bool {
        self.unreadable.is_none() && self.format.is_empty()
    }

    /// Whether it holds no message with text.
    pub fn is_empty(&self) -> bool {
        self.unreadable.is_none() && self.n_assistant_turns == 0
    }
}

/// A turn of the assistant.
struct Turn<'a> {
    text: &'a str,
    /// Blocks that the protocol counts.
    n_blocks: usize,
    /// The command, where there is exactly one block.
    action: Option<&'a str>,
    /// A fence inside the command cut it off.
    cut: bool,
}

impl<'a> Turn<'a> {
    fn of(message: &'a RowMessage<'_>) -> Self {
        let text = message.content.as_ref();
        let blocks = bash_block::blocks(text);
        let action = match blocks[..] {
            [body] => Some(body),
            _ => None,
        };
        let cut = action.is_some_and(|body| shell_syntax::open_at_end(body).is_some())
            && matches!(
                bash_block::parse(text, NestedFences::Refuse, false),
                Err(bash_block::BlockError::NestedFence { .. })
            );
        Turn {
            text,
            n_blocks: blocks.len(),
            action,
            cut,
        }
    }
}

fn works(turns: &[Turn<'_>]) -> (Vec<Work>, String) {
    let mut reader = Reader::default();
    let mut edits = String::new();
    let works = turns
        .iter()
        .map(|turn| {
            let action = turn.action.unwrap_or_default();
            let work = reader.read(action);
            if work.edits {
                edits.push_str(action);
                edits.push('\n');
            }
            work
        })
        .collect();
    (works, edits)
}

fn format_faults(row: &Row<'_>, turns: &[Turn<'_>]) -> Vec<FormatFault> {
    let mut faults = Vec::new();
    let mut fault = |holds: bool, fault| {
        if holds {
            faults.push(fault);
        }
    };
    let messages = &row.messages[..];
    let known =
        |message: &RowMessage<'_>| matches!(message.role.as_ref(), "system" | "user" | "assistant");
    fault(messages.is_empty(), FormatFault::NoMessages);
    fault(!messages.iter().all(known), FormatFault::UnknownRole);
    let talk = match messages {
        [first, rest @ ..] if first.role == "system" => rest,
        all => all,
    };
    let expected = ["user", "assistant"];
    let alternates = talk
        .iter()
        .zip(expected.iter().cycle())
        .all(|(message, role)| message.role == *role);
    fault(!alternates, FormatFault::RolesDoNotAlternate);
    fault(turns.is_empty(), FormatFault::NoAssistantTurn);
    fault(
        turns.iter().any(|turn| turn.n_blocks == 0),
        FormatFault::TurnWithoutAction,
    );
    fault(
        turns.iter().any(|turn| turn.n_blocks > 1),
        FormatFault::TurnWithSeveralActions,
    );
    fault(
        turns.iter().any(|turn| turn.text.trim().is_empty()),
        FormatFault::EmptyTurn,
    );
    faults
}

fn ending(turns: &[Turn<'_>], works: &[Work]) -> Ending {
    let (Some(turn), Some(work)) = (turns.last(), works.last()) else {
        return Ending::Nothing;
    };
    match work.submits {
        _ if turn.action.is_none() => Ending::NoAction,
        Some(Submit::First) => Ending::SubmitReady,
        Some(Submit::AfterOutput) => Ending::MarkerAfterOutput,
        None => Ending::NoMarker,
    }
}

/// Work in the submitting turn itself does not count: its output is never seen.
fn self_test(works: &[Work]) -> SelfTest {
    let before = works
        .iter()
        .position(|work| work.submits.is_some())
        .map_or(works, |at| &works[..at]);
    let last_edit = before.iter().rposition(|work| work.edits);
    let last_test = before
        .iter()
        .rposition(|work| work.tests || work.reproduces);
    SelfTest {
        tests: before.iter().any(|work| work.tests),
        reproduction: before.iter().any(|work| work.reproduces),
        after_last_edit: match (last_edit, last_test) {
            (Some(edit), Some(test)) => test >= edit,
            _ => false,
        },
    }
}

fn truncation(row: &Row<'_>, turns: &[Turn<'_>], works: &[Work]) -> Option<Truncation> {
    let last = row.messages.last()?;
    if last.role != "assistant" {
        let submitted = works.last().is_some_and(|work| work.submits.is_some());
        return (!submitted).then_some(Truncation::EndsWithObservation);
    }
    let turn = turns.last()?;
    match turn.action {
        Some(body) => shell_syntax::open_at_end(body)
            .is_some()
            .then_some(Truncation::OpenCommand),
        None => {
            let opened = turn.n_blocks == 0 && turn.text.contains("```bash");
            opened.then_some(Truncation::OpenBlock)
        }
    }
}

fn content_digest(row: &Row<'_>) -> temper_core::Digest {
    let mut hasher = Hasher::default();
    for message in &row.messages {
        hasher.field(message.role.as_bytes());
        hasher.field(message.content.as_bytes());
    }
    hasher.finish()
}
