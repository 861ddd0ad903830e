//! Failures of media.

use holdfast_failure::{Exit, Failure};
use std::path::Path;

/// What is on a medium, or cannot be read from it, is wrong.
pub fn bad(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}
