//! Reading blocks by views of regions: without asking anybody, where the block is in memory and the view is known.
//!
//! A reference says which page a block is in. The region's words say whether it still is, and is filled; they are looked
//! at before and after the copy. They name the block, so the cache's word is not relied on: a false reference finds nothing. Where that fails the cache is asked again, so what is read is the block, or an error.

use crate::asking::{ask, ask_as, nonsense};
use crate::host::{BUSY, OUTDATED, STATE};
use crate::names::Names;
use crate::protocol::{AskCache, AskMonitor, CacheSays, MonitorSays};
use holdfast_components::{Access, Asker, Refusal, View};
use holdfast_monitor::{BlockId, PAGE_BYTES, Page, REGION_PAGES_MAX, Reference, RegionId, Words, words};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// References that are remembered.
const REFERENCES_MAX: usize = 1 << 16;
/// Views that are kept open.
const VIEWS_MAX: usize = 64;
/// How often a block is asked for again when its page was taken away meanwhile.
const ATTEMPTS: usize = 16;

/// Bytes of the words of a page.
pub(crate) const WORDS_BYTES: usize = 16;

/// The words of a page, as they are in a region.
pub(crate) fn to_bytes([first, second]: Words) -> [u8; WORDS_BYTES] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

/// A region as its readers see it.
pub(crate) struct RegionView {
    bytes: View,
    words: View,
}

impl RegionView {
    /// Asks the monitor for it, under an alias.
    pub(crate) fn open(
        monitor: &Asker<AskMonitor, MonitorSays>,
        alias: u16,
        region: RegionId,
    ) -> Result<RegionView, Refusal> {
        let (answer, files) = ask_as(monitor, alias, &AskMonitor::View(region))?;
        match (answer, <[_; 2]>::try_from(files)) {
            (MonitorSays::Done, Ok([bytes, words])) => Ok(RegionView {
                bytes: View::new(bytes, Access::ReadOnly, (REGION_PAGES_MAX * PAGE_BYTES) as u64),
                words: View::new(words, Access::ReadOnly, (REGION_PAGES_MAX * WORDS_BYTES) as u64),
            }),
            _ => Err(nonsense("the monitor")),
        }
    }

    /// A page, if it is filled and still what the reference means.
    pub(crate) fn read(&self, at: Reference, into: &mut Page) -> bool {
        let is_it = || {
            let mut found = [0; WORDS_BYTES];
            let read = self.words.read_at(u64::from(at.page.index) * WORDS_BYTES as u64, &mut found);
            read.is_ok() && found == to_bytes(words(at, true))
        };
        is_it() && self.bytes.read_at(u64::from(at.page.index) * PAGE_BYTES as u64, into).is_ok() && is_it()
    }
}

#[derive(Default)]
struct Known {
    references: HashMap<u64, Reference>,
    views: HashMap<RegionId, Arc<RegionView>>,
}

/// Reads blocks of one disk, in one name or in several.
pub(crate) struct Reader {
    monitor: Arc<Asker<AskMonitor, MonitorSays>>,
    cache: Arc<Asker<AskCache, CacheSays>>,
    names: Arc<Names>,
    disk: u16,
    known: Mutex<Known>,
}

/// Whether it is the name that was refused, so that another may do.
pub(crate) fn is_denied(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::NotPermitted | Refusal::AliasInvalid)
}

impl Reader {
    pub(crate) fn new(
        monitor: Arc<Asker<AskMonitor, MonitorSays>>,
        cache: Arc<Asker<AskCache, CacheSays>>,
        alias: u16,
        disk: u16,
    ) -> Reader {
        Reader::with_names(monitor, cache, Arc::new(Names::of(alias)), disk)
    }

    pub(crate) fn with_names(
        monitor: Arc<Asker<AskMonitor, MonitorSays>>,
        cache: Arc<Asker<AskCache, CacheSays>>,
        names: Arc<Names>,
        disk: u16,
    ) -> Reader {
        Reader { monitor, cache, names, disk, known: Mutex::default() }
    }

    /// Reads blocks, giving each to `found` by its place in `blocks`. Those `ahead` may be fetched meanwhile.
    pub(crate) fn read(
        &self,
        blocks: &[u64],
        ahead: &[u64],
        mut found: impl FnMut(usize, &Page),
    ) -> Result<(), Refusal> {
        let mut page = [0; PAGE_BYTES];
        let mut missing: Vec<usize> = Vec::new();
        for (at, block) in blocks.iter().enumerate() {
            match self.read_known(*block, &mut page) {
                Ok(true) => found(at, &page),
                Ok(false) => missing.push(at),
                // Where it was may be for others now; where it is may be for us.
                Err(refusal) if is_denied(&refusal) => missing.push(at),
                Err(refusal) => return Err(refusal),
            }
        }
        for attempt in 0..ATTEMPTS {
            if missing.is_empty() {
                return Ok(());
            }
            let wanted: Vec<u64> = missing.iter().map(|at| blocks[*at]).collect();
            let ahead = if attempt == 0 { ahead } else { &[] };
            self.reference(&wanted, true, ahead)?;
            let mut still = Vec::new();
            for at in missing {
                match self.read_known(blocks[at], &mut page)? {
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

    /// References of blocks, from the cache; filled if so.
    pub(crate) fn reference(
        &self,
        blocks: &[u64],
        fill: bool,
        ahead: &[u64],
    ) -> Result<Vec<Reference>, Refusal> {
        let (disk, blocks, ahead) = (self.disk, blocks.to_vec(), ahead.to_vec());
        let question = AskCache::Want { disk, blocks: blocks.clone(), fill, ahead };
        let CacheSays::References(references) = ask(&self.cache, &question)? else {
            return Err(nonsense("the cache"));
        };
        // A reference to another block, even of ours, is none to this one.
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

    /// The reference of a block, if one is known: it may be outdated.
    pub(crate) fn known(&self, block: u64) -> Option<Reference> {
        self.known.lock().references.get(&block).copied()
    }

    /// Forgets where blocks were.
    pub(crate) fn forget(&self, blocks: impl Iterator<Item = u64>) {
        let mut known = self.known.lock();
        for block in blocks {
            known.references.remove(&block);
        }
    }

    fn read_known(&self, block: u64, page: &mut Page) -> Result<bool, Refusal> {
        let Some(at) = self.known(block) else { return Ok(false) };
        match self.view(at.page.region) {
            Ok(view) if view.read(at, page) => return Ok(true),
            // The page is another block's by now, or the region is gone.
            Ok(_) | Err(Refusal::Code(_)) => {}
            Err(refusal) if is_denied(&refusal) => match self.copy(at, page) {
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
        // It may have been taken away, with the region or after a change of its ACL.
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
            opened = RegionView::open(&self.monitor, name.alias, region);
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

    /// Reads a block under a name that holds for some blocks only; whether it is there.
    fn copy(&self, at: Reference, page: &mut Page) -> Result<bool, Refusal> {
        for name in self.names.all().iter().filter(|name| name.is_partial) {
            match ask_as(&self.monitor, name.alias, &AskMonitor::Read(at)) {
                Ok((MonitorSays::Page(bytes), _)) if bytes.len() == page.len() => {
                    page.copy_from_slice(&bytes);
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
