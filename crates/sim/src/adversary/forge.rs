//! Forgeries: altered blocks, and structures signed by a key that the adversary has.

use super::scene::{Scene, key_of};
use super::stage::{LieCounter, Stage};
use super::world::Liar;
use holdfast_content::{
    BODY_BYTES_MAX, Block, BlockKind, Codec, DeviceId, Membership, PrincipalId, StoredBlock, UserId,
};
use holdfast_crypto::{Digest, DigestKey, PublicKey};
use holdfast_protocol::message::{AddressedBlock, Request, Response, StoreHeader, ViewReply};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::{HandleVersion, LogHead, Structure, View};
use std::sync::Arc;

/// The blocks that a lie is about.
pub type BlockSelector = fn(&StoredBlock) -> bool;
/// The change of such a block; `None` means that the server says it does not have it.
pub type Change = fn(&AddressedBlock) -> Option<StoredBlock>;

/// Data of files.
pub fn is_data(block: &StoredBlock) -> bool {
    block.kind == BlockKind::Chunk
}

/// Everything else.
pub fn is_metadata(block: &StoredBlock) -> bool {
    block.kind != BlockKind::Chunk
}

/// Nodes of directories and other maps.
pub fn is_directory(block: &StoredBlock) -> bool {
    block.kind == BlockKind::MapLeaf
}

/// The block with another body.
fn plain(block: &AddressedBlock, change: impl FnOnce(&mut Vec<u8>)) -> Option<StoredBlock> {
    let true_one = block.block.clone();
    let opened = true_one.clone().open_any(&DigestKey::WELL_KNOWN, block.address, BODY_BYTES_MAX).ok()?;
    let mut body = opened.body().to_vec();
    change(&mut body);
    Some(StoredBlock { codec: Codec::Plain, body, ..true_one })
}

/// The block with one bit flipped.
pub fn flip(block: &AddressedBlock) -> Option<StoredBlock> {
    plain(block, |body| {
        if let Some(last) = body.last_mut() {
            *last ^= 0x20;
        }
    })
}

/// Another valid block of the same kind.
pub fn swap(block: &AddressedBlock) -> Option<StoredBlock> {
    let others = Scene::get().blocks.iter();
    let mut others = others.filter(|other| other.block.kind == block.block.kind);
    others.find(|other| other.address != block.address).map(|other| other.block.clone())
}

/// The first half of the block.
pub fn cut(block: &AddressedBlock) -> Option<StoredBlock> {
    plain(block, |body| body.truncate(body.len() / 2))
}

/// A few bytes that expand to a gigabyte.
pub fn bomb(block: &AddressedBlock) -> Option<StoredBlock> {
    let body = crate::evil::zstd_of_zeroes(1 << 30);
    Some(StoredBlock { codec: Codec::Zstd, body, ..block.block.clone() })
}

/// No block.
pub fn withhold(_block: &AddressedBlock) -> Option<StoredBlock> {
    None
}

/// A leaf with fewer entries: an older one if there is one, else its beginning.
pub fn omit(block: &AddressedBlock) -> Option<StoredBlock> {
    let shorter = |other: &&AddressedBlock| {
        other.block.kind == block.block.kind
            && other.address != block.address
            && other.block.body.len() < block.block.body.len()
    };
    match Scene::get().blocks.iter().find(shorter) {
        Some(other) => Some(other.block.clone()),
        None => cut(block),
    }
}

/// A leaf that has its last entries twice.
pub fn double(block: &AddressedBlock) -> Option<StoredBlock> {
    plain(block, |body| body.extend_from_within(body.len() / 2..))
}

/// Alters blocks on their way to a client, in whatever way they are requested.
pub fn blocks(lies_told: &LieCounter, which: BlockSelector, change: Change) -> Liar {
    let lies_told = lies_told.clone();
    let alter = move |found: Option<(StoreHeader, AddressedBlock)>| {
        let (header, block) = found?;
        if !which(&block.block) {
            return Some((header, block));
        }
        lies_told.one();
        let AddressedBlock { address, .. } = block;
        change(&block).map(|block| (header, AddressedBlock { address, block }))
    };
    Arc::new(move |request, honest| {
        Ok(match honest(request) {
            Response::Blocks(blocks) => Response::Blocks(blocks.into_iter().map(&alter).collect()),
            // Blocks that come unasked would hide the block that is to be altered.
            Response::View(mut reply) => {
                reply.blocks.clear();
                Response::View(reply)
            }
            Response::LeasedView(mut reply, grant) => {
                reply.blocks.clear();
                Response::LeasedView(reply, grant)
            }
            // Then the client asks block by block.
            Response::Tree { .. } => Response::Tree { parcel: None, complete: false },
            other => other,
        })
    })
}

