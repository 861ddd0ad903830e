//! The guard: who may change the table, and in what order the effects must happen.
//!
//! Invariants: there is one change at a time, and the next one is decided only after it is carried out. A
//! nomination names exactly one range. It ends when the owner of any of its blocks changes, and with a
//! restart.

use crate::table::Table;
use crate::{Block, BlockRange, Damage, Disk, Image, Label, Refused};
use holdfast_access::{Access, Acl, Alias, Objects, Operation, Principal};
use std::collections::btree_map::{BTreeMap, Entry};
use std::fmt::Display;

/// The most nominations that await acceptance.
pub const NOMINATIONS_MAX: usize = 8_192;
/// The most of them by one owner.
pub const NOMINATIONS_PER_OWNER_MAX: usize = 512;

/// A change of an ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AclChange {
    /// The principal gets exactly this access.
    Set(Principal, Access),
    /// The principal loses its access.
    Remove(Principal),
    /// The ACL is replaced.
    Replace(Acl),
}

/// A step for the driver; steps are carried out one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Take the regions that show these blocks from everybody who holds them, and do so with their dirty pages.
    Withdraw(BlockRange, DirtyPages),
    /// Make what the blocks held unreadable for good; durable before the next effect.
    Erase(BlockRange),
    /// Commit these blocks of the table atomically: after a crash all of them are there, or none.
    Store(Vec<Image>),
}

/// What to do with pages that were changed in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirtyPages {
    /// Their content is written first: the blocks keep their owner.
    Write,
    /// Drop them: nothing of the old owner may reach the new one.
    Drop,
}

/// A decision that must be carried out, in order; [`Policy::carried_out`] then takes it back. A driver that
/// cannot carry it out drops the [`Policy`] and opens the table again.
#[must_use = "nothing else is decided until this is carried out"]
#[derive(PartialEq, Eq, Debug)]
pub struct Change {
    effects: Vec<Effect>,
    generation: u64,
}

impl Change {
    /// The steps, in order.
    pub fn effects(&self) -> &[Effect] {
        &self.effects
    }
}

/// The sizes of a table: all that an administrator sees of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// Blocks of the disk.
    pub disk_blocks: u64,
    /// Extents in the table.
    pub extents: u64,
    /// Different pairs of owner and ACL.
    pub labels: u64,
    /// Pages of extents that the table can still take.
    pub free_pages: u64,
}

struct Nomination {
    range: BlockRange,
    by: Principal,
    to: Principal,
    /// The number of this nomination, in the order in which they were made.
    number: u64,
    content: Content,
}

/// What happens to the content of blocks when their owner changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    /// The content is erased before the new owner gets the blocks.
    Erased,
    /// The new owner gets the content too.
    Given,
}

/// The policy of one disk.
pub struct Policy {
    table: Table,
    administrator: Principal,
    /// Nominations by their first block; none overlaps another.
    nominations: BTreeMap<u64, Nomination>,
    nominated: u64,
    unfinished: bool,
}

impl Policy {
    /// Makes the table of a new disk: the administrator becomes owner of all of it, and it is erased.
    ///
    /// # Errors
    /// [`Refused::TableTooSmall`], [`Refused::NotStorable`], [`Refused::BeyondDisk`] for a disk without blocks;
    /// [`Refused::AclTooLong`] for an administrator whose name does not fit into a block.
    pub fn create(disk: Disk, administrator: Principal) -> Result<(Policy, Change), Refused> {
        disk.table().ok_or(Refused::TableTooSmall)?;
        let label = Label { acl: only(&administrator)?, owner: administrator.clone() };
        let erase = everything_but_the_table(&disk)?;
        let (table, images) = Table::create(disk, label, 1)?;
        let mut policy =
            Policy { table, administrator, nominations: BTreeMap::new(), nominated: 0, unfinished: false };
        let change = policy.change(&erase, DirtyPages::Drop, images);
        Ok((policy, change))
    }

