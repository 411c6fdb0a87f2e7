//! Rows of trajectory data sets, read one after another: Parquet or JSON Lines, columns
//! `instance_id` and `messages` (a list of `role` and `content`).
//!
//! Published files are as large as they like and as well made as they are, so nothing here is
//! sized by what a file says of itself: every allocation is bounded by a constant below. A line
//! that is no row is a row with a [`RowFault`] and reading goes on; a Parquet file that is damaged
//! is an error, since what follows the damage cannot be found.

mod jsonl;
pub mod parquet;

use std::{
    borrow::Cow,
    fs::File,
    io::Read,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// More text in one row than this is not read: the longest context of any model holds less.
pub const MAX_ROW_BYTES: usize = 32 << 20;
/// More messages in one row than this are not read.
pub const MAX_MESSAGES: usize = 100_000;
/// More rows than this are not read; a larger set should be given in parts.
pub const MAX_ROWS: u64 = 20_000_000;

/// One row as it was read, not yet taken apart.
#[derive(Debug)]
pub struct RawRow {
    /// Bytes of text in the row.
    pub n_bytes: u64,
    content: Content,
}

#[derive(Debug)]
enum Content {
    /// A line of JSON Lines, without its end.
    Line(Vec<u8>),
    /// Cells of columns, copied one behind the other.
    Cells(Cells),
    Fault(RowFault),
}

/// The cells of one row. Copies, since a slice of a page would keep the page alive.
#[derive(Debug, Default)]
struct Cells {
    text: Vec<u8>,
    instance_id: Option<Range<usize>>,
    /// Role and content; a null is an empty range.
    messages: Vec<(Range<usize>, Range<usize>)>,
}

/// A row's messages, borrowed from the row where they need no unescaping.
#[derive(Debug)]
pub struct Row<'a> {
    /// The task it is about.
    pub instance_id: Option<Cow<'a, str>>,
    /// The conversation.
    pub messages: Vec<RowMessage<'a>>,
}

/// One message of a row.
#[derive(Debug, PartialEq, Eq)]
pub struct RowMessage<'a> {
    /// Who speaks, in the row's own words.
    pub role: Cow<'a, str>,
    /// The text; null counts as empty.
    pub content: Cow<'a, str>,
}

/// Why a row cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RowFault {
    /// The line is not JSON of the expected shape.
    #[error("read the line: {message}")]
    Json {
        /// The parser's words.
        message: String,
    },
    /// A text is not valid UTF-8.
    #[error("read the text: it is not valid UTF-8")]
    Encoding,
    /// More than [`MAX_ROW_BYTES`].
    #[error("read the row: it has {n_bytes} bytes, more than {MAX_ROW_BYTES}")]
    TooLong {
        /// How many it has.
        n_bytes: u64,
    },
    /// More than [`MAX_MESSAGES`].
    #[error("read the row: it has more than {MAX_MESSAGES} messages")]
    TooManyMessages,
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The operating system refused.
    #[error("read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// The file is damaged or of another shape.
    #[error("read {}: after {n_rows} rows: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Rows read before.
        n_rows: u64,
        /// What is wrong.
        problem: String,
    },
    /// The file has not the columns of a trajectory data set.
    #[error("read {}: {problem}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is missing.
        problem: String,
    },
}

impl ReadError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            ReadError::File { .. } | ReadError::Damaged { .. } => None,
            ReadError::Shape { .. } => Some(
                "a trajectory data set is Parquet or JSON Lines with the columns `instance_id` (text) and `messages` (list of `role` and `content`)"
                    .to_owned(),
            ),
        }
    }
}

/// The rows of one file.
pub struct RowReader {
    path: PathBuf,
    n_rows: u64,
    source: Source,
}

enum Source {
    Lines(jsonl::Lines),
    Parquet(Box<parquet::Rows>),
}

impl RowReader {
    /// Opens a file; its first bytes say which format it is.
    pub fn open(path: &Path) -> Result<Self, ReadError> {
        let failed = |error| ReadError::File {
            path: path.to_owned(),
            error,
        };
        let mut file = File::open(path).map_err(failed)?;
        let mut magic = Vec::new();
        (&mut file)
            .take(4)
            .read_to_end(&mut magic)
            .map_err(failed)?;
        let source = if magic == b"PAR1" {
            let rows = parquet::Rows::open(file).map_err(|problem| ReadError::Shape {
                path: path.to_owned(),
                problem,
            })?;
            Source::Parquet(Box::new(rows))
        } else if magic.trim_ascii_start().first() == Some(&b'[') {
            return Err(ReadError::Shape {
                path: path.to_owned(),
                problem: "it is one JSON list, which cannot be read row by row".to_owned(),
            });
        } else {
            Source::Lines(jsonl::Lines::open(file).map_err(failed)?)
        };
        Ok(RowReader {
            path: path.to_owned(),
            n_rows: 0,
            source,
        })
    }

    /// The columns of a Parquet file as its schema names them, the unread ones included; `None` for
    /// JSON Lines, where each line has its own.
    pub fn columns(&self) -> Option<Vec<String>> {
        match &self.source {
            Source::Lines(_) => None,
            Source::Parquet(rows) => Some(rows.columns()),
        }
    }

    /// The next row, or `None` at the end.
    pub fn next_row(&mut self) -> Result<Option<RawRow>, ReadError> {
        let row = match &mut self.source {
            Source::Lines(lines) => lines.next_row().map_err(|error| ReadError::File {
                path: self.path.clone(),
                error,
            })?,
            Source::Parquet(rows) => rows.next_row().map_err(|problem| ReadError::Damaged {
                path: self.path.clone(),
                n_rows: self.n_rows,
                problem,
            })?,
        };
        if row.is_some() {
            self.n_rows += 1;
            if self.n_rows > MAX_ROWS {
                return Err(ReadError::Damaged {
                    path: self.path.clone(),
                    n_rows: MAX_ROWS,
                    problem: "there are more rows, which is more than any such set has".to_owned(),
                });
            }
        }
        Ok(row)
    }
}

impl RawRow {
    fn fault(n_bytes: u64, fault: RowFault) -> Self {
        RawRow {
            n_bytes,
            content: Content::Fault(fault),
        }
    }

    /// Takes the row apart.
    pub fn parse(&self) -> Result<Row<'_>, RowFault> {
        match &self.content {
            Content::Line(line) => jsonl::parse(line),
            Content::Cells(cells) => cells.row(),
            Content::Fault(fault) => Err(fault.clone()),
        }
    }
}

impl Cells {
    fn row(&self) -> Result<Row<'_>, RowFault> {
        let text = |range: &Range<usize>| {
            std::str::from_utf8(&self.text[range.clone()])
                .map(Cow::Borrowed)
                .map_err(|_| RowFault::Encoding)
        };
        Ok(Row {
            instance_id: self.instance_id.as_ref().map(text).transpose()?,
            messages: self
                .messages
                .iter()
                .map(|(role, content)| {
                    Ok(RowMessage {
                        role: text(role)?,
                        content: text(content)?,
                    })
                })
                .collect::<Result<_, _>>()?,
        })
    }

    fn push(&mut self, bytes: &[u8]) -> Range<usize> {
        let start = self.text.len();
        self.text.extend_from_slice(bytes);
        start..self.text.len()
    }
}
