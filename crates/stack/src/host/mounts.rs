//! The mount table: which sessions use which file systems. The host adds and removes entries, for the
//! administrator. Each FSDriver has a copy of its part, and gets a notice when one of its sessions has ended
//! (paper, section 4.10).
//!
//! A VFS has its own entry in the form of its configuration and its channels. The only way in which it can
//! change the entry is by ending. So it can neither see nor remove entries of others.

use crate::protocol::{FilesReply, FilesRequest};
use holdfast_components::{Asker, Patience};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How long an FSDriver may take to acknowledge that a session has ended. If it does not, it retains the
/// references.
const WAIT: Duration = Duration::from_secs(10);

/// Sessions by name, each with the name of its FSDriver.
#[derive(Default)]
pub(super) struct MountTable(Mutex<BTreeMap<String, String>>);

impl MountTable {
    /// Adds a session that uses a file system.
    pub(super) fn add(&self, session: &str, driver: &str) {
        self.0.lock().insert(session.to_owned(), driver.to_owned());
    }

    /// Removes a session that has ended. Returns, once, the FSDriver that must get a notice of it.
    pub(super) fn remove(&self, session: &str) -> Option<String> {
        self.0.lock().remove(session)
    }

    /// Whether this session is mounted.
    pub(super) fn has(&self, session: &str) -> bool {
        self.0.lock().contains_key(session)
    }
}

/// Notifies FSDrivers of ended sessions, which arrive as ⟨session, FSDriver⟩ over `ended`, until all its
/// senders are dropped.
pub(super) fn notify(
    ended: &std::sync::mpsc::Receiver<(String, String)>,
    drivers: &BTreeMap<String, Arc<Asker<FilesRequest, FilesReply>>>,
) {
    while let Ok((session, driver)) = ended.recv() {
        let Some(asker) = drivers.get(&driver) else { continue };
        if let Err(error) = asker.ask(0, &FilesRequest::Ended { session }, Patience::of(WAIT)) {
            tracing::warn!(driver, %error, "an FSDriver was not told that a session is no more");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: an entry is removed once, and no other with it.
    #[test]
    fn entries() {
        let table = MountTable::default();
        table.add("vfs-0", "fs-driver");
        table.add("vfs-1", "fs-driver-1");
        assert!(table.has("vfs-0") && table.has("vfs-1") && !table.has("vfs-7"));
        assert_eq!(table.remove("vfs-1").as_deref(), Some("fs-driver-1"));
        assert_eq!(table.remove("vfs-1"), None);
        assert_eq!(table.remove("vfs-7"), None);
        assert!(table.has("vfs-0") && !table.has("vfs-1"));
    }
}
