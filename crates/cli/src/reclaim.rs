//! `holdfast fs reclaim`: removing files that no directory names any more.

use crate::args::Reclaim;
use crate::output::{Format, progress};
use crate::serving::processes;
use holdfast_client::ReclaimReport;
use holdfast_daemon::mounts::requests;
use holdfast_daemon::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use serde::Serialize;

#[derive(Serialize)]
struct ReclaimOutput {
    file_system: String,
    dry_run: bool,
    #[serde(flatten)]
    reclaimed: ReclaimReport,
}

/// `holdfast fs reclaim`
pub fn run(arguments: &Reclaim, directories: &Directories, format: Format) -> Outcome {
    let mut all = Vec::new();
    for process in processes(arguments.which.as_deref(), directories)? {
        let bar = progress("looking at every file");
        let answer = process.call(&requests::Reclaim { dry_run: arguments.dry_run })?;
        bar.finish_and_clear();
        let reclaimed = answer.ok_or_else(|| {
            Failure::new(Exit::InUse, format!("{}: it is changed all the time; try again", process.address))
        })?;
        all.push(ReclaimOutput { file_system: process.address, dry_run: arguments.dry_run, reclaimed });
    }
    format.print(&all, |all| match all.is_empty() {
        true => "Nothing is mounted.".to_owned(),
        false => all.iter().map(ReclaimOutput::describe).collect::<Vec<_>>().join("\n"),
    })
}

impl ReclaimOutput {
    fn describe(&self) -> String {
        let ReclaimReport { inodes, files, detached } = &self.reclaimed;
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let verb = if self.dry_run { "to be removed" } else { "removed" };
        let mut text = format!(
            "{}\n  {inodes} files and directories looked at; {} without a name {verb} ({bytes} bytes)",
            self.file_system,
            files.len()
        );
        if !detached.is_empty() {
            text += &format!(
                "\n  {} directories have no name any more, but files in them; they are left alone (numbers: {})",
                detached.len(),
                detached.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
            );
        }
        text
    }
}
