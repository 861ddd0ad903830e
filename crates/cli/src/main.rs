//! The `holdfast` command: parses arguments, calls the other crates, and prints text or JSON. It decides
//! nothing about file systems. It makes sure that every failure states what happened, to what, and what can
//! be done, with a meaningful exit code ([`Exit`]).
#![forbid(unsafe_code)]

mod admin;
mod args;
mod automount;
mod blocks;
mod bucket;
mod cache;
#[cfg_attr(not(feature = "card"), path = "without/card.rs")]
mod card;
mod components;
mod conflicts;
mod evidence;
mod features;
mod gateway;
mod history;
mod image;
mod import;
mod key_user;
mod keygen;
mod listening;
mod live;
mod manual;
mod mount;
mod output;
mod peers;
mod programs;
mod publish;
mod pull;
mod quota;
mod reading;
mod reclaim;
mod recovery;
mod release;
mod revoked;
mod salvage;
mod serve;
mod server;
mod serving;
mod state;
mod stats;
mod status;
mod unrepeated;
mod volume;
mod which;
mod witness;

use args::{AnyCommand, Cli, Command, VolumeCommand};
use clap::error::ErrorKind;
use holdfast_daemon::watch;
use holdfast_failure::{Exit, Failure, Outcome};
use output::Format;
use std::process::ExitCode;

fn main() -> ExitCode {
    // If this process is to be a component, it enters its sandbox before anything else.
    if let Some(code) = holdfast_components::run_if_component(&components::table_of_components()) {
        return code;
    }
    if let Some(code) = holdfast_fuse::run_if_looking() {
        return code;
    }
    let mut arguments = std::env::args_os();
    if arguments.next().is_some_and(|name| mount::helper::is_meant(&name)) {
        return mount::helper::main(arguments);
    }
    let is_json = || std::env::args_os().any(|argument| argument == "--json");
    if let Some(failure) = features::refusal(args::command::<AnyCommand>(), std::env::args_os()) {
        (if is_json() { Format::Json } else { Format::Text }).print_failure(&failure);
        return ExitCode::from(failure.code as u8);
    }
    let cli = match args::parse() {
        Ok(cli) => cli,
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            let format = if is_json() { Format::Json } else { Format::Text };
            let printed = format.print(&features::version(), features::VersionOutput::words);
            return ExitCode::from(printed.map_or_else(|failure| failure.code, |()| Exit::Done) as u8);
        }
        Err(error) => {
            let asked = error.kind() == ErrorKind::DisplayHelp;
            let is_json = is_json();
            match manual::of_missing_command(&error) {
                _ if asked => drop(error.print()),
                Some((command, _)) if is_json => {
                    let message = format!("'{command}' needs a command");
                    let hint = format!("`{command} --help` lists them");
                    Format::Json.print_failure(&Failure::new(Exit::Usage, message).hint(hint));
                }
                Some((_, help)) => eprint!("{help}"),
                // In this case clap displays help, which is not an error message.
                None if is_json && error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                    let failure = Failure::new(Exit::Usage, "a command is missing");
                    Format::Json.print_failure(&failure.hint("`holdfast help --all` lists them"));
                }
                None if is_json => {
                    let text = error.render().to_string();
                    let text = text.trim().trim_start_matches("error: ");
                    Format::Json.print_failure(&Failure::new(Exit::Usage, text));
                }
                None => drop(error.print()),
            }
            return ExitCode::from(if asked { Exit::Done as u8 } else { Exit::Usage as u8 });
        }
    };
    cli.heed();
    let format = if cli.json { Format::Json } else { Format::Text };
    match run(cli, format) {
        Ok(()) => ExitCode::from(Exit::Done as u8),
        Err(failure) => {
            format.print_failure(&failure);
            ExitCode::from(failure.code as u8)
        }
    }
}

fn run(cli: Cli<AnyCommand>, format: Format) -> Outcome {
    let directories = &cli.directories.chosen();
    let command = match cli.command {
        AnyCommand::Watch => return watch::watch(),
        AnyCommand::Command(command) => *command,
        AnyCommand::Former(former) => (*former).into(),
    };
    match &command {
        Command::Keygen(arguments) => keygen::run(arguments, format),
        Command::Mount(arguments) => mount::mount(arguments, directories, format),
        Command::Umount(arguments) => mount::umount(arguments, directories, format),
        Command::Status(arguments) => status::status(arguments, directories, format),
        Command::History(arguments) => history::versions(arguments, directories, format),
        Command::Restore(arguments) => history::restore::run(arguments, directories, format),
        Command::Snapshot(arguments) => history::snapshot(arguments, directories, format),
        Command::Conflicts(arguments) => conflicts::run(arguments, directories, format),
        Command::Salvage(arguments) => salvage::run(arguments, directories, format),
        Command::Fs(arguments) => admin::run(&arguments.command, directories, format),
        Command::Server(arguments) => server::run(arguments, directories, format),
        Command::Release(arguments) => release::run(arguments, directories, format),
        Command::Volume(arguments) => match &arguments.command {
            VolumeCommand::Whole(command) => volume::run(command, directories, format),
            VolumeCommand::Owner(arguments) => card::owner(arguments, format),
            VolumeCommand::Credential(arguments) => card::credential(arguments, format),
        },
        Command::Program(arguments) => programs::program(arguments, directories, format),
        Command::Cache(arguments) => cache::run(arguments, directories, format),
        Command::Evidence(arguments) => evidence::run(arguments, directories, format),
        Command::Witness(arguments) => witness::run(arguments, format),
        Command::Automount(arguments) => automount::run(arguments, directories, format),
        Command::Components(arguments) => components::run(arguments, format),
        Command::Completions(arguments) => manual::completions(arguments),
        Command::Man(arguments) => manual::man(arguments),
        Command::Help(arguments) => manual::help(arguments),
        Command::Blocks(arguments) => blocks::run(arguments, format),
    }
}
