//! PolicyMgr: who owns each block and who may use it; regions with one ACL each; the policy table of each
//! disk (paper, section 4.5). In the trusted base: the monitor gives a block's bytes to the principals in the
//! ACLs from here.
//!
//! [`holdfast_policy`] decides, and this carries it out. Invariants:
//! - A block is put into a region only if the region's ACL is the block's, according to the table.
//! - The effects of a decision are carried out in its order, before anything else is decided.
//! - If a change cannot be carried out, the whole table is dropped and read again.
//! - One disk that fails does not stop the others.

use crate::asking::{ITSELF, ask, nonsense};
use crate::protocol::{
    BLOCKS_MAX, Blocks, DriverReply, DriverRequest, MonitorReply, MonitorRequest, PolicyReply, PolicyRequest,
    STAGE_PAGES,
};
use crate::views::RegionView;
use holdfast_access::{Acl, Alias, Credential, Principal, Revocations, Scope, Statement, VerifiedCredential};
use holdfast_components::{Asker, Context, Refusal, Reply, Request, View};
use holdfast_monitor::{
    BlockId, Direction, PAGE_BYTES, PageId, REGION_PAGES_MAX, Reference, RegionId, Status,
};
use holdfast_policy::{AclChange, BlockRange, Change, DirtyPages, Disk, Effect, Label, Policy};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::sync::Arc;

/// Blocks of a disk whose pages are requested at once.
const PLACES: u64 = 1024;
/// Most names of callers that are stored. A caller whose name was dropped introduces itself again.
const KNOWN_MAX: usize = 4096;
/// Most revocations that one caller may present in one run, so that no caller uses up the space for all.
const ENDINGS_MAX: usize = 256;
/// Most bytes of stored revocations, which are written at once.
const ENDINGS_BYTES_MAX: usize = 1 << 20;

/// The disks, and the principals that PolicyMgr has to resolve.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The disks, by number, each with whether it is new. New disks get a table, and are erased.
    pub disks: Vec<(Disk, bool)>,
    /// The bus of each disk.
    pub buses: Vec<u16>,
    /// The principal that may format disks.
    pub administrator: Principal,
    /// The principal that decides which blocks are cached.
    pub cache_manager: Principal,
    /// The FSDrivers, each with its blocks: they may ask who owns these blocks.
    pub drivers: Vec<(u16, Blocks, Principal)>,
    /// All principals with which requests may be stamped, to resolve their digests.
    pub principals: Vec<Principal>,
    /// How many empty regions of a disk are retained for later blocks.
    pub spare_regions: u32,
}

/// How often a page that keeps becoming dirty is written before the DiskDriver counts as faulty.
const WRITES_MAX: usize = 1000;
/// How often dirty pages are written before a change of the policy is decided.
const SETTLING_MAX: usize = 16;

/// Most blocks in one reply to [`PolicyRequest::Cached`].
pub(crate) const CACHED_MAX: usize = 1024;

/// A region that blocks of one ACL go to.
struct RegionPages {
    region: RegionId,
    /// Indexes of pages without a block.
    free: Vec<u32>,
}

struct ServedDisk {
    policy: Policy,
    /// The pages that hold the policy table.
    table: Vec<Reference>,
    /// Regions with room, by their ACL.
    rooms: HashMap<Acl, Vec<RegionPages>>,
    /// The page of each cached block, and the ACL of its region.
    pages: BTreeMap<u64, (Reference, Acl)>,
}

