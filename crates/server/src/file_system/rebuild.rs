//! What a lost server is made of again, and what it tells clients for that day.

use super::FileSystem;
use super::ledger::Ledger;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use holdfast_protocol::message::{LEAVES_MAX, Response, ServerError, ServerKeys};
use holdfast_protocol::rebuild::{KnownNodes, Nodes};
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;

impl FileSystem {
    /// Leaves of the log of updates from `first` on.
    pub(crate) fn leaves(&self, core: &ServerCore, first: u64, count: u32) -> Result<Response, RequestError> {
        let leaves = self.current(core)?.some_leaves(first, u64::from(count).min(LEAVES_MAX as u64))?;
        // Nothing leaves the server that a power loss could still undo.
        core.commit(self)?;
        Ok(Response::Leaves(leaves))
    }

    /// The order as this server has it, with the list of server keys.
    pub(crate) fn order(&self, core: &ServerCore) -> Result<(Sequencer, Signed<ServerKeys>), RequestError> {
        let ledger = self.current(core)?;
        Ok((ledger.sequencer().clone(), ledger.server_keys().clone()))
    }

    /// Tells the nodes of the log that are known here.
    pub(crate) fn offer_nodes(&self, core: &ServerCore, known: &mut KnownNodes) -> Result<(), RequestError> {
        self.current(core)?.offer_nodes(known);
        Ok(())
    }
}

impl ServerCore {
    /// Replaces the order of a file system, durably. The caller must not serve it from this `ServerCore` afterwards,
    /// but open the data directory again.
    pub(crate) fn replace_order(
        &self,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
    ) -> Result<(), RequestError> {
        let id = sequencer.file_system();
        let present = self.file_systems().into_iter().find(|one| one.id == id);
        let present = match &present {
            Some(present) => Some(present.current(self)?),
            None => None,
        };
        let order = self.embedded(id);
        Ledger::replace(&*order, sequencer, server_keys, nodes, present.as_deref())?;
        self.commit_all()?;
        // Before the first start on it, as after a crash: what was locked and leased is not known here.
        let noted = self.locks_note.set().and_then(|()| self.leases_note.note_unknown(self, id));
        noted.map_err(|error| ServerError::Storage(error.to_string()).into())
    }
}
