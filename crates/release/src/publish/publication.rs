//! A publication: the ordered steps by which a directory becomes a signed release in force.
//!
//! A step begins when all steps before it are durable. Whenever publishing ends, readers of the directory or
//! of the bucket have either the previous release or this one, whole; publishing again continues from what is
//! there. [`Step`] describes what each step leaves behind if no other follows; tests stop after each one.

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

/// What is published, with which keys, and to where.
pub struct Publication<'a> {
    /// The tree and the properties of the release. If there is a `bucket`, `target` is the local copy of it.
    pub options: ReleaseOptions<'a>,
    /// The holders of the keys that sign on this machine.
    pub signers: &'a [Arc<dyn KeyHolder>],
    /// Random bytes for the ID of a new release.
    pub salt: [u8; 16],
    /// The process that walks and parses the tree.
    pub walker: Walker,
    /// The bucket that the release is sent to, and how.
    pub bucket: Option<(&'a BucketTarget, SendingOptions)>,
}

/// The process that walks and parses the tree.
pub enum Walker {
    /// A sandboxed process without the keys, which this program starts.
    Apart(Program),
    /// This process, which has the keys.
    Inside,
}

/// The steps of a publication in their order, each described by the state after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// The copy of the bucket's release is up to date. Only with a bucket. If nothing follows: the next
    /// publication uses the copy, and the bucket is as it was.
    Fetched,
    /// The release directory is locked and has the key sets of a release; a new release has its first. If
    /// nothing follows: a release of which nothing has been published.
    Opened,
    /// The tree's blocks are in packs, with an index and hints; the server of a live file system holds the
    /// blocks that stay there. If nothing follows: no record refers to them, and the next publication removes
    /// the packs and ends the hold.
    Composed,
    /// The record has the signatures of all signers on this machine, in memory. If nothing follows: as after
    /// the step before.
    Signed,
    /// The record lacks signatures; a draft beside the directory waits for them. This is then the last step,
    /// except for [`Step::Remembered`]. If nothing follows: people can sign the draft, and the next
    /// publication reads the whole tree.
    Drafted,
    /// The record is in force in the directory. If nothing follows: readers of the directory have the
    /// release. The next publication reads the whole tree, removes what is not needed, and sends this release
    /// along with its own.
    Installed,
    /// The database of files that need not be read next time is written. If nothing follows: files that no
    /// release needs stay until the next publication.
    Remembered,
    /// Old releases beyond the number to retain, and the files only they need, are removed. If nothing
    /// follows: a bucket, and the holds of older releases, stay as they were until the next publication.
    Tidied,
    /// The bucket has the release, `root` being sent last, and this machine has read it back as readers do.
    /// Only with a bucket. If nothing follows: the publication is complete.
    Sent,
    /// The server of the live file system has ended the holds of older releases. Only for a live directory.
    /// The last step.
    LetGo,
}

/// The progress of a publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PublicationProgress {
    /// The bucket's release is being fetched.
    Fetching(pull::Progress),
    /// The tree is being scanned or read.
    Reading(Progress),
    /// The release is being sent to the bucket.
    Sending(send::Progress),
    /// A step is done.
    Reached(Step),
}

/// The outcome of a publication.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Published {
    /// The ID of the release.
    pub id: ReleaseId,
    /// Whether this publication began the release.
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
    /// The directory's signed files are damaged, or of a newer version.
    #[error(transparent)]
    Directory(#[from] ReleaseDirError),
    /// Signatures are missing or wrong.
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
    /// The text is no address of a bucket.
    #[error("{0}")]
    Address(String),
    /// The copy of the bucket's release has been changed.
    #[error("{error}")]
    Copy {
        /// The copy.
        copy: PathBuf,
        /// What is wrong.
        error: Box<PublicationError>,
    },
    /// The bucket holds a release that these keys may not sign.
    #[error("{bucket} holds the release {id}, which these keys may not sign")]
    NotYours {
        /// The bucket.
        bucket: String,
        /// The release.
        id: ReleaseId,
    },
    /// A reader would not accept what the bucket has.
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
    /// The caller asked to stop. The last step that was done.
    #[error("stopped; publish again to go on from there")]
    Stopped(Step),
}

impl Publication<'_> {
    /// Takes all steps. `progress` is called with the progress, and returns whether to go on.
    ///
    /// # Errors
    /// [`PublicationError`]; the result of the last step done ([`Step`]) stays.
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
            // The release is in force. Holds that could not be ended are ended next time.
            if let Err(error) = hold::release_holds(live.server, target) {
                published.report.notes.push(format!("older releases are still held at the server: {error}"));
            }
            reached(Step::LetGo)?;
        }
        Ok(published)
    }
}

/// Makes the first key set of a release from the signers' keys, all of which must sign.
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

/// The path of the draft: beside the release directory, because it is no file of a release.
fn draft_file(target: &Path, sequence: u64) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!("-{sequence}.draft"));
    target.with_file_name(name)
}

fn not_made(path: &Path) -> impl FnOnce(std::io::Error) -> PublicationError {
    let path = path.to_owned();
    move |why| PublicationError::NotMade { path, why }
}