    /// Opens the table of a disk. `read` reads a block, counted from the table's first.
    ///
    /// # Errors
    /// [`Damage`]: then nobody may use the disk.
    pub fn open<E: Display>(
        disk: Disk,
        administrator: Principal,
        read: impl FnMut(u64) -> Result<Box<Block>, E>,
    ) -> Result<Policy, Damage> {
        disk.table().ok_or(Damage::OtherDisk)?;
        let table = Table::open(disk, read)?;
        Ok(Policy { table, administrator, nominations: BTreeMap::new(), nominated: 0, unfinished: false })
    }

    /// Notes that the driver has carried out every effect of the change.
    ///
    /// # Panics
    /// If it is not the last change decided: a fault of the driver, which must not continue.
    pub fn carried_out(&mut self, change: Change) {
        assert!(self.unfinished && change.generation == self.table.generation(), "a change of another time");
        self.unfinished = false;
    }

    /// Changes the ACL of each block in the range.
    ///
    /// # Errors
    /// Those of the guard ([`Refused::NotOwner`], [`Refused::MixedOwners`], [`Refused::BeyondDisk`],
    /// [`Refused::Reserved`], [`Refused::Unfinished`]); [`Refused::NotStorable`], [`Refused::AclTooLong`],
    /// [`Refused::Full`], [`Refused::TooScattered`].
    pub fn change_acls(
        &mut self,
        by: &Alias,
        range: BlockRange,
        change: &AclChange,
    ) -> Result<Change, Refused> {
        self.authorise(by, Operation::ChangeAcls, range)?;
        let mut new = BTreeMap::new();
        for (_, number) in self.table.extents(range) {
            if let Entry::Vacant(place) = new.entry(number) {
                let Label { owner, acl } = self.table.label(number).clone();
                place.insert(Label { owner, acl: changed(acl, change)? });
            }
        }
        let images = self.table.relabel(range, new)?;
        Ok(self.change(&[range], DirtyPages::Write, images))
    }

    /// Proposes a new owner, until a restart. Replaces nominations that it overlaps and, at the limit, the
    /// oldest one: so a user who never accepts does not prevent other nominations.
    ///
    /// # Errors
    /// Those of the guard (see [`Policy::change_acls`]); [`Refused::NotStorable`].
    pub fn chown_nominate(&mut self, by: &Alias, range: BlockRange, to: Principal) -> Result<(), Refused> {
        self.nominate(by, range, to, Content::Erased)
    }

    /// As [`Policy::chown_nominate`], but the content of the blocks is not erased when the new owner accepts.
    /// That is as if the new owner had been put on the ACL, so it requires that right as well.
    ///
    /// # Errors
    /// As [`Policy::chown_nominate`].
    pub fn chown_give(&mut self, by: &Alias, range: BlockRange, to: Principal) -> Result<(), Refused> {
        self.authorise(by, Operation::ChangeAcls, range)?;
        self.nominate(by, range, to, Content::Given)
    }

    fn nominate(
        &mut self,
        by: &Alias,
        range: BlockRange,
        to: Principal,
        content: Content,
    ) -> Result<(), Refused> {
        self.authorise(by, Operation::Chown, range)?;
        if !to.is_storable() {
            return Err(Refused::NotStorable(to));
        }
        self.forget_nominations(range);
        let by = by.principal();
        let own = self.nominations.values().filter(|one| one.by == *by);
        if own.clone().count() >= NOMINATIONS_PER_OWNER_MAX {
            let oldest = own.min_by_key(|one| one.number).map(|one| one.range.first());
            oldest.and_then(|first| self.nominations.remove(&first));
        } else if self.nominations.len() >= NOMINATIONS_MAX {
            let oldest = self.nominations.values().min_by_key(|one| one.number).map(|one| one.range.first());
            oldest.and_then(|first| self.nominations.remove(&first));
        }
        self.nominated += 1;
        let nomination = Nomination { range, by: by.clone(), to, number: self.nominated, content };
        self.nominations.insert(range.first(), nomination);
        Ok(())
    }

