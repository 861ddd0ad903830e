//! Uses blocks that this machine has already, in another pack.
//!
//! If a publisher repacks its blocks, or another mirror packs them differently, new packs contain old blocks.
//! Frames do not change when they move, so such a pack can be composed from what is here and the few pieces
//! that are missing. Its digest shows whether that worked.

use super::PullError;
use crate::folder::Folder;
use crate::form::{self, Kind};
use crate::index::{BlockLocation, Index, Key, key_of};
use crate::publish::PublishError;
use crate::publish::store::read_index;
use crate::record::RootFile;
use crate::{layout, pack};
use holdfast_content::StoredBlock;
use holdfast_crypto::Digest;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Shorter runs of local blocks are fetched with what surrounds them, which costs less than another request.
const RUN_BYTES_MIN: u64 = 64 << 10;

/// A directory with packs. Its content is untrusted.
pub struct Local {
    folder: Folder,
    index: Index,
    /// The pack read last.
    open: Mutex<Option<(u32, Arc<File>)>>,
}

/// A part of a file that is being composed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The byte range in the file.
    pub range: Range<u64>,
    /// The local source; `None`: the piece is fetched.
    pub source: Option<Source>,
}

/// A local source of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The magic bytes of every pack.
    Magic,
    /// A frame of the local directory of this number.
    Frame(usize, BlockLocation),
}

impl Local {
    /// The packs of `folder`, with their index.
    pub fn new(folder: &Path, index: Index) -> Result<Local, PullError> {
        let folder = Folder::open(folder).map_err(|error| PublishError::local(folder, &error))?;
        Ok(Local { folder, index, open: Mutex::new(None) })
    }

    /// The packs of a release directory, with the index that its `root` names.
    pub fn open(path: &Path) -> Result<Local, PullError> {
        let root = path.join(layout::ROOT);
        let damaged = |why: String| PublishError::Local { path: root.clone(), why };
        let bytes = holdfast_durable::read(&root, RootFile::BYTES_MAX)
            .map_err(|error| PublishError::local(&root, &error))?
            .ok_or_else(|| damaged("there is no such file, so blocks cannot be taken from there".into()))?;
        let file: RootFile = form::read(&bytes).map_err(|error| damaged(error.to_string()))?;
        Local::new(path, read_index(path, &file.index.digest)?)
    }

    /// A block, unverified; `None` if it is not here.
    pub fn stored(&self, address: &Digest) -> Option<StoredBlock> {
        let location = location(&self.index, address).filter(|location| !location.is_at_origin())?;
        pack::Frame::first(&self.frame(&location).ok()?).and_then(|(frame, _)| frame.stored())
    }

    /// The frame at a location.
    pub fn frame(&self, location: &BlockLocation) -> io::Result<Vec<u8>> {
        let file = {
            let mut open = self.open.lock();
            match &*open {
                Some((known, file)) if *known == location.pack => file.clone(),
                _ => {
                    let name = layout::pack(&self.index.packs[location.pack as usize].digest);
                    let (file, _) = self.folder.file(&name)?.ok_or(io::ErrorKind::NotFound)?;
                    let file = Arc::new(file);
                    *open = Some((location.pack, file.clone()));
                    file
                }
            }
        };
        let mut frame = vec![0; location.bytes as usize];
        file.read_exact_at(&mut frame, location.offset.into())?;
        Ok(frame)
    }
}

/// The location of a block in an index.
pub fn location(index: &Index, address: &Digest) -> Option<BlockLocation> {
    by_key(index, &key_of(address))
}

/// The location of the block of a key in an index.
pub fn by_key(index: &Index, key: &Key) -> Option<BlockLocation> {
    let at = index.entries.binary_search_by_key(key, |(key, _)| *key).ok()?;
    Some(index.entries[at].1)
}

