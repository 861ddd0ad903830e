//! Rebuilding a lost server from what its clients have: bundles, and what is made of them.

pub mod args;
pub mod bundle;
pub mod rebuild;
mod report;
pub mod restored;
mod sources;

use holdfast_crypto::Digest;
use holdfast_failure::{Exit, Failure, Outcome};
use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

/// First line of a list of blocks.
const LIST_HEADING: &str = "# blocks that are missing, for `holdfast fs bundle --lost`";

/// Reads a list of blocks.
fn listed(path: &Path) -> Outcome<HashSet<Digest>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::new(Exit::NoInput, format!("{}: {error}", path.display())))?;
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(number, line)| {
            Digest::from_hex(line).ok_or_else(|| {
                let message =
                    format!("{}: line {} is not the address of a block", path.display(), number + 1);
                Failure::new(Exit::Data, message)
            })
        })
        .collect()
}

/// Writes a list of blocks; never overwrites a file.
fn write_list(path: &Path, blocks: &HashSet<Digest>) -> Outcome {
    let mut sorted: Vec<&Digest> = blocks.iter().collect();
    sorted.sort_unstable();
    let mut text = format!("{LIST_HEADING}\n");
    for address in sorted {
        let _ = writeln!(text, "{address}");
    }
    holdfast_daemon::keys::create(path, 0o644, text.as_bytes())
}
