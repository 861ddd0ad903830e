//! Two clients that change one directory, and one tree, at the same time.

use crate::package::shell;
use crate::sides::{Round, Side, Sides};
use anyhow::{Context, ensure};
use std::fs;
use std::path::Path;
use std::thread;

/// Directories in the tree that both remove.
const DIRECTORIES: usize = 20;
/// Files in each.
const FILES: usize = 30;

/// Options of the benchmark of two in one place.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Example: holdfast-bench together --side holdfast=/mnt/a/team,/mnt/b/team\n\
    `scripts/bench-mounts` sets up mounts to compare and runs it."
)]
pub struct Options {
    #[command(flatten)]
    sides: Sides,
    /// Files that each of them copies into one directory.
    #[arg(long, default_value_t = 500)]
    files: usize,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let sources = tempfile::tempdir()?;
    for who in ["first", "second"] {
        let source = sources.path().join(who);
        fs::create_dir(&source)?;
        for number in 0..options.files {
            fs::write(source.join(format!("{who}-{number}")), format!("{number} of {who}\n"))?;
        }
    }
    let tree = sources.path().join("tree");
    for directory in 0..DIRECTORIES {
        let directory = tree.join(directory.to_string());
        fs::create_dir_all(&directory)?;
        for file in 0..FILES {
            fs::write(directory.join(file.to_string()), "a file of the tree\n".repeat(50))?;
        }
    }
    options.sides.compare(|side, number, round| measure(sources.path(), side, number, round))
}

fn measure(sources: &Path, side: &Side, number: usize, round: &mut Round<'_>) -> anyhow::Result<()> {
    let [first, second] = &side.clients[..] else {
        anyhow::bail!("this needs two clients: --side NAME=DIR,DIR");
    };
    let name = format!("together-{}-{number}", std::process::id());
    let (ours, theirs) = (first.join(&name), second.join(&name));
    let (a, b) = (sources.join("first"), sources.join("second"));
    fs::create_dir(&ours)?;
    fs::create_dir(ours.join("flat"))?;
    fs::read_dir(theirs.join("flat"))?;
    let files = fs::read_dir(&a)?.count() * 2;
    round.phase("rsync into one directory", files, || {
        both(|| rsync(&a, &ours.join("flat")), || rsync(&b, &theirs.join("flat")))
    })?;
    ensure!(fs::read_dir(ours.join("flat"))?.count() == files, "files are missing");
    round.phase("remove from one directory", files, || {
        both(|| shell(&ours, "rm -f flat/first-*"), || shell(&theirs, "rm -f flat/second-*"))
    })?;
    ensure!(fs::read_dir(theirs.join("flat"))?.next().is_none(), "files are left");
    shell(&ours, &format!("cp -r '{}' tree", sources.join("tree").display()))?;
    shell(&theirs, "ls -lR tree >/dev/null")?;
    // GlusterFS's rm prints "Stale file handle" for what the other has removed a moment before.
    let remove = if side.name.starts_with("gluster") { "rm -rf tree || true" } else { "rm -rf tree" };
    round.phase("rm -rf of one tree", DIRECTORIES * FILES, || {
        both(|| shell(&ours, remove), || shell(&theirs, remove))
    })?;
    // On some systems both are told that the other has removed what neither has, or see for a second what is gone.
    shell(&ours, "for time in 1 2 3 4 5; do rm -rf tree; [ -e tree ] || break; sleep 1; done")?;
    ensure!(!ours.join("tree").exists(), "the tree is left");
    fs::remove_dir_all(&ours).with_context(|| ours.display().to_string())
}

fn rsync(from: &Path, to: &Path) -> anyhow::Result<()> {
    shell(from, &format!("rsync -a ./ '{}/'", to.display()))
}

fn both(
    first: impl FnOnce() -> anyhow::Result<()> + Send,
    second: impl FnOnce() -> anyhow::Result<()> + Send,
) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let first = scope.spawn(first);
        second()?;
        first.join().expect("a command is run")
    })
}
