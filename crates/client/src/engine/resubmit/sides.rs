//! The two sides of a plan, read from views; and what the tables of devices tell of who changed what.

use super::planning::{Knowledge, Names, Side, Unread};
use crate::tree::{Base, Place, ReadError};
use holdfast_content::{
    BlockSource, ContentError, DeviceId, Handle, Inode, LiveMap, MerkleMap, PrincipalId, key_number,
};
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Names read at a time.
const PAGE: usize = 1024;

/// A view, as one side of a plan.
pub struct Viewed<'a>(pub &'a Base);

impl Side for Viewed<'_> {
    fn inode(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unread> {
        match self.0.inode(file) {
            Ok(inode) => Ok(Some(inode)),
            Err(ReadError::NotFound) => Ok(None),
            Err(_) => Err(Unread),
        }
    }

    fn names(&self, directory: Handle) -> Result<Names, Unread> {
        let mut names = Names::new();
        loop {
            let after = names.last_key_value().map(|(name, _)| name.clone());
            let (entries, complete) =
                self.0.entries(directory, after.as_deref(), PAGE).map_err(|_| Unread)?;
            let none = entries.is_empty();
            names.extend(entries);
            if complete || none {
                return Ok(names);
            }
        }
    }
}

/// What a device had accepted, and what is shown after the restore.
pub struct Sides<'a> {
    /// What it had accepted, with what is on this machine.
    pub was: &'a Base,
    /// What is shown now.
    pub is: &'a Base,
    /// The present epoch.
    pub epoch: Digest,
    alone: Mutex<HashMap<PrincipalId, bool>>,
}

impl<'a> Sides<'a> {
    pub fn new(was: &'a Base, is: &'a Base, epoch: Digest) -> Sides<'a> {
        Sides { was, is, epoch, alone: Mutex::default() }
    }

    /// Files that this device had written last, in what was lost, with what its own table has of them now.
    ///
    /// # Errors
    /// [`ReadError`]: the tables are not at hand.
    pub fn mine(&self) -> Result<BTreeMap<Handle, Option<Arc<Inode>>>, ReadError> {
        let me = self.was.me;
        let changed = self.changed_numbers()?;
        let mut mine = BTreeMap::new();
        if changed.is_empty() {
            return Ok(mine);
        }
        for principal in principals(self.was) {
            let (_, table) = self.was.table(principal)?;
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = table.targets(self.was.source(), self.was.fates(), after.as_deref(), PAGE)?;
                for (_, (first, target)) in page.entries.iter().filter(|(_, (_, at))| at.device == me) {
                    let end = target.first.saturating_add(u64::from(target.count));
                    for number in changed.range(target.first..end) {
                        let file = Handle { principal, number: first + (number - target.first) };
                        let place = Place { device: me, number: *number };
                        // A single entry may have taken the number out of the range.
                        if self.was.place(file)? == Some(place) && self.was.ihash_at(place)?.is_some() {
                            mine.insert(file, self.is.inode_at(place)?);
                        }
                    }
                }
                match page.entries.into_iter().next_back() {
                    Some((key, _)) if !page.complete => after = Some(key),
                    _ => break,
                }
            }
        }
        Ok(mine)
    }

    /// Numbers under which this device's own table had something else.
    fn changed_numbers(&self) -> Result<BTreeSet<u64>, ReadError> {
        let owner = PrincipalId::Device(self.was.me);
        let ((_, was), (_, is)) = (self.was.table(owner)?, self.is.table(owner)?);
        let both = Both(self.was.source(), self.is.source());
        let mut keys = keys_changed(&both, &is.map, &was.map)?;
        keys.extend(was.map.changes.iter().chain(&is.map.changes).map(|change| change.key.clone()));
        let mut changed = BTreeSet::new();
        for number in keys.iter().filter_map(|key| key_number(key)) {
            let place = Place { device: self.was.me, number };
            if self.was.ihash_at(place)? != self.is.ihash_at(place)? {
                changed.insert(number);
            }
        }
        Ok(changed)
    }

    fn finds_alone(&self, owner: PrincipalId) -> bool {
        let me = self.was.me;
        let devices = self.was.view.slots.keys().chain(self.is.view.slots.keys());
        let others: BTreeSet<DeviceId> = devices.copied().filter(|device| *device != me).collect();
        others.into_iter().all(|device| {
            let may = |base: &Base| base.membership.may_write(device, owner);
            let table = |base: &Base| {
                let table = PrincipalId::Device(device);
                let slot = base.view.slots.get(&device);
                slot.and_then(|slot| slot.value.handles.get(&table)).map(|handle| handle.reference)
            };
            let can = may(self.was) || may(self.is);
            // The superuser's device may write everything, and mostly has to do with other things.
            let is_strange = device == DeviceId::SUPERUSER
                && [self.was, self.is].iter().all(|base| matches!(holds(base, device, owner), Ok(false)));
            !can || is_strange || table(self.was) == table(self.is)
        })
    }
}

