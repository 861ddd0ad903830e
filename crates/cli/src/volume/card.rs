//! `holdfast volume format` and `mount`: disks and cards with a FAT32 file system whose parts do not trust each other.
//!
//! What belongs to a card and must not be on it is in a directory beside it, its *sidecar*:
//!
//! ```text
//! DIR/key       the volume's key, 0600
//! DIR/log       its log: hashes, and the journal of metadata
//! DIR/policy    the policy table, and in its last block where everything is
//! ```
//!
//! The volume is the card followed by `policy`, so one log binds them: a sidecar of another card, or an older one, does not
//! verify.

use super::args::{Format, Mount};
use super::media::Medium;
use super::places::{About, Place as Remembered, Places, absolute};
use super::protect::{Interrupt, is_blank, make_log};
use super::secret::Secret;
use super::{anchor, opening};
use crate::exit::{Exit, Failure, Outcome};
use crate::keys;
use crate::output::{self, bytes_bar};
use crate::paths::{Directories, make_private};
use holdfast_access::{Name, Principal};
use holdfast_components::Program;
use holdfast_fat::format::FormatOptions;
use holdfast_fat::{Layout, Moment, partitions};
use holdfast_fuse::{Manner, close_session};
use holdfast_log::device::{Device, Joined};
use holdfast_stack::{Configuration, People, Place, Session, Stack, StackError};
use holdfast_volume::{BLOCK_BYTES, Header, Options, Volume};
use serde::Serialize;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Where the partition begins, as is usual.
const START: u64 = 1 << 20;
/// Bytes of the log's circular part: a change of metadata goes into it whole.
const RING_BYTES: u64 = 64 << 20;
/// The policy table takes a page for so many blocks, so that it cannot get full by how files lie.
const BLOCKS_PER_PAGE: u64 = 168;
/// The most it takes, as all of it is in memory.
const TABLE_BLOCKS_MAX: u64 = 4096;
const TABLE_BLOCKS_MIN: u64 = 64;
/// Begins the last block of `policy`.
const MAGIC: &[u8; 16] = b"holdfast card 1\n";
/// How long recovery and formatting may take.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the anchor is looked at, and the sessions.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Serialize)]
struct Done {
    device: PathBuf,
    sidecar: PathBuf,
    volume: String,
    size_bytes: u64,
}

fn failed(error: StackError) -> Failure {
    match error {
        StackError::Volume(error) => error.into(),
        error => Failure::new(Exit::System, error.to_string()),
    }
}

fn bad(path: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::new(Exit::Io, format!("{}: {error}", path.display()))
}

