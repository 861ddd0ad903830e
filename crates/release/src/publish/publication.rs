//! A publication: the steps by which a directory becomes a signed release that is in force, in their order.
//!
//! A step begins when all before it are durable. Whoever reads the release, from the directory or from the bucket, has
//! the one before or this one, whole, whenever publishing ends; and publishing again goes on from what is there. What each
//! step leaves if nothing comes after it is said at [`Step`], and tested by stopping after each.

use super::bucket::{BucketTarget, SendingOptions};
use super::compose::{ReleaseOptions, Report, compose, compose_apart, lock, tidy};
use super::{Progress, PublishError, hold};
use crate::admit::AdmitError;
use crate::draft::{Draft, DraftError, DraftPart};
use crate::form;
use crate::keys::{KeySet, Origin, ReleaseId};
use crate::pull::{self, PullError};
use crate::release_dir::{ReleaseDir, ReleaseDirError};
use crate::send::{self, SendError};
use crate::signing::{Role, Signed};
use crate::trust::TrustError;
use holdfast_components::Program;
use holdfast_crypto::KeyHolder;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What is published, by whom, and to where.
pub struct Publication<'a> {
    /// The tree and the terms of the release. Its `target` is the copy of `bucket`, if there is one.
    pub options: ReleaseOptions<'a>,
    /// Those who sign here.
    pub signers: &'a [Arc<dyn KeyHolder>],
    /// Random bytes, for the ID of a release that begins.
    pub salt: [u8; 16],
    /// Who walks and parses the tree.
    pub walker: Walker,
    /// The bucket that the release is sent to, and how.
    pub bucket: Option<(&'a BucketTarget, SendingOptions)>,
}

/// Who walks and parses the tree.
pub enum Walker {
    /// A sandboxed process without the keys, which this program starts.
    Apart(Program),
    /// This process, which has the keys.
    Inside,
}

/// Steps of a publication in their order, each by what there is once it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The copy of the bucket's release is up to date. Only with a bucket. If nothing comes after it: the copy is used by
    /// the next publication, and the bucket is as it was.
    Fetched,
    /// The release directory is locked, and has the key sets of a release; a release that begins has its first. If
    /// nothing comes after it: a release of which nothing is published yet.
    Opened,
    /// The tree's blocks are in packs, with an index and hints; the server of a live file system holds what stays there.
    /// If nothing comes after it: no record refers to them. The next publication removes the packs and lets go of the
    /// hold.
    Composed,
    /// The record has the signatures of all signers at hand, in memory. If nothing comes after it: as before.
    Signed,
    /// The record lacks signatures, and waits for them in a draft beside the directory. The last step then, but for
    /// [`Step::Remembered`]. If nothing comes after it: people can sign the draft; the next publication reads the tree
    /// anew.
    Drafted,
    /// The record is in force in the directory. If nothing comes after it: readers of the directory have the release; the
    /// next publication reads the tree anew, removes what is not needed, and sends this release with its own.
    Installed,
    /// What was read of the tree need not be read the next time. If nothing comes after it: files that no release needs
    /// are there until the next publication.
    Remembered,
    /// Releases that are not kept, and what only they need, are gone. If nothing comes after it: a bucket, or the holds of
    /// older releases, are as they were until the next publication.
    Tidied,
    /// The bucket has the release, its `root` last, and this machine has read it as readers do. Only with a bucket. If
    /// nothing comes after it: all is done.
    Sent,
    /// The server of the live file system has let go of older releases. Only with one. The last step.
    LetGo,
}

/// Where a publication is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublicationProgress {
    /// The bucket's release is being fetched.
    Fetching(pull::Progress),
    /// The tree is being looked at, or read.
    Reading(Progress),
    /// The release is being sent to the bucket.
    Sending(send::Progress),
    /// A step is done.
    Reached(Step),
}

/// What became of a publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// The ID of the release.
    pub id: ReleaseId,
    /// Whether the release began with this publication.
    pub first: bool,
    /// The report for people.
    pub report: Report,
    /// What was sent to the bucket.
    pub sent: Option<send::Report>,
    /// The draft, and the parts of it that lack signatures, if the release is not in force yet.
    pub draft: Option<(PathBuf, Vec<DraftPart>)>,
}

