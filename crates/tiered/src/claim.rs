//! The claim to a prefix: the owner's note, and the check that the bucket is unchanged.
//!
//! S3 has no conditional request that every store honours, so two servers on one prefix cannot be prevented;
//! they are detected. Each start writes a new note, and a server that finds another's note writes nothing
//! more. Until then both write under names of their own, so neither overwrites what the other wrote.

use crate::adopt::AHEAD;
use crate::bucket::{Bucket, BucketError};
use crate::catalogue::{Catalogue, Owner};
use crate::entry::Entry;
use crate::names;
use crate::settings::TieredError;
use crate::tiered::{Claim, Inner, LocalSegment, Loss, State, now_s};
use std::collections::{BTreeMap, BTreeSet};

/// The owner's note; `None` if there is none.
pub(crate) fn owner(bucket: &dyn Bucket) -> Result<Option<Owner>, TieredError> {
    match bucket.get(names::OWNER, None) {
        Ok(bytes) => Owner::of_text(&bytes).map(Some).ok_or_else(|| TieredError::Damaged {
            what: format!("the object {}/{}", bucket.describe(), names::OWNER),
            why: "it is no note of an owner, or one of a newer version; is the prefix Holdfast's?".to_owned(),
        }),
        Err(error) if error.is_absent() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The newest epoch in which a server has written anything valid, given the owner's note. The note alone is
/// not enough: the note of an earlier start may arrive late, and replaces the newest one until a running
/// server corrects that. But each start writes a manifest and a head before anything else is valid.
pub(crate) fn newest_epoch(bucket: &dyn Bucket, owner: &Owner) -> Result<u64, TieredError> {
    let mut listed = bucket.list(&names::manifests(&owner.store))?;
    listed.extend(bucket.list(&names::heads(&owner.store))?);
    let names = listed.iter().map(|one| one.name.as_str());
    Ok(newest_of(bucket, &owner.store, owner.epoch, names)?)
}

/// The newest epoch from `known` on that has a manifest or a head in a listing of names. A listing may lag,
/// so the heads of the next few epochs are also requested by name.
fn newest_of<'a>(
    bucket: &dyn Bucket,
    store: &names::StoreId,
    known: u64,
    listed: impl Iterator<Item = &'a str>,
) -> Result<u64, BucketError> {
    let mut newest = listed.filter_map(|name| names::epoch_of(store, name)).fold(known, u64::max);
    let mut next = newest + 1;
    while next <= newest + AHEAD {
        match bucket.length(&names::head(store, next)) {
            Ok(_) => newest = next,
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
        next += 1;
    }
    Ok(newest)
}

/// Whether no other server has claimed the prefix since this catalogue was written.
pub(crate) fn is_ours(owner: &Owner, catalogue: &Catalogue) -> bool {
    owner.store == catalogue.store && (owner.epoch < catalogue.epoch || owner.token == catalogue.token)
}

/// Fails if the claim is lost, so that nothing may be written.
pub(crate) fn lost(claim: &Claim) -> Result<(), TieredError> {
    match claim {
        Claim::Lost { why, loss } => {
            Err(TieredError::Doubtful { why: why.clone(), way_out: loss.way_out().to_owned() })
        }
        _ => Ok(()),
    }
}

fn lose(inner: &Inner, why: String, loss: Loss) -> TieredError {
    let error = TieredError::Doubtful { why: why.clone(), way_out: loss.way_out().to_owned() };
    let mut state = inner.state.lock();
    if !matches!(state.claim, Claim::Lost { .. }) {
        tracing::error!("{error}");
        state.claim = Claim::Lost { why, loss };
    }
    error
}

impl Loss {
    fn way_out(self) -> &'static str {
        match self {
            Loss::Another => ANOTHER,
            Loss::Changed => CHANGED,
        }
    }
}

const ANOTHER: &str = "Stop one of the two. If this is the one to stay, move its directory of objects away and start it with \
                       --blocks-anew, which takes the store over as it is in the bucket; or give it another prefix";
const CHANGED: &str = "Put the bucket right (a backup, earlier versions of its objects) and start the server again; or start \
                       it with --blocks-anew, which sends again what is still here and accepts the loss of the rest";

/// Claims the prefix for this server: checks whose it was and that all objects exist, and writes the owner's
/// note.
pub(crate) fn take(inner: &Inner) -> Result<(), TieredError> {
    let _taking = inner.taking.lock();
    let place = inner.bucket.describe();
    let (store, epoch, token, is_unused) = {
        let state = inner.state.lock();
        lost(&state.claim)?;
        if state.claim == Claim::Held {
            return Ok(());
        }
        let catalogue = &state.catalogue;
        let is_unused = catalogue.segments.is_empty() && catalogue.condemned.is_empty();
        (catalogue.store, catalogue.epoch, catalogue.token, is_unused)
    };
    let found = owner(&*inner.bucket);
    if let Err(TieredError::Bucket(error)) = &found {
        drop(inner.note(Err::<(), _>(error.clone())));
    }
    match found? {
        None if is_unused || inner.settings.anew => {}
        None => {
            let why = format!(
                "the owner's note is gone from {place}, which was emptied or changed behind this server's back"
            );
            return Err(lose(inner, why, Loss::Changed));
        }
        Some(owner) if owner.store != store => {
            return Err(lose(
                inner,
                format!("{place} now has the store of {}", owner.description()),
                Loss::Another,
            ));
        }
        Some(owner) if owner.epoch > epoch || (owner.epoch == epoch && owner.token != token) => {
            return Err(lose(
                inner,
                format!("{place} was taken over by {}", owner.description()),
                Loss::Another,
            ));
        }
        Some(_) => {}
    }
    let listed = Listing::read(inner, store)?;
    let names = listed.manifests.iter().map(String::as_str);
    if inner.note(newest_of(&*inner.bucket, &store, epoch, names))? > epoch {
        let why = format!("{place} was taken over by a server whose note an earlier one has replaced");
        return Err(lose(inner, why, Loss::Another));
    }
    let mut missing = listed.missing(inner)?;
    {
        let state = inner.state.lock();
        missing.retain(|(_, name)| !state.lost_objects.contains(name));
    }
    if !missing.is_empty() && !inner.settings.anew {
        let why = format!(
            "{} of the objects that {place} had are not there any more, the first of them {}",
            missing.len(),
            missing[0].1
        );
        return Err(lose(inner, why, Loss::Changed));
    }
    {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        if state.accept_missing(&missing) {
            crate::catalogue::write_lost(&*inner.local, &state.lost_objects)
                .map_err(TieredError::io("writing", "the list of lost objects"))?;
        }
        state.catalogue.epoch += 1;
        state.catalogue.token = inner.local.entropy().map_err(TieredError::io("drawing", "a token"))?;
        state.is_dirty = true;
    }
    inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))?;
    put_note(inner)?;
    inner.state.lock().claim = Claim::Held;
    look(inner)?;
    listed.sort_out(inner);
    Ok(())
}

