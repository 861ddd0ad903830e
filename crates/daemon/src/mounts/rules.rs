//! Reports about rules for programs.

use holdfast_program_identity::guard::Denial;
use serde::{Deserialize, Serialize};

/// A report on a file's rules, and on the programs that were refused.
#[derive(Serialize, Deserialize)]
pub struct RulesReport {
    /// The rules as stored.
    pub rules: Option<Vec<u8>>,
    /// Why programs cannot be identified now.
    pub helper_missing: Option<String>,
    /// The user id of the process that serves the mount.
    pub served_by: u32,
    /// Opens that were refused lately.
    pub denials: Vec<RefusedOpen>,
}

/// An open that was refused.
#[derive(Serialize, Deserialize)]
pub struct RefusedOpen {
    /// When, in nanoseconds since 1970.
    pub at_ns: i64,
    /// The process id.
    pub process: u32,
    /// Its program, if it could be identified.
    pub program: String,
    /// The reason for the refusal.
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
