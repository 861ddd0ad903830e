//! Changes that remove users from groups: the device that makes the change takes over the groups' files that
//! are in tables of these users' devices.

use super::GroupDepartures;
use crate::engine::Engine;
use crate::error::FsError;
use crate::tree::{Base, Changes, MembershipChanges, ReadError, each_file};
use holdfast_content::{DeviceId, GroupId, Handle, Membership, PrincipalId, UserId};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most files taken over in one operation.
const BATCH: usize = 200;

/// For each group, the users who leave it.
pub(super) type Leavers = BTreeMap<GroupId, BTreeSet<UserId>>;

/// Changes the membership, once no device of a user who leaves a group has files of that group in its table.
pub(super) fn change(
    engine: &Engine,
    change: impl Fn(&mut Membership) -> Result<(), FsError> + Clone + Send + 'static,
) -> Result<GroupDepartures, FsError> {
    let progress = Arc::new(Mutex::new((0usize, false, Vec::new())));
    let mut adopted = 0;
    // All batches except the last come before the change, so that the change itself stays small. Files that
    // the devices take back meanwhile are in the last batch.
    loop {
        let (change, result) = (change.clone(), progress.clone());
        let edit = move |changes: &mut dyn Changes| {
            let membership = changes.membership()?;
            let mut members = membership.next();
            change(&mut members)?;
            let (leavers, left) = membership.read_base(|base| {
                let leavers = leavers(&base.membership, &members);
                let left = departures_by_name(&base.membership, &leavers);
                Ok((leavers, left))
            })?;
            let (count, last) = take_batch(changes, &leavers)?;
            *result.lock() = (count, last, left);
            if last { changes.membership()?.set(members) } else { Ok(()) }
        };
        engine.modify(Arc::new(Mutex::new(edit)))?;
        let (count, last, left) = std::mem::take(&mut *progress.lock());
        adopted += count;
        if last {
            engine.flush_commits()?;
            return Ok(GroupDepartures { adopted, left });
        }
    }
}

/// Takes over the groups' files from devices of users who leave, before a change under a warrant, which must
/// be alone in its operation. Returns the number of files.
pub(super) fn take_over(engine: &Engine, leavers: &Leavers) -> Result<usize, FsError> {
    let progress = Arc::new(Mutex::new((0usize, false)));
    let mut adopted = 0;
    loop {
        let (leavers, result) = (leavers.clone(), progress.clone());
        let edit = move |changes: &mut dyn Changes| {
            *result.lock() = take_batch(changes, &leavers)?;
            Ok::<(), FsError>(())
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

/// Whether devices of the users who leave have files of the groups.
pub(super) fn holds_any(membership: &MembershipChanges<'_>, leavers: &Leavers) -> Result<bool, FsError> {
    membership.read_base(|base| Ok(!held_by(base, leavers, 1)?.is_empty()))
}

/// Takes over one batch; returns the number of files, and whether these were all.
fn take_batch(changes: &mut dyn Changes, leavers: &Leavers) -> Result<(usize, bool), FsError> {
    let held = changes.membership()?.read_base(|base| held_by(base, leavers, BATCH + 1))?;
    let batch = &held[..held.len().min(BATCH)];
    for file in batch {
        let inode = changes.inode(*file)?;
        changes.set_inode(*file, (*inode).clone())?;
    }
    Ok((batch.len(), held.len() <= BATCH))
}

/// For each group, the users who leave it from `before` to `next`.
pub(super) fn leavers(before: &Membership, next: &Membership) -> Leavers {
    let groups = before.groups.keys().map(|group| (*group, before.leaving_members(*group, next)));
    groups.filter(|(_, users)| !users.is_empty()).collect()
}

fn departures_by_name(members: &Membership, leavers: &Leavers) -> Vec<(String, Vec<String>)> {
    let names = |users: &BTreeSet<UserId>| {
        let users = users.iter().filter_map(|user| members.users.get(user));
        users.filter(|user| !user.removed).map(|user| user.name.clone()).collect()
    };
    let groups = leavers.iter().filter_map(|(id, users)| Some((members.groups.get(id)?, users)));
    groups.map(|(group, users)| (group.name.clone(), names(users))).collect()
}

/// Files of groups whose inodes are in tables of devices of users who leave; at most `limit`.
fn held_by(base: &Base, leavers: &Leavers, limit: usize) -> Result<Vec<Handle>, ReadError> {
    let mut held = BTreeSet::new();
    for (group, users) in leavers {
        let of_users = base.membership.devices.iter().filter(|(_, device)| users.contains(&device.user));
        let devices: BTreeSet<DeviceId> = of_users.map(|(id, _)| *id).collect();
        if held.len() >= limit {
            break;
        }
        each_file(base, PrincipalId::Group(*group), &mut |file| {
            if base.place(file)?.is_some_and(|place| devices.contains(&place.device)) {
                held.insert(file);
            }
            Ok(held.len() < limit)
        })?;
    }
    Ok(held.into_iter().collect())
}