    /// Accepts a nomination of exactly this range, and sets the ACL. What the old owner stored is erased,
    /// unless it was [given](Policy::chown_give) too.
    ///
    /// # Errors
    /// [`Refused::NotNominated`], [`Refused::Full`], [`Refused::AclTooLong`], [`Refused::TooScattered`],
    /// [`Refused::Unfinished`].
    pub fn chown_accept(&mut self, by: &Alias, range: BlockRange, acl: Acl) -> Result<Change, Refused> {
        self.ready()?;
        let nominated = self.nominations.get(&range.first()).ok_or(Refused::NotNominated)?;
        let within = self.covers(by, Operation::Chown, range);
        if nominated.range != range || nominated.to != *by.principal() || !within {
            return Err(Refused::NotNominated);
        }
        let dirty = match nominated.content {
            Content::Erased => DirtyPages::Drop,
            Content::Given => DirtyPages::Write,
        };
        let label = Label { owner: nominated.to.clone(), acl };
        let new = self.table.extents(range).map(|(_, number)| (number, label.clone())).collect();
        let images = self.table.relabel(range, new)?;
        self.forget_nominations(range);
        Ok(self.change(&[range], dirty, images))
    }

    /// The owner and the ACL of a block, for its owner, and the range of blocks that share them.
    ///
    /// # Errors
    /// Those of the guard (see [`Policy::change_acls`]).
    pub fn look(&self, by: &Alias, block: u64) -> Result<(BlockRange, &Label), Refused> {
        let range = BlockRange::new(block, 1).ok_or(Refused::BeyondDisk(self.table.disk().blocks))?;
        self.authorise(by, Operation::Look, range)?;
        let (extent, number) = self.table.extents(range).next().expect("every block is in an extent");
        Ok((extent, self.table.label(number)))
    }

    /// The owner and the ACL for a region with these blocks. For the monitor, not for requesters.
    ///
    /// # Errors
    /// [`Refused::MixedAcls`] unless all blocks have the same; [`Refused::BeyondDisk`], [`Refused::Reserved`],
    /// [`Refused::Unfinished`]. [`Refused::MixedAcls`] for no blocks at all, too.
    pub fn region_policy(&self, ranges: &[BlockRange]) -> Result<&Label, Refused> {
        self.ready()?;
        let mut common = None;
        for range in ranges {
            self.in_bounds(*range)?;
            for (extent, number) in self.table.extents(*range) {
                if *common.get_or_insert(number) != number {
                    return Err(Refused::MixedAcls(extent.first().max(range.first())));
                }
            }
        }
        common.map(|number| self.table.label(number)).ok_or(Refused::MixedAcls(0))
    }

    /// Bytes that the table stores besides owners and ACLs: the revoked credentials. Empty if nothing was
    /// stored.
    pub fn extra(&self) -> &[u8] {
        self.table.extra()
    }

    /// Replaces these bytes. They are stored by the same atomic sets as everything else, and do not depend on
    /// owners; [`Policy::format`] removes them together with all owners.
    ///
    /// # Errors
    /// [`Refused::Full`], [`Refused::Unfinished`].
    pub fn set_extra(&mut self, bytes: Vec<u8>) -> Result<Change, Refused> {
        self.ready()?;
        let images = self.table.set_extra(bytes)?;
        Ok(self.change(&[], DirtyPages::Write, images))
    }

    /// Erases the whole disk and makes the administrator its owner.
    ///
    /// # Errors
    /// [`Refused::NotAdministrator`]; [`Refused::Unfinished`].
    pub fn format(&mut self, by: &Alias) -> Result<Change, Refused> {
        self.ready()?;
        self.authorise_administrator(by, Operation::Format)?;
        let disk = self.table.disk().clone();
        let label = Label { acl: only(&self.administrator)?, owner: self.administrator.clone() };
        let erase = everything_but_the_table(&disk)?;
        let (table, images) = Table::create(disk, label, self.table.generation() + 1)?;
        self.table = table;
        self.nominations.clear();
        Ok(self.change(&erase, DirtyPages::Drop, images))
    }

