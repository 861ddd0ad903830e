//! mount(2): directly if this process may, else through the set-uid helper fusermount3.
//!
//! The FUSE crate could do this too, but it does not fall back to the helper where users may not open
//! `/dev/fuse`, and does not say why the helper refused.

use crate::mountpoint::MountError;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// The source in the table of mounts, which is the address.
    pub source: String,
    /// Whether other users of this machine may use the mount. By default only the mounting user may, not even
    /// root.
    pub allow_other: bool,
    /// Whether the kernel refuses all writes.
    pub read_only: bool,
    /// Whether the kernel refuses to run programs from the mount.
    pub no_exec: bool,
    /// Whether the kernel manages file locks, among the programs of this machine only.
    pub local_locks: bool,
}

/// Which side checks permissions in a mount.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Permissions {
    /// The kernel, by owner and mode.
    ByMode,
    /// The process that serves the mount; the kernel asks it when a directory is entered.
    Asked,
}

impl Permissions {
    fn option(self) -> &'static str {
        match self {
            Permissions::ByMode => ",default_permissions",
            Permissions::Asked => "",
        }
    }
}

/// Name of the helper (package fuse3).
pub(crate) const HELPER: &str = "fusermount3";

/// Mounts on `directory` (absolute) and returns the channel to the kernel.
pub(crate) fn attach(
    directory: &Path,
    options: &Options,
    permissions: Permissions,
) -> Result<OwnedFd, MountError> {
    let refused =
        |reason: String| MountError::Refused { directory: directory.to_owned(), verb: "mounted", reason };
    if rustix::process::geteuid().is_root() {
        match attach_directly(directory, options, permissions) {
            Ok(channel) => return Ok(channel),
            // Root may lack the right to mount (in a container); the helper may have it.
            Err(Errno::PERM | Errno::ACCESS) => {}
            Err(Errno::NODEV | Errno::NOENT | Errno::NXIO) => {
                return Err(refused("the kernel has no FUSE; load its module (modprobe fuse)".to_owned()));
            }
            Err(error) => return Err(refused(error.to_string())),
        }
    }
    attach_by_helper(directory, options, permissions).map_err(refused)
}

/// The source without special characters: a comma would begin another option, and a backslash escapes.
fn source(options: &Options) -> String {
    options
        .source
        .chars()
        .map(|c| if c.is_control() || matches!(c, ',' | '\\' | ' ') { '_' } else { c })
        .collect()
}

fn attach_directly(directory: &Path, options: &Options, permissions: Permissions) -> Result<OwnedFd, Errno> {
    let channel = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let kind = rustix::fs::stat(directory)?.st_mode & 0o170_000;
    let mut data = format!(
        "fd={},rootmode={kind:o},user_id={},group_id={},subtype=holdfast{}",
        channel.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        permissions.option(),
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV;
    if options.read_only {
        flags |= MountFlags::RDONLY;
    }
    if options.no_exec {
        flags |= MountFlags::NOEXEC;
    }
    let data = CString::new(data).map_err(|_| Errno::INVAL)?;
    rustix::mount::mount(source(options), directory, "fuse", flags, &*data)?;
    Ok(channel)
}

/// Mounts through the helper. It sends the channel over a socket whose number it finds in its environment.
/// The socket becomes its standard input, so that it need not inherit any other descriptor.
fn attach_by_helper(
    directory: &Path,
    options: &Options,
    permissions: Permissions,
) -> Result<OwnedFd, String> {
    let (ours, theirs) = UnixStream::pair().map_err(|error| error.to_string())?;
    let mut wanted = format!("fsname={},subtype=holdfast,nosuid,nodev", source(options));
    wanted.push_str(permissions.option());
    if options.read_only {
        wanted.push_str(",ro");
    }
    if options.no_exec {
        wanted.push_str(",noexec");
    }
    if options.allow_other {
        wanted.push_str(",allow_other");
    }
    let spawned = Command::new(HELPER)
        .args(["-o", &wanted, "--"])
        .arg(directory)
        .env("_FUSE_COMMFD", "0")
        .env("LC_ALL", "C")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut helper = spawned.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("{HELPER} is not installed (package fuse3)"),
        _ => format!("{HELPER} cannot be run: {error}"),
    })?;
    let channel = receive(&ours);
    let message = end(&mut helper);
    match channel {
        Ok(Some(channel)) => Ok(channel),
        Ok(None) => Err(explain(&message, options)),
        Err(error) => Err(format!("{HELPER}: {error}")),
    }
}

