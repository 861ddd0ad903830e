//! Blocks that clients store and retrieve. They are checked before they are stored, and bounded when they are
//! served.
//!
//! A server does not know what a block is for, but it checks that the bytes match the address. Otherwise one
//! member could store wrong bytes under an address that another member is about to use.

use crate::block_store::{self, BlockStore, stored_bytes};
use crate::refusal::{RequestError, refuse};
use holdfast_content::{BODY_BYTES_MAX, StoredBlock};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::message::{
    ATTACHED_BYTES_MAX, AddressedBlock, BATCH_MAX, MESSAGE_BYTES_MAX, StoreHeader,
};

/// Room, in bytes, for everything in a reply other than blocks.
const ANSWER_SLACK_BYTES: usize = 64 << 10;

pub(crate) fn check_count(count: usize) -> Result<(), RequestError> {
    match count <= BATCH_MAX {
        true => Ok(()),
        false => refuse(format!("{count} blocks or addresses at once; at most {BATCH_MAX}")),
    }
}

/// Checks blocks against their addresses.
pub(crate) fn check(
    given: Vec<AddressedBlock>,
    bytes_max: usize,
) -> Result<Vec<(Digest, StoredBlock)>, RequestError> {
    check_count(given.len())?;
    let bytes: usize = given.iter().map(|given| stored_bytes(&given.block)).sum();
    if bytes > bytes_max {
        return refuse(format!("{bytes} bytes of blocks attached; at most {bytes_max}"));
    }
    let mut checked = Vec::with_capacity(given.len());
    for AddressedBlock { address, block } in given {
        match block.clone().open_any(&DigestKey::WELL_KNOWN, address, BODY_BYTES_MAX) {
            Ok(_) => checked.push((address, block)),
            Err(error) => return refuse(error.to_string()),
        }
    }
    Ok(checked)
}

/// Checks blocks that came with an operation.
pub(crate) fn check_attached(given: Vec<AddressedBlock>) -> Result<Vec<(Digest, StoredBlock)>, RequestError> {
    check(given, ATTACHED_BYTES_MAX)
}

/// Blocks for a reply.
pub(crate) struct RetrievedBlocks {
    pub(crate) blocks: Vec<Option<(StoreHeader, AddressedBlock)>>,
    pub(crate) bytes: usize,
}

/// Loads blocks in the given sequence until a message is full or they exceed `bytes_max`, but at least one. A
/// damaged block counts as missing.
pub(crate) fn retrieve(
    store: &dyn BlockStore,
    file_system: Digest,
    addresses: &[Digest],
    bytes_max: usize,
) -> Result<RetrievedBlocks, RequestError> {
    check_count(addresses.len())?;
    let loaded = store.load(file_system, addresses, bytes_max.min(MESSAGE_BYTES_MAX - ANSWER_SLACK_BYTES))?;
    // The client requests the rest again.
    let mut blocks = Vec::with_capacity(loaded.len());
    let mut bytes = 0;
    for (loaded, address) in loaded.into_iter().zip(addresses) {
        let found = block_store::sound(loaded, file_system, address);
        blocks.push(found.map(|(header, block)| {
            bytes += stored_bytes(&block);
            (header, AddressedBlock { address: *address, block })
        }));
    }
    Ok(RetrievedBlocks { blocks, bytes })
}
