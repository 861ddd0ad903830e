//! Requests about past states.

use super::FileSystem;
use super::checks::{Author, verified};
use crate::refusal::{RequestError, refuse};
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::history::{
    POINTS_PER_ANSWER_MAX, PastReply, SNAPSHOTS_PER_USER_MAX, Snapshot, SnapshotEnd, name_offence,
};
use holdfast_protocol::message::{Response, ServerError};
use holdfast_protocol::signed::{Signable, Signed};
use std::collections::HashSet;

impl FileSystem {
    /// Addresses of the tables that past states refer to; these cannot be dereferenced.
    pub(crate) fn past_tables(&self) -> Result<HashSet<Digest>, RequestError> {
        Ok(self.current()?.archive().roots().collect())
    }

    /// The past states that can be read. With `note`, the present state is first noted as one of them; while
    /// an operation is pending, that fails with `Busy`.
    pub(crate) fn history(&self, after: u64, note: bool) -> Result<Response, RequestError> {
        let answer = {
            let mut ledger = self.current()?;
            if note && ledger.note_state().is_none() {
                return Err(ServerError::Busy.into());
            }
            let (points, more) = ledger.archive().points(after, POINTS_PER_ANSWER_MAX);
            Response::History { points, more, named: ledger.archive().snapshots().cloned().collect() }
        };
        // The answer must not contain anything that a power loss could still undo.
        self.sync()?;
        Ok(answer)
    }

    /// A past state with proofs that it precedes the log of `known` operations.
    pub(crate) fn past(&self, log_size: u64, known: u64) -> Result<Response, RequestError> {
        let answer = {
            let ledger = self.current()?;
            let Some((view, newest)) = ledger.archive().state(log_size) else {
                return Ok(Response::Past(None));
            };
            let (tree, size) = (ledger.tree(), ledger.sequencer().log_size());
            if log_size > size || known > size {
                return refuse(format!("the log has {size} operations here, and {known} were asked about"));
            }
            let (then, head) = (tree.head_at(log_size)?, tree.head_at(known)?);
            let slots = view.slots.values().map(|slot| &slot.value.forecast);
            let forecasts = slots.chain(view.pending.iter().map(|entry| &entry.forecast));
            let inclusion = forecasts.map(|forecast| {
                let found = tree.include(forecast.log.size, log_size, then)?;
                Ok::<_, RequestError>(found.map(|(_, proof)| proof).unwrap_or_default())
            });
            PastReply {
                inclusion: inclusion.collect::<Result<_, _>>()?,
                consistency: tree.prove(log_size, head)?.unwrap_or_default(),
                peaks: tree.peaks_at(log_size)?,
                newest,
                view,
            }
        };
        self.sync()?;
        Ok(Response::Past(Some(Box::new(answer))))
    }

    /// Names a past state. It stays readable until the name is removed.
    pub(crate) fn name_snapshot(
        &self,
        author: Author,
        snapshot: Signed<Snapshot>,
    ) -> Result<Response, RequestError> {
        let device = author.device;
        let snapshot = verified(snapshot, author)?;
        let value = snapshot.value();
        if value.device != device || value.file_system != self.id {
            return refuse("the name is in another device's name, or of another file system");
        }
        if let Some(offence) = name_offence(&value.name) {
            return refuse(offence);
        }
        let authors = {
            let ledger = self.current()?;
            if let Some(known) = ledger.archive().by_name(&value.name) {
                return match known == snapshot.signed() {
                    true => Ok(Response::Done),
                    false => refuse(format!("there is a snapshot named {} already", value.name)),
                };
            }
            if !ledger.archive().has_room() {
                return refuse("no more states can have names here; remove one first");
            }
            ledger.archive().snapshots().map(|named| named.value.device).collect::<Vec<_>>()
        };
        let user = |device| self.user_of(device);
        let of_user = authors.into_iter().filter(|author| user(*author) == user(device)).count();
        if of_user >= SNAPSHOTS_PER_USER_MAX {
            return refuse(format!(
                "{SNAPSHOTS_PER_USER_MAX} snapshots are named by this user already; remove one first"
            ));
        }
        // From here on, no device can dereference a block of the snapshot that it stored, and the durable log
        // contains what the history file will refer to.
        self.resources.blocks.snapshot(self.id, self.resources.clock.wall_ns())?;
        self.sync()?;
        let mut ledger = self.current()?;
        if ledger.archive().by_name(&value.name).is_some_and(|known| known != snapshot.signed()) {
            return refuse(format!("there is a snapshot named {} already", value.name));
        }
        match ledger.rename_states(|archive| archive.name(snapshot.signed().clone()))? {
            true => Ok(Response::Done),
            false => refuse("the state to be named is not kept, or is another one"),
        }
    }

    /// Removes the name of a snapshot.
    pub(crate) fn end_snapshot(
        &self,
        author: Author,
        end: Signed<SnapshotEnd>,
    ) -> Result<Response, RequestError> {
        let device = author.device;
        let end = verified(end, author)?;
        if end.value().device != device || end.value().file_system != self.id {
            return refuse("it is in another device's name, or of another file system");
        }
        let ended = |snapshot: &&Signed<Snapshot>| snapshot.value.digest() == end.value().snapshot;
        let known = self.current()?.archive().snapshots().find(ended).cloned();
        let Some(known) = known else { return Ok(Response::Done) };
        if !self.acts_for(device, known.value.device) {
            let other = known.value.device.0;
            let why = format!("the snapshot {} is of device {other}, of another user", known.value.name);
            return Err(ServerError::NotAllowed(why).into());
        }
        self.current()?.rename_states(|archive| archive.end(end.signed().clone()))?;
        Ok(Response::Done)
    }

    fn user_of(&self, device: DeviceId) -> Option<holdfast_content::UserId> {
        let ledger = self.ledger.lock();
        ledger.sequencer().membership().devices.get(&device).map(|device| device.user)
    }
}
