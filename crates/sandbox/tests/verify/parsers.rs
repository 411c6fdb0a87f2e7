//! Log parsers against what pytest itself reported, and against the real SWE-bench and SWE-smith
//! parsers. `fixtures/parsers/make.py` made the logs and the golden results.

use std::{collections::BTreeMap, path::PathBuf};

use temper_sandbox::verify::parsers::{self, Status, StatusMap};

fn fixtures() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parsers")
}

fn parse(name: &str, log: &[u8]) -> StatusMap {
    parsers::by_name(name).unwrap().parse(log)
}

type Golden = BTreeMap<String, BTreeMap<String, BTreeMap<String, BTreeMap<String, String>>>>;

/// A status word that is none of the five (`PASSEDx`) decides nothing upstream.
fn known(map: &BTreeMap<String, String>) -> StatusMap {
    map.iter()
        .filter_map(|(id, word)| {
            let status = serde_json::from_value(word.as_str().into()).ok()?;
            Some((id.clone(), status))
        })
        .collect()
}

#[test]
fn the_upstream_readings_equal_the_real_parsers() {
    let golden: Golden =
        serde_json::from_slice(&std::fs::read(fixtures().join("golden.json")).unwrap()).unwrap();
    let mut n_compared = 0;
    for (reading, logs) in &golden {
        for (file, results) in logs {
            let log = std::fs::read(fixtures().join(file)).unwrap();
            for (parser, expected) in results {
                let name = format!("{reading}:{parser}");
                // Django's and SymPy's parsers have one reading, compared on their own logs.
                let name = if parsers::by_name(&name).is_some() {
                    name
                } else if file.starts_with(parser.as_str())
                    && matches!(parser.as_str(), "django" | "sympy")
                {
                    parser.clone()
                } else {
                    continue;
                };
                if expected.contains_key("!") {
                    continue;
                }
                let mut expected = known(expected);
                if parser == "sympy" {
                    // Upstream makes tests of every line with `.py:` between spaces.
                    expected.retain(|id, _| !id.contains("x.py:3"));
                }
                assert_eq!(parse(&name, &log), expected, "{name} on {file}");
                n_compared += 1;
            }
        }
    }
    assert!(n_compared > 200, "{n_compared}");
}

#[test]
fn the_structured_reading_equals_what_pytest_reported() {
    let mut n_logs = 0;
    for entry in std::fs::read_dir(fixtures()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let Some(stem) = name.strip_suffix(".outcomes.json") else {
            continue;
        };
        let log = std::fs::read(fixtures().join(format!("{stem}.log"))).unwrap();
        let outcomes: BTreeMap<String, String> =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let mut expected = known(&outcomes);
        if !stem.contains("verbose") {
            // The short summary folds skipped tests into places without names.
            expected.retain(|_, status| *status != Status::Skipped);
        }
        for parser in ["pytest", "pytest-v2"] {
            assert_eq!(parse(parser, &log), expected, "{parser} on {stem}");
        }
        n_logs += 1;
    }
    assert_eq!(n_logs, 20);
}

const SUMMARY: &str = "PASSED t.py::test_a[deg 'x' y]\nPASSED t.py::test_a[deg 'x' z]\nFAILED t.py::test_b[a - b] - AssertionError: boom - bang\n";

fn expected() -> StatusMap {
    [
        ("t.py::test_a[deg 'x' y]", Status::Passed),
        ("t.py::test_a[deg 'x' z]", Status::Passed),
        ("t.py::test_b[a - b]", Status::Failed),
    ]
    .map(|(id, status)| (id.to_owned(), status))
    .into()
}

#[test]
fn ids_with_spaces_and_dashes_are_kept_whole() {
    for parser in [
        "pytest",
        "pytest-options",
        "pytest-v2",
        "seaborn",
        "matplotlib",
    ] {
        assert_eq!(parse(parser, SUMMARY.as_bytes()), expected());
    }
}

