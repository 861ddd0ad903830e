//! The log apart from power losses: reading, sharing syncs, full disks, failed syncs, damage.

use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_log::{
    LocalStorage, Log, LogConfig, LogError, Position, ScanDepth, ScanItem, Storage, StorageFile, StorageLock,
    SyncSite,
};
use proptest::prelude::*;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};

fn config() -> LogConfig {
    LogConfig { segment_bytes: 4096, buffer_bytes: 512, known_durable: Position::START }
}

fn bodies(log: &Log, from: Position) -> Vec<Vec<u8>> {
    log.scan(from, ScanDepth::Bodies)
        .unwrap()
        .map(|found| match found.unwrap() {
            ScanItem::Record(head) => log.read(head.position, head.stored_length()).unwrap().body,
            ScanItem::Damaged(damage) => panic!("{damage:?}"),
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Proves that any records come back whole and in order: from the buffer, the file, another segment and
    /// another process, and from any record on.
    #[test]
    fn records_come_back(
        records in prop::collection::vec((any::<u8>(), 0usize..600, 0usize..6000, 0u8..4), 1..40)
    ) {
        let disk = PowerLoss::new(1);
        let (log, _) = Log::open(disk.storage(), config()).unwrap();
        let mut written = Vec::new();
        for (kind, head, body, act) in records {
            let (head, body) = (vec![kind ^ 1; head], vec![kind; body]);
            let tag = holdfast_log::BodyTag::of(&body);
            let at = log.append_parts(kind, &head, &body, tag).unwrap();
            written.push((at, kind, head, body));
            match act {
                0 => log.sync().unwrap(),
                1 => log.seal().unwrap(),
                _ => {}
            }
            for (at, kind, head, body) in &written {
                let record = log.read(*at, 0).unwrap();
                prop_assert_eq!((&record.kind, &record.head, &record.body), (kind, head, body));
                prop_assert_eq!(&log.read_head(*at).unwrap().head, head);
            }
        }
        prop_assert!(written.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let middle = written.len() / 2;
        let expected: Vec<_> = written.iter().map(|(_, _, _, body)| body.clone()).collect();
        prop_assert_eq!(&bodies(&log, Position::START), &expected);
        prop_assert_eq!(&bodies(&log, written[middle].0), &expected[middle..]);
        log.sync().unwrap();
        let end = log.end();
        disk.restart(Crash::PowerLoss);
        let (log, recovery) = Log::open(disk.storage(), LogConfig { known_durable: end, ..config() }).unwrap();
        prop_assert_eq!(recovery.end, end);
        let heads: Vec<_> = recovery.map(|head| head.unwrap().position).collect();
        prop_assert_eq!(heads, written.iter().map(|(at, ..)| *at).collect::<Vec<_>>());
        prop_assert_eq!(&bodies(&log, Position::START), &expected);
    }

    /// Proves that no byte of a segment can change unnoticed, and that the records around it are still read.
    #[test]
    fn no_byte_changes_unnoticed(at in 64u64..3000, count in 5usize..20) {
        let disk = PowerLoss::new(2);
        let (log, _) = Log::open(disk.storage(), config()).unwrap();
        let body = |number: usize| vec![number as u8; 100];
        for number in 0..count {
            log.append(1, &body(number)).unwrap();
            log.sync().unwrap();
        }
        // The last record vouches for all before it.
        log.append(2, b"last").unwrap();
        log.sync().unwrap();
        let length = log.end().offset as u64;
        let padding = (at - 64) % 144 >= 140;
        prop_assume!(at < 64 + 144 * count as u64 && !padding && at < length);
        disk.corrupt("segment-0000000001.log", at);
        let hit = ((at - 64) / 144) as usize;
        let mut seen = Vec::new();
        let mut damage = 0;
        for found in log.scan(Position::START, ScanDepth::Bodies).unwrap() {
            match found.unwrap() {
                ScanItem::Record(head) => seen.push(head.position.offset),
                ScanItem::Damaged(found) => {
                    damage += 1;
                    prop_assert_eq!(found.position.offset as usize, 64 + 144 * hit);
                }
            }
        }
        let expected: Vec<u32> = (0..=count).filter(|n| *n != hit).map(|n| 64 + 144 * n as u32).collect();
        prop_assert_eq!((seen, damage), (expected, 1));
        // Opening the log does not cut off what is known durable.
        disk.restart(Crash::Kill);
        let (_, recovery) = Log::open(disk.storage(), config()).unwrap();
        prop_assert_eq!((recovery.truncated, recovery.damage.len()), (None, 1));
    }
}

/// A change that a disk, or an attacker who holds it, makes to a segment file.
#[derive(Clone, Debug)]
enum Harm {
    Overwrite(usize, Vec<u8>),
    Truncate(usize),
    Extend(Vec<u8>),
    /// Copies a stretch of another segment (or this one) over this one.
    Splice {
        from: usize,
        at: usize,
        to: usize,
        length: usize,
    },
}

fn harm() -> impl Strategy<Value = Harm> {
    let at = 0usize..5000;
    prop_oneof![
        (at.clone(), prop::collection::vec(any::<u8>(), 1..80))
            .prop_map(|(at, bytes)| Harm::Overwrite(at, bytes)),
        at.clone().prop_map(Harm::Truncate),
        prop::collection::vec(any::<u8>(), 1..200).prop_map(Harm::Extend),
        (0usize..3, at.clone(), at, 8usize..2000).prop_map(|(from, at, to, length)| Harm::Splice {
            from,
            at: at & !7,
            to: to & !7,
            length
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Proves that whatever is done to the segment files, opening, scanning and reading never panic, and
    /// never yield a record that was not written, or was written at another position.
    #[test]
    fn foreign_bytes_are_never_records(harms in prop::collection::vec((0usize..3, harm()), 1..6)) {
        let disk = PowerLoss::new(9);
        let (log, _) = Log::open(disk.storage(), config()).unwrap();
        let mut written = std::collections::BTreeMap::new();
        for number in 0..40u32 {
            let body = number.to_le_bytes().repeat(1 + number as usize * 3);
            written.insert(log.append(number as u8, &body).unwrap(), body);
            if number % 3 == 0 {
                log.sync().unwrap();
            }
        }
        log.sync().unwrap();
        let names: Vec<String> = disk.names().into_iter().take(3).collect();
        for (which, harm) in harms {
            let read = |name: &str| {
                let mut bytes = vec![0; disk.length(name).unwrap() as usize];
                disk.storage().open(name).unwrap().read_at(0, &mut bytes).unwrap();
                bytes
            };
            let mut bytes = read(&names[which]);
            match harm {
                Harm::Overwrite(at, new) => {
                    for (old, new) in bytes.iter_mut().skip(at).zip(new) {
                        *old = new;
                    }
                }
                Harm::Truncate(length) => bytes.truncate(length),
                Harm::Extend(more) => bytes.extend(more),
                Harm::Splice { from, at, to, length } => {
                    let source = read(&names[from]);
                    let piece = source.iter().skip(at).take(length).copied();
                    for (old, new) in bytes.iter_mut().skip(to).zip(piece) {
                        *old = new;
                    }
                }
            }
            disk.overwrite(&names[which], &bytes);
        }
        disk.restart(Crash::Kill);
        if let Ok((log, recovery)) = Log::open(disk.storage(), config()) {
            for head in recovery.flatten() {
                prop_assert!(written.contains_key(&head.position));
                if let Ok(record) = log.read(head.position, head.stored_length()) {
                    prop_assert_eq!(&record.body, &written[&head.position]);
                    prop_assert_eq!(record.kind, head.kind);
                }
            }
            let _ = log.scan(Position::START, ScanDepth::Bodies).unwrap().count();
            log.append(1, b"goes on").unwrap();
            log.sync().unwrap();
        }
    }
}

/// Proves that a log that ends before the caller's anchor is loss, not a torn tail.
#[test]
fn an_end_before_the_anchor_is_loss() {
    let disk = PowerLoss::new(3);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    log.append(1, b"kept").unwrap();
    log.sync().unwrap();
    let kept = log.end();
    log.append(1, b"lost").unwrap();
    let lost = log.end();
    disk.restart(Crash::PowerLoss);
    let error = Log::open(disk.storage(), LogConfig { known_durable: lost, ..config() }).err().unwrap();
    assert_eq!(error, LogError::Lost { expected: lost, found: kept });
    assert!(Log::open(disk.storage(), LogConfig { known_durable: kept, ..config() }).is_ok());
}

/// Proves that a failed sync poisons the log: no later call succeeds, although the kernel calls the pages
/// clean, and what was acknowledged before is still there after reopening.
#[test]
fn a_failed_sync_is_fatal() {
    let disk = PowerLoss::new(4);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    log.append(1, b"acknowledged").unwrap();
    log.sync().unwrap();
    log.append(1, b"not acknowledged").unwrap();
    disk.fail_syncs(1);
    assert!(matches!(log.sync(), Err(LogError::Io { .. })));
    for _ in 0..2 {
        assert!(matches!(log.sync(), Err(LogError::Poisoned(_))));
        assert!(matches!(log.append(1, b"more"), Err(LogError::Poisoned(_))));
    }
    disk.restart(Crash::PowerLoss);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    assert_eq!(bodies(&log, Position::START), vec![b"acknowledged".to_vec()]);
    log.append(1, b"again").unwrap();
    log.sync().unwrap();
}

/// Proves that a full disk is detected before anything is appended, that earlier records can still be
/// committed, and that appending works again once there is space.
#[test]
fn a_full_disk_refuses_cleanly() {
    let disk = PowerLoss::new(5);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    disk.set_capacity(Some(disk.used_bytes() + 1000));
    let mut written = Vec::new();
    let error = loop {
        let body = vec![written.len() as u8; 300];
        match log.append(1, &body) {
            Ok(_) => written.push(body),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Full { .. }), "{error}");
    assert!(!written.is_empty());
    log.sync().unwrap();
    assert_eq!(bodies(&log, Position::START), written);
    assert!(matches!(log.append(1, &[9; 300]), Err(LogError::Full { .. })));
    disk.set_capacity(None);
    log.append(1, &[9; 300]).unwrap();
    written.push(vec![9; 300]);
    log.sync().unwrap();
    disk.restart(Crash::PowerLoss);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    assert_eq!(bodies(&log, Position::START), written);
}

/// Proves that a segment of a newer format and a damaged segment header are refused in words.
#[test]
fn newer_and_damaged_segments_are_refused() {
    let disk = PowerLoss::new(6);
    let (log, _) = Log::open(disk.storage(), config()).unwrap();
    log.append(1, b"x").unwrap();
    log.sync().unwrap();
    drop(log);
    let name = "segment-0000000001.log";
    let mut bytes = vec![0; disk.length(name).unwrap() as usize];
    disk.storage().open(name).unwrap().read_at(0, &mut bytes).unwrap();
    let mut newer = bytes.clone();
    newer[8] = 9;
    disk.overwrite(name, &newer);
    disk.restart(Crash::Kill);
    let error = Log::open(disk.storage(), config()).err().unwrap();
    assert_eq!(error, LogError::NewerFormat { file: name.into(), found: 9, supported: 1 });
    let mut damaged = bytes;
    damaged[20] ^= 1;
    disk.overwrite(name, &damaged);
    assert!(matches!(Log::open(disk.storage(), config()), Err(LogError::Damaged { .. })));
}

/// Proves that records and bodies over the limits are refused, not cut.
#[test]
fn oversized_records_are_refused() {
    let (log, _) = Log::open(PowerLoss::new(7).storage(), config()).unwrap();
    let head = vec![0; holdfast_log::HEAD_BYTES_MAX + 1];
    let tag = holdfast_log::BodyTag::of(b"");
    assert!(matches!(log.append_parts(1, &head, b"", tag), Err(LogError::TooLarge { .. })));
    let body = vec![0; holdfast_log::RECORD_BYTES_MAX + 1];
    assert!(matches!(log.append(1, &body), Err(LogError::TooLarge { .. })));
}

/// A storage whose commits wait until the test lets them go.
struct GatedStorage {
    inner: Arc<dyn Storage>,
    gate: Arc<SyncGate>,
}

#[derive(Default)]
struct SyncGate {
    open: Mutex<bool>,
    changed: Condvar,
    commits: AtomicU64,
}

struct GatedFile {
    inner: Arc<dyn StorageFile>,
    gate: Arc<SyncGate>,
}

impl GatedStorage {
    fn wrap(&self, file: Arc<dyn StorageFile>) -> Arc<dyn StorageFile> {
        Arc::new(GatedFile { inner: file, gate: self.gate.clone() })
    }
}

impl Storage for GatedStorage {
    fn create(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.wrap(self.inner.create(name)?))
    }
    fn open(&self, name: &str) -> io::Result<Arc<dyn StorageFile>> {
        Ok(self.wrap(self.inner.open(name)?))
    }
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn sync_dir(&self, site: SyncSite) -> io::Result<()> {
        self.inner.sync_dir(site)
    }
    fn lock(&self, name: &str) -> io::Result<Box<dyn StorageLock>> {
        self.inner.lock(name)
    }
    fn entropy(&self) -> io::Result<[u8; 16]> {
        self.inner.entropy()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
}

impl StorageFile for GatedFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read_at(offset, buffer)
    }
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn truncate(&self, length: u64) -> io::Result<()> {
        self.inner.truncate(length)
    }
    fn reserve(&self, length: u64) -> io::Result<()> {
        self.inner.reserve(length)
    }
    fn sync(&self, site: SyncSite) -> io::Result<()> {
        if site == SyncSite::COMMIT {
            self.gate.commits.fetch_add(1, Ordering::SeqCst);
            let mut open = self.gate.open.lock().unwrap();
            while !*open {
                open = self.gate.changed.wait(open).unwrap();
            }
        }
        self.inner.sync(site)
    }
}

/// Proves that threads that commit while a sync runs share the next one: 64 commits, two syncs.
#[test]
fn many_threads_share_one_sync() {
    let gate = Arc::new(SyncGate::default());
    let storage = GatedStorage { inner: PowerLoss::new(8).storage(), gate: gate.clone() };
    let (log, _) = Log::open(Arc::new(storage), LogConfig::default()).unwrap();
    log.append(1, b"first").unwrap();
    let appended = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| log.sync().unwrap());
        while gate.commits.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        for number in 0..63u64 {
            let (log, appended) = (&log, &appended);
            scope.spawn(move || {
                let at = log.append(2, &number.to_le_bytes()).unwrap();
                appended.fetch_add(1, Ordering::SeqCst);
                log.sync().unwrap();
                assert!(log.durable() > at);
            });
        }
        while appended.load(Ordering::SeqCst) < 63 {
            std::thread::yield_now();
        }
        *gate.open.lock().unwrap() = true;
        gate.changed.notify_all();
    });
    assert_eq!(log.sync_count(), 2);
}

/// Proves that a local directory has one holder at a time, and that records survive there too.
#[test]
fn a_local_directory_has_one_holder() {
    let dir = tempfile::tempdir().unwrap();
    let storage = Arc::new(LocalStorage::open(dir.path().join("data")).unwrap());
    let lock = storage.lock("LOCK").unwrap();
    let second = LocalStorage::open(dir.path().join("data")).unwrap();
    assert_eq!(second.lock("LOCK").err().unwrap().kind(), io::ErrorKind::WouldBlock);
    drop(lock);
    drop(second.lock("LOCK").unwrap());
    for round in 0..3u64 {
        let (log, recovery) = Log::open(storage.clone(), config()).unwrap();
        assert_eq!(recovery.count() as u64, round * 20);
        for number in 0..20u64 {
            log.append(1, &[number as u8; 500]).unwrap();
        }
        log.sync().unwrap();
    }
    assert!(storage.open("../escape").is_err() && storage.create(".hidden").is_err());
}
