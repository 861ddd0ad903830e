//! The contents of a bucket. They are trusted no more than a mirror's: files that are not signed by the
//! release's keys are ignored.

use super::{SendError, found, id_of, is_signed, parsed};
use crate::keys::{KeyChain, ReleaseId, SignedKeySet};
use crate::layout;
use crate::record::RootFile;
use holdfast_crypto::Digest;
use holdfast_tiered::{Bucket, S3};
use std::collections::BTreeMap;

/// The files of a release that a bucket has.
pub struct BucketContents {
    /// All files and their lengths, as listed.
    pub names: BTreeMap<String, u64>,
    /// The first key set in the bucket, which identifies the release.
    pub first: FirstKeySet,
    /// The content of the file `root`.
    pub root: Option<Vec<u8>>,
}

/// The first key set in a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstKeySet {
    /// The bucket has no key set.
    Nothing,
    /// The key set of a release.
    Release(ReleaseId),
    /// A file that is not a valid key set.
    Damaged,
}

impl BucketContents {
    /// Lists the bucket. A bucket that does not answer is not retried: most often its address is wrong.
    ///
    /// # Errors
    /// [`SendError`]: the bucket does not answer or refuses, or has a file that belongs to no release.
    pub fn look(bucket: &S3) -> Result<BucketContents, SendError> {
        let names: BTreeMap<String, u64> =
            bucket.list("")?.into_iter().map(|listed| (listed.name, listed.length)).collect();
        if let Some(name) = names.keys().find(|name| !is_of_release(name)) {
            let why = format!("{name} is there, which is no file of a release");
            return Err(SendError::Foreign { bucket: bucket.describe(), why });
        }
        let first = found(bucket, &layout::keys(1))?;
        let first = match (&first, parsed::<SignedKeySet>(first.as_deref())) {
            (None, _) => FirstKeySet::Nothing,
            (Some(_), Some(set)) => FirstKeySet::Release(id_of(&set)),
            (Some(_), None) => FirstKeySet::Damaged,
        };
        Ok(BucketContents { names, first, root: found(bucket, layout::ROOT)? })
    }

    /// The sequence number in the bucket's `root`, unchecked.
    pub fn sequence(&self) -> Option<u64> {
        parsed::<RootFile>(self.root.as_deref()).map(|file| file.record.value.sequence)
    }

    /// Refuses a bucket that has another release.
    ///
    /// # Errors
    /// [`SendError::Foreign`].
    pub fn no_other(&self, bucket: &S3, id: ReleaseId) -> Result<(), SendError> {
        match self.first {
            FirstKeySet::Release(other) if other != id => {
                let why = format!("it holds another release, {other}");
                Err(SendError::Foreign { bucket: bucket.describe(), why })
            }
            _ => Ok(()),
        }
    }

    /// The bucket's record, if it is signed by these keys. A damaged one counts as none, and is replaced.
    ///
    /// # Errors
    /// [`SendError`]: the record belongs to another release, or is signed by newer keys.
    pub(super) fn known(&self, bucket: &S3, chain: &KeyChain) -> Result<Option<RootFile>, SendError> {
        self.no_other(bucket, chain.id())?;
        let root = parsed::<RootFile>(self.root.as_deref());
        let number = chain.current().number;
        let is_newer =
            |root: &RootFile| root.record.value.release == chain.id() && root.record.value.key_set > number;
        if self.names.contains_key(&layout::keys(number + 1)) && root.as_ref().is_some_and(is_newer) {
            let why = format!("it has newer keys than key set {number}");
            return Err(SendError::Behind { bucket: bucket.describe(), why });
        }
        let known = root.filter(|root| is_signed(chain, root));
        match self.first {
            FirstKeySet::Damaged if known.is_none() => {
                let why = "what is there is damaged, or no release".to_owned();
                Err(SendError::Foreign { bucket: bucket.describe(), why })
            }
            _ => Ok(known),
        }
    }
}

/// Whether a file of a release can have this name.
fn is_of_release(name: &str) -> bool {
    let is_number = |text: &str| text.parse::<u64>().is_ok();
    match name.split_once('/') {
        None => name == layout::ROOT || name == layout::REVOKED,
        Some(("keys" | "records", rest)) => is_number(rest),
        Some(("packs" | "index" | "hints", rest)) => Digest::from_hex(rest).is_some(),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: files of the layout are a release's, and nothing else is.
    #[test]
    fn names_of_releases() {
        let digest = Digest([7; 32]);
        for name in
            ["root", "revoked", "keys/1", "records/12", &layout::pack(&digest), &layout::hints(&digest)]
        {
            assert!(is_of_release(name), "{name}");
        }
        for name in ["", "index.html", "owner", "keys/x", "packs/new-1-2", "segment-1", "packs/"] {
            assert!(!is_of_release(name), "{name}");
        }
    }
}
