//! What the protocol needs to know of the membership: keys and rights.
//!
//! The membership block is content (`holdfast_content`). Its address is the i-handle of `Members` in the
//! superuser's slot, so it is signed by the one key that a client knows beforehand, and has a place in the
//! order. If another device's slot holds it, the block contains the superuser's signature
//! ([`crate::warrant`]). A driver loads the block named by [`crate::check::membership_wanted`] and passes it
//! to `check`.

use crate::warrant;
use holdfast_content::{DeviceId, Membership, PrincipalId, Restore, Warrant};
use holdfast_crypto::{Digest, PublicKey};

/// A device as the membership lists it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member {
    /// Its signing key.
    pub key: PublicKey,
    /// Version of [`PrincipalId::Members`] at which the device was removed.
    pub removed_at: Option<u64>,
}

/// A membership that was loaded through a verified reference.
pub trait Members {
    /// The version of [`PrincipalId::Members`] at which this membership was made.
    fn version(&self) -> u64;

    /// The device with this id, removed or not.
    fn member(&self, device: DeviceId) -> Option<Member>;

    /// Whether `device` may write what `principal` owns, or might do so at some version from `since` on. If
    /// `since` is [`Members::version`], only the present counts. If it is less, former members of a group
    /// count if they left it after `since`, since what they signed before stays valid.
    fn may_write(&self, device: DeviceId, principal: PrincipalId, since: u64) -> bool;

    /// The warrant that the superuser signed for it off-line, verified; `None` if there is none.
    fn warrant(&self, file_system: Digest, superuser: &PublicKey) -> Option<&Warrant>;

    /// The restores declared so far. Their signatures are not verified ([`crate::epoch::are_declared`]).
    fn restores(&self) -> &[Restore] {
        &[]
    }
}

impl Members for Membership {
    fn version(&self) -> u64 {
        self.version
    }

    fn member(&self, device: DeviceId) -> Option<Member> {
        let device = self.devices.get(&device)?;
        Some(Member { key: device.key, removed_at: device.removed_at })
    }

    fn may_write(&self, device: DeviceId, principal: PrincipalId, since: u64) -> bool {
        if let PrincipalId::Device(owner) = principal {
            return owner == device;
        }
        self.might_write(device, principal, since)
    }

    fn warrant(&self, file_system: Digest, superuser: &PublicKey) -> Option<&Warrant> {
        warrant::verified(file_system, superuser, self)
    }

    fn restores(&self) -> &[Restore] {
        &self.restores
    }
}
