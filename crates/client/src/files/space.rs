//! Space within files: fallocate, seeking data and holes, copying ranges.

use super::compose::PublishReason;
use super::nodes::{Node, Pages};
use super::overlay::Piece;
use super::state::DataLocation;
use super::{Allocate, FileHandleId, FileSystem, SeekTo, now_ns};
use crate::error::FsError;
use holdfast_content::{Content, ContentError, FILE_BYTES_MAX, Inode};
use std::ops::Range;
use std::sync::Arc;

/// Most bytes that one copy call copies byte by byte.
const COPY_BYTES_MAX: u64 = 8 << 20;
/// Most bytes that one copy call copies in total.
const COPY_RANGE_MAX: u64 = 1 << 40;

/// When the disk is full, the cache frees at least so many bytes at once, since more writes are likely to
/// follow.
pub(super) const ROOM_MIN: u64 = 8 << 20;

impl FileSystem {
    /// Allocates, punches or zeroes a range.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: an empty range, or not open for writing. [`FsError::TooLarge`].
    pub fn fallocate(
        &self,
        handle: FileHandleId,
        offset: u64,
        length: u64,
        how: Allocate,
    ) -> Result<(), FsError> {
        self.run(|| {
            let open = self.usable_file(handle)?;
            if !open.flags.write || length == 0 {
                return Err(FsError::Invalid("an empty range, or not open for writing".into()));
            }
            let end = offset.checked_add(length).filter(|end| *end <= FILE_BYTES_MAX);
            let end = end.ok_or(FsError::TooLarge)?;
            let mut state = open.node.state();
            let file = state.file.as_mut().expect("an open file has content");
            let now = now_ns();
            match how {
                Allocate::KeepSize => Ok(()),
                Allocate::Extend if end > file.size => file.set_size(end, now),
                Allocate::Extend => Ok(()),
                Allocate::PunchHole | Allocate::ZeroRangeKeepSize => {
                    file.lay(offset..end.min(file.size).max(offset), Piece::Hole, now)
                }
                Allocate::ZeroRange => file.lay(offset..end, Piece::Hole, now),
            }
        })
    }

