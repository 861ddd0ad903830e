//! Epochs: what lies between declared restores of a server.
//!
//! A server that is put back to an older state has lost operations that devices signed and that were acknowledged to them.
//! To everybody who remembers them it looks like one that rolls history back, as it must. The superuser may declare that
//! it was a restore: that the file system goes on from its first `size` operations, whose log has this root. With that
//! declaration an epoch begins. Its name, the digest of what was signed, stands in certificates and forecasts (and so in
//! structures and receipts) where the file system's id stood before; the first epoch's name *is* the file system's id, so
//! a file system without a restore differs in no byte. A declaration names the epoch that it ends, so the last one stands
//! for all before it.
//!
//! What follows from it:
//! - a number may be used again, since nothing signed in one epoch is anything in another;
//! - what was lost cannot come in again: of an epoch counts what has its place in the log before the restore to it, and
//!   after the one that it began with ([`Epochs::holds`]); what has such a place and was not committed by then is bound by
//!   the declaring operation, which saw it as dead. An epoch that was lost as a whole, since what was put back is older,
//!   does not count at all: a declaration names the epoch of the state that is left;
//! - nobody is held to what they signed there ([`crate::judge`] concludes nothing between epochs).
//!
//! Attack answered: a server that calls its rollback a restore. Only the superuser's key declares one. And one that hides a
//! restore from some, or shows it to some and goes on in the old epoch with others: a fork, found like any other.
//!
//! Not answered: a server that has the superuser declare what was no accident. Everybody is told, and each device says
//! what of its own is lost.

use crate::signed::Signable;
use crate::structure::LogHead;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Restore;
use holdfast_crypto::{Digest, Domain, PublicKey, Signature, encode};

/// A restore, as the superuser signs it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Declaration {
    /// The file system.
    pub file_system: Digest,
    /// The epoch that ends.
    pub epoch: Digest,
    /// Number of operations in the log that is left.
    pub size: u64,
    /// Root of the log that is left.
    pub root: Digest,
    /// The epoch of the state that is left.
    pub base: Digest,
    /// When it is declared, nanoseconds since 1970.
    pub declared_ns: i64,
    /// Drawn at random, so that no two declarations are the same.
    pub nonce: [u8; 16],
}

impl Signable for Declaration {
    const DOMAIN: Domain = Domain::Restore;

    fn signed_bytes(&self) -> Vec<u8> {
        encode(self)
    }
}

impl Declaration {
    /// The restore with the superuser's signature, as memberships hold it.
    pub fn with(&self, signature: Signature) -> Restore {
        let Declaration { size, root, base, declared_ns, nonce, .. } = *self;
        Restore { size, root, base, declared_ns, nonce, signature }
    }

    /// The declaration that was signed for `restore`, which ends `epoch`.
    pub fn of(file_system: Digest, epoch: Digest, restore: &Restore) -> Declaration {
        let Restore { size, root, base, declared_ns, nonce, .. } = *restore;
        Declaration { file_system, epoch, size, root, base, declared_ns, nonce }
    }

    /// The epoch that this declaration begins.
    pub fn begins(&self) -> Digest {
        self.digest()
    }
}

/// One epoch, with where it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Epoch {
    id: Digest,
    /// The log that it began with; operations from its size on are in it.
    from: LogHead,
    /// The epoch of that log; none for the first.
    base: Option<Digest>,
    /// The log that is left of it in the present, if anything is; no bound in the last one.
    until: Option<LogHead>,
}

/// Longer than any log can be.
const ENDLESS: LogHead = LogHead { size: u64::MAX, root: Digest::ZERO };

/// The epochs of a file system, in the order in which they began.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Epochs(Vec<Epoch>);

impl Epochs {
    /// The epochs between these restores, whose signatures are not verified here.
    pub fn of(file_system: Digest, restores: &[Restore]) -> Epochs {
        let mut epochs = vec![Epoch { id: file_system, from: LogHead::default(), base: None, until: None }];
        for restore in restores {
            let ended = epochs.last().map_or(file_system, |epoch| epoch.id);
            let id = Declaration::of(file_system, ended, restore).begins();
            let from = LogHead { size: restore.size, root: restore.root };
            epochs.push(Epoch { id, from, base: Some(restore.base), until: None });
        }
        // The restores that lead to the present, last to first. One that names itself or a later one as its base is
        // refused.
        let (mut at, mut until) = (epochs.len(), Some((epochs[epochs.len() - 1].id, ENDLESS)));
        while let Some((id, end)) = until
            && let Some(place) = epochs[..at].iter().position(|epoch| epoch.id == id)
        {
            let epoch = &mut epochs[place];
            epoch.until = Some(end);
            let shorter = if epoch.from.size < end.size { epoch.from } else { end };
            (at, until) = (place, epoch.base.map(|base| (base, shorter)));
        }
        Epochs(epochs)
    }

    /// The present epoch.
    pub fn latest(&self) -> Digest {
        self.0.last().expect("there is a first one").id
    }

    fn find(&self, epoch: &Digest) -> Option<&Epoch> {
        self.0.iter().find(|known| known.id == *epoch)
    }

    /// Whether `epoch` is one of these.
    pub fn contains(&self, epoch: &Digest) -> bool {
        self.find(epoch).is_some()
    }

    /// Whether an operation of this epoch that has this place in the log was not lost.
    pub fn holds(&self, epoch: &Digest, place: u64) -> bool {
        let known = self.find(epoch);
        known.is_some_and(|known| known.until.is_some_and(|end| (known.from.size..end.size).contains(&place)))
    }

    /// The longest log that is left of what somebody in this epoch may have seen; `None` if it is the present one, or none
    /// of them.
    pub fn left_of(&self, epoch: &Digest) -> Option<LogHead> {
        if *epoch == self.latest() {
            return None;
        }
        let (mut known, mut left) = (self.find(epoch)?, ENDLESS);
        for _ in 0..self.0.len() {
            let end = known.until.unwrap_or(known.from);
            if end.size < left.size {
                left = end;
            }
            match (known.until, known.base) {
                (None, Some(base)) => known = self.find(&base)?,
                _ => return Some(left),
            }
        }
        None
    }
}

/// The present epoch after these restores, which are not verified here.
pub fn latest(file_system: Digest, restores: &[Restore]) -> Digest {
    Epochs::of(file_system, restores).latest()
}

/// Whether the superuser has declared all of these restores, in this order.
pub fn are_declared(superuser: &PublicKey, restores: &[Restore]) -> bool {
    let file_system = superuser.file_system_id();
    let mut epoch = file_system;
    restores.iter().all(|restore| {
        let declaration = Declaration::of(file_system, epoch, restore);
        epoch = declaration.begins();
        superuser.verify(Domain::Restore, &declaration.signed_bytes(), &restore.signature)
    })
}
