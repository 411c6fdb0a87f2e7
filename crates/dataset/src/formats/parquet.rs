//! Parquet in the published shape: `instance_id` and `messages`, a list of `role` and `content`.
//!
//! The schema is the one that Arrow writes for such a list, so `datasets` and `pandas` read it.

use std::{io::Write, sync::Arc};

use bytes::Bytes;
use parquet::{
    basic::{Compression, ZstdLevel},
    column::writer::ColumnWriter,
    data_type::ByteArray,
    errors::ParquetError,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::parser::parse_message_type,
};

const SCHEMA: &str = "message schema {
  optional binary instance_id (STRING);
  optional group messages (LIST) {
    repeated group list {
      optional group element {
        optional binary role (STRING);
        optional binary content (STRING);
      }
    }
  }
}";

/// Rows of a group; `datasets` writes as many.
const GROUP_ROWS: usize = 1000;
/// Text of a group, so that memory stays bounded for long rows.
const GROUP_BYTES: usize = 64 << 20;

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("write Parquet: {0}")]
pub struct WriteError(#[from] ParquetError);

/// Writes rows one after another.
pub struct MessagesWriter<W: Write + Send> {
    file: SerializedFileWriter<W>,
    group: Group,
}

#[derive(Default)]
struct Group {
    ids: Vec<ByteArray>,
    id_levels: Vec<i16>,
    roles: Vec<ByteArray>,
    contents: Vec<ByteArray>,
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    n_bytes: usize,
}

impl<W: Write + Send> MessagesWriter<W> {
    /// Begins a file, compressed with Zstandard at level 3.
    pub fn new(output: W) -> Result<Self, WriteError> {
        let schema = Arc::new(parse_message_type(SCHEMA)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3)?))
            .set_dictionary_enabled(true)
            .build();
        Ok(MessagesWriter {
            file: SerializedFileWriter::new(output, schema, Arc::new(properties))?,
            group: Group::default(),
        })
    }

    /// Adds a row: its instance id, and role and content of each message.
    pub fn row<'a>(
        &mut self,
        instance_id: Option<&str>,
        messages: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<(), WriteError> {
        let group = &mut self.group;
        let text = |text: &str| ByteArray::from(Bytes::copy_from_slice(text.as_bytes()));
        group.ids.extend(instance_id.map(text));
        group.id_levels.push(instance_id.is_some().into());
        let mut repetition = 0;
        for (role, content) in messages {
            group.roles.push(text(role));
            group.contents.push(text(content));
            group.n_bytes += role.len() + content.len();
            group.definitions.push(4);
            group.repetitions.push(repetition);
            repetition = 1;
        }
        if repetition == 0 {
            // An empty list: the list is there, an element is not.
            group.definitions.push(1);
            group.repetitions.push(0);
        }
        if group.id_levels.len() >= GROUP_ROWS || group.n_bytes >= GROUP_BYTES {
            self.end_group()?;
        }
        Ok(())
    }

    /// Ends the file; without it there is none.
    pub fn finish(mut self) -> Result<(), WriteError> {
        self.end_group()?;
        self.file.close()?;
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), WriteError> {
        let group = std::mem::take(&mut self.group);
        if group.id_levels.is_empty() {
            return Ok(());
        }
        let mut row_group = self.file.next_row_group()?;
        let mut column = |values: &[ByteArray], definitions: &[i16], repetitions| {
            let mut column = row_group
                .next_column()?
                .expect("the schema has three columns");
            if let ColumnWriter::ByteArrayColumnWriter(writer) = column.untyped() {
                writer.write_batch(values, Some(definitions), repetitions)?;
            }
            column.close()
        };
        let repetitions = Some(&group.repetitions[..]);
        column(&group.ids, &group.id_levels, None)?;
        column(&group.roles, &group.definitions, repetitions)?;
        column(&group.contents, &group.definitions, repetitions)?;
        row_group.close()?;
        Ok(())
    }
}
