//! `holdfast volume status` and `list`.

use super::args;
use super::attach::READ_MEANWHILE;
use super::export::Shown;
use super::host::Order;
use super::memory::Memory;
use super::places::{About, Place, Places};
use super::scrub;
use super::{anchor, attached_at};
use crate::control::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Format, line, table};
use crate::paths::Directories;
use crate::time::moment;
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
    pub anchor: Anchored,
    /// Its last scrub, or the one under way.
    pub scrub: Option<scrub::Progress>,
}

/// A volume in use.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attached {
    /// How it is on offer.
    pub export: Shown,
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
    pub bad_blocks: Vec<Bad>,
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
pub struct Bad {
    /// Which, counted in 4 KiB.
    pub block: u64,
    /// Where it begins.
    pub byte: u64,
    /// The tag of what was written, if it is known.
    pub expected: Option<String>,
    /// The tag of what is there.
    pub found: String,
}

impl From<&holdfast_volume::BadBlock> for Bad {
    fn from(bad: &holdfast_volume::BadBlock) -> Bad {
        Bad {
            block: bad.number,
            byte: bad.number * holdfast_volume::BLOCK_BYTES as u64,
            expected: bad.expected.as_ref().map(|tag| super::secret::hex(tag)),
            found: super::secret::hex(&bad.found),
        }
    }
}

/// How new a volume is known to be.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Anchored {
    /// The file.
    pub file: PathBuf,
    /// Whether a counter of the TPM says that it is the newest.
    pub tpm: bool,
    /// The log block that it names; `None`: there is none.
    pub log_block: Option<u64>,
    /// Log blocks made durable since; `None`: not attached.
    pub blocks_behind: Option<u64>,
    /// Whether it is written at every flush.
    pub every_flush: bool,
    /// Why it could not be written, if so.
    pub failed: Option<String>,
}

/// How a volume is, attached or not.
pub fn of(place: &Place, about: &About) -> Outcome<VolumeStatus> {
    if let Some(process) = Client::connect(&place.directory)? {
        match process.call(&Order::Status) {
            // It is just ending.
            Err(failure) if failure.code == Exit::Unavailable => {}
            other => return other,
        }
    }
    let (log_block, failed) = match anchor::read(&place.anchor_of(about)) {
        Ok(found) => (found.map(|anchor| anchor.number), None),
        Err(failure) => (None, Some(failure.message)),
    };
    Ok(VolumeStatus {
        volume: place.name(),
        disk: about.disk.clone(),
        log: about.log.clone(),
        key: about.key.clone(),
        size_bytes: about.size_bytes,
        protected: about.protected,
        attached: None,
        anchor: Anchored {
            file: place.anchor_of(about),
            tpm: about.tpm,
            log_block,
            blocks_behind: None,
            every_flush: false,
            failed,
        },
        scrub: scrub::Progress::remembered(place),
    })
}

/// For people.
fn words(status: &VolumeStatus) -> String {
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut row = |name: &str, text: String| rows.push(vec![name.to_owned(), text]);
    row("disk", format!("{}, {} bytes", status.disk.display(), status.size_bytes));
    row("volume", status.volume.clone());
    match &status.attached {
        Some(attached) => attached_words(attached, &mut row),
        None if status.protected => row("state", "detached".into()),
        None => row("state", "not protected yet: `holdfast volume protect` goes on with it".into()),
    }
    row("log", status.log.display().to_string());
    row("key", status.key.display().to_string());
    let anchor = &status.anchor;
    let block = anchor.log_block.map_or("none".into(), |block| format!("log block {block}"));
    let behind = match (anchor.blocks_behind, anchor.every_flush) {
        (None, _) => String::new(),
        (Some(behind), false) => format!(", {behind} log blocks behind"),
        (Some(behind), true) => format!(", {behind} log blocks behind, written at every flush"),
    };
    let tpm = if anchor.tpm { ", bound to the TPM" } else { "" };
    row("anchor", format!("{}: {block}{behind}{tpm}", anchor.file.display()));
    if let Some(why) = &anchor.failed {
        row("anchor stays behind", why.clone());
    }
    if let Some(scrub) = &status.scrub {
        let when = match (scrub.ended_ns, scrub.running) {
            (Some(ended), _) => format!("ended {}", moment(ended)),
            (None, true) => format!("under way, since {}", moment(scrub.begun_ns)),
            (None, false) => "stopped".into(),
        };
        row("scrub", format!("{when}: {} of {} blocks, {} bad", scrub.next_block, scrub.blocks, scrub.bad));
    }
    table(&rows)
}

