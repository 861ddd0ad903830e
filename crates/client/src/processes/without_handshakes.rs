//! In place of `handshakes` in a network process that was built without the feature `peers`: it talks to servers only.

use super::messages::MeetRequest;
use holdfast_crypto::{Digest, KeyHolder};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Makes no channel to another client.
pub(super) fn meet(_: &MeetRequest, _: Arc<dyn KeyHolder>, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Hears no beacons.
pub(super) fn hear_beacons(_: Digest, _: OwnedFd, _: OwnedFd) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}
