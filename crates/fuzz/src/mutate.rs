//! Messages changed at random: structured ones of a channel's grammar, with fields at their bounds, and bytes changed,
//! removed and inserted.

/// A small generator of random numbers, so that a seed names a run.
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.draw() % bound.max(1) as u64) as usize
    }
}

/// One of these messages, changed.
pub fn mutated(samples: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = samples[random.below(samples.len())].clone();
    for _ in 0..random.below(4) {
        let at = random.below(bytes.len());
        match random.below(7) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 if !bytes.is_empty() => bytes[at] = random.draw() as u8,
            2 => bytes.truncate(at),
            3 => bytes.extend((0..random.below(40)).map(|_| random.draw() as u8)),
            // A length or number at its bound.
            4 if bytes.len() >= at + 8 => {
                let edge = [0, 1, u64::from(u32::MAX), 1 << 31, u64::MAX, u64::MAX - 7][random.below(6)];
                let width = [2, 4, 8][random.below(3)];
                bytes[at..at + width].copy_from_slice(&edge.to_le_bytes()[..width]);
            }
            5 => {
                let other = &samples[random.below(samples.len())];
                let from = random.below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ if !bytes.is_empty() => bytes[0] = random.below(20) as u8,
            _ => {}
        }
    }
    bytes.truncate(60 << 10);
    bytes
}
