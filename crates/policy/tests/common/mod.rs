//! A disk with a policy table, and a driver that carries out decisions.
#![allow(dead_code)]

use holdfast_access::*;
use holdfast_policy::*;
use std::collections::BTreeMap;

/// A small generator of numbers that look random, the same ones for the same seed.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }
}

pub fn user(text: &str) -> Principal {
    Principal::User(Name::new(text).expect("a name"))
}

pub fn alias(principal: &Principal) -> Alias {
    Alias::attested(principal.clone(), Scope::EVERYTHING)
}

pub fn range(first: u64, count: u64) -> BlockRange {
    BlockRange::new(first, count).expect("a range")
}

pub fn only(principal: &Principal) -> Acl {
    Acl::of(principal.clone(), Access::ReadWrite).expect("room")
}

pub fn admin() -> Principal {
    user("admin")
}

/// A disk whose table begins at block 10.
pub fn disk(blocks: u64, table_blocks: u64) -> Disk {
    Disk { number: 3, identity: *b"disk identity 16", blocks, table_first: 10, table_blocks }
}

pub type Stored = BTreeMap<u64, Box<Block>>;

pub fn open(disk: &Disk, stored: &Stored) -> Result<Policy, Damage> {
    Policy::open(disk.clone(), admin(), |block| {
        stored.get(&block).cloned().ok_or_else(|| "never written".to_owned())
    })
}

/// A policy, and its stored blocks.
pub struct Driven {
    pub disk: Disk,
    pub policy: Policy,
    pub stored: Stored,
    /// Blocks written by the last change.
    pub written: usize,
}

impl Driven {
    pub fn new(disk: Disk) -> Driven {
        let (policy, change) = Policy::create(disk.clone(), admin()).expect("a new table");
        let mut driven = Driven { disk, policy, stored: Stored::new(), written: 0 };
        driven.carry_out(change);
        driven
    }

    pub fn carry_out(&mut self, change: Change) {
        for effect in change.effects() {
            if let Effect::Store(images) = effect {
                self.written = images.len();
                for image in images {
                    assert!(image.block < self.disk.table_blocks, "within the table");
                    self.stored.insert(image.block, image.bytes.clone());
                }
            }
        }
        self.policy.carried_out(change);
    }

    pub fn change_acls(
        &mut self,
        by: &Principal,
        range: BlockRange,
        change: &AclChange,
    ) -> Result<(), Refused> {
        let change = self.policy.change_acls(&alias(by), range, change)?;
        self.carry_out(change);
        Ok(())
    }

    pub fn give(&mut self, from: &Principal, range: BlockRange, to: &Principal) -> Result<(), Refused> {
        self.policy.chown_nominate(&alias(from), range, to.clone())?;
        let change = self.policy.chown_accept(&alias(to), range, only(to))?;
        self.carry_out(change);
        Ok(())
    }

    pub fn reopened(&self) -> Policy {
        open(&self.disk, &self.stored).expect("what was stored opens")
    }
}

/// Owner and ACL of a block.
pub fn at(policy: &Policy, block: u64) -> Label {
    policy.region_policy(&[range(block, 1)]).expect("a block of the disk").clone()
}

/// A block with a correct digest over this content, as somebody could forge it who knows the format.
pub fn sealed(disk: &Disk, block: u64, body: &[u8]) -> Box<Block> {
    let mut bytes = Box::new([0; BLOCK_BYTES]);
    bytes[..8].copy_from_slice(b"hfpolicy");
    bytes[40..40 + body.len()].copy_from_slice(body);
    let hasher = holdfast_crypto::DigestKey::WELL_KNOWN.hasher(holdfast_crypto::Domain::PolicyBlock);
    let digest = hasher.update(&disk.identity).update(&block.to_le_bytes()).update(&bytes[40..]).finish();
    bytes[8..40].copy_from_slice(&digest.0);
    bytes
}
