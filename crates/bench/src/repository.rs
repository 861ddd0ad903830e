//! A version-control repository on a mounted file system and work copies on local disks (SUNDR 7.3.4, figure 13),
//! with git in the place of CVS: one client imports a source tree, both check it out, the first commits a newer one,
//! the second updates its copy.

use crate::package::shell;
use crate::sides::{Round, Side, Sides};
use anyhow::{Context, ensure};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// One of so many files stays the same in the newer tree; in the paper 549 of 717 differ.
const UNCHANGED: usize = 4;
/// Git's settings, without those of the user.
const GIT: &str = "export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null \
    GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org; ";

/// Options of the repository benchmark.
#[derive(clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Example: holdfast-bench repository --archive hello.tar.gz --side holdfast=/mnt/a/team,/mnt/b/team\n\
    `scripts/bench-mounts` sets up mounts to compare and runs it."
)]
pub struct Options {
    #[command(flatten)]
    sides: Sides,
    /// Source archive (tar) with one directory in it.
    #[arg(long)]
    archive: PathBuf,
    /// Where the work copies are: a local directory.
    #[arg(long)]
    copies: PathBuf,
}

/// Runs the benchmark.
pub fn run(options: &Options) -> anyhow::Result<()> {
    let archive =
        fs::canonicalize(&options.archive).with_context(|| options.archive.display().to_string())?;
    let copies = options.copies.join(format!("repository-{}", std::process::id()));
    fs::create_dir_all(&copies)?;
    let result = options.sides.compare(|side, number, round| measure(&archive, &copies, side, number, round));
    fs::remove_dir_all(&copies)?;
    result
}

fn measure(
    archive: &Path,
    copies: &Path,
    side: &Side,
    number: usize,
    round: &mut Round<'_>,
) -> anyhow::Result<()> {
    let [first, second] = &side.clients[..] else {
        anyhow::bail!("this needs two clients: --side NAME=DIR,DIR");
    };
    let name = format!("repository-{}-{number}.git", std::process::id());
    let (theirs, ours) = (first.join(&name), second.join(&name));
    let [source, a, b] = ["source", "a", "b"].map(|copy| copies.join(copy));
    fs::create_dir(&source)?;
    shell(&source, &format!("tar -xf '{}' --strip-components=1", archive.display()))?;
    shell(&source, &format!("{GIT} git init -q -b main && git add -A && git commit -q -m first"))?;
    let at = theirs.display();
    round.phase("import", 1, || {
        shell(&source, &format!("{GIT} git init -q --bare -b main '{at}' && git push -q '{at}' main"))
    })?;
    round.phase("checkout (both)", 1, || {
        shell(
            copies,
            &format!(
                "{GIT} git clone -q --no-hardlinks '{at}' a && git clone -q --no-hardlinks '{}' b",
                ours.display()
            ),
        )
    })?;
    edit(&a)?;
    round.phase("commit", 1, || shell(&a, &format!("{GIT} git commit -q -a -m second && git push -q")))?;
    round.phase("update", 1, || shell(&b, &format!("{GIT} git pull -q")))?;
    let same = fs::read(a.join(".git/refs/heads/main"))? == fs::read(b.join(".git/refs/heads/main"))?;
    ensure!(same, "the second client did not get what the first committed");
    for folder in [&theirs, &source, &a, &b] {
        fs::remove_dir_all(folder)?;
    }
    Ok(())
}

/// Adds a line to most files.
fn edit(copy: &Path) -> anyhow::Result<()> {
    let mut files = Vec::new();
    let mut folders = vec![copy.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() && entry.file_name() != ".git" => folders.push(entry.path()),
                kind if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
    }
    files.sort();
    for (_, path) in files.iter().enumerate().filter(|(at, _)| at % UNCHANGED != 0) {
        writeln!(OpenOptions::new().append(true).open(path)?, "one more line in {}", path.display())?;
    }
    Ok(())
}
