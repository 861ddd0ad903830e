//! Data at the origin of a release. A mirror that is pulled stores it in packs of its own, and is therefore
//! whole without the live file system.
//!
//! An index has only the beginnings of these blocks' addresses. The whole addresses are found by walking the
//! trees, once the packs of the source are here.

use super::fetch::Fetcher;
use super::local::{self, Local};
use super::{PullError, Steps, check};
use crate::index::{BlockLocation, Index, Key, PackName};
use crate::mirror::{OBJECTS_MAX, Unavailable};
use crate::publish::PublishError;
use crate::publish::store::{Lane, PackStore};
use crate::record::RootFile;
use check::{Check, CheckError};
use holdfast_content::{BODY_BYTES_MAX, BlockKind, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};

/// The source's index together with this directory's own packs of the origin's data, as far as they are good,
/// and the keys of the data that is still missing. (No mirror has such a pack, so a damaged one is made
/// again.)
pub fn with_own(
    source: &Index,
    here: Option<&Index>,
    is_good: &dyn Fn(&PackName) -> bool,
) -> (Index, HashSet<Key>) {
    let mut made = Index::default();
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for (number, pack) in source.packs.iter().enumerate().filter(|(_, pack)| !pack.is_origin()) {
        numbers.insert(number as u32, made.packs.len() as u32);
        made.packs.push(*pack);
    }
    let (at_origin, in_packs): (Vec<_>, Vec<_>) =
        source.entries.iter().copied().partition(|(_, location)| location.is_at_origin());
    made.entries.extend(in_packs.into_iter().filter_map(|(key, location)| {
        Some((key, BlockLocation { pack: *numbers.get(&location.pack)?, ..location }))
    }));
    let of_source: HashSet<&PackName> = source.packs.iter().collect();
    let good: HashSet<u32> = here
        .into_iter()
        .flat_map(|here| here.packs.iter().enumerate())
        .filter(|(_, pack)| !pack.is_origin() && (of_source.contains(pack) || is_good(pack)))
        .map(|(number, _)| number as u32)
        .collect();
    let (mut missing, mut own): (HashSet<Key>, Vec<(Key, BlockLocation)>) = Default::default();
    for (key, _) in at_origin {
        match here.and_then(|here| local::by_key(here, &key)).filter(|location| good.contains(&location.pack))
        {
            Some(location) => own.push((key, location)),
            None => drop(missing.insert(key)),
        }
    }
    let used: HashSet<u32> = own.iter().map(|(_, location)| location.pack).collect();
    let packs: &[PackName] = here.map_or(&[], |here| &here.packs);
    let mut own_numbers: HashMap<u32, u32> = HashMap::new();
    for (number, pack) in packs.iter().enumerate().filter(|(number, _)| used.contains(&(*number as u32))) {
        // A block is looked up in the source's pack if the source has the pack too.
        let at = made.packs.iter().position(|known| known == pack).unwrap_or(made.packs.len());
        if at == made.packs.len() {
            made.packs.push(*pack);
        }
        own_numbers.insert(number as u32, at as u32);
    }
    made.entries.extend(
        own.iter()
            .map(|(key, location)| (*key, BlockLocation { pack: own_numbers[&location.pack], ..*location })),
    );
    made.entries.sort_unstable();
    (made, missing)
}

/// Fetches what the trees of `records` need and no pack has. Returns the index of everything, and the packs
/// that were made.
pub fn fetch(
    fetcher: &Fetcher<'_>,
    index: &Index,
    missing: &HashSet<Key>,
    records: &[&RootFile],
    locals: &[Local],
    connections: usize,
) -> Result<(Index, HashSet<Digest>), PullError> {
    let before: HashSet<Digest> = index.packs.iter().map(|pack| pack.digest).collect();
    let mut by_key: BTreeMap<[u8; 32], Vec<&RootFile>> = BTreeMap::new();
    for file in records {
        by_key.entry(file.record.value.digest_key.0).or_default().push(*file);
    }
    let mut all = index.clone();
    for (key, files) in by_key {
        let key = DigestKey(key);
        let mut check = Check::new(fetcher, index, key).without(missing);
        for file in &files {
            match check.tree(&file.record.value.root_dir.address, &|_, _| true) {
                Ok(()) => {}
                Err(CheckError::Stopped(error)) => return Err(error),
                // The later check of everything reports it better, and may repair it.
                Err(CheckError::Missing(_) | CheckError::Block { .. }) => {}
            }
        }
        let wanted = check.lacking();
        let store = PackStore::open(fetcher.target(), key, &all, 1, 1)?;
        store.set_lane(Lane::Large);
        several(fetcher, &key, &wanted, locals, connections, &mut |address, block| {
            store.put_stored(address, block);
            store.check()
        })?;
        all = store.finish()?.0;
    }
    let made = all.packs.iter().map(|pack| pack.digest).filter(|pack| !before.contains(pack)).collect();
    Ok((all, made))
}

