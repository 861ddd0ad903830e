//! PolicyMgr: who owns each block and who may use it; regions of one ACL each; the policy table at its place (paper,
//! section 4.5). In the trusted base: the monitor gives a block's bytes to whom the ACLs that come from here name.
//!
//! [`holdfast_policy`] decides; this carries it out. Invariants:
//! - a block is put into a region only if the region's ACL is the block's, by the table;
//! - what was decided is done in the order that the decision gives, before anything else is decided;
//! - a change that could not be carried out ends this process: the next one reads what the table says.

use crate::asking::{ITSELF, ask, nonsense};
use crate::protocol::{
    AskDriver, AskMonitor, AskPolicy, BLOCKS_MAX, Blocks, DriverSays, MonitorSays, PolicySays, STAGE_PAGES,
};
use crate::views::RegionView;
use holdfast_access::{Acl, Alias, Principal, Scope};
use holdfast_components::{Answer, Asker, Context, Refusal, Request, View};
use holdfast_monitor::{
    BlockId, Direction, PAGE_BYTES, PageId, REGION_PAGES_MAX, Reference, RegionId, Status,
};
use holdfast_policy::{AclChange, BlockRange, Change, DirtyPages, Disk, Effect, Label, Policy};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

/// Blocks of a disk whose places are asked for at once.
const PLACES: u64 = 1024;

/// Regions of a disk that are not given up when they are empty. They take no memory then.
const ROOMS_KEPT: usize = 32;

/// The disks, and whom PolicyMgr knows.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The disks, by number. Those that have no table yet get one, and are erased.
    pub disks: Vec<(Disk, bool)>,
    /// Who may format.
    pub administrator: Principal,
    /// Who decides what is in memory.
    pub cache_manager: Principal,
    /// Who may ask whether somebody owns blocks: the FSDriver of these blocks.
    pub drivers: Vec<(u16, Blocks, Principal)>,
    /// Everybody by whom requests may be stamped, so that their digests can be told.
    pub principals: Vec<Principal>,
}

/// Blocks in one answer.
pub(crate) const CACHED_MAX: usize = 1024;

/// A region that blocks of one ACL go to.
struct Room {
    region: RegionId,
    /// Pages without a block.
    free: Vec<u32>,
}

struct Served {
    policy: Policy,
    /// Where the table is.
    table: Vec<Reference>,
    /// Regions by their ACL.
    rooms: HashMap<Acl, Vec<Room>>,
    /// Where blocks are, and the ACL of their region.
    places: BTreeMap<u64, (Reference, Acl)>,
}

struct Manager {
    monitor: Arc<Asker<AskMonitor, MonitorSays>>,
    driver: Asker<AskDriver, DriverSays>,
    stage: Arc<View>,
    configuration: Configuration,
    principals: HashMap<[u8; 32], Principal>,
    served: Vec<Served>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let ports = &context.ports;
        let names = [&configuration.administrator, &configuration.cache_manager];
        let known = names.into_iter().chain(&configuration.principals);
        let known = known.chain(configuration.drivers.iter().map(|(_, _, driver)| driver));
        let mut manager = Manager {
            monitor: Arc::new(ports.asker("monitor")?),
            driver: ports.asker("driver")?,
            stage: ports.region("stage")?,
            principals: known.map(|principal| (principal.digest().0, principal.clone())).collect(),
            served: Vec::new(),
            configuration,
        };
        for (number, (disk, is_new)) in manager.configuration.disks.clone().into_iter().enumerate() {
            let disk = Disk { number: number as u16, ..disk };
            manager
                .open(disk, is_new)
                .map_err(|refusal| crate::StackError::Component(refusal.to_string()))?;
        }
        // One after the other: what was decided is carried out before anything else is decided.
        let manager = Mutex::new(manager);
        Ok(ports.serve_owned(1, move |request| manager.lock().answer(&request))?)
    })
}

fn failed(error: impl ToString) -> Refusal {
    Refusal::Failed(error.to_string())
}

