//! The membership, within an operation that may change it.

use super::base::{Base, ReadError};
use super::layer::{Explain, Layer, PlanSink};
use crate::error::FsError;
use holdfast_content::{Membership, PrincipalId, Tag};
use holdfast_crypto::Signature;
use holdfast_protocol::order::last_vector;
use holdfast_protocol::structure::HandleVersion;
use holdfast_protocol::warrant::Change;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The membership, as an operation of the engine is about to leave it.
pub struct MembershipChanges<'a> {
    pub(super) base: &'a Base,
    pub(super) explain: Explain<'a>,
    pub(super) edit: &'a mut Layer,
    pub(super) conflicts: &'a mut BTreeSet<Tag>,
    pub(super) sink: &'a mut PlanSink,
}

impl MembershipChanges<'_> {
    /// The membership in force, with the version that a changed one must have: the order gives a version to
    /// every operation that declares a change, whether it takes effect or not.
    pub fn next(&self) -> Membership {
        let mut next = Membership::clone(&self.base.membership);
        next.version = self.next_version();
        next
    }

    /// The membership in force, with its version.
    ///
    /// # Errors
    /// [`FsError::NotFound`] before the founding operation.
    pub fn present(&self) -> Result<(HandleVersion, Arc<Membership>), FsError> {
        let handle = self.in_force().ok_or(FsError::NotFound)?;
        Ok((handle, self.base.membership.clone()))
    }

    /// Replaces the membership; only for device 0. The new one must be made from [`MembershipChanges::next`].
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::Invalid`] if it may not follow the present one.
    pub fn set(&mut self, mut membership: Membership) -> Result<(), FsError> {
        if !self.base.membership.may_write(self.base.me, PrincipalId::Members) {
            return Err(FsError::not_writable(PrincipalId::Members));
        }
        // The founding operation has no membership before it.
        if self.in_force().is_some() {
            let version = membership.version;
            membership = self.base.membership.succeeded_by(membership, version);
            self.must_follow(&membership)?;
        }
        self.stage(membership)
    }

    /// Replaces the membership by one that the superuser has signed off line. The operation must change
    /// nothing else.
    ///
    /// # Errors
    /// [`FsError::Expired`] if another change came between, [`FsError::Invalid`] if it may not follow,
    /// [`FsError::NotPermitted`] if this device is removed by it.
    pub fn enact(&mut self, change: &Change, signature: Signature) -> Result<(), FsError> {
        let present = self.in_force();
        let follows = (change.version, change.follows);
        if present.is_none_or(|present| (present.version, present.reference.address) != follows) {
            return Err(FsError::Expired(format!(
                "the membership has changed: this change was signed to follow version {}, and version {} is in force",
                change.version,
                present.map_or(0, |present| present.version)
            )));
        }
        let membership = change.enacted(self.next_version(), signature);
        self.must_follow(&membership)?;
        if !membership.is_active(self.base.me) {
            let why = "this device is itself removed by the change; submit it from another";
            return Err(FsError::NotPermitted(why.to_owned()));
        }
        self.stage(membership)
    }

    /// Reads from the view as it is before this operation. The read is not recorded, so anything based on it
    /// must be read again through [`super::Changes`].
    pub(crate) fn read_base<T>(
        &self,
        read: impl FnOnce(&Base) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        read(self.base).map_err(|error| (self.explain)(None, &error))
    }

    fn in_force(&self) -> Option<HandleVersion> {
        self.base.view.handle(PrincipalId::Members).map(|(_, handle)| handle)
    }

    fn next_version(&self) -> u64 {
        last_vector(&self.base.view).get(PrincipalId::Members) + 1
    }

    fn must_follow(&self, membership: &Membership) -> Result<(), FsError> {
        let checked = self.base.membership.validate_successor(membership);
        checked.map_err(|why| FsError::Invalid(why.to_string()))
    }

    fn stage(&mut self, membership: Membership) -> Result<(), FsError> {
        self.conflicts.extend(self.base.touches.members());
        let reference = membership.store(self.sink).map_err(|why| FsError::Invalid(why.to_string()))?;
        self.edit.members = Some((reference, Arc::new(membership)));
        Ok(())
    }
}
