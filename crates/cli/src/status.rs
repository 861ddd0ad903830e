//! `holdfast status`: reports the mounts of this user, with alarms in words.

use crate::args;
use crate::evidence::pieces::kept_in;
use crate::output::{Format, clean, table};
use crate::peers;
use holdfast_client::WriteBackStatus;
use holdfast_daemon::automount::{self, AutomountStatus};
use holdfast_daemon::mounts::asking::{DaemonState, REPLY_WAIT, ask, is_stopped};
use holdfast_daemon::mounts::status::MountDaemonStatus;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::time::moment;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_fuse::mountpoint::{self, Condition, MountError};
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Most alarms that are printed in full.
const ALARMS_SHOWN: usize = 5;

/// The report of `holdfast status`.
#[derive(Serialize)]
pub struct Report {
    /// Processes that serve mounts of writable file systems.
    pub processes: Vec<Process>,
    /// Mounted releases that this user may see.
    pub releases: Vec<ReleaseMount>,
    /// Automounted directories.
    automounts: Vec<AutomountStatus>,
    /// Holdfast mounts whose process has ended.
    dead: Vec<PathBuf>,
    /// Processes and mounts that do not answer.
    stuck: Vec<Stuck>,
}

impl Report {
    /// # Errors
    /// [`Exit::Unavailable`]: something does not answer.
    pub fn all_answer(&self) -> Outcome {
        match self.stuck.first() {
            Some(stuck) => {
                Err(Failure::new(Exit::Unavailable, format!("{}: {}", stuck.path.display(), stuck.says)))
            }
            None => Ok(()),
        }
    }
}

/// A process or mount that does not answer.
#[derive(Serialize)]
struct Stuck {
    /// A mount point, or the state directory of a process.
    path: PathBuf,
    /// What is wrong and what can be done about it, in words.
    says: String,
}

/// A mounted release.
#[derive(Serialize)]
pub struct ReleaseMount {
    /// The mount point.
    pub directory: PathBuf,
    /// Its address.
    pub address: String,
    /// The lines of the mount's status attribute.
    says: Vec<String>,
}

/// A process, with what this command found out about it.
#[derive(Serialize)]
pub struct Process {
    /// The process's own report.
    #[serde(flatten)]
    pub status: MountDaemonStatus,
    /// What the server has done wrong since the process began, in words, newest first.
    alarms: Vec<String>,
    /// Number of stored pieces of evidence, including earlier ones.
    evidence: usize,
    /// Folders of data that could not be saved to the server.
    salvage: Vec<PathBuf>,
    /// Paths whose last changes are lost or were held back. They are listed until the salvage folder that
    /// names them is removed.
    in_doubt: Vec<String>,
}

/// `holdfast status`
pub fn status(arguments: &args::Status, directories: &Directories, format: Format) -> Outcome {
    let report = gather(arguments.directory.as_deref(), directories)?;
    format.print(&report, describe)?;
    verdict(&report)
}

