//! The report on a volume's export.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A report on an export, for people and programs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExportReport {
    /// `file`, `loop`, `nbd` or `ublk`.
    pub kind: String,
    /// Directory of the file, if there is one.
    pub directory: PathBuf,
    /// The path or address to use: the file, the device, or the server's address.
    pub path: PathBuf,
}
