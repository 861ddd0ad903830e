//! The files that the caller refers to, by stable numbers.
//!
//! A number is assigned when a file is looked up or created, and means that file until it is forgotten,
//! through renames and after its name is removed. Numbers are never used again. The position of an entry
//! identifies the file: the first cluster of its directory, which never changes, and its slot.

use crate::{FatError, Result};
use std::collections::BTreeMap;

/// Most files that the caller may refer to at once.
pub const FILES_MAX: usize = 1 << 20;

/// A file or directory known to the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// The root directory.
pub const ROOT: FileId = FileId(1);

/// The location of a directory entry.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct EntryLocation {
    /// The first cluster of the directory.
    pub(crate) directory: u32,
    pub(crate) slot: u32,
}

/// A change of a known file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeChange {
    /// The file was made at this location; a directory starts at this cluster.
    Made(EntryLocation, Option<u32>),
    /// The entry has moved.
    Moved(EntryLocation),
    /// The name is removed, and the entry waits there.
    Unlinked(EntryLocation),
    /// Nothing is left of the file.
    Gone,
}

/// The state of a file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The position of its entry; the root and removed files have none.
    pub(crate) location: Option<EntryLocation>,
    /// The first cluster, of a directory.
    pub(crate) directory: Option<u32>,
    pub(crate) unlinked: bool,
    references: u64,
}

pub(crate) struct Nodes {
    by_id: BTreeMap<FileId, Node>,
    by_location: BTreeMap<EntryLocation, FileId>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new(root_cluster: u32) -> Nodes {
        let root = Node { location: None, directory: Some(root_cluster), unlinked: false, references: 1 };
        Nodes { by_id: BTreeMap::from([(ROOT, root)]), by_location: BTreeMap::new(), next: ROOT.0 + 1 }
    }

    pub(crate) fn get(&self, id: FileId) -> Result<&Node> {
        self.by_id.get(&id).ok_or(FatError::Gone)
    }

    pub(crate) fn at(&self, location: EntryLocation) -> Option<FileId> {
        self.by_location.get(&location).copied()
    }

    /// A number for a file that will be made.
    pub(crate) fn new_id(&mut self) -> Result<FileId> {
        if self.by_id.len() >= FILES_MAX {
            return Err(FatError::TooManyFiles(FILES_MAX));
        }
        self.next += 1;
        Ok(FileId(self.next - 1))
    }

    /// The file there gets one more reference, and a number if it has none.
    pub(crate) fn refer(&mut self, location: EntryLocation, directory: Option<u32>) -> Result<FileId> {
        let id = match self.at(location) {
            Some(id) => id,
            None => {
                let id = self.new_id()?;
                self.apply_change(id, NodeChange::Made(location, directory));
                self.by_id.get_mut(&id).expect("just made").references = 0;
                id
            }
        };
        let node = self.by_id.get_mut(&id).expect("places name known files");
        node.references = node.references.saturating_add(1);
        Ok(id)
    }

    /// Gives up references. Returns the location of the entry if the name is removed and this was the last
    /// reference.
    pub(crate) fn forget(&mut self, id: FileId, count: u64) -> Option<EntryLocation> {
        if id == ROOT {
            return None;
        }
        let node = self.by_id.get_mut(&id)?;
        node.references = node.references.saturating_sub(count);
        if node.references > 0 {
            return None;
        }
        let node = self.by_id.remove(&id)?;
        let location = node.location?;
        self.by_location.remove(&location);
        node.unlinked.then_some(location)
    }

    pub(crate) fn apply_change(&mut self, id: FileId, change: NodeChange) {
        if let Some(location) = self.by_id.get(&id).and_then(|node| node.location) {
            self.by_location.remove(&location);
        }
        match change {
            NodeChange::Made(location, directory) => {
                let node = Node { location: Some(location), directory, unlinked: false, references: 1 };
                self.by_id.insert(id, node);
                self.by_location.insert(location, id);
            }
            NodeChange::Moved(location) | NodeChange::Unlinked(location) => {
                if let Some(node) = self.by_id.get_mut(&id) {
                    node.location = Some(location);
                    node.unlinked |= matches!(change, NodeChange::Unlinked(_));
                    self.by_location.insert(location, id);
                }
            }
            NodeChange::Gone => {
                if let Some(node) = self.by_id.get_mut(&id) {
                    node.location = None;
                    node.unlinked = true;
                }
            }
        }
    }
}
