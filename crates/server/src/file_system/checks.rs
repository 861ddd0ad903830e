//! Checks of an operation that need no lock: signatures, the membership it brings, the tables it names.

use crate::block_store::{self, BlockStore};
use crate::blocks;
use crate::refusal::{RequestError, refuse};
use crate::resources::Resources;
use holdfast_content::{
    BODY_BYTES_MAX, Block, BlockKind, DeviceId, Membership, PrincipalId, Reference, StoredBlock,
};
use holdfast_crypto::{Digest, DigestKey, PublicKey};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::message::ServerKeys;
use holdfast_protocol::signed::{Signable, Signed, Verified};
use holdfast_protocol::structure::Structure;

/// Most server keys in a list.
const SERVER_KEYS_MAX: usize = 64;

/// Blocks whose addresses have been checked.
pub(super) type Blocks = Vec<(Digest, StoredBlock)>;

/// The sender of a request: a device of the membership in force, and its key.
#[derive(Clone, Copy)]
pub(crate) struct Author {
    pub(crate) device: DeviceId,
    pub(crate) key: PublicKey,
}

/// Checks that a value is signed by the author of the request.
pub(super) fn verified<T: Signable>(signed: Signed<T>, author: Author) -> Result<Verified<T>, RequestError> {
    match signed.verified(author.key) {
        Some(verified) => Ok(verified),
        None => refuse("the signature is not that of this session's key"),
    }
}

/// Checks that a list of server keys is signed by the superuser and contains this server's own key.
pub(super) fn check_server_keys(
    list: &Signed<ServerKeys>,
    file_system: Digest,
    superuser: &PublicKey,
    own: &PublicKey,
) -> Result<(), RequestError> {
    if list.value.file_system != file_system || !list.verify(superuser) {
        return refuse("the list of server keys is not this file system's, or not signed by its superuser");
    }
    if list.value.keys.len() > SERVER_KEYS_MAX {
        return refuse(format!("more than {SERVER_KEYS_MAX} server keys"));
    }
    if !list.value.keys.contains(own) {
        return refuse("the list leaves this server's own key out: no client could reach it any more");
    }
    Ok(())
}

/// The membership that an operation brings, from blocks that came with the request or were stored before.
/// `None` if it brings none.
pub(super) fn announced_membership(
    resources: &Resources,
    id: Digest,
    certificate: &Certificate,
    given: &Blocks,
) -> Result<Option<Membership>, RequestError> {
    let Some(reference) = certificate.new_members() else { return Ok(None) };
    let block = open_block(&*resources.blocks, id, &reference, BlockKind::Membership, given)?;
    match Membership::from_block(&block) {
        Ok(membership) => Ok(Some(membership)),
        Err(error) => refuse(error.to_string()),
    }
}

fn open_block(
    store: &dyn BlockStore,
    id: Digest,
    reference: &Reference,
    kind: BlockKind,
    given: &Blocks,
) -> Result<Block, RequestError> {
    let attached = given.iter().find(|(address, _)| *address == reference.address);
    let block = match attached {
        Some((_, block)) => Some(block.clone()),
        None => block_store::load_one(store, id, reference.address)?,
    };
    let Some(block) = block else { return refuse(format!("block {} was never stored", reference.address)) };
    if reference.length > BODY_BYTES_MAX {
        return refuse("a reference over the block limit");
    }
    block.open(&DigestKey::WELL_KNOWN, reference, kind).or_else(|error| refuse(error.to_string()))
}

/// Checks that new tables are stored and are tables. Those that did not come with the request are renewed, so
/// that garbage collection does not remove them.
pub(super) fn check_handles(
    resources: &Resources,
    id: Digest,
    structure: &Structure,
    former: Option<&Structure>,
    given: &Blocks,
) -> Result<(), RequestError> {
    let mut stored_before = Vec::new();
    for (principal, handle) in &structure.handles {
        let before = former.and_then(|former| former.handles.get(principal));
        if before.is_some_and(|before| before.reference == handle.reference) {
            // This table was in force until now, and so is a root. An operation that only reads changes no
            // table.
            continue;
        }
        let expected = match principal {
            PrincipalId::Members => BlockKind::Membership,
            _ => BlockKind::Table,
        };
        let address = handle.reference.address;
        match given.iter().find(|(attached, _)| *attached == address) {
            Some((_, block)) if block.kind == expected => {}
            Some((_, block)) => {
                return refuse(format!("the table of {principal} is a {:?} block", block.kind));
            }
            None => stored_before.push(address),
        }
    }
    if stored_before.is_empty() {
        return Ok(());
    }
    blocks::check_count(stored_before.len())?;
    let here = resources.blocks.renew(id, &stored_before, resources.clock.wall_ns())?;
    match stored_before.iter().zip(here).find(|(_, here)| !here) {
        Some((address, _)) => refuse(format!("table {address} was never stored")),
        None => Ok(()),
    }
}
