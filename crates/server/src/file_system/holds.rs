//! Holds: named trees that members protect from garbage collection. For example, a signed release that refers
//! to blocks of the live file system is held until its publisher removes the hold.

use super::FileSystem;
use crate::refusal::RequestError;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::message::{HoldEntry, Response, ServerError};
use holdfast_store::{Hold, HoldOutcome};

impl FileSystem {
    /// Makes a hold, or replies with the missing blocks.
    pub(crate) fn hold(
        &self,
        device: DeviceId,
        name: String,
        roots: Vec<Digest>,
    ) -> Result<Response, RequestError> {
        self.check_hold(device, &name)?;
        let hold = Hold { name, device, made_ns: self.resources.clock.wall_ns(), roots };
        let missing = match self.blocks().hold(self.id, hold)? {
            HoldOutcome::Held => Vec::new(),
            HoldOutcome::Missing(missing) => missing,
        };
        self.resources.sync_stores()?;
        Ok(Response::Held(missing))
    }

    /// Ends a hold of a member.
    pub(crate) fn unhold(&self, device: DeviceId, name: &str) -> Result<Response, RequestError> {
        self.check_hold(device, name)?;
        self.blocks().unhold(self.id, name)?;
        self.resources.sync_stores()?;
        Ok(Response::Done)
    }

    /// All holds.
    pub(crate) fn holds(&self) -> Result<Vec<HoldEntry>, RequestError> {
        let hold_entry = |hold: Hold| HoldEntry {
            name: hold.name,
            device: hold.device,
            made_ns: hold.made_ns,
            roots: hold.roots,
        };
        Ok(self.blocks().holds(self.id)?.into_iter().map(hold_entry).collect())
    }

    /// Checks that a device may replace or remove a hold of this name: only devices of the hold's user and of
    /// the superuser may.
    fn check_hold(&self, device: DeviceId, name: &str) -> Result<(), RequestError> {
        let holds = self.blocks().holds(self.id)?;
        let Some(known) = holds.iter().find(|known| known.name == name) else { return Ok(()) };
        match self.acts_for(device, known.device) {
            true => Ok(()),
            false => {
                let why = format!("the hold {name} is of device {}, of another user", known.device.0);
                Err(ServerError::NotAllowed(why).into())
            }
        }
    }
}
