//! `holdfast volume`: disks and images whose every block is verified.

mod anchors;
pub mod args;
mod attach;
mod card;
mod moving;
mod plain;
mod protect;
mod repair;
mod scrub;
mod sessions;
mod status;

use crate::control::Client;
use crate::exit::Outcome;
use crate::output::Format;
use crate::paths::Directories;
use args::VolumeCommand;
use holdfast_daemon::volumes::folders::VolumeFolder;
use holdfast_daemon::volumes::requests::Status;
use holdfast_daemon::volumes::{anchor, folders, media, opening, secret, tpm};
use std::path::PathBuf;

/// Runs one of its commands.
pub fn run(command: &VolumeCommand, directories: &Directories, format: Format) -> Outcome {
    match command {
        VolumeCommand::Protect(arguments) => protect::run(arguments, directories, format),
        VolumeCommand::Attach(arguments) => attach::attach(arguments, directories, format),
        VolumeCommand::Format(arguments) => card::format(arguments, directories, format),
        VolumeCommand::Adopt(arguments) => card::adopt(arguments, directories, format),
        VolumeCommand::Mount(arguments) => card::mount(arguments, directories, format),
        VolumeCommand::Detach(arguments) => attach::detach(arguments, directories, format),
        VolumeCommand::List => status::list(directories, format),
        VolumeCommand::Status(arguments) => status::run(arguments, directories, format),
        VolumeCommand::Scrub(arguments) => scrub::run(arguments, directories, format),
        VolumeCommand::Repair(arguments) => repair::run(arguments, directories, format),
        VolumeCommand::Recover(arguments) => plain::recover(arguments, directories, format),
        VolumeCommand::Rekey(arguments) => moving::rekey(arguments, directories, format),
        VolumeCommand::Resize(arguments) => moving::resize(arguments, directories, format),
        VolumeCommand::Unprotect(arguments) => plain::unprotect(arguments, directories, format),
        VolumeCommand::Anchor(arguments) => anchors::run(&arguments.command, directories, format),
        VolumeCommand::Forget(arguments) => plain::forget(arguments, directories, format),
    }
}

/// Where a volume is attached: the directory, the file and the device of it.
fn attached_at(folder: &VolumeFolder) -> Vec<PathBuf> {
    let Ok(Some(process)) = Client::connect(&folder.directory) else { return Vec::new() };
    let export =
        process.call(&Status).ok().and_then(|status| status.attached).map(|attached| attached.export);
    export.map_or(Vec::new(), |export| vec![export.directory, export.path])
}
