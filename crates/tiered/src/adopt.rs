//! Opens a new directory: begins a store in an empty prefix, or takes over the store that is there.
//!
//! A take-over covers what the newest manifest lists, and the parts of segments after it. Listings may lag,
//! so nothing relies on them alone: the owner's note says which epochs there were, the newest head names the
//! valid manifest, and later objects are requested by name. Objects that a listing does show must exist.

use crate::adopt_tails;
use crate::bucket::Bucket;
use crate::catalogue::{Catalogue, Head, Manifest, Owner};
use crate::claim;
use crate::names::{self, StoreId};
use crate::s3::probe;
use crate::settings::{Settings, TieredError};
use crate::tiered::now_s;
use holdfast_log::{Storage, SyncSite, segment_number};
use std::collections::{BTreeMap, BTreeSet};
use std::io;

/// A file that exists while a store is taken over.
pub(crate) const MARKER: &str = "objects-adopting";
pub(crate) const ADOPTED: SyncSite = SyncSite("objects: taken over");
/// Number of epochs before ours whose objects are requested by name.
pub(crate) const EPOCHS_TRIED: u64 = 32;
/// Number of epochs before ours whose heads are requested.
const HEADS_TRIED: usize = 1000;
/// Number of manifests, heads and segments after the last known one that are requested by name.
pub(crate) const AHEAD: u64 = 3;

/// The catalogue that a new directory starts with. It is not written to a file yet.
pub(crate) fn begin(
    local: &dyn Storage,
    bucket: &dyn Bucket,
    settings: &Settings,
) -> Result<Catalogue, TieredError> {
    clear(local)?;
    let unique = local.entropy().map_err(TieredError::io("drawing", "a name"))?;
    probe(bucket, &unique)?;
    match claim::owner(bucket)? {
        Some(owner) if settings.anew || settings.takes_over => {
            mark(local)?;
            tracing::warn!(
                bucket = bucket.describe(),
                owner = owner.description(),
                "its store is taken over"
            );
            // The note is written before the bucket is read: from here on, a server that still writes
            // acknowledges nothing.
            let token = local.entropy().map_err(TieredError::io("drawing", "a token"))?;
            let (epoch, host) = (claim::newest_epoch(bucket, &owner)? + 1, settings.host.clone());
            let ours = Owner { epoch, token, host, since_s: now_s(), ..owner };
            bucket.put(names::OWNER, ours.to_text().as_bytes())?;
            adopt(local, bucket, &ours)
        }
        Some(owner) => Err(TieredError::Occupied { bucket: bucket.describe(), owner: owner.description() }),
        None => {
            let is_store = |name: &str| {
                ["/segment-", "/manifest-", "/tail-", "/part-", "/piece-"]
                    .iter()
                    .any(|part| name.contains(part))
            };
            if let Some(found) = bucket.list("")?.into_iter().find(|one| is_store(&one.name)) {
                return Err(TieredError::Damaged {
                    what: bucket.describe(),
                    why: format!(
                        "it has a store's objects, such as {}, but no object '{}'. Put that back, or give this server another \
                         prefix",
                        found.name,
                        names::OWNER
                    ),
                });
            }
            let store = local.entropy().map_err(TieredError::io("drawing", "a name"))?;
            Ok(Catalogue::new(store))
        }
    }
}

/// Notes that the contents of the directory are not valid.
fn mark(local: &dyn Storage) -> Result<(), TieredError> {
    let failed = TieredError::io("writing", MARKER);
    let made = local.create(MARKER).and_then(|file| file.sync(ADOPTED));
    made.and_then(|()| local.sync_dir(ADOPTED)).map_err(failed)
}

