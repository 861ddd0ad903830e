//! Blocks: immutable, named by the digest of their content.
//!
//! A block is a clear header (kind, codec, addresses that it refers to) and a body that names references by
//! their position in the header, so that garbage collection and servers' checks read headers only. The
//! address is the digest of kind, references and *uncompressed* body; the codec says how this copy's body is
//! encoded and is not part of the address. A [`Reference`] limits decompression *before* anything is expanded
//! or hashed.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain};
use std::cell::RefCell;
use std::sync::{Arc, OnceLock};

/// Largest uncompressed body, in bytes.
pub const BODY_BYTES_MAX: u32 = 1 << 20;
/// Most references one block may hold.
pub const REFERENCES_MAX: usize = 8192;

/// The kind of a block's content. The numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum BlockKind {
    /// File data.
    Chunk = 1,
    /// Merkle map leaf.
    MapLeaf = 2,
    /// Merkle map inner node.
    MapInner = 3,
    /// An inode.
    Inode = 4,
    /// An i-handle: a table's root and its change log.
    Table = 5,
    /// Users, devices and groups.
    Membership = 6,
}

impl BlockKind {
    fn domain(self) -> Domain {
        match self {
            BlockKind::Chunk => Domain::Chunk,
            BlockKind::MapLeaf => Domain::MapLeaf,
            BlockKind::MapInner => Domain::MapInner,
            BlockKind::Inode => Domain::Inode,
            BlockKind::Table => Domain::Table,
            BlockKind::Membership => Domain::Membership,
        }
    }
}

/// The encoding of a stored body. The numbers are stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Codec {
    /// Not compressed.
    Plain = 0,
    /// One zstd frame.
    Zstd = 1,
}

/// The digest algorithm of an address. The numbers are stored, so that algorithms can change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
#[borsh(use_discriminant = true)]
#[repr(u8)]
pub enum Algorithm {
    /// Keyed BLAKE3-256 over domain, references and body.
    Blake3 = 1,
}

/// Names one block and bounds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Reference {
    /// The algorithm that made `address`.
    pub algorithm: Algorithm,
    /// Digest of the block.
    pub address: Digest,
    /// Uncompressed body length in bytes.
    pub length: u32,
    /// Key of a sealed body; always `None` until sealing exists.
    pub key: Option<[u8; 32]>,
}

/// A block in messages and in storage; its body may be compressed. Not trusted until [`StoredBlock::open`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct StoredBlock {
    /// The kind of its contents.
    pub kind: BlockKind,
    /// How `body` is encoded.
    pub codec: Codec,
    /// Addresses this block refers to, in the order the body numbers them.
    pub references: Vec<Digest>,
    /// Encoded body.
    pub body: Vec<u8>,
}

/// A block whose address was computed from (or checked against) its plain body.
#[derive(Clone, Debug)]
pub struct Block {
    kind: BlockKind,
    references: Vec<Digest>,
    body: Vec<u8>,
    reference: Reference,
    /// The block parsed as a node of a Merkle map, after the first use as one.
    pub(crate) parsed: OnceLock<Arc<crate::map::Parsed>>,
}

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        self.kind == other.kind
            && self.reference == other.reference
            && self.references == other.references
            && self.body == other.body
    }
}

impl Eq for Block {}

/// Why a block is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The body or reference list is over the limit.
    #[error("block too large: {what} {found}, at most {limit}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The body does not decode, or not to the promised length.
    #[error("block body does not decode to {expected} bytes: {why}")]
    BadBody {
        /// Length in the reference.
        expected: u32,
        /// The reason.
        why: String,
    },
    /// The digest differs from the requested address.
    #[error("block {expected:?} was altered: its digest is {found:?}")]
    WrongDigest {
        /// The requested address.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// The reference has the key of a sealed body, which this program cannot open.
    #[error("block {0:?} is sealed, which needs a newer program")]
    Sealed(Digest),
    /// The block has another kind than the reference to it demands.
    #[error("block {address:?} is a {found:?}, expected a {expected:?}")]
    WrongKind {
        /// Its address.
        address: Digest,
        /// The required kind.
        expected: BlockKind,
        /// The kind that it has.
        found: BlockKind,
    },
}

