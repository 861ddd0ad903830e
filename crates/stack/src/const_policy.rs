//! ConstPolicyMgr (paper, section 5.2.2): replaces PolicyMgr, with one ACL for all blocks and no table. It is
//! for measuring the cost of the policy; no command of Holdfast starts it.
//!
//! Every listed principal owns everything, and changes of owners and ACLs have no effect. Blocks that a new
//! owner accepts are erased nevertheless, because file systems rely on the zeroes.

use crate::asking::{ask, nonsense};
use crate::protocol::{
    BLOCKS_MAX, DriverReply, DriverRequest, MonitorReply, MonitorRequest, PolicyReply, PolicyRequest,
};
use holdfast_access::{Access, Acl, Principal, Revocations};
use holdfast_components::{Asker, Context, Refusal, Reply, Request};
use holdfast_monitor::{BlockId, Direction, PageId, REGION_PAGES_MAX, Reference, RegionId, Status};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// The principals of all components.
#[derive(Clone, PartialEq, Debug, borsh::BorshSerialize, borsh::BorshDeserialize)]
pub struct Configuration {
    /// The principals that may read and write every block.
    pub principals: Vec<Principal>,
    /// The principal that is reported as the owner of every block.
    pub owner: Principal,
}

type Block = (u16, u64);

struct Manager {
    monitor: Asker<MonitorRequest, MonitorReply>,
    driver: Asker<DriverRequest, DriverReply>,
    acl: Acl,
    owner: Principal,
    places: BTreeMap<Block, Reference>,
    /// Pages without a block; the next one to use is the last.
    free: Vec<(RegionId, u32)>,
}

/// Runs the component.
pub fn main(context: Context) -> ExitCode {
    crate::component(&context, |configuration: Configuration| {
        let mut all = configuration.principals.into_iter();
        let mut acl = Acl::of(all.next().unwrap_or(configuration.owner.clone()), Access::ReadWrite)?;
        all.try_for_each(|principal| acl.set(principal, Access::ReadWrite))?;
        let monitor: Asker<MonitorRequest, MonitorReply> = context.ports.asker("monitor")?;
        // There are no revocations, but the monitor accepts no names before it has been told that.
        ask(&monitor, &MonitorRequest::Ended(Revocations::default().encode()))?;
        let manager = Mutex::new(Manager {
            monitor,
            driver: context.ports.asker(&crate::host::bus_port(0))?,
            acl,
            owner: configuration.owner,
            places: BTreeMap::new(),
            free: Vec::new(),
        });
        Ok(context.ports.serve_owned(1, move |request| manager.lock().answer(&request))?)
    })
}

impl Manager {
    fn answer(&mut self, request: &Request) -> Reply {
        request.question().and_then(|question| self.decide(question)).into()
    }

    fn decide(&mut self, question: PolicyRequest) -> Result<PolicyReply, Refusal> {
        match question {
            PolicyRequest::Cache { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                Ok(PolicyReply::References(self.cache(disk, &blocks)?))
            }
            PolicyRequest::Evict { disk, blocks } if blocks.len() <= BLOCKS_MAX => {
                blocks.iter().try_for_each(|block| self.evict((disk, *block)))?;
                Ok(PolicyReply::Done)
            }
            PolicyRequest::Cache { .. } | PolicyRequest::Evict { .. } => Err(Refusal::Malformed),
            // No block is cached when the component begins, and it is never restarted.
            PolicyRequest::Cached { .. } => Ok(PolicyReply::Cached(Vec::new())),
            PolicyRequest::Accept { disk, blocks, .. } => {
                let range = (disk, blocks.first)..(disk, blocks.first.saturating_add(blocks.count));
                let cached: Vec<Block> = self.places.range(range).map(|(block, _)| *block).collect();
                let first = BlockId { disk, number: blocks.first };
                ask(&self.monitor, &MonitorRequest::Erase { first, count: blocks.count })?;
                cached.into_iter().for_each(|block| self.vacate(block));
                Ok(PolicyReply::Done)
            }
            PolicyRequest::ChangeAcls { .. }
            | PolicyRequest::Nominate { .. }
            | PolicyRequest::Give { .. }
            | PolicyRequest::Introduce { .. }
            | PolicyRequest::End(_)
            | PolicyRequest::Format { .. } => Ok(PolicyReply::Done),
            PolicyRequest::Look { block, .. } => {
                let blocks = crate::protocol::Blocks { first: block, count: 1 };
                Ok(PolicyReply::Label { blocks, owner: self.owner.clone(), acl: self.acl.clone() })
            }
            PolicyRequest::Owns { .. } => Ok(PolicyReply::Owns(true)),
            PolicyRequest::Sizes { .. } => {
                Ok(PolicyReply::Sizes { blocks: u64::MAX, extents: 1, labels: 1, free: 0 })
            }
        }
    }