/// Gives up the local state if another server has taken the store over since it was written.
///
/// # Errors
/// The error of the bucket or of the local disk.
pub(crate) fn give_up_if_replaced(
    local: &dyn Storage,
    bucket: &dyn Bucket,
    catalogue: Catalogue,
) -> Result<Option<Catalogue>, TieredError> {
    // A store with another name does not belong to a server of this group.
    let Some(owner) = claim::owner(bucket)?.filter(|owner| owner.store == catalogue.store) else {
        return Ok(Some(catalogue));
    };
    if claim::is_ours(&owner, &catalogue) && claim::newest_epoch(bucket, &owner)? <= catalogue.epoch {
        return Ok(Some(catalogue));
    }
    tracing::warn!(
        bucket = bucket.describe(),
        owner = owner.description(),
        "it had the store since; what is left here is given up"
    );
    mark(local)?;
    local.remove(crate::catalogue::FILE).map_err(TieredError::io("removing", crate::catalogue::FILE))?;
    Ok(None)
}

/// Removes what an interrupted take-over has left, or what was given up. Does not touch a directory in use.
fn clear(local: &dyn Storage) -> Result<(), TieredError> {
    let names = local.list().map_err(TieredError::io("listing", &local.describe()))?;
    let segments = || names.iter().filter(|name| segment_number(name).is_some());
    let was_adopting = names.iter().any(|name| name == MARKER);
    if segments().next().is_some() && !was_adopting {
        return Err(TieredError::Damaged {
            what: local.describe(),
            why: format!(
                "it has segments, but no file '{}' that says what of them is in the bucket. Put that back, or move the \
                 directory away and start with --blocks-anew",
                crate::catalogue::FILE
            ),
        });
    }
    if was_adopting {
        let others =
            names.iter().map(String::as_str).filter(|name| ![MARKER, crate::tiered::LOCK].contains(name));
        for name in others.chain([MARKER]) {
            local.remove(name).map_err(TieredError::io("removing", name))?;
        }
    }
    Ok(())
}

