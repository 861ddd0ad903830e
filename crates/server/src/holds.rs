//! Holds: trees that members keep from the garbage collection, by name. A signed release that refers to blocks of the
//! live file system is held until its publisher lets go.

use crate::file_system::FileSystem;
use crate::refusal::RequestError;
use crate::server_core::ServerCore;
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use holdfast_protocol::message::{HoldEntry, Response, ServerError};
use holdfast_store::{Hold, HoldOutcome};

/// Makes a hold, or says what is missing.
pub(crate) fn hold(
    core: &ServerCore,
    file_system: &FileSystem,
    device: DeviceId,
    name: String,
    roots: Vec<Digest>,
) -> Result<Response, RequestError> {
    check(core, file_system, device, &name)?;
    let hold = Hold { name, device, made_ns: core.clock.wall_ns(), roots };
    let missing = match core.blocks.hold(file_system.id, hold)? {
        HoldOutcome::Held => Vec::new(),
        HoldOutcome::Missing(missing) => missing,
    };
    core.commit_all()?;
    Ok(Response::Held(missing))
}

/// Ends a hold of a member.
pub(crate) fn unhold(
    core: &ServerCore,
    file_system: &FileSystem,
    device: DeviceId,
    name: &str,
) -> Result<Response, RequestError> {
    check(core, file_system, device, name)?;
    core.blocks.unhold(file_system.id, name)?;
    core.commit_all()?;
    Ok(Response::Done)
}

/// All holds of a file system.
pub(crate) fn list(core: &ServerCore, file_system: Digest) -> Result<Vec<HoldEntry>, RequestError> {
    let hold_entry = |hold: Hold| HoldEntry {
        name: hold.name,
        device: hold.device,
        made_ns: hold.made_ns,
        roots: hold.roots,
    };
    Ok(core.blocks.holds(file_system)?.into_iter().map(hold_entry).collect())
}

/// A hold is its user's, whatever device made it, and the superuser's.
fn check(
    core: &ServerCore,
    file_system: &FileSystem,
    device: DeviceId,
    name: &str,
) -> Result<(), RequestError> {
    let holds = core.blocks.holds(file_system.id)?;
    let Some(known) = holds.iter().find(|known| known.name == name) else { return Ok(()) };
    match file_system.acts_for(device, known.device) {
        true => Ok(()),
        false => {
            let why = format!("the hold {name} is of device {}, of another user", known.device.0);
            Err(ServerError::NotAllowed(why).into())
        }
    }
}