    fn cache(&mut self, disk: u16, blocks: &[u64]) -> Result<Vec<Reference>, Refusal> {
        let mut new: Vec<u64> = blocks.to_vec();
        new.retain(|block| !self.places.contains_key(&(disk, *block)));
        new.sort_unstable();
        new.dedup();
        let mut rest = &new[..];
        while !rest.is_empty() {
            if self.free.is_empty() {
                let pages = REGION_PAGES_MAX as u32;
                let question = MonitorRequest::CreateRegion { acl: self.acl.clone(), pages };
                let MonitorReply::Region(region) = ask(&self.monitor, &question)? else {
                    return Err(nonsense("the monitor"));
                };
                self.free.extend((0..pages).rev().map(|page| (region, page)));
            }
            let (region, first) = *self.free.last().expect("there are some");
            let is_next = |count: usize| {
                let at = self.free.len().checked_sub(count + 1).and_then(|at| self.free.get(at));
                at == Some(&(region, first + count as u32))
            };
            let count = (1..rest.len()).find(|count| !is_next(*count)).unwrap_or(rest.len());
            let (now, after) = rest.split_at(count);
            let ids = now.iter().map(|number| BlockId { disk, number: *number }).collect();
            let question = MonitorRequest::Assign { region, first, blocks: ids };
            let MonitorReply::References(references) = ask(&self.monitor, &question)? else {
                return Err(nonsense("the monitor"));
            };
            self.free.truncate(self.free.len() - count);
            self.places.extend(now.iter().map(|block| (disk, *block)).zip(references));
            rest = after;
        }
        blocks
            .iter()
            .map(|block| self.places.get(&(disk, *block)).copied().ok_or(Refusal::Malformed))
            .collect()
    }

    fn vacate(&mut self, block: Block) {
        if let Some(at) = self.places.remove(&block) {
            self.free.push((at.page.region, at.page.index));
        }
    }

    /// Frees a page after its changes are written. A page that is being transferred stays.
    fn evict(&mut self, block: Block) -> Result<(), Refusal> {
        let Some(page) = self.places.get(&block).map(|at| at.page) else { return Ok(()) };
        let free = MonitorRequest::Free { page };
        let freed = match ask(&self.monitor, &free) {
            Err(Refusal::Code(crate::host::STATE)) => {
                self.clean(block, page)?;
                ask(&self.monitor, &free)
            }
            freed => freed,
        };
        match freed {
            Ok(_) => self.vacate(block),
            Err(Refusal::Code(_)) => {}
            Err(refusal) => return Err(refusal),
        }
        // Takes neighbouring pages, once all are free, for the next blocks.
        if self.places.is_empty() {
            self.free.sort_unstable_by(|a, b| b.cmp(a));
        }
        Ok(())
    }

    fn clean(&self, (disk, number): Block, page: PageId) -> Result<(), Refusal> {
        let first = BlockId { disk, number };
        let MonitorReply::Places(found) = ask(&self.monitor, &MonitorRequest::Places { first, count: 1 })?
        else {
            return Err(nonsense("the monitor"));
        };
        if found.iter().any(|(at, _, status)| at.page == page && *status == Status::Dirty) {
            let blocks = vec![(number, page)];
            ask(&self.driver, &DriverRequest::Transfer { direction: Direction::Drain, disk, blocks })?;
        }
        Ok(())
    }
}
