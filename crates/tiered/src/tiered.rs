//! The storage itself: segments that are being written locally, segments in the bucket, and all other files,
//! which are local.

use crate::address::Durability;
use crate::bucket::{Bucket, BucketError, RequestCounts};
use crate::catalogue::{Catalogue, CondemnedSegment};
use crate::entry::{Entry, Part};
use crate::names;
use crate::pages::Pages;
use crate::settings::{Settings, TieredError};
use crate::watched_bucket::WatchedBucket;
use crate::{adopt, claim};
use holdfast_log::{SEGMENT_HEADER_BYTES, Storage, StorageFile, StorageLock, segment_name, segment_number};
use parking_lot::{Condvar, Mutex};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The lock file held while a directory is in use, in addition to the store's own.
pub(crate) const LOCK: &str = "objects-lock";
/// How often requests are checked for missing replies.
const WATCH_PAUSE: Duration = Duration::from_secs(1);

/// Segments in a bucket, with a log and a cache in front of it. Clones share one storage; the last one to be
/// dropped ends the thread that sends.
#[derive(Clone)]
pub struct Tiered(Arc<Handle>);

struct Handle {
    inner: Arc<Inner>,
    sender: Option<std::thread::JoinHandle<()>>,
    _lock: Box<dyn StorageLock>,
}

pub(crate) struct Inner {
    pub(crate) local: Arc<dyn Storage>,
    pub(crate) bucket: Arc<dyn Bucket>,
    /// The bucket, for the thread that reports requests without a reply.
    watched: Arc<WatchedBucket>,
    pub(crate) settings: Settings,
    pub(crate) state: Mutex<State>,
    /// Wakes the thread that sends.
    pub(crate) wake: Condvar,
    /// Wakes threads that wait for parts sent by others.
    pub(crate) arrived: Condvar,
    /// Held while claiming the prefix: of two threads at once, one would write a note that the other has not
    /// saved.
    pub(crate) taking: Mutex<()>,
    /// Held while checking that sent tails are valid.
    pub(crate) vouching: Mutex<()>,
    /// Held while writing the catalogue's file, so that an older one never replaces a newer one.
    pub(crate) writing: Mutex<()>,
    /// Held while writing a manifest.
    pub(crate) manifests: Mutex<()>,
    pub(crate) pages: Pages,
}

/// A segment that is not in the bucket yet.
pub(crate) struct LocalSegment {
    /// Offset up to which bytes were written.
    pub(crate) written: u64,
    /// Offset up to which bytes are durable on the local disk.
    pub(crate) synced: u64,
    /// Whether the segment is sealed: nothing more is written to it.
    pub(crate) is_sealed: bool,
    /// Set if the log has removed the segment: everything moved out of it is in segments up to this number.
    pub(crate) removed_after: Option<u32>,
    /// Parts that are in the bucket, from the beginning of the segment on, without a gap.
    pub(crate) parts: Vec<Part>,
    /// The offset at which the parts end.
    pub(crate) tail: u64,
    /// The offset at which the parts ended when the prefix was last found to be this server's. A server that
    /// takes over finds the parts up to there.
    pub(crate) vouched: u64,
    /// Parts after those that were begun, in order.
    pub(crate) begun: VecDeque<UnfinishedPart>,
    /// Names of parts that an earlier start has sent.
    pub(crate) strays: Vec<String>,
}

/// A part that is being sent. If that fails, the next thread that needs the part sends the same bytes again.
pub(crate) struct UnfinishedPart {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) state: PartState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PartState {
    UnderWay,
    Failed,
    /// The part is in the bucket, but one before it is not.
    Arrived,
}

/// Whether this server may write to its prefix of the bucket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Claim {
    /// The owner's note has not been read yet.
    Pending,
    /// The owner's note is this server's.
    Held,
    /// The prefix is another server's, or the bucket has changed unexpectedly.
    Lost { why: String, loss: Loss },
}

/// Why this server may not write to the prefix any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Loss {
    /// The owner's note is another server's.
    Another,
    /// The bucket has changed.
    Changed,
}

