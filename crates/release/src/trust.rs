//! What a client remembers of a release: the key sets it has followed, the highest record, the latest time it
//! has seen, every record it has accepted, and whether the release is revoked.
//!
//! ```text
//! ID/                                 one folder a release, only its owner may look into it
//!   lock                              held while anything here is read or changed
//!   state                             key sets and what was seen, with a checksum
//!   archive/SEQUENCE-DIGEST           the `root` file of each record accepted, with the renewal that lasts longest
//!   evidence/                         two signed things of which only one could be honest
//!   revoked                           the certificate, once one was seen
//! ```
//!
//! Invariants: what is remembered only grows (more key sets, higher sequence, later time), even if several
//! processes use it at once. It is durable before a record counts as accepted. A damaged file is an error and
//! never taken for an empty one. The archive is written before the state, so a record that the state names is
//! in the archive.
//!
//! Attack answered: a mirror that offers a client an older state than it, or another mirror, offered before.

use crate::accept::{Accepted, ExpiredPolicy, HighestRecord, Refusal, Warning, accept};
use crate::form::{self, Kind, RuleViolation};
use crate::keys::{KeyChain, KeysError, ReleaseId, SETS_MAX, SignedKeySet};
use crate::record::{Record, RootFile, Validity, authenticate};
use crate::revocation::{self, Revocation, Revoked};
use crate::signing::Signable;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey, Domain};
use holdfast_log::FileLock;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most records in the archive. Beyond that, those of the lowest sequences are removed.
pub const ARCHIVE_MAX: usize = 1000;
/// Most files of evidence. Beyond that, no more are added.
const EVIDENCE_MAX: usize = 100;
const DIGEST_BYTES: usize = 32;

#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
struct TrustState {
    release: ReleaseId,
    sets: Vec<SignedKeySet>,
    seen: Option<HighestRecord>,
}

impl Kind for TrustState {
    const MAGIC: &'static [u8; 7] = b"HF-seen";
    const WHAT: &'static str = "memory of a release";
    const BYTES_MAX: u64 = SETS_MAX * SignedKeySet::BYTES_MAX + 8 * 1024;

    fn well_formed(&self) -> Result<(), RuleViolation> {
        Ok(())
    }
}

/// Why something is not accepted or not remembered.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The record is refused.
    #[error("{refusal}{}", kept(evidence))]
    Refused {
        /// The reason.
        refusal: Refusal,
        /// The file with proof for others, if the refusal proves something.
        evidence: Option<PathBuf>,
    },
    /// The key sets are refused.
    #[error("{error}{}", kept(evidence))]
    Keys {
        /// The reason.
        error: KeysError,
        /// The file with proof for others, if the refusal proves something.
        evidence: Option<PathBuf>,
    },
    /// The release was revoked.
    #[error("{0}")]
    Revoked(Revoked),
    /// The file with what this machine remembers of the release is damaged.
    #[error(
        "{}: what this machine remembers of the release is damaged: {why}. Restore the file from a backup; or remove \
         it, if you accept that {price}",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with the file.
        why: String,
        /// What is lost if the file is removed.
        price: &'static str,
    },
    /// Reading or writing a file failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
}

fn kept(evidence: &Option<PathBuf>) -> String {
    match evidence {
        Some(path) => format!(". The proof is kept in {}", path.display()),
        None => String::new(),
    }
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> TrustError {
    let path = path.to_owned();
    move |error| TrustError::Io { path, error }
}

/// The record that was in force at some time, according to what this machine has seen.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct RecordInForce {
    /// The root file as it was accepted. Its record is signed by the release's keys.
    pub file: RootFile,
    /// The period for which its last renewal was valid. The time asked for may be later.
    pub validity: Validity,
}

/// What this machine remembers of one release.
#[derive(Clone, Debug)]
pub struct Trust {
    directory: PathBuf,
    id: ReleaseId,
}

impl Trust {
    /// Opens the memory of the release `id`: the folder of that name in `base`. Both are created if missing.
    ///
    /// # Errors
    /// [`TrustError::Io`].
    pub fn open(base: &Path, id: ReleaseId) -> Result<Trust, TrustError> {
        let directory = base.join(id.to_string());
        for folder in [directory.clone(), directory.join("archive"), directory.join("evidence")] {
            holdfast_durable::make_directory(&folder, 0o700).map_err(io_error(&folder))?;
        }
        Ok(Trust { directory, id })
    }

