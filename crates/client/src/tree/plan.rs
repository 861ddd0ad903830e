//! Turns edits into a certificate's deltas and, once the place in the order is certain, into tables.

use super::allocate::{Allocator, Range};
use super::base::{Base, ReadError};
use super::layer::{NewEntries, PlanSink};
use super::touches::{lawful_deltas, tag_of};
use super::transaction::{Transaction, directory_mut, touch};
use holdfast_content::{
    Change, ContentError, Entry, Handle, Inode, LiveMap, OperationStatuses, PrincipalId, Reference, Table,
    Tag, Target, directory, inode_change, target_change,
};
use holdfast_crypto::Digest;
use holdfast_protocol::certificate::{Delta, Path};
use holdfast_protocol::signer::Tables;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A list of changes longer than this, or of more bytes, is merged into its map.
const CHANGES_MAX: usize = 64;
const CHANGE_BYTES_MAX: usize = 8 << 10;
/// If an operation frees more bytes than this, its table's list of changes is merged at once. Otherwise the
/// map under the list would still have the removed files, and the server would keep, and charge for, their
/// blocks.
const FREED_MAX: u64 = 64 << 10;
/// If a map has more unsettled changes than this, an operation gives way instead of adding to them. Readers
/// refuse lists of more than 1024.
const UNSETTLED_MAX: usize = 640;

/// A planned operation: the deltas to declare, and the changes to make once its place in the order is
/// certain.
pub struct Plan {
    /// The deltas that the certificate declares.
    pub deltas: Vec<Delta>,
    /// Pending operations that conflict with what the plan reads or overwrites. It may take effect only if
    /// this is empty.
    pub conflicts: BTreeSet<Tag>,
    /// The allocator after this operation.
    pub allocator: Allocator,
    inodes: BTreeMap<u64, Option<Arc<Inode>>>,
    directories: BTreeMap<Handle, DirectoryChange>,
    tables: BTreeMap<PrincipalId, Vec<TableChange>>,
    members: Option<Reference>,
    /// Number of bytes of files that are removed or shortened.
    freed: u64,
    sink: PlanSink,
}

struct DirectoryChange {
    number: u64,
    entries: NewEntries,
}

enum TableChange {
    Map(u64, u64),
    Remove(u64),
    Range(Range),
}

impl<'a> Transaction<'a> {
    /// Ends the plan.
    ///
    /// # Errors
    /// [`ReadError`]: a table or directory to be changed cannot be read.
    pub fn finish(mut self, path: Path) -> Result<Plan, ReadError> {
        let base = self.base;
        let mut deltas = Vec::new();
        let mut tables: BTreeMap<PrincipalId, Vec<TableChange>> = BTreeMap::new();
        let mut inodes = BTreeMap::new();
        let mut directories = BTreeMap::new();
        for (principal, range) in &self.ranges {
            deltas.push(Delta::Preallocate {
                principal: *principal,
                first: range.first,
                count: range.count,
                device_first: range.device_first,
            });
            tables.entry(*principal).or_default().push(TableChange::Range(*range));
        }
        let mut entries = std::mem::take(&mut self.batch.entries);
        let staged = std::mem::take(&mut self.batch.inodes);
        let key = base.source().digest_key();
        let mut freed = 0;
        for (file, inode) in staged {
            let names = entries.remove(&file).unwrap_or_default();
            let (number, remap) = self.own_number(file, inode.is_some())?;
            if number.is_some() && !remap {
                let bytes = base.inode(file).map_or(0, |inode| inode.size);
                let left = inode.as_ref().map_or(0, |inode| inode.size);
                freed = u64::saturating_add(freed, bytes.saturating_sub(left));
            }
            let inode = match inode {
                Some(inode) if directory_of(&inode) => {
                    let mut inode = Inode::clone(&inode);
                    apply_entries(&mut inode, &names, base.fates())?;
                    let map = directory_mut(&mut inode).expect("it is a directory");
                    *map = compact(map, &mut self.sink, base)?;
                    Some(Arc::new(inode))
                }
                other => other,
            };
            if let Some(number) = number {
                let ihash = inode.as_ref().map(|inode| inode.ihash(&key)).transpose()?;
                deltas.push(Delta::SetInode { number, file, inode: ihash });
                inodes.insert(number, inode);
            }
            if remap {
                deltas.push(Delta::SetTable { file, number });
                let change = match number {
                    Some(number) => TableChange::Map(file.number, number),
                    None => TableChange::Remove(file.number),
                };
                tables.entry(file.principal).or_default().push(change);
            }
        }
        for (directory, entries) in entries {
            let (number, remap) = self.own_number(directory, true)?;
            let number = number.expect("a directory that stays has a number");
            for (name, (entry, time_ns)) in &entries {
                deltas.push(Delta::SetEntry {
                    directory,
                    name: name.clone(),
                    entry: entry.map(|entry| (entry.handle, entry.kind)),
                    time_ns: *time_ns,
                });
            }
            if remap || path == Path::Slow {
                deltas.push(Delta::SetTable { file: directory, number: Some(number) });
                tables
                    .entry(directory.principal)
                    .or_default()
                    .push(TableChange::Map(directory.number, number));
            }
            directories.insert(directory, DirectoryChange { number, entries });
        }
        let members = self.batch.members.take().map(|(reference, _)| reference);
        if let Some(reference) = members {
            deltas.push(Delta::SetMembers { reference });
        }
        if !deltas.is_empty() {
            // While a change of membership is pending, it is uncertain whether this device is still a member.
            self.conflicts.extend(base.touches.members());
        }
        Ok(Plan {
            deltas,
            conflicts: self.conflicts,
            allocator: self.allocator,
            inodes,
            directories,
            tables,
            members,
            freed,
            sink: self.sink,
        })
    }

