//! Making a volume's log, adopting what is on the disk, and opening a volume: from the log to a state in
//! which every block has one hash.

use crate::layout::{BLOCK_BYTES, Header, Plan, io};
use crate::map::{Map, Value, same_tag};
use crate::passes::Checkpointer;
use crate::records::{CLIENT, OPENED, Record};
use crate::volume::{Inner, Options, Parts, Volume};
use crate::{BadBlock, VolumeError, VolumeKey};
use holdfast_log::FailStop;
use holdfast_log::device::Device;
use holdfast_log::ring::{Anchor, Lsn, Recovered, Ring, Tag};
use std::collections::HashMap;
use std::sync::Arc;

/// Blocks read at once when a disk is taken over.
const SCAN_BLOCKS: u64 = 256;
/// Blocks taken over between two checkpoints.
const ADOPTED_BLOCKS: u64 = 1 << 18;
/// Number of blocks at the beginning that are compared, besides samples of the rest, before adopting a disk
/// is continued.
const FIRST_BLOCKS: u64 = 64;
const SAMPLES: u64 = 1024;

/// The report of opening a volume.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Records read from the log.
    pub records: u64,
    /// Number of blocks that had several possible hashes, and were read.
    pub examined: u64,
    /// Blocks written again from the log.
    pub replayed: u64,
    /// Blocks that match nothing that was written: torn by the crash, or changed since. They are refused
    /// until written.
    pub refused: Vec<BadBlock>,
}

/// The result of the first pass over the log.
pub(crate) struct Survey {
    root: Tag,
    /// The number of blocks that were taken over.
    pub adopted: u64,
    /// Records before this say nothing any more.
    pub from: Lsn,
    pub stable: Lsn,
    records: u64,
}

/// A block that the disk may have in several versions.
struct Candidates {
    /// The tags of the newest record whose content is in the log, and of those after it.
    tags: Vec<Tag>,
    newest: (Value, bool),
    /// The newest whose content is in the log, and its value.
    newest_whole: Option<Lsn>,
    whole: Value,
}

pub(crate) fn decode(record: &holdfast_log::ring::RingRecord) -> Result<Record, VolumeError> {
    let unknown =
        || VolumeError::Size(format!("the log has a record of a kind ({}) that is not known", record.kind));
    Record::decode(record.kind, &record.body).ok_or_else(unknown)
}

pub(crate) fn survey(found: &Recovered) -> Result<Survey, VolumeError> {
    let mut survey =
        Survey { root: Tag::default(), adopted: 0, from: found.head(), stable: Lsn(0), records: 0 };
    for record in found.cursor(CLIENT) {
        let record = record?;
        survey.records += 1;
        match decode(&record)? {
            Record::Checkpoint { root, adopted, from } => {
                (survey.root, survey.adopted, survey.from) = (root, adopted, from);
            }
            Record::Stable { before } => survey.stable = survey.stable.max(before),
            _ => {}
        }
    }
    Ok(survey)
}

impl Volume {
    /// Makes the log of a volume for `disk` on `log`, whose former content is lost. The disk is not touched,
    /// and none of it is protected until [`Volume::adopt`] has adopted it.
    ///
    /// # Errors
    /// [`VolumeError::Size`], [`VolumeError::Io`], [`VolumeError::Ring`].
    pub fn format(
        disk: &dyn Device,
        log: &dyn Device,
        key: &VolumeKey,
        ring_bytes: Option<u64>,
    ) -> Result<Header, VolumeError> {
        let size = disk.size_bytes();
        let blocks = size / BLOCK_BYTES as u64;
        if blocks == 0 || !size.is_multiple_of(BLOCK_BYTES as u64) {
            let device = disk.describe();
            return Err(VolumeError::Size(format!(
                "{device} has {size} bytes, which is no multiple of 4096"
            )));
        }
        let plan = Plan::new(size, ring_bytes);
        if log.size_bytes() < plan.bytes {
            return Err(VolumeError::Size(format!(
                "{} has {} bytes, but the log of {} needs {}",
                log.describe(),
                log.size_bytes(),
                disk.describe(),
                plan.bytes
            )));
        }
        let header = Header { volume: key.volume(), blocks, ring_bytes: plan.ring_bytes };
        Header::erase(log)?;
        Ring::format(log, header.ring(), &key.ring(), key.volume())?;
        header.write(log, key)?;
        Ok(header)
    }

