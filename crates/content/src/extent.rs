//! Extent maps: which bytes of a file are in which chunks. Bytes in none are a hole and read as zeroes.
//!
//! Invariants: extents are in ascending order, not empty, do not overlap, and are within their chunks. Up to
//! [`INLINE_EXTENTS_MAX`] of them are in the inode; more are in a Merkle map from file offset (u64,
//! big-endian) to ⟨skip u32, length u32⟩ and a reference. The number alone decides the form, so equal extents
//! have one form.

use crate::codec::{Reader, Writer};
use crate::error::{ContentError, Malformed, within};
use crate::memory::Layer;
use crate::{BODY_BYTES_MAX, BlockSink, BlockSource, MapRoot, MerkleMap, Reference, Value};
use borsh::{BorshDeserialize, BorshSerialize};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};

/// Most extents stored in the inode itself.
pub const INLINE_EXTENTS_MAX: usize = 8;
/// Largest file, in bytes: the limit of the kernel's signed offsets.
pub const FILE_BYTES_MAX: u64 = i64::MAX as u64;

/// Extents read from the map at once.
const BATCH: usize = 1024;
/// New extents put into the map at once while a whole file is written.
const BUILD_BATCH: usize = 16 * 1024;

/// A run of a file's bytes: `length` bytes of a chunk after its first `skip`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Extent {
    /// The chunk.
    pub reference: Reference,
    /// Bytes of it before the run.
    pub skip: u32,
    /// Bytes in the run.
    pub length: u32,
}

/// How the chunks of a file were cut, except those written in place since. The numbers are stored.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize,
)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Chunker {
    /// Any sequence of chunks.
    #[default]
    InPlace = 0,
    /// FastCDC 2020 as in crate `fastcdc` 5.0.0, normalisation level 1, 16/64/256 KiB, gear seeded from the
    /// digest key.
    FastCdc64 = 1,
    /// FastCDC with 2/8/32 KiB, for small files.
    FastCdc8 = 2,
    /// FastCDC with 64/256/1024 KiB, for very large files.
    FastCdc256 = 3,
    /// FastCDC with 2/8/64 KiB, the sizes of LBFS, for comparisons.
    Lbfs = 4,
}

/// The extents of a file.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, BorshSerialize, BorshDeserialize)]
pub struct ExtentMap {
    /// How the file's chunks were cut; writing in place does not change this.
    pub chunker: Chunker,
    /// The extents.
    pub extents: Extents,
}

/// The extents of an [`ExtentMap`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Extents {
    /// At most [`INLINE_EXTENTS_MAX`], by file offset.
    Inline(Vec<(u64, Extent)>),
    /// More extents than fit into the inode: a map.
    Map(MapRoot),
}

impl Default for Extents {
    fn default() -> Self {
        Extents::Inline(Vec::new())
    }
}

impl Extent {
    /// The extent that covers all of a chunk.
    pub fn whole(reference: Reference) -> Extent {
        Extent { reference, skip: 0, length: reference.length }
    }

    /// Whether it is all of its chunk.
    pub fn is_whole(&self) -> bool {
        self.skip == 0 && self.length == self.reference.length
    }

    /// The part of the extent at `offset` that is within `range` of the file.
    pub(crate) fn clip(&self, offset: u64, range: &Range<u64>) -> Option<(u64, Extent)> {
        let start = offset.max(range.start);
        let end = (offset + u64::from(self.length)).min(range.end);
        (start < end).then(|| {
            let skip = self.skip + (start - offset) as u32;
            (start, Extent { reference: self.reference, skip, length: (end - start) as u32 })
        })
    }

    fn check(&self, offset: u64) -> Result<(), Malformed> {
        within("length of an extent", self.length.into(), 1, BODY_BYTES_MAX.into())?;
        let end = u64::from(self.skip) + u64::from(self.length);
        within("end of an extent in its chunk", end, 1, self.reference.length.into())?;
        within("offset of an extent", offset, 0, FILE_BYTES_MAX - u64::from(self.length))
    }