struct Manager {
    monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
    /// The DiskDrivers, by bus.
    buses: Vec<Asker<DriverRequest, DriverReply>>,
    stage: Arc<View>,
    configuration: Configuration,
    /// The principals of the digests that requests are stamped with: from the configuration, or introduced
    /// since.
    principals: HashMap<[u8; 32], Alias>,
    introduced: HashMap<[u8; 32], Alias>,
    /// The disks, by number. One whose table cannot be read is absent, and does not hold up the others.
    served: BTreeMap<u16, ServedDisk>,
    /// The revocations on all disks.
    revocations: Revocations,
    /// Number of revocations that each caller presented.
    endings: HashMap<[u8; 32], usize>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let ports = &context.ports;
        let names = [&configuration.administrator, &configuration.cache_manager];
        let known = names.into_iter().chain(&configuration.principals);
        let known = known.chain(configuration.drivers.iter().map(|(_, _, driver)| driver));
        let buses = configuration.buses.iter().max().map_or(0, |last| last + 1);
        let buses = (0..buses).map(|bus| ports.asker(&crate::host::bus_port(bus)));
        let mut manager = Manager {
            monitor: Arc::new(ports.asker("monitor")?),
            buses: buses.collect::<Result<_, _>>()?,
            stage: ports.region("stage")?,
            principals: known.map(whole).collect(),
            introduced: HashMap::new(),
            served: BTreeMap::new(),
            revocations: Revocations::new(),
            endings: HashMap::new(),
            configuration,
        };
        for number in 0..manager.configuration.disks.len() as u16 {
            manager.open_again(number);
        }
        manager.announce_endings().map_err(|refusal| crate::StackError::Component(refusal.to_string()))?;
        // One request after the other: a decision is carried out before the next is made.
        let manager = Mutex::new(manager);
        Ok(ports.serve_owned(1, move |request| manager.lock().answer(&request))?)
    })
}

/// Why a disk's table could not be opened.
fn explained(refusal: &Refusal, disk: u16) -> String {
    match refusal {
        Refusal::Code(crate::host::BAD_BLOCK) => format!(
            "the policy table of disk {disk} is not what was written there: the disk, or what is beside it, was changed, \
             mixed up or put back; nobody gets anything of it. Bring back what belongs together, or format the disk"
        ),
        refusal => format!("the policy table of disk {disk}: {refusal}"),
    }
}

fn served_has(served: &ServedDisk, region: RegionId) -> bool {
    served.rooms.values().flatten().any(|room| room.region == region)
}

fn whole(principal: &Principal) -> ([u8; 32], Alias) {
    (principal.digest().0, Alias::attested(principal.clone(), Scope::EVERYTHING))
}

fn failed(error: impl ToString) -> Refusal {
    Refusal::Failed(error.to_string())
}

/// The failure that the DiskDriver reported a write, but the page is still dirty.
fn unwritten() -> Refusal {
    failed("the disk driver says that it wrote changed blocks, and did not: restart it")
}

fn range(blocks: Blocks) -> Result<BlockRange, Refusal> {
    BlockRange::new(blocks.first, blocks.count).ok_or(Refusal::Malformed)
}

impl Manager {
    /// Opens the table of a disk again, from the disk. If that fails, its blocks are refused, and the reason
    /// is reported.
    fn open_again(&mut self, number: u16) {
        self.served.remove(&number);
        let Some((disk, is_new)) = self.configuration.disks.get(usize::from(number)).cloned() else { return };
        if let Err(refusal) = self.open(Disk { number, ..disk }, is_new) {
            tracing::error!("{}", explained(&refusal, number));
            self.served.remove(&number);
        }
    }

    /// The DiskDriver that transfers for a disk.
    fn driver(&self, disk: u16) -> Result<&Asker<DriverRequest, DriverReply>, Refusal> {
        let bus = self.configuration.buses.get(usize::from(disk)).ok_or(Refusal::Malformed)?;
        self.buses.get(usize::from(*bus)).ok_or(Refusal::Malformed)
    }

