//! Taking a user out of a group: what the user's devices hold of it goes over to the device that does it.

use super::changes;
use crate::engine::Engine;
use crate::error::FsError;
use crate::tree::{Base, ReadError, Transaction, each_file};
use holdfast_content::{DeviceId, GroupId, Handle, PrincipalId, UserId};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Files taken over in one operation.
const BATCH: usize = 200;

pub(super) fn remove_member(engine: &Engine, group: &str, user: &str) -> Result<usize, FsError> {
    let progress = Arc::new(Mutex::new((0usize, false)));
    let mut adopted = 0;
    // All but the last batch come before the change, so that the change itself stays small; what the user's
    // devices take back meanwhile is in the last one.
    loop {
        let (group, user, result) = (group.to_owned(), user.to_owned(), progress.clone());
        let edit = move |transaction: &mut Transaction<'_>| {
            let mut members = transaction.next_membership();
            let (group, user) = changes::remove_member(&mut members, &group, &user)?;
            let (count, last) = take_batch(transaction, group, user)?;
            *result.lock() = (count, last);
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

/// Takes over what the user's devices hold of the group, by a change under a warrant, which must come alone: so all of it
/// is taken over before. Returns how many files that were.
pub(super) fn take_over(engine: &Engine, group: GroupId, user: UserId) -> Result<usize, FsError> {
    let progress = Arc::new(Mutex::new((0usize, false)));
    let mut adopted = 0;
    loop {
        let result = progress.clone();
        let edit = move |transaction: &mut Transaction<'_>| {
            *result.lock() = take_batch(transaction, group, user)?;
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

/// Whether the user's devices hold anything of the group.
pub(super) fn holds_any(
    transaction: &Transaction<'_>,
    group: GroupId,
    user: UserId,
) -> Result<bool, FsError> {
    transaction.read_base(|base| Ok(!held_by(base, group, user, 1)?.is_empty()))
}

/// Takes over some; how many, and whether these were all.
fn take_batch(
    transaction: &mut Transaction<'_>,
    group: GroupId,
    user: UserId,
) -> Result<(usize, bool), FsError> {
    let held = transaction.read_base(|base| held_by(base, group, user, BATCH + 1))?;
    let batch = &held[..held.len().min(BATCH)];
    for file in batch {
        let inode = transaction.inode(*file)?;
        transaction.set_inode(*file, (*inode).clone())?;
    }
    Ok((batch.len(), held.len() <= BATCH))
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
    let mut held = BTreeSet::new();
    each_file(base, principal, &mut |file| {
        if base.place(file)?.is_some_and(|place| devices.contains(&place.device)) {
            held.insert(file);
        }
        Ok(held.len() < limit)
    })?;
    Ok(held.into_iter().collect())
}
