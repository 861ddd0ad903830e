//! Finds blocks by address (the paper's `getdata`) through the index that `root` names, and the blocks that
//! paths need through its hints.
//!
//! Neither index nor hints are trusted: wrong ones lead to wrong bytes, which the client detects.

use super::files::{Content, Files, ReadError, ServedFile, Wait};
use super::frames::{Frame, Frames};
use super::part::FilePart;
use crate::hints::{self, Hints, NODE_BYTES};
use crate::index::{Head, Key, Sizes, key_of};
use crate::mirror::OBJECTS_ANSWER_BYTES_MAX;
use crate::record::RootFile;
use crate::{form, layout, pack};
use bytes::{Bytes, BytesMut};
use holdfast_crypto::Digest;
use hyper::header::HeaderValue;
use parking_lot::Mutex;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Most bytes that are sent for the paths of one request.
const ANSWER_BYTES_MAX: u64 = 128 << 10;
/// Initial capacity for an answer, in bytes.
const ANSWER_BYTES_USUAL: usize = 16 << 10;
/// Most bytes of an index's head, or of the directories in hints, in memory: enough for a billion blocks and
/// millions of directories.
const HEAD_BYTES_MAX: u64 = 64 << 20;

/// The blocks of the release that is served now.
pub struct Objects {
    now: Mutex<Option<Arc<ServedIndex>>>,
    /// Most bytes of memory for small blocks.
    bytes_max: u64,
}

/// The index of one record.
struct ServedIndex {
    /// The entity tag of the `root` file that names this index.
    root: HeaderValue,
    file: Arc<ServedFile>,
    head: Head,
    hints: Option<ServedHints>,
    frames: Frames,
}

/// The hints of one record.
struct ServedHints {
    file: Arc<ServedFile>,
    sizes: hints::Sizes,
    directories: Bytes,
}

/// A block of the release.
pub enum ObjectLocation {
    /// This server has the block.
    Here(FilePart),
    /// The block is data that the release's origin has.
    AtOrigin,
}

/// Where a block's frame is.
enum FrameLocation {
    Frame(Frame),
    AtOrigin,
}

impl Objects {
    /// Caches at most `bytes_max` of small blocks in memory.
    pub fn new(bytes_max: u64) -> Objects {
        Objects { now: Mutex::default(), bytes_max }
    }

    /// The block with this address; `None` if the release has none.
    ///
    /// # Errors
    /// [`ReadError`]; also if `root` or the index is damaged, or the index is missing.
    pub fn find(
        &self,
        files: &Files,
        address: &Digest,
        wait: Wait,
    ) -> Result<Option<ObjectLocation>, ReadError> {
        let indexed = self.indexed(files, wait)?;
        let Frame { found, range } = match indexed.frame(files, &key_of(address), wait)? {
            Some(FrameLocation::Frame(frame)) => frame,
            Some(FrameLocation::AtOrigin) => return Ok(Some(ObjectLocation::AtOrigin)),
            None => return Ok(None),
        };
        let block = range.start + (pack::HEADER_BYTES as u64).min(range.end - range.start)..range.end;
        let etag = HeaderValue::try_from(format!("\"{address}\"")).map_err(io::Error::other)?;
        Ok(Some(ObjectLocation::Here(FilePart::of(found, block, etag))))
    }

    /// Frames of the given blocks that this server has, as many as fit, and the addresses of those that the
    /// release has at its origin. Blocks that are not part of the release are left out.
    ///
    /// # Errors
    /// [`ReadError`], as for [`Objects::find`].
    pub fn frames(&self, files: &Files, addresses: &[Digest]) -> Result<(BytesMut, Vec<Digest>), ReadError> {
        let indexed = self.indexed(files, Wait::Yes)?;
        let (mut here, mut at_origin) = (BytesMut::new(), Vec::new());
        for address in addresses {
            match indexed.frame(files, &key_of(address), Wait::Yes)? {
                Some(FrameLocation::AtOrigin) => at_origin.push(*address),
                Some(FrameLocation::Frame(Frame { found, range })) => {
                    let length = (range.end - range.start) as usize;
                    if here.is_empty() || here.len() + length <= OBJECTS_ANSWER_BYTES_MAX {
                        here.extend_from_slice(&found.read(range, Wait::Yes)?);
                    }
                }
                None => {}
            }
        }
        Ok((here, at_origin))
    }

    /// The frames (see [`crate::pack`]) of blocks that the look-up of `paths` needs, each once, for as many
    /// paths as fit into [`ANSWER_BYTES_MAX`]. `None` if the release has no hints.
    ///
    /// # Errors
    /// [`ReadError`], as for [`Objects::find`].
    pub fn paths(&self, files: &Files, paths: &[&[u8]], wait: Wait) -> Result<Option<Bytes>, ReadError> {
        let indexed = self.indexed(files, wait)?;
        let Some(hinted) = &indexed.hints else { return Ok(None) };
        let node = |number: u32| -> Result<[u8; NODE_BYTES], ReadError> {
            let at = hinted.sizes.nodes_at() + u64::from(number) * NODE_BYTES as u64;
            let bytes = hinted.file.read(at..at + NODE_BYTES as u64, wait)?;
            bytes.first_chunk().copied().ok_or_else(|| broken("hints are cut short"))
        };
        let hints = Hints { sizes: hinted.sizes, directories: &hinted.directories, node: &node };
        let mut sent = HashSet::new();
        let mut answer = BytesMut::with_capacity(ANSWER_BYTES_USUAL);
        for path in paths {
            for key in hints.blocks_of(path)? {
                if !sent.insert(key) {
                    continue;
                }
                // If hints and index disagree about a block, it is left out; the client will ask for it.
                let Some(FrameLocation::Frame(Frame { found, range })) = indexed.frame(files, &key, wait)?
                else {
                    continue;
                };
                if answer.len() as u64 + (range.end - range.start) > ANSWER_BYTES_MAX {
                    return Ok(Some(answer.freeze()));
                }
                answer.extend_from_slice(&found.read(range, wait)?);
            }
        }
        Ok(Some(answer.freeze()))
    }

