//! `holdfast volume repair`: mends bad blocks from a copy of the disk, which need not be trusted.

use super::args;
use super::host::Order;
use super::places::{Places, absolute};
use super::status::bad_blocks;
use super::{attach, attached_at, media};
use crate::control::Client;
use crate::exit::{Exit, Failure, Outcome};
use crate::output::{Format, progress};
use crate::paths::Directories;
use holdfast_volume::{BLOCK_BYTES, Volume};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What came of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Repaired {
    /// Blocks that are good again.
    pub repaired: Vec<u64>,
    /// Those of which the copy has something else than what was written last.
    pub left: Vec<u64>,
}

/// In the process that has the volume attached: mends what is known to be bad.
pub fn mend(volume: &Volume, from: &Path) -> Outcome<Repaired> {
    let replica = media::open_for_reading(from)?;
    let mut done = Repaired { repaired: Vec::new(), left: Vec::new() };
    let mut bytes = [0; BLOCK_BYTES];
    for bad in volume.bad_blocks() {
        let offset = bad.number * BLOCK_BYTES as u64;
        // A copy may be shorter, or bad in the same place.
        let is_read = replica.read_at(offset, &mut bytes).is_ok();
        if is_read && volume.repair(bad.number, &bytes)? {
            tracing::info!(block = bad.number, "mended from a copy");
            done.repaired.push(bad.number);
        } else {
            done.left.push(bad.number);
        }
    }
    Ok(done)
}

/// `holdfast volume repair`
pub fn run(arguments: &args::Repair, directories: &Directories, format: Format) -> Outcome {
    let places = Places::new(directories)?;
    let (place, about) = places.find(&arguments.which.volume, attached_at)?;
    if !arguments.from.exists() {
        let message = format!("{}: there is no such file", arguments.from.display());
        return Err(Failure::new(Exit::NoInput, message));
    }
    let process = Client::connect(&place.directory)?.ok_or_else(|| attach::not_attached(&about.disk))?;
    let bar = progress("repairing");
    let done = process.call::<Repaired>(&Order::Repair { from: absolute(&arguments.from) });
    bar.finish_and_clear();
    let done = done?;
    format.print(&done, |done| {
        format!("{} blocks are good again, {} are bad", done.repaired.len(), done.left.len())
    })?;
    match done.left.len() {
        0 => Ok(()),
        left => Err(bad_blocks(&about.disk, left)),
    }
}
