//! A view for a client. It is made while the ledger is locked, and completed with blocks from the store after
//! that.

use super::hints;
use super::ledger::Ledger;
use crate::block_store::BlockStore;
use crate::refusal::RequestError;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::message::ViewReply;
use holdfast_protocol::packed::Difference;
use std::collections::BTreeSet;

pub(super) struct PreparedView {
    reply: Box<ViewReply>,
    /// Blocks that the client will likely want.
    wanted: Vec<Digest>,
    /// Size of the log that the client has accepted.
    since: u64,
    /// Devices whose slots have not changed since then, as far as this process knows.
    unchanged: BTreeSet<DeviceId>,
}

impl PreparedView {
    /// Prepares the reply for `device`, which has accepted a log of `since` leaves.
    pub fn new(
        ledger: &Ledger,
        mut reply: Box<ViewReply>,
        device: DeviceId,
        since: u64,
    ) -> Result<PreparedView, RequestError> {
        // The proof leads to the view in the reply, which is an old one if the request was resent.
        reply.consistency = ledger.prove(since, reply.view.log)?;
        let wanted = hints::wanted(ledger, &reply.view, device, since);
        let devices = reply.view.slots.keys().copied();
        let unchanged = devices.filter(|device| ledger.changed(&reply.view, *device) < since).collect();
        Ok(PreparedView { reply, wanted, since, unchanged })
    }

    /// The reply with the whole view.
    pub fn whole(mut self, store: &dyn BlockStore, file_system: Digest) -> Box<ViewReply> {
        self.reply.blocks = hints::load(store, file_system, self.wanted);
        self.reply
    }

    /// The difference between this view and the one that the client has. (If the client has another view than
    /// the server assumes, it notices that and requests the whole view.)
    pub fn difference(mut self, store: &dyn BlockStore, file_system: Digest) -> Difference {
        self.reply.blocks = hints::load(store, file_system, self.wanted);
        Difference::of(&self.reply, self.since, |device| self.unchanged.contains(&device))
    }
}
