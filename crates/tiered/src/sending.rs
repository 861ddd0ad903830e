//! The thread that sends sealed segments, writes manifests, and removes objects that nothing lists.
//!
//! A segment is sent in these steps: its objects are written; their lengths are checked; the catalogue lists
//! it; a manifest lists it; the head names that manifest; the owner's note is checked. Only then may its
//! local file be removed, and the parts that it does not consist of. A segment is removed in these steps: all
//! segments with contents that were moved out of it are sent; a manifest without it is written; the catalogue
//! notes that; some time passes; its objects are removed.
//! then its objects.

use crate::address::Durability;
use crate::catalogue::{Catalogue, CondemnedSegment, Head};
use crate::claim;
use crate::entry::{self, Entry, Form, Part};
use crate::names::{self, StoreId};
use crate::settings::TieredError;
use crate::tail::TailHead;
use crate::tails;
use crate::tiered::{Claim, Inner, LastManifest, now_s};
use holdfast_log::{Position, SEGMENT_HEADER_BYTES, StorageFile, outline_of};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// Runs until the storage is dropped.
pub(crate) fn run(inner: &Inner) {
    loop {
        let outcome = step(inner);
        if let Err(error) = &outcome {
            tracing::debug!(%error, "what is to be sent waits");
        }
        let mut state = inner.state.lock();
        if state.is_ending {
            return;
        }
        let has_more = outcome.is_ok() && next_sealed(&state.growing).is_some();
        if !has_more {
            inner.wake.wait_for(&mut state, inner.settings.every);
        }
        if state.is_ending {
            return;
        }
    }
}

/// Sends one segment, and clears up once.
pub(crate) fn step(inner: &Inner) -> Result<(), TieredError> {
    claim::look(inner)?;
    let next = next_sealed(&inner.state.lock().growing);
    if let Some(number) = next {
        send(inner, number)?;
    }
    if inner.state.lock().needs_manifest {
        put_manifest(inner)?;
    }
    unlist(inner)?;
    clear_up(inner)?;
    inner.make_room();
    Ok(())
}

fn next_sealed(growing: &std::collections::BTreeMap<u32, crate::tiered::LocalSegment>) -> Option<u32> {
    let sealed =
        |growing: &crate::tiered::LocalSegment| growing.is_sealed && growing.synced > SEGMENT_HEADER_BYTES;
    growing.iter().find(|(_, growing)| sealed(growing)).map(|(number, _)| *number)
}

/// A sealed segment that is sent to the bucket.
struct SealedSegment<'a> {
    inner: &'a Inner,
    store: StoreId,
    number: u32,
    epoch: u64,
    file: Arc<dyn StorageFile>,
    bytes: Vec<u8>,
}

/// Sends one sealed segment.
fn send(inner: &Inner, number: u32) -> Result<(), TieredError> {
    let (file, length, is_begun) = {
        let state = inner.state.lock();
        let (Some(growing), Some(file)) = (state.growing.get(&number), state.files.get(&number)) else {
            return Ok(());
        };
        (file.clone(), growing.written, growing.tail > 0 || !growing.begun.is_empty())
    };
    if is_begun && inner.settings.durability == Durability::Object {
        // Other threads that wait for this segment's end may be sending its last parts already.
        tails::send_until(inner, number, length, Instant::now() + inner.settings.patience)?;
    }
    // A server that takes over refuses a prefix that has objects but no manifest.
    ensure_manifest(inner)?;
    let name = holdfast_log::segment_name(number);
    let mut bytes = vec![0; usize::try_from(length).expect("segments are at most 1 GiB")];
    let count = file.read_at(0, &mut bytes).map_err(TieredError::io("reading", &name))?;
    if count != bytes.len() {
        let error = io::Error::other("it is shorter than what was written to it");
        return Err(TieredError::io("reading", &name)(error));
    }
    let (sent, epoch, store) = {
        let state = inner.state.lock();
        let parts = state.growing.get(&number).filter(|growing| growing.tail == length);
        let parts = parts.map_or_else(Vec::new, |growing| growing.parts.clone());
        (parts, state.catalogue.epoch, state.catalogue.store)
    };
    let sealed = SealedSegment { inner, store, number, epoch, file, bytes };
    let form = match entry::planned(&sent, inner.settings.part_bytes_min) {
        Some(planned) => sealed.put_joined(planned)?,
        None => sealed.put_whole()?,
    };
    let outline = sealed.put_outline()?;
    let entry = Entry { number, epoch, length, form, outline };
    sealed.check(&entry)?;
    drop(sealed);
    let kept: BTreeSet<String> = entry.names(&store).into_iter().collect();
    let description = entry.description(&store);
    {
        let mut state = inner.state.lock();
        state.catalogue.segments.insert(number, entry);
        (state.is_dirty, state.needs_manifest) = (true, true);
    }
    inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))?;
    put_manifest(inner)?;
    // From here on, the segment is as well protected as acknowledged parts.
    claim::look(inner)?;
    let is_gone = {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        let growing = state.growing.remove(&number);
        let is_gone = growing.as_ref().is_some_and(|growing| growing.removed_after.is_some());
        if let Some(growing) = growing {
            let mut offset = 0;
            for part in growing.parts {
                let name = names::tail(&store, number, epoch, offset);
                offset += u64::from(part.length);
                state.old_objects.extend((!kept.contains(&name)).then_some(name));
            }
            let begun = growing.begun.iter().map(|part| names::tail(&store, number, epoch, part.from));
            state.old_objects.extend(begun.chain(growing.strays));
        }
        state.copies.insert(number, inner.pages.tick());
        if is_gone {
            state.condemn_if_leaving(number);
            inner.drop_copy(state, number);
        }
        is_gone
    };
    inner.arrived.notify_all();
    if is_gone {
        inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))?;
    }
    tracing::debug!(object = description, length, "a segment is in the bucket");
    inner.make_room();
    Ok(())
}