    fn indexed(&self, files: &Files, wait: Wait) -> Result<Arc<ServedIndex>, ReadError> {
        let Some(root) = files.get(layout::ROOT, wait)? else { return Err(broken("there is no root")) };
        let known = self.now.lock().clone();
        if let Some(known) = known.filter(|known| known.root == root.etag) {
            return Ok(known);
        }
        if wait == Wait::No {
            return Err(ReadError::WouldWait);
        }
        let Content::Memory(bytes) = &root.content else { return Err(broken("root is too long")) };
        let named = form::read::<RootFile>(bytes).map_err(|error| broken(&error.to_string()))?;
        let location = named.index;
        let Some(file) = files.get(&layout::index(&location.digest), wait)? else {
            return Err(broken("the index that root names is not there"));
        };
        let bad = |error: crate::index::BadIndex| broken(&error.to_string());
        let fixed = (crate::index::FIXED_BYTES as u64).min(file.bytes);
        let sizes = Sizes::read(&file.read(0..fixed, wait)?).map_err(bad)?;
        if sizes.bytes() != file.bytes || sizes.head_bytes() > HEAD_BYTES_MAX {
            return Err(broken("the index is too long, or not as long as it says"));
        }
        let head = Head::read(&file.read(0..sizes.head_bytes(), wait)?).map_err(bad)?;
        // Without hints, paths cannot be looked up, but blocks can.
        let hints = named.hints.and_then(|location| match ServedHints::open(files, &location.digest, wait) {
            Ok(hints) => Some(hints),
            Err(ReadError::Failed(error)) => {
                tracing::warn!(%error, "the hints for paths are of no use");
                None
            }
            Err(ReadError::WouldWait) => None,
        });
        let frames = Frames::new(self.bytes_max);
        let indexed = Arc::new(ServedIndex { root: root.etag.clone(), file, head, hints, frames });
        *self.now.lock() = Some(indexed.clone());
        Ok(indexed)
    }
}

impl ServedIndex {
    /// The frame of a block, from memory if possible.
    fn frame(&self, files: &Files, key: &Key, wait: Wait) -> Result<Option<FrameLocation>, ReadError> {
        if let Some(frame) = self.frames.get(key) {
            return Ok(Some(FrameLocation::Frame(frame)));
        }
        match self.lying(files, key, wait)? {
            Some(FrameLocation::Frame(frame)) => {
                Ok(Some(FrameLocation::Frame(self.frames.keep(*key, frame, wait)?)))
            }
            other => Ok(other),
        }
    }

    /// Finds the frame of a block through the index.
    fn lying(&self, files: &Files, key: &Key, wait: Wait) -> Result<Option<FrameLocation>, ReadError> {
        let range = self.head.range_of(key);
        if range.is_empty() {
            return Ok(None);
        }
        let entries = self.file.read(range, wait)?;
        let Some(location) = self.head.find(&entries, key) else { return Ok(None) };
        if location.is_at_origin() {
            return Ok(Some(FrameLocation::AtOrigin));
        }
        let pack = &self.head.packs[location.pack as usize].digest;
        let Some(file) = files.get(&layout::pack(pack), wait)? else {
            return Err(broken("the index names a pack that is not there"));
        };
        let range = u64::from(location.offset)..u64::from(location.offset) + u64::from(location.bytes);
        match range.end <= file.bytes {
            true => Ok(Some(FrameLocation::Frame(Frame { found: file, range }))),
            false => Err(broken("a pack is shorter than the index says")),
        }
    }
}

impl ServedHints {
    fn open(files: &Files, digest: &Digest, wait: Wait) -> Result<ServedHints, ReadError> {
        let Some(file) = files.get(&layout::hints(digest), wait)? else {
            return Err(broken("they are not there"));
        };
        let fixed = hints::FIXED_BYTES as u64;
        let sizes = file.read(0..fixed.min(file.bytes), wait)?;
        let sizes = hints::Sizes::read(&sizes).map_err(|error| broken(&error.to_string()))?;
        if sizes.bytes() != file.bytes || sizes.nodes_at() > HEAD_BYTES_MAX {
            return Err(broken("they are too long, or not as long as they say"));
        }
        let directories = file.read(fixed..sizes.nodes_at(), wait)?;
        Ok(ServedHints { file, sizes, directories })
    }
}

fn broken(why: &str) -> ReadError {
    ReadError::Failed(io::Error::new(io::ErrorKind::InvalidData, why.to_owned()))
}