fn range(blocks: Blocks) -> Result<BlockRange, Refusal> {
    BlockRange::new(blocks.first, blocks.count).ok_or(Refusal::Malformed)
}

impl Manager {
    /// Brings the table of a disk into memory, in a region that is PolicyMgr's alone, and opens it.
    fn open(&mut self, disk: Disk, is_new: bool) -> Result<(), Refusal> {
        self.clear(disk.number)?;
        let own = self.own_name()?;
        let acl = Acl::of(own, holdfast_access::Access::ReadWrite).map_err(failed)?;
        let mut table = Vec::new();
        let numbers: Vec<u64> = (disk.table_first..disk.table_first + disk.table_blocks).collect();
        for numbers in numbers.chunks(REGION_PAGES_MAX) {
            let region = self.region(acl.clone())?;
            let blocks =
                numbers.iter().map(|number| BlockId { disk: disk.number, number: *number }).collect();
            let MonitorSays::References(references) =
                ask(&self.monitor, &AskMonitor::Assign { region, first: 0, blocks })?
            else {
                return Err(nonsense("the monitor"));
            };
            let pages: Vec<(u64, PageId)> =
                numbers.iter().zip(&references).map(|(number, at)| (*number, at.page)).collect();
            let disk = disk.number;
            ask(&self.driver, &AskDriver::Transfer { direction: Direction::Fill, disk, blocks: pages })?;
            table.extend(references);
        }
        let administrator = self.configuration.administrator.clone();
        let mut views: HashMap<RegionId, RegionView> = HashMap::new();
        let read = |at: u64| {
            let reference = *table.get(at as usize).ok_or("there is no such block in the table")?;
            let region = reference.page.region;
            if let std::collections::hash_map::Entry::Vacant(place) = views.entry(region) {
                place.insert(RegionView::open(&self.monitor, ITSELF, region).map_err(|why| why.to_string())?);
            }
            let mut page = Box::new([0; PAGE_BYTES]);
            match views[&region].read(reference, &mut page) {
                true => Ok(page),
                false => Err("its page is not there".to_owned()),
            }
        };
        // A new disk's table may have been made by an earlier process of this component: its identity tells.
        let policy = match Policy::open(disk.clone(), administrator.clone(), read) {
            Err(_) if is_new => {
                let (policy, change) = Policy::create(disk, administrator).map_err(failed)?;
                self.served.push(Served { policy, table, rooms: HashMap::new(), places: BTreeMap::new() });
                return self.carry_out(self.served.len() - 1, change);
            }
            policy => policy.map_err(failed)?,
        };
        self.served.push(Served { policy, table, rooms: HashMap::new(), places: BTreeMap::new() });
        Ok(())
    }

    /// Gives up the pages that an earlier process of this component had made, after what they have is on the disk.
    fn clear(&mut self, disk: u16) -> Result<(), Refusal> {
        let mut regions = std::collections::BTreeSet::new();
        loop {
            let first = BlockId { disk, number: 0 };
            let question = AskMonitor::Places { first, count: u64::MAX };
            let MonitorSays::Places(found) = ask(&self.monitor, &question)? else {
                return Err(nonsense("the monitor"));
            };
            if found.is_empty() {
                break;
            }
            for (at, block, status) in found {
                if status == Status::Dirty {
                    let blocks = vec![(block.number, at.page)];
                    ask(&self.driver, &AskDriver::Transfer { direction: Direction::Drain, disk, blocks })?;
                }
                match ask(&self.monitor, &AskMonitor::Free { page: at.page }) {
                    // Being moved: the next look finds it again.
                    Ok(_) | Err(Refusal::Code(_)) => regions.insert(at.page.region),
                    Err(refusal) => return Err(refusal),
                };
            }
        }
        for region in regions {
            ask(&self.monitor, &AskMonitor::RemoveRegion(region))?;
        }
        Ok(())
    }

    /// The name that the monitor knows this component by.
    fn own_name(&self) -> Result<Principal, Refusal> {
        self.configuration.principals.first().cloned().ok_or(Refusal::Malformed)
    }