    /// The sizes of the table, for the administrator.
    ///
    /// # Errors
    /// [`Refused::NotAdministrator`].
    pub fn sizes(&self, by: &Alias) -> Result<Sizes, Refused> {
        self.authorise_administrator(by, Operation::Look)?;
        let (extents, labels, free_pages) = self.table.counts();
        Ok(Sizes { disk_blocks: self.table.disk().blocks, extents, labels, free_pages })
    }

    /// The guard of PDAC: the alias is the owner's, of every block in the range, and its scope covers this.
    fn authorise(&self, by: &Alias, operation: Operation, range: BlockRange) -> Result<(), Refused> {
        self.ready()?;
        self.in_bounds(range)?;
        if !self.covers(by, operation, range) {
            return Err(Refused::NotOwner);
        }
        for (extent, number) in self.table.extents(range) {
            if self.table.label(number).owner != *by.principal() {
                let begins = extent.first() <= range.first();
                return Err(if begins { Refused::NotOwner } else { Refused::MixedOwners(extent.first()) });
            }
        }
        Ok(())
    }

    fn authorise_administrator(&self, by: &Alias, operation: Operation) -> Result<(), Refused> {
        let disk = self.table.disk();
        let whole = BlockRange::new(0, disk.blocks).ok_or(Refused::BeyondDisk(0))?;
        let may = *by.principal() == self.administrator && self.covers(by, operation, whole);
        if may { Ok(()) } else { Err(Refused::NotAdministrator) }
    }

    fn covers(&self, by: &Alias, operation: Operation, range: BlockRange) -> bool {
        Objects::blocks(self.table.disk().number, range.first(), range.count())
            .is_some_and(|blocks| by.scope().covers(operation, blocks))
    }

    fn ready(&self) -> Result<(), Refused> {
        if self.unfinished { Err(Refused::Unfinished) } else { Ok(()) }
    }

    fn in_bounds(&self, range: BlockRange) -> Result<(), Refused> {
        let disk = self.table.disk();
        if range.end() > disk.blocks {
            return Err(Refused::BeyondDisk(disk.blocks));
        }
        match disk.table() {
            Some(table) if !table.overlaps(&range) => Ok(()),
            _ => Err(Refused::Reserved),
        }
    }

    fn forget_nominations(&mut self, range: BlockRange) {
        self.nominations.retain(|_, nomination| !nomination.range.overlaps(&range));
    }

    fn change(&mut self, ranges: &[BlockRange], dirty: DirtyPages, images: Vec<Image>) -> Change {
        self.unfinished = true;
        let mut effects: Vec<Effect> = ranges.iter().map(|range| Effect::Withdraw(*range, dirty)).collect();
        if dirty == DirtyPages::Drop {
            effects.extend(ranges.iter().map(|range| Effect::Erase(*range)));
        }
        effects.push(Effect::Store(images));
        Change { effects, generation: self.table.generation() }
    }
}

fn only(principal: &Principal) -> Result<Acl, Refused> {
    Acl::of(principal.clone(), Access::ReadWrite).map_err(|_| Refused::NotStorable(principal.clone()))
}

fn changed(mut acl: Acl, change: &AclChange) -> Result<Acl, Refused> {
    match change {
        AclChange::Replace(other) => return Ok(other.clone()),
        AclChange::Remove(principal) => {
            acl.remove(principal);
        }
        AclChange::Set(principal, _) if !principal.is_storable() => {
            return Err(Refused::NotStorable(principal.clone()));
        }
        AclChange::Set(principal, access) => {
            acl.set(principal.clone(), *access).map_err(|_| Refused::AclTooLong)?;
        }
    }
    Ok(acl)
}

/// The disk's blocks before and after its policy table.
fn everything_but_the_table(disk: &Disk) -> Result<Vec<BlockRange>, Refused> {
    let table = disk.table().ok_or(Refused::TableTooSmall)?;
    let before = BlockRange::new(0, table.first().min(disk.blocks));
    let after = BlockRange::new(table.end(), disk.blocks.saturating_sub(table.end()));
    let parts: Vec<BlockRange> = before.into_iter().chain(after).collect();
    if parts.is_empty() { Err(Refused::BeyondDisk(disk.blocks)) } else { Ok(parts) }
}