fn address(key: &DigestKey, kind: BlockKind, references: &[Digest], body: &[u8]) -> Digest {
    let mut hasher = key.hasher(kind.domain()).update(&(references.len() as u32).to_le_bytes());
    for reference in references {
        hasher = hasher.update(&reference.0);
    }
    hasher.update(body).finish()
}

fn check_limits(references: usize, body: u64) -> Result<(), BlockError> {
    if references > REFERENCES_MAX {
        return Err(BlockError::TooLarge {
            what: "references",
            found: references as u64,
            limit: REFERENCES_MAX as u64,
        });
    }
    if body > u64::from(BODY_BYTES_MAX) {
        return Err(BlockError::TooLarge { what: "body bytes", found: body, limit: BODY_BYTES_MAX.into() });
    }
    Ok(())
}

impl Block {
    /// Makes a block from a plain body of this program.
    ///
    /// # Panics
    /// If the body or the references are over the limits: writers must split them before.
    pub fn new(key: &DigestKey, kind: BlockKind, references: Vec<Digest>, mut body: Vec<u8>) -> Block {
        // It may stay in a cache for long, whose limit counts only the bytes used.
        body.shrink_to_fit();
        check_limits(references.len(), body.len() as u64).expect("a writer keeps within the block limits");
        let reference = Reference {
            algorithm: Algorithm::Blake3,
            address: address(key, kind, &references, &body),
            length: body.len() as u32,
            key: None,
        };
        Block { kind, references, body, reference, parsed: OnceLock::new() }
    }

    /// The kind of its contents.
    pub fn kind(&self) -> BlockKind {
        self.kind
    }

    /// The plain body.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Addresses the body refers to by index.
    pub fn references(&self) -> &[Digest] {
        &self.references
    }

    /// The reference that names this block.
    pub fn reference(&self) -> Reference {
        self.reference
    }

    /// The form that travels: compressed (zstd level 1) when that saves at least an eighth.
    pub fn to_stored(&self) -> StoredBlock {
        self.to_stored_at(FAST_LEVEL)
    }

    /// As [`Block::to_stored`], with a given zstd level, 1 to 19: for blocks that are written once and read
    /// often.
    pub fn to_stored_at(&self, level: i32) -> StoredBlock {
        let wanted_bytes = self.body.len() - self.body.len() / 8;
        let packed = (self.body.len() >= 128).then(|| compress(&self.body, level, wanted_bytes)).flatten();
        let (codec, body) = match packed {
            Some(packed) => (Codec::Zstd, packed),
            None => (Codec::Plain, self.body.clone()),
        };
        StoredBlock { kind: self.kind, codec, references: self.references.clone(), body }
    }
}

/// The level for blocks that are compressed as they are written.
const FAST_LEVEL: i32 = 1;

thread_local! {
    /// Making one costs more than compressing a small block with it.
    static COMPRESSOR: RefCell<Option<Packer>> = const { RefCell::new(None) };
    static DECOMPRESSOR: RefCell<Option<zstd::bulk::Decompressor<'static>>> =
        RefCell::new(zstd::bulk::Decompressor::new().ok());
}

/// The compressor of a thread.
struct Packer {
    level: i32,
    compressor: zstd::bulk::Compressor<'static>,
    /// Receives the compressed form first, since its length is known only afterwards; at most as long as a
    /// block.
    packed: Vec<u8>,
}

/// The compressed form, if it is at most `wanted_bytes` long.
fn compress(body: &[u8], level: i32, wanted_bytes: usize) -> Option<Vec<u8>> {
    COMPRESSOR.with_borrow_mut(|packer| {
        if packer.as_ref().is_none_or(|packer| packer.level != level) {
            let compressor = zstd::bulk::Compressor::new(level).ok()?;
            *packer = Some(Packer { level, compressor, packed: Vec::new() });
        }
        let Packer { compressor, packed, .. } = packer.as_mut()?;
        packed.clear();
        packed.reserve(zstd::zstd_safe::compress_bound(body.len()));
        let length = compressor.compress_to_buffer(body, packed).ok()?;
        (length <= wanted_bytes).then(|| packed.as_slice().to_vec())
    })
}

