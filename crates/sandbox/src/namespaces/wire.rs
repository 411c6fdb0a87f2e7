//! What Temper, the launcher and the sandbox's first process say to one another: a JSON head and
//! byte strings, over one socket pair. Specifications never travel in arguments or variables,
//! which other processes could read.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use temper_core::Bytes;

/// Heads are small next to what they describe, but a list of changed paths can be long.
const MAX_HEAD_BYTES: u32 = 256 << 20;

/// What is reserved for a byte string before it has come.
const MAX_RESERVED_BYTES: u64 = 64 << 20;

/// Sends one message.
pub fn send<T: Serialize>(to: &mut impl Write, head: &T, blobs: &[&[u8]]) -> io::Result<()> {
    let mut frame = head_frame(head, blobs.len() as u32)?;
    for blob in blobs {
        frame.extend_from_slice(&(blob.len() as u64).to_le_bytes());
        // Large ones are written from where they are.
        if blob.len() < 64 << 10 {
            frame.extend_from_slice(blob);
        } else {
            to.write_all(&frame)?;
            to.write_all(blob)?;
            frame.clear();
        }
    }
    to.write_all(&frame)
}

/// Sends the head of a message whose byte strings the caller sends, each after its length.
pub fn send_head<T: Serialize>(to: &mut impl Write, head: &T, n_blobs: u32) -> io::Result<()> {
    to.write_all(&head_frame(head, n_blobs)?)
}

fn head_frame<T: Serialize>(head: &T, n_blobs: u32) -> io::Result<Vec<u8>> {
    let head = serde_json::to_vec(head)?;
    let mut frame = Vec::with_capacity(8 + head.len());
    frame.extend_from_slice(&(head.len() as u32).to_le_bytes());
    frame.extend_from_slice(&n_blobs.to_le_bytes());
    frame.extend_from_slice(&head);
    Ok(frame)
}

/// Receives one message whose byte strings have at most `max_bytes` together.
pub fn receive<T: DeserializeOwned>(
    from: &mut impl Read,
    max_bytes: u64,
) -> io::Result<(T, Vec<Vec<u8>>)> {
    let mut number = [0; 4];
    from.read_exact(&mut number)?;
    let n_head = u32::from_le_bytes(number);
    from.read_exact(&mut number)?;
    let n_blobs = u32::from_le_bytes(number);
    if n_head > MAX_HEAD_BYTES {
        return Err(too_large());
    }
    let mut head = vec![];
    from.take(n_head.into()).read_to_end(&mut head)?;
    let head = serde_json::from_slice(&head)?;
    let mut blobs = vec![];
    let mut left = max_bytes;
    for _ in 0..n_blobs {
        let mut length = [0; 8];
        from.read_exact(&mut length)?;
        let length = u64::from_le_bytes(length);
        left = left.checked_sub(length).ok_or_else(too_large)?;
        let mut blob = Vec::with_capacity(length.min(MAX_RESERVED_BYTES) as usize);
        if from.take(length).read_to_end(&mut blob)? as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        blobs.push(blob);
    }
    Ok((head, blobs))
}

fn too_large() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the message is too large")
}

/// What the launcher is to build. The contents of `files` follow as byte strings.
#[derive(Serialize, Deserialize)]
pub struct Build {
    /// Temper's process id; the launcher ends with it.
    pub parent: i32,
    /// The name of its control groups.
    pub name: String,
    /// For process lists.
    pub label: String,
    /// `None` is the host's system directories.
    pub root: Option<Bytes>,
    pub work_start: Option<Bytes>,
    /// Where the given root holds the work tree, if it does and no start is given.
    pub root_work_tree: Option<Bytes>,
    pub work_path: String,
    pub mounts: Vec<(Bytes, String)>,
    pub files: Vec<FileHead>,
    pub home: Option<String>,
    pub limits: crate::Limits,
    pub host_network: bool,
}

/// One file to be written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHead {
    pub path: String,
    pub executable: bool,
}

/// What the launcher set up, or why it could not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Built {
    Ready(Facts),
    Failed {
        /// What was being done, completing "failed to …".
        operation: String,
        reason: String,
        errno: Option<i32>,
    },
}

/// What is in force in one sandbox. An error text says why something is not.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The command's uid as the host sees it.
    pub host_uid: u32,
    pub launcher_uid: u32,
    pub user_namespace: bool,
    pub landlock: Result<u32, String>,
    pub seccomp: Result<(), String>,
    pub memory: Result<String, String>,
    pub processes: Result<String, String>,
    /// How the work tree is kept apart from its start.
    pub work_tree: WorkTreeKind,
    pub host_network: bool,
}

/// How the work tree is kept apart from its start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WorkTreeKind {
    Empty,
    Overlay,
    /// A copy, with the reason.
    Copy(String),
}

/// A request to the sandbox's first process.
#[derive(Serialize, Deserialize)]
pub enum Request {
    Exec {
        text: String,
        shell: WireShell,
        directory: String,
        environment: BTreeMap<String, String>,
        timeout_ms: u64,
        output_bytes: u64,
    },
    /// Contents follow as byte strings.
    Write(Vec<FileHead>),
    Read {
        path: String,
        max_bytes: u64,
    },
    Changes,
    /// Everything that was written.
    Snapshot {
        max_bytes: u64,
    },
    /// Lays a state. The contents of its files follow as one byte string, then one for each of
    /// `private`.
    Lay {
        kept: Vec<Kept>,
        private: Vec<FileHead>,
    },
}

/// A shell.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub enum WireShell {
    Sh,
    Bash,
    BashLogin,
}

/// An answer of the sandbox's first process.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    /// The output follows as one byte string.
    Ended {
        status: WireStatus,
        omitted: Option<(usize, u64)>,
        out_of_memory: bool,
        wall_us: u64,
    },
    Written,
    /// The content follows.
    Content,
    NoFile,
    /// One content follows for each file.
    Changes(Vec<(Bytes, WireChange)>),
    /// The contents of all files follow as one byte string, then one for each of `private`.
    Snapshot {
        kept: Vec<Kept>,
        private: Vec<FileHead>,
    },
    /// A file operation failed.
    FileError {
        operation: WireOperation,
        path: String,
        reason: String,
    },
    /// The sandbox cannot go on.
    Broken(String),
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireStatus {
    Exited(i32),
    Signaled(i32),
    TimedOut,
}

/// Which file operation failed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum WireOperation {
    Read,
    Write,
    Collect,
    Snapshot,
    Fork,
}

/// What became of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WireChange {
    Removed,
    File { executable: bool },
    Link(Bytes),
}

/// One path of a kept state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Which writable place it lies in, and where below it; empty is the place itself.
    pub place: u32,
    pub path: Bytes,
    pub kind: KeptKind,
    pub mode: u32,
    /// Seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// What a kept path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeptKind {
    /// The start holds it, and it is gone.
    Removed,
    Directory,
    File {
        size: u64,
        /// Where there is data, and how much; the rest is holes.
        pieces: Vec<(u64, u64)>,
    },
    /// Another name of a file or special file of the same place.
    HardLink(Bytes),
    Link(Bytes),
    Pipe,
    Socket,
    /// The character device 0:0, which anybody can make and nobody can open.
    Nothing,
}

/// What the launcher says last.
#[derive(Serialize, Deserialize)]
pub struct Final {
    pub peak_memory_bytes: Option<u64>,
    pub cpu_seconds: Option<f64>,
}
