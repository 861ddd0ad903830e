//! Reads blocks through views of regions. No request is needed if the block is in memory and the view is
//! open.
//!
//! A reference says which page contains a block. The region's words say whether it still does, and whether
//! the page is filled; they are checked before and after copying. The words name the block, so CacheMgr need
//! not be trusted: with a false reference, no block is found. If a check fails, CacheMgr is asked again. So a
//! read returns the right block, or an error.

use crate::asking::{ITSELF, ask, ask_as, nonsense};
use crate::host::{BUSY, OUTDATED, STATE};
use crate::names::Names;
use crate::protocol::{BLOCKS_MAX, CacheReply, CacheRequest, MonitorReply, MonitorRequest};
use crate::views::{RegionView, Views};
use holdfast_components::{Asker, Patience, Refusal};
use holdfast_monitor::{BlockId, PAGE_BYTES, Page, Reference, RegionId};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Most references that are cached.
const REFERENCES_MAX: usize = 1 << 16;
/// Most views that are kept open.
const VIEWS_MAX: usize = 64;
/// How often a block is requested again if its page was taken away meanwhile.
const ATTEMPTS: usize = 16;

#[derive(Default)]
struct ReaderCache {
    references: HashMap<u64, Reference>,
    views: HashMap<RegionId, Arc<RegionView>>,
}

/// Reads blocks of one disk, under one name or several.
pub(crate) struct Reader {
    monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
    cache: Arc<Asker<CacheRequest, CacheReply>>,
    names: Arc<Names>,
    disk: u16,
    views: Views,
    known: Mutex<ReaderCache>,
}

/// Number of blocks that are requested at once for sequential reads, however small the reads are.
const ALONG: usize = 32;
/// How long to wait when sending a request whose reply is not awaited.
const EXPECTED: Patience = Patience::Never;

/// Whether the name was refused, so that another name may be tried.
pub(crate) fn is_denied(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NotPermitted | Refusal::AliasInvalid)
}

impl Reader {
    pub(crate) fn new(
        monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
        cache: Arc<Asker<CacheRequest, CacheReply>>,
        alias: u16,
        disk: u16,
    ) -> Reader {
        Reader::with_names(monitor, cache, Arc::new(Names::of(alias)), disk)
    }

    pub(crate) fn with_names(
        monitor: Arc<Asker<MonitorRequest, MonitorReply>>,
        cache: Arc<Asker<CacheRequest, CacheReply>>,
        names: Arc<Names>,
        disk: u16,
    ) -> Reader {
        Reader { monitor, cache, names, disk, views: Views::Read, known: Mutex::default() }
    }

    /// Sets how the memory of regions is read.
    pub(crate) fn with(self, views: Views) -> Reader {
        Reader { views, ..self }
    }

    /// Requests blocks that are likely to be needed soon, without waiting for them.
    pub(crate) fn expect(&self, blocks: Vec<u64>) {
        let ahead: Vec<u64> = {
            let known = self.known.lock();
            let is_new = |block: &u64| !known.references.contains_key(block);
            blocks.into_iter().filter(is_new).take(BLOCKS_MAX).collect()
        };
        if !ahead.is_empty() {
            let question = CacheRequest::Want { disk: self.disk, blocks: Vec::new(), fill: true, ahead };
            if let Ok(ticket) = self.cache.start(ITSELF, &question, &[], EXPECTED) {
                self.cache.forget(ticket);
            }
        }
    }

    /// Reads blocks, and calls `found` with each and its position in `blocks`. The blocks `ahead` may be
    /// fetched meanwhile.
    pub(crate) fn read(
        &self,
        blocks: &[u64],
        ahead: &[u64],
        found: impl FnMut(usize, &Page),
    ) -> Result<(), Refusal> {
        self.read_ahead(blocks, || ahead.to_vec(), found)
    }

    /// Like [`Reader::read`]; the blocks ahead are computed only if some block may not be in memory.
    pub(crate) fn read_ahead(
        &self,
        blocks: &[u64],
        ahead: impl FnOnce() -> Vec<u64>,
        mut found: impl FnMut(usize, &Page),
    ) -> Result<(), Refusal> {
        let mut ahead = Some(ahead);
        let mut page = [0; PAGE_BYTES];
        let mut missing: Vec<usize> = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            match self.read_part(*block, 0, &mut page)? {
                true => found(at, &page),
                false => missing.push(at),
            }
        }
        for _ in 0..ATTEMPTS {
            if missing.is_empty() {
                return Ok(());
            }
            let mut wanted: Vec<u64> = missing.iter().map(|at| blocks[*at]).collect();
            let ahead = ahead.take().map(|ahead| ahead()).unwrap_or_default();
            let along = ahead.len().min(ALONG.saturating_sub(wanted.len()));
            let (along, ahead) = ahead.split_at(along);
            wanted.extend(along);
            self.reference(&wanted, true, ahead)?;
            let mut still = Vec::new();
            for at in missing {
                match self.read_known(blocks[at], 0, &mut page)? {
                    true => found(at, &page),
                    false => still.push(at),
                }
            }
            missing = still;
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(Refusal::Failed("blocks are taken from memory faster than they can be read".to_owned()))
    }

