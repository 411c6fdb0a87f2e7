//! Server-sent events, as far as completions use them: bytes in, data fields out.
//!
//! The parser accepts any split of the bytes, LF, CR and CRLF, comments, and a byte order mark.
//! Event names and ids are ignored. It differs from the standard in two ways that servers need: a
//! last event without its blank line is delivered by [`SseParser::finish`], and a field called
//! `error` (older llama.cpp) is treated as data.

/// Turns bytes into events.
#[derive(Debug)]
pub struct SseParser {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    after_cr: bool,
    at_start: bool,
    max_event_bytes: usize,
}

/// The bytes are not a usable event stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    /// One event is too long.
    #[error("read an event stream: an event is longer than {0} bytes")]
    TooLong(usize),
    /// An event is not text.
    #[error("read an event stream: an event is not valid UTF-8")]
    NotUtf8,
}

impl SseParser {
    /// A parser that refuses events longer than `max_event_bytes`.
    pub fn new(max_event_bytes: usize) -> Self {
        SseParser {
            line: Vec::new(),
            data: Vec::new(),
            has_data: false,
            after_cr: false,
            at_start: true,
            max_event_bytes,
        }
    }

    /// Takes the next bytes and hands every completed event's data to `on_event`.
    pub fn push(&mut self, bytes: &[u8], mut on_event: impl FnMut(String)) -> Result<(), SseError> {
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\n' | b'\r' => {
                    if let Some(event) = self.end_line()? {
                        on_event(event);
                    }
                }
                _ => {
                    if self.line.len() + self.data.len() >= self.max_event_bytes {
                        return Err(SseError::TooLong(self.max_event_bytes));
                    }
                    self.line.push(byte);
                }
            }
        }
        Ok(())
    }

    /// The event that was not followed by a blank line, if there is one.
    pub fn finish(mut self) -> Result<Option<String>, SseError> {
        if !self.line.is_empty() {
            self.end_line()?;
        }
        self.take_event()
    }

    fn end_line(&mut self) -> Result<Option<String>, SseError> {
        let line = std::mem::take(&mut self.line);
        let mut line = line.as_slice();
        if std::mem::take(&mut self.at_start) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            return self.take_event();
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = match colon {
            Some(index) => (&line[..index], &line[index + 1..]),
            None => (line, &[][..]),
        };
        if field == b"data" || field == b"error" {
            if self.has_data {
                self.data.push(b'\n');
            }
            self.has_data = true;
            self.data
                .extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        Ok(None)
    }

    fn take_event(&mut self) -> Result<Option<String>, SseError> {
        if !std::mem::take(&mut self.has_data) {
            return Ok(None);
        }
        String::from_utf8(std::mem::take(&mut self.data))
            .map(Some)
            .map_err(|_| SseError::NotUtf8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(pieces: &[&[u8]]) -> Result<Vec<String>, SseError> {
        let mut parser = SseParser::new(1000);
        let mut events = Vec::new();
        for piece in pieces {
            parser.push(piece, |event| events.push(event))?;
        }
        events.extend(parser.finish()?);
        Ok(events)
    }

    #[test]
    fn every_split_gives_the_same_events() {
        let stream =
            "\u{feff}data: {\"a\":\"snow \u{2603}\"}\r\n\r\n: comment\ndata:one\rdata: two\r\r\
                      event: x\nid: 3\n\nretry\ndata\n\nerror: {\"bad\":1}\n\ndata: [DONE]"
                .as_bytes();
        let expected = vec![
            "{\"a\":\"snow \u{2603}\"}".to_owned(),
            "one\ntwo".into(),
            String::new(),
            "{\"bad\":1}".into(),
            "[DONE]".into(),
        ];
        assert_eq!(events(&[stream]).unwrap(), expected);
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let pieces = [&stream[..first], &stream[first..second], &stream[second..]];
                assert_eq!(events(&pieces).unwrap(), expected, "{first} {second}");
            }
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(events(&bytes).unwrap(), expected);
    }

    #[test]
    fn endless_events_and_broken_text_are_refused() {
        assert_eq!(
            events(&[&[b'a'; 1001]]).unwrap_err(),
            SseError::TooLong(1000)
        );
        let many = b"data: 0123456789\n".repeat(100);
        assert_eq!(events(&[&many]).unwrap_err(), SseError::TooLong(1000));
        assert_eq!(events(&[b"data: \xff\n\n"]).unwrap_err(), SseError::NotUtf8);
        // Many lines without data cost nothing.
        assert_eq!(
            events(&[&b": ping\n\n".repeat(1000)]).unwrap(),
            Vec::<String>::new()
        );
    }
}
