//! The floor: what a client has accepted, and behind which no server may lead it back.
//!
//! Invariants: everything in it was accepted by `check` or signed by this device. It only grows. It is
//! durable *before* a signature that depends on it is sent (trace T1), and it outlives a void operation that
//! brought it (trace T7).

use crate::alarm::Alarm;
use crate::log_tree::{Frontier, leaf};
use crate::members::Members;
use crate::message::{Receipt, ServerKeys};
use crate::order::{last_vector, records};
use crate::signed::{Signable, Signed};
use crate::structure::{Forecast, LogHead, Structure, View};
use crate::vector::VoidSet;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, PublicKey};
use std::collections::BTreeMap;

/// An operation that this device has signed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct OwnOperation {
    /// Digest of its certificate.
    pub certificate: Digest,
    /// Digest of its forecast, once a view for it was accepted; never for a fast one.
    pub forecast: Option<Digest>,
}

/// All that a client remembers of a file system's order.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Floor {
    /// The epoch of the file system that this device has adopted: the file system's id, until a restore is
    /// declared ([`crate::epoch`]).
    pub epoch: Digest,
    /// Its superuser's key: the file system's id is the digest of it.
    pub superuser: PublicKey,
    /// Number of this device.
    pub device: DeviceId,
    /// The last accepted view. What this device has committed or learned since is in its slots and no longer
    /// in its pending list. Its log head includes this device's last ordered operation.
    pub view: View,
    /// The right edge of the log at `view.log`.
    pub frontier: Frontier,
    /// The last accepted view as an element of the order; `None` before the first.
    pub element: Option<Forecast>,
    /// Numbers this device has given up.
    pub voids: VoidSet,
    /// Those void numbers that were fast operations the server refused: no operation may ever know of them.
    pub never_offered: VoidSet,
    /// Numbers this device committed without effect.
    pub ineffective: VoidSet,
    /// What was signed under each number from the last committed one on. (States of earlier versions hold
    /// only slow operations.)
    pub offered: BTreeMap<u64, OwnOperation>,
    /// The highest number this device has used, whatever became of it.
    pub used: u64,
    /// Structures that were learned by waiting since this device last began an operation and that no accepted
    /// view has yet, by device. A view that was already under way may still show them as pending. A view
    /// requested later may not; otherwise what a program has read could be aborted afterwards.
    pub learned: BTreeMap<DeviceId, u64>,
    /// The server's promise for the last committed operation.
    pub receipt: Option<Signed<Receipt>>,
    /// The newest list of server keys seen.
    pub server_keys: Option<Signed<ServerKeys>>,
}

impl Floor {
    /// The floor of a device that has done nothing yet.
    pub fn new(superuser: PublicKey, device: DeviceId) -> Floor {
        Floor {
            epoch: superuser.file_system_id(),
            superuser,
            device,
            view: View::default(),
            frontier: Frontier::default(),
            element: None,
            voids: VoidSet::default(),
            never_offered: VoidSet::default(),
            ineffective: VoidSet::default(),
            offered: BTreeMap::new(),
            used: 0,
            learned: BTreeMap::new(),
            receipt: None,
            server_keys: None,
        }
    }

    /// The same in the present epoch of `members`, whose restores are for `check` to verify.
    pub fn unseen(superuser: PublicKey, device: DeviceId, members: &dyn Members) -> Floor {
        let epoch = crate::epoch::latest(superuser.file_system_id(), members.restores());
        Floor { epoch, ..Floor::new(superuser, device) }
    }

    /// The file system.
    pub fn file_system(&self) -> Digest {
        self.superuser.file_system_id()
    }

    /// Whether this device has neither accepted nor committed anything yet.
    pub fn is_fresh(&self) -> bool {
        self.element.is_none() && self.own().is_none()
    }

    /// The last structure this device committed.
    pub fn own(&self) -> Option<&Signed<Structure>> {
        self.view.slots.get(&self.device)
    }

    /// The number of the last structure this device committed; 0 before the first.
    pub fn last(&self) -> u64 {
        self.own().map_or(0, |own| own.value.number())
    }

