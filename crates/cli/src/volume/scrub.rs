//! `holdfast volume scrub`.

use super::args;
use super::attach;
use super::attached::attached_at;
use super::status::bad_blocks;
use crate::output::{Format, bytes_bar};
use holdfast_daemon::control::Client;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::VolumeFolders;
use holdfast_daemon::volumes::requests::{Scrub, Status, StopScrub};
use holdfast_failure::{Exit, Failure, Outcome};
use std::time::Duration;

/// How often the waiting command checks the scrub's progress.
const LOOK: Duration = Duration::from_millis(300);

/// `holdfast volume scrub`
pub fn run(arguments: &args::Scrub, directories: &Directories, format: Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let (place, about) = places.find(&arguments.which.volume, attached_at)?;
    let process = || Client::connect(&place.directory)?.ok_or_else(|| attach::not_attached(&about.disk));
    if arguments.stop {
        process()?.call(&StopScrub)?;
        return Ok(());
    }
    let interrupt = super::interrupt::Interrupt::listen()?;
    let request = Scrub { rate_mib: arguments.rate, from_start: arguments.from_start };
    let mut progress = process()?.call(&request)?;
    if arguments.background {
        return format.print(&progress, |_| format!("{} is being scrubbed", about.disk.display()));
    }
    let bar = bytes_bar("scrubbing");
    let status = loop {
        let status = process()?.call(&Status)?;
        progress = status.scrub.clone().unwrap_or(progress);
        let goes_on = interrupt.step(&bar, progress.next_block, progress.blocks);
        if !progress.running {
            break status;
        }
        if !goes_on {
            process()?.call(&StopScrub)?;
        }
        std::thread::sleep(LOOK);
    };
    bar.finish_and_clear();
    if let Some(why) = progress.failed {
        return Err(Failure::new(
            Exit::Data,
            format!("{}: the scrub cannot go on: {why}", about.disk.display()),
        ));
    }
    if progress.ended_ns.is_none() {
        return Err(
            interrupt.stopped(&format!("{} of {} blocks are verified", progress.next_block, progress.blocks))
        );
    }
    let bad = status.attached.map_or(0, |attached| attached.bad_blocks.len());
    format.print(&progress, |progress| {
        format!("{} blocks were read and verified, {} are bad", progress.blocks, progress.bad)
    })?;
    match bad.max(progress.bad as usize) {
        0 => Ok(()),
        bad => Err(bad_blocks(&about.disk, bad)),
    }
}
