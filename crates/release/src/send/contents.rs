//! The contents of a bucket. It is believed no more than any mirror: what is not signed by the release's keys does not
//! count.

use super::{SendError, found, id_of, is_signed, parsed};
use crate::keys::{KeyChain, ReleaseId, SignedKeySet};
use crate::layout;
use crate::record::RootFile;
use holdfast_crypto::Digest;
use holdfast_tiered::{Bucket, S3};
use std::collections::BTreeMap;

/// The files of a release that a bucket has.
pub struct BucketContents {
    /// All files and their lengths, as they are listed.
    pub names: BTreeMap<String, u64>,
    /// The first key set there, which tells whose release it is.
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
    /// Something that is no key set.
    Damaged,
}

impl BucketContents {
    /// Looks. A bucket that does not answer is not waited for: more often than not something is wrong with its address.
    ///
    /// # Errors
    /// [`SendError`]: it does not answer or refuses, or holds what is no file of a release.
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

    /// The number of the release that it claims to have.
    pub fn sequence(&self) -> Option<u64> {
        parsed::<RootFile>(self.root.as_deref()).map(|file| file.record.value.sequence)
    }

    /// Refuses what is another release's.
    ///
    /// # Errors
    /// [`SendError::Foreign`]
    pub fn no_other(&self, bucket: &S3, id: ReleaseId) -> Result<(), SendError> {
        match self.first {
            FirstKeySet::Release(other) if other != id => {
                let why = format!("it holds another release, {other}");
                Err(SendError::Foreign { bucket: bucket.describe(), why })
            }
            _ => Ok(()),
        }
    }

    /// The record that is there, if it is one of these keys'. What is damaged is none, and is replaced.
    ///
    /// # Errors
    /// [`SendError`]: it is another release's, or by newer keys.
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

/// Whether a file of a release is called so.
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
