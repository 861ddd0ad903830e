//! The features that this program was built with (`[features]` in Cargo.toml). If a feature was left out, its
//! commands and options appear in no help, manual page or completion, and using them results in an
//! explanation.

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use holdfast_failure::{Failure, built_without};
use serde::Serialize;
use std::ffi::OsString;

/// A feature, and its parts of the command line.
struct Feature {
    name: &'static str,
    is_built: bool,
    /// Its commands, each as the words after `holdfast`; former spellings too.
    commands: &'static [&'static [&'static str]],
    /// Its options of a command that exists without it.
    options: Option<(&'static [&'static str], &'static [&'static str])>,
}

const FEATURES: [Feature; 4] = [
    Feature {
        name: "card",
        is_built: cfg!(feature = "card"),
        commands: &[
            &["volume", "format"],
            &["volume", "adopt"],
            &["volume", "mount"],
            &["volume", "owner"],
            &["volume", "credential"],
            &["owner"],
            &["credential"],
        ],
        options: None,
    },
    Feature {
        name: "convert",
        is_built: cfg!(feature = "convert"),
        commands: &[&["server", "convert"]],
        options: None,
    },
    Feature {
        name: "peers",
        is_built: cfg!(feature = "peers"),
        commands: &[&["evidence", "peers"], &["peers"]],
        options: Some((
            &["mount"],
            &["peers", "peers_listen", "no_beacon", "peer_timeout", "when_peer_lost"],
        )),
    },
    Feature {
        name: "ublk",
        is_built: cfg!(feature = "ublk"),
        commands: &[],
        options: Some((&["volume", "attach"], &["ublk"])),
    },
];

fn left_out() -> impl Iterator<Item = &'static Feature> {
    FEATURES.iter().filter(|feature| !feature.is_built)
}

/// What `--version` prints.
#[derive(Serialize)]
pub struct VersionOutput {
    version: &'static str,
    features: Vec<&'static str>,
    left_out: Vec<&'static str>,
}

/// Version and features.
pub fn version() -> VersionOutput {
    let (built, absent): (Vec<_>, Vec<_>) = FEATURES.iter().partition(|feature| feature.is_built);
    let names = |features: Vec<&Feature>| features.iter().map(|feature| feature.name).collect();
    VersionOutput { version: env!("CARGO_PKG_VERSION"), features: names(built), left_out: names(absent) }
}

impl VersionOutput {
    /// Version and features, for people.
    pub fn words(&self) -> String {
        let list = |names: &[&str]| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
        let (features, left_out) = (list(&self.features), list(&self.left_out));
        format!("holdfast {}\nbuilt with: {features}\nleft out: {left_out}", self.version)
    }
}

/// Hides what was left out from the help of a command line, which still parses it.
pub fn fit(command: Command) -> Command {
    left_out().fold(command, without)
}

fn without(command: Command, feature: &Feature) -> Command {
    let words = format!("This holdfast was built without {}.", feature.name);
    let mut command = command;
    for path in feature.commands {
        command = at(command, path, &|command| command.hide(true).before_help(words.clone()));
    }
    let Some((path, options)) = feature.options else { return command };
    at(command, path, &|command| {
        let shown = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let options = options.iter();
        options
            .fold(command, |command, option| command.mut_arg(option, |option| option.hide(true)))
            .after_help(format!("{shown}\n\n{words}").trim_start().to_owned())
    })
}

/// Changes a command within another, if it exists.
fn at(command: Command, path: &[&str], change: &dyn Fn(Command) -> Command) -> Command {
    match path {
        [] => change(command),
        [first, rest @ ..] if command.find_subcommand(first).is_some() => {
            command.mut_subcommand(first, |inner| at(inner, rest, change))
        }
        _ => command,
    }
}

/// The failure for a command line that uses a feature that was left out, even if the command line has other
/// errors too.
pub fn refusal(command: Command, arguments: impl Iterator<Item = OsString>) -> Option<Failure> {
    left_out().next()?;
    let matches = command.ignore_errors(true).try_get_matches_from(arguments).ok()?;
    left_out().find(|feature| feature.is_asked_for(&matches)).map(|feature| built_without(feature.name))
}

impl Feature {
    fn is_asked_for(&self, matches: &ArgMatches) -> bool {
        let (mut path, mut innermost) = (Vec::new(), matches);
        while let Some((name, inner)) = innermost.subcommand() {
            path.push(name);
            innermost = inner;
        }
        let is_given = |option: &&str| innermost.value_source(option) == Some(ValueSource::CommandLine);
        self.commands.iter().any(|command| path.starts_with(command))
            || self.options.is_some_and(|(command, options)| path == command && options.iter().any(is_given))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{AnyCommand, Cli};
    use clap::CommandFactory;

    /// Proves: everything that can be left out is a command or an option, is recognised by its words alone,
    /// and is in no help once it is left out.
    #[test]
    fn what_can_be_left_out() {
        let whole = Cli::<AnyCommand>::command();
        let asked = |feature: &Feature, words: &[&str]| {
            let words = ["holdfast"].iter().chain(words);
            let matches = whole.clone().ignore_errors(true).try_get_matches_from(words).expect("no help");
            feature.is_asked_for(&matches)
        };
        for feature in &FEATURES {
            let small = without(whole.clone(), feature);
            let find = |path: &[&str]| {
                path.iter()
                    .try_fold(&small, |command, word| command.find_subcommand(word))
                    .expect("a command")
            };
            for path in feature.commands {
                assert!(find(path).is_hide_set(), "{path:?}");
                assert!(asked(feature, path), "{path:?}");
            }
            assert!(!asked(feature, &["volume", "attach", "disk.img"]));
            let Some((path, options)) = feature.options else { continue };
            let command = find(path);
            for option in options {
                let option = command.get_arguments().find(|one| one.get_id() == option).expect("an option");
                assert!(option.is_hide_set(), "{option}");
                let long = format!("--{}", option.get_long().expect("it is long"));
                assert!(asked(feature, &[path, &[&long[..]]].concat()), "{long}");
            }
            assert!(command.get_after_help().is_some_and(|help| help.to_string().contains("built without")));
        }
    }
}
