//! The Wilson score interval of a proportion.

/// The 0.975 quantile of the standard normal distribution.
pub const Z: f64 = 1.959_963_984_540_054;

/// The 95% Wilson score interval of `successes` out of `n` (E. B. Wilson, 1927), without
/// continuity correction. `None` when `n` is 0: nothing was observed, so nothing is excluded.
///
/// # Panics
/// If there are more successes than trials.
pub fn interval(successes: u64, n: u64) -> Option<(f64, f64)> {
    assert!(successes <= n, "{successes} successes out of {n}");
    if n == 0 {
        return None;
    }
    let (x, n, z2) = (successes as f64, n as f64, Z * Z);
    let denominator = n + z2;
    let centre = (x + z2 / 2.0) / denominator;
    let half = Z / denominator * (x * (n - x) / n + z2 / 4.0).sqrt();
    // At the ends the closed form is exactly 0 or 1; rounding must not leave the estimate outside.
    let lower = if successes == 0 {
        0.0
    } else {
        (centre - half).max(0.0)
    };
    let upper = if x == n {
        1.0
    } else {
        (centre + half).min(1.0)
    };
    Some((lower, upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        for (x, n, lower, upper) in [
            (10, 27, 0.215325, 0.557708),
            (6, 38, 0.074439, 0.304168),
            (9, 27, 0.186433, 0.521752),
            (13, 20, 0.432854, 0.818808),
        ] {
            let (l, u) = interval(x, n).unwrap();
            assert!(
                (l - lower).abs() < 1e-6 && (u - upper).abs() < 1e-6,
                "{x}/{n}: {l} {u}"
            );
        }
        assert_eq!(interval(0, 0), None);
    }

    #[test]
    fn contains_its_estimate_and_mirrors() {
        for n in 1..200u64 {
            for x in 0..=n {
                let (l, u) = interval(x, n).unwrap();
                let p = x as f64 / n as f64;
                assert!(0.0 <= l && l <= p && p <= u && u <= 1.0, "{x}/{n}");
                let (ml, mu) = interval(n - x, n).unwrap();
                assert!((ml - (1.0 - u)).abs() < 1e-12 && (mu - (1.0 - l)).abs() < 1e-12);
            }
        }
    }

    /// Exact coverage: the probability, under each true rate, of the counts whose interval holds
    /// that rate. Wilson's is known to average close to the nominal level and to dip only near
    /// the ends (Brown, Cai and DasGupta, 2001).
    #[test]
    fn covers_at_the_stated_rate() {
        for n in [10u64, 20, 50, 100] {
            let mut total = 0.0;
            let grid = 999;
            for i in 1..=grid {
                let p = f64::from(i) / f64::from(grid + 1);
                let mut pmf = (1.0 - p).powi(n as i32);
                let mut coverage = 0.0;
                for x in 0..=n {
                    let (l, u) = interval(x, n).unwrap();
                    if l <= p && p <= u {
                        coverage += pmf;
                    }
                    pmf *= (n - x) as f64 / (x + 1) as f64 * p / (1.0 - p);
                }
                assert!(coverage > 0.83, "n={n} p={p}: {coverage}");
                total += coverage;
            }
            let mean = total / f64::from(grid);
            assert!((mean - 0.95).abs() < 0.01, "n={n}: {mean}");
        }
    }
}
