//! A disk in memory that loses power, for tests of everything that must be durable.
//!
//! It distinguishes written from durable bytes. At a power loss each write since the last sync of its file is
//! kept, dropped or torn, independently of the others (so writes are also reordered), and so is each change
//! of the directory since its last sync; the seed decides. It counts changes, crashes after the k-th, can
//! make the syncs of one site do nothing, run out of space, fail syncs and reads, and damage bytes.

use crate::storage::{Storage, StorageFile, StorageLock, SyncSite};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

const TEAR_BYTES: u64 = 512;

/// How a run of a process ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// The process dies; the kernel still writes what it was given.
    Kill,
    /// The machine stops: what was not synced survives or not, as the seed decides.
    PowerLoss,
}

/// The simulated disk. Clones share it.
#[derive(Clone)]
pub struct PowerLoss(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    nodes: BTreeMap<u64, Node>,
    names: BTreeMap<String, u64>,
    durable_names: BTreeMap<String, u64>,
    pending_names: Vec<NameChange>,
    next_node: u64,
    random: u64,
    changes: u64,
    crash_after: Option<u64>,
    down: bool,
    /// Handles made before the last restart belong to a dead process.
    generation: u64,
    locked: BTreeSet<String>,
    disabled: Option<SyncSite>,
    sites: BTreeMap<SyncSite, u64>,
    failing_syncs: u64,
    capacity: Option<u64>,
    bad_reads: Vec<(String, Range<u64>)>,
}

#[derive(Default)]
struct Node {
    live: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<Change>,
    reserved: u64,
}

enum Change {
    Write(u64, Vec<u8>),
    Truncate(u64),
}

enum NameChange {
    Set(String, u64),
    Remove(String),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Change::Write(offset, new) => {
                let (start, end) = (*offset as usize, *offset as usize + new.len());
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[start..end].copy_from_slice(new);
            }
            Change::Truncate(length) => bytes.resize(*length as usize, 0),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, u64>) {
        match self {
            NameChange::Set(name, node) => {
                names.insert(name.clone(), *node);
            }
            NameChange::Remove(name) => {
                names.remove(name);
            }
        }
    }
}

impl PowerLoss {
    /// An empty disk. `seed` decides what survives each crash.
    pub fn new(seed: u64) -> PowerLoss {
        PowerLoss(Arc::new(Mutex::new(Disk { random: seed, ..Disk::default() })))
    }

    /// A view for one life of the process under test.
    pub fn storage(&self) -> Arc<dyn Storage> {
        let generation = self.0.lock().generation;
        Arc::new(View { disk: self.0.clone(), generation })
    }

    /// Loses power after `count` more changes (writes, truncations, syncs, directory changes).
    pub fn crash_after(&self, count: u64) {
        let mut disk = self.0.lock();
        let at = disk.changes + count;
        disk.crash_after = Some(at);
    }

    /// Changes so far, over all lives.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Whether the power is off: every operation fails until [`PowerLoss::restart`].
    pub fn is_down(&self) -> bool {
        self.0.lock().down
    }

    /// Ends the present run and begins another; get a new [`PowerLoss::storage`]. Injected failures end too.
    pub fn restart(&self, crash: Crash) {
        let disk = &mut *self.0.lock();
        if crash == Crash::PowerLoss {
            disk.lose();
        }
        disk.crash_after = None;
        disk.down = false;
        disk.generation += 1;
        disk.locked.clear();
        disk.failing_syncs = 0;
        disk.bad_reads.clear();
    }

    /// Makes every sync of `site` do nothing (`None`: all work again).
    pub fn disable(&self, site: Option<SyncSite>) {
        self.0.lock().disabled = site;
    }

    /// The sites that synced so far, and how often.
    pub fn sites(&self) -> BTreeMap<SyncSite, u64> {
        self.0.lock().sites.clone()
    }

    /// Makes the next `count` syncs fail as Linux does: an error once, and the dirty pages count as clean after.
    pub fn fail_syncs(&self, count: u64) {
        self.0.lock().failing_syncs = count;
    }

