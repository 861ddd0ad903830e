//! Opens a card with its sidecar, and checks it before anybody uses it.

use super::bus;
use super::failing::bad;
use super::sidecar::{Sidecar, read_record, usable};
use super::starting::failed;
use holdfast_daemon::volumes::folders::{VolumeFolder as Remembered, VolumeFolders};
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::secret::Secret;
use holdfast_daemon::volumes::{anchor, opening};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::FileLock;
use holdfast_log::device::{Device, JoinedDevice};
use holdfast_stack::{DiskLayout, DiskPlan, FoundPartition, Partition, Source, StackError, find_partitions};
use holdfast_volume::{BLOCK_BYTES, Header, Options, Volume, VolumeError};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read at once while metadata is verified.
const RUN_BYTES: u64 = 256 << 10;
/// Bytes at the beginning of a disk that contain its partition table.
const TABLE_BYTES: u64 = 1 << 20;

/// A volume that is lent to a thread that serves reads of examining processes, and then taken back.
pub(super) struct Lent(Arc<Mutex<Option<Volume>>>, u64);

impl Lent {
    /// Lends the disk, which is the first `disk_bytes` of the volume, without the policy table after it.
    pub(super) fn new(volume: Volume, disk_bytes: u64) -> Lent {
        Lent(Arc::new(Mutex::new(Some(volume))), disk_bytes)
    }

    /// A source that reads the lent volume.
    pub(super) fn source(&self) -> Source {
        let (lent, disk_bytes) = (Arc::clone(&self.0), self.1);
        Arc::new(move |offset, into| {
            let end = offset.checked_add(into.len() as u64).filter(|end| *end <= disk_bytes);
            end.ok_or("that is beyond what is used of the disk")?;
            match &*lent.lock() {
                Some(volume) => volume.read(offset, into).map_err(|error| error.to_string()),
                None => Err("nobody looks at it any more".to_owned()),
            }
        })
    }

    pub(super) fn take(self) -> Volume {
        self.0.lock().take().expect("it is taken once")
    }
}

/// A source that reads a plain device.
pub(super) fn plain(device: Arc<dyn Device>) -> Source {
    Arc::new(move |offset, into| {
        let end = offset.checked_add(into.len() as u64).filter(|end| *end <= device.size_bytes());
        end.ok_or("that is beyond the end of the disk")?;
        device.read_at(offset, into).map_err(|error| error.to_string())
    })
}

/// An opened card.
pub(super) struct Card {
    pub(super) path: PathBuf,
    pub(super) sidecar: PathBuf,
    pub(super) place: DiskLayout,
    pub(super) remembered: Remembered,
    /// Bytes of the disk. The last ones that do not fill a block are not used.
    device_bytes: u64,
    volume: Volume,
    bus: String,
    _lock: FileLock,
}

/// Opens a card, and verifies that it is as new as this machine's anchor says.
///
/// # Errors
/// The sidecar is missing or belongs to another card, or the card is not the newest, or there is no anchor.
pub(super) fn open(
    device: &std::path::Path,
    sidecar: &std::path::Path,
    places: &VolumeFolders,
    freshness_unknown: bool,
) -> Outcome<Card> {
    let files = Sidecar::new(sidecar);
    let disk = Medium::open(device)?;
    let policy = Medium::open(&files.policy).map_err(|failure| {
        failure.hint(
            "--sidecar names the directory that `holdfast volume format` or `adopt` made; without it nothing says whose what \
             is",
        )
    })?;
    let log = Medium::open(&files.log).map_err(|failure| match files.log.exists() {
        true => failure,
        false => failure.hint(
            "`holdfast volume format` or `adopt` makes it; if that was cut off, the same command again brings it to its end",
        ),
    })?;
    let secret = Secret::read(&files.key)?;
    let claimed =
        Header::claimed_volume(&*log.device).ok_or_else(|| bad(&log.path, "this is no log of a volume"))?;
    let key = secret.of(&claimed);
    let remembered = places.of(&claimed);
    let lock = remembered.lock()?;
    let known = anchor::read(&remembered.anchor)?;
    if known.is_none() && !freshness_unknown {
        let message = format!("{}: nothing is known here of how new it is", device.display());
        return Err(Failure::new(Exit::NotAllowed, message).hint(
            "bring the anchor from where it was used last (`holdfast volume anchor export`, `import`); or accept it as it \
             is with --freshness-unknown",
        ));
    }
    let joined: Arc<dyn Device> =
        Arc::new(JoinedDevice::new(disk.device.clone(), usable(&disk), policy.device.clone()));
    let opened =
        Volume::open(joined, log.device.clone(), &key, Options::default(), known.as_ref(), opening::salt()?);
    let (volume, report) = opened.map_err(|error| match error {
        VolumeError::NotAdopted { .. } => Failure::new(
            Exit::Failed,
            format!("{}: was not adopted to the end, so nobody owns what is on it yet", device.display()),
        )
        .hint("the same `holdfast volume adopt` goes on where it was"),
        error => error.into(),
    })?;
    opening::tell(&report);
    let place = read_record(&volume, &policy.path)?.ok_or_else(|| {
        bad(&policy.path, "says nothing of a card; was it adopted to the end, or is it another volume's?")
    })?;
    let bus = bus::of(&disk.path);
    Ok(Card {
        path: disk.path,
        sidecar: files.directory,
        place,
        remembered,
        device_bytes: disk.device.size_bytes(),
        volume,
        bus,
        _lock: lock,
    })
}