/// Changes views, and serves a block of the adversary's own besides.
pub fn serve(
    stage: &Stage,
    victim: usize,
    block: Option<AddressedBlock>,
    change: impl Fn(&mut ViewReply) + Send + Sync + 'static,
) {
    let views = super::stage::about_views(&stage.lies_told, change);
    stage.lie(
        victim,
        Arc::new(move |request, honest| {
            let asked = match &request {
                Request::Retrieve(addresses) => addresses.clone(),
                _ => Vec::new(),
            };
            Ok(match views(request, honest)? {
                Response::Blocks(mut found) => {
                    for (slot, address) in found.iter_mut().zip(asked) {
                        if let Some(block) = block.as_ref().filter(|block| block.address == address) {
                            let header = StoreHeader { owner: DeviceId(0), stored_ns: 0 };
                            *slot = Some((header, block.clone()));
                        }
                    }
                    Response::Blocks(found)
                }
                other => other,
            })
        }),
    );
}

/// Exchanges pending operations, and their positions in the log.
pub fn reorder(view: &mut View) {
    view.pending.reverse();
    let heads: Vec<LogHead> = view.pending.iter().rev().map(|entry| entry.forecast.log).collect();
    for (entry, head) in view.pending.iter_mut().zip(heads) {
        entry.forecast.log = head;
    }
}

/// The group that all files of the scenario belong to.
pub fn team() -> PrincipalId {
    PrincipalId::Group(Scene::TEAM)
}

/// The user that a device belongs to.
pub fn user_of(who: usize) -> PrincipalId {
    PrincipalId::User(UserId(who as u32))
}

fn addressed(block: &Block) -> AddressedBlock {
    AddressedBlock { address: block.reference().address, block: block.to_stored() }
}

/// The membership in force.
///
/// # Panics
/// If the server does not have it.
pub fn members(stage: &Stage) -> Membership {
    let view = stage.view(super::scene::ALICE, 0);
    let (_, handle) = view.view.handle(PrincipalId::Members).expect("there is one");
    let known = stage.scene.blocks.iter().find(|block| block.address == handle.reference.address);
    let stored = known.expect("it was stored").block.clone();
    let block = stored.open(&DigestKey::WELL_KNOWN, &handle.reference, BlockKind::Membership);
    Membership::from_block(&block.expect("it is what it says")).expect("it is one")
}

/// The membership in force with another key for a device.
///
/// # Panics
/// If the server does not have it.
pub fn membership_with_key(stage: &Stage, who: usize, key: PublicKey) -> (HandleVersion, AddressedBlock) {
    let mut members = members(stage);
    let version = members.version;
    members.devices.get_mut(&DeviceId(who as u32)).expect("a member").key = key;
    let block = members.to_block(&DigestKey::WELL_KNOWN).expect("within the limits");
    (HandleVersion { version, reference: block.reference() }, addressed(&block))
}

/// A device's last structure whose table is no table, signed by its own key.
///
/// # Panics
/// If it holds none.
pub fn garbage_table(stage: &Stage, who: usize) -> (Signed<Structure>, Option<AddressedBlock>) {
    let block = Block::new(&DigestKey::WELL_KNOWN, BlockKind::Table, Vec::new(), vec![0xff; 64]);
    let mut structure = stage.slot(who, 0).value;
    let own = PrincipalId::Device(DeviceId(who as u32));
    structure.handles.get_mut(&own).expect("it has written").reference = block.reference();
    (Signed::new(structure, &key_of(who)), Some(addressed(&block)))
}

/// A device's last structure with the next version of a table that it may not write, signed by its own key.
///
/// # Panics
/// If there is no such table.
pub fn table_of(
    stage: &Stage,
    who: usize,
    principal: PrincipalId,
) -> (Signed<Structure>, Option<AddressedBlock>) {
    let view = stage.view(super::scene::ALICE, 0).view;
    let (_, present) = view.handle(principal).expect("there is one");
    let mut structure = stage.slot(who, 0).value;
    let any = structure.handles.values().next().map_or(Digest::ZERO, |held| held.reference.address);
    let mut reference = present.reference;
    reference.address = any;
    structure.handles.insert(principal, HandleVersion { version: present.version + 1, reference });
    (Signed::new(structure, &key_of(who)), None)
}
