//! Compares the states before and after a restore, and finds from devices' tables which device changed what.

use super::planning::{Names, RestoreFacts, TreeState, Unreadable};
use crate::statement::Branch;
use crate::tree::{Base, InodeLocation, ReadError};
use holdfast_content::{
    BlockSource, ContentError, DeviceId, Handle, Inode, LiveMap, MerkleMap, PrincipalId, SourceError,
    key_number,
};
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Number of names read at a time.
const PAGE: usize = 1024;

/// The views of one state, newest first. If one view lacks something on this machine (because a later table
/// of another device was never read here), the next one is used.
pub struct Views<'a> {
    newest_first: Vec<&'a Base>,
    /// Whether the server did not answer some read.
    is_cut_off: AtomicBool,
}

impl<'a> Views<'a> {
    /// The views of these branches, newest first; there must be at least one.
    pub fn of(branches: &'a [Branch]) -> Views<'a> {
        Views {
            newest_first: branches.iter().map(Branch::base).collect(),
            is_cut_off: AtomicBool::new(false),
        }
    }

    /// A single view.
    pub fn one(base: &'a Base) -> Views<'a> {
        Views { newest_first: vec![base], is_cut_off: AtomicBool::new(false) }
    }

    /// Whether a read failed only because the server did not answer, so that conclusions from it do not
    /// count.
    pub fn is_cut_off(&self) -> bool {
        self.is_cut_off.load(Relaxed)
    }

    fn newest(&self) -> &Base {
        self.newest_first[0]
    }

    /// Reads from the first view that has the data. That a file does not exist is an answer, too.
    fn read<T>(&self, read: impl Fn(&Base) -> Result<T, ReadError>) -> Result<T, ReadError> {
        let mut views = self.newest_first.iter();
        let mut answer = read(views.next().expect("a side has a view"));
        while let Err(ReadError::Content(_)) = &answer
            && let Some(earlier) = views.next()
        {
            answer = read(earlier).or(answer);
        }
        if let Err(ReadError::Content(ContentError::Source(SourceError::Unreachable(..)))) = &answer {
            self.is_cut_off.store(true, Relaxed);
        }
        answer
    }
}

impl TreeState for Views<'_> {
    fn inode(&self, file: Handle) -> Result<Option<Arc<Inode>>, Unreadable> {
        match self.read(|view| view.inode(file)) {
            Ok(inode) => Ok(Some(inode)),
            Err(ReadError::NotFound) => Ok(None),
            Err(_) => Err(Unreadable),
        }
    }

    fn names(&self, directory: Handle) -> Result<Names, Unreadable> {
        self.read(|view| all_names(view, directory)).map_err(|_| Unreadable)
    }
}

fn all_names(view: &Base, directory: Handle) -> Result<Names, ReadError> {
    let mut names = Names::new();
    loop {
        let after = names.last_key_value().map(|(name, _)| name.clone());
        let (entries, complete) = view.entries(directory, after.as_deref(), PAGE)?;
        let none = entries.is_empty();
        names.extend(entries);
        if complete || none {
            return Ok(names);
        }
    }
}

/// Compares the state that a device had accepted with the state after the restore.
pub struct RestoreComparison<'a> {
    /// The accepted state, read from this machine and from the server.
    before: &'a Views<'a>,
    /// The state after the restore.
    now: &'a Views<'a>,
    /// The present epoch.
    epoch: Digest,
    alone: Mutex<HashMap<PrincipalId, bool>>,
}

/// Files, each with its inode in a device's own table now.
pub type Files = BTreeMap<Handle, Option<Arc<Inode>>>;

/// The files that a device wrote last.
pub struct OwnFiles {
    /// The files.
    pub files: Files,
    /// Owners whose tables cannot be read, so that it is unknown which of their files the device wrote.
    pub unreadable: Vec<PrincipalId>,
}

