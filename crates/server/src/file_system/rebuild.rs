//! What a lost server is rebuilt from, and the leaves that it gives clients so that they can rebuild it one
//! day.

use super::FileSystem;
use super::ledger::Ledger;
use crate::refusal::RequestError;
use crate::resources::Resources;
use holdfast_protocol::message::{LEAVES_MAX, Response, ServerKeys};
use holdfast_protocol::rebuild::{KnownNodes, Nodes};
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;

impl FileSystem {
    /// Leaves of the log of updates from `first` on.
    pub(crate) fn leaves(&self, first: u64, count: u32) -> Result<Response, RequestError> {
        let leaves = self.current()?.some_leaves(first, u64::from(count).min(LEAVES_MAX as u64))?;
        // The reply must not contain anything that a power loss could still undo.
        self.sync()?;
        Ok(Response::Leaves(leaves))
    }

    /// The order as this server has it, with the list of server keys.
    pub(crate) fn order(&self) -> Result<(Sequencer, Signed<ServerKeys>), RequestError> {
        let ledger = self.current()?;
        Ok((ledger.sequencer().clone(), ledger.server_keys().clone()))
    }

    /// Offers all nodes of the log that this server has.
    pub(crate) fn offer_nodes(&self, known: &mut KnownNodes) -> Result<(), RequestError> {
        self.current()?.offer_nodes(known);
        Ok(())
    }
}

impl FileSystem {
    /// Replaces the order of a file system in the data directory; this is durable after the next sync.
    /// `present` is the file system that was there. The caller must not use it afterwards, but must open the
    /// data directory again.
    pub(crate) fn replace(
        resources: &Resources,
        present: Option<&FileSystem>,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
    ) -> Result<(), RequestError> {
        let present = present.map(FileSystem::current).transpose()?;
        let order = resources.embedded(sequencer.file_system());
        Ledger::replace(&*order, sequencer, server_keys, nodes, present.as_deref())
    }
}
