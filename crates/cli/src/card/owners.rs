//! The owners of files on a card that is adopted: one user by default; others for the directories that are
//! named; and, if the card had owners before, those owners for files whose content is unchanged.

use super::failing::bad;
use super::sidecar::{Sidecar, read_record};
use super::starting::user;
use crate::volume::args::Adopt;
use holdfast_access::Principal;
use holdfast_daemon::volumes::folders::VolumeFolders;
use holdfast_daemon::volumes::media::{Medium, Untouched};
use holdfast_daemon::volumes::secret::Secret;
use holdfast_daemon::volumes::{anchor, opening};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::{Device, JoinedDevice};
use holdfast_policy::{BlockRange, Policy};
use holdfast_stack::{DiskLayout, OwnerOf, Survey};
use holdfast_volume::{BLOCK_BYTES, Header, Options, Volume, VolumeError};
use std::path::Path;
use std::sync::Arc;

/// Bytes compared at once.
const COMPARED_BYTES: u64 = 256 << 10;

/// The owners that the command line names.
pub(super) struct Owners {
    principals: Vec<Principal>,
    /// The partition (any if `None`), the directory in lower case, and the number of its owner.
    directories: Vec<(Option<u32>, String, u16)>,
}

/// A directory in the form in which it is compared: `/a/b`, in lower case, because FAT ignores case; the root
/// is empty.
fn normal(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    parts.fold(String::new(), |path, part| path + "/" + &part.to_lowercase())
}

impl Owners {
    /// # Errors
    /// A name is not valid.
    pub(super) fn new(arguments: &Adopt) -> Outcome<Owners> {
        let mut owners = Owners { principals: Vec::new(), directories: Vec::new() };
        owners.number(user(&arguments.user)?);
        for (partition, directory, name) in &arguments.owners {
            let number = owners.number(user(name)?);
            owners.directories.push((*partition, normal(directory), number));
        }
        // The longest matching path decides about a file's owner.
        owners.directories.sort_by_key(|(_, directory, _)| std::cmp::Reverse(directory.len()));
        Ok(owners)
    }

    fn number(&mut self, principal: Principal) -> u16 {
        let known = self.principals.iter().position(|known| *known == principal);
        known.unwrap_or_else(|| {
            self.principals.push(principal);
            self.principals.len() - 1
        }) as u16
    }

    pub(super) fn principals(&self) -> &[Principal] {
        &self.principals
    }

    /// A function that returns the owner of a path in a partition.
    pub(super) fn of(&self) -> OwnerOf {
        let directories = self.directories.clone();
        Arc::new(move |number, path| {
            let path = normal(path);
            let is_below = |(partition, directory, _): &&(Option<u32>, String, u16)| {
                let rest = path.strip_prefix(directory.as_str());
                partition.is_none_or(|partition| partition == number)
                    && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            directories.iter().find(is_below).map_or(0, |(_, _, owner)| *owner)
        })
    }
}

/// A card as it was at its last use, with the owners that it had.
pub(super) struct Before {
    volume: Volume,
    policy: Policy,
    place: DiskLayout,
}

/// Opens a card as it was at its last use, with its old sidecar. Neither the card nor the old policy table is
/// changed.
///
/// # Errors
/// The sidecar is damaged, older than this machine's anchor, or another card's.
pub(super) fn before(old: &Path, disk: &Medium, disk_bytes: u64, places: &VolumeFolders) -> Outcome<Before> {
    let files = Sidecar::new(old);
    let (policy, log) = (Medium::open(&files.policy)?, Medium::open(&files.log)?);
    let secret = Secret::read(&files.key)?;
    let claimed =
        Header::claimed_volume(&*log.device).ok_or_else(|| bad(&log.path, "this is no log of a volume"))?;
    let remembered = places.of(&claimed);
    let _lock = remembered.lock()?;
    let known = anchor::read(&remembered.anchor)?.ok_or_else(|| {
        let message = format!("{}: nothing is known here of how new it is", old.display());
        Failure::new(Exit::NotAllowed, message).hint("import its anchor; or do without --owners-from")
    })?;
    let joined: Arc<dyn Device> = Arc::new(JoinedDevice::new(
        Untouched::over(disk.device.clone()),
        disk_bytes,
        Untouched::over(policy.device.clone()),
    ));
    let key = secret.of(&claimed);
    let opened =
        Volume::open(joined, log.device.clone(), &key, Options::default(), Some(&known), opening::salt()?);
    let (volume, _) = opened?;
    // Opening has continued the log, so the anchor is updated.
    anchor::write(&remembered.anchor, &volume.anchor())?;
    let place = read_record(&volume, &policy.path)?
        .ok_or_else(|| bad(&policy.path, "says nothing of a card, so it had no owners"))?;
    let table = place.table.0;
    let read = |block: u64| {
        let mut bytes = Box::new([0; BLOCK_BYTES]);
        let read = volume.read(table + block * BLOCK_BYTES as u64, &mut bytes[..]);
        read.map(|()| bytes).map_err(|error| error.to_string())
    };
    let policy =
        Policy::open(place.disk(0), user("root")?, read).map_err(|error| bad(&policy.path, error))?;
    Ok(Before { volume, policy, place })
}

impl Before {
    /// Assigns files to their previous owners if their blocks have the same positions and content as before.
    /// Returns the number of runs of blocks.
    pub(super) fn keep(
        &self,
        owners: &mut Owners,
        place: &DiskLayout,
        surveys: &mut [Survey],
        now: &Volume,
    ) -> u64 {
        let mut kept = 0;
        for (at, survey) in surveys.iter_mut().enumerate() {
            let partition = &place.partitions[at];
            let Some(old) = self.place.find(partition.number) else { continue };
            if self.place.partitions[old] != *partition {
                continue;
            }
            let first = self.place.blocks(old).first;
            for (block, count, owner) in &mut survey.files {
                let Some(range) = BlockRange::new(first + *block, *count) else { continue };
                let Ok(label) = self.policy.region_policy(&[range]) else { continue };
                let is_users = matches!(label.owner, Principal::User(_) | Principal::Group(_));
                if is_users && self.is_same(partition, *block, *count, now) {
                    *owner = owners.number(label.owner.clone());
                    kept += 1;
                }
            }
        }
        kept
    }

