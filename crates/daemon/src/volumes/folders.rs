//! What this machine remembers of volumes, in the state directory:
//!
//! ```text
//! volumes/ID.anchor         how new the volume is (see anchor.rs)
//! volumes/ID/about.json     its disk, log and key file
//! volumes/ID/lock           held by the process that works on the volume
//! volumes/ID/control        socket of the process that has it attached
//! volumes/ID/log            log of that process
//! volumes/ID/scrub.json     progress of the last scrub
//! volumes/ID/moving.json    a move to another log that is under way
//! ```

use super::media;
use super::secret::{decode_hex, hex};
use crate::paths::{Directories, make_private};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::FileLock;
use holdfast_volume::Header;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most bytes of one of these files.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Name of the file that describes a move to another log.
pub const MOVING: &str = "moving.json";

/// What this machine remembers of a volume.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Absolute path of the disk.
    pub disk: PathBuf,
    /// Absolute path of the log.
    pub log: PathBuf,
    /// Absolute path of the key file.
    pub key: PathBuf,
    /// Bytes of the volume.
    pub size_bytes: u64,
    /// Whether all of the disk has been taken over: every block was hashed.
    pub protected: bool,
    /// Absolute path of the anchor, if the operator chose one.
    pub anchor: Option<PathBuf>,
    /// Whether a counter of this machine's TPM confirms which anchor is the newest.
    #[serde(default)]
    pub tpm: bool,
}

/// The paths of one volume's files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct VolumeFolder {
    /// The volume's name.
    pub volume: [u8; 16],
    /// Its directory.
    pub directory: PathBuf,
    /// The path of its anchor, unless the operator chose another file.
    pub anchor: PathBuf,
}

/// The directory with the folders of all volumes.
pub struct VolumeFolders(PathBuf);

impl VolumeFolders {
    /// The folders below the state directory.
    ///
    /// # Errors
    /// No home directory is known.
    pub fn new(directories: &Directories) -> Outcome<VolumeFolders> {
        Ok(VolumeFolders(directories.state_base()?.join("volumes")))
    }

    /// The paths of a volume's files.
    pub fn of(&self, volume: &[u8; 16]) -> VolumeFolder {
        let name = hex(volume);
        VolumeFolder {
            volume: *volume,
            anchor: self.0.join(format!("{name}.anchor")),
            directory: self.0.join(name),
        }
    }

    /// All remembered volumes, in order of name, except those that an interrupted move has left although
    /// their successor is complete.
    pub fn all(&self) -> Vec<(VolumeFolder, VolumeRecord)> {
        let Ok(entries) = std::fs::read_dir(&self.0) else { return Vec::new() };
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let mut volume = [0; 16];
            let named = entry.file_name().to_str().and_then(|name| decode_hex(name, &mut volume));
            let place = self.of(&volume);
            if named.is_some()
                && let Some(about) = place.record()
                && !self.has_moved(&place, &about)
            {
                found.push((place, about));
            }
        }
        found.sort_by_key(|(place, _)| place.volume);
        found
    }

    /// Whether a volume has moved to a successor that is complete and in place.
    fn has_moved(&self, place: &VolumeFolder, about: &VolumeRecord) -> bool {
        #[derive(Deserialize)]
        struct Moving {
            volume: [u8; 16],
        }
        let Some(Moving { volume }) = place.read(MOVING) else { return false };
        let Some(successor) = self.of(&volume).record() else { return false };
        let in_place = || {
            let device = media::open_for_reading(&successor.log).ok()?;
            Some(Header::claimed_volume(&*device)? == volume)
        };
        successor.disk == about.disk && in_place() == Some(true)
    }

    /// The volumes on a disk.
    pub fn on_disk(&self, disk: &Path) -> Vec<(VolumeFolder, VolumeRecord)> {
        let disk = absolute(disk);
        self.all().into_iter().filter(|(_, about)| about.disk == disk).collect()
    }

    /// The volume that the user names by disk, log, ID or the beginning of the ID. `attached_at` returns
    /// where a volume is attached.
    ///
    /// # Errors
    /// No volume matches, or several do.
    pub fn find(
        &self,
        wanted: &Path,
        attached_at: impl Fn(&VolumeFolder) -> Vec<PathBuf>,
    ) -> Outcome<(VolumeFolder, VolumeRecord)> {
        let path = absolute(wanted);
        let all = self.all();
        let is_named = |place: &VolumeFolder| {
            wanted.to_str().is_some_and(|text| text.len() >= 4 && hex(&place.volume).starts_with(text))
        };
        let mut found: Vec<_> = all
            .iter()
            .filter(|(place, about)| about.disk == path || about.log == path || is_named(place))
            .cloned()
            .collect();
        if found.is_empty() {
            found = all.into_iter().filter(|(place, _)| attached_at(place).contains(&path)).collect();
        }
        if found.len() > 1 {
            // A move that was interrupted at its end leaves two volumes; the attached one is meant.
            let attached: Vec<_> =
                found.iter().filter(|(place, _)| !attached_at(place).is_empty()).cloned().collect();
            if attached.len() == 1 {
                found = attached;
            }
        }
        match found.len() {
            1 => Ok(found.remove(0)),
            0 => Err(Failure::new(
                Exit::NoInput,
                format!("{}: no volume of this name is known here", wanted.display()),
            )
            .hint("`holdfast volume list` shows those that are")),
            several => Err(Failure::new(
                Exit::Usage,
                format!("{}: {several} volumes are meant by this; say more", wanted.display()),
            )),
        }
    }
}

