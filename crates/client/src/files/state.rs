//! An open (or unpublished) file as this client has it: published content with local changes on top.
//!
//! Invariants:
//! - What a read returns is, byte by byte: a change made since the last publication began; else a change that
//!   is being published; else the base, below `visible`; else zero.
//! - While a publication is running, later changes are collected separately, so its success or failure never
//!   loses or doubles one.
//! - The base is replaced by a newer version only while nothing is unpublished and no program here has the
//!   file open for writing, and never by an older version. There is one exception: bytes that were only
//!   appended are published after whatever others have published meanwhile, and the base is then the result
//!   of that.
//!
//! Everything here is guarded by the node's state lock and waits for nothing but the local disk.

use super::conflict_copy_id::ConflictCopyId;
use super::overlay::{Overlay, Piece};
use super::spool::{Header, Record, SavedInode, Spool, SpoolDirectory};
use crate::backend::Guard;
use crate::error::FsError;
use crate::tree::OrderedResult;
use holdfast_content::{Content, DeviceId, Extents, FILE_BYTES_MAX, Inode};
use holdfast_crypto::{Digest, DigestKey};
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Local changes on top of published content; copied ranges name the other file's published inode.
pub type Changes = Overlay<Arc<Inode>>;

/// Most changes that are counted to find out how much of a file is not holes.
const COUNTED_MAX: usize = 256;

/// Where the bytes of a range are.
#[derive(Clone, Debug)]
pub enum DataLocation {
    /// In the spool, at the same offset.
    Spool,
    /// Nowhere: the bytes are zero.
    Zero,
    /// In this inode's published content, from this offset on.
    Published(Arc<Inode>, u64),
}

/// Whether the file still has a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NameStatus {
    /// It has a name.
    Named,
    /// This client removed its last name: nothing is published any more, as on any local file system.
    RemovedHere,
    /// It was made without a name and has not got one yet.
    NotYet,
    /// It is missing in the present view: what is unpublished cannot be published, which is an error.
    RemovedElsewhere,
}

impl NameStatus {
    /// Whether the file is an orphan: only this client has it, and it ends when it is closed.
    pub fn is_orphan(self) -> bool {
        matches!(self, NameStatus::RemovedHere | NameStatus::NotYet)
    }
}

/// State of one open or unpublished file.
pub struct FileState {
    /// The inode in the newest view that this file was compared with.
    pub latest: Arc<Inode>,
    /// Published content under the changes.
    pub base: Arc<Inode>,
    /// Digest of `base`'s content.
    pub base_content: Digest,
    /// Position in the order of the view that `base` and `latest` come from.
    pub position: u64,
    /// Number of bytes of `base` that still count.
    pub visible: u64,
    /// Size in bytes.
    pub size: u64,
    /// Time of last modification.
    pub modified_ns: i64,
    /// Time of last change.
    pub changed_ns: i64,
    /// Permission bits to publish with the next content.
    pub mode: Option<u32>,
    /// Whether it has a name.
    pub named: NameStatus,
    /// Changes since the last publication began.
    changes: Changes,
    /// Whether size, times or mode changed since then.
    touched: bool,
    /// Whether some change since then has a fixed position: a write, a hole or a new size, but not an append.
    placed: bool,
    in_flight: Option<InFlight>,
    /// A publication that seemed to fail but may have been ordered.
    attempt: Option<Attempt>,
    /// Content that may be replaced without a conflict although it is not the base: this client published it,
    /// in an attempt whose answer it did not get.
    ours: Option<Digest>,
    spool: Option<Spool>,
    /// Ranges published in place since all of the file was last cut into blocks anew.
    fragments: Overlay<()>,
    /// Pins at the server for published content that is still read.
    pub pins: Vec<Guard>,
    /// Whether something was published since everything was last committed.
    uncommitted: bool,
    /// A spool entry that lets salvage find content that was published but may not have been committed.
    in_doubt: Option<Spool>,
}

