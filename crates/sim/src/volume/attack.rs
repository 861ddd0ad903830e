//! What somebody who has the disk and the log, but not the key, can do, and what comes of it.

use super::{BLOCK_BYTES, Block, DISK, LOG, RING_BYTES, content, key, open, original, pair, protected, read};
use holdfast_log::ring::{Anchor, RingError};
use holdfast_log::simulated_device::Devices;
use holdfast_volume::{Options, Volume, VolumeError, VolumeKey};
use std::fmt::Write as _;

const BLOCKS: u64 = 300;
/// Where log blocks begin on the log's device: after the header, its copy and two superblocks.
const RING: usize = 4 * BLOCK_BYTES;
/// Where the block map begins.
const MAP: usize = 2 * BLOCK_BYTES + RING_BYTES as usize;
/// The state that an attacker kept had these blocks, and others since.
const REWRITTEN: std::ops::Range<u64> = 10..50;
const INLINE: u64 = 299;

/// Both devices, and the anchor of that moment.
#[derive(Clone)]
pub struct Image {
    /// The disk.
    pub disk: Vec<u8>,
    /// The log's device.
    pub log: Vec<u8>,
    /// What an anchor said.
    pub anchor: Anchor,
}

/// What an attacker has seen: a volume at several moments, and others.
pub struct Scene {
    older: Image,
    /// The machine lost power after a flush.
    crashed: Image,
    /// And at earlier flushes, the last one first.
    commits: Vec<Image>,
    /// The volume was closed after that.
    closed: Image,
    /// Another volume with the same secret, and one with another secret.
    same_secret: Image,
    other_secret: Image,
}

/// What came of an attack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything reads as it was written last.
    NoEffect,
    /// These blocks are refused, and all others read as they were written last.
    Refused(Vec<u64>),
    /// The volume is not opened, for this reason; nothing is changed.
    NotOpened(&'static str),
    /// What depends on a damaged part of the map is refused.
    MapRefused,
    /// A state that was complete at an earlier flush is served.
    Older,
    /// Some blocks are served as they once were, others refused or as they are.
    Mixed,
    /// Something is served that never was there.
    Wrong(u64),
}

impl Verdict {
    fn in_words(&self) -> String {
        match self {
            Verdict::NoEffect => "no effect".into(),
            Verdict::Refused(blocks) if blocks.len() as u64 == BLOCKS => "all blocks refused".into(),
            Verdict::Refused(blocks) if blocks.len() == 1 => "that block refused".into(),
            Verdict::Refused(blocks) => format!("the {} blocks refused", blocks.len()),
            Verdict::NotOpened(why) => format!("not opened: {why}"),
            Verdict::MapRefused => "what needs it refused".into(),
            Verdict::Older => "*older state served*".into(),
            Verdict::Mixed => "*older blocks served*, others refused".into(),
            Verdict::Wrong(block) => format!("**WRONG block {block} served**"),
        }
    }
}

fn image(devices: &Devices, volume: &Volume) -> Image {
    Image { disk: devices.bytes(DISK), log: devices.bytes(LOG), anchor: volume.anchor() }
}

fn place(block: u64) -> std::ops::Range<usize> {
    block as usize * BLOCK_BYTES..(block as usize + 1) * BLOCK_BYTES
}

/// A volume with another history under a key.
fn another(key: &VolumeKey) -> Image {
    let devices = Devices::new();
    devices.add_with("disk", (0..BLOCKS).flat_map(|block| content(9000 + block)).collect());
    devices.add("log", protected(BLOCKS).bytes(LOG).len());
    let (disk, log) = pair(&devices);
    Volume::format(&*disk, &*log, key, Some(RING_BYTES)).expect("formatted");
    Volume::adopt(disk.clone(), log.clone(), key, [7; 16], None, &|_, _| true).expect("adopted");
    let (volume, _) = Volume::open(disk, log, key, Options::default(), None, [8; 16]).expect("opens");
    volume.write(0, &content(9999)).expect("written");
    volume.close().expect("closed");
    image(&devices, &volume)
}

