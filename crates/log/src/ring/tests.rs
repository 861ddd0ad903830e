//! The ring against crashes at every write, and against an attacker who has the device.

use super::block::LogBlock;
use super::*;
use crate::device::Device;
use crate::simulated_device::{Devices, Failure, Unflushed};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

const NAME: [u8; 16] = *b"a ring of a test";
const SLOTS: usize = 64;
const SIZE: usize = (2 + SLOTS) * BLOCK_BYTES;
const A: ClientId = ClientId(1);
const B: ClientId = ClientId(2);

fn key() -> RingKey {
    RingKey::new(&[7; 32], &NAME)
}

fn all(device: &dyn Device) -> Range<u64> {
    0..device.size_bytes()
}

fn formatted() -> Devices {
    let devices = Devices::new();
    devices.add("log", SIZE);
    let device = devices.device(0);
    Ring::format(&*device, all(&*device), &key(), NAME).expect("formatted");
    devices
}

fn open(devices: &Devices, anchor: Option<&Anchor>) -> Result<Recovered, RingError> {
    let device = devices.device(0);
    let range = all(&*device);
    Recovered::open(device, range, key(), NAME, anchor)
}

fn resume(devices: &Devices, salt: u8) -> Ring {
    open(devices, None).expect("opens").resume([salt; 16], 8)
}

fn bodies(found: &Recovered, client: ClientId) -> Vec<Vec<u8>> {
    found.cursor(client).map(|record| record.expect("readable").body).collect()
}

fn body(number: u32, length: usize) -> Vec<u8> {
    (0..length.max(4) as u32).map(|at| (number.wrapping_mul(31) + at) as u8).collect()
}

/// Forgets all but its newest records when asked.
struct Forgetful {
    ring: Ring,
    starts: Mutex<VecDeque<Lsn>>,
}

impl LogClient for Forgetful {
    fn checkpoint(&self, wanted: Lsn) -> Result<Lsn, String> {
        let mut starts = self.starts.lock();
        while starts.front().is_some_and(|start| *start < wanted) {
            starts.pop_front();
        }
        self.ring.append_reserved(B, 9, &[b"checkpoint"]).map_err(|error| error.to_string())?;
        Ok(starts.front().copied().unwrap_or_else(|| self.ring.end()))
    }
}

fn forgetful(ring: &Ring) -> Arc<Forgetful> {
    let client = Arc::new(Forgetful { ring: ring.clone(), starts: Mutex::default() });
    ring.register(A, client.clone());
    client
}

/// Proves: each client sees its own records, whole, in order, with their places, over several openings.
#[test]
fn clients_see_their_own() {
    let devices = formatted();
    let mut expected = (Vec::new(), Vec::new());
    for round in 0..4 {
        let found = open(&devices, None).expect("opens");
        assert_eq!((bodies(&found, A), bodies(&found, B)), expected);
        let ring = found.resume([round; 16], 8);
        for (at, length) in [0, 1, 4000, 4016, 9000, 17].into_iter().enumerate() {
            let number = u32::from(round) * 10 + at as u32;
            let (client, list) = match at % 2 {
                0 => (A, &mut expected.0),
                _ => (B, &mut expected.1),
            };
            let body = body(number, length);
            let (head, rest) = body.split_at(3);
            let place = ring.append(client, 1, &[head, rest]).expect("appended");
            assert!(place.start < place.end && place.end <= ring.end());
            list.push(body);
            if at == 3 {
                ring.force(place.end).expect("forced");
                assert!(ring.stable() >= place.end);
            }
        }
        ring.force(ring.end()).expect("forced");
    }
    let found = open(&devices, None).expect("opens");
    let places: Vec<_> = found.cursor(A).map(|record| record.expect("readable")).collect();
    assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
    assert_eq!(found.cut_off, 0);
}

