//! Untarring, configuring, compiling, installing and cleaning a real C program (SUNDR 7.3.3, figure 11), on mounted
//! file systems side by side; with several clients, each in a directory of its own at once (figure 12).

use crate::sides::{Round, Side, Sides};
use anyhow::{Context, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of the package benchmark.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Example: holdfast-bench package --archive hello.tar.gz --side holdfast=/mnt/a/team --side sshfs=/mnt/sshfs\n\
    `scripts/bench-mounts` sets up mounts to compare and runs it."
)]
pub struct Options {
    #[command(flatten)]
    sides: Sides,
    /// Source archive (tar) of a program with a ./configure, with one directory in it.
    #[arg(long)]
    archive: PathBuf,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let archive =
        fs::canonicalize(&options.archive).with_context(|| options.archive.display().to_string())?;
    options.sides.compare(|side, number, round| measure(&archive, side, number, round))
}

fn measure(archive: &Path, side: &Side, number: usize, round: &mut Round<'_>) -> anyhow::Result<()> {
    let folder = |client: usize| format!("package-{}-{number}-{client}", std::process::id());
    let folders: Vec<PathBuf> =
        side.clients.iter().enumerate().map(|(client, directory)| directory.join(folder(client))).collect();
    folders.iter().try_for_each(fs::create_dir)?;
    round.all("untar", 1, &folders, |_, folder| {
        shell(folder, &format!("tar -xf '{}' --strip-components=1", archive.display()))
    })?;
    // Running as root is what some packages refuse to be configured for.
    round.all("configure", 1, &folders, |_, folder| {
        shell(folder, "FORCE_UNSAFE_CONFIGURE=1 ./configure --prefix=/usr")
    })?;
    round.all("make", 1, &folders, |_, folder| shell(folder, "make"))?;
    round
        .all("install", 1, &folders, |_, folder| shell(folder, "make install DESTDIR=\"$PWD/installed\""))?;
    round.all("clean", 1, &folders, |_, folder| shell(folder, "make clean"))?;
    folders.iter().try_for_each(fs::remove_dir_all)?;
    Ok(())
}

/// Runs a shell command in a directory, and says all that it said if it failed.
pub fn shell(directory: &Path, command: &str) -> anyhow::Result<()> {
    let output =
        Command::new("sh").args(["-c", command]).current_dir(directory).stdin(Stdio::null()).output()?;
    ensure!(
        output.status.success(),
        "{command} in {}: {}\n{}{}",
        directory.display(),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}
