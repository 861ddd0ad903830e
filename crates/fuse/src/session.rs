//! A mount, from mount(2) to its end.

use crate::attach::{Options, Permissions, attach};
use crate::automount::{AutomountHandler, Automounter};
use crate::device_file::{DeviceHandler, Disk};
use crate::fixed::{FixedHandler, FixedTree, Forgetter};
use crate::handler::Handler;
use crate::invalidate::Invalidator;
use crate::mountpoint::{self, MountError, UnmountMode};
use fuser::{Config, SessionACL};
use holdfast_client::files::FileSystem;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Threads that read (and mostly answer) the kernel's requests.
const READERS: usize = 8;

/// A mount that is being served. It continues when this is dropped; [`Session::unmount`] or umount(8) ends
/// it.
pub struct Session {
    directory: PathBuf,
    /// The kernel's number of the mount, which distinguishes it from a later mount at the same place.
    id: Option<u64>,
    end: Arc<EndSignal>,
}

#[derive(Default)]
struct EndSignal {
    reached: Mutex<bool>,
    changed: Condvar,
}

/// Mounts `fs` on `directory` and serves it on threads of its own. `ended` is called once, after the last
/// request, when the mount is gone for whatever reason.
///
/// # Errors
/// The directory cannot be mounted on (see [`mountpoint::prepare`]), or the kernel or fusermount3 refuses.
pub fn mount(
    fs: Arc<FileSystem>,
    directory: &Path,
    options: &Options,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Session, MountError> {
    let local_locks = options.local_locks;
    let start = |channel| {
        let handler = Handler::new(Arc::clone(&fs), READERS, local_locks);
        let session = handshake(handler, channel)?;
        let invalidator = Invalidator::start(&fs, session.notifier())?;
        Ok((session, invalidator))
    };
    serve(directory, options, Permissions::ByMode, start, ended)
}

/// Like [`mount`], for a read-only tree.
///
/// # Errors
/// As for [`mount`].
pub fn mount_fixed(
    tree: Arc<dyn FixedTree>,
    directory: &Path,
    options: &Options,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Session, MountError> {
    let options = Options { read_only: true, ..options.clone() };
    let start = |channel| {
        let session = handshake(FixedHandler::new(Arc::clone(&tree), READERS), channel)?;
        let forgetter = Forgetter::start(&*tree, session.notifier())?;
        Ok((session, forgetter))
    };
    serve(directory, &options, Permissions::ByMode, start, ended)
}

/// Like [`mount`], for a directory in which names are mounted when they are used.
///
/// # Errors
/// As for [`mount`].
pub fn mount_automount(
    automounter: Arc<dyn Automounter>,
    directory: &Path,
    options: &Options,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Session, MountError> {
    // fusermount3 mounts only on directories that its user may write.
    let options = Options { read_only: false, ..options.clone() };
    let start =
        |channel| Ok((handshake(AutomountHandler::new(Arc::clone(&automounter), READERS), channel)?, ()));
    serve(directory, &options, Permissions::Asked, start, ended)
}

/// Like [`mount`], for a directory with one file, called `name`, which is a disk.
///
/// # Errors
/// As for [`mount`].
pub fn mount_disk(
    disk: Arc<dyn Disk>,
    name: &str,
    directory: &Path,
    options: &Options,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Session, MountError> {
    let start = |channel| Ok((handshake(DeviceHandler::new(Arc::clone(&disk), name), channel)?, ()));
    serve(directory, options, Permissions::ByMode, start, ended)
}

/// Mounts on `directory`, and returns the session with the kernel before anything was read from it, for
/// another process to serve. Also returns the absolute path of the mount point.
///
/// # Errors
/// As for [`mount`].
pub fn open_session(directory: &Path, options: &Options) -> Result<(PathBuf, OwnedFd), MountError> {
    let directory = mountpoint::prepare(directory)?;
    let session = attach(&directory, options, Permissions::ByMode)?;
    Ok((directory, session))
}

/// Mounts, and serves on a thread of its own. `start` shakes hands with the kernel, and makes a value to be
/// dropped at the end.
fn serve<H: fuser::Filesystem + Send + Sync + 'static, G: Send + 'static>(
    directory: &Path,
    options: &Options,
    permissions: Permissions,
    start: impl FnOnce(OwnedFd) -> io::Result<(fuser::Session<H>, G)>,
    ended: impl FnOnce() + Send + 'static,
) -> Result<Session, MountError> {
    let directory = mountpoint::prepare(directory)?;
    let refused = |error: io::Error| MountError::Refused {
        directory: directory.clone(),
        verb: "mounted",
        reason: error.to_string(),
    };
    let channel = attach(&directory, options, permissions)?;
    let (session, guard) = match start(channel) {
        Ok(started) => started,
        Err(error) => {
            let _ = mountpoint::unmount(&directory, UnmountMode::Lazily);
            return Err(refused(error));
        }
    };
    let id = mountpoint::mounted_at(&directory)?.map(|mount| mount.id);
    let end = Arc::new(EndSignal::default());
    let signal = Arc::clone(&end);
    let name = directory.clone();
    let serve = move || {
        if let Err(error) = session.run() {
            tracing::error!(directory = %name.display(), %error, "the mount ended with an error");
        }
        drop(guard);
        remove_if_dead(&name, id);
        ended();
        *signal.reached.lock() = true;
        signal.changed.notify_all();
    };
    if let Err(error) = std::thread::Builder::new().name("mount".to_owned()).spawn(serve) {
        let _ = mountpoint::unmount(&directory, UnmountMode::Lazily);
        return Err(refused(error));
    }
    Ok(Session { directory, id, end })
}

/// Removes the dead mount that is left if the connection was aborted instead of unmounted.
fn remove_if_dead(directory: &Path, id: Option<u64>) {
    let there = mountpoint::mounted_at(directory).ok().flatten();
    if let Some(mount) = there.filter(|mount| id == Some(mount.id))
        && let Err(error) = mountpoint::remove_if_dead(&mount)
    {
        tracing::warn!(directory = %directory.display(), %error, "the dead mount stays");
    }
}

/// Shakes hands with the kernel.
fn handshake<H: fuser::Filesystem>(handler: H, channel: OwnedFd) -> io::Result<fuser::Session<H>> {
    let mut config = Config::default();
    config.n_threads = Some(READERS);
    // The kernel itself refuses other users. Checking the mounting user again would only refuse programs that
    // were handed an open descriptor.
    fuser::Session::from_fd(handler, channel, SessionACL::All, config)
}

impl Session {
    /// Absolute path of the mount point.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the mount from the table of mounts. With [`UnmountMode::Lazily`], programs that use it may
    /// continue until they stop using it; [`Session::wait`] waits for that.
    ///
    /// # Errors
    /// [`MountError::Busy`], or the kernel or fusermount3 refuses.
    pub fn unmount(&self, manner: UnmountMode) -> Result<(), MountError> {
        if self.is_ended() {
            return Ok(());
        }
        let Some(id) = self.id else { return Ok(()) };
        match mountpoint::unmount_only(&self.directory, id, manner) {
            // Another process unmounted it meanwhile.
            Err(MountError::NotMounted(_)) => Ok(()),
            other => other,
        }
    }

    /// Whether the last request has been answered.
    pub fn is_ended(&self) -> bool {
        *self.end.reached.lock()
    }

    /// Waits until the mount is gone and the last request answered.
    pub fn wait(&self) {
        let mut reached = self.end.reached.lock();
        while !*reached {
            self.end.changed.wait(&mut reached);
        }
    }
}
