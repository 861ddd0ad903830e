//! `holdfast volume`: disks and images whose every block is verified.

mod anchors;
pub mod args;
mod attach;
mod attached;
pub mod interrupt;
pub mod log;
mod moving;
mod plain;
mod protect;
mod repair;
mod scrub;
mod status;

use crate::card;
use crate::output::Format;
use args::VolumeCommand;
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;

/// Runs a command about volumes.
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