/// A manifest in the bucket.
pub(crate) struct LastManifest {
    pub(crate) name: String,
    /// Whether it has the contents of the store's `FORMAT` file. The first manifest may be older than that
    /// file.
    pub(crate) has_format: bool,
}

pub(crate) struct State {
    pub(crate) catalogue: Catalogue,
    pub(crate) growing: BTreeMap<u32, LocalSegment>,
    /// Local files of segments, including copies of those in the bucket, opened as they are needed.
    pub(crate) files: BTreeMap<u32, Arc<dyn StorageFile>>,
    /// Segments in the bucket that have a local copy, with the time when each was read last.
    pub(crate) copies: BTreeMap<u32, u64>,
    pub(crate) claim: Claim,
    /// Objects whose loss the operator has accepted, now or earlier.
    pub(crate) lost_objects: BTreeSet<String>,
    /// Whether the catalogue has changed since it was written to its file.
    pub(crate) is_dirty: bool,
    /// Whether the bucket has no manifest of this epoch yet, or the last one is behind the catalogue.
    pub(crate) needs_manifest: bool,
    /// Objects that were replaced and can be removed: manifests, heads and parts.
    pub(crate) old_objects: Vec<String>,
    /// The last manifest that this start wrote.
    pub(crate) manifest: Option<LastManifest>,
    /// The bucket's last error, if its last reply was one.
    pub(crate) trouble: Option<BucketError>,
    /// Whether a segment was begun since the start. The first one may be begun even without room, so that the
    /// store can be read.
    pub(crate) has_begun: bool,
    pub(crate) is_ending: bool,
    /// Whether the store has replied that it cannot copy ranges.
    pub(crate) copies_nothing: bool,
}

/// The status of the bucket and of what is sent to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TieredStatus {
    /// Bucket and prefix.
    pub place: String,
    /// Why the bucket cannot be reached, or what it refused; `None` if the last request succeeded.
    pub trouble: Option<String>,
    /// Why nothing is written to the bucket; `None` if it may be.
    pub doubt: Option<String>,
    /// Segments in the bucket.
    pub segments: u64,
    /// Bytes of the segments in the bucket.
    pub bytes: u64,
    /// Bytes that wait to be sent.
    pub waiting_bytes: u64,
    /// Bytes of local copies and ranges, which may be removed.
    pub cached_bytes: u64,
    /// Requests since the start.
    pub requests: RequestCounts,
}

