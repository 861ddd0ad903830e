//! Failures of storage media.

use holdfast_failure::{Exit, Failure};
use std::path::Path;

/// The failure that a medium's content is wrong or cannot be read.
pub fn bad(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}
