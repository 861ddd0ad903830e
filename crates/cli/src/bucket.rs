//! A release in a bucket: what `holdfast release publish` and `holdfast release pull` do with an address of the form
//! `s3://BUCKET/PREFIX`.
//!
//! What is published is made in a copy of the release on this machine, in the cache directory, and sent from there. The
//! copy is made again from the bucket where it is missing, so it may be removed; then all of the release is fetched once.

use crate::exit::{Exit, Failure, Outcome};
use crate::output::bytes_bar;
use crate::paths::{Directories, make_private};
use crate::reading::args::Sending;
use crate::reading::{release_failure, span_of};
use holdfast_crypto::{DigestKey, Domain, KeyHolder};
use holdfast_log::FileLock;
use holdfast_release::accept::ExpiredPolicy;
use holdfast_release::admit::admit;
use holdfast_release::keys::{KeyChain, ReleaseId};
use holdfast_release::mirror::{Http, Mirror};
use holdfast_release::open::{Options, now_s};
use holdfast_release::publish::compose::lock;
use holdfast_release::pull::{self, pull};
use holdfast_release::release_dir::{ReleaseDir, ReleaseDirError};
use holdfast_release::send::{BucketContents, BucketTrust, FirstKeySet, Progress, Report, SendOptions, send};
use holdfast_release::trust::Trust;
use holdfast_tiered::{BucketAddress, S3};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How addresses of buckets begin.
const SCHEME: &str = "s3://";

/// A prefix of a bucket, and what this machine has of it.
pub struct Target {
    bucket: S3,
    mirror: Arc<dyn Mirror>,
    /// Holds the copy and what is remembered.
    base: PathBuf,
    _lock: FileLock,
}

/// The address of a bucket, if that is what was given in place of a directory.
pub fn address(place: &Path) -> Option<&str> {
    place.to_str().filter(|text| text.starts_with(SCHEME))
}

impl Target {
    /// By an address. Nothing is asked yet.
    ///
    /// # Errors
    /// It is no address, or another process of this machine works on it.
    pub fn open(address: &str, directories: &Directories) -> Outcome<Target> {
        let usage = |why: String| Failure::new(Exit::Usage, why);
        let mirror = Http::of_bucket(address).map_err(|error| usage(error.why))?;
        let address: BucketAddress = address.parse().map_err(|error| usage(format!("{error}")))?;
        let named = format!("{}\0{}", address.place(), address.endpoint.as_deref().unwrap_or(""));
        let digest = DigestKey::WELL_KNOWN.digest(Domain::ReleasePath, named.as_bytes());
        let folder = directories.cache_base()?.join("publish");
        make_private(&folder)?;
        let base = folder.join(digest.to_string());
        make_private(&base)?;
        let lock = lock(&base)?;
        Ok(Target { bucket: S3::new(&address), mirror: Arc::new(mirror), base, _lock: lock })
    }

    /// Where it is, in words.
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

    /// Makes sure that the bucket holds no other release.
    ///
    /// # Errors
    /// It does, or cannot be asked.
    pub fn no_other(&self, id: ReleaseId) -> Outcome {
        Ok(BucketContents::look(&self.bucket)?.no_other(&self.bucket, id)?)
    }