/// Proves: whatever a crash leaves, everything that was forced is there, what is there is a prefix of what
/// was appended, and the ring continues; also after it has wrapped around, and with crashes in recovery's own
/// epoch.
#[test]
fn crashes_at_every_write() {
    let devices = formatted();
    let mut appended: Vec<Vec<u8>> = Vec::new();
    // After so many events so many records were forced, and records before so many were given up.
    let mut promises = vec![(devices.events(), 0, 0)];
    let ring = resume(&devices, 1);
    let client = forgetful(&ring);
    for number in 0..160u32 {
        let made = body(number, (number as usize * 379) % 6000);
        let place = ring.append(A, 1, &[&made]).expect("appended");
        client.starts.lock().push_back(place.start);
        appended.push(made);
        if number % 3 == 0 {
            ring.force(place.end).expect("forced");
        }
        let forgotten = appended.len() - client.starts.lock().len();
        let forced = if number % 3 == 0 { appended.len() } else { promises.last().expect("one").1 };
        promises.push((devices.events(), forced, forgotten));
    }
    assert!(ring.statistics().checkpoints > 2, "it came round");
    let formatting = promises[0].0;
    for events in formatting..=devices.events() {
        let (_, forced, _) = *promises.iter().rev().find(|promise| promise.0 <= events).expect("the first");
        let (_, _, forgotten) = *promises.iter().find(|promise| promise.0 >= events).expect("the last");
        for unflushed in [
            Unflushed::Kept,
            Unflushed::Lost,
            Unflushed::Torn(events as u64),
            Unflushed::Torn(!events as u64),
        ] {
            let crashed = devices.crashed(events, unflushed);
            let found =
                open(&crashed, None).unwrap_or_else(|error| panic!("{events} {unflushed:?}: {error}"));
            let there = bodies(&found, A);
            let begin =
                appended.iter().position(|body| there.first() == Some(body)).unwrap_or(appended.len());
            assert!(there.is_empty() || appended[begin..].starts_with(&there), "{events} {unflushed:?}");
            let end = if there.is_empty() { forgotten } else { begin + there.len() };
            assert!(
                begin.min(end) <= forgotten && end >= forced.max(forgotten.min(forced)),
                "{events} {unflushed:?}"
            );
            let ring = found.resume([2; 16], 8);
            let place = ring.append_reserved(A, 1, &[b"after"]).expect("appended");
            ring.force(place.end).expect("forced");
            let again = bodies(&open(&crashed, Some(&ring.anchor())).expect("opens"), A);
            assert_eq!(again.last().expect("one"), b"after");
            assert_eq!(again.len(), there.len() + 1);
        }
    }
}

