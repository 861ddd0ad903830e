//! Former spellings: commands that stood at the top before they were grouped under nouns. They are parsed by the same
//! argument types and become the same commands, and are in no help, manual or completion.

use super::{Command, Evidence, EvidenceCommand, Fs, FsCommand, Volume, VolumeCommand};
use crate::programs::args::{self as programs, Program, ProgramCommand};
use crate::reading::args as reading;
use crate::release::args::{Release, ReleaseCommand};
use clap::Subcommand;

/// All that is understood at the top of a command line.
#[derive(Debug, Subcommand)]
pub enum AnyCommand {
    /// A command as it is documented.
    #[command(flatten)]
    Command(Box<Command>),
    /// A command by its former spelling.
    #[command(flatten)]
    Former(Box<FormerCommand>),
    /// (The process that removes mounts of a process that died.)
    #[command(hide = true)]
    Watch,
}

/// Commands by their former spellings.
#[derive(Debug, Subcommand)]
pub enum FormerCommand {
    /// Former spelling of `holdfast server blocks`.
    #[command(hide = true)]
    Blocks(Box<super::Blocks>),
    /// Former spelling of `holdfast fs import`.
    #[command(hide = true)]
    Import(crate::import::args::Import),
    /// Former spelling of `holdfast fs stats`.
    #[command(hide = true)]
    Stats(super::Stats),
    /// Former spelling of `holdfast fs reclaim`.
    #[command(hide = true)]
    Reclaim(super::Reclaim),
    /// Former spelling of `holdfast fs state`.
    #[command(hide = true)]
    State(crate::state::StateArguments),
    /// Former spelling of `holdfast release publish`.
    #[command(hide = true)]
    Publish(reading::Publish),
    /// Former spelling of `holdfast release ls`.
    #[command(hide = true)]
    Ls(reading::Ls),
    /// Former spelling of `holdfast release cat`.
    #[command(hide = true)]
    Cat(reading::Cat),
    /// Former spelling of `holdfast release get`.
    #[command(hide = true)]
    Get(reading::Get),
    /// Former spelling of `holdfast release verify`.
    #[command(hide = true)]
    Verify(reading::Verify),
    /// Former spelling of `holdfast release export`.
    #[command(hide = true)]
    Export(crate::image::args::Export),
    /// Former spelling of `holdfast release pull`.
    #[command(hide = true)]
    Pull(reading::Pull),
    /// Former spelling of `holdfast release serve`.
    #[command(hide = true)]
    Serve(super::Serve),
    /// Former spelling of `holdfast release gateway`.
    #[command(hide = true)]
    Gateway(super::Gateway),
    /// Former spelling of `holdfast program acl`.
    #[command(hide = true)]
    Acl(programs::Acl),
    /// Former spelling of `holdfast program why`.
    #[command(hide = true)]
    Why(programs::Why),
    /// Former spelling of `holdfast program run`.
    #[command(hide = true)]
    Run(programs::Run),
    /// Former spelling of `holdfast program callers`.
    #[command(hide = true)]
    Callers(programs::Callers),
    /// Former spelling of `holdfast volume owner`.
    #[command(hide = true)]
    Owner(programs::Owner),
    /// Former spelling of `holdfast volume credential`.
    #[command(hide = true)]
    Credential(programs::Credential),
    /// Former spelling of `holdfast evidence peers`.
    #[command(hide = true)]
    Peers(crate::peers::args::Peers),
}