    fn to_value(self) -> Value {
        let mut bytes = self.skip.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.length.to_le_bytes());
        Value { bytes, references: vec![self.reference] }
    }

    fn from_entry(key: &[u8], value: &Value) -> Result<(u64, Extent), ContentError> {
        let read = || {
            let offset = key.try_into().map(u64::from_be_bytes);
            let offset = offset.map_err(|_| Malformed::Rule("its key is not a file offset".into()))?;
            let [reference] = value.references[..] else {
                return Err(Malformed::Rule("an extent has exactly one chunk".into()));
            };
            let mut reader = Reader::new(&value.bytes, &[]);
            let extent = Extent { reference, skip: reader.u32()?, length: reader.u32()? };
            reader.finish()?;
            extent.check(offset)?;
            Ok((offset, extent))
        };
        read().map_err(|why: Malformed| why.at("extent", None))
    }
}

impl ExtentMap {
    /// A map without extents: a file of nothing but hole.
    pub fn empty() -> ExtentMap {
        ExtentMap::default()
    }

    /// Number of extents.
    pub fn len(&self) -> u64 {
        match &self.extents {
            Extents::Inline(extents) => extents.len() as u64,
            Extents::Map(root) => root.len(),
        }
    }

    /// Whether there are no extents.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The extents that overlap `range`, uncut, in order of offset. The gaps between them are holes.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched, or something is malformed.
    pub fn extents_in(
        &self,
        source: &dyn BlockSource,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Extent)>, ContentError> {
        let mut found = Vec::new();
        self.visit(source, range, &mut |offset, extent| {
            found.push((offset, extent));
            Ok(true)
        })?;
        Ok(found)
    }

    /// Calls `visit` with the extents that overlap `range`, in order, until it returns `false`.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched, something is malformed, or what `visit` returned.
    pub fn visit(
        &self,
        source: &dyn BlockSource,
        range: Range<u64>,
        visit: &mut dyn FnMut(u64, Extent) -> Result<bool, ContentError>,
    ) -> Result<(), ContentError> {
        if range.is_empty() {
            return Ok(());
        }
        let root = match &self.extents {
            Extents::Inline(extents) => {
                for (offset, extent) in extents {
                    if offset + u64::from(extent.length) > range.start
                        && *offset < range.end
                        && !visit(*offset, *extent)?
                    {
                        break;
                    }
                }
                return Ok(());
            }
            Extents::Map(root) => root,
        };
        let map = MerkleMap::new(source.digest_key());
        let mut end_before = 0u64;
        let mut step = |key: &[u8], value: &Value| {
            let (offset, extent) = Extent::from_entry(key, value)?;
            if offset < end_before {
                return Err(Malformed::NotAscending("extents").at("extent map", None));
            }
            end_before = offset + u64::from(extent.length);
            if offset >= range.end {
                return Ok(false);
            }
            if end_before <= range.start { Ok(true) } else { visit(offset, extent) }
        };
        // The extent that begins last at or before the range may reach into it.
        let mut from = match map.floor(source, root, Bound::Included(&range.start.to_be_bytes()))? {
            None => Bound::Unbounded,
            Some((key, value)) => {
                if !step(&key, &value)? {
                    return Ok(());
                }
                Bound::Excluded(key)
            }
        };
        // Extents may be as short as a sector. Few are requested first, so that a short read fetches few
        // nodes.
        let mut batch = 8;
        loop {
            let from_slice = match &from {
                Bound::Unbounded => Bound::Unbounded,
                Bound::Included(key) => Bound::Included(key.as_slice()),
                Bound::Excluded(key) => Bound::Excluded(key.as_slice()),
            };
            let entries = map.range(source, root, from_slice, batch)?;
            for (key, value) in &entries {
                if !step(key, value)? {
                    return Ok(());
                }
            }
            match entries.into_iter().next_back() {
                Some((last, _)) => from = Bound::Excluded(last),
                None => return Ok(()),
            }
            batch = (batch * 4).min(BATCH);
        }
    }

