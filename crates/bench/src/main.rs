//! Side-by-side benchmarks. Each prints medians, and ratios with their 95% interval over interleaved pairs; with
//! `--json FILE` also all of it for machines. Figures belong to the machine: ratios are what counts.

mod chunks;
mod compaction;
mod crypto;
mod far;
mod growth;
mod lfs;
mod link;
mod names;
mod ops;
mod package;
mod pairs;
mod report;
mod repository;
mod sides;
mod stack;
mod stalls;
mod store;
mod synced;
mod together;
mod volume;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Side-by-side benchmarks of Holdfast's parts.
#[derive(Parser)]
#[command(name = "holdfast-bench", after_help = "Example: cargo run --release -p holdfast-bench -- store")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// STORE and RETRIEVE against a store that looks up its index before each write (Venti's way).
    Store(store::Options),
    /// Collecting garbage in a bucket: what lives copied at the store, beside reading it and writing it again.
    Compaction(compaction::Options),
    /// What files have in common when they are cut into chunks, and how long the chunks are.
    Chunks(chunks::Options),
    /// What signing, verifying and hashing cost.
    Crypto(crypto::Options),
    /// Rounds, syncs, bytes and time of creating, closing, opening and removing files, and where the time goes.
    Ops(ops::Options),
    /// Small and large files on mounted file systems, side by side.
    Lfs(lfs::Options),
    /// What one operation costs as members, active devices, entries and files become many.
    Growth(growth::Options),
    /// Look-ups and proofs of absence among up to ten million names of a release.
    Names(names::Options),
    /// Building a real C program on mounted file systems, side by side.
    Package(package::Options),
    /// A command over a slow, far, lossy link between two network namespaces, and the bytes it cost each way.
    Link(link::Options),
    /// Editing, building and copying over a slow, far, lossy link: Holdfast beside sshfs, rclone and rsync.
    Far(far::Options),
    /// Bytes each way from one release of a tree to the next, over a slow link.
    Pairs(pairs::Options),
    /// How long small requests take beside bulk on a slow, far, lossy link.
    Stalls(stalls::Options),
    /// A git repository on mounted file systems, side by side.
    Repository(repository::Options),
    /// Two clients that change one directory and one tree at once, side by side.
    Together(together::Options),
    /// What waits for the disk at each step, as databases do, side by side.
    Synced(synced::Options),
    /// Protected volumes beside bare disks, an export without hashing, and btrfs.
    Volume(volume::Options),
    /// The least-privilege file system in its arrangements, beside the kernel's and others.
    Stack(stack::Options),
}

fn main() -> ExitCode {
    if let Some(code) = holdfast_components::run_if_component(&stack::components()) {
        return code;
    }
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Arguments::parse().command {
        Command::Store(options) => store::run(&options),
        Command::Chunks(options) => chunks::run(&options),
        Command::Crypto(options) => crypto::run(&options),
        Command::Ops(options) => ops::run(&options),
        Command::Far(options) => far::run(&options),
        Command::Lfs(options) => lfs::run(&options),
        Command::Growth(options) => growth::run(&options),
        Command::Compaction(options) => compaction::run(&options),
        Command::Names(options) => names::run(&options),
        Command::Stalls(options) => stalls::run(&options),
        Command::Link(options) => link::run(&options),
        Command::Package(options) => package::run(&options),
        Command::Pairs(options) => pairs::run(&options),
        Command::Repository(options) => repository::run(&options),
        Command::Together(options) => together::run(&options),
        Command::Synced(options) => synced::run(&options),
        Command::Volume(options) => volume::run(&options),
        Command::Stack(options) => stack::run(&options),
    }
}