/// Attacks on the device, and the verdict on each.
#[test]
fn verdicts() {
    let devices = formatted();
    let ring = resume(&devices, 1);
    let mut old = Vec::new();
    for number in 0..40 {
        let place = ring.append(A, 1, &[&body(number, 3000)]).expect("appended");
        ring.force(place.end).expect("forced");
        if number == 20 {
            old = devices.bytes(0);
        }
    }
    let anchor = ring.anchor();
    let bytes = devices.bytes(0);
    let place = |number: usize| (2 + number - 1) * BLOCK_BYTES..(2 + number) * BLOCK_BYTES;
    let verdict = |change: &dyn Fn(&mut [u8]), anchor: Option<&Anchor>| {
        let attacked = Devices::new();
        attacked.add_with("log", bytes.clone());
        attacked.tamper(0, |bytes| change(bytes));
        match open(&attacked, anchor) {
            Ok(_) => "accepted",
            Err(RingError::Damaged { .. }) => "damaged",
            Err(RingError::RolledBack { .. }) => "rolled back",
            Err(RingError::Forked { .. }) => "forked",
            Err(RingError::NotOurs { .. }) => "not ours",
            Err(error) => panic!("{error}"),
        }
    };
    let other = {
        let devices = formatted();
        let ring = resume(&devices, 9);
        for number in 0..40 {
            let place = ring.append(A, 1, &[&body(number, 3000)]).expect("appended");
            ring.force(place.end).expect("forced");
        }
        devices.bytes(0)
    };
    let last = anchor.number as usize;
    type Change<'a> = (&'a str, Box<dyn Fn(&mut [u8]) + 'a>, &'a str, &'a str);
    let table: Vec<Change<'_>> = vec![
        ("nothing", Box::new(|_| ()), "accepted", "accepted"),
        ("a byte flipped", Box::new(|bytes| bytes[place(5).start + 900] ^= 1), "damaged", "damaged"),
        ("a header's byte flipped", Box::new(|bytes| bytes[place(5).start + 41] ^= 1), "damaged", "damaged"),
        (
            "two blocks swapped",
            Box::new(|bytes| {
                let copy = bytes[place(5)].to_vec();
                bytes.copy_within(place(6), place(5).start);
                bytes[place(6)].copy_from_slice(&copy);
            }),
            "damaged",
            "damaged",
        ),
        ("a block dropped", Box::new(|bytes| bytes[place(1)].fill(0)), "damaged", "damaged"),
        (
            "a block of another ring with the same key and name",
            Box::new(|bytes| bytes[place(7)].copy_from_slice(&other[place(7)])),
            "damaged",
            "damaged",
        ),
        ("the last block torn off", Box::new(|bytes| bytes[place(last)].fill(0)), "accepted", "rolled back"),
        (
            "all replaced by an older state",
            Box::new(|bytes| bytes.copy_from_slice(&old)),
            "accepted",
            "rolled back",
        ),
        (
            "all replaced by another ring",
            Box::new(|bytes| bytes.copy_from_slice(&other)),
            "accepted",
            "forked",
        ),
        ("one superblock damaged", Box::new(|bytes| bytes[100] ^= 1), "accepted", "accepted"),
        (
            "both superblocks damaged",
            Box::new(|bytes| {
                bytes[33] ^= 1;
                bytes[BLOCK_BYTES + 33] ^= 1;
            }),
            "not ours",
            "not ours",
        ),
    ];
    for (what, change, without, with) in &table {
        assert_eq!(verdict(&**change, None), *without, "{what}, without an anchor");
        assert_eq!(verdict(&**change, Some(&anchor)), *with, "{what}, with an anchor");
    }
}

/// Proves: a tail that recovery cut off is never taken for what was written later in its place.
#[test]
fn discarded_tails_do_not_come_back() {
    let devices = formatted();
    let ring = resume(&devices, 1);
    let place = ring.append(A, 1, &[b"kept"]).expect("appended");
    ring.force(place.end).expect("forced");
    let before = devices.events();
    for number in 0..6 {
        ring.append(A, 1, &[&body(number, 4016)]).expect("appended");
    }
    ring.force(ring.end()).expect("forced");
    let tail = devices.bytes(0);
    let crashed = devices.crashed(before, Unflushed::Lost);
    let ring = open(&crashed, None).expect("opens").resume([2; 16], 8);
    let place = ring.append(A, 1, &[b"new"]).expect("appended");
    ring.force(place.end).expect("forced");
    let anchor = ring.anchor();
    // The attacker puts back blocks of the old tail behind the new block, then over it.
    let third = 4 * BLOCK_BYTES..;
    crashed.tamper(0, |bytes| bytes[third.clone()].copy_from_slice(&tail[third]));
    // These blocks say that nothing after the first was durable, so they are a tail.
    let found = open(&crashed, Some(&anchor)).expect("opens");
    assert_eq!(bodies(&found, A), [b"kept".to_vec(), b"new".to_vec()]);
    crashed.tamper(0, |bytes| bytes.copy_from_slice(&tail));
    assert!(matches!(open(&crashed, Some(&anchor)), Err(RingError::Forked { .. })));
}

