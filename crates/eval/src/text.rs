//! Numbers as the sentences of an evaluation write them, the same in every output.

/// A p value: four digits, or that it is smaller.
pub fn p_value(p: f64) -> String {
    if p < 0.0001 {
        "< 0.0001".into()
    } else {
        format!("{p:.4}")
    }
}

/// A p value with its sign of relation, for use after `p`: `= 0.0312`, `< 0.0001`.
pub fn p_relation(p: f64) -> String {
    if p < 0.0001 {
        p_value(p)
    } else {
        format!("= {}", p_value(p))
    }
}

/// A share or a rate with two digits.
pub fn share(value: f64) -> String {
    format!("{value:.2}")
}

/// A difference with its sign and two digits. A difference that rounds to zero has no sign.
pub fn difference(value: f64) -> String {
    let text = format!("{value:+.2}");
    match text.as_str() {
        "+0.00" | "-0.00" => "0.00".into(),
        _ => text.replace('-', "\u{2212}"),
    }
}

/// A count with its noun, `1 task` or `2 tasks`.
pub fn count(n: u64, singular: &str) -> String {
    if n == 1 {
        format!("1 {singular}")
    } else {
        format!("{n} {singular}s")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(p_value(0.03125), "0.0312");
        assert_eq!(p_relation(1.0), "= 1.0000");
        assert_eq!(p_relation(1e-9), "< 0.0001");
        assert_eq!(difference(-0.15), "\u{2212}0.15");
        assert_eq!(difference(0.15), "+0.15");
        assert_eq!(difference(-0.001), "0.00");
        assert_eq!(share(0.5), "0.50");
        assert_eq!(count(1, "task"), "1 task");
        assert_eq!(count(0, "task"), "0 tasks");
    }
}