    /// The number of `file` in this device's table, and whether the owner's table must change. For a file
    /// that is removed: its number if this device has it, else `None`, and the owner's table drops the file.
    fn own_number(&mut self, file: Handle, stays: bool) -> Result<(Option<u64>, bool), ReadError> {
        if let Some(number) = self.fresh.get(&file) {
            return Ok((Some(*number), false));
        }
        match self.base.place(file)? {
            Some(place) if place.device == self.base.me => {
                self.allocator.remember(file, place.number);
                Ok((Some(place.number), false))
            }
            _ if stays => Ok((Some(self.allocator.number_for(file)), true)),
            _ => Ok((None, true)),
        }
    }
}

impl Plan {
    /// The tables of a structure that makes this plan's changes at its place in the order: directly after
    /// everything in `base`.
    ///
    /// # Errors
    /// [`ReadError`]; [`ReadError::Overflow`] when so much is pending that the operation must give way.
    pub fn build(&mut self, base: &Base) -> Result<Tables, ReadError> {
        let own = PrincipalId::Device(base.me);
        let mut tables = Tables::new();
        let mut inodes = self.inodes.clone();
        for (file, change) in &self.directories {
            let inode = fold_directory(base, *file, change, &mut self.sink)?;
            inodes.insert(change.number, Some(Arc::new(inode)));
        }
        if !inodes.is_empty() {
            let (_, table) = base.table(own)?;
            let mut table = Table::clone(&table);
            for (number, inode) in &inodes {
                table.map.push(inode_change(&mut self.sink, *number, inode.as_deref(), None)?);
            }
            table.map = match self.freed > FREED_MAX {
                true => table.map.settle_and_compact(base.source(), &mut self.sink, base.fates(), 0)?,
                false => compact(&table.map, &mut self.sink, base)?,
            };
            tables.insert(own, table.store(&mut self.sink)?);
        }
        for (principal, changes) in &self.tables {
            let mut table = folded_table(base, *principal)?;
            for change in changes {
                let change = match change {
                    TableChange::Map(from, to) => {
                        target_change(*from, Some(&Target::one(base.me, *to)), None)?
                    }
                    TableChange::Remove(number) => {
                        table.remove(base.source(), base.fates(), *number, None)?
                    }
                    TableChange::Range(range) => {
                        let target =
                            Target { device: base.me, first: range.device_first, count: range.count };
                        target_change(range.first, Some(&target), None)?
                    }
                };
                table.map.push(change);
            }
            table.map = compact(&table.map, &mut self.sink, base)?;
            tables.insert(*principal, table.store(&mut self.sink)?);
        }
        tables.extend(self.members.map(|reference| (PrincipalId::Members, reference)));
        Ok(tables)
    }

    /// The tables of a structure that declares this plan's changes without making them. Pending changes are
    /// included all the same, since the versions of the tables must increase.
    ///
    /// # Errors
    /// [`ReadError`]: not even that is possible, so the operation must be given up.
    pub fn give_way(&mut self, base: &Base) -> Result<Tables, ReadError> {
        let mut tables = Tables::new();
        for principal in self.tables.keys() {
            let mut table = folded_table(base, *principal)?;
            table.map = compact(&table.map, &mut self.sink, base)?;
            tables.insert(*principal, table.store(&mut self.sink)?);
        }
        if self.members.is_some()
            && let Some((_, present)) = base.view.handle(PrincipalId::Members)
        {
            tables.insert(PrincipalId::Members, present.reference);
        }
        Ok(tables)
    }

    /// The blocks that a certificate with these deltas refers to; they must be durable before it is ordered.
    pub fn declared(&self) -> impl Iterator<Item = Digest> + '_ {
        // Only blocks that a declared inode refers to: a small inode has no block of its own, so its
        // references are the roots.
        let key = holdfast_content::BlockSink::digest_key(&self.sink);
        let inodes = self.inodes.values().flatten().flat_map(move |inode| {
            let block = inode.to_block(&key).ok();
            block.map(|block| {
                let mut roots = block.references().to_vec();
                roots.push(block.reference().address);
                roots
            })
        });
        inodes.flatten().chain(self.members.map(|reference| reference.address))
    }
}

