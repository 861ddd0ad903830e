//! Holes in segments: what is dead leaves the bucket, all else is read as before, and nothing of it is sent or read.

use crate::common;

use common::{config, impatient, open, record, settings, settle, wait_for_a_round, wait_until_sent};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{Log, Position, ScanDepth, ScanItem};
use holdfast_testing::eventually;
use holdfast_tiered::simulated::{Delivery, Simulated};
use holdfast_tiered::{Durability, RequestKind, Settings, Tiered};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;

/// Room enough that no segment has to be dropped here, and so little that each is.
const ROOM: [u64; 2] = [1 << 20, 20_000];

/// All records by position, read by a scan that verifies them.
fn scanned(log: &Log) -> BTreeMap<Position, Vec<u8>> {
    let mut found = BTreeMap::new();
    for one in log.scan(Position::START, ScanDepth::Bodies).expect("it is scanned") {
        match one.expect("it is read") {
            ScanItem::Record(head) => {
                found.insert(head.position, log.read(head.position, 0).expect("it is read").body);
            }
            ScanItem::Damaged(damage) => panic!("{damage:?}"),
        }
    }
    found
}

/// What lies between the places that are kept of one sealed segment; `end` is its end.
fn between(places: &[Position], is_kept: impl Fn(&Position) -> bool, end: u64) -> Vec<Range<u64>> {
    let (mut holes, mut start): (Vec<Range<u64>>, Option<u64>) = (Vec::new(), None);
    for place in places {
        match (is_kept(place), start) {
            (false, None) => start = Some(place.offset.into()),
            (true, Some(from)) => {
                holes.push(from..place.offset.into());
                start = None;
            }
            _ => {}
        }
    }
    holes.extend(start.map(|from| from..end));
    holes
}

/// Of all segments that are sealed: their places, and where their records end.
fn sealed(log: &Log, known: &BTreeMap<Position, Vec<u8>>) -> BTreeMap<u32, (Vec<Position>, u64)> {
    let mut segments = BTreeMap::new();
    for (number, _) in log.sealed_segments() {
        let places = known.range(Position { segment: number, offset: 0 }..);
        let places: Vec<Position> =
            places.map(|(place, _)| *place).take_while(|place| place.segment == number).collect();
        if let Some(last) = places.last() {
            let end = u64::from(last.offset) + u64::from(holdfast_log::stored_length(0, known[last].len()));
            segments.insert(number, (places, end));
        }
    }
    segments
}

/// Waits until the bucket has nothing but what makes up the segments.
fn wait_until_clear(tier: &Tiered, bucket: &Simulated) {
    eventually("what is dead leaves the bucket", || {
        let names = bucket.names();
        let is_bytes = |name: &&String| {
            ["/segment-", "/piece-", "/part-", "/tail-"].iter().any(|part| name.contains(part))
        };
        let header = |name: &str| if name.contains("/part-") || name.contains("/tail-") { 1 } else { 0 };
        let sizes = names
            .iter()
            .filter(is_bytes)
            .map(|name| (bucket.object(name).map_or(0, |bytes| bytes.len() as u64), header(name)));
        let (bytes, headers) = sizes.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1));
        let expected = tier.status().bytes;
        // A tail of the segment that is written is none of those.
        let slack = headers * 200 + 4500;
        bytes >= expected && bytes <= expected + slack && tier.status().waiting_bytes < 4500
    });
}

