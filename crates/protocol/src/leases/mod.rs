//! Leases. While a client holds one, no other device changes anything in its scope, so the client answers
//! from the newest view it has accepted, without a message. While it holds a scope *exclusively*, no other
//! device's operation that reads or changes something in it is ordered either, so the client may acknowledge
//! changes there before it sends them. The scope of the *delegation* is the whole file system. The server's
//! part is [`LeaseTable`], the client's is [`LeaseHolder`].
//!
//! The invariant: *an operation is ordered only while no other device exclusively holds a scope that it reads
//! or changes.* A certificate declares what an operation changes; its request names what its author reads
//! ([`LeaseRequest::reads`], and the files of which it asks for leases). The answer names the files that are
//! [`Withheld`]: other devices held them exclusively at that place in the order, so the view may be outdated
//! there. A client that wants to read such a file names it in another operation.
//!
//! A lease brings no data. It says that the newest accepted view is still the present one in some scope;
//! everything is read from a view that was signed and checked. So there is nothing new to verify. A server
//! that lies about leases can only withhold other devices' changes for one term, which is how long a client
//! reads without a signed operation of its own.
//!
//! How both sides stay in agreement although messages are late or lost:
//! - The client counts a term from when it first *sent* the request, the server from when it granted; so
//!   the client's ends first.
//! - A grant is made at the operation's place in the order. The client adopts it when it reads from the
//!   view of that place.
//! - Recalls are numbered, and a grant says how many came before it. A grant that a later recall overtook
//!   brings no new scopes. A grant that counts recalls which the client has not heard of brings nothing.
//! - An epoch distinguishes a session from an earlier one that the server has forgotten.

mod backoff;
mod exclusive;
mod holder;
mod session;
mod table;
#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use exclusive::Withheld;
pub use holder::{LeaseHolder, RecalledLeases};
pub use table::{ClaimId, LeaseTable};

use crate::certificate::{Certificate, Delta};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{Handle, Membership, PrincipalId};
use std::collections::BTreeSet;

/// How long a lease lasts unless the operator sets another time, in milliseconds. A writer waits that long
/// for a client that has died; it must be less than the minute that programs wait for a server.
pub const TERM_MS: u64 = 45_000;
/// Longest time for which a client holds anything exclusively without operating, in milliseconds. Other
/// devices' operations in that scope wait that long for a holder that has died or sleeps.
pub const EXCLUSIVE_MS: u64 = 10_000;
/// Most scopes in one request, and most files it says are read.
pub const LEASE_REQUESTS_MAX: usize = 4096;
/// Most scopes that one run of a client holds; beyond it the oldest are recalled.
pub const SCOPES_MAX: usize = 65_536;

/// What a lease covers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub enum Scope {
    /// Everything that a user or group owns.
    Principal(PrincipalId),
    /// One file or directory, entries included.
    File(Handle),
}

/// The files that an operation changes and the files that it reads.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Footprint {
    files: BTreeSet<Handle>,
    /// Set by a change of membership: every view depends on who may write what.
    everything: bool,
    reads: BTreeSet<Handle>,
    reads_everything: bool,
}

impl Footprint {
    /// What a certificate declares, as far as its author may write it; the rest takes no effect.
    /// Pre-allocated numbers are not included: no file has them yet, so nobody has read them.
    pub fn by(certificate: &Certificate, membership: &Membership) -> Footprint {
        let mut touched = Footprint::default();
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
                // A change of membership is made by device 0, or under a warrant.
                Delta::SetMembers { .. } => self.everything |= membership.is_active(certificate.device),
                _ => {}
            }
        }
    }

    /// A change of one file.
    pub fn file(file: Handle) -> Footprint {
        Footprint { files: [file].into(), ..Footprint::default() }
    }

    /// Adds what the author reads, and what it is about to change and may write. An author that sends no list
    /// reads everything.
    #[must_use]
    pub fn reading(
        mut self,
        request: Option<&LeaseRequest>,
        may_write: impl Fn(PrincipalId) -> bool,
    ) -> Footprint {
        let Some(request) = request else { return Footprint { reads_everything: true, ..self } };
        self.reads_everything |= request.reads_everything;
        self.reads.extend(request.reads.iter().chain(&request.edits));
        if request.exclusive {
            self.files.extend(request.edits.iter().filter(|file| may_write(file.principal)));
        }
        self.reads.extend(request.scopes.iter().filter_map(|scope| match scope {
            Scope::File(file) => Some(file),
            Scope::Principal(_) => None,
        }));
        self
    }

    /// Whether nothing is changed, or about to be.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.everything
    }

    /// Whether a file is changed, or may be.
    fn changes(&self, scope: &Scope) -> bool {
        self.everything
            || match scope {
                Scope::File(file) => self.files.contains(file),
                Scope::Principal(principal) => self.files.range(of(*principal)).next().is_some(),
            }
    }

    /// Whether something in a scope is changed or read.
    fn concerns(&self, scope: &Scope) -> bool {
        let is_read = match scope {
            Scope::File(file) => self.reads.contains(file),
            Scope::Principal(principal) => self.reads.range(of(*principal)).next().is_some(),
        };
        is_read || self.reads_everything || self.changes(scope)
    }

    /// Every scope that the operation touches, except for a change of everything.
    fn scopes(&self) -> BTreeSet<Scope> {
        let both = |file: &Handle| [Scope::File(*file), Scope::Principal(file.principal)];
        self.files.iter().flat_map(both).collect()
    }
}

