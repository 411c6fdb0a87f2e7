//! Keeps the first and the last half of a limit of what a command writes, and counts the rest.

use std::collections::VecDeque;

/// What is kept of an output while it arrives.
pub struct Kept {
    half: usize,
    first: Vec<u8>,
    last: VecDeque<u8>,
    n_dropped: u64,
}

impl Kept {
    /// Keeps at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Kept {
            half: usize::try_from(limit / 2).unwrap_or(usize::MAX),
            first: vec![],
            last: VecDeque::new(),
            n_dropped: 0,
        }
    }

    /// Takes what arrived.
    pub fn push(&mut self, mut bytes: &[u8]) {
        let room = self.half.saturating_sub(self.first.len());
        let (now, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(now);
        bytes = rest;
        if bytes.len() >= self.half {
            let (dropped, kept) = bytes.split_at(bytes.len() - self.half);
            self.n_dropped += (self.last.len() + dropped.len()) as u64;
            self.last.clear();
            self.last.extend(kept);
            return;
        }
        let excess = (self.last.len() + bytes.len()).saturating_sub(self.half);
        self.last.drain(..excess);
        self.n_dropped += excess as u64;
        self.last.extend(bytes);
    }

    /// The kept bytes, and where how many are missing.
    pub fn finish(self) -> (Vec<u8>, Option<(usize, u64)>) {
        let mut output = self.first;
        let at = output.len();
        let (one, two) = self.last.as_slices();
        output.extend_from_slice(one);
        output.extend_from_slice(two);
        (output, (self.n_dropped > 0).then_some((at, self.n_dropped)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunking_makes_no_difference_and_nothing_is_lost_uncounted() {
        let input: Vec<u8> = (0..=255).cycle().take(1000).collect();
        for limit in [0usize, 1, 2, 9, 10, 500, 999, 1000, 1001, 5000] {
            for chunk in [1, 3, 7, 100, 1000] {
                let mut kept = Kept::new(limit as u64);
                input.chunks(chunk).for_each(|bytes| kept.push(bytes));
                let (output, omitted) = kept.finish();
                assert!(output.len() <= limit);
                let (at, n) = omitted.unwrap_or((output.len(), 0));
                assert_eq!(output.len() as u64 + n, 1000, "{limit} {chunk}");
                assert_eq!(output[..at], input[..at]);
                assert_eq!(output[at..], input[1000 - (output.len() - at)..]);
                if n > 0 {
                    assert_eq!((at, output.len()), (limit / 2, limit / 2 * 2));
                }
            }
        }
    }
}
