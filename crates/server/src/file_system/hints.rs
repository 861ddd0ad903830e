//! Hints: blocks that are sent along with a view because the client is likely to ask for them next, namely
//! tables and memberships that changed since its last view. Their number and size are bounded, and the client
//! checks them like any other block.

use super::ledger::Ledger;
use crate::block_store::{self, BlockStore};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use holdfast_protocol::message::AddressedBlock;
use holdfast_protocol::structure::View;
use std::collections::BTreeMap;

/// Most hinted blocks of one reply.
const HINTS_MAX: usize = 64;
/// Most bytes of hinted blocks in one reply.
const HINT_BYTES_MAX: usize = 256 << 10;

/// Addresses of the tables that other devices committed since the client's log had `log_size` leaves. The
/// membership comes first, then the latest changes.
pub(super) fn wanted(ledger: &Ledger, view: &View, own: DeviceId, log_size: u64) -> Vec<Digest> {
    // The table in force of a principal is the one with the highest version in any slot.
    let mut in_force: BTreeMap<PrincipalId, (u64, DeviceId, Digest)> = BTreeMap::new();
    for (device, slot) in &view.slots {
        for (principal, handle) in &slot.value.handles {
            let found = (handle.version, *device, handle.reference.address);
            in_force.entry(*principal).and_modify(|best| *best = (*best).max(found)).or_insert(found);
        }
    }
    let mut wanted: Vec<(bool, u64, Digest)> = in_force
        .into_iter()
        .filter(|(_, (_, device, _))| log_size == 0 || *device != own)
        .map(|(principal, (_, device, address))| {
            (principal == PrincipalId::Members, ledger.changed(view, device), address)
        })
        .filter(|(_, changed, _)| *changed > log_size)
        .collect();
    wanted.sort_unstable_by(|a, b| b.cmp(a));
    wanted.dedup_by_key(|(_, _, address)| *address);
    wanted.into_iter().take(HINTS_MAX).map(|(_, _, address)| address).collect()
}

/// Loads the hinted blocks, as far as they fit. A block that cannot be read is left out: the client will
/// request it and get the error.
pub(super) fn load(store: &dyn BlockStore, file_system: Digest, wanted: Vec<Digest>) -> Vec<AddressedBlock> {
    let mut hints = Vec::with_capacity(wanted.len());
    if wanted.is_empty() {
        return hints;
    }
    let Ok(loaded) = store.load(file_system, &wanted, HINT_BYTES_MAX) else { return hints };
    for (loaded, address) in loaded.into_iter().zip(wanted) {
        if let Some((_, block)) = block_store::sound(loaded, file_system, &address) {
            hints.push(AddressedBlock { address, block });
        }
    }
    hints
}
