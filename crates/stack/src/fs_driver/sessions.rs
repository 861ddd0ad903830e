//! The FSDriver's copy of the mount table: which sessions use its file system, and the files that each of
//! them refers to.
//!
//! The paper (section 4.10) replicates the table so that each holder makes only its own changes. A session
//! takes references by looking files up, and gives up its own; only the host reports that a session has
//! ended. So a session cannot give up another's references, and one that ends leaves none behind.

use holdfast_components::Refusal;
use holdfast_fat::FileId;
use std::collections::{BTreeMap, HashMap};

/// Most files that one session may refer to at a time, so that it does not use up the numbers of all.
const FILES_MAX: usize = 1 << 17;

/// The sessions of an FSDriver, by the port over which they send requests; they cannot choose it.
#[derive(Default)]
pub(super) struct Sessions(HashMap<String, BTreeMap<FileId, u64>>);

impl Sessions {
    /// Checks that a session may refer to one more file.
    ///
    /// # Errors
    /// The session has too many.
    pub(super) fn have_room(&self, session: &str) -> Result<(), Refusal> {
        let held = self.0.get(session).map_or(0, BTreeMap::len);
        match held < FILES_MAX {
            true => Ok(()),
            false => Err(Refusal::Failed(format!("a session refers to {FILES_MAX} files already"))),
        }
    }

    /// Adds a reference of a session to a file.
    pub(super) fn refer(&mut self, session: &str, id: FileId) {
        let held = self.0.entry(session.to_owned()).or_default().entry(id).or_default();
        *held = held.saturating_add(1);
    }

    /// Gives up references of a session. Returns how many of them it had.
    pub(super) fn give_up(&mut self, session: &str, id: FileId, count: u64) -> u64 {
        let Some(files) = self.0.get_mut(session) else { return 0 };
        let Some(held) = files.get_mut(&id) else { return 0 };
        let given = count.min(*held);
        *held -= given;
        if *held == 0 {
            files.remove(&id);
        }
        given
    }

    /// Removes a session that has ended, and returns its references.
    pub(super) fn end(&mut self, session: &str) -> BTreeMap<FileId, u64> {
        self.0.remove(session).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: a session gives up its own references and no others, whatever another session has; when one
    /// ends, the others keep theirs.
    #[test]
    fn each_its_own() {
        let mut sessions = Sessions::default();
        let (file, other) = (FileId(7), FileId(8));
        sessions.refer("alice", file);
        sessions.refer("alice", file);
        sessions.refer("bob", file);
        sessions.refer("bob", other);
        assert_eq!(sessions.give_up("bob", file, u64::MAX), 1);
        assert_eq!(sessions.give_up("bob", file, 1), 0, "it has none left, and alice's are alice's");
        assert_eq!(sessions.give_up("carol", file, 1), 0);
        assert_eq!(sessions.give_up("alice", other, 1), 0);
        assert_eq!(sessions.end("bob"), BTreeMap::from([(other, 1)]));
        assert_eq!(sessions.end("bob"), BTreeMap::new());
        assert_eq!(sessions.give_up("alice", file, 5), 2);
    }

    /// Proves: one session cannot take the numbers of all files.
    #[test]
    fn bounded() {
        let mut sessions = Sessions::default();
        for number in 0..FILES_MAX as u64 {
            sessions.have_room("greedy").expect("room");
            sessions.refer("greedy", FileId(number));
        }
        assert!(sessions.have_room("greedy").is_err());
        assert!(sessions.have_room("modest").is_ok());
        sessions.give_up("greedy", FileId(3), 1);
        assert!(sessions.have_room("greedy").is_ok());
    }
}
