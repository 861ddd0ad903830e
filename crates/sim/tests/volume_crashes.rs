//! A seeded sample of what `volume-crash` does for long, and crashes while a volume is made, moved to another key, and
//! enlarged.

use holdfast_log::simulated_device::Devices;
use holdfast_sim::random::Random;
use holdfast_sim::volume::check::{CheckResult, check};
use holdfast_sim::volume::crash::Moment;
use holdfast_sim::volume::program::{Subject, options};
use holdfast_sim::volume::{
    DISK, LOG, RING_BYTES, content, key, open, order, original, pair, protected, read, unprotected,
};
use holdfast_volume::{BLOCK_BYTES, Options, Plan, Volume, VolumeError, VolumeKey};

/// Crashes one program at some of its writes.
fn sample(seed: u64, threads: u64, states: u64, found: &mut CheckResult) -> order::Checked {
    let mut random = Random::new(seed);
    let subject = Subject::new(300, options(&mut random), seed);
    match threads {
        1 => subject.run(&mut random, 60),
        _ => subject.run_threads(&mut random, threads, 30),
    }
    let trace = subject.devices.trace();
    let checked = order::check(&trace).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(checked.candidates <= subject.options.candidates_max, "seed {seed}: {checked:?}");
    let mut moment = Moment::first(&trace);
    for event in &trace.events {
        moment.step(event);
        if random.below(trace.events.len() as u64) >= states {
            continue;
        }
        let allowed = subject.oracle.after(moment.events());
        let made = moment.states(&mut random, 12);
        let state = random.pick(&made);
        let done = check(state, &allowed, &subject.options, 2, &mut random, found);
        done.unwrap_or_else(|error| {
            panic!("seed {seed}, after {} events ({}): {error}", moment.events(), state.story)
        });
    }
    checked
}

/// Proves: after any crash, also one during recovery, every block has what it had at the last flush or something
/// written since. Only torn blocks that no flush acknowledged are refused. No block is written before its record is
/// durable, no hash is given up before a flush, and no block has more candidate hashes than is documented.
#[test]
fn crash_states() {
    let mut found = CheckResult::default();
    let mut checked = order::Checked::default();
    for seed in 1..=10 {
        let one = sample(seed, 1, 12, &mut found);
        checked.written += one.written;
        checked.stable += one.stable;
        checked.candidates = checked.candidates.max(one.candidates);
    }
    assert!(found.states > 300 && found.nested > 150, "{found:?}");
    assert!(found.examined > 0 && found.replayed > 0 && found.refused > 0, "{found:?}");
    assert!(checked.written > 1000 && checked.stable > 1000 && checked.candidates > 2, "{checked:?}");
}

/// Proves the same for several programs at once, whose records, writes and flushes interleave.
#[test]
fn crash_states_of_threads() {
    let mut found = CheckResult::default();
    for seed in 100..106 {
        sample(seed, 3, 16, &mut found);
    }
    assert!(found.states > 100, "{found:?}");
}

/// Proves: a power loss while a disk is taken over leaves the disk as it was. It can be taken over again, from the
/// beginning or from where it was durable, and everything is there.
#[test]
fn crashes_while_protecting() {
    const BLOCKS: u64 = 600;
    let devices = unprotected(BLOCKS);
    let (disk, log) = pair(&devices);
    Volume::format(&*disk, &*log, &key(), Some(RING_BYTES)).expect("formatted");
    for stop in [200, 500, BLOCKS + 1] {
        Volume::adopt(disk.clone(), log.clone(), &key(), [stop as u8; 16], None, &|done, _| done < stop)
            .expect("adopted so far");
    }
    let trace = devices.trace();
    let mut random = Random::new(3);
    let mut moment = Moment::first(&trace);
    let (mut anew, mut on, mut whole) = (0, 0, 0);
    for event in &trace.events {
        moment.step(event);
        for state in moment.states(&mut random, 4) {
            let devices = &state.devices;
            let (disk, log) = pair(devices);
            match open(devices, &Options::default(), None, random.number()) {
                Ok(_) => whole += 1,
                Err(VolumeError::NotAdopted { done, .. }) => {
                    on += u64::from(done > 0);
                }
                // The log was not made yet.
                Err(_) => {
                    anew += 1;
                    Volume::format(&*disk, &*log, &key(), Some(RING_BYTES)).expect("formatted");
                }
            }
            let salt = [random.number() as u8; 16];
            assert!(Volume::adopt(disk, log, &key(), salt, None, &|_, _| true).expect("adopted"));
            let (volume, report) = open(devices, &Options::default(), None, random.number()).expect("opens");
            assert!(report.refused.is_empty());
            for block in (0..BLOCKS).step_by(7) {
                assert!(read(&volume, block).expect("read") == original(block), "block {block}");
            }
        }
    }
    assert!(anew > 0 && on > 0 && whole > 0, "{anew} {on} {whole}");
}