impl<'a> RestoreComparison<'a> {
    pub fn new(before: &'a Views<'a>, now: &'a Views<'a>, epoch: Digest) -> RestoreComparison<'a> {
        RestoreComparison { before, now, epoch, alone: Mutex::default() }
    }

    /// The files that this device wrote last, among what was lost.
    ///
    /// # Errors
    /// [`ReadError`]: its own table cannot be read.
    pub fn own_files(&self) -> Result<OwnFiles, ReadError> {
        let changed = self.changed_numbers()?;
        let mut mine = OwnFiles { files: Files::new(), unreadable: Vec::new() };
        if changed.is_empty() {
            return Ok(mine);
        }
        for principal in principals(self.before.newest()) {
            match self.before.read(|view| self.held_here(view, principal, &changed)) {
                Ok(files) => mine.files.extend(files),
                Err(_) => mine.unreadable.push(principal),
            }
        }
        Ok(mine)
    }

    /// Files of `principal` that this device has in one of the changed entries of its table, according to a
    /// view.
    fn held_here(
        &self,
        view: &Base,
        principal: PrincipalId,
        changed: &BTreeSet<u64>,
    ) -> Result<Files, ReadError> {
        let me = view.me;
        let mut held = Files::new();
        let (_, table) = view.table(principal)?;
        let mut after: Option<Vec<u8>> = None;
        loop {
            let page = table.targets(view.source(), view.fates(), after.as_deref(), PAGE)?;
            for (_, (first, target)) in page.entries.iter().filter(|(_, (_, at))| at.device == me) {
                let end = target.first.saturating_add(u64::from(target.count));
                for number in changed.range(target.first..end) {
                    let file = Handle { principal, number: first + (number - target.first) };
                    let place = InodeLocation { device: me, number: *number };
                    // An entry for a single file may have taken the number out of the range.
                    let is_here = self.before.read(|view| view.place(file))? == Some(place);
                    if is_here && self.before.newest().ihash_at(place)?.is_some() {
                        held.insert(file, self.now.read(|view| view.inode_at(place))?);
                    }
                }
            }
            match page.entries.into_iter().next_back() {
                Some((key, _)) if !page.complete => after = Some(key),
                _ => return Ok(held),
            }
        }
    }

    /// Numbers of entries of this device's own table that differ between the two states.
    fn changed_numbers(&self) -> Result<BTreeSet<u64>, ReadError> {
        let (newest, present) = (self.before.newest(), self.now.newest());
        let owner = PrincipalId::Device(newest.me);
        let ((_, was), (_, is)) = (newest.table(owner)?, present.table(owner)?);
        let both = FallbackSource(newest.source(), present.source());
        let mut keys = keys_changed(&both, &is.map, &was.map)?;
        keys.extend(was.map.changes.iter().chain(&is.map.changes).map(|change| change.key.clone()));
        let mut changed = BTreeSet::new();
        for number in keys.iter().filter_map(|key| key_number(key)) {
            let place = InodeLocation { device: newest.me, number };
            if newest.ihash_at(place)? != present.ihash_at(place)? {
                changed.insert(number);
            }
        }
        Ok(changed)
    }

    fn finds_alone(&self, owner: PrincipalId) -> bool {
        let (was, is) = (self.before.newest(), self.now.newest());
        let me = was.me;
        let devices = was.view.slots.keys().chain(is.view.slots.keys());
        let others: BTreeSet<DeviceId> = devices.copied().filter(|device| *device != me).collect();
        others.into_iter().all(|device| {
            let may = |base: &Base| base.membership.may_write(device, owner);
            let table = |base: &Base| {
                let table = PrincipalId::Device(device);
                let slot = base.view.slots.get(&device);
                slot.and_then(|slot| slot.value.handles.get(&table)).map(|handle| handle.reference)
            };
            let can = may(was) || may(is);
            // The superuser's device may write all files, but usually writes only a few; so it counts only if
            // it has files of this owner.
            let is_strange = device == DeviceId::SUPERUSER
                && [was, is].iter().all(|base| matches!(holds(base, device, owner), Ok(false)));
            !can || is_strange || table(was) == table(is)
        })
    }
}

impl RestoreFacts for RestoreComparison<'_> {
    fn is_as_restored(&self, file: Handle) -> bool {
        let place = match self.now.read(|view| view.place(file)) {
            Ok(Some(place)) => place,
            Ok(None) => return true,
            Err(_) => return false,
        };
        let is = self.now.newest();
        let slot = is.view.slots.get(&place.device);
        // A device that has not taken up the restore has made no operation since.
        if place.device == is.me || slot.is_some_and(|slot| slot.value.forecast.file_system != self.epoch) {
            return true;
        }
        let here = self.now.read(|view| view.ihash_at(place));
        let there = self.before.read(|view| view.ihash_at(place));
        here.is_ok_and(|here| here.is_some() && there.is_ok_and(|there| there == here))
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
        let (known, is) = (name(self.before.newest()), self.now.newest());
        known.is_some() && known == name(is) && is.membership.may_write(is.me, owner)
    }
}

/// Whether a device has any file of an owner in its table.
fn holds(base: &Base, device: DeviceId, owner: PrincipalId) -> Result<bool, ReadError> {
    let (_, table) = base.table(owner)?;
    let mut after: Option<Vec<u8>> = None;
    loop {
        let page = table.targets(base.source(), base.fates(), after.as_deref(), PAGE)?;
        for (_, (first, target)) in page.entries.iter().filter(|(_, (_, at))| at.device == device) {
            for step in 0..u64::from(target.count) {
                let place = InodeLocation { device, number: target.first + step };
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

/// Reads from the first source, or else from the second.
struct FallbackSource<'a>(&'a dyn BlockSource, &'a dyn BlockSource);

impl BlockSource for FallbackSource<'_> {
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
