//! Removes files of this user and its groups that have no name any more.
//!
//! A member who may write a directory may remove any name in it, but not a file of another owner (SUNDR 4).
//! So each owner looks from time to time for files that no directory names, and removes them. A view as a
//! whole proves that nothing names a file ([`crate::tree::survey()`]). The file's i-hash at the removal's
//! place in the order proves that it got no name since, because links are counted in the inode.

use super::Engine;
use crate::error::FsError;
use crate::interrupt;
use crate::tree::{Base, Changes, UnreferencedFile, survey};
use holdfast_content::{BlockSource, Handle};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Most files removed in one operation.
const BATCH: usize = 200;
/// How often a view is fetched to find one in which nothing is pending.
const TRIES: u32 = 50;

/// A file that had no name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReclaimedFile {
    /// Its inode number.
    pub ino: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The result of a search for files without a name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReclaimReport {
    /// Number of inodes examined.
    pub inodes: u64,
    /// Files without a name that were removed (or would be, in a dry run).
    pub files: Vec<ReclaimedFile>,
    /// Directories without a name that have names in them. They are left alone, since the files in them would
    /// be lost.
    pub detached: Vec<u64>,
}

impl Engine {
    /// Removes files of this user and its groups that nothing names and that are not `in_use`. `None`: the
    /// file system has more than `inodes_max` inodes, or operations are always pending.
    ///
    /// # Errors
    /// Any error of reading: then nothing is removed. [`FsError::Unreachable`], [`FsError::Frozen`].
    pub fn reclaim(
        &self,
        dry_run: bool,
        inodes_max: u64,
        in_use: &dyn Fn(Handle) -> bool,
    ) -> Result<Option<ReclaimReport>, FsError> {
        let Some(base) = self.at_rest()? else { return Ok(None) };
        let mine = |principal| base.membership.may_write(base.me, principal);
        let goes_on = || !interrupt::is_raised() && self.shared.check().is_ok();
        let found = survey(&base, inodes_max, &mine, &goes_on)
            .map_err(|error| self.shared.explain(None, None, &error, &base))?;
        let Some(found) = found else { return Ok(None) };
        let (detached, files): (Vec<UnreferencedFile>, Vec<UnreferencedFile>) =
            found.unreferenced.into_iter().filter(|one| !in_use(one.file)).partition(|one| one.holds_names);
        let number = |one: &UnreferencedFile| one.file.inode_number();
        let mut reclaimed = ReclaimReport {
            inodes: found.inodes,
            files: Vec::new(),
            detached: detached.iter().filter_map(number).collect(),
        };
        for batch in files.chunks(BATCH) {
            let removed = if dry_run { batch.to_vec() } else { self.remove_unnamed(batch)? };
            let shown = |one: &UnreferencedFile| Some(ReclaimedFile { ino: number(one)?, bytes: one.bytes });
            reclaimed.files.extend(removed.iter().filter_map(shown));
        }
        Ok(Some(reclaimed))
    }

    /// Fetches a view in which nothing is pending and no file is withheld: all of it can be read without
    /// waiting, and it does not change. `None`: operations are always pending.
    ///
    /// # Errors
    /// [`FsError::Unreachable`], [`FsError::Frozen`].
    pub fn at_rest(&self) -> Result<Option<Arc<Base>>, FsError> {
        for _ in 0..TRIES {
            let base = self.fetch_everything()?.settled();
            if base.is_some() || interrupt::is_raised() {
                return Ok(base);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(None)
    }

    fn remove_unnamed(&self, batch: &[UnreferencedFile]) -> Result<Vec<UnreferencedFile>, FsError> {
        let batch = batch.to_vec();
        let result: Arc<Mutex<Vec<UnreferencedFile>>> = Arc::default();
        let (removed, key) = (result.clone(), self.store().digest_key());
        let edit = move |changes: &mut dyn Changes| {
            let mut done = Vec::new();
            for one in &batch {
                let inode = match changes.inode(one.file) {
                    Err(FsError::NotFound) => continue,
                    other => other?,
                };
                let ihash = inode.ihash(&key);
                if ihash.is_ok_and(|ihash| ihash == one.ihash) {
                    changes.remove_inode(one.file)?;
                    done.push(*one);
                }
            }
            *removed.lock() = done;
            Ok(())
        };
        self.modify(Arc::new(Mutex::new(edit)))?;
        Ok(std::mem::take(&mut *result.lock()))
    }
}
