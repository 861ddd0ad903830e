//! How a volume stands, attached or not.

use super::anchor::AnchorStatus;
use super::export_report::ExportReport;
use super::memory::Memory;
use super::{scrub, secret};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// How a volume is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its ID.
    pub volume: String,
    /// Its disk.
    pub disk: PathBuf,
    /// Its log.
    pub log: PathBuf,
    /// Its key file.
    pub key: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// Whether all of the disk is taken over.
    pub protected: bool,
    /// How it is on offer.
    pub attached: Option<Attached>,
    /// How new it is known to be.
    pub anchor: AnchorStatus,
    /// Its last scrub, or the one under way.
    pub scrub: Option<scrub::Progress>,
}

/// A volume in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// How it is on offer.
    pub export: ExportReport,
    /// The process.
    pub process: u32,
    /// Since when, in nanoseconds since 1970.
    pub since_ns: i64,
    /// Why nothing more is accepted, if so.
    pub stopped: Option<String>,
    /// Whether nothing is changed.
    #[serde(default)]
    pub read_only: bool,
    /// Bytes of the log's circular part.
    pub log_bytes: u64,
    /// Those of them in use.
    pub log_used_bytes: u64,
    /// What opening did.
    pub recovery: Recovery,
    /// What was done since.
    pub activity: Activity,
    /// Blocks that are refused; at most 1000.
    pub bad_blocks: Vec<BadBlock>,
    /// Whether the process is safe from a shortage of memory.
    pub memory: Memory,
}

/// What opening did.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recovery {
    /// Records of the log that were read.
    pub records: u64,
    /// Blocks that had several possible hashes.
    pub examined: u64,
    /// Blocks written again from the log.
    pub replayed: u64,
    /// Blocks of writes that were never acknowledged, torn by the crash.
    pub torn: u64,
}

impl From<&holdfast_volume::Report> for Recovery {
    fn from(report: &holdfast_volume::Report) -> Recovery {
        Recovery {
            records: report.records,
            examined: report.examined,
            replayed: report.replayed,
            torn: report.refused.len() as u64,
        }
    }
}

/// What was done since it was attached.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Activity {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Blocks verified.
    pub verified: u64,
    /// Blocks hashed.
    pub hashed: u64,
    /// Blocks refused.
    pub refused: u64,
    /// Flushes asked for.
    pub flushes: u64,
    /// Flushes of the disk.
    pub disk_flushes: u64,
    /// Flushes of the log.
    pub log_flushes: u64,
    /// Bytes written to the log.
    pub log_bytes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// A bad block.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BadBlock {
    /// Which, counted in 4 KiB.
    pub block: u64,
    /// Where it begins.
    pub byte: u64,
    /// The tag of what was written, if it is known.
    pub expected: Option<String>,
    /// The tag of what is there.
    pub found: String,
}

impl From<&holdfast_volume::BadBlock> for BadBlock {
    fn from(bad: &holdfast_volume::BadBlock) -> BadBlock {
        BadBlock {
            block: bad.number,
            byte: bad.number * holdfast_volume::BLOCK_BYTES as u64,
            expected: bad.expected.as_ref().map(|tag| secret::hex(tag)),
            found: secret::hex(&bad.found),
        }
    }
}
