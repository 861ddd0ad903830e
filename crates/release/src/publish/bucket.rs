//! A prefix of a bucket as the place of a release: the copy of it on this machine, in which a publisher makes the next
//! release as in any directory, and from which that is sent.
//!
//! The copy is made again from the bucket where it is missing, so it may be removed; then all of the release is fetched
//! once.

use super::compose::lock;
use super::publication::PublicationError;
use crate::accept::ExpiredPolicy;
use crate::admit::admit;
use crate::keys::{KeyChain, ReleaseId};
use crate::layout;
use crate::mirror::{Http, Mirror};
use crate::open::{Options, now_s};
use crate::publish::PublishError;
use crate::pull::{self, PullOptions, pull};
use crate::release_dir::{ReleaseDir, ReleaseDirError};
use crate::send::{self, BucketContents, BucketTrust, FirstKeySet, SendOptions, send};
use crate::trust::Trust;
use holdfast_crypto::{DigestKey, Domain, KeyHolder};
use holdfast_log::FileLock;
use holdfast_tiered::{BucketAddress, S3};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Connections by which the copy is fetched.
const CONNECTIONS: usize = 4;

/// A prefix of a bucket, locked against other processes of this machine, and what this machine has of it.
pub struct BucketTarget {
    bucket: S3,
    mirror: Arc<dyn Mirror>,
    /// Holds the copy and what is remembered.
    base: PathBuf,
    /// What this machine remembers of releases that it has read.
    trust: PathBuf,
    _lock: FileLock,
}

/// How a release is sent to a bucket.
#[derive(Clone, Copy, Debug)]
pub struct SendingOptions {
    /// How long what no release needs any more stays, in seconds, for those who still read by an older index.
    pub window_s: u64,
    /// How far the bucket's listing is trusted.
    pub belief: BucketTrust,
    /// How many files are sent at once.
    pub connections: usize,
}