/// Why a publication ended before its last step.
#[derive(Debug, thiserror::Error)]
pub enum PublicationError {
    /// The tree or the directory cannot be worked with.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The directory's signed files are of no use, or newer.
    #[error(transparent)]
    Directory(#[from] ReleaseDirError),
    /// Something is not signed as it must be.
    #[error(transparent)]
    Draft(#[from] DraftError),
    /// A release cannot begin in a directory with other files.
    #[error("{} is not empty, and holds no release", .0.display())]
    NotEmpty(PathBuf),
    /// The release directory, or the draft beside it, cannot be made.
    #[error("{}: {why}", path.display())]
    NotMade {
        /// Its path.
        path: PathBuf,
        /// What the system reports.
        why: std::io::Error,
    },
    /// This is no address of a bucket.
    #[error("{0}")]
    Address(String),
    /// The copy of the bucket's release is not as it was left.
    #[error("{error}")]
    Copy {
        /// The copy.
        copy: PathBuf,
        /// What is wrong.
        error: Box<PublicationError>,
    },
    /// Other people's release is in the bucket.
    #[error("{bucket} holds the release {id}, which these keys may not sign")]
    NotYours {
        /// The bucket.
        bucket: String,
        /// The release.
        id: ReleaseId,
    },
    /// What the bucket has is not what a reader would take.
    #[error(transparent)]
    NotAdmitted(Box<AdmitError>),
    /// What this machine remembers of the release cannot be read.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// The bucket's release cannot be fetched.
    #[error(transparent)]
    Fetch(#[from] PullError),
    /// The release cannot be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The caller asked to stop after this step.
    #[error("stopped; publish again to go on from there")]
    Stopped(Step),
}

impl Publication<'_> {
    /// Takes all steps. `progress` is told where it is, and says whether to go on.
    ///
    /// # Errors
    /// [`PublicationError`]: what the last step has left ([`Step`]) is there.
    pub fn run(
        self,
        progress: &(dyn Fn(PublicationProgress) -> bool + Sync),
    ) -> Result<Published, PublicationError> {
        let reached = |step| match progress(PublicationProgress::Reached(step)) {
            true => Ok(()),
            false => Err(PublicationError::Stopped(step)),
        };
        let Publication { options, signers, salt, walker, bucket } = self;
        let target = options.target;
        let mut brought = None;
        if let Some((bucket, _)) = &bucket {
            brought = bucket.bring(signers, &|at| progress(PublicationProgress::Fetching(at)))?;
            reached(Step::Fetched)?;
        }
        std::fs::create_dir_all(target).map_err(not_made(target))?;
        let _lock = lock(target)?;
        let (id, first) = match ReleaseDir::new(target).chain() {
            Ok(chain) => (chain.id(), false),
            Err(ReleaseDirError::Missing(_)) => (begin(target, signers, salt)?, true),
            Err(error) => return Err(error.into()),
        };
        reached(Step::Opened)?;
        let mut reading = |at| progress(PublicationProgress::Reading(at));
        let composed = match walker {
            Walker::Inside => compose(&options, &mut reading),
            Walker::Apart(program) => compose_apart(&options, program, &mut reading),
        };
        let mut composed = composed.map_err(|error| match (&bucket, error) {
            (Some((bucket, _)), error @ PublishError::Damaged { .. }) => {
                PublicationError::Copy { copy: bucket.copy(), error: Box::new(error.into()) }
            }
            (_, error) => error.into(),
        })?;
        reached(Step::Composed)?;
        for signer in signers {
            composed.draft.sign(&**signer)?;
        }
        reached(Step::Signed)?;
        let mut published = Published { id, first, report: composed.report.clone(), sent: None, draft: None };
        published.report.notes.extend(brought);
        let finished = match composed.draft.finish() {
            Ok(finished) => finished,
            Err(DraftError::Unfinished(lacking)) => {
                let path = draft_file(target, published.report.sequence);
                holdfast_durable::replace(&path, &form::write(&composed.draft), 0o644)
                    .map_err(not_made(&path))?;
                reached(Step::Drafted)?;
                composed.remember()?;
                reached(Step::Remembered)?;
                published.draft = Some((path, lacking));
                return Ok(published);
            }
            Err(error) => return Err(error.into()),
        };
        ReleaseDir::new(target).install(&finished)?;
        reached(Step::Installed)?;
        composed.remember()?;
        reached(Step::Remembered)?;
        tidy(target, options.keep)?;
        reached(Step::Tidied)?;
        if let Some((bucket, sending)) = &bucket {
            let sent = bucket.send(target, sending, &|at| progress(PublicationProgress::Sending(at)))?;
            published.sent = Some(sent);
            if let Err(error) = bucket.read_back(id) {
                let note = format!("it was sent, but is not read back as it should be: {error}");
                published.report.notes.push(note);
            }
            reached(Step::Sent)?;
        }
        if let Some(live) = &options.live {
            // The release is in force; what could not be let go is tried again the next time.
            if let Err(error) = hold::release_holds(live.server, target) {
                published.report.notes.push(format!("older releases are still held at the server: {error}"));
            }
            reached(Step::LetGo)?;
        }
        Ok(published)
    }
}

/// Makes the first key set of a release: the signers' keys, all of which must sign.
fn begin(
    target: &Path,
    signers: &[Arc<dyn KeyHolder>],
    salt: [u8; 16],
) -> Result<ReleaseId, PublicationError> {
    let is_empty = std::fs::read_dir(target).is_ok_and(|mut entries| entries.next().is_none());
    if !is_empty {
        return Err(PublicationError::NotEmpty(target.to_owned()));
    }
    let keys: BTreeSet<_> = signers.iter().map(|signer| signer.public()).collect();
    let threshold = keys.len() as u16;
    let set = KeySet {
        number: 1,
        origin: Origin::First { salt },
        role: Role { keys, threshold },
        freshness: None,
        certificates: false,
    };
    let mut draft =
        Draft { sets: Vec::new(), keys: Some(Signed::unsigned(set)), root: None, statement: None };
    for signer in signers {
        draft.sign(&**signer)?;
    }
    let finished = draft.finish()?;
    ReleaseDir::new(target).install(&finished)?;
    Ok(finished.chain.id())
}

/// The draft lies beside the release directory, since it is no file of a release.
fn draft_file(target: &Path, sequence: u64) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{sequence}.draft"));
    target.with_file_name(name)
}

fn not_made(path: &Path) -> impl FnOnce(std::io::Error) -> PublicationError {
    let path = path.to_owned();
    move |why| PublicationError::NotMade { path, why }
}
