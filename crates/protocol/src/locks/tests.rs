use super::*;
use holdfast_content::{PrincipalId, UserId};
use proptest::prelude::*;

const FILE: Handle = Handle { principal: PrincipalId::User(UserId(1)), number: 7 };

fn holder(device: u32, owner: u64) -> Holder {
    Holder { session: SessionId { device: DeviceId(device), run: 1 }, owner }
}

fn attempt(start: u64, last: u64, mode: Option<LockMode>) -> LockAttempt {
    LockAttempt {
        file: FILE,
        space: LockSpace::Fcntl,
        range: LockRange { start, last },
        mode,
        process: 1,
        reclaim: false,
        wait: false,
    }
}

const SHARED: Option<LockMode> = Some(LockMode::Shared);
const EXCLUSIVE: Option<LockMode> = Some(LockMode::Exclusive);

fn table() -> LockTable {
    LockTable::new(1, 0)
}

fn ask(table: &mut LockTable, holder: Holder, request: &LockAttempt, now_ms: u64) -> LockOutcome {
    table.renew_session(holder.session, now_ms).expect("there is room");
    table.request(holder, request, now_ms)
}

/// What locks mean, byte by byte: the model.
type Model = BTreeMap<(Holder, u64), LockMode>;

fn apply_to_model(model: &mut Model, holder: Holder, request: &LockAttempt) -> bool {
    let bytes = || request.range.start..=request.range.last;
    if let Some(mode) = request.mode {
        let free = |(other, byte): &(Holder, u64), held: &LockMode| {
            *other == holder
                || !bytes().contains(byte)
                || (mode == LockMode::Shared && *held == LockMode::Shared)
        };
        if !model.iter().all(|(key, held)| free(key, held)) {
            return false;
        }
    }
    for byte in bytes() {
        match request.mode {
            Some(mode) => model.insert((holder, byte), mode),
            None => model.remove(&(holder, byte)),
        };
    }
    true
}

fn bytes_of(table: &LockTable) -> Model {
    let mut model = Model::new();
    for file in table.files.values() {
        for (holder, held) in file {
            for (range, mode) in held.ranges.iter() {
                for byte in range.start..=range.last {
                    assert!(model.insert((*holder, byte), mode).is_none(), "ranges of a holder overlap");
                }
            }
        }
    }
    model
}

proptest! {
    /// Proves: whatever is asked for, the table grants, refuses and holds what a list of single bytes does, and
    /// counts its ranges truly.
    #[test]
    fn ranges_are_bytes(asked in prop::collection::vec((0..2_u32, 0..2_u64, 0..24_u64, 0..12_u64, 0..3_u8), 1..60)) {
        let (mut table, mut model) = (table(), Model::new());
        for (device, owner, start, length, mode) in asked {
            let (holder, mode) = (holder(device, owner), [None, SHARED, EXCLUSIVE][mode as usize]);
            let request = attempt(start, start + length, mode);
            let test = table.test(holder, &request, 0);
            let granted = ask(&mut table, holder, &request, 0);
            prop_assert_eq!(granted == LockOutcome::Granted, apply_to_model(&mut model, holder, &request));
            prop_assert_eq!(test.is_none(), granted == LockOutcome::Granted);
            prop_assert_eq!(&bytes_of(&table), &model);
            for device in [DeviceId(0), DeviceId(1)] {
                let its = |holder: &Holder| holder.session.device == device;
                let held = table.files.values().flatten().filter(|(holder, _)| its(holder));
                let count: usize = held.map(|(_, held)| held.ranges.len()).sum();
                prop_assert_eq!(table.ranges.get(&device).copied().unwrap_or(0), count);
            }
        }
        for device in 0..2 {
            table.end(SessionId { device: DeviceId(device), run: 1 });
        }
        prop_assert!(table.is_empty() && table.files.is_empty());
    }
}

/// Proves: the ends of the range of numbers are bytes like others.
#[test]
fn the_last_byte() {
    let mut table = table();
    let all = attempt(0, u64::MAX, EXCLUSIVE);
    assert_eq!(ask(&mut table, holder(1, 1), &all, 0), LockOutcome::Granted);
    assert_eq!(ask(&mut table, holder(1, 1), &attempt(5, 5, None), 0), LockOutcome::Granted);
    assert_eq!(ask(&mut table, holder(2, 1), &attempt(5, 5, EXCLUSIVE), 0), LockOutcome::Granted);
    assert!(matches!(
        ask(&mut table, holder(2, 1), &attempt(u64::MAX, u64::MAX, SHARED), 0),
        LockOutcome::Conflict(_)
    ));
    assert_eq!(ask(&mut table, holder(1, 1), &attempt(6, u64::MAX, None), 0), LockOutcome::Granted);
    assert_eq!(ask(&mut table, holder(2, 1), &attempt(u64::MAX, u64::MAX, SHARED), 0), LockOutcome::Granted);
}

