//! JSON Lines: one row a line.

use std::{
    borrow::Cow,
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek, SeekFrom},
};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

use super::{Content, MAX_MESSAGES, MAX_ROW_BYTES, RawRow, Row, RowFault, RowMessage};

pub(super) struct Lines {
    file: BufReader<File>,
}

impl Lines {
    pub(super) fn open(mut file: File) -> io::Result<Self> {
        file.seek(SeekFrom::Start(0))?;
        Ok(Lines {
            file: BufReader::with_capacity(1 << 20, file),
        })
    }

    /// The next line that is not blank.
    pub(super) fn next_row(&mut self) -> io::Result<Option<RawRow>> {
        loop {
            let mut line = Vec::new();
            let limit = MAX_ROW_BYTES as u64 + 1;
            let n_read = (&mut self.file).take(limit).read_until(b'\n', &mut line)? as u64;
            if n_read == 0 {
                return Ok(None);
            }
            if n_read == limit && line.last() != Some(&b'\n') {
                // What is beyond the limit is passed over, so that the next line is found.
                let n_bytes = n_read + self.file.skip_until(b'\n')? as u64;
                return Ok(Some(RawRow::fault(n_bytes, RowFault::TooLong { n_bytes })));
            }
            if !line.trim_ascii().is_empty() {
                return Ok(Some(RawRow {
                    n_bytes: n_read,
                    content: Content::Line(line),
                }));
            }
        }
    }
}

pub(super) fn parse(line: &[u8]) -> Result<Row<'_>, RowFault> {
    let row: JsonRow<'_> = serde_json::from_slice(line).map_err(|error| RowFault::Json {
        message: error.to_string().chars().take(200).collect(),
    })?;
    if row.messages.overflow {
        return Err(RowFault::TooManyMessages);
    }
    Ok(Row {
        instance_id: row.instance_id.0,
        messages: row.messages.list,
    })
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `instance_id` and `messages`")]
struct JsonRow<'a> {
    #[serde(borrow, default)]
    instance_id: Text<'a>,
    #[serde(borrow)]
    messages: Messages<'a>,
}

/// Text that may be null.
#[derive(Default)]
struct Text<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text or null")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Some(Cow::Borrowed(text))))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Some(Cow::Owned(text.to_owned()))))
            }
            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Text(Some(Cow::Owned(text))))
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Text(None))
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

#[derive(Default)]
struct Messages<'a> {
    list: Vec<RowMessage<'a>>,
    overflow: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Messages<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visit;
        impl<'de> Visitor<'de> for Visit {
            type Value = Messages<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of messages")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(Messages::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                let mut messages = Messages::default();
                while let Some(message) = items.next_element::<JsonMessage<'de>>()? {
                    if messages.list.len() < MAX_MESSAGES {
                        messages.list.push(RowMessage {
                            role: message.role.0.unwrap_or_default(),
                            content: message.content.0.unwrap_or_default(),
                        });
                    } else {
                        messages.overflow = true;
                    }
                }
                Ok(messages)
            }
        }
        deserializer.deserialize_any(Visit)
    }
}

#[derive(Deserialize)]
struct JsonMessage<'a> {
    #[serde(borrow, default)]
    role: Text<'a>,
    #[serde(borrow, default)]
    content: Text<'a>,
}
