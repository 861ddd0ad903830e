//! Exports a release as an image that the kernel mounts by itself: `tree.erofs`, an EROFS image with names,
//! attributes and small files, and `objects/`, the content of the other files, which overlayfs puts in their
//! places (as composefs does).
//!
//! ```text
//! DIR/tree.erofs      names and attributes of one release, the same bytes wherever it is exported
//! DIR/objects/        content; see [`objects`]
//! DIR/known           what objects there are
//! DIR/release         which release it is (JSON), for people and for [`check`]
//! ```
//!
//! Everything is verified while it is exported. Afterwards `DIR` is as trustworthy as its disk, unless the
//! kernel checks objects (fs-verity), for which the image holds their digests. An existing image stays valid
//! until the new one replaces it by one rename.

pub mod attach;
pub mod erofs;
pub mod objects;
mod tree;
pub mod verity;

use crate::keys::ReleaseId;
use crate::record::Record;
use crate::tree::Tree;
use holdfast_content::ContentError;
use holdfast_log::FileLock;
use objects::Objects;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tree::{NAMES_MAX, Source, Totals, write_tree};
use verity::VerityDigest;

/// The name of the image file.
pub const IMAGE: &str = "tree.erofs";
/// The name of the file that says which release the image is of.
pub const RELEASE: &str = "release";
/// Most bytes of that file.
const RELEASE_BYTES_MAX: u64 = 64 << 10;

/// Why there is no image, or why it is not valid.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The content of a file cannot be fetched, or differs from what was signed.
    #[error("{}: {error}", display_path(path))]
    Content {
        /// The path of the file in the tree.
        path: Vec<u8>,
        /// What is wrong.
        error: Box<ContentError>,
    },
    /// Reading or writing a file failed.
    #[error("{}: {error}", path.display())]
    Disk {
        /// The file.
        path: PathBuf,
        /// What the system reports.
        error: io::Error,
    },
    /// There is no image.
    #[error("{}: there is no image here; `holdfast release export RELEASE --to {}` makes one", .0.display(), .0.display())]
    None(PathBuf),
    /// The file that says which release it is cannot be read.
    #[error("{}: it does not say which release this is ({why}); export it again", path.display())]
    Unclear {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Another process works in the directory.
    #[error("{}: another export works here", .0.display())]
    InUse(PathBuf),
    /// The image is mounted, so nothing may be deleted.
    #[error("{}: the image is mounted on {}; unmount it before objects are deleted, or leave out --prune", directory.display(), mount.display())]
    Mounted {
        /// The image's directory.
        directory: PathBuf,
        /// The mount point.
        mount: PathBuf,
    },
    /// The tree exceeds the limits of an image.
    #[error("{}: {why}", display_path(path))]
    TooLarge {
        /// The path in the tree where it was noticed.
        path: Vec<u8>,
        /// The limit that is exceeded, in words.
        why: String,
    },
    /// The directory is not empty and holds no image.
    #[error("{}: is not empty, and what is in it is no image; name another directory", .0.display())]
    Foreign(PathBuf),
}

fn display_path(path: &[u8]) -> String {
    if path.is_empty() { "the root directory".into() } else { String::from_utf8_lossy(path).into_owned() }
}

impl ImageError {
    pub(crate) fn disk(path: &Path, error: io::Error) -> ImageError {
        ImageError::Disk { path: path.to_owned(), error }
    }

    pub(crate) fn content(path: &[u8], error: ContentError) -> ImageError {
        ImageError::Content { path: path.to_owned(), error: Box::new(error) }
    }
}

/// Identifies the release of an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageOf {
    /// The release's id.
    pub id: String,
    /// The number of the record.
    pub sequence: u64,
    /// When the record was signed, in seconds since 1970.
    pub issued_s: u64,
    /// The title of the release.
    pub note: String,
    /// Address of the root directory.
    pub root: String,
    /// The mirrors from which the release came.
    pub mirrors: Vec<String>,
    /// The image's fs-verity digest.
    pub image: String,
}