    fn region(&self, acl: Acl) -> Result<RegionId, Refusal> {
        match ask(&self.monitor, &AskMonitor::CreateRegion { acl, pages: REGION_PAGES_MAX as u32 })? {
            MonitorSays::Region(region) => Ok(region),
            _ => Err(nonsense("the monitor")),
        }
    }

    fn answer(&mut self, request: &Request) -> Answer {
        let Some(principal) = self.principals.get(&request.alias.principal).cloned() else {
            return Answer::refuse(Refusal::NotPermitted);
        };
        let by = Alias::attested(principal, Scope::EVERYTHING);
        request.question().and_then(|question| self.decide(&by, question)).into()
    }

    fn served(&mut self, disk: u16) -> Result<&mut Served, Refusal> {
        self.served.get_mut(usize::from(disk)).ok_or(Refusal::Malformed)
    }

    fn decide(&mut self, by: &Alias, question: AskPolicy) -> Result<PolicySays, Refusal> {
        let is_cache = *by.principal() == self.configuration.cache_manager;
        match question {
            AskPolicy::Cache { .. } | AskPolicy::Evict { .. } | AskPolicy::Cached { .. } if !is_cache => {
                Err(Refusal::NotPermitted)
            }
            AskPolicy::Cache { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                Ok(PolicySays::References(self.cache(disk, &blocks)?))
            }
            AskPolicy::Evict { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                self.evict(disk, &blocks)?;
                Ok(PolicySays::Done)
            }
            AskPolicy::Cache { .. } | AskPolicy::Evict { .. } => Err(Refusal::Malformed),
            AskPolicy::Cached { disk, from } => {
                let cached = self.served(disk)?.places.range(from..).take(CACHED_MAX);
                Ok(PolicySays::Cached(cached.map(|(block, (at, _))| (*block, *at)).collect()))
            }
            AskPolicy::ChangeAcls { disk, blocks, principal, access } => {
                let change = match access {
                    Some(access) => AclChange::Set(principal, access),
                    None => AclChange::Remove(principal),
                };
                let change =
                    self.served(disk)?.policy.change_acls(by, range(blocks)?, &change).map_err(failed)?;
                self.must_carry_out(disk, change);
                Ok(PolicySays::Done)
            }
            AskPolicy::Nominate { disk, blocks, to } => {
                self.principals.insert(to.digest().0, to.clone());
                self.served(disk)?.policy.chown_nominate(by, range(blocks)?, to).map_err(failed)?;
                Ok(PolicySays::Done)
            }
            AskPolicy::Accept { disk, blocks, acl } => {
                let change =
                    self.served(disk)?.policy.chown_accept(by, range(blocks)?, acl).map_err(failed)?;
                self.must_carry_out(disk, change);
                Ok(PolicySays::Done)
            }
            AskPolicy::Look { disk, block } => {
                let (blocks, Label { owner, acl }) =
                    self.served(disk)?.policy.look(by, block).map_err(failed)?;
                let blocks = Blocks { first: blocks.first(), count: blocks.count() };
                Ok(PolicySays::Label { blocks, owner: owner.clone(), acl: acl.clone() })
            }
            AskPolicy::Owns { disk, blocks, owner } => {
                let is_within = |(of, all, driver): &(u16, Blocks, Principal)| {
                    let end = blocks.first.checked_add(blocks.count);
                    *of == disk
                        && driver == by.principal()
                        && blocks.first >= all.first
                        && end.is_some_and(|end| end <= all.first + all.count)
                };
                if !self.configuration.drivers.iter().any(is_within) {
                    return Err(Refusal::NotPermitted);
                }
                let range = range(blocks)?;
                let label = self.served(disk)?.policy.region_policy(&[range]);
                Ok(PolicySays::Owns(label.is_ok_and(|label| label.owner.digest().0 == owner)))
            }
            AskPolicy::Format { disk } => {
                let change = self.served(disk)?.policy.format(by).map_err(failed)?;
                self.must_carry_out(disk, change);
                Ok(PolicySays::Done)
            }
            AskPolicy::Sizes { disk } => {
                let sizes = self.served(disk)?.policy.sizes(by).map_err(failed)?;
                let (blocks, extents) = (sizes.disk_blocks, sizes.extents);
                Ok(PolicySays::Sizes { blocks, extents, labels: sizes.labels, free: sizes.free_pages })
            }
        }
    }