struct InFlight {
    changes: Arc<Changes>,
    /// Least size since the publication began: what is published beyond it does not count.
    visible: u64,
    mode: Option<u32>,
    placed: bool,
}

/// A publication whose answer did not come; it may be in the order all the same.
#[derive(Clone)]
pub struct Attempt {
    /// The changes that the attempt publishes.
    pub changes: Arc<Changes>,
    /// Set if the publication was ordered.
    pub told: OrderedResult<Publication>,
}

/// What a publication did to the file.
#[derive(Clone)]
pub struct Publication {
    /// The file's new inode.
    pub inode: Arc<Inode>,
    /// Whether appended bytes were put after content that others had published meanwhile.
    pub behind_others: bool,
    /// Whether the content was left unchanged.
    pub attributes_only: bool,
    /// The conflict copy of the version that was replaced without having been seen, if there was one.
    pub conflict_copy: Option<ConflictCopyId>,
}

/// What a publication did to the file as programs here see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublishEffect {
    /// The file is now what was published.
    Here,
    /// The file now has the appended bytes after content published by others, or is entirely theirs.
    Elsewhere,
    /// The file stays as it is here: a change with a fixed position was made while it was published.
    Apart,
}

/// The state of a file that one publication publishes.
pub struct Snapshot {
    /// Published content under the changes.
    pub base: Arc<Inode>,
    /// Number of bytes of the base that count.
    pub visible: u64,
    /// Size of the file.
    pub size: u64,
    /// Changes over the base.
    pub changes: Arc<Changes>,
    /// Spooled bytes.
    pub data: Option<Arc<File>>,
    /// Time of last modification.
    pub modified_ns: i64,
    /// Time of last change.
    pub changed_ns: i64,
    /// New permission bits.
    pub mode: Option<u32>,
    /// Whether all changes were appended to the base.
    pub appended: bool,
    /// Content besides the base's that may be replaced without a conflict.
    pub ours: Option<Digest>,
    /// Ranges that were published in place before.
    pub fragments: Vec<Range<u64>>,
}

impl Snapshot {
    /// Whether the content differs from the base's, or from content that an attempt has put in its place.
    pub fn changes_content(&self) -> bool {
        let is_base_there = self.ours.is_none();
        !is_base_there
            || !self.changes.is_empty()
            || self.size != self.base.size
            || self.visible < self.base.size
    }

    /// Where the bytes of `range` are, in ascending order.
    pub fn places(&self, range: Range<u64>) -> Vec<(Range<u64>, DataLocation)> {
        let mut places = Vec::new();
        for (range, piece) in self.changes.slices(range) {
            match piece {
                Some(piece) => places.push((range, place_of(piece))),
                None => base_places(&self.base, self.visible, range, &mut places),
            }
        }
        places
    }
}

/// A digest of an inode's content and size, and of nothing else in it.
pub fn content_digest(inode: &Inode) -> Digest {
    let mut bare = Inode::new(inode.kind, 0, DeviceId(0), 0);
    bare.size = inode.size;
    bare.content = inode.content.clone();
    // An inode that was read or stored meets all limits. One that cannot be encoded gets a digest that equals
    // no other's.
    bare.ihash(&DigestKey::WELL_KNOWN).unwrap_or(Digest::ZERO)
}

/// Number of bytes that are not in holes: exact for files with few extents. Other files count as if they had
/// no holes, since to find them would mean reading the extents.
pub fn allocated(inode: &Inode) -> u64 {
    match &inode.content {
        Content::None => 0,
        Content::Inline(bytes) => bytes.len() as u64,
        Content::Extents(map) => match &map.extents {
            Extents::Inline(extents) => extents.iter().map(|(_, extent)| u64::from(extent.length)).sum(),
            Extents::Map(_) => inode.size,
        },
        Content::Directory(_) | Content::Target(_) => inode.size,
    }
}