    /// The map with the `cleared` ranges (in order, not overlapping) emptied and the extents of `added`
    /// inserted, each of which is within one of those ranges. For runs that were cut separately, and for
    /// copies of other files' extents.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed; [`crate::Misuse`]: an invalid extent.
    pub fn graft(
        &self,
        source: &dyn BlockSource,
        sink: &mut dyn BlockSink,
        cleared: &[Range<u64>],
        added: &[(u64, Extent)],
    ) -> Result<ExtentMap, ContentError> {
        for (offset, extent) in added {
            extent.check(*offset).map_err(crate::Misuse::from)?;
        }
        let extents = self.replace(source, sink, cleared, added)?;
        Ok(ExtentMap { chunker: self.chunker, extents })
    }

    /// The map with the `cleared` ranges emptied and the extents of `added`, which are within those ranges,
    /// inserted. Extents that extend beyond a range keep the part outside.
    pub(crate) fn replace(
        &self,
        source: &dyn BlockSource,
        sink: &mut dyn BlockSink,
        cleared: &[Range<u64>],
        added: &[(u64, Extent)],
    ) -> Result<Extents, ContentError> {
        let mut edits: BTreeMap<u64, Option<Extent>> = BTreeMap::new();
        for range in cleared {
            for (offset, extent) in self.extents_in(source, range.clone())? {
                // An extent that several ranges cut is cut again where earlier cuts left something.
                let pieces = match edits.get(&offset) {
                    None => vec![(offset, extent)],
                    Some(_) => pieces_within(&edits, offset, &extent),
                };
                for (offset, _) in &pieces {
                    edits.insert(*offset, None);
                }
                edits.entry(offset).or_insert(None);
                for (offset, piece) in pieces {
                    let before = piece.clip(offset, &(0..range.start));
                    let after = piece.clip(offset, &(range.end..u64::MAX));
                    for (offset, rest) in before.into_iter().chain(after) {
                        edits.insert(offset, Some(rest));
                    }
                }
            }
        }
        edits.extend(added.iter().map(|(offset, extent)| (*offset, Some(*extent))));
        self.edit(source, sink, edits)
    }

    fn edit(
        &self,
        source: &dyn BlockSource,
        sink: &mut dyn BlockSink,
        edits: BTreeMap<u64, Option<Extent>>,
    ) -> Result<Extents, ContentError> {
        let map = MerkleMap::new(source.digest_key());
        let as_edits = |edits: BTreeMap<u64, Option<Extent>>| {
            edits
                .into_iter()
                .map(|(offset, extent)| (offset.to_be_bytes().to_vec(), extent.map(Extent::to_value)))
                .collect::<BTreeMap<_, _>>()
        };
        match &self.extents {
            Extents::Inline(extents) => {
                let mut all: BTreeMap<u64, Option<Extent>> =
                    extents.iter().map(|(offset, extent)| (*offset, Some(*extent))).collect();
                all.extend(edits);
                all.retain(|_, extent| extent.is_some());
                if all.len() <= INLINE_EXTENTS_MAX {
                    return Ok(Extents::Inline(
                        all.into_iter().filter_map(|(offset, extent)| Some((offset, extent?))).collect(),
                    ));
                }
                Ok(Extents::Map(map.apply(source, sink, &MapRoot::EMPTY, as_edits(all))?))
            }
            Extents::Map(root) => {
                // New nodes are collected in a batch, so that a map that shrinks into the inode leaves none
                // behind.
                let layer = Layer::new(source);
                let mut batch = crate::BlockBatch::new(sink.digest_key());
                let root = map.apply(source, &mut layer.tee(&mut batch), root, as_edits(edits))?;
                if root.len() > INLINE_EXTENTS_MAX as u64 {
                    for block in batch.blocks {
                        sink.put(block);
                    }
                    return Ok(Extents::Map(root));
                }
                let entries = map.range(&layer, &root, Bound::Unbounded, INLINE_EXTENTS_MAX)?;
                let extents = entries.iter().map(|(key, value)| Extent::from_entry(key, value));
                Ok(Extents::Inline(extents.collect::<Result<_, _>>()?))
            }
        }
    }

