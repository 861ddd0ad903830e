//! Open files: open, create, read, write, flush, fsync, release.

use super::compose::{ComposeError, PublishReason, read_places};
use super::names::NewInode;
use super::nodes::{Node, NodeState, Pages};
use super::program_rules::AccessKind;
use super::state::{DataLocation, FileState, content_roots};
use super::{
    Attributes, Caller, FileHandleId, FileSystem, Ino, OpenFile, OpenFlags, OpenReply, WriteSource, now_ns,
};
use crate::error::FsError;
use crate::store::account;
use crate::tree::View;
use holdfast_content::{Content, FILE_BYTES_MAX, Inode, InodeKind, file};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// More separate unpublished changes of one file than this make it publish early, to bound memory.
const PIECES_MAX: usize = 64 << 10;
/// When something of a file of at most this many bytes is read, all of it is fetched.
const WHOLE_BYTES: u64 = 1 << 20;
/// How many bytes ahead of a sequential reader are fetched first; the number doubles each time.
const AHEAD_BYTES_FIRST: u64 = 128 << 10;
/// Largest answer to a read, in bytes; the kernel asks for less.
const READ_BYTES_MAX: usize = 16 << 20;

impl FileSystem {
    /// Opens a file with the content it has in a fresh view.
    ///
    /// # Errors
    /// [`FsError::Access`]: another principal's file, for writing. [`FsError::IsDirectory`],
    /// [`FsError::ReadOnly`], [`FsError::Stale`].
    pub fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Result<OpenReply, FsError> {
        self.run(|| {
            if ino.is_past() {
                return self.past_open(ino, flags);
            }
            let (node, keep_cache) = self.open_node(caller, ino, flags, AccessKind::Open)?;
            let opened = self.opened(node.clone(), flags, keep_cache);
            if flags.truncate && flags.write {
                let mut state = node.state();
                let file = state.file.as_mut().expect("an open file has content");
                let cut = file.set_size(0, now_ns());
                drop(state);
                if let Err(error) = cut {
                    self.close(opened.handle);
                    return Err(error);
                }
            }
            Ok(opened)
        })
    }

