//! What a volume is offered as.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What there is, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportReport {
    /// `file`, `loop`, `nbd` or `ublk`.
    pub kind: String,
    /// Directory with the file, where there is one.
    pub directory: PathBuf,
    /// What to use: the file, the device, or the server's address.
    pub path: PathBuf,
}
