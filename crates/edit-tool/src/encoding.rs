//! The encodings that the tool reads and writes.

#[derive(Clone, Copy, PartialEq)]
pub enum Encoding {
    Utf8,
    Utf8Sig,
    Ascii,
    Latin1,
    /// With a byte order mark that decides.
    Utf16,
    Utf16Le,
    Utf16Be,
}

impl Encoding {
    pub fn by_name(name: &str) -> Option<Self> {
        let name: String = name
            .chars()
            .map(|c| match c {
                c if c.is_ascii_alphanumeric() => c.to_ascii_lowercase(),
                _ => '_',
            })
            .collect();
        Some(match name.as_str() {
            "utf_8" | "utf8" | "u8" | "utf" => Encoding::Utf8,
            "utf_8_sig" | "utf8_sig" => Encoding::Utf8Sig,
            "ascii" | "us_ascii" | "646" => Encoding::Ascii,
            "latin_1" | "latin1" | "latin" | "l1" | "iso_8859_1" | "iso8859_1" | "8859"
            | "cp819" => Encoding::Latin1,
            "utf_16" | "utf16" | "u16" => Encoding::Utf16,
            "utf_16_le" | "utf_16le" => Encoding::Utf16Le,
            "utf_16_be" | "utf_16be" => Encoding::Utf16Be,
            _ => return None,
        })
    }

    pub fn decode(self, bytes: &[u8]) -> Option<String> {
        match self {
            Encoding::Utf8 => std::str::from_utf8(bytes).ok().map(str::to_owned),
            Encoding::Utf8Sig => {
                let text = std::str::from_utf8(bytes).ok()?;
                Some(text.strip_prefix('\u{feff}').unwrap_or(text).to_owned())
            }
            Encoding::Ascii => bytes
                .is_ascii()
                .then(|| String::from_utf8_lossy(bytes).into_owned()),
            Encoding::Latin1 => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
            Encoding::Utf16 => {
                let big_endian = bytes.starts_with(&[0xfe, 0xff]);
                let marked = big_endian || bytes.starts_with(&[0xff, 0xfe]);
                decode_utf16(&bytes[if marked { 2 } else { 0 }..], big_endian)
            }
            Encoding::Utf16Le => decode_utf16(bytes, false),
            Encoding::Utf16Be => decode_utf16(bytes, true),
        }
    }

    /// Whether a file lacks the byte order mark that decides how to read it.
    pub fn lacks_mark(self, bytes: &[u8]) -> bool {
        let marked = bytes.starts_with(&[0xfe, 0xff]) || bytes.starts_with(&[0xff, 0xfe]);
        self == Encoding::Utf16 && bytes.len() >= 2 && !marked
    }

    /// The text as bytes; a mark that the original has is kept.
    pub fn encode(self, text: &str, original: &[u8]) -> Option<Vec<u8>> {
        match self {
            Encoding::Utf8 => Some(text.as_bytes().to_vec()),
            Encoding::Utf8Sig => Some(["\u{feff}".as_bytes(), text.as_bytes()].concat()),
            Encoding::Ascii => text.is_ascii().then(|| text.as_bytes().to_vec()),
            Encoding::Latin1 => text.chars().map(|c| u8::try_from(c).ok()).collect(),
            Encoding::Utf16 => {
                let big_endian = original.starts_with(&[0xfe, 0xff]);
                let mark = if big_endian {
                    [0xfe, 0xff]
                } else {
                    [0xff, 0xfe]
                };
                Some([&mark[..], &encode_utf16(text, big_endian)].concat())
            }
            Encoding::Utf16Le => Some(encode_utf16(text, false)),
            Encoding::Utf16Be => Some(encode_utf16(text, true)),
        }
    }
}

fn decode_utf16(bytes: &[u8], big_endian: bool) -> Option<String> {
    let (pairs, rest) = bytes.as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    let units = pairs.iter().map(|pair| match big_endian {
        true => u16::from_be_bytes(*pair),
        false => u16::from_le_bytes(*pair),
    });
    char::decode_utf16(units).collect::<Result<_, _>>().ok()
}

fn encode_utf16(text: &str, big_endian: bool) -> Vec<u8> {
    text.encode_utf16()
        .flat_map(|unit| match big_endian {
            true => unit.to_be_bytes(),
            false => unit.to_le_bytes(),
        })
        .collect()
}
