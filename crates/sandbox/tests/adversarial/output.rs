//! Output that is large, cut, or not text.

use std::time::{Duration, Instant};

use temper_sandbox::{Command, ExitStatus};

use crate::common::*;

#[test]
fn a_gibibyte_of_output_is_counted_and_dropped() {
    in_sandbox(|sandbox| {
        let before = resident_kib();
        let begun = Instant::now();
        let execution = run_for(
            sandbox,
            "echo first; head -c 1G /dev/zero; echo last",
            120.0,
        );
        assert_eq!(execution.status, ExitStatus::Exited(0));
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:?}",
            begun.elapsed()
        );
        let omitted = execution.omitted.unwrap();
        let limit = small_limits().output_bytes;
        assert_eq!(execution.output.len() as u64, limit);
        assert_eq!(omitted.bytes, (1 << 30) + 11 - limit);
        assert_eq!(omitted.at as u64, limit / 2);
        assert!(execution.output.starts_with(b"first\n\0"));
        assert!(execution.output.ends_with(b"\0last\n"));
        assert!(resident_kib() < before + (64 << 10));
    });
}

#[test]
fn output_is_bytes_and_cut_where_the_limit_says() {
    in_sandbox(|sandbox| {
        let execution = run(sandbox, "printf '\\200\\377\\0\\r\\nend'");
        assert_eq!(execution.output, b"\x80\xff\0\r\nend");
        assert_eq!(execution.omitted, None);
        for (limit, expected, dropped) in [
            (10, "0123456789", 0),
            (8, "01236789", 2),
            (2, "09", 8),
            (0, "", 10),
        ] {
            let mut command = Command::bash("printf 0123456789", Duration::from_secs(5));
            command.output_bytes = Some(limit);
            let execution = sandbox.exec(&command).unwrap();
            assert_eq!(execution.output, expected.as_bytes());
            assert_eq!(
                execution.omitted.map_or(0, |omitted| omitted.bytes),
                dropped
            );
        }
        // The cut falls inside a character of two bytes; the bytes stay what they were.
        let mut command =
            Command::bash("printf '\\303\\244%.0s' 1 2 3 4 5", Duration::from_secs(5));
        command.output_bytes = Some(6);
        let execution = sandbox.exec(&command).unwrap();
        assert_eq!(
            execution.output,
            b"\xc3\xa4\xc3\xa4\xc3\xa4"
                .split_at(3)
                .0
                .iter()
                .chain(b"\xa4\xc3\xa4")
                .copied()
                .collect::<Vec<_>>()
        );
    });
}

#[test]
fn streams_are_merged_in_order_and_the_input_is_empty() {
    in_sandbox(|sandbox| {
        let text = output(
            sandbox,
            "for i in 1 2 3; do echo o$i; echo e$i >&2; done; cat; echo end",
        );
        assert_eq!(text, "o1\ne1\no2\ne2\no3\ne3\nend\n");
    });
}

#[test]
fn how_a_command_ended_is_told() {
    in_sandbox(|sandbox| {
        for (text, status) in [
            ("exit 42", ExitStatus::Exited(42)),
            ("kill -9 $$", ExitStatus::Signaled(9)),
            ("kill -SEGV $$", ExitStatus::Signaled(11)),
            ("exec sleep 20", ExitStatus::TimedOut),
        ] {
            assert_eq!(run_for(sandbox, text, 1.0).status, status, "{text}");
        }
    });
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
