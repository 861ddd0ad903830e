//! Replaces `handshakes` in a network process built without the feature `peers`, which talks to servers only.

use super::messages::MeetRequest;
use holdfast_crypto::{Digest, KeyHolder};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Always fails: this program makes no channels to other clients.
pub(super) fn meet(_: &MeetRequest, _: Arc<dyn KeyHolder>, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Always fails: this program receives no beacons.
pub(super) fn hear_beacons(_: Digest, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
