//! What the paper measured: files of one size, PostMark, and a build.

use super::measured::Turns;
use super::stack::{Stack, run};
use crate::package::shell;
use anyhow::Context;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files in a directory at most.
const CROWD: u64 = 50;
/// Files at least, however large.
const FILES_MIN: u64 = 512;

#[derive(clap::Args, Clone)]
pub struct Files {
    #[command(flatten)]
    turns: Turns,
    /// Size of files, in KB; may be given several times.
    #[arg(long = "size-kb", default_values_t = [16, 32, 64, 96, 128, 256, 512, 1024])]
    sizes: Vec<u64>,
    /// MB in all files together, or 512 files if that is more.
    #[arg(long, default_value_t = 128)]
    mb: u64,
}

#[derive(clap::Args, Clone)]
pub struct Postmark {
    #[command(flatten)]
    turns: Turns,
    /// Files at the beginning.
    #[arg(long, default_value_t = 10_000)]
    files: u64,
    /// Transactions.
    #[arg(long, default_value_t = 30_000)]
    transactions: u64,
}

#[derive(clap::Args, Clone)]
pub struct Build {
    #[command(flatten)]
    turns: Turns,
    /// Source archive (tar) of a program with a ./configure; OpenSSH portable is what the paper built.
    #[arg(long)]
    archive: PathBuf,
    /// What make is told.
    #[arg(long, default_value = "-j2")]
    make: String,
}

/// Where file `number` is.
fn path(root: &Path, number: u64) -> PathBuf {
    root.join(format!("{}/{number}", number / CROWD))
}

/// Files of one size: made, written over, read and removed, cold each time.
pub fn files(options: &Files) -> anyhow::Result<()> {
    options.turns.compare("volume-files", |turn| {
        for size in options.sizes.iter().map(|kb| kb << 10) {
            let count = (options.mb << 20).div_ceil(size).max(FILES_MIN);
            let mut bytes = vec![0; size as usize];
            File::open("/dev/urandom")?.read_exact(&mut bytes)?;
            let megabytes = ((count * size) as f64 / 1e6, "MB");
            let root = |stack: &Stack| stack.directory.join("files");
            turn.stack.cool()?;
            turn.phase("create", size, megabytes, |stack| {
                for number in 0..count {
                    let path = path(&root(stack), number);
                    if number % CROWD == 0 {
                        fs::create_dir_all(path.parent().context("it is in a directory")?)?;
                    }
                    File::create_new(path)?.write_all(&bytes)?;
                }
                Ok(())
            })?;
            turn.stack.cool()?;
            turn.phase("write", size, megabytes, |stack| {
                for number in 0..count {
                    File::options().write(true).open(path(&root(stack), number))?.write_all(&bytes)?;
                }
                Ok(())
            })?;
            turn.stack.cool()?;
            turn.phase("read", size, megabytes, |stack| {
                let mut found = vec![0; size as usize];
                for number in 0..count {
                    File::open(path(&root(stack), number))?.read_exact(&mut found)?;
                    anyhow::ensure!(found == bytes, "file {number} is not what was written");
                }
                Ok(())
            })?;
            turn.stack.cool()?;
            turn.phase("delete", size, (count as f64, "files"), |stack| {
                Ok(fs::remove_dir_all(root(stack))?)
            })?;
        }
        Ok(())
    })
}

/// PostMark, as Debian has it.
pub fn postmark(options: &Postmark) -> anyhow::Result<()> {
    let settings = tempfile::NamedTempFile::new()?;
    options.turns.compare("volume-postmark", |turn| {
        turn.stack.cool()?;
        let root = turn.stack.directory.join("postmark");
        fs::create_dir(&root)?;
        fs::write(
            settings.path(),
            format!(
                "set location {}\nset size 512 16384\nset number {}\nset transactions {}\nset subdirectories 100\n\
                 set report terse\nrun\nquit\n",
                root.display(),
                options.files,
                options.transactions
            ),
        )?;
        turn.phase("postmark", 0, (options.transactions as f64, "transactions"), |_| {
            run(Command::new("postmark").arg(settings.path())).map(drop)
        })?;
        Ok(fs::remove_dir_all(root)?)
    })
}

/// A program unpacked, configured and built.
pub fn build(options: &Build) -> anyhow::Result<()> {
    let archive =
        fs::canonicalize(&options.archive).with_context(|| options.archive.display().to_string())?;
    options.turns.compare("volume-build", |turn| {
        turn.stack.cool()?;
        let root = turn.stack.directory.join("build");
        fs::create_dir(&root)?;
        let one = (1.0, "build");
        turn.phase("unpack", 0, one, |_| {
            shell(&root, &format!("tar -xf '{}' --strip-components=1", archive.display()))
        })?;
        turn.phase("configure", 0, one, |_| shell(&root, "./configure"))?;
        turn.phase("build", 0, one, |_| shell(&root, &format!("make {}", options.make)))?;
        Ok(fs::remove_dir_all(root)?)
    })
}
