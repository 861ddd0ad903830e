//! Regions as their readers see them: the bytes, and two words for each page that say which block it contains
//! and whether it is filled. The words are checked before and after copying, so a read returns the block of
//! the reference or nothing, wherever the reference came from.

use crate::asking::{ask_as, nonsense};
use crate::protocol::{MonitorReply, MonitorRequest};
use holdfast_components::{Access, Asker, Mapped, Refusal, View};
use holdfast_monitor::{PAGE_BYTES, Page, REGION_PAGES_MAX, Reference, RegionId, Words, words};

/// Bytes of the words of a page.
pub(crate) const WORDS_BYTES: usize = 16;

/// The stored form of a page's words.
pub(crate) fn to_bytes([first, second]: Words) -> [u8; WORDS_BYTES] {
    (u128::from(first) | u128::from(second) << 64).to_le_bytes()
}

/// How a component reads and writes memory of regions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Views {
    /// With system calls: reading a revoked view returns an error.
    Read,
    /// Mapped: faster, but access to a revoked view ends the process. For measurements.
    Mapped,
}

enum Source {
    Read(View),
    Mapped(Mapped),
}

impl Source {
    fn new(views: Views, view: View) -> Result<Source, Refusal> {
        match views {
            Views::Read => Ok(Source::Read(view)),
            Views::Mapped => match view.map() {
                Ok(mapped) => Ok(Source::Mapped(mapped)),
                Err(error) => Err(Refusal::Failed(error.to_string())),
            },
        }
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        match self {
            Source::Read(view) => view.read_at(offset, into).is_ok(),
            Source::Mapped(mapped) => mapped.read_at(offset, into).is_ok(),
        }
    }
}

/// A region as its readers see it.
pub(crate) struct RegionView {
    bytes: Source,
    words: Source,
}

impl RegionView {
    /// Requests the region's view from the monitor, under an alias.
    pub(crate) fn open(
        monitor: &Asker<MonitorRequest, MonitorReply>,
        alias: u16,
        region: RegionId,
    ) -> Result<RegionView, Refusal> {
        RegionView::open_as(Views::Read, monitor, alias, region)
    }

    pub(crate) fn open_as(
        views: Views,
        monitor: &Asker<MonitorRequest, MonitorReply>,
        alias: u16,
        region: RegionId,
    ) -> Result<RegionView, Refusal> {
        let source = |file, bytes: usize| Source::new(views, View::new(file, Access::ReadOnly, bytes as u64));
        let (answer, files) = ask_as(monitor, alias, &MonitorRequest::View(region))?;
        match (answer, <[_; 2]>::try_from(files)) {
            (MonitorReply::Done, Ok([bytes, words])) => Ok(RegionView {
                bytes: source(bytes, REGION_PAGES_MAX * PAGE_BYTES)?,
                words: source(words, REGION_PAGES_MAX * WORDS_BYTES)?,
            }),
            _ => Err(nonsense("the monitor")),
        }
    }

    /// Reads a page, if it is filled and still contains the reference's block.
    pub(crate) fn read(&self, at: Reference, into: &mut Page) -> bool {
        self.read_part(at, 0, into)
    }

    /// Reads a part of a page, from `skipped` bytes on.
    pub(crate) fn read_part(&self, at: Reference, skipped: usize, into: &mut [u8]) -> bool {
        let is_it = || {
            let mut found = [0; WORDS_BYTES];
            let read = self.words.read(u64::from(at.page.index) * WORDS_BYTES as u64, &mut found);
            read && found == to_bytes(words(at, true))
        };
        let place = u64::from(at.page.index) * PAGE_BYTES as u64 + skipped as u64;
        is_it() && self.bytes.read(place, into) && is_it()
    }
}