/// The report of an export.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Report {
    /// The release of the image.
    pub of: ImageOf,
    /// The number of names in the image.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Objects that were written.
    pub objects_added: u64,
    /// Bytes of the objects that were added.
    pub bytes_added: u64,
    /// Files whose object was there already.
    pub objects_kept: u64,
    /// Objects that were deleted.
    pub objects_deleted: u64,
    /// Bytes of the objects that were deleted.
    pub bytes_deleted: u64,
    /// Files that an image cannot have: device nodes 0/0, which overlayfs takes for deletions.
    pub left_out: u64,
}

/// Options of an export.
pub struct ExportOptions<'a> {
    /// The directory where the image and its objects go.
    pub directory: &'a Path,
    /// The tree of `record`.
    pub tree: &'a Tree,
    /// The signed record of the release.
    pub record: &'a Record,
    /// The mirrors from which the release came, for people.
    pub mirrors: Vec<String>,
    /// Whether objects that this image does not need are deleted.
    pub prune: bool,
}

/// Exports a release into a directory, or updates the image there. `progress` is called with names and bytes
/// done.
///
/// # Errors
/// [`ImageError`]. The directory has the old image or the new one, whole.
pub fn export(options: &ExportOptions<'_>, progress: &dyn Fn(u64, u64)) -> Result<Report, ImageError> {
    let directory = options.directory;
    holdfast_durable::make_directory(directory, 0o700).map_err(|error| ImageError::disk(directory, error))?;
    check_own_directory(directory)?;
    let _lock = lock(directory)?;
    if options.prune
        && let Some(mount) = attach::mounts_of(directory).into_iter().next()
    {
        return Err(ImageError::Mounted { directory: directory.to_owned(), mount });
    }
    let mut objects = Objects::open(directory, options.prune)?;
    let partial = directory.join(format!("{IMAGE}.partial"));
    let disk = |error| ImageError::disk(&partial, error);
    let _ = std::fs::remove_file(&partial);
    let file = File::options().read(true).write(true).create_new(true).mode(0o644).open(&partial);
    let file = file.map_err(disk)?;
    let mut source = Source::Write(&mut objects);
    let (file, totals) = write_tree(options.tree, NAMES_MAX, (file, &partial), &mut source, progress)?;
    objects.keep()?;
    let image_bytes = file.metadata().map_err(disk)?.len();
    let image = objects::measure_file(&file, image_bytes).map_err(disk)?;
    let of = image_of(options, image);
    file.sync_all().map_err(disk)?;
    let to = directory.join(IMAGE);
    std::fs::rename(&partial, &to).map_err(|error| ImageError::disk(&to, error))?;
    let path = directory.join(RELEASE);
    let text = serde_json::to_vec_pretty(&of).expect("it has no maps");
    holdfast_durable::replace(&path, &text, 0o644).map_err(|error| ImageError::disk(&path, error))?;
    let gone = if options.prune { objects.prune()? } else { (0, 0) };
    Ok(Report {
        of,
        names: totals.names,
        bytes: totals.bytes,
        image_bytes,
        objects_added: objects.added.0,
        bytes_added: objects.added.1,
        objects_kept: objects.kept,
        objects_deleted: gone.0,
        bytes_deleted: gone.1,
        left_out: totals.left_out,
    })
}

fn image_of(options: &ExportOptions<'_>, image: VerityDigest) -> ImageOf {
    ImageOf {
        id: options.record.release.to_string(),
        sequence: options.record.sequence,
        issued_s: options.record.issued_s,
        note: options.record.note.clone(),
        root: options.tree.reference().address.to_string(),
        mirrors: options.mirrors.clone(),
        image: image.to_string(),
    }
}