fn put_note(inner: &Inner) -> Result<(), BucketError> {
    let owner = {
        let state = inner.state.lock();
        let Catalogue { store, epoch, token, .. } = state.catalogue;
        Owner { store, epoch, token, host: inner.settings.host.clone(), since_s: now_s() }
    };
    inner.note(inner.bucket.put(names::OWNER, owner.to_text().as_bytes()))
}

/// Checks that the prefix is still this server's.
pub(crate) fn look(inner: &Inner) -> Result<(), TieredError> {
    let claim = inner.state.lock().claim.clone();
    match claim {
        Claim::Pending => return take(inner),
        Claim::Held => {}
        Claim::Lost { .. } => return lost(&claim),
    }
    let found = owner(&*inner.bucket);
    let outcome = match &found {
        Err(TieredError::Bucket(error)) => Err(error.clone()),
        _ => Ok(()),
    };
    inner.note(outcome)?;
    let place = inner.bucket.describe();
    let (store, epoch, token) = {
        let state = inner.state.lock();
        (state.catalogue.store, state.catalogue.epoch, state.catalogue.token)
    };
    match found? {
        Some(owner) if owner.store == store && owner.token == token => Ok(()),
        // The note of an earlier start arrived late.
        Some(owner) if owner.store == store && owner.epoch < epoch => Ok(put_note(inner)?),
        Some(owner) => {
            Err(lose(inner, format!("{place} was taken over by {}", owner.description()), Loss::Another))
        }
        None => {
            let why = format!(
                "the owner's note is gone from {place}, which was emptied or changed behind this server's back"
            );
            Err(lose(inner, why, Loss::Changed))
        }
    }
}

