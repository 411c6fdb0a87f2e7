//! McNemar's exact test of a paired difference.

/// Tasks on which the arms disagree, and the probability of a split at least as uneven if neither
/// arm were better.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PValues {
    /// Two-sided exact binomial p value, `min(1, 2 P(X <= min(b, c)))` with `X ~ B(b + c, 1/2)`.
    pub exact: f64,
    /// The mid-p version, which is less conservative: the exact one less `P(X = min(b, c))`.
    pub mid: f64,
}

/// Tests `b` tasks that only one arm solved against `c` that only the other solved.
///
/// The order of the two does not matter. Without any disagreement both values are 1.
pub fn test(b: u64, c: u64) -> PValues {
    let n = b + c;
    if n == 0 {
        return PValues {
            exact: 1.0,
            mid: 1.0,
        };
    }
    let k = b.min(c);
    // Up to 1000 tasks the products of the terms are exact enough to give powers of two exactly;
    // beyond, the first term underflows and the terms are carried as logarithms.
    let by_logarithm = n > 1_000;
    let mut ln_pmf = -(n as f64) * std::f64::consts::LN_2;
    let mut pmf = if by_logarithm {
        ln_pmf.exp()
    } else {
        0.5f64.powi(n as i32)
    };
    let mut cdf = pmf;
    for i in 0..k {
        let ratio = (n - i) as f64 / (i + 1) as f64;
        if by_logarithm {
            ln_pmf += ratio.ln();
            pmf = ln_pmf.exp();
        } else {
            pmf *= ratio;
        }
        cdf += pmf;
    }
    // With an even split the two tails share the middle term: the sum exceeds 1 by exactly that
    // term, so the exact value is 1, and so is the mid-p value.
    let mid = if b == c {
        1.0
    } else {
        (2.0 * cdf - pmf).min(1.0)
    };
    PValues {
        exact: (2.0 * cdf).min(1.0),
        mid,
    }
}

/// The smallest number of tasks that must change, all in one direction, before the exact p value
/// falls below `alpha`: 6 for 0.05. `None` if `alpha` is not positive.
pub fn minimum_one_sided_flips(alpha: f64) -> Option<u32> {
    if alpha.is_nan() || alpha <= 0.0 {
        return None;
    }
    let mut flips = 1;
    let mut p = 1.0;
    while p >= alpha {
        p /= 2.0;
        flips += 1;
    }
    Some(flips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        for (b, c, exact, mid) in [
            (1, 0, 1.0, 0.5),
            (3, 1, 0.625, 0.375),
            (5, 0, 0.0625, 0.03125),
            (6, 0, 0.03125, 0.015625),
            (10, 2, 0.0385742188, 0.0224609375),
            (12, 5, 0.1434631348, 0.0962524414),
            (25, 10, 0.0166738478, 0.0113309842),
            (3, 3, 1.0, 1.0),
            (0, 0, 1.0, 1.0),
        ] {
            let p = test(b, c);
            assert!((p.exact - exact).abs() < 1e-9, "{b},{c}: {p:?}");
            assert!((p.mid - mid).abs() < 1e-9, "{b},{c}: {p:?}");
            assert_eq!(test(c, b), p);
        }
    }

    #[test]
    fn stays_a_probability_and_falls_with_imbalance() {
        for n in 1..80u64 {
            let mut last = 0.0;
            for b in 0..=n / 2 {
                let p = test(b, n - b);
                assert!(p.exact > 0.0 && p.exact <= 1.0 && p.mid > 0.0 && p.mid <= p.exact);
                assert!(p.exact >= last);
                last = p.exact;
            }
        }
        let large = test(450_000, 550_000);
        assert!(large.exact >= 0.0 && large.exact < 1e-9);
        assert!(test(500_000, 500_100).exact > 0.5);
    }

    #[test]
    fn six_flips_are_needed() {
        for (alpha, flips) in [(0.05, 6), (0.01, 8), (0.05 / 3.0, 7), (1.0, 2)] {
            assert_eq!(minimum_one_sided_flips(alpha), Some(flips));
            assert!(test(u64::from(flips), 0).exact < alpha);
            assert!(test(u64::from(flips) - 1, 0).exact >= alpha);
        }
        assert_eq!(minimum_one_sided_flips(0.0), None);
        assert_eq!(minimum_one_sided_flips(f64::NAN), None);
    }
}
