//! `holdfast volume adopt`: makes a card of a disk with its present content, whose bytes stay as they are.
//!
//! 1. Sandboxed processes examine the plain disk: what is on it, and whether it is sound. If it is not, the
//!    command fails before anything is created.
//! 2. Key, policy file and log are created, and every block of the card is hashed. This continues where it
//!    was interrupted.
//! 3. The same processes examine the disk again, now reading verified blocks. So what they judge is what is
//!    protected, even if somebody wrote to the card meanwhile.
//! 4. The policy table is written, then the anchor, then the record that completes the card. Before the
//!    record is written the card cannot be mounted, and the command starts again with step 3.

use super::failing::bad;
use super::opened::{Lent, plain, refused};
use super::owners::{Owners, before};
use super::sidecar::{RING_BYTES, Sidecar, read_record, table_blocks, usable, write_record};
use super::signed;
use super::starting::failed;
use crate::output::{self, bytes_bar};
use crate::volume::args::Adopt;
use crate::volume::interrupt::Interrupt;
use crate::volume::log::make_log;
use holdfast_daemon::keys;
use holdfast_daemon::paths::Directories;
use holdfast_daemon::volumes::folders::{VolumeFolder as Remembered, VolumeFolders, VolumeRecord, absolute};
use holdfast_daemon::volumes::media::Medium;
use holdfast_daemon::volumes::secret::Secret;
use holdfast_daemon::volumes::{anchor, opening};
use holdfast_failure::{Exit, Failure, Outcome};
use holdfast_log::device::{Device, JoinedDevice};
use holdfast_stack::{
    DiskLayout, FoundPartition, PARTITIONS_MAX, Partition, Source, StackError, Survey, check_partitions,
    find_partitions,
};
use holdfast_volume::{Header, Options, Volume};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most problems of a file system that are printed.
const SHOWN_MAX: usize = 20;
/// The hint for disks with other file systems.
const ONLY_FAT32: &str =
    "only FAT32 can be adopted; `holdfast volume protect` takes over a disk with any file system";

#[derive(Serialize)]
struct AdoptOutput {
    device: PathBuf,
    sidecar: PathBuf,
    volume: String,
    size_bytes: u64,
    partitions: Vec<u32>,
    /// Runs of blocks that retained their previous owner.
    kept_runs: u64,
}

