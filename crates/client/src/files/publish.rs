//! Publishing a file's changes: content is stored first, then one edit puts it into the inode.

use super::backend::Guard;
use super::compose::{Occasion, compose};
use super::lookup::stale;
use super::nodes::{Node, NodeState, Pages};
use super::state::{FileState, Named, Snapshot, content_roots};
use super::{FileSystem, now_ns};
use crate::error::FsError;
use crate::interrupt;
use holdfast_content::{Content, Inode};
use std::sync::Arc;

impl FileSystem {
    /// Publishes what is unpublished of a file; returns once it is ordered. Whoever publishes last wins: the
    /// content as this client has it replaces what others have published since it was opened here.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the file was removed elsewhere. [`FsError::Access`]: the right to write it was
    /// lost. [`FsError::Unreachable`], [`FsError::NoSpace`], [`FsError::Integrity`] (content that stays could
    /// not be read). The changes are then as unpublished as before.
    pub(super) fn publish(&self, node: &Node, occasion: Occasion) -> Result<(), FsError> {
        let Some(_one_at_a_time) = interrupt::lock(&node.publishing) else {
            return Err(FsError::Interrupted);
        };
        let snapshot = {
            let mut state = node.state();
            let NodeState { file, lock_lost, .. } = &mut *state;
            let Some(file) = file else { return Ok(()) };
            if *lock_lost && file.is_dirty() {
                return Err(FsError::LockLost);
            }
            if file.named == Named::RemovedHere {
                return Ok(());
            }
            match file.begin_publication() {
                Some(snapshot) => snapshot,
                None => return Ok(()),
            }
        };
        let result = self.publish_snapshot(node, &snapshot, occasion);
        let mut state = node.state();
        let pages = state.pages;
        let file = state.file.as_mut().expect("no file is closed while it is being published");
        match result {
            Ok(published) => {
                let before = file.base_content;
                let name = || self.journal_name(node.ino);
                file.published(published.inode, published.position, published.whole, &name);
                // Pins of what was copied from stay until the copy's own pin is there.
                file.pins.clear();
                file.pins.extend(published.pin);
                if pages == Pages::Of(before) {
                    state.pages = Pages::Of(state.file.as_ref().map_or(before, |file| file.base_content));
                }
                Ok(())
            }
            Err(error) => {
                file.publication_failed();
                gone_meanwhile(file, error)
            }
        }
    }

    fn publish_snapshot(
        &self,
        node: &Node,
        snapshot: &Snapshot,
        occasion: Occasion,
    ) -> Result<Published, FsError> {
        let (content, whole, held) = if snapshot.changes_content() {
            let source = self.backend.source();
            let mut upload = self.backend.upload();
            let composed = compose(&*source, &mut *upload, snapshot, occasion)
                .map_err(|error| self.compose_error(node, error))?;
            (Some(composed.content), composed.whole, Some(upload.finish()?))
        } else {
            (None, false, None)
        };
        let handle = node.handle();
        let (size, mode, modified_ns) = (snapshot.size, snapshot.mode, snapshot.modified_ns);
        let (device, changed_ns) = (self.backend.device(), snapshot.changed_ns.max(now_ns()));
        let edited = self.edit(move |changes| {
            let mut inode = (*changes.inode(handle).map_err(stale)?).clone();
            Self::must_be_file(inode.kind)?;
            if !changes.may_write(handle.principal) {
                return Err(FsError::Access(format!("the file belongs to {}", handle.principal)));
            }
            lay_over(&mut inode, content.as_ref(), size);
            inode.mode = mode.unwrap_or(inode.mode);
            inode.modified_ns = modified_ns;
            inode.changed_ns = changed_ns;
            inode.writer = device;
            let made = Arc::new(inode.clone());
            changes.set_inode(handle, inode)?;
            Ok(made)
        });
        let (inode, view) = edited?;
        let roots = content_roots(&inode);
        let pin = (!roots.is_empty()).then(|| self.backend.pin(roots));
        drop(held);
        Ok(Published { inode, position: view.position(), whole, pin })
    }

    /// Waits until what is published is committed. If that fails, whichever file it concerns, all open files
    /// with something uncommitted are noted for salvage.
    pub(super) fn commit(&self, node: &Node) -> Result<(), FsError> {
        let result = self.backend.flush_commits();
        let settle = |node: &Node| {
            if let Some(file) = &mut node.state().file {
                file.committed(result.is_ok(), &self.spool, &|| self.journal_name(node.ino));
            }
        };
        match result {
            Ok(()) => settle(node),
            Err(_) => self.nodes.all().iter().for_each(|node| settle(node)),
        }
        result
    }

    /// Publishes all unpublished files: the mount is about to end. Returns those that could not be.
    pub fn publish_all(&self) -> Vec<(Vec<u8>, FsError)> {
        let mut failed = Vec::new();
        for node in self.nodes.all() {
            if let Err(error) = self.publish(&node, Occasion::Close) {
                self.notice(&error);
                failed.push((self.nodes.path(node.ino), error));
            }
        }
        if let Err(error) = self.backend.flush_commits() {
            failed.push((Vec::new(), error));
        }
        failed
    }

    /// Paths of the files with unpublished changes, as far as they are known; for `holdfast status`.
    pub fn unpublished(&self) -> Vec<String> {
        let is_unpublished =
            |node: &Arc<Node>| node.state().file.as_ref().is_some_and(|file| file.is_dirty());
        let nodes = self.nodes.all().into_iter().filter(is_unpublished);
        nodes.map(|node| String::from_utf8_lossy(&self.nodes.path(node.ino)).into_owned()).collect()
    }

    /// A file is closed for good with changes that could not be published.
    pub(super) fn report_kept(&self, node: &Node, error: &FsError) {
        tracing::warn!(
            path = %String::from_utf8_lossy(&self.nodes.path(node.ino)),
            %error,
            "changes to a file could not be published; they are kept, and `holdfast salvage` gets them out"
        );
    }
}

struct Published {
    inode: Arc<Inode>,
    position: u64,
    whole: bool,
    pin: Option<Guard>,
}

fn lay_over(inode: &mut Inode, content: Option<&Content>, size: u64) {
    if let Some(content) = content {
        inode.content = content.clone();
        inode.size = size;
    }
}

/// A file that is gone in the order's view has lost its name elsewhere, unless it was removed here meanwhile.
fn gone_meanwhile(file: &mut FileState, error: FsError) -> Result<(), FsError> {
    match (file.named, error) {
        (Named::RemovedHere, FsError::Stale) => Ok(()),
        (_, FsError::Stale) => {
            file.named = Named::RemovedElsewhere;
            Err(FsError::Stale)
        }
        (_, error) => Err(error),
    }
}