/// Waits for the descriptor. Returns `None` if the helper ended without sending one.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let mut descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    descriptors.next().map(Some).ok_or_else(|| io::Error::other("it sent no descriptor"))
}

/// The error messages of the helper.
fn end(helper: &mut Child) -> String {
    let mut message = String::new();
    if let Some(errors) = helper.stderr.take() {
        // The length is bounded, although the helper is trusted. A broken pipe loses only the message.
        let _ = errors.take(4096).read_to_string(&mut message);
    }
    if let Err(error) = helper.wait() {
        tracing::warn!(%error, "waiting for {HELPER}");
    }
    message.trim().trim_start_matches("fusermount3: ").to_owned()
}

fn explain(message: &str, options: &Options) -> String {
    if options.allow_other && message.contains("user_allow_other") {
        return "--allow-other needs the line 'user_allow_other' in /etc/fuse.conf, which only root can add"
            .to_owned();
    }
    if message.contains("/dev/fuse") && message.contains("ermission denied") {
        return format!("{message}. Root has to let users open it, as most systems do: chmod 666 /dev/fuse");
    }
    if message.is_empty() { format!("{HELPER} refused without a word") } else { message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mountpoint::{self, UnmountMode};
    use fuser::{Config, Filesystem, Session, SessionACL};

    struct Nothing;

    impl Filesystem for Nothing {}

    /// A mount is recognised as ours by its type, and shows its source. While it is served, it does not count
    /// as dead, and nothing else is mounted over it. When its server has ended, it is dead, and is removed
    /// when the directory is needed.
    #[test]
    fn a_dead_mount_is_recognised_and_removed() {
        if !Path::new("/dev/fuse").exists() {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let path = mountpoint::prepare(directory.path()).expect("it is empty");
        let source = "hf://a,b\\c:1/d".to_owned();
        let options =
            Options { source, allow_other: false, read_only: true, no_exec: true, local_locks: false };
        let channel = attach(&path, &options, Permissions::ByMode).expect("mounting is possible here");
        let session =
            Session::from_fd(Nothing, channel, SessionACL::All, Config::default()).expect("a handshake");
        let served = std::thread::spawn(move || session.run());
        let mount = mountpoint::mounted_at(&path).expect("a table").expect("it is there");
        assert!(mount.is_holdfast(), "{mount:?}");
        assert_eq!(mount.source, "hf://a_b_c:1/d");
        assert!(!mountpoint::is_dead(&path));
        assert!(matches!(mountpoint::prepare(&path), Err(MountError::AlreadyMounted { .. })));
        assert!(!mountpoint::remove_if_dead(&mount).expect("it answers"));
        mountpoint::unmount(&path, UnmountMode::Gently).expect("nobody uses it");
        // Another process was faster.
        assert!(mountpoint::remove_if_dead(&mount).expect("it is gone"));
        served.join().expect("no panic").expect("no error");

        let channel = attach(&path, &options, Permissions::ByMode).expect("mounting is possible here");
        let session =
            Session::from_fd(Nothing, channel, SessionACL::All, Config::default()).expect("a handshake");
        drop(session);
        assert!(mountpoint::is_dead(&path));
        assert_eq!(mountpoint::absolute(&path).expect("it has a path"), path);
        assert_eq!(mountpoint::prepare(&path).expect("the dead mount is removed"), path);
        assert_eq!(mountpoint::mounted_at(&path).expect("a table"), None);
    }
}
