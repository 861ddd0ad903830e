//! Adapts a mount's guard to the inode layer, which calls it for each open of a file with rules for programs.

use crate::mounts::settings::MountSettings;
use holdfast_client::FsError;
use holdfast_client::files::{Ino, OpenAdmission, OpenAttempt, OpenDecision, ProgramGuard};
use holdfast_program_identity::guard::{Admission, Decision, Guard, OpenRequest, Settings};
use holdfast_program_identity::manifest;
use holdfast_program_identity::rules::Rights;
use std::sync::Arc;

/// Makes the guard of a mount. The helper that identifies programs must run as root.
pub fn new(settings: &MountSettings) -> Arc<Guard> {
    Guard::new(Settings {
        socket: settings.callers.clone().unwrap_or_else(|| holdfast_program_identity::SOCKET.into()),
        helper_uid: 0,
        mountpoint: settings.directory.clone(),
        manifests: manifest::directories(),
    })
}

/// The guard, as the inode layer calls it.
pub struct MountGuard(pub Arc<Guard>);

struct NewFileAdmission(Arc<Admission>);

impl OpenAdmission for NewFileAdmission {
    fn is_given(&self) -> bool {
        self.0.is_given()
    }
}

fn open_request<'a>(entering: &'a OpenAttempt<'_>) -> OpenRequest<'a> {
    let writes = entering.flags.write || entering.flags.truncate || entering.flags.append;
    OpenRequest {
        inode: entering.ino.0,
        thread: entering.caller.thread,
        wanted: if writes { Rights::ReadWrite } else { Rights::Read },
        rules: entering.rules,
        path: entering.path.clone(),
    }
}

impl ProgramGuard for MountGuard {
    fn enter(&self, entering: &OpenAttempt<'_>) -> OpenDecision {
        match self.0.open(&open_request(entering)) {
            Decision::Admitted => OpenDecision::Admitted,
            Decision::Retry => OpenDecision::Again,
            Decision::Refused(why) => OpenDecision::Refused(why),
        }
    }

    fn before_creating(&self, directory: Ino) -> Result<(), FsError> {
        self.0.before_creating(directory.0).map_err(|error| FsError::Access(error.to_string()))
    }

    fn created(&self, entering: &OpenAttempt<'_>) -> Arc<dyn OpenAdmission> {
        Arc::new(NewFileAdmission(self.0.created(&open_request(entering))))
    }

    fn refused(&self, entering: &OpenAttempt<'_>, reason: &str) {
        self.0.refused(&open_request(entering), reason);
    }

    fn is_blind(&self, thread: u32) -> bool {
        self.0.is_helper(thread)
    }
}