/// Ends a take-over. Called when the catalogue is written.
pub(crate) fn end(local: &dyn Storage) -> io::Result<()> {
    match local.remove(MARKER) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn adopt(local: &dyn Storage, bucket: &dyn Bucket, owner: &Owner) -> Result<Catalogue, TieredError> {
    let (store, epoch) = (owner.store, owner.epoch);
    let mut catalogue = Catalogue { epoch, token: owner.token, ..Catalogue::new(store) };
    let listed = bucket.list(&names::store(&store))?;
    let all: BTreeSet<&str> = listed.iter().map(|one| one.name.as_str()).collect();
    match newest(bucket, &store, &all, epoch)? {
        Some(manifest) => {
            catalogue.manifest = manifest.number;
            catalogue.segments = manifest.segments.into_iter().map(|entry| (entry.number, entry)).collect();
            put_format(local, &manifest.format)?;
        }
        None if all.is_empty() => {}
        None => {
            return Err(TieredError::Damaged {
                what: bucket.describe(),
                why: "it has a store's objects but no manifest that says which of them count. Put the newest back".to_owned(),
            });
        }
    }
    let lengths: BTreeMap<&str, u64> = listed.iter().map(|one| (one.name.as_str(), one.length)).collect();
    for (name, expected) in catalogue.segments.values().flat_map(|entry| entry.objects(&store)) {
        let is_there = lengths.get(name.as_str()) == Some(&expected)
            || match bucket.length(&name) {
                Ok(length) => length == expected,
                Err(error) if error.is_absent() => false,
                Err(error) => return Err(error.into()),
            };
        if !is_there {
            tracing::error!(
                object = name,
                bucket = bucket.describe(),
                "an object that makes up the store is not there: blocks in it are lost, unless it is put back"
            );
        }
    }
    adopt_tails::adopt(local, bucket, &catalogue, &all)?;
    Ok(catalogue)
}

/// Where the search for the newest manifest begins.
struct SearchStart {
    epoch: u64,
    number: u64,
    /// Whether this manifest must exist, because a head names it.
    is_sure: bool,
}

impl SearchStart {
    /// Finds the start by the newest head, whose name follows from the epochs before ours, and by the
    /// manifests that a listing shows. Returns `None` if there is neither.
    fn find(
        bucket: &dyn Bucket,
        store: &StoreId,
        names: &BTreeSet<&str>,
        epoch: u64,
    ) -> Result<Option<SearchStart>, TieredError> {
        let listed = names.iter().filter_map(|name| names::manifest_of(store, name)).max();
        let newest_listed = listed.map_or(0, |(epoch, _)| epoch);
        // Heads of epochs before the newest listed manifest add nothing.
        for epoch in (newest_listed..epoch).rev().take(HEADS_TRIED) {
            let name = names::head(store, epoch);
            let bytes = match bucket.get(&name, None) {
                Ok(bytes) => bytes,
                Err(error) if error.is_absent() => continue,
                Err(error) => return Err(error.into()),
            };
            let head = Head::of_text(&bytes).filter(|head| head.store == *store);
            let number = head.map(|head| head.manifest).ok_or_else(|| TieredError::Damaged {
                what: format!("the object {}/{name}", bucket.describe()),
                why: "it names no manifest. Put an earlier version of it back, or remove it".to_owned(),
            })?;
            let is_sure = listed.is_none_or(|listed| (epoch, number) >= listed);
            let (epoch, number) = listed.map_or((epoch, number), |listed| listed.max((epoch, number)));
            return Ok(Some(SearchStart { epoch, number, is_sure }));
        }
        Ok(listed.map(|(epoch, number)| SearchStart { epoch, number, is_sure: false }))
    }
}

/// The newest manifest; `None` if there is none.
fn newest(
    bucket: &dyn Bucket,
    store: &StoreId,
    names: &BTreeSet<&str>,
    epoch: u64,
) -> Result<Option<Manifest>, TieredError> {
    let beginning = SearchStart::find(bucket, store, names, epoch)?;
    let number = beginning.as_ref().map_or(0, |beginning| beginning.number);
    let first = beginning.as_ref().map_or(0, |beginning| beginning.epoch);
    let epochs: BTreeSet<u64> =
        (first.max(epoch.saturating_sub(EPOCHS_TRIED))..=epoch).chain([first]).collect();
    let mut found = None;
    let (mut next, mut misses) = (number.max(1), 0);
    while misses < AHEAD {
        let mut here = None;
        for epoch in epochs.iter().rev() {
            let name = names::manifest(store, *epoch, next);
            match bucket.get(&name, None) {
                Ok(bytes) => {
                    let manifest = Manifest::of_bytes(&bytes)
                        .ok()
                        .filter(|manifest| (&manifest.store, manifest.number) == (store, next));
                    here = Some(manifest.ok_or_else(|| TieredError::Damaged {
                        what: format!("the object {}/{name}", bucket.describe()),
                        why: "it is no manifest. Put an earlier version of it back".to_owned(),
                    })?);
                    break;
                }
                Err(error) if error.is_absent() => {}
                Err(error) => return Err(error.into()),
            }
        }
        match here {
            Some(manifest) => (found, misses) = (Some(manifest), 0),
            None => misses += 1,
        }
        next += 1;
    }
    match (&found, beginning) {
        (None, Some(SearchStart { epoch, number, is_sure: true })) => Err(TieredError::Damaged {
            what: bucket.describe(),
            why: format!(
                "its newest manifest {} is not there. Put it back; where listings lag, wait until they show all, and start again",
                names::manifest(store, epoch, number)
            ),
        }),
        _ => Ok(found),
    }
}

fn put_format(local: &dyn Storage, format: &[u8]) -> Result<(), TieredError> {
    let failed = || TieredError::io("writing", "FORMAT");
    match local.remove("FORMAT") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed()(error)),
        _ => {}
    }
    let file = local.create("FORMAT").map_err(failed())?;
    file.write_at(0, format).and_then(|()| file.sync(ADOPTED)).map_err(failed())
}