    /// Makes a file and opens it. Without [`OpenFlags::exclusive`], an existing file is opened instead.
    /// Counts one lookup.
    ///
    /// # Errors
    /// [`FsError::Exists`] (also if another client was first), and as `open` and `mkdir`.
    pub fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &[u8],
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attributes, OpenReply), FsError> {
        self.run(|| {
            self.guard_for_new(&*self.backend.latest(), parent)?;
            let inode = Inode::new(InodeKind::File, mode, self.engine.me().0, now_ns());
            match self.make_inode(caller, parent, name, inode) {
                Ok(NewInode { attributes, inode, node, view }) => {
                    let keep_cache = self.enter(&node, &inode, &*view, flags);
                    let opened = self.opened(node, flags, keep_cache);
                    self.guard_new(caller, attributes.ino, &inode, flags, &opened);
                    Ok((attributes, opened))
                }
                Err(FsError::Exists) if !flags.exclusive => {
                    self.tokens.forget_listed(caller.thread);
                    let found = self.lookup(caller, parent, name)?;
                    match self.open(caller, found.ino, flags) {
                        Ok(opened) if flags.truncate => {
                            Ok((self.getattr(caller, found.ino, Some(opened.handle))?, opened))
                        }
                        Ok(opened) => Ok((found, opened)),
                        Err(error) => {
                            self.forget(found.ino, 1);
                            Err(error)
                        }
                    }
                }
                Err(error) => Err(error),
            }
        })
    }

    pub(super) fn opened(&self, node: Arc<Node>, flags: OpenFlags, keep_cache: bool) -> OpenReply {
        let handle = self.new_handle();
        let open = OpenFile {
            node,
            flags,
            read_end: AtomicU64::new(0),
            ahead: AtomicU64::new(0),
            is_prepared: AtomicBool::new(false),
            window: AtomicU64::new(AHEAD_BYTES_FIRST),
            lock_owners: Mutex::default(),
            admitted: OnceLock::new(),
        };
        self.files.lock().insert(handle, Arc::new(open));
        OpenReply { handle, keep_cache }
    }

    /// Finds a file in a view that may answer this open, and counts it as opened.
    pub(super) fn open_node(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: OpenFlags,
        by: AccessKind,
    ) -> Result<(Arc<Node>, bool), FsError> {
        let handle = self.handle(ino)?;
        let fetched = self.view_of(caller, ino)?;
        let view = &*fetched.view;
        let inode = match view.inode(handle) {
            // Opened once more through a descriptor (/proc/self/fd): such a file lives as long as the
            // descriptor.
            Err(FsError::NotFound) => self.open_orphan(ino).ok_or(FsError::Stale)?,
            other => other?,
        };
        Self::must_be_file(inode.kind)?;
        if flags.write || flags.truncate {
            self.may_change()?;
            if !view.may_write(handle.principal) {
                return Err(FsError::Access(format!("the file belongs to {}", handle.principal)));
            }
        }
        self.ask_guard(caller, ino, &inode, flags, by)?;
        let node = self.nodes.get(ino, handle);
        let keep_cache = self.enter(&node, &inode, view, flags);
        Ok((node, keep_cache))
    }

    /// Counts a file as opened. Returns whether the kernel's pages are those of the content now open.
    pub(super) fn enter(&self, node: &Node, inode: &Arc<Inode>, view: &dyn View, flags: OpenFlags) -> bool {
        let roots = content_roots(inode);
        let pin = (!roots.is_empty()).then(|| self.backend.pin(roots));
        let mut state = node.state();
        let NodeState { open, writers, file, pages, .. } = &mut *state;
        let is_written = *writers > 0;
        let file = file.get_or_insert_with(|| Box::new(FileState::new(inode.clone(), view.position())));
        file.refresh(inode, view.position(), is_written);
        if file.pins.is_empty() {
            file.pins.extend(pin);
        }
        // The kernel also has what is written here, so its pages show the file as this client has it. The
        // exception: bytes have just been put at another offset than the kernel assumed, and it may still
        // have pages with them.
        let keep_cache = match *pages {
            Pages::Mixed => false,
            Pages::Of(content) if content == file.base_content => true,
            _ => is_written || file.is_dirty(),
        };
        if !keep_cache {
            *pages = Pages::Of(file.base_content);
        }
        *open += 1;
        *writers += u32::from(flags.write);
        keep_cache
    }

    /// Counts a file as closed. The caller publishes first. When no descriptor is left, what is still
    /// unpublished goes to salvage, unless the file was removed here.
    pub(super) fn leave(&self, node: Arc<Node>, flags: OpenFlags) {
        let ino = node.ino;
        {
            let _no_publication = node.publishing.lock();
            let mut state = node.state();
            let NodeState { open, writers, file, pages, lock_lost, .. } = &mut *state;
            *open -= 1;
            *writers -= u32::from(flags.write);
            if let Some(content) = file {
                if *open == 0 {
                    *lock_lost = false;
                    if content.close(&self.spool) {
                        *pages = Pages::Mixed;
                    }
                    *file = None;
                } else if *writers == 0 {
                    let (latest, position) = (content.latest.clone(), content.position);
                    content.refresh(&latest, position, false);
                }
            }
        }
        drop(node);
        self.nodes.release(ino);
    }

    /// Reads. Returns fewer bytes than asked for only at the end of the file.
    ///
    /// # Errors
    /// [`FsError::Integrity`], [`FsError::Unreachable`], [`FsError::Stale`] (the content read was replaced and
    /// is gone from the server); [`FsError::Invalid`]: not open for reading.
    pub fn read(&self, handle: FileHandleId, offset: u64, size: usize) -> Result<Vec<u8>, FsError> {
        self.run(|| {
            let open = self.usable_file(handle)?;
            let _behalf = account::on_behalf_of(open.node.ino.0);
            let is_first = self.prepare_read(&open);
            self.read_whole(&open);
            if is_first {
                self.read_ahead_siblings(&open.node);
            }
            let bytes = self.read_node(&open.node, offset, size.min(READ_BYTES_MAX))?;
            self.engine.account().read(open.node.ino.0, bytes.len());
            self.read_ahead(&open, offset, bytes.len() as u64);
            Ok(bytes)
        })
    }

    pub(super) fn read_node(&self, node: &Node, offset: u64, size: usize) -> Result<Vec<u8>, FsError> {
        let source = self.backend.source();
        let mut state = node.state();
        let NodeState { file, pages, .. } = &mut *state;
        let file = file.as_deref().ok_or_else(|| FsError::Invalid("the file is not open".into()))?;
        let end = file.size.min(offset.saturating_add(size as u64));
        if offset >= end {
            return Ok(Vec::new());
        }
        let places = file.places(offset..end);
        let content = file.base_content;
        let is_local = places.iter().any(|(_, place)| matches!(place, DataLocation::Spool));
        let mut bytes = vec![0; (end - offset) as usize];
        // Spooled bytes are read under the lock, since publishing may remove them; published bytes are not.
        if is_local {
            let data = file.data();
            let local = spooled_only(&places);
            read_places(&*source, data.as_deref(), &local, &mut bytes)
                .map_err(|error| self.compose_error(node, error))?;
        }
        if *pages == Pages::None || !file.is_dirty() {
            state.served(content);
        }
        drop(state);
        let begin = offset;
        for (range, place) in &places {
            if let DataLocation::Published(..) = place {
                let out = &mut bytes[(range.start - begin) as usize..(range.end - begin) as usize];
                read_places(&*source, None, std::slice::from_ref(&(range.clone(), place.clone())), out)
                    .map_err(|error| self.compose_error(node, error))?;
            }
        }
        Ok(bytes)
    }

    /// Prepares for reading a file, once for each open: an earlier version of it may make reading it cheap.
    /// Returns whether this is the first time.
    fn prepare_read(&self, open: &OpenFile) -> bool {
        if open.is_prepared.swap(true, Ordering::Relaxed) {
            return false;
        }
        let base = open.node.state().file.as_ref().map(|file| file.base.clone());
        if let Some(base) = base {
            self.backend.prepare_read(open.node.handle(), &self.nodes.path(open.node.ino), &base);
        }
        true
    }

    /// Fetches all of a small file with one request when something of it is first read.
    fn read_whole(&self, open: &OpenFile) {
        if open.ahead.load(Ordering::Relaxed) != 0 {
            return;
        }
        let base = match &open.node.state().file {
            Some(file) if file.base.size <= WHOLE_BYTES => file.base.clone(),
            _ => return,
        };
        open.ahead.store(u64::MAX, Ordering::Relaxed);
        if let Content::Extents(map) = &base.content {
            // This is only a hint: a read that needs the blocks reports an error itself.
            let _ = file::prefetch(&*self.backend.source(), map, 0..base.size);
        }
    }

    /// Fetches ahead of a sequential reader, further each time, as far as suits the link. For reads at random
    /// offsets, nothing is fetched ahead.
    fn read_ahead(&self, open: &OpenFile, offset: u64, length: u64) {
        let end = offset + length;
        let before = open.read_end.swap(end, Ordering::Relaxed);
        let ahead = open.ahead.load(Ordering::Relaxed);
        if ahead == u64::MAX || length == 0 {
            return;
        }
        if offset != before {
            open.window.store(AHEAD_BYTES_FIRST, Ordering::Relaxed);
            open.ahead.store(end, Ordering::Relaxed);
            return;
        }
        let window = open.window.load(Ordering::Relaxed);
        if ahead >= end + window / 2 {
            return;
        }
        let base = match &open.node.state().file {
            Some(file) if end < file.visible => file.base.clone(),
            _ => return,
        };
        if let Content::Extents(map) = &base.content {
            let range = ahead.max(end)..end + window;
            open.ahead.store(range.end, Ordering::Relaxed);
            open.window
                .store((2 * window).min(self.engine.account().pace().ahead_bytes()), Ordering::Relaxed);
            // The prefetch is only a hint: an error here comes again when the bytes are read.
            let _ = file::prefetch(&*self.backend.source(), map, range);
        }
    }

    /// Writes all of `bytes`. Other clients do not see them until flush, fsync or release publishes them.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], [`FsError::Local`] (the spool), [`FsError::Quota`], [`FsError::TooLarge`]; with
    /// [`OpenFlags::synchronous`] as [`FileSystem::fsync`].
    pub fn write(
        &self,
        handle: FileHandleId,
        offset: u64,
        bytes: &[u8],
        from: WriteSource,
    ) -> Result<usize, FsError> {
        self.run(|| {
            let open = self.usable_file(handle)?;
            if !open.flags.write {
                return Err(FsError::Invalid("the file is not open for writing".into()));
            }
            self.may_change()?;
            self.backend.room(bytes.len() as u64)?;
            let moved;
            let pieces = {
                let mut state = open.node.state();
                let NodeState { file, pages, lock_lost, .. } = &mut *state;
                if *lock_lost {
                    return Err(FsError::LockLost);
                }
                let file = file.as_mut().expect("an open file has content");
                let appends = open.flags.append && from == WriteSource::Call;
                // The kernel appends at the end that it believes in; the end that this client has counts.
                let at = if appends { file.size } else { offset };
                moved = at != offset;
                if at.checked_add(bytes.len() as u64).is_none_or(|end| end > FILE_BYTES_MAX) {
                    return Err(FsError::TooLarge);
                }
                if bytes.is_empty() {
                    return Ok(0);
                }
                let name = || self.journal_name(open.node.ino);
                self.with_room(bytes.len() as u64, || match appends {
                    true => file.append(&self.spool, &name, bytes, now_ns()),
                    false => file.write(&self.spool, &name, at, bytes, now_ns()),
                })?;
                if moved {
                    *pages = Pages::Mixed;
                } else if *pages == Pages::None {
                    *pages = Pages::Of(file.base_content);
                }
                file.pieces()
            };
            if moved {
                self.invalidate(open.node.ino);
            }
            self.engine.account().written(open.node.ino.0, bytes.len());
            if open.flags.synchronous {
                self.publish(&open.node, PublishReason::Sync)?;
                self.commit(&open.node, PublishReason::Sync)?;
            } else if pieces > PIECES_MAX {
                self.publish(&open.node, PublishReason::Sync)?;
            }
            Ok(bytes.len())
        })
    }

    /// Handles the closing of a descriptor: publishes, and waits until that is durable at the server.
    ///
    /// # Errors
    /// Why it could not be published; the changes stay, and the next flush, fsync or release tries again.
    pub fn flush(&self, handle: FileHandleId) -> Result<(), FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            if !open.flags.write {
                return Ok(());
            }
            self.publish(&open.node, PublishReason::Close)?;
            self.commit(&open.node, PublishReason::Close)
        })
    }

    /// Publishes all changes of the file, whichever descriptor made them, and waits until they are durable at
    /// the server.
    ///
    /// # Errors
    /// As [`FileSystem::flush`].
    pub fn fsync(&self, handle: FileHandleId) -> Result<(), FsError> {
        self.run(|| {
            let open = self.open_file(handle)?;
            self.publish(&open.node, PublishReason::Sync)?;
            self.commit(&open.node, PublishReason::Sync)
        })
    }

    /// Waits until all changes of names made so far are durable at the server.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    pub fn fsyncdir(&self, _handle: FileHandleId) -> Result<(), FsError> {
        self.run(|| self.backend.flush_commits())
    }

    /// Handles the closing of the last descriptor. Publishes what was written since the last flush (through a
    /// mapping, say). What cannot be published is left for salvage, since no caller is left to get an error.
    pub fn release(&self, handle: FileHandleId) {
        self.close(handle);
    }

    fn close(&self, handle: FileHandleId) {
        let Some(open) = self.files.lock().remove(&handle) else { return };
        if open.flags.write
            && let Err(error) = self.publish(&open.node, PublishReason::Close)
        {
            self.notice(&error);
            self.report_unpublished(&open.node, &error);
        }
        if open.is_prepared.load(Ordering::Relaxed)
            && !open.node.ino.is_past()
            && let Some(base) = open.node.state().file.as_ref().map(|file| file.base.clone())
        {
            self.backend.note_version(open.node.handle(), self.nodes.path(open.node.ino), &base);
        }
        let (node, flags) = (open.node.clone(), open.flags);
        let (file, owners) = (node.handle(), std::mem::take(&mut *open.lock_owners.lock()));
        drop(open);
        self.leave(node, flags);
        self.locks_ended(handle, file, &owners);
    }

    /// Opens a file for one change by name, publishes it, and closes it again. A change that cannot be
    /// published is discarded, since the caller gets the error.
    pub(super) fn with_file(
        &self,
        caller: &Caller,
        ino: Ino,
        change: impl FnOnce(&Node) -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        let (node, _) = self.open_node(caller, ino, OpenFlags::READ_WRITE, AccessKind::Name)?;
        let result = change(&node).and_then(|()| self.publish(&node, PublishReason::Close));
        if result.is_err() {
            let mut state = node.state();
            if state.open == 1
                && let Some(file) = &mut state.file
                && !file.has_unpublished_bytes()
            {
                file.discard();
            }
        }
        self.leave(node, OpenFlags::READ_WRITE);
        result
    }

    /// Number and path of a file, for the spool's journal.
    pub(super) fn journal_name(&self, ino: Ino) -> (u64, Vec<u8>) {
        (ino.0, self.nodes.path(ino))
    }

    /// The path of a file, for messages.
    pub(super) fn path_of(&self, node: &Node) -> String {
        String::from_utf8_lossy(&self.nodes.path(node.ino)).into_owned()
    }

    /// The error to report when content could not be read.
    pub(super) fn compose_error(&self, node: &Node, error: ComposeError) -> FsError {
        match error {
            ComposeError::Content(inode, error) => {
                self.engine.content_error(node.handle(), self.path_of(node), &inode, error)
            }
            ComposeError::Local(error) => error,
        }
    }
}

/// The places, with all but the spooled ones replaced by zeroes.
fn spooled_only(
    places: &[(std::ops::Range<u64>, DataLocation)],
) -> Vec<(std::ops::Range<u64>, DataLocation)> {
    let blank = |place: &DataLocation| match place {
        DataLocation::Spool => DataLocation::Spool,
        _ => DataLocation::Zero,
    };
    places.iter().map(|(range, place)| (range.clone(), blank(place))).collect()
}
