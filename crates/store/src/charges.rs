//! Which device is charged for which blocks (SUNDR section 4: "each user for precisely the blocks written by
//! that user").
//!
//! Invariants:
//! - A block is charged to the device that stored it first, as long as the index has it. A second STORE, an
//!   "I have it", a hold or a pin by another device neither moves nor doubles the charge; nor does the
//!   collector when it moves a block, or a device that replaces a damaged one. A block that was dropped, and
//!   lives again because something refers to it, is charged to the device that stored the oldest copy that is
//!   left, which need not be the first.
//! - Charges follow from the index alone. The totals are written in the transaction that changes the index,
//!   so no crash can separate them; a rebuilt index restores them, and scrub compares them.
//! - Between two checkpoints of the index, a block that only the index on disk has may be charged twice.
//!   Nobody is refused because of that: before a refusal the index is brought up to date.
//!
//! Attack answered: a member who makes others pay, stores without being charged, or frees what others stored.

use crate::StoreError;
use crate::state::{Entry, Key};
use crate::store::{LogStore, Shared};
use holdfast_content::{BlockKind, DeviceId, StoredBlock};
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Bytes of the head of a block's record without its references.
const HEAD_BYTES: usize = 91;

/// The blocks and bytes that a payer is charged for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Charge {
    /// Blocks.
    pub blocks: u64,
    /// Their bytes in the log.
    pub bytes: u64,
}

impl Charge {
    pub(crate) fn plus(self, change: Change) -> Charge {
        Charge {
            blocks: self.blocks.saturating_add_signed(change.blocks),
            bytes: self.bytes.saturating_add_signed(change.bytes),
        }
    }
}

impl std::iter::Sum for Charge {
    fn sum<I: Iterator<Item = Charge>>(charges: I) -> Charge {
        charges.fold(Charge::default(), |all, one| Charge {
            blocks: all.blocks.saturating_add(one.blocks),
            bytes: all.bytes.saturating_add(one.bytes),
        })
    }
}

/// The most that the user of a storing device may be charged for in all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowance {
    /// Devices that are charged together: those of one user.
    pub devices: Vec<DeviceId>,
    /// Bytes in the log.
    pub bytes: u64,
    /// Further bytes for blocks other than chunks: a user who has reached the limit must be able to delete,
    /// which needs new tables and directories before it frees anything.
    pub reserve: u64,
}

/// Who is charged: number of a file system, and device.
pub(crate) type Payer = (u32, DeviceId);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Change {
    blocks: i64,
    bytes: i64,
}

/// Changes of charges, by payer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Changes(BTreeMap<Payer, Change>);

impl Changes {
    pub(crate) fn charge(&mut self, key: &Key, entry: &Entry) {
        self.add(key, entry, 1);
    }

    pub(crate) fn uncharge(&mut self, key: &Key, entry: &Entry) {
        self.add(key, entry, -1);
    }

    fn add(&mut self, key: &Key, entry: &Entry, sign: i64) {
        let change = self.0.entry((key.file_system(), entry.owner)).or_default();
        change.blocks += sign;
        change.bytes += sign * i64::from(entry.location.length);
    }

    /// The payers whose charges change, each with the difference.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Payer, Change)> {
        self.0
            .iter()
            .filter(|(_, change)| **change != Change::default())
            .map(|(payer, change)| (*payer, *change))
    }
}

/// All charges: those of the index's last checkpoint, and the changes since.
#[derive(Default)]
pub(crate) struct Charges {
    pub(crate) settled: BTreeMap<Payer, Charge>,
    /// Changes in the batch that is being written to the index.
    pub(crate) frozen: Changes,
    pub(crate) recent: Changes,
}

impl Charges {
    fn of(&self, payer: Payer) -> Charge {
        let settled = self.settled.get(&payer).copied().unwrap_or_default();
        let change = |changes: &Changes| changes.0.get(&payer).copied().unwrap_or_default();
        settled.plus(change(&self.frozen)).plus(change(&self.recent))
    }

    /// The batch has gone into the index.
    pub(crate) fn settle(&mut self, charged: Vec<(Payer, Charge)>) {
        self.settled.extend(charged);
        self.frozen = Changes::default();
    }

