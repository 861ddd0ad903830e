//! Protected volumes: what the paper measured (*Unifying File System Protection*, section 6), on ext4 over a bare loop
//! device, over the same export without hashing, over a protected volume, and on btrfs; and what the volume itself does.

mod engine;
mod export;
mod measured;
mod stack;
mod work;

use clap::Subcommand;
pub use export::{device, key, salt};
pub use measured::{Measured, append};
pub use stack::run as command;

/// What is measured.
#[derive(clap::Args)]
#[command(
    after_help = "Root; needs loop devices, FUSE, e2fsprogs, btrfs-progs, and postmark and a C compiler for what \
    uses them.\n`scripts/bench-volumes` runs all of it.\n\n\
    Example: holdfast-bench volume files --size-kb 64 --rounds 5"
)]
pub struct Options {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// Files of 16 KB to 1 MB made, written, read and removed, cold (the paper's figures 5 to 8).
    Files(work::Files),
    /// PostMark (figure 9).
    Postmark(work::Postmark),
    /// A program unpacked, configured and built (figure 10).
    Build(work::Build),
    /// Reading, writing, protecting and scrubbing without a kernel between, against the device itself.
    Engine(engine::Engine),
    /// Opening after a crash, against the size of the log and of the volume; memory.
    Recovery(engine::Recovery),
    /// Export an image, for the others.
    #[command(hide = true)]
    Export(export::Options),
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.part {
        Part::Files(options) => work::files(options),
        Part::Postmark(options) => work::postmark(options),
        Part::Build(options) => work::build(options),
        Part::Engine(options) => engine::engine(options),
        Part::Recovery(options) => engine::recovery(options),
        Part::Export(options) => export::run(options),
    }
}