/// Proves: while a volume is moved to another key, on a log of its own, and with more room behind it, a power loss at
/// any moment leaves the old one whole; continuing leads to the new one, with the same content.
#[test]
fn crashes_while_rekeying_and_resizing() {
    const OLD: u64 = 300;
    const NEW: u64 = 420;
    let start = protected(OLD);
    let devices = Devices::new();
    let more: Vec<u8> = (OLD..NEW).flat_map(original).collect();
    devices.add_with("disk", [start.bytes(DISK), more].concat());
    devices.add_with("log", start.bytes(LOG));
    let plan = Plan::new(NEW * BLOCK_BYTES as u64, Some(RING_BYTES));
    let second = devices.add("second log", plan.bytes as usize);
    let (volume, _) = open(&devices, &Options::default(), None, 1).expect("opens");
    let large: Vec<u8> = (0..50).flat_map(content).collect();
    volume.write(20 * BLOCK_BYTES as u64, &large).expect("written");
    volume.discard(100 * BLOCK_BYTES as u64, 10 * BLOCK_BYTES as u64).expect("discarded");
    volume.flush().expect("flushed");
    let expected = |block: u64| match block {
        20..70 => content(block - 20),
        100..110 => [0; BLOCK_BYTES],
        _ => original(block),
    };
    devices.forget();
    let another = VolumeKey::new(&[9; 32], b"another key.....");
    let rekey = |devices: &Devices, volume: &Volume, salt: u8| {
        let (disk, log) = (devices.device(DISK), devices.device(second));
        if !matches!(
            Volume::open(disk.clone(), log.clone(), &another, Options::default(), None, [salt; 16]),
            Ok(_) | Err(VolumeError::NotAdopted { .. })
        ) {
            Volume::format(&*disk, &*log, &another, Some(RING_BYTES)).expect("formatted");
        }
        Volume::adopt(disk, log, &another, [salt; 16], Some(volume), &|_, _| true).expect("adopted")
    };
    assert!(rekey(&devices, &volume, 5));
    drop(volume);
    let trace = devices.trace();
    let mut random = Random::new(4);
    let mut moment = Moment::first(&trace);
    let mut states = 0;
    for event in &trace.events {
        moment.step(event);
        for state in moment.states(&mut random, 3) {
            states += 1;
            let (old, report) =
                open(&state.devices, &Options::default(), None, random.number()).expect("the old one opens");
            assert!(report.refused.is_empty());
            for block in (0..OLD).step_by(5) {
                assert!(read(&old, block).expect("read") == expected(block), "block {block}");
            }
            assert!(rekey(&state.devices, &old, random.number() as u8));
            let (disk, log) = (state.devices.device(DISK), state.devices.device(second));
            let (new, _) =
                Volume::open(disk, log, &another, Options::default(), None, [7; 16]).expect("opens");
            assert_eq!(new.size_bytes(), NEW * BLOCK_BYTES as u64);
            for block in (0..NEW).step_by(5) {
                assert!(read(&new, block).expect("read") == expected(block), "block {block}");
            }
        }
    }
    assert!(states > 50);
}

/// Proves: a power loss while bad blocks are found, repaired from a replica, and written anew leaves each of them bad,
/// refused, or right.
#[test]
fn crashes_while_repairing() {
    let devices = protected(300);
    let bad = [40u64, 41, 250];
    devices.tamper(DISK, |disk| {
        bad.iter().for_each(|block| disk[*block as usize * BLOCK_BYTES + 9] ^= 1);
    });
    let (volume, _) = open(&devices, &Options::default(), None, 1).expect("opens");
    assert_eq!(volume.scrub(0..300).expect("scrubbed"), bad);
    assert!(volume.repair(40, &original(40)).expect("repaired"));
    assert!(!volume.repair(41, &original(40)).expect("no error"));
    assert!(volume.repair(41, &original(41)).expect("repaired"));
    let repaired = devices.events();
    volume.write(250 * BLOCK_BYTES as u64, &content(1)).expect("written");
    volume.close().expect("closed");
    assert!(volume.scrub(0..300).expect("scrubbed").is_empty());
    let trace = devices.trace();
    let mut random = Random::new(5);
    let mut moment = Moment::first(&trace);
    for event in &trace.events {
        moment.step(event);
        for state in moment.states(&mut random, 6) {
            let (volume, _) =
                open(&state.devices, &Options::default(), None, random.number()).expect("opens");
            for block in 0..300 {
                match read(&volume, block) {
                    Ok(bytes) if block == 250 => assert!(bytes == content(1)),
                    Ok(bytes) => assert!(bytes == original(block), "block {block}"),
                    Err(_) => assert!(
                        bad.contains(&block) && (block == 250 || moment.events() < repaired),
                        "block {block} is refused"
                    ),
                }
            }
        }
    }
}