    pub(crate) fn write(&self, writer: &mut Writer) {
        writer.u8(self.chunker as u8);
        match &self.extents {
            Extents::Inline(extents) => {
                writer.u8(0);
                writer.u8(extents.len() as u8);
                for (offset, extent) in extents {
                    writer.u64(*offset);
                    writer.u32(extent.skip);
                    writer.u32(extent.length);
                    writer.reference(&extent.reference);
                }
            }
            Extents::Map(root) => {
                writer.u8(1);
                root.write(writer);
            }
        }
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<ExtentMap, Malformed> {
        let chunker = match reader.u8()? {
            0 => Chunker::InPlace,
            1 => Chunker::FastCdc64,
            2 => Chunker::FastCdc8,
            3 => Chunker::FastCdc256,
            4 => Chunker::Lbfs,
            found => return Err(Malformed::UnknownVariant { what: "chunker", found: found.into() }),
        };
        let extents = if reader.flag("extent map flag")? {
            Extents::Map(MapRoot::read(reader)?)
        } else {
            let count = reader.u8()?;
            let mut extents = Vec::with_capacity(INLINE_EXTENTS_MAX);
            for _ in 0..count.min(INLINE_EXTENTS_MAX as u8 + 1) {
                let (offset, skip, length) = (reader.u64()?, reader.u32()?, reader.u32()?);
                extents.push((offset, Extent { reference: reader.reference()?, skip, length }));
            }
            Extents::Inline(extents)
        };
        let map = ExtentMap { chunker, extents };
        map.check()?;
        Ok(map)
    }

    /// Checks the rules of this module, as far as the inode allows.
    pub(crate) fn check(&self) -> Result<(), Malformed> {
        match &self.extents {
            Extents::Map(root) => {
                within("extents in a map", root.len(), INLINE_EXTENTS_MAX as u64 + 1, u64::MAX)
            }
            Extents::Inline(extents) => {
                within("extents in an inode", extents.len() as u64, 0, INLINE_EXTENTS_MAX as u64)?;
                let mut end_before = 0;
                for (offset, extent) in extents {
                    extent.check(*offset)?;
                    if *offset < end_before {
                        return Err(Malformed::NotAscending("extents"));
                    }
                    end_before = offset + u64::from(extent.length);
                }
                Ok(())
            }
        }
    }
}

/// What earlier edits have left of an extent.
fn pieces_within(edits: &BTreeMap<u64, Option<Extent>>, offset: u64, extent: &Extent) -> Vec<(u64, Extent)> {
    edits
        .range(offset..offset + u64::from(extent.length))
        .filter_map(|(offset, piece)| Some((*offset, (*piece)?)))
        .collect()
}

/// Builds a map from extents that arrive in order, in bounded memory.
pub(crate) struct Builder<'a> {
    source: Layer<'a>,
    sink: &'a mut dyn BlockSink,
    map: ExtentMap,
    waiting: Vec<(u64, Extent)>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(source: &'a dyn BlockSource, sink: &'a mut dyn BlockSink, chunker: Chunker) -> Self {
        let map = ExtentMap { chunker, extents: Extents::default() };
        Builder { source: Layer::new(source), sink, map, waiting: Vec::new() }
    }

    pub(crate) fn sink(&mut self) -> &mut dyn BlockSink {
        self.sink
    }

    pub(crate) fn push(&mut self, offset: u64, extent: Extent) -> Result<(), ContentError> {
        self.waiting.push((offset, extent));
        if self.waiting.len() >= BUILD_BATCH { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), ContentError> {
        // Appending needs only the right edge of the map, which is in the latest batch.
        let mut batch = crate::BlockBatch::new(self.sink.digest_key());
        let added = std::mem::take(&mut self.waiting);
        self.map.extents = self.map.replace(&self.source, &mut batch, &[], &added)?;
        self.source.clear();
        for block in batch.blocks {
            self.source.tee(&mut *self.sink).put(block);
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<ExtentMap, ContentError> {
        self.flush()?;
        Ok(self.map)
    }
}