fn attached_words(attached: &Attached, row: &mut dyn FnMut(&str, String)) {
    let Attached { export, process, since_ns, log_bytes, log_used_bytes, activity, recovery, memory, .. } =
        attached;
    let since = moment(*since_ns);
    row("state", format!("attached at {}, by process {process}, since {since}", export.path.display()));
    if attached.read_only {
        row("changes", "none: it is attached read-only".into());
    }
    if let Some(why) = &attached.stopped {
        row("STOPPED", why.clone());
    }
    row("log in use", format!("{log_used_bytes} of {log_bytes} bytes"));
    row("read", format!("{} bytes, {} blocks verified", activity.read_bytes, activity.verified));
    row("written", format!("{} bytes, {} blocks hashed", activity.written_bytes, activity.hashed));
    row(
        "flushes",
        format!(
            "{} asked for, {} of the disk, {} of the log; {} checkpoints; {} bytes to the log",
            activity.flushes,
            activity.disk_flushes,
            activity.log_flushes,
            activity.checkpoints,
            activity.log_bytes
        ),
    );
    row(
        "recovered",
        format!(
            "{} records, {} blocks examined, {} written again, {} torn",
            recovery.records, recovery.examined, recovery.replayed, recovery.torn
        ),
    );
    let yes = |is: bool| if is { "yes" } else { "no" };
    row(
        "memory",
        format!(
            "locked: {}, does not wait for disks: {}, spared: {}",
            yes(memory.locked),
            yes(memory.apart_from_reclaim),
            yes(memory.spared)
        ),
    );
    for bad in &attached.bad_blocks {
        let expected = match &bad.expected {
            Some(expected) => format!("expected {expected}"),
            None => "torn by a crash, or changed since".into(),
        };
        row("BAD BLOCK", format!("{} (byte {}): {expected}, found {}", bad.block, bad.byte, bad.found));
    }
}

/// `holdfast volume status`
pub fn run(arguments: &args::Status, directories: &Directories, format: Format) -> Outcome {
    let places = Places::new(directories)?;
    let wanted = match &arguments.volume {
        Some(wanted) => vec![places.find(wanted, attached_at)?],
        None => places.all(),
    };
    let all = wanted.iter().map(|(place, about)| of(place, about)).collect::<Outcome<Vec<_>>>()?;
    match (&arguments.volume, format) {
        (Some(_), _) => format.print(&all[0], words)?,
        (None, Format::Text) if all.is_empty() => line("no volumes are known here")?,
        (None, _) => format.print(&all, |all| all.iter().map(words).collect::<Vec<_>>().join("\n\n"))?,
    }
    verdict(&all)
}

/// A failure for what a person must look after.
fn verdict(all: &[VolumeStatus]) -> Outcome {
    for status in all {
        let Some(attached) = &status.attached else { continue };
        if let Some(why) = &attached.stopped {
            let message = format!("{}: has stopped after a failure: {why}", status.disk.display());
            return Err(Failure::new(Exit::Io, message).hint(format!(
                "detach it, mend what failed, and attach it again, which recovers what is durable; {READ_MEANWHILE}"
            )));
        }
    }
    let bad: Vec<&VolumeStatus> = all
        .iter()
        .filter(|status| status.attached.as_ref().is_some_and(|attached| !attached.bad_blocks.is_empty()))
        .collect();
    match bad.first() {
        None => Ok(()),
        Some(status) => {
            let count = status.attached.as_ref().map_or(0, |attached| attached.bad_blocks.len());
            Err(bad_blocks(&status.disk, count))
        }
    }
}

/// Says that blocks are not what was written.
pub fn bad_blocks(disk: &std::path::Path, count: usize) -> Failure {
    Failure::new(
        Exit::Data,
        format!("{}: {count} blocks are not what was written; reading them is an error", disk.display()),
    )
    .hint(
        "`holdfast volume repair --from REPLICA` mends them from a copy of any age; what is written anew is good again, \
         too; the disk may be failing, or somebody has changed it",
    )
}

#[derive(Serialize)]
struct Listed {
    volume: String,
    disk: PathBuf,
    state: &'static str,
    path: Option<PathBuf>,
}

/// `holdfast volume list`
pub fn list(directories: &Directories, format: Format) -> Outcome {
    let mut all = Vec::new();
    for (place, about) in Places::new(directories)?.all() {
        let status = of(&place, &about)?;
        let state = match (&status.attached, status.protected) {
            (Some(_), _) => "attached",
            (None, true) => "detached",
            (None, false) => "not protected yet",
        };
        let path = status.attached.map(|attached| attached.export.path);
        all.push(Listed { volume: status.volume, disk: status.disk, state, path });
    }
    format.print(&all, |all| {
        let row = |one: &Listed| {
            let path = one.path.as_ref().map_or(String::new(), |path| path.display().to_string());
            vec![one.volume[..8].to_owned(), one.disk.display().to_string(), one.state.to_owned(), path]
        };
        table(&all.iter().map(row).collect::<Vec<_>>())
    })
}
