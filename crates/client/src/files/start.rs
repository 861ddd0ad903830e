//! Starting to serve an engine, directly or behind a write-back, and handling what the engine reports on its
//! own.

use super::{FileSystem, MountOptions, WriteBack, WriteBackOptions};
use crate::backend::Upstream;
use crate::engine::{Engine, Notice};
use crate::error::FsError;
use std::sync::Arc;

impl FileSystem {
    /// Serves the file system of `engine`.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub fn new(engine: Arc<Engine>, options: MountOptions) -> Result<Arc<FileSystem>, FsError> {
        let files = FileSystem::with_engine(engine.clone(), options)?;
        files.listen_to(&engine);
        Ok(files)
    }

    /// Like [`FileSystem::new`], with changes kept here and sent in the background.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub fn behind(
        engine: &Engine,
        back: Arc<WriteBack>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        let files = FileSystem::with_write_back(back, options)?;
        files.listen_to(engine);
        Ok(files)
    }

    /// Serves an engine, or a stand-in for one.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub(super) fn with_engine(
        engine: Arc<dyn Upstream>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        FileSystem::start(engine.clone(), engine, options)
    }

    /// Serves a write-back in front of an engine.
    ///
    /// # Errors
    /// [`FsError::Local`]: the spool cannot be used.
    pub(super) fn with_write_back(
        back: Arc<WriteBack>,
        options: MountOptions,
    ) -> Result<Arc<FileSystem>, FsError> {
        let files = FileSystem::start(back.engine(), back.clone(), options)?;
        let known = Arc::downgrade(&files);
        back.tell_paths(Box::new(move |handle| match known.upgrade() {
            Some(files) => files.known_path(handle),
            None => Vec::new(),
        }));
        Ok(files)
    }

    fn listen_to(self: &Arc<FileSystem>, engine: &Engine) {
        let told = Arc::downgrade(self);
        engine.on_notice(Box::new(move |notice| {
            if let (Notice::Order(report), Some(files)) = (notice, told.upgrade()) {
                files.notice(&FsError::Frozen(report.clone()));
            }
        }));
        let told = Arc::downgrade(self);
        engine.on_lock_lost(Box::new(move |file| {
            if let Some(files) = told.upgrade() {
                files.lock_lost(file);
            }
        }));
        let told = Arc::downgrade(self);
        engine.on_recall(Box::new(move |dropped| {
            if let Some(files) = told.upgrade() {
                files.recalled(dropped.everything);
            }
        }));
    }
}

impl WriteBack {
    /// A write-back that sends what is changed here to the file system of `engine`.
    ///
    /// # Errors
    /// [`FsError::Local`]: the journal cannot be used.
    pub fn over(engine: Arc<Engine>, options: WriteBackOptions) -> Result<Arc<WriteBack>, FsError> {
        let back = WriteBack::start(engine.clone(), options)?;
        let told = Arc::downgrade(&back);
        engine.on_recall(Box::new(move |dropped| {
            if let (true, Some(back)) = (dropped.exclusive, told.upgrade()) {
                back.recalled();
            }
        }));
        Ok(back)
    }
}
