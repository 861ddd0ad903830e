//! The mapping of owners, from the names in the settings to users and groups of the membership.

use crate::mounts::settings::MountSettings;
use holdfast_client::files::{OwnerMap, UnmappedOwner};
use holdfast_content::Membership;
use holdfast_failure::{Exit, Failure, Outcome};
use std::collections::BTreeMap;

/// The owners that a mount reports for files.
///
/// # Errors
/// A name does not exist, or two names have the same local user or group: changes of owner would be
/// ambiguous.
pub fn of(membership: &Membership, settings: &MountSettings) -> Outcome<OwnerMap> {
    let users =
        membership.users.iter().filter(|(_, user)| !user.removed).map(|(id, user)| (&*user.name, *id));
    let groups =
        membership.groups.iter().filter(|(_, group)| !group.removed).map(|(id, group)| (&*group.name, *id));
    Ok(OwnerMap {
        users: map("user", &users.collect(), &settings.map_user)?,
        groups: map("group", &groups.collect(), &settings.map_group)?,
        unmapped: if settings.ignore_unmapped { UnmappedOwner::Ignore } else { UnmappedOwner::Refuse },
    })
}

fn map<Id: Copy + Ord>(
    what: &str,
    known: &BTreeMap<&str, Id>,
    wanted: &[(String, u32)],
) -> Outcome<BTreeMap<Id, u32>> {
    let mut map = BTreeMap::new();
    for (name, local) in wanted {
        let Some(id) = known.get(&**name) else {
            let names: Vec<&str> = known.keys().copied().collect();
            let message = format!("--map-{what} {name}={local}: the file system has no {what} of that name");
            return Err(Failure::new(Exit::Usage, message).hint(format!("it has: {}", names.join(", "))));
        };
        if map.values().any(|other| other == local) {
            let message = format!("--map-{what} {name}={local}: {local} stands for another {what} already");
            return Err(Failure::new(Exit::Usage, message));
        }
        map.insert(*id, *local);
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_content::UserId;
    use holdfast_crypto::SigningKey;

    /// Proves: names are found, and impossible mappings are refused with a list of the names that exist.
    #[test]
    fn names_are_found() {
        let membership = Membership::founding("fs", "root", SigningKey::from_seed(&[1; 32]).public());
        let settings = |map_user: &[(&str, u32)], map_group: &[(&str, u32)]| MountSettings {
            directory: "/x".into(),
            allow_other: false,
            read_only: false,
            no_exec: false,
            callers: None,
            local_locks: false,
            write_back_bytes: None,
            gather: false,
            map_user: map_user.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect(),
            map_group: map_group.iter().map(|(name, id)| ((*name).to_owned(), *id)).collect(),
            ignore_unmapped: true,
            witnesses: None,
            peers: None,
        };
        let map = of(&membership, &settings(&[("root", 5)], &[])).unwrap();
        assert_eq!((map.users, map.unmapped), ([(UserId::SUPERUSER, 5)].into(), UnmappedOwner::Ignore));
        let failure = of(&membership, &settings(&[("rot", 5)], &[])).unwrap_err();
        assert!(failure.message.contains("rot=5") && failure.hint.unwrap().contains("root"));
        assert!(of(&membership, &settings(&[], &[("root", 5)])).is_err());
        assert!(of(&membership, &settings(&[("root", 5), ("root", 5)], &[])).is_err());
    }
}