/// Proves: holes free what they cover, in segments of one object and of parts, again and again, with no byte of it read or
/// sent; what is left is read as before, by this server, by the same one started again, and by one whose disk was lost.
#[test]
fn holes_free_what_they_cover() {
    let cases = [(Durability::Local, ROOM[0]), (Durability::Local, ROOM[1]), (Durability::Object, ROOM[1])];
    for (durability, cache_bytes) in cases {
        let bucket = Simulated::new();
        let with = |anew| Settings { cache_bytes, part_bytes_min: 1000, ..settings(durability, anew) };
        let disk = PowerLoss::new(3);
        let (tier, log) = open(&disk.storage(), &bucket, with(false)).unwrap();
        for number in 0..120 {
            log.append(1, &record(number)).unwrap();
            if number % 4 == 3 {
                log.sync().unwrap();
                tier.confirm().unwrap();
            }
            if number % 16 == 0 {
                settle(&tier);
            }
        }
        log.seal().unwrap();
        wait_until_sent(&log);
        let all = scanned(&log);
        assert_eq!(all.len(), 120);
        let numbers: BTreeMap<Position, usize> = all.keys().copied().zip(0..).collect();
        let mut known = all.clone();
        let before = tier.status().bytes;
        for divisor in [5, 3, 2] {
            let moved = |kind: RequestKind, name: &str| {
                let is_bytes = ["/segment-", "/part-", "/tail-"].iter().any(|part| name.contains(part));
                matches!(kind, RequestKind::Get | RequestKind::Put) && is_bytes
            };
            bucket.with_deliveries(
                move |kind, name| if moved(kind, name) { Delivery::Lost } else { Delivery::Good },
            );
            let is_kept = |place: &Position| !numbers[place].is_multiple_of(divisor);
            let mut freed = 0;
            for (number, (places, end)) in sealed(&log, &known) {
                assert!(log.can_punch_holes(number));
                let holes = between(&places, is_kept, end);
                freed += places.iter().filter(|place| !is_kept(place)).count();
                if holes.first().is_some_and(|hole| hole.start > 64) || !holes.is_empty() {
                    assert!(log.punch_holes(number, &holes).unwrap());
                }
            }
            assert!(freed > 10);
            bucket.without_fates();
            let gone: Vec<Position> = known.keys().copied().filter(|place| !is_kept(place)).collect();
            known.retain(|place, _| is_kept(place));
            assert_eq!(scanned(&log), known);
            let taken: u64 = log.sealed_segments().iter().map(|(_, bytes)| bytes).sum();
            let left: u64 =
                known.values().map(|body| u64::from(holdfast_log::stored_length(0, body.len()))).sum();
            let headers = log.sealed_segments().len() as u64 * 64;
            assert_eq!(taken, left + headers);
            assert!(tier.status().bytes < before);
            if cache_bytes == ROOM[1] {
                log.drop_cache();
                for place in gone {
                    let error = log.read(place, 0).unwrap_err();
                    assert!(matches!(error, holdfast_log::LogError::SegmentGone(_)), "{error}");
                }
            }
        }
        // A segment must be in the bucket before others count on it.
        for number in 120..140 {
            log.append(1, &record(number)).unwrap();
        }
        log.sync().unwrap();
        log.seal().unwrap();
        wait_until_sent(&log);
        wait_until_clear(&tier, &bucket);
        known = scanned(&log);
        drop((log, tier));
        disk.restart(Crash::Kill);
        let (tier, log) = open(&disk.storage(), &bucket, with(false)).unwrap();
        assert_eq!(scanned(&log), known);
        drop((log, tier));
        let (_tier, log) = open(&common::fresh(), &bucket, with(true)).unwrap();
        assert_eq!(scanned(&log), known);
    }
}

/// Proves: until all is in the bucket that was appended before holes were punched, whoever takes the store over finds the
/// segment without them; and a store that copies nothing leaves all as it was.
#[test]
fn holes_count_when_all_is_there() {
    let bucket = Simulated::new();
    let with = |anew| Settings { cache_bytes: ROOM[1], ..settings(Durability::Local, anew) };
    let (tier, log) = open(&common::fresh(), &bucket, with(false)).unwrap();
    for number in 0..40 {
        log.append(1, &record(number)).unwrap();
    }
    log.seal().unwrap();
    wait_until_sent(&log);
    let all = scanned(&log);
    // What takes the place of something dead is not in the bucket yet.
    log.append(1, &record(40)).unwrap();
    log.sync().unwrap();
    let (number, (places, end)) = sealed(&log, &all).into_iter().nth(1).unwrap();
    let holes = between(&places, |place| place == &places[0], end);
    let stupid = bucket.snapshot();
    assert!(log.punch_holes(number, &holes).unwrap());
    wait_for_a_round(&bucket);
    let (_other, found) = open(&common::fresh(), &bucket.snapshot(), with(true)).unwrap();
    assert_eq!(scanned(&found), all);
    log.seal().unwrap();
    wait_until_sent(&log);
    wait_until_clear(&tier, &bucket);
    let left = scanned(&log);
    let (_other, found) = open(&common::fresh(), &bucket.snapshot(), with(true)).unwrap();
    assert_eq!(scanned(&found), left);
    assert!(left.len() < all.len());
    // Of what is too small for the store to copy out of, what lives is read and written here.
    let small = |anew| Settings { copied_bytes_min: 1 << 20, ..with(anew) };
    let by_hand = stupid.snapshot();
    by_hand.forget_copies();
    let (_other, log) = open(&common::fresh(), &by_hand, small(true)).unwrap();
    assert!(log.punch_holes(number, &holes).unwrap());
    let hidden = |place: &Position| place.segment == number && places[1..].contains(place);
    let expected: BTreeMap<_, _> =
        all.iter().filter(|(place, _)| !hidden(place)).map(|(place, body)| (*place, body.clone())).collect();
    assert_eq!(scanned(&log), expected);
    stupid.forget_copies();
    let (_tier, log) = open(&common::fresh(), &stupid, with(true)).unwrap();
    assert!(!log.punch_holes(number, &holes).unwrap());
    assert!(!log.can_punch_holes(number));
    assert_eq!(scanned(&log), all);
}

