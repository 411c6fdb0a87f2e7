//! Takes the output of a command out of the frames in which an engine sends it.
//!
//! A frame is a byte for the stream, three zero bytes, the length in four bytes, big end first, and
//! as many bytes. Frames may be split and joined at will on the way.

use std::io::{self, Read};

use crate::output::Kept;

/// How reading ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more.
    More,
    /// The other side has closed the stream.
    End,
}

/// The state between two reads.
#[derive(Default)]
pub struct Frames {
    head: Vec<u8>,
    left: u32,
}

impl Frames {
    /// Reads once. Errors are those of `stream`, and `InvalidData` where there is no frame.
    pub fn read(&mut self, stream: &mut dyn Read, kept: &mut Kept) -> io::Result<Progress> {
        let mut buffer = vec![0; 64 << 10];
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(Progress::End);
        }
        self.take(&buffer[..n], kept)?;
        Ok(Progress::More)
    }

    fn take(&mut self, mut bytes: &[u8], kept: &mut Kept) -> io::Result<()> {
        while !bytes.is_empty() {
            if self.left > 0 {
                let n = bytes.len().min(self.left as usize);
                kept.push(&bytes[..n]);
                self.left -= n as u32;
                bytes = &bytes[n..];
                continue;
            }
            let n = bytes.len().min(8 - self.head.len());
            self.head.extend_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            if let [stream, 0, 0, 0, a, b, c, d] = self.head[..] {
                if stream > 2 {
                    return Err(not_a_frame());
                }
                self.left = u32::from_be_bytes([a, b, c, d]);
                self.head.clear();
            } else if self.head.len() == 8 {
                return Err(not_a_frame());
            }
        }
        Ok(())
    }
}

fn not_a_frame() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the engine's output does not come in frames",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stream: u8, content: &[u8]) -> Vec<u8> {
        let mut frame = vec![stream, 0, 0, 0];
        frame.extend_from_slice(&(content.len() as u32).to_be_bytes());
        frame.extend_from_slice(content);
        frame
    }

    #[test]
    fn it_does_not_matter_where_frames_are_split() {
        let bytes = [
            frame(1, b"one "),
            frame(2, b""),
            frame(2, b"two "),
            frame(1, &[b'x'; 300]),
        ]
        .concat();
        for size in 1..bytes.len() {
            let (mut frames, mut kept) = (Frames::default(), Kept::new(1000));
            for piece in bytes.chunks(size) {
                frames.take(piece, &mut kept).unwrap();
            }
            let (output, omitted) = kept.finish();
            assert_eq!(output, [b"one two ".to_vec(), vec![b'x'; 300]].concat());
            assert_eq!(omitted, None);
        }
    }

    #[test]
    fn what_is_no_frame_is_refused_and_a_huge_length_takes_no_memory() {
        let take = |bytes: &[u8]| {
            let (mut frames, mut kept) = (Frames::default(), Kept::new(10));
            frames
                .take(bytes, &mut kept)
                .map(|()| kept.finish().0)
                .map_err(|error| error.kind())
        };
        assert_eq!(take(b"HTTP/1.1"), Err(io::ErrorKind::InvalidData));
        assert_eq!(
            take(&[3, 0, 0, 0, 0, 0, 0, 1]),
            Err(io::ErrorKind::InvalidData)
        );
        assert_eq!(take(&[1, 0, 0, 0, 255, 255, 255, 255, b'a']).unwrap(), b"a");
    }
}