/// Asks all processes and examines all mounts; only one mount point, if one is `wanted`. Whatever does not
/// answer is listed in the report.
///
/// # Errors
/// The wanted directory is not mounted, or the table of mounts cannot be read.
pub fn gather(wanted: Option<&Path>, directories: &Directories) -> Outcome<Report> {
    let wanted = wanted.map(mountpoint::absolute).transpose()?;
    let is_wanted = |directory: &Path| wanted.as_ref().is_none_or(|wanted| wanted == directory);
    let mut report = Report {
        processes: Vec::new(),
        releases: Vec::new(),
        automounts: Vec::new(),
        dead: Vec::new(),
        stuck: Vec::new(),
    };
    // All at once, so that those that do not answer delay the others only once.
    let asked: Vec<_> = directories
        .all_states()?
        .into_iter()
        .map(|state_dir| {
            let path = state_dir.clone();
            (path, std::thread::spawn(move || ask(&state_dir)))
        })
        .collect();
    let looked: Vec<_> = mountpoint::mounted()?
        .into_iter()
        .filter(|mount| mount.is_holdfast() && is_wanted(&mount.directory))
        .map(|mount| {
            let (directories, directory) = (directories.clone(), mount.directory.clone());
            (directory, std::thread::spawn(move || look_at(mount, &directories)))
        })
        .collect();
    for (path, asked) in asked {
        let says = match asked.join().unwrap_or(Ok(DaemonState::Nobody)) {
            Ok(DaemonState::Says(mut status)) => {
                status.mounts.retain(|mount| is_wanted(&mount.directory));
                if !status.mounts.is_empty() || wanted.is_none() {
                    report.processes.push(examine(*status));
                }
                continue;
            }
            Ok(DaemonState::Nobody) => continue,
            Ok(DaemonState::Silent(process)) if is_stopped(process) => {
                format!("process {process} is stopped; `kill -CONT {process}` lets it go on")
            }
            Ok(DaemonState::Silent(process)) => {
                format!("process {process} does not answer; its log is in this directory")
            }
            // A process that cannot be asked must not prevent the report on the others.
            Err(failure) => in_one_line(&failure),
        };
        report.stuck.push(Stuck { path, says });
    }
    for (path, look) in looked {
        let found = match look.join().unwrap_or(Ok(Look::Unseen)) {
            Ok(found) => found,
            Err(failure) => {
                report.stuck.push(Stuck { path, says: in_one_line(&failure) });
                continue;
            }
        };
        match found {
            Look::Unseen => {}
            Look::Dead(directory) => report.dead.push(directory),
            Look::Stuck(path) => {
                let says =
                    "nobody answers; who uses it waits. `holdfast umount --lazy` takes it out of sight"
                        .into();
                report.stuck.push(Stuck { path, says });
            }
            Look::Release(mount) => report.releases.push(mount),
            Look::Automount(automount) => report.automounts.push(automount),
        }
    }
    if let Some(wanted) = wanted
        && report.processes.is_empty()
        && report.releases.is_empty()
        && report.automounts.is_empty()
        && report.dead.is_empty()
        && report.stuck.is_empty()
    {
        return Err(MountError::NotMounted(wanted).into());
    }
    Ok(report)
}

fn in_one_line(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{}; {hint}", failure.message),
        None => failure.message.clone(),
    }
}

/// The result of examining a mount, in addition to its process's report.
enum Look {
    /// Nothing to add: the mount is not visible to this user, or its process reports everything.
    Unseen,
    Dead(PathBuf),
    Stuck(PathBuf),
    Release(ReleaseMount),
    Automount(AutomountStatus),
}

fn look_at(mount: mountpoint::Mounted, directories: &Directories) -> Outcome<Look> {
    match mountpoint::condition(&mount.directory) {
        Condition::Dead => return Ok(Look::Dead(mount.directory)),
        Condition::Stuck => return Ok(Look::Stuck(mount.directory)),
        Condition::Answers => {}
    }
    let (directories, directory) = (directories.clone(), mount.directory.clone());
    let look = move || -> Outcome<Look> {
        if mount.source == automount::SOURCE {
            let found = automount::status(&mount.directory, &directories)?;
            return Ok(found.map_or(Look::Unseen, Look::Automount));
        }
        let says = crate::image::says(&mount.source).or_else(|| {
            mount
                .source
                .starts_with(crate::reading::source::SCHEME)
                .then(|| says_of_itself(&mount.directory))?
        });
        Ok(says.map_or(Look::Unseen, |says| {
            Look::Release(ReleaseMount { directory: mount.directory, address: mount.source, says })
        }))
    };
    mountpoint::within(REPLY_WAIT, look).unwrap_or(Ok(Look::Stuck(directory)))
}

/// The status attribute of a mount's root, in lines; `None` if this user may not read it.
fn says_of_itself(directory: &Path) -> Option<Vec<String>> {
    let says = mountpoint::attribute(directory, "user.holdfast.status")?;
    Some(String::from_utf8_lossy(&says).lines().map(str::to_owned).collect())
}

fn examine(status: MountDaemonStatus) -> Process {
    let pieces = kept_in(&status.state_dir);
    let mut alarms = Vec::new();
    if let Some(frozen) = status.engine.get("frozen").filter(|frozen| !frozen.is_null()) {
        let what = frozen.get("what").and_then(Value::as_str).unwrap_or("the server's order is wrong");
        let last = frozen.get("last_good_operation").and_then(Value::as_u64).unwrap_or(0);
        let noticed = frozen.get("noticed_ns").and_then(Value::as_i64).unwrap_or(0);
        let is_restored = frozen.get("is_restored").and_then(Value::as_bool).unwrap_or(false);
        let told = format!(
            "WRONG ORDER, noticed {}: {}. Everything is stopped (EIO): nothing this server shows is believed. \
             Your last good operation was number {last}. Unsaved data is kept (`holdfast salvage`). Compare notes \
             with the other members before you trust this server again.",
            moment(noticed),
            what.trim_end_matches('.')
        );
        alarms.extend((!is_restored).then_some(told));
    }
    // Bad data may be found by read-ahead, before it is clear to which file it belongs. Pieces that name a
    // file come first.
    let (named, nameless): (Vec<_>, Vec<_>) =
        pieces.iter().rev().partition(|piece| piece.explanation.contains("It belongs to the file"));
    for piece in named.into_iter().chain(nameless).filter(|piece| piece.noticed_ns >= status.started_ns) {
        if piece.is_about_order() || piece.is_of_restore() {
            continue;
        }
        alarms.push(format!("WRONG DATA, noticed {}: {}", moment(piece.noticed_ns), piece.explanation));
    }
    let salvage = crate::salvage::folders_in(&status.state_dir);
    let in_doubt = salvage.iter().flat_map(|folder| crate::salvage::in_doubt(folder)).collect();
    Process { status, alarms, evidence: pieces.len(), salvage, in_doubt }
}

