//! What is in a page: levels, indices, byte arrays.

use bytes::Bytes;

/// The hybrid of run lengths and bit packing that holds levels and dictionary indices.
#[derive(Debug)]
pub(super) struct Hybrid {
    bytes: Bytes,
    at: usize,
    bit_width: u32,
    run: Run,
}

#[derive(Debug)]
enum Run {
    Repeat {
        value: u32,
        n_left: u64,
    },
    /// Packed values from byte `start` on, in groups of eight.
    Packed {
        start: usize,
        next: u64,
        n: u64,
    },
}

impl Hybrid {
    /// Reads values of `bit_width` bits, at most 32.
    pub(super) fn new(bytes: Bytes, bit_width: u32) -> Option<Self> {
        (bit_width <= 32).then_some(Hybrid {
            bytes,
            at: 0,
            bit_width,
            run: Run::Repeat {
                value: 0,
                n_left: 0,
            },
        })
    }

    /// A level that is always zero.
    pub(super) fn zeros() -> Self {
        Hybrid {
            bytes: Bytes::new(),
            at: 0,
            bit_width: 0,
            run: Run::Repeat {
                value: 0,
                n_left: u64::MAX,
            },
        }
    }

    /// The next value, `None` if there is none.
    pub(super) fn next(&mut self) -> Option<u32> {
        loop {
            match &mut self.run {
                Run::Repeat { value, n_left } if *n_left > 0 => {
                    *n_left -= 1;
                    return Some(*value);
                }
                Run::Packed { start, next, n } if *next < *n => {
                    let bit = *next * u64::from(self.bit_width);
                    *next += 1;
                    let first = *start + (bit / 8) as usize;
                    // A last group may lack the bytes of values that nobody counts.
                    let mut window = [0u8; 8];
                    let available = self.bytes.get(first..).unwrap_or_default();
                    let n_bytes = available.len().min(8);
                    if n_bytes == 0 && self.bit_width > 0 {
                        return None;
                    }
                    window[..n_bytes].copy_from_slice(&available[..n_bytes]);
                    let shifted = u64::from_le_bytes(window) >> (bit % 8);
                    let mask = (1u64 << self.bit_width) - 1;
                    return Some((shifted & mask) as u32);
                }
                _ => self.next_run()?,
            }
        }
    }

    fn next_run(&mut self) -> Option<()> {
        let mut header = 0u64;
        let mut shift = 0;
        loop {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            header |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 56 {
                return None;
            }
        }
        if header & 1 == 1 {
            let n_groups = header >> 1;
            let n_bytes = n_groups.checked_mul(u64::from(self.bit_width))?;
            self.run = Run::Packed {
                start: self.at,
                next: 0,
                n: n_groups.checked_mul(8)?,
            };
            self.at = self
                .at
                .checked_add(usize::try_from(n_bytes).ok()?)?
                .min(self.bytes.len());
        } else {
            let n_bytes = self.bit_width.div_ceil(8) as usize;
            let stored = self.bytes.get(self.at..self.at + n_bytes)?;
            let mut value = [0u8; 4];
            value[..n_bytes].copy_from_slice(stored);
            self.at += n_bytes;
            self.run = Run::Repeat {
                value: u32::from_le_bytes(value),
                n_left: header >> 1,
            };
        }
        Some(())
    }
}

/// The byte arrays of a page.
#[derive(Debug)]
pub(super) enum Values {
    /// Length, bytes, length, bytes, …
    Plain { bytes: Bytes, at: usize },
    /// Indices into the dictionary.
    Indices(Hybrid),
    /// All lengths first, then all bytes.
    Lengths {
        lengths: Deltas,
        bytes: Bytes,
        at: usize,
    },
    /// Each value shares a beginning with the one before.
    Prefixes {
        prefixes: Deltas,
        lengths: Deltas,
        bytes: Bytes,
        at: usize,
        last: Vec<u8>,
    },
}

impl Values {
    /// `delta` encodings: 6 is `DELTA_LENGTH_BYTE_ARRAY`, 7 is `DELTA_BYTE_ARRAY`.
    pub(super) fn lengths(bytes: Bytes) -> Option<Self> {
        let (lengths, end) = Deltas::new(&bytes)?;
        Some(Values::Lengths {
            lengths,
            bytes: bytes.slice(end..),
            at: 0,
        })
    }

    pub(super) fn prefixes(bytes: Bytes) -> Option<Self> {
        let (prefixes, end) = Deltas::new(&bytes)?;
        let bytes = bytes.slice(end..);
        let (lengths, end) = Deltas::new(&bytes)?;
        Some(Values::Prefixes {
            prefixes,
            lengths,
            bytes: bytes.slice(end..),
            at: 0,
            last: Vec::new(),
        })
    }