    /// The release that this memory is about.
    pub fn id(&self) -> ReleaseId {
        self.id
    }

    /// The directory where it is remembered.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The key sets as far as they were followed; `None` before any were seen.
    ///
    /// # Errors
    /// [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn chain(&self) -> Result<Option<KeyChain>, TrustError> {
        let _lock = self.lock()?;
        Ok(self.load()?.map(|(chain, _)| chain))
    }

    /// The highest record seen; `None` before any was seen.
    ///
    /// # Errors
    /// [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn seen(&self) -> Result<Option<HighestRecord>, TrustError> {
        let _lock = self.lock()?;
        Ok(self.load()?.and_then(|(_, seen)| seen))
    }

    /// Remembers key sets. Returns all that are remembered, which may be more.
    ///
    /// # Errors
    /// [`TrustError::Keys`] if they contradict the ones seen first; nothing is changed then.
    pub fn learn(&self, chain: &KeyChain) -> Result<KeyChain, TrustError> {
        let _lock = self.lock()?;
        let (chain, seen, changed) = self.load_with(chain)?;
        if changed {
            self.store(&chain, seen)?;
        }
        Ok(chain)
    }

    /// Decides whether the record of `file` is in force, and remembers it if so.
    ///
    /// # Errors
    /// [`TrustError::Refused`], [`TrustError::Keys`], [`TrustError::Revoked`]: nothing but evidence is
    /// written then. [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn accept(
        &self,
        chain: &KeyChain,
        file: &RootFile,
        now_s: u64,
        stale: ExpiredPolicy,
    ) -> Result<Accepted, TrustError> {
        let _lock = self.lock()?;
        if let Some(revoked) = self.load_revoked()? {
            return Err(TrustError::Revoked(revoked));
        }
        let (chain, seen, mut changed) = self.load_with(chain)?;
        let accepted = match accept(&chain, file, seen.as_ref(), now_s, stale) {
            Ok(accepted) => accepted,
            Err(refusal) => {
                let evidence = self.prove(&refusal, file)?;
                return Err(TrustError::Refused { refusal, evidence });
            }
        };
        if let Some(Warning::OtherHistory { sequence, seen, .. }) =
            accepted.warnings.iter().find(|warning| matches!(warning, Warning::OtherHistory { .. }))
        {
            self.keep_both((*sequence, seen), (accepted.record.sequence, &accepted.digest), file)?;
        }
        if seen != Some(accepted.seen) {
            let lasts_longer = seen
                .is_none_or(|seen| seen.record != accepted.digest || seen.validity != accepted.seen.validity);
            if lasts_longer {
                self.archive(&accepted, file)?;
            }
            changed = true;
        }
        if changed {
            self.store(&chain, Some(accepted.seen))?;
        }
        Ok(accepted)
    }

    /// The record that was in force at `time_s`: the highest that this machine has accepted and that was
    /// issued at or before that time. `None` if there is none.
    ///
    /// # Errors
    /// [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn as_of(&self, time_s: u64) -> Result<Option<RecordInForce>, TrustError> {
        self.latest(|record| record.issued_s <= time_s)
    }

    /// The highest accepted record for which `is_meant` holds, if there is one.
    ///
    /// # Errors
    /// [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn latest(&self, is_meant: impl Fn(&Record) -> bool) -> Result<Option<RecordInForce>, TrustError> {
        let _lock = self.lock()?;
        let Some((chain, _)) = self.load()? else { return Ok(None) };
        let mut archived = self.archived()?;
        archived.sort_by_key(|(sequence, _)| std::cmp::Reverse(*sequence));
        for (_, path) in archived {
            let price = "nobody can say from here what was in force in its time";
            let damaged = |why: String| TrustError::Damaged { path: path.clone(), why, price };
            let bytes = holdfast_durable::read(&path, RootFile::BYTES_MAX)
                .map_err(io_error(&path))?
                .ok_or_else(|| damaged("it has vanished".to_owned()))?;
            let file: RootFile = form::read(&bytes).map_err(|error| damaged(error.to_string()))?;
            let validity =
                authenticate(&chain, &file).map_err(|error| damaged(error.to_string()))?.validity();
            if is_meant(&file.record.value) {
                return Ok(Some(RecordInForce { file, validity }));
            }
        }
        Ok(None)
    }

    /// The certificate that revokes the release, if one was seen.
    ///
    /// # Errors
    /// [`TrustError::Damaged`], [`TrustError::Io`].
    pub fn revoked(&self) -> Result<Option<Revoked>, TrustError> {
        let _lock = self.lock()?;
        self.load_revoked()
    }

    /// Remembers for good that the release is revoked, if the certificate says so.
    ///
    /// # Errors
    /// `Ok(Err(...))` if the certificate is not valid; else [`TrustError::Io`].
    pub fn revoke(
        &self,
        certificate: &[u8],
    ) -> Result<Result<Revoked, revocation::RevocationError>, TrustError> {
        let revoked = match revocation::verify(self.id, certificate) {
            Ok(revoked) => revoked,
            Err(error) => return Ok(Err(error)),
        };
        let _lock = self.lock()?;
        let path = self.directory.join("revoked");
        holdfast_durable::replace(&path, certificate, 0o600).map_err(io_error(&path))?;
        Ok(Ok(revoked))
    }

    /// Stores a file that proves something to others. Returns the folder, or `None` if there are
    /// 100 already.
    ///
    /// # Errors
    /// [`TrustError::Io`].
    pub fn keep_evidence(&self, name: &str, bytes: &[u8]) -> Result<Option<PathBuf>, TrustError> {
        let folder = self.directory.join("evidence");
        let path = folder.join(name);
        if !path.exists() {
            let kept = std::fs::read_dir(&folder).map_err(io_error(&folder))?.count();
            if kept >= EVIDENCE_MAX {
                return Ok(None);
            }
            holdfast_durable::replace(&path, bytes, 0o600).map_err(io_error(&path))?;
        }
        Ok(Some(folder))
    }

    /// Stores as evidence a key set that forks the succession, and the one known before. Returns the error
    /// for that.
    pub(crate) fn forked(&self, error: KeysError, found: &SignedKeySet) -> TrustError {
        let KeysError::Forked { number, known, .. } = error else {
            return TrustError::Keys { error, evidence: None };
        };
        let keep = || -> Result<Option<PathBuf>, TrustError> {
            let _lock = self.lock()?;
            if let Some((chain, _)) = self.load()? {
                for set in chain.sets().iter().filter(|set| set.value.number == number) {
                    self.keep_evidence(&format!("keys-{number}-{}", known.short()), &form::write(set))?;
                }
            }
            let name = format!("keys-{}-{}", found.value.number, found.value.digest().short());
            self.keep_evidence(&name, &form::write(found))
        };
        match keep() {
            Ok(evidence) => TrustError::Keys { error, evidence },
            Err(failed) => failed,
        }
    }

    /// Stores both records if they prove that the holder of the keys has signed two with one sequence number.
    fn prove(&self, refusal: &Refusal, shown: &RootFile) -> Result<Option<PathBuf>, TrustError> {
        let Refusal::Equivocation { sequence, seen, shown: digest } = refusal else { return Ok(None) };
        self.keep_both((*sequence, seen), (*sequence, digest), shown)
    }

    /// Stores a record that was seen before and one that contradicts it.
    fn keep_both(
        &self,
        seen: (u64, &Digest),
        shown: (u64, &Digest),
        file: &RootFile,
    ) -> Result<Option<PathBuf>, TrustError> {
        let name = |(sequence, digest): (u64, &Digest)| format!("release-{sequence}-{}", digest.short());
        let known = self.archive_path(seen.0, seen.1);
        if let Some(bytes) = holdfast_durable::read(&known, RootFile::BYTES_MAX).map_err(io_error(&known))? {
            self.keep_evidence(&name(seen), &bytes)?;
        }
        self.keep_evidence(&name(shown), &form::write(file))
    }

    fn archive_path(&self, sequence: u64, digest: &Digest) -> PathBuf {
        self.directory.join("archive").join(format!("{sequence}-{}", digest.short()))
    }

    fn archive(&self, accepted: &Accepted, file: &RootFile) -> Result<(), TrustError> {
        let path = self.archive_path(accepted.record.sequence, &accepted.digest);
        holdfast_durable::replace(&path, &form::write(file), 0o600).map_err(io_error(&path))?;
        let mut archived = self.archived()?;
        if archived.len() > ARCHIVE_MAX {
            archived.sort_unstable();
            for (_, path) in &archived[..archived.len() - ARCHIVE_MAX] {
                std::fs::remove_file(path).map_err(io_error(path))?;
            }
        }
        Ok(())
    }

    /// The archived records by sequence, in no order.
    fn archived(&self) -> Result<Vec<(u64, PathBuf)>, TrustError> {
        let folder = self.directory.join("archive");
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(io_error(&folder))? {
            let entry = entry.map_err(io_error(&folder))?;
            let name = entry.file_name();
            let sequence =
                name.to_str().and_then(|name| name.split_once('-')).and_then(|(sequence, digest)| {
                    // The name of an unfinished file is longer.
                    let finished = digest.bytes().all(|byte| byte.is_ascii_hexdigit());
                    sequence.parse().ok().filter(|_| finished)
                });
            found.extend(sequence.map(|sequence: u64| (sequence, entry.path())));
        }
        Ok(found)
    }

    fn lock(&self) -> Result<FileLock, TrustError> {
        let path = self.directory.join("lock");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(io_error(&path))?;
        FileLock::wait(file).map_err(|error| TrustError::Io { path, error })
    }

    fn load_revoked(&self) -> Result<Option<Revoked>, TrustError> {
        let path = self.directory.join("revoked");
        let Some(bytes) = holdfast_durable::read(&path, Revocation::BYTES_MAX).map_err(io_error(&path))?
        else {
            return Ok(None);
        };
        match revocation::verify(self.id, &bytes) {
            Ok(revoked) => Ok(Some(revoked)),
            Err(error) => Err(TrustError::Damaged {
                path,
                why: error.to_string(),
                price: "the release, which was revoked, may be used until a certificate is found again",
            }),
        }
    }

    /// The remembered state with these key sets merged in, and whether the merge added any.
    fn load_with(&self, chain: &KeyChain) -> Result<(KeyChain, Option<HighestRecord>, bool), TrustError> {
        let Some((mut known, seen)) = self.load()? else { return Ok((chain.clone(), None, true)) };
        let before = known.sets().len();
        known.merge(chain).map_err(|error| TrustError::Keys { error, evidence: None })?;
        let more = known.sets().len() > before;
        Ok((known, seen, more))
    }

    fn load(&self) -> Result<Option<(KeyChain, Option<HighestRecord>)>, TrustError> {
        let path = self.directory.join("state");
        let bytes_max = TrustState::BYTES_MAX + DIGEST_BYTES as u64;
        let Some(bytes) = holdfast_durable::read(&path, bytes_max).map_err(io_error(&path))? else {
            return Ok(None);
        };
        let price = "a mirror may once show an older release than was seen here";
        let damaged = |why: String| TrustError::Damaged { path: path.clone(), why, price };
        let Some((body, digest)) = bytes.split_last_chunk::<DIGEST_BYTES>() else {
            return Err(damaged("it is too short".to_owned()));
        };
        if checksum(body).0 != *digest {
            return Err(damaged("its checksum is wrong".to_owned()));
        }
        let state: TrustState = form::read(body).map_err(|error| damaged(error.to_string()))?;
        if state.release != self.id {
            return Err(damaged(format!("it is of the release {}", state.release)));
        }
        let chain = KeyChain::of_sets(self.id, state.sets).map_err(|error| damaged(error.to_string()))?;
        Ok(Some((chain, state.seen)))
    }

    fn store(&self, chain: &KeyChain, seen: Option<HighestRecord>) -> Result<(), TrustError> {
        let state = TrustState { release: self.id, sets: chain.sets().to_vec(), seen };
        let mut bytes = form::write(&state);
        let digest = checksum(&bytes);
        bytes.extend(digest.0);
        let path = self.directory.join("state");
        holdfast_durable::replace(&path, &bytes, 0o600).map_err(io_error(&path))
    }
}

fn checksum(bytes: &[u8]) -> Digest {
    DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes)
}
