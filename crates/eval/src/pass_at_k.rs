//! The chance that some, or all, of k attempts succeed.

/// The unbiased estimate of "at least one of `k` attempts solves the task", from `n` attempts of
/// which `c` did (arXiv 2107.03374, equation 1). `None` unless `1 <= k <= n` and `c <= n`.
pub fn any(n: u64, c: u64, k: u64) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    if n - c < k {
        return Some(1.0);
    }
    let mut none_solves = 1.0;
    for i in (n - c + 1)..=n {
        none_solves *= 1.0 - k as f64 / i as f64;
    }
    Some(1.0 - none_solves)
}

/// The estimate of "all of `k` attempts solve the task", `C(c, k) / C(n, k)`. `None` unless
/// `1 <= k <= n` and `c <= n`.
pub fn all(n: u64, c: u64, k: u64) -> Option<f64> {
    if k == 0 || k > n || c > n {
        return None;
    }
    let mut product = 1.0;
    for i in 0..k {
        if i >= c {
            return Some(0.0);
        }
        product *= (c - i) as f64 / (n - i) as f64;
    }
    Some(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        for (n, c, k, expected) in [
            (10, 3, 1, 0.3),
            (10, 3, 5, 0.916666667),
            (20, 1, 5, 0.25),
            (8, 7, 2, 1.0),
            (8, 0, 4, 0.0),
            (200, 13, 10, 0.497551115),
        ] {
            let got = any(n, c, k).unwrap();
            assert!((got - expected).abs() < 1e-9, "{n} {c} {k}: {got}");
        }
        assert!((all(10, 8, 2).unwrap() - 0.622222222).abs() < 1e-9);
        assert_eq!(any(3, 1, 4), None);
        assert_eq!(any(3, 1, 0), None);
        assert_eq!(any(3, 4, 1), None);
        assert_eq!(all(3, 1, 4), None);
    }

    #[test]
    fn any_and_all_mirror_each_other() {
        for n in 1..15u64 {
            for c in 0..=n {
                for k in 1..=n {
                    let any_solved = any(n, c, k).unwrap();
                    let all_unsolved = all(n, n - c, k).unwrap();
                    assert!((any_solved + all_unsolved - 1.0).abs() < 1e-12);
                }
                assert!((any(n, c, 1).unwrap() - c as f64 / n as f64).abs() < 1e-12);
            }
        }
    }
}