/// `holdfast volume adopt`
pub fn adopt(arguments: &Adopt, directories: &Directories, format: output::Format) -> Outcome {
    let places = VolumeFolders::new(directories)?;
    let disk = Medium::open(&arguments.device)?;
    let sidecar = Sidecar::new(&arguments.sidecar);
    let mut owners = Owners::new(arguments)?;
    not_known(arguments, &places, &disk, &sidecar)?;
    let signed_by = arguments.signed_by.as_deref().map(signed::package).transpose()?;
    signed::listing(signed_by.iter(), &signed::own_digest()?)?;
    let disk_bytes = usable(&disk);
    let interrupt = Interrupt::listen()?;
    let old = arguments.owners_from.as_deref();
    if old.is_some_and(|old| absolute(old) == absolute(&sidecar.directory)) {
        let message = format!(
            "{}: is the old sidecar; the new one needs a directory of its own",
            sidecar.directory.display()
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let old = old.map(|old| before(old, &disk, disk_bytes, &places)).transpose()?;
    // Notes that are not errors are printed only once.
    let mut speech = Speech::Aloud;
    if !sidecar.log.exists() {
        let source = plain(disk.device.clone());
        let (partitions, _) = look(&arguments.device, source, &disk, &owners, &interrupt, speech)?;
        speech = Speech::Silent;
        let blocks = table_blocks(partitions.iter().map(|partition| &partition.geometry));
        begin(&sidecar, &disk, blocks)?;
    }
    let policy = Medium::open(&sidecar.policy)?;
    let joined: Arc<dyn Device> =
        Arc::new(JoinedDevice::new(disk.device.clone(), disk_bytes, policy.device.clone()));
    let log = Medium::open(&sidecar.log)?;
    let secret = Secret::read(&sidecar.key)?;
    let claimed =
        Header::claimed_volume(&*log.device).ok_or_else(|| bad(&log.path, "this is no log of a volume"))?;
    let key = secret.of(&claimed);
    let remembered = places.of(&claimed);
    let _lock = remembered.lock()?;
    let mut about = VolumeRecord {
        disk: disk.path.clone(),
        log: log.path.clone(),
        key: absolute(&sidecar.key),
        size_bytes: disk_bytes,
        protected: remembered.record().is_some_and(|about| about.protected),
        anchor: None,
        tpm: false,
    };
    remembered.remember(&about)?;
    let known = anchor::read(&remembered.anchor)?;
    hash(&joined, &log, &key, known.is_some(), &interrupt, &disk.path)?;

    let options = Options::default();
    let opened = Volume::open(joined, log.device.clone(), &key, options, known.as_ref(), opening::salt()?);
    let (mut volume, _) = opened?;
    let mut kept_runs = 0;
    let place = match read_record(&volume, &policy.path)? {
        // Everything was done, except that this machine does not remember the card yet.
        Some(place) => place,
        None => {
            volume.start()?;
            let lent = Lent::new(volume, disk_bytes);
            let looked = look(&arguments.device, lent.source(), &disk, &owners, &interrupt, speech);
            volume = lent.take();
            let (partitions, mut surveys) = looked.map_err(|failure| {
                let words = failure.hint.clone().unwrap_or_default();
                failure.hint(format!(
                    "{words}{}{} holds nothing yet that is of use: remove it before you adopt the card again",
                    if words.is_empty() { "" } else { "; " },
                    sidecar.directory.display()
                ))
            })?;
            let mut identity = [0; 16];
            keys::random(&mut identity)?;
            let blocks = policy.device.size_bytes() / holdfast_volume::BLOCK_BYTES as u64 - 1;
            let place = DiskLayout { identity, partitions, table: (disk_bytes, blocks), signed_by };
            if let Some(old) = &old {
                kept_runs = old.keep(&mut owners, &place, &mut surveys, &volume);
            }
            holdfast_stack::adopt(&volume, &place, &surveys, owners.principals()).map_err(failed)?;
            volume.flush()?;
            anchor::write(&remembered.anchor, &volume.anchor())?;
            write_record(&volume, &place)?;
            volume.flush()?;
            place
        }
    };
    volume.close()?;
    anchor::write(&remembered.anchor, &volume.anchor())?;
    about.protected = true;
    remembered.remember(&about)?;
    forget_others(&places, &remembered, &about)?;
    let done = AdoptOutput {
        device: about.disk,
        sidecar: absolute(&sidecar.directory),
        volume: remembered.name(),
        size_bytes: disk_bytes,
        partitions: place.partitions.iter().map(|partition| partition.number).collect(),
        kept_runs,
    };
    format.print(&done, |done| {
        format!(
            "{} is adopted; use it by `holdfast volume mount` only, and keep a copy of {} where it is not",
            done.device.display(),
            done.sidecar.join("key").display()
        )
    })
}

/// Whether notes about harmless findings are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Speech {
    Aloud,
    Silent,
}

/// The name of a partition in messages.
fn called(number: u32) -> String {
    if number == 0 { "the whole disk".to_owned() } else { format!("partition {number}") }
}

fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "holdfast: {text}");
}

/// Checks that the disk is not a card or a volume already, unless it is to be adopted again.
fn not_known(arguments: &Adopt, places: &VolumeFolders, disk: &Medium, sidecar: &Sidecar) -> Outcome {
    let log = absolute(&sidecar.log);
    for (_, about) in places.on_disk(&disk.path) {
        if about.protected && about.log == log {
            let message = format!("{}: is adopted already, with this sidecar", about.disk.display());
            return Err(Failure::new(Exit::CannotCreate, message).hint("`holdfast volume mount` uses it"));
        }
        if about.protected && !arguments.anew {
            let message = format!(
                "{}: is protected already, with the log {}",
                about.disk.display(),
                about.log.display()
            );
            return Err(Failure::new(Exit::CannotCreate, message).hint(
                "`holdfast volume mount` uses it with the sidecar that it has; --anew takes what is on it as it is now, and \
                 gives the old sidecar up",
            ));
        }
    }
    Ok(())
}

/// Creates key, policy file and log. The log comes last: an attempt with a log can be continued.
fn begin(sidecar: &Sidecar, disk: &Medium, table_blocks: u64) -> Outcome {
    let policy = sidecar.make_policy(table_blocks)?;
    let (secret, new_key) = Secret::read_or_make(&sidecar.key)?;
    let mut volume = [0; 16];
    keys::random(&mut volume)?;
    let joined = JoinedDevice::new(disk.device.clone(), usable(disk), policy.device.clone());
    make_log(&sidecar.log, &joined, &secret, &volume, Some(RING_BYTES))?;
    if let Some(key) = new_key {
        key.keep();
        say(&format!("made the key {}; keep a copy where the card is not", sidecar.key.display()));
    }
    Ok(())
}

