//! The help at the top.

use super::Command;
use clap::Subcommand;

/// The commands that the help at the top shows, by who uses them. `holdfast help --all` has the others too.
const READERS: [(&str, &[&str]); 5] = [
    (
        "Working with files",
        &["keygen", "mount", "umount", "status", "history", "restore", "snapshot", "conflicts", "salvage"],
    ),
    ("For administrators", &["fs", "server"]),
    ("For publishers", &["release"]),
    ("Disks and programs", &["volume", "program"]),
    ("Looking closer", &["cache", "evidence"]),
];

/// How the help at the top is laid out: [`READERS`], one command a line, between usage and options.
pub fn template() -> String {
    let commands = Command::augment_subcommands(clap::Command::new("holdfast"));
    let width = READERS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or(0);
    let mut text = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (readers, names) in READERS {
        text += &format!("\n{readers}:\n");
        for name in names {
            let about = commands.find_subcommand(name).and_then(clap::Command::get_about);
            text += &format!("  {name:width$}  {}\n", about.map(ToString::to_string).unwrap_or_default());
        }
    }
    text + "\nOptions:\n{options}{after-help}"
}
