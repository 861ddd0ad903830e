//! Features: eight numbers that show which files have many short runs of bytes in common (Broder's min-hash).
//!
//! Runs are sampled by a rolling hash over the last 64 bytes, so an insertion shifts nothing. Each feature is
//! the smallest sample by one of eight different orderings. The probability that two files have a feature in
//! common equals the share of samples that they have in common.

/// Number of features of a file.
pub(super) const FEATURES: usize = 8;
/// The smallest sample by each of the eight orderings; `u64::MAX` if there is none.
pub(super) type Features = [u64; FEATURES];

/// One position in so many bytes is sampled; as a power of two.
const SAMPLE_BITS: u32 = 7;
/// Data shorter than this, in bytes, has no features.
const BYTES_MIN: usize = 4 << 10;

/// Computes the features of data that comes in parts.
pub(super) struct Sampler {
    rolling: u64,
    bytes: usize,
    least: Features,
}

impl Sampler {
    pub(super) fn new() -> Sampler {
        Sampler { rolling: 0, bytes: 0, least: [u64::MAX; FEATURES] }
    }

    pub(super) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.rolling = (self.rolling << 1).wrapping_add(GEAR[usize::from(*byte)]);
            if self.rolling >> (64 - SAMPLE_BITS) == 0 {
                for (place, least) in self.least.iter_mut().enumerate() {
                    *least = (*least).min(mixed(self.rolling ^ GEAR[place]));
                }
            }
        }
        self.bytes += bytes.len();
    }

    pub(super) fn finish(self) -> Features {
        if self.bytes < BYTES_MIN { [u64::MAX; FEATURES] } else { self.least }
    }
}

const GEAR: [u64; 256] = {
    let mut gear = [0; 256];
    let mut at = 0;
    while at < 256 {
        gear[at] = mixed((at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        at += 1;
    }
    gear
};

/// The finaliser of splitmix64.
const fn mixed(mut number: u64) -> u64 {
    number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testing::noise;

    fn features(parts: &[&[u8]]) -> Features {
        let mut sampler = Sampler::new();
        parts.iter().for_each(|part| sampler.add(part));
        sampler.finish()
    }

    fn common(one: &Features, other: &Features) -> usize {
        one.iter().zip(other).filter(|(one, other)| one == other).count()
    }

    /// Proves: an edited file has features in common with its earlier version, and a different one has not;
    /// and how the data is divided into parts makes no difference.
    #[test]
    fn alike_and_not() {
        let old = noise(1, 200_000);
        let edited = [&noise(2, 100)[..], &old[..120_000], &old[130_000..], &noise(3, 10_000)].concat();
        let (old_features, edited_features) = (features(&[&old]), features(&[&edited]));
        assert!(common(&old_features, &edited_features) >= 4);
        assert_eq!(common(&old_features, &features(&[&noise(4, 200_000)])), 0);
        assert_eq!(features(&[&old[..70_001], &old[70_001..]]), old_features);
        assert_eq!(features(&[&old[..100]]), [u64::MAX; FEATURES]);
        assert_eq!(common(&features(&[&vec![0; 100_000]]), &old_features), 0);
    }
}
