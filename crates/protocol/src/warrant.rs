//! Warrants: changes of the membership that the superuser signs off-line.
//!
//! A change that device 0 makes is an operation, signed when its place in the order is known; so its key must
//! be on line. A warrant is signed beforehand, for one change of one membership in one file system. Any
//! device that stays a member may then bring it into the order as an operation of its own, and the order
//! gives it its version. The warrant is in the block of the new membership, so every reader of the block
//! finds the superuser's signature there.
//!
//! A warrant is good for one use only, because it names the membership that it follows by version and by the
//! address of its block. A block contains the version at which it came into force, so no two are the same.
//! After any other change the warrant is worthless.
//!
//! Attack answered: somebody who carries or submits a warrant changes it, uses it again, uses it elsewhere,
//! or withholds it until something else was decided.

use crate::epoch;
use crate::signed::Signable;
use crate::structure::HandleVersion;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Membership, Warrant};
use holdfast_crypto::{Digest, Domain, PublicKey, Signature, encode};

/// A change of membership, as the superuser signs it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Change {
    /// The file system's epoch ([`crate::epoch`]), so that a change that was lost cannot be submitted again.
    pub file_system: Digest,
    /// The version under which the membership that it follows is in force.
    pub version: u64,
    /// The address of that membership's block.
    pub follows: Digest,
    /// The membership that follows, undated ([`Membership::undated`]).
    pub next: Membership,
}

impl Signable for Change {
    const DOMAIN: Domain = Domain::Warrant;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

impl Change {
    /// The change from the membership in force to `next`. [`Membership::validate_successor`] decides whether
    /// `next` may follow it.
    pub fn new(file_system: Digest, present: &HandleVersion, next: &Membership) -> Change {
        let follows = present.reference.address;
        Change { file_system, version: present.version, follows, next: next.undated() }
    }

    /// The new membership with the superuser's signature, in force at `version`.
    pub fn enacted(&self, version: u64, signature: Signature) -> Membership {
        let warrant = Warrant { version: self.version, follows: self.follows, signature };
        Membership { warrant: Some(warrant), ..self.next.dated(version) }
    }
}

/// The warrant of a membership, if the superuser of `file_system` has signed it for exactly this membership.
pub fn verified<'a>(
    file_system: Digest,
    superuser: &PublicKey,
    membership: &'a Membership,
) -> Option<&'a Warrant> {
    let warrant = membership.warrant.as_ref()?;
    let next = membership.undated();
    // One signature is for one membership at each version: the membership of this change is dated so.
    if (Membership { warrant: Some(*warrant), ..next.dated(membership.version) }) != *membership {
        return None;
    }
    let file_system = epoch::latest(file_system, &membership.restores);
    let change = Change { file_system, version: warrant.version, follows: warrant.follows, next };
    superuser.verify(Domain::Warrant, &change.signed_bytes(), &warrant.signature).then_some(warrant)
}