/// The result of checking an image: its faults; empty if it is right.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Checked {
    /// Names in the release.
    pub names: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// The faults, in words: at most [`WRONG_MAX`], then a line with the number of further ones.
    pub wrong: Vec<String>,
}

/// Most faults that are listed one by one.
pub const WRONG_MAX: usize = 100;

/// Reads the image and all its objects, and compares them with what was signed. `tree` is the tree of the
/// record that the image was made of. Content is not fetched.
///
/// # Errors
/// [`ImageError`]: they could not be compared.
pub fn check(directory: &Path, tree: &Tree, progress: &dyn Fn(u64, u64)) -> Result<Checked, ImageError> {
    let path = directory.join(IMAGE);
    let disk = |error| ImageError::disk(&path, error);
    let there = match File::open(&path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(ImageError::None(directory.to_owned()));
        }
        Err(error) => return Err(disk(error)),
    };
    let _lock = lock(directory)?;
    let objects = Objects::open(directory, false)?;
    let mut wrong = Vec::new();
    // The image is made once more from what was signed; it has only one form.
    let made = tempfile::tempfile_in(directory).map_err(|error| ImageError::disk(directory, error))?;
    let mut source = Source::Check(&objects, &mut wrong);
    let (made, Totals { names, bytes, .. }) =
        write_tree(tree, NAMES_MAX, (made, &path), &mut source, progress)?;
    if wrong.is_empty() && !same(&made, &there).map_err(disk)? {
        wrong.push(format!("{IMAGE} is not what was signed"));
    }
    Ok(Checked { names, bytes, wrong })
}

fn same(one: &File, other: &File) -> io::Result<bool> {
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut at, mut left, mut right) = (0, vec![0; 1 << 20], vec![0; 1 << 20]);
    loop {
        let count = one.read_at(&mut left, at)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact_at(&mut right[..count], at)?;
        if left[..count] != right[..count] {
            return Ok(false);
        }
        at += count as u64;
    }
}

/// Whether a directory is that of an image.
pub fn is_image(directory: &Path) -> bool {
    directory.join(IMAGE).is_file()
}

/// The release of an image, as the image states it.
///
/// # Errors
/// [`ImageError::None`], [`ImageError::Unclear`], [`ImageError::Disk`].
pub fn image_at(directory: &Path) -> Result<ImageOf, ImageError> {
    if !is_image(directory) {
        return Err(ImageError::None(directory.to_owned()));
    }
    let path = directory.join(RELEASE);
    let unclear = |why: String| ImageError::Unclear { path: path.clone(), why };
    let bytes =
        holdfast_durable::read(&path, RELEASE_BYTES_MAX).map_err(|error| ImageError::disk(&path, error))?;
    let bytes = bytes.ok_or_else(|| unclear("there is no such file".into()))?;
    let of: ImageOf = serde_json::from_slice(&bytes).map_err(|error| unclear(error.to_string()))?;
    match ReleaseId::from_hex(&of.id) {
        Some(_) => Ok(of),
        None => Err(unclear("its id is none".into())),
    }
}

/// Checks that the directory is empty or an image's, so that nothing of anybody else is overwritten.
fn check_own_directory(directory: &Path) -> Result<(), ImageError> {
    let disk = |error| ImageError::disk(directory, error);
    let mut is_empty = true;
    for entry in std::fs::read_dir(directory).map_err(disk)? {
        let name = entry.map_err(disk)?.file_name();
        if name == IMAGE || name == objects::OBJECTS {
            return Ok(());
        }
        is_empty = false;
    }
    if is_empty { Ok(()) } else { Err(ImageError::Foreign(directory.to_owned())) }
}

fn lock(directory: &Path) -> Result<FileLock, ImageError> {
    let disk = |error| ImageError::disk(directory, error);
    let handle = File::open(directory).map_err(disk)?;
    FileLock::take(handle).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => ImageError::InUse(directory.to_owned()),
        _ => disk(error),
    })
}