fn describe(report: &Report) -> String {
    if report.processes.is_empty()
        && report.releases.is_empty()
        && report.automounts.is_empty()
        && report.dead.is_empty()
        && report.stuck.is_empty()
    {
        return "Nothing is mounted.".to_owned();
    }
    let mut sections: Vec<String> = report.processes.iter().map(Process::describe).collect();
    for release in &report.releases {
        let says: String = release.says.iter().map(|line| format!("\n  {line}")).collect();
        sections.push(format!("{}{says}", release.directory.display()));
    }
    sections.extend(report.automounts.iter().map(describe_automount));
    for directory in &report.dead {
        sections.push(format!(
            "{}\n  DEAD: the process that served it is gone. `holdfast umount {0}` removes it; mounting again works too.",
            directory.display()
        ));
    }
    for stuck in &report.stuck {
        sections.push(format!("{}\n  STUCK: {}", stuck.path.display(), stuck.says));
    }
    clean(&sections.join("\n\n"))
}

fn describe_automount(automount: &AutomountStatus) -> String {
    let mut lines = vec![format!("{} mounts names when they are used", automount.directory.display())];
    for place in &automount.places.mounted {
        lines.push(format!("  {}\n    mounted: {}, used {} s ago", place.name, place.says, place.ago_s));
    }
    for place in &automount.places.failed {
        lines.push(format!("  {}\n    NOT mounted {} s ago: {}", place.name, place.ago_s, place.says));
    }
    lines.push(format!("  Process {}, log {}", automount.process, automount.log.display()));
    lines.join("\n")
}

impl Process {
    /// Whether the server says that this device is no longer a member.
    fn is_excluded(&self) -> bool {
        self.status.engine.get("excluded") == Some(&Value::Bool(true))
    }

    /// The server's answer when it refuses the connection.
    fn turned_away(&self) -> Option<&str> {
        self.status.engine.get("turned_away").and_then(Value::as_str)
    }

