//! Signed blocks (VSTORE, VRETRIEVE): found by public key and number; every version is kept.

use crate::StoreError;
use crate::record::{Location, SignedRecord, StoreRecord};
use crate::state::SignedKey;
use crate::store::LogStore;
use holdfast_crypto::{Digest, Domain, PublicKey, Signature};
use holdfast_log::{BodyTag, Position};

/// Largest signed block, in bytes.
pub(crate) const SIGNED_BYTES_MAX: usize = 1 << 20;

/// A signed block as it was stored. The reader verifies the signature.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SignedBlock {
    /// The bytes.
    pub block: Vec<u8>,
    /// The signature over [`signed_block_bytes`].
    pub signature: Signature,
    /// When it was stored, in nanoseconds since 1970.
    pub stored_ns: i64,
}

/// The bytes that the signature of a signed block covers, in [`Domain::SignedBlock`].
pub fn signed_block_bytes(file_system: &Digest, number: u64, block: &[u8]) -> Vec<u8> {
    holdfast_crypto::encode(&(file_system, number, block))
}

impl LogStore {
    /// Stores a new version of signed block `number` of `key`. Durable with the next commit.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: the signature is not the key's, or the block is over 1 MiB; the log failed.
    pub fn vstore(
        &self,
        file_system: Digest,
        key: &PublicKey,
        number: u64,
        block: &[u8],
        signature: Signature,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        if block.len() > SIGNED_BYTES_MAX {
            return Err(StoreError::Refused(format!("a signed block of {} bytes", block.len())));
        }
        if !key.verify(Domain::SignedBlock, &signed_block_bytes(&file_system, number, block), &signature) {
            return Err(StoreError::Refused(format!("the signature is not that of key {key}")));
        }
        let stored_ns = now_ns;
        let record = SignedRecord { file_system, key: *key, number, stored_ns, moved_from: 0, signature };
        let tag = BodyTag::of(block);
        let mut state = self.state();
        let location = StoreRecord::Signed(record.clone()).append(self.log(), block, tag)?;
        state.apply_signed(&record, location);
        Ok(())
    }

    /// The newest version of signed block `number` of `key`, or the newest stored before `before_ns`.
    ///
    /// # Errors
    /// The block is damaged, or the log or the index failed.
    pub fn vretrieve(
        &self,
        file_system: Digest,
        key: &PublicKey,
        number: u64,
        before_ns: Option<i64>,
    ) -> Result<Option<SignedBlock>, StoreError> {
        loop {
            let Some(location) = self.find_signed(file_system, key, number, before_ns)? else {
                return Ok(None);
            };
            let record = match self.log().read(location.position, location.length) {
                // Moved between the two looks.
                Err(holdfast_log::LogError::SegmentGone(_)) => continue,
                other => other?,
            };
            let Ok(StoreRecord::Signed(head)) = StoreRecord::decode_parts(record.kind, &record.head) else {
                return Err(StoreError::Index("it names a record that is no signed block".into()));
            };
            return Ok(Some(SignedBlock {
                block: record.body,
                signature: head.signature,
                stored_ns: head.stored_ns,
            }));
        }
    }

    fn find_signed(
        &self,
        file_system: Digest,
        key: &PublicKey,
        number: u64,
        before_ns: Option<i64>,
    ) -> Result<Option<Location>, StoreError> {
        let state = self.state();
        let Some(file_system) = state.number(&file_system) else { return Ok(None) };
        let from = SignedKey::new(file_system, key, number, i64::MIN, Position::START);
        let mut before = match before_ns {
            Some(before_ns) => SignedKey::new(file_system, key, number, before_ns, Position::START),
            None => SignedKey::new(file_system, key, number, i64::MAX, Position::from_u64(u64::MAX)),
        };
        loop {
            let frozen = state.frozen.as_ref().map(|frozen| &frozen.signed);
            let memory = [Some(&state.signed), frozen]
                .into_iter()
                .flatten()
                .filter_map(|map| map.range(from..before).next_back().map(|(key, length)| (*key, *length)));
            let disk = self.index().last_signed(&from, &before)?.map(|(key, length)| (key, Some(length)));
            // The first of equal keys wins: memory is newer than the disk.
            let found = memory.chain(disk).reduce(|best, next| if next.0 > best.0 { next } else { best });
            match found {
                None => return Ok(None),
                Some((key, Some(length))) => {
                    return Ok(Some(Location { position: key.position(), length }));
                }
                // The entry was moved, and its new key sorts after it, or it is gone.
                Some((key, None)) => before = key,
            }
        }
    }
}
