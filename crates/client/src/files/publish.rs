//! Publishes a file's changes: stores the content first, then puts it into the inode with one edit.

use super::compose::{ComposeError, PublishReason, append, compose, cut_appendix};
use super::conflict_copies::{Overwrite, keep_conflict_copy};
use super::conflict_copy_id::ConflictCopyId;
use super::lookup::stale;
use super::nodes::{Node, NodeState, Pages};
use super::state::{
    FileState, NameStatus, Publication, PublishEffect, Snapshot, content_digest, content_roots,
};
use super::{FileSystem, now_ns};
use crate::backend::{Guard, ReadSet, UploadKind};
use crate::error::FsError;
use crate::interrupt;
use crate::store::{WriteTarget, account};
use crate::tree::{Changes, OrderedResult};
use holdfast_content::{Content, FILE_BYTES_MAX, Handle, Inode};
use holdfast_crypto::Digest;
use parking_lot::MutexGuard;
use std::sync::Arc;

impl FileSystem {
    /// Publishes the unpublished changes of a file; returns once they are ordered. If data was only appended,
    /// it goes after whatever others have published since the file was opened here. Otherwise the last to
    /// publish wins: the content of this client replaces theirs.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the file was removed elsewhere. [`FsError::Access`]: the right to write it was
    /// lost. [`FsError::Unreachable`], [`FsError::NoSpace`], [`FsError::Integrity`] (unchanged content could
    /// not be read). The changes stay unpublished then.
    pub(super) fn publish(&self, node: &Node, occasion: PublishReason) -> Result<(), FsError> {
        let Some(_one_at_a_time) = interrupt::lock(&node.publishing) else {
            return Err(FsError::Interrupted);
        };
        self.settle_attempt(node)?;
        let snapshot = {
            let mut state = node.state();
            let NodeState { file, lock_lost, .. } = &mut *state;
            let Some(file) = file else { return Ok(()) };
            if *lock_lost && file.is_dirty() {
                return Err(FsError::LockLost);
            }
            if file.named.is_orphan() {
                return Ok(());
            }
            match file.begin_publication() {
                Some(snapshot) => snapshot,
                None => return Ok(()),
            }
        };
        let told = OrderedResult::default();
        let result = self.publish_snapshot(node, &snapshot, occasion, &told);
        if let Ok(published) = &result
            && !published.made.attributes_only
        {
            self.backend.note_version(node.handle(), self.nodes.path(node.ino), &published.made.inode);
        }
        let mut state = node.state();
        let pages = state.pages;
        let file = state.file.as_mut().expect("no file is closed while it is being published");
        match result {
            Ok(published) => {
                let before = file.base_content;
                let name = || self.journal_name(node.ino);
                let PublishedContent { made, position, whole, pin } = published;
                let landed = file.published(&made, position, whole, &self.spool, &name);
                // The pins of the old content stay until the new content is pinned.
                if landed != PublishEffect::Apart {
                    file.pins.clear();
                    file.pins.extend(pin);
                }
                if pages == Pages::Of(before) {
                    state.pages = Pages::Of(file.base_content);
                }
                self.landed(node, state, landed);
                self.changed_unseen(Vec::new(), node.ino);
                Ok(())
            }
            Err(error) => {
                file.publication_failed(Some(told));
                gone_meanwhile(file, error)
            }
        }
    }

    /// Finds out whether an interrupted publication took effect after all. This must be certain before the
    /// next publication; otherwise appended data could be there twice.
    pub(super) fn settle_attempt(&self, node: &Node) -> Result<(), FsError> {
        let attempt = node.state().file.as_ref().and_then(|file| file.attempt());
        let Some(attempt) = attempt else { return Ok(()) };
        if attempt.told.get().is_none() {
            // By the time this is answered, every earlier request has been decided.
            self.backend.fetch(ReadSet::default())?;
        }
        let mut state = node.state();
        let Some(file) = &mut state.file else { return Ok(()) };
        let landed = file.settle_attempt(&self.spool, &|| self.journal_name(node.ino));
        self.landed(node, state, landed);
        Ok(())
    }

    /// Invalidates the kernel's pages if they show only this client's version of the file.
    fn landed(&self, node: &Node, mut state: MutexGuard<'_, NodeState>, landed: PublishEffect) {
        if landed == PublishEffect::Elsewhere {
            state.pages = Pages::Mixed;
            drop(state);
            self.invalidate(node.ino);
        }
    }

