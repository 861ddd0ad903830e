//! Opening a volume that is not attached: finds its log, key and anchor.

use super::anchor::{self, AnchorStore};
use super::folders::{VolumeFolder, VolumeFolders, VolumeRecord, absolute};
use super::media;
use super::media::Medium;
use super::secret::Secret;
use crate::keys;
use crate::paths::Directories;
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::FileLock;
use holdfast_log::ring::Anchor;
use holdfast_volume::{Header, Report, Volume};
use std::path::{Path, PathBuf};

/// The volume to open, as given on the command line.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The disk or image.
    pub device: PathBuf,
    /// Its log; `None`: the remembered one.
    pub log: Option<PathBuf>,
    /// Its key file; `None`: the remembered one.
    pub key: Option<PathBuf>,
    /// The file of its anchor; `None`: the one given before, or the one in the state directory.
    pub anchor: Option<PathBuf>,
    /// Whether the anchor is bound to a counter of this machine's TPM.
    pub tpm: bool,
}

/// A volume as determined by the command line and by what this machine remembers.
pub struct Meant {
    /// The paths of the volume's files on this machine.
    pub folder: VolumeFolder,
    /// Disk, log and key file.
    pub record: VolumeRecord,
    /// The secret.
    pub secret: Secret,
    /// The store of the anchor.
    pub anchor: AnchorStore,
}

/// Determines which volume is meant, and reads its key.
///
/// # Errors
/// Log or key are neither given nor remembered, or the key does not belong to the log.
pub fn meant(opening: &Opening, directories: &Directories) -> Outcome<Meant> {
    let places = VolumeFolders::new(directories)?;
    let mut known = places.on_disk(&opening.device);
    if let Some(log) = &opening.log {
        known.retain(|(_, about)| about.log == absolute(log));
    }
    if known.len() > 1 {
        // A move to another log that was interrupted at its end leaves two volumes; only one of them is in
        // place.
        known.retain(|(place, about)| {
            let device = media::open_for_reading(&about.log);
            device.is_ok_and(|device| Header::claimed_volume(&*device) == Some(place.volume))
        });
    }
    if opening.log.is_none() && known.len() > 1 {
        return Err(Failure::new(
            Exit::Usage,
            format!("{}: several logs are known for this disk", opening.device.display()),
        )
        .hint("say which with --log; `holdfast volume forget` removes what is obsolete"));
    }
    let known = known.first();
    let unknown = |what: &str, option: &str| {
        let message =
            format!("{}: this machine does not know the {what} of this disk", opening.device.display());
        Failure::new(Exit::NoInput, message).hint(format!("name it with {option}"))
    };
    let remembered = known.map(|(_, about)| about);
    let log = opening.log.as_deref().map(absolute).or_else(|| Some(remembered?.log.clone()));
    let log = log.ok_or_else(|| unknown("log", "--log LOG"))?;
    let key = opening.key.as_deref().map(absolute).or_else(|| Some(remembered?.key.clone()));
    let key = key.ok_or_else(|| unknown("key", "--key KEY"))?;
    let secret = Secret::read(&key)?;
    let volume = verified_name(&log, &secret)?;
    let place = places.of(&volume);
    let anchor = opening.anchor.as_deref().map(absolute).or_else(|| remembered?.anchor.clone());
    let disk = absolute(&opening.device);
    let tpm = opening.tpm || remembered.is_some_and(|about| about.tpm);
    let about = VolumeRecord { disk, log, key, size_bytes: 0, protected: true, anchor, tpm };
    let anchor = AnchorStore::new(place.anchor_of(&about), tpm, &secret.of(&volume));
    Ok(Meant { folder: place, record: about, secret, anchor })
}

/// The ID of the volume that a log belongs to, from its header, verified with this key.
fn verified_name(log: &Path, secret: &Secret) -> Outcome<[u8; 16]> {
    let device = media::open_for_reading(log)?;
    let Some(claimed) = Header::claimed_volume(&*device) else {
        return Err(Failure::new(Exit::Data, format!("{}: this is no log of a volume", log.display()))
            .hint("is it the right file? `holdfast volume protect` makes one"));
    };
    Ok(Header::read(&*device, &secret.of(&claimed))?.volume)
}

/// The known anchor of a volume: its own, or the one in the usual place if that is newer and no TPM is used.
///
/// # Errors
/// There is no anchor, and `freshness_unknown` does not allow that.
pub fn known_anchor(
    place: &VolumeFolder,
    kept: &AnchorStore,
    freshness_unknown: bool,
) -> Outcome<Option<Anchor>> {
    let usual = if kept.is_bound() { None } else { anchor::read(&place.anchor)? };
    let both = [kept.read()?, usual];
    let known = both.into_iter().flatten().max_by_key(|anchor| anchor.number);
    if known.is_none() && !freshness_unknown {
        let message = format!(
            "{}: there is no anchor, so nothing tells whether disk and log are the newest or old copies",
            kept.path.display()
        );
        return Err(Failure::new(Exit::NotAllowed, message).hint(
            "bring the anchor from where the volume was last attached (`holdfast volume anchor export`, `import`); or \
             accept it as it is, this once, with --freshness-unknown",
        ));
    }
    Ok(known)
}

/// Removes the anchor in the usual place if `file` is used instead, because nothing would update it.
pub fn keep_one_anchor(place: &VolumeFolder, file: &Path) {
    if *file != place.anchor {
        let _ = std::fs::remove_file(&place.anchor);
    }
}

/// Makes random bytes for a new epoch of a log.
///
/// # Errors
/// The system has none.
pub fn salt() -> Outcome<[u8; 16]> {
    let mut salt = [0; 16];
    keys::random(&mut salt)?;
    Ok(salt)
}

/// Writes to the program's log what recovery found.
pub fn tell(report: &Report) {
    let Report { records, examined, replayed, refused } = report;
    if *examined + *replayed > 0 {
        tracing::info!(records, examined, replayed, "recovered from the log");
    }
    for bad in refused {
        tracing::warn!(%bad, "a block of a write that was never acknowledged is refused until it is written");
    }
}

/// A volume that this command uses exclusively.
pub struct Opened {
    /// The volume.
    pub volume: Volume,
    /// The result of recovery.
    pub report: Report,
    /// Its disk.
    pub disk: Medium,
    /// Its log.
    pub log: Medium,
    _lock: FileLock,
}

impl Meant {
    /// Opens the volume for this command exclusively.
    ///
    /// # Errors
    /// The volume is in use; otherwise as for [`Volume::open`].
    pub fn open(&self, freshness_unknown: bool) -> Outcome<Opened> {
        let lock = self.folder.lock()?;
        let disk = Medium::open(&self.record.disk)?;
        let log = Medium::open(&self.record.log)?;
        let known = known_anchor(&self.folder, &self.anchor, freshness_unknown)?;
        let key = self.secret.of(&self.folder.volume);
        let devices = (disk.device.clone(), log.device.clone());
        let (volume, report) =
            Volume::open(devices.0, devices.1, &key, Default::default(), known.as_ref(), salt()?)?;
        self.anchor.write(&volume.anchor())?;
        keep_one_anchor(&self.folder, &self.anchor.path);
        Ok(Opened { volume, report, disk, log, _lock: lock })
    }
}