    fn together(&self, file_system: u32, devices: &[DeviceId]) -> Charge {
        devices.iter().map(|device| self.of((file_system, *device))).sum()
    }
}

/// The charge for a block that is not stored yet.
fn price(block: &StoredBlock) -> u64 {
    let head = HEAD_BYTES + 32 * block.references.len();
    u64::from(holdfast_log::stored_length(head, block.body.len()))
}

impl LogStore {
    /// The charge of each device that is charged for anything. Brings the index up to date first.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn charges(&self, file_system: Digest) -> Result<BTreeMap<DeviceId, Charge>, StoreError> {
        self.checkpoint()?;
        let state = self.state();
        let Some(number) = state.number(&file_system) else { return Ok(BTreeMap::new()) };
        let payers = state.charges.settled.range((number, DeviceId(0))..=(number, DeviceId(u32::MAX)));
        let charges = payers.map(|(payer, charge)| (payer.1, *charge));
        Ok(charges.filter(|(_, charge)| *charge != Charge::default()).collect())
    }

    /// The charge of these devices together, without reading the index: blocks not yet written to the index
    /// may count twice.
    pub fn charged(&self, file_system: Digest, devices: &[DeviceId]) -> Charge {
        let state = self.state();
        state.number(&file_system).map_or(Charge::default(), |number| state.charges.together(number, devices))
    }

    /// Computes all charges anew from the index, and corrects wrong ones. Returns how many were wrong.
    ///
    /// # Errors
    /// The log or the index failed.
    pub(crate) fn recount_charges(&self) -> Result<u64, StoreError> {
        let shared = self.shared();
        let _checkpointing = shared.checkpointing.lock();
        shared.checkpoint_held()?;
        let mut counted = Changes::default();
        shared.index.visit(&mut |key, entry| {
            counted.charge(&key, &entry);
            Ok(())
        })?;
        let counted: BTreeMap<Payer, Charge> =
            counted.iter().map(|(payer, change)| (payer, Charge::default().plus(change))).collect();
        let kept = shared.index.charges()?;
        let payers: BTreeSet<&Payer> = counted.keys().chain(kept.keys()).collect();
        let of = |charges: &BTreeMap<Payer, Charge>, payer| charges.get(payer).copied().unwrap_or_default();
        let wrong = payers.into_iter().filter(|payer| of(&counted, payer) != of(&kept, payer)).count() as u64;
        if wrong > 0 {
            shared.index.write_charges(&counted)?;
            shared.state().charges.settled = counted;
        }
        Ok(wrong)
    }
}

impl Shared {
    /// Checks that those of `blocks` that are not here yet may be charged. Called with [`Shared::turn`] held
    /// until they are stored, so that no other STORE comes between, and without the state locked.
    pub(crate) fn weigh<'a>(
        &self,
        file_system: Digest,
        blocks: impl Iterator<Item = &'a (Digest, StoredBlock)>,
        allowance: &Allowance,
    ) -> Result<(), StoreError> {
        let number = self.state().number(&file_system);
        let (mut chunks, mut all) = (0, 0);
        let mut seen = HashSet::new();
        for (address, block) in blocks.filter(|(address, _)| seen.insert(*address)) {
            let known = match number {
                Some(number) => self.look_up(&Key::new(number, address))?.is_some(),
                None => false,
            };
            if !known {
                all += price(block);
                chunks += if block.kind == BlockKind::Chunk { price(block) } else { 0 };
            }
        }
        let Some(number) = number else { return fits(0, chunks, all, allowance) };
        let used = || self.state().charges.together(number, &allowance.devices).bytes;
        fits(used(), chunks, all, allowance).or_else(|_| {
            // Changes in memory may be about copies that the index has already.
            self.checkpoint()?;
            fits(used(), chunks, all, allowance)
        })
    }
}

fn fits(used: u64, chunks: u64, all: u64, allowance: &Allowance) -> Result<(), StoreError> {
    let limit = allowance.bytes;
    let within = chunks == 0 || used.saturating_add(all) <= limit;
    match within && used.saturating_add(all) <= limit.saturating_add(allowance.reserve) || all == 0 {
        true => Ok(()),
        false => Err(StoreError::OverQuota { used, limit, wanted: all }),
    }
}
