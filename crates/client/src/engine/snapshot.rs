//! The verified view from which one or more requests are answered.

use super::queue::SignerEvent;
use super::shared::{LatestView, Shared};
use crate::backend::ReadSet;
use crate::error::FsError;
use crate::pauses::Pauses;
use crate::store::VerifiedStore;
use crate::tree::{self, Base, Names, ReadError, View};
use holdfast_content::{
    ContentError, Entry, Handle, Inode, InodeKind, Membership, PrincipalId, SourceError, Tag,
};
use holdfast_crypto::Digest;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::leases::Withheld;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use parking_lot::RwLock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The state of the file system at one position in the order.
///
/// Reading a file for which another device has an operation pending waits until that operation is committed,
/// and then goes on at the same position with its effect (SUNDR 3.4.2). If the operation turns out dead, or a
/// block is missing, reading goes on in the present view, which is later in the order. So the reads of one
/// snapshot never go back, but may go forward.
pub struct Snapshot {
    shared: Arc<Shared>,
    place: RwLock<LatestView>,
    ticket: Option<u64>,
    /// Whether files that other devices hold exclusively are read as they are in this view.
    is_lenient: bool,
}

impl Snapshot {
    pub(super) fn new(shared: Arc<Shared>, place: LatestView, ticket: Option<u64>) -> Snapshot {
        Snapshot { shared, place: RwLock::new(place), ticket, is_lenient: false }
    }

    /// This view without checks for newer versions, for a mount that goes on while the server is away
    /// (`--write-back`): a file that another device holds exclusively is read as it is in this view, which
    /// may be outdated, without asking the server.
    #[must_use]
    pub fn lenient(&self) -> Snapshot {
        let place = RwLock::new(self.place.read().clone());
        Snapshot { shared: self.shared.clone(), place, ticket: self.ticket, is_lenient: true }
    }

    /// Number of this view in the sequence of views that one engine has accepted: a later view has a higher
    /// number.
    pub fn sequence(&self) -> u64 {
        self.place.read().sequence
    }

    /// The membership in force.
    pub fn membership(&self) -> Arc<Membership> {
        self.base().membership.clone()
    }

    /// The store from which file content is read.
    pub fn source(&self) -> &VerifiedStore {
        &self.shared.store
    }

    /// Waits until the modification that this snapshot answers is committed at the server.
    ///
    /// # Errors
    /// As [`super::Engine::flush_commits`], but for this modification only.
    pub fn committed(&self) -> Result<(), FsError> {
        let Some(ticket) = self.ticket else { return Ok(()) };
        let deadline = Instant::now() + self.shared.deadline;
        self.shared.commits.wait(ticket, deadline, || self.shared.late())
    }

    /// The view itself, if no operation of others is pending in it and no file is withheld.
    pub(super) fn settled(&self) -> Option<Arc<Base>> {
        let place = self.place.read();
        (place.base.touches.is_empty() && *place.withheld == Withheld::default()).then(|| place.base.clone())
    }

    pub(super) fn base(&self) -> Arc<Base> {
        self.place.read().base.clone()
    }

    /// Moves on to the present view, in which `file` is to be read.
    fn renew(&self, file: Handle) -> Result<(), FsError> {
        let newer = self.shared.fetch(ReadSet::of(&[file]))?.place.read().clone();
        self.go_on(newer);
        Ok(())
    }

    fn go_on(&self, newer: LatestView) {
        let mut place = self.place.write();
        if newer.sequence > place.sequence {
            *place = newer;
        }
    }

    /// Whether another device held a file exclusively, so that it may be outdated in this view. If this
    /// device has a lease of it by now, moves on to the newest accepted view, which is then current.
    fn is_withheld(&self, file: Handle) -> bool {
        if self.is_lenient || !self.place.read().withheld.has(&file) {
            return false;
        }
        if !self.shared.leases.holds(&[file]) {
            self.shared.leases.note_contended();
            return true;
        }
        let newest = self.shared.latest.read().clone();
        self.go_on(newest);
        false
    }

    /// Takes over the structure of an operation that was pending in this view. The signer learns it first: if
    /// the operation is later shown as dead, the signer must know that its effects have been read (trace T9).
    fn adopt_structure(&self, structure: Signed<Structure>) -> Result<(), FsError> {
        let LatestView { base, floor, .. } = self.place.read().clone();
        let mut learned = Floor::clone(&floor);
        if let Err(alarm) = learned.learn(&*base.membership, structure.clone()) {
            return self.shared.report_event(SignerEvent::Alarm(Box::new(alarm)));
        }
        self.shared.report_event(SignerEvent::Committed(Box::new(structure)))?;
        let mut view = learned.view.clone();
        // This device's own operation may be signed but not committed yet; the floor does not include it
        // then.
        view.slots.extend(base.view.slots.get(&base.me).map(|own| (base.me, own.clone())));
        let mut place = self.place.write();
        if Arc::ptr_eq(&place.floor, &floor) {
            place.base = Arc::new(base.with_view(view));
            place.floor = Arc::new(learned);
        }
        Ok(())
    }

