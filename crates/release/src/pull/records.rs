//! The signed files of a mirror: what the directory has, what the source retains, and how they are put in
//! place.

use super::{PullError, put};
use crate::form::{self, Kind};
use crate::index::Index;
use crate::keys::{KeyChain, ReleaseId, SignedKeySet};
use crate::layout;
use crate::mirror::{Mirrors, Unavailable};
use crate::publish::PublishError;
use crate::publish::store::read_index;
use crate::record::{Location, RootFile, authenticate};
use crate::revocation::Revocation;
use crate::signing::Signable;
use crate::trust::Trust;
use std::fs;
use std::path::Path;

/// The names that may be in a directory that is pulled into.
const NAMES: [&str; 9] =
    ["root", "root.partial", "revoked", "revoked.partial", "keys", "records", "packs", "index", "hints"];

/// Refuses a directory that holds something other than this release.
pub fn no_other(target: &Path, id: ReleaseId) -> Result<(), PullError> {
    let foreign = |why: String| Err(PullError::Foreign { target: target.to_owned(), why });
    let failed = |error: std::io::Error| PublishError::local(target, &error);
    for entry in fs::read_dir(target).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if !NAMES.iter().any(|known| name == *known) {
            return foreign(format!("{} is there, which is no file of a release", name.display()));
        }
    }
    match read::<SignedKeySet>(target, &layout::keys(1)) {
        Some(first) if first.value.digest() != id.0 => {
            foreign(format!("it holds another release, {}", ReleaseId(first.value.digest())))
        }
        _ => Ok(()),
    }
}

/// A signed file, if it exists and is well formed.
fn read<T: Kind>(target: &Path, name: &str) -> Option<T> {
    let bytes = holdfast_durable::read(&target.join(name), T::BYTES_MAX).ok()??;
    form::read(&bytes).ok()
}

/// A record, if it exists and is signed by the release's keys.
fn signed(target: &Path, name: &str, chain: &KeyChain) -> Option<RootFile> {
    read::<RootFile>(target, name).filter(|file| authenticate(chain, file).is_ok())
}

/// The release that the directory has before it is updated. A damaged one counts as none, and is replaced.
pub struct LocalRelease(Option<RootFile>);

impl LocalRelease {
    /// Reads the release that the directory has.
    pub fn read(target: &Path, chain: &KeyChain) -> LocalRelease {
        LocalRelease(signed(target, layout::ROOT, chain))
    }

    /// The number of the release.
    pub fn sequence(&self) -> Option<u64> {
        self.0.as_ref().map(|file| file.record.value.sequence)
    }

    /// The index of the release.
    pub fn location(&self) -> Option<Location> {
        self.0.as_ref().map(|file| file.index)
    }

    /// The index of the release; `None` if it is damaged or missing.
    pub fn index(&self, target: &Path) -> Option<Index> {
        read_index(target, &self.location()?.digest).ok()
    }

    /// The root file to put in place: `new`, with the renewal that is there if that lasts longer.
    ///
    /// # Errors
    /// [`PullError::Behind`].
    pub fn not_older(&self, target: &Path, new: &RootFile) -> Result<RootFile, PullError> {
        let Some(old) = &self.0 else { return Ok(new.clone()) };
        let (there, found) = (&old.record.value, &new.record.value);
        let behind = |why: String| Err(PullError::Behind { target: target.to_owned(), why });
        if there.sequence > found.sequence {
            return behind(format!(
                "release {} is there, and the mirrors have no newer one than {}",
                there.sequence, found.sequence
            ));
        }
        if there.sequence < found.sequence {
            return Ok(new.clone());
        }
        if there != found {
            return behind(format!("another release {} is there than at the mirrors", there.sequence));
        }
        let end = |file: &RootFile| file.freshness.as_ref().map_or(0, |renewal| renewal.value.expires_s);
        let freshness = if end(old) > end(new) { &old.freshness } else { &new.freshness };
        Ok(RootFile { freshness: freshness.clone(), ..new.clone() })
    }
}

/// The retained records before `newest`, newest first, as the mirrors have them; at most `keep` including
/// that one. They find their blocks through its index, so an index of their own is not needed.
pub fn older(
    mirrors: &Mirrors,
    chain: &KeyChain,
    newest: u64,
    keep: usize,
) -> Result<Vec<RootFile>, Unavailable> {
    let mut found = Vec::new();
    for sequence in (1..newest).rev().take(keep.saturating_sub(1)) {
        let check = |bytes: Vec<u8>| {
            let file: RootFile = form::read(&bytes)?;
            authenticate(chain, &file)?;
            match file.record.value.sequence == sequence {
                true => Ok(file),
                false => Err(format!("it is record {}", file.record.value.sequence).into()),
            }
        };
        match mirrors.get_checked(&layout::record(sequence), None, RootFile::BYTES_MAX, &check) {
            Ok((file, _)) => found.push(file),
            Err(error) if error.missing_somewhere() => break,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Whether these records are in place. A record is put in place only after its tree was checked.
pub fn are_installed(target: &Path, chain: &KeyChain, records: &[RootFile]) -> bool {
    let is_here = |file: &RootFile| {
        let name = layout::record(file.record.value.sequence);
        signed(target, &name, chain).is_some_and(|there| there.record.value == file.record.value)
    };
    records.iter().all(is_here)
}

/// Puts keys, records and, at the end, `root` in place.
pub fn install(
    target: &Path,
    chain: &KeyChain,
    root: &RootFile,
    older: &[RootFile],
    step: &dyn Fn() -> Result<(), PullError>,
) -> Result<(), PullError> {
    for file in older {
        let name = layout::record(file.record.value.sequence);
        // A record in place may name another index, which a reader may be using now.
        let there = signed(target, &name, chain).filter(|there| there.record == file.record);
        let has_index = |there: &RootFile| read_index(target, &there.index.digest).is_ok();
        if there.as_ref().is_some_and(has_index) {
            continue;
        }
        step()?;
        let file = RootFile { index: root.index, hints: root.hints, ..file.clone() };
        put(target, &name, &form::write(&file))?;
    }
    // Keys are written this late because new keys invalidate the record that is in place.
    for set in chain.sets() {
        step()?;
        put(target, &layout::keys(set.value.number), &form::write(set))?;
    }
    step()?;
    put(target, &layout::record(root.record.value.sequence), &form::write(root))?;
    step()?;
    put(target, layout::ROOT, &form::write(root))?;
    step()
}

/// Copies a revocation that this machine remembers into the directory, if that is a mirror of the release.
pub fn install_revocation(trust: &Trust, target: &Path) -> Result<(), PullError> {
    let path = trust.directory().join("revoked");
    let certificate = holdfast_durable::read(&path, Revocation::BYTES_MAX)
        .map_err(|error| PublishError::local(&path, &error))?;
    if let (Some(certificate), true) = (certificate, target.join(layout::ROOT).exists()) {
        put(target, layout::REVOKED, &certificate)?;
    }
    Ok(())
}