impl Scene {
    /// Makes it.
    ///
    /// # Panics
    /// If an honest operation fails.
    pub fn new() -> Scene {
        let devices = protected(BLOCKS);
        devices.record(false);
        let (volume, _) = open(&devices, &Options::default(), None, 1).expect("opens");
        let write = |block: u64, contents: &[u64]| {
            let bytes: Vec<u8> = contents.iter().flat_map(|number| content(*number)).collect();
            volume.write(block * BLOCK_BYTES as u64, &bytes).expect("written");
        };
        write(10, &[1]);
        volume.flush().expect("flushed");
        volume.checkpoint().expect("made");
        let older = image(&devices, &volume);
        write(REWRITTEN.start, &REWRITTEN.map(|block| 100 + block).collect::<Vec<u64>>());
        let discarded = 200 * BLOCK_BYTES as u64;
        volume.discard(discarded, 4 * BLOCK_BYTES as u64).expect("discarded");
        write(INLINE, &[5]);
        volume.flush().expect("flushed");
        let mut commits = Vec::new();
        for number in 0..5 {
            commits.insert(0, image(&devices, &volume));
            write(5, &[50 + number]);
            volume.flush().expect("flushed");
        }
        let crashed = image(&devices, &volume);
        volume.close().expect("closed");
        let closed = image(&devices, &volume);
        let same_secret = another(&VolumeKey::new(&[3; 32], b"another volume.."));
        let other_secret = another(&VolumeKey::new(&[4; 32], &key().volume()));
        Scene { older, crashed, commits, closed, same_secret, other_secret }
    }

    /// What was written last.
    fn newest(block: u64) -> Block {
        match block {
            5 => content(54),
            INLINE => content(5),
            200..204 => [0; BLOCK_BYTES],
            _ if REWRITTEN.contains(&block) => content(100 + block),
            _ => original(block),
        }
    }

    /// Whether a block ever had these bytes.
    fn once(block: u64, bytes: &Block) -> bool {
        let first = if block == 10 { content(1) } else { original(block) };
        *bytes == first
            || *bytes == original(block)
            || *bytes == Scene::newest(block)
            || (block == 5 && (50..55).any(|number| *bytes == content(number)))
    }

    /// Whether all that is read was the volume at an earlier flush.
    fn is_older(served: &[Option<Block>]) -> bool {
        let first = |block: u64| if block == 10 { content(1) } else { original(block) };
        let at = |commits: u64| {
            move |block: u64| match block {
                5 if commits == 0 => original(5),
                5 => content(49 + commits),
                _ => Scene::newest(block),
            }
        };
        let all =
            |of: &dyn Fn(u64) -> Block| (0..).zip(served).all(|(block, bytes)| *bytes == Some(of(block)));
        all(&first) || (0..5).any(|commits| all(&at(commits)))
    }

    /// Opens what an attacker made and reads everything.
    ///
    /// # Panics
    /// If something fails in a way that nothing here should.
    pub fn judge(image: &Image, anchor: Option<&Anchor>) -> Verdict {
        let devices = Devices::new();
        devices.record(false);
        devices.add_with("disk", image.disk.clone());
        devices.add_with("log", image.log.clone());
        let volume = match open(&devices, &Options::default(), anchor, 2) {
            Ok((volume, _)) => volume,
            Err(error) => {
                let why = match error {
                    VolumeError::Ring(RingError::Damaged { .. }) => "log damaged",
                    VolumeError::Ring(RingError::RolledBack { .. }) => "rolled back",
                    VolumeError::Ring(RingError::Forked { .. }) => "another history",
                    VolumeError::Ring(RingError::NotOurs { .. }) | VolumeError::NotOurs { .. } => {
                        "not this volume's"
                    }
                    VolumeError::Ring(RingError::NewerFormat { .. }) => "unknown format",
                    VolumeError::BadMap { .. } => "map damaged",
                    VolumeError::Size(_) | VolumeError::Ring(RingError::TooSmall { .. }) => "too small",
                    // The device ends before the header does.
                    VolumeError::Io { .. } => "unreadable",
                    VolumeError::NotAdopted { .. } => "nothing taken over",
                    error => panic!("{error}"),
                };
                assert!(
                    devices.bytes(LOG) == image.log && devices.bytes(DISK) == image.disk,
                    "nothing is changed"
                );
                return Verdict::NotOpened(why);
            }
        };
        let mut served = Vec::new();
        let (mut refused, mut is_old) = (Vec::new(), false);
        for block in 0..BLOCKS {
            match read(&volume, block) {
                Ok(bytes) => {
                    if !Scene::once(block, &bytes) {
                        return Verdict::Wrong(block);
                    }
                    is_old |= bytes != Scene::newest(block);
                    served.push(Some(bytes));
                }
                Err(VolumeError::BadBlock { .. }) => {
                    refused.push(block);
                    served.push(None);
                }
                Err(VolumeError::BadMap { .. }) => return Verdict::MapRefused,
                Err(error) => panic!("{error}"),
            }
        }
        match is_old {
            true if Scene::is_older(&served) => Verdict::Older,
            true => Verdict::Mixed,
            false if refused.is_empty() => Verdict::NoEffect,
            false => Verdict::Refused(refused),
        }
    }

    /// The log that an attacker kept from the beginning.
    pub fn older_log(&self) -> &[u8] {
        &self.older.log
    }

