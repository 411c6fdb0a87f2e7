//! Parquet, read row group by row group and page by page.
//!
//! The `parquet` crate reads the file's metadata. Pages are read here: sizes in a page's header are
//! bounded before anything is allocated or unpacked by them, and a list that a few bytes of run
//! lengths make endless ends at [`super::MAX_MESSAGES`].

mod column;
mod decode;
mod header;

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    panic,
    sync::Arc,
};

use parquet::{
    basic::{Repetition, Type as PhysicalType},
    file::metadata::{ParquetMetaData, ParquetMetaDataReader},
    schema::types::{SchemaDescriptor, Type},
};

use self::column::{Column, Levels};
use super::{Cells, Content, MAX_MESSAGES, MAX_ROW_BYTES, RawRow, RowFault};

/// Metadata of a file of 66,000 rows in groups of a thousand has less than a tenth of this.
const MAX_METADATA_BYTES: u64 = 16 << 20;
/// A page ends after a megabyte or after a thousand values, whatever comes later, so one of
/// `content` can be large.
const MAX_CONTENT_PAGE_BYTES: usize = 256 << 20;
/// Of `role` and `instance_id`.
const MAX_NAME_PAGE_BYTES: usize = 16 << 20;
/// Of `instance_id`.
const MAX_ID_BYTES: usize = 4096;

/// The rows of a file.
pub struct Rows {
    file: Arc<File>,
    file_bytes: u64,
    metadata: ParquetMetaData,
    levels: RowLevels,
    next_group: usize,
    group: Option<Group>,
}

#[derive(Clone, Copy)]
struct RowLevels {
    instance_id: Option<Levels>,
    role: Levels,
    content: Levels,
}

struct Group {
    n_left: u64,
    instance_id: Option<Column>,
    role: Column,
    content: Column,
}

type Result<T> = std::result::Result<T, String>;

impl Rows {
    /// Reads the metadata. The error says what the file lacks.
    pub fn open(file: File) -> Result<Self> {
        let (metadata, file_bytes) = metadata(&file)?;
        let levels = RowLevels::find(metadata.file_metadata().schema_descr())?;
        Ok(Rows {
            file: Arc::new(file),
            file_bytes,
            metadata,
            levels,
            next_group: 0,
            group: None,
        })
    }

    /// Rows in the file, by its own account.
    pub fn n_rows(&self) -> i64 {
        self.metadata.file_metadata().num_rows()
    }

    /// Names of the columns, in the schema's order.
    pub(super) fn columns(&self) -> Vec<String> {
        let schema = self.metadata.file_metadata().schema();
        let fields = schema.get_fields().iter();
        fields.map(|field| field.name().to_owned()).collect()
    }

    pub(super) fn next_row(&mut self) -> Result<Option<RawRow>> {
        loop {
            match &mut self.group {
                Some(group) if group.n_left > 0 => {
                    group.n_left -= 1;
                    return group.next_row().map(Some);
                }
                _ => {
                    // Columns of the last group go before those of the next come.
                    self.group = None;
                    if self.next_group == self.metadata.num_row_groups() {
                        return Ok(None);
                    }
                    self.group = Some(self.open_group(self.next_group)?);
                    self.next_group += 1;
                }
            }
        }
    }

    fn open_group(&self, index: usize) -> Result<Group> {
        let group = self.metadata.row_group(index);
        let column = |levels: Levels, max_page_bytes| {
            let chunk = group
                .columns()
                .get(levels.column)
                .ok_or("a row group lacks a column")?;
            Column::new(
                Arc::clone(&self.file),
                self.file_bytes,
                chunk,
                levels,
                max_page_bytes,
            )
        };
        Ok(Group {
            n_left: u64::try_from(group.num_rows()).unwrap_or(0),
            instance_id: self
                .levels
                .instance_id
                .map(|levels| column(levels, MAX_NAME_PAGE_BYTES))
                .transpose()?,
            role: column(self.levels.role, MAX_NAME_PAGE_BYTES)?,
            content: column(self.levels.content, MAX_CONTENT_PAGE_BYTES)?,
        })
    }
}

