//! Numbers that depend on a seed and on names only, so that the same repository and seed give the
//! same choices on every machine and in every order of work.

/// A hash of fields, 64 bits wide (FNV-1a over the fields and their lengths, then mixed). It is for
/// choosing, not for identity.
pub(crate) fn hash(seed: u64, fields: &[&[u8]]) -> u64 {
    let mut state = 0xcbf2_9ce4_8422_2325 ^ mix(seed);
    let mut feed = |byte: u8| {
        state ^= u64::from(byte);
        state = state.wrapping_mul(0x0000_0100_0000_01b3);
    };
    for field in fields {
        for byte in (field.len() as u64).to_le_bytes() {
            feed(byte);
        }
        for byte in *field {
            feed(*byte);
        }
    }
    mix(state)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Chance with a likelihood: what decides at each site whether it is changed.
pub(crate) struct Coin {
    state: u64,
    likelihood: f64,
    was_thrown: bool,
}

impl Coin {
    /// A coin that falls on its head with `likelihood`.
    pub(crate) fn new(state: u64, likelihood: f64) -> Self {
        Coin {
            state,
            likelihood,
            was_thrown: false,
        }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Throws it.
    pub(crate) fn flip(&mut self) -> bool {
        self.was_thrown = true;
        // 53 bits fill a double exactly.
        ((self.next() >> 11) as f64) / ((1u64 << 53) as f64) < self.likelihood
    }

    /// Whether it was thrown at all.
    pub(crate) fn was_thrown(&self) -> bool {
        self.was_thrown
    }

    /// A number below `n`, which is not 0. The bias of the remainder is below 2^-50 for the small
    /// numbers that occur.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of the items, which are not none.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// Puts items in random order (Fisher, Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coin_falls_as_often_as_it_should_and_a_shuffle_keeps_everything() {
        let mut coin = Coin::new(7, 0.2);
        let heads = (0..10_000).filter(|_| coin.flip()).count();
        // Six standard deviations of the binomial distribution.
        assert!((1760..=2240).contains(&heads), "{heads}");
        let mut items: Vec<usize> = (0..100).collect();
        coin.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn fields_do_not_run_together() {
        assert_ne!(hash(1, &[b"ab", b"c"]), hash(1, &[b"a", b"bc"]));
        assert_ne!(hash(1, &[b"a"]), hash(2, &[b"a"]));
    }
}