/// `holdfast volume format`
pub fn format(arguments: &Format, directories: &Directories, format: output::Format) -> Outcome {
    let places = Places::new(directories)?;
    let disk = Medium::open(&arguments.device)?;
    let sidecar = &arguments.sidecar;
    if sidecar.join("log").exists() || sidecar.join("policy").exists() {
        let message = format!("{}: is the sidecar of a card already", sidecar.display());
        return Err(Failure::new(Exit::CannotCreate, message)
            .hint("name another directory; or remove this one, if nobody needs what its card has"));
    }
    if !arguments.erase && !is_blank(&*disk.device)? {
        let message = format!("{}: holds something", arguments.device.display());
        return Err(Failure::new(Exit::CannotCreate, message).hint("with --erase it is lost"));
    }
    let disk_bytes = disk.device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let partition = partition(disk_bytes, arguments)?;
    let options = fat_options(arguments)?;
    let fat =
        holdfast_fat::format::format(partition.bytes, &options).map_err(StackError::from).map_err(failed)?;
    let table_blocks = (partition.bytes / u64::from(fat.layout.block_bytes) / BLOCKS_PER_PAGE)
        .clamp(TABLE_BLOCKS_MIN, TABLE_BLOCKS_MAX);

    make_private(sidecar)?;
    let policy = sidecar.join("policy");
    let made = File::options().write(true).create_new(true).mode(0o600).open(&policy);
    let made = made.and_then(|file| file.set_len((table_blocks + 1) * BLOCK_BYTES as u64));
    made.map_err(|error| bad(&policy, error))?;
    let policy = Medium::open(&policy)?;
    let joined: Arc<dyn Device> =
        Arc::new(Joined::new(disk.device.clone(), disk_bytes, policy.device.clone()));
    let (secret, _) = Secret::read_or_make(&sidecar.join("key"))?;
    let (mut volume, mut identity) = ([0; 16], [0; 16]);
    keys::random(&mut volume)?;
    keys::random(&mut identity)?;
    let log = sidecar.join("log");
    make_log(&log, &*joined, &secret, &volume, Some(RING_BYTES))?;
    let log = Medium::open(&log)?;
    let remembered = places.of(&volume);
    let _lock = remembered.lock()?;
    let key = secret.of(&volume);

    let bar = bytes_bar("erasing");
    let interrupt = Interrupt::listen()?;
    let step = |done: u64, of: u64| interrupt.step(&bar, done, of);
    let whole = Volume::adopt_empty(joined.clone(), log.device.clone(), &key, opening::salt()?, &step)?;
    bar.finish_and_clear();
    if !whole {
        return Err(Failure::new(Exit::Failed, "stopped; nothing is formatted"));
    }
    let opened = Volume::open(joined, log.device.clone(), &key, Options::default(), None, opening::salt()?)?;
    let (volume, _) = opened;
    let table = (disk_bytes, table_blocks);
    let place = Place { identity, start: partition.start, bytes: partition.bytes, table };
    let sectors = |bytes: u64| u32::try_from(bytes / 512).expect("checked with the partition");
    let table = [(sectors(partition.start), sectors(partition.bytes))];
    let mbr = partitions::mbr(options.volume_id, &table, disk_bytes / 512)
        .map_err(StackError::from)
        .map_err(failed)?;
    volume.write(0, &mbr)?;
    volume.write(disk_bytes + table_blocks * BLOCK_BYTES as u64, &encode(&place))?;
    volume.start()?;
    let about = About {
        disk: disk.path.clone(),
        log: log.path.clone(),
        key: absolute(&sidecar.join("key")),
        size_bytes: disk_bytes,
        protected: true,
        anchor: None,
        tpm: false,
    };
    remembered.remember(&about)?;
    let made = Some((arguments.label.clone(), options.cluster_bytes, options.volume_id));
    let stack =
        start(volume, place, fat.layout, made, Vec::new(), People::default(), TABLE_BLOCKS_MAX as usize * 2)?;
    let ready = stack.wait_until_ready(PATIENCE);
    let anchor = stack.stop().map_err(failed)?;
    ready.map_err(failed)?;
    anchor::write(&remembered.anchor, &anchor)?;
    let (device, sidecar) = (about.disk, absolute(sidecar));
    let done = Done { device, sidecar, volume: remembered.name(), size_bytes: disk_bytes };
    format.print(&done, |done| {
        format!(
            "{} is formatted; keep a copy of {} where it is not",
            done.device.display(),
            done.sidecar.join("key").display()
        )
    })
}

struct Partition {
    start: u64,
    bytes: u64,
}

fn partition(disk_bytes: u64, arguments: &Format) -> Outcome<Partition> {
    let bytes = disk_bytes.saturating_sub(START);
    match (64 << 20..(2_u64 << 40)).contains(&disk_bytes) {
        true => Ok(Partition { start: START, bytes }),
        false => Err(Failure::new(
            Exit::Usage,
            format!("{}: disks of 64 MiB to 2 TiB can be formatted", arguments.device.display()),
        )),
    }
}

fn fat_options(arguments: &Format) -> Outcome<FormatOptions> {
    let mut volume_id = [0; 4];
    keys::random(&mut volume_id)?;
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok(FormatOptions {
        sector_bytes: 512,
        cluster_bytes: arguments.cluster_kib.map(|kib| kib * 1024),
        label: arguments.label.clone(),
        volume_id: u32::from_le_bytes(volume_id),
        hidden_sectors: (START / 512) as u32,
        now: Moment { seconds: since.as_secs() as i64, nanoseconds: 0 },
        utc_offset_minutes: 0,
    })
}

fn encode(place: &Place) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(holdfast_crypto::encode(place));
    bytes.resize(BLOCK_BYTES, 0);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Place> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    borsh::BorshDeserialize::deserialize(&mut rest).ok()
}

fn start(
    volume: Volume,
    place: Place,
    fat: Layout,
    made: Option<(String, Option<u32>, u32)>,
    sessions: Vec<Session>,
    people: People,
    pages_max: usize,
) -> Outcome<Stack> {
    let program = Program::current().map_err(StackError::from).map_err(failed)?;
    let own = Path::new("/proc/self/exe");
    let digest = holdfast_callers::hashes::digest_of(&mut File::open(own).map_err(|error| bad(own, error))?)
        .map_err(|error| bad(own, error))?;

    Stack::start(Configuration {
        name: format!("volume {}", super::secret::hex(&place.identity)),
        program,
        digest: digest.digest,
        volume,
        place,
        fat,
        format: made,
        administrator: user("root")?,
        sessions,
        people,
        pages_max,
    })
    .map_err(failed)
}