impl From<FormerCommand> for Command {
    fn from(former: FormerCommand) -> Command {
        let fs = |command| Command::Fs(Fs { command });
        let release = |command| Command::Release(Release { command });
        let program = |command| Command::Program(Program { command });
        let volume = |command| Command::Volume(Volume { command });
        match former {
            FormerCommand::Blocks(arguments) => Command::Blocks(arguments),
            FormerCommand::Import(arguments) => fs(FsCommand::Import(arguments)),
            FormerCommand::Stats(arguments) => fs(FsCommand::Stats(arguments)),
            FormerCommand::Reclaim(arguments) => fs(FsCommand::Reclaim(arguments)),
            FormerCommand::State(arguments) => fs(FsCommand::State(arguments)),
            FormerCommand::Publish(arguments) => release(ReleaseCommand::Publish(arguments)),
            FormerCommand::Ls(arguments) => release(ReleaseCommand::Ls(arguments)),
            FormerCommand::Cat(arguments) => release(ReleaseCommand::Cat(arguments)),
            FormerCommand::Get(arguments) => release(ReleaseCommand::Get(arguments)),
            FormerCommand::Verify(arguments) => release(ReleaseCommand::Verify(arguments)),
            FormerCommand::Export(arguments) => release(ReleaseCommand::Export(arguments)),
            FormerCommand::Pull(arguments) => release(ReleaseCommand::Pull(arguments)),
            FormerCommand::Serve(arguments) => release(ReleaseCommand::Serve(arguments)),
            FormerCommand::Gateway(arguments) => release(ReleaseCommand::Gateway(arguments)),
            FormerCommand::Acl(arguments) => program(ProgramCommand::Acl(arguments)),
            FormerCommand::Why(arguments) => program(ProgramCommand::Why(arguments)),
            FormerCommand::Run(arguments) => program(ProgramCommand::Run(arguments)),
            FormerCommand::Callers(arguments) => program(ProgramCommand::Callers(arguments)),
            FormerCommand::Owner(arguments) => volume(VolumeCommand::Owner(arguments)),
            FormerCommand::Credential(arguments) => volume(VolumeCommand::Credential(arguments)),
            FormerCommand::Peers(arguments) => {
                Command::Evidence(Evidence { command: EvidenceCommand::Peers(arguments) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AnyCommand, Command};
    use crate::args::{Cli, Server, ServerCommand};
    use clap::{CommandFactory, Parser};
    use std::collections::BTreeSet;

    /// A former spelling, the present one, and command lines that follow either.
    const SPELLINGS: [(&str, &str, &[&str]); 21] = [
        (
            "blocks",
            "server blocks",
            &["--data /d --allow KEY --listen [::]:1 --keep-deleted 3", "key --data /d"],
        ),
        (
            "import",
            "fs import",
            &["from hf://h/f/p --key k --replace --parallel 3", "--dry-run --delete a b"],
        ),
        ("stats", "fs stats", &["", "dir --watch --interval 2 --json", "--all"]),
        ("reclaim", "fs reclaim", &["", "dir --dry-run"]),
        ("state", "fs state", &["export hf://h/f --key k --to t", "import file --key k"]),
        (
            "publish",
            "release publish",
            &["dir --key a --key b --to r --keep 7", "hf://h/f/d --as d --key k --to r"],
        ),
        ("ls", "release ls", &["-l hf+release:1@m sub --mirror x", "m --id 1 --cache /c"]),
        ("cat", "release cat", &["m a b --id 1"]),
        ("get", "release get", &["m . to --id 1 --allow-stale"]),
        ("verify", "release verify", &["m", "m p --id 1 --as-of 2026-11-21"]),
        ("export", "release export", &["m --to d --prune"]),
        ("pull", "release pull", &["m d --quick --keep 3 --from a --from b"]),
        ("serve", "release serve", &["d", "d --listen [::]:80 --threads 2"]),
        ("gateway", "release gateway", &["m --host a --host b --listen 127.0.0.1:1"]),
        (
            "acl",
            "program acl",
            &["set -r f prog:/bin/sh=r any=rw", "get f", "show f", "remove f any", "clear f"],
        ),
        ("why", "program why", &["f", "f 4711"]),
        ("run", "program run", &["-- /bin/a --b --json", "--as any /bin/a -c --callers"]),
        ("callers", "program callers", &["", "--socket /s"]),
        ("owner", "volume owner", &["show f", "give f --to bob", "accept f"]),
        (
            "credential",
            "volume credential",
            &["issue --key k --to user:b --may read,write --out o", "show f"],
        ),
        ("peers", "evidence peers", &["d", "go-on d", "--json d"]),
    ];

    /// What a command line becomes, in full, or what is wrong with it. What serves blocks is taken out of the options of
    /// `holdfast server`, which a former spelling does not have.
    fn parsed(global: &str, spelling: &str, rest: &str) -> String {
        let line = format!("holdfast {global} {spelling} {rest}");
        let cli = match Cli::<AnyCommand>::try_parse_from(line.split_whitespace()) {
            Ok(cli) => cli,
            Err(error) => return error.kind().to_string(),
        };
        let rest = format!("{:?} {} {}", cli.directories, cli.json, cli.require_sandbox);
        let command = match cli.command {
            AnyCommand::Command(command) => *command,
            AnyCommand::Former(former) => (*former).into(),
            AnyCommand::Watch => panic!("{line}"),
        };
        match command {
            Command::Server(Server { command: Some(ServerCommand::Blocks(blocks)), .. }) => {
                format!("{:?} {rest}", Command::Blocks(blocks))
            }
            command => format!("{command:?} {rest}"),
        }
    }

    /// Each former spelling is parsed to what the present one is parsed to, options for all commands included, before it
    /// and behind it; and what one refuses the other refuses alike.
    #[test]
    fn former_spellings_are_parsed_alike() {
        for (former, present, lines) in SPELLINGS {
            for line in lines {
                for global in ["", "--json", "--state /s --cache=/c"] {
                    let (old, new) = (parsed(global, former, line), parsed(global, present, line));
                    assert_eq!(old, new, "{global} {former} {line}");
                    assert!(old.contains("DirectoryArguments {"), "{former} {line}: {old}");
                }
            }
            for wrong in ["--no-such-option", "--json=x", "a b c d e f", "--help", "--version"] {
                assert_eq!(parsed("", former, wrong), parsed("", present, wrong), "{former} {wrong}");
            }
        }
    }

    /// The list above has every former spelling, none of them is documented, and the command line is well formed.
    #[test]
    fn all_former_spellings_are_hidden() {
        Cli::<AnyCommand>::command().debug_assert();
        let names = |command: &clap::Command| -> BTreeSet<String> {
            command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect()
        };
        let (any, documented) = (Cli::<AnyCommand>::command(), Cli::<Command>::command());
        let more: BTreeSet<String> = names(&any).difference(&names(&documented)).cloned().collect();
        let listed = SPELLINGS.iter().map(|(former, ..)| (*former).to_owned());
        assert_eq!(more, listed.chain(["watch".to_owned()]).collect());
        for name in &more {
            assert!(any.find_subcommand(name).is_some_and(clap::Command::is_hide_set), "{name}");
        }
        assert!(documented.get_subcommands().all(|command| !command.is_hide_set()));
    }
}
