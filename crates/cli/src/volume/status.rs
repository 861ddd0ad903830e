//! `holdfast volume status` and `list`.

use super::args;
use super::attach::READ_MEANWHILE;
use super::attached::attached_at;
use crate::output::{Format, line, table};
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_daemon::volumes::asking::of;
use holdfast_daemon::volumes::folders::VolumeFolders;
use holdfast_daemon::volumes::status::{Attached, VolumeStatus};
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;
use std::path::PathBuf;

/// The status for people.
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
    let places = VolumeFolders::new(directories)?;
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

/// A failure if a volume needs attention.
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

/// The failure that blocks do not have the content that was written.
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
    for (place, about) in VolumeFolders::new(directories)?.all() {
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
