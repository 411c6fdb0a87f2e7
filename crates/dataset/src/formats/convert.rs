//! Files of one shape to files of another, row by row.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, BufWriter, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    Conversation, FormatError, Preference, messages,
    parquet::{MessagesWriter, WriteError},
    sharegpt, trl,
};
use crate::rows::{ReadError, RowReader};

/// A shape of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Shape {
    /// `instance_id` and `messages` of role and content: JSON Lines or Parquet.
    Messages,
    /// TRL's conversations, JSON Lines.
    Trl,
    /// TRL's preferences, JSON Lines.
    TrlPreference,
    /// ShareGPT, JSON Lines.
    ShareGpt,
}

/// Why a file could not be converted. Nothing is left at the output.
#[derive(Debug, thiserror::Error)]
pub enum ConvertError {
    /// A file of published shape cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// Parquet cannot be written.
    #[error(transparent)]
    Parquet(#[from] WriteError),
    /// The file system refused.
    #[error("{operation} {}: {source}", path.display())]
    Io {
        /// What was done.
        operation: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A row cannot be converted.
    #[error("convert row {row} of {}: {problem}", path.display())]
    Row {
        /// The file.
        path: PathBuf,
        /// From 1.
        row: u64,
        /// What is wrong, or what the other shape has no place for.
        problem: String,
    },
    /// The shapes hold different things.
    #[error("convert {from} to {to}: one holds preferences, the other conversations")]
    Kinds {
        /// The shape read.
        from: &'static str,
        /// The shape wanted.
        to: &'static str,
    },
    /// Only one shape has a Parquet form.
    #[error("write {shape} as Parquet: only messages have such a form")]
    NoParquet {
        /// The shape.
        shape: &'static str,
    },
    /// The output is there.
    #[error("write {}: it is there already", .0.display())]
    Exists(PathBuf),
}

impl ConvertError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            ConvertError::Read(error) => error.hint(),
            ConvertError::NoParquet { .. } => {
                Some("name the output .jsonl, or convert to messages".to_owned())
            }
            ConvertError::Row { .. } => Some(
                "a shape that has a place for everything in it is trl (conversations, tools, calls)"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

impl Shape {
    /// Its name, as typed.
    pub fn name(self) -> &'static str {
        match self {
            Shape::Messages => "messages",
            Shape::Trl => "trl",
            Shape::TrlPreference => "trl-preference",
            Shape::ShareGpt => "sharegpt",
        }
    }
}

/// One row of either kind.
enum Item {
    Conversation(Conversation),
    Preference(Preference),
}

/// Converts a file; an output named `.parquet` is written so, any other as JSON Lines. Returns the
/// number of rows. Memory holds one row, and one row group of Parquet.
///
/// # Errors
/// At the first row that is not of its shape, or that the other shape has no place for. The output
/// then is not there.
pub fn convert(input: &Path, from: Shape, output: &Path, to: Shape) -> Result<u64, ConvertError> {
    if (from == Shape::TrlPreference) != (to == Shape::TrlPreference) {
        let (from, to) = (from.name(), to.name());
        return Err(ConvertError::Kinds { from, to });
    }
    if output.exists() {
        return Err(ConvertError::Exists(output.to_owned()));
    }
    let mut writer = Writer::new(output, to)?;
    let mut n_rows = 0;
    each(input, from, &mut |row, item| {
        n_rows = row;
        writer.write(&item).map_err(|problem| match problem {
            Problem::Row(problem) => ConvertError::Row {
                path: input.to_owned(),
                row,
                problem,
            },
            Problem::Other(error) => error,
        })
    })?;
    writer.finish()?;
    Ok(n_rows)
}

fn each(
    path: &Path,
    shape: Shape,
    visit: &mut dyn FnMut(u64, Item) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let wrong = |row: u64, problem: String| ConvertError::Row {
        path: path.to_owned(),
        row,
        problem,
    };
    let mut number = 0;
    if shape == Shape::Messages {
        let mut reader = RowReader::open(path)?;
        while let Some(raw) = reader.next_row()? {
            number += 1;
            let row = raw.parse();
            let row = row.map_err(|fault| wrong(number, fault.to_string()))?;
            let conversation = messages::from_row(&row);
            let conversation = conversation.map_err(|error| wrong(number, error.to_string()))?;
            visit(number, Item::Conversation(conversation))?;
        }
        return Ok(());
    }
    let failed = |source| ConvertError::Io {
        operation: "read",
        path: path.to_owned(),
        source,
    };
    for line in BufReader::new(File::open(path).map_err(failed)?).lines() {
        number += 1;
        let line = line.map_err(failed)?;
        if line.trim().is_empty() {
            continue;
        }
        let item = parse(&line, shape).map_err(|problem| wrong(number, problem))?;
        visit(number, item)?;
    }
    Ok(())
}

fn parse(line: &str, shape: Shape) -> Result<Item, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let item = match shape {
        Shape::Trl | Shape::Messages => trl::from_json(&value).map(Item::Conversation),
        Shape::ShareGpt => sharegpt::from_json(&value).map(Item::Conversation),
        Shape::TrlPreference => trl::preference_from_json(&value).map(Item::Preference),
    };
    item.map_err(|error| error.to_string())
}

enum Problem {
    Row(String),
    Other(ConvertError),
}

impl From<FormatError> for Problem {
    fn from(error: FormatError) -> Self {
        Problem::Row(error.to_string())
    }
}

/// Writes beside the output and moves it there when all of it is written.
struct Writer {
    shape: Shape,
    output: PathBuf,
    temporary: tempfile::TempPath,
    form: Form,
}

enum Form {
    Lines(BufWriter<File>),
    Parquet(Box<MessagesWriter<File>>),
}

impl Writer {
    fn new(output: &Path, shape: Shape) -> Result<Self, ConvertError> {
        let is_parquet = output.extension().is_some_and(|name| name == "parquet");
        if is_parquet && shape != Shape::Messages {
            return Err(ConvertError::NoParquet {
                shape: shape.name(),
            });
        }
        let parent = match output.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let file = tempfile::Builder::new()
            .prefix(".convert-")
            .tempfile_in(parent)
            .map_err(|source| ConvertError::Io {
                operation: "create a file in",
                path: parent.to_owned(),
                source,
            })?;
        let (file, temporary) = file.into_parts();
        Ok(Writer {
            shape,
            output: output.to_owned(),
            temporary,
            form: if is_parquet {
                Form::Parquet(Box::new(MessagesWriter::new(file)?))
            } else {
                Form::Lines(BufWriter::new(file))
            },
        })
    }