/// Proves: flock and fcntl locks do not see each other, nor do files.
#[test]
fn spaces_are_apart() {
    let mut table = table();
    let fcntl = attempt(0, 9, EXCLUSIVE);
    let flock = LockAttempt { space: LockSpace::Flock, range: LockRange::ALL, ..fcntl };
    let other = LockAttempt { file: Handle { number: 8, ..FILE }, ..fcntl };
    for (device, request) in [(1, fcntl), (2, flock), (3, other)] {
        assert_eq!(ask(&mut table, holder(device, 1), &request, 0), LockOutcome::Granted);
    }
}

/// Proves: a silent session keeps its locks until somebody else wants them after the lease, and then loses
/// them all. When it is heard again, it has another epoch.
#[test]
fn silence_costs_locks_only_when_they_are_wanted() {
    let mut table = table();
    let (first, second) = (holder(1, 1), holder(2, 1));
    assert_eq!(ask(&mut table, first, &attempt(0, 9, EXCLUSIVE), 0), LockOutcome::Granted);
    assert_eq!(ask(&mut table, first, &attempt(100, 109, EXCLUSIVE), 0), LockOutcome::Granted);
    let epoch = table.renew_session(first.session, 0);
    assert!(matches!(ask(&mut table, second, &attempt(0, 9, SHARED), LEASE_MS), LockOutcome::Conflict(_)));
    assert_eq!(table.renew_session(first.session, 10 * LEASE_MS), epoch, "nobody wanted them");
    assert!(matches!(
        ask(&mut table, second, &attempt(0, 9, SHARED), 10 * LEASE_MS),
        LockOutcome::Conflict(_)
    ));
    let late = 11 * LEASE_MS + 1;
    assert_eq!(ask(&mut table, second, &attempt(0, 9, SHARED), late), LockOutcome::Granted);
    assert_eq!(ask(&mut table, second, &attempt(100, 109, SHARED), late), LockOutcome::Granted);
    assert_ne!(table.renew_session(first.session, late), epoch);
    let again = LockAttempt { reclaim: true, ..attempt(0, 9, EXCLUSIVE) };
    assert!(
        matches!(table.request(first, &again, late), LockOutcome::Conflict(_)),
        "reclaiming takes from nobody"
    );
}

/// Proves: after a restart, holders from before come first; giving up a lock is always granted.
#[test]
fn grace() {
    let mut table = LockTable::new(5, 1000);
    assert_eq!(ask(&mut table, holder(2, 1), &attempt(0, 9, EXCLUSIVE), 400), LockOutcome::Grace(600));
    assert_eq!(ask(&mut table, holder(2, 1), &attempt(0, 9, None), 400), LockOutcome::Granted);
    let again = LockAttempt { reclaim: true, ..attempt(0, 9, EXCLUSIVE) };
    assert_eq!(ask(&mut table, holder(1, 1), &again, 400), LockOutcome::Granted);
    assert!(matches!(
        ask(&mut table, holder(2, 1), &attempt(0, 9, EXCLUSIVE), 1000),
        LockOutcome::Conflict(_)
    ));
}

