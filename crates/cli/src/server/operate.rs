//! Tasks on a data directory. The running server carries them out, or this process if there is none.

use crate::args::{ServerBackup, ServerMove, ServerUnhold};
use crate::output::{Format, bytes_bar, clean, table};
use holdfast_crypto::Digest;
use holdfast_daemon::time;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_protocol::history::Retention;
use holdfast_server::BucketStatus;
use holdfast_server::control::{ControlError, Outcome as Report, Task, perform};
use holdfast_server::witnessing::WitnessStatus;
use holdfast_server::{BackupError, ServerConfig};
use serde::Serialize;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// A configuration of a server that does not listen, so that its address is not used.
pub(super) fn config(data: &Path) -> ServerConfig {
    let mut config = ServerConfig::new(data, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
    // Past states are left to the running server, whose retention rules are not available here.
    config.history = Retention::everything();
    config
}

/// A command with which the task can be run as another user, for messages.
pub(super) fn as_owner(owner: u32) -> String {
    format!("as root: setpriv --reuid {owner} --clear-groups holdfast server ...")
}

fn ask(data: &Path, task: Task, what: &str) -> Outcome<Report> {
    let config = config(data);
    let bar = bytes_bar(what);
    let result = perform(&config, task, &mut |done, all| {
        if all > 0 {
            bar.set_length(all);
            bar.set_position(done);
        }
    });
    bar.finish_and_clear();
    result.map_err(explain)
}

fn explain(error: ControlError) -> Failure {
    match error {
        ControlError::NoServer(_) => Failure::new(Exit::NoInput, error),
        ControlError::NotOwner { owner, .. } => Failure::new(Exit::NotAllowed, error).hint(as_owner(owner)),
        ControlError::Open(error) => error.into(),
        ControlError::Silent(_) => Failure::new(Exit::Unavailable, error),
        ControlError::Failed(_) => Failure::new(Exit::Failed, error),
    }
}

fn unexpected() -> Failure {
    Failure::new(Exit::Protocol, "the running server is of another version")
}

#[derive(Serialize)]
struct Collected {
    file_system: String,
    error: Option<String>,
    blocks_in_use: u64,
    blocks_dropped: u64,
    bytes_dropped: u64,
    deleted_bytes_kept: u64,
    bytes_freed: u64,
    damaged: Vec<String>,
    missing: Vec<String>,
}

/// `holdfast server gc`
pub fn collect(data: &Path, format: Format) -> Outcome {
    let Report::Collected(reports) = ask(data, Task::Collect, "collecting")? else {
        return Err(unexpected());
    };
    let reports: Vec<Collected> = reports
        .into_iter()
        .map(|(file_system, result)| {
            let (report, error) = match result {
                Ok(report) => (report, None),
                Err(error) => (Default::default(), Some(error)),
            };
            Collected {
                file_system: file_system.to_string(),
                error,
                blocks_in_use: report.marked,
                blocks_dropped: report.dropped,
                bytes_dropped: report.dropped_bytes,
                deleted_bytes_kept: report.kept_bytes,
                bytes_freed: report.removed_bytes,
                damaged: report.damaged,
                missing: report.missing.iter().map(ToString::to_string).collect(),
            }
        })
        .collect();
    format.print(&reports, |reports| {
        let lines: Vec<String> = reports.iter().map(Collected::describe).collect();
        if lines.is_empty() { "There is no file system here yet.".to_owned() } else { lines.join("\n") }
    })?;
    if reports.iter().any(|report| report.error.is_some()) {
        return Err(Failure::new(
            Exit::Data,
            "not everything could be collected; nothing that is in use was dropped",
        ));
    }
    Ok(())
}

impl Collected {
    fn describe(&self) -> String {
        if let Some(error) = &self.error {
            return format!("{}: nothing was dropped: {}", self.file_system, clean(error));
        }
        let mut text = format!(
            "{}: {} blocks in use; {} blocks ({} bytes) dropped, {} bytes of disk freed",
            self.file_system, self.blocks_in_use, self.blocks_dropped, self.bytes_dropped, self.bytes_freed
        );
        if self.deleted_bytes_kept > 0 {
            text.push_str(&format!("; {} bytes of deleted content kept for now", self.deleted_bytes_kept));
        }
        for damaged in &self.damaged {
            text.push_str(&format!("\n  kept, because it is damaged: {}", clean(damaged)));
        }
        for missing in &self.missing {
            text.push_str(&format!("\n  MISSING, though in use: block {missing}"));
        }
        text
    }
}

#[derive(Serialize)]
struct Scrubbed {
    records: u64,
    bytes: u64,
    bad_count: u64,
    bad: Vec<String>,
}

/// `holdfast server scrub`
pub fn scrub(data: &Path, format: Format) -> Outcome {
    let Report::Scrubbed(report) = ask(data, Task::Scrub, "reading everything")? else {
        return Err(unexpected());
    };
    let report = Scrubbed {
        records: report.records,
        bytes: report.bytes,
        bad_count: report.bad_count,
        bad: report.bad,
    };
    format.print(&report, |report| {
        let mut lines = vec![format!(
            "{} records ({} bytes) read, {} bad",
            report.records, report.bytes, report.bad_count
        )];
        lines.extend(report.bad.iter().take(100).map(|bad| format!("  {}", clean(bad))));
        lines.join("\n")
    })?;
    match report.bad_count {
        0 => Ok(()),
        bad => Err(Failure::new(Exit::Data, format!("{bad} records are damaged")).hint(
            "restore them from a copy; clients that still have the data send it again when they use it",
        )),
    }
}

#[derive(Serialize)]
struct BackedUp {
    backup: PathBuf,
    segments_copied: u64,
    bytes_copied: u64,
    segments_shared: u64,
    bytes_shared: u64,
    /// The address of the block server that has the blocks, which the copy lacks.
    blocks_at: Option<String>,
}

/// `holdfast server backup`
pub fn backup(arguments: &ServerBackup, format: Format) -> Outcome {
    let moment = time::moment(time::now_ns()).replace(" UTC", "Z").replace(' ', "T").replace(':', "-");
    let name = (1..)
        .map(|number| if number == 1 { moment.clone() } else { format!("{moment}-{number}") })
        .find(|name| !arguments.to.join(name).exists())
        .unwrap_or(moment.clone());
    let bar = bytes_bar("copying");
    let result = holdfast_server::backup(&config(&arguments.data), &arguments.to, &name, &mut |done, all| {
        bar.set_length(all);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let report = result.map_err(|error| match error {
        BackupError::Control(error) => explain(error),
        BackupError::Io { .. } => Failure::new(Exit::Io, error),
        BackupError::Length { .. } => Failure::new(Exit::Data, error),
        BackupError::InUse(_) => Failure::new(Exit::InUse, error),
        BackupError::Inside(_) => Failure::new(Exit::Usage, error),
        BackupError::Exists(_) => Failure::new(Exit::CannotCreate, error),
        BackupError::Restless => Failure::new(Exit::Failed, error),
    })?;
    let done = BackedUp {
        backup: report.path,
        segments_copied: report.copied_segments,
        bytes_copied: report.copied_bytes,
        segments_shared: report.shared_segments,
        bytes_shared: report.shared_bytes,
        blocks_at: holdfast_server::blocks_elsewhere(&arguments.data).map(|location| location.to_string()),
    };
    format.print(&done, |done| {
        let mut text = format!(
            "{} is a whole copy: {} bytes copied, {} bytes shared with the backup before.",
            done.backup.display(),
            done.bytes_copied,
            done.bytes_shared
        );
        if let Some(address) = &done.blocks_at {
            text.push_str(&format!(
                "\nIt is of the order alone: the blocks are at {address}, which has a backup of its own."
            ));
        }
        text
    })
}

#[derive(Serialize)]
struct HoldOutput {
    file_system: String,
    name: String,
    device: u32,
    since: String,
}

/// `holdfast server holds`
pub fn holds(data: &Path, format: Format) -> Outcome {
    let Report::Holds(found) = ask(data, Task::Holds, "asking")? else { return Err(unexpected()) };
    let held = found.into_iter().flat_map(|(file_system, holds)| {
        holds.into_iter().map(move |hold| HoldOutput {
            file_system: file_system.to_string(),
            name: hold.name,
            device: hold.device.0,
            since: time::moment(hold.made_ns),
        })
    });
    let held: Vec<HoldOutput> = held.collect();
    format.print(&held, |held| {
        let line = |hold: &HoldOutput| {
            format!(
                "{} {} by device {}, since {}",
                hold.file_system,
                clean(&hold.name),
                hold.device,
                hold.since
            )
        };
        match held.is_empty() {
            true => "Nothing is held.".to_owned(),
            false => held.iter().map(line).collect::<Vec<_>>().join("\n"),
        }
    })
}

/// `holdfast server unhold`
pub fn unhold(arguments: &ServerUnhold, format: Format) -> Outcome {
    let file_system = Digest::from_hex(&arguments.file_system)
        .ok_or_else(|| Failure::new(Exit::Usage, "a file system's id has 64 hexadecimal digits"))?;
    let name = arguments.name.clone();
    let Report::Unheld(was) = ask(&arguments.data, Task::Unhold { file_system, name }, "asking")? else {
        return Err(unexpected());
    };
    if !was {
        let message = format!("file system {file_system} has no hold {}", clean(&arguments.name));
        return Err(Failure::new(Exit::NoInput, message).hint("`holdfast server holds` lists them"));
    }
    format.print(&serde_json::json!({ "ended": arguments.name }), |_| {
        format!("{} is no longer held; what nothing else needs goes with the next collection", arguments.name)
    })
}

/// `holdfast server move`
pub fn hand_over(arguments: &ServerMove, format: Format) -> Outcome {
    let file_system = Digest::from_hex(&arguments.file_system)
        .ok_or_else(|| Failure::new(Exit::Usage, "a file system's id has 64 hexadecimal digits"))?;
    let to = arguments.to.to_string();
    let Report::Moved = ask(&arguments.data, Task::Move { file_system, to: to.clone() }, "handing over")?
    else {
        return Err(unexpected());
    };
    format.print(&serde_json::json!({ "file_system": file_system.to_string(), "to": to }), |_| {
        format!("{to} has it from now on, and after every start of both")
    })
}

/// `holdfast server stats`
pub fn statistics(data: &Path, format: Format) -> Outcome {
    let Report::Statistics(figures) = ask(data, Task::Statistics, "asking")? else {
        return Err(unexpected());
    };
    let file_systems: Vec<_> = figures
        .file_systems
        .iter()
        .map(|(id, operations)| serde_json::json!({ "id": id.to_string(), "operations": operations }))
        .collect();
    let block_store = figures.block_store.as_ref().map(|standing| {
        serde_json::json!({
            "address": standing.address,
            "reached": standing.reached,
            "garbage_collected": standing.doubt.is_none(),
            "doubt": standing.doubt.clone().unwrap_or_else(|| "none".to_owned()),
            "log_bytes": standing.figures.as_ref().map(|figures| figures.log_bytes),
            "free_bytes": standing.figures.as_ref().and_then(|figures| figures.free_bytes),
            "bucket": standing.bucket.as_ref().map(of_bucket),
        })
    });
    let order = figures.order.as_ref().map(|order| {
        let active = order.active.iter().map(|(id, server)| (id.to_string(), server.clone().into()));
        serde_json::json!({
            "place": order.place,
            "reached": order.reached,
            "address": order.address,
            "servers": order.servers,
            "active": active.collect::<serde_json::Map<_, _>>(),
        })
    });
    let figures = serde_json::json!({
        "running": figures.running,
        "file_systems": file_systems,
        "blocks": figures.blocks,
        "block_bytes": figures.block_bytes,
        "deleted_bytes": figures.deleted_bytes,
        "damaged_blocks": figures.damaged_blocks,
        "log_bytes": figures.log_bytes,
        "free_bytes": figures.free_bytes,
        "block_store": block_store,
        "order": order.unwrap_or_else(|| "in the data directory".into()),
        "since_start": {
            "syncs": figures.syncs,
            "requests": figures.requests,
            "requests_refused": figures.refused,
            "operations": figures.operations,
            "blocks_stored": figures.blocks_stored,
            "blocks_served": figures.blocks_served,
            "bytes_served": figures.bytes_served,
        },
    });
    format.print(&figures, |figures| {
        let mut rows = Vec::new();
        crate::output::flatten("", figures, &mut rows);
        table(&rows)
    })
}

fn of_bucket(bucket: &BucketStatus) -> serde_json::Value {
    let [put, get, head, list, delete] = bucket.requests;
    serde_json::json!({
        "trouble": bucket.trouble.clone().unwrap_or_else(|| "none".to_owned()),
        "segments": bucket.segments,
        "bytes": bucket.bytes,
        "waiting_bytes": bucket.waiting_bytes,
        "cached_bytes": bucket.cached_bytes,
        "requests_since_start": { "put": put, "get": get, "head": head, "list": list, "delete": delete },
    })
}

#[derive(Serialize)]
struct Log {
    file_system: String,
    key: String,
    operations: u64,
    witnesses: Vec<Witness>,
}

#[derive(Serialize)]
struct Witness {
    key: String,
    url: String,
    operations: Option<u64>,
    at_s: Option<u64>,
    trouble: Option<String>,
}

/// `holdfast server witnesses`
pub fn witnesses(data: &Path, format: Format) -> Outcome {
    let Report::Witnesses(found) = ask(data, Task::Witnesses, "asking")? else { return Err(unexpected()) };
    let of = |witness: WitnessStatus| Witness {
        key: witness.key,
        url: witness.url,
        operations: witness.newest.map(|(size, _)| size),
        at_s: witness.newest.map(|(_, time_s)| time_s),
        trouble: witness.trouble,
    };
    let logs = found.into_iter().map(|log| Log {
        file_system: log.file_system.to_string(),
        key: log.key,
        operations: log.size,
        witnesses: log.witnesses.into_iter().map(of).collect(),
    });
    let logs: Vec<Log> = logs.collect();
    format.print(&logs, |logs| match logs.is_empty() {
        true => "There is no file system here yet.".to_owned(),
        false => logs.iter().map(Log::describe).collect::<Vec<_>>().join("\n\n"),
    })
}

impl Log {
    fn describe(&self) -> String {
        let mut text = format!(
            "{}: {} operations\n  for witnesses: --log '{}'",
            self.file_system, self.operations, self.key
        );
        for witness in &self.witnesses {
            text.push_str(&format!("\n  {} at {}: ", clean(&witness.key), clean(&witness.url)));
            text.push_str(&match (witness.operations, witness.at_s) {
                (Some(operations), Some(at_s)) => {
                    let at_ns = i64::try_from(at_s).unwrap_or(0).saturating_mul(1_000_000_000);
                    format!("co-signed {operations} operations at {}", time::moment(at_ns))
                }
                _ => "has co-signed nothing since the server started".to_owned(),
            });
            if let Some(trouble) = &witness.trouble {
                text.push_str(&format!("; when it was last asked: {}", clean(trouble)));
            }
        }
        text
    }
}