    /// Whether blocks have their previous content. At the ends of a run, a volume's block of 4096 bytes may
    /// also contain others' bytes, so that a change there may be the neighbour's; then only the blocks in
    /// between decide.
    fn is_same(&self, partition: &holdfast_stack::Partition, block: u64, count: u64, now: &Volume) -> bool {
        let geometry = &partition.geometry;
        let (each, whole) = (u64::from(geometry.block_bytes), BLOCK_BYTES as u64);
        let start = partition.start + geometry.metadata_bytes + (block - geometry.metadata_blocks()) * each;
        let end = start + count * each;
        let inner = start.next_multiple_of(whole).min(end)..(end / whole * whole).max(start);
        let (mut is_known, mut at) = (true, start);
        while at < end {
            let is_inner = inner.contains(&at);
            let stop =
                if is_inner { inner.end.min(at + COMPARED_BYTES) } else { end.min((at / whole + 1) * whole) };
            let (mut old, mut new) = (vec![0; (stop - at) as usize], vec![0; (stop - at) as usize]);
            match (self.volume.read(at, &mut old), now.read(at, &mut new)) {
                (Ok(()), Ok(())) if old == new => {}
                (Err(VolumeError::BadBlock { .. }), Ok(())) if !is_inner => is_known = false,
                _ => return false,
            }
            at = stop;
        }
        is_known || inner.start < inner.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: the longest directory that fits says whose a file is, whatever the case; a name that only
    /// begins alike is another; a directory of one partition is none of another's.
    #[test]
    fn whose() {
        let owners = |list: &[(Option<u32>, &str, &str)]| {
            let list = list.iter().map(|(n, dir, user)| (*n, (*dir).to_owned(), (*user).to_owned()));
            let arguments = Adopt {
                device: "card".into(),
                sidecar: "card.d".into(),
                user: "alice".to_owned(),
                owners: list.collect(),
                anew: false,
                owners_from: None,
                signed_by: None,
            };
            Owners::new(&arguments).expect("names")
        };
        let some = owners(&[
            (None, "Photos", "bob"),
            (None, "/photos/Private/", "carol"),
            (Some(2), "music", "dave"),
            (None, "ÄPFEL", "bob"),
        ]);
        let of = some.of();
        let whose = |number: u32, path: &str| some.principals()[usize::from(of(number, path))].to_string();
        let cases = [
            (1, "/letter.txt", "alice"),
            (1, "/photos/a.jpg", "bob"),
            (1, "/PHOTOS/private/a.jpg", "carol"),
            (1, "/photosynthesis/a", "alice"),
            (1, "/music/a", "alice"),
            (2, "/music/a", "dave"),
            (1, "/äpfel/b", "bob"),
        ];
        for (number, path, user) in cases {
            assert_eq!(whose(number, path), format!("user:{user}"), "{number} {path}");
        }
        assert_eq!(some.principals().len(), 4);
        let all = owners(&[(None, "/", "bob")]);
        assert_eq!(all.of()(1, "/x"), 1);
    }
}
