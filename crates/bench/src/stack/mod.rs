//! The least-privilege file system: what the Principled Filesystem paper measured (section 5.1.2 and 5.1.3), for our
//! stack as it is shipped and in other arrangements of the same code, beside the kernel's file systems and a FAT driver
//! over FUSE.

mod client;
mod files;
mod host;
mod micro;
mod side;

use clap::Subcommand;
use holdfast_components::Main;

/// What is measured.
#[derive(clap::Args)]
#[command(
    after_help = "Root; needs FUSE, loop devices, e2fsprogs, dosfstools, and fusefat for the FAT driver over FUSE.\n\
    `scripts/bench-stack` runs all of it.\n\n\
    Example: holdfast-bench stack files --rounds 3 --side decomposed --side merged"
)]
pub struct Options {
    #[command(subcommand)]
    part: Part,
}

#[derive(Subcommand)]
enum Part {
    /// System calls, channels and regions by themselves (section 5.1.2).
    Micro(micro::Options),
    /// Opening, enumerating and reading, cached and not (section 5.1.3).
    Files(files::Options),
    /// Run a stack, for the others.
    #[command(hide = true)]
    Host(host::Options),
}

pub fn run(options: &Options) -> anyhow::Result<()> {
    match &options.part {
        Part::Micro(options) => micro::run(options),
        Part::Files(options) => files::run(options),
        Part::Host(options) => host::run(options),
    }
}

/// Everything that this program may be started as.
pub fn components() -> Vec<(&'static str, Main)> {
    let mut table = holdfast_stack::COMPONENTS.to_vec();
    table.extend(holdfast_stack::variant_components());
    table.extend(client::COMPONENTS);
    table.extend(micro::COMPONENTS);
    table
}