    fn describe(&self) -> String {
        let text =
            |name: &str| self.status.engine.get(name).and_then(Value::as_str).unwrap_or("?").to_owned();
        let number = |name: &str| self.status.engine.get(name).and_then(Value::as_u64).unwrap_or(0);
        let truth = |name: &str| self.status.engine.get(name).and_then(Value::as_bool).unwrap_or(false);
        let mut lines = Vec::new();
        for mount in &self.status.mounts {
            let mut notes = Vec::new();
            if mount.read_only {
                notes.push("read-only");
            }
            if mount.allow_other {
                notes.push("open to other users of this machine");
            }
            let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
            lines.push(format!("{}{notes}", mount.directory.display()));
        }
        if lines.is_empty() {
            lines.push("(no mount)".to_owned());
        }
        let restored = self
            .status
            .engine
            .get("frozen")
            .filter(|frozen| frozen.get("is_restored").and_then(Value::as_bool).unwrap_or(false));
        let state = if let Some(what) = restored.and_then(|frozen| frozen.get("what")?.as_str()) {
            format!("stopped: {what}")
        } else if self.alarms.iter().any(|alarm| alarm.starts_with("WRONG ORDER")) {
            "FROZEN: the server broke the order of operations".to_owned()
        } else if self.is_excluded() {
            "STOPPED: the server takes nothing more from this device, which was removed from the file system, or whose key was \
             replaced"
                .to_owned()
        } else if self.status.engine.get("key_trouble").is_some_and(Value::is_string) {
            format!("waiting for this device's key: {}", text("key_trouble"))
        } else if let Some(answer) = self.turned_away() {
            format!("waiting for the server, which turns this mount away: {answer}")
        } else if !truth("connected") {
            "waiting for the server, which does not answer".to_owned()
        } else if let Some(state) = self.status.engine.get("head").and_then(describe_stale) {
            state.to_owned()
        } else if self.status.engine.pointer("/peers/is_paused") == Some(&Value::Bool(true)) {
            "PAUSED: a peer that was met is silent (ETIMEDOUT); `holdfast evidence peers go-on` ends the waiting"
                .to_owned()
        } else if !self.alarms.is_empty() {
            "working, but some data is wrong".to_owned()
        } else {
            "working; everything seen so far was as its writers made it".to_owned()
        };
        let mut rows = vec![
            vec!["  File system".to_owned(), self.status.address.clone()],
            vec!["  State".to_owned(), state],
            vec!["  Signs as".to_owned(), format!("{} (device {})", text("user_name"), number("device"))],
            vec!["  Operations".to_owned(), format!("{} so far", number("last_operation"))],
            vec![
                "  Process".to_owned(),
                format!("{}, since {}", self.status.process, moment(self.status.started_ns)),
            ],
            vec!["  Log and state".to_owned(), self.status.state_dir.display().to_string()],
        ];
        if let Some(restored) = self.status.engine.get("restored").and_then(Value::as_str) {
            rows.push(vec!["  Restored".to_owned(), restored.to_owned()]);
        }
        if let Some(words) = self.status.engine.pointer("/sent_again/words").and_then(Value::as_str) {
            rows.push(vec!["  Sent again".to_owned(), words.to_owned()]);
        }
        if let Some(head) = self.status.engine.get("head").and_then(describe_head) {
            rows.push(vec!["  Newest head".to_owned(), head]);
        }
        if let Some(peers) = peers::of(&self.status) {
            rows.push(vec!["  Peers".to_owned(), peers::summary(&peers)]);
        }
        if let Some(link) = self.status.engine.get("link").and_then(describe_link) {
            rows.push(vec!["  Link".to_owned(), link]);
        }
        match number("locks") {
            0 => {}
            1 => rows.push(vec!["  Locks".to_owned(), "1 lock held by programs".to_owned()]),
            more => rows.push(vec!["  Locks".to_owned(), format!("{more} locks held by programs")]),
        }
        if let Some(back) = &self.status.write_back {
            let what = if back.gathers { "  Gathering" } else { "  Write-back" };
            rows.push(vec![what.to_owned(), describe_write_back(back)]);
        }
        let unsaved: Vec<&String> = self.status.mounts.iter().flat_map(|mount| &mount.unsaved).collect();
        if !unsaved.is_empty() {
            let some: Vec<&str> = unsaved.iter().take(5).map(|path| path.as_str()).collect();
            rows.push(vec!["  Unsaved".to_owned(), format!("{} files: {}", unsaved.len(), some.join(", "))]);
        }
        if self.is_excluded() {
            rows.push(vec![
                "  What is left".to_owned(),
                "nothing more can be saved with this key. What was not at the server is kept on this machine: `holdfast \
                 salvage` tells where, and `holdfast salvage --to DIR` copies it out. Then unmount, and mount with the new \
                 key if there is one"
                    .to_owned(),
            ]);
        }
        for folder in &self.salvage {
            rows.push(vec!["  To salvage".to_owned(), folder.display().to_string()]);
        }
        if !self.in_doubt.is_empty() {
            let some: Vec<&str> = self.in_doubt.iter().take(5).map(String::as_str).collect();
            let more = if self.in_doubt.len() > some.len() { ", ..." } else { "" };
            rows.push(vec![
                "  In doubt".to_owned(),
                format!(
                    "{} files lost changes that were not at the server: {}{more}; `holdfast salvage` tells more. \
                     Remove its folder when you have seen to them",
                    self.in_doubt.len(),
                    some.join(", ")
                ),
            ]);
        }
        if self.evidence > 0 {
            rows.push(vec![
                "  Evidence".to_owned(),
                match self.evidence {
                    1 => "1 piece; `holdfast evidence list` names it".to_owned(),
                    more => format!("{more} pieces; `holdfast evidence list` names them"),
                },
            ]);
        }
        lines.push(table(&rows));
        if let Some(again) = self.status.engine.get("sent_again") {
            lines.extend(describe_sent_again(again));
        }
        let conflicts = self.status.write_back.iter().flat_map(|back| back.conflicts.iter().rev());
        for told in conflicts.take(ALARMS_SHOWN) {
            lines.push(format!("  Conflict, {}: {}: {}", moment(told.at_ns), told.path, told.what));
        }
        for alarm in self.alarms.iter().take(ALARMS_SHOWN) {
            lines.push(format!("  ALARM: {alarm}"));
        }
        if self.alarms.len() > ALARMS_SHOWN {
            lines.push(format!("  ({} more alarms)", self.alarms.len() - ALARMS_SHOWN));
        }
        lines.join("\n")
    }
}

