//! Rules for programs, as a daemon tells them.

use holdfast_program_identity::guard::Denial;
use serde::{Deserialize, Serialize};

/// What a mount's process says of a file's rules and of who was refused.
#[derive(Serialize, Deserialize)]
pub struct RulesReport {
    /// The rules as stored.
    pub rules: Option<Vec<u8>>,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// Who serves the mount.
    pub served_by: u32,
    /// Opens refused lately.
    pub denials: Vec<RefusedOpen>,
}

/// An open that was refused.
#[derive(Serialize, Deserialize)]
pub struct RefusedOpen {
    /// When, nanoseconds since the epoch.
    pub at_ns: i64,
    /// The process.
    pub process: u32,
    /// Its program, if it was identified.
    pub program: String,
    /// Why.
    pub reason: String,
}

impl From<Denial> for RefusedOpen {
    fn from(denial: Denial) -> RefusedOpen {
        let since = denial.at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        RefusedOpen {
            at_ns: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
            process: denial.process,
            program: denial.program,
            reason: denial.reason,
        }
    }
}
