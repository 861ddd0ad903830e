//! Mounts an image: EROFS on the image's file, and overlayfs on that and the objects. Both are the kernel's;
//! no process of ours serves such a mount. The EROFS mount has no mount point of its own, so unmounting the
//! overlay removes everything.
//!
//! Equivalent to doing by hand: `mount -t erofs DIR/tree.erofs T`, then `mount -t overlay -o
//! ro,nodev,nosuid,metacopy=on,redirect_dir=on,lowerdir=T::DIR/objects none MNT`.

use super::objects::OBJECTS;
use super::{IMAGE, ImageError, is_image};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The prefix of such mounts' source in the kernel's table; the image's directory follows.
pub const SOURCE: &str = holdfast_fuse::mountpoint::IMAGE_SOURCE;
/// The type of file system in the kernel's table.
pub const KIND: &str = "overlay";

/// How the kernel checks content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reads {
    /// The kernel reads objects without checking them.
    Unchecked,
    /// The kernel checks objects at every read (fs-verity).
    Checked,
}

/// Why an image could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no image, or it is damaged.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The user may not mount the image.
    #[error(
        "only root may mount an image, since the kernel reads it by itself; as a user, mount the release \
         (`holdfast mount URL`), which needs no image"
    )]
    NotRoot,
    /// Users other than the mounting one could change the file.
    #[error(
        "{}: others than you may change it, and whoever does says what the kernel shows, other files of this machine \
         among it; export the release yourself, to a directory of your own",
        .0.display()
    )]
    NotYours(PathBuf),
    /// The kernel lacks a feature.
    #[error("this kernel cannot mount an image: {why}")]
    Kernel {
        /// What is missing, and the way out.
        why: String,
    },
    /// The kernel refuses to mount it.
    #[error("{}: the kernel does not mount it: {why}", directory.display())]
    Refused {
        /// The image's directory.
        directory: PathBuf,
        /// What the kernel reports.
        why: String,
    },
}

/// Mounts the image in `directory` on `target`; both are absolute paths.
///
/// # Errors
/// [`AttachError`]; nothing is mounted then.
pub fn attach(directory: &Path, target: &Path, reads: Reads) -> Result<(), AttachError> {
    if !is_image(directory) {
        return Err(ImageError::None(directory.to_owned()).into());
    }
    let refused = |why: String| AttachError::Refused { directory: directory.to_owned(), why };
    check_owner(directory)?;
    let image = open("erofs", "erofs (CONFIG_EROFS_FS), or the module is not loaded (modprobe erofs)")?;
    let set = |context: &OwnedFd, key: &str, value: &[u8]| {
        rustix::mount::fsconfig_set_string(context.as_fd(), key, value)
            .map_err(|error| refused(kernel_message(context, error)))
    };
    set(&image, "source", directory.join(IMAGE).as_os_str().as_bytes())?;
    let names = mount(&image).map_err(|error| match error {
        Errno::NOTBLK => AttachError::Kernel {
            why: "it mounts EROFS from devices only; Linux 6.12 takes files. With an older one, use a loop device: \
                  `mount -o loop,ro DIR/tree.erofs T`, and then overlay as docs/releases.md has it"
                .into(),
        },
        error => refused(kernel_message(&image, error)),
    })?;
    let objects = rustix::fs::open(
        directory.join(OBJECTS),
        OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|error| refused(format!("{OBJECTS}: {error}")))?;
    let overlay =
        open(KIND, "overlayfs (CONFIG_OVERLAY_FS), or the module is not loaded (modprobe overlay)")?;
    set(&overlay, "source", &[SOURCE.as_bytes(), directory.as_os_str().as_bytes()].concat())?;
    set(&overlay, "metacopy", b"on")?;
    set(&overlay, "redirect_dir", b"on")?;
    if reads == Reads::Checked {
        set(&overlay, "verity", b"require")?;
    }
    layer(&overlay, "lowerdir+", &names).map_err(|error| too_old(&overlay, error))?;
    layer(&overlay, "datadir+", &objects).map_err(|error| too_old(&overlay, error))?;
    let whole = mount(&overlay).map_err(|error| refused(kernel_message(&overlay, error)))?;
    rustix::mount::move_mount(
        whole.as_fd(),
        "",
        rustix::fs::CWD,
        target,
        MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH,
    )
    .map_err(|error| refused(format!("on {}: {error}", target.display())))
}