impl BucketTarget {
    /// The prefix at an address. Its copy lies below `folder`, which is this user's alone, and what is remembered of
    /// releases in `trust`. Nothing is asked yet.
    ///
    /// # Errors
    /// It is no address, or another process of this machine works on it.
    pub fn open(address: &str, folder: &Path, trust: PathBuf) -> Result<BucketTarget, PublicationError> {
        let mirror = Http::of_bucket(address).map_err(|error| PublicationError::Address(error.why))?;
        let parsed: Result<BucketAddress, _> = address.parse();
        let address = parsed.map_err(|error| PublicationError::Address(error.to_string()))?;
        let named = format!("{}\0{}", address.place(), address.endpoint.as_deref().unwrap_or(""));
        let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, named.as_bytes());
        let base = folder.join(digest.to_string());
        holdfast_durable::make_directory(&base, 0o700).map_err(|error| PublishError::local(&base, &error))?;
        let lock = lock(&base)?;
        Ok(BucketTarget { bucket: S3::new(&address), mirror: Arc::new(mirror), base, trust, _lock: lock })
    }

    /// The address, for people.
    pub fn name(&self) -> String {
        self.bucket.address().to_string()
    }

    /// Where everybody can read it, if that is allowed.
    pub fn url(&self) -> String {
        self.bucket.address().url()
    }

    /// The copy of its release on this machine; may not be there.
    pub fn copy(&self) -> PathBuf {
        self.base.join("release")
    }

    /// Makes sure that the bucket holds no release but this one.
    ///
    /// # Errors
    /// It does, or cannot be asked.
    pub fn no_other(&self, id: ReleaseId) -> Result<(), PublicationError> {
        Ok(BucketContents::look(&self.bucket)?.no_other(&self.bucket, id)?)
    }

    /// Brings the copy up to date where the bucket has more, for somebody who signs with `signers`. Returns what people
    /// should be told.
    ///
    /// # Errors
    /// The bucket cannot be asked, or holds a release that is not these people's, or an older one than was seen.
    pub fn bring(
        &self,
        signers: &[Arc<dyn KeyHolder>],
        progress: &(dyn Fn(pull::Progress) -> bool + Sync),
    ) -> Result<Option<String>, PublicationError> {
        let contents = BucketContents::look(&self.bucket)?;
        let own = self.own()?;
        let FirstKeySet::Release(id) = contents.first else {
            let had_one = own.is_some_and(|(_, sequence)| sequence.is_some());
            let is_lost = had_one && contents.first == FirstKeySet::Nothing;
            return Ok(
                is_lost.then(|| format!("{} had nothing of the release: all of it was sent", self.name()))
            );
        };
        if let Some((chain, sequence)) = &own {
            contents.no_other(&self.bucket, chain.id())?;
            let next = layout::keys(chain.current().number + 1);
            if contents.sequence() <= *sequence && !contents.names.contains_key(&next) {
                return Ok(None);
            }
        }
        // One that has expired is what is published anew.
        let options = Options {
            id,
            trust: self.trust.clone(),
            revocations: Vec::new(),
            stale: ExpiredPolicy::Allow,
            cache: None,
            memory_bytes: 0,
        };
        let memory = Trust::open(&options.trust, id)?;
        let admitted = admit(&memory, &*self.mirror, &[], now_s(), options.stale)
            .map_err(|error| PublicationError::NotAdmitted(Box::new(error)))?;
        let may_sign = &admitted.chain.current().role.keys;
        if !signers.iter().any(|signer| may_sign.contains(&signer.public())) {
            return Err(PublicationError::NotYours { bucket: self.name(), id });
        }
        let copy = self.copy();
        let options_of_pull = PullOptions {
            target: &copy,
            keep: usize::MAX,
            from: &[],
            quick: own.is_some(),
            connections: CONNECTIONS,
        };
        let report = pull(&options, vec![self.mirror.clone()], &options_of_pull, progress)?;
        Ok(Some(format!(
            "release {} was fetched from the bucket first ({} bytes), since this machine did not have it",
            report.sequence, report.bytes_fetched
        )))
    }

    /// Keys and number of the release of the copy.
    fn own(&self) -> Result<Option<(KeyChain, Option<u64>)>, PublicationError> {
        let dir = ReleaseDir::new(&self.copy());
        let damaged = |error: ReleaseDirError| PublicationError::Copy {
            copy: self.copy(),
            error: Box::new(error.into()),
        };
        match dir.chain() {
            Err(ReleaseDirError::Missing(_)) => Ok(None),
            Err(error) => Err(damaged(error)),
            Ok(chain) => {
                let sequence = dir.root(&chain).map_err(damaged)?.map(|root| root.record.value.sequence);
                Ok(Some((chain, sequence)))
            }
        }
    }

    /// Makes the bucket what a directory is.
    ///
    /// # Errors
    /// The bucket has the release that it had.
    pub fn send(
        &self,
        folder: &Path,
        sending: &SendingOptions,
        progress: &(dyn Fn(send::Progress) -> bool + Sync),
    ) -> Result<send::Report, PublicationError> {
        let options = SendOptions {
            folder,
            memory: &self.base.join("unneeded"),
            window_s: sending.window_s,
            now_s: now_s(),
            belief: sending.belief,
            connections: sending.connections,
        };
        Ok(send(&self.bucket, &options, progress)?)
    }

    /// Reads the release back as its readers do, so that this machine notices for ever if an older one is put there.
    ///
    /// # Errors
    /// What a reader would be told.
    pub fn read_back(&self, id: ReleaseId) -> Result<(), PublicationError> {
        let memory = Trust::open(&self.trust, id)?;
        admit(&memory, &*self.mirror, &[], now_s(), ExpiredPolicy::Allow)
            .map(drop)
            .map_err(|error| PublicationError::NotAdmitted(Box::new(error)))
    }
}
