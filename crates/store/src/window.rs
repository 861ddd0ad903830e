//! The DECREF window (SUNDR section 6.1): for a short time after a block is first stored, the device that
//! stored it may drop it. Departures from the paper, all of which keep more data: only that device may drop
//! it; a second STORE by any device, an "I have it", or another device's block that refers to it makes the
//! block permanent; so does a restart, and so does the eviction of the oldest when very many blocks are young
//! at once.

use crate::StoreError;
use crate::record::{DroppedRecord, StoreRecord};
use crate::state::Key;
use crate::store::LogStore;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_log::{BodyTag, Position};
use std::collections::{HashMap, VecDeque};

/// Most blocks whose window is open at once.
const YOUNG_MAX: usize = 1 << 17;

/// The outcome of a DECREF.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecrefOutcome {
    /// The block is garbage.
    Dropped,
    /// The block is permanent: its window is over, or another device relies on it.
    Permanent,
    /// Another device stored it.
    NotTheStorer,
    /// There is no such block.
    Unknown,
}

/// An open window.
struct Window {
    storer: DeviceId,
    opened_ns: i64,
    /// The copy that was stored. If the index names another, there was an older one.
    copy: Position,
}

/// Blocks whose window is open.
#[derive(Default)]
pub(crate) struct OpenWindows {
    blocks: HashMap<Key, Window>,
    order: VecDeque<(i64, Key)>,
}

impl OpenWindows {
    /// Opens the window of a block.
    pub(crate) fn open(&mut self, key: Key, copy: Position, storer: DeviceId, now_ns: i64, window_ns: i64) {
        while let Some((opened_ns, oldest)) = self.order.front().copied() {
            if self.order.len() < YOUNG_MAX && opened_ns > now_ns.saturating_sub(window_ns) {
                break;
            }
            self.order.pop_front();
            if self.blocks.get(&oldest).is_some_and(|window| window.opened_ns == opened_ns) {
                self.blocks.remove(&oldest);
            }
        }
        self.blocks.insert(key, Window { storer, opened_ns: now_ns, copy });
        self.order.push_back((now_ns, key));
    }

    /// Closes the window of a block, which is permanent (or gone) from then on.
    pub(crate) fn keep(&mut self, key: &Key) {
        self.blocks.remove(key);
    }

    /// Closes the window of a block that a device other than its storer refers to.
    pub(crate) fn keep_for(&mut self, key: &Key, other: DeviceId) {
        if self.blocks.get(key).is_some_and(|window| window.storer != other) {
            self.blocks.remove(key);
        }
    }

    /// Closes the windows that a file system opened up to `until_ns`.
    pub(crate) fn keep_all(&mut self, file_system: u32, until_ns: i64) {
        self.blocks.retain(|key, window| key.file_system() != file_system || window.opened_ns > until_ns);
    }

    fn get(&self, key: &Key, now_ns: i64, window_ns: i64) -> Option<&Window> {
        self.blocks.get(key).filter(|window| now_ns.saturating_sub(window.opened_ns) < window_ns)
    }
}

impl LogStore {
    /// Drops a block that `owner` stored less than a window ago and no other device relies on. Durable with
    /// the next commit; if a crash loses that, the block merely stays.
    ///
    /// # Errors
    /// The log or the index failed.
    pub fn decref(
        &self,
        file_system: Digest,
        owner: DeviceId,
        address: Digest,
        now_ns: i64,
    ) -> Result<DecrefOutcome, StoreError> {
        let mut state = self.state();
        let Some(number) = state.number(&file_system) else { return Ok(DecrefOutcome::Unknown) };
        let key = Key::new(number, &address);
        let Some(entry) = state.get(self.index(), &key)? else { return Ok(DecrefOutcome::Unknown) };
        let Some(window) = state.young.get(&key, now_ns, self.window_ns()) else {
            return Ok(DecrefOutcome::Permanent);
        };
        if window.storer != owner {
            return Ok(DecrefOutcome::NotTheStorer);
        }
        // STORE did not look into the index: an older copy there makes this one a second STORE.
        let second = window.copy != entry.location.position;
        let pinned = state.file_systems[&file_system].pins.contains(&address, now_ns);
        if pinned || second || state.holding {
            state.young.keep(&key);
            return Ok(DecrefOutcome::Permanent);
        }
        let record = DroppedRecord {
            file_system,
            round: state.round + 1,
            last: true,
            copies: vec![(entry.location.position.to_u64(), address)],
        };
        StoreRecord::Dropped(record.clone()).append(self.log(), &[], BodyTag::of(&[]))?;
        state.apply_dropped(self.index(), &record)?;
        Ok(DecrefOutcome::Dropped)
    }

    /// Protects everything stored up to `now_ns` from DECREF (SUNDR section 6.1). Needs no record: recovery
    /// makes every block permanent.
    ///
    /// # Errors
    /// None at present; the result allows for a store that must write.
    pub fn snapshot(&self, file_system: Digest, now_ns: i64) -> Result<(), StoreError> {
        let mut state = self.state();
        if let Some(number) = state.number(&file_system) {
            state.young.keep_all(number, now_ns);
        }
        Ok(())
    }
}
