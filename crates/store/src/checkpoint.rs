//! Checkpoints of the index, the thread that makes them, and the replay of what follows the last one.

use crate::StoreError;
use crate::record::{Location, StoreRecord};
use crate::state::{IndexBatch, State};
use crate::store::Shared;
use holdfast_log::{LogError, Position, ScanDepth, ScanItem, SyncSite};
use std::sync::Arc;
use std::time::Duration;

const CHECKPOINT: SyncSite = SyncSite("store: log before index checkpoint");
/// Bytes of log after which a checkpoint is due, however few entries they hold.
const BYTES_BEHIND_MAX: u64 = 512 << 20;
/// How long a STORE waits for the index before it checks again.
const ROOM_WAIT: Duration = Duration::from_secs(1);

impl Shared {
    /// Folds in the log from `applied` on and returns how many records that took.
    pub(crate) fn replay(&self, applied: Position) -> Result<u64, StoreError> {
        let mut scan = self.log.scan(applied, ScanDepth::Heads)?;
        let (mut changes, mut replayed) = (0, 0);
        while let Some(found) = scan.next() {
            replayed += 1;
            let lost = match found {
                Ok(ScanItem::Record(head)) => {
                    let record = StoreRecord::decode(&head)?;
                    let mut state = self.state.lock();
                    state.apply(&self.index, &record, Location::of(&head))?;
                    changes += 1;
                    None
                }
                Ok(ScanItem::Damaged(damage)) => match &damage.record {
                    // A good head is enough here: damage in the body shows when the block is read.
                    Some(head) => {
                        let record = StoreRecord::decode(head)?;
                        self.state.lock().apply(&self.index, &record, Location::of(head))?;
                        None
                    }
                    None => Some((damage.position, LogError::from(damage).to_string())),
                },
                Err(error @ (LogError::NewerFormat { .. } | LogError::Away { .. })) => {
                    return Err(error.into());
                }
                Err(error) => Some((scan.position(), error.to_string())),
            };
            if let Some((position, why)) = lost {
                tracing::error!(%position, why, "a record cannot be read");
                self.state.lock().note_lost(position, why);
            }
            if changes >= self.config.recent_entries_max && self.state.lock().may_checkpoint() {
                self.flush(Some(scan.position()))?;
                changes = 0;
            }
        }
        self.state.lock().end_replay();
        Ok(replayed)
    }

    /// Writes a checkpoint if enough has changed, for a long task that holds `checkpointing`.
    pub(crate) fn relieve_held(&self) -> Result<(), StoreError> {
        let full = self.state.lock().blocks.len() >= self.config.recent_entries_max;
        if full { self.checkpoint_held() } else { Ok(()) }
    }

    /// Back-pressure: if changes come faster than the index takes them, storing waits; if the index takes
    /// none, storing stops before memory runs out.
    pub(crate) fn wait_for_room(&self) -> Result<(), StoreError> {
        let limit = self.config.recent_entries_max;
        let mut state = self.state.lock();
        while state.blocks.len() >= 2 * limit {
            if state.frozen.is_none() || self.flushed.wait_for(&mut state, ROOM_WAIT).timed_out() {
                self.want_checkpoint();
                if state.blocks.len() < 4 * limit {
                    break;
                }
                if state.frozen.is_some() {
                    return Err(StoreError::Index("it takes no more entries; is the disk full?".into()));
                }
                self.flushed.wait_for(&mut state, ROOM_WAIT);
            }
        }
        Ok(())
    }

    /// Asks for a checkpoint when much has changed, or when a crash would cost much to replay.
    pub(crate) fn note_growth(&self, state: &State, at: Position) {
        let segments = u64::from(at.segment.saturating_sub(state.folded.segment));
        let behind = segments * u64::from(self.config.segment_bytes);
        if state.blocks.len() >= self.config.recent_entries_max || behind >= BYTES_BEHIND_MAX {
            self.want_checkpoint();
        }
    }

    pub(crate) fn want_checkpoint(&self) {
        self.wanted.lock().checkpoint = true;
        self.wake.notify_one();
    }

    pub(crate) fn checkpoint(&self) -> Result<(), StoreError> {
        let _checkpointing = self.checkpointing.lock();
        self.checkpoint_held()
    }

    /// A checkpoint by a caller that holds `checkpointing`.
    pub(crate) fn checkpoint_held(&self) -> Result<(), StoreError> {
        if self.state.lock().frozen.is_some() {
            // An earlier attempt failed half-way; its handle may be unusable.
            self.index.reopen()?;
            self.write_frozen()?;
        }
        self.flush(None)
    }

    /// Freezes the changes and writes them to the index. They cover the log up to `replayed`, or else up to its end,
    /// which does not move while the state is locked.
    fn flush(&self, replayed: Option<Position>) -> Result<(), StoreError> {
        {
            let mut state = self.state.lock();
            let applied = replayed.unwrap_or_else(|| self.log.end());
            state.folded = applied;
            state.charges.frozen = std::mem::take(&mut state.charges.recent);
            let frozen = IndexBatch {
                image: state.image(applied),
                blocks: std::mem::take(&mut state.blocks),
                signed: std::mem::take(&mut state.signed),
                duplicates: std::mem::take(&mut state.duplicates),
            };
            state.frozen = Some(Arc::new(frozen));
        }
        // The index must never know of records that a crash can take back.
        self.log.sync_at(CHECKPOINT)?;
        self.write_frozen()
    }

    fn write_frozen(&self) -> Result<(), StoreError> {
        let frozen = self.state.lock().frozen.clone();
        if let Some(frozen) = frozen {
            let charged = self.index.write(&frozen, &mut |copies| {
                self.log_dropped(&mut self.state.lock(), copies)?;
                Ok(self.log.sync_at(CHECKPOINT)?)
            })?;
            let mut state = self.state.lock();
            state.frozen = None;
            state.charges.settle(charged);
            drop(state);
            self.flushed.notify_all();
        }
        Ok(())
    }

    pub(crate) fn work(&self) {
        loop {
            {
                let mut wanted = self.wanted.lock();
                while !wanted.checkpoint && !wanted.stop {
                    self.wake.wait(&mut wanted);
                }
                if wanted.stop {
                    return;
                }
                wanted.checkpoint = false;
            }
            if let Err(error) = self.checkpoint() {
                tracing::warn!(%error, "the index checkpoint failed and will be tried again");
            }
        }
    }
}
