//! Earlier versions of files, and how they save bytes when a file is written or read again.

use super::VerifiedStore;
use super::features::{Features, Sampler};
use super::fetch::Shared;
use super::index::{FILE_CHUNKS_MAX, FileVersion};
use super::piece_matches::Piece;
use super::transfer::TransferMode;
use holdfast_content::{
    Block, BlockKind, BlockSource, Content, ContentError, ExtentMap, Extents, Handle, Reference, SourceError,
};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{AddressedBlock, TreeData};
use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

/// A file that is likely to be read soon.
pub struct ReadAheadFile {
    /// Its inode number.
    pub ino: u64,
    /// The file.
    pub handle: Handle,
    /// Its path; empty if unknown.
    pub path: Vec<u8>,
    /// Its content.
    pub content: Content,
}

/// If more bytes of a file than this are missing, they are fetched as they are read, since probably not all
/// of them are needed.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// Features are not computed for larger files, in bytes; they are found only by names and chunks.
const FEATURED_BYTES_MAX: u64 = 16 << 20;

/// Over a fast link, files of more chunks than this are not compared.
const FAST_CHUNKS_MAX: u64 = 1024;

/// One version of a file, as far as it can be determined without asking the server.
#[derive(Clone, Default)]
pub(super) struct Version {
    pub(super) root: Option<Digest>,
    pub(super) chunks: Vec<Piece>,
    pub(super) nodes: Vec<Piece>,
}

impl From<&FileVersion> for Version {
    fn from(seen: &FileVersion) -> Version {
        Version { root: seen.root, chunks: seen.chunks.clone(), nodes: seen.nodes.clone() }
    }
}

/// Blocks on this machine; never asks the server. Records the nodes of maps that are read.
struct LocalBlocks<'a> {
    shared: &'a Shared,
    nodes: RefCell<Vec<Piece>>,
}

impl BlockSource for LocalBlocks<'_> {
    fn digest_key(&self) -> DigestKey {
        self.shared.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let elsewhere = || SourceError::Unreachable(reference.address, "it is not here".to_owned());
        let block = self.shared.local(reference, kind)?.ok_or_else(elsewhere)?;
        if kind != BlockKind::Chunk {
            self.nodes.borrow_mut().push((reference.address, reference.length));
        }
        Ok(block)
    }
}

fn map_of(content: &Content) -> Option<&ExtentMap> {
    match content {
        Content::Extents(map) => Some(map),
        _ => None,
    }
}

fn root_of(map: &ExtentMap) -> Option<Reference> {
    match &map.extents {
        Extents::Map(root) => root.reference(),
        Extents::Inline(_) => None,
    }
}

impl Shared {
    /// Most chunks of a file that are listed. Over a fast link this gains little, so it must cost next to
    /// nothing.
    fn listed_max(&self) -> u64 {
        match self.is_slow() {
            true => FILE_CHUNKS_MAX as u64,
            false => FAST_CHUNKS_MAX,
        }
    }

    fn is_slow(&self) -> bool {
        self.delta_up().is_some() || self.delta_down().is_some()
    }

    /// The chunks and nodes of a file, if its whole map is on this machine.
    pub(super) fn version(&self, map: &ExtentMap) -> Option<Version> {
        if map.len() > self.listed_max() {
            return None;
        }
        let here = LocalBlocks { shared: self, nodes: RefCell::default() };
        let mut chunks: Vec<Piece> = Vec::new();
        let visited: Result<(), ContentError> = map.visit(&here, 0..u64::MAX, &mut |_, extent| {
            let piece = (extent.reference.address, extent.reference.length);
            if chunks.last() != Some(&piece) {
                chunks.push(piece);
            }
            Ok(true)
        });
        visited.ok()?;
        let mut seen = HashSet::new();
        let mut nodes = here.nodes.into_inner();
        nodes.retain(|(address, _)| seen.insert(*address));
        Some(Version { root: root_of(map).map(|root| root.address), chunks, nodes })
    }

    /// Stores a version of a file in the index.
    fn remember(&self, handle: Handle, path: Vec<u8>, content: &Content, size: u64) {
        let Some(map) = map_of(content) else { return };
        let Some(version) = self.version(map) else { return };
        let features = match size <= FEATURED_BYTES_MAX && self.is_slow() {
            true => self.features(&version),
            false => Sampler::new().finish(),
        };
        let Version { root, chunks, nodes } = version;
        self.index.lock().remember(FileVersion { handle, path, root, chunks, nodes, features });
    }

    /// The features of a version, computed only from chunks in memory.
    fn features(&self, version: &Version) -> Features {
        let mut sampler = Sampler::new();
        for (address, _) in &version.chunks {
            let block = self.memory.lock().get(address);
            if let Some(block) = block {
                sampler.add(block.body());
            }
        }
        sampler.finish()
    }

    /// An earlier version of a file that is about to be read, if the index has one that differs from the
    /// present one.
    fn earlier(&self, handle: &Handle, path: &[u8], root: Option<Digest>) -> Option<Version> {
        let version = Version::from(self.index.lock().earlier(handle, path)?);
        (root.is_none() || version.root != root).then_some(version)
    }