    fn write(&mut self, item: &Item) -> Result<(), Problem> {
        if let (Form::Parquet(writer), Item::Conversation(conversation)) = (&mut self.form, item) {
            let messages = messages::pairs(conversation)?;
            return writer
                .row(conversation.instance_id.as_deref(), messages)
                .map_err(|error| Problem::Other(error.into()));
        }
        let value = match (item, self.shape) {
            (Item::Preference(preference), _) => trl::preference_to_json(preference),
            (Item::Conversation(conversation), Shape::Messages) => messages::to_json(conversation)?,
            (Item::Conversation(conversation), Shape::ShareGpt) => sharegpt::to_json(conversation)?,
            (Item::Conversation(conversation), _) => trl::to_json(conversation),
        };
        let Form::Lines(output) = &mut self.form else {
            unreachable!("Parquet is refused for preferences");
        };
        writeln!(output, "{value}").map_err(|source| {
            Problem::Other(ConvertError::Io {
                operation: "write",
                path: self.output.clone(),
                source,
            })
        })
    }

    fn finish(self) -> Result<(), ConvertError> {
        let path = self.output.clone();
        let failed = |source| ConvertError::Io {
            operation: "write",
            path: path.clone(),
            source,
        };
        match self.form {
            Form::Parquet(writer) => writer.finish()?,
            Form::Lines(output) => {
                let file = output
                    .into_inner()
                    .map_err(|error| failed(error.into_error()))?;
                file.sync_all().map_err(failed)?;
            }
        }
        // An output that appeared meanwhile is not written over.
        self.temporary
            .persist_noclobber(&self.output)
            .map_err(|error| failed(error.error))
    }
}