    /// Pages for blocks, each in a region of its ACL.
    fn cache(&mut self, disk: u16, blocks: &[u64]) -> Result<Vec<Reference>, Refusal> {
        let served = self.served(disk)?;
        let mut wanted: BTreeMap<Acl, Vec<u64>> = BTreeMap::new();
        for block in blocks {
            if served.places.contains_key(block) {
                continue;
            }
            let range = BlockRange::new(*block, 1).ok_or(Refusal::Malformed)?;
            let acl = &served.policy.region_policy(&[range]).map_err(failed)?.acl;
            let list = wanted.entry(acl.clone()).or_default();
            if !list.contains(block) {
                list.push(*block);
            }
        }
        for (acl, blocks) in wanted {
            self.place(disk, &acl, &blocks)?;
        }
        let served = self.served(disk)?;
        let place = |block: &u64| Ok(served.places.get(block).ok_or(Refusal::Malformed)?.0);
        blocks.iter().map(place).collect()
    }

    /// Gives blocks of one ACL pages, neighbouring ones where there are.
    fn place(&mut self, disk: u16, acl: &Acl, blocks: &[u64]) -> Result<(), Refusal> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let rooms = self.served(disk)?.rooms.entry(acl.clone()).or_default();
            let place = match rooms.iter().position(|room| !room.free.is_empty()) {
                Some(place) => place,
                None => {
                    let region = self.region(acl.clone())?;
                    let free = (0..REGION_PAGES_MAX as u32).rev().collect();
                    let rooms = self.served(disk)?.rooms.entry(acl.clone()).or_default();
                    rooms.push(Room { region, free });
                    rooms.len() - 1
                }
            };
            let room = &mut self.served(disk)?.rooms.get_mut(acl).expect("it is there")[place];
            let region = room.region;
            let first = room.free.pop().expect("there is one");
            let mut count = 1;
            while count < rest.len() && room.free.last() == Some(&(first + count as u32)) {
                room.free.pop();
                count += 1;
            }
            let (now, after) = rest.split_at(count);
            let ids = now.iter().map(|number| BlockId { disk, number: *number }).collect();
            let assigned = ask(&self.monitor, &AskMonitor::Assign { region, first, blocks: ids });
            let Ok(MonitorSays::References(references)) = assigned else {
                let room = &mut self.served(disk)?.rooms.get_mut(acl).expect("it is there")[place];
                room.free.extend((first..first + count as u32).rev());
                return Err(assigned.err().unwrap_or_else(|| nonsense("the monitor")));
            };
            let served = self.served(disk)?;
            served.places.extend(now.iter().zip(references).map(|(block, at)| (*block, (at, acl.clone()))));
            rest = after;
        }
        Ok(())
    }

    /// Gives up pages, their changes written first. Blocks that are being moved stay.
    fn evict(&mut self, disk: u16, blocks: &[u64]) -> Result<(), Refusal> {
        for block in blocks {
            let Some((at, _)) = self.served(disk)?.places.get(block).cloned() else { continue };
            let free = AskMonitor::Free { page: at.page };
            let freed = match ask(&self.monitor, &free) {
                Err(Refusal::Code(crate::host::STATE)) => {
                    self.clean(disk, *block)?;
                    ask(&self.monitor, &free)
                }
                freed => freed,
            };
            match freed {
                Ok(_) => self.vacate(disk, *block)?,
                // Changed again, or being read: it is wanted after all.
                Err(Refusal::Code(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// The page of a block is free again.
    fn vacate(&mut self, disk: u16, block: u64) -> Result<(), Refusal> {
        let served = self.served(disk)?;
        let all: usize = served.rooms.values().map(Vec::len).sum();
        if let Some((at, acl)) = served.places.remove(&block) {
            let rooms = served.rooms.entry(acl).or_default();
            if let Some(place) = rooms.iter().position(|room| room.region == at.page.region) {
                rooms[place].free.push(at.page.index);
                // Some that are empty are kept for what comes next, with the views that readers have of them.
                if rooms[place].free.len() == REGION_PAGES_MAX && rooms.len() > 1 && all > ROOMS_KEPT {
                    let region = rooms.swap_remove(place).region;
                    ask(&self.monitor, &AskMonitor::RemoveRegion(region))?;
                }
            }
        }
        Ok(())
    }

    /// Writes what a block's page has and its disk does not.
    fn clean(&mut self, disk: u16, block: u64) -> Result<(), Refusal> {
        let first = BlockId { disk, number: block };
        let MonitorSays::Places(found) = ask(&self.monitor, &AskMonitor::Places { first, count: 1 })? else {
            return Err(nonsense("the monitor"));
        };
        if let Some((at, _, Status::Dirty)) = found.first() {
            let blocks = vec![(block, at.page)];
            ask(&self.driver, &AskDriver::Transfer { direction: Direction::Drain, disk, blocks })?;
        }
        Ok(())
    }

    /// What cannot be carried out must not be built upon, and nobody may learn that it was decided.
    fn must_carry_out(&mut self, disk: u16, change: Change) {
        if let Err(refusal) = self.carry_out(usize::from(disk), change) {
            tracing::error!(%refusal, "a change of the policy could not be carried out; PolicyMgr begins anew");
            std::process::exit(1);
        }
    }

    fn carry_out(&mut self, at: usize, change: Change) -> Result<(), Refusal> {
        let disk = at as u16;
        for effect in change.effects() {
            match effect {
                Effect::Withdraw(range, pages) => self.withdraw(disk, *range, *pages)?,
                Effect::Erase(range) => {
                    let first = BlockId { disk, number: range.first() };
                    ask(&self.monitor, &AskMonitor::Erase { first, count: range.count() })?;
                }
                Effect::Store(images) => {
                    if images.len() > STAGE_PAGES {
                        return Err(failed("the table changes in more places than are written at once"));
                    }
                    let mut writes = Vec::with_capacity(images.len());
                    for (page, image) in images.iter().enumerate() {
                        let offset = (page * PAGE_BYTES) as u64;
                        self.stage.write_at(offset, &image.bytes[..]).map_err(failed)?;
                        let place =
                            self.served[at].table.get(image.block as usize).ok_or(Refusal::Malformed)?;
                        writes.push((*place, page as u32));
                    }
                    ask(&self.monitor, &AskMonitor::WriteTogether { disk, writes })?;
                }
            }
        }
        self.served[at].policy.carried_out(change);
        Ok(())
    }

    /// Takes the pages of these blocks from all who see them.
    fn withdraw(&mut self, disk: u16, range: BlockRange, pages: DirtyPages) -> Result<(), Refusal> {
        let mut number = range.first();
        while number < range.end() {
            let cached = self.served(disk)?.places.range(number..range.end()).take(PLACES as usize);
            let cached: Vec<u64> = cached.map(|(block, _)| *block).collect();
            let Some(last) = cached.last() else { return Ok(()) };
            number = last + 1;
            for block in cached {
                match pages {
                    DirtyPages::Write => {
                        // Whoever changes it meanwhile does so under the old ACL: until it is free.
                        let page = self.served(disk)?.places[&block].0.page;
                        loop {
                            self.clean(disk, block)?;
                            match ask(&self.monitor, &AskMonitor::Free { page }) {
                                Ok(_) => break,
                                Err(Refusal::Code(_)) => std::thread::yield_now(),
                                Err(refusal) => return Err(refusal),
                            }
                        }
                    }
                    // The erasure that follows takes the pages.
                    DirtyPages::Drop => {}
                }
                self.vacate(disk, block)?;
            }
        }
        Ok(())
    }
}
