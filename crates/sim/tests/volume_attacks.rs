//! Attackers who have the disk and the log, but not the key.

use holdfast_log::ring::Anchor;
use holdfast_log::simulated_device::Failure;
use holdfast_sim::random::Random;
use holdfast_sim::volume::attack::{Image, Scene, Verdict, attacks, table};
use holdfast_sim::volume::{DISK, LOG, RING_BYTES, content, open, original, protected, read};
use holdfast_volume::{BLOCK_BYTES, Options};
use proptest::prelude::*;
use std::path::Path;
use std::sync::OnceLock;

const BEGIN: &str = "<!-- the attacks: HOLDFAST_BLESS=1 scripts/test only sim::volume_attacks:: -->\n";
const END: &str = "<!-- end of the attacks -->";

fn scene() -> &'static Scene {
    static SCENE: OnceLock<Scene> = OnceLock::new();
    SCENE.get_or_init(Scene::new)
}

/// Proves: the manual's table of attacks and verdicts is the result.
#[test]
fn the_table_of_the_manual() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/volumes.md");
    let text = std::fs::read_to_string(&path).expect("the manual");
    let (before, rest) = text.split_once(BEGIN).expect("the table begins");
    let (there, after) = rest.split_once(END).expect("the table ends");
    let made = table(scene());
    if std::env::var_os("HOLDFAST_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{made}{END}{after}")).expect("written");
    } else {
        assert!(there == made, "docs/internals/volumes.md differs; HOLDFAST_BLESS=1 writes it anew:\n{made}");
    }
}

/// Proves: what was never written is never served; with an anchor that is not behind, nothing older is served either.
#[test]
fn no_attack_has_its_way() {
    for attack in attacks() {
        for (column, verdict) in attack.verdicts(scene()).into_iter().enumerate() {
            assert!(!matches!(verdict, Verdict::Wrong(_)), "{}: {verdict:?}", attack.name);
            let has_anchor = column % 2 == 0 && attack.behind == 0;
            assert!(!has_anchor || is_held(&verdict), "{}: {verdict:?}", attack.name);
        }
    }
}

/// Whether an attacked volume serves what was written last, or nothing.
fn is_held(verdict: &Verdict) -> bool {
    !matches!(verdict, Verdict::Wrong(_) | Verdict::Older | Verdict::Mixed)
}

/// Proves: whichever byte is altered in the header's copies, the superblocks, the last log block, or nodes of the map,
/// what is served is what was written last.
#[test]
fn each_byte_of_what_is_small() {
    let map = 2 * BLOCK_BYTES + RING_BYTES as usize;
    let mut random = Random::new(1);
    for target in scene().targets() {
        let slots = RING_BYTES as usize / BLOCK_BYTES - 2;
        let last = (4 + (target.anchor.number as usize - 1) % slots) * BLOCK_BYTES;
        let damage = |at: &[usize]| {
            let mut image = target.clone();
            at.iter().for_each(|at| image.log[*at] ^= 1 << (at % 8));
            Scene::judge(&image, Some(&target.anchor))
        };
        // Both copies at once: what is written there, and some of the zeroes after it.
        for byte in (0..64).chain((64..BLOCK_BYTES).step_by(509)) {
            let header = damage(&[byte, BLOCK_BYTES + byte]);
            assert_eq!(header, Verdict::NotOpened("not this volume's"), "header, byte {byte}");
        }
        for byte in (0..96).chain((96..BLOCK_BYTES).step_by(509)) {
            let found = damage(&[2 * BLOCK_BYTES + byte, 3 * BLOCK_BYTES + byte]);
            assert!(matches!(found, Verdict::NotOpened(_)), "superblocks, byte {byte}: {found:?}");
        }
        for byte in (0..90).chain((90..BLOCK_BYTES).step_by(301)) {
            let found = damage(&[last + byte]);
            assert!(matches!(found, Verdict::NotOpened(_)), "last log block, byte {byte}: {found:?}");
        }
        for node in 0..6 {
            for _ in 0..8 {
                let found = damage(&[map + node * BLOCK_BYTES + random.below(BLOCK_BYTES as u64) as usize]);
                assert!(is_held(&found), "node {node}: {found:?}");
            }
        }
    }
}

/// Proves: an anchor with any byte altered never makes anything false acceptable.
#[test]
fn each_byte_of_an_anchor() {
    for target in scene().targets() {
        for byte in 0..40 {
            let mut anchor: Anchor = target.anchor;
            match byte {
                0..16 => anchor.ring[byte] ^= 1,
                16..32 => anchor.tag[byte - 16] ^= 1,
                _ => anchor.number ^= 1 << ((byte - 32) * 8),
            }
            let found = Scene::judge(target, Some(&anchor));
            if byte < 32 {
                assert_eq!(found, Verdict::NotOpened("another history"), "byte {byte}");
            } else {
                // A number below the log's beginning says less, but nothing false.
                assert!(matches!(found, Verdict::NotOpened(_) | Verdict::NoEffect), "byte {byte}: {found:?}");
            }
        }
    }
}