/// Proves: when clients need everything, the ring reports that and accepts nothing; the reserve is for
/// checkpoints; a wrong key or name is refused.
#[test]
fn full_and_foreign() {
    struct Stubborn(Lsn);
    impl LogClient for Stubborn {
        fn checkpoint(&self, _: Lsn) -> Result<Lsn, String> {
            Ok(self.0)
        }
    }
    let devices = formatted();
    let ring = resume(&devices, 1);
    let first = ring.append(A, 1, &[b"needed"]).expect("appended").start;
    ring.register(A, Arc::new(Stubborn(first)));
    let refused = (0..SLOTS).find_map(|_| ring.append(A, 1, &[&[0; 4000]]).err());
    assert_eq!(refused, Some(RingError::Full { oldest: first }));
    for _ in 0..3 {
        ring.append_reserved(A, 2, &[&[1; 4000]]).expect("there is a reserve");
    }
    let refused = (0..SLOTS).find_map(|_| ring.append_reserved(A, 2, &[&[1; 4000]]).err());
    assert!(matches!(refused, Some(RingError::Full { .. })));
    ring.force(ring.end()).expect("forced");
    let found = open(&devices, None).expect("opens");
    assert_eq!(bodies(&found, A)[0], b"needed");
    assert!(matches!(ring.append(A, 1, &[&[0; 1 << 20]]), Err(RingError::TooLarge { .. })));

    let device = devices.device(0);
    assert_eq!(claimed_name(&*device, &all(&*device)), Some(NAME));
    let wrong = RingKey::new(&[8; 32], &NAME);
    let refused = Recovered::open(device.clone(), all(&*device), wrong, NAME, None).err();
    assert!(matches!(refused, Some(RingError::NotOurs { .. })));
}

/// Proves: after a failed write or flush nothing is accepted or called stable any more.
#[test]
fn failures_are_fatal() {
    for failure in [Failure::Writes(0), Failure::Flushes(0)] {
        let devices = formatted();
        let ring = resume(&devices, 1);
        let place = ring.append(A, 1, &[b"one"]).expect("appended");
        devices.fail(failure);
        assert!(matches!(ring.force(place.end), Err(RingError::Io { .. })));
        devices.heal();
        assert!(matches!(ring.force(place.end), Err(RingError::Poisoned(_))));
        assert!(matches!(ring.append(A, 1, &[b"two"]), Err(RingError::Poisoned(_))));
        assert!(ring.stable() < place.end);
    }
}

/// Proves: many threads that append and force at once lose nothing and share flushes.
#[test]
fn group_commit() {
    let devices = Devices::new();
    devices.add("log", 16 << 20);
    let device = devices.device(0);
    Ring::format(&*device, all(&*device), &key(), NAME).expect("formatted");
    let ring = resume(&devices, 1);
    std::thread::scope(|scope| {
        for thread in 0..8u32 {
            let ring = ring.clone();
            scope.spawn(move || {
                for number in 0..100u32 {
                    let body = (thread * 1000 + number).to_le_bytes();
                    let place = ring.append(A, 1, &[&body]).expect("appended");
                    ring.force(place.end).expect("forced");
                    assert!(ring.stable() >= place.end);
                }
            });
        }
    });
    let mut found = bodies(&open(&devices, Some(&ring.anchor())).expect("opens"), A);
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 800);
}

/// The stored layout, for ever.
#[test]
fn golden() {
    let epoch = Epoch { number: 3, salt: [4; 16] };
    let (bytes, tag) = LogBlock::encode(&key(), &epoch, (5, 2), &[6; 16], Some(0), b"payload");
    assert_eq!(blake3::hash(&bytes).to_hex().as_str(), GOLDEN);
    let block = LogBlock::decode(&bytes, &key()).expect("its own");
    assert_eq!((block.number, block.durable, block.tag, block.first), (5, 2, tag, Some(0)));
    assert_eq!(block.payload, b"payload");
}

const GOLDEN: &str = "3975e7e449916bdef53aeea2be2795ee46ed84ae4ad925b820751817d7d96b5e";

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves: no bytes make the reader panic or accept what the key did not make.
    #[test]
    fn noise_is_refused(noise in proptest::collection::vec(any::<u8>(), 4096), at in 0..SIZE - 4096) {
        let devices = formatted();
        let ring = resume(&devices, 1);
        for number in 0..10 {
            ring.append(A, 1, &[&body(number, 5000)]).expect("appended");
        }
        ring.force(ring.end()).expect("forced");
        let anchor = ring.anchor();
        let honest = bodies(&open(&devices, None).expect("opens"), A);
        devices.tamper(0, |bytes| bytes[at..at + 4096].copy_from_slice(&noise));
        if let Ok(found) = open(&devices, Some(&anchor)) {
            prop_assert_eq!(bodies(&found, A), honest);
        }
    }
}