    /// Loads the table of a disk into memory, in a region that only PolicyMgr has, and opens it.
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
            let MonitorReply::References(references) =
                ask(&self.monitor, &MonitorRequest::Assign { region, first: 0, blocks })?
            else {
                return Err(nonsense("the monitor"));
            };
            let pages: Vec<(u64, PageId)> =
                numbers.iter().zip(&references).map(|(number, at)| (*number, at.page)).collect();
            let disk = disk.number;
            let question = DriverRequest::Transfer { direction: Direction::Fill, disk, blocks: pages };
            ask(self.driver(disk)?, &question)?;
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
        // An earlier process of this component may have made the table of a new disk; the table's identity
        // shows that.
        let number = disk.number;
        let (policy, change) = match Policy::open(disk.clone(), administrator.clone(), read) {
            Err(_) if is_new => {
                let (policy, change) = Policy::create(disk, administrator).map_err(failed)?;
                (policy, Some(change))
            }
            policy => (policy.map_err(failed)?, None),
        };
        let served = ServedDisk { policy, table, rooms: HashMap::new(), pages: BTreeMap::new() };
        self.served.insert(number, served);
        if let Some(change) = change {
            self.carry_out(number, change)?;
        }
        self.take_endings(number)
    }

    /// Gives up the pages that an earlier process of this component had, after their content was written to
    /// the disk.
    fn clear(&mut self, disk: u16) -> Result<(), Refusal> {
        let mut regions = std::collections::BTreeSet::new();
        let mut looks_without_progress = 0;
        loop {
            let first = BlockId { disk, number: 0 };
            let question = MonitorRequest::Places { first, count: u64::MAX };
            let MonitorReply::Places(found) = ask(&self.monitor, &question)? else {
                return Err(nonsense("the monitor"));
            };
            if found.is_empty() {
                break;
            }
            let mut freed = 0;
            for (at, block, status) in found {
                if status == Status::Dirty {
                    let blocks = vec![(block.number, at.page)];
                    let question = DriverRequest::Transfer { direction: Direction::Drain, disk, blocks };
                    ask(self.driver(disk)?, &question)?;
                }
                match ask(&self.monitor, &MonitorRequest::Free { page: at.page }) {
                    Ok(_) => freed += 1,
                    // The block is being transferred; the next look finds it again.
                    Err(Refusal::Code(_)) => {}
                    Err(refusal) => return Err(refusal),
                }
                regions.insert(at.page.region);
            }
            looks_without_progress = if freed > 0 { 0 } else { looks_without_progress + 1 };
            if looks_without_progress > WRITES_MAX {
                return Err(unwritten());
            }
        }
        for region in regions {
            ask(&self.monitor, &MonitorRequest::RemoveRegion(region))?;
        }
        Ok(())
    }

    /// The name under which the monitor knows this component.
    fn own_name(&self) -> Result<Principal, Refusal> {
        self.configuration.principals.first().cloned().ok_or(Refusal::Malformed)
    }

    fn region(&self, acl: Acl) -> Result<RegionId, Refusal> {
        match ask(&self.monitor, &MonitorRequest::CreateRegion { acl, pages: REGION_PAGES_MAX as u32 })? {
            MonitorReply::Region(region) => Ok(region),
            _ => Err(nonsense("the monitor")),
        }
    }

    fn answer(&mut self, request: &Request) -> Reply {
        let stamp = &request.alias.principal;
        let known = self.principals.get(stamp).or_else(|| self.introduced.get(stamp)).cloned();
        let question = match request.question() {
            Ok(question) => question,
            Err(refusal) => return Reply::refuse(refusal),
        };
        let answer = match (question, known) {
            (PolicyRequest::Introduce { principal, scope }, _) => {
                self.introduce(stamp, Alias::attested(principal, scope))
            }
            (PolicyRequest::End(bytes), _) => self.end(stamp, &bytes),
            (question, Some(by)) => self.decide(&by, question),
            (_, None) => Err(Refusal::NotPermitted),
        };
        answer.into()
    }

    /// Learns the principal of a digest from a caller whose request is stamped with that digest.
    fn introduce(&mut self, stamp: &[u8; 32], alias: Alias) -> Result<PolicyReply, Refusal> {
        if alias.digest().0 != *stamp {
            return Err(Refusal::NotPermitted);
        }
        if self.introduced.len() >= KNOWN_MAX {
            self.introduced.clear();
        }
        self.introduced.insert(*stamp, alias);
        Ok(PolicyReply::Done)
    }

    /// Carries out a revocation: it is verified, made durable, and announced to the monitor before it is
    /// acknowledged. Its issuer is checked; the caller is only counted.
    fn end(&mut self, stamp: &[u8; 32], bytes: &[u8]) -> Result<PolicyReply, Refusal> {
        let verified = VerifiedCredential::signed(bytes).map_err(failed)?;
        let Credential { statement: Statement::Ends(_), .. } = verified.credential() else {
            return Err(failed("this credential ends no others; it is for the session that is to use it"));
        };
        let mut revocations = self.revocations.clone();
        revocations.end_by(&verified).map_err(failed)?;
        if revocations.encode() != self.revocations.encode() {
            if self.endings.len() >= KNOWN_MAX && !self.endings.contains_key(stamp) {
                return Err(failed("too many sessions revoked something: mount anew"));
            }
            let count = self.endings.entry(*stamp).or_default();
            if *count >= ENDINGS_MAX {
                return Err(failed(
                    "this session revoked much already: mount anew, or end all before a number",
                ));
            }
            if revocations.encode().len() > ENDINGS_BYTES_MAX {
                return Err(failed("too much is revoked one by one: end all before a number instead"));
            }
            *count += 1;
            let disks: Vec<u16> = self.served.keys().copied().collect();
            for disk in disks {
                let change = self.served(disk)?.policy.set_extra(revocations.encode()).map_err(failed)?;
                self.must_carry_out(disk, change)?;
                ask(&self.monitor, &MonitorRequest::Flush { disk })?;
            }
            self.revocations = revocations;
        }
        // Announced even if nothing changed: the answer to an earlier announcement may have been lost.
        self.announce_endings()?;
        Ok(PolicyReply::Done)
    }

    fn announce_endings(&self) -> Result<(), Refusal> {
        ask(&self.monitor, &MonitorRequest::Ended(self.revocations.encode())).map(|_| ())
    }

    /// Adopts the revocations that a disk stores.
    fn take_endings(&mut self, disk: u16) -> Result<(), Refusal> {
        let kept = self.served(disk)?.policy.extra().to_vec();
        if !kept.is_empty() {
            self.revocations.merge(&Revocations::decode(&kept).map_err(failed)?).map_err(failed)?;
        }
        Ok(())
    }

    /// Tells the monitor that somebody lost the right to blocks, so that sessions make their kernels drop
    /// them.
    fn withdrawn(&self) {
        if let Err(refusal) = ask(&self.monitor, &MonitorRequest::Withdrawn) {
            tracing::warn!(%refusal, "kernels may keep what they have of files for a while");
        }
    }

    fn served(&mut self, disk: u16) -> Result<&mut ServedDisk, Refusal> {
        let none = || Refusal::Failed(format!("the policy table of disk {disk} cannot be used"));
        self.served.get_mut(&disk).ok_or_else(none)
    }

    fn decide(&mut self, by: &Alias, question: PolicyRequest) -> Result<PolicyReply, Refusal> {
        let is_cache = *by.principal() == self.configuration.cache_manager;
        match question {
            PolicyRequest::Cache { .. } | PolicyRequest::Evict { .. } | PolicyRequest::Cached { .. }
                if !is_cache =>
            {
                Err(Refusal::NotPermitted)
            }
            PolicyRequest::Cache { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                Ok(PolicyReply::References(self.cache(disk, &blocks)?))
            }
            PolicyRequest::Evict { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                self.evict(disk, &blocks)?;
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Cache { .. } | PolicyRequest::Evict { .. } => Err(Refusal::Malformed),
            PolicyRequest::Cached { disk, from } => {
                let cached = self.served(disk)?.pages.range(from..).take(CACHED_MAX);
                Ok(PolicyReply::Cached(cached.map(|(block, (at, _))| (*block, *at)).collect()))
            }
            PolicyRequest::ChangeAcls { disk, blocks, principal, access } => {
                let change = match access {
                    Some(access) => AclChange::Set(principal, access),
                    None => AclChange::Remove(principal),
                };
                let range = range(blocks)?;
                // A caller that may not see the blocks may not change them either, and causes no writes.
                self.served(disk)?.policy.look(by, range.first()).map_err(failed)?;
                self.settle(disk, range)?;
                let change = self.served(disk)?.policy.change_acls(by, range, &change).map_err(failed)?;
                self.must_carry_out(disk, change)?;
                self.withdrawn();
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Nominate { disk, blocks, to } => {
                self.served(disk)?.policy.chown_nominate(by, range(blocks)?, to).map_err(failed)?;
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Give { disk, blocks, to } => {
                self.served(disk)?.policy.chown_give(by, range(blocks)?, to).map_err(failed)?;
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Accept { disk, blocks, acl } => {
                let change =
                    self.served(disk)?.policy.chown_accept(by, range(blocks)?, acl).map_err(failed)?;
                let is_given = !change.effects().iter().any(|effect| matches!(effect, Effect::Erase(_)));
                self.must_carry_out(disk, change)?;
                if is_given {
                    self.withdrawn();
                }
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Introduce { .. } | PolicyRequest::End(_) => Err(Refusal::Malformed),
            PolicyRequest::Look { disk, block } => {
                let (blocks, Label { owner, acl }) =
                    self.served(disk)?.policy.look(by, block).map_err(failed)?;
                let blocks = Blocks { first: blocks.first(), count: blocks.count() };
                Ok(PolicyReply::Label { blocks, owner: owner.clone(), acl: acl.clone() })
            }
            PolicyRequest::Owns { disk, blocks, owner } => {
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
                Ok(PolicyReply::Owns(label.is_ok_and(|label| label.owner.digest().0 == owner)))
            }
            PolicyRequest::Format { disk } => {
                let change = self.served(disk)?.policy.format(by).map_err(failed)?;
                self.must_carry_out(disk, change)?;
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Sizes { disk } => {
                let sizes = self.served(disk)?.policy.sizes(by).map_err(failed)?;
                let (blocks, extents) = (sizes.disk_blocks, sizes.extents);
                Ok(PolicyReply::Sizes { blocks, extents, labels: sizes.labels, free: sizes.free_pages })
            }
        }
    }

    /// Writes these blocks' changes before a decision that takes their pages. So a DiskDriver that does not
    /// write fails the request, and not this process.
    fn settle(&mut self, disk: u16, range: BlockRange) -> Result<(), Refusal> {
        let cached = self.served(disk)?.pages.range(range.first()..range.end());
        let cached: Vec<u64> = cached.map(|(block, _)| *block).collect();
        for block in cached {
            let first = BlockId { disk, number: block };
            let mut writes = 0;
            while let MonitorReply::Places(found) =
                ask(&self.monitor, &MonitorRequest::Places { first, count: 1 })?
            {
                match found.first() {
                    Some((_, _, Status::Dirty)) if writes < SETTLING_MAX => self.clean(disk, block)?,
                    Some((_, _, Status::Dirty)) => return Err(unwritten()),
                    _ => break,
                }
                writes += 1;
            }
        }
        Ok(())
    }

    /// Returns pages for blocks, each in a region with the block's ACL.
    fn cache(&mut self, disk: u16, blocks: &[u64]) -> Result<Vec<Reference>, Refusal> {
        let served = self.served(disk)?;
        let mut wanted: BTreeMap<Acl, Vec<u64>> = BTreeMap::new();
        for block in blocks {
            if served.pages.contains_key(block) {
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
        let place = |block: &u64| Ok(served.pages.get(block).ok_or(Refusal::Malformed)?.0);
        blocks.iter().map(place).collect()
    }

    /// Assigns pages to blocks of one ACL, consecutive ones where possible.
    fn place(&mut self, disk: u16, acl: &Acl, blocks: &[u64]) -> Result<(), Refusal> {
        let mut rest = blocks;
        while !rest.is_empty() {
            let rooms = self.served(disk)?.rooms.entry(acl.clone()).or_default();
            let place = match rooms.iter().position(|room| !room.free.is_empty()) {
                Some(place) => place,
                None => {
                    let region = match self.region(acl.clone()) {
                        // If many ACLs have few blocks each, the smallest region is given up to make room.
                        Err(Refusal::Failed(_)) if self.give_up_smallest(disk)? => {
                            self.region(acl.clone())?
                        }
                        region => region?,
                    };
                    let free = (0..REGION_PAGES_MAX as u32).rev().collect();
                    let rooms = self.served(disk)?.rooms.entry(acl.clone()).or_default();
                    rooms.push(RegionPages { region, free });
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
            let assigned = ask(&self.monitor, &MonitorRequest::Assign { region, first, blocks: ids });
            let Ok(MonitorReply::References(references)) = assigned else {
                let room = &mut self.served(disk)?.rooms.get_mut(acl).expect("it is there")[place];
                room.free.extend((first..first + count as u32).rev());
                return Err(assigned.err().unwrap_or_else(|| nonsense("the monitor")));
            };
            let served = self.served(disk)?;
            served.pages.extend(now.iter().zip(references).map(|(block, at)| (*block, (at, acl.clone()))));
            rest = after;
        }
        Ok(())
    }

    /// Frees pages after their changes are written. Blocks that are being transferred stay.
    fn evict(&mut self, disk: u16, blocks: &[u64]) -> Result<(), Refusal> {
        for block in blocks {
            let Some((at, _)) = self.served(disk)?.pages.get(block).cloned() else { continue };
            let free = MonitorRequest::Free { page: at.page };
            let freed = match ask(&self.monitor, &free) {
                Err(Refusal::Code(crate::host::STATE)) => {
                    self.clean(disk, *block)?;
                    ask(&self.monitor, &free)
                }
                freed => freed,
            };
            match freed {
                Ok(_) => self.vacate(disk, *block)?,
                // The block was changed again or is being read, so it is still in use.
                Err(Refusal::Code(_)) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }

    /// Marks the page of a block as free.
    fn vacate(&mut self, disk: u16, block: u64) -> Result<(), Refusal> {
        let served = self.served(disk)?;
        if let Some((at, acl)) = served.pages.remove(&block) {
            let rooms = served.rooms.entry(acl).or_default();
            if let Some(place) = rooms.iter().position(|room| room.region == at.page.region) {
                rooms[place].free.push(at.page.index);
            }
        }
        self.give_up_empty(disk)
    }

    /// Retains some empty regions for later blocks and gives up the others, which could be as many as there
    /// are ACLs.
    fn give_up_empty(&mut self, disk: u16) -> Result<(), Refusal> {
        let spare = self.configuration.spare_regions as usize;
        let served = self.served(disk)?;
        let is_empty = |room: &RegionPages| room.free.len() == REGION_PAGES_MAX;
        let mut surplus = served.rooms.values().flatten().filter(|room| is_empty(room)).count();
        let mut given_up = Vec::new();
        if surplus > spare {
            for rooms in served.rooms.values_mut() {
                rooms.retain(|room| {
                    let goes = surplus > 0 && is_empty(room);
                    if goes {
                        surplus -= 1;
                        given_up.push(room.region);
                    }
                    !goes
                });
            }
            served.rooms.retain(|_, rooms| !rooms.is_empty());
        }
        for region in given_up {
            ask(&self.monitor, &MonitorRequest::RemoveRegion(region))?;
        }
        Ok(())
    }

    /// Evicts the blocks of the region that has the fewest, and gives the region up. Returns `false` if there
    /// is no region.
    fn give_up_smallest(&mut self, disk: u16) -> Result<bool, Refusal> {
        let served = self.served(disk)?;
        let smallest = served.rooms.values().flatten().max_by_key(|room| room.free.len());
        let Some(region) = smallest.map(|room| room.region) else { return Ok(false) };
        let is_there = |(_, (at, _)): &(&u64, &(Reference, Acl))| at.page.region == region;
        let blocks: Vec<u64> = served.pages.iter().filter(is_there).map(|(block, _)| *block).collect();
        self.evict(disk, &blocks)?;
        let served = self.served(disk)?;
        let mut is_gone = false;
        for rooms in served.rooms.values_mut() {
            let is_it = |room: &RegionPages| room.region == region && room.free.len() == REGION_PAGES_MAX;
            if let Some(place) = rooms.iter().position(is_it) {
                rooms.swap_remove(place);
                is_gone = true;
            }
        }
        if is_gone {
            ask(&self.monitor, &MonitorRequest::RemoveRegion(region))?;
        }
        // The region may already have been given up with the empty ones.
        Ok(is_gone || !served_has(self.served(disk)?, region))
    }

    /// Writes a block's page to the disk if the page is dirty.
    fn clean(&mut self, disk: u16, block: u64) -> Result<(), Refusal> {
        let first = BlockId { disk, number: block };
        let MonitorReply::Places(found) = ask(&self.monitor, &MonitorRequest::Places { first, count: 1 })?
        else {
            return Err(nonsense("the monitor"));
        };
        if let Some((at, _, Status::Dirty)) = found.first() {
            let blocks = vec![(block, at.page)];
            ask(self.driver(disk)?, &DriverRequest::Transfer { direction: Direction::Drain, disk, blocks })?;
        }
        Ok(())
    }

    /// Carries out a decision. If that fails, the table is read again, so that no later decision builds on
    /// this one.
    fn must_carry_out(&mut self, disk: u16, change: Change) -> Result<(), Refusal> {
        self.carry_out(disk, change).inspect_err(|refusal| {
            tracing::error!(%refusal, disk, "a change of the policy could not be carried out; its table is read anew");
            self.open_again(disk);
        })
    }

    fn carry_out(&mut self, disk: u16, change: Change) -> Result<(), Refusal> {
        for effect in change.effects() {
            match effect {
                Effect::Withdraw(range, pages) => self.withdraw(disk, *range, *pages)?,
                Effect::Erase(range) => {
                    let first = BlockId { disk, number: range.first() };
                    let erase = MonitorRequest::Erase { first, count: range.count() };
                    // The block is being written for a component that has changed it, which takes only a
                    // moment.
                    let mut attempts = 0;
                    while let Err(refusal) = ask(&self.monitor, &erase) {
                        if refusal != Refusal::Code(crate::host::BUSY) || attempts == WRITES_MAX {
                            return Err(refusal);
                        }
                        attempts += 1;
                        std::thread::yield_now();
                    }
                }
                Effect::Store(images) => {
                    if images.len() > STAGE_PAGES {
                        return Err(failed("the table changes in more places than are written at once"));
                    }
                    let mut writes = Vec::with_capacity(images.len());
                    for (page, image) in images.iter().enumerate() {
                        let offset = (page * PAGE_BYTES) as u64;
                        self.stage.write_at(offset, &image.bytes[..]).map_err(failed)?;
                        let table = &self.served(disk)?.table;
                        writes.push(*table.get(image.block as usize).ok_or(Refusal::Malformed)?);
                    }
                    ask(&self.monitor, &MonitorRequest::WriteTogether { disk, writes })?;
                }
            }
        }
        self.served(disk)?.policy.carried_out(change);
        Ok(())
    }

    /// Takes the pages of these blocks away from everybody who has views of them.
    fn withdraw(&mut self, disk: u16, range: BlockRange, pages: DirtyPages) -> Result<(), Refusal> {
        let mut number = range.first();
        while number < range.end() {
            let cached = self.served(disk)?.pages.range(number..range.end()).take(PLACES as usize);
            let cached: Vec<u64> = cached.map(|(block, _)| *block).collect();
            let Some(last) = cached.last() else { return Ok(()) };
            number = last + 1;
            for block in cached {
                match pages {
                    DirtyPages::Write => {
                        // A caller who changes the block meanwhile does so under the old ACL, until the page
                        // is free.
                        let page = self.served(disk)?.pages[&block].0.page;
                        let mut writes = 0;
                        loop {
                            self.clean(disk, block)?;
                            match ask(&self.monitor, &MonitorRequest::Free { page }) {
                                Ok(_) => break,
                                Err(Refusal::Code(_)) if writes < WRITES_MAX => std::thread::yield_now(),
                                Err(Refusal::Code(_)) => return Err(unwritten()),
                                Err(refusal) => return Err(refusal),
                            }
                            writes += 1;
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