impl Tiered {
    /// Opens the segments in `local` and in the bucket. A new directory begins a store in an empty prefix;
    /// with `anew`, it takes over a store that is there. A directory that has been in use is opened even if
    /// the bucket cannot be reached.
    ///
    /// # Errors
    /// [`TieredError`]
    pub fn open(
        local: Arc<dyn Storage>,
        bucket: Arc<dyn Bucket>,
        settings: Settings,
    ) -> Result<Tiered, TieredError> {
        let lock = local.lock(LOCK).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                TieredError::InUse { directory: local.describe(), why: error.to_string() }
            }
            _ => TieredError::io("locking", LOCK)(error),
        })?;
        let remembered = Catalogue::read(&*local)?;
        let remembered = match remembered {
            Some(catalogue) if settings.takes_over => {
                adopt::give_up_if_replaced(&*local, &*bucket, catalogue)?
            }
            other => other,
        };
        let is_known = remembered.is_some();
        let catalogue = match remembered {
            Some(catalogue) => catalogue,
            None => adopt::begin(&*local, &*bucket, &settings)?,
        };
        let lost_objects = match is_known {
            true => crate::catalogue::read_lost(&*local)?,
            false => BTreeSet::new(),
        };
        let mut state = State {
            catalogue,
            growing: BTreeMap::new(),
            files: BTreeMap::new(),
            copies: BTreeMap::new(),
            claim: Claim::Pending,
            lost_objects,
            is_dirty: false,
            needs_manifest: true,
            old_objects: Vec::new(),
            manifest: None,
            trouble: None,
            has_begun: false,
            is_ending: false,
            copies_nothing: false,
        };
        state.find_files(&*local)?;
        let pages = Pages::new(&*local)?;
        let watched = Arc::new(WatchedBucket::new(bucket));
        let inner = Arc::new(Inner {
            local,
            bucket: watched.clone(),
            watched,
            settings,
            state: Mutex::new(state),
            wake: Condvar::new(),
            arrived: Condvar::new(),
            taking: Mutex::new(()),
            vouching: Mutex::new(()),
            writing: Mutex::new(()),
            manifests: Mutex::new(()),
            pages,
        });
        match claim::take(&inner) {
            Ok(()) => {
                adopt::end(&*inner.local).map_err(TieredError::io("removing", adopt::MARKER))?;
                inner.abandon_uploads();
            }
            // If the operator is to accept what the bucket has, it must be reached first.
            Err(error) if is_known && !inner.settings.anew && error.is_away() => tracing::error!("{error}"),
            Err(error) => return Err(error),
        }
        let sending = inner.clone();
        let sender = std::thread::Builder::new()
            .name("objects".into())
            .spawn(move || crate::sending::run(&sending))
            .map_err(TieredError::io("starting a thread for", "objects"))?;
        let watched = Arc::downgrade(&inner);
        std::thread::Builder::new()
            .name("objects-watch".into())
            .spawn(move || watch(&watched))
            .map_err(TieredError::io("starting a thread for", "objects"))?;
        Ok(Tiered(Arc::new(Handle { inner, sender: Some(sender), _lock: lock })))
    }

    /// Makes sure that everything that is durable on the local disk is in the bucket too, if the address asks
    /// for that. Nothing is lost if it fails, and it may be called again.
    ///
    /// # Errors
    /// [`TieredError`]
    pub fn confirm(&self) -> Result<(), TieredError> {
        match self.inner().settings.durability {
            Durability::Local => Ok(()),
            Durability::Object => crate::tails::confirm(self.inner()),
        }
    }

    /// The status of the bucket and of what is sent to it.
    pub fn status(&self) -> TieredStatus {
        let inner = self.inner();
        let state = inner.state.lock();
        let doubt = match &state.claim {
            Claim::Lost { why, .. } => Some(why.clone()),
            _ => None,
        };
        TieredStatus {
            place: inner.bucket.describe(),
            trouble: inner.watched.late().or_else(|| state.trouble.as_ref().map(ToString::to_string)),
            doubt,
            segments: state.catalogue.segments.len() as u64,
            bytes: state.catalogue.segments.values().map(Entry::stored_bytes).sum(),
            waiting_bytes: state.waiting(),
            cached_bytes: state.copied() + inner.pages.bytes(),
            requests: inner.bucket.counts(),
        }
    }

    /// Fails if nothing may be written to the bucket; then no garbage may be collected either.
    ///
    /// # Errors
    /// [`TieredError::Doubtful`]
    pub fn check_claim(&self) -> Result<(), TieredError> {
        claim::lost(&self.inner().state.lock().claim)
    }

    /// A description of the server that has taken over the store; `None` if none has.
    pub fn taken_over(&self) -> Option<String> {
        match &self.inner().state.lock().claim {
            Claim::Lost { why, loss: Loss::Another } => Some(why.clone()),
            _ => None,
        }
    }

    /// Whether the operator has accepted that objects are lost.
    pub fn has_losses(&self) -> bool {
        !self.inner().state.lock().lost_objects.is_empty()
    }

    /// The store's name. It is the same wherever the store is opened, except if it lacks objects whose loss
    /// was accepted.
    pub fn name(&self) -> [u8; 16] {
        let state = self.inner().state.lock();
        let store = state.catalogue.store;
        if state.lost_objects.is_empty() {
            return store;
        }
        let mut sum = Sha256::new_with_prefix(store);
        state.lost_objects.iter().for_each(|name| sum.update(name));
        *sum.finalize().first_chunk().expect("it is longer")
    }

    /// The object, with bucket and prefix, that has the segment with this file name; `None` if the segment is
    /// only local.
    pub fn object_of(&self, file: &str) -> Option<String> {
        let number = segment_number(file)?;
        let inner = self.inner();
        let state = inner.state.lock();
        let entry = state.catalogue.segments.get(&number)?;
        Some(format!(
            "{}/{}",
            inner.bucket.describe().trim_end_matches('/'),
            entry.description(&state.catalogue.store)
        ))
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0.inner
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.inner.state.lock().is_ending = true;
        self.inner.wake.notify_all();
        if let Some(sender) = self.sender.take() {
            let _ = sender.join();
        }
    }
}

