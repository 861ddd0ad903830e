//! Publishing a file's changes: content is stored first, then one edit puts it into the inode.

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
    /// Publishes what is unpublished of a file; returns once it is ordered. What was only appended comes behind
    /// whatever others have published since the file was opened here. Otherwise whoever publishes last wins: the
    /// content as this client has it replaces theirs.
    ///
    /// # Errors
    /// [`FsError::Stale`]: the file was removed elsewhere. [`FsError::Access`]: the right to write it was
    /// lost. [`FsError::Unreachable`], [`FsError::NoSpace`], [`FsError::Integrity`] (content that stays could
    /// not be read). The changes are then as unpublished as before.
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
                // Pins of what was copied from stay until the copy's own pin is there.
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

    /// A publication that nobody waited for to the end may have its place in the order all the same. Before the
    /// next that must be known: what was appended would be there twice.
    pub(super) fn settle_attempt(&self, node: &Node) -> Result<(), FsError> {
        let attempt = node.state().file.as_ref().and_then(|file| file.attempt());
        let Some(attempt) = attempt else { return Ok(()) };
        if attempt.told.get().is_none() {
            // Whatever was asked for before this has been decided when this is answered.
            self.backend.fetch(ReadSet::default())?;
        }
        let mut state = node.state();
        let Some(file) = &mut state.file else { return Ok(()) };
        let landed = file.settle_attempt(&self.spool, &|| self.journal_name(node.ino));
        self.landed(node, state, landed);
        Ok(())
    }

    /// The kernel's pages are of the file as it was here alone.
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
            // What `fstat` showed before the close stays, unless a version that others have seen is replaced.
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

    /// Makes and stores the content to publish, if it changes, and whether it was cut as a whole.
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
            // What is appended needs nothing of the base, which others may have replaced.
            Err(ComposeError::Content(..)) if snapshot.appended => None,
            Err(error) => return Err(failed(error)),
        };
        let seen = [Some(content_digest(&snapshot.base)), snapshot.ours];
        let held = upload.finish(content.as_ref())?;
        let new = NewContent { content, size: snapshot.size, appendix, seen, _held: held };
        Ok((Some(new), whole))
    }

    /// Waits until what is published is committed; at a close, until it is as safe as that has to be. If that fails, whichever file it concerns, all open files
    /// with something uncommitted are noted for salvage.
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

    /// Publishes all unpublished files: the mount is about to end. Returns those that could not be.
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

    /// Paths of the files with unpublished changes, as far as they are known; for `holdfast status`.
    pub fn unpublished(&self) -> Vec<String> {
        let is_unpublished = |node: &Arc<Node>| {
            node.state().file.as_ref().is_some_and(|file| file.is_dirty() && !file.named.is_orphan())
        };
        let nodes = self.nodes.all().into_iter().filter(is_unpublished);
        nodes.map(|node| String::from_utf8_lossy(&self.nodes.path(node.ino)).into_owned()).collect()
    }

    /// A file is closed for good with changes that could not be published.
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

/// What a publication puts into the inode, wherever it finds its place in the order.
pub(super) struct NewContent {
    /// Base and changes; `None` if that could not be made, and need not be.
    content: Option<Content>,
    size: u64,
    /// The appended bytes, if nothing but that is new.
    appendix: Option<Inode>,
    /// Contents that the writer has seen, so that replacing them is no conflict.
    seen: [Option<Digest>; 2],
    /// The operation may have to be made again when its caller has long had the answer.
    _held: Guard,
}

/// What became of the content that a publication replaced.
#[derive(Default)]
struct PutOutcome {
    behind_others: bool,
    conflict_copy: Option<ConflictCopyId>,
}

impl NewContent {
    /// Puts it into a file that was empty and that nobody else has.
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
                // Nothing is lost with an empty version, nor with one that is the same.
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

/// A file that is gone in the order's view has lost its name elsewhere, unless it was removed here meanwhile.
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
