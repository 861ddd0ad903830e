//! Orphans: open files without a name, made without one (`O_TMPFILE`) or left when their last name was
//! removed here.
//!
//! They are visible to this client only. A file made without a name costs one operation, which gives it its
//! number, so that the number never changes; `link` publishes all of the file together with its first name.
//! Until then nothing of it is sent, and it disappears with its last descriptor or with this process.

use super::compose::PublishReason;
use super::edit::writable_directory;
use super::nodes::Node;
use super::program_rules::RULES;
use super::state::{NameStatus, Publication, PublishEffect, content_roots};
use super::{Attributes, Caller, FileSystem, Ino, OpenFlags, OpenReply, ino_of, now_ns};
use crate::error::FsError;
use crate::interrupt;
use crate::tree::{OrderedResult, View};
use holdfast_content::{Entry, Handle, Inode, InodeKind};
use std::sync::Arc;

impl FileSystem {
    /// Makes a file without a name, owned by the principal of the directory `parent`, and opens it. Counts
    /// one lookup.
    ///
    /// # Errors
    /// [`FsError::Access`], [`FsError::NotDirectory`], [`FsError::ReadOnly`], [`FsError::Unreachable`].
    pub fn tmpfile(
        &self,
        caller: &Caller,
        parent: Ino,
        mode: u32,
        flags: OpenFlags,
    ) -> Result<(Attributes, OpenReply), FsError> {
        self.run(|| {
            self.settle(caller, parent)?;
            self.may_change()?;
            let directory = self.handle(parent)?;
            let (handle, view) = self.edit(move |changes| {
                let within = writable_directory(changes, directory)?;
                if within.xattrs.contains_key(RULES) {
                    // The program that makes it cannot be identified. Programs then make a file with a name
                    // instead.
                    return Err(FsError::Unsupported);
                }
                changes.allocate(directory.principal)
            })?;
            let mut inode = Inode::new(InodeKind::File, mode, self.engine.me().0, now_ns());
            inode.links = 0;
            let node = self.nodes.insert_unnamed(ino_of(handle), handle);
            self.enter(&node, &Arc::new(inode.clone()), &*view, flags);
            if let Some(file) = &mut node.state().file {
                file.named = NameStatus::NotYet;
            }
            let attributes = self.published_attributes(&*view, handle, &inode);
            Ok((attributes, self.opened(node, flags, false)))
        })
    }

    /// Gives a file that was made without a name its first name, with all its content. `None`: the file was
    /// not made so.
    pub(super) fn link_orphan(
        &self,
        handle: Handle,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<Attributes>, FsError> {
        let Some(node) = self.nodes.find(ino_of(handle)) else { return Ok(None) };
        let is_one = || node.state().file.as_ref().is_some_and(|file| file.named == NameStatus::NotYet);
        if !is_one() {
            return Ok(None);
        }
        let Some(_one_at_a_time) = interrupt::lock(&node.publishing) else {
            return Err(FsError::Interrupted);
        };
        self.settle_attempt(&node)?;
        if !is_one() {
            return Ok(None);
        }
        let told = OrderedResult::default();
        let published = self.publish_named(&node, parent, name, &told);
        let mut state = node.state();
        let file = state.file.as_mut().expect("no file is closed while it is being published");
        let (made, view, whole) = match published {
            Ok(published) => published,
            Err(error) => {
                file.publication_failed(Some(told));
                return Err(error);
            }
        };
        self.nodes.looked_up(node.ino, handle, parent, name);
        file.named = NameStatus::Named;
        let journal = || self.journal_name(node.ino);
        let landed = file.published(&made, view.position(), whole, &self.spool, &journal);
        assert_eq!(landed, PublishEffect::Here, "nobody else has published it");
        let roots = content_roots(&made.inode);
        file.pins.clear();
        file.pins.extend((!roots.is_empty()).then(|| self.backend.pin(roots)));
        drop(state);
        Ok(Some(self.attributes(&*view, handle, &made.inode)))
    }

    fn publish_named(
        &self,
        node: &Node,
        parent: Ino,
        name: &[u8],
        told: &OrderedResult<Publication>,
    ) -> Result<(Publication, Arc<dyn View>, bool), FsError> {
        let (handle, directory, wanted) = (node.handle(), self.handle(parent)?, name.to_vec());
        let (snapshot, mut inode) = {
            let mut state = node.state();
            let file = state.file.as_mut().expect("it was there just now");
            file.set_attributes(None, None, now_ns());
            let snapshot = file.begin_publication().expect("it was just changed");
            (snapshot, (*file.latest).clone())
        };
        let (new, whole) = self.new_content(node, &snapshot, PublishReason::Close)?;
        inode.links = 1;
        inode.mode = snapshot.mode.unwrap_or(inode.mode);
        (inode.modified_ns, inode.changed_ns) = (snapshot.modified_ns, snapshot.changed_ns);
        inode.writer = self.engine.me().0;
        let (made, view) = self.edit_with_result(told.clone(), move |changes| {
            writable_directory(changes, directory)?;
            if !changes.may_write(handle.principal) {
                return Err(FsError::NotPermitted(format!("the file belongs to {}", handle.principal)));
            }
            if changes.entry(directory, &wanted)?.is_some() {
                return Err(FsError::Exists);
            }
            let mut inode = inode.clone();
            if let Some(new) = &new {
                new.fill(&mut inode);
            }
            let made = Publication {
                inode: Arc::new(inode.clone()),
                behind_others: false,
                attributes_only: false,
                conflict_copy: None,
            };
            let (entry, now_ns) = (Entry { handle, kind: inode.kind }, inode.changed_ns);
            changes.set_inode(handle, inode)?;
            changes.set_entry(directory, &wanted, Some(entry), now_ns)?;
            Ok(made)
        })?;
        Ok((made, view, whole))
    }

    /// A file without a name that is open here, in this client's state.
    pub(super) fn open_orphan(&self, ino: Ino) -> Option<Arc<Inode>> {
        let node = self.nodes.find(ino)?;
        let state = node.state();
        let file = state.file.as_ref().filter(|file| file.named.is_orphan())?;
        Some(file.latest.clone())
    }

    /// Changes attributes of a file without a name. `false`: the file has a name.
    pub(super) fn edit_orphan(
        &self,
        ino: Ino,
        change: &dyn Fn(&mut Inode) -> Result<(), FsError>,
    ) -> Result<bool, FsError> {
        let Some(node) = self.nodes.find(ino) else { return Ok(false) };
        let mut state = node.state();
        let Some(file) = state.file.as_mut().filter(|file| file.named.is_orphan()) else {
            return Ok(false);
        };
        let mut inode = (*file.latest).clone();
        change(&mut inode)?;
        file.latest = Arc::new(inode);
        file.set_attributes(None, None, now_ns());
        Ok(true)
    }
}