/// Proves: records that recovery found not to match the disk stay void, even if superblocks are put back that still
/// need them.
#[test]
fn void_records_stay_void() {
    let devices = protected(300);
    let large = |from: u64| (0..40).flat_map(|at| content(from + at)).collect::<Vec<u8>>();
    let (volume, _) = open(&devices, &Options::default(), None, 1).expect("opens");
    volume.write(0, &large(1)).expect("written");
    // The records reach the log, and the blocks do not reach the disk.
    devices.fail(Failure::Writes(DISK));
    volume.work().expect_err("it cannot write");
    devices.heal();
    drop(volume);
    let superblocks = 2 * BLOCK_BYTES..4 * BLOCK_BYTES;
    let kept = devices.bytes(LOG)[superblocks.clone()].to_vec();
    let (volume, report) = open(&devices, &Options::default(), None, 2).expect("opens");
    assert_eq!((report.examined, report.refused.len()), (40, 0));
    volume.write(100 * BLOCK_BYTES as u64, &large(500)).expect("written");
    volume.flush().expect("flushed");
    let anchor = volume.anchor();
    drop(volume);
    devices.tamper(LOG, |log| log[superblocks].copy_from_slice(&kept));
    let (volume, _) = open(&devices, &Options::default(), Some(&anchor), 3).expect("opens");
    for block in 0..40 {
        assert!(read(&volume, block).expect("not refused") == original(block));
        assert!(read(&volume, 100 + block).expect("read") == content(500 + block));
    }
}

/// An attacker's noise, and where it is written.
#[derive(Clone, Debug)]
enum Noise {
    Bytes { at: usize, bytes: Vec<u8> },
    Copied { from: usize, to: usize, blocks: usize },
    Zeroed { at: usize, blocks: usize },
    Older { at: usize, blocks: usize },
    CutShort { blocks: usize },
}

fn noise() -> impl Strategy<Value = Vec<Noise>> {
    let blocks = RING_BYTES as usize / BLOCK_BYTES + 8;
    let one = prop_oneof![
        (0..blocks * BLOCK_BYTES - 300, proptest::collection::vec(any::<u8>(), 1..300))
            .prop_map(|(at, bytes)| Noise::Bytes { at, bytes }),
        (0..blocks - 4, 0..blocks - 4, 1..4usize).prop_map(|(from, to, blocks)| Noise::Copied {
            from,
            to,
            blocks
        }),
        (0..blocks - 4, 1..4usize).prop_map(|(at, blocks)| Noise::Zeroed { at, blocks }),
        (0..blocks - 4, 1..4usize).prop_map(|(at, blocks)| Noise::Older { at, blocks }),
        (1..blocks).prop_map(|blocks| Noise::CutShort { blocks }),
    ];
    proptest::collection::vec(one, 1..6)
}

fn disturb(image: &mut Image, noise: &[Noise]) {
    let older = scene().older_log();
    for one in noise {
        let end = image.log.len();
        match one {
            Noise::Bytes { at, bytes } if at + bytes.len() <= end => {
                image.log[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            Noise::Copied { from, to, blocks } if (from.max(to) + blocks) * BLOCK_BYTES <= end => {
                image.log.copy_within(from * BLOCK_BYTES..(from + blocks) * BLOCK_BYTES, to * BLOCK_BYTES);
            }
            Noise::Zeroed { at, blocks } if (at + blocks) * BLOCK_BYTES <= end => {
                image.log[at * BLOCK_BYTES..(at + blocks) * BLOCK_BYTES].fill(0);
            }
            Noise::Older { at, blocks } if (at + blocks) * BLOCK_BYTES <= end => {
                let place = at * BLOCK_BYTES..(at + blocks) * BLOCK_BYTES;
                image.log[place.clone()].copy_from_slice(&older[place]);
            }
            Noise::CutShort { blocks } => image.log.truncate(end.saturating_sub(blocks * BLOCK_BYTES)),
            _ => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Proves: whatever the log's device has, and however short it is, nothing panics and nothing false is served.
    #[test]
    fn noise_on_the_log(noise in noise(), is_crashed in any::<bool>()) {
        let target = scene().targets()[usize::from(is_crashed)];
        let mut image = target.clone();
        disturb(&mut image, &noise);
        prop_assert!(is_held(&Scene::judge(&image, Some(&target.anchor))));
    }
}
