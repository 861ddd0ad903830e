//! `holdfast volume repair`: repairs bad blocks from a copy of the disk, which need not be trusted.

use super::args;
use super::attach;
use super::attached::attached_at;
use super::status::bad_blocks;
use crate::output::{Format, progress};
use holdfast_daemon::control::Client;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::{VolumeFolders, absolute};
use holdfast_daemon::volumes::requests::Repair;
use holdfast_failure::{Exit, Failure, Outcome};

/// `holdfast volume repair`
pub fn run(arguments: &args::Repair, directories: &Directories, format: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let (place, about) = places.find(&arguments.which.volume, attached_at)?;
    if !arguments.from.exists() {
        let message = format!("{}: there is no such file", arguments.from.display());
        return Err(Failure::new(Exit::NoInput, message));
    }
    let process = Client::connect(&place.directory)?.ok_or_else(|| attach::not_attached(&about.disk))?;
    let bar = progress("repairing");
    let done = process.call(&Repair { from: absolute(&arguments.from) });
    bar.finish_and_clear();
    let done = done?;
    format.print(&done, |done| {
        format!("{} blocks are good again, {} are bad", done.repaired.len(), done.left.len())
    })?;
    match done.left.len() {
        0 => Ok(()),
        left => Err(bad_blocks(&about.disk, left)),
    }
}