/// The blocks to pin to keep an inode's content at the server.
pub fn content_roots(inode: &Inode) -> Vec<Digest> {
    match &inode.content {
        Content::Extents(map) => match &map.extents {
            Extents::Inline(extents) => extents.iter().map(|(_, extent)| extent.reference.address).collect(),
            Extents::Map(root) => root.reference().iter().map(|reference| reference.address).collect(),
        },
        _ => Vec::new(),
    }
}

impl FileState {
    /// The state of a file without unpublished changes.
    pub fn new(inode: Arc<Inode>, position: u64) -> FileState {
        FileState {
            base_content: content_digest(&inode),
            visible: inode.size,
            size: inode.size,
            modified_ns: inode.modified_ns,
            changed_ns: inode.changed_ns,
            latest: inode.clone(),
            base: inode,
            position,
            mode: None,
            named: NameStatus::Named,
            changes: Overlay::default(),
            touched: false,
            placed: false,
            in_flight: None,
            attempt: None,
            ours: None,
            spool: None,
            fragments: Overlay::default(),
            pins: Vec::new(),
            uncommitted: false,
            in_doubt: None,
        }
    }

    /// Whether anything is unpublished.
    pub fn is_dirty(&self) -> bool {
        self.touched || !self.changes.is_empty() || self.in_flight.is_some()
    }

    /// Whether anything is unpublished or may not be committed.
    pub fn is_pending(&self) -> bool {
        self.is_dirty() || self.uncommitted
    }

    /// Whether written bytes are unpublished.
    pub fn has_unpublished_bytes(&self) -> bool {
        self.spool.is_some()
    }

    /// Number of separate unpublished changes.
    pub fn pieces(&self) -> usize {
        self.changes.len()
    }

    /// Takes over the inode of a view, unless the file has something newer. `writers`: whether some program
    /// here has the file open for writing. Returns whether the visible content has changed.
    pub fn refresh(&mut self, inode: &Arc<Inode>, position: u64, writers: bool) -> bool {
        if position < self.position || self.named != NameStatus::Named {
            return false;
        }
        self.position = position;
        self.latest = inode.clone();
        if writers || self.is_dirty() {
            return false;
        }
        let content = content_digest(inode);
        let is_other = content != self.base_content;
        if is_other {
            self.pins.clear();
            self.fragments = Overlay::default();
        }
        self.rebase(inode.clone(), content);
        is_other
    }

    fn rebase(&mut self, inode: Arc<Inode>, content: Digest) {
        self.ours = None;
        self.base_content = content;
        self.visible = inode.size;
        self.size = inode.size;
        self.modified_ns = inode.modified_ns;
        self.changed_ns = inode.changed_ns;
        self.base = inode;
    }

    /// Where all bytes of `range` are, in ascending order. Bytes beyond the size are zero.
    pub fn places(&self, range: Range<u64>) -> Vec<(Range<u64>, DataLocation)> {
        let mut places = Vec::new();
        for (range, piece) in self.changes.slices(range) {
            match (piece, &self.in_flight) {
                (Some(piece), _) => places.push((range, place_of(piece))),
                (None, None) => base_places(&self.base, self.visible, range, &mut places),
                (None, Some(flight)) => {
                    for (range, piece) in flight.changes.slices(range) {
                        match piece {
                            Some(piece) => places.push((range, place_of(piece))),
                            None => base_places(&self.base, self.visible, range, &mut places),
                        }
                    }
                }
            }
        }
        places
    }

    /// Number of bytes that are not in holes. Bytes count more than once where changes overlap each other or
    /// the base.
    pub fn allocated(&self) -> u64 {
        let flying = self.in_flight.as_ref().map(|flight| &*flight.changes);
        let layers = || std::iter::once(&self.changes).chain(flying);
        if layers().map(Changes::len).sum::<usize>() > COUNTED_MAX {
            return self.size;
        }
        let changed = layers().flat_map(Changes::iter).filter(|(_, piece)| **piece != Piece::Hole);
        let changed: u64 = changed.map(|(range, _)| range.end - range.start).sum();
        changed.saturating_add(allocated(&self.base).min(self.visible)).min(self.size)
    }

