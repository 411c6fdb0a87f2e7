//! One column of one row group, value by value, page by page.

use std::{fs::File, io::Read, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use parquet::{basic::Compression, file::metadata::ColumnChunkMetaData};

use super::{
    decode::{Hybrid, Values},
    header::{self, PageHeader},
};
use crate::rows::MAX_ROW_BYTES;

/// Writers give a dictionary up after a megabyte.
const MAX_DICTIONARY_VALUES: i64 = 1 << 20;

/// Where a column lies in its rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Levels {
    /// Its number among the leaf columns.
    pub column: usize,
    /// Highest definition level: the value is there.
    pub definition: u32,
    /// Highest repetition level: 1 within a list.
    pub repetition: u32,
    /// Definition level from which on there is an element of the list.
    pub element: u32,
}

/// A value with its levels.
pub(super) struct Entry {
    pub repetition: u32,
    pub definition: u32,
    pub value: Option<Bytes>,
}

pub(super) struct Column {
    file: Arc<File>,
    levels: Levels,
    compression: Compression,
    max_page_bytes: usize,
    /// Where the next page begins, and where the column ends.
    at: u64,
    end: u64,
    dictionary: Vec<Bytes>,
    page: Option<Page>,
    peeked: Option<Entry>,
}

struct Page {
    n_left: u64,
    repetitions: Hybrid,
    definitions: Hybrid,
    values: Values,
}

type Result<T> = std::result::Result<T, String>;

impl Column {
    pub(super) fn new(
        file: Arc<File>,
        file_bytes: u64,
        chunk: &ColumnChunkMetaData,
        levels: Levels,
        max_page_bytes: usize,
    ) -> Result<Self> {
        let start = match chunk.dictionary_page_offset() {
            // Some writers give 0 where there is no dictionary.
            Some(offset) if offset > 0 => offset.min(chunk.data_page_offset()),
            _ => chunk.data_page_offset(),
        };
        let bounds = u64::try_from(start).ok().and_then(|start| {
            let length = u64::try_from(chunk.compressed_size()).ok()?;
            let end = start.checked_add(length)?;
            (end <= file_bytes).then_some((start, end))
        });
        let Some((at, end)) = bounds else {
            return Err("a column lies outside of the file".to_owned());
        };
        Ok(Column {
            file,
            levels,
            compression: chunk.compression(),
            max_page_bytes,
            at,
            end,
            dictionary: Vec::new(),
            page: None,
            peeked: None,
        })
    }

    pub(super) fn levels(&self) -> Levels {
        self.levels
    }

    /// The next value, if there is one and it continues the list that the last one was in.
    pub(super) fn next_in_list(&mut self) -> Result<Option<Entry>> {
        if self.peeked.is_none() {
            self.peeked = self.read()?;
        }
        match &self.peeked {
            Some(entry) if entry.repetition > 0 => Ok(self.peeked.take()),
            _ => Ok(None),
        }
    }

