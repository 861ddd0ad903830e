//! The changes of a local edit, as they are journaled, and the net effect of several edits.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Entry, Handle, Inode};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Content of more bytes than this goes to the server while it is written.
pub(super) const SMALL_MAX: usize = 1 << 20;

/// An inode as the journal stores it: its canonical encoding, with the block addresses that it numbers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalInode(pub Arc<Inode>);

impl BorshSerialize for JournalInode {
    fn serialize<W: Write>(&self, writer: &mut W) -> io::Result<()> {
        let encoded = self.0.encode().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        encoded.serialize(writer)
    }
}

impl BorshDeserialize for JournalInode {
    fn deserialize_reader<R: Read>(reader: &mut R) -> io::Result<JournalInode> {
        let (bytes, references) = <(Vec<u8>, Vec<holdfast_crypto::Digest>)>::deserialize_reader(reader)?;
        let inode = Inode::decode(&bytes, &references)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(JournalInode(Arc::new(inode)))
    }
}

/// A change of an inode.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct InodeChange {
    /// The file whose inode changes.
    pub handle: Handle,
    /// Path of the file, as this mount has it.
    pub path: Vec<u8>,
    /// The inode before the change; `None` if there was none.
    pub seen: Option<JournalInode>,
    /// The inode after the change; `None` if it was removed.
    pub new: Option<JournalInode>,
}

/// A change of a name.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct EntryChange {
    /// The directory.
    pub directory: Handle,
    /// Path of the directory, as this mount has it.
    pub path: Vec<u8>,
    /// The name.
    pub name: Vec<u8>,
    /// The file that the name led to before the change.
    pub seen: Option<Entry>,
    /// The file that the name leads to after the change.
    pub new: Option<Entry>,
    /// The directory's new time of modification, nanoseconds since 1970.
    pub time_ns: i64,
}

/// One local edit.
#[derive(Clone, PartialEq, Eq, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct Record {
    /// Number of the edit, counted from 1.
    pub number: u64,
    /// Time of the edit, nanoseconds since 1970.
    pub at_ns: i64,
    /// Changes of inodes.
    pub inodes: Vec<InodeChange>,
    /// Changes of names.
    pub entries: Vec<EntryChange>,
    /// Numbers of new files that this edit used.
    pub taken: Vec<Handle>,
}

impl Record {
    /// About how many bytes of data the edit brings. For a large file it is not recorded how much of it was
    /// written.
    pub fn bytes(&self) -> u64 {
        let bytes = self.inodes.iter().filter_map(|change| {
            let new = &change.new.as_ref()?.0;
            let is_new = change.seen.as_ref().is_none_or(|seen| seen.0.content != new.content);
            is_new.then(|| new.size.min(SMALL_MAX as u64))
        });
        bytes.sum()
    }

    /// Number of inodes and names that the edit changes.
    pub fn changes(&self) -> usize {
        self.inodes.len() + self.entries.len()
    }
}

/// The combined effect of consecutive edits: the state before the first and the state after the last.
#[derive(Clone, Debug, Default)]
pub struct NetChange {
    /// Number of the last edit included.
    pub last: u64,
    /// Changes of inodes, by file.
    pub inodes: BTreeMap<Handle, InodeChange>,
    /// Changes of names, by directory and name.
    pub entries: BTreeMap<(Handle, Vec<u8>), EntryChange>,
}

impl NetChange {
    /// The net effect of `records`.
    pub fn of<'a>(records: impl IntoIterator<Item = &'a Record>) -> NetChange {
        let mut net = NetChange::default();
        for record in records {
            net.add(record);
        }
        net.inodes.retain(|_, change| change.seen.is_some() || change.new.is_some());
        net.entries.retain(|_, change| change.seen != change.new);
        net
    }

    fn add(&mut self, record: &Record) {
        self.last = record.number;
        for change in &record.inodes {
            // If a directory's time was set after changes of its names, the set time stays.
            if let Some(new) = &change.new {
                let names = (change.handle, Vec::new())..;
                let within = self
                    .entries
                    .range_mut(names)
                    .take_while(|((directory, _), _)| *directory == change.handle);
                within.for_each(|(_, entry)| entry.time_ns = entry.time_ns.min(new.0.modified_ns));
            }
            match self.inodes.get_mut(&change.handle) {
                Some(before) => {
                    before.new = change.new.clone();
                    if !change.path.is_empty() {
                        before.path = change.path.clone();
                    }
                }
                None => drop(self.inodes.insert(change.handle, change.clone())),
            }
        }
        for change in &record.entries {
            let key = (change.directory, change.name.clone());
            match self.entries.get_mut(&key) {
                Some(before) => {
                    before.new = change.new;
                    before.time_ns = change.time_ns;
                    before.path = change.path.clone();
                }
                None => drop(self.entries.insert(key, change.clone())),
            }
        }
    }
}
