//! The content of files: reading, writing, claiming, giving back and writing out blocks.

use super::map::within;
use super::{Code, FORGOTTEN, Files, errno, now};
use crate::asking::{UNKNOWN, ask_as, nonsense};
use crate::host::{OUTDATED, STATE};
use crate::protocol::{
    BLOCKS_MAX, Blocks, CacheRequest, File, FilesReply, FilesRequest, MonitorReply, MonitorRequest,
    PolicyReply, PolicyRequest, code,
};
use crate::reader::is_denied;
use holdfast_access::Acl;
use holdfast_components::Refusal;
use holdfast_monitor::{PAGE_BYTES, Reference, Status};

/// Most bytes that one request changes: what fits into a packet.
const WRITE_BYTES: usize = PAGE_BYTES;
/// Bytes that are fetched ahead of a sequential reader.
const AHEAD_BYTES: u64 = 256 << 10;
/// Bytes of a file whose blocks are requested at once.
const MAP_BYTES: u64 = 64 << 20;
/// Number of files whose block positions are cached.
const MAPS_MAX: usize = 1024;
/// Most changed blocks of a file that are tracked before they are written.
const CHANGED_MAX: usize = 4096;
/// Bytes that are made zero at once.
const ZEROED_BYTES: usize = 1 << 20;
/// Most steps of a request that an FSDriver carries out in several: more than the largest file needs, in the
/// smallest pieces.
const STEPS_MAX: usize = 1 << 16;
/// Most bytes of a file that are claimed at once: fewer blocks than an FSDriver examines.
const CLAIM_BYTES: usize = 512 << 10;
/// How often a page is requested again that was taken away meanwhile.
const ATTEMPTS: usize = 16;

impl Files {
    pub(super) fn forget_map(&self, file: u64) {
        self.maps.lock().remove(&file);
        let mut cached = self.cached.lock();
        cached.changes += 1;
        cached.sizes.remove(&file);
    }

    /// The blocks that contain a range of a file, in order, each with its offset in the file; and the bytes
    /// of a block.
    fn blocks(&self, file: u64, offset: u64, length: u64) -> Result<(Vec<(u64, u64)>, u32), Code> {
        let mut map = {
            let maps = self.maps.lock();
            let known = maps.get(&file);
            if let Some((known, blocks)) =
                known.and_then(|known| Some((known, within(known, offset, length)?)))
            {
                return Ok((blocks, known.block_bytes));
            }
            known.cloned().unwrap_or_default()
        };
        let mut at = offset;
        while at < offset + length {
            let left = offset + length - at;
            let asked = left.max(MAP_BYTES);
            let question = |[file]: [u64; 1]| FilesRequest::Map { file, offset: at, length: asked };
            let FilesReply::Map { runs, block_bytes } = self.ask_safely([file], question).map_err(errno)?
            else {
                return Err(errno(nonsense("the file system")));
            };
            if !(512..=PAGE_BYTES as u32).contains(&block_bytes) {
                return Err(errno(nonsense("the file system")));
            }
            map.block_bytes = block_bytes;
            match map.learn(at, at + asked, runs).ok_or_else(|| errno(nonsense("the file system")))? {
                end if end > at => at = end,
                _ => break,
            }
        }
        let blocks = within(&map, offset, length).ok_or(libc::EIO)?;
        let block_bytes = map.block_bytes;
        let mut maps = self.maps.lock();
        if maps.len() >= MAPS_MAX {
            maps.clear();
        }
        maps.insert(file, map);
        Ok((blocks, block_bytes))
    }