impl State {
    /// Sorts the segments in the directory into copies of segments in the bucket, and segments that are not
    /// in the bucket yet.
    fn find_files(&mut self, local: &dyn Storage) -> Result<(), TieredError> {
        let names = local.list().map_err(TieredError::io("listing", &local.describe()))?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| segment_number(name)).collect();
        numbers.sort_unstable();
        // Segments that were sent and removed before that was noted.
        let leaving: Vec<u32> = self.catalogue.leaving.keys().copied().collect();
        leaving.into_iter().for_each(|number| self.condemn_if_leaving(number));
        let condemned: BTreeSet<u32> = self.catalogue.condemned.iter().map(|one| one.entry.number).collect();
        // The last segment that has records, local or in the bucket.
        let mut last_written = self.catalogue.segments.keys().next_back().copied().unwrap_or(0);
        for &number in numbers.iter().rev().take_while(|number| **number > last_written) {
            let name = segment_name(number);
            let length = local.open(&name).and_then(|file| file.len());
            if length.map_err(TieredError::io("measuring", &name))? > SEGMENT_HEADER_BYTES {
                last_written = number;
                break;
            }
        }
        for &number in &numbers {
            let name = segment_name(number);
            // A segment with punched holes is condemned in its former form, but still exists.
            if condemned.contains(&number) && !self.catalogue.segments.contains_key(&number) {
                local.remove(&name).map_err(TieredError::io("removing", &name))?;
                continue;
            }
            let file = local.open(&name).map_err(TieredError::io("opening", &name))?;
            let length = file.len().map_err(TieredError::io("measuring", &name))?;
            match self.catalogue.segments.get(&number) {
                Some(entry) if entry.length == length => drop(self.copies.insert(number, 0)),
                // The file is not what was sent; the bucket has the right contents.
                Some(_) => {
                    local.remove(&name).map_err(TieredError::io("removing", &name))?;
                    continue;
                }
                None => {
                    let removed_after = self.catalogue.leaving.get(&number).copied();
                    // Sealed are segments that others with records follow, or that the log has removed. The
                    // last one with records is not: the log begins the next segment before it seals one, so
                    // recovery may have to cut off an incomplete end that a power loss has left, and that
                    // must not be sent.
                    let is_sealed = number < last_written || removed_after.is_some();
                    let growing = LocalSegment {
                        written: length,
                        synced: length,
                        is_sealed,
                        removed_after,
                        ..LocalSegment::new()
                    };
                    self.growing.insert(number, growing);
                }
            }
            self.files.insert(number, file);
        }
        Ok(())
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.growing.values().map(|growing| growing.written).sum()
    }

    pub(crate) fn copied(&self) -> u64 {
        let length = |number: &u32| self.catalogue.segments.get(number).map_or(0, |entry| entry.length);
        self.copies.keys().map(length).sum()
    }

    /// Condemns a segment that the log removed before the bucket had it.
    pub(crate) fn condemn_if_leaving(&mut self, number: u32) {
        let Some(after) = self.catalogue.leaving.get(&number).copied() else { return };
        if let Some(entry) = self.catalogue.segments.remove(&number) {
            self.catalogue.leaving.remove(&number);
            self.catalogue.condemned.push(CondemnedSegment { entry, after, unlisted_s: None });
            self.is_dirty = true;
        }
    }

    pub(crate) fn greatest(&self) -> u32 {
        let growing = self.growing.keys().next_back();
        let listed = self.catalogue.segments.keys().next_back();
        growing.max(listed).copied().unwrap_or(0)
    }
}

