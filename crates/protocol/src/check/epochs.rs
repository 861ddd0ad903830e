//! The first check: a view must be of the epoch that this device has adopted.

use crate::alarm::Alarm;
use crate::epoch::{Epochs, are_declared};
use crate::floor::Floor;
use crate::members::Members;
use crate::structure::View;
use holdfast_content::PrincipalId;

/// The epochs named by the view's membership.
///
/// # Errors [`Alarm::Restored`]: a restore was declared that this device has not adopted yet.
/// [`Alarm::EpochWentBack`].
pub(super) fn check(floor: &Floor, members: &dyn Members, view: &View) -> Result<Epochs, Alarm> {
    let restores = members.restores();
    let epochs = Epochs::of(floor.file_system(), restores);
    let known = floor.view.handle(PrincipalId::Members);
    if known.is_none() || known != view.handle(PrincipalId::Members) {
        if !are_declared(&floor.superuser, restores) {
            let what = "it tells of a restore that its superuser has not declared".to_owned();
            return Err(Alarm::Malformed { device: None, what });
        }
        if epochs.latest() != floor.epoch {
            return Err(match epochs.left_of(&floor.epoch) {
                Some(left) => Alarm::Restored { size: left.size },
                None => Alarm::EpochWentBack,
            });
        }
    }
    Ok(epochs)
}
