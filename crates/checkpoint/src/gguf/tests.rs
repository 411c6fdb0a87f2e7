use super::*;
use crate::config::RopeScaling;

const LLAMA: &[u8] = include_bytes!("../../tests/fixtures/models/llama.gguf");
const QWEN2: &[u8] = include_bytes!("../../tests/fixtures/models/qwen2.gguf");

/// Builds headers as the format describes them.
#[derive(Default)]
struct File {
    bytes: Vec<u8>,
}

impl File {
    fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        let mut file = File::default();
        file.bytes.extend(b"GGUF");
        file.u32(version).u64(n_tensors).u64(n_keys);
        file
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    fn text(&mut self, text: &str) -> &mut Self {
        self.u64(text.len() as u64);
        self.bytes.extend(text.as_bytes());
        self
    }

    fn tensor(&mut self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.text(name).u32(sizes.len() as u32);
        for size in sizes {
            self.u64(*size);
        }
        self.u32(kind).u64(offset)
    }

    /// Pads to the alignment and adds `n` bytes of data.
    fn data(&mut self, n: usize) -> &mut Self {
        let start = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(start + n, 0);
        self
    }

    fn error(&self) -> String {
        match header::parse(&self.bytes) {
            Ok(header) => panic!("accepted: {header:?}"),
            Err(error) => error.at(Path::new("f.gguf")).to_string(),
        }
    }
}

fn open(bytes: &[u8]) -> Gguf {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    // The file is gone afterwards and its map remains.
    Gguf::open(&path).unwrap()
}

#[test]
fn metadata_of_a_file_made_by_the_python_writer() {
    let gguf = open(LLAMA);
    assert_eq!(gguf.string("general.architecture").unwrap(), Some("llama"));
    assert_eq!(gguf.unsigned("llama.context_length").unwrap(), Some(131072));
    assert_eq!(gguf.float("llama.rope.freq_base").unwrap(), Some(500000.0));
    assert_eq!(gguf.string("absent").unwrap(), None);
    let tokens = gguf.array("tokenizer.ggml.tokens").unwrap().unwrap();
    assert_eq!(tokens.len(), 40);
    let tokens: Vec<&str> = tokens.iter().map(|value| value.as_str().unwrap()).collect();
    assert_eq!((tokens[0], tokens[39]), ("t0é", "t39é"));
    let kinds = gguf.array("tokenizer.ggml.token_type").unwrap().unwrap();
    assert_eq!(kinds.iter().filter_map(Value::as_u64).sum::<u64>(), 40);
    let error = gguf.unsigned("general.architecture").unwrap_err();
    let error = error.to_string();
    assert!(
        error.ends_with("general.architecture is \"llama\", expected a whole number"),
        "{error}"
    );
    assert_eq!(gguf.encodings()["Q8_0"], 2 * 40 * 64 + 64 * 64);
}

#[test]
fn configurations() {
    let config = open(LLAMA).config().unwrap();
    assert_eq!(
        (
            config.hidden_size,
            config.n_heads,
            config.n_kv_heads,
            config.head_dim
        ),
        (64, 4, 2, 16)
    );
    assert_eq!((config.vocab_size, config.n_layers), (40, 1));
    assert_eq!(config.rms_norm_eps, 1e-5);
    assert!(!config.tie_word_embeddings);
    assert_eq!(config.bos_token_id, Some(1));
    assert_eq!(config.eos_token_ids, [2, 3]);
    // Its factors are Llama 3.1's, and config.json says so.
    assert!(
        matches!(&config.rope.scaling, RopeScaling::PerFrequency { factors } if factors.len() == 8)
    );
    let written = config.to_json("float32").unwrap();
    assert_eq!(written["rope_scaling"]["factor"], 8.0);
    assert_eq!(written["rms_norm_eps"], 1e-5);

    let config = open(QWEN2).config().unwrap();
    assert!(config.qkv_bias && config.tie_word_embeddings);
    assert!(matches!(
        config.rope.scaling,
        RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 64,
            attention_factor: None,
            ..
        }
    ));
}

