//! Decides which releases stay, and which files can be removed.

use super::PublishError;
use super::folder::FolderBlocks;
use super::store::{Lane, PackStore, read_index};
use crate::index::{BlockLocation, Index, Key, key_of};
use crate::record::{Location, RootFile};
use crate::{form, layout, pack};
use holdfast_content::{BlockKind, Reference, StoredBlock};
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

/// A pack is rewritten if less than this fraction of it is needed: one half.
const LIVE_PARTS: u64 = 2;

/// The record of a release that is kept.
pub struct RetainedRelease {
    /// The signed file of the release.
    pub file: RootFile,
}

impl RetainedRelease {
    /// The number of the release.
    pub fn sequence(&self) -> u64 {
        self.file.record.value.sequence
    }

    /// The inode of its root directory.
    pub fn root(&self) -> Reference {
        self.file.record.value.root_dir
    }
}

/// The numbers of all records there, newest first.
fn sequences(target: &Path) -> Result<Vec<u64>, PublishError> {
    let folder = target.join("records");
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(PublishError::local(&folder, &error)),
    };
    let mut sequences: Vec<u64> =
        entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    sequences.sort_unstable_by(|a, b| b.cmp(a));
    Ok(sequences)
}

/// The newest `count` records in the directory, newest first.
///
/// # Errors
/// [`PublishError`].
pub fn retained(target: &Path, count: usize) -> Result<Vec<RetainedRelease>, PublishError> {
    let read = |sequence: u64| {
        let path = target.join(layout::record(sequence));
        let bytes = holdfast_durable::read(&path, <RootFile as form::Kind>::BYTES_MAX)
            .map_err(|error| PublishError::local(&path, &error))?
            .unwrap_or_default();
        let file =
            form::read(&bytes).map_err(|error| PublishError::Damaged { path, why: error.to_string() })?;
        Ok(RetainedRelease { file })
    };
    sequences(target)?.into_iter().take(count).map(read).collect()
}

/// Whether there are more records than `count`.
///
/// # Errors
/// [`PublishError`].
pub fn is_something_dropped(target: &Path, count: usize) -> Result<bool, PublishError> {
    Ok(sequences(target)?.len() > count)
}

/// An index of only those blocks that `roots` reach. Packs that are mostly unreached are rewritten without
/// the others.
///
/// # Errors
/// [`PublishError`]: a block that is reached is missing, or a pack cannot be written. Nothing is removed.
pub fn without_garbage(
    target: &Path,
    blocks: &FolderBlocks,
    roots: &[Reference],
) -> Result<Index, PublishError> {
    let live = reached(target, blocks, roots)?;
    let index = blocks.index();
    let mut bytes_live = vec![0u64; index.packs.len()];
    for (_, location) in index.entries.iter().filter(|(key, _)| live.contains(key)) {
        bytes_live[location.pack as usize] += u64::from(location.bytes);
    }
    let refers = index.entries.iter().any(|(key, location)| location.is_at_origin() && live.contains(key));
    let stays = index.packs.iter().zip(&bytes_live).map(|(pack, live)| match pack.is_origin() {
        true => refers,
        false => live * LIVE_PARTS >= pack.bytes,
    });
    let stays: Vec<bool> = stays.collect();
    // Packs that stay keep their blocks, but get new numbers.
    let mut numbers = BTreeMap::new();
    let mut retained = Index::default();
    for (number, pack) in index.packs.iter().enumerate().filter(|(number, _)| stays[*number]) {
        numbers.insert(number as u32, retained.packs.len() as u32);
        retained.packs.push(*pack);
    }
    let mut moved: Vec<(BlockLocation, Key)> = Vec::new();
    for (key, location) in index.entries.iter().filter(|(key, _)| live.contains(key)) {
        match numbers.get(&location.pack) {
            Some(pack) => retained.entries.push((*key, BlockLocation { pack: *pack, ..*location })),
            None => moved.push((*location, *key)),
        }
    }
    moved.sort_unstable();
    let store = PackStore::open(target, holdfast_content::BlockSource::digest_key(blocks), &retained, 1, 1)?;
    store.set_lane(Lane::Small);
    for (location, _) in moved {
        let path = target.join(layout::pack(&index.packs[location.pack as usize].digest));
        let frame = blocks.frame(&location).map_err(|error| PublishError::local(&path, &error))?;
        let found = pack::Frame::first(&frame).and_then(|(frame, _)| Some((frame.address, frame.stored()?)));
        let (address, stored) =
            found.ok_or_else(|| PublishError::Damaged { path, why: "a block in it is cut short".into() })?;
        store.put_stored(address, stored);
    }
    Ok(store.finish()?.0)
}

