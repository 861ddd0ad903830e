//! Limits that the system sets on a process.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to the administrator's maximum. The usual soft limit is meant for programs
/// that use select(2); here every connection of a server and every unsaved file of a mount needs an open
/// file.
pub fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit on open files stays");
        }
    }
}
