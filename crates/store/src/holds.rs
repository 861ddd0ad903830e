//! Holds: trees that are kept under a name at a member's request until the hold is ended, whatever happens to
//! the live file system. A signed release that refers to blocks of a live file system has a hold.
//!
//! Invariant: a granted hold is complete. It is granted only if everything that its roots reach is there,
//! while no collection runs and no device can drop its blocks. From then on its roots are roots of every
//! collection.

use crate::StoreError;
use crate::mark::Marks;
use crate::record::{HoldsRecord, StoreRecord};
use crate::store::LogStore;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::BodyTag;
use std::collections::HashSet;
use std::time::Duration;

/// Most holds of one file system.
pub const HOLDS_MAX: usize = 1024;
/// Most roots of one hold.
pub const HOLD_ROOTS_MAX: usize = 16;
/// Longest name of a hold, in bytes.
pub const HOLD_NAME_BYTES_MAX: usize = 200;
/// Most missing blocks reported at once.
const MISSING_MAX: usize = 1024;
/// How long to wait for a running collection.
const COLLECTION_WAIT: Duration = Duration::from_secs(20);

/// A hold: a tree that is kept until it is released.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Hold {
    /// The hold's name, unique in its file system.
    pub name: String,
    /// The device that requested it.
    pub device: DeviceId,
    /// When the hold was granted, in nanoseconds since 1970.
    pub made_ns: i64,
    /// The roots of the tree.
    pub roots: Vec<Digest>,
}

/// The outcome of a request for a hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HoldOutcome {
    /// The hold is in force, durably with the next commit.
    Held,
    /// The hold is refused: these blocks are missing, and perhaps others.
    Missing(Vec<Digest>),
}

impl Hold {
    fn check(&self) -> Result<(), StoreError> {
        let refused = |why: String| Err(StoreError::Refused(why));
        if self.name.is_empty() || self.name.len() > HOLD_NAME_BYTES_MAX {
            return refused(format!("the name of a hold has 1 to {HOLD_NAME_BYTES_MAX} bytes"));
        }
        if !self.name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return refused("the name of a hold has letters, digits and signs only".into());
        }
        if self.roots.is_empty() || self.roots.len() > HOLD_ROOTS_MAX {
            return refused(format!("a hold has 1 to {HOLD_ROOTS_MAX} roots"));
        }
        Ok(())
    }
}

impl LogStore {
    /// Keeps everything that `hold.roots` reach until [`LogStore::unhold`]. Replaces a hold of the same name.
    ///
    /// # Errors
    /// [`StoreError::Refused`]: the hold breaks a rule, or there are 1,024 others. [`StoreError::Busy`]: a collection
    /// runs. A read error; the log failed.
    pub fn hold(&self, file_system: Digest, hold: Hold) -> Result<HoldOutcome, StoreError> {
        hold.check()?;
        let shared = self.shared();
        // A collection holds this from its mark to its drop.
        let Some(_checkpointing) = shared.checkpointing.try_lock_for(COLLECTION_WAIT) else {
            return Err(StoreError::Busy);
        };
        let Some(number) = self.state().number(&file_system) else {
            return Ok(HoldOutcome::Missing(hold.roots));
        };
        self.state().holding = true;
        let mut marks = Marks::new(shared, file_system, number);
        let mut absent = HashSet::new();
        let walked = marks.walk(hold.roots.clone(), &mut absent, &mut |_| {});
        let mut state = self.state();
        state.holding = false;
        walked?;
        if !absent.is_empty() {
            return Ok(HoldOutcome::Missing(absent.into_iter().take(MISSING_MAX).collect()));
        }
        let mut holds = state.holds.get(&file_system).cloned().unwrap_or_default();
        match holds.binary_search_by(|known| known.name.cmp(&hold.name)) {
            Ok(at) => holds[at] = hold,
            Err(_) if holds.len() >= HOLDS_MAX => {
                return Err(StoreError::Refused(format!("there are {HOLDS_MAX} holds already")));
            }
            Err(at) => holds.insert(at, hold),
        }
        // From here on the blocks count as relied on: the devices that stored them cannot drop them.
        state.young.keep_all(number, i64::MAX);
        let record = HoldsRecord { file_system, holds };
        StoreRecord::Holds(record.clone()).append(self.log(), &[], BodyTag::of(&[]))?;
        state.apply_holds(&record);
        Ok(HoldOutcome::Held)
    }

    /// Ends a hold. Whether there was one.
    ///
    /// # Errors
    /// The log failed.
    pub fn unhold(&self, file_system: Digest, name: &str) -> Result<bool, StoreError> {
        let mut state = self.state();
        let mut holds = state.holds.get(&file_system).cloned().unwrap_or_default();
        let Ok(at) = holds.binary_search_by(|known| known.name.as_str().cmp(name)) else { return Ok(false) };
        holds.remove(at);
        let record = HoldsRecord { file_system, holds };
        StoreRecord::Holds(record.clone()).append(self.log(), &[], BodyTag::of(&[]))?;
        state.apply_holds(&record);
        Ok(true)
    }

    /// The holds of a file system, in order of name.
    pub fn holds(&self, file_system: &Digest) -> Vec<Hold> {
        self.state().holds.get(file_system).cloned().unwrap_or_default()
    }
}
