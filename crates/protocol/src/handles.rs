//! The rule for i-handles in a structure: one function that client and server share.
//!
//! A structure holds its device's own i-handle at its own number, and each table that the operation advances
//! at the vector's version. It repeats unchanged the tables that its device advanced earlier and no other
//! device has advanced since.

use crate::certificate::Certificate;
use crate::structure::{Forecast, HandleVersion, Structure, View};
use holdfast_content::{DeviceId, PrincipalId, Reference};
use std::collections::BTreeMap;

/// How a structure breaks the rule for i-handles.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Offence {
    /// The structure advances a table that its device may not write.
    Unauthorised(PrincipalId),
    /// The structure has a wrong table, or lacks one.
    Wrong(PrincipalId, &'static str),
}

/// Checks the i-handles of `structure`, which follows `former` of the same device.
///
/// `announced` is its certificate, if it is known; `may_write` judges tables that are not repeated from
/// `former`.
pub(crate) fn check(
    structure: &Structure,
    former: Option<&Structure>,
    announced: Option<&Certificate>,
    view: &View,
    may_write: &dyn Fn(PrincipalId) -> bool,
) -> Result<(), Offence> {
    let own = PrincipalId::Device(structure.device());
    let carried = |principal: &PrincipalId| former.and_then(|former| former.handles.get(principal));
    for (&principal, handle) in &structure.handles {
        let before = carried(&principal);
        if before != Some(handle) && !may_write(principal) {
            return Err(Offence::Unauthorised(principal));
        }
        if handle.version == 0 || handle.version > structure.forecast.vector.get(principal) {
            return Err(Offence::Wrong(principal, "its version is not within the version vector"));
        }
        if before.is_some_and(|before| {
            before.version > handle.version || (before.version == handle.version && before != handle)
        }) {
            return Err(Offence::Wrong(principal, "it differs from the one carried before"));
        }
        let advanced = announced.is_none_or(|announced| announced.principals().contains(&principal));
        if !advanced && principal != own && before != Some(handle) {
            return Err(Offence::Wrong(principal, "the operation did not declare that it advances it"));
        }
    }
    if structure.handles.get(&own).is_some_and(|handle| handle.version != structure.number()) {
        return Err(Offence::Wrong(own, "its version is not the operation's number"));
    }
    for (&principal, before) in former.iter().flat_map(|former| &former.handles) {
        if !structure.handles.contains_key(&principal)
            && !superseded(view, structure.device(), principal, before)
        {
            return Err(Offence::Wrong(principal, "it is missing, though nobody else has advanced it since"));
        }
    }
    for principal in announced.into_iter().flat_map(Certificate::principals) {
        let version = structure.forecast.vector.get(principal);
        if structure.handles.get(&principal).is_none_or(|handle| handle.version != version) {
            return Err(Offence::Wrong(principal, "the operation declared that it advances it"));
        }
    }
    Ok(())
}

/// Whether a device other than `own` has committed a newer table of `principal`.
pub(crate) fn superseded(view: &View, own: DeviceId, principal: PrincipalId, before: &HandleVersion) -> bool {
    let newer = |handle: &HandleVersion| handle.version > before.version;
    view.slots
        .iter()
        .any(|(device, slot)| *device != own && slot.value.handles.get(&principal).is_some_and(newer))
}

/// The i-handles of a new structure. `tables` holds the new tables of the device and of each principal that
/// `declared` advances (a device that changed nothing of its own may leave its own out). The error is the
/// principal whose table is missing or must not be advanced.
pub(crate) fn assemble(
    forecast: &Forecast,
    declared: &Certificate,
    former: Option<&Structure>,
    view: &View,
    tables: &BTreeMap<PrincipalId, Reference>,
) -> Result<BTreeMap<PrincipalId, HandleVersion>, PrincipalId> {
    let own = PrincipalId::Device(forecast.device);
    let advanced = declared.principals();
    if let Some(stray) = tables.keys().find(|principal| **principal != own && !advanced.contains(principal)) {
        return Err(*stray);
    }
    let mut handles = BTreeMap::new();
    for (&principal, before) in former.iter().flat_map(|former| &former.handles) {
        if !superseded(view, forecast.device, principal, before) {
            handles.insert(principal, *before);
        }
    }
    for principal in advanced {
        let reference = *tables.get(&principal).ok_or(principal)?;
        handles.insert(principal, HandleVersion { version: forecast.vector.get(principal), reference });
    }
    let carried = handles.get(&own).map(|handle| handle.reference);
    if let Some(reference) = tables.get(&own).copied().or(carried) {
        handles.insert(own, HandleVersion { version: forecast.number(), reference });
    }
    Ok(handles)
}