/// All blocks that `roots` reach.
fn reached(target: &Path, blocks: &FolderBlocks, roots: &[Reference]) -> Result<HashSet<Key>, PublishError> {
    let mut reached = HashSet::new();
    let mut stack: Vec<Digest> = roots.iter().map(|root| root.address).collect();
    while let Some(address) = stack.pop() {
        if !reached.insert(key_of(&address)) {
            continue;
        }
        let damaged = |why: String| PublishError::Damaged { path: target.to_owned(), why };
        let location = blocks.location(&address).ok_or_else(|| {
            damaged(format!("block {} of a release that is kept is missing", address.short()))
        })?;
        if let Some(children) =
            children(blocks, &location).map_err(|why| damaged(format!("block {}: {why}", address.short())))?
        {
            stack.extend(children);
        }
    }
    Ok(reached)
}

/// The references of a block. Chunks have none, so only their first bytes are read.
pub(super) fn children(
    blocks: &FolderBlocks,
    location: &BlockLocation,
) -> Result<Option<Vec<Digest>>, String> {
    if location.is_at_origin() {
        // Only chunks are at the origin.
        return Ok(None);
    }
    let head = BlockLocation { bytes: location.bytes.min(pack::HEADER_BYTES as u32 + 1), ..*location };
    let head = blocks.frame(&head).map_err(|error| error.to_string())?;
    if head.last() == Some(&(BlockKind::Chunk as u8)) {
        return Ok(None);
    }
    let frame = blocks.frame(location).map_err(|error| error.to_string())?;
    let stored: Option<StoredBlock> = pack::Frame::first(&frame).and_then(|(frame, _)| frame.stored());
    stored.map(|stored| Some(stored.references)).ok_or_else(|| "it is damaged".to_owned())
}

/// Removes all packs, indexes and hints except those that the `named` indexes refer to, and all records
/// except `retained`.
///
/// # Errors
/// [`PublishError`].
pub fn remove_all_but(
    target: &Path,
    retained: &[RetainedRelease],
    named: &[Location],
) -> Result<(), PublishError> {
    let mut stays: HashSet<String> = HashSet::new();
    for location in named {
        stays.insert(layout::index(&location.digest));
        stays.insert(layout::hints(&location.digest));
        if target.join(layout::index(&location.digest)).exists() {
            let index = read_index(target, &location.digest)?;
            stays.extend(index.packs.iter().map(|pack| layout::pack(&pack.digest)));
        }
    }
    stays.extend(retained.iter().map(|retained| layout::record(retained.sequence())));
    // Records are removed first, so that none is ever there without its blocks.
    for folder in ["records", "index", "hints", "packs"] {
        let path = target.join(folder);
        let Ok(entries) = fs::read_dir(&path) else { continue };
        for entry in entries {
            let entry = entry.map_err(|error| PublishError::local(&path, &error))?;
            let name = format!("{folder}/{}", entry.file_name().to_string_lossy());
            if !stays.contains(&name) {
                fs::remove_file(entry.path()).map_err(|error| PublishError::local(&entry.path(), &error))?;
            }
        }
    }
    Ok(())
}
