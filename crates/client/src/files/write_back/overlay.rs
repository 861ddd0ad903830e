//! The overlay: local changes that are not at the server yet, indexed by what they change.

use super::record::Record;
use holdfast_content::{Entry, Handle, Inode};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A changed value, and the number of the last local edit that changed it.
pub struct LocalChange<T> {
    pub value: T,
    pub record: u64,
}

/// The names of a directory that were changed here.
#[derive(Default)]
pub struct LocalNames {
    pub entries: BTreeMap<Vec<u8>, LocalChange<Option<Entry>>>,
    /// Directory time set by the last change of a name.
    pub latest: Option<LocalChange<i64>>,
}

/// All changes that are not at the server yet.
#[derive(Default)]
pub struct Overlay {
    pub inodes: HashMap<Handle, LocalChange<Option<Arc<Inode>>>>,
    pub names: HashMap<Handle, LocalNames>,
}

impl Overlay {
    /// Adds an edit on top of the others.
    pub fn lay(&mut self, record: &Record) {
        let number = record.number;
        for change in &record.inodes {
            let value = change.new.as_ref().map(|kept| kept.0.clone());
            self.inodes.insert(change.handle, LocalChange { value, record: number });
        }
        for change in &record.entries {
            let names = self.names.entry(change.directory).or_default();
            names.latest = Some(LocalChange { value: change.time_ns, record: number });
            names.entries.insert(change.name.clone(), LocalChange { value: change.new, record: number });
        }
    }

    /// Whether there are no changes.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.names.is_empty()
    }

    /// Removes an edit that is at the server. What no later edit has changed is read from the base view
    /// again.
    pub fn lift(&mut self, record: &Record) {
        let number = record.number;
        for change in &record.inodes {
            if self.inodes.get(&change.handle).is_some_and(|changed| changed.record == number) {
                self.inodes.remove(&change.handle);
            }
        }
        for change in &record.entries {
            let Some(names) = self.names.get_mut(&change.directory) else { continue };
            if names.entries.get(&change.name).is_some_and(|changed| changed.record == number) {
                names.entries.remove(&change.name);
            }
            if names.entries.is_empty() {
                self.names.remove(&change.directory);
            }
        }
    }

    /// Whether an edit after `record` has changed what a plan read.
    pub fn changed_since(&self, read: &ReadKey, record: u64) -> bool {
        match read {
            ReadKey::Inode(handle) => self.inodes.get(handle).is_some_and(|changed| changed.record > record),
            ReadKey::Entry(directory, name) => {
                let names = self.names.get(directory).and_then(|names| names.entries.get(name));
                names.is_some_and(|changed| changed.record > record)
            }
            ReadKey::Names(directory) => self
                .names
                .get(directory)
                .is_some_and(|names| names.entries.values().any(|changed| changed.record > record)),
        }
    }
}

/// Something that a plan has read.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReadKey {
    Inode(Handle),
    Entry(Handle, Vec<u8>),
    Names(Handle),
}
