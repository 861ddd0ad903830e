//! Read leases and delegations: while a client holds one, nothing in its scope is changed by another device, so it
//! answers from the newest view it has accepted, without a message. The server's machine is [`LeaseTable`], the
//! client's [`LeaseHolder`].
//!
//! A lease brings no data. It says that the newest accepted view is still the present one in some scope; whatever is
//! read is read from a view that was signed for and checked. So there is nothing new to check, and a server that lies
//! about leases can only withhold what others have done for one term, which is how long a client reads without a signed
//! operation of its own.
//!
//! How both sides stay agreed although messages are late or lost:
//! - the client counts a term from when it first *sent* the request, the server from when it granted: the client's ends first;
//! - a grant is made at the operation's place in the order, and taken up when the view of that place is the one read
//!   from;
//! - recalls are numbered. A grant says how many there were before it: one that was overtaken by a later recall brings
//!   no new scopes, and one that knows of recalls not heard of here brings nothing at all;
//! - an epoch tells a session at the server from an earlier one that it has forgotten.

mod holder;
mod table;
#[cfg(test)]
mod tests;

pub use holder::{Dropped, LeaseHolder};
pub use table::{ClaimId, LeaseTable};

use crate::certificate::{Certificate, Delta};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Handle, Membership, PrincipalId};
use std::collections::BTreeSet;

/// How long a lease lasts unless the operator says otherwise, in milliseconds. A writer waits as long for a client that
/// has died, which must be less than the minute that programs wait for a server.
pub const TERM_MS: u64 = 45_000;
/// Longest time for which one run has a file system for itself without operating, in milliseconds. Everybody else's next
/// operation waits as long for a holder that has died or sleeps.
pub const DELEGATION_MS: u64 = 10_000;
/// Most scopes in one wish.
pub const WISHES_MAX: usize = 4096;
/// Most scopes that one run of a client holds; beyond it the oldest are recalled.
pub const SCOPES_MAX: usize = 65_536;

/// What a lease is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Scope {
    /// Everything that a user or group owns.
    Principal(PrincipalId),
    /// One file or directory, entries included.
    File(Handle),
}

/// What an operation changes that others may have read.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Touched {
    files: BTreeSet<Handle>,
    /// A change of membership: who may write what is part of every view.
    everything: bool,
}

impl Touched {
    /// What a certificate declares, as far as its author may write it: the rest takes no effect for anybody.
    /// Pre-allocated numbers stand for no file yet, so nobody has read them.
    pub fn by(certificate: &Certificate, membership: &Membership) -> Touched {
        let mut touched = Touched::default();
        touched.add(certificate, membership);
        touched
    }

    /// Adds what another certificate declares.
    pub fn add(&mut self, certificate: &Certificate, membership: &Membership) {
        let may_write = |file: &Handle| membership.may_write(certificate.device, file.principal);
        for delta in &certificate.deltas {
            match delta {
                Delta::SetInode { file, .. } | Delta::SetTable { file, .. } if may_write(file) => {
                    self.files.insert(*file);
                }
                Delta::SetEntry { directory, .. } if may_write(directory) => {
                    self.files.insert(*directory);
                }
                // By device 0, or under a warrant.
                Delta::SetMembers { .. } => self.everything |= membership.is_active(certificate.device),
                _ => {}
            }
        }
    }

    /// One file.
    pub fn file(file: Handle) -> Touched {
        Touched { files: [file].into(), everything: false }
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.everything
    }

    /// Every scope it touches, but for a change of everything.
    fn scopes(&self) -> BTreeSet<Scope> {
        let both = |file: &Handle| [Scope::File(*file), Scope::Principal(file.principal)];
        self.files.iter().flat_map(both).collect()
    }
}

/// A client's wish for leases, with an operation.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LeaseWish {
    /// The run of the client, drawn at random when it begins.
    pub run: u128,
    /// What is not held yet and wanted; at most [`WISHES_MAX`].
    pub scopes: Vec<Scope>,
    /// Whether a delegation is wanted.
    pub delegation: bool,
}

/// What was granted at an operation's place in the order.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct LeaseGrant {
    /// Of the session.
    pub epoch: u64,
    /// How many recalls were sent to the session before.
    pub recalls: u64,
    /// For how long everything held is held from the sending of the request on, in milliseconds. 0: nothing is granted
    /// and nothing made longer.
    pub term_ms: u32,
    /// Those of the wish that are held.
    pub scopes: Vec<Scope>,
    /// For how long the delegation is held from the sending of the request on, in milliseconds. 0: it is not held, or is
    /// not made longer.
    pub delegation_ms: u32,
}

/// What a session is to give up.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Recall {
    /// Of the session; 0: the server knows none.
    pub epoch: u64,
    /// The number of the last recall that this tells of.
    pub number: u64,
    /// Scopes to give up.
    pub scopes: Vec<Scope>,
    /// Whether to give up all there are.
    pub everything: bool,
    /// Whether to give up the delegation.
    pub delegation: bool,
}