/// Proves: a circle of waiting processes is detected at the one that would close it, and not before. A
/// process that stops waiting is no part of a circle.
#[test]
fn circles_are_seen() {
    let mut table = table();
    let waiting = |start: u64| LockAttempt { wait: true, ..attempt(start, start, EXCLUSIVE) };
    let holders: Vec<Holder> = (0..3).map(|device| holder(device, 1)).collect();
    for (at, holder) in (0..).zip(&holders) {
        assert_eq!(ask(&mut table, *holder, &attempt(at, at, EXCLUSIVE), 0), LockOutcome::Granted);
    }
    assert!(matches!(table.wait_for(holders[0], &waiting(1), 0), LockOutcome::Conflict(_)));
    assert!(matches!(table.wait_for(holders[1], &waiting(2), 0), LockOutcome::Conflict(_)));
    assert_eq!(ask(&mut table, holders[2], &waiting(0), 0), LockOutcome::Deadlock);
    assert_eq!(table.wait_for(holders[2], &waiting(0), 0), LockOutcome::Deadlock);
    let tried = LockAttempt { wait: false, ..waiting(0) };
    assert!(matches!(ask(&mut table, holders[2], &tried, 0), LockOutcome::Conflict(_)), "who only tries may");
    table.waits_no_more(holders[0]);
    assert!(matches!(table.wait_for(holders[2], &waiting(0), 0), LockOutcome::Conflict(_)));
    table.end(holders[1].session);
    assert_eq!(table.wait_for(holders[0], &waiting(1), 0), LockOutcome::Granted, "waiting takes nothing");
    assert_eq!(ask(&mut table, holders[0], &waiting(1), 0), LockOutcome::Granted);
}

/// Proves: two holders that convert a shared flock take turns, as flock(2) says, and do not wait for ever. A
/// holder that only tries keeps its lock.
#[test]
fn conversion_of_flocks() {
    let mut table = table();
    let flock = |mode, wait| LockAttempt {
        space: LockSpace::Flock,
        range: LockRange::ALL,
        wait,
        ..attempt(0, 0, mode)
    };
    let (first, second) = (holder(1, 1), holder(2, 1));
    for holder in [first, second] {
        assert_eq!(ask(&mut table, holder, &flock(SHARED, false), 0), LockOutcome::Granted);
    }
    assert!(matches!(ask(&mut table, first, &flock(EXCLUSIVE, false), 0), LockOutcome::Conflict(_)));
    assert!(
        matches!(ask(&mut table, second, &flock(EXCLUSIVE, false), 0), LockOutcome::Conflict(_)),
        "it kept it"
    );
    assert!(!table.take_freed());
    assert!(matches!(ask(&mut table, first, &flock(EXCLUSIVE, true), 0), LockOutcome::Conflict(_)));
    assert!(table.take_freed(), "the other must hear of it");
    assert!(matches!(ask(&mut table, first, &flock(EXCLUSIVE, true), 0), LockOutcome::Conflict(_)));
    assert!(!table.take_freed(), "or they would wake each other for ever");
    assert_eq!(ask(&mut table, second, &flock(EXCLUSIVE, true), 0), LockOutcome::Granted);
}

/// Proves: no device holds more than its share of locks, and a refused request changes nothing. A device has
/// no more sessions than its share; silent ones make room.
#[test]
fn locks_are_bounded() {
    let mut table = table();
    let mut granted = 0;
    for at in 0..DEVICE_RANGES_MAX as u64 + 10 {
        match ask(&mut table, holder(1, at % 5), &attempt(at * 2, at * 2, EXCLUSIVE), 0) {
            LockOutcome::Granted => granted += 1,
            other => assert_eq!(other, LockOutcome::TooMany),
        }
    }
    assert!((DEVICE_RANGES_MAX - 2..=DEVICE_RANGES_MAX).contains(&granted));
    assert_eq!(table.ranges[&DeviceId(1)], granted);
    let other_run = Holder { session: SessionId { run: 2, ..holder(1, 1).session }, owner: 1 };
    assert_eq!(
        ask(&mut table, other_run, &attempt(1, 1, EXCLUSIVE), 0),
        LockOutcome::TooMany,
        "the device's share is used up"
    );
    assert_eq!(
        ask(&mut table, holder(2, 1), &attempt(1, 1, EXCLUSIVE), 0),
        LockOutcome::Granted,
        "others have their own"
    );

    let session = |run| SessionId { device: DeviceId(3), run };
    for run in 0..DEVICE_SESSIONS_MAX as u128 {
        assert!(table.renew_session(session(run), 5 + run as u64).is_some());
    }
    assert!(table.renew_session(session(1000), LEASE_MS).is_none(), "all were heard of lately");
    let epoch = table.renew_session(session(1), LEASE_MS);
    assert!(table.renew_session(session(1000), 6 + LEASE_MS).is_some(), "run 0 was silent for longest");
    assert_eq!(table.renew_session(session(1), 6 + LEASE_MS), epoch);
    assert_eq!(table.sessions.keys().filter(|id| id.device == DeviceId(3)).count(), DEVICE_SESSIONS_MAX);
}
