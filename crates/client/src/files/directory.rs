//! Listing directories.
//!
//! A listing is of one view, taken at opendir, so offsets stay valid, and no entry is missed or listed twice
//! however the directory changes meanwhile. An offset is 0 before `.`, 1 before `..`, and 2 + n before the
//! n-th entry of that view. Memory: one page of entries, and one name for every [`MARK_EVERY`] entries, from
//! which reading can resume.

use super::nodes::Node;
use super::views::{FetchedView, PathStep};
use super::{Caller, DirectoryItem, FileHandleId, FileSystem, Ino, ino_of, known_handle};
use crate::error::FsError;
use crate::tree::{Names, View};
use holdfast_content::{Handle, InodeKind};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Number of entries that are read at once.
const PAGE: usize = 256;
/// Entries between two remembered names.
const MARK_EVERY: u64 = 1024;

/// An open directory.
pub struct OpenDirectory {
    node: Arc<Node>,
    listing: Mutex<Listing>,
}

struct Listing {
    view: Arc<dyn View>,
    /// When its listing was requested.
    fetched: Instant,
    /// Whether entries were read: then a return to the beginning takes a fresh listing.
    begun: bool,
    /// The entries read last; `first` is the number of the first of them.
    page: Names,
    first: u64,
    /// The name before an entry, by the number of the entry.
    marks: BTreeMap<u64, Vec<u8>>,
}

impl OpenDirectory {
    /// An open directory that is read from this view.
    pub(super) fn new(node: Arc<Node>, fetched: FetchedView) -> OpenDirectory {
        OpenDirectory { node, listing: Mutex::new(Listing::of(fetched)) }
    }
}

impl FileSystem {
    /// Opens a directory for listing.
    ///
    /// # Errors
    /// [`FsError::NotDirectory`], [`FsError::Stale`].
    pub fn opendir(&self, caller: &Caller, ino: Ino) -> Result<FileHandleId, FsError> {
        self.run(|| {
            if ino.is_past() {
                return self.past_opendir(ino);
            }
            let handle = self.handle(ino)?;
            let fetched = self.view_of(caller, ino)?;
            let kind = match fetched.view.inode(handle) {
                Ok(inode) => inode.kind,
                // The working directory of a program, which was removed here: it can be opened, and is empty.
                Err(FsError::NotFound) => self.gone(handle, ino).ok_or(FsError::Stale)?.kind,
                Err(error) => return Err(error),
            };
            if kind != InodeKind::Directory {
                return Err(FsError::NotDirectory);
            }
            let node = self.nodes.get(ino, handle);
            node.state().open += 1;
            let open = OpenDirectory::new(node, fetched);
            let id = self.new_handle();
            self.directories.lock().insert(id, Arc::new(open));
            Ok(id)
        })
    }

