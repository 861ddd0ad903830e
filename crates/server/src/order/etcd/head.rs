//! The head of an order in etcd, and how records and checkpoints are divided into parts that fit etcd's
//! values.
//!
//! ```text
//! head   format u8 = 1, last number u64, number of the checkpoint u64 (0: none), 16 random bytes  (borsh)
//! part   16 bytes of digest of the rest, place u32, count u32, bytes                      (little-endian)
//! ```
//!
//! Records and checkpoints share one sequence of numbers. A number beyond the head's last was never
//! acknowledged: it was left by a server that was interrupted, and is overwritten.

use crate::order::OrderError;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain, decode};

const FORMAT: u8 = 1;
/// Most bytes in one value of etcd.
pub(super) const PART_BYTES: usize = 256 << 10;
/// Most bytes put in one transaction. etcd accepts 1.5 MiB.
pub(super) const TRANSACTION_BYTES: usize = 768 << 10;
const DIGEST_BYTES: usize = 16;
const PART_HEAD_BYTES: usize = DIGEST_BYTES + 8;

/// The head of an order: its last record and its last checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(super) struct Head {
    pub(super) format: u8,
    /// Number of the last committed record or checkpoint.
    pub(super) last: u64,
    /// Number of the last checkpoint; 0 if there is none.
    pub(super) checkpoint: u64,
    /// Random bytes that differ with each change, so that a server recognises its own.
    pub(super) token: [u8; 16],
}

impl Head {
    pub(super) fn new() -> Head {
        Head { format: FORMAT, last: 0, checkpoint: 0, token: [0; 16] }
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Head, OrderError> {
        let damaged = OrderError::Damaged;
        match bytes.first() {
            Some(&FORMAT) => {
                decode(bytes).map_err(|error| damaged(format!("its head in etcd is damaged: {error}")))
            }
            _ => Err(damaged("its head in etcd has another format: use the newer program".to_owned())),
        }
    }
}

fn digest(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes)
}

/// Why a value cannot be joined from its parts.
#[derive(Debug, thiserror::Error)]
pub(super) enum PartsError {
    /// The bytes of a part do not match their digest.
    #[error("it is damaged")]
    Damaged,
    /// A part with this number is not there.
    #[error("part {0} is missing")]
    Missing(u32),
    /// The last parts are missing.
    #[error("it has {found} parts of {count}")]
    Few { found: u32, count: u32 },
}

/// Divides `bytes` into values that etcd accepts.
pub(super) fn parts(bytes: &[u8]) -> Vec<Vec<u8>> {
    let chunks: Vec<&[u8]> = if bytes.is_empty() { vec![&[]] } else { bytes.chunks(PART_BYTES).collect() };
    let count = chunks.len() as u32;
    let part = |(place, chunk): (usize, &&[u8])| {
        let mut body = (place as u32).to_le_bytes().to_vec();
        body.extend(count.to_le_bytes());
        body.extend_from_slice(chunk);
        let mut value = digest(&body).0[..DIGEST_BYTES].to_vec();
        value.append(&mut body);
        value
    };
    chunks.iter().enumerate().map(part).collect()
}

/// Joins parts that are given in order of their numbers. Parts beyond the count were left by an earlier
/// write, and are ignored.
pub(super) fn joined<'a>(values: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<u8>, PartsError> {
    let (mut bytes, mut place, mut count) = (Vec::new(), 0, 0);
    for value in values {
        if value.len() < PART_HEAD_BYTES
            || digest(&value[DIGEST_BYTES..]).0[..DIGEST_BYTES] != value[..DIGEST_BYTES]
        {
            return Err(PartsError::Damaged);
        }
        let number = |at: usize| u32::from_le_bytes(value[at..at + 4].try_into().expect("four bytes"));
        if number(DIGEST_BYTES) != place {
            return Err(PartsError::Missing(place));
        }
        count = number(DIGEST_BYTES + 4);
        bytes.extend_from_slice(&value[PART_HEAD_BYTES..]);
        place += 1;
        if place == count {
            return Ok(bytes);
        }
    }
    Err(PartsError::Few { found: place, count })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the head is encoded as in existing etcds, and another format is distinguished from damage.
    #[test]
    fn stored_formats_are_held() {
        let head = Head { last: 2, checkpoint: 1, token: [9; 16], ..Head::new() };
        let bytes = holdfast_crypto::encode(&head);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, format!("0102000000000000000100000000000000{}", "09".repeat(16)));
        assert_eq!(Head::read(&bytes).unwrap(), head);
        assert!(Head::read(&[2; 33]).unwrap_err().to_string().contains("newer"));
        assert!(Head::read(&bytes[..20]).unwrap_err().to_string().contains("damaged"));
    }

    /// Proves: divided bytes are joined again; damage, gaps and missing ends are noticed; leftovers are
    /// ignored.
    #[test]
    fn parts_are_joined() {
        for length in [0, 1, PART_BYTES, PART_BYTES + 1, 3 * PART_BYTES] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            let mut cut = parts(&bytes);
            assert!(cut.iter().all(|part| part.len() <= PART_BYTES + PART_HEAD_BYTES));
            let join = |cut: &[Vec<u8>]| joined(cut.iter().map(Vec::as_slice));
            assert_eq!(join(&cut).unwrap(), bytes);
            assert!(join(&cut[1..]).is_err() && join(&cut[..cut.len() - 1]).is_err());
            cut.push(vec![0; 40]);
            assert_eq!(join(&cut).unwrap(), bytes);
            *cut[0].last_mut().unwrap() ^= 1;
            assert!(join(&cut).is_err());
        }
    }
}
