//! The words, signs and number formats that every output shares.

use temper_core::{
    Boundary,
    trajectory::StepOutcome,
    usage::MicroDollars,
    verdict::{LayerName, LayerOutcome, Resolution, Tampering, TestOutcome},
};
use temper_eval::{Conclusion, Standing};

/// A count with commas between thousands.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A duration: `0.42 s`, `12.3 s`, `4 min 05 s`, `1 h 02 min`.
pub fn seconds(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "not a duration".into();
    }
    if seconds < 9.995 {
        return format!("{seconds:.2} s");
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    if whole < 3_600 {
        format!("{} min {:02} s", whole / 60, whole % 60)
    } else {
        format!("{} h {:02} min", thousands(whole / 3_600), whole / 60 % 60)
    }
}

/// Money. Small amounts keep four digits.
pub fn money(amount: MicroDollars) -> String {
    if amount.0 < 10_000_000 {
        format!("${:.4}", amount.dollars())
    } else {
        format!("${:.2}", amount.dollars())
    }
}

/// A quantity that is a whole number almost everywhere: no digits if whole, one otherwise.
pub fn quantity(value: f64) -> String {
    if value.fract() == 0.0 && (0.0..1e15).contains(&value) {
        thousands(value as u64)
    } else {
        format!("{value:.1}")
    }
}

/// A resolution's key (for styles), sign and words. Signs differ so that colour is never needed.
pub fn resolution(resolution: Resolution) -> (&'static str, &'static str, &'static str) {
    match resolution {
        Resolution::Resolved => ("solved", "\u{2713}", "solved"),
        Resolution::Partial => ("partial", "\u{25d0}", "partial"),
        Resolution::Unresolved => ("unsolved", "\u{2717}", "unsolved"),
        Resolution::EmptyPatch => ("empty", "\u{2205}", "empty patch"),
        Resolution::InvalidPatch => ("invalid", "\u{2a2f}", "invalid patch"),
        Resolution::Lost => ("lost", "?", "lost"),
    }
}

/// Two ends of a range of shares, or the one share that both round to.
pub fn range(lower: f64, upper: f64) -> String {
    use temper_eval::text::share;
    if share(lower) == share(upper) {
        share(lower)
    } else {
        format!("{} to {}", share(lower), share(upper))
    }
}

/// All resolutions in the order in which bars and legends show them.
pub const RESOLUTIONS: [Resolution; 6] = [
    Resolution::Resolved,
    Resolution::Lost,
    Resolution::Partial,
    Resolution::Unresolved,
    Resolution::EmptyPatch,
    Resolution::InvalidPatch,
];

/// A standing's key, sign and words.
pub fn standing(standing: Standing) -> (&'static str, &'static str, &'static str) {
    match standing {
        Standing::Gained => ("gained", "\u{25b2}", "gained"),
        Standing::Regressed => ("regressed", "\u{25bc}", "regressed"),
        Standing::TiedSolved => ("tied-solved", "=", "tied, solved"),
        Standing::TiedUnsolved => ("tied-unsolved", "=", "tied, unsolved"),
        Standing::Unknown => ("unknown", "?", "unknown"),
    }
}

/// A conclusion in a few words.
pub fn conclusion(conclusion: Conclusion) -> &'static str {
    match conclusion {
        Conclusion::NothingToCompare => "nothing to compare",
        Conclusion::ChangedNothing => "changed nothing",
        Conclusion::CandidateBetter => "candidate significantly better",
        Conclusion::BaselineBetter => "baseline significantly better",
        Conclusion::OpenBecauseOfLost => "open, because results were lost",
        Conclusion::TooFewTasks => "too few tasks to tell",
        Conclusion::NoSignificantDifference => "no significant difference",
    }
}

/// A boundary in words.
pub fn boundary(boundary: Boundary) -> &'static str {
    match boundary {
        Boundary::Model => "model",
        Boundary::Sandbox => "sandbox",
        Boundary::Agent => "agent",
        Boundary::Task => "task",
        Boundary::Verifier => "verifier",
    }
}

