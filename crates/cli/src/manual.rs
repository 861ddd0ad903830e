//! Help, manual pages and completions, generated from the description of the command line.

use crate::args::{self, AnyCommand, Command, Completions, Help, Man};
use crate::output::{line, table};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use holdfast_failure::{Exit, Failure, Outcome};
use std::path::Path;

/// `holdfast help`
pub fn help(arguments: &Help) -> Outcome {
    if arguments.all {
        return line(&all());
    }
    if arguments.topic == ["exit-codes"] {
        return line(&exit_codes());
    }
    let topics: Vec<&str> = arguments.topic.iter().map(String::as_str).collect();
    let mut command = command(&topics).ok_or_else(|| {
        Failure::new(Exit::Usage, format!("there is no help about '{}'", topics.join(" ")))
            .hint("`holdfast help --all` lists the commands; another topic is exit-codes")
    })?;
    // At the top level, the short help is what people look for.
    let text = match topics.is_empty() {
        true => command.render_help(),
        false => command.render_long_help(),
    };
    line(text.to_string().trim_end())
}

/// All commands that do something by themselves, one a line, with the first sentence of their descriptions.
fn all() -> String {
    fn leaves(command: &clap::Command, name: &str, rows: &mut Vec<Vec<String>>) {
        if !command.is_subcommand_required_set() {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            let sentence = about.split(". ").next().unwrap_or_default();
            rows.push(vec![name.to_owned(), sentence.to_owned()]);
        }
        for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
            leaves(inner, &format!("{name} {}", inner.get_name()), rows);
        }
    }
    let mut rows = Vec::new();
    leaves(&args::command::<Command>(), "holdfast", &mut rows);
    format!("{}\n\n`holdfast COMMAND --help` has options and examples of each.", table(&rows))
}

/// The command with these words after `holdfast`; former spellings work too.
fn command(words: &[&str]) -> Option<clap::Command> {
    let mut root = args::command::<AnyCommand>();
    // Building fills in full names and the options that all commands share.
    root.build();
    words.iter().try_fold(root, |command, word| command.find_subcommand(word).cloned())
}

/// For a command line that lacks a subcommand (such as `holdfast volume`): its words, and the help about it.
/// The library prints help by itself only if no option is set, not even by the environment; otherwise its
/// message would name internal commands.
pub fn of_missing_command(error: &clap::Error) -> Option<(String, clap::builder::StyledStr)> {
    let Some(ContextValue::String(said)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    let words: Vec<&str> = said.split(' ').skip(1).collect();
    let mut command = command(&words).filter(|_| error.kind() == ErrorKind::MissingSubcommand)?;
    Some((said.clone(), command.render_help()))
}

/// `holdfast completions`
pub fn completions(arguments: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut args::command::<Command>(), "holdfast", &mut script);
    line(String::from_utf8_lossy(&script).trim_end())
}

/// `holdfast man`
pub fn man(arguments: &Man) -> Outcome {
    match &arguments.to {
        Some(directory) => pages(directory),
        None => line(markdown().trim_end()),
    }
}

/// The list of exit codes and their meanings.
pub fn exit_codes() -> String {
    let rows: Vec<Vec<String>> =
        Exit::ALL.iter().map(|code| vec![format!("{:>3}", *code as u8), code.meaning().to_owned()]).collect();
    format!(
        "Exit codes of holdfast (64 to 78 are sysexits.h's, 79 and 80 its own):\n\n{}\n\nWith --json, errors are printed to \
         standard error as {{\"error\": {{\"exit_code\", \"code\", \"message\", \"hint\"}}}}.",
        table(&rows)
    )
}

fn pages(directory: &Path) -> Outcome {
    let failed =
        |error: std::io::Error| Failure::new(Exit::CannotCreate, format!("{}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    clap_mangen::generate_to(args::command::<Command>(), directory).map_err(failed)?;
    let mut page = clap_mangen::roff::Roff::new();
    page.control("TH", ["holdfast-exit-codes", "1"]);
    page.control("SH", ["NAME"]);
    page.text([clap_mangen::roff::roman("holdfast-exit-codes - what the exit codes of holdfast mean")]);
    page.control("SH", ["EXIT CODES"]);
    for code in Exit::ALL {
        page.control("TP", []);
        page.text([clap_mangen::roff::bold((code as u8).to_string())]);
        page.text([clap_mangen::roff::roman(code.meaning())]);
    }
    std::fs::write(directory.join("holdfast-exit-codes.1"), page.render()).map_err(failed)
}

/// The whole manual, as Markdown.
pub fn markdown() -> String {
    let mut root = args::command::<Command>().term_width(100);
    root.build();
    let mut text = String::from(
        "# Manual\n\nThis is what `--help` says, command by command. It is made by `holdfast man --markdown`.\n",
    );
    describe(&mut root, "holdfast", &mut text);
    text.push_str("\n## Exit codes\n\n```text\n");
    text.push_str(&exit_codes());
    text.push_str("\n```\n");
    text
}

fn describe(command: &mut clap::Command, name: &str, text: &mut String) {
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## `{name}`\n\n```text\n{}\n```\n", lines.join("\n")));
    let names: Vec<String> = command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
        .map(|inner| inner.get_name().to_owned())
        .collect();
    for inner in names {
        if let Some(command) = command.find_subcommand_mut(&inner) {
            describe(command, &format!("{name} {inner}"), text);
        }
    }
}