/// Problems with resending this device's operations that a restore lost, one line each.
fn describe_sent_again(again: &Value) -> Vec<String> {
    let pairs = |name: &str| -> Vec<(String, String)> {
        again.get(name).cloned().and_then(|pairs| serde_json::from_value(pairs).ok()).unwrap_or_default()
    };
    let (conflicts, not_made) = (pairs("conflicts"), pairs("not_made"));
    let back = again.get("back").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let told = conflicts.iter().map(|(path, what)| format!("  Sent again: {path}: {what}"));
    let failed = not_made.iter().map(|(path, why)| format!("  Not sent again: {path}: {why}"));
    let back = back.map(|path| format!("  There again: {path}"));
    let lists: [Vec<String>; 3] = [failed.collect(), told.collect(), back.collect()];
    let cut = |list: Vec<String>| {
        let more = list.len().saturating_sub(ALARMS_SHOWN);
        let rest = (more > 0).then(|| format!("  ({more} more; the file beside what is kept lists them)"));
        list.into_iter().take(ALARMS_SHOWN).chain(rest)
    };
    lists.into_iter().flat_map(cut).collect()
}

/// What a mount does while no head is fresh enough; `None` if one is.
fn describe_stale(head: &Value) -> Option<&'static str> {
    let is_stale = head.get("is_stale").and_then(Value::as_bool)?;
    is_stale.then(|| match head.get("when_stale").and_then(Value::as_str) {
        Some("stop") => "STALE, and stopped: witnesses do not vouch for what the server shows (ETIMEDOUT)",
        Some("read-only") => "STALE, and read-only: witnesses do not vouch for what the server shows (EROFS)",
        _ => "STALE: witnesses do not vouch for what the server shows; it may be out of date",
    })
}

/// The newest head that witnesses vouch for, such as `12 operations, 3 s old (60 s allowed); 2 of 3 witnesses
/// vouch, 2 must`.
fn describe_head(head: &Value) -> Option<String> {
    let number = |name: &str| head.get(name).and_then(Value::as_u64);
    let age = match number("age_s") {
        Some(age_s) => format!("{} operations, {age_s} s old", number("operations")?),
        None => "none yet".to_owned(),
    };
    let trouble = match head.get("trouble").and_then(Value::as_str) {
        Some(trouble) => format!("; {trouble}"),
        None => String::new(),
    };
    Some(format!(
        "{age} ({} s allowed); {} of {} witnesses vouch, {} must{trouble}",
        number("stale_after_s")?,
        number("vouching")?,
        number("witnesses")?,
        number("quorum")?
    ))
}

/// What is measured of the link to the server, such as `TCP, round trip 45 ms, 0.4 Mbit/s up, 2% lost`.
fn describe_link(link: &Value) -> Option<String> {
    let number = |name: &str| link.get(name).and_then(Value::as_f64);
    let carrier =
        link.get("is_over_quic").and_then(Value::as_bool).map(|quic| if quic { "QUIC" } else { "TCP" });
    let mut parts: Vec<String> = carrier.map(str::to_owned).into_iter().collect();
    parts.push(match number("round_trip_us")? / 1e3 {
        short if short < 9.95 => format!("round trip {short:.1} ms"),
        long => format!("round trip {long:.0} ms"),
    });
    for (name, way) in [("sent_bytes_per_second", "up"), ("received_bytes_per_second", "down")] {
        let rate = number(name).map(|bytes| bytes * 8.0 / 1e6);
        parts.extend(rate.map(|mbit| match mbit {
            slow if slow < 9.95 => format!("{slow:.1} Mbit/s {way}"),
            fast => format!("{fast:.0} Mbit/s {way}"),
        }));
    }
    parts.extend(
        number("loss").filter(|loss| *loss >= 0.005).map(|loss| format!("{:.0}% lost", loss * 100.0)),
    );
    Some(parts.join(", "))
}

