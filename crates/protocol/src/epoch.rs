//! Epochs: the times between declared restores of a server.
//!
//! A server that is restored to an older state has lost operations that devices signed and that were
//! acknowledged to them. Everybody who remembers them sees a server that rolls history back, and must refuse
//! it. The superuser may declare that this was a restore: the file system continues from its first `size`
//! operations, whose log has a given root. Such a declaration begins an epoch. The epoch's name is the digest
//! of the declaration; it replaces the file system's id in certificates and forecasts (and so in structures
//! and receipts). The first epoch's name *is* the file system's id, so without a restore no byte differs. A
//! declaration names the epoch that it ends, so the last one implies all before it.
//!
//! Consequences:
//! - A number may be used again, since a signature from one epoch is worth nothing in another.
//! - Lost operations cannot come back. An operation of an epoch counts only if its place in the log is
//!   before the restore that ended the epoch and after the one that began it ([`Epochs::holds`]). Operations
//!   with such a place that were not committed by then are settled by the declaring operation, which saw them
//!   as dead. An epoch that was lost completely, because the restored state is older than the epoch, does not
//!   count at all: a declaration names the epoch of the restored state.
//! - Nobody is blamed for what they signed in a lost part ([`crate::judge`] concludes nothing across
//!   epochs).
//!
//! Attack answered: a server that calls its rollback a restore; only the superuser's key can declare one.
//! Also a server that hides a restore from some devices, or continues the old epoch with others: that is a
//! fork, and is detected like any other.
//!
//! Not answered: a server that gets the superuser to declare a restore without an accident. Everybody is
//! notified of it, and each device lists which of its own operations are lost.

use crate::signed::Signable;
use crate::structure::LogHead;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Restore;
use holdfast_crypto::{Digest, Domain, PublicKey, Signature, encode};

/// A declared restore, as the superuser signs it.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Declaration {
    /// The file system.
    pub file_system: Digest,
    /// The epoch that ends.
    pub epoch: Digest,
    /// Number of operations in the log of the restored state.
    pub size: u64,
    /// Root of the log of the restored state.
    pub root: Digest,
    /// The epoch of the restored state.
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

    /// The declaration that `restore` holds the signature of, and that ends `epoch`.
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
    /// The end of the part of this epoch's log that is left in the present ([`ENDLESS`] in the last epoch);
    /// `None` if none of it is left.
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

    /// Whether an operation of this epoch at this place in the log was not lost.
    pub fn holds(&self, epoch: &Digest, place: u64) -> bool {
        let known = self.find(epoch);
        known.is_some_and(|known| known.until.is_some_and(|end| (known.from.size..end.size).contains(&place)))
    }

    /// The longest part that is left of the log that a device in this epoch may have seen; `None` if the
    /// epoch is the present one or not an epoch of this file system.
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

/// The present epoch after these restores, which the caller has verified.
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