    /// Digest that this device's next certificate names as `previous`.
    pub fn previous(&self) -> Digest {
        self.own().map_or(Digest::ZERO, |own| own.value.forecast.digest())
    }

    /// Whether the view has no pending or dead operation: a fast operation may be tried.
    pub fn is_settled(&self) -> bool {
        self.view.pending.is_empty()
    }

    /// Uses up a number for an operation that begins.
    pub(crate) fn begin(&mut self) -> u64 {
        self.learned.clear();
        self.used += 1;
        self.used
    }

    /// Makes an accepted view the floor, which no later view may fall behind.
    pub(crate) fn accept(&mut self, shown: &View, merged: View, frontier: Frontier) {
        let (pending, aborted) = records(shown);
        self.element = Some(Forecast {
            file_system: self.epoch,
            device: self.device,
            vector: last_vector(shown),
            pending,
            aborted,
            voids: self.voids.clone(),
            ineffective: self.ineffective.clone(),
            certificate: Digest::ZERO,
            log: shown.log,
        });
        self.view = merged;
        self.frontier = frontier;
    }

    /// Appends this device's own operation to the log as this client knows it.
    pub(crate) fn append_own(&mut self, forecast: &Forecast) {
        self.frontier.append(leaf(forecast.certificate, forecast.digest()));
        self.view.log = self.frontier.head();
    }

    /// Puts this device's own structure into its slot: the server says it is committed.
    pub(crate) fn commit_own(&mut self, structure: Signed<Structure>, receipt: Option<Signed<Receipt>>) {
        let number = structure.value.number();
        self.offered.retain(|&offered, _| offered >= number);
        self.view.pending.retain(|entry| entry.certificate.value.device != self.device);
        self.view.slots.insert(self.device, structure);
        self.receipt = receipt;
    }

    /// Adopts a structure that was pending in the last accepted view and is now committed; this ends a
    /// read-after-write wait. From then on no server can present it as aborted (trace T9).
    ///
    /// # Errors
    /// [`Alarm`]: it is not the announced structure (trace T5), its signature is bad, or its device is no
    /// member.
    pub fn learn(&mut self, members: &dyn Members, structure: Signed<Structure>) -> Result<(), Alarm> {
        crate::check::learn(self, members, structure)
    }

    /// The place in the log from which consistency is to be proven.
    pub fn log(&self) -> LogHead {
        self.frontier.head()
    }

    /// Adopts a list of server keys.
    ///
    /// # Errors
    /// [`Alarm::Malformed`]: the superuser did not sign it, it is of another file system, or it is older than
    /// the present list.
    pub fn learn_server_keys(&mut self, keys: Signed<ServerKeys>) -> Result<(), Alarm> {
        let known = self.server_keys.as_ref().map_or(0, |known| known.value.sequence);
        let offence = if keys.value.file_system != self.file_system() {
            "the list of server keys is another file system's".to_owned()
        } else if !keys.verify(&self.superuser) {
            "the list of server keys is not signed by the superuser".to_owned()
        } else if self.server_keys.as_ref().is_some_and(|known| *known == keys) {
            return Ok(());
        } else if keys.value.sequence <= known && known > 0 {
            format!("the list of server keys is number {}, number {known} was seen", keys.value.sequence)
        } else {
            self.server_keys = Some(keys);
            return Ok(());
        };
        Err(Alarm::Malformed { device: None, what: offence })
    }

    /// Whether `receipt` is a listed server's promise for `structure`.
    pub fn accepts_receipt(&self, receipt: &Signed<Receipt>, structure: &Structure) -> bool {
        structure.device() == self.device && self.is_promised(receipt, structure)
    }

    /// Whether `receipt` is a listed server's promise that `structure` is committed.
    pub fn is_promised(&self, receipt: &Signed<Receipt>, structure: &Structure) -> bool {
        let expected = Receipt {
            file_system: self.epoch,
            device: structure.device(),
            number: structure.number(),
            structure: structure.digest(),
        };
        receipt.value == expected
            && self
                .server_keys
                .as_ref()
                .is_some_and(|list| list.value.keys.iter().any(|key| receipt.verify(key)))
    }
}