impl VolumeFolder {
    /// The volume's ID as text.
    pub fn name(&self) -> String {
        hex(&self.volume)
    }

    /// Creates its directory.
    ///
    /// # Errors
    /// The directory cannot be created, or belongs to another user.
    pub fn make(&self) -> Outcome {
        make_private(&self.directory)
    }

    /// Locks the volume, until the result is dropped.
    ///
    /// # Errors
    /// Another process has locked it.
    pub fn lock(&self) -> Outcome<FileLock> {
        self.make()?;
        let path = self.directory.join("lock");
        let failed = |error: std::io::Error| Failure::new(Exit::Io, format!("{}: {error}", path.display()));
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        FileLock::take(file).map_err(|error| match error.kind() {
            std::io::ErrorKind::WouldBlock => Failure::new(
                Exit::InUse,
                format!("volume {} is attached, or another command works on it", self.name()),
            )
            .hint("`holdfast volume status` tells; `holdfast volume detach` ends an attachment"),
            _ => failed(error),
        })
    }

    /// The file of its anchor.
    pub fn anchor_of(&self, about: &VolumeRecord) -> PathBuf {
        about.anchor.clone().unwrap_or_else(|| self.anchor.clone())
    }

    /// What this machine remembers of the volume.
    pub fn record(&self) -> Option<VolumeRecord> {
        self.read("about.json")
    }

    /// Writes what this machine remembers of the volume.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self, about: &VolumeRecord) -> Outcome {
        self.write("about.json", about)
    }

    /// Reads a file of its directory; `None` if it is missing or malformed.
    pub fn read<T: DeserializeOwned>(&self, name: &str) -> Option<T> {
        let file = File::open(self.directory.join(name)).ok()?;
        serde_json::from_reader(std::io::Read::take(file, FILE_BYTES_MAX)).ok()
    }

    /// Replaces a file of its directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write<T: Serialize>(&self, name: &str, value: &T) -> Outcome {
        self.make()?;
        let text = serde_json::to_vec_pretty(value).map_err(|error| Failure::new(Exit::Internal, error))?;
        replace(&self.directory.join(name), &text)
    }

    /// Removes a file of its directory, if it exists.
    pub fn remove(&self, name: &str) {
        let _ = std::fs::remove_file(self.directory.join(name));
    }

    /// Forgets the volume, with its anchor.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn forget(&self) -> Outcome {
        for result in [std::fs::remove_file(&self.anchor), std::fs::remove_dir_all(&self.directory)] {
            match result {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(Failure::new(Exit::Io, format!("{}: {error}", self.directory.display())));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// A path in the form that is remembered: absolute and, where possible, without symbolic links.
pub fn absolute(path: &Path) -> PathBuf {
    let parent_and_name = || {
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(parent.canonicalize().ok()?.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(parent_and_name).unwrap_or_else(|| path.to_owned())
}

/// Replaces a file by one with these bytes, atomically and durably.
///
/// # Errors
/// The file cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Outcome {
    holdfast_durable::replace(path, bytes, holdfast_durable::PRIVATE)
        .map_err(|error| Failure::new(Exit::Io, format!("{}: {error}", path.display())))
}

/// Makes the names in the directory of `path` durable.
///
/// # Errors
/// The directory cannot be synced.
pub fn sync_parent(path: &Path) -> Outcome {
    holdfast_durable::sync_parent(path)
        .map_err(|error| Failure::new(Exit::Io, format!("the directory of {}: {error}", path.display())))
}
