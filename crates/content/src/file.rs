//! Files: reading, writing in place, and cutting into content-defined chunks.
//!
//! A file is *any* sequence of chunks. Writing in place ([`splice`]) stores the written bytes and trims what
//! they overlap by skip and length, so an fsync costs only what was written. Content-defined cutting
//! ([`from_reader`], [`rechunk`]) is a policy of writers, at close or when idle, that makes equal content
//! equal chunks again.

use crate::error::{ContentError, Malformed, Misuse};
use crate::extent::Builder;
use crate::inode::INLINE_BYTES_MAX;
use crate::memory::EmptySource;
use crate::memory::Layer;
use crate::{
    Block, BlockKind, BlockSink, BlockSource, Chunker, Content, Extent, ExtentMap, Inode, Reference,
};
use fastcdc::v2020::{Normalization, StreamCDC};
use holdfast_crypto::{DigestKey, Domain};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::Range;
use std::rc::Rc;

/// Largest chunk made of bytes written in place. Longer runs are cut.
pub const SPLICE_BYTES_MAX: usize = 128 * 1024;

/// Up to this size a file is cut into small chunks.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// Beyond this size it is cut into large ones.
const LARGE_FILE_BYTES: u64 = 4 << 30;

/// Sizes of content-defined chunks, in bytes; even numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkerConfig {
    /// No chunk is smaller, unless it ends a run of data.
    pub bytes_min: usize,
    /// Average size of chunks in bytes.
    pub bytes_average: usize,
    /// Largest chunk, in bytes; at most [`crate::BODY_BYTES_MAX`].
    pub bytes_max: usize,
}

impl ChunkerConfig {
    /// 16, 64 and 256 KiB: [`Chunker::FastCdc64`].
    pub const DEFAULT: ChunkerConfig =
        ChunkerConfig { bytes_min: 16 << 10, bytes_average: 64 << 10, bytes_max: 256 << 10 };

    /// 2, 8 and 32 KiB: [`Chunker::FastCdc8`].
    pub const SMALL: ChunkerConfig =
        ChunkerConfig { bytes_min: 2 << 10, bytes_average: 8 << 10, bytes_max: 32 << 10 };
    /// 64, 256 and 1024 KiB: [`Chunker::FastCdc256`].
    pub const LARGE: ChunkerConfig =
        ChunkerConfig { bytes_min: 64 << 10, bytes_average: 256 << 10, bytes_max: 1 << 20 };
    /// 2, 8 and 64 KiB: [`Chunker::Lbfs`].
    pub const LBFS: ChunkerConfig =
        ChunkerConfig { bytes_min: 2 << 10, bytes_average: 8 << 10, bytes_max: 64 << 10 };

    /// The configuration for a file of `size` bytes that was cut with `present` before. It bounds the number
    /// of chunks of a large file, and cuts a small one into more than one chunk. Chunks of different
    /// configurations never match, so a file that grows or shrinks keeps its configuration until it is four
    /// times beyond the limit of the next one.
    ///
    /// [`ChunkerConfig::DEFAULT`] leaves files whole that are too small for it to cut.
    pub fn for_file(size: u64, present: Chunker) -> ChunkerConfig {
        let kept = match present {
            Chunker::FastCdc8 => Some((Self::SMALL, 0..=SMALL_FILE_BYTES * 4)),
            Chunker::FastCdc64 => Some((Self::DEFAULT, SMALL_FILE_BYTES / 4..=LARGE_FILE_BYTES * 4)),
            Chunker::FastCdc256 => Some((Self::LARGE, LARGE_FILE_BYTES / 4..=u64::MAX)),
            Chunker::InPlace | Chunker::Lbfs => None,
        };
        match kept {
            Some((config, sizes)) if sizes.contains(&size) => config,
            _ if size <= Self::DEFAULT.bytes_min as u64 => Self::DEFAULT,
            _ if size <= SMALL_FILE_BYTES => Self::SMALL,
            _ if size <= LARGE_FILE_BYTES => Self::DEFAULT,
            _ => Self::LARGE,
        }
    }

    fn id(&self) -> Chunker {
        match *self {
            Self::DEFAULT => Chunker::FastCdc64,
            Self::SMALL => Chunker::FastCdc8,
            Self::LARGE => Chunker::FastCdc256,
            Self::LBFS => Chunker::Lbfs,
            _ => Chunker::InPlace,
        }
    }

