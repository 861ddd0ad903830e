//! `holdfast release`: keys, renewals, revocations and signatures of signed releases.

pub mod args;
mod keys;
mod renew;
mod revoke;
mod settling;
mod show;
mod sign;

use crate::output::Format;
use crate::{gateway, image, publish, pull, reading, serve};
use args::{KeysCommand, Release, ReleaseCommand};
use holdfast_daemon::paths::Directories;
use holdfast_failure::Outcome;

/// `holdfast release`
pub fn run(arguments: &Release, directories: &Directories, format: Format) -> Outcome {
    match &arguments.command {
        ReleaseCommand::Publish(arguments) => publish::run(arguments, directories, format),
        ReleaseCommand::Ls(arguments) => reading::ls(arguments, directories, format),
        ReleaseCommand::Cat(arguments) => reading::cat(arguments, directories),
        ReleaseCommand::Get(arguments) => reading::get(arguments, directories, format),
        ReleaseCommand::Verify(arguments) => reading::verify(arguments, directories, format),
        ReleaseCommand::Export(arguments) => image::export(arguments, directories, format),
        ReleaseCommand::Pull(arguments) => pull::run(arguments, directories, format),
        ReleaseCommand::Serve(arguments) => serve::run(arguments),
        ReleaseCommand::Gateway(arguments) => gateway::run(arguments, directories),
        ReleaseCommand::Keys(keys) => match &keys.command {
            KeysCommand::Init(arguments) => keys::init(arguments, format),
            KeysCommand::Rotate(arguments) => keys::rotate(arguments, format),
        },
        ReleaseCommand::Renew(arguments) => renew::renew(arguments, format),
        ReleaseCommand::Revoke(arguments) => revoke::revoke(arguments, format),
        ReleaseCommand::Sign(arguments) => sign::sign(arguments, format),
        ReleaseCommand::Show(arguments) => show::show(arguments, format),
    }
}
