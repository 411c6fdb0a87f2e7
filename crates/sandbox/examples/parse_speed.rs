//! How fast a large log is parsed and graded: `cargo run --release -p temper-sandbox --example
//! parse_speed`. Prints one line for each parser; each log is of 100 MB. Seconds are those of the
//! processor (`/proc/self/schedstat`), which other work on the machine does not change.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use temper_core::{
    TestId,
    task::{ResolutionRules, TestLists},
};
use temper_sandbox::verify::{
    log_verifier::{LogReading, read_log},
    parsers,
    resolution::{Judging, resolve},
};

const N_BYTES: usize = 100_000_000;
const N_TESTS: usize = 100_000;

fn main() {
    for (parser, log) in [
        ("pytest", summary_log()),
        ("swebench4:pytest-v2", summary_log()),
        ("pytest", verbose_log()),
        ("swesmith:pytest", verbose_log()),
        ("django", django_log()),
    ] {
        let started = cpu_seconds();
        let rules = ResolutionRules::SweBench4;
        let LogReading::Statuses(map) = read_log(&log, parsers::by_name(parser).unwrap(), rules)
        else {
            panic!("no result")
        };
        let lists = TestLists {
            fail_to_pass: map.keys().take(10).map(|id| TestId::from(&**id)).collect(),
            pass_to_pass: map.keys().skip(10).map(|id| TestId::from(&**id)).collect(),
        };
        let judging = Judging {
            rules,
            fail_only: false,
            match_truncated: true,
        };
        let report = resolve(&map, &lists, judging);
        let seconds = cpu_seconds() - started;
        println!(
            "{parser:20} {:>4} MB {:>7} tests {:?} in {seconds:.3} CPU s",
            log.len() / 1_000_000,
            map.len(),
            report.resolution,
        );
    }
}

fn wrap(body: &str) -> Vec<u8> {
    format!("+ : '>>>>> Start Test Output'\n{body}+ : '>>>>> End Test Output'\n").into_bytes()
}

/// Captured output in bulk, then a short summary.
fn summary_log() -> Vec<u8> {
    let mut body = String::from("===== test session starts =====\n===== PASSES =====\n");
    let summary: String = (0..N_TESTS)
        .map(|number| {
            format!(
                "PASSED tests/test_a.py::test_{}[x - {number}]\n",
                number % 100
            )
        })
        .collect();
    let mut number = 0;
    while body.len() + summary.len() < N_BYTES {
        body.push_str(
            "Some output of a test, PASSED or FAILED, with \x1b[32mcolour\x1b[0m and [brackets]\n",
        );
        number += 1;
        if number % 20 == 0 {
            body.push_str("FAILED tests/test_fake.py::test_printed - by a test\n");
        }
    }
    wrap(&format!(
        "{body}===== short test summary info =====\n{summary}===== 1 passed in 1.00s =====\n"
    ))
}

/// A progress listing in bulk.
fn verbose_log() -> Vec<u8> {
    let mut body = String::from("===== test session starts =====\n");
    let mut number = 0;
    while body.len() < N_BYTES {
        let line = format!(
            "tests/test_a.py::TestClass::test_{}[{}]",
            number % N_TESTS,
            number % N_TESTS
        );
        body.push_str(&format!("{line:60} PASSED                [ 50%]\n"));
        number += 1;
    }
    wrap(&body)
}

fn django_log() -> Vec<u8> {
    let mut body = String::new();
    let mut number = 0;
    while body.len() < N_BYTES {
        body.push_str(&format!(
            "test_{} (module.tests.Class) ... ok\n",
            number % N_TESTS
        ));
        body.push_str("Some output of a test that goes on for a while and says nothing at all\n");
        number += 1;
    }
    wrap(&body)
}

fn cpu_seconds() -> f64 {
    let statistics = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    let nanoseconds: f64 = statistics.split(' ').next().unwrap().parse().unwrap();
    nanoseconds / 1e9
}