#[test]
fn colours_and_printed_text_change_nothing() {
    let coloured = "\
\x1b[1m===== test session starts =====\x1b[0m
t.py ..F.                                     [100%]
===== PASSES =====
\x1b[32m\x1b[1m_____ test_prints _____\x1b[0m
----- Captured stdout call -----
PASSED
FAILED x::y
\x1b[36m\x1b[1m===== short test summary info =====\x1b[0m
\x1b[32mPASSED\x1b[0m t.py::\x1b[1mtest_a[deg 'x' y]\x1b[0m
\x1b[32mPASSED\x1b[0m t.py::\x1b[1mtest_a[deg '\x1b[31mx\x1b[0m' z]\x1b[0m
\x1b[31mFAILED\x1b[0m t.py::\x1b[1mtest_b[a - b]\x1b[0m - AssertionError: boom - bang
\x1b[31m===== \x1b[31m\x1b[1m1 failed\x1b[0m, \x1b[32m2 passed\x1b[0m\x1b[31m in 0.01s\x1b[0m\x1b[31m =====\x1b[0m
PASSED after.py::test_atexit
";
    assert_eq!(parse("pytest", coloured.as_bytes()), expected());
    let crlf = coloured.replace('\n', "\r\n");
    assert_eq!(parse("pytest", crlf.as_bytes()), expected());
    // The same three lines without headings, with the printed ones among them.
    let bare = format!("PASSED\nFAILED x::y\n{SUMMARY}");
    assert_eq!(parse("pytest", bare.as_bytes()), expected());
}

#[test]
fn other_runners_are_read_from_their_real_output() {
    use Status::{Failed, Passed, Skipped};
    let check = |parser: &str, file: &str, expected: &[(&str, Status)]| {
        let log = std::fs::read(fixtures().join(file)).unwrap();
        let expected: StatusMap = expected
            .iter()
            .map(|(id, status)| ((*id).to_owned(), *status))
            .collect();
        assert_eq!(parse(parser, &log), expected, "{file}");
    };
    // Each log also holds a printed line that upstream takes for a test.
    check(
        "gotest",
        "gotest-1.27.log",
        &[
            ("TestAdd", Passed),
            ("TestAdd/a_b", Passed),
            ("TestAdd/c(d)", Passed),
            ("TestBad", Failed),
            ("TestSkip", Skipped),
        ],
    );
    check(
        "cargo",
        "cargo-test.log",
        &[
            ("tests::adds", Passed),
            ("tests::fails", Failed),
            ("tests::ignored", Skipped),
            ("tests::panics - should panic", Passed),
            ("src/lib.rs - add (line 1)", Passed),
        ],
    );
    check(
        "jest",
        "jest-verbose.log",
        &[
            ("adds (1 + 1)", Passed),
            ("takes 3 ms", Passed),
            ("fails", Failed),
            ("skipped later", Skipped),
        ],
    );
    check(
        "vitest",
        "vitest-verbose.log",
        &[
            ("b.spec.mjs > sums > adds (1 + 1)", Passed),
            ("b.spec.mjs > sums > takes time", Passed),
            ("b.spec.mjs > sums > fails", Failed),
            ("b.spec.mjs > sums > later", Skipped),
        ],
    );
    check(
        "tap",
        "tap-node.log",
        &[
            ("- adds", Passed),
            ("- fails - here", Failed),
            ("- later # SKIP no reason", Passed),
            ("- inner one", Passed),
            ("- group", Passed),
        ],
    );
}

#[test]
fn several_sessions_in_a_log_add_up_and_a_printed_summary_does_not() {
    let quiet =
        "F.\n===== short test summary info =====\nFAILED a.py::test_a - x\n1 failed in 0.1s\n";
    let second = quiet.replace("a.py::test_a", "b.py::test_b");
    let both = parse("pytest", format!("{quiet}{second}").as_bytes());
    assert_eq!(both.len(), 2);
    let announced = format!(
        "===== test session starts =====\ncollected\n===== PASSES =====\n\
         ===== short test summary info =====\nPASSED fake.py::test_f\n\
         ===== 9 passed in 0.1s =====\n{}",
        &quiet[3..]
    );
    let only_real = parse("pytest", announced.as_bytes());
    assert_eq!(
        only_real.keys().collect::<Vec<_>>(),
        ["a.py::test_a"],
        "a printed summary counts for nothing when the real one follows"
    );
}

#[test]
fn every_parser_survives_hostile_bytes() {
    let mut bytes = Vec::new();
    let mut state = 7_u32;
    for _ in 0..200_000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let alphabet = b"=-_ []().:/%\n\n\r\x1b\xff\x00PASSEDFAILEDokERROR test_1m\xe2\x9c\x93";
        bytes.push(alphabet[(state >> 16) as usize % alphabet.len()]);
    }
    let long_line = [b"FAILED t.py::x[".as_slice(), &b"] - [".repeat(200_000)].concat();
    let parenthesis = [&b"PASSED (".repeat(100_000), b")".as_slice()].concat();
    for name in parsers::names() {
        for log in [&bytes, &long_line, &parenthesis] {
            parse(name, log);
        }
    }
}

#[test]
fn names_are_found_in_every_spelling() {
    for name in [
        "pytest",
        "parse_log_pytest_v2",
        "pytest_options",
        "astropy",
        "swebench5:pytest-v2",
    ] {
        assert!(parsers::by_name(name).is_some(), "{name}");
    }
    assert!(parsers::by_name("nothing").is_none());
    assert!(parsers::by_name("swebench6:pytest").is_none());
}
