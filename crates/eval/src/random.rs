//! A seeded generator of random numbers whose results are the same on every machine and release.

/// xoshiro256++ by David Blackman and Sebastiano Vigna (public domain, 2019), its state filled by
/// SplitMix64 as its authors recommend.
///
/// It is written out here, and not taken from a crate, because an interval in a report must come
/// out the same in every later version. It is not for secrets.
#[derive(Clone, Debug)]
pub struct Generator([u64; 4]);

impl Generator {
    /// The generator for a seed.
    pub fn new(seed: u64) -> Self {
        let mut state = seed;
        Generator(std::array::from_fn(|_| split_mix_64(&mut state)))
    }

    /// The next 64 bits.
    pub fn next_bits(&mut self) -> u64 {
        let s = &mut self.0;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// An index below `n`, every one equally likely (Lemire's multiplication with rejection,
    /// arXiv 1805.10941). `n` of 0 gives 0.
    pub fn index(&mut self, n: usize) -> usize {
        let n = n as u64;
        if n == 0 {
            return 0;
        }
        let mut product = u128::from(self.next_bits()) * u128::from(n);
        if (product as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = u128::from(self.next_bits()) * u128::from(n);
            }
        }
        (product >> 64) as usize
    }

    /// A number in `[0, 1)` with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn split_mix_64(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_published_sequences() {
        // The values that the reference C programs print, as other implementations test them.
        let mut generator = Generator([1, 2, 3, 4]);
        for expected in [
            41_943_041,
            58_720_359,
            3_588_806_011_781_223,
            3_591_011_842_654_386,
            9_228_616_714_210_784_205,
            9_973_669_472_204_895_162,
            14_011_001_112_246_962_877,
            12_406_186_145_184_390_807,
        ] {
            assert_eq!(generator.next_bits(), expected);
        }
        let mut state = 1_234_567;
        for expected in [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ] {
            assert_eq!(split_mix_64(&mut state), expected);
        }
    }

    #[test]
    fn indices_are_in_range_and_even() {
        let mut generator = Generator::new(7);
        assert_eq!(generator.index(0), 0);
        assert_eq!(generator.index(1), 0);
        let mut counts = [0u32; 7];
        for _ in 0..70_000 {
            counts[generator.index(7)] += 1;
        }
        // Six standard deviations of a binomial count.
        assert!(
            counts.iter().all(|&n| n.abs_diff(10_000) < 560),
            "{counts:?}"
        );
        let mean = (0..20_000).map(|_| generator.unit()).sum::<f64>() / 20_000.0;
        assert!((mean - 0.5).abs() < 0.0125, "{mean}");
    }
}