    /// The next value.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        match self.peeked.take() {
            Some(entry) => Ok(Some(entry)),
            None => self.read(),
        }
    }

    fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            match &mut self.page {
                Some(page) if page.n_left > 0 => {
                    page.n_left -= 1;
                    let damaged = || "a page holds fewer values than it says".to_owned();
                    let repetition = page.repetitions.next().ok_or_else(damaged)?;
                    let definition = page.definitions.next().ok_or_else(damaged)?;
                    if repetition > self.levels.repetition || definition > self.levels.definition {
                        return Err("a level is higher than the schema allows".to_owned());
                    }
                    let value = if definition == self.levels.definition {
                        let value = page.values.next(&self.dictionary, MAX_ROW_BYTES);
                        Some(value.ok_or_else(damaged)?)
                    } else {
                        None
                    };
                    return Ok(Some(Entry {
                        repetition,
                        definition,
                        value,
                    }));
                }
                _ => {
                    self.page = None;
                    if self.at >= self.end {
                        return Ok(None);
                    }
                    self.next_page()?;
                }
            }
        }
    }

    fn next_page(&mut self) -> Result<()> {
        let (header, length) = self.header()?;
        self.at += length as u64;
        let size = |n: i64| {
            usize::try_from(n)
                .ok()
                .filter(|n| *n <= self.max_page_bytes)
                .ok_or_else(|| {
                    format!(
                        "a page has {n} bytes; at most {} are read",
                        self.max_page_bytes
                    )
                })
        };
        let compressed = size(header.compressed_bytes)?;
        let uncompressed = size(header.uncompressed_bytes)?;
        if compressed as u64 > self.end - self.at {
            return Err("a page reaches beyond its column".to_owned());
        }
        let mut stored = vec![0; compressed];
        self.file
            .read_exact_at(&mut stored, self.at)
            .map_err(|error| error.to_string())?;
        self.at += compressed as u64;
        match header.kind {
            header::DICTIONARY_PAGE => {
                if header.n_values > MAX_DICTIONARY_VALUES {
                    return Err(format!(
                        "a dictionary has {} values; at most {MAX_DICTIONARY_VALUES} are read",
                        header.n_values
                    ));
                }
                let bytes = self.unpack(stored, uncompressed)?;
                let mut values = Values::Plain { bytes, at: 0 };
                self.dictionary.clear();
                for _ in 0..header.n_values {
                    let value = values.next(&[], MAX_ROW_BYTES);
                    self.dictionary
                        .push(value.ok_or("a dictionary holds fewer values than it says")?);
                }
            }
            header::DATA_PAGE => {
                let bytes = self.unpack(stored, uncompressed)?;
                self.page = Some(self.data_page(&header, bytes)?);
            }
            header::DATA_PAGE_V2 => {
                self.page = Some(self.data_page_v2(&header, stored, uncompressed)?);
            }
            // Index pages; the format says to pass over what one does not know.
            _ => {}
        }
        Ok(())
    }

    fn header(&self) -> Result<(PageHeader, usize)> {
        let available = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        // Almost every header is shorter than this; one with long statistics is read again.
        for n_bytes in [512, header::MAX_HEADER_BYTES] {
            let mut bytes = vec![0; n_bytes.min(available)];
            self.file
                .read_exact_at(&mut bytes, self.at)
                .map_err(|error| error.to_string())?;
            if let Some(found) = header::parse(&bytes) {
                return Ok(found);
            }
        }
        Err("a page's header is damaged".to_owned())
    }

    fn unpack(&self, stored: Vec<u8>, n_bytes: usize) -> Result<Bytes> {
        let unpacked = unpack(self.compression, stored, n_bytes)?;
        if unpacked.len() != n_bytes {
            return Err(format!(
                "a page has {} bytes and says {n_bytes}",
                unpacked.len()
            ));
        }
        Ok(Bytes::from(unpacked))
    }

    fn data_page(&self, header: &PageHeader, mut bytes: Bytes) -> Result<Page> {
        let mut level = |max: u32, encoding: i64| {
            if max == 0 {
                return Ok(Hybrid::zeros());
            }
            if encoding != RLE {
                return Err(format!(
                    "levels have encoding {encoding}, which is not read"
                ));
            }
            let length = bytes
                .get(..4)
                .and_then(|length| length.try_into().ok())
                .map(|length| u32::from_le_bytes(length) as usize)
                .filter(|length| *length <= bytes.len() - 4)
                .ok_or("the levels of a page are cut off")?;
            let levels = bytes.slice(4..4 + length);
            bytes = bytes.slice(4 + length..);
            Ok(Hybrid::new(levels, width(max)).expect("levels are narrow"))
        };
        let repetitions = level(self.levels.repetition, header.repetition_encoding)?;
        let definitions = level(self.levels.definition, header.definition_encoding)?;
        Ok(Page {
            n_left: u64::try_from(header.n_values).unwrap_or(0),
            repetitions,
            definitions,
            values: self.values(header.encoding, bytes)?,
        })
    }

    fn data_page_v2(
        &self,
        header: &PageHeader,
        stored: Vec<u8>,
        uncompressed: usize,
    ) -> Result<Page> {
        let lengths = usize::try_from(header.repetition_bytes)
            .ok()
            .zip(usize::try_from(header.definition_bytes).ok())
            .filter(|(repetition, definition)| {
                let sum = repetition.checked_add(*definition);
                sum.is_some_and(|sum| sum <= stored.len() && sum <= uncompressed)
            });
        let Some((repetition, definition)) = lengths else {
            return Err("the levels of a page are cut off".to_owned());
        };
        let stored = Bytes::from(stored);
        let level = |bytes: Bytes, max: u32| {
            if max == 0 {
                Hybrid::zeros()
            } else {
                Hybrid::new(bytes, width(max)).expect("levels are narrow")
            }
        };
        let n_levels = repetition + definition;
        let values = if header.values_compressed {
            let packed = stored[n_levels..].to_vec();
            self.unpack(packed, uncompressed - n_levels)?
        } else {
            stored.slice(n_levels..)
        };
        Ok(Page {
            n_left: u64::try_from(header.n_values).unwrap_or(0),
            repetitions: level(stored.slice(..repetition), self.levels.repetition),
            definitions: level(stored.slice(repetition..n_levels), self.levels.definition),
            values: self.values(header.encoding, values)?,
        })
    }

    fn values(&self, encoding: i64, bytes: Bytes) -> Result<Values> {
        let values = match encoding {
            PLAIN => Some(Values::Plain { bytes, at: 0 }),
            // A page without any value has not even the width.
            PLAIN_DICTIONARY | RLE_DICTIONARY if bytes.is_empty() => {
                Some(Values::Plain { bytes, at: 0 })
            }
            PLAIN_DICTIONARY | RLE_DICTIONARY => {
                let bit_width = u32::from(bytes[0]);
                Hybrid::new(bytes.slice(1..), bit_width).map(Values::Indices)
            }
            DELTA_LENGTH_BYTE_ARRAY => Values::lengths(bytes),
            DELTA_BYTE_ARRAY => Values::prefixes(bytes),
            other => return Err(format!("values have encoding {other}, which is not read")),
        };
        values.ok_or_else(|| "the values of a page are damaged".to_owned())
    }
}

