//! Properties of all kinds on real code, checked with CPython, and hostile sources.

use std::{
    io::Write,
    process::{Command, Stdio},
    time::Instant,
};

use temper_core::patch;

use super::*;

fn path(text: &str) -> TreePath {
    text.parse().unwrap()
}

/// Every `step`-th file of the standard library that is neither long nor a test.
fn library(step: usize, max_bytes: u64) -> BTreeMap<TreePath, Entry> {
    let output = Command::new("python3")
        .args([
            "-c",
            "import sysconfig; print(sysconfig.get_path('stdlib'))",
        ])
        .output()
        .expect("Python is installed where these tests run");
    let root = String::from_utf8(output.stdout).unwrap();
    let root = std::path::Path::new(root.trim());
    let mut names = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.path().strip_prefix(root).unwrap().to_owned();
            let name = name.to_str().unwrap().to_owned();
            let left_out = [
                "test",
                "tests",
                "site-packages",
                "idlelib",
                "lib2to3",
                "turtledemo",
            ];
            if entry.file_type().unwrap().is_dir() {
                if !left_out
                    .iter()
                    .any(|part| name.split('/').any(|p| p == *part))
                {
                    open.push(entry.path());
                }
            } else if name.ends_with(".py") && entry.metadata().unwrap().len() < max_bytes {
                names.push(name);
            }
        }
    }
    names.sort();
    names
        .iter()
        .step_by(step)
        .map(|name| {
            let content = std::fs::read(root.join(name)).unwrap();
            (
                path(format!("{}/{name}", root.display()).trim_start_matches('/')),
                Entry::file(content),
            )
        })
        .collect()
}

fn content(entry: &Entry) -> &[u8] {
    match entry {
        Entry::File { content, .. } => content,
        Entry::Symlink { .. } => panic!("no file"),
    }
}

