//! What a lost server is made of again, and what it tells clients for that day.

use super::FileSystem;
use super::ledger::Ledger;
use crate::host::Host;
use crate::refusal::Refused;
use holdfast_protocol::message::{LEAVES_MAX, Response, ServerError, ServerKeys};
use holdfast_protocol::rebuild::{KnownNodes, Nodes};
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;

impl FileSystem {
    /// Leaves of the log of updates from `first` on.
    pub(crate) fn leaves(&self, host: &Host, first: u64, count: u32) -> Result<Response, Refused> {
        let leaves = self.current(host)?.some_leaves(first, u64::from(count).min(LEAVES_MAX as u64))?;
        // Nothing is told of that a power loss could still take back.
        host.commit(self)?;
        Ok(Response::Leaves(leaves))
    }

    /// The order as it is kept here, with the list of server keys.
    pub(crate) fn order(&self, host: &Host) -> Result<(Sequencer, Signed<ServerKeys>), Refused> {
        let ledger = self.current(host)?;
        Ok((ledger.sequencer().clone(), ledger.server_keys().clone()))
    }

    /// Tells the nodes of the log that are known here.
    pub(crate) fn offer_nodes(&self, host: &Host, known: &mut KnownNodes) -> Result<(), Refused> {
        self.current(host)?.offer_nodes(known);
        Ok(())
    }
}

impl Host {
    /// Puts an order in the place of whatever there is of its file system, durably. This host is not to serve it
    /// afterwards: it is to be opened anew.
    pub(crate) fn replace_order(
        &self,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
    ) -> Result<(), Refused> {
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