    /// Adopts what is on the disk, or continues doing so: from then on each block must be as it is now. With
    /// `before` (a volume on the same disk with another key, or a smaller one), the blocks that it protects
    /// are verified. `progress` gets the number of blocks done and of all, and returns whether to continue.
    /// Returns whether everything is adopted. Nobody else may write to the disk meanwhile.
    ///
    /// # Errors
    /// As of [`Volume::open`]; [`VolumeError::BadBlock`]: a bad block is not adopted.
    pub fn adopt(
        disk: Arc<dyn Device>,
        log: Arc<dyn Device>,
        key: &VolumeKey,
        salt: [u8; 16],
        before: Option<&Volume>,
        progress: &dyn Fn(u64, u64) -> bool,
    ) -> Result<bool, VolumeError> {
        Volume::take_over(disk, log, key, salt, before.map_or(Source::Disk, Source::Volume), progress)
    }

    /// As [`Volume::adopt`], but drops what is on the disk without reading it: all blocks read as zeroes
    /// until they are written.
    ///
    /// # Errors
    /// As [`Volume::open`].
    pub fn adopt_empty(
        disk: Arc<dyn Device>,
        log: Arc<dyn Device>,
        key: &VolumeKey,
        salt: [u8; 16],
        progress: &dyn Fn(u64, u64) -> bool,
    ) -> Result<bool, VolumeError> {
        Volume::take_over(disk, log, key, salt, Source::Nothing, progress)
    }

    fn take_over(
        disk: Arc<dyn Device>,
        log: Arc<dyn Device>,
        key: &VolumeKey,
        salt: [u8; 16],
        source: Source<'_>,
        progress: &dyn Fn(u64, u64) -> bool,
    ) -> Result<bool, VolumeError> {
        let (volume, survey) = open_unchecked(disk.clone(), log, key, Options::default(), None, salt)?;
        let inner = &volume.inner;
        let blocks = inner.header.blocks;
        let mut at = survey.adopted;
        let before = match source {
            Source::Volume(before) => Some(before),
            Source::Disk | Source::Nothing => None,
        };
        if let Some(before) = before {
            // Everything it has is on the disk, and its map knows.
            before.close()?;
        }
        // The bytes that are hashed must not be only in a cache.
        io(&*disk, "flushing", disk.flush())?;
        let holes_are_holes = matches!(source, Source::Disk);
        if at < blocks && !inner.is_untouched(at, holes_are_holes)? {
            tracing::warn!(
                disk = disk.describe(),
                "what was taken over before has changed since; it begins anew"
            );
            at = 0;
        }
        let mut saved = at;
        let mut data_at = 0;
        let mut buffer = vec![0; SCAN_BLOCKS as usize * BLOCK_BYTES];
        while at < blocks && progress(at, blocks) {
            if holes_are_holes && data_at <= at {
                data_at = disk.next_data(at * BLOCK_BYTES as u64) / BLOCK_BYTES as u64;
            }
            let mut count = SCAN_BLOCKS.min(blocks - at);
            let is_empty = match source {
                Source::Nothing => true,
                Source::Volume(_) => false,
                Source::Disk => data_at > at,
            };
            if is_empty {
                if holes_are_holes {
                    count = count.min(data_at - at);
                }
                for block in at..at + count {
                    inner.map.set(block, Value::Discarded, Lsn(1))?;
                }
            } else {
                inner.learn(at, &mut buffer[..count as usize * BLOCK_BYTES], before)?;
            }
            at += count;
            if at - saved >= ADOPTED_BLOCKS {
                let oldest = inner.write_checkpoint(Lsn(u64::MAX), at)?;
                inner.ring.advance(oldest)?;
                saved = at;
            }
        }
        let oldest = inner.write_checkpoint(Lsn(u64::MAX), at)?;
        inner.ring.advance(oldest)?;
        progress(at, blocks);
        Ok(at == blocks)
    }

    /// Opens a volume and recovers from its log. `anchor` is what the caller knows of it from elsewhere;
    /// without one, an older state of disk and log together goes unnoticed. `salt` must be random.
    ///
    /// # Errors
    /// [`VolumeError::NotOurs`], [`VolumeError::NotAdopted`], [`VolumeError::Ring`], [`VolumeError::BadMap`],
    /// [`VolumeError::Io`].
    pub fn open(
        disk: Arc<dyn Device>,
        log: Arc<dyn Device>,
        key: &VolumeKey,
        options: Options,
        anchor: Option<&Anchor>,
        salt: [u8; 16],
    ) -> Result<(Volume, Report), VolumeError> {
        let (volume, survey) = open_unchecked(disk, log, key, options, anchor, salt)?;
        if survey.adopted < survey.blocks {
            return Err(VolumeError::NotAdopted { done: survey.adopted, blocks: survey.blocks });
        }
        Ok((volume, survey.report))
    }
}

/// Where a new volume's content comes from.
#[derive(Clone, Copy)]
enum Source<'a> {
    /// The disk's present content.
    Disk,
    /// The content according to another volume on the same disk.
    Volume(&'a Volume),
    /// No version of the block is acceptable.
    Nothing,
}