    /// Limits the sum of file lengths and reservations (`None`: no limit).
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.0.lock().capacity = bytes;
    }

    /// Bytes in use, reservations included.
    pub fn used_bytes(&self) -> u64 {
        self.0.lock().used()
    }

    /// Flips bits of one byte, as a bad medium does.
    ///
    /// # Panics
    /// If there is no such byte.
    pub fn corrupt(&self, name: &str, offset: u64) {
        let disk = &mut *self.0.lock();
        let node = disk.nodes.get_mut(&disk.names[name]).expect("a named node exists");
        node.live[offset as usize] ^= 0x55;
        if let Some(byte) = node.durable.get_mut(offset as usize) {
            *byte ^= 0x55;
        }
    }

    /// Makes reads of `range` in `name` fail until the next restart.
    pub fn fail_reads(&self, name: &str, range: Range<u64>) {
        self.0.lock().bad_reads.push((name.to_owned(), range));
    }

    /// Ends the injected read failures.
    pub fn heal_reads(&self) {
        self.0.lock().bad_reads.clear();
    }

    /// The names of all files.
    pub fn names(&self) -> Vec<String> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// Length of a file in bytes; `None` when there is none.
    pub fn length(&self, name: &str) -> Option<u64> {
        let disk = self.0.lock();
        disk.names.get(name).map(|node| disk.nodes[node].live.len() as u64)
    }

    /// Removes a file durably, as a careless operator might.
    pub fn delete(&self, name: &str) {
        let disk = &mut *self.0.lock();
        disk.names.remove(name);
        disk.durable_names.remove(name);
        disk.pending_names.retain(|change| match change {
            NameChange::Set(set, _) => set != name,
            NameChange::Remove(_) => true,
        });
    }

    /// Replaces a file durably.
    pub fn overwrite(&self, name: &str, bytes: &[u8]) {
        let disk = &mut *self.0.lock();
        let node = disk.next_node;
        disk.next_node += 1;
        let bytes = bytes.to_vec();
        disk.nodes.insert(node, Node { live: bytes.clone(), durable: bytes, ..Node::default() });
        disk.names.insert(name.to_owned(), node);
        disk.durable_names.insert(name.to_owned(), node);
    }
}

fn power_is_off() -> io::Error {
    io::Error::other("the power is off")
}