/// Whether a block is data and has the digest of its address.
fn is_good(key: &DigestKey, address: Digest, block: &StoredBlock) -> bool {
    block.kind == BlockKind::Chunk && block.clone().open_any(key, address, BODY_BYTES_MAX).is_ok()
}

/// Fetches these blocks from local directories or from mirrors, several requests at once, and calls `put`
/// with each.
fn several(
    fetcher: &Fetcher<'_>,
    key: &DigestKey,
    wanted: &[Digest],
    locals: &[Local],
    connections: usize,
    put: &mut dyn FnMut(Digest, StoredBlock) -> Result<(), PublishError>,
) -> Result<(), PullError> {
    let steps: &Steps<'_> = fetcher.steps();
    let (give, taken) = sync_channel::<(Digest, StoredBlock)>(OBJECTS_MAX);
    let stopped = || PullError::Stopped;
    let next = AtomicUsize::new(0);
    let failed: Mutex<Option<PullError>> = Mutex::new(None);
    let one = |batch: &[Digest], give: &SyncSender<(Digest, StoredBlock)>| -> Result<(), PullError> {
        let mut rest = Vec::new();
        for address in batch {
            let here = locals.iter().find_map(|local| local.stored(address));
            match here.filter(|block| is_good(key, *address, block)) {
                Some(block) => give.send((*address, block)).map_err(|_| stopped())?,
                None => rest.push(*address),
            }
        }
        while !rest.is_empty() {
            steps.step()?;
            let unavailable = |error: Unavailable| PullError::Unavailable(error, fetcher.target().to_owned());
            let (blocks, mirror) = fetcher.mirrors().objects(&rest).map_err(unavailable)?;
            for found in blocks {
                if is_good(key, found.address, &found.block) {
                    rest.retain(|address| *address != found.address);
                    give.send((found.address, found.block)).map_err(|_| stopped())?;
                } else {
                    let why = format!("it gave something else as block {}", found.address.short());
                    if !fetcher.mirrors().report_bad(&mirror, &why) {
                        // No other mirror is left.
                        let failures =
                            vec![crate::mirror::MirrorFailure::Bad { mirror: mirror.clone(), why }];
                        let file = crate::mirror::OBJECTS.to_owned();
                        return Err(unavailable(Unavailable { file, failures, dropped: Vec::new() }));
                    }
                    break;
                }
            }
        }
        Ok(())
    };
    let work = |give: SyncSender<(Digest, StoredBlock)>| {
        while failed.lock().is_none() {
            let start = next.fetch_add(OBJECTS_MAX, Relaxed);
            let end = wanted.len().min(start.saturating_add(OBJECTS_MAX));
            let Some(batch) = wanted.get(start..end).filter(|batch| !batch.is_empty()) else { return };
            if let Err(error) = one(batch, &give) {
                failed.lock().get_or_insert(error);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..connections.clamp(1, wanted.len().div_ceil(OBJECTS_MAX).max(1)) {
            let give = give.clone();
            scope.spawn(|| work(give));
        }
        drop(give);
        for (address, block) in taken {
            if let Err(error) = put(address, block) {
                failed.lock().get_or_insert(error.into());
                // The receiver is dropped, so threads that have more blocks notice and end.
                break;
            }
        }
    });
    failed.into_inner().map_or(Ok(()), Err)
}