/// Applies a candidate, checks all that needs no Python, and returns the change as one edit.
fn checked(files: &BTreeMap<TreePath, Entry>, candidate: &Candidate) -> (TreePath, Edit) {
    let applied = patch::apply(&candidate.patch, &mut |path| files.get(path).cloned()).unwrap();
    let (path, after) = applied.changes.first_key_value().unwrap();
    let (before, after) = (content(&files[path]), content(after.as_ref().unwrap()));
    assert_ne!(before, after);
    let reverse = patch::reverse(&candidate.patch).unwrap();
    let back = patch::apply(&reverse, &mut |_| Some(Entry::file(after))).unwrap();
    assert_eq!(content(back.changes[path].as_ref().unwrap()), before);
    // What no place names is still there, in order.
    let mut lines = after.split_inclusive(|byte| *byte == b'\n');
    for (at, line) in before.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let number = at as u32 + 1;
        let is_named = |place: &temper_core::Place| {
            place.file == *path && (place.first_line..=place.last_line).contains(&number)
        };
        if !candidate.places.iter().any(is_named) {
            assert!(
                lines.any(|other| other == line),
                "{} changes line {number} of {path} too",
                candidate.kind
            );
        }
    }
    let prefix = before.iter().zip(after).take_while(|(a, b)| a == b).count();
    let mut prefix = prefix;
    let text = std::str::from_utf8(before).unwrap();
    while !text.is_char_boundary(prefix) {
        prefix -= 1;
    }
    let mut suffix = before[prefix..]
        .iter()
        .rev()
        .zip(after[prefix..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    while !text.is_char_boundary(before.len() - suffix) {
        suffix -= 1;
    }
    let new = String::from_utf8(after[prefix..after.len() - suffix].to_vec()).unwrap();
    (path.clone(), Edit::new(prefix..before.len() - suffix, new))
}

fn check_with_python(files: &BTreeMap<TreePath, Entry>, candidates: &[Candidate]) {
    type Named<'a> = (Option<&'a str>, u32, u32);
    type Change<'a> = (usize, usize, String, &'a str, Vec<Named<'a>>);
    let mut by_file: BTreeMap<String, Vec<Change<'_>>> = BTreeMap::new();
    for candidate in candidates {
        let (path, edit) = checked(files, candidate);
        let places = candidate
            .places
            .iter()
            .map(|place| (place.function.as_deref(), place.first_line, place.last_line))
            .collect();
        by_file.entry(format!("/{path}")).or_default().push((
            edit.start,
            edit.end,
            edit.text,
            &candidate.kind,
            places,
        ));
    }
    let input: Vec<_> = by_file.into_iter().collect();
    let mut child = Command::new("python3")
        .args(["-c", include_str!("check.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = serde_json::to_vec(&input).unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    let complaints = String::from_utf8(output.stdout).unwrap();
    assert_eq!(complaints, "");
}

#[test]
fn all_kinds_hold_their_properties_on_real_code() {
    let files = library(7, 25_000);
    let options = Options {
        seed: 11,
        max_per_kind: Some(25),
        n_workers: 2,
        ..Options::default()
    };
    let synthesis = synthesize(&files, &options).unwrap();
    assert_eq!(synthesis.n_invalid, 0);
    // Only what declares another encoding or is beyond the grammar is left out.
    assert!(
        synthesis.skipped.len() * 50 <= files.len(),
        "{:#?}",
        synthesis.skipped
    );
    let seen: BTreeSet<&str> = synthesis
        .candidates
        .iter()
        .map(|c| c.kind.as_str())
        .collect();
    let names: BTreeSet<&str> = kinds().iter().map(|kind| kind.name).collect();
    assert_eq!(seen, names);
    check_with_python(&files, &synthesis.candidates);

    let again = synthesize(
        &files,
        &Options {
            n_workers: 1,
            ..options.clone()
        },
    )
    .unwrap();
    assert_eq!(again, synthesis);
    let other = synthesize(
        &files,
        &Options {
            seed: 12,
            ..options
        },
    )
    .unwrap();
    assert_ne!(other.candidates, synthesis.candidates);
}

#[test]
fn limits_hold_and_what_is_taken_is_spread() {
    let files = library(20, 30_000);
    let options = Options {
        max_per_function: Some(2),
        max_per_file: Some(9),
        max_per_kind: Some(12),
        max_candidates: Some(150),
        ..Options::default()
    };
    let candidates = synthesize(&files, &options).unwrap().candidates;
    assert_eq!(candidates.len(), 150);
    let mut by_file: BTreeMap<_, usize> = BTreeMap::new();
    let mut by_kind: BTreeMap<_, usize> = BTreeMap::new();
    for candidate in &candidates {
        *by_file.entry(&candidate.places[0].file).or_default() += 1;
        *by_kind.entry(&candidate.kind).or_default() += 1;
    }
    assert!(by_file.values().all(|count| *count <= 9), "{by_file:?}");
    assert!(by_kind.values().all(|count| *count <= 12), "{by_kind:?}");
    assert!(
        by_kind.len() > 25 && by_file.len() > 12,
        "{by_kind:?} {by_file:?}"
    );
    let patches: BTreeSet<_> = candidates.iter().map(|c| c.patch.digest()).collect();
    assert_eq!(patches.len(), candidates.len());
}

#[test]
fn bytes_are_kept_whatever_the_layout() {
    let lines = [
        "# -*- coding: utf-8 -*-",
        "class A:",
        "\tdef f(self, a, b):",
        "\t\t\"\"\"Über.\"\"\"",
        "\t\tif a is None: return 'ü'",
        "\t\tfor c in b: a += c; b = [c]",
        "\t\treturn a < 1, b",
    ];
    for (newline, last) in [("\n", ""), ("\r\n", ""), ("\n", "\n"), ("\r\n", "\r\n")] {
        let text = lines.join(newline) + last;
        let files = BTreeMap::from([(path("a.py"), Entry::file(text))]);
        let candidates = synthesize(&files, &Options::default()).unwrap().candidates;
        assert!(candidates.len() > 10);
        for candidate in &candidates {
            let (_, edit) = checked(&files, candidate);
            assert!(!edit.text.contains('\n') || edit.text.contains(newline));
            assert_eq!(candidate.places[0].function.as_deref(), Some("A.f"));
        }
    }
}

#[test]
fn what_is_not_read_is_named_with_its_reason() {
    let files: BTreeMap<TreePath, Entry> = [
        ("cookie.py", &b"# coding: latin-1\nx = 1\n"[..]),
        ("bytes.py", b"x = '\xff'\n"),
        ("nul.py", b"x = 1\0\n"),
        ("mac.py", b"x = 1\ry = 2\r"),
        ("two.py", b"print >>f, 'x'\nexec 'x' in y z\n"),
        ("fine.py", b"def f(a):\n    return a + 1\n"),
        ("data.txt", b"\xff"),
    ]
    .into_iter()
    .map(|(name, text)| (path(name), Entry::file(text)))
    .collect();
    let synthesis = synthesize(&files, &Options::default()).unwrap();
    let skipped: Vec<String> = synthesis
        .skipped
        .iter()
        .map(|skipped| format!("{}: {}", skipped.file, skipped.reason))
        .collect();
    assert_eq!(
        skipped,
        [
            "bytes.py: read Python as UTF-8: byte 5 is not",
            "cookie.py: read Python as UTF-8: it declares the encoding latin-1",
            "mac.py: read Python: it holds a carriage return without a newline at byte 5",
            "nul.py: read Python: it holds NUL at byte 5",
            "two.py: parse Python: line 2 is not valid",
        ]
    );
    assert!(!synthesis.candidates.is_empty());
}

#[test]
fn options_without_sense_are_refused() {
    let none = BTreeMap::new();
    let unknown = Options {
        kinds: Some(BTreeSet::from(["boundry".into()])),
        ..Options::default()
    };
    let error = synthesize(&none, &unknown).unwrap_err();
    assert!(error.hint().unwrap().contains("boundary"), "{error}");
    let likelihood = Options {
        likelihood: BTreeMap::from([("boundary".into(), 1.5)]),
        ..Options::default()
    };
    assert!(synthesize(&none, &likelihood).is_err());
}

#[test]
fn hostile_sources_end_soon_and_without_a_panic() {
    let mut sources: Vec<Vec<u8>> = vec![
        "(".repeat(10_000).into_bytes(),
        format!("x = {}1{}\n", "(".repeat(10_000), ")".repeat(10_000)).into_bytes(),
        format!("def f(a):\n    return {}a\n", "not ".repeat(3_000)).into_bytes(),
        format!("def f(a):\n    return {}1\n", "a < ".repeat(3_000)).into_bytes(),
        format!("def f(a):\n    return {}1\n", "a + ".repeat(3_000)).into_bytes(),
        format!("def f(a):\n    {}\n", "a = 1;".repeat(3_000)).into_bytes(),
        format!("def f(a):\n{}", "    a = b\n".repeat(3_000)).into_bytes(),
        format!("def f(a):\n    x = [{}]\n", "1,".repeat(3_000)).into_bytes(),
        (0..2_000)
            .map(|depth| format!("{}if a:\n", " ".repeat(depth)))
            .collect::<String>()
            .into_bytes(),
        (0..300)
            .map(|depth| format!("{}class A:\n", " ".repeat(depth)))
            .collect::<String>()
            .into_bytes(),
        b"f'{f\"{".repeat(2_000),
        b"\"\"\"".repeat(1_001),
        b"\\\n".repeat(10_000),
    ];
    let mut coin = Coin::new(5, 0.5);
    let words = [
        "def", "f", "(", ")", ":", "\n", "    ", "\t", "if", "else", "return", "=", "1", "'", "[",
        "]", "for", "in", "\r\n", "é", "try", "except", "with", "lambda", "await", "*", "\\", "{",
        "}", "class",
    ];
    for _ in 0..60 {
        let length = coin.below(400);
        sources.push((0..length).map(|_| coin.below(256) as u8).collect());
        let soup: Vec<&str> = (0..length).map(|_| coin.pick(&words)).collect();
        sources.push(soup.join(" ").into_bytes());
    }
    // Real code, cut off or with bytes changed.
    for entry in library(60, 20_000).values() {
        let mut text = content(entry).to_vec();
        text.truncate(coin.below(text.len() + 1));
        sources.push(text.clone());
        for _ in 0..5 {
            let at = coin.below(text.len().max(1));
            if let Some(byte) = text.get_mut(at) {
                *byte = coin.pick(b"():'\"\n #=x0");
            }
        }
        sources.push(text);
    }
    let options = Options {
        max_per_file: Some(30),
        ..Options::default()
    };
    for source in sources {
        let begun = Instant::now();
        let shown = String::from_utf8_lossy(&source[..source.len().min(80)]).into_owned();
        let files = BTreeMap::from([(path("a.py"), Entry::file(source))]);
        let synthesis = synthesize(&files, &options).unwrap();
        for candidate in &synthesis.candidates {
            checked(&files, candidate);
        }
        assert!(
            begun.elapsed().as_secs() < 60,
            "{shown:?} takes {:?}",
            begun.elapsed()
        );
    }
}

#[test]
fn names_of_files_say_what_is_source() {
    for (name, is_source) in [
        ("a.py", true),
        ("src/pkg/sub/mod.py", true),
        ("pkg/testutils.py", true),
        ("pkg/tests/helper.py", false),
        ("pkg/test_a.py", false),
        ("pkg/a_test.py", false),
        ("conftest.py", false),
        ("setup.py", false),
        ("docs/conf.py", false),
        ("pkg/a.pyi", false),
    ] {
        assert_eq!(is_source_path(&path(name)), is_source, "{name}");
    }
}
