//! The dynamic 8-bit map of Dettmers et al. (arXiv 2110.02861): 256 numbers in [-1, 1] or [0, 1],
//! dense near zero.

/// The map, sorted: for seven decades, the midpoints of an even division of [0.1, 1], twice as
/// many in each next one, with both signs where `signed`; and 0 and 1.
pub(crate) fn dynamic_map(signed: bool) -> Vec<f32> {
    let mut map = vec![0.0, 1.0];
    for decade in 0..7 {
        let n = if signed { 1 << decade } else { 2 << decade };
        let scale = 10f64.powi(decade - 6);
        for i in 0..n {
            let midpoint = 0.1 + 0.9 * (f64::from(i) + 0.5) / f64::from(n);
            let value = (scale * midpoint) as f32;
            map.push(value);
            if signed {
                map.push(-value);
            }
        }
    }
    map.sort_by(f32::total_cmp);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maps_are_the_published_ones() {
        // Entries that bitsandbytes 0.50 prints for `create_dynamic_map`.
        let signed = dynamic_map(true);
        assert_eq!(signed.len(), 256);
        let near = |x: f32, y: f32| assert!((x - y).abs() <= 1e-7, "{x} and {y}");
        near(signed[0], -0.992_968_74);
        near(signed[127], 0.0);
        near(signed[128], 5.5e-7);
        near(signed[254], 0.992_968_74);
        near(signed[255], 1.0);
        let unsigned = dynamic_map(false);
        assert_eq!(unsigned.len(), 256);
        near(unsigned[0], 0.0);
        near(unsigned[1], 3.25e-7);
        near(unsigned[255], 1.0);
        near(unsigned[254], 0.996_484_4);
    }
}