    /// The next value, `None` if the page does not hold it. `max_bytes` bounds a value that is put
    /// together from others; a longer one counts as damage.
    pub(super) fn next(&mut self, dictionary: &[Bytes], max_bytes: usize) -> Option<Bytes> {
        match self {
            Values::Plain { bytes, at } => {
                let length = bytes.get(*at..*at + 4)?;
                let length = u32::from_le_bytes(length.try_into().ok()?) as usize;
                let start = *at + 4;
                let end = start
                    .checked_add(length)
                    .filter(|end| *end <= bytes.len())?;
                *at = end;
                Some(bytes.slice(start..end))
            }
            Values::Indices(indices) => dictionary.get(indices.next()? as usize).cloned(),
            Values::Lengths { lengths, bytes, at } => {
                let length = usize::try_from(lengths.next()?).ok()?;
                let end = at.checked_add(length).filter(|end| *end <= bytes.len())?;
                let value = bytes.slice(*at..end);
                *at = end;
                Some(value)
            }
            Values::Prefixes {
                prefixes,
                lengths,
                bytes,
                at,
                last,
            } => {
                let shared = usize::try_from(prefixes.next()?).ok()?;
                let length = usize::try_from(lengths.next()?).ok()?;
                let end = at.checked_add(length).filter(|end| *end <= bytes.len())?;
                if shared > last.len() || shared.checked_add(length)? > max_bytes {
                    return None;
                }
                last.truncate(shared);
                last.extend_from_slice(&bytes[*at..end]);
                *at = end;
                Some(Bytes::copy_from_slice(last))
            }
        }
    }
}

/// `DELTA_BINARY_PACKED` integers, decoded one at a time.
#[derive(Clone, Debug)]
pub(super) struct Deltas {
    bytes: Bytes,
    at: usize,
    block_size: u64,
    n_miniblocks: u64,
    n_left: u64,
    last: i64,
    first: bool,
    min_delta: i64,
    widths: Vec<u8>,
    miniblock: usize,
    in_miniblock: u64,
}

impl Deltas {
    /// The decoder, and where in `bytes` the integers end.
    fn new(bytes: &Bytes) -> Option<(Self, usize)> {
        let mut deltas = Deltas {
            bytes: bytes.clone(),
            at: 0,
            block_size: 0,
            n_miniblocks: 0,
            n_left: 0,
            last: 0,
            first: true,
            min_delta: 0,
            widths: Vec::new(),
            miniblock: 0,
            in_miniblock: 0,
        };
        deltas.block_size = deltas.varint()?;
        deltas.n_miniblocks = deltas.varint()?;
        deltas.n_left = deltas.varint()?;
        deltas.last = deltas.zigzag()?;
        let per_miniblock = deltas.block_size.checked_div(deltas.n_miniblocks)?;
        if deltas.n_miniblocks > 1024 || per_miniblock % 32 != 0 || per_miniblock == 0 {
            return None;
        }
        deltas.miniblock = deltas.n_miniblocks as usize;
        // The end is found by walking the blocks once; the values come on demand.
        let mut walk = deltas.clone();
        let mut n = walk.n_left.saturating_sub(1);
        while n > 0 {
            walk.block_header()?;
            for index in 0..walk.widths.len() {
                if n == 0 {
                    break;
                }
                let n_bytes = per_miniblock / 8 * u64::from(walk.widths[index]);
                walk.at = walk.at.checked_add(usize::try_from(n_bytes).ok()?)?;
                n = n.saturating_sub(per_miniblock);
            }
            if walk.at > bytes.len() {
                return None;
            }
        }
        let end = walk.at;
        Some((deltas, end))
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn zigzag(&mut self) -> Option<i64> {
        let value = self.varint()?;
        Some((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    fn block_header(&mut self) -> Option<()> {
        self.min_delta = self.zigzag()?;
        let n = self.n_miniblocks as usize;
        self.widths = self.bytes.get(self.at..self.at + n)?.to_vec();
        if self.widths.iter().any(|width| *width > 64) {
            return None;
        }
        self.at += n;
        self.miniblock = 0;
        self.in_miniblock = 0;
        Some(())
    }

    fn next(&mut self) -> Option<i64> {
        self.n_left = self.n_left.checked_sub(1)?;
        if std::mem::take(&mut self.first) {
            return Some(self.last);
        }
        let per_miniblock = self.block_size / self.n_miniblocks;
        if self.in_miniblock == per_miniblock {
            let n_bytes = per_miniblock / 8 * u64::from(self.widths[self.miniblock]);
            self.at = self.at.checked_add(n_bytes as usize)?;
            self.miniblock += 1;
            self.in_miniblock = 0;
        }
        if self.miniblock == self.n_miniblocks as usize {
            self.block_header()?;
        }
        let width = u64::from(self.widths[self.miniblock]);
        let bit = self.in_miniblock * width;
        self.in_miniblock += 1;
        let mut window = [0u8; 16];
        let available = self.bytes.get(self.at + (bit / 8) as usize..)?;
        let n_bytes = available.len().min(16);
        window[..n_bytes].copy_from_slice(&available[..n_bytes]);
        let shifted = u128::from_le_bytes(window) >> (bit % 8);
        let delta = (shifted & ((1u128 << width) - 1)) as u64;
        self.last = self
            .last
            .wrapping_add(self.min_delta)
            .wrapping_add(delta as i64);
        Some(self.last)
    }
}
