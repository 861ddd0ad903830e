//! What is known of a file's earlier version, and what that saves when it is written or read again.

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
    /// Its path, as far as it is known.
    pub path: Vec<u8>,
    /// Its content.
    pub content: Content,
}

/// If more than this is missing of a file, it is fetched as it is read, as likely not all of it is.
const WHOLE_BYTES_MAX: u64 = 16 << 20;
/// No features are taken of larger files: their names and chunks must be enough.
const FEATURED_BYTES_MAX: u64 = 16 << 20;

/// Over a fast link, files of more chunks are not compared.
const FAST_CHUNKS_MAX: u64 = 1024;

/// One version of a file, as far as it can be told without asking the server.
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

/// Blocks that are here; asks nobody. Notes the nodes of maps that it is asked for.
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
    /// Most chunks of a file that are listed: over a fast link that gains so little that it must cost nothing.
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

    /// Remembers a version of a file.
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

    /// Features of a version, from the chunks that are in memory alone.
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

    /// An earlier version of a file that is about to be read, if it is here and another one than the present.
    fn earlier(&self, handle: &Handle, path: &[u8], root: Option<Digest>) -> Option<Version> {
        let version = Version::from(self.index.lock().earlier(handle, path)?);
        (root.is_none() || version.root != root).then_some(version)
    }

    /// Before a file is read over a slow link: fetches what is new since its earlier version, if that is here as a whole.
    /// Returns the earlier version.
    fn expect_read(&self, handle: &Handle, path: &[u8], map: &ExtentMap, level: i8) -> Version {
        let root = root_of(map);
        let before = self.earlier(handle, path, root.map(|root| root.address)).unwrap_or_default();
        if let Some(root) = root.filter(|root| !self.is_near(&root.address)) {
            let all: Vec<Digest> =
                before.nodes.iter().chain(&before.chunks).map(|(address, _)| *address).collect();
            // The server may copy from whatever the older version has, so all of it must be here.
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

    /// Over a link that is fast, but far, what waits for nothing is the map alone: all its levels in one request.
    fn fetch_map(&self, map: &ExtentMap) {
        if let Some(root) = root_of(map).filter(|root| !self.is_near(&root.address)) {
            self.fetch_tree(&root, &[], &[], TreeData::Never, self.map_bytes(map.len()), 1);
        }
    }

    /// Notes what the chunks that are not here resemble. Returns those of a file of which not much is missing.
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
    /// A file's content is about to be read: over a slow link, what resembles an earlier version of it is fetched as
    /// the difference, ahead of the reads. Only a hint.
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
            // Only a hint: a read that needs the nodes reports what is wrong with them.
            let _ = map.visit(self, 0..u64::MAX, &mut |_, _| Ok(true));
        }
        let wanted = self.shared.expect(map, before);
        self.prefetch(&wanted);
    }

    /// Small files are likely to be read soon: what is not here of them is fetched together, each against its earlier
    /// version where the link is slow. Only a hint; does not wait.
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

    /// A version of a file was published or read here: its chunks are what a later one is compared with. Done aside.
    pub fn note_version(&self, handle: Handle, path: Vec<u8>, content: &Content, size: u64) {
        if self.shared.transfer.mode == TransferMode::Full && map_of(content).is_some() {
            let _ =
                self.lanes.keep.try_send(StoreTask::Version { handle, path, content: content.clone(), size });
        }
    }
}

/// Work that a background thread does while nobody waits for it.
pub(super) enum StoreTask {
    /// A block for the persistent cache.
    Block(Digest, holdfast_content::StoredBlock),
    /// Blocks that were sent, for the persistent cache.
    Blocks(Vec<AddressedBlock>),
    /// Tells when everything before it has been done.
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