    /// Cuts the bytes of `input`. The gear table is seeded with the digest key, so that chunk sizes under a
    /// private key reveal nothing to others.
    fn cut<R: Read>(&self, key: &DigestKey, input: R) -> StreamCDC<R> {
        assert!(self.bytes_max <= crate::BODY_BYTES_MAX as usize, "a chunk must fit a block");
        let seed = key.digest(Domain::Boundary, b"gear");
        let seed = u64::from_le_bytes(seed.0[..8].try_into().expect("8 bytes"));
        StreamCDC::with_level_and_seed(
            input,
            self.bytes_min,
            self.bytes_average,
            self.bytes_max,
            Normalization::Level1,
            seed,
        )
    }
}

impl Default for ChunkerConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Reads `length` bytes from `offset` on, fewer at the end of the file. Holes read as zeroes.
///
/// # Errors
/// [`ContentError`]: a block could not be fetched or is malformed, or the inode is no file.
pub fn read(
    source: &dyn BlockSource,
    inode: &Inode,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, ContentError> {
    let length = (length as u64).min(inode.size.saturating_sub(offset)) as usize;
    let mut out = vec![0u8; length];
    read_into(source, inode, offset, &mut out)?;
    Ok(out)
}

/// Fills `out`, which is zeroed, with the file's bytes from `offset` on.
///
/// # Errors
/// [`ContentError`]: a block could not be fetched or is malformed, or the inode is no file.
pub fn read_into(
    source: &dyn BlockSource,
    inode: &Inode,
    offset: u64,
    out: &mut [u8],
) -> Result<(), ContentError> {
    let length = (out.len() as u64).min(inode.size.saturating_sub(offset)) as usize;
    let out = &mut out[..length];
    match &inode.content {
        Content::None => Ok(()),
        Content::Inline(bytes) => {
            let bytes = bytes.get(offset.min(bytes.len() as u64) as usize..).unwrap_or_default();
            let count = bytes.len().min(length);
            out[..count].copy_from_slice(&bytes[..count]);
            Ok(())
        }
        Content::Extents(map) => read_extents(source, map, offset, out),
        _ => Err(Misuse::Rule(format!("a {:?} has no bytes to read", inode.kind)).into()),
    }
}

/// Fills `out`, which is zeroed, with the bytes of `map` from `offset` on.
///
/// # Errors
/// [`ContentError`]: a block could not be fetched or is malformed.
pub fn read_extents(
    source: &dyn BlockSource,
    map: &ExtentMap,
    offset: u64,
    out: &mut [u8],
) -> Result<(), ContentError> {
    let range = offset..offset.saturating_add(out.len() as u64);
    let extents = map.extents_in(source, range.clone())?;
    hint(source, &extents);
    for (at, extent) in &extents {
        let chunk = source.fetch(&extent.reference, BlockKind::Chunk)?;
        let Some((start, piece)) = extent.clip(*at, &range) else { continue };
        let bytes = bytes_of(&chunk, &piece)?;
        let begin = (start - offset) as usize;
        out[begin..begin + bytes.len()].copy_from_slice(bytes);
    }
    Ok(())
}

/// Hints that the chunks of `range` will be read soon.
///
/// # Errors
/// [`ContentError`]: a node of the map could not be fetched or is malformed.
pub fn prefetch(source: &dyn BlockSource, map: &ExtentMap, range: Range<u64>) -> Result<(), ContentError> {
    hint(source, &map.extents_in(source, range)?);
    Ok(())
}

fn hint(source: &dyn BlockSource, extents: &[(u64, Extent)]) {
    let mut references: Vec<(Reference, BlockKind)> =
        extents.iter().map(|(_, extent)| (extent.reference, BlockKind::Chunk)).collect();
    references.dedup();
    if references.len() > 1 {
        source.prefetch(&references);
    }
}

fn bytes_of<'a>(chunk: &'a Block, extent: &Extent) -> Result<&'a [u8], ContentError> {
    let end = extent.skip as usize + extent.length as usize;
    chunk.body().get(extent.skip as usize..end).ok_or_else(|| {
        Malformed::Rule(format!("it ends at {end} of a chunk of {} bytes", chunk.body().len()))
            .at("extent", Some(extent.reference.address))
    })
}

