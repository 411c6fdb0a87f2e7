//! The encoding of git's binary patches: zlib data in lines of base 85.

use std::io::{Read, Write};

const ALPHABET: &[u8; 85] =
    b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~";

/// Bytes in a full line.
const LINE_BYTES: usize = 52;

/// Appends one line's bytes to `out`, or gives `None` when the line is broken.
pub(super) fn decode_line(line: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let (&length, digits) = line.split_first()?;
    let length = match length {
        b'A'..=b'Z' => usize::from(length - b'A') + 1,
        b'a'..=b'z' => usize::from(length - b'a') + 27,
        _ => return None,
    };
    if digits.len() != length.div_ceil(4) * 5 {
        return None;
    }
    let start = out.len();
    for group in digits.chunks_exact(5) {
        let mut value: u64 = 0;
        for digit in group {
            let digit = ALPHABET.iter().position(|a| a == digit)?;
            value = value * 85 + digit as u64;
        }
        out.extend_from_slice(&u32::try_from(value).ok()?.to_be_bytes());
    }
    out.truncate(start + length);
    Some(())
}

/// Unpacks zlib data that must give exactly `size` bytes.
pub(super) fn inflate(packed: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    flate2::read::ZlibDecoder::new(packed)
        .take(size as u64 + 1)
        .read_to_end(&mut content)
        .ok()?;
    (content.len() == size).then_some(content)
}

/// Writes a `literal` part with its closing empty line.
pub(super) fn write_literal(content: &[u8], out: &mut Vec<u8>) {
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    let packed = encoder
        .write_all(content)
        .and_then(|()| encoder.finish())
        .expect("packing into memory succeeds");
    out.extend_from_slice(format!("literal {}\n", content.len()).as_bytes());
    write_lines(&packed, out);
}

/// Writes already unpacked delta instructions as a `delta` part.
pub(super) fn write_delta(delta: &[u8], out: &mut Vec<u8>) {
    let at = out.len();
    write_literal(delta, out);
    out.splice(at..at + b"literal".len(), *b"delta");
}

fn write_lines(packed: &[u8], out: &mut Vec<u8>) {
    for line in packed.chunks(LINE_BYTES) {
        let length = line.len() as u8;
        out.push(if length <= 26 {
            b'A' + length - 1
        } else {
            b'a' + length - 27
        });
        for group in line.chunks(4) {
            let mut bytes = [0u8; 4];
            bytes[..group.len()].copy_from_slice(group);
            let mut value = u32::from_be_bytes(bytes);
            let mut digits = [0u8; 5];
            for digit in digits.iter_mut().rev() {
                *digit = ALPHABET[(value % 85) as usize];
                value /= 85;
            }
            out.extend_from_slice(&digits);
        }
        out.push(b'\n');
    }
    out.push(b'\n');
}

/// Runs git's delta instructions on `base`; `None` when they are broken or exceed `limit` bytes.
pub(super) fn apply_delta(base: &[u8], delta: &[u8], limit: usize) -> Option<Vec<u8>> {
    let mut rest = delta;
    if varint(&mut rest)? != base.len() {
        return None;
    }
    let size = varint(&mut rest)?;
    if size > limit {
        return None;
    }
    let mut out = Vec::with_capacity(size);
    while let Some((&op, after)) = rest.split_first() {
        rest = after;
        if op & 0x80 != 0 {
            let (mut offset, mut length) = (0usize, 0usize);
            for bit in 0..7 {
                if op & (1 << bit) != 0 {
                    let (&byte, after) = rest.split_first()?;
                    rest = after;
                    if bit < 4 {
                        offset |= usize::from(byte) << (8 * bit);
                    } else {
                        length |= usize::from(byte) << (8 * (bit - 4));
                    }
                }
            }
            let length = if length == 0 { 0x10000 } else { length };
            out.extend_from_slice(base.get(offset..offset.checked_add(length)?)?);
        } else if op != 0 {
            let length = usize::from(op);
            out.extend_from_slice(rest.get(..length)?);
            rest = &rest[length..];
        } else {
            return None;
        }
        if out.len() > size {
            return None;
        }
    }
    (out.len() == size).then_some(out)
}

fn varint(rest: &mut &[u8]) -> Option<usize> {
    let mut value = 0usize;
    for shift in (0..56).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}