    /// The volume as it was closed, and as a loss of power left it.
    pub fn targets(&self) -> [&Image; 2] {
        [&self.closed, &self.crashed]
    }
}

impl Default for Scene {
    fn default() -> Scene {
        Scene::new()
    }
}

/// How many log blocks are in use, and where the last one is on the device.
fn last_log_block(image: &Image) -> usize {
    let slots = RING_BYTES as usize / BLOCK_BYTES - 2;
    RING + (image.anchor.number as usize - 1) % slots * BLOCK_BYTES
}

fn swap(bytes: &mut [u8], one: usize, other: usize) {
    let copy = bytes[one..one + BLOCK_BYTES].to_vec();
    bytes.copy_within(other..other + BLOCK_BYTES, one);
    bytes[other..other + BLOCK_BYTES].copy_from_slice(&copy);
}

type Change = Box<dyn Fn(&mut Image, &Scene)>;

/// An attack, and what it does to the devices.
pub struct Attack {
    /// In words.
    pub name: &'static str,
    change: Change,
    /// The anchor is older by so many flushes.
    pub behind: usize,
}

/// All of them.
pub fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    let mut add = |name, change: Change| attacks.push(Attack { name, change, behind: 0 });
    add("nothing", Box::new(|_, _| ()));
    add("a block: a bit flipped", Box::new(|now, _| now.disk[place(20).start + 7] ^= 1));
    add(
        "a block: torn, half of it the one before",
        Box::new(|now, scene| {
            now.disk[place(12)][2048..].copy_from_slice(&scene.older.disk[place(12)][2048..]);
        }),
    );
    add(
        "a block: its write dropped",
        Box::new(|now, scene| {
            now.disk[place(11)].copy_from_slice(&scene.older.disk[place(11)]);
        }),
    );
    add(
        "a block: put back to an older one of the same place",
        Box::new(|now, scene| {
            now.disk[place(10)].copy_from_slice(&scene.older.disk[place(10)]);
        }),
    );
    add(
        "a small block, whole in the log until the next checkpoint: put back",
        Box::new(|now, scene| {
            now.disk[place(5)].copy_from_slice(&scene.older.disk[place(5)]);
        }),
    );
    add(
        "a block: written to another place",
        Box::new(|now, _| now.disk.copy_within(place(12), place(260).start)),
    );
    add("two blocks: swapped", Box::new(|now, _| swap(&mut now.disk, place(30).start, place(31).start)));
    add(
        "a block: that of another volume with the same secret",
        Box::new(|now, scene| {
            now.disk[place(30)].copy_from_slice(&scene.same_secret.disk[place(30)]);
        }),
    );
    add("a discarded block: filled", Box::new(|now, _| now.disk[place(201)].fill(7)));
    add("the disk put back", Box::new(|now, scene| now.disk = scene.older.disk.clone()));
    add("the log put back", Box::new(|now, scene| now.log = scene.older.log.clone()));
    add("disk and log put back together", Box::new(|now, scene| *now = scene.older.clone()));
    add("disk and log put back by one flush", Box::new(|now, scene| *now = scene.commits[0].clone()));
    attacks.extend((1..=3).map(|behind| Attack {
        name: [
            "disk and log put back by one flush, the anchor one behind",
            "disk and log put back by one flush, the anchor two behind",
            "disk and log put back by four flushes, the anchor three behind",
        ][behind - 1],
        change: Box::new(move |now, scene| *now = scene.commits[if behind == 3 { 3 } else { 0 }].clone()),
        behind,
    }));
    let mut add = |name, change: Change| attacks.push(Attack { name, change, behind: 0 });
    add(
        "the disk of another volume, same secret",
        Box::new(|now, scene| now.disk = scene.same_secret.disk.clone()),
    );
    add(
        "the log of another volume, same secret",
        Box::new(|now, scene| now.log = scene.same_secret.log.clone()),
    );
    add(
        "the log of a volume of the same name, other secret",
        Box::new(|now, scene| {
            now.log = scene.other_secret.log.clone();
        }),
    );
    add(
        "disk and log of another volume, same secret",
        Box::new(|now, scene| *now = scene.same_secret.clone()),
    );
    add(
        "the log's last block: a bit flipped",
        Box::new(|now, _| {
            let at = last_log_block(now);
            now.log[at + 200] ^= 1;
        }),
    );
    add(
        "the log cut off by one block",
        Box::new(|now, _| {
            let at = last_log_block(now);
            now.log[at..at + BLOCK_BYTES].fill(0);
        }),
    );
    add(
        "the log cut off by three blocks",
        Box::new(|now, _| {
            let at = last_log_block(now);
            now.log[at - 2 * BLOCK_BYTES..at + BLOCK_BYTES].fill(0);
        }),
    );
    add(
        "the log's last two blocks swapped",
        Box::new(|now, _| {
            let at = last_log_block(now);
            swap(&mut now.log, at, at - BLOCK_BYTES);
        }),
    );
    add(
        "a log block repeated in the next place",
        Box::new(|now, _| {
            let at = last_log_block(now);
            now.log.copy_within(at - BLOCK_BYTES..at, at);
        }),
    );
    add(
        "a log block before the last: forged, right but for its tag",
        Box::new(|now, _| {
            let at = last_log_block(now) - BLOCK_BYTES;
            now.log[at + 100] ^= 1;
        }),
    );
    add(
        "log blocks of another volume, same secret",
        Box::new(|now, scene| {
            now.log[RING..MAP].copy_from_slice(&scene.same_secret.log[RING..MAP]);
        }),
    );
    add(
        "log blocks put back to an older lap",
        Box::new(|now, scene| {
            now.log[RING..MAP].copy_from_slice(&scene.older.log[RING..MAP]);
        }),
    );
    add("all log blocks zeroed", Box::new(|now, _| now.log[RING..MAP].fill(0)));
    add("one superblock damaged", Box::new(|now, _| now.log[2 * BLOCK_BYTES + 40] ^= 1));
    add(
        "one superblock put back",
        Box::new(|now, scene| {
            let first = 2 * BLOCK_BYTES..3 * BLOCK_BYTES;
            now.log[first.clone()].copy_from_slice(&scene.older.log[first]);
        }),
    );
    add(
        "both superblocks put back",
        Box::new(|now, scene| {
            let both = 2 * BLOCK_BYTES..4 * BLOCK_BYTES;
            now.log[both.clone()].copy_from_slice(&scene.older.log[both]);
        }),
    );
    add(
        "both superblocks damaged",
        Box::new(|now, _| {
            now.log[2 * BLOCK_BYTES + 40] ^= 1;
            now.log[3 * BLOCK_BYTES + 40] ^= 1;
        }),
    );
    add(
        "a leaf of the map damaged, both places",
        Box::new(|now, _| {
            now.log[MAP + 5] ^= 1;
            now.log[MAP + BLOCK_BYTES + 5] ^= 1;
        }),
    );
    add(
        "the map's leaves swapped",
        Box::new(|now, _| {
            swap(&mut now.log, MAP, MAP + 2 * BLOCK_BYTES);
            swap(&mut now.log, MAP + BLOCK_BYTES, MAP + 3 * BLOCK_BYTES);
        }),
    );
    add(
        "the map's root damaged, both places",
        Box::new(|now, _| {
            now.log[MAP + 4 * BLOCK_BYTES + 5] ^= 1;
            now.log[MAP + 5 * BLOCK_BYTES + 5] ^= 1;
        }),
    );
    add("the map put back", Box::new(|now, scene| now.log[MAP..].copy_from_slice(&scene.older.log[MAP..])));
    add("one copy of the header damaged", Box::new(|now, _| now.log[33] ^= 1));
    add(
        "both copies of the header damaged",
        Box::new(|now, _| {
            now.log[33] ^= 1;
            now.log[BLOCK_BYTES + 33] ^= 1;
        }),
    );
    add(
        "the header of another volume, same secret",
        Box::new(|now, scene| {
            now.log[..2 * BLOCK_BYTES].copy_from_slice(&scene.same_secret.log[..2 * BLOCK_BYTES]);
        }),
    );
    attacks
}

impl Attack {
    /// What comes of it on a volume that was closed and on one that lost power, each with and without an anchor.
    pub fn verdicts(&self, scene: &Scene) -> [Verdict; 4] {
        let mut verdicts = Vec::new();
        for target in scene.targets() {
            let mut attacked = target.clone();
            (self.change)(&mut attacked, scene);
            let anchor = match self.behind {
                0 => target.anchor,
                behind => scene.commits[behind - 1].anchor,
            };
            verdicts.push(Scene::judge(&attacked, Some(&anchor)));
            verdicts.push(Scene::judge(&attacked, None));
        }
        verdicts.try_into().expect("four")
    }
}

/// The table, as the manual has it.
pub fn table(scene: &Scene) -> String {
    let mut text = String::from(
        "| attack | closed, with anchor | closed, without | power lost, with anchor | power lost, without |\n|---|---|---|---|---|\n",
    );
    for attack in attacks() {
        let [closed, closed_alone, crashed, crashed_alone] =
            attack.verdicts(scene).map(|verdict| verdict.in_words());
        let _ =
            writeln!(text, "| {} | {closed} | {closed_alone} | {crashed} | {crashed_alone} |", attack.name);
    }
    text
}
