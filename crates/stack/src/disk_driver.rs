//! DiskDriver: puts transfers in order and merges neighbours (paper, section 4.7). One a bus. It may move blocks between
//! the disks of its bus and the pages that are theirs, and see none of them.
//!
//! The queue of requests is kept twice (section 4.10): who asks keeps what waits for an answer, and marks nothing done; the
//! driver keeps what it was asked, and adds nothing.

use crate::asking::{ask, nonsense};
use crate::protocol::{AskDriver, AskMonitor, BLOCKS_MAX, DriverSays, MonitorSays};
use holdfast_components::{Answer, Asker, Context, Refusal, Request};
use holdfast_monitor::{BlockId, PageId};
use std::process::ExitCode;

/// Threads that transfer: what one waits for does not hold up the others.
const THREADS: usize = 4;

/// Who may have blocks moved, by the digests of their programs; and the disks of the bus.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// PolicyMgr and CacheMgr.
    pub may_ask: Vec<[u8; 32]>,
    /// Disks.
    pub disks: Vec<u16>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let monitor = context.ports.asker::<AskMonitor, MonitorSays>("monitor")?;
        Ok(context.ports.serve_owned(THREADS, move |request| answer(&configuration, &monitor, &request))?)
    })
}

fn answer(
    configuration: &Configuration,
    monitor: &Asker<AskMonitor, MonitorSays>,
    request: &Request,
) -> Answer {
    if !configuration.may_ask.contains(&request.alias.principal) {
        return Answer::refuse(Refusal::NotPermitted);
    }
    let done = request.question().and_then(|question| match question {
        AskDriver::Transfer { direction, disk, mut blocks } => {
            if blocks.len() > BLOCKS_MAX || !configuration.disks.contains(&disk) {
                return Err(Refusal::Malformed);
            }
            blocks.sort_unstable();
            let mut moved = 0;
            for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
                let pages: Vec<PageId> = run.iter().map(|(_, page)| *page).collect();
                let first = BlockId { disk, number: run[0].0 };
                transfer(monitor, direction, first, &pages)?;
                moved += run.len() as u32;
            }
            Ok(DriverSays { moved })
        }
        AskDriver::Flush { disk } => match ask(monitor, &AskMonitor::Flush { disk })? {
            MonitorSays::Done => Ok(DriverSays { moved: 0 }),
            _ => Err(nonsense("the monitor")),
        },
    });
    done.into()
}

/// A run that goes over the edge of a stretch is moved in halves.
fn transfer(
    monitor: &Asker<AskMonitor, MonitorSays>,
    direction: holdfast_monitor::Direction,
    first: BlockId,
    pages: &[PageId],
) -> Result<(), Refusal> {
    let question = AskMonitor::Transfer { direction, first, pages: pages.to_vec() };
    match ask(monitor, &question) {
        Ok(MonitorSays::Done) => Ok(()),
        Ok(_) => Err(nonsense("the monitor")),
        Err(Refusal::Code(crate::host::EDGE)) if pages.len() > 1 => {
            let (left, right) = pages.split_at(pages.len() / 2);
            transfer(monitor, direction, first, left)?;
            let next = BlockId { number: first.number + left.len() as u64, ..first };
            transfer(monitor, direction, next, right)
        }
        Err(refusal) => Err(refusal),
    }
}
