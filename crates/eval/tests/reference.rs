//! Our statistics against scipy and statsmodels; `fixtures/make_reference.py` made the values.

#![allow(clippy::unwrap_used)]

use temper_eval::{holm, mcnemar, pass_at_k, wilson};

fn reference() -> serde_json::Value {
    serde_json::from_str(include_str!("fixtures/reference.json")).unwrap()
}

fn rows(name: &str) -> Vec<serde_json::Value> {
    let rows = reference()[name].as_array().unwrap().clone();
    assert!(!rows.is_empty());
    rows
}

fn close(got: f64, expected: &serde_json::Value, tolerance: f64) {
    let expected = expected.as_f64().unwrap();
    assert!(
        (got - expected).abs() <= tolerance * expected.abs().max(1e-300),
        "{got} against {expected}"
    );
}

fn n(row: &serde_json::Value, key: &str) -> u64 {
    row[key].as_u64().unwrap()
}

#[test]
fn mcnemar_agrees() {
    for row in rows("mcnemar") {
        let p = mcnemar::test(n(&row, "b"), n(&row, "c"));
        close(p.exact, &row["exact"], 1e-9);
        close(p.mid, &row["mid"], 1e-9);
    }
}

#[test]
fn wilson_agrees() {
    for row in rows("wilson") {
        let (lower, upper) = wilson::interval(n(&row, "x"), n(&row, "n")).unwrap();
        for (got, key) in [(lower, "lower"), (upper, "upper")] {
            assert!(
                (got - row[key].as_f64().unwrap()).abs() < 1e-12,
                "{row}: {got}"
            );
        }
    }
}

#[test]
fn pass_at_k_agrees() {
    for row in rows("pass_at_k") {
        let (n, c, k) = (n(&row, "n"), n(&row, "c"), n(&row, "k"));
        assert!((pass_at_k::any(n, c, k).unwrap() - row["any"].as_f64().unwrap()).abs() < 1e-12);
        assert!((pass_at_k::all(n, c, k).unwrap() - row["all"].as_f64().unwrap()).abs() < 1e-12);
    }
}

#[test]
fn holm_agrees() {
    for row in rows("holm") {
        let numbers = |key: &str| -> Vec<f64> {
            row[key]
                .as_array()
                .unwrap()
                .iter()
                .map(|p| p.as_f64().unwrap())
                .collect()
        };
        for (got, expected) in holm::adjust(&numbers("p")).iter().zip(numbers("adjusted")) {
            assert!((got - expected).abs() < 1e-12);
        }
    }
}
