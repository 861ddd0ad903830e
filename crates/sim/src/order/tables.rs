//! Tables as a client keeps them: folding what others have pending into a table, tagged, so that it counts only if
//! it is committed (SUNDR 3.4.2).

use holdfast_content::{
    Change, DeviceId, Lookup, Membership, MemoryBlocks, PrincipalId, Table, Tag, Target, Value, number_key,
    target_change,
};
use holdfast_crypto::encode;
use holdfast_protocol::certificate::{Certificate, Delta};
use holdfast_protocol::signer::Tables;
use holdfast_protocol::structure::{Outcome, View};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Changes beyond which a table is compacted: small, so that simulations compact often.
const COMPACT_OVER: usize = 4;

/// The table of `principal` in force, and its version; an empty one at version 0.
pub fn in_force(blocks: &MemoryBlocks, view: &View, principal: PrincipalId) -> (Table, u64) {
    match view.handle(principal) {
        Some((_, handle)) => {
            (Table::load(blocks, &handle.reference).expect("blocks are kept"), handle.version)
        }
        None => (Table::new(principal), 0),
    }
}

/// The membership in force.
pub fn members(blocks: &MemoryBlocks, view: &View) -> Membership {
    let (_, handle) = view.handle(PrincipalId::Members).expect("a view has a membership");
    Membership::load(blocks, &handle.reference).expect("blocks are kept")
}

fn changes(certificate: &Certificate, principal: PrincipalId, tag: Option<Tag>) -> Vec<Change> {
    let change = |delta: &Delta| match delta {
        Delta::SetTable { file, number } if file.principal == principal => {
            let target = number.map(|number| Target::one(certificate.device, number));
            Some(target_change(file.number, target.as_ref(), tag).expect("small numbers"))
        }
        Delta::SetInode { number, inode, .. } if principal == PrincipalId::Device(certificate.device) => {
            let value = inode.map(|inode| Value { bytes: encode(&inode), references: Vec::new() });
            Some(Change { key: number_key(*number), value, tag })
        }
        _ => None,
    };
    certificate.deltas.iter().filter_map(change).collect()
}

/// The table of `principal` as it is just before an operation ordered after `view`: the one in force, with every
/// pending operation that it does not yet hold.
pub fn base(blocks: &MemoryBlocks, view: &View, principal: PrincipalId) -> Table {
    let (mut table, version) = in_force(blocks, view, principal);
    for entry in view.pending.iter().filter(|entry| !entry.dead) {
        let certificate = &entry.certificate.value;
        // A version above that of the table in force: ordered after it, so not folded into it.
        if certificate.principals().contains(&principal) && entry.forecast.vector.get(principal) > version {
            let tag = Tag { device: certificate.device, number: certificate.number };
            for change in changes(certificate, principal, Some(tag)) {
                table.map.push(change);
            }
        }
    }
    table
}

/// The tables an operation leaves behind at its place in the order.
pub fn fold(blocks: &MemoryBlocks, view: &View, certificate: &Certificate, outcome: Outcome) -> Tables {
    let own = PrincipalId::Device(certificate.device);
    let mut tables = Tables::new();
    for principal in certificate.principals().into_iter().chain([own]) {
        if principal == PrincipalId::Members {
            let declared = certificate.deltas.iter().find_map(|delta| match delta {
                Delta::SetMembers { reference } => Some(*reference),
                _ => None,
            });
            let former = view.handle(principal).map(|(_, handle)| handle.reference);
            let reference = if outcome == Outcome::Done { declared } else { former };
            tables.insert(principal, reference.expect("there is a membership"));
            continue;
        }
        let mut table = base(blocks, view, principal);
        if outcome == Outcome::Done {
            for change in changes(certificate, principal, None) {
                table.map.push(change);
            }
        }
        let mut sink = blocks;
        table.map =
            table.map.settle_and_compact(blocks, &mut sink, view, COMPACT_OVER).expect("blocks are kept");
        tables.insert(principal, table.store(&mut sink).expect("small tables"));
    }
    tables
}

/// What a table maps `number` to at the end of `view`, pending operations seen but not counted.
pub fn look_up(blocks: &MemoryBlocks, view: &View, principal: PrincipalId, number: u64) -> Lookup<Value> {
    let table = base(blocks, view, principal);
    table.map.get(blocks, view, &number_key(number)).expect("blocks are kept")
}

/// All entries of a table that count under `view`.
pub fn contents(blocks: &MemoryBlocks, view: &View, principal: PrincipalId) -> BTreeMap<Vec<u8>, Value> {
    let table = base(blocks, view, principal);
    let listing = table.map.range(blocks, view, Bound::Unbounded, 100_000).expect("blocks are kept");
    listing.entries.into_iter().collect()
}

/// The reference model: what `principal`'s table must hold after these operations, in this order.
pub fn expected<'a>(
    operations: impl Iterator<Item = &'a Certificate>,
    principal: PrincipalId,
) -> BTreeMap<Vec<u8>, Value> {
    let mut entries = BTreeMap::new();
    for certificate in operations {
        for change in changes(certificate, principal, None) {
            match change.value {
                Some(value) => drop(entries.insert(change.key, value)),
                None => drop(entries.remove(&change.key)),
            }
        }
    }
    entries
}

/// A device's own table.
pub fn own_table(device: DeviceId) -> PrincipalId {
    PrincipalId::Device(device)
}
