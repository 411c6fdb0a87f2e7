//! TensorBoard's event files: TFRecords of protobuf `Event` messages, written without either
//! library, because a scalar needs five of their fields.
//!
//! Every start of a run writes a file of its own, which first says from which step on it counts;
//! TensorBoard then drops the steps of earlier files that it repeats.

use std::{
    fs::{self, OpenOptions},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

use temper_core::metric::MetricValue;

use super::crc32c::masked;
use crate::events::{Event, EventSink};

/// Writes scalars of updates.
#[derive(Debug)]
pub struct TensorBoard {
    folder: PathBuf,
    file: Option<BufWriter<fs::File>>,
}

impl TensorBoard {
    /// Will write a new file into a folder, which is made if need be.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        Ok(TensorBoard {
            folder: folder.to_owned(),
            file: None,
        })
    }

    fn write(&mut self, at: f64, step: u64, fill: impl FnOnce(&mut Message)) -> io::Result<()> {
        if self.file.is_none() {
            self.file = Some(BufWriter::new(self.create(at)?));
            let mut version = Message::default();
            version.double(WALL_TIME, at);
            version.bytes(FILE_VERSION, b"brain.Event:2");
            self.append(&version)?;
        }
        let mut event = Message::default();
        event.double(WALL_TIME, at);
        event.varint(STEP, step);
        fill(&mut event);
        self.append(&event)
    }

    fn append(&mut self, message: &Message) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let length = (message.0.len() as u64).to_le_bytes();
        file.write_all(&length)?;
        file.write_all(&masked(&length).to_le_bytes())?;
        file.write_all(&message.0)?;
        file.write_all(&masked(&message.0).to_le_bytes())?;
        file.flush()
    }

    /// A file whose name TensorBoard recognises and that sorts by its time.
    fn create(&self, at: f64) -> io::Result<fs::File> {
        let seconds = at.max(0.0) as u64;
        (0..)
            .map(|number| {
                let name = format!("events.out.tfevents.{seconds:010}.temper.{number}");
                OpenOptions::new()
                    .create_new(true)
                    .write(true)
                    .open(self.folder.join(name))
            })
            .find(
                |file| !matches!(file, Err(error) if error.kind() == io::ErrorKind::AlreadyExists),
            )
            .unwrap_or_else(|| Err(io::ErrorKind::AlreadyExists.into()))
    }
}

impl EventSink for TensorBoard {
    fn record(&mut self, at: f64, event: &Event) -> io::Result<()> {
        match event {
            Event::Begun(begun) => self.write(at, begun.from_update + 1, |event| {
                event.message(SESSION_LOG, |log| log.varint(STATUS, STATUS_START));
            }),
            Event::Update(record) => self.write(at, record.update, |event| {
                event.message(SUMMARY, |summary| {
                    for (metric, value) in record.metrics.iter() {
                        let value = match value {
                            MetricValue::Finite(value) => value as f32,
                            MetricValue::NotANumber => f32::NAN,
                            MetricValue::PositiveInfinity => f32::INFINITY,
                            MetricValue::NegativeInfinity => f32::NEG_INFINITY,
                            // Nothing was measured, so there is no point to draw.
                            MetricValue::NotRecorded => continue,
                        };
                        summary.message(VALUE, |point| {
                            let tag = format!("train/{}", metric.name());
                            point.bytes(TAG, tag.as_bytes());
                            point.float(SIMPLE_VALUE, value);
                        });
                    }
                });
            }),
            _ => Ok(()),
        }
    }
}

// Numbers of fields in tensorflow/core/util/event.proto and framework/summary.proto.
const WALL_TIME: u32 = 1;
const STEP: u32 = 2;
const FILE_VERSION: u32 = 3;
const SUMMARY: u32 = 5;
const SESSION_LOG: u32 = 7;
const STATUS: u32 = 1;
const STATUS_START: u64 = 1;
const VALUE: u32 = 1;
const TAG: u32 = 1;
const SIMPLE_VALUE: u32 = 2;

/// A protobuf message in the making.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u32, wire_type: u32) {
        self.raw_varint(u64::from(field << 3 | wire_type));
    }

    fn raw_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn varint(&mut self, field: u32, value: u64) {
        self.key(field, 0);
        self.raw_varint(value);
    }

    fn double(&mut self, field: u32, value: f64) {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, 2);
        self.raw_varint(value.len() as u64);
        self.0.extend(value);
    }

    fn float(&mut self, field: u32, value: f32) {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
    }

    fn message(&mut self, field: u32, fill: impl FnOnce(&mut Message)) {
        let mut inner = Message::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }
}