impl Inner {
    /// Adopts blocks from `at` on, as many as `buffer` has room for.
    fn learn(&self, at: u64, buffer: &mut [u8], before: Option<&Volume>) -> Result<(), VolumeError> {
        let count = (buffer.len() / BLOCK_BYTES) as u64;
        let verified = before.map_or(0, |before| before.inner.header.blocks.clamp(at, at + count) - at);
        let (inside, beyond) = buffer.split_at_mut(verified as usize * BLOCK_BYTES);
        if let Some(before) = before {
            before.inner.read_blocks(at..at + verified, inside)?;
        }
        io(&*self.disk, "reading", self.disk.read_at((at + verified) * BLOCK_BYTES as u64, beyond))?;
        for (block, bytes) in (at..).zip(buffer.chunks_exact(BLOCK_BYTES)) {
            // A discarded block reads as zeroes, whatever the disk has.
            let is_discarded = match before {
                Some(before) if block < at + verified => before.inner.map.get(block)? == Value::Discarded,
                _ => false,
            };
            let value =
                if is_discarded { Value::Discarded } else { Value::Known(self.key.block(block, bytes)) };
            self.map.set(block, value, Lsn(1))?;
        }
        Ok(())
    }

    /// Whether the disk seems unchanged up to block `adopted`: compares the beginning, where file systems
    /// note that they were used, and samples. `holes_are_holes`: blocks adopted as zeroes were holes of the
    /// disk.
    fn is_untouched(&self, adopted: u64, holes_are_holes: bool) -> Result<bool, VolumeError> {
        let step = (adopted / SAMPLES).max(1);
        let mut bytes = [0; BLOCK_BYTES];
        for block in (0..adopted.min(FIRST_BLOCKS)).chain((0..adopted).step_by(step as usize)) {
            match self.read_blocks(block..block + 1, &mut bytes) {
                Ok(()) => {}
                Err(VolumeError::BadBlock { .. }) => return Ok(false),
                Err(error) => return Err(error),
            }
            if holes_are_holes && self.map.get(block)? == Value::Discarded {
                io(&*self.disk, "reading", self.disk.read_at(block * BLOCK_BYTES as u64, &mut bytes))?;
                if bytes.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// The volume and statistics from [`open_unchecked`].
struct OpenOutcome {
    adopted: u64,
    blocks: u64,
    report: Report,
}

fn open_unchecked(
    disk: Arc<dyn Device>,
    log: Arc<dyn Device>,
    key: &VolumeKey,
    options: Options,
    anchor: Option<&Anchor>,
    salt: [u8; 16],
) -> Result<(Volume, OpenOutcome), VolumeError> {
    // A failed write or flush is the last one.
    let (disk, log) = (FailStop::over(disk), FailStop::over(log));
    let header = Header::read(&*log, key)?;
    if disk.size_bytes() < header.blocks * BLOCK_BYTES as u64 {
        return Err(VolumeError::Size(format!(
            "{} has {} bytes, but the volume has {}",
            disk.describe(),
            disk.size_bytes(),
            header.blocks * BLOCK_BYTES as u64
        )));
    }
    let found = Recovered::open(log.clone(), header.ring(), key.ring(), key.volume(), anchor)?;
    let survey = survey(&found)?;
    let map = Map::new(log.clone(), header.map(), header.blocks, key.clone(), survey.root, options.nodes_max);
    let mut report = Report { records: survey.records, ..Report::default() };
    let mut candidates = collect(&found, &survey, &map, &header, key)?;
    let chosen = resolve(&*disk, key, &map, &mut candidates, &mut report)?;
    replay(&*disk, &found, &candidates, &mut report)?;
    // From here on each block has one hash, which is that of durable content.
    io(&*disk, "flushing", disk.flush())?;
    let end = found.end();
    for (block, value) in chosen {
        map.set(block, value, end)?;
    }
    let ring = found.resume(salt, header.ring_bytes / BLOCK_BYTES as u64 / 4);
    let refused = report.refused.clone();
    let blocks = header.blocks;
    let volume = Volume::begin(Parts { disk, log, ring, map, key: key.clone(), header, options }, refused);
    let inner = &volume.inner;
    inner.ring.register(CLIENT, Arc::new(Checkpointer(Arc::downgrade(inner))));
    inner.ring.append_reserved(CLIENT, OPENED, &[])?;
    // This record alone contains the result of recovery, all at once: until it is durable, opening the volume
    // again gives the same result.
    let oldest = inner.write_checkpoint(Lsn(u64::MAX), survey.adopted)?;
    inner.ring.advance(oldest)?;
    Ok((volume, OpenOutcome { adopted: survey.adopted, blocks, report }))
}

/// Reads the records: stable values go into the map, possible values of the disk are collected.
fn collect(
    found: &Recovered,
    survey: &Survey,
    map: &Map,
    header: &Header,
    key: &VolumeKey,
) -> Result<HashMap<u64, Candidates>, VolumeError> {
    let mut candidates: HashMap<u64, Candidates> = HashMap::new();
    for record in found.cursor(CLIENT) {
        let record = record?;
        if record.start < survey.from {
            continue;
        }
        let mut note = |block: u64, value: Value, is_whole: bool| {
            if block >= header.blocks {
                return Err(VolumeError::Size(format!(
                    "the log speaks of block {block}, beyond the volume's end"
                )));
            }
            if record.start < survey.stable {
                return map.set(block, value, record.start);
            }
            let known = candidates.entry(block).or_insert(Candidates {
                tags: Vec::new(),
                newest: (value, is_whole),
                newest_whole: None,
                whole: value,
            });
            if is_whole {
                // The content may have been acknowledged without the disk: nothing older will do.
                known.tags.clear();
            }
            if let Value::Known(tag) = value {
                known.tags.push(tag);
            }
            known.newest = (value, is_whole);
            if is_whole {
                (known.newest_whole, known.whole) = (Some(record.start), value);
            }
            Ok(())
        };
        match decode(&record)? {
            Record::Hashes { first, tags } => {
                for (block, tag) in (first..).zip(tags) {
                    note(block, Value::Known(tag), false)?;
                }
            }
            Record::Inline { first, bytes } => {
                for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    note(block, Value::Known(key.block(block, bytes)), true)?;
                }
            }
            Record::Discard { first, count } => {
                for block in first..first.saturating_add(count) {
                    note(block, Value::Discarded, true)?;
                }
            }
            Record::Together { blocks } => {
                for (block, bytes) in blocks {
                    note(block, Value::Known(key.block(block, &bytes[..])), true)?;
                }
            }
            Record::Stable { .. } | Record::Checkpoint { .. } | Record::Opened => {}
        }
    }
    Ok(candidates)
}

/// Decides the value of each block that has several possible ones. `newest_whole` keeps the blocks whose
/// content must be written from the log.
fn resolve(
    disk: &dyn Device,
    key: &VolumeKey,
    map: &Map,
    candidates: &mut HashMap<u64, Candidates>,
    report: &mut Report,
) -> Result<Vec<(u64, Value)>, VolumeError> {
    let mut chosen = Vec::with_capacity(candidates.len());
    let mut blocks: Vec<u64> = candidates.keys().copied().collect();
    blocks.sort_unstable();
    let mut bytes = [0; BLOCK_BYTES];
    for block in blocks {
        let known = candidates.get_mut(&block).expect("its key was listed");
        let (value, is_whole) = known.newest;
        if is_whole {
            // Whatever the disk has: the newest content is in the log, or is none.
            if value == Value::Discarded {
                known.newest_whole = None;
            }
            chosen.push((block, value));
            continue;
        }
        report.examined += 1;
        io(disk, "reading", disk.read_at(block * BLOCK_BYTES as u64, &mut bytes))?;
        let found = key.block(block, &bytes);
        let stable = map.get(block)?;
        let fits = |tag: &Tag| same_tag(tag, &found);
        let is_stable = known.newest_whole.is_none() && matches!(&stable, Value::Known(tag) if fits(tag));
        if is_stable || known.tags.iter().any(fits) {
            known.newest_whole = None;
            chosen.push((block, Value::Known(found)));
        } else if known.newest_whole.is_some() {
            // Torn or not written. What may have been acknowledged before is in the log, and is written back.
            chosen.push((block, known.whole));
        } else if stable == Value::Discarded {
            // Nothing was acknowledged of that content.
            chosen.push((block, Value::Discarded));
        } else {
            chosen.push((block, Value::Refused));
            report.refused.push(BadBlock { number: block, expected: None, found });
        }
    }
    Ok(chosen)
}

/// Writes content from the log to the disk.
fn replay(
    disk: &dyn Device,
    found: &Recovered,
    candidates: &HashMap<u64, Candidates>,
    report: &mut Report,
) -> Result<(), VolumeError> {
    for record in found.cursor(CLIENT) {
        let record = record?;
        let mut put_back = |block: u64, bytes: &[u8]| {
            let is_newest =
                candidates.get(&block).is_some_and(|known| known.newest_whole == Some(record.start));
            if is_newest {
                io(disk, "writing", disk.write_at(block * BLOCK_BYTES as u64, bytes))?;
                report.replayed += 1;
            }
            Ok::<_, VolumeError>(())
        };
        match decode(&record)? {
            Record::Inline { first, bytes } => {
                for (block, bytes) in (first..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
                    put_back(block, bytes)?;
                }
            }
            Record::Together { blocks } => {
                for (block, bytes) in &blocks {
                    put_back(*block, &bytes[..])?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}
