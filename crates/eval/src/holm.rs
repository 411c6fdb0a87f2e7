//! Holm's correction for testing several pairs at once.

/// Adjusts p values so that comparing each with a level keeps the chance of any false alarm below
/// that level (S. Holm, 1979). The result is in the order of the input.
pub fn adjust(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut highest: f64 = 0.0;
    for (rank, &index) in order.iter().enumerate() {
        let factor = (p_values.len() - rank) as f64;
        highest = highest.max((p_values[index] * factor).min(1.0));
        adjusted[index] = highest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(adjust(&[]), Vec::<f64>::new());
        assert_eq!(adjust(&[0.2]), [0.2]);
        // By hand: 0.01*4, max(0.04, 0.02*3), max(0.06, 0.03*2), max(0.06, 0.5).
        let adjusted = adjust(&[0.03, 0.01, 0.5, 0.02]);
        for (got, expected) in adjusted.iter().zip([0.06, 0.04, 0.5, 0.06]) {
            assert!((got - expected).abs() < 1e-12, "{adjusted:?}");
        }
    }

    #[test]
    fn never_lowers_and_keeps_order() {
        let mut generator = crate::random::Generator::new(3);
        for n in 1..20 {
            let p: Vec<f64> = (0..n).map(|_| generator.unit()).collect();
            let adjusted = adjust(&p);
            for i in 0..n {
                assert!(adjusted[i] >= p[i] && adjusted[i] <= 1.0);
                for j in 0..n {
                    assert!(p[i] > p[j] || adjusted[i] <= adjusted[j]);
                }
            }
        }
    }
}