/// A directory with all pending changes of names included, and this plan's entries on top.
fn fold_directory(
    base: &Base,
    file: Handle,
    change: &DirectoryChange,
    sink: &mut PlanSink,
) -> Result<Inode, ReadError> {
    let mut inode = Inode::clone(&*base.inode(file)?);
    inode.writer = base.me;
    let mut latest = inode.modified_ns;
    let map = directory_mut(&mut inode).ok_or(ReadError::NotDirectory)?;
    map.settle(base.fates());
    for entry in base.view.pending.iter().filter(|entry| !entry.dead) {
        let tag = tag_of(entry);
        if tag.device == base.me {
            continue;
        }
        for delta in lawful_deltas(entry, &base.membership) {
            let Delta::SetEntry { directory, name, entry, time_ns } = delta else { continue };
            if *directory != file || has(map, &tag, name) {
                continue;
            }
            let entry = entry.map(|(handle, kind)| Entry { handle, kind });
            if let Ok(change) = directory::change(name, entry.as_ref(), Some(tag)) {
                map.push(change);
                latest = latest.max(*time_ns);
            }
        }
    }
    give_way_if_crowded(map)?;
    apply_entries(&mut inode, &change.entries, base.fates())?;
    touch(&mut inode, latest);
    let map = directory_mut(&mut inode).expect("it was one above");
    *map = compact(map, sink, base)?;
    Ok(inode)
}

/// A user's or group's table with outcomes of earlier pending changes settled, and present pending changes
/// included.
fn folded_table(base: &Base, principal: PrincipalId) -> Result<Table, ReadError> {
    let (_, table) = base.table(principal)?;
    let mut table = Table::clone(&table);
    table.map.settle(base.fates());
    fold_table(base, principal, &mut table.map);
    give_way_if_crowded(&table.map)?;
    Ok(table)
}

/// Adds changes of a user's or group's table that are pending and not in it yet, tagged with their
/// operations.
fn fold_table(base: &Base, principal: PrincipalId, map: &mut LiveMap) {
    for entry in base.view.pending.iter().filter(|entry| !entry.dead) {
        let tag = tag_of(entry);
        if tag.device == base.me {
            continue;
        }
        for delta in lawful_deltas(entry, &base.membership) {
            let change = match delta {
                Delta::SetTable { file, number } if file.principal == principal => {
                    let target = number.map(|number| Target::one(tag.device, number));
                    target_change(file.number, target.as_ref(), Some(tag))
                }
                Delta::Preallocate { principal: owner, first, count, device_first }
                    if *owner == principal =>
                {
                    let target = Target { device: tag.device, first: *device_first, count: *count };
                    target_change(*first, Some(&target), Some(tag))
                }
                _ => continue,
            };
            // A malformed number has no effect; its author's own table cannot have it either.
            if let Ok(change) = change
                && !has(map, &tag, &change.key)
            {
                map.push(change);
            }
        }
    }
}

fn has(map: &LiveMap, tag: &Tag, key: &[u8]) -> bool {
    map.changes.iter().any(|change| change.tag.as_ref() == Some(tag) && change.key == key)
}

fn give_way_if_crowded(map: &LiveMap) -> Result<(), ReadError> {
    let mut tags = map.changes.iter().filter_map(|change| change.tag);
    let first = tags.next();
    match first {
        Some(tag) if 1 + tags.count() > UNSETTLED_MAX => Err(ReadError::Overflow(tag)),
        _ => Ok(()),
    }
}

fn directory_of(inode: &Inode) -> bool {
    super::base::directory_of(inode).is_ok()
}

fn apply_entries(
    inode: &mut Inode,
    entries: &NewEntries,
    fates: &dyn OperationStatuses,
) -> Result<(), ReadError> {
    let latest = entries.values().map(|(_, time)| *time).max();
    let map = directory_mut(inode).ok_or(ReadError::NotDirectory)?;
    map.settle(fates);
    for (name, (entry, _)) in entries {
        let change = directory::change(name, entry.as_ref(), None).map_err(ContentError::from)?;
        map.push(change);
    }
    if let Some(time) = latest {
        touch(inode, time);
    }
    Ok(())
}

/// Merges a list of changes into its map if it is long.
fn compact(map: &LiveMap, sink: &mut PlanSink, base: &Base) -> Result<LiveMap, ReadError> {
    let bytes: usize = map.changes.iter().map(change_bytes).sum();
    let limit = if bytes > CHANGE_BYTES_MAX { 0 } else { CHANGES_MAX };
    Ok(map.settle_and_compact(base.source(), sink, base.fates(), limit)?)
}

fn change_bytes(change: &Change) -> usize {
    let value = change.value.as_ref();
    8 + change.key.len() + value.map_or(0, |value| value.bytes.len() + 37 * value.references.len())
}
