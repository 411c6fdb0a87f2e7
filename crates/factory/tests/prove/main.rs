//! Measuring, screening, dividing, proving and auditing a small repository in the sandbox.
//!
//! It has its own `main`, because the sandbox starts this program again as its launcher.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod cases;
mod toy;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
};

fn main() -> ExitCode {
    temper_sandbox::namespaces::run_launcher_if_asked();
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut failed = Vec::new();
    for (name, case) in cases::CASES {
        if !filters.is_empty() && !filters.iter().any(|filter| name.contains(filter.as_str())) {
            continue;
        }
        let passed = catch_unwind(AssertUnwindSafe(case)).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        if !passed {
            failed.push(name);
        }
    }
    if failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        println!("failed: {failed:?}");
        ExitCode::FAILURE
    }
}
