//! A release in a bucket: a copy of it on this machine, in which the next release is made as in any
//! directory, and from which it is sent.
//!
//! The copy may be removed: it is then made again by fetching the whole release once.

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

/// Connections with which the copy is fetched.
const CONNECTIONS: usize = 4;

/// A prefix of a bucket, locked against other processes of this machine, and its copy.
pub struct BucketTarget {
    bucket: S3,
    mirror: Arc<dyn Mirror>,
    /// The directory of the copy and of what is remembered about the bucket.
    base: PathBuf,
    /// What this machine remembers of releases that it has read.
    trust: PathBuf,
    _lock: FileLock,
}

/// How a release is sent to a bucket.
#[derive(Clone, Copy, Debug)]
pub struct SendingOptions {
    /// How long files that no release needs any more stay, in seconds, for readers that still use an older
    /// index.
    pub window_s: u64,
    /// How far the bucket's listing is trusted.
    pub belief: BucketTrust,
    /// How many files are sent at once.
    pub connections: usize,
}

impl BucketTarget {
    /// The prefix at an address. Its copy is put below `folder`, which only this user may access, and what is
    /// remembered of releases into `trust`. No request is sent yet.
    ///
    /// # Errors
    /// The text is no address, or another process of this machine works on the prefix.
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

    /// The URL at which it can be read, if reading is public.
    pub fn url(&self) -> String {
        self.bucket.address().url()
    }

    /// The directory of the copy, which may not exist.
    pub fn copy(&self) -> PathBuf {
        self.base.join("release")
    }

    /// Makes sure that the bucket holds no release but this one.
    ///
    /// # Errors
    /// [`PublicationError`]: it holds another release, or cannot be reached.
    pub fn no_other(&self, id: ReleaseId) -> Result<(), PublicationError> {
        Ok(BucketContents::look(&self.bucket)?.no_other(&self.bucket, id)?)
    }

    /// Updates the copy if the bucket has a newer state, for a publisher that signs with `signers`. Returns a
    /// notice for people.
    ///
    /// # Errors
    /// The bucket cannot be reached, or holds a release that these keys may not sign, or one older than was
    /// seen before.
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
        // An expired release is accepted, because publishing renews it.
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

    /// Key sets and sequence number of the copy's release.
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

    /// Updates the bucket to what a directory has.
    ///
    /// # Errors
    /// [`PublicationError`]. The bucket then has the release that it had before.
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

    /// Reads the release back as readers do, so that this machine will detect it if an older one is ever put
    /// there.
    ///
    /// # Errors
    /// The error that a reader would get.
    pub fn read_back(&self, id: ReleaseId) -> Result<(), PublicationError> {
        let memory = Trust::open(&self.trust, id)?;
        admit(&memory, &*self.mirror, &[], now_s(), ExpiredPolicy::Allow)
            .map(drop)
            .map_err(|error| PublicationError::NotAdmitted(Box::new(error)))
    }
}