/// For those of the `wanted` packs that share blocks with `locals`: the pieces to compose them from.
pub fn pieces(index: &Index, wanted: &HashSet<Digest>, locals: &[Local]) -> HashMap<Digest, Vec<Piece>> {
    let mut found: HashMap<u32, Vec<(BlockLocation, Source)>> = HashMap::new();
    for (key, location) in &index.entries {
        if locals.is_empty() || !wanted.contains(&index.packs[location.pack as usize].digest) {
            continue;
        }
        let here = locals.iter().enumerate().find_map(|(number, local)| {
            let here = by_key(&local.index, key)?;
            (here.bytes == location.bytes).then_some(Source::Frame(number, here))
        });
        if let Some(source) = here {
            found.entry(location.pack).or_default().push((*location, source));
        }
    }
    let made = found.into_iter().map(|(number, mut frames)| {
        frames.sort_unstable_by_key(|(location, _)| *location);
        let pack = index.packs[number as usize];
        (pack.digest, together(pack.bytes, &frames))
    });
    made.collect()
}

/// The pieces of a pack of `bytes` bytes: frames that are here, and what is between them.
fn together(bytes: u64, frames: &[(BlockLocation, Source)]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut run: Vec<Piece> = vec![Piece { range: 0..pack::MAGIC.len() as u64, source: Some(Source::Magic) }];
    let mut end = pack::MAGIC.len() as u64;
    let close = |run: &mut Vec<Piece>, pieces: &mut Vec<Piece>, is_all: bool| {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { return };
        let range = first.range.start..last.range.end;
        match is_all || range.end - range.start >= RUN_BYTES_MIN {
            true => pieces.append(run),
            false => fetched(pieces, range),
        }
        run.clear();
    };
    for (location, source) in frames {
        let range = u64::from(location.offset)..u64::from(location.offset) + u64::from(location.bytes);
        if range.start < end {
            continue;
        }
        if range.start > end {
            close(&mut run, &mut pieces, false);
            fetched(&mut pieces, end..range.start);
        }
        end = range.end;
        run.push(Piece { range, source: Some(*source) });
    }
    let is_all = pieces.is_empty() && end == bytes;
    close(&mut run, &mut pieces, is_all);
    if end < bytes {
        fetched(&mut pieces, end..bytes);
    }
    pieces
}

/// Adds a part that is fetched, merged with the one before it if that is fetched too.
fn fetched(pieces: &mut Vec<Piece>, range: Range<u64>) {
    match pieces.last_mut() {
        Some(last) if last.source.is_none() => last.range.end = range.end,
        _ => pieces.push(Piece { range, source: None }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Proves: whatever an index contains, the pieces of a pack cover all of it, one after the other.
        #[test]
        fn pieces_are_the_whole(
            frames in proptest::collection::vec((0..300_000u32, 0..150_000u32), 0..20),
            beyond in 0..100_000u64,
        ) {
            let frame = |(offset, bytes)| {
                let location = BlockLocation { pack: 0, offset, bytes };
                (location, Source::Frame(0, location))
            };
            let mut frames: Vec<_> = frames.into_iter().map(frame).collect();
            frames.sort_unstable_by_key(|(location, _)| *location);
            let end = frames.iter().map(|(location, _)| u64::from(location.offset) + u64::from(location.bytes)).max();
            let bytes = end.unwrap_or(0).max(8) + beyond;
            let made = together(bytes, &frames);
            prop_assert_eq!(made.first().map(|piece| piece.range.start), Some(0));
            prop_assert_eq!(made.last().map(|piece| piece.range.end), Some(bytes));
            for pair in made.windows(2) {
                prop_assert_eq!(pair[0].range.end, pair[1].range.start);
                prop_assert!(pair[0].source.is_some() || pair[1].source.is_some());
            }
        }
    }

    /// Proves: a run of local blocks is used if it saves enough, or if it is all there is.
    #[test]
    fn short_runs_are_fetched() {
        let frame = |offset: u32, bytes: u32| {
            let location = BlockLocation { pack: 0, offset, bytes };
            (location, Source::Frame(0, location))
        };
        let small = [frame(8, 1000)];
        assert!(together(1008, &small).iter().all(|piece| piece.source.is_some()));
        assert_eq!(together(5000, &small), [Piece { range: 0..5000, source: None }]);
        let large = [frame(8, 70_000), frame(80_000, 100), frame(90_000, 70_000)];
        let sources: Vec<_> = together(200_000, &large)
            .into_iter()
            .map(|piece| (piece.range, piece.source.is_some()))
            .collect();
        let expected = [
            (0..8, true),
            (8..70_008, true),
            (70_008..90_000, false),
            (90_000..160_000, true),
            (160_000..200_000, false),
        ];
        assert_eq!(sources, expected);
    }
}
