//! Counter-based random numbers: the same (seed, counter) gives the same number on every device,
//! whatever else is in the batch.

/// A uniform number in `[0, 1)` with 24 random bits, from a seed and a counter.
///
/// The mixer is SplitMix64's finaliser (Steele, Lea and Flood, 2014) applied twice, over the seed
/// and over the counter.
pub fn uniform(seed: u64, counter: u64) -> f32 {
    let bits = mix(mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ counter);
    (bits >> 40) as f32 * (1.0 / (1u64 << 24) as f32)
}

/// 64 well-mixed bits of 64.
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mixer_is_splitmix64() {
        // The first outputs of the published generator from state 1234567.
        let mut state = 1_234_567u64;
        let mut next = || {
            let out = mix(state);
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            out
        };
        assert_eq!(next(), 6_457_827_717_110_365_317);
        assert_eq!(next(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn numbers_are_uniform_and_do_not_repeat_between_seeds() {
        let n = 100_000u64;
        for seed in [0, 1, u64::MAX] {
            let mean: f64 = (0..n).map(|i| f64::from(uniform(seed, i))).sum::<f64>() / n as f64;
            assert!((mean - 0.5).abs() < 0.005, "{mean}");
        }
        let same = (0..n).filter(|&i| uniform(1, i) == uniform(2, i)).count();
        assert!(same < 5, "{same}");
    }
}