/// Hashes the content of the card, continuing an earlier attempt.
fn hash(
    joined: &Arc<dyn Device>,
    log: &Medium,
    key: &holdfast_volume::VolumeKey,
    is_anchored: bool,
    interrupt: &Interrupt,
    path: &Path,
) -> Outcome {
    let look = Volume::look(log.device.clone(), key, None)?;
    // A card that was hashed completely or has an anchor must not be hashed again: an attacker's blocks would
    // then count as valid.
    if look.adopted == look.header.blocks || is_anchored {
        return Ok(());
    }
    let bar = bytes_bar("taking over");
    let anew = std::cell::Cell::new(false);
    let step = |done: u64, of: u64| {
        anew.set(anew.get() || done < look.adopted);
        interrupt.step(&bar, done, of)
    };
    let whole = Volume::adopt(joined.clone(), log.device.clone(), key, opening::salt()?, None, &step);
    bar.finish_and_clear();
    let whole = whole?;
    if anew.get() {
        say(&format!("{} was used since the work was interrupted, so it began anew", path.display()));
    }
    match whole {
        true => Ok(()),
        false => Err(interrupt.stopped("the card is as it was, and nobody owns what is on it yet")),
    }
}

/// Examines a card: returns the file systems that can be adopted, and the findings in them.
fn look(
    path: &Path,
    source: Source,
    disk: &Medium,
    owners: &Owners,
    interrupt: &Interrupt,
    speech: Speech,
) -> Outcome<(Vec<Partition>, Vec<Survey>)> {
    let go_on = || !interrupt.is_asked();
    let stopped = |error: StackError| match error {
        StackError::Interrupted => interrupt.stopped("the card is as it was"),
        error => refused(path, error),
    };
    let found = find_partitions(source.clone(), disk.device.size_bytes(), &go_on).map_err(|error| {
        let is_of_the_disk = matches!(error, StackError::Component(_));
        let failure = stopped(error);
        if is_of_the_disk { failure.hint(ONLY_FAT32) } else { failure }
    })?;
    let partitions = adoptable(path, &found, usable(disk), speech)?;
    let surveys = check_partitions(source, &partitions, owners.of(), &go_on).map_err(stopped)?;
    for (partition, survey) in partitions.iter().zip(&surveys) {
        judge(path, partition, survey, speech)?;
    }
    Ok((partitions, surveys))
}

/// The partitions with FAT32; an error if there are none. Others are mentioned to the user.
fn adoptable(
    path: &Path,
    found: &[FoundPartition],
    disk_bytes: u64,
    speech: Speech,
) -> Outcome<Vec<Partition>> {
    let mut partitions = Vec::new();
    let mut others = Vec::new();
    for FoundPartition { number, start, bytes, holds } in found {
        match holds {
            Ok(geometry) => {
                let partition =
                    Partition { number: *number, start: *start, bytes: *bytes, geometry: *geometry };
                partition.check(disk_bytes).map_err(|error| refused(path, error))?;
                partitions.push(partition);
            }
            Err(words) => others.push(format!("{}: {words}", called(*number))),
        }
    }
    if partitions.is_empty() {
        let what =
            if others.is_empty() { "the partition table is empty".to_owned() } else { others.join("; ") };
        let message = format!("{}: holds no FAT32 file system: {what}", path.display());
        return Err(Failure::new(Exit::Data, message).hint(ONLY_FAT32));
    }
    if partitions.len() > PARTITIONS_MAX {
        let message =
            format!("{}: has {} file systems, and {PARTITIONS_MAX} can be", path.display(), partitions.len());
        return Err(Failure::new(Exit::Data, message));
    }
    for other in others.iter().filter(|_| speech == Speech::Aloud) {
        say(&format!("{}: {other}; it is left out, and nobody gets at it through Holdfast", path.display()));
    }
    partitions.sort_by_key(|partition| partition.start);
    Ok(partitions)
}

/// Refuses an unsound file system, listing its problems; mentions harmless ones.
fn judge(path: &Path, partition: &Partition, survey: &Survey, speech: Speech) -> Outcome {
    let mut lines: Vec<String> = survey.problems.iter().take(SHOWN_MAX).cloned().collect();
    let more = survey.problems_all.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("and {more} more"));
    }
    let place = called(partition.number);
    if survey.is_unsound {
        let message =
            format!("{}: the file system of {place} is damaged:\n  {}", path.display(), lines.join("\n  "));
        return Err(Failure::new(Exit::Data, message).hint(
            "nothing was changed. Copy off what you need, have it repaired (fsck.fat, chkdsk), look whether the files are right, \
             and adopt it then",
        ));
    }
    for line in lines.iter().filter(|_| speech == Speech::Aloud) {
        say(&format!("{}: {place}: {line} (harmless)", path.display()));
    }
    Ok(())
}

/// Forgets other volumes on this disk: an earlier attempt, or an old sidecar.
fn forget_others(places: &VolumeFolders, own: &Remembered, about: &VolumeRecord) -> Outcome {
    let others = places.on_disk(&about.disk).into_iter().filter(|(place, _)| place.volume != own.volume);
    others.into_iter().try_for_each(|(place, _)| {
        let _lock = place.lock()?;
        place.forget()
    })
}