    fn publish_snapshot(
        &self,
        node: &Node,
        snapshot: &Snapshot,
        occasion: PublishReason,
        told: &OrderedResult<Publication>,
    ) -> Result<PublishedContent, FsError> {
        let (new, whole) = self.new_content(node, snapshot, occasion)?;
        let handle = node.handle();
        let (mode, modified_ns) = (snapshot.mode, snapshot.modified_ns);
        let (device, changed_ns, now_ns) = (self.engine.me().0, snapshot.changed_ns, now_ns());
        let how = Overwrite { path: self.nodes.path(node.ino), by: device, at_ns: now_ns };
        let (made, view) = self.edit_with_result(told.clone(), move |changes| {
            let mut inode = (*changes.inode(handle).map_err(stale)?).clone();
            Self::must_be_file(inode.kind)?;
            if !changes.may_write(handle.principal) {
                return Err(FsError::Access(format!("the file belongs to {}", handle.principal)));
            }
            let PutOutcome { behind_others, conflict_copy: kept } = match &new {
                Some(new) => new.put_into(changes, handle, &mut inode, &how)?,
                None => PutOutcome::default(),
            };
            inode.modified_ns = match behind_others {
                true => inode.modified_ns.max(modified_ns),
                false => modified_ns,
            };
            inode.mode = mode.unwrap_or(inode.mode);
            // The time that `fstat` showed before the close stays, unless a version that others have seen is
            // replaced.
            let least_ns = if behind_others { now_ns } else { changed_ns };
            inode.changed_ns = inode.changed_ns.max(least_ns);
            inode.writer = device;
            let made = Publication {
                inode: Arc::new(inode.clone()),
                behind_others,
                attributes_only: new.is_none(),
                conflict_copy: kept,
            };
            changes.set_inode(handle, inode)?;
            Ok(made)
        })?;
        if let Some(kept) = made.conflict_copy {
            tracing::warn!(
                path = %self.path_of(node),
                "a version of this file that was published elsewhere, and not seen here, was overwritten; it is kept: \
                 `holdfast conflicts` lists it, `holdfast conflicts get {kept} --out FILE` copies it out"
            );
        }
        let roots = content_roots(&made.inode);
        let pin = (!roots.is_empty()).then(|| self.backend.pin(roots));
        Ok(PublishedContent { whole: whole && !made.behind_others, made, position: view.position(), pin })
    }

    /// Makes and stores the new content, if the snapshot changes content. Also returns whether all of it was
    /// cut into blocks anew.
    pub(super) fn new_content(
        &self,
        node: &Node,
        snapshot: &Snapshot,
        occasion: PublishReason,
    ) -> Result<(Option<NewContent>, bool), FsError> {
        if !snapshot.changes_content() {
            return Ok((None, false));
        }
        let _behalf = account::on_behalf_of(node.ino.0);
        let mut whole = false;
        let source = self.backend.source();
        let before = snapshot.base.content.clone();
        let about = WriteTarget { handle: node.handle(), path: self.nodes.path(node.ino), before };
        let mode = self.engine.transfer_mode();
        let mut upload = match occasion {
            PublishReason::Close => self.backend.upload(about, UploadKind::Usual),
            PublishReason::Sync => self.backend.upload(about, UploadKind::Awaited),
        };
        let failed = |error| self.compose_error(node, error);
        let appendix = match snapshot.appended {
            true => Some(cut_appendix(&*source, &mut *upload, snapshot, mode).map_err(failed)?),
            false => None,
        };
        let content = match compose(&*source, &mut *upload, snapshot, occasion, mode) {
            Ok(composed) => {
                whole = composed.whole;
                Some(composed.content)
            }
            // Appended data needs nothing of the base, which others may have replaced.
            Err(ComposeError::Content(..)) if snapshot.appended => None,
            Err(error) => return Err(failed(error)),
        };
        let seen = [Some(content_digest(&snapshot.base)), snapshot.ours];
        let held = upload.finish(content.as_ref())?;
        let new = NewContent { content, size: snapshot.size, appendix, seen, _held: held };
        Ok((Some(new), whole))
    }

