//! The session of a volume, to which commands send requests through its mount.

use crate::programs::mounted::MountedFile;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_program_identity::exchange::{exchange, is_unheard};
use holdfast_stack::session_requests::{SessionFacts, SessionReply, SessionRequest};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::path::Path;

/// A session that answered.
pub struct Session {
    directory: File,
    /// Facts about the session.
    pub facts: SessionFacts,
}

impl Session {
    /// The session of a mount; `None` if it is not a volume's.
    ///
    /// # Errors
    /// It is a volume's, but refuses this user.
    pub fn of(mount: &Path) -> Outcome<Option<Session>> {
        let failed =
            |error: std::io::Error| Failure::new(Exit::MountPoint, format!("{}: {error}", mount.display()));
        let directory = File::open(mount).map_err(failed)?;
        let hello = borsh::to_vec(&SessionRequest::Session).expect("a vector takes everything");
        let answer = match exchange(&directory, &hello) {
            Err(error) if is_unheard(&error) => return Ok(None),
            answer => answer.map_err(failed)?,
        };
        match decode_reply(&answer)? {
            SessionReply::Session(facts) => Ok(Some(Session { directory, facts })),
            _ => Err(other_version()),
        }
    }

    /// The session of a mount of a volume.
    ///
    /// # Errors
    /// The mount is not a volume's.
    pub fn at(mount: &Path) -> Outcome<Session> {
        Session::of(mount)?.ok_or_else(|| {
            let message = format!("{}: is no mount of a volume with owners", mount.display());
            Failure::new(Exit::MountPoint, message).hint("`holdfast volume mount` makes one")
        })
    }

    /// Sends a request to the VFS of the session.
    ///
    /// # Errors
    /// Why the session refuses it.
    pub fn request(&self, request: &SessionRequest) -> Outcome<SessionReply> {
        let failed = |error: std::io::Error| Failure::new(Exit::MountPoint, error);
        let bytes = borsh::to_vec(request).expect("a vector takes everything");
        decode_reply(&exchange(&self.directory, &bytes).map_err(failed)?)
    }

    /// Sends a request about a file; failures name its path. The file is kept open meanwhile, so that the
    /// kernel retains its inode number.
    ///
    /// # Errors
    /// As [`Session::request`].
    pub fn request_about(&self, place: &MountedFile, request: &SessionRequest) -> Outcome<SessionReply> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let _known = rustix::fs::open(&place.path, flags, Mode::empty());
        self.request(request).map_err(|failure| Failure {
            message: format!("{}: {}", place.path.display(), failure.message),
            ..failure
        })
    }
}

fn other_version() -> Failure {
    Failure::new(Exit::Protocol, "the mount is served by another version of holdfast")
}

fn decode_reply(bytes: &[u8]) -> Outcome<SessionReply> {
    match borsh::from_slice(bytes).map_err(|_| other_version())? {
        SessionReply::Refused(words) => Err(Failure::new(Exit::NotAllowed, words)),
        reply => Ok(reply),
    }
}
