//! Authenticated objects: blocks, Merkle maps, inodes, directories, i-tables and files.
//!
//! Pure: no clock, no randomness, no files, no sockets. Bytes from a peer are untrusted until
//! [`StoredBlock::open`] has checked them against a [`Reference`]; nothing else makes a [`Block`].
#![forbid(unsafe_code)]

mod block;
mod kind;
mod principal;

pub use block::{
    Algorithm, BODY_BYTES_MAX, Block, BlockError, BlockKind, BlockSink, BlockSource, Codec, REFERENCES_MAX,
    Reference, SourceError, StoredBlock,
};
pub use kind::InodeKind;
pub use principal::{DeviceId, GroupId, Handle, PrincipalId, UserId};