/// The map after dropping everything at and after `truncate`, and then making `writes` in their order (later
/// ones win). Adjacent writes share chunks of at most [`SPLICE_BYTES_MAX`].
///
/// # Errors
/// [`ContentError`]: a node could not be fetched or is malformed; [`Misuse`]: beyond the largest file.
pub fn splice(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    map: &ExtentMap,
    writes: &[(u64, &[u8])],
    truncate: Option<u64>,
) -> Result<ExtentMap, ContentError> {
    let mut cleared = Vec::new();
    if let Some(end) = truncate {
        cleared.push(end..u64::MAX);
    }
    let mut added = Vec::new();
    for (offset, bytes) in runs(writes)? {
        cleared.push(offset..offset + bytes.len() as u64);
        let mut at = offset;
        for piece in bytes.chunks(SPLICE_BYTES_MAX) {
            added.push((at, Extent::whole(put_chunk(sink, piece.to_vec()))));
            at += piece.len() as u64;
        }
    }
    let extents = map.replace(source, sink, &cleared, &added)?;
    Ok(ExtentMap { chunker: map.chunker, extents })
}

fn put_chunk(sink: &mut dyn BlockSink, bytes: Vec<u8>) -> Reference {
    let block = Block::new(&sink.digest_key(), BlockKind::Chunk, Vec::new(), bytes);
    sink.put(block)
}

/// The result of a sequence of writes: runs in order that neither overlap nor touch.
fn runs(writes: &[(u64, &[u8])]) -> Result<Vec<(u64, Vec<u8>)>, ContentError> {
    let mut pieces: BTreeMap<u64, &[u8]> = BTreeMap::new();
    for (offset, bytes) in writes.iter().copied().filter(|(_, bytes)| !bytes.is_empty()) {
        let most = crate::FILE_BYTES_MAX - bytes.len() as u64;
        if offset > most {
            return Err(
                Misuse::OutOfRange { what: "offset of a write", found: offset, least: 0, most }.into()
            );
        }
        let end = offset + bytes.len() as u64;
        if let Some((&before, &piece)) = pieces.range(..offset).next_back() {
            let piece_end = before + piece.len() as u64;
            if piece_end > offset {
                pieces.insert(before, &piece[..(offset - before) as usize]);
            }
            if piece_end > end {
                pieces.insert(end, &piece[(end - before) as usize..]);
            }
        }
        let hidden: Vec<u64> = pieces.range(offset..end).map(|(at, _)| *at).collect();
        for at in hidden {
            let piece = pieces.remove(&at).expect("just seen");
            if at + piece.len() as u64 > end {
                pieces.insert(end, &piece[(end - at) as usize..]);
            }
        }
        pieces.insert(offset, bytes);
    }
    let mut runs: Vec<(u64, Vec<u8>)> = Vec::new();
    for (offset, piece) in pieces {
        match runs.last_mut() {
            Some((begin, bytes)) if *begin + bytes.len() as u64 == offset => bytes.extend_from_slice(piece),
            _ => runs.push((offset, piece.to_vec())),
        }
    }
    Ok(runs)
}

/// The content of a file after dropping everything at and after `truncate`, making `writes`, and setting the
/// size to `size`. Small files stay in (or return to) their inode; others get extents.
///
/// # Errors
/// [`ContentError`]: a block could not be fetched or is malformed, or the inode is no file.
pub fn write(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    inode: &Inode,
    writes: &[(u64, &[u8])],
    truncate: Option<u64>,
    size: u64,
) -> Result<Content, ContentError> {
    let kept = inode.size.min(truncate.unwrap_or(u64::MAX));
    if size <= INLINE_BYTES_MAX as u64 {
        let mut bytes = read(source, inode, 0, kept.min(size) as usize)?;
        for (offset, written) in runs(writes)? {
            if offset >= size {
                continue;
            }
            let written = &written[..written.len().min((size - offset) as usize)];
            let (begin, end) = (offset as usize, offset as usize + written.len());
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[begin..end].copy_from_slice(written);
        }
        // A tail of zeroes is hole: one content has one form.
        let length = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        bytes.truncate(length);
        return Ok(if bytes.is_empty() { Content::None } else { Content::Inline(bytes) });
    }
    // What is beyond the new size must be dropped, so that it does not reappear when the file grows.
    let kept = kept.min(size);
    let clipped: Vec<(u64, &[u8])> = writes
        .iter()
        .filter(|(offset, _)| *offset < size)
        .map(|(offset, bytes)| (*offset, &bytes[..bytes.len().min((size - offset) as usize)]))
        .collect();
    let content = match &inode.content {
        Content::None => splice(source, sink, &ExtentMap::empty(), &clipped, None)?,
        Content::Inline(bytes) => {
            let bytes = &bytes[..bytes.len().min(kept as usize)];
            let all: Vec<(u64, &[u8])> = std::iter::once((0, bytes)).chain(clipped).collect();
            splice(source, sink, &ExtentMap::empty(), &all, None)?
        }
        Content::Extents(map) => splice(source, sink, map, &clipped, (kept < inode.size).then_some(kept))?,
        _ => return Err(Misuse::Rule(format!("a {:?} has no bytes to write", inode.kind)).into()),
    };
    Ok(if content.is_empty() { Content::None } else { Content::Extents(content) })
}