fn expand(body: &[u8], length_max: usize) -> std::io::Result<Vec<u8>> {
    DECOMPRESSOR.with_borrow_mut(|decompressor| match decompressor {
        Some(decompressor) => decompressor.decompress(body, length_max),
        None => zstd::bulk::decompress(body, length_max),
    })
}

impl StoredBlock {
    /// Checks the block against the reference that names it and the required kind.
    ///
    /// # Errors
    /// [`BlockError`]; nothing longer than `reference.length` is ever expanded.
    pub fn open(self, key: &DigestKey, reference: &Reference, kind: BlockKind) -> Result<Block, BlockError> {
        if reference.key.is_some() {
            return Err(BlockError::Sealed(reference.address));
        }
        let block = self.open_any(key, reference.address, reference.length)?;
        if block.kind != kind {
            return Err(BlockError::WrongKind {
                address: reference.address,
                expected: kind,
                found: block.kind,
            });
        }
        if block.reference.length != reference.length {
            return Err(BlockError::BadBody {
                expected: reference.length,
                why: format!("it has {} bytes", block.reference.length),
            });
        }
        Ok(block)
    }

    /// Checks a block of any kind against an address, expanding at most `length_max` bytes. For servers,
    /// which check blocks without knowing what they are for.
    ///
    /// # Errors
    /// [`BlockError`].
    pub fn open_any(self, key: &DigestKey, expected: Digest, length_max: u32) -> Result<Block, BlockError> {
        check_limits(self.references.len(), self.body.len() as u64)?;
        check_limits(0, length_max.into())?;
        let body = match self.codec {
            Codec::Plain if self.body.len() > length_max as usize => {
                return Err(BlockError::BadBody {
                    expected: length_max,
                    why: format!("it has {} bytes", self.body.len()),
                });
            }
            Codec::Plain => self.body,
            Codec::Zstd => expand(&self.body, length_max as usize)
                .map_err(|error| BlockError::BadBody { expected: length_max, why: error.to_string() })?,
        };
        let found = address(key, self.kind, &self.references, &body);
        if found != expected {
            return Err(BlockError::WrongDigest { expected, found });
        }
        let reference =
            Reference { algorithm: Algorithm::Blake3, address: found, length: body.len() as u32, key: None };
        Ok(Block { kind: self.kind, references: self.references, body, reference, parsed: OnceLock::new() })
    }
}

/// A source of verified blocks. Implementations verify with [`StoredBlock::open`] before they return.
pub trait BlockSource {
    /// The key of every digest in this file system; also keys the boundaries of Merkle maps and chunks.
    fn digest_key(&self) -> DigestKey;

    /// Fetches and verifies one block. Blocking.
    ///
    /// # Errors
    /// [`SourceError`]: altered, missing, or the server could not be reached.
    fn fetch(&self, reference: &Reference, kind: BlockKind) -> Result<Arc<Block>, SourceError>;

    /// A hint that these will be fetched soon; may do nothing.
    fn prefetch(&self, _references: &[(Reference, BlockKind)]) {}
}

/// A destination for new blocks.
///
/// No function of this crate fetches from its source a block that it has itself put into its sink, so the two
/// may be separate.
pub trait BlockSink {
    /// The key of every digest in this file system; equal to that of the source used beside this sink.
    fn digest_key(&self) -> DigestKey;

    /// Stores a block and returns its reference.
    fn put(&mut self, block: Block) -> Reference;
}

/// Why a block cannot be fetched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The server's reply is not the requested block: an integrity failure.
    #[error("{1}")]
    Altered(Digest, BlockError),
    /// The server answers that it does not have the block. This may be an attack if the block is still
    /// referenced.
    #[error("block {0:?} is missing at the server")]
    Missing(Digest),
    /// No answer: not an integrity failure.
    #[error("block {0:?} could not be fetched: {1}")]
    Unreachable(Digest, String),
}