/// The objects of a store in the bucket.
struct Listing {
    /// Objects of segments, present and former, with their lengths.
    objects: BTreeMap<String, u64>,
    /// Manifests and heads.
    manifests: Vec<String>,
}

impl Listing {
    fn read(inner: &Inner, store: names::StoreId) -> Result<Listing, TieredError> {
        let mut listing = Listing { objects: BTreeMap::new(), manifests: Vec::new() };
        let of_segments = [
            names::segments(&store),
            names::tails(&store),
            names::parts(&store),
            names::pieces(&store),
            names::outlines(&store),
        ];
        for one in inner.note(inner.bucket.list(&names::store(&store)))? {
            let is_head = names::head_of(&store, &one.name).is_some();
            if is_head || names::manifest_of(&store, &one.name).is_some() {
                listing.manifests.push(one.name);
            } else if of_segments.iter().any(|beginning| one.name.starts_with(beginning)) {
                listing.objects.insert(one.name, one.length);
            }
        }
        Ok(listing)
    }

    /// Objects of segments that the catalogue lists and the bucket lacks. A listing may lag, so each is also
    /// requested by name. (Outlines are not checked: a segment without its outline is read itself.)
    fn missing(&self, inner: &Inner) -> Result<Vec<(u32, String)>, BucketError> {
        let wanted: Vec<(u32, String, u64)> = {
            let state = inner.state.lock();
            let catalogue = &state.catalogue;
            let of = |entry: &Entry| {
                let objects = entry.objects(&catalogue.store).into_iter();
                let number = entry.number;
                objects.map(move |(name, length)| (number, name, length))
            };
            catalogue.segments.values().flat_map(of).collect()
        };
        let mut missing = Vec::new();
        for (number, name, length) in wanted {
            if self.objects.get(&name) == Some(&length) {
                continue;
            }
            match inner.note(inner.bucket.length(&name)) {
                Ok(found) if found == length => {}
                Ok(_) => missing.push((number, name)),
                Err(error) if error.is_absent() => missing.push((number, name)),
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Notes objects that nothing needs for removal: those that a crash left incomplete, and replaced parts
    /// and manifests.
    fn sort_out(self, inner: &Inner) {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        let catalogue = &state.catalogue;
        let condemned = catalogue.condemned.iter().map(|one| &one.entry);
        let store = catalogue.store;
        let known: BTreeSet<String> =
            catalogue.segments.values().chain(condemned).flat_map(|entry| entry.names(&store)).collect();
        state.old_objects.extend(self.manifests);
        for name in self.objects.into_keys().filter(|name| !known.contains(name)) {
            let segment = names::tail_of(&store, &name).map(|(segment, ..)| segment);
            match segment.and_then(|segment| state.growing.get_mut(&segment)) {
                // A server that takes over needs this part until the segment is in the bucket.
                Some(growing) => growing.strays.push(name),
                None => state.old_objects.push(name),
            }
        }
        state.needs_manifest = true;
    }
}

impl State {
    /// Has segments sent again that are missing in the bucket but available locally. Returns whether others
    /// are lost.
    fn accept_missing(&mut self, missing: &[(u32, String)]) -> bool {
        let known = self.lost_objects.len();
        for (number, name) in missing {
            // Another part of the segment was missing too.
            if self.growing.contains_key(number) {
                continue;
            }
            match self.copies.remove(number).and_then(|_| self.catalogue.segments.remove(number)) {
                Some(entry) => {
                    let (written, synced) = (entry.length, entry.length);
                    let growing = LocalSegment { written, synced, is_sealed: true, ..LocalSegment::new() };
                    self.growing.insert(*number, growing);
                    self.is_dirty = true;
                    tracing::warn!(object = name, "an object is gone from the bucket and is sent again");
                }
                None => {
                    tracing::error!(
                        object = name,
                        "an object is gone from the bucket: blocks in it are lost"
                    );
                    self.lost_objects.insert(name.clone());
                }
            }
        }
        self.lost_objects.len() > known
    }
}
