//! Taking a user out of a group: what the user's devices hold of it goes over to device 0.

use crate::engine::Engine;
use crate::error::FsError;
use crate::tree::{Base, ReadError, Transaction};
use holdfast_content::{DeviceId, GroupId, Handle, PrincipalId, UserId, key_number};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Files taken over in one operation.
const BATCH: usize = 200;
/// Table entries read at a time.
const PAGE: usize = 1024;

pub(super) fn remove_member(engine: &Engine, group: &str, user: &str) -> Result<usize, FsError> {
    let progress = Arc::new(Mutex::new((0usize, false)));
    let mut adopted = 0;
    // All but the last batch come before the change, so that the change itself stays small; what the user's
    // devices take back meanwhile is in the last one.
    loop {
        let (group, user, result) = (group.to_owned(), user.to_owned(), progress.clone());
        let edit = move |transaction: &mut Transaction<'_>| {
            let mut members = transaction.next_membership();
            let group = members.group_by_name(&group).ok_or(FsError::NotFound)?;
            let user = members.user_by_name(&user).ok_or(FsError::NotFound)?;
            let removed = members.groups.get_mut(&group).is_some_and(|group| group.members.remove(&user));
            if !removed {
                return Err(FsError::NotFound);
            }
            let held = transaction.read_base(|base| held_by(base, group, user, BATCH + 1))?;
            let last = held.len() <= BATCH;
            let batch = &held[..held.len().min(BATCH)];
            for file in batch {
                let inode = transaction.inode(*file)?;
                transaction.set_inode(*file, (*inode).clone())?;
            }
            *result.lock() = (batch.len(), last);
            if last { transaction.set_members(members) } else { Ok(()) }
        };
        engine.modify(Arc::new(Mutex::new(edit)))?;
        let (count, last) = *progress.lock();
        adopted += count;
        if last {
            engine.flush_commits()?;
            return Ok(adopted);
        }
    }
}

/// Files of a group whose inodes lie in tables of a user's devices; at most `limit`.
fn held_by(base: &Base, group: GroupId, user: UserId, limit: usize) -> Result<Vec<Handle>, ReadError> {
    let principal = PrincipalId::Group(group);
    let devices: BTreeSet<DeviceId> = base
        .membership
        .devices
        .iter()
        .filter(|(_, device)| device.user == user && device.removed_at.is_none())
        .map(|(id, _)| *id)
        .collect();
    let (_, table) = base.table(principal)?;
    let mut held = BTreeSet::new();
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = table.targets(base.source(), base.fates(), after.as_deref(), PAGE)?;
        for (_, (number, target)) in &page.entries {
            if !devices.contains(&target.device) {
                continue;
            }
            for device_number in numbers_in(base, target.device, target.first, target.count)? {
                let file = Handle { principal, number: number + (device_number - target.first) };
                // A single entry may have taken the number out of the range.
                let place = base.place(file)?;
                let here =
                    place.is_some_and(|place| (place.device, place.number) == (target.device, device_number));
                if here {
                    held.insert(file);
                    if held.len() >= limit {
                        return Ok(held.into_iter().collect());
                    }
                }
            }
        }
        if page.complete {
            return Ok(held.into_iter().collect());
        }
        after = match page.entries.last() {
            Some((key, _)) => Some(key.clone()),
            None => return Ok(held.into_iter().collect()),
        };
    }
}

/// The numbers among `count` from `first` on at which a device's table has an inode.
fn numbers_in(base: &Base, device: DeviceId, first: u64, count: u32) -> Result<Vec<u64>, ReadError> {
    let (_, table) = base.table(PrincipalId::Device(device))?;
    let end = first.saturating_add(u64::from(count));
    let mut found = Vec::new();
    let mut from = first;
    while from < end {
        let listing = table.slots(base.source(), base.fates(), from, PAGE.min(count as usize + 1))?;
        let Some(last) = listing.entries.last().and_then(|(key, _)| key_number(key)) else { break };
        let numbers = listing.entries.iter().filter_map(|(key, _)| key_number(key));
        found.extend(numbers.filter(|number| *number < end));
        if listing.complete || last >= end {
            break;
        }
        from = last + 1;
    }
    Ok(found)
}