impl Card {
    /// Finds a partition by its number; without a number, the only one.
    ///
    /// # Errors
    /// There is none, or there are several.
    pub(super) fn partition(&self, number: Option<u32>) -> Outcome<u32> {
        let numbers: Vec<u32> = self.place.partitions.iter().map(|one| one.number).collect();
        let list = numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        match (number, &numbers[..]) {
            (Some(number), numbers) if numbers.contains(&number) => Ok(number),
            (None, [only]) => Ok(*only),
            (Some(number), _) => Err(Failure::new(
                Exit::Usage,
                format!("{}: has no file system in partition {number}, but in {list}", self.path.display()),
            )),
            (None, _) => Err(Failure::new(
                Exit::Usage,
                format!("{}: has file systems in partitions {list}", self.path.display()),
            )
            .hint("say which with --partition N")),
        }
    }

    /// Checks that the layout of these partitions is still as when owners were assigned, and that nobody else
    /// has written to their metadata since. The content of files is verified when it is read.
    ///
    /// # Errors
    /// The disk has changed.
    pub(super) fn check(self, numbers: &[u32]) -> Outcome<Card> {
        let Card { path, sidecar, place, volume, .. } = &self;
        let changed = |what: String| {
            let message = format!(
                "{}: was changed since it was last used with {}: {what}",
                path.display(),
                sidecar.display()
            );
            Failure::new(Exit::Data, message).hint(
                "something else wrote to it (another system, mtools), or it is damaged. If what is on it now is right, adopt \
                 it anew: `holdfast volume adopt DEVICE --anew --sidecar NEWDIR --user NAME`, with --owners-from and the old \
                 sidecar to keep the owners of what did not change",
            )
        };
        let used: Vec<usize> = numbers.iter().filter_map(|number| place.find(*number)).collect();
        let head = place.partitions.iter().map(|one| one.start).min().unwrap_or(0).min(TABLE_BYTES);
        let areas = used.iter().map(|at| {
            let Partition { start, geometry, .. } = place.partitions[*at];
            (start, start + geometry.metadata_bytes)
        });
        for (from, to) in std::iter::once((0, head)).chain(areas) {
            verify(volume, from, to).map_err(|error| match error {
                VolumeError::BadBlock { bad, .. } => changed(bad.to_string()),
                error => error.into(),
            })?;
        }
        let Card { path, sidecar, place, remembered, device_bytes, volume, bus, _lock } = self;
        let lent = Lent::new(volume, place.table.0);
        let found = find_partitions(lent.source(), device_bytes, &|| true);
        let volume = lent.take();
        let found: Vec<FoundPartition> = found.map_err(failed)?;
        for at in used {
            place.agrees(at, &found).map_err(|error| {
                let message = format!("{}: {error}", path.display());
                Failure::new(Exit::Data, message)
                    .hint("the driver of this partition wrote what it should not have; the other partitions can be mounted")
            })?;
        }
        Ok(Card { path, sidecar, place, remembered, device_bytes, volume, bus, _lock })
    }

    /// Splits the card into a plan for a stack, and what must be retained until the stack ends.
    pub(super) fn into_plan(self) -> Outcome<(DiskPlan, RetainedCard)> {
        self.volume.start()?;
        let Card { path, place, remembered, volume, bus, _lock, .. } = self;
        Ok((DiskPlan { volume, layout: place, bus, format: None }, RetainedCard { path, remembered, _lock }))
    }
}

/// What is retained of a card while a stack uses it.
pub(super) struct RetainedCard {
    pub(super) path: PathBuf,
    pub(super) remembered: Remembered,
    _lock: FileLock,
}

/// Reads a part of a volume only to verify it.
fn verify(volume: &Volume, from: u64, to: u64) -> Result<(), VolumeError> {
    let mut bytes = vec![0; RUN_BYTES as usize];
    let mut at = from / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let end = to.next_multiple_of(BLOCK_BYTES as u64).min(volume.size_bytes());
    while at < end {
        let length = RUN_BYTES.min(end - at);
        volume.read(at, &mut bytes[..length as usize])?;
        at += length;
    }
    Ok(())
}

/// The failure for an error of a process that examined a card.
pub(super) fn refused(path: &std::path::Path, error: StackError) -> Failure {
    match error {
        StackError::Component(words) => Failure::new(Exit::Data, format!("{}: {words}", path.display())),
        error => failed(error),
    }
}