/// The map with a hole in `range`.
///
/// # Errors
/// [`ContentError`]: a node could not be fetched or is malformed.
pub fn punch(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    map: &ExtentMap,
    range: Range<u64>,
) -> Result<ExtentMap, ContentError> {
    let extents = map.replace(source, sink, std::slice::from_ref(&range), &[])?;
    Ok(ExtentMap { chunker: map.chunker, extents })
}

/// Cuts all bytes of `input` into chunks. Returns the map and the size in bytes.
///
/// # Errors
/// [`ContentError::Input`] if `input` fails.
pub fn from_reader(
    sink: &mut dyn BlockSink,
    config: &ChunkerConfig,
    input: impl Read,
) -> Result<(ExtentMap, u64), ContentError> {
    let mut size = 0;
    let map = from_runs(sink, config, std::iter::once(Ok((0, input))), &mut size)?;
    Ok((map, size))
}

/// Cuts each run of data of a file into chunks; the gaps between runs are holes. `end` is set to the end of
/// the last run.
///
/// # Errors
/// [`ContentError::Input`] if a run fails; [`Misuse`] if runs are out of order or overlap.
pub fn from_runs<R: Read>(
    sink: &mut dyn BlockSink,
    config: &ChunkerConfig,
    runs: impl Iterator<Item = std::io::Result<(u64, R)>>,
    end: &mut u64,
) -> Result<ExtentMap, ContentError> {
    let failed = |error: String| ContentError::Input(error);
    let key = sink.digest_key();
    let nothing = EmptySource(key);
    let mut builder = Builder::new(&nothing, sink, config.id());
    for run in runs {
        let (start, input) = run.map_err(|error| failed(error.to_string()))?;
        if start < *end {
            return Err(Misuse::Rule("runs of data out of order".into()).into());
        }
        for chunk in config.cut(&key, input) {
            let chunk = chunk.map_err(|error| failed(error.to_string()))?;
            let at = start + chunk.offset;
            *end = at + chunk.length as u64;
            let extent = Extent::whole(put_chunk(builder.sink(), chunk.data));
            builder.push(at, extent)?;
        }
    }
    builder.finish()
}

/// Cuts all bytes of `input` into chunks and adds their extents, from `offset` on, to `added`, for
/// [`ExtentMap::graft`]. Returns where they end.
///
/// # Errors
/// [`ContentError::Input`] if `input` fails.
pub fn cut_run_at(
    sink: &mut dyn BlockSink,
    config: &ChunkerConfig,
    offset: u64,
    input: impl Read,
    added: &mut Vec<(u64, Extent)>,
) -> Result<u64, ContentError> {
    let key = sink.digest_key();
    let mut end = offset;
    for chunk in config.cut(&key, input) {
        let chunk = chunk.map_err(|error| ContentError::Input(error.to_string()))?;
        let extent = Extent::whole(put_chunk(sink, chunk.data));
        added.push((end, extent));
        end += u64::from(extent.length);
    }
    Ok(end)
}

/// Cuts anew what was written in place within `dirty` (in order, not overlapping): from the last old cut
/// before each range to the first cut after it where old and new agree. `&[0..u64::MAX]` stands for the whole
/// file. Holes stay holes and end a run of data.
///
/// # Errors
/// [`ContentError`]: a block could not be fetched or is malformed.
pub fn rechunk(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    config: &ChunkerConfig,
    map: &ExtentMap,
    dirty: &[Range<u64>],
) -> Result<ExtentMap, ContentError> {
    let layer = Layer::new(source);
    let mut result = ExtentMap { chunker: config.id(), extents: map.extents.clone() };
    let mut done = 0;
    for range in dirty {
        let mut from = range.start.max(done);
        while from < range.end {
            let Some(begin) = first_to_cut(source, map, from..range.end, done)? else { break };
            let (end, added) = cut_run(source, sink, config, map, begin, range.end)?;
            result.extents =
                result.replace(&layer, &mut layer.tee(sink), std::slice::from_ref(&(begin..end)), &added)?;
            (from, done) = (end, end);
        }
    }
    Ok(result)
}