/// A layer in words.
pub fn layer(name: LayerName) -> &'static str {
    match name {
        LayerName::Syntax => "syntax",
        LayerName::Public => "public tests",
        LayerName::Hidden => "hidden tests",
    }
}

/// A layer's outcome: key and words.
pub fn layer_outcome(outcome: LayerOutcome) -> (&'static str, &'static str) {
    match outcome {
        LayerOutcome::Passed => ("solved", "\u{2713} passed"),
        LayerOutcome::Failed => ("unsolved", "\u{2717} failed"),
        LayerOutcome::NotRun => ("empty", "\u{2013} not run"),
        LayerOutcome::Absent => ("empty", "\u{2013} absent"),
        LayerOutcome::Lost => ("lost", "? lost"),
    }
}

/// A test's outcome: key and words.
pub fn test_outcome(outcome: TestOutcome) -> (&'static str, &'static str) {
    match outcome {
        TestOutcome::Passed => ("solved", "\u{2713} passed"),
        TestOutcome::Failed => ("unsolved", "\u{2717} failed"),
        TestOutcome::Error => ("invalid", "\u{2a2f} error"),
        TestOutcome::Skipped => ("empty", "\u{2013} skipped"),
        TestOutcome::ExpectedFailure => ("partial", "\u{25d0} expected failure"),
        TestOutcome::UnexpectedPass => ("partial", "\u{25d0} unexpected pass"),
        TestOutcome::NotRun => ("empty", "\u{2013} not run"),
        TestOutcome::NotSeen => ("lost", "? not seen"),
        TestOutcome::Lost => ("lost", "? lost"),
    }
}

/// What kind of turn a step was, in words.
pub fn step_outcome(outcome: StepOutcome) -> &'static str {
    match outcome {
        StepOutcome::Ran => "ran",
        StepOutcome::FormatError => "format error, nothing ran",
        StepOutcome::Truncated => "reply cut off, nothing ran",
        StepOutcome::TimedOut => "timed out",
        StepOutcome::Submitted => "submitted",
    }
}

/// A tampering finding: what it is, and where or what was seen.
pub fn tampering(tampering: &Tampering) -> (&'static str, &str) {
    match tampering {
        Tampering::TestFileChanged { path } => {
            ("a test file was changed; the original was put back", path)
        }
        Tampering::RunnerFileChanged { path } => (
            "a file that steers the test runner was changed; it was left out",
            path,
        ),
        Tampering::CanaryTripped { detail } => (
            "the test runner was subverted; its results count for nothing",
            detail,
        ),
        Tampering::PlantedResult { path } => (
            "a result file was there before verification; it was not read",
            path,
        ),
    }
}

/// A sentence with a capital first letter and a full stop.
pub fn sentence(text: &str) -> String {
    let mut chars = text.chars();
    match chars.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), chars.as_str()),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(n), text);
        }
        for (value, text) in [
            (0.0, "0.00 s"),
            (9.999, "10.0 s"),
            (59.96, "1 min 00 s"),
            (245.2, "4 min 05 s"),
            (3_725.0, "1 h 02 min"),
            (f64::NAN, "not a duration"),
            (-1.0, "not a duration"),
        ] {
            assert_eq!(seconds(value), text);
        }
        assert_eq!(money(MicroDollars(1_500)), "$0.0015");
        assert_eq!(money(MicroDollars(12_345_678)), "$12.35");
        assert_eq!(quantity(12.0), "12");
        assert_eq!(quantity(12.25), "12.2");
        assert_eq!(sentence("on 3 tasks"), "On 3 tasks.");
    }

    #[test]
    fn signs_tell_resolutions_apart_without_colour() {
        let signs: std::collections::BTreeSet<_> =
            RESOLUTIONS.iter().map(|&each| resolution(each).1).collect();
        assert_eq!(signs.len(), RESOLUTIONS.len());
    }
}