    /// Requests references of blocks from CacheMgr; with `fill`, their pages are filled.
    pub(crate) fn reference(
        &self,
        blocks: &[u64],
        fill: bool,
        ahead: &[u64],
    ) -> Result<Vec<Reference>, Refusal> {
        let (disk, blocks, ahead) = (self.disk, blocks.to_vec(), ahead.to_vec());
        let question = CacheRequest::Want { disk, blocks: blocks.clone(), fill, ahead };
        let CacheReply::References(references) = ask(&self.cache, &question)? else {
            return Err(nonsense("the cache"));
        };
        // A reference to a different block is not valid here, even if this session may read that block.
        let is_it = |(at, number): (&Reference, &u64)| at.block == BlockId { disk, number: *number };
        if references.len() != blocks.len() || !references.iter().zip(&blocks).all(is_it) {
            return Err(nonsense("the cache"));
        }
        let mut known = self.known.lock();
        if known.references.len() + blocks.len() > REFERENCES_MAX {
            known.references.clear();
        }
        known.references.extend(blocks.into_iter().zip(references.iter().copied()));
        Ok(references)
    }

    /// The cached reference of a block, if any; it may be outdated.
    pub(crate) fn known(&self, block: u64) -> Option<Reference> {
        self.known.lock().references.get(&block).copied()
    }

    /// Forgets the references to blocks.
    pub(crate) fn forget(&self, blocks: impl Iterator<Item = u64>) {
        let mut known = self.known.lock();
        for block in blocks {
            known.references.remove(&block);
        }
    }

    /// Reads a part of a block, from `skipped` bytes on, if a reference to it is cached. Returns whether it
    /// could.
    pub(crate) fn read_part(&self, block: u64, skipped: usize, into: &mut [u8]) -> Result<bool, Refusal> {
        match self.read_known(block, skipped, into) {
            // The page may now be another principal's, while the block itself may be readable in its new
            // page.
            Err(refusal) if is_denied(&refusal) => Ok(false),
            read => read,
        }
    }

    fn read_known(&self, block: u64, skipped: usize, into: &mut [u8]) -> Result<bool, Refusal> {
        let Some(at) = self.known(block) else { return Ok(false) };
        match self.view(at.page.region) {
            Ok(view) if view.read_part(at, skipped, into) => return Ok(true),
            // The page contains another block by now, or the region no longer exists.
            Ok(_) | Err(Refusal::Code(_)) => {}
            Err(refusal) if is_denied(&refusal) => match self.copy(at, skipped, into) {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(refusal) => {
                    self.forget([block].into_iter());
                    return Err(refusal);
                }
            },
            Err(refusal) => return Err(refusal),
        }
        let mut known = self.known.lock();
        known.references.remove(&block);
        // The view may have been revoked, with the region or after a change of its ACL.
        known.views.remove(&at.page.region);
        Ok(false)
    }

    fn view(&self, region: RegionId) -> Result<Arc<RegionView>, Refusal> {
        if let Some(view) = self.known.lock().views.get(&region) {
            return Ok(Arc::clone(view));
        }
        let names = self.names.all();
        let mut opened = Err(Refusal::NotPermitted);
        for name in names.iter().filter(|name| !name.is_partial) {
            opened = RegionView::open_as(self.views, &self.monitor, name.alias, region);
            if !opened.as_ref().is_err_and(is_denied) {
                break;
            }
        }
        let view = Arc::new(opened?);
        let mut known = self.known.lock();
        if known.views.len() >= VIEWS_MAX {
            known.views.clear();
        }
        known.views.insert(region, Arc::clone(&view));
        Ok(view)
    }

    /// Reads a part of a block under a name that is valid for some blocks only. Returns whether the block is
    /// there.
    fn copy(&self, at: Reference, skipped: usize, into: &mut [u8]) -> Result<bool, Refusal> {
        for name in self.names.all().iter().filter(|name| name.is_partial) {
            match ask_as(&self.monitor, name.alias, &MonitorRequest::Read(at)) {
                Ok((MonitorReply::Page(bytes), _)) if bytes.len() == PAGE_BYTES => {
                    into.copy_from_slice(&bytes[skipped..skipped + into.len()]);
                    return Ok(true);
                }
                Ok(_) => return Err(nonsense("the monitor")),
                Err(Refusal::Code(OUTDATED | STATE | BUSY)) => return Ok(false),
                Err(refusal) if is_denied(&refusal) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::NotPermitted)
    }
}
