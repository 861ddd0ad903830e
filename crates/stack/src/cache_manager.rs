//! CacheMgr: decides which blocks are in memory (paper, section 4.4). It sees which blocks are requested and
//! the status of pages, and has no right to read one.

use crate::asking::{ask, nonsense};
use crate::protocol::{
    BLOCKS_MAX, CacheReply, CacheRequest, DriverReply, DriverRequest, MonitorReply, MonitorRequest,
    PolicyReply, PolicyRequest,
};
use holdfast_components::{Asker, Context, Refusal, Reply, Request};
use holdfast_monitor::{Direction, PageId, Reference, Status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Threads that answer requests, so that one that waits for a disk does not delay others.
const THREADS: usize = 4;
/// Number of pages that are freed at once.
const EVICTED: usize = 64;
/// How often a block is loaded again if its page was taken away meanwhile.
const ATTEMPTS: usize = 8;

/// Most queued read-ahead requests of a disk; further ones are dropped.
const AHEAD_MAX: usize = 16;
/// The channel of the host, which may empty the cache for measurements.
const FROM_HOST: &str = "from-host";

/// The configuration of the component.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// Most pages that may hold blocks.
    pub pages_max: u32,
    /// The bus of each disk.
    pub buses: Vec<u16>,
}

type Block = (u16, u64);

/// A cached block.
struct CachedBlock {
    at: Reference,
    /// The tick at which it was requested last.
    tick: u64,
    /// Whether it was filled when last checked. That stays true as long as the reference is valid.
    is_filled: bool,
}

/// The cached blocks, and the order in which they were requested last.
#[derive(Default)]
struct Recent {
    blocks: HashMap<Block, CachedBlock>,
    order: BTreeMap<u64, Block>,
    tick: u64,
}

impl Recent {
    fn touch(&mut self, block: Block, at: Reference) {
        self.tick += 1;
        let before = self.blocks.remove(&block);
        let is_filled = before.as_ref().is_some_and(|before| before.at == at && before.is_filled);
        if let Some(before) = before {
            self.order.remove(&before.tick);
        }
        self.blocks.insert(block, CachedBlock { at, tick: self.tick, is_filled });
        self.order.insert(self.tick, block);
    }

    fn filled(&mut self, block: Block, at: Reference) {
        if let Some(known) = self.blocks.get_mut(&block).filter(|known| known.at == at) {
            known.is_filled = true;
        }
    }

    fn forget(&mut self, block: Block) {
        if let Some(known) = self.blocks.remove(&block) {
            self.order.remove(&known.tick);
        }
    }
}

struct Cache {
    pages_max: usize,
    monitor: Asker<MonitorRequest, MonitorReply>,
    policy: Asker<PolicyRequest, PolicyReply>,
    /// The bus of each disk, by the disk's number.
    buses: Vec<u16>,
    /// The DiskDrivers, by bus.
    drivers: Vec<Asker<DriverRequest, DriverReply>>,
    recent: Mutex<Recent>,
    /// A lock for each disk: one thread loads its blocks at a time, and others find them.
    bringing: Vec<Mutex<()>>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let ports = &context.ports;
        let buses = configuration.buses;
        let drivers = (0..buses.iter().max().map_or(0, |last| last + 1))
            .map(|bus| ports.asker(&crate::host::bus_port(bus)));
        let disks = buses.len();
        let cache = Arc::new(Cache {
            pages_max: configuration.pages_max as usize,
            monitor: ports.asker("monitor")?,
            policy: ports.asker("policy")?,
            drivers: drivers.collect::<Result<_, _>>()?,
            recent: Mutex::default(),
            bringing: buses.iter().map(|_| Mutex::new(())).collect(),
            buses,
        });
        cache.learn()?;
        // No request waits for read-ahead, and its failures are not reported. There is one thread for each
        // disk, so that a slow disk does not delay the others.
        let mut likely = Vec::new();
        for disk in 0..disks as u16 {
            let (ahead, wanted) = sync_channel::<Vec<u64>>(AHEAD_MAX);
            let fetching = Arc::clone(&cache);
            let fetch = move || {
                for blocks in wanted {
                    let _ = fetching.bring(disk, &blocks, true);
                }
            };
            std::thread::Builder::new().name(format!("ahead-{disk}")).spawn(fetch).map_err(|error| {
                crate::StackError::Component(format!("a thread for what comes next: {error}"))
            })?;
            likely.push(ahead);
        }
        let threads = THREADS * disks.clamp(1, 3);
        Ok(ports.serve_owned(threads, move |request| cache.answer(&request, &likely))?)
    })
}

