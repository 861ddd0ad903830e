//! Arguments of `holdfast fs stats`.

use clap::Args;
use std::path::PathBuf;

/// `holdfast fs stats`
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  holdfast fs stats
  holdfast fs stats ~/shared --json
  holdfast fs stats --watch

Bytes are counted from the mount on. What programs read is what the kernel asked for: pages that it has itself are not
counted. With --watch it is shown again and again, with what crosses the link each second; q or Ctrl-C ends it.")]
pub struct Stats {
    /// Only this mount point.
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Show it again and again.
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3600))]
    pub interval: u16,
    /// Show all figures there are.
    #[arg(long)]
    pub all: bool,
}