/// What waits to be sent, in words.
fn describe_write_back(back: &WriteBackStatus) -> String {
    let mut text = match (back.edits, back.oldest_ns) {
        (0, _) | (_, None) if back.gathering => {
            "changes are gathered; everything is at the server".to_owned()
        }
        (0, _) | (_, None) if back.gathers => "not now; everything is at the server".to_owned(),
        (0, _) | (_, None) => "everything is at the server".to_owned(),
        (edits, Some(since)) => {
            let some: Vec<&str> = back.paths.iter().take(5).map(String::as_str).collect();
            let more = if back.paths.len() > some.len() { ", ..." } else { "" };
            let paths = if some.is_empty() { String::new() } else { format!(": {}{more}", some.join(", ")) };
            format!(
                "{edits} changes since {} are not at the server yet{paths} ({} in the journal)",
                moment(since),
                mebibytes(back.journal_bytes)
            )
        }
    };
    if back.away && !back.gathers {
        text += "; the server is away, ";
        text += &match back.room_left {
            Some(left) if left < LITTLE_ROOM => {
                "and there is no room for more changes until it is back: writing fails (ENOSPC), removing works, and what \
                 was written is kept. The next mount can have more (--write-back-mib)"
                    .to_owned()
            }
            Some(left) => format!("work goes on without it; there is room for {} more", mebibytes(left)),
            None => "work goes on without it".to_owned(),
        };
    }
    if let Some(trouble) = &back.trouble {
        text += &format!("; the last attempt to send failed: {trouble}");
    }
    text
}

/// With less room for changes than this, in bytes, the report says that there is none.
const LITTLE_ROOM: u64 = 1 << 20;

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The command succeeds only if nothing is wrong.
fn verdict(report: &Report) -> Outcome {
    if report.processes.iter().any(|process| !process.alarms.is_empty()) {
        return Err(Failure::new(Exit::Alarm, "there are alarms"));
    }
    report.all_answer()?;
    if let Some(directory) = report.dead.first() {
        let message = format!("{}: the process that served this mount is gone", directory.display());
        return Err(Failure::new(Exit::Unavailable, message));
    }
    if let Some(process) = report.processes.iter().find(|process| process.is_excluded()) {
        let message = format!(
            "{}: this device was removed from the file system, or its key was replaced",
            process.status.address
        );
        return Err(Failure::new(Exit::NoUser, message).hint(
            "`holdfast salvage` tells what could not be saved; unmount, and mount with the new key if there is one",
        ));
    }
    let locked_out =
        |process: &&Process| process.status.engine.get("key_trouble").is_some_and(Value::is_string);
    if let Some(process) = report.processes.iter().find(locked_out) {
        let message = format!("{}: this device's key does not sign", process.status.address);
        return Err(Failure::new(Exit::Unavailable, message));
    }
    let stale =
        |process: &&Process| process.status.engine.pointer("/head/is_stale") == Some(&Value::Bool(true));
    if let Some(process) = report.processes.iter().find(stale) {
        let message = format!("{}: witnesses do not vouch for what the server shows", process.status.address);
        return Err(Failure::new(Exit::Unavailable, message));
    }
    let paused =
        |process: &&Process| process.status.engine.pointer("/peers/is_paused") == Some(&Value::Bool(true));
    if let Some(process) = report.processes.iter().find(paused) {
        let message = format!("{}: a peer that was met directly is silent", process.status.address);
        return Err(Failure::new(Exit::Unavailable, message));
    }
    let silent = |process: &&Process| process.status.engine.get("connected") == Some(&Value::Bool(false));
    match report.processes.iter().find(silent) {
        Some(process) => {
            let what = process.turned_away().map_or_else(
                || "the server does not answer".to_owned(),
                |answer| format!("the server turns this mount away: {answer}"),
            );
            Err(Failure::new(Exit::Unavailable, format!("{}: {what}", process.status.address)))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Proves: what was measured of a link is reported, and the rest is left out.
    #[test]
    fn links_in_words() {
        let all = json!({"is_over_quic": true, "round_trip_us": 45_300, "sent_bytes_per_second": 44_261,
            "received_bytes_per_second": 12_500_000, "loss": 0.12});
        let said = describe_link(&all);
        assert_eq!(said.as_deref(), Some("QUIC, round trip 45 ms, 0.4 Mbit/s up, 100 Mbit/s down, 12% lost"));
        let little = json!({"is_over_quic": false, "round_trip_us": 180, "sent_bytes_per_second": null,
            "received_bytes_per_second": null, "loss": 0.0});
        assert_eq!(describe_link(&little).as_deref(), Some("TCP, round trip 0.2 ms"));
        assert_eq!(describe_link(&Value::Null), None);
    }
}
