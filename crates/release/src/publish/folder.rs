//! Reads the blocks of a release directory from its packs.

use crate::index::{BlockLocation, Index, key_of};
use crate::{layout, pack};
use holdfast_client::store::MemoryCache;
use holdfast_content::{Block, BlockKind, BlockSource, Reference, SourceError, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use parking_lot::Mutex;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of nodes that are cached.
const NODE_BYTES: usize = 32 << 20;

/// The blocks that an index finds in the packs of a folder.
pub struct FolderBlocks {
    folder: PathBuf,
    key: DigestKey,
    index: Index,
    nodes: Mutex<MemoryCache>,
    /// The pack read last.
    open: Mutex<Option<(u32, Arc<File>)>>,
}

impl FolderBlocks {
    /// The blocks of `index` in `folder`.
    pub fn new(folder: &Path, key: DigestKey, index: Index) -> FolderBlocks {
        FolderBlocks {
            folder: folder.to_owned(),
            key,
            index,
            nodes: Mutex::new(MemoryCache::new(NODE_BYTES)),
            open: Mutex::new(None),
        }
    }

    /// The index of the release directory.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The location of a block.
    pub fn location(&self, address: &Digest) -> Option<BlockLocation> {
        let key = key_of(address);
        let at = self.index.entries.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.index.entries[at].1)
    }

    /// The frame at a location, unchecked.
    ///
    /// # Errors
    /// The operating system's.
    pub fn frame(&self, location: &BlockLocation) -> io::Result<Vec<u8>> {
        let mut frame = vec![0; location.bytes as usize];
        self.pack(location.pack)?.read_exact_at(&mut frame, location.offset.into())?;
        Ok(frame)
    }

    /// A block in its stored form, unverified.
    ///
    /// # Errors
    /// [`SourceError`]: missing or unreadable.
    pub fn stored(&self, address: &Digest) -> Result<StoredBlock, SourceError> {
        let location = self.location(address).filter(|location| !location.is_at_origin());
        let location = location.ok_or(SourceError::Missing(*address))?;
        let frame = match self.frame(&location) {
            Ok(frame) => frame,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SourceError::Missing(*address));
            }
            Err(error) => return Err(SourceError::Unreachable(*address, error.to_string())),
        };
        let stored = pack::Frame::first(&frame).and_then(|(frame, _)| frame.stored());
        stored.ok_or(SourceError::Missing(*address))
    }

    fn pack(&self, number: u32) -> io::Result<Arc<File>> {
        let mut open = self.open.lock();
        match &*open {
            Some((known, file)) if *known == number => Ok(file.clone()),
            _ => {
                let name = self.index.packs[number as usize];
                let file = Arc::new(File::open(self.folder.join(layout::pack(&name.digest)))?);
                *open = Some((number, file.clone()));
                Ok(file)
            }
        }
    }
}

impl BlockSource for FolderBlocks {
    fn digest_key(&self) -> DigestKey {
        self.key
    }

    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError> {
        let address = reference.address;
        if let Some(block) = self.nodes.lock().get(&address)
            && block.kind() == kind
            && block.reference() == *reference
        {
            return Ok(block);
        }
        let block = self
            .stored(&address)?
            .open(&self.key, reference, kind)
            .map_err(|error| SourceError::Altered(address, error))?;
        let block = Arc::new(block);
        if kind != BlockKind::Chunk {
            self.nodes.lock().insert(block.clone());
        }
        Ok(block)
    }
}