impl SealedSegment<'_> {
    /// Writes the whole segment as one object.
    fn put_whole(&self) -> Result<Form, TieredError> {
        let sum = Sha256::digest(&self.bytes).into();
        let object = names::segment(&self.store, self.number, self.epoch, &sum);
        self.inner.note(self.inner.bucket.put(&object, &self.bytes))?;
        Ok(Form::Whole { sum })
    }

    /// Sends adjacent small parts once more, joined into one.
    fn put_joined(&self, planned: Vec<Part>) -> Result<Form, TieredError> {
        let mut offset = 0;
        for part in &planned {
            if part.is_joined {
                let (previous, acknowledged) = ((0, 0), Position::START);
                let head = TailHead { segment: self.number, offset, previous, acknowledged };
                let object = tails::object_of(&*self.file, &head, part.length.into())?;
                let name = names::part(&self.store, self.number, self.epoch, offset, part.length);
                self.inner.note(self.inner.bucket.put(&name, &object))?;
            }
            offset += u64::from(part.length);
        }
        Ok(Form::Parts(planned))
    }

    /// Writes the segment's outline as an object of its own, so that building an index need not read the
    /// whole segment.
    fn put_outline(&self) -> Result<Option<[u8; 16]>, TieredError> {
        let Some(outline) = outline_of(self.number, &self.bytes) else { return Ok(None) };
        let sum = *outline.last_chunk().expect("it ends with its sum");
        let name = names::outline(&self.store, self.number, self.epoch, &sum);
        self.inner.note(self.inner.bucket.put(&name, &outline))?;
        Ok(Some(sum))
    }

    /// Checks that all objects exist and have the right lengths.
    fn check(&self, entry: &Entry) -> Result<(), TieredError> {
        let inner = self.inner;
        let objects = entry.objects(&self.store);
        let listed = match objects.len() {
            0..=2 => Vec::new(),
            // One listing instead of many requests. Objects that it does not show are requested by name.
            _ => {
                let beginning = names::tails_of(&self.store, self.number, self.epoch);
                inner.note(inner.bucket.list(&beginning))?
            }
        };
        let listed: BTreeMap<String, u64> = listed.into_iter().map(|one| (one.name, one.length)).collect();
        for (object, length) in objects {
            let found = match listed.get(&object) {
                Some(found) if *found == length => continue,
                _ => inner.note(inner.bucket.length(&object))?,
            };
            if found != length {
                return Err(TieredError::Damaged {
                    what: format!("the object {object} of {}", inner.bucket.describe()),
                    why: format!("it has {found} bytes, and {length} were sent; it is sent again"),
                });
            }
        }
        Ok(())
    }
}

/// Makes sure that the bucket has a manifest of this start that contains the store's `FORMAT`. Without that,
/// the listed segments, and later tails, could not be read.
pub(crate) fn ensure_manifest(inner: &Inner) -> Result<(), TieredError> {
    let last = inner.state.lock().manifest.as_ref().map(|last| last.has_format);
    match last {
        Some(true) => Ok(()),
        Some(false) if format(inner)?.is_empty() => Ok(()),
        _ => put_manifest(inner),
    }
}

