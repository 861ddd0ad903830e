//! The status of a volume, attached or not.

use super::anchor::AnchorStatus;
use super::export_report::ExportReport;
use super::memory::Memory;
use super::{scrub, secret};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The status of a volume.
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
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether all of the disk has been taken over: every block was hashed.
    pub protected: bool,
    /// The export, if it is attached.
    pub attached: Option<Attached>,
    /// The status of its anchor.
    pub anchor: AnchorStatus,
    /// Its last scrub, or the one under way.
    pub scrub: Option<scrub::Progress>,
}

/// A volume in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// How it is exported.
    pub export: ExportReport,
    /// The process id of its daemon.
    pub process: u32,
    /// When it was attached, in nanoseconds since 1970.
    pub since_ns: i64,
    /// Why it accepts no more requests; `None`: it does.
    pub stopped: Option<String>,
    /// Whether it is read-only.
    #[serde(default)]
    pub read_only: bool,
    /// Bytes of the log's circular part.
    pub log_bytes: u64,
    /// How many of them are in use.
    pub log_used_bytes: u64,
    /// The result of recovery when it was opened.
    pub recovery: Recovery,
    /// What was done since it was attached.
    pub activity: Activity,
    /// Blocks that are refused; at most 1000.
    pub bad_blocks: Vec<BadBlock>,
    /// How far the process is protected from a shortage of memory.
    pub memory: Memory,
}

/// The result of recovery.
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
    /// Blocks whose content was refused.
    pub refused: u64,
    /// Flushes that programs requested.
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
    /// Its number, in blocks of 4 KiB.
    pub block: u64,
    /// The offset of its first byte.
    pub byte: u64,
    /// The tag of the content that was written, if it is known.
    pub expected: Option<String>,
    /// The tag of the content that was read.
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
