//! The gate of a mount: rules for programs as files ask for them, answered by the door of `callers`.

use crate::mounts::settings::MountSettings;
use holdfast_callers::door::{Admission, Answer, Asked, Door, Settings};
use holdfast_callers::manifest;
use holdfast_callers::rules::Rights;
use holdfast_client::FsError;
use holdfast_client::files::{Admitted, Entering, Gate, Ino};
use std::sync::Arc;

/// Makes the door of a mount. The helper that identifies programs must run as root.
pub fn door(settings: &MountSettings) -> Arc<Door> {
    Door::new(Settings {
        socket: settings.callers.clone().unwrap_or_else(|| holdfast_callers::SOCKET.into()),
        helper_uid: 0,
        mountpoint: settings.directory.clone(),
        manifests: manifest::places(),
    })
}

/// The door as a gate.
pub struct DoorGate(pub Arc<Door>);

struct Given(Arc<Admission>);

impl Admitted for Given {
    fn is_given(&self) -> bool {
        self.0.is_given()
    }
}

fn asked<'a>(entering: &'a Entering<'_>) -> Asked<'a> {
    let writes = entering.flags.write || entering.flags.truncate || entering.flags.append;
    Asked {
        inode: entering.ino.0,
        thread: entering.caller.thread,
        wanted: if writes { Rights::ReadWrite } else { Rights::Read },
        rules: entering.rules,
        path: entering.path.clone(),
    }
}

impl Gate for DoorGate {
    fn enter(&self, entering: &Entering<'_>) -> Result<(), FsError> {
        match self.0.open(&asked(entering)) {
            Answer::GoesOn => Ok(()),
            Answer::Again => Err(FsError::Stale),
            Answer::Refused(why) => Err(FsError::Access(why)),
        }
    }

    fn before_creating(&self, directory: Ino) -> Result<(), FsError> {
        self.0.before_creating(directory.0).map_err(FsError::Access)
    }

    fn created(&self, entering: &Entering<'_>) -> Arc<dyn Admitted> {
        Arc::new(Given(self.0.created(&asked(entering))))
    }

    fn refused(&self, entering: &Entering<'_>, reason: &str) {
        self.0.refused(&asked(entering), reason);
    }

    fn is_blind(&self, thread: u32) -> bool {
        self.0.is_helper(thread)
    }
}