fn user(name: &str) -> Outcome<Principal> {
    let name = Name::new(name).map_err(|error| Failure::new(Exit::Usage, error.to_string()))?;
    Ok(Principal::User(name))
}

/// `holdfast volume mount`
pub fn mount(arguments: &Mount, directories: &Directories, format: output::Format) -> Outcome {
    let places = Places::new(directories)?;
    let sidecar = &arguments.sidecar;
    let disk = Medium::open(&arguments.device)?;
    let policy = Medium::open(&sidecar.join("policy")).map_err(|failure| {
        failure.hint("--sidecar names the directory that `holdfast volume format` made; without it nothing says whose what is")
    })?;
    let log = Medium::open(&sidecar.join("log"))?;
    let secret = Secret::read(&sidecar.join("key"))?;
    let claimed =
        Header::claimed_volume(&*log.device).ok_or_else(|| bad(&log.path, "this is no log of a volume"))?;
    let key = secret.of(&claimed);
    let remembered = places.of(&claimed);
    let _lock = remembered.lock()?;
    let known = anchor::read(&remembered.anchor)?;
    if known.is_none() && !arguments.freshness_unknown {
        let message = format!("{}: nothing is known here of how new it is", arguments.device.display());
        return Err(Failure::new(Exit::NotAllowed, message).hint(
            "bring the anchor from where it was used last (`holdfast volume anchor export`, `import`); or accept it as it \
             is with --freshness-unknown",
        ));
    }
    let disk_bytes = disk.device.size_bytes() / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
    let joined: Arc<dyn Device> =
        Arc::new(Joined::new(disk.device.clone(), disk_bytes, policy.device.clone()));
    let salt = opening::salt()?;
    let (volume, report) =
        Volume::open(joined, log.device.clone(), &key, Options::default(), known.as_ref(), salt)?;
    opening::tell(&report);
    let mut last = [0; BLOCK_BYTES];
    volume.read(volume.size_bytes() - BLOCK_BYTES as u64, &mut last)?;
    let place =
        decode(&last).ok_or_else(|| bad(&policy.path, "says nothing of a card; is it another volume's?"))?;
    let mut boot = [0; BLOCK_BYTES];
    volume.read(place.start, &mut boot)?;
    let fat = Layout::from_boot_sector(&boot, place.bytes).map_err(StackError::from).map_err(failed)?;
    volume.start()?;
    let pages_max = arguments.cache_mib as usize * 256 + place.table.1 as usize + 128;

    let own =
        arguments.user.clone().or_else(|| std::env::var("USER").ok()).unwrap_or_else(|| "root".to_owned());
    let mut mounted = Mounted(Vec::new());
    let mut sessions = Vec::new();
    let first = [(own.clone(), arguments.directory.clone())];
    for (who, directory) in first.iter().chain(&arguments.sessions) {
        let (directory, session) =
            super::sessions::open(arguments, &disk.path, &own, who, directory, &place.identity)?;
        mounted.0.push(directory);
        sessions.push(session);
    }
    let people = super::sessions::people(arguments)?;
    let stack = start(volume, place, fat, None, sessions, people, pages_max)?;
    if let Err(error) = stack.wait_until_ready(PATIENCE) {
        let _ = stack.stop();
        return Err(failed(error));
    }
    let shown = Shown { device: disk.path.clone(), mounts: mounted.0.clone() };
    format.print(&shown, |shown| {
        let mounts: Vec<String> = shown.mounts.iter().map(|mount| mount.display().to_string()).collect();
        format!("{} is mounted on {}", shown.device.display(), mounts.join(" and "))
    })?;
    let kept = serve(&stack, &remembered);
    drop(mounted);
    let anchor = stack.stop().map_err(failed)?;
    kept?;
    anchor::write(&remembered.anchor, &anchor)
}

#[derive(Serialize)]
struct Shown {
    device: PathBuf,
    mounts: Vec<PathBuf>,
}

/// Waits until all is unmounted, or until it is told to end; keeps the anchor.
fn serve(stack: &Stack, remembered: &Remembered) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let mut kept = None;
    while stack.sessions() > 0 && !interrupt.is_asked() {
        let now = stack.anchor();
        if kept.as_ref() != Some(&now) {
            anchor::write(&remembered.anchor, &now)?;
            kept = Some(now);
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Mount points that are to be free at the end.
struct Mounted(Vec<PathBuf>);

impl Drop for Mounted {
    fn drop(&mut self) {
        for directory in &self.0 {
            if let Err(error) = close_session(directory, Manner::Lazily) {
                tracing::warn!(directory = %directory.display(), %error, "the mount stays");
            }
        }
    }
}