/// The user or group whose files a scope covers.
fn principal_of(scope: &Scope) -> PrincipalId {
    match scope {
        Scope::Principal(principal) => *principal,
        Scope::File(file) => file.principal,
    }
}

/// Every handle of a user or group.
fn of(principal: PrincipalId) -> std::ops::RangeInclusive<Handle> {
    Handle { principal, number: 0 }..=Handle { principal, number: u64::MAX }
}

/// What a client asks for with an operation, and what it reads.
#[derive(Clone, PartialEq, Eq, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct LeaseRequest {
    /// The run of the client, drawn at random when it begins.
    pub run: u128,
    /// Leases that it asks for; at most [`LEASE_REQUESTS_MAX`]. It reads the files among them.
    pub scopes: Vec<Scope>,
    /// What else the author reads in the view that the operation is ordered on; at most
    /// [`LEASE_REQUESTS_MAX`]. What the operation changes need not be named.
    pub reads: Vec<Handle>,
    /// What it reads because it is about to change it; at most [`LEASE_REQUESTS_MAX`]. If it wants exclusive
    /// access, it waits for its turn as if it changed these now.
    pub edits: Vec<Handle>,
    /// Further files, such as the entries of a directory in use; at most [`LEASE_REQUESTS_MAX`]. They are
    /// granted exclusively if the operation changes something, else as leases, but only where nobody has to
    /// give anything up. The operation does not read them, so it waits for none of their holders.
    pub also: Vec<Handle>,
    /// Whether it reads everything.
    pub reads_everything: bool,
    /// Whether it wants as much exclusive access as others leave to it: the whole file system; or all files
    /// of the users and groups in whose files it reads and changes something; or just those files.
    pub exclusive: bool,
}

impl LeaseRequest {
    /// A request for no leases, of an operation that reads nothing.
    pub fn none(run: u128) -> LeaseRequest {
        LeaseRequest {
            run,
            scopes: Vec::new(),
            reads: Vec::new(),
            edits: Vec::new(),
            also: Vec::new(),
            reads_everything: false,
            exclusive: false,
        }
    }
}

/// What was granted at an operation's place in the order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct LeaseGrant {
    /// Epoch of the session; 0 if there is none.
    pub epoch: u64,
    /// Number of recalls that were sent to the session before.
    pub recalls: u64,
    /// For how long all leases last from the sending of the request on, in milliseconds. 0: nothing is
    /// granted and nothing extended.
    pub term_ms: u32,
    /// Scopes of the request that the session holds now.
    pub scopes: Vec<Scope>,
    /// For how long exclusive leases last from the sending of the request on, in milliseconds. 0: they are
    /// not extended.
    pub exclusive_ms: u32,
    /// Whether the session holds the delegation of the whole file system.
    pub delegation: bool,
    /// Scopes that are held exclusively from now on; like any lease, they allow reading too.
    pub exclusive: Vec<Scope>,
    /// Files that other devices hold exclusively.
    pub withheld: Withheld,
}

impl LeaseGrant {
    /// A grant without leases.
    pub fn none(withheld: Withheld) -> LeaseGrant {
        LeaseGrant {
            epoch: 0,
            recalls: 0,
            term_ms: 0,
            scopes: Vec::new(),
            exclusive_ms: 0,
            delegation: false,
            exclusive: Vec::new(),
            withheld,
        }
    }

    /// The same grant without its leases, but with what is withheld from the author.
    #[must_use]
    pub fn without_leases(self) -> LeaseGrant {
        let (scopes, exclusive) = (Vec::new(), Vec::new());
        LeaseGrant { term_ms: 0, exclusive_ms: 0, delegation: false, scopes, exclusive, ..self }
    }
}

/// What a session has to give up.
#[derive(Clone, PartialEq, Eq, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Recall {
    /// Epoch of the session; 0 if the server knows none.
    pub epoch: u64,
    /// Number of the last recall that this message contains.
    pub number: u64,
    /// Scopes whose leases are to be given up.
    pub scopes: Vec<Scope>,
    /// Scopes to hold no more exclusively; they may still be read.
    pub exclusive: Vec<Scope>,
    /// Whether to give up all leases.
    pub everything: bool,
    /// Whether to give up the delegation.
    pub delegation: bool,
}
