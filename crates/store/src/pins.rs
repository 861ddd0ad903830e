//! Pins: blocks that a reader holds open, with an expiry, so that an open file outlives its deletion.

use crate::StoreError;
use crate::record::{PinRecord, StoreRecord};
use crate::store::LogStore;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;
use holdfast_log::BodyTag;
use std::collections::BTreeMap;

/// Most blocks one holder may pin.
pub(crate) const PINS_PER_HOLDER_MAX: usize = 16384;
/// Most blocks pinned in one file system.
const PINS_PER_FILE_SYSTEM_MAX: usize = 262_144;

/// The pins of all holders.
#[derive(Clone, Default, BorshSerialize, BorshDeserialize)]
pub(crate) struct Pins {
    holders: BTreeMap<u64, (i64, Vec<Digest>)>,
}

impl Pins {
    pub(crate) fn set(&mut self, holder: u64, until_ns: i64, addresses: Vec<Digest>) {
        if addresses.is_empty() {
            self.holders.remove(&holder);
        } else {
            self.holders.insert(holder, (until_ns, addresses));
        }
    }

    pub(crate) fn expire(&mut self, now_ns: i64) {
        self.holders.retain(|_, (until_ns, _)| *until_ns > now_ns);
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (u64, i64, &Vec<Digest>)> {
        self.holders.iter().map(|(holder, (until_ns, addresses))| (*holder, *until_ns, addresses))
    }

    /// Records that say all this again.
    pub(crate) fn records(&self, file_system: Digest) -> Vec<PinRecord> {
        let record = |(holder, until_ns, addresses): (u64, i64, &Vec<Digest>)| PinRecord {
            file_system,
            holder,
            until_ns,
            addresses: addresses.clone(),
        };
        self.all().map(record).collect()
    }

    pub(crate) fn contains(&self, address: &Digest, now_ns: i64) -> bool {
        self.all().any(|(_, until_ns, addresses)| until_ns > now_ns && addresses.contains(address))
    }

    fn count(&self) -> usize {
        self.holders.values().map(|(_, addresses)| addresses.len()).sum()
    }
}

impl LogStore {
    /// Pins `addresses` and everything they refer to until `until_ns`, replacing what `holder` pinned before.
    /// Once committed, pins survive a restart.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: over the limits (16,384 a holder, 262,144 a file system); the log failed.
    pub fn pin(
        &self,
        file_system: Digest,
        holder: u64,
        addresses: &[Digest],
        until_ns: i64,
        now_ns: i64,
    ) -> Result<(), StoreError> {
        let mut state = self.state();
        let pins = &mut state.file_system(&file_system).pins;
        pins.expire(now_ns);
        let total = pins.count() + addresses.len();
        if addresses.len() > PINS_PER_HOLDER_MAX || total > PINS_PER_FILE_SYSTEM_MAX {
            return Err(StoreError::Refused(format!(
                "{} pins by one holder, {total} in the file system: too many",
                addresses.len()
            )));
        }
        let record = PinRecord { file_system, holder, until_ns, addresses: addresses.to_vec() };
        StoreRecord::Pin(record.clone()).append(self.log(), &[], BodyTag::of(&[]))?;
        state.apply_pin(&record);
        Ok(())
    }

    /// Ends the pins of `holder`.
    ///
    /// # Errors
    /// The log failed.
    pub fn unpin(&self, file_system: Digest, holder: u64) -> Result<(), StoreError> {
        self.pin(file_system, holder, &[], i64::MIN, i64::MIN)
    }
}