    /// Passes the entries from `offset` on to `sink`, until it returns `false` (it had no room for the entry)
    /// or the directory ends.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: not open. Integrity and reachability failures.
    pub fn readdir(
        &self,
        caller: &Caller,
        handle: FileHandleId,
        offset: u64,
        sink: &mut dyn FnMut(DirectoryItem<'_>) -> bool,
    ) -> Result<(), FsError> {
        self.run(|| {
            if let Some(()) = self.past_folder(handle, offset, sink) {
                return Ok(());
            }
            let open = self.directories.lock().get(&handle).cloned();
            let open = open.ok_or_else(|| FsError::Invalid("the directory is not open".into()))?;
            let mut listing = open.listing.lock();
            if open.node.ino.is_past() {
                return self.list(open.node.ino, open.node.handle(), &mut listing, offset, sink);
            }
            if offset == 0 && std::mem::replace(&mut listing.begun, true) {
                *listing = Listing::of(self.present(open.node.handle())?);
                listing.begun = true;
            }
            let listed = self.list(open.node.ino, open.node.handle(), &mut listing, offset, sink);
            let way = self.nodes.ancestors(open.node.ino).unwrap_or_default();
            let way = way.into_iter().map(|at| PathStep {
                directory: at.parent,
                name: at.name.into(),
                ino: at.ino,
            });
            self.tokens.listed(caller.thread, open.node.ino, way.collect(), listing.fetched);
            listed
        })
    }

    fn list(
        &self,
        ino: Ino,
        directory: Handle,
        listing: &mut Listing,
        offset: u64,
        sink: &mut dyn FnMut(DirectoryItem<'_>) -> bool,
    ) -> Result<(), FsError> {
        let parent = match ino.is_past() {
            true => self.past_parent(ino),
            false => self.nodes.place(ino).map_or(Ino::ROOT, |(parent, _)| parent),
        };
        let dots: [(&[u8], Ino); 2] = [(b".", ino), (b"..", parent)];
        for (number, (name, ino)) in dots.into_iter().enumerate().skip(offset.min(2) as usize) {
            let next_offset = number as u64 + 1;
            if !sink(DirectoryItem { ino, kind: InodeKind::Directory, name, next_offset }) {
                return Ok(());
            }
        }
        let mut number = offset.saturating_sub(2);
        loop {
            let turned = match listing.seek_to(directory, number) {
                // The blocks of the directory's earlier state are gone: continue by name in the present
                // state.
                Err(FsError::Stale) if !ino.is_past() => {
                    FetchedView { view: listing.view, at: listing.fetched } = self.fetch(&[directory])?;
                    listing.seek_to(directory, number)
                }
                other => other,
            };
            match turned {
                Err(FsError::NotFound) => return Ok(()),
                other => other?,
            }
            let page = listing.from(number);
            if page.is_empty() {
                return Ok(());
            }
            for (name, entry) in page {
                number += 1;
                // An entry whose handle has no inode number is its writer's mistake; the others are valid.
                let Ok(handle) = known_handle(entry.handle) else { continue };
                let found = match ino.is_past() {
                    true => self.past_child(ino, entry)?,
                    false => {
                        // The next entries of a listing are likely to be looked at soon.
                        self.engine.want_lease(handle);
                        ino_of(handle)
                    }
                };
                let item = DirectoryItem { ino: found, kind: entry.kind, name, next_offset: number + 2 };
                if !sink(item) {
                    return Ok(());
                }
            }
        }
    }

    /// Closes a directory.
    pub fn releasedir(&self, handle: FileHandleId) {
        if self.past_folder_closed(handle) {
            return;
        }
        let Some(open) = self.directories.lock().remove(&handle) else { return };
        let ino = open.node.ino;
        open.node.state().open -= 1;
        drop(open);
        self.nodes.release(ino);
    }
}

impl Listing {
    fn of(fetched: FetchedView) -> Listing {
        let FetchedView { view, at: fetched } = fetched;
        Listing { view, fetched, begun: false, page: Vec::new(), first: 0, marks: BTreeMap::new() }
    }

    /// The entries from `number` on that the present page contains.
    fn from(&self, number: u64) -> &[(Vec<u8>, holdfast_content::Entry)] {
        &self.page[(number - self.first).min(self.page.len() as u64) as usize..]
    }

    /// Reads pages, starting at the nearest remembered name, until one contains `number` or the entries end
    /// before it.
    fn seek_to(&mut self, directory: Handle, number: u64) -> Result<(), FsError> {
        if (self.first..self.first + self.page.len() as u64).contains(&number) {
            return Ok(());
        }
        let end = self.first + self.page.len() as u64;
        let mark = self.marks.range(..=number).next_back().map(|(at, name)| (*at, Some(name.clone())));
        let mark = mark.unwrap_or((0, None));
        let (mut at, mut after) = match self.page.last() {
            Some((name, _)) if end <= number && end >= mark.0 => (end, Some(name.clone())),
            _ => mark,
        };
        loop {
            let page = self.view.entries(directory, after.as_deref(), PAGE)?;
            let next = at + page.len() as u64;
            if let Some((name, _)) = page.last() {
                after = Some(name.clone());
                if self.marks.last_key_value().is_none_or(|(last, _)| next >= last + MARK_EVERY) {
                    self.marks.insert(next, name.clone());
                }
            }
            let found = number < next || page.is_empty();
            // At the end, an empty page at `number` itself: an offset beyond the end is not remembered.
            (self.first, self.page) = (if page.is_empty() { number } else { at }, page);
            if found {
                return Ok(());
            }
            at = next;
        }
    }
}