    /// Reads a part of a file; the caller ensures that it is within the file's size.
    pub(in crate::vfs) fn read(
        &self,
        file: u64,
        offset: u64,
        length: usize,
        size: u64,
    ) -> Result<Vec<u8>, Code> {
        let end = (offset + length as u64).min(size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let (mut wanted, block_bytes) = self.blocks(file, offset, end - offset)?;
        let is_in_order = self.is_in_order(file, offset, end);
        let mut bytes = vec![0; (end - offset) as usize];
        // For a block: the range of the answer that it contains, and how many of its bytes come before that
        // range.
        let part = |start: u64| {
            let (from, to) = (start.max(offset), (start + u64::from(block_bytes)).min(end));
            ((from - offset) as usize..(to - offset) as usize, (from - start) as usize)
        };
        let mut missing = Vec::new();
        for (start, block) in wanted.drain(..) {
            let (place, skipped) = part(start);
            if !self.reader.read_part(block, skipped, &mut bytes[place]).map_err(errno)? {
                missing.push((start, block));
            }
        }
        for missing in missing.chunks(BLOCKS_MAX / 2) {
            let numbers: Vec<u64> = missing.iter().map(|(_, block)| *block).collect();
            let ahead = || {
                let length = if is_in_order { AHEAD_BYTES.min(size - end) } else { 0 };
                let ahead = self.blocks(file, end, length).map(|(blocks, _)| blocks).unwrap_or_default();
                ahead.into_iter().map(|(_, block)| block).take(BLOCKS_MAX / 2).collect()
            };
            let read = self.reader.read_ahead(&numbers, ahead, |at, page| {
                let (place, skipped) = part(missing[at].0);
                let length = place.len();
                bytes[place].copy_from_slice(&page[skipped..skipped + length]);
            });
            read.map_err(errno)?;
        }
        Ok(bytes)
    }

    /// Whether a read continues near the end of the one before. (Several may be in progress.)
    fn is_in_order(&self, file: u64, offset: u64, end: u64) -> bool {
        let mut maps = self.maps.lock();
        let Some(map) = maps.get_mut(&file) else { return false };
        let before = std::mem::replace(&mut map.read_end, end);
        offset != 0 && before.abs_diff(offset) <= AHEAD_BYTES || offset == 0 && end >= AHEAD_BYTES / 4
    }

    /// Writes into a file, which grows if the range is beyond its end.
    pub(in crate::vfs) fn write(&self, file: u64, offset: u64, bytes: &[u8]) -> Result<(), Code> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(libc::EFBIG)?;
        {
            let _one = self.sizing.lock();
            if self.stat(file)?.size < end {
                self.resize_locked(file, end)?;
            }
        }
        let (blocks, block_bytes) = self.blocks(file, offset, bytes.len() as u64)?;
        // Blocks that are only partly overwritten must be filled; all others only need a page.
        let block_bytes = u64::from(block_bytes);
        let is_whole = |start: &u64| *start >= offset && start + block_bytes <= end;
        for blocks in blocks.chunks(BLOCKS_MAX / 2) {
            for fill in [false, true] {
                let is_wanted = |(start, block): &&(u64, u64)| {
                    is_whole(start) != fill && (fill || self.reader.known(*block).is_none())
                };
                let missing: Vec<u64> = blocks.iter().filter(is_wanted).map(|(_, block)| *block).collect();
                if !missing.is_empty() {
                    self.reader.reference(&missing, fill, &[]).map_err(errno)?;
                }
            }
            for (start, block) in blocks {
                let from = (*start).max(offset);
                let to = (start + block_bytes).min(end);
                let part = &bytes[(from - offset) as usize..(to - offset) as usize];
                let write = || self.write_block(*block, (from - start) as usize, part, is_whole(start));
                let at = self.or_claimed(file, *start, block_bytes, write)?;
                self.changed.lock().entry(file).or_default().insert(*block, at);
            }
        }
        self.bound_changed(file).map_err(errno)
    }

    /// Calls a function that changes a block of a file. If something interrupted the block's allocation
    /// before it was accepted, the block is still the FSDriver's; then it is claimed first.
    fn or_claimed(
        &self,
        file: u64,
        start: u64,
        block_bytes: u64,
        change: impl Fn() -> Result<Reference, Refusal>,
    ) -> Result<Reference, Code> {
        let changed = match change() {
            Err(Refusal::NotPermitted) if self.claimed(file, start, block_bytes)? => change(),
            changed => changed,
        };
        changed.map_err(errno)
    }

    /// Whether this session may change the content of a file, according to its first block, which decides the
    /// owner. A file without blocks may be changed by all. A failure for another reason than rights is
    /// reported by the change itself.
    pub(in crate::vfs) fn may_write(&self, file: u64) -> Result<(), Code> {
        let may = || {
            let (blocks, block_bytes) = self.blocks(file, 0, 1)?;
            let Some((start, block)) = blocks.first().copied() else { return Ok(()) };
            let nothing = || self.write_block(block, 0, &[], false);
            self.or_claimed(file, start, u64::from(block_bytes), nothing).map(drop)
        };
        if may() != Err(libc::EACCES) {
            return Ok(());
        }
        // The block may belong to another file by now.
        self.forget_map(file);
        if may() == Err(libc::EACCES) { Err(libc::EACCES) } else { Ok(()) }
    }