    /// Waits until published changes are committed; at a close, only until they are as safe as a close
    /// requires. If that fails, all open files with uncommitted changes are noted for salvage, whichever file
    /// caused the failure.
    pub(super) fn commit(&self, node: &Node, occasion: PublishReason) -> Result<(), FsError> {
        let result = match occasion {
            PublishReason::Close => self.backend.keep_commits(),
            PublishReason::Sync => self.backend.flush_commits(),
        };
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

    /// Publishes all unpublished files, before the mount ends. Returns those that could not be published.
    pub fn publish_all(&self) -> Vec<(Vec<u8>, FsError)> {
        let mut failed = Vec::new();
        for node in self.nodes.all() {
            if let Err(error) = self.publish(&node, PublishReason::Close) {
                self.notice(&error);
                failed.push((self.nodes.path(node.ino), error));
            }
        }
        if let Err(error) = self.backend.flush_commits() {
            failed.push((Vec::new(), error));
        }
        failed
    }

    /// Paths of the files with unpublished changes, where the mount has them; for `holdfast status`.
    pub fn unpublished(&self) -> Vec<String> {
        let is_unpublished = |node: &Arc<Node>| {
            node.state().file.as_ref().is_some_and(|file| file.is_dirty() && !file.named.is_orphan())
        };
        let nodes = self.nodes.all().into_iter().filter(is_unpublished);
        nodes.map(|node| String::from_utf8_lossy(&self.nodes.path(node.ino)).into_owned()).collect()
    }

    /// Warns about a file that was closed for good with changes that could not be published.
    pub(super) fn report_unpublished(&self, node: &Node, error: &FsError) {
        tracing::warn!(
            path = %String::from_utf8_lossy(&self.nodes.path(node.ino)),
            %error,
            "changes to a file could not be published; they are kept, and `holdfast salvage` gets them out"
        );
    }
}

struct PublishedContent {
    made: Publication,
    position: u64,
    whole: bool,
    pin: Option<Guard>,
}

/// The content that a publication puts into the inode, whatever its place in the order.
pub(super) struct NewContent {
    /// The base with the changes; `None` if it could not be made and only the appendix is needed.
    content: Option<Content>,
    size: u64,
    /// The appended bytes, if appending is the only change.
    appendix: Option<Inode>,
    /// Contents that the writer has seen; replacing one of them is no conflict.
    seen: [Option<Digest>; 2],
    /// Kept because the operation may have to be made again long after the caller got its answer.
    _held: Guard,
}

/// What became of the content that a publication replaced.
#[derive(Default)]
struct PutOutcome {
    behind_others: bool,
    conflict_copy: Option<ConflictCopyId>,
}

impl NewContent {
    /// Puts the content into a file that was empty and that no other device has.
    pub(super) fn fill(&self, inode: &mut Inode) {
        inode.content = self.content.clone().expect("nothing is read of an empty base");
        inode.size = self.size;
    }

    fn put_into(
        &self,
        changes: &mut dyn Changes,
        handle: Handle,
        inode: &mut Inode,
        how: &Overwrite,
    ) -> Result<PutOutcome, FsError> {
        let found = content_digest(inode);
        let appendix = match (&self.content, &self.appendix) {
            (Some(content), appendix) if appendix.is_none() || Some(found) == self.seen[0] => {
                let before = inode.clone();
                inode.content = content.clone();
                inode.size = self.size;
                // An empty version is no loss, nor is one with the same content.
                let is_lost = before.size > 0 && found != content_digest(inode);
                let kept = match is_lost && !self.seen.contains(&Some(found)) {
                    true => keep_conflict_copy(changes, handle, &before, how)?,
                    false => None,
                };
                return Ok(PutOutcome { behind_others: false, conflict_copy: kept });
            }
            (_, appendix) => appendix.as_ref().expect("what is no base and changes is an appendix"),
        };
        if inode.size + appendix.size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let present = &*inode;
        let content =
            changes.make_content(handle, &|source, sink| append(source, sink, present, appendix))?;
        inode.content = content;
        inode.size += appendix.size;
        Ok(PutOutcome { behind_others: true, conflict_copy: None })
    }
}

/// Handles a file that is missing in the order's view: it was removed elsewhere, unless it was removed here
/// meanwhile.
fn gone_meanwhile(file: &mut FileState, error: FsError) -> Result<(), FsError> {
    match (file.named, error) {
        (NameStatus::RemovedHere, FsError::Stale) => Ok(()),
        (_, FsError::Stale) => {
            file.named = NameStatus::RemovedElsewhere;
            Err(FsError::Stale)
        }
        (_, error) => Err(error),
    }
}
