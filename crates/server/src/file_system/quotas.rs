//! Quotas: how much each user may be charged for (SUNDR section 4). The store counts the bytes of each
//! device. This module knows which devices are one user's, and the user's limit: the lower one of those set
//! in the membership in force, which the superuser signs, and by this server's operator.

use super::FileSystem;
use crate::refusal::RequestError;
use holdfast_content::{DeviceId, Membership, UserId};
use holdfast_protocol::message::Usage;
use holdfast_store::{Allowance, Charge};
use std::collections::BTreeSet;

/// This part of a limit is added to it for tables and directories, without which nothing can be deleted...
const RESERVE_PART: u64 = 16;
/// ... but at least and at most so many bytes.
const RESERVE_BYTES: std::ops::RangeInclusive<u64> = 1 << 20..=64 << 20;
/// A user who uses more than this percentage of the limit counts as near it.
const NEAR_PERCENT: u64 = 75;

impl FileSystem {
    /// How much the user of a device may store; `None` if there is no limit.
    pub(crate) fn allowance(&self, device: DeviceId) -> Option<Allowance> {
        let ledger = self.ledger.lock();
        let members = ledger.sequencer().membership();
        let user = members.devices.get(&device)?.user;
        let bytes = self.limit(members, user)?;
        let reserve = (bytes / RESERVE_PART).clamp(*RESERVE_BYTES.start(), *RESERVE_BYTES.end());
        Some(Allowance { devices: devices_of(members, user), bytes, reserve })
    }

    /// Devices of users who are near their limits.
    pub(crate) fn near_limits(&self) -> Result<BTreeSet<DeviceId>, RequestError> {
        let limited: Vec<(Vec<DeviceId>, u64)> = {
            let ledger = self.ledger.lock();
            let members = ledger.sequencer().membership();
            let limits = members.users.keys().map(|user| (*user, self.limit(members, *user)));
            limits.filter_map(|(user, limit)| Some((devices_of(members, user), limit?))).collect()
        };
        let mut near = BTreeSet::new();
        for (devices, limit) in limited {
            if self.resources.blocks.charged(self.id, &devices)?.bytes > limit / 100 * NEAR_PERCENT {
                near.extend(devices);
            }
        }
        Ok(near)
    }

    /// What the user of a device is charged for. For the superuser, what every user is charged for.
    pub(crate) fn usage(&self, device: DeviceId) -> Result<Vec<Usage>, RequestError> {
        let users: Vec<(UserId, Vec<DeviceId>, Option<u64>)> = {
            let ledger = self.ledger.lock();
            let members = ledger.sequencer().membership();
            let asks = members.devices.get(&device).map(|device| device.user);
            let may_see = |user: &&UserId| asks == Some(**user) || asks == Some(UserId::SUPERUSER);
            let users = members.users.keys().filter(may_see);
            users.map(|user| (*user, devices_of(members, *user), self.limit(members, *user))).collect()
        };
        // The figures of all users are computed exactly; those of one user are requested often, so they are
        // not.
        let exact = if users.len() > 1 { Some(self.resources.blocks.charges(self.id)?) } else { None };
        let charge = |devices: &[DeviceId]| match &exact {
            Some(charges) => Ok(devices.iter().filter_map(|device| charges.get(device).copied()).sum()),
            None => self.resources.blocks.charged(self.id, devices),
        };
        let mut heads = Vec::with_capacity(users.len());
        for (user, devices, limit) in users {
            let Charge { blocks, bytes } = charge(&devices)?;
            heads.push(Usage { user, blocks, bytes, limit });
        }
        Ok(heads)
    }

    fn limit(&self, members: &Membership, user: UserId) -> Option<u64> {
        let signed = members.quotas.get(&user).copied();
        signed.into_iter().chain(self.resources.settings.user_quota).min()
    }
}

/// All devices of a user, even removed ones: what they stored is charged to the user.
fn devices_of(members: &Membership, user: UserId) -> Vec<DeviceId> {
    members.devices.iter().filter(|(_, device)| device.user == user).map(|(id, _)| *id).collect()
}
