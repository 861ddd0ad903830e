//! Reading ahead in a directory of small files: the files that are likely to be read next are fetched in one
//! request.
//!
//! A program that reads files of a directory in the order of its listing (`tar`, `grep -r`, a copy) is likely
//! to continue. Each time it comes near the end of what was fetched, twice as many files are fetched, up to
//! [`WINDOW_MAX`] files and up to the number of bytes that the link can usefully have in transit. For a
//! program that opens files in no order nothing is fetched ahead.
//!
//! None of these blocks is trusted, and none is guaranteed to come: they are verified when they are read, as
//! all others, and blocks that did not come are fetched then.

use super::nodes::Node;
use super::{FileSystem, Ino, ino_of, known_handle};
use crate::store::ReadAheadFile;
use holdfast_content::{Content, Extents, Inode, InodeKind};
use lru::LruCache;
use parking_lot::Mutex;
use std::num::NonZeroUsize;

/// Most directories in which reading is followed at the same time.
const DIRECTORIES_MAX: usize = 64;
/// The next file read may be this many entries after the last one, as some are skipped or read by another
/// thread.
const NEAR: usize = 8;
/// Number of files that must be read in order before any are fetched ahead.
const STREAK_MIN: u32 = 3;
/// Most files fetched ahead at once.
const WINDOW_MAX: usize = 256;
/// Larger files are fetched only when they are read.
const FILE_BYTES_MAX: u64 = 128 << 10;

/// How far programs have read in the directories that were read recently.
pub(super) struct ReadAhead(Mutex<LruCache<Ino, ReadStreak>>);

#[derive(Clone, Default)]
struct ReadStreak {
    /// Name of the file read last.
    last: Vec<u8>,
    /// Number of files that were read in the order of their names.
    length: u32,
    /// Files up to this name have been fetched.
    until: Vec<u8>,
    /// Number of files that were fetched the last time.
    window: usize,
}

impl Default for ReadAhead {
    fn default() -> ReadAhead {
        ReadAhead(Mutex::new(LruCache::new(NonZeroUsize::new(DIRECTORIES_MAX).expect("not zero"))))
    }
}

impl FileSystem {
    /// Called when a file is read for the first time after it was opened.
    pub(super) fn read_ahead_siblings(&self, node: &Node) {
        let Some((parent, name)) = self.nodes.place(node.ino) else { return };
        // The directory of a past state has no handle here, so nothing is fetched ahead.
        let Ok(directory) = self.handle(parent) else { return };
        let view = self.backend.latest();
        let mut streak = self.read_ahead.0.lock().get(&parent).cloned().unwrap_or_default();
        if *name == *streak.last {
            return;
        }
        let follows = streak.length > 0
            && *name > *streak.last
            && view
                .entries(directory, Some(&streak.last), NEAR)
                .is_ok_and(|near| near.iter().any(|(near, _)| **near == *name));
        streak = match follows {
            true => ReadStreak { last: name.to_vec(), length: streak.length + 1, ..streak },
            false => ReadStreak { last: name.to_vec(), length: 1, ..ReadStreak::default() },
        };
        if streak.length < STREAK_MIN {
            self.read_ahead.0.lock().put(parent, streak);
            return;
        }
        // Nothing is fetched while half of what was fetched last is still to be read.
        let ahead = view.entries(directory, Some(&name), (streak.window / 2).max(1)).unwrap_or_default();
        if ahead.last().is_none_or(|(last, _)| *last <= streak.until) {
            self.read_ahead.0.lock().put(parent, streak);
            return;
        }
        streak.window = (2 * streak.window).clamp(NEAR, WINDOW_MAX);
        let from = streak.until.clone().max(name.to_vec());
        let next = view.entries(directory, Some(&from), streak.window).unwrap_or_default();
        let folder = self.nodes.path(parent);
        let mut left = self.engine.account().pace().ahead_bytes();
        let mut expected = Vec::new();
        for (name, entry) in next {
            let inode = match known_handle(entry.handle) {
                Ok(handle) if entry.kind == InodeKind::File => {
                    self.engine.want_lease(handle);
                    view.inode(handle).ok().filter(|inode| is_small(inode)).map(|inode| (handle, inode))
                }
                _ => None,
            };
            if let Some((handle, inode)) = inode {
                let Some(rest) = left.checked_sub(inode.size) else { break };
                left = rest;
                let path = match folder.is_empty() {
                    true => name.clone(),
                    false => [&folder[..], b"/", &name].concat(),
                };
                let content = inode.content.clone();
                expected.push(ReadAheadFile { ino: ino_of(handle).0, handle, path, content });
            }
            streak.until = name;
        }
        self.read_ahead.0.lock().put(parent, streak);
        self.engine.read_ahead(&expected);
    }
}

/// Whether a file is small and its inode contains all that is needed to fetch its content.
fn is_small(inode: &Inode) -> bool {
    let listed = matches!(&inode.content, Content::Extents(map) if matches!(map.extents, Extents::Inline(_)));
    listed && (1..=FILE_BYTES_MAX).contains(&inode.size)
}