impl Cache {
    /// Adopts the blocks that an earlier process of this component had cached.
    fn learn(&self) -> Result<(), crate::StackError> {
        for disk in 0..self.buses.len() as u16 {
            let mut from = 0;
            loop {
                let cached = match ask(&self.policy, &PolicyRequest::Cached { disk, from }) {
                    Ok(PolicyReply::Cached(cached)) => cached,
                    Ok(_) => return Err(nonsense("PolicyMgr").into()),
                    // The disk's table is unusable, so it has no pages.
                    Err(Refusal::Failed(_)) => break,
                    Err(refusal) => return Err(refusal.into()),
                };
                let mut recent = self.recent.lock();
                cached.iter().for_each(|(block, at)| recent.touch((disk, *block), *at));
                match cached.last() {
                    Some((last, _)) if cached.len() == crate::policy_manager::CACHED_MAX => from = last + 1,
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// The DiskDriver that transfers for a disk.
    fn driver(&self, disk: u16) -> Result<&Asker<DriverRequest, DriverReply>, Refusal> {
        let bus = self.buses.get(usize::from(disk)).ok_or(Refusal::Malformed)?;
        self.drivers.get(usize::from(*bus)).ok_or(Refusal::Malformed)
    }

    fn answer(&self, request: &Request, likely: &[SyncSender<Vec<u64>>]) -> Reply {
        let done = request.question().and_then(|question| match question {
            CacheRequest::Want { blocks, ahead, .. } if blocks.len() + ahead.len() > BLOCKS_MAX => {
                Err(Refusal::Malformed)
            }
            CacheRequest::Clean { blocks, .. } if blocks.len() > BLOCKS_MAX => Err(Refusal::Malformed),
            CacheRequest::Want { disk, blocks, fill, ahead } => {
                let references = self.bring(disk, &blocks, fill)?;
                // If the queue is full, the read-ahead is dropped.
                if let Some(likely) = likely.get(usize::from(disk)).filter(|_| !ahead.is_empty()) {
                    let _ = likely.try_send(ahead);
                }
                Ok(CacheReply::References(references))
            }
            CacheRequest::Clean { disk, blocks } => {
                self.clean(disk, &blocks)?;
                Ok(CacheReply::Done)
            }
            CacheRequest::Empty if request.port != FROM_HOST => Err(Refusal::NotPermitted),
            CacheRequest::Empty => {
                let _all: Vec<_> = self.bringing.iter().map(Mutex::lock).collect();
                self.make_room(self.pages_max)?;
                Ok(CacheReply::Done)
            }
        });
        done.into()
    }

    /// The status of pages, by their references; `None` for outdated ones.
    fn look(&self, references: &[Reference]) -> Result<Vec<Option<Status>>, Refusal> {
        match ask(&self.monitor, &MonitorRequest::Look(references.to_vec()))? {
            MonitorReply::Look(statuses) if statuses.len() == references.len() => Ok(statuses),
            _ => Err(nonsense("the monitor")),
        }
    }

    fn bring(&self, disk: u16, blocks: &[u64], fill: bool) -> Result<Vec<Reference>, Refusal> {
        for _ in 0..ATTEMPTS {
            if let Some(references) = self.try_bring(disk, blocks, fill)? {
                return Ok(references);
            }
        }
        Err(Refusal::Failed("blocks are taken from memory faster than they are brought in".to_owned()))
    }

    fn try_bring(&self, disk: u16, blocks: &[u64], fill: bool) -> Result<Option<Vec<Reference>>, Refusal> {
        let distinct: HashSet<u64> = blocks.iter().copied().collect();
        let _one = self.bringing.get(usize::from(disk)).ok_or(Refusal::Malformed)?.lock();
        self.make_room(distinct.len())?;
        let question = PolicyRequest::Cache { disk, blocks: blocks.to_vec() };
        let PolicyReply::References(references) = ask(&self.policy, &question)? else {
            return Err(nonsense("PolicyMgr"));
        };
        if references.len() != blocks.len() {
            return Err(nonsense("PolicyMgr"));
        }
        let (mut new, mut unsure) = (Vec::new(), Vec::new());
        {
            let mut recent = self.recent.lock();
            for (block, at) in blocks.iter().zip(&references) {
                let place = (disk, *block);
                match recent.blocks.get(&place).filter(|known| known.at == *at) {
                    None => new.push((*block, *at)),
                    Some(known) if !known.is_filled => unsure.push((*block, *at)),
                    Some(_) => {}
                }
                recent.touch(place, *at);
            }
        }
        if !fill || new.is_empty() && unsure.is_empty() {
            return Ok(Some(references));
        }
        // A block that has just got its page is empty, unless a client is overwriting all of it. Only the
        // DiskDriver claims that it was filled, so the page is checked again when it is needed.
        if unsure.is_empty() && self.fill(disk, &new).is_ok() {
            return Ok(Some(references));
        }
        unsure.append(&mut new);
        let places: Vec<Reference> = unsure.iter().map(|(_, at)| *at).collect();
        let statuses = self.look(&places)?;
        let (mut empty, mut full): (Vec<(u64, Reference)>, Vec<_>) = (Vec::new(), Vec::new());
        for (one, status) in unsure.into_iter().zip(statuses) {
            match status {
                None => return Ok(None),
                Some(Status::Empty) => empty.push(one),
                Some(_) => full.push(one),
            }
        }
        {
            let mut recent = self.recent.lock();
            full.iter().for_each(|(block, at)| recent.filled((disk, *block), *at));
        }
        if !empty.is_empty()
            && let Err(refusal) = self.fill(disk, &empty)
        {
            if blocks.len() == 1 {
                // Another thread may have filled the page or taken it away; a look at its status shows.
                return match self.look(&references)?[0] {
                    Some(Status::Empty) => Err(refusal),
                    status => Ok(status.map(|_| references)),
                };
            }
            // A block that cannot be read does not delay the others; a caller who requests it alone gets the
            // reason.
            for one in empty {
                let _ = self.fill(disk, &[one]);
            }
        }
        Ok(Some(references))
    }

    /// Requests that empty pages are filled from the disk.
    fn fill(&self, disk: u16, places: &[(u64, Reference)]) -> Result<DriverReply, Refusal> {
        let mut blocks: Vec<(u64, PageId)> = places.iter().map(|(block, at)| (*block, at.page)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        ask(self.driver(disk)?, &DriverRequest::Transfer { direction: Direction::Fill, disk, blocks })
    }

    /// Evicts the least recently requested blocks if there is no room for more.
    fn make_room(&self, wanted: usize) -> Result<(), Refusal> {
        loop {
            let oldest: Vec<Block> = {
                let recent = self.recent.lock();
                let excess = (recent.blocks.len() + wanted).saturating_sub(self.pages_max);
                recent
                    .order
                    .values()
                    .take(if excess == 0 { 0 } else { excess.max(EVICTED) })
                    .copied()
                    .collect()
            };
            if oldest.is_empty() {
                return Ok(());
            }
            let mut by_disk: BTreeMap<u16, Vec<u64>> = BTreeMap::new();
            oldest.iter().for_each(|(disk, block)| by_disk.entry(*disk).or_default().push(*block));
            for (disk, blocks) in by_disk {
                for blocks in blocks.chunks(BLOCKS_MAX) {
                    ask(&self.policy, &PolicyRequest::Evict { disk, blocks: blocks.to_vec() })?;
                    let mut recent = self.recent.lock();
                    blocks.iter().for_each(|block| recent.forget((disk, *block)));
                }
            }
        }
    }

    /// Writes those of these blocks that have changed.
    fn clean(&self, disk: u16, blocks: &[u64]) -> Result<(), Refusal> {
        for _ in 0..ATTEMPTS {
            let known: Vec<(u64, Reference)> = {
                let recent = self.recent.lock();
                let place = |block: &u64| Some((*block, recent.blocks.get(&(disk, *block))?.at));
                blocks.iter().filter_map(place).collect()
            };
            let references: Vec<Reference> = known.iter().map(|(_, at)| *at).collect();
            let statuses = self.look(&references)?;
            let is_dirty = |(at, status): (&(u64, Reference), Option<Status>)| {
                (status == Some(Status::Dirty)).then_some((at.0, at.1.page))
            };
            let dirty: Vec<(u64, PageId)> = known.iter().zip(statuses).filter_map(is_dirty).collect();
            if dirty.is_empty() {
                return Ok(());
            }
            let question = DriverRequest::Transfer { direction: Direction::Drain, disk, blocks: dirty };
            if ask(self.driver(disk)?, &question).is_ok() {
                return Ok(());
            }
        }
        Err(Refusal::Failed("changed blocks could not be written".to_owned()))
    }
}
