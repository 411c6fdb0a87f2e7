//! The dynamic 8-bit maps (Dettmers et al., arXiv 2110.02861, section 2.2): numbers in `[-1, 1]`
//! whose exponent and fraction share the bits, so that small ones keep relative precision.

use std::sync::OnceLock;

/// A map: 256 numbers in rising order.
pub(super) type Map = [f32; 256];

/// The map with signs.
pub(super) fn signed_map() -> &'static Map {
    static MAP: OnceLock<Map> = OnceLock::new();
    MAP.get_or_init(|| map(true))
}

/// The map of numbers that are not negative.
pub(super) fn unsigned_map() -> &'static Map {
    static MAP: OnceLock<Map> = OnceLock::new();
    MAP.get_or_init(|| map(false))
}

/// Exponent `i` of 7 has `2^i` fractions (twice as many without a sign): the midpoints between
/// equal steps from 0.1 to 1, times `10^(i - 6)`; and 0 and 1.
fn map(signed: bool) -> Map {
    let mut numbers = vec![0.0, 1.0];
    for exponent in 0..7 {
        let n_fractions = 1usize << if signed { exponent } else { exponent + 1 };
        let step = 0.9 / n_fractions as f64;
        for i in 0..n_fractions {
            let midpoint = 0.1 + step * (i as f64 + 0.5);
            let number = (midpoint * 10f64.powi(exponent - 6)) as f32;
            numbers.push(number);
            if signed {
                numbers.push(-number);
            }
        }
    }
    numbers.sort_by(f32::total_cmp);
    let mut map = [0.0; 256];
    map.copy_from_slice(&numbers);
    map
}

/// The code whose number is nearest; the lower one halfway, the first for NaN.
pub(super) fn nearest(map: &Map, x: f32) -> u8 {
    let above = map.partition_point(|&number| number < x);
    if above == 0 {
        return 0;
    }
    if above == map.len() {
        return 255;
    }
    let lower_is_nearer = x - map[above - 1] <= map[above] - x;
    (above - usize::from(lower_is_nearer)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_rise_and_hold_zero_and_one() {
        for (map, lowest) in [(signed_map(), -0.992_968_74), (unsigned_map(), 0.0)] {
            assert!(map.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(map[0], lowest);
            assert_eq!(map[255], 1.0);
            assert!(map.contains(&0.0));
        }
    }

    #[test]
    fn every_number_has_its_own_code_and_neighbours_meet_halfway() {
        for map in [signed_map(), unsigned_map()] {
            for (code, &number) in map.iter().enumerate() {
                assert_eq!(usize::from(nearest(map, number)), code);
            }
            for code in 0..255 {
                let (low, high) = (f64::from(map[code]), f64::from(map[code + 1]));
                let at = |share: f64| nearest(map, (low + share * (high - low)) as f32);
                assert_eq!(usize::from(at(0.4)), code);
                assert_eq!(usize::from(at(0.6)), code + 1);
            }
            assert_eq!(nearest(map, 2.0), 255);
            assert_eq!(nearest(map, -2.0), 0);
        }
    }
}
