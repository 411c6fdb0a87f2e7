//! The first process of a sandbox: it answers requests until nobody can send any more.

use std::{
    cell::RefCell,
    io::{self, Write},
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

use temper_core::Bytes;

use super::{
    changes,
    exec::{Jail, Order},
    files::Area,
    snapshot::{self, Private},
    wire::{self, Answer, FileHead, Kept, Request, WireOperation},
    work_tree::WorkTree,
};

/// Requests carry files to be written, and those are bounded by where they go.
const MAX_REQUEST_BYTES: u64 = 8 << 30;

/// What is served.
pub struct Served {
    pub jail: Jail,
    pub area: Area,
    pub work: WorkTree,
    /// Laid where commands cannot write, after the start.
    pub private: RefCell<Private>,
}

impl Served {
    /// Serves until the other side closes the socket.
    pub fn serve(&self, socket: &mut UnixStream) -> io::Result<()> {
        loop {
            let (request, blobs) = match wire::receive(socket, MAX_REQUEST_BYTES) {
                Ok(message) => message,
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
                Err(error) => return Err(error),
            };
            match request {
                Request::Exec {
                    text,
                    shell,
                    directory,
                    environment,
                    timeout_ms,
                    output_bytes,
                } => self.exec(
                    socket,
                    &Order {
                        text,
                        shell,
                        directory,
                        environment,
                        timeout: Duration::from_millis(timeout_ms),
                        output_bytes,
                    },
                )?,
                Request::Write(files) => self.write(socket, &files, &blobs)?,
                Request::Read { path, max_bytes } => self.read(socket, path, max_bytes)?,
                Request::Changes => self.changes(socket)?,
                Request::Snapshot { max_bytes } => self.snapshot(socket, max_bytes)?,
                Request::Lay { kept, private } => self.lay(socket, &kept, &private, &blobs)?,
            }
        }
    }

    fn exec(&self, socket: &mut UnixStream, order: &Order) -> io::Result<()> {
        match self.jail.run(order, socket.as_fd()) {
            Ok(outcome) => {
                let answer = Answer::Ended {
                    status: outcome.status,
                    omitted: outcome.omitted,
                    out_of_memory: outcome.out_of_memory,
                    wall_us: u64::try_from(outcome.wall.as_micros()).unwrap_or(u64::MAX),
                };
                wire::send(socket, &answer, &[&outcome.output])
            }
            Err(error) => wire::send(socket, &Answer::Broken(error.to_string()), &[]),
        }
    }

    fn write(
        &self,
        socket: &mut UnixStream,
        files: &[FileHead],
        contents: &[Vec<u8>],
    ) -> io::Result<()> {
        let owner = (self.jail.uid, self.jail.gid);
        for (file, content) in files.iter().zip(contents) {
            if let Err(error) = self.area.write(file, content, owner) {
                return refuse(socket, WireOperation::Write, file.path.clone(), &error);
            }
            let mut private = self.private.borrow_mut();
            private.laid(&self.area, &file.path, file.executable, content);
        }
        wire::send(socket, &Answer::Written, &[])
    }

    fn read(&self, socket: &mut UnixStream, path: String, max_bytes: u64) -> io::Result<()> {
        match self.area.read(&path, max_bytes) {
            Ok(Some(content)) => wire::send(socket, &Answer::Content, &[&content]),
            Ok(None) => wire::send(socket, &Answer::NoFile, &[]),
            Err(error) => refuse(socket, WireOperation::Read, path, &error),
        }
    }

    fn changes(&self, socket: &mut UnixStream) -> io::Result<()> {
        let changes = match changes::find(&self.work, self.jail.limits.disk_bytes) {
            Ok(changes) => changes,
            Err(refusal) => {
                let path = String::from_utf8_lossy(&refusal.path).into_owned();
                return refuse(socket, WireOperation::Collect, path, &refusal.error);
            }
        };
        let heads = changes
            .iter()
            .map(|change| (Bytes(change.path.clone()), change.what.clone()))
            .collect();
        let files: Vec<_> = changes
            .iter()
            .filter(|change| matches!(change.what, wire::WireChange::File { .. }))
            .collect();
        // One file at a time, so that this process never holds them all.
        wire::send_head(socket, &Answer::Changes(heads), files.len() as u32)?;
        for change in files {
            let mut file = changes::content(&self.work, change)?;
            socket.write_all(&change.size.to_le_bytes())?;
            if io::copy(&mut io::Read::by_ref(&mut file), socket)? != change.size {
                return Err(io::Error::other("a file changed while it was collected"));
            }
        }
        Ok(())
    }
}

impl Served {
    fn snapshot(&self, socket: &mut UnixStream, max_bytes: u64) -> io::Result<()> {
        let taken = match snapshot::take(&self.area, &self.work, max_bytes) {
            Ok(taken) => taken,
            Err(refusal) => {
                let operation = WireOperation::Snapshot;
                return refuse(socket, operation, refusal.path, &refusal.error);
            }
        };
        let private = self.private.borrow();
        let heads = private
            .files()
            .map(|(path, executable, _)| FileHead { path, executable })
            .collect::<Vec<_>>();
        let n_blobs = 1 + heads.len();
        let answer = Answer::Snapshot {
            kept: taken.kept.clone(),
            private: heads,
        };
        let mut out = io::BufWriter::with_capacity(64 << 10, socket);
        wire::send_head(&mut out, &answer, n_blobs as u32)?;
        out.write_all(&taken.bytes().to_le_bytes())?;
        taken.send(&mut out)?;
        for (_, _, content) in private.files() {
            out.write_all(&(content.len() as u64).to_le_bytes())?;
            out.write_all(content)?;
        }
        out.flush()
    }

    fn lay(
        &self,
        socket: &mut UnixStream,
        kept: &[Kept],
        private: &[FileHead],
        blobs: &[Vec<u8>],
    ) -> io::Result<()> {
        let owner = (self.jail.uid, self.jail.gid);
        let operation = WireOperation::Fork;
        let Some((contents, others)) = blobs.split_first() else {
            let error = io::Error::other("contents are missing");
            return refuse(socket, operation, "the state".into(), &error);
        };
        if let Err(refusal) = snapshot::lay(&self.area, &self.work, kept, contents, owner) {
            return refuse(socket, operation, refusal.path, &refusal.error);
        }
        self.write(socket, private, others)
    }
}

fn refuse(
    socket: &mut UnixStream,
    operation: WireOperation,
    path: String,
    error: &io::Error,
) -> io::Result<()> {
    let answer = Answer::FileError {
        operation,
        path,
        reason: error.to_string(),
    };
    wire::send(socket, &answer, &[])
}
