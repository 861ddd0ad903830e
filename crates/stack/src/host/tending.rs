//! What the host does besides serving requests: it tells sessions to make their kernels drop cached data, and
//! checks whether processes that use sessions for programs are still alive.

use super::roles::{session_name, to_session};
use super::service::Service;
use crate::StackError;
use crate::protocol::{VfsReply, VfsRequest};
use holdfast_components::{Asker, Patience, Ports};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// How often to check whether clients have ended.
const TEND: Duration = Duration::from_millis(200);
/// How long a session may take to make its kernel drop cached data.
const FORGET_WAIT: Duration = Duration::from_secs(2);

/// Starts a thread that notifies sessions to make kernels drop cached data, and watches clients of sessions
/// for programs. It ends with the service.
pub(super) fn tend(
    ports: &Arc<Ports>,
    sessions: usize,
    service: &Arc<Service>,
    notices: Receiver<()>,
) -> Result<(), StackError> {
    let mut askers: Vec<Asker<VfsRequest, VfsReply>> = Vec::new();
    for number in 0..sessions {
        askers.push(ports.asker(&to_session(&session_name(number)))?);
    }
    let service = Arc::downgrade(service);
    let run = move || {
        loop {
            match notices.recv_timeout(TEND) {
                Ok(()) => {
                    for asker in &askers {
                        // A session that does not reply delays the others for this long; it alone is affected
                        // by what its kernel still caches.
                        let _ = asker.ask(0, &VfsRequest::Forget, Patience::of(FORGET_WAIT));
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let Some(service) = service.upgrade() else { return };
            if service.aliases.tend() {
                service.lost();
            }
        }
    };
    let spawned = std::thread::Builder::new().name("tending".to_owned()).spawn(run);
    spawned.map(drop).map_err(|error| StackError::Component(error.to_string()))
}
