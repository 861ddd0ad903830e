//! Principals: whoever can own something, be on a list, or make statements.
//!
//! Invariants:
//! - A principal has one encoding, and [`Principal::digest`] names it in messages and tables.
//! - None contains another, so no nesting that a peer sends can exhaust a stack.
//! - What is stored names no process ([`Principal::is_storable`]): otherwise a later process with the same
//!   name would inherit what was granted to the dead one.

use crate::{Manifest, Name, Predicate, ProcessName};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain, PublicKey, encode};

/// A principal. The order of the variants is part of the stored format.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Principal {
    /// This machine's runtime, which names users and groups, starts processes and issues their manifests.
    Machine,
    /// A user of this machine.
    User(Name),
    /// A group of this machine: the principals that the machine says speak for it.
    Group(Name),
    /// The holder of the private key: a user, or a user's device, on any machine.
    Key(PublicKey),
    /// A name assigned by a key, such as that of a user of a shared file system under its superuser's key.
    Named(KeyName),
    /// A running process. Never stored.
    Process(ProcessName),
    /// The paper's `HashGroup(h)`: processes that run exactly this code in this configuration.
    Program(ProgramHash),
    /// Processes whose executable belongs to a package signed by a key, in a clean condition.
    Package(KeyName),
    /// Processes whose manifest satisfies a predicate: {P : φ(P)}.
    Such(Predicate),
}

/// A name in the name space of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct KeyName {
    /// The key whose name space it is.
    pub key: PublicKey,
    /// The name in that name space.
    pub name: Name,
}

/// The digest of a manifest's code, configuration and conditions ([`Manifest::program`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct ProgramHash(pub Digest);

impl Principal {
    /// The digest of this principal.
    pub fn digest(&self) -> Digest {
        DigestKey::WELL_KNOWN.digest(Domain::Principal, &encode(self))
    }

    /// Whether it may be stored: as an owner, or in an ACL. Processes end, and the machine needs no entry.
    pub fn is_storable(&self) -> bool {
        !matches!(self, Principal::Process(_) | Principal::Machine)
    }

    /// The principal that assigns this name and therefore speaks for it (the rule *namer*).
    pub fn namer(&self) -> Option<Principal> {
        match self {
            Principal::User(_) | Principal::Group(_) => Some(Principal::Machine),
            Principal::Named(named) => Some(Principal::Key(named.key)),
            _ => None,
        }
    }

    /// Whether processes with this manifest are constituents of this group; `None` if it is not such a group.
    pub fn admits(&self, manifest: &Manifest) -> Option<bool> {
        match self {
            Principal::Program(hash) => Some(manifest.program() == *hash),
            Principal::Package(package) => {
                Some(manifest.conditions.is_clean() && manifest.packages.contains(package))
            }
            Principal::Such(predicate) => Some(predicate.holds(manifest)),
            _ => None,
        }
    }
}
