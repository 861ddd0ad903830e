//! The inodes that the kernel or an open file refers to: how often each was looked up, its names, and its
//! open handles.
//!
//! **Locks, in the order in which they may be taken**:
//! 1. a node's `publishing`: allows one publication of a file at a time; held while waiting for the network;
//!    never taken by reads, writes, look-ups or attribute requests;
//! 2. an open directory's listing: held while its next page is read;
//! 3. a node's `state`: held briefly, at most during local disk I/O; never those of two nodes at once;
//! 4. the tables (nodes, open files, view tokens): held for memory accesses only.
//!
//! No lock that several files need is ever held while waiting for the network.

use super::state::FileState;
use super::types::{Attributes, Ino};
use holdfast_content::{Handle, Inode, InodeKind};
use holdfast_crypto::Digest;
use parking_lot::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// Longest chain of parents that is followed: longer ones are loops made by a hostile writer.
pub const DEPTH_MAX: usize = 4096;

/// The content that the kernel's pages of a file were read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// The kernel has no pages of it.
    None,
    /// All pages are from this content (and from what was written here since).
    Of(Digest),
    /// The pages are from several contents, so no open can use them again.
    Mixed,
}

/// An inode that the kernel knows.
pub struct Node {
    /// Its number.
    pub ino: Ino,
    handle: Mutex<Handle>,
    /// The first of the two locks that the module's comment describes.
    pub publishing: Mutex<()>,
    state: Mutex<NodeState>,
}

/// State of a node, guarded by the second lock.
pub struct NodeState {
    /// Number of open handles, of files and directories.
    pub open: u32,
    /// Number of open descriptions that may write.
    pub writers: u32,
    /// Content, while the file is open or unpublished.
    pub file: Option<Box<FileState>>,
    /// The content that the kernel has pages of.
    pub pages: Pages,
    /// The inode as it was when its last name was removed. Descriptors and working directories still show it.
    pub removed: Option<Box<Inode>>,
    /// The attributes shown last, unless it is a file or a symbolic link. They are still shown if another
    /// client has removed it.
    pub shown: Option<Box<Attributes>>,
    /// Whether a lock was lost. Then nothing is written until the file is closed or locked again.
    pub lock_lost: bool,
}

impl Node {
    /// Its handle. It differs from the one that belongs to its inode number after the file was given another
    /// owner: then the node stands for a copy, which has its own number for later lookups.
    pub fn handle(&self) -> Handle {
        *self.handle.lock()
    }

    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock()
    }

    /// Records the attributes that the kernel is shown.
    pub fn shows(&self, attributes: &Attributes) {
        if !matches!(attributes.kind, InodeKind::File | InodeKind::Symlink) {
            self.state().shown = Some(Box::new(*attributes));
        }
    }

    fn is_idle(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.open == 0 && state.file.is_none())
    }
}

impl NodeState {
    /// Records that bytes of `content` were sent to the kernel.
    pub fn served(&mut self, content: Digest) {
        self.pages = match self.pages {
            Pages::None => Pages::Of(content),
            Pages::Of(earlier) if earlier == content => self.pages,
            _ => Pages::Mixed,
        };
    }
}

/// The directory and name under which an inode was last found.
pub struct InodeName {
    /// The inode.
    pub ino: Ino,
    /// The directory it was found in.
    pub parent: Ino,
    /// Its name in that directory.
    pub name: Box<[u8]>,
}

struct NodeEntry {
    node: Arc<Node>,
    lookups: u64,
    place: Option<(Ino, Box<[u8]>)>,
}

/// The table of all inodes that the kernel knows.
#[derive(Default)]
pub struct Nodes {
    known: Mutex<HashMap<Ino, NodeEntry>>,
    /// Nodes whose handle is not the one that belongs to their number.
    moved: Mutex<Vec<Weak<Node>>>,
}

impl Nodes {
    /// The node of an inode, made if needed.
    pub fn get(&self, ino: Ino, handle: Handle) -> Arc<Node> {
        Self::entry(&mut self.known.lock(), ino, handle).node.clone()
    }

    /// The node of an inode, if there is one.
    pub fn find(&self, ino: Ino) -> Option<Arc<Node>> {
        Some(self.known.lock().get(&ino)?.node.clone())
    }

    /// Gives a node another handle.
    pub fn set_handle(&self, node: &Arc<Node>, handle: Handle) {
        *node.handle.lock() = handle;
        let mut moved = self.moved.lock();
        moved.retain(|node| node.strong_count() > 0);
        moved.push(Arc::downgrade(node));
    }