/// Rows numbered by what they are must come out in the order of halves, whatever a row's bytes.
#[test]
fn rows_for_neighbours_become_rows_for_halves() {
    // Two heads of width 6: the file holds (pair, half) pairs side by side.
    let stored: Vec<u8> = [0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15]
        .into_iter()
        .flat_map(|row| [row, 100 + row])
        .collect();
    let expected: Vec<u8> = [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
        .into_iter()
        .flat_map(|row| [row, 100 + row])
        .collect();
    assert_eq!(rows_by_halves(&stored, 12, 6), expected);
}

#[test]
fn other_files_and_versions_are_named() {
    let error = |bytes: &[u8]| {
        header::parse(bytes)
            .unwrap_err()
            .at(Path::new("f"))
            .to_string()
    };
    assert!(error(b"").contains("no GGUF file"));
    assert!(error(b"PK\x03\x04zip").contains("no GGUF file"));
    assert!(File::new(1, 0, 0).error().contains("GGUF 1"));
    assert!(
        File::new(3u32.swap_bytes(), 0, 0)
            .error()
            .contains("big-endian")
    );
    assert!(header::parse(&File::new(2, 0, 0).bytes).is_ok());
    let mut part = File::new(3, 0, 1);
    part.text("split.count")
        .u32(2)
        .bytes
        .extend(4u16.to_le_bytes());
    assert!(part.error().contains("one of 4 parts"));
    let error = File::new(3, 1, 0)
        .tensor("t", &[256], 23, 0)
        .data(200)
        .error();
    assert!(error.contains("IQ4_XS"), "{error}");
}

#[test]
fn headers_that_lie_are_refused() {
    let tensor = |sizes: &[u64], kind: u32, offset: u64, n: usize| {
        let mut file = File::new(3, 1, 0);
        file.tensor("t", sizes, kind, offset).data(n);
        file
    };
    header::parse(&tensor(&[32, 2], 2, 0, 36).bytes).unwrap();
    for (file, reason) in [
        (File::new(3, u64::MAX, 0), "tensors are announced"),
        (File::new(3, 0, u64::MAX), "metadata keys are announced"),
        (File::new(3, 1000, 0), "are left"),
        (tensor(&[32, 2], 2, 0, 35), "may be truncated"),
        (tensor(&[32, 2], 2, 32, 36), "may be truncated"),
        (tensor(&[32, 2], 2, 16, 100), "alignment"),
        (tensor(&[33], 2, 0, 100), "blocks"),
        (tensor(&[1 << 32, 1 << 32], 0, 0, 64), "sizes"),
        (tensor(&[1 << 62], 0, 0, 64), "does not fit"),
        (tensor(&[8], 0, u64::MAX - 31, 64), "begins at"),
        (tensor(&[4, 0], 0, 0, 64), "sizes"),
        (tensor(&[1; 5], 0, 0, 64), "5 dimensions"),
        (tensor(&[4], 99, 0, 64), "type 99"),
    ] {
        let error = file.error();
        assert!(error.contains(reason), "{error}: expected {reason}");
    }
    let mut overlapping = File::new(3, 2, 0);
    overlapping
        .tensor("a", &[16], 0, 0)
        .tensor("b", &[16], 0, 32)
        .data(96);
    assert!(overlapping.error().contains("overlap"));
    let mut twice = File::new(3, 2, 0);
    twice
        .tensor("a", &[8], 0, 0)
        .tensor("a", &[8], 0, 32)
        .data(64);
    assert!(twice.error().contains("twice"));
    for alignment in [0u32, 3, 1 << 30] {
        let mut file = File::new(3, 0, 1);
        file.text("general.alignment").u32(4).u32(alignment);
        assert!(file.error().contains("alignment"));
    }
}

#[test]
fn metadata_that_lies_is_refused() {
    let key = |fill: &dyn Fn(&mut File)| {
        let mut file = File::new(3, 0, 1);
        file.text("k");
        fill(&mut file);
        file
    };
    for (file, reason) in [
        (
            key(&|f| {
                f.u32(8).u64(u64::MAX);
            }),
            "are left",
        ),
        (
            key(&|f| {
                f.u32(13);
            }),
            "unknown type 13",
        ),
        (
            key(&|f| {
                f.u32(9).u32(10).u64(u64::MAX / 4);
            }),
            "a list of",
        ),
        (
            key(&|f| {
                f.u32(9).u32(0).u64(1 << 40);
            }),
            "are left",
        ),
        (
            key(&|f| {
                f.u32(9).u32(8).u64(1 << 40);
            }),
            "are left",
        ),
        // A list of one list of one list …
        (
            key(&|f| {
                f.u32(9);
                for _ in 0..100_000 {
                    f.u32(9).u64(1);
                }
            }),
            "too deep",
        ),
        (
            {
                let mut file = File::new(3, 0, 2);
                file.text("k").u32(4).u32(1).text("k").u32(4).u32(1);
                file
            },
            "twice",
        ),
    ] {
        let error = file.error();
        assert!(error.contains(reason), "{error}: expected {reason}");
    }
    let mut bytes = File::new(3, 0, 1);
    bytes.u64(2).bytes.extend([0xff, 0xfe]);
    assert!(bytes.error().contains("UTF-8"));
}

/// Whatever happens to the bytes of a real header, the outcome is an error or a header whose
/// ranges lie in the file.
#[test]
fn damaged_headers_never_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let (mut n_refused, mut n_accepted) = (0, 0);
    for round in 0..4000 {
        let original = if round % 2 == 0 { LLAMA } else { QWEN2 };
        let mut bytes = original.to_vec();
        for _ in 0..1 + random(3) {
            let at = random(2600);
            match random(4) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] ^= 1 << random(8),
                2 => {
                    bytes[at..at + 8].copy_from_slice(&(u64::MAX - random(3) as u64).to_le_bytes())
                }
                _ => bytes.truncate(random(bytes.len())),
            }
            if bytes.len() < 2700 {
                break;
            }
        }
        match header::parse(&bytes) {
            Err(_) => n_refused += 1,
            Ok(header) => {
                n_accepted += 1;
                for info in header.tensors.values() {
                    assert!(info.range.start <= info.range.end && info.range.end <= bytes.len());
                }
                for entry in header.metadata.values() {
                    let value = header::value(entry.kind, &bytes[entry.range.clone()]);
                    if let Value::Array(array) = value {
                        assert_eq!(array.iter().count(), array.len());
                    }
                }
                let gguf = Gguf {
                    file: MappedFile::of(bytes),
                    header,
                };
                if let Ok(config) = gguf.config() {
                    config.to_json("float32").ok();
                    for name in config.tensor_names() {
                        gguf.tensor(name, &config);
                    }
                }
            }
        }
    }
    assert!(
        n_refused > 100 && n_accepted > 100,
        "{n_refused} {n_accepted}"
    );
}

#[test]
fn the_vocabulary() {
    let vocabulary = open(LLAMA).vocabulary().unwrap().unwrap();
    assert_eq!(
        (vocabulary.model.as_str(), vocabulary.tokens.len()),
        ("gpt2", 40)
    );
    assert_eq!(vocabulary.merges, ["a b", "c d"]);
    assert_eq!(
        (vocabulary.bos, vocabulary.eot, vocabulary.eom),
        (Some(1), Some(3), None)
    );
    assert_eq!(vocabulary.chat_template, None);
    let mut file = File::new(3, 0, 2);
    file.text("tokenizer.ggml.model").u32(8).text("gpt2");
    file.text("tokenizer.ggml.tokens")
        .u32(9)
        .u32(4)
        .u64(1)
        .u32(7);
    let gguf = Gguf {
        header: header::parse(&file.bytes).unwrap(),
        file: MappedFile::of(file.bytes),
    };
    let error = gguf.vocabulary().unwrap_err().to_string();
    assert!(
        error.contains("tokens is a list with 7, expected texts"),
        "{error}"
    );
}