    /// Writes the changes of a file with more changed blocks than are tracked. They become durable with the
    /// next sync of a file.
    fn bound_changed(&self, file: u64) -> Result<(), Refusal> {
        let mut many = Vec::new();
        {
            let mut changed = self.changed.lock();
            for key in [file, FORGOTTEN] {
                if changed.get(&key).is_some_and(|blocks| blocks.len() >= CHANGED_MAX) {
                    many.extend(changed.remove(&key).into_iter().flatten());
                }
            }
        }
        self.write_all_out(&many).inspect_err(|_| self.still_changed(many))
    }

    /// Remembers blocks whose changes are not written yet, for the next flush.
    fn still_changed(&self, blocks: Vec<(u64, Reference)>) {
        let mut changed = self.changed.lock();
        let still = changed.entry(FORGOTTEN).or_default();
        for (block, at) in blocks {
            still.entry(block).or_insert(at);
        }
    }

    fn write_all_out(&self, blocks: &[(u64, Reference)]) -> Result<(), Refusal> {
        blocks.chunks(BLOCKS_MAX).try_for_each(|blocks| self.write_out(self.configuration.disk, blocks))
    }

    /// Changes a block in memory. Returns the reference to its page.
    fn write_block(
        &self,
        block: u64,
        skipped: usize,
        bytes: &[u8],
        is_whole: bool,
    ) -> Result<Reference, Refusal> {
        debug_assert!(bytes.len() <= WRITE_BYTES);
        for _ in 0..ATTEMPTS {
            let at = match self.reader.known(block) {
                Some(at) => at,
                None => self.reader.reference(&[block], !is_whole, &[])?[0],
            };
            let question = MonitorRequest::Write { at, skipped: skipped as u32, bytes: bytes.to_vec() };
            let mut answer = Err(Refusal::NotPermitted);
            for name in self.names.all() {
                answer = ask_as(&self.monitor, name.alias, &question);
                if !answer.as_ref().is_err_and(is_denied) {
                    break;
                }
            }
            match answer {
                Ok((MonitorReply::Done, _)) => return Ok(at),
                Ok(_) => return Err(nonsense("the monitor")),
                // The page was taken away meanwhile, or is not filled yet.
                Err(Refusal::Code(OUTDATED | STATE | crate::host::BUSY)) => {
                    self.reader.forget([block].into_iter())
                }
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::Failed("blocks are taken from memory faster than they can be changed".to_owned()))
    }

    /// Changes the size of a file.
    pub(in crate::vfs) fn resize(&self, file: u64, size: u64) -> Result<(), Code> {
        let _one = self.sizing.lock();
        self.resize_locked(file, size)
    }

    fn resize_locked(&self, file: u64, size: u64) -> Result<(), Code> {
        // Each step brings the size nearer to its target, unless the driver lies.
        let mut left = u64::MAX;
        let mut has_returned = false;
        for _ in 0..STEPS_MAX {
            let owner = self.configuration.user.clone();
            let now = now();
            let question = |[file]: [u64; 1]| FilesRequest::Resize { file, size, owner: owner.clone(), now };
            let before = self.stat(file)?.size;
            let answer = match self.ask([file], question) {
                // If the first attempt was carried out, its new blocks must be nominated again.
                Err(Refusal::Code(UNKNOWN)) => match self.ask([file], question) {
                    Ok(_) if size > before => self.claim(file, before, size - before),
                    answer => answer,
                },
                answer => answer,
            };
            let acl = if size > before && before > 0 { self.acl_of(file) } else { None };
            let acl = acl.unwrap_or_else(|| self.configuration.acl.clone());
            self.forget_map(file);
            // Blocks of files that were deleted while in use may still have to be given back.
            if matches!(answer, Err(Refusal::Code(code::FULL))) && !has_returned {
                has_returned = true;
                self.return_blocks();
                continue;
            }
            let FilesReply::Resized { size: reached, nominated, fill } = answer.map_err(errno)? else {
                return Err(errno(nonsense("the file system")));
            };
            let is_within =
                |(from, length): (u64, u64)| from.checked_add(length).is_some_and(|end| end <= reached);
            if reached.abs_diff(size) >= left || reached > size.max(before) || !fill.is_none_or(is_within) {
                return Err(errno(nonsense("the file system")));
            }
            left = reached.abs_diff(size);
            self.accept(&nominated, &acl).map_err(errno)?;
            if let Some((from, length)) = fill {
                self.zero(file, from, length)?;
            }
            if reached == size {
                self.return_blocks();
                return Ok(());
            }
        }
        Err(errno(nonsense("the file system")))
    }

    /// The ACL of a file's first block, if that is this user's. Blocks by which the file grows get the same.
    fn acl_of(&self, file: u64) -> Option<Acl> {
        let (blocks, _) = self.blocks(file, 0, 1).ok()?;
        let (_, block) = *blocks.first()?;
        match self.ask_policy(&PolicyRequest::Look { disk: self.configuration.disk, block }) {
            Ok(PolicyReply::Label { acl, .. }) => Some(acl),
            _ => None,
        }
    }

    /// All blocks of a file up to the end of its last cluster, in runs.
    pub(in crate::vfs) fn runs(&self, file: u64) -> Result<Vec<Blocks>, Refusal> {
        let stat = self.ask_safely([file], |[file]| FilesRequest::Stat(file))?;
        let FilesReply::File(File { size, .. }) = stat else { return Err(nonsense("the file system")) };
        let sizes = self.ask_safely([], |[]| FilesRequest::Sizes)?;
        let FilesReply::Sizes { cluster_bytes, .. } = sizes else { return Err(nonsense("the file system")) };
        let (mut found, mut at): (Vec<Blocks>, u64) = (Vec::new(), 0);
        let mut block = 512;
        while at < size {
            let question = |[file]: [u64; 1]| FilesRequest::Map { file, offset: at, length: size - at };
            let FilesReply::Map { runs, block_bytes } = self.ask_safely([file], question)? else {
                return Err(nonsense("the file system"));
            };
            let before = at;
            block = u64::from(block_bytes.max(512));
            for (start, run) in runs {
                at = at.max(start.saturating_add(run.count.saturating_mul(u64::from(block_bytes))));
                match found.last_mut() {
                    Some(last) if last.first + last.count == run.first => last.count += run.count,
                    _ => found.push(run),
                }
            }
            if at == before {
                break;
            }
        }
        // The rest of the last cluster, after the end of the file, which belongs to the file too.
        let rest = size.next_multiple_of(u64::from(cluster_bytes.max(512))) - size.next_multiple_of(block);
        if let Some(last) = found.last_mut() {
            last.count += rest / block;
        }
        Ok(found)
    }

    /// Makes the FSDriver nominate again those blocks of a part of a file that were not accepted.
    fn claim(&self, file: u64, offset: u64, length: u64) -> Result<FilesReply, Refusal> {
        let owner = self.configuration.user.clone();
        let mut all = Vec::new();
        let end = offset + length;
        // In parts with a limited number of blocks, however small these are.
        for at in (offset..end).step_by(CLAIM_BYTES) {
            let length = (end - at).min(CLAIM_BYTES as u64);
            let question =
                |[file]: [u64; 1]| FilesRequest::Claim { file, offset: at, length, owner: owner.clone() };
            let FilesReply::Resized { nominated, .. } = self.ask_safely([file], question)? else {
                return Err(nonsense("the file system"));
            };
            all.extend(nominated);
        }
        Ok(FilesReply::Resized { size: end, nominated: all, fill: Some((offset, length)) })
    }

    /// Claims a block of a file that still has no owner. Returns whether it became this session's.
    fn claimed(&self, file: u64, start: u64, block_bytes: u64) -> Result<bool, Code> {
        match self.claim(file, start, block_bytes).map_err(errno)? {
            FilesReply::Resized { nominated, .. } => {
                let acl = self.acl_of(file).unwrap_or_else(|| self.configuration.acl.clone());
                self.accept(&nominated, &acl).map_err(errno)?;
                Ok(!nominated.is_empty())
            }
            _ => Ok(false),
        }
    }

    /// Accepts blocks that the FSDriver nominated, and becomes their owner. That erases them.
    pub(in crate::vfs) fn accept(&self, nominated: &[Blocks], acl: &Acl) -> Result<(), Refusal> {
        for blocks in nominated {
            let (disk, acl) = (self.configuration.disk, acl.clone());
            if let Err(refusal) = self.ask_policy(&PolicyRequest::Accept { disk, blocks: *blocks, acl }) {
                // The request may have been carried out before its reply was lost.
                match self.ask_policy(&PolicyRequest::Look { disk, block: blocks.first }) {
                    Ok(PolicyReply::Label { owner, .. }) if owner == self.configuration.user => {}
                    _ => return Err(refusal),
                }
            }
            self.reader.forget(blocks.first..blocks.first + blocks.count);
        }
        Ok(())
    }

    /// Zeroes a range of a file: the rest of the last block beyond the old end, which needs no new blocks.
    fn zero(&self, file: u64, from: u64, length: u64) -> Result<(), Code> {
        for from_piece in (from..from + length).step_by(ZEROED_BYTES) {
            self.zero_piece(file, from_piece, (from + length - from_piece).min(ZEROED_BYTES as u64))?;
        }
        Ok(())
    }

    fn zero_piece(&self, file: u64, from: u64, length: u64) -> Result<(), Code> {
        let (blocks, block_bytes) = self.blocks(file, from, length)?;
        let zeroes = [0; PAGE_BYTES];
        for (start, block) in blocks {
            let begin = start.max(from);
            let end = (start + u64::from(block_bytes)).min(from + length);
            let part = &zeroes[..(end - begin) as usize];
            let is_whole = part.len() == block_bytes as usize;
            let at = self.write_block(block, (begin - start) as usize, part, is_whole).map_err(errno)?;
            self.changed.lock().entry(file).or_default().insert(block, at);
        }
        Ok(())
    }

    /// Gives back blocks that were deleted or cut off, until none are left.
    pub(in crate::vfs) fn return_blocks(&self) {
        let _one = self.returning.lock();
        for _ in 0..STEPS_MAX {
            if !matches!(self.return_some(), Ok(true)) {
                break;
            }
        }
    }

    fn return_some(&self) -> Result<bool, Refusal> {
        let answer = ask_as(&self.files, self.names.own(), &FilesRequest::Returning)?.0;
        let FilesReply::Return { item, blocks, clusters, to: Some(to) } = answer else { return Ok(false) };
        // They are given to the driver only, whatever it says.
        if to != self.configuration.driver {
            return Err(nonsense("the file system"));
        }
        let disk = self.configuration.disk;
        for blocks in &blocks {
            self.ask_policy(&PolicyRequest::Nominate { disk, blocks: *blocks, to: to.clone() })?;
            self.reader.forget(blocks.first..blocks.first + blocks.count);
        }
        let question = FilesRequest::Returned { item, blocks, clusters, now: now() };
        Ok(ask_as(&self.files, self.names.own(), &question)?.0 == FilesReply::Done)
    }

    /// Makes a file durable, and everything that the file system was asked to do before. CacheMgr and the
    /// DiskDriver are asked to write, and the monitor whether they did, so neither can lose what was
    /// acknowledged. `None`: all files.
    pub(in crate::vfs) fn sync(&self, file: Option<u64>) -> Result<(), Code> {
        let blocks: Vec<(u64, Reference)> = {
            let mut changed = self.changed.lock();
            match file {
                Some(file) => {
                    [file, FORGOTTEN].iter().filter_map(|key| changed.remove(key)).flatten().collect()
                }
                None => changed.drain().flat_map(|(_, blocks)| blocks).collect(),
            }
        };
        let disk = self.configuration.disk;
        let own = self.names.own();
        let synced = self.write_all_out(&blocks);
        let flushed =
            synced.and_then(|()| match ask_as(&self.monitor, own, &MonitorRequest::Flush { disk })?.0 {
                MonitorReply::Done => Ok(()),
                _ => Err(nonsense("the monitor")),
            });
        flushed.map_err(|refusal| {
            self.still_changed(blocks);
            errno(refusal)
        })
    }

    /// Requests that changed blocks are written, and checks with the monitor that they were. Takes longer
    /// while programs keep writing.
    fn write_out(&self, disk: u16, blocks: &[(u64, Reference)]) -> Result<(), Refusal> {
        let own = self.names.own();
        let numbers: Vec<u64> = blocks.iter().map(|(block, _)| *block).collect();
        let references: Vec<Reference> = blocks.iter().map(|(_, at)| *at).collect();
        for _ in 0..ATTEMPTS {
            ask_as(&self.cache, own, &CacheRequest::Clean { disk, blocks: numbers.clone() })?;
            // A page that no longer contains the block was evicted, which never happens to a dirty one.
            match ask_as(&self.monitor, own, &MonitorRequest::Look(references.clone()))?.0 {
                MonitorReply::Look(found) if found.len() != blocks.len() => {
                    return Err(nonsense("the monitor"));
                }
                MonitorReply::Look(found) if found.contains(&Some(Status::Dirty)) => {}
                MonitorReply::Look(_) => return Ok(()),
                _ => return Err(nonsense("the monitor")),
            }
        }
        Err(Refusal::Failed("changed blocks were said to be written, and were not".to_owned()))
    }
}