    /// All nodes that have this handle.
    pub fn of(&self, ino: Ino, handle: Handle) -> Vec<Arc<Node>> {
        let moved: Vec<Arc<Node>> = self.moved.lock().iter().filter_map(Weak::upgrade).collect();
        let all = self.find(ino).into_iter().chain(moved);
        let mut found: Vec<Arc<Node>> = all.filter(|node| node.handle() == handle).collect();
        found.dedup_by_key(|node| node.ino);
        found
    }

    /// All nodes that have open or unpublished content at this moment.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.known.lock().values().map(|known| known.node.clone()).collect()
    }

    /// Counts a reply that gives the kernel an inode, found under `name` in `parent`.
    pub fn looked_up(&self, ino: Ino, handle: Handle, parent: Ino, name: &[u8]) -> Arc<Node> {
        let mut known = self.known.lock();
        let entry = Self::entry(&mut known, ino, handle);
        entry.lookups += 1;
        entry.place = Some((parent, name.into()));
        entry.node.clone()
    }

    /// Makes the node of an inode without a name, and counts one lookup.
    pub fn insert_unnamed(&self, ino: Ino, handle: Handle) -> Arc<Node> {
        let mut known = self.known.lock();
        let entry = Self::entry(&mut known, ino, handle);
        entry.lookups += 1;
        entry.node.clone()
    }

    /// Called when the kernel forgets `count` of those replies.
    pub fn forget(&self, ino: Ino, count: u64) {
        let mut known = self.known.lock();
        if let Some(entry) = known.get_mut(&ino) {
            entry.lookups = entry.lookups.saturating_sub(count);
        }
        Self::tidy(&mut known, ino);
    }

    /// Removes a node that nothing needs any more. The caller must have dropped its own reference.
    pub fn release(&self, ino: Ino) {
        Self::tidy(&mut self.known.lock(), ino);
    }

    /// Records a name that was made or changed here.
    pub fn moved(&self, ino: Ino, parent: Ino, name: &[u8]) {
        if let Some(entry) = self.known.lock().get_mut(&ino) {
            entry.place = Some((parent, name.into()));
        }
    }

    /// The directory and name under which an inode was last found.
    pub fn place(&self, ino: Ino) -> Option<(Ino, Box<[u8]>)> {
        self.known.lock().get(&ino)?.place.clone()
    }

    /// Whether the inode is open here.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.find(ino).is_some_and(|node| node.state().open > 0)
    }

    /// The names from that of `ino` up to the root, as last found. `None` if one of them is not known.
    pub fn ancestors(&self, ino: Ino) -> Option<Vec<InodeName>> {
        let known = self.known.lock();
        let mut chain = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT {
            let (parent, name) = known.get(&at)?.place.clone()?;
            chain.push(InodeName { ino: at, parent, name });
            at = parent;
            if chain.len() > DEPTH_MAX {
                return None;
            }
        }
        Some(chain)
    }

    /// The path of an inode as last known, without a leading slash; an unknown beginning is written `?`.
    pub fn path(&self, ino: Ino) -> Vec<u8> {
        let known = self.known.lock();
        let mut names: Vec<&[u8]> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && names.len() <= DEPTH_MAX {
            match known.get(&at).and_then(|known| known.place.as_ref()) {
                Some((parent, name)) => {
                    names.push(name);
                    at = *parent;
                }
                None => {
                    names.push(b"?");
                    break;
                }
            }
        }
        names.reverse();
        names.join(&b'/')
    }

    fn entry(known: &mut HashMap<Ino, NodeEntry>, ino: Ino, handle: Handle) -> &mut NodeEntry {
        known.entry(ino).or_insert_with(|| NodeEntry {
            node: Arc::new(Node {
                ino,
                handle: Mutex::new(handle),
                publishing: Mutex::new(()),
                state: Mutex::new(NodeState {
                    open: 0,
                    writers: 0,
                    file: None,
                    pages: Pages::None,
                    removed: None,
                    shown: None,
                    lock_lost: false,
                }),
            }),
            lookups: 0,
            place: None,
        })
    }

    fn tidy(known: &mut HashMap<Ino, NodeEntry>, ino: Ino) {
        let idle = known.get(&ino).is_some_and(|entry| {
            entry.lookups == 0 && Arc::strong_count(&entry.node) == 1 && entry.node.is_idle()
        });
        if idle {
            known.remove(&ino);
        }
    }
}