    /// Spooled bytes.
    pub fn data(&self) -> Option<Arc<File>> {
        self.spool.as_ref().map(Spool::data)
    }

    /// Writes bytes. `header` describes the file for the journal.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] or [`FsError::Local`]: nothing is written.
    pub fn write(
        &mut self,
        directory: &SpoolDirectory,
        name: &dyn Fn() -> (u64, Vec<u8>),
        offset: u64,
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<(), FsError> {
        let range = offset..offset + bytes.len() as u64;
        if self.spool.is_none() {
            self.spool = Some(directory.create(&self.header(name), &self.records())?);
        }
        let spool = self.spool.as_mut().expect("just made");
        spool.write(offset, bytes)?;
        if !self.changes.is_spooled(&range) {
            spool.note(&Record::Spool { start: range.start, end: range.end })?;
        }
        self.changes.insert(range.clone(), Piece::Spool);
        self.size = self.size.max(range.end);
        self.placed = true;
        self.touch(now_ns);
        if self.spool.as_ref().is_some_and(|spool| spool.is_wordy(self.changes.len())) {
            let (header, records) = (self.header(name), self.records());
            self.spool.as_mut().expect("just looked at").rewrite(&header, &records)?;
        }
        Ok(())
    }

    /// Writes bytes to the end.
    ///
    /// # Errors
    /// As [`FileState::write`].
    pub fn append(
        &mut self,
        directory: &SpoolDirectory,
        name: &dyn Fn() -> (u64, Vec<u8>),
        bytes: &[u8],
        now_ns: i64,
    ) -> Result<(), FsError> {
        let placed = self.placed;
        self.write(directory, name, self.size, bytes, now_ns)?;
        self.placed = placed;
        Ok(())
    }

    /// Lays zeroes or a copy over a range, growing the file to its end if it is beyond.
    ///
    /// # Errors
    /// As [`FileState::write`].
    pub fn lay(&mut self, range: Range<u64>, piece: Piece<Arc<Inode>>, now_ns: i64) -> Result<(), FsError> {
        if range.is_empty() {
            return Ok(());
        }
        if let Some(spool) = &mut self.spool {
            spool.note(&record_of(&range, &piece))?;
        }
        self.size = self.size.max(range.end);
        self.changes.insert(range, piece);
        self.placed = true;
        self.touch(now_ns);
        Ok(())
    }

    /// Sets the size: what is cut off is lost, what is added is zero.
    ///
    /// # Errors
    /// As [`FileState::write`].
    pub fn set_size(&mut self, size: u64, now_ns: i64) -> Result<(), FsError> {
        if let Some(spool) = &mut self.spool {
            spool.note(&Record::Size(size))?;
        }
        if size < self.size {
            self.changes.cut(size);
            self.visible = self.visible.min(size);
            if let Some(flight) = &mut self.in_flight {
                Arc::make_mut(&mut flight.changes).cut(size);
                flight.visible = flight.visible.min(size);
            }
        }
        self.size = size;
        self.placed = true;
        self.touch(now_ns);
        Ok(())
    }

    /// Sets times and mode, to be published with the content.
    pub fn set_attributes(&mut self, mode: Option<u32>, modified_ns: Option<i64>, now_ns: i64) {
        self.mode = mode.or(self.mode);
        self.modified_ns = modified_ns.unwrap_or(self.modified_ns);
        self.changed_ns = now_ns;
        self.touched = true;
    }

    fn touch(&mut self, now_ns: i64) {
        self.modified_ns = now_ns;
        self.changed_ns = now_ns;
        self.touched = true;
    }

    /// The permission bits that programs see.
    pub fn shown_mode(&self) -> u32 {
        let flying = self.in_flight.as_ref().and_then(|flight| flight.mode);
        self.mode.or(flying).unwrap_or(self.latest.mode)
    }

    /// Notes that this client removed the last name: a crash from now on leaves nothing to salvage.
    pub fn removed_here(&mut self) {
        self.named = NameStatus::RemovedHere;
        if let Some(spool) = &mut self.spool
            && let Err(error) = spool.note(&Record::Removed)
        {
            tracing::debug!(%error, "a removed file may be offered for salvage after a crash");
        }
    }

    /// A snapshot of everything unpublished, without beginning to publish it.
    pub fn snapshot(&self) -> Snapshot {
        let mut changes = self.in_flight.as_ref().map_or_else(Changes::default, |one| (*one.changes).clone());
        changes.lay(&self.changes);
        let placed = self.placed || self.in_flight.as_ref().is_some_and(|flight| flight.placed);
        Snapshot {
            appended: !placed && !changes.is_empty(),
            ours: self.ours,
            base: self.base.clone(),
            visible: self.visible,
            size: self.size,
            changes: Arc::new(changes),
            data: self.data(),
            modified_ns: self.modified_ns,
            changed_ns: self.changed_ns,
            mode: self.mode,
            fragments: self.fragments.iter().map(|(range, _)| range).collect(),
        }
    }

    /// Begins to publish; `None` if there is nothing to publish. The node's publish lock makes sure that only
    /// one publication runs at a time.
    pub fn begin_publication(&mut self) -> Option<Snapshot> {
        assert!(self.in_flight.is_none(), "one publication at a time");
        if !self.is_dirty() {
            return None;
        }
        let snapshot = self.snapshot();
        self.changes = Changes::default();
        self.touched = false;
        let (mode, placed) = (self.mode.take(), std::mem::take(&mut self.placed));
        self.in_flight =
            Some(InFlight { changes: snapshot.changes.clone(), visible: u64::MAX, mode, placed });
        Some(snapshot)
    }

    /// Handles a failed publication: all of it is unpublished again. `told`: set later if it turns out to
    /// have been ordered.
    pub fn publication_failed(&mut self, told: Option<OrderedResult<Publication>>) {
        if let (Some(told), Some(flight)) = (told, &self.in_flight) {
            self.attempt = Some(Attempt { changes: flight.changes.clone(), told });
        }
        self.land_again();
    }

    fn land_again(&mut self) {
        let Some(flight) = self.in_flight.take() else { return };
        let newer = std::mem::take(&mut self.changes);
        self.changes = Arc::unwrap_or_clone(flight.changes);
        self.changes.lay(&newer);
        self.mode = self.mode.or(flight.mode);
        self.placed |= flight.placed;
        self.touched = true;
    }

    /// The publication that seemed to fail, if any; it must be settled before the next one.
    pub fn attempt(&self) -> Option<Attempt> {
        self.attempt.clone()
    }

    /// Takes over the outcome of [`FileState::attempt`], which is decided by now.
    pub fn settle_attempt(
        &mut self,
        directory: &SpoolDirectory,
        name: &dyn Fn() -> (u64, Vec<u8>),
    ) -> PublishEffect {
        let Some(Attempt { changes, told }) = self.attempt.take() else { return PublishEffect::Here };
        let Some(made) = told.get() else { return PublishEffect::Here };
        if self.named == NameStatus::NotYet {
            // The file got its name, with its content at that time. Its present content is published like any
            // change.
            self.named = NameStatus::Named;
            self.ours = Some(content_digest(&made.inode));
            self.latest = made.inode.clone();
            self.placed = true;
            return PublishEffect::Here;
        }
        // Changes with a fixed position are simply published once more, which changes nothing. Appended bytes
        // would be there twice.
        if self.placed || changes.is_empty() {
            // If the attempt appended to unseen content, or left the content as it was, that content was not
            // seen here.
            let is_ours = !made.behind_others && !made.attributes_only;
            self.ours = is_ours.then(|| content_digest(&made.inode));
            return PublishEffect::Here;
        }
        let end = self.changes.end();
        let flown = changes.end();
        let mut newer = Changes::default();
        if flown < end {
            newer.insert(flown..end, Piece::Spool);
        }
        self.changes = newer;
        self.in_flight = Some(InFlight { changes, visible: u64::MAX, mode: None, placed: false });
        self.published(made, self.position, false, directory, name)
    }

    /// Takes over a publication that succeeded. `whole`: all of the file was cut into blocks anew.
    pub fn published(
        &mut self,
        made: &Publication,
        position: u64,
        whole: bool,
        directory: &SpoolDirectory,
        name: &dyn Fn() -> (u64, Vec<u8>),
    ) -> PublishEffect {
        let Publication { inode, behind_others, attributes_only, .. } = made;
        let before = self.base_content;
        if *behind_others && !self.follow(inode, directory, name) {
            // Meanwhile a change with a fixed position was made here. So the local version stays, and is
            // published as a whole.
            self.land_again();
            self.placed = true;
            self.uncommitted = true;
            if position >= self.position {
                (self.position, self.latest) = (position, inode.clone());
            }
            return PublishEffect::Apart;
        }
        self.rebase_on_published(inode.clone(), position, whole, name);
        let is_other = *behind_others || *attributes_only && self.base_content != before;
        if is_other { PublishEffect::Elsewhere } else { PublishEffect::Here }
    }

    /// Moves later appended bytes along when published ones begin at another offset than here, because others
    /// have published. Returns whether it could.
    fn follow(
        &mut self,
        inode: &Inode,
        directory: &SpoolDirectory,
        name: &dyn Fn() -> (u64, Vec<u8>),
    ) -> bool {
        let Some(flight) = self.in_flight.as_mut().filter(|_| !self.placed) else { return false };
        let end = flight.changes.end();
        let length = self.changes.end().saturating_sub(end);
        let Some(size) = inode.size.checked_add(length).filter(|size| *size <= FILE_BYTES_MAX) else {
            return false;
        };
        let mut flown = Changes::default();
        flown.insert(inode.size - (end - self.base.size)..inode.size, Piece::Spool);
        if length > 0 && inode.size != end {
            let moved = self.spool.as_ref().map(|spool| {
                let (ino, path) = name();
                let header = Header { ino, path, base: save(inode), visible: inode.size, size: inode.size };
                directory.create_moved(&header, spool, end..end + length, inode.size)
            });
            match moved {
                Some(Ok(moved)) => self.spool = Some(moved),
                Some(Err(error)) => {
                    tracing::warn!(%error, "appended data could not be moved behind what others have appended");
                    return false;
                }
                None => return false,
            }
            self.changes = Changes::default();
            self.changes.insert(inode.size..size, Piece::Spool);
        }
        flight.changes = Arc::new(flown);
        self.size = size;
        true
    }

    fn rebase_on_published(
        &mut self,
        inode: Arc<Inode>,
        position: u64,
        whole: bool,
        name: &dyn Fn() -> (u64, Vec<u8>),
    ) {
        let Some(flight) = self.in_flight.take() else { return };
        self.attempt = None;
        self.uncommitted = true;
        if whole {
            self.fragments = Overlay::default();
        } else {
            flight.changes.iter().for_each(|(range, _)| self.fragments.insert(range, Piece::Hole));
        }
        let (size, modified_ns, changed_ns) = (self.size, self.modified_ns, self.changed_ns);
        let content = content_digest(&inode);
        self.rebase(inode.clone(), content);
        self.visible = self.visible.min(flight.visible);
        if self.is_dirty() {
            (self.size, self.modified_ns, self.changed_ns) = (size, modified_ns, changed_ns);
        }
        if position >= self.position {
            (self.position, self.latest) = (position, inode);
        }
        if !self.changes.uses_spool() {
            self.spool = None;
        } else {
            let (header, records) = (self.header(name), self.records());
            if let Some(spool) = &mut self.spool
                && let Err(error) = spool.rewrite(&header, &records)
            {
                tracing::warn!(%error, "the journal of unpublished data could not be shortened");
            }
        }
    }

    /// Notes whether published content was committed. If it may not have been, salvage is to find it, until a
    /// later commit succeeds.
    pub fn committed(&mut self, all: bool, directory: &SpoolDirectory, name: &dyn Fn() -> (u64, Vec<u8>)) {
        if all {
            (self.uncommitted, self.in_doubt) = (false, None);
        } else if self.uncommitted && self.in_doubt.is_none() && self.named == NameStatus::Named {
            let (ino, path) = name();
            let size = self.base.size;
            let header = Header { ino, path, base: save(&self.base), visible: size, size };
            match directory.create(&header, &[]) {
                Ok(spool) => self.in_doubt = Some(spool),
                Err(error) => tracing::warn!(%error, "content that may be lost cannot be noted for salvage"),
            }
        }
    }

    /// Handles the closing of the last descriptor. Returns whether something is left to salvage.
    pub fn close(&mut self, directory: &SpoolDirectory) -> bool {
        if self.named.is_orphan() {
            self.in_doubt = None;
            return false;
        }
        let in_doubt = self.in_doubt.take().map(|spool| directory.keep(spool)).is_some();
        let unpublished = self.is_dirty() && self.give_up(directory);
        in_doubt || unpublished
    }

    /// Gives up everything unpublished, but leaves written bytes in the spool for salvage. Returns whether
    /// there were any.
    fn give_up(&mut self, directory: &SpoolDirectory) -> bool {
        let kept = self.spool.take().map(|spool| directory.keep(spool)).is_some();
        self.discard();
        kept
    }

    /// Discards everything unpublished, including written bytes.
    pub fn discard(&mut self) {
        self.changes = Changes::default();
        self.in_flight = None;
        self.attempt = None;
        (self.touched, self.placed) = (false, false);
        self.mode = None;
        self.spool = None;
        self.rebase(self.latest.clone(), content_digest(&self.latest));
    }

    fn header(&self, name: &dyn Fn() -> (u64, Vec<u8>)) -> Header {
        let (ino, path) = name();
        Header { ino, path, base: save(&self.base), visible: self.visible, size: self.size }
    }

    /// Everything unpublished, as journal records.
    fn records(&self) -> Vec<Record> {
        let snapshot = self.snapshot();
        let changes = snapshot.changes.iter().map(|(range, piece)| record_of(&range, piece));
        changes.chain(self.named.is_orphan().then_some(Record::Removed)).collect()
    }
}

fn save(inode: &Inode) -> SavedInode {
    let (bytes, references) = inode.encode().unwrap_or_default();
    SavedInode { bytes, references }
}

fn record_of(range: &Range<u64>, piece: &Piece<Arc<Inode>>) -> Record {
    let Range { start, end } = *range;
    match piece {
        Piece::Spool => Record::Spool { start, end },
        Piece::Hole => Record::Hole { start, end },
        Piece::Copy(source, from) => Record::Copy { start, end, source: save(source), from: *from },
    }
}

fn place_of(piece: Piece<Arc<Inode>>) -> DataLocation {
    match piece {
        Piece::Spool => DataLocation::Spool,
        Piece::Hole => DataLocation::Zero,
        Piece::Copy(source, offset) => DataLocation::Published(source, offset),
    }
}

fn base_places(
    base: &Arc<Inode>,
    visible: u64,
    range: Range<u64>,
    places: &mut Vec<(Range<u64>, DataLocation)>,
) {
    let middle = visible.clamp(range.start, range.end);
    if range.start < middle {
        places.push((range.start..middle, DataLocation::Published(base.clone(), range.start)));
    }
    if middle < range.end {
        places.push((middle..range.end, DataLocation::Zero));
    }
}