#[derive(Clone, Debug)]
enum Op {
    /// Appends so many records.
    Write(u8),
    /// Punches all that is dead of one in so many, into each segment.
    Punch(u8),
    /// Removes the oldest segment.
    Remove,
    Power(u8),
    LoseDisk,
    Settle,
    Deliveries(Vec<u8>),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1..40u8).prop_map(Op::Write),
        4 => (2..6u8).prop_map(Op::Punch),
        1 => Just(Op::Remove),
        2 => (0..30u8).prop_map(Op::Power),
        1 => Just(Op::LoseDisk),
        1 => Just(Op::Settle),
        2 => proptest::collection::vec(0..4u8, 1..12).prop_map(Op::Deliveries),
    ]
}

/// What must be there, and what may be: records that were in holes may come back while older manifests count.
#[derive(Default)]
struct Model {
    needed: BTreeMap<Position, Vec<u8>>,
    dead: BTreeMap<Position, Vec<u8>>,
    /// Those of the dead that were never acknowledged: once the disk is lost, others may be in their places. Those are later
    /// ones, or earlier ones that nobody acknowledged either, and whose requests arrive late.
    unacknowledged: Vec<Position>,
}

impl Model {
    fn check(&self, found: &BTreeMap<Position, Vec<u8>>, unsure: &BTreeMap<Position, Vec<u8>>) {
        for (place, body) in found {
            let known = self.needed.get(place).or_else(|| self.dead.get(place)).or_else(|| unsure.get(place));
            assert_eq!(known, Some(body), "{place}");
        }
        for place in self.needed.keys() {
            assert!(found.contains_key(place), "{place} is gone");
        }
    }

    fn has(&self, body: &[u8]) -> bool {
        self.needed.values().chain(self.dead.values()).any(|known| known == body)
    }

    fn kill(&mut self, is_dead: impl Fn(&Position) -> bool) {
        let dead: Vec<Position> = self.needed.keys().copied().filter(|place| is_dead(place)).collect();
        for place in dead {
            let body = self.needed.remove(&place).expect("just found");
            self.dead.insert(place, body);
        }
    }
}

fn reopen(disk: &PowerLoss, bucket: &Simulated, durability: Durability, anew: bool) -> (Tiered, Log) {
    let with = || Settings { cache_bytes: ROOM[1], ..impatient(durability, anew) };
    match open(&disk.storage(), bucket, with()) {
        Ok(opened) => opened,
        Err(_) => {
            bucket.without_fates();
            bucket.settle();
            open(&disk.storage(), bucket, with()).expect("it opens from a bucket that answers")
        }
    }
}

