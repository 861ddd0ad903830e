//! `holdfast-exercise`: long runs on real mounts. Not part of the product.

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;

/// Exercises a file in one or more directories that show the same files, against an array in memory.
#[derive(Parser)]
#[command(
    name = "holdfast-exercise",
    after_help = "Example, with two mounts of one file system:
  cargo run -p holdfast-exercise -- /mnt/anna/team /mnt/ben/team --seeds 500"
)]
struct Arguments {
    /// Directories to work in; with several, the file is closed in one and opened in another.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// First seed.
    #[arg(long, default_value_t = 1)]
    first: u64,
    /// Number of seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Operations with each seed.
    #[arg(long, default_value_t = 1000)]
    steps: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(directory) = arguments.directories.iter().find(|directory| !directory.is_dir()) {
        eprintln!("{}: is not a directory", directory.display());
        return ExitCode::FAILURE;
    }
    let mut failed = 0;
    for seed in arguments.first..arguments.first.saturating_add(arguments.seeds) {
        if let Err(failure) = holdfast_exercise::run(&arguments.directories, seed, arguments.steps) {
            eprintln!("{failure}");
            failed += 1;
        }
    }
    println!("{} seeds of {} operations, {failed} failed", arguments.seeds, arguments.steps);
    if failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
