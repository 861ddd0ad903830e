//! Keeps on this machine what is needed to find the names of this device's files after a restore.
//!
//! A device that changes a directory takes it into a table of its own, with all names in it. Other devices
//! can accept a view with that change, and sign operations on it, without reading any of the directory. If
//! the server then loses it, nobody here could find the names of files that this device had written there. So
//! directories that this device has changed, and the tables of their owners, are read again in the background
//! after others have changed them. The newest view for which all of that was read is remembered.
//!
//! Cost: the changed nodes, every two seconds at most, and less and less often while this device itself
//! changes nothing.

use crate::engine::shared::Shared;
use crate::pauses::Pauses;
use crate::tree::{Base, ReadError, directory_of};
use holdfast_content::{Handle, LiveMap, MapRoot, MerkleMap, PrincipalId};
use holdfast_protocol::structure::View;
use lru::LruCache;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most directories that are read again: the ones changed last.
const DIRECTORIES_MAX: usize = 256;
/// Shortest pause between two rounds.
const PAUSE_MIN: Duration = Duration::from_secs(2);
/// Longest pause between two rounds.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The directories whose newest names this device keeps on this machine, and the newest view for which it has
/// them all.
pub struct ReadableDirectories(Mutex<State>);

struct State {
    directories: LruCache<Handle, ()>,
    /// Maps as last read: those of directories and of their owners' tables.
    maps: BTreeMap<MapKey, MapRoot>,
    /// The newest view for which all these directories were read.
    view: Option<Arc<View>>,
    /// Time before which nothing is read.
    due: Option<Instant>,
    pauses: Pauses,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum MapKey {
    Names(Handle),
    Table(PrincipalId),
}

impl Default for ReadableDirectories {
    fn default() -> Self {
        let directories = LruCache::new(NonZeroUsize::new(DIRECTORIES_MAX).expect("not zero"));
        let (maps, view, due, pauses) = (BTreeMap::new(), None, None, Pauses::new(PAUSE_MIN, PAUSE_MAX));
        ReadableDirectories(Mutex::new(State { directories, maps, view, due, pauses }))
    }
}

impl ReadableDirectories {
    /// Notes that this device has changed names in these directories.
    pub fn note_directories(&self, directories: impl Iterator<Item = Handle>) {
        let mut state = self.0.lock();
        for directory in directories {
            state.directories.put(directory, ());
            state.pauses.reset();
            state.due = state.due.map(|due| due.min(Instant::now() + PAUSE_MIN));
        }
    }

    /// Reads what others have changed since the last round, if it is time to.
    pub fn read_changed(&self, shared: &Shared) {
        let base = shared.latest.read().base.clone();
        let (directories, mut maps) = {
            let mut state = self.0.lock();
            let now = Instant::now();
            let is_early = state.due.is_some_and(|due| now < due);
            if state.directories.is_empty() || is_early {
                return;
            }
            if state.view.as_ref().is_some_and(|view| of_others(view, &base).eq(of_others(&base.view, &base)))
            {
                // This device's own changes are on this machine already.
                state.view = Some(base.view.clone());
                return;
            }
            state.due = Some(now + state.pauses.after_failure());
            let directories: Vec<Handle> =
                state.directories.iter().map(|(directory, ())| *directory).collect();
            (directories, std::mem::take(&mut state.maps))
        };
        let owners: BTreeSet<PrincipalId> = directories.iter().map(|directory| directory.principal).collect();
        let wanted: Vec<MapKey> =
            owners.into_iter().map(MapKey::Table).chain(directories.into_iter().map(MapKey::Names)).collect();
        maps.retain(|map, _| wanted.contains(map));
        let mut is_complete = true;
        for map in wanted {
            match read(&base, map, maps.get(&map)) {
                Ok(root) => drop(maps.insert(map, root)),
                Err(ReadError::NotFound | ReadError::NotDirectory) => drop(maps.remove(&map)),
                Err(error) => {
                    tracing::debug!(%error, "a directory that this device works in cannot be read");
                    is_complete = false;
                }
            }
        }
        let mut state = self.0.lock();
        state.maps = maps;
        if is_complete {
            state.view = Some(base.view.clone());
        }
    }

    /// The views from which most of this device's files can be found, newest first. After this, they count as
    /// past.
    pub fn take_views(&self, shared: &Shared) -> Vec<View> {
        let read_from = shared.latest.read().base.view.clone();
        let mut state = self.0.lock();
        state.maps.clear();
        let kept = state.view.take().filter(|kept| !Arc::ptr_eq(kept, &read_from));
        std::iter::once(read_from).chain(kept).map(|view| View::clone(&view)).collect()
    }
}

/// For each other device, the number of its last operation in a view.
fn of_others(view: &View, base: &Base) -> impl Iterator<Item = (u32, u64)> {
    let me = base.me;
    view.slots
        .iter()
        .filter(move |(device, _)| **device != me)
        .map(|(device, slot)| (device.0, slot.value.number()))
}

/// Reads the parts of a map that differ from an earlier state of it.
fn read(base: &Base, map: MapKey, before: Option<&MapRoot>) -> Result<MapRoot, ReadError> {
    let LiveMap { root, .. } = match map {
        MapKey::Names(directory) => directory_of(&*base.inode(directory)?)?.clone(),
        MapKey::Table(owner) => base.table(owner)?.1.map.clone(),
    };
    let nothing = LiveMap::EMPTY.root;
    let before = match map {
        // At the first time, what this device has already read of the directory is enough.
        MapKey::Names(_) => before.unwrap_or(&root),
        MapKey::Table(_) => before.unwrap_or(&nothing),
    };
    MerkleMap::new(base.source().digest_key()).diff(base.source(), before, &root, &mut |_, _, _| Ok(()))?;
    Ok(root)
}