fn run(durability: Durability, ops: &[Op]) {
    let (mut disk, bucket) = (PowerLoss::new(7), Simulated::new());
    let (mut tier, mut log) = reopen(&disk, &bucket, durability, false);
    let (mut model, mut next) = (Model::default(), 0);
    let mut unsure: BTreeMap<Position, Vec<u8>> = BTreeMap::new();
    let mut write = |log: &Log, tier: &Tiered, count: u8, model: &mut Model, unsure: &mut BTreeMap<_, _>| {
        for _ in 0..count {
            if let Ok(place) = log.append(1, &record(next)) {
                unsure.insert(place, record(next));
            }
            next += 1;
        }
        if log.sync().is_ok() && tier.confirm().is_ok() {
            model.needed.append(unsure);
        }
    };
    for op in ops {
        match op {
            Op::Write(count) => write(&log, &tier, *count, &mut model, &mut unsure),
            Op::Punch(of) => {
                let is_dead = |place: &Position| (place.offset / 8).is_multiple_of((*of).into());
                let known: BTreeMap<_, _> =
                    model.needed.iter().map(|(place, body)| (*place, body.clone())).collect();
                for (number, (places, end)) in sealed(&log, &known) {
                    // Some records of a segment may be unknown: what was not acknowledged.
                    let unknown = unsure.keys().any(|place| place.segment == number);
                    let holes = between(&places, |place| !is_dead(place), end);
                    if !unknown && !holes.is_empty() {
                        model.kill(|place| place.segment == number && is_dead(place));
                        let _ = log.punch_holes(number, &holes);
                    }
                }
            }
            Op::Remove => {
                if let Some((number, _)) = log.sealed_segments().first() {
                    let mut rest = unsure.split_off(&Position { segment: number + 1, offset: 0 });
                    // It is the oldest segment.
                    model.unacknowledged.extend(unsure.keys());
                    model.needed.append(&mut unsure);
                    unsure.append(&mut rest);
                    model.kill(|place| place.segment == *number);
                    let _ = log.remove_segments(&[*number]);
                }
            }
            Op::Power(_) | Op::LoseDisk => {
                let loses = matches!(op, Op::LoseDisk);
                if loses && durability == Durability::Local {
                    continue;
                }
                if let Op::Power(after) = op {
                    disk.crash_after((*after).into());
                    write(&log, &tier, 8, &mut model, &mut unsure);
                }
                drop((log, tier));
                match loses {
                    true => disk = PowerLoss::new(9),
                    false => disk.restart(Crash::PowerLoss),
                }
                (tier, log) = reopen(&disk, &bucket, durability, loses);
                bucket.without_fates();
                let found = scanned(&log);
                if loses {
                    for place in std::mem::take(&mut model.unacknowledged) {
                        if found.get(&place) != model.dead.get(&place) {
                            model.dead.remove(&place);
                        }
                    }
                }
                // What was not acknowledged is there or not, even if appending it failed; and may be lost with the disk.
                unsure.clear();
                for (place, body) in &found {
                    let number = u32::from_le_bytes(body[..4].try_into().expect("4 bytes"));
                    let is_new = !model.needed.contains_key(place) && !model.dead.contains_key(place);
                    if is_new && *body == record(number) && !model.has(body) {
                        unsure.insert(*place, body.clone());
                    }
                }
                if loses {
                    model.needed.append(&mut unsure);
                }
                model.check(&found, &unsure);
            }
            Op::Settle => bucket.settle(),
            Op::Deliveries(pattern) => {
                let (pattern, mut at) = (pattern.clone(), 0);
                bucket.with_deliveries(move |_, _| {
                    at += 1;
                    [Delivery::Good, Delivery::Lost, Delivery::Unanswered, Delivery::Late]
                        [usize::from(pattern[at % pattern.len()])]
                });
            }
        }
    }
    bucket.without_fates();
    bucket.settle();
    model.needed.append(&mut unsure);
    model.check(&scanned(&log), &unsure);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Proves: whatever requests become of, whenever power fails and the disk is lost: all records that are in no hole and were
    /// acknowledged are there, and nothing else than was written.
    #[test]
    fn holes_do_as_the_model(ops in proptest::collection::vec(op(), 1..24)) {
        run(Durability::Local, &ops);
        run(Durability::Object, &ops);
    }
}

/// Proves: a log on a medium that cannot punch holes says so, and stays as it is.
#[test]
fn a_local_disk_has_no_holes() {
    let disk = PowerLoss::new(1);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    for number in 0..30 {
        log.append(1, &record(number)).unwrap();
    }
    log.seal().unwrap();
    let all = scanned(&log);
    let (number, (places, end)) = sealed(&log, &all).into_iter().next().unwrap();
    let holes = between(&places, |_| false, end);
    assert!(!log.can_punch_holes(number) && !log.punch_holes(number, &holes).unwrap());
    assert_eq!(scanned(&log), all);
}

/// Proves: a segment that was begun when power failed, and so has no records and never is in the bucket, is no gap for
/// whoever takes over what was acknowledged after it.
#[test]
fn an_empty_segment_is_no_gap() {
    run(Durability::Object, &[Op::Write(23), Op::LoseDisk, Op::Power(1), Op::Write(1), Op::LoseDisk]);
}