impl Disk {
    /// SplitMix64.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn used(&self) -> u64 {
        self.names
            .values()
            .map(|node| &self.nodes[node])
            .map(|node| node.reserved.max(node.live.len() as u64))
            .sum()
    }

    fn alive(&self, generation: u64) -> io::Result<()> {
        if self.down || generation != self.generation { Err(power_is_off()) } else { Ok(()) }
    }

    /// Counts a change; the change that meets the limit does not happen.
    fn change(&mut self, generation: u64) -> io::Result<()> {
        self.alive(generation)?;
        self.changes += 1;
        if self.crash_after.is_some_and(|limit| self.changes > limit) {
            self.down = true;
            return Err(power_is_off());
        }
        Ok(())
    }

    /// Whether this sync is to take effect.
    fn sync(&mut self, generation: u64, site: SyncSite) -> io::Result<bool> {
        self.change(generation)?;
        *self.sites.entry(site).or_default() += 1;
        Ok(self.disabled != Some(site))
    }

    fn fits(&self, more: u64) -> io::Result<()> {
        match self.capacity {
            Some(capacity) if more > 0 && self.used() + more > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    /// Decides what survives a power loss.
    fn lose(&mut self) {
        // 0: nothing unsynced survives, 1: everything does, others: each change independently.
        let mood = self.random() % 5;
        let numbers: Vec<u64> = self.nodes.keys().copied().collect();
        for number in numbers {
            let pending = std::mem::take(&mut self.nodes.get_mut(&number).expect("listed").pending);
            for change in pending {
                let survival = match mood {
                    0 => 0,
                    1 => 1,
                    _ => self.random() % 3,
                };
                let change = match (survival, change) {
                    (0, _) => continue,
                    (2, Change::Write(offset, mut bytes)) => {
                        // Torn at a sector: the first part, or the last part over zeroes never written.
                        let sectors = (bytes.len() as u64).div_ceil(TEAR_BYTES);
                        let kept = ((self.random() % sectors) * TEAR_BYTES) as usize;
                        if self.random() & 1 == 0 {
                            bytes.truncate(kept);
                            Change::Write(offset, bytes)
                        } else {
                            Change::Write(offset + kept as u64, bytes.split_off(kept))
                        }
                    }
                    (_, change) => change,
                };
                change.apply(&mut self.nodes.get_mut(&number).expect("listed").durable);
            }
            let node = self.nodes.get_mut(&number).expect("listed");
            node.live = node.durable.clone();
            node.reserved = node.live.len() as u64;
        }
        for change in std::mem::take(&mut self.pending_names) {
            let survives = match mood {
                0 => false,
                1 => true,
                _ => self.random() & 1 == 0,
            };
            if survives {
                change.apply(&mut self.durable_names);
            }
        }
        self.names = self.durable_names.clone();
        let reachable: BTreeSet<u64> = self.names.values().copied().collect();
        self.nodes.retain(|number, _| reachable.contains(number));
    }
}

struct View {
    disk: Arc<Mutex<Disk>>,
    generation: u64,
}

struct SimulatedFile {
    disk: Arc<Mutex<Disk>>,
    generation: u64,
    node: u64,
    name: String,
}

struct SimulatedLock {
    disk: Arc<Mutex<Disk>>,
    generation: u64,
    name: String,
}

impl StorageLock for SimulatedLock {}

impl Drop for SimulatedLock {
    fn drop(&mut self) {
        let mut disk = self.disk.lock();
        if disk.generation == self.generation {
            disk.locked.remove(&self.name);
        }
    }
}

impl View {
    fn file(&self, node: u64, name: &str) -> Arc<dyn StorageFile> {
        Arc::new(SimulatedFile {
            disk: self.disk.clone(),
            generation: self.generation,
            node,
            name: name.to_owned(),
        })
    }
}

impl Storage for View {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let mut disk = self.disk.lock();
        disk.change(self.generation)?;
        if disk.names.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let node = disk.next_node;
        disk.next_node += 1;
        disk.nodes.insert(node, Node::default());
        disk.names.insert(name.to_owned(), node);
        disk.pending_names.push(NameChange::Set(name.to_owned(), node));
        Ok(self.file(node, name))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        let disk = self.disk.lock();
        disk.alive(self.generation)?;
        let node = *disk.names.get(name).ok_or(io::ErrorKind::NotFound)?;
        Ok(self.file(node, name))
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let disk = self.disk.lock();
        disk.alive(self.generation)?;
        Ok(disk.names.keys().cloned().collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change(self.generation)?;
        disk.names.remove(name).ok_or(io::ErrorKind::NotFound)?;
        disk.pending_names.push(NameChange::Remove(name.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change(self.generation)?;
        let node = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        disk.names.insert(to.to_owned(), node);
        disk.pending_names.push(NameChange::Set(to.to_owned(), node));
        disk.pending_names.push(NameChange::Remove(from.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, site: SyncSite) -> io::Result<()> {
        let mut disk = self.disk.lock();
        if !disk.sync(self.generation, site)? {
            return Ok(());
        }
        let disk = &mut *disk;
        for change in disk.pending_names.drain(..) {
            change.apply(&mut disk.durable_names);
        }
        Ok(())
    }

    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>> {
        let mut disk = self.disk.lock();
        disk.alive(self.generation)?;
        if !disk.locked.insert(name.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(SimulatedLock {
            disk: self.disk.clone(),
            generation: self.generation,
            name: name.to_owned(),
        }))
    }

    fn entropy(&self) -> io::Result<[u8; 16]> {
        let mut disk = self.disk.lock();
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&disk.random().to_le_bytes());
        bytes[8..].copy_from_slice(&disk.random().to_le_bytes());
        Ok(bytes)
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = self.disk.lock();
        disk.capacity.map(|capacity| capacity.saturating_sub(disk.used()))
    }

    fn describe(&self) -> String {
        "simulated disk".to_owned()
    }
}

impl StorageFile for SimulatedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.alive(self.generation)?;
        let result = disk.change(self.generation);
        let node = disk.nodes.get(&self.node).ok_or_else(power_is_off)?;
        if result.is_ok() {
            let covered = node.reserved.max(node.live.len() as u64);
            disk.fits((offset + bytes.len() as u64).saturating_sub(covered))?;
        }
        // The write that the power loss interrupts may be torn like any other.
        let change = Change::Write(offset, bytes.to_vec());
        let node = disk.nodes.get_mut(&self.node).expect("looked up above");
        change.apply(&mut node.live);
        node.pending.push(change);
        result
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let disk = self.disk.lock();
        disk.alive(self.generation)?;
        let wanted = offset..offset + buffer.len() as u64;
        let bad = |(name, range): &(String, Range<u64>)| {
            *name == self.name && range.start < wanted.end && wanted.start < range.end
        };
        if disk.bad_reads.iter().any(bad) {
            return Err(io::Error::other("injected read error"));
        }
        let node = disk.nodes.get(&self.node).ok_or_else(power_is_off)?;
        let from = (offset as usize).min(node.live.len());
        let count = buffer.len().min(node.live.len() - from);
        buffer[..count].copy_from_slice(&node.live[from..from + count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.disk.lock();
        disk.alive(self.generation)?;
        Ok(disk.nodes.get(&self.node).ok_or_else(power_is_off)?.live.len() as u64)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.change(self.generation)?;
        let node = disk.nodes.get(&self.node).ok_or_else(power_is_off)?;
        let covered = node.reserved.max(node.live.len() as u64);
        disk.fits(length.saturating_sub(covered))?;
        let node = disk.nodes.get_mut(&self.node).expect("looked up above");
        let change = Change::Truncate(length);
        change.apply(&mut node.live);
        node.pending.push(change);
        node.reserved = length;
        Ok(())
    }

    fn reserve(&self, length: u64) -> io::Result<()> {
        let mut disk = self.disk.lock();
        disk.alive(self.generation)?;
        let node = disk.nodes.get(&self.node).ok_or_else(power_is_off)?;
        let covered = node.reserved.max(node.live.len() as u64);
        disk.fits(length.saturating_sub(covered))?;
        let node = disk.nodes.get_mut(&self.node).expect("looked up above");
        node.reserved = node.reserved.max(length);
        Ok(())
    }

    fn sync(&self, site: SyncSite) -> io::Result<()> {
        let mut disk = self.disk.lock();
        let takes_effect = disk.sync(self.generation, site)?;
        if disk.failing_syncs > 0 {
            disk.failing_syncs -= 1;
            // The pages are marked clean though they never reached the medium.
            let node = disk.nodes.get_mut(&self.node).ok_or_else(power_is_off)?;
            node.pending.clear();
            return Err(io::Error::other("injected sync failure"));
        }
        if takes_effect {
            let node = disk.nodes.get_mut(&self.node).ok_or_else(power_is_off)?;
            for change in std::mem::take(&mut node.pending) {
                change.apply(&mut node.durable);
            }
        }
        Ok(())
    }
}