/// The contents of the store's `FORMAT` file; empty as long as there is none.
fn format(inner: &Inner) -> Result<Vec<u8>, TieredError> {
    match inner.local.open("FORMAT") {
        Ok(file) => {
            let mut bytes = vec![0; 64];
            let count = file.read_at(0, &mut bytes).map_err(TieredError::io("reading", "FORMAT"))?;
            bytes.truncate(count);
            Ok(bytes)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(TieredError::io("opening", "FORMAT")(error)),
    }
}

/// Writes a manifest of the segments that make up the store, and the head that makes it valid.
pub(crate) fn put_manifest(inner: &Inner) -> Result<(), TieredError> {
    let format = format(inner)?;
    let _writing = inner.manifests.lock();
    let manifest = {
        let mut state = inner.state.lock();
        claim::lost(&state.claim)?;
        let manifest = state.catalogue.to_manifest(format);
        // The number is used once, even if the manifest does not arrive.
        state.catalogue.manifest = manifest.number;
        (state.is_dirty, state.needs_manifest) = (true, false);
        manifest
    };
    let has_format = !manifest.format.is_empty();
    let name = names::manifest(&manifest.store, manifest.epoch, manifest.number);
    let head = Head { store: manifest.store, manifest: manifest.number };
    let put = || {
        inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))?;
        inner.note(inner.bucket.put(&name, &manifest.to_bytes()))?;
        // The manifest is valid only with this head; nothing that it replaces is removed before.
        let name = names::head(&manifest.store, manifest.epoch);
        Ok(inner.note(inner.bucket.put(&name, head.to_text().as_bytes()))?)
    };
    let put = put();
    let mut state = inner.state.lock();
    if put.is_err() {
        state.needs_manifest = true;
        return put;
    }
    let last = state.manifest.replace(LastManifest { name, has_format });
    state.old_objects.extend(last.map(|last| last.name));
    Ok(())
}

/// Removes condemned segments from the manifest when all of their contents are in the bucket in other
/// segments. The last listed segment stays until there is a later one: the parts after it name it as their
/// predecessor, and a server that takes over continues its numbers, so that no position is used twice.
fn unlist(inner: &Inner) -> Result<(), TieredError> {
    let unlisted: Vec<Entry> = {
        let mut guard = inner.state.lock();
        let state = &mut *guard;
        let first_growing = state.growing.iter().find(|(_, growing)| growing.written > SEGMENT_HEADER_BYTES);
        let before = first_growing.map_or(u32::MAX, |(number, _)| *number);
        let Catalogue { segments, condemned, .. } = &mut state.catalogue;
        let listed = |one: &&CondemnedSegment| one.unlisted_s.is_none();
        let greatest = condemned.iter().filter(listed).map(|one| one.entry.number).max();
        let is_last = |number| Some(number) == greatest && segments.range(number..).next().is_none();
        // They are removed in the order in which they were condemned, so that a manifest shows the store as
        // it was at some moment.
        let ready = |one: &&mut CondemnedSegment| one.after < before && !is_last(one.entry.number);
        let listed = condemned.iter_mut().filter(|one| one.unlisted_s.is_none());
        let mut unlisted = Vec::new();
        for one in listed.take_while(ready) {
            one.unlisted_s = Some(now_s());
            unlisted.push(one.entry.clone());
        }
        state.is_dirty |= !unlisted.is_empty();
        unlisted
    };
    if unlisted.is_empty() {
        return Ok(());
    }
    put_manifest(inner).inspect_err(|_| {
        let mut state = inner.state.lock();
        let again = state.catalogue.condemned.iter_mut().filter(|one| unlisted.contains(&one.entry));
        again.for_each(|one| one.unlisted_s = None);
    })
}

/// Removes objects that nothing needs any more.
fn clear_up(inner: &Inner) -> Result<(), TieredError> {
    let (old, due) = {
        // With this lock, no manifest is on its way that is not valid yet.
        let _writing = inner.manifests.lock();
        let state = inner.state.lock();
        if state.claim != Claim::Held || state.needs_manifest {
            return Ok(());
        }
        let now = now_s();
        let window = inner.settings.condemned.as_secs();
        let is_due = |since: Option<u64>| since.is_some_and(|since| now >= since.saturating_add(window));
        let due = state.catalogue.condemned.iter().filter(|one| is_due(one.unlisted_s));
        let due: Vec<Entry> = due.map(|one| one.entry.clone()).collect();
        (state.old_objects.clone(), due)
    };
    if old.is_empty() && due.is_empty() {
        return Ok(());
    }
    claim::look(inner)?;
    for name in old {
        inner.note(inner.bucket.delete(&name))?;
        inner.state.lock().old_objects.retain(|one| *one != name);
    }
    for entry in due {
        let names = inner.state.lock().catalogue.names_only_of(&entry);
        for name in names {
            inner.note(inner.bucket.delete(&name))?;
        }
        let mut state = inner.state.lock();
        state.catalogue.condemned.retain(|one| one.entry != entry);
        state.is_dirty = true;
    }
    inner.save().map_err(TieredError::io("writing", "the catalogue of objects"))
}
