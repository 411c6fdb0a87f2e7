//! Rows as pyarrow wrote them, and files that are damaged or made to hurt.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    path::{Path, PathBuf},
};

use temper_dataset::{
    formats::parquet::MessagesWriter,
    rows::{MAX_ROW_BYTES, RowFault, RowReader},
};

type Plain = (Option<String>, Vec<(String, String)>);

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet")
}

fn read(path: &Path) -> Vec<Plain> {
    let mut reader = RowReader::open(path).unwrap();
    let mut rows = Vec::new();
    while let Some(raw) = reader.next_row().unwrap() {
        let row = raw.parse().unwrap();
        rows.push((
            row.instance_id.map(|id| id.into_owned()),
            row.messages
                .into_iter()
                .map(|message| (message.role.into_owned(), message.content.into_owned()))
                .collect(),
        ));
    }
    rows
}

fn expected() -> Vec<Plain> {
    fs::read_to_string(fixtures().join("rows.jsonl"))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn every_way_of_writing_reads_the_same() {
    let expected = expected();
    assert_eq!(expected.len(), 300);
    let mut n_files = 0;
    for entry in fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            assert_eq!(read(&path), expected, "{}", path.display());
            n_files += 1;
        }
    }
    assert_eq!(n_files, 8);
}

#[test]
fn what_is_written_here_reads_the_same() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.parquet");
    let expected = expected();
    let mut writer = MessagesWriter::new(fs::File::create(&path).unwrap()).unwrap();
    for (id, messages) in &expected {
        let messages = messages
            .iter()
            .map(|(role, content)| (role.as_str(), content.as_str()));
        writer.row(id.as_deref(), messages).unwrap();
    }
    writer.finish().unwrap();
    assert_eq!(read(&path), expected);
}

#[test]
fn no_damage_makes_the_reader_panic() {
    // Each file with one byte changed, or cut, at places spread over it.
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("damaged.parquet");
    let mut n_errors = 0;
    for name in ["small-pages", "version-2", "delta", "dictionary-overflow"] {
        let whole = fs::read(fixtures().join(format!("{name}.parquet"))).unwrap();
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) as usize % below
        };
        for attempt in 0..200 {
            let mut bytes = whole.clone();
            if attempt % 10 == 9 {
                bytes.truncate(random(bytes.len()));
            } else {
                let at = random(bytes.len());
                bytes[at] = random(256) as u8;
            }
            fs::write(&path, &bytes).unwrap();
            let Ok(mut reader) = RowReader::open(&path) else {
                n_errors += 1;
                continue;
            };
            loop {
                match reader.next_row() {
                    Ok(Some(row)) => {
                        let _ = row.parse();
                    }
                    Ok(None) => break,
                    Err(_) => {
                        n_errors += 1;
                        break;
                    }
                }
            }
        }
    }
    assert!(n_errors > 150, "{n_errors}");
}

#[test]
fn lines_that_are_no_rows_are_faults_and_reading_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.jsonl");
    let lines = [
        r#"{"instance_id":"a","messages":[]}"#.to_owned(),
        String::new(),
        r#"{"messages":3}"#.to_owned(),
        r#"{"instance_id":null,"messages":[{"role":"user","content":null,"x":[[[1]]]}]}"#
            .to_owned(),
        "[".repeat(100_000),
        format!("{{\"messages\":\"{}\"}}", "x".repeat(MAX_ROW_BYTES)),
        format!("{{\"messages\":[{}{{}}]}}", "{},".repeat(100_001)),
        r#"{"messages":[],"messages":[]}"#.to_owned(),
        r#"{"instance_id":"z","messages":[{"role":"user","content":"\u00e9\ud83d\ude00"}]}"#
            .to_owned(),
    ];
    fs::write(&path, lines.join("\n")).unwrap();
    let mut reader = RowReader::open(&path).unwrap();
    let mut seen = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        seen.push(match row.parse() {
            Ok(row) => format!("{} messages", row.messages.len()),
            Err(RowFault::Json { .. }) => "json".to_owned(),
            Err(RowFault::TooLong { .. }) => "too long".to_owned(),
            Err(RowFault::TooManyMessages) => "too many".to_owned(),
            Err(RowFault::Encoding) => "encoding".to_owned(),
        });
    }
    assert_eq!(
        seen,
        [
            "0 messages",
            "json",
            "1 messages",
            "json",
            "too long",
            "too many",
            "json",
            "1 messages"
        ]
    );
}

#[test]
fn rows_of_a_column_that_are_too_large_are_faults_and_reading_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.parquet");
    let mut writer = MessagesWriter::new(fs::File::create(&path).unwrap()).unwrap();
    let long = "a".repeat(MAX_ROW_BYTES + 1);
    writer.row(Some("long"), [("user", long.as_str())]).unwrap();
    let many = std::iter::repeat_n(("user", ""), 200_000);
    writer.row(Some("many"), many).unwrap();
    writer.row(Some("good"), [("user", "x")]).unwrap();
    writer.finish().unwrap();
    // A few kilobytes stand for all of it.
    assert!(fs::metadata(&path).unwrap().len() < 50_000);
    let mut reader = RowReader::open(&path).unwrap();
    let mut next = || reader.next_row().unwrap().unwrap();
    let n_bytes = (MAX_ROW_BYTES + 1 + "long".len() + "user".len()) as u64;
    assert_eq!(next().parse().unwrap_err(), RowFault::TooLong { n_bytes });
    assert_eq!(next().parse().unwrap_err(), RowFault::TooManyMessages);
    assert_eq!(next().parse().unwrap().instance_id.unwrap(), "good");
    assert!(reader.next_row().unwrap().is_none());
}

#[test]
fn other_files_are_refused_with_what_they_lack() {
    let directory = tempfile::tempdir().unwrap();
    for (bytes, words) in [
        (&b"[{\"messages\":[]}]"[..], "one JSON list"),
        (b"PAR1PAR1", "damaged"),
        (b"PAR1\xff\xff\xff\x7fPAR1", "damaged"),
    ] {
        let path = directory.path().join("file");
        fs::write(&path, bytes).unwrap();
        let error = RowReader::open(&path).err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.hint().unwrap().contains("instance_id"));
    }
}
