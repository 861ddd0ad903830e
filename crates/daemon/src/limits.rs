//! What the system lets one process have.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Asks for as many open files as the administrator allows: the usual soft limit is for programs that use
/// select(2), and every connection of a server and every unsaved file of a mount needs one.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit on open files stays");
        }
    }
}