impl LocalSegment {
    pub(crate) fn new() -> LocalSegment {
        LocalSegment {
            written: 0,
            synced: 0,
            is_sealed: false,
            removed_after: None,
            parts: Vec::new(),
            tail: 0,
            vouched: 0,
            begun: VecDeque::new(),
            strays: Vec::new(),
        }
    }

    /// Notes that recovery has cut off an incomplete end.
    pub(crate) fn cut(&mut self, length: u64) {
        self.written = length;
        self.synced = self.synced.min(length);
        if self.tail > length || self.begun.back().is_some_and(|part| part.to > length) {
            // Nothing is sent before recovery. If anything was, the whole segment is sent again.
            (self.tail, self.vouched) = (0, 0);
            self.parts.clear();
            self.begun.clear();
        }
    }
}

impl Inner {
    /// Removes uploads in parts that an earlier start has begun and not completed: they use space for
    /// nothing.
    fn abandon_uploads(&self) {
        let store = self.state.lock().catalogue.store;
        match self.bucket.abandon_uploads(&names::store(&store)) {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "uploads that a crash had cut off were given up"),
            // The credentials may not allow this; a lifecycle rule of the bucket can do it too.
            Err(error) => tracing::debug!(%error, "uploads that were cut off are not looked for"),
        }
    }

    /// Writes the catalogue if it has changed.
    pub(crate) fn save(&self) -> io::Result<()> {
        let _writing = self.writing.lock();
        let catalogue = {
            let mut state = self.state.lock();
            if !std::mem::take(&mut state.is_dirty) {
                return Ok(());
            }
            state.catalogue.clone()
        };
        catalogue.write(&*self.local).inspect_err(|_| self.state.lock().is_dirty = true)
    }

    /// Notes the bucket's last error or success, and logs when that changes.
    pub(crate) fn note<T>(&self, outcome: Result<T, BucketError>) -> Result<T, BucketError> {
        let trouble = match &outcome {
            Ok(_) | Err(BucketError::Absent { .. }) => None,
            Err(error) => Some(error.clone()),
        };
        let mut state = self.state.lock();
        match (&state.trouble, &trouble) {
            (None, Some(error)) => tracing::error!("{error}"),
            (Some(_), None) => tracing::info!(bucket = self.bucket.describe(), "the bucket answers again"),
            _ => {}
        }
        state.trouble = trouble;
        outcome
    }

    /// Removes local copies and ranges until they are within the bound; those that were read longest ago go
    /// first.
    pub(crate) fn make_room(&self) {
        let mut state = self.state.lock();
        loop {
            let used = state.waiting() + state.copied() + self.pages.bytes();
            if used <= self.settings.cache_bytes {
                return;
            }
            let oldest =
                state.copies.iter().min_by_key(|(_, used)| **used).map(|(number, used)| (*number, *used));
            let Some((number, _)) =
                oldest.filter(|(_, used)| self.pages.oldest().is_none_or(|page| *used <= page))
            else {
                if self.pages.drop_oldest(&*self.local) {
                    continue;
                }
                return;
            };
            self.drop_copy(&mut state, number);
        }
    }

    /// Removes the local copy of a segment that is in the bucket.
    pub(crate) fn drop_copy(&self, state: &mut State, number: u32) {
        if state.copies.remove(&number).is_some() {
            state.files.remove(&number);
            let name = segment_name(number);
            if let Err(error) = self.local.remove(&name) {
                tracing::warn!(name, %error, "a local copy of a segment cannot be removed");
            }
        }
    }
}

/// Logs when requests wait too long for a reply, and when none do any more.
fn watch(inner: &Weak<Inner>) {
    let mut was_late = false;
    while let Some(inner) = inner.upgrade().filter(|inner| !inner.state.lock().is_ending) {
        let late = inner.watched.late();
        match (&late, was_late) {
            (Some(words), false) => tracing::error!("{words}"),
            (None, true) => tracing::info!(bucket = inner.bucket.describe(), "the bucket answers again"),
            _ => {}
        }
        was_late = late.is_some();
        drop(inner);
        std::thread::sleep(WATCH_PAUSE);
    }
}

pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