    /// Brings the copy up to date where the bucket has more, for somebody who signs with `holders`. Returns what people
    /// should be told.
    ///
    /// # Errors
    /// The bucket cannot be asked, or holds a release that is not these people's, or an older one than was seen.
    pub fn bring(
        &self,
        holders: &[Arc<dyn KeyHolder>],
        directories: &Directories,
    ) -> Outcome<Option<String>> {
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
            let next = holdfast_release::layout::keys(chain.current().number + 1);
            if contents.sequence() <= *sequence && !contents.names.contains_key(&next) {
                return Ok(None);
            }
        }
        let trust = directories.releases_base()?;
        make_private(&trust)?;
        // One that has expired is what is published anew.
        let options = Options {
            id,
            trust,
            revocations: Vec::new(),
            stale: ExpiredPolicy::Allow,
            cache: None,
            memory_bytes: 0,
        };
        let memory = Trust::open(&options.trust, id).map_err(release_failure)?;
        let admitted = admit(&memory, &*self.mirror, &[], now_s(), options.stale)
            .map_err(|error| Failure::new(Exit::Protocol, error.to_string()))
            .map_err(|failure| failure.hint("put back what is there now, or publish to another prefix"))?;
        let signers = &admitted.chain.current().role.keys;
        if !holders.iter().any(|holder| signers.contains(&holder.public())) {
            let message = format!("{} holds the release {id}, which these keys may not sign", self.name());
            return Err(
                Failure::new(Exit::CannotCreate, message).hint("name another prefix, or one of its keys")
            );
        }
        let copy = self.copy();
        let bar = bytes_bar("fetching what the bucket has");
        let shown = |progress: pull::Progress| {
            bar.set_length(progress.bytes.1);
            bar.set_position(progress.bytes.0);
            true
        };
        let terms = pull::PullOptions {
            target: &copy,
            keep: usize::MAX,
            from: &[],
            quick: own.is_some(),
            connections: 4,
        };
        let report =
            pull(&options, vec![self.mirror.clone()], &terms, &shown).map_err(crate::pull::failure)?;
        bar.finish_and_clear();
        Ok(Some(format!(
            "release {} was fetched from the bucket first ({} bytes), since this machine did not have it",
            report.sequence, report.bytes_fetched
        )))
    }

    /// What to do when the copy is not as it was left.
    pub fn make_again(&self) -> String {
        format!("remove {}: it is made again from the bucket", self.copy().display())
    }

    /// Keys and number of the release of the copy.
    fn own(&self) -> Outcome<Option<(KeyChain, Option<u64>)>> {
        let dir = ReleaseDir::new(&self.copy());
        let damaged = |error: ReleaseDirError| Failure::from(error).hint(self.make_again());
        match dir.chain() {
            Err(ReleaseDirError::Missing(_)) => Ok(None),
            Err(error) => Err(damaged(error)),
            Ok(chain) => {
                let sequence = dir.root(&chain).map_err(damaged)?.map(|root| root.record.value.sequence);
                Ok(Some((chain, sequence)))
            }
        }
    }

    /// Reads the release back as its readers do, so that this machine notices for ever if an older one is put there. What
    /// is wrong with it, if anything is.
    pub fn read_back(&self, id: ReleaseId, directories: &Directories) -> Option<String> {
        let look = || -> Outcome {
            let trust = directories.releases_base()?;
            make_private(&trust)?;
            let memory = Trust::open(&trust, id).map_err(release_failure)?;
            admit(&memory, &*self.mirror, &[], now_s(), ExpiredPolicy::Allow)
                .map_err(release_failure)
                .map(drop)
        };
        look()
            .err()
            .map(|failure| format!("it was sent, but is not read back as it should be: {}", failure.message))
    }

    /// Makes the bucket what a directory is.
    ///
    /// # Errors
    /// The bucket has the release that it had.
    pub fn send(&self, folder: &Path, sending: &Sending, connections: usize) -> Outcome<Report> {
        let memory = self.base.join("unneeded");
        let terms = SendOptions {
            folder,
            memory: &memory,
            window_s: match sending.prune_after.as_str() {
                "0" => 0,
                span => span_of("--prune-after", span)?,
            },
            now_s: now_s(),
            belief: if sending.recheck { BucketTrust::Content } else { BucketTrust::Listing },
            connections,
        };
        let bar = bytes_bar("sending");
        let shown = |progress: Progress| {
            bar.set_length(progress.bytes.1);
            bar.set_position(progress.bytes.0);
            bar.set_message(if progress.is_away { "the bucket is away; asking again" } else { "sending" });
            true
        };
        let report = send(&self.bucket, &terms, &shown)?;
        bar.finish_and_clear();
        Ok(report)
    }
}

/// What was sent, in words.
pub fn describe(report: &Report) -> String {
    let mut text = String::new();
    for note in &report.notes {
        text += &format!("Note: {note}\n");
    }
    if !report.mended.is_empty() {
        text += &format!(
            "Note: the bucket did not have these as they should be, and has them again: {}\n",
            report.mended.join(", ")
        );
    }
    text + &format!(
        "{} files sent ({} bytes), {} were there; {} removed{}; {} requests.",
        report.files_sent,
        report.bytes_sent,
        report.files_there,
        report.files_removed,
        match report.files_unneeded {
            0 => String::new(),
            count => format!(", {count} stay for a while for those who still read them"),
        },
        report.requests,
    )
}