impl Knowledge for Sides<'_> {
    fn is_as_restored(&self, file: Handle) -> bool {
        let place = match self.is.place(file) {
            Ok(Some(place)) => place,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let slot = self.is.view.slots.get(&place.device);
        // This device has done nothing yet; and who has not taken the restore up has not either.
        if place.device == self.is.me
            || slot.is_some_and(|slot| slot.value.forecast.file_system != self.epoch)
        {
            return true;
        }
        let here = self.is.ihash_at(place);
        here.is_ok_and(|here| here.is_some() && self.was.ihash_at(place).is_ok_and(|there| there == here))
    }

    fn is_ours_alone(&self, owner: PrincipalId) -> bool {
        if let Some(known) = self.alone.lock().get(&owner) {
            return *known;
        }
        let alone = self.finds_alone(owner);
        self.alone.lock().insert(owner, alone);
        alone
    }

    fn may_write(&self, owner: PrincipalId) -> bool {
        let name = |base: &Base| match owner {
            PrincipalId::User(id) => base.membership.users.get(&id).map(|user| user.name.clone()),
            PrincipalId::Group(id) => base.membership.groups.get(&id).map(|group| group.name.clone()),
            PrincipalId::Members | PrincipalId::Device(_) => None,
        };
        let is_known = name(self.was);
        is_known.is_some() && is_known == name(self.is) && self.is.membership.may_write(self.is.me, owner)
    }
}

/// Whether a device holds a file of an owner.
fn holds(base: &Base, device: DeviceId, owner: PrincipalId) -> Result<bool, ReadError> {
    let (_, table) = base.table(owner)?;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = table.targets(base.source(), base.fates(), after.as_deref(), PAGE)?;
        for (_, (first, target)) in page.entries.iter().filter(|(_, (_, at))| at.device == device) {
            for step in 0..u64::from(target.count) {
                let place = Place { device, number: target.first + step };
                let file = Handle { principal: owner, number: first + step };
                if base.place(file)? == Some(place) && base.ihash_at(place)?.is_some() {
                    return Ok(true);
                }
            }
        }
        match page.entries.into_iter().next_back() {
            Some((key, _)) if !page.complete => after = Some(key),
            _ => return Ok(false),
        }
    }
}

fn principals(base: &Base) -> Vec<PrincipalId> {
    let users = base.membership.users.keys().map(|user| PrincipalId::User(*user));
    let groups = base.membership.groups.keys().map(|group| PrincipalId::Group(*group));
    users.chain(groups).filter(|owner| base.membership.may_write(base.me, *owner)).collect()
}

fn keys_changed(
    source: &dyn BlockSource,
    a: &LiveMap,
    b: &LiveMap,
) -> Result<BTreeSet<Vec<u8>>, ContentError> {
    let mut keys = BTreeSet::new();
    MerkleMap::new(source.digest_key()).diff(source, &a.root, &b.root, &mut |key, _, _| {
        keys.insert(key.to_vec());
        Ok(())
    })?;
    Ok(keys)
}

/// What is on this machine first, then what the server gives.
struct Both<'a>(&'a dyn BlockSource, &'a dyn BlockSource);

impl BlockSource for Both<'_> {
    fn digest_key(&self) -> holdfast_crypto::DigestKey {
        self.0.digest_key()
    }

    fn fetch(
        &self,
        reference: &holdfast_content::Reference,
        kind: holdfast_content::BlockKind,
    ) -> Result<Arc<holdfast_content::Block>, holdfast_content::SourceError> {
        self.0.fetch(reference, kind).or_else(|_| self.1.fetch(reference, kind))
    }
}