/// Where cutting must begin so that the bytes of `range` are cut as if everything before were cut too: at the
/// extent that overlaps its first data or, if that extent follows whole ones without a gap, at the last whole
/// one. `None` if the range is a hole.
fn first_to_cut(
    source: &dyn BlockSource,
    map: &ExtentMap,
    range: Range<u64>,
    done: u64,
) -> Result<Option<u64>, ContentError> {
    let mut first = None;
    map.visit(source, range.clone(), &mut |offset, extent| {
        first = Some((offset, extent));
        Ok(false)
    })?;
    let Some((mut begin, mut extent)) = first else { return Ok(None) };
    // A chunk that ends where the range begins may have ended only because data did.
    let mut must_go_back = begin >= range.start;
    while begin > done && (must_go_back || !extent.is_whole()) {
        let before = map.extents_in(source, begin - 1..begin)?;
        let Some((offset, earlier)) = before.first() else { break };
        (begin, extent) = (*offset, *earlier);
        must_go_back = false;
    }
    Ok(Some(begin.max(done)))
}

/// Chunks put into the map at once while a file is cut anew.
const CUT_BATCH: usize = 16 * 1024;

/// Cuts the contiguous data from `begin` on until a new cut coincides with an old one at or after `until`,
/// the data ends, or there are enough chunks for one batch.
fn cut_run(
    source: &dyn BlockSource,
    sink: &mut dyn BlockSink,
    config: &ChunkerConfig,
    map: &ExtentMap,
    begin: u64,
    until: u64,
) -> Result<(u64, Vec<(u64, Extent)>), ContentError> {
    let failure = Rc::new(RefCell::new(None));
    let input = RunReader { source, map, at: begin, ready: Vec::new(), taken: 0, failure: failure.clone() };
    let cutter = config.cut(&sink.digest_key(), input);
    let mut added = Vec::new();
    let mut end = begin;
    for chunk in cutter {
        let chunk = chunk.map_err(|error| {
            failure.borrow_mut().take().unwrap_or_else(|| ContentError::Input(error.to_string()))
        })?;
        added.push((end, Extent::whole(put_chunk(sink, chunk.data))));
        end += chunk.length as u64;
        if added.len() >= CUT_BATCH {
            break;
        }
        if end >= until {
            let next = map.extents_in(source, end..end + 1)?;
            if next.first().is_none_or(|(offset, extent)| *offset == end && extent.is_whole()) {
                break;
            }
        }
    }
    Ok((end, added))
}

/// Extents read ahead at once by [`RunReader`], in bytes of the file.
const READ_AHEAD_BYTES: u64 = 2 << 20;

/// Reads contiguous data of a map; ends at a hole.
struct RunReader<'a> {
    source: &'a dyn BlockSource,
    map: &'a ExtentMap,
    at: u64,
    ready: Vec<u8>,
    taken: usize,
    /// Why reading failed: the chunker passes on only a text.
    failure: Rc<RefCell<Option<ContentError>>>,
}

impl RunReader<'_> {
    fn refill(&mut self) -> Result<(), ContentError> {
        self.ready.clear();
        self.taken = 0;
        let range = self.at..self.at.saturating_add(READ_AHEAD_BYTES);
        let extents = self.map.extents_in(self.source, range.clone())?;
        let mut end = self.at;
        let run: Vec<(u64, Extent)> = extents
            .into_iter()
            .filter_map(|(offset, extent)| extent.clip(offset, &range))
            .take_while(|(offset, extent)| {
                let contiguous = *offset == end;
                end = offset + u64::from(extent.length);
                contiguous
            })
            .collect();
        hint(self.source, &run);
        for (_, extent) in &run {
            let chunk = self.source.fetch(&extent.reference, BlockKind::Chunk)?;
            self.ready.extend_from_slice(bytes_of(&chunk, extent)?);
        }
        self.at += self.ready.len() as u64;
        Ok(())
    }
}

impl Read for RunReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.taken == self.ready.len()
            && let Err(error) = self.refill()
        {
            let words = error.to_string();
            *self.failure.borrow_mut() = Some(error);
            return Err(std::io::Error::other(words));
        }
        let count = out.len().min(self.ready.len() - self.taken);
        out[..count].copy_from_slice(&self.ready[self.taken..self.taken + count]);
        self.taken += count;
        Ok(count)
    }
}
