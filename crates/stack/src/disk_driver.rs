//! DiskDriver: orders transfers and merges neighbouring blocks (paper, section 4.7). Each bus has one. It may
//! move blocks between the disks of its bus and their pages, and cannot see their content.
//!
//! The queue of requests exists twice (section 4.10), and the channel between the two copies carries two
//! kinds of messages. A client adds an entry by sending a request, and waits for it. It cannot mark the entry
//! as done, because the entry's state is the page's, which the monitor changes when the transfer has taken
//! place. The driver removes entries in the order it prefers and marks them done, by moving the blocks and
//! replying. It cannot add an entry: it has no channel on which it could send requests to CacheMgr or
//! PolicyMgr, and a reply without a request is dropped.

use crate::asking::{ask, nonsense};
use crate::protocol::{BLOCKS_MAX, DriverReply, DriverRequest, MonitorReply, MonitorRequest};
use holdfast_components::{Asker, Context, Refusal, Reply, Request};
use holdfast_monitor::{BlockId, Direction, PageId};
use std::process::ExitCode;

/// Threads that transfer blocks, so that one that waits does not delay the others.
const THREADS: usize = 4;

/// The configuration of the component: the principals that may request transfers, as digests, and the disks
/// of its bus.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The principals that may send requests: PolicyMgr and CacheMgr.
    pub may_ask: Vec<[u8; 32]>,
    /// The numbers of the disks on its bus.
    pub disks: Vec<u16>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let monitor = context.ports.asker::<MonitorRequest, MonitorReply>("monitor")?;
        Ok(context.ports.serve_owned(THREADS, move |request| answer(&configuration, &monitor, &request))?)
    })
}

/// An entry of the queue: runs of consecutive blocks in the order of the disk, each with its first block and
/// its pages.
#[derive(Clone, PartialEq, Debug)]
struct Entry {
    direction: Direction,
    runs: Vec<(BlockId, Vec<PageId>)>,
}

/// Checks a request, and makes runs of its blocks.
fn admit(configuration: &Configuration, by: [u8; 32], question: DriverRequest) -> Result<Entry, Refusal> {
    if !configuration.may_ask.contains(&by) {
        return Err(Refusal::NotPermitted);
    }
    let DriverRequest::Transfer { direction, disk, mut blocks } = question;
    if !configuration.disks.contains(&disk) || blocks.len() > BLOCKS_MAX {
        return Err(Refusal::Malformed);
    }
    blocks.sort_unstable();
    let run = |run: &[(u64, PageId)]| {
        let pages = run.iter().map(|(_, page)| *page).collect();
        (BlockId { disk, number: run[0].0 }, pages)
    };
    let is_next = |a: &(u64, PageId), b: &(u64, PageId)| a.0.checked_add(1) == Some(b.0);
    Ok(Entry { direction, runs: blocks.chunk_by(is_next).map(run).collect() })
}

fn answer(
    configuration: &Configuration,
    monitor: &Asker<MonitorRequest, MonitorReply>,
    request: &Request,
) -> Reply {
    let admitted =
        request.question().and_then(|question| admit(configuration, request.alias.principal, question));
    let done = admitted.and_then(|Entry { direction, runs }| {
        let mut moved = 0;
        for (first, pages) in runs {
            transfer(monitor, direction, first, &pages)?;
            moved += pages.len() as u32;
        }
        Ok(DriverReply { moved })
    });
    done.into()
}

/// Moves a run. A run that crosses the edge of an extent is halved.
fn transfer(
    monitor: &Asker<MonitorRequest, MonitorReply>,
    direction: Direction,
    first: BlockId,
    pages: &[PageId],
) -> Result<(), Refusal> {
    let question = MonitorRequest::Transfer { direction, first, pages: pages.to_vec() };
    match ask(monitor, &question) {
        Ok(MonitorReply::Done) => Ok(()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_monitor::RegionId;

    fn page(index: u32) -> PageId {
        PageId { region: RegionId(1), index }
    }

    /// Proves: only PolicyMgr and CacheMgr add entries, only for this bus' disks, and only with a limited
    /// number of blocks; neighbours are moved together, in the order of the disk.
    #[test]
    fn who_adds_entries() {
        let (cache, other) = ([1; 32], [2; 32]);
        let configuration = Configuration { may_ask: vec![cache], disks: vec![0, 2] };
        let transfer = |disk, blocks: &[u64]| {
            let blocks = blocks.iter().zip(0..).map(|(block, at)| (*block, page(at))).collect();
            DriverRequest::Transfer { direction: Direction::Fill, disk, blocks }
        };
        let cases = [
            ("an FSDriver's", other, transfer(0, &[1]), Err(Refusal::NotPermitted)),
            ("another bus' disk", cache, transfer(1, &[1]), Err(Refusal::Malformed)),
            ("too many", cache, transfer(0, &[7; BLOCKS_MAX + 1]), Err(Refusal::Malformed)),
        ];
        for (name, by, question, expected) in cases {
            assert_eq!(admit(&configuration, by, question), expected, "{name}");
        }
        let block = |number| BlockId { disk: 0, number };
        let runs = vec![
            (block(4), vec![page(2), page(0)]),
            (block(9), vec![page(1)]),
            (block(u64::MAX), vec![page(3)]),
        ];
        let entry = admit(&configuration, cache, transfer(0, &[5, 9, 4, u64::MAX]));
        assert_eq!(entry, Ok(Entry { direction: Direction::Fill, runs }));
    }
}