impl Group {
    fn next_row(&mut self) -> Result<RawRow> {
        const SHORT: &str = "a column has fewer rows than its row group says";
        let mut cells = Cells::default();
        if let Some(column) = &mut self.instance_id {
            let entry = column.next()?.ok_or(SHORT)?;
            if let Some(id) = entry.value {
                cells.instance_id = Some(cells.push(&id[..id.len().min(MAX_ID_BYTES)]));
            }
        }
        let mut role = self.role.next()?;
        let mut content = self.content.next()?;
        let mut n_bytes = cells.text.len() as u64;
        let mut n_messages = 0;
        if role.is_none() || content.is_none() {
            return Err(SHORT.to_owned());
        }
        while let (Some(name), Some(text)) = (&role, &content) {
            let is_element = name.definition >= self.role.levels().element;
            if is_element != (text.definition >= self.content.levels().element) {
                return Err("`role` and `content` do not belong together".to_owned());
            }
            if is_element {
                n_messages += 1;
                let name = name.value.as_deref().unwrap_or_default();
                let text = text.value.as_deref().unwrap_or_default();
                n_bytes += (name.len() + text.len()) as u64;
                if n_bytes <= MAX_ROW_BYTES as u64 && n_messages <= MAX_MESSAGES {
                    let message = (cells.push(name), cells.push(text));
                    cells.messages.push(message);
                }
            }
            role = self.role.next_in_list()?;
            content = self.content.next_in_list()?;
            if role.is_some() != content.is_some() {
                return Err("`role` and `content` have lists of different lengths".to_owned());
            }
        }
        Ok(if n_bytes > MAX_ROW_BYTES as u64 {
            RawRow::fault(n_bytes, RowFault::TooLong { n_bytes })
        } else if n_messages > MAX_MESSAGES {
            RawRow::fault(n_bytes, RowFault::TooManyMessages)
        } else {
            RawRow {
                n_bytes,
                content: Content::Cells(cells),
            }
        })
    }
}

/// Reads the footer. Its length is bounded here; the crate bounds lists in it by that length.
fn metadata(mut file: &File) -> Result<(ParquetMetaData, u64)> {
    const DAMAGED: &str = "the Parquet metadata at the end of the file is damaged";
    let mut read = || -> io::Result<Option<(Vec<u8>, u64)>> {
        let file_bytes = file.seek(SeekFrom::End(0))?;
        if file_bytes < 12 {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(file_bytes - 8))?;
        let mut tail = [0; 8];
        file.read_exact(&mut tail)?;
        let (length, magic) = tail.split_at(4);
        let length = u64::from(u32::from_le_bytes(
            length.try_into().expect("four bytes were split off"),
        ));
        if magic != b"PAR1" || length > MAX_METADATA_BYTES || length + 8 > file_bytes {
            return Ok(None);
        }
        file.seek(SeekFrom::Start(file_bytes - 8 - length))?;
        let mut bytes = vec![0; length as usize];
        file.read_exact(&mut bytes)?;
        Ok(Some((bytes, file_bytes)))
    };
    let (bytes, file_bytes) = read().map_err(|error| error.to_string())?.ok_or(DAMAGED)?;
    // The crate has assertions that damaged metadata can break; the file is at fault then.
    let metadata = panic::catch_unwind(|| ParquetMetaDataReader::decode_metadata(&bytes))
        .map_err(|_| DAMAGED.to_owned())?
        .map_err(|error| format!("{DAMAGED}: {error}"))?;
    Ok((metadata, file_bytes))
}

impl RowLevels {
    fn find(schema: &SchemaDescriptor) -> Result<Self> {
        let find = |first: &str, last: &str, repetition: i16| -> Result<Option<Levels>> {
            let Some((index, column)) = schema.columns().iter().enumerate().find(|(_, column)| {
                let parts = column.path().parts();
                parts.first().is_some_and(|part| part == first)
                    && parts.last().is_some_and(|part| part == last)
                    && (parts.len() > 1 || first == last)
            }) else {
                return Ok(None);
            };
            let name = column.path().string();
            if column.max_rep_level() != repetition {
                return Err(format!("the column {name:?} is not nested as expected"));
            }
            if column.physical_type() != PhysicalType::BYTE_ARRAY {
                return Err(format!("the column {name:?} is not text"));
            }
            Ok(Some(Levels {
                column: index,
                definition: column.max_def_level() as u32,
                repetition: repetition as u32,
                element: element_level(schema.root_schema(), column.path().parts()),
            }))
        };
        let missing = |name| format!("it has no column `messages` with a field `{name}`");
        Ok(RowLevels {
            instance_id: find("instance_id", "instance_id", 0)?,
            role: find("messages", "role", 1)?.ok_or_else(|| missing("role"))?,
            content: find("messages", "content", 1)?.ok_or_else(|| missing("content"))?,
        })
    }
}

/// The definition level from which on the repeated part of a path is there.
fn element_level(root: &Type, path: &[String]) -> u32 {
    let mut level = 0;
    let mut at = root;
    for part in path {
        if !at.is_group() {
            break;
        }
        let Some(next) = at.get_fields().iter().find(|field| field.name() == part) else {
            break;
        };
        match next.get_basic_info().repetition() {
            Repetition::REPEATED => return level + 1,
            Repetition::OPTIONAL => level += 1,
            Repetition::REQUIRED => {}
        }
        at = next;
    }
    level
}