    /// Called before a file is read over a slow link: fetches what is new since its earlier version, if that
    /// is completely on this machine. Returns the earlier version.
    fn expect_read(&self, handle: &Handle, path: &[u8], map: &ExtentMap, level: i8) -> Version {
        let root = root_of(map);
        let before = self.earlier(handle, path, root.map(|root| root.address)).unwrap_or_default();
        if let Some(root) = root.filter(|root| !self.is_near(&root.address)) {
            let all: Vec<Digest> =
                before.nodes.iter().chain(&before.chunks).map(|(address, _)| *address).collect();
            // The server may use any block of the older version as a base, so all of them must be here.
            let whole = before.root.filter(|_| all.iter().all(|address| self.is_near(address)));
            match whole {
                Some(older) => {
                    self.fetch_tree(&root, &[older], &all, TreeData::IfRelated, self.tree_bytes(), level)
                }
                None => self.fetch_tree(&root, &[], &[], TreeData::Never, self.map_bytes(map.len()), level),
            }
        }
        before
    }

    /// Fetches a file's whole map with one request, over a link that is fast but long: its levels would
    /// otherwise take one round trip each.
    fn fetch_map(&self, map: &ExtentMap) {
        if let Some(root) = root_of(map).filter(|root| !self.is_near(&root.address)) {
            self.fetch_tree(&root, &[], &[], TreeData::Never, self.map_bytes(map.len()), 1);
        }
    }

    /// Notes which older blocks the missing chunks resemble. Returns the missing chunks, if they are not too
    /// many bytes.
    fn expect(&self, map: &ExtentMap, before: Version) -> Vec<(Reference, BlockKind)> {
        let Some(present) = self.version(map) else { return Vec::new() };
        let missing: Vec<Piece> =
            present.chunks.iter().filter(|(address, _)| !self.is_near(address)).copied().collect();
        if missing.is_empty() {
            return Vec::new();
        }
        let candidates = Arc::new(self.base_candidates(&self.earlier_versions(before, &present), &present));
        if !candidates.lacks_chunks() {
            let mut expected = self.expected.lock();
            for (address, _) in &missing {
                expected.put(*address, candidates.clone());
            }
        }
        let bytes: u64 = missing.iter().map(|(_, length)| u64::from(*length)).sum();
        if bytes > WHOLE_BYTES_MAX {
            return Vec::new();
        }
        let missing: HashSet<Digest> = missing.into_iter().map(|(address, _)| address).collect();
        let here = LocalBlocks { shared: self, nodes: RefCell::default() };
        let extents = map.extents_in(&here, 0..u64::MAX).unwrap_or_default();
        let wanted = extents.iter().map(|(_, extent)| extent.reference);
        wanted.filter(|one| missing.contains(&one.address)).map(|one| (one, BlockKind::Chunk)).collect()
    }
}

impl VerifiedStore {
    /// Called before a file's content is read. Over a slow link, content that resembles an earlier version is
    /// fetched as the difference, ahead of the reads. This is only an optimisation.
    pub fn prepare_read(&self, handle: &Handle, path: &[u8], content: &Content) {
        let Some(map) = map_of(content) else { return };
        let Some(level) = self.shared.delta_down() else {
            if self.shared.is_far() {
                self.shared.fetch_map(map);
            }
            return;
        };
        let before = self.shared.expect_read(handle, path, map, level);
        if self.shared.version(map).is_none() && map.len() <= self.shared.listed_max() {
            // This is only a hint: a read that needs the nodes reports an error itself.
            let _ = map.visit(self, 0..u64::MAX, &mut |_, _| Ok(true));
        }
        let wanted = self.shared.expect(map, before);
        self.prefetch(&wanted);
    }

    /// Fetches small files that are likely to be read soon: their missing blocks together, packed against
    /// earlier versions if the link is slow. This is only an optimisation; does not wait.
    pub fn read_ahead(&self, files: &[ReadAheadFile]) {
        let is_slow = self.shared.delta_down().is_some();
        let mut wanted = Vec::new();
        for file in files {
            let Some(map) = map_of(&file.content).filter(|map| root_of(map).is_none()) else { continue };
            let missing = if is_slow {
                let before = self.shared.earlier(&file.handle, &file.path, None).unwrap_or_default();
                self.shared.expect(map, before)
            } else {
                let here = LocalBlocks { shared: &self.shared, nodes: RefCell::default() };
                let extents = map.extents_in(&here, 0..u64::MAX).unwrap_or_default();
                extents.iter().map(|(_, extent)| (extent.reference, BlockKind::Chunk)).collect()
            };
            wanted.extend(missing.into_iter().map(|(reference, kind)| (reference, kind, file.ino)));
        }
        self.prefetch_for(&wanted);
    }

    /// Notes a version of a file that was published or read here, to compare later ones with it. The work is
    /// done in the background.
    pub fn note_version(&self, handle: Handle, path: Vec<u8>, content: &Content, size: u64) {
        if self.shared.transfer.mode == TransferMode::Full && map_of(content).is_some() {
            let _ =
                self.lanes.keep.try_send(StoreTask::Version { handle, path, content: content.clone(), size });
        }
    }
}

/// Work for the background thread.
pub(super) enum StoreTask {
    /// A block for the persistent cache.
    Block(Digest, holdfast_content::StoredBlock),
    /// Blocks that were sent, for the persistent cache.
    Blocks(Vec<AddressedBlock>),
    /// Signals that everything before it has been done.
    Settle(SyncSender<()>),
    /// A version of a file for the index.
    Version { handle: Handle, path: Vec<u8>, content: Content, size: u64 },
}

impl StoreTask {
    pub(super) fn carry_out(self, shared: &Shared) {
        match self {
            StoreTask::Block(address, block) => shared.cache(address, &block),
            StoreTask::Blocks(blocks) => {
                blocks.iter().for_each(|block| shared.cache(block.address, &block.block));
            }
            StoreTask::Settle(done) => {
                let _ = done.try_send(());
            }
            StoreTask::Version { handle, path, content, size } => {
                shared.remember(handle, path, &content, size)
            }
        }
    }
}
