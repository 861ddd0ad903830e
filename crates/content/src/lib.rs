//! Authenticated objects: blocks, Merkle maps, inodes, directories, i-tables and files.
//!
//! Pure: no clock, no randomness, no files, no sockets. Bytes from a peer are untrusted until
//! [`StoredBlock::open`] has checked them against a [`Reference`]; nothing else makes a [`Block`].
#![forbid(unsafe_code)]

mod block;
pub mod catalog;
mod codec;
pub mod directory;
mod error;
mod extent;
pub mod file;
mod inode;
mod kind;
mod live;
mod map;
mod membership;
mod memory;
mod parcel;
mod principal;
mod set_root;
mod table;

pub use block::{
    Algorithm, BODY_BYTES_MAX, Block, BlockError, BlockKind, BlockSink, BlockSource, Codec, REFERENCES_MAX,
    Reference, SourceError, StoredBlock,
};
pub use catalog::CatalogEntry;
pub use directory::{Entry, NAME_BYTES_MAX};
pub use error::{ContentError, Malformed, MapError, Misuse};
pub use extent::{Chunker, Extent, ExtentMap, Extents, FILE_BYTES_MAX, INLINE_EXTENTS_MAX};
pub use inode::{
    ATTRIBUTE_BYTES_MAX, ATTRIBUTE_NAME_BYTES_MAX, Content, INLINE_BYTES_MAX, Inode, TARGET_BYTES_MAX,
};
pub use kind::InodeKind;
pub use live::{
    AllPending, CHANGES_MAX, CHANGES_WANTED_MAX, Change, Listing, LiveMap, Lookup, OperationStatus,
    OperationStatuses, Tag,
};
pub use map::{
    DiffVisitor, KEY_BYTES_MAX, KeyValue, LEVEL_MAX, MapConfig, MapRoot, MapTop, MerkleMap, NodeVisitor,
    Proof, REFERENCES_PER_VALUE_MAX, Shape, VALUE_BYTES_MAX, Value,
};
pub use membership::{
    Device, GROUP_DEPTH_MAX, Group, ID_MAX, MEMBER_NAME_BYTES_MAX, Member, Membership, RESTORES_MAX, Restore,
    User, Warrant,
};
pub use memory::{BlockBatch, MemoryBlocks};
pub use parcel::{
    Base, BaseError, PARCEL_BASES_MAX, PARCEL_BLOCKS_MAX, PARCEL_NODES_MAX, PARCEL_OPENING_BYTES_MAX,
    PARCEL_PLAIN_BYTES_MAX, PARCEL_PREFIX_BYTES_MAX, Parcel, ParcelError, Prefix, Run, parcel_bytes,
};
pub use principal::{DeviceId, GroupId, Handle, PrincipalId, UserId};
pub use set_root::set_root;
pub use table::{
    INLINE_INODE_BYTES_MAX, InodeSlot, NUMBER_MAX, RANGE_COUNT_MAX, Table, Target, inode_change, key_number,
    number_key, target_change,
};