/// Refuses an image that others may change: it determines which files the kernel offers, and with which
/// permissions.
fn check_owner(directory: &Path) -> Result<(), AttachError> {
    let me = rustix::process::geteuid().as_raw();
    for path in [directory.to_owned(), directory.join(IMAGE), directory.join(OBJECTS)] {
        let found = std::fs::symlink_metadata(&path).map_err(|error| ImageError::disk(&path, error))?;
        // A symbolic link has all permission bits, so it is refused too.
        if found.uid() != me || found.mode() & 0o022 != 0 {
            return Err(AttachError::NotYours(path));
        }
    }
    Ok(())
}

fn open(kind: &str, what: &str) -> Result<OwnedFd, AttachError> {
    rustix::mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|error| match error {
        Errno::PERM => AttachError::NotRoot,
        Errno::NODEV => AttachError::Kernel { why: format!("it has no {what}") },
        Errno::NOSYS => AttachError::Kernel { why: "it is older than Linux 5.2".into() },
        error => AttachError::Kernel { why: format!("{kind}: {error}") },
    })
}

fn layer(overlay: &OwnedFd, key: &str, directory: &OwnedFd) -> Result<(), Errno> {
    match rustix::mount::fsconfig_set_fd(overlay.as_fd(), key, directory.as_fd()) {
        // Before Linux 6.13, layers can be given by name only.
        Err(Errno::INVAL) => {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(directory));
            rustix::mount::fsconfig_set_string(overlay.as_fd(), key, path)
        }
        other => other,
    }
}

fn too_old(overlay: &OwnedFd, error: Errno) -> AttachError {
    let why = format!(
        "its overlayfs does not take the layers of an image, for which Linux 6.8 is needed ({})",
        kernel_message(overlay, error)
    );
    AttachError::Kernel { why }
}

/// A mount that is not attached anywhere yet. It grants no rights: no devices, no set-user-ID bits.
fn mount(context: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::mount::fsconfig_set_flag(context.as_fd(), "ro")?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOSUID;
    rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// The kernel's message about its refusal, or else the meaning of the error number.
fn kernel_message(context: &OwnedFd, error: Errno) -> String {
    let mut lines = Vec::new();
    let mut buffer = [0; 1024];
    // A read returns one message; there are a few of them.
    while lines.len() < 16
        && let Ok(count) = rustix::io::read(context, &mut buffer)
        && count > 0
    {
        let line = String::from_utf8_lossy(&buffer[..count]);
        lines.push(line.trim_start_matches("e ").trim().to_owned());
    }
    lines.push(error.to_string());
    lines.join("; ")
}

/// The mount points of images from `directory`, mounted by this program or by hand, according to the kernel's
/// table.
pub fn mounts_of(directory: &Path) -> Vec<PathBuf> {
    let Ok(directory) = directory.canonicalize() else { return Vec::new() };
    let objects = directory.join(OBJECTS);
    let source = format!("{SOURCE}{}", directory.display());
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let of_ours = |line: &[u8]| {
        let line = String::from_utf8_lossy(line).replace("\\040", " ").replace("\\134", "\\");
        line.split_once(" - overlay ").is_some_and(|(_, rest)| {
            rest.strip_prefix(source.as_str()).is_some_and(|rest| rest.starts_with(' '))
                || rest.contains(&*objects.to_string_lossy())
        })
    };
    let lines = table.split(|byte| *byte == b'\n').filter(|line| of_ours(line));
    let place = |line: &[u8]| {
        let field = String::from_utf8_lossy(line.split(|byte| *byte == b' ').nth(4)?).into_owned();
        Some(PathBuf::from(field.replace("\\040", " ")))
    };
    lines.filter_map(place).collect()
}
