//! A verified view that programs read from.

use super::shared::Shared;
use crate::error::FsError;
use crate::store::VerifiedStore;
use crate::tree::{Base, ReadError, Tree};
use holdfast_content::{ContentError, Entry, Handle, Inode, Membership, SourceError, Tag};
use holdfast_crypto::Digest;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the file system was at one place in the order.
///
/// Reading something that another device has pending waits until that is settled (SUNDR 3.4.2) and then goes on
/// in the view that settled it, which is later in the order. A missing block does the same: only if the present
/// view still refers to it is anything wrong. So one snapshot's reads never go back, but may go forward.
pub struct Snapshot {
    shared: Arc<Shared>,
    base: RwLock<(u64, Arc<Base>)>,
    ticket: Option<u64>,
}

impl Snapshot {
    pub(super) fn new(shared: Arc<Shared>, sequence: u64, base: Arc<Base>, ticket: Option<u64>) -> Snapshot {
        Snapshot { shared, base: RwLock::new((sequence, base)), ticket }
    }

    /// Grows with every accepted view of one engine: a later view has a higher number.
    pub fn sequence(&self) -> u64 {
        self.base.read().0
    }

    /// The membership in force.
    pub fn membership(&self) -> Arc<Membership> {
        self.base().membership.clone()
    }

    /// Where file content is read from.
    pub fn source(&self) -> &VerifiedStore {
        &self.shared.store
    }

    /// Waits until the modification that this is the answer to is committed at the server.
    ///
    /// # Errors
    /// As [`super::Engine::flush_commits`], but for this modification only.
    pub fn committed(&self) -> Result<(), FsError> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        let deadline = Instant::now() + self.shared.deadline;
        self.shared.commits.wait(ticket, deadline, || self.shared.late())
    }

    pub(super) fn base(&self) -> Arc<Base> {
        self.base.read().1.clone()
    }

    /// Goes on in the present view.
    fn renew(&self) -> Result<(), FsError> {
        let newer = self.shared.fetch()?;
        let newer = newer.base.read();
        let mut base = self.base.write();
        if newer.0 > base.0 {
            *base = newer.clone();
        }
        Ok(())
    }

    fn read<T>(
        &self,
        file: Handle,
        pending: impl Fn(&Base) -> Result<Option<Tag>, ReadError>,
        wanted: impl Fn(&Base) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        let deadline = Instant::now() + self.shared.deadline;
        let mut missing = None;
        let mut pause = Duration::from_millis(5);
        loop {
            self.shared.check()?;
            let base = self.base();
            match pending(&base).and_then(|tag| tag.map_or_else(|| wanted(&base).map(Ok), |tag| Ok(Err(tag))))
            {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(tag)) => {
                    if Instant::now() >= deadline {
                        let Tag { device, number } = tag;
                        return Err(FsError::Unreachable(format!(
                            "operation {number} of device {} stays pending",
                            device.0
                        )));
                    }
                    if !self.shared.wait_settled(tag, deadline) {
                        std::thread::sleep(pause);
                        pause = (pause * 2).min(Duration::from_millis(500));
                    }
                    self.renew()?;
                }
                Err(ReadError::Content(ContentError::Source(SourceError::Missing(address))))
                    if missing != Some(address) =>
                {
                    missing = Some(address);
                    self.renew()?;
                }
                Err(ReadError::NotFound) if missing.is_some() => return Err(FsError::Stale),
                Err(error) => return Err(self.shared.explain(Some(file), None, &error, &base)),
            }
        }
    }
}

impl Tree for Snapshot {
    fn inode(&self, file: Handle) -> Result<Arc<Inode>, FsError> {
        self.read(
            file,
            |base| Ok(base.pending_on(file)?.or_else(|| base.touches.entries(file).next())),
            |base| base.inode(file),
        )
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.read(
            directory,
            |base| Ok(base.pending_on(directory)?.or_else(|| base.touches.entry(directory, name))),
            |base| base.entry(directory, name),
        )
    }

    fn entries(
        &self,
        directory: Handle,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Entry)>, FsError> {
        self.read(
            directory,
            |base| Ok(base.pending_on(directory)?.or_else(|| base.touches.entries(directory).next())),
            |base| Ok(base.entries(directory, after, limit)?.0),
        )
    }

    fn ihash(&self, file: Handle) -> Result<Digest, FsError> {
        self.read(
            file,
            |base| Ok(base.pending_on(file)?.or_else(|| base.touches.entries(file).next())),
            |base| base.ihash(file),
        )
    }
}
