//! The header in front of each page: a struct in Thrift's compact protocol.
//!
//! Read here rather than by the `parquet` crate because the crate's page reader trusts the sizes in
//! it, and allocates and unpacks accordingly.

/// A page's header, as far as it is needed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    pub kind: i64,
    pub uncompressed_bytes: i64,
    pub compressed_bytes: i64,
    pub n_values: i64,
    pub encoding: i64,
    /// Encoding of definition levels, of a version 1 page.
    pub definition_encoding: i64,
    /// Encoding of repetition levels, of a version 1 page.
    pub repetition_encoding: i64,
    /// Version 2: bytes of definition and repetition levels in front of the values.
    pub definition_bytes: i64,
    pub repetition_bytes: i64,
    /// Version 2: whether the values are compressed.
    pub values_compressed: bool,
}

pub(super) const DATA_PAGE: i64 = 0;
pub(super) const DICTIONARY_PAGE: i64 = 2;
pub(super) const DATA_PAGE_V2: i64 = 3;

/// Longest header that is read. Statistics in it hold whole values, which may be long.
pub(super) const MAX_HEADER_BYTES: usize = 1 << 20;
const MAX_DEPTH: u32 = 16;

/// Reads a header; gives it and its length. `None` if `bytes` ends within it or it is none.
pub(super) fn parse(bytes: &[u8]) -> Option<(PageHeader, usize)> {
    let mut header = PageHeader {
        values_compressed: true,
        kind: -1,
        ..PageHeader::default()
    };
    let mut input = Input { bytes, at: 0 };
    input.structure(0, &mut |path, value| {
        let field = match path {
            [1] => &mut header.kind,
            [2] => &mut header.uncompressed_bytes,
            [3] => &mut header.compressed_bytes,
            [5, 1] | [7, 1] | [8, 1] => &mut header.n_values,
            [5, 2] | [7, 2] | [8, 4] => &mut header.encoding,
            [5, 3] => &mut header.definition_encoding,
            [5, 4] => &mut header.repetition_encoding,
            [8, 5] => &mut header.definition_bytes,
            [8, 6] => &mut header.repetition_bytes,
            [8, 7] => {
                header.values_compressed = value != 0;
                return;
            }
            _ => return,
        };
        *field = value;
    })?;
    Some((header, input.at))
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
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

    fn skip(&mut self, n: usize) -> Option<()> {
        self.at = self
            .at
            .checked_add(n)
            .filter(|at| *at <= self.bytes.len())?;
        Some(())
    }

    /// Reads the fields of a struct. `seen` gets the field ids from the outermost in, and the value
    /// of each number and truth value; at most two levels deep.
    fn structure(&mut self, depth: u32, seen: &mut dyn FnMut(&[i64], i64)) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut id = 0i64;
        loop {
            let byte = self.byte()?;
            let kind = byte & 0x0f;
            if kind == 0 {
                return Some(());
            }
            id = match byte >> 4 {
                0 => self.zigzag()?,
                delta => id.checked_add(i64::from(delta))?,
            };
            match kind {
                1 | 2 => seen(&[id], i64::from(kind == 1)),
                3 => seen(&[id], i64::from(self.byte()? as i8)),
                4..=6 => seen(&[id], self.zigzag()?),
                12 if depth == 0 => self.structure(1, &mut |path, value| {
                    if let [inner] = path {
                        seen(&[id, *inner], value);
                    }
                })?,
                _ => self.skip_value(kind, depth)?,
            }
        }
    }

    fn skip_value(&mut self, kind: u8, depth: u32) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind {
            1..=3 => self.skip(1),
            4..=6 => self.varint().map(|_| ()),
            7 => self.skip(8),
            8 => {
                let n = self.varint()?;
                self.skip(usize::try_from(n).ok()?)
            }
            9 | 10 => {
                let byte = self.byte()?;
                let n = match byte >> 4 {
                    15 => self.varint()?,
                    n => u64::from(n),
                };
                self.items(n, &[byte & 0x0f], depth)
            }
            11 => {
                let n = self.varint()?;
                if n == 0 {
                    return Some(());
                }
                let kinds = self.byte()?;
                self.items(n, &[kinds >> 4, kinds & 0x0f], depth)
            }
            12 => self.structure(depth + 1, &mut |_, _| {}),
            _ => None,
        }
    }

    fn items(&mut self, n: u64, kinds: &[u8], depth: u32) -> Option<()> {
        for _ in 0..n {
            for kind in kinds {
                self.skip_value(*kind, depth + 1)?;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_make_it_panic_or_hang() {
        // Every beginning of a real header with each byte changed, and short arbitrary strings.
        let header = [
            0x15, 0x00, 0x15, 0x80, 0x02, 0x15, 0x90, 0x01, 0x2c, 0x15, 0x0a, 0x15, 0x10, 0x15,
            0x06, 0x15, 0x06, 0x1c, 0x18, 0x01, 0x61, 0x18, 0x01, 0x62, 0x00, 0x00, 0x00,
        ];
        let (parsed, length) = parse(&header).unwrap();
        assert_eq!(length, header.len());
        assert_eq!(
            (parsed.uncompressed_bytes, parsed.compressed_bytes),
            (128, 72)
        );
        assert_eq!((parsed.n_values, parsed.encoding), (5, 8));
        for at in 0..header.len() {
            assert!(parse(&header[..at]).is_none(), "{at}");
            for byte in 0..=255 {
                let mut changed = header;
                changed[at] = byte;
                parse(&changed);
            }
        }
    }
}