    /// Finds data or a hole at or after `offset`. Written bytes are data, even if they are zeroes.
    ///
    /// # Errors
    /// [`FsError::NoData`]: at or beyond the end of the file, or only a hole up to it. Those of `read`.
    pub fn seek(&self, handle: FileHandleId, offset: u64, to: SeekTo) -> Result<u64, FsError> {
        self.run(|| {
            let open = self.usable_file(handle)?;
            let (places, size) = {
                let state = open.node.state();
                let file = state.file.as_ref().expect("an open file has content");
                if offset >= file.size {
                    return Err(FsError::NoData);
                }
                (file.places(offset..file.size), file.size)
            };
            for (range, place) in places {
                let found = match place {
                    DataLocation::Spool => (to == SeekTo::Data).then_some(range.start),
                    DataLocation::Zero => (to == SeekTo::Hole).then_some(range.start),
                    DataLocation::Published(inode, from) => {
                        self.seek_published(&open.node, range, &inode, from, to)?
                    }
                };
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            if to == SeekTo::Hole { Ok(size) } else { Err(FsError::NoData) }
        })
    }

    fn seek_published(
        &self,
        node: &Node,
        range: Range<u64>,
        inode: &Inode,
        from: u64,
        to: SeekTo,
    ) -> Result<Option<u64>, FsError> {
        let there = from..from + (range.end - range.start);
        let found = seek_in(&*self.backend.source(), inode, there.clone(), to)
            .map_err(|error| self.engine.content_error(node.handle(), self.path_of(node), inode, error))?;
        Ok(found.map(|at| range.start + (at - from)))
    }

    /// Copies a range between open files. Where the source is published, it is copied by reference: no byte
    /// of it is read, sent or stored. Returns how many bytes were copied: fewer than requested at the end of
    /// the source, or after many bytes had to be copied one by one.
    ///
    /// # Errors
    /// [`FsError::Invalid`]: overlapping ranges of one file, or not open for it. Those of `read` and `write`.
    pub fn copy_file_range(
        &self,
        from: FileHandleId,
        from_offset: u64,
        to: FileHandleId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64, FsError> {
        self.run(|| {
            let (from, to) = (self.usable_file(from)?, self.usable_file(to)?);
            if !from.flags.read || !to.flags.write {
                return Err(FsError::Invalid("not open for reading and writing".into()));
            }
            let (places, source_content) = {
                let state = from.node.state();
                let file = state.file.as_ref().expect("an open file has content");
                let end = file.size.min(from_offset.saturating_add(length.min(COPY_RANGE_MAX)));
                if from_offset >= end {
                    return Ok(0);
                }
                (file.places(from_offset..end), super::state::content_roots(&file.base))
            };
            let length = places.last().map_or(0, |(range, _)| range.end) - from_offset;
            if to_offset.checked_add(length).is_none_or(|end| end > FILE_BYTES_MAX) {
                return Err(FsError::TooLarge);
            }
            let overlap = from_offset < to_offset + length && to_offset < from_offset + length;
            if from.node.ino == to.node.ino && overlap {
                return Err(FsError::Invalid("the ranges overlap".into()));
            }
            // The copied blocks must outlive the source as long as only this client refers to the copy.
            let pin = (!source_content.is_empty()).then(|| self.backend.pin(source_content));
            let mut copied = 0;
            let mut by_bytes = 0;
            for (range, place) in places {
                let at = to_offset + (range.start - from_offset);
                let end = at + (range.end - range.start);
                match place {
                    DataLocation::Zero => self.lay(&to.node, at..end, Piece::Hole)?,
                    DataLocation::Published(inode, offset) => {
                        self.lay(&to.node, at..end, Piece::Copy(inode, offset))?;
                    }
                    DataLocation::Spool => {
                        let mut done = range.start;
                        while done < range.end && by_bytes < COPY_BYTES_MAX {
                            let step = (range.end - done).min(1 << 20) as usize;
                            let bytes = self.read_node(&from.node, done, step)?;
                            if bytes.is_empty() {
                                break;
                            }
                            self.put(&to.node, to_offset + (done - from_offset), &bytes)?;
                            done += bytes.len() as u64;
                            by_bytes += bytes.len() as u64;
                        }
                        if done < range.end {
                            copied = done - from_offset;
                            break;
                        }
                    }
                }
                copied = range.end - from_offset;
            }
            if let Some(file) = &mut to.node.state().file {
                file.pins.extend(pin);
            }
            if to.flags.synchronous {
                self.publish(&to.node, PublishReason::Sync)?;
                self.commit(&to.node, PublishReason::Sync)?;
            }
            Ok(copied)
        })
    }

    fn lay(&self, node: &Node, range: Range<u64>, piece: Piece<Arc<Inode>>) -> Result<(), FsError> {
        let mut state = node.state();
        let file = state.file.as_mut().expect("an open file has content");
        let result = file.lay(range, piece, now_ns());
        let content = file.base_content;
        if state.pages == Pages::None {
            state.pages = Pages::Of(content);
        }
        result
    }

    fn put(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
        let mut state = node.state();
        let file = state.file.as_mut().expect("an open file has content");
        let name = || self.journal_name(node.ino);
        self.with_room(bytes.len() as u64, || file.write(&self.spool, &name, offset, bytes, now_ns()))
    }

    /// Writes to the local disk; if that is full, tries once more after the cache has freed space.
    pub(super) fn with_room(
        &self,
        bytes: u64,
        mut write: impl FnMut() -> Result<(), FsError>,
    ) -> Result<(), FsError> {
        match write() {
            Err(FsError::NoSpace) if self.engine.make_room(bytes.max(ROOM_MIN)) => write(),
            done => done,
        }
    }
}

/// The first data or hole of an inode's content within `range`.
///
/// # Errors
/// [`ContentError`]: a node of its map could not be had or is malformed.
pub fn seek_in(
    source: &dyn holdfast_content::BlockSource,
    inode: &Inode,
    range: Range<u64>,
    to: SeekTo,
) -> Result<Option<u64>, ContentError> {
    let mut found = None;
    // All bytes up to here are data, without a gap.
    let mut data_end = range.start;
    match &inode.content {
        Content::Extents(map) => map.visit(source, range.clone(), &mut |offset, extent| {
            match to {
                SeekTo::Data => found = Some(offset.max(range.start)),
                SeekTo::Hole if offset > data_end => found = Some(data_end),
                SeekTo::Hole => data_end = offset + u64::from(extent.length),
            }
            Ok(found.is_none())
        })?,
        Content::Inline(bytes) if range.start < bytes.len() as u64 => match to {
            SeekTo::Data => found = Some(range.start),
            SeekTo::Hole => data_end = bytes.len() as u64,
        },
        _ => {}
    }
    if to == SeekTo::Hole && found.is_none() && data_end < range.end {
        found = Some(data_end);
    }
    Ok(found)
}
