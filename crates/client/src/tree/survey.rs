//! Goes through everything in a view, to find files that nothing refers to.
//!
//! All tables of all users and groups are read, and every directory in them, reachable or not. So a file
//! counts as unreferenced only if no directory at all has a name for it. Others may be able to remove a
//! directory's name; that does not make the files in it unreferenced.

use super::base::{Base, InodeLocation, ReadError, directory_of};
use holdfast_content::{Handle, Inode, InodeKind, PrincipalId, Target, directory, key_number};
use holdfast_crypto::Digest;
use std::collections::HashSet;

/// Table entries, or names, read at once.
const PAGE: usize = 1024;

/// A file that no directory has a name for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct UnreferencedFile {
    /// The file.
    pub file: Handle,
    /// Its i-hash, which changes with any change of it and with any new name.
    pub ihash: Digest,
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether it is a directory with names in it.
    pub holds_names: bool,
}

/// The result of a survey.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Number of inodes that there are.
    pub inodes: u64,
    /// Files of the wanted principals that no directory names.
    pub unreferenced: Vec<UnreferencedFile>,
}

/// Goes through a whole view, in which nothing may be pending, to find unreferenced files of the principals
/// that `is_wanted`. `None`: there are more than `inodes_max` inodes, or `goes_on` returned `false`.
///
/// # Errors
/// [`ReadError`]: anything that cannot be read, since there may be a name in it.
pub fn survey(
    base: &Base,
    inodes_max: u64,
    is_wanted: &dyn Fn(PrincipalId) -> bool,
    goes_on: &dyn Fn() -> bool,
) -> Result<Option<Survey>, ReadError> {
    let membership = &base.membership;
    let users = membership.users.keys().map(|user| PrincipalId::User(*user));
    let groups = membership.groups.keys().map(|group| PrincipalId::Group(*group));
    let mut survey = Survey::default();
    let mut named: HashSet<Handle> = HashSet::from([Handle::ROOT]);
    let mut candidates: Vec<UnreferencedFile> = Vec::new();
    for principal in users.chain(groups) {
        let wanted = is_wanted(principal);
        let all = each_file(base, principal, &mut |file| {
            let inode = base.inode(file)?;
            survey.inodes += 1;
            let is_directory = inode.kind == InodeKind::Directory;
            let holds_names = is_directory && names_in(base, &inode, &mut named)? > 0;
            if wanted {
                let (ihash, bytes) = (base.ihash(file)?, inode.size);
                candidates.push(UnreferencedFile { file, ihash, bytes, holds_names });
            }
            Ok(survey.inodes <= inodes_max && goes_on())
        })?;
        if !all {
            return Ok(None);
        }
    }
    candidates.sort_unstable();
    candidates.dedup();
    // Some files have no name by design: they are found by their number.
    candidates
        .retain(|candidate| !named.contains(&candidate.file) && !candidate.file.is_nameless_by_design());
    survey.unreferenced = candidates;
    Ok(Some(survey))
}

/// Visits every file of a user or group, until `visit` returns `false`. Returns whether all were visited.
///
/// # Errors
/// [`ReadError`], and errors of `visit`.
pub fn each_file(
    base: &Base,
    principal: PrincipalId,
    visit: &mut dyn FnMut(Handle) -> Result<bool, ReadError>,
) -> Result<bool, ReadError> {
    let (_, table) = base.table(principal)?;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = table.targets(base.source(), base.fates(), after.as_deref(), PAGE)?;
        for (_, (number, target)) in &page.entries {
            for device_number in numbers_in(base, target)? {
                let file = Handle { principal, number: number + (device_number - target.first) };
                // An entry for a single file may have taken the number out of the range.
                let here = InodeLocation { device: target.device, number: device_number };
                if base.place(file)? == Some(here) && !visit(file)? {
                    return Ok(false);
                }
            }
        }
        match page.entries.into_iter().next_back() {
            Some((key, _)) if !page.complete => after = Some(key),
            _ => return Ok(true),
        }
    }
}

/// The numbers of a target at which its device's table has an inode.
fn numbers_in(base: &Base, target: &Target) -> Result<Vec<u64>, ReadError> {
    let (_, table) = base.table(PrincipalId::Device(target.device))?;
    let end = target.first.saturating_add(u64::from(target.count));
    let mut found = Vec::new();
    let mut from = target.first;
    while from < end {
        let listing = table.slots(base.source(), base.fates(), from, PAGE.min(target.count as usize + 1))?;
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

fn names_in(base: &Base, inode: &Inode, named: &mut HashSet<Handle>) -> Result<usize, ReadError> {
    let map = directory_of(inode)?;
    let (mut count, mut after) = (0, None::<Vec<u8>>);
    loop {
        let listing = directory::list(base.source(), base.fates(), map, after.as_deref(), PAGE)?;
        count += listing.entries.len();
        named.extend(listing.entries.iter().map(|(_, entry)| entry.handle));
        match listing.entries.into_iter().next_back() {
            Some((name, _)) if !listing.complete => after = Some(name),
            _ => return Ok(count),
        }
    }
}
