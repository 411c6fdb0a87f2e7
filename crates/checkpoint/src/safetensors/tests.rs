use super::*;

const REAL: &[u8] =
    include_bytes!("../../tests/fixtures/models/folder/model-00001-of-00003.safetensors");

fn file(header: &str, n_data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + n_data, 0);
    bytes
}

fn open(bytes: &[u8]) -> Result<SafetensorsFile, SafetensorsError> {
    SafetensorsFile::parse(MappedFile::of(bytes.to_vec()))
}

#[test]
fn a_real_shard() {
    let file = open(REAL).unwrap();
    assert_eq!(file.metadata()["format"], "pt");
    let name = file.names().next().unwrap().to_owned();
    let view = file.tensor(&name).unwrap().unwrap();
    assert_eq!(view.encoding, Encoding::Bf16);
    assert_eq!(view.bytes.len(), 2 * view.n_elements());
    assert!(file.tensor("absent").is_none());
}

#[test]
fn headers_that_lie_are_refused() {
    let tensor = |dtype: &str, shape: &str, from: u64, to: u64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}}}"#)
    };
    open(&file(&tensor("F32", "[2,2]", 0, 16), 16)).unwrap();
    open(&file("{}", 0)).unwrap();
    let huge = u64::MAX;
    for (bytes, reason) in [
        (vec![], "shorter than eight"),
        (vec![0; 7], "shorter than eight"),
        (huge.to_le_bytes().to_vec(), "are allowed"),
        (1000u64.to_le_bytes().to_vec(), "truncated"),
        (file("{", 0), "EOF"),
        (file("[]", 0), "invalid"),
        (file(&tensor("F32", "[2,2]", 0, 16), 15), "truncated"),
        (file(&tensor("F32", "[2,2]", 0, 16), 17), "truncated"),
        (file(&tensor("F32", "[2,2]", 4, 20), 20), "ffset"),
        (file(&tensor("F32", "[2,2]", 16, 0), 16), "ffset"),
        (file(&tensor("F32", "[2,3]", 0, 16), 16), "shape"),
        (
            file(&tensor("F32", "[4294967296,4294967296]", 0, 16), 16),
            "verflow",
        ),
        (
            file(&tensor("F32", &format!("[{}]", u64::MAX / 4), 0, 16), 16),
            "verflow",
        ),
        (file(&tensor("F99", "[4]", 0, 16), 16), "F99"),
        (
            file(&tensor("F32", &format!("[{}1]", "1,".repeat(20)), 0, 4), 4),
            "dimensions",
        ),
        (
            file(
                r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#,
                12,
            ),
            "ffset",
        ),
    ] {
        let error = open(&bytes).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}: expected {reason}");
    }
    let bomb = format!("{{\"a\":{}", "[".repeat(1 << 20));
    assert!(open(&file(&bomb, 0)).is_err());
    // Sizes whose sum is no number of bytes must not wrap around to a small one.
    let mut entries = Vec::new();
    let step = 1u64 << 60;
    for at in 0..16u64 {
        let end = (at + 1).saturating_mul(step);
        entries.push(format!(
            r#""t{at}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{end}]}}"#,
            end - at * step,
            at * step
        ));
    }
    assert!(open(&file(&format!("{{{}}}", entries.join(",")), 0)).is_err());
}

#[test]
fn other_data_types_are_errors_of_their_tensor() {
    let file = open(&file(
        r#"{"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]}}"#,
        12,
    ))
    .unwrap();
    let error = file.tensor("a").unwrap().unwrap_err();
    assert!(error.to_string().contains("I64"), "{error}");
    assert_eq!(file.tensor("b").unwrap().unwrap().encoding, Encoding::F16);
}

#[test]
fn an_index_cannot_leave_its_folder_or_invent_tensors() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("s.safetensors"), REAL).unwrap();
    let index = folder.path().join(INDEX_NAME);
    let error = |text: &str| {
        std::fs::write(&index, text).unwrap();
        Shards::indexed(&index).unwrap_err().to_string()
    };
    for name in ["../s.safetensors", "/etc/passwd", "", "..", "a/b"] {
        let error = error(&format!(r#"{{"weight_map":{{"a":"{name}"}}}}"#));
        assert!(error.contains("not the name of a file"), "{error}");
    }
    let missing = error(r#"{"weight_map":{"nowhere":"s.safetensors"}}"#);
    assert!(missing.contains("does not hold"), "{missing}");
    assert!(error(r#"{"weight_map":{"a":"absent"}}"#).contains("absent"));
    assert!(error("{}").contains("weight_map"));
}

#[test]
fn damaged_headers_never_panic() {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let header = 8 + u64::from_le_bytes(REAL[..8].try_into().unwrap()) as usize;
    let mut n_accepted = 0;
    for _ in 0..1500 {
        let mut bytes = REAL.to_vec();
        for _ in 0..1 + random(2) {
            let at = random(header);
            // Mostly digits, so that numbers change and the syntax stays.
            bytes[at] = if random(4) > 0 && bytes[at].is_ascii_digit() {
                b'0' + random(10) as u8
            } else {
                bytes[at] ^ (1 << random(7))
            };
        }
        if random(10) == 0 {
            bytes.truncate(random(bytes.len()));
        }
        if let Ok(file) = open(&bytes) {
            n_accepted += 1;
            for name in file.names() {
                if let Some(Ok(view)) = file.tensor(name) {
                    view.to_f32().unwrap();
                }
            }
        }
    }
    assert!(n_accepted > 50, "{n_accepted}");
}