// Numbers of the format's `Encoding`.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const DELTA_LENGTH_BYTE_ARRAY: i64 = 6;
const DELTA_BYTE_ARRAY: i64 = 7;
const RLE_DICTIONARY: i64 = 8;

/// Bits that hold levels up to `max`.
fn width(max: u32) -> u32 {
    u32::BITS - max.leading_zeros()
}

/// Unpacks at most `n_bytes`; more in the stream is damage, and is not unpacked.
fn unpack(compression: Compression, stored: Vec<u8>, n_bytes: usize) -> Result<Vec<u8>> {
    if n_bytes == 0 {
        return Ok(Vec::new());
    }
    let damaged = |error: std::io::Error| format!("a page cannot be unpacked: {error}");
    match compression {
        Compression::UNCOMPRESSED => Ok(stored),
        Compression::SNAPPY => {
            let mut unpacked = vec![0; n_bytes];
            let n = snap::raw::Decoder::new()
                .decompress(&stored, &mut unpacked)
                .map_err(|error| damaged(error.into()))?;
            unpacked.truncate(n);
            Ok(unpacked)
        }
        Compression::ZSTD(_) => zstd::bulk::decompress(&stored, n_bytes).map_err(damaged),
        Compression::GZIP(_) => {
            let mut unpacked = Vec::with_capacity(n_bytes);
            flate2::read::MultiGzDecoder::new(stored.as_slice())
                .take(n_bytes as u64 + 1)
                .read_to_end(&mut unpacked)
                .map_err(damaged)?;
            Ok(unpacked)
        }
        other => Err(format!(
            "pages are compressed with {other}, which is not read"
        )),
    }
}