    /// The i-hash of a file. It changes whenever anything about the file changes.
    ///
    /// # Errors
    /// [`FsError::NotFound`], and errors of the data itself.
    pub fn ihash(&self, file: Handle) -> Result<Digest, FsError> {
        self.read(file, |base| base.pending_on(file), |base| base.ihash(file))
    }

    /// Reads something once no pending operation affects it.
    fn read<T>(
        &self,
        file: Handle,
        pending: impl Fn(&Base) -> Result<Option<Tag>, ReadError>,
        wanted: impl Fn(&Base) -> Result<T, ReadError>,
    ) -> Result<T, FsError> {
        let deadline = Instant::now() + self.shared.deadline;
        let mut missing = None;
        let mut pauses = Pauses::new(Duration::from_millis(5), Duration::from_millis(500));
        loop {
            self.shared.check()?;
            if self.is_withheld(file) {
                if Instant::now() >= deadline {
                    let why = format!("another device keeps {file} for itself, so the server says");
                    return Err(FsError::Unreachable(why));
                }
                self.shared.leases.want(file);
                self.renew(file)?;
                if self.is_withheld(file) {
                    // An honest server lets no other device have the file meanwhile. A server that was asked
                    // again may not know of the earlier request.
                    std::thread::sleep(pauses.after_failure());
                }
                continue;
            }
            let base = self.base();
            let error = match pending(&base) {
                Ok(None) => match wanted(&base) {
                    Ok(value) => return Ok(value),
                    Err(error) => error,
                },
                Ok(Some(tag)) => {
                    if Instant::now() >= deadline {
                        let Tag { device, number } = tag;
                        return Err(FsError::Unreachable(format!(
                            "operation {number} of device {} stays pending",
                            device.0
                        )));
                    }
                    match self.shared.wait_settled(tag, deadline) {
                        Some(structure) => self.adopt_structure(*structure)?,
                        None => {
                            std::thread::sleep(pauses.after_failure());
                            self.renew(file)?;
                        }
                    }
                    continue;
                }
                Err(error) => error,
            };
            match error {
                ReadError::Content(ContentError::Source(SourceError::Missing(address)))
                    if missing != Some(address) =>
                {
                    missing = Some(address);
                    self.renew(file)?;
                }
                ReadError::NotFound if missing.is_some() => return Err(FsError::Stale),
                error => return Err(self.shared.explain(Some(file), None, &error, &base)),
            }
        }
    }
}

impl View for Snapshot {
    fn position(&self) -> u64 {
        self.sequence()
    }

    fn inode(&self, file: Handle) -> Result<Arc<Inode>, FsError> {
        self.read(
            file,
            |base| base.pending_on(file),
            |base| {
                let inode = base.inode(file)?;
                // Of a directory whose entries are being changed, only the time is shown at once. Waiting
                // would delay every path through the directory, and a time is not content.
                match base.touches.time(file) {
                    Some(time) if inode.kind == InodeKind::Directory && time > inode.modified_ns => {
                        let mut changed = Inode::clone(&inode);
                        changed.modified_ns = time;
                        changed.changed_ns = changed.changed_ns.max(time);
                        Ok(Arc::new(changed))
                    }
                    _ => Ok(inode),
                }
            },
        )
    }

    fn entry(&self, directory: Handle, name: &[u8]) -> Result<Option<Entry>, FsError> {
        self.read(
            directory,
            |base| Ok(base.pending_on(directory)?.or_else(|| base.touches.entry(directory, name))),
            |base| base.entry(directory, name),
        )
    }

    fn entries(&self, directory: Handle, after: Option<&[u8]>, limit: usize) -> Result<Names, FsError> {
        self.read(
            directory,
            |base| Ok(base.pending_on(directory)?.or_else(|| base.touches.entries(directory).next())),
            |base| Ok(base.entries(directory, after, limit)?.0),
        )
    }

    fn may_write(&self, principal: PrincipalId) -> bool {
        let base = self.base();
        base.membership.may_write(base.me, principal)
    }

    fn principals(&self) -> Vec<PrincipalId> {
        tree::principals_of(&self.base().membership)
    }

    fn name_of(&self, principal: PrincipalId) -> String {
        tree::name_of(&self.base().membership, principal)
    }

    fn lenient(&self) -> Option<Arc<dyn View>> {
        Some(Arc::new(Snapshot::lenient(self)))
    }
}
