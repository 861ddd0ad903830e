//! `holdfast volume`: disks and images whose every block is verified.

mod anchor;
pub mod args;
mod attach;
mod card;
mod devices;
mod export;
mod host;
mod media;
mod memory;
mod moving;
mod opening;
mod places;
mod plain;
mod protect;
mod repair;
mod scrub;
mod secret;
mod served;
mod sessions;
mod status;
mod tpm;
mod watchdog;

use crate::control::Client;
use crate::exit::Outcome;
use crate::output::Format;
use crate::paths::Directories;
use args::VolumeCommand;
use places::Place;
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
        VolumeCommand::Anchor(arguments) => anchor::run(&arguments.command, directories, format),
        VolumeCommand::Forget(arguments) => plain::forget(arguments, directories, format),
    }
}

/// Where a volume is attached: the directory, the file and the device of it.
fn attached_at(place: &Place) -> Vec<PathBuf> {
    let Ok(Some(process)) = Client::connect(&place.directory) else { return Vec::new() };
    let status: Outcome<status::VolumeStatus> = process.call(&host::Order::Status);
    let export = status.ok().and_then(|status| status.attached).map(|attached| attached.export);
    export.map_or(Vec::new(), |export| vec![export.directory, export.path])
}
