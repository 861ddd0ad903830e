//! The files that the caller knows, by numbers that stay theirs.
//!
//! A number is given out when a file is looked up or made and means that file until it is forgotten, through renames,
//! and after its name is gone. Numbers are never used again. The place of an entry says which file it is: the first
//! cluster of its directory, which never changes, and its slot.

use crate::{FatError, Result};
use std::collections::BTreeMap;

/// Files that may be known at once.
pub const FILES_MAX: usize = 1 << 20;

/// A file or directory known to the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// The root directory.
pub const ROOT: FileId = FileId(1);

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Place {
    /// The first cluster of the directory.
    pub(crate) directory: u32,
    pub(crate) slot: u32,
}

/// What became of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// It was made: there, and a directory that starts at that cluster if it is one.
    Made(Place, Option<u32>),
    /// Its entry is elsewhere.
    Moved(Place),
    /// Its name is gone and its entry waits there.
    Unlinked(Place),
    /// Nothing is left of it.
    Gone,
}

/// What is known of a file.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Where its entry is; the root has none, what is gone has none.
    pub(crate) place: Option<Place>,
    /// The first cluster, of a directory.
    pub(crate) directory: Option<u32>,
    pub(crate) unlinked: bool,
    references: u64,
}

pub(crate) struct Nodes {
    by_id: BTreeMap<FileId, Node>,
    by_place: BTreeMap<Place, FileId>,
    next: u64,
}

impl Nodes {
    pub(crate) fn new(root_cluster: u32) -> Nodes {
        let root = Node { place: None, directory: Some(root_cluster), unlinked: false, references: 1 };
        Nodes { by_id: BTreeMap::from([(ROOT, root)]), by_place: BTreeMap::new(), next: ROOT.0 + 1 }
    }

    pub(crate) fn get(&self, id: FileId) -> Result<&Node> {
        self.by_id.get(&id).ok_or(FatError::Gone)
    }

    pub(crate) fn at(&self, place: Place) -> Option<FileId> {
        self.by_place.get(&place).copied()
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
    pub(crate) fn refer(&mut self, place: Place, directory: Option<u32>) -> Result<FileId> {
        let id = match self.at(place) {
            Some(id) => id,
            None => {
                let id = self.new_id()?;
                self.become_of(id, Fate::Made(place, directory));
                self.by_id.get_mut(&id).expect("just made").references = 0;
                id
            }
        };
        let node = self.by_id.get_mut(&id).expect("places name known files");
        node.references = node.references.saturating_add(1);
        Ok(id)
    }

    /// Takes references away. Gives where the entry of a file waits if its name is gone and this was the last.
    pub(crate) fn forget(&mut self, id: FileId, count: u64) -> Option<Place> {
        if id == ROOT {
            return None;
        }
        let node = self.by_id.get_mut(&id)?;
        node.references = node.references.saturating_sub(count);
        if node.references > 0 {
            return None;
        }
        let node = self.by_id.remove(&id)?;
        let place = node.place?;
        self.by_place.remove(&place);
        node.unlinked.then_some(place)
    }

    pub(crate) fn become_of(&mut self, id: FileId, fate: Fate) {
        if let Some(place) = self.by_id.get(&id).and_then(|node| node.place) {
            self.by_place.remove(&place);
        }
        match fate {
            Fate::Made(place, directory) => {
                let node = Node { place: Some(place), directory, unlinked: false, references: 1 };
                self.by_id.insert(id, node);
                self.by_place.insert(place, id);
            }
            Fate::Moved(place) | Fate::Unlinked(place) => {
                if let Some(node) = self.by_id.get_mut(&id) {
                    node.place = Some(place);
                    node.unlinked |= matches!(fate, Fate::Unlinked(_));
                    self.by_place.insert(place, id);
                }
            }
            Fate::Gone => {
                if let Some(node) = self.by_id.get_mut(&id) {
                    node.place = None;
                    node.unlinked = true;
                }
            }
        }
    }
}
