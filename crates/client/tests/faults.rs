//! Engines under loss, crashes and malice.

use crate::common;

use common::*;
use holdfast_client::admin::{Admin, Home};
use holdfast_client::state::StateLog;
use holdfast_client::store::DiskCache;
use holdfast_client::{Changes, Engine, FrozenReport, FsError, StartError, View};
use holdfast_content::{BlockKind, Content, Entry, Handle, Inode, InodeKind, file};
use holdfast_crypto::{KeyHolder, PublicKey, SignError, Signature, SigningKey};
use holdfast_log::SyncSite;
use holdfast_log::simulated::Crash;
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::signer::Signer;
use holdfast_testing::{eventually, eventually_some, noise};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const ABORT_AFTER: Duration = Duration::from_millis(300);

/// Why a fetch finds the engine frozen, if it does.
fn frozen(engine: &Engine) -> Option<Arc<FrozenReport>> {
    match engine.fetch() {
        Err(FsError::Frozen(report)) => Some(report),
        _ => None,
    }
}

fn is_commit(request: &Request) -> bool {
    matches!(request, Request::Commit { .. })
}

/// Loses every COMMIT of a machine, so that its operations stay pending until the faults are cleared.
fn hold_commits(machine: &Machine) {
    machine.link.set_faults(|request| if is_commit(request) { Fault::LoseRequest } else { Fault::None });
}

/// Engines of two users in a directory with a committed file `file` (content `old`) of the first. The first's next
/// operation takes the slow path, because the second has committed `disturbance` since.
fn disturbed_pair(abort_after: Duration) -> (World, Handle, Arc<Engine>, Arc<Engine>) {
    let world = World::new(2, abort_after);
    let directory = world.group_dir;
    let (a, b) = (world.start(0), world.start(1));
    commit(&a, create(directory, "file", b"old"));
    commit(&b, create(directory, "disturbance", b""));
    (world, directory, a, b)
}

/// Proves: when requests and answers get lost at random, every create still takes effect exactly once, and no client
/// raises an alarm.
#[test]
fn lost_messages() {
    for seed in 1..6u64 {
        let world = World::new(2, NEVER);
        let engines = [world.start(0), world.start(1)];
        for (machine, salt) in world.users.iter().zip([1u64, 2]) {
            let mut random = seed * 1000 + salt;
            machine.link.set_faults(move |_| {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                match random >> 60 {
                    0 | 1 => Fault::LoseRequest,
                    2 | 3 => Fault::LoseAnswer,
                    _ => Fault::None,
                }
            });
        }
        let directory = world.group_dir;
        std::thread::scope(|scope| {
            for (device, engine) in engines.iter().enumerate() {
                for thread in 0..2 {
                    scope.spawn(move || {
                        for number in 0..8 {
                            let name = format!("{device}-{thread}-{number}");
                            commit(engine, create(directory, &name, b"x"));
                        }
                    });
                }
            }
        });
        for machine in &world.users {
            machine.link.clear_faults();
        }
        for engine in &engines {
            assert_eq!(names(&engine.fetch().unwrap(), directory).len(), 32);
        }
    }
}

/// Proves: a device that dies between UPDATE and COMMIT holds others up no longer than the abort time-out, its half
/// operation has no effect, and no alarm is raised when it comes back.
#[test]
fn death_between_update_and_commit() {
    let (world, directory, a, b) = disturbed_pair(ABORT_AFTER);
    hold_commits(&world.users[0]);
    modify(&a, create(directory, "half", b"x")).unwrap();
    // A's caller has its answer; A dies before its COMMIT gets through.
    world.users[0].link.set_down(true);
    stop(a);
    // Other names are not held up at all; the pending name is, until the time-out.
    modify(&b, create(directory, "other", b"y")).unwrap();
    assert_eq!(names(&b.fetch().unwrap(), directory), ["disturbance", "file", "other"]);
    commit(&b, create(directory, "half", b"of b"));
    world.users[0].link.set_down(false);
    world.users[0].link.clear_faults();
    let a = world.start(0);
    assert_eq!(read(&a.fetch().unwrap(), directory, "half").unwrap(), b"of b");
    modify(&a, create(directory, "after", b"x")).unwrap();
    assert_eq!(read(&b.fetch().unwrap(), directory, "after").unwrap(), b"x");
}

/// Proves: an operation whose caller has its answer, but whose COMMIT comes too late, is made again by the engine
/// itself; `fsync` waits for that.
#[test]
fn late_commit_is_made_again() {
    let (world, directory, a, b) = disturbed_pair(NEVER);
    hold_commits(&world.users[0]);
    modify(&a, create(directory, "late", b"x")).unwrap();
    world.server.age(NEVER);
    modify(&b, create(directory, "meanwhile", b"y")).unwrap();
    assert!(matches!(read(&b.fetch().unwrap(), directory, "late"), Err(FsError::NotFound)));
    world.users[0].link.clear_faults();
    a.flush_commits().unwrap();
    assert_eq!(read(&b.fetch().unwrap(), directory, "late").unwrap(), b"x");
    assert!(a.status().frozen.is_none());
}

/// Proves: if an operation cannot be made again, because another device took the name, `fsync` reports it, once.
#[test]
fn lost_write_is_reported_once() {
    let (world, directory, a, b) = disturbed_pair(NEVER);
    hold_commits(&world.users[0]);
    let snapshot = modify(&a, create(directory, "contested", b"a")).unwrap();
    world.server.age(NEVER);
    commit(&b, create(directory, "contested", b"b"));
    world.users[0].link.clear_faults();
    assert!(matches!(a.flush_commits(), Err(FsError::Exists)));
    assert!(matches!(snapshot.committed(), Err(FsError::Exists)));
    a.flush_commits().unwrap();
    assert_eq!(read(&a.fetch().unwrap(), directory, "contested").unwrap(), b"b");
}

/// Proves: who reads a file of which another device has a pending change waits for that change and then sees it; other
/// files of the directory are read without waiting.
#[test]
fn read_after_write_waits() {
    let (world, directory, a, b) = disturbed_pair(NEVER);
    let held = Arc::new(Mutex::new(true));
    let holding = held.clone();
    world.users[0].link.set_faults(move |request| {
        if is_commit(request) && *holding.lock() { Fault::LoseRequest } else { Fault::None }
    });
    let waits = Arc::new(AtomicBool::new(false));
    let waiting = waits.clone();
    world.users[1].link.set_faults(move |request| {
        waiting.fetch_or(matches!(request, Request::FetchPending { .. }), Relaxed);
        Fault::None
    });
    modify(&a, write(directory, "file", b"new")).unwrap();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(&b.fetch().unwrap(), directory, "file").unwrap());
        let other_reader = scope.spawn(|| read(&b.fetch().unwrap(), directory, "disturbance").unwrap());
        assert_eq!(other_reader.join().unwrap(), b"");
        eventually("the reader waits", || waits.load(Relaxed));
        assert!(!reader.is_finished());
        *held.lock() = false;
        assert_eq!(reader.join().unwrap(), b"new");
    });
}

/// Proves: a directory can be listed while another device never stops creating files in it: a reader waits only for
/// what was pending in its own view.
#[test]
fn busy_directory_can_be_read() {
    let world = World::new(2, NEVER);
    let directory = world.group_dir;
    let (a, b) = (world.start(0), world.start(1));
    let stop = AtomicBool::new(false);
    // COMMITs are slow, so that something is pending most of the time.
    world.users[0].link.set_faults(|request| {
        if is_commit(request) {
            std::thread::sleep(Duration::from_millis(20));
        }
        Fault::None
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Relaxed) {
                    break;
                }
                modify(&a, create(directory, &format!("a{number}"), b"x")).unwrap();
            }
        });
        let mut seen = 0;
        for number in 0..30 {
            modify(&b, create(directory, &format!("b{number}"), b"y")).unwrap();
            let listed = names(&b.fetch().unwrap(), directory).len();
            assert!(listed > number && listed >= seen, "{listed} after {seen}");
            seen = listed;
            assert_eq!(b.fetch().unwrap().inode(directory).unwrap().kind, InodeKind::Directory);
        }
        stop.store(true, Relaxed);
    });
    assert!(a.status().frozen.is_none() && b.status().frozen.is_none());
    assert_eq!(names(&a.fetch().unwrap(), directory), names(&b.fetch().unwrap(), directory));
}

/// Proves: a server that shows a reader an operation as committed, and later as aborted, is caught by that reader's next
/// operation (trace T9, end to end).
#[test]
fn committed_to_a_reader_and_dead_after() {
    let (world, directory, a, b) = disturbed_pair(NEVER);
    let held = Arc::new(Mutex::new(None));
    let holding = held.clone();
    world.users[0].link.set_faults(move |request| match request {
        Request::Commit { structure, .. } => {
            *holding.lock() = Some(structure.clone());
            Fault::LoseRequest
        }
        _ => Fault::None,
    });
    modify(&a, write(directory, "file", b"new")).unwrap();
    let structure = eventually_some("the COMMIT is sent", || held.lock().clone());
    // On a fork that never commits it, B is given A's COMMIT. The fork needs the tables of A's operation for that.
    let before = world.server.fork();
    world.users[0].link.clear_faults();
    a.flush_commits().unwrap();
    let blocks = world.server.with_blocks(|blocks| blocks.clone());
    before.with_blocks(|theirs| *theirs = blocks);
    let lie = structure.clone();
    world.users[1].link.redirect(&before);
    world.users[1].link.forge(move |request| match request {
        Request::FetchPending { .. } => Some(Response::Structure(Some(Box::new(lie.clone())))),
        _ => None,
    });
    let snapshot = b.fetch().unwrap();
    assert_eq!(read(&snapshot, directory, "file").unwrap(), b"new");
    // The fork's clock starts at zero.
    before.age(2 * NEVER);
    eventually_some("it is frozen", || frozen(&b));
}

/// Proves: while the server is away, calls fail as "unreachable" once their deadline has passed, never as anything else;
/// when it is back, work goes on.
#[test]
fn unreachable_server() {
    let world = World::new(1, ABORT_AFTER);
    let a = world.users[0].start(&world.superuser, Duration::from_millis(300)).unwrap();
    world.users[0].link.set_down(true);
    assert!(matches!(a.fetch(), Err(FsError::Unreachable(_))));
    assert!(matches!(modify(&a, create(world.group_dir, "x", b"")), Err(FsError::Unreachable(_))));
    assert!(!a.status().connected);
    world.users[0].link.set_down(false);
    eventually("it is reached again", || a.fetch().is_ok());
    let mut names = (0..).map(|number| format!("y{number}"));
    eventually("work goes on", || modify(&a, create(world.group_dir, &names.next().unwrap(), b"")).is_ok());
}

/// Proves: an operation waits for a server that is away, within its deadline, and takes effect when the server is back.
#[test]
fn outage_is_ridden_out() {
    let world = World::new(1, ABORT_AFTER);
    let a = world.start(0);
    let directory = world.group_dir;
    world.users[0].link.set_down(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| modify(&a, create(directory, "x", b"1")).map(drop));
        eventually("it is tried again", || world.users[0].link.refused() > 2);
        assert!(!writer.is_finished());
        world.server.restart();
        world.users[0].link.set_down(false);
        writer.join().unwrap().unwrap();
    });
    assert_eq!(read(&a.fetch().unwrap(), directory, "x").unwrap(), b"1");
}

/// A key whose holder is, at pseudo-random calls, away or refuses to sign.
#[derive(Debug)]
struct UnreliableKey {
    key: SigningKey,
    asked: AtomicU64,
}

impl KeyHolder for UnreliableKey {
    fn public(&self) -> PublicKey {
        self.key.public()
    }

    fn sign_message(&self, message: &[u8]) -> Result<Signature, SignError> {
        let asked = self.asked.fetch_add(1, Relaxed);
        match asked.wrapping_mul(6364136223846793005).wrapping_add(self.key.public().0[0].into()) >> 60 {
            0..4 => Err(SignError::Away("out for lunch".into())),
            4 | 5 => Err(SignError::Refused("not now".into())),
            _ => KeyHolder::sign_message(&self.key, message),
        }
    }
}

/// Proves: a key holder that is away or refuses at any moment, on either path, costs time or an error at once; what
/// succeeded is not lost, what was refused does not happen, and no client raises an alarm.
#[test]
fn an_unreliable_key() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let engines = [0, 1].map(|user: usize| {
        let machine = &world.users[user];
        let mut config = machine.config(&world.superuser, DEADLINE);
        config.key = Arc::new(UnreliableKey { key: machine.key.clone(), asked: AtomicU64::new(0) });
        loop {
            match machine.start_with(config.clone()) {
                Ok(engine) => break engine,
                Err(StartError::Key(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    });
    let made = Mutex::new(Vec::new());
    let refused = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            let (made, refused) = (&made, &refused);
            scope.spawn(move || {
                for number in 0..24 {
                    let name = format!("{device}-{number}");
                    match modify(engine, create(directory, &name, b"x")) {
                        Ok(_) => made.lock().push(name),
                        Err(FsError::Key(_)) => refused.lock().push(name),
                        Err(other) => panic!("{name}: {other}"),
                    }
                }
                engine.flush_commits().unwrap();
            });
        }
    });
    let snapshot = loop {
        match engines[0].fetch() {
            Ok(snapshot) => break snapshot,
            Err(FsError::Key(_)) => {}
            Err(other) => panic!("{other}"),
        }
    };
    let (made, refused) = (made.into_inner(), refused.into_inner());
    assert!(!made.is_empty() && !refused.is_empty(), "{} made, {} refused", made.len(), refused.len());
    for name in &made {
        assert_eq!(read(&snapshot, directory, name).unwrap(), b"x", "{name}");
    }
    for name in &refused {
        assert!(snapshot.entry(directory, name.as_bytes()).unwrap().is_none(), "{name}");
    }
}

/// Proves: a server that shows yesterday's copy of the order freezes the engine: every call fails, evidence is kept, the
/// notice hook is called once, and the engine is still frozen after a restart.
#[test]
fn rollback_freezes() {
    let world = World::new(2, ABORT_AFTER);
    let a = world.start(0);
    commit(&a, create(world.group_dir, "old", b""));
    let yesterday = world.server.copy_order();
    commit(&a, create(world.group_dir, "new", b""));
    let notices = Arc::new(Mutex::new(0));
    let count = notices.clone();
    a.on_notice(Box::new(move |_| *count.lock() += 1));
    world.server.roll_back(yesterday);
    let report = eventually_some("it is frozen", || frozen(&a));
    assert!(report.to_string().contains("salvage"), "{report}");
    eventually("the hook is called", || *notices.lock() > 0);
    assert!(matches!(modify(&a, create(world.group_dir, "x", b"")), Err(FsError::Frozen(_))));
    assert!(matches!(a.latest().inode(Handle::ROOT), Err(FsError::Frozen(_))));
    assert!(matches!(a.flush_commits(), Err(FsError::Frozen(_)) | Ok(())));
    let evidence = report.evidence.clone().expect("evidence is kept");
    let stored = holdfast_client::evidence::read(&evidence).unwrap();
    // The stored evidence is all that others need to check it.
    let statement =
        holdfast_client::statement::Statement::of_evidence(&stored).expect("it is about the order");
    let testimony = holdfast_client::statement::LabeledStatement {
        label: "stored".to_owned(),
        made_ns: stored.noticed_ns,
        statement,
        met: None,
    };
    let limits = holdfast_client::statement::Limits { paths: 100, differences: 10 };
    let verdict = holdfast_client::statement::verify(&[testimony], limits).expect("usable");
    assert_eq!(verdict.statements[0].refused_rightly, Some(true), "{verdict:?}");
    assert!(std::fs::read_to_string(evidence.with_extension("txt")).unwrap().contains("File system"));
    a.stop();
    assert_eq!(*notices.lock(), 1);
    drop(a);
    match world.users[0].start(&world.superuser, DEADLINE) {
        Err(StartError::Frozen(again)) => assert_eq!(again.what, report.what),
        other => panic!("{:?}", other.err()),
    };
}

/// Proves: the server's receipt is durable before `flush_commits` returns, so the server cannot deny the operation even
/// if this machine loses power right after. Without the receipt the operation's outcome would count as unknown.
#[test]
fn a_power_loss_after_a_sync_hides_no_lie() {
    for _ in 0..5 {
        let world = World::new(1, ABORT_AFTER);
        let a = world.start(0);
        commit(&a, create(world.group_dir, "new", b""));
        let last = a.status().last_operation;
        let machine = &world.users[0];
        machine.disk.crash_after(0);
        let down = machine.disk.storage().create("the change that the power loss hits");
        assert!(down.is_err());
        stop(a);
        machine.disk.restart(Crash::PowerLoss);
        let file_system = world.superuser.file_system_id();
        let opened = StateLog::open(machine.disk.storage(), file_system, machine.key.public());
        let (_, Some(state)) = opened.unwrap() else { panic!("no state") };
        let signer = Signer::restore(&state.signer).unwrap();
        assert_eq!((signer.is_idle(), signer.floor().last()), (true, last));
    }
}

/// Proves: two users on two sides of a fork work on, and the first who is shown the other side's order freezes.
#[test]
fn fork_is_exposed_when_crossed() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let (a, b) = (world.start(0), world.start(1));
    commit(&a, create(directory, "common", b""));
    b.fetch().unwrap();
    let other = world.server.fork();
    world.users[1].link.redirect(&other);
    modify(&a, create(directory, "a's", b"")).unwrap();
    modify(&b, create(directory, "b's", b"")).unwrap();
    assert_eq!(names(&a.fetch().unwrap(), directory), ["a's", "common"]);
    assert_eq!(names(&b.fetch().unwrap(), directory), ["b's", "common"]);
    world.users[1].link.redirect(&world.server);
    eventually_some("it is frozen", || frozen(&b));
}

/// An edit that makes a file of these extents.
fn create_large(
    directory: Handle,
    name: &str,
    extents: holdfast_content::ExtentMap,
    size: u64,
) -> impl EditClosure + use<> {
    let name = name.as_bytes().to_vec();
    move |changes| {
        let handle = changes.allocate(directory.principal)?;
        let mut inode = Inode::new(InodeKind::File, 0o644, changes.me(), NOW);
        inode.size = size;
        inode.content = Content::Extents(extents.clone());
        changes.set_inode(handle, inode)?;
        changes.set_entry(directory, &name, Some(Entry { handle, kind: InodeKind::File }), NOW)
    }
}

fn upload(engine: &Engine, directory: Handle, name: &str, byte: u8, size: usize) {
    let mut upload = engine.store().upload();
    let bytes = noise(byte.into(), size);
    let (extents, length) =
        file::from_reader(&mut upload, &Default::default(), &bytes[..]).expect("memory can be read");
    let held = upload.finish().unwrap();
    commit(engine, create_large(directory, name, extents, length));
    drop(held);
}

fn read_large(engine: &Engine, directory: Handle, name: &str) -> Result<Vec<u8>, FsError> {
    let snapshot = engine.fetch()?;
    let entry = snapshot.entry(directory, name.as_bytes())?.ok_or(FsError::NotFound)?;
    let inode = snapshot.inode(entry.handle)?;
    let ihash = snapshot.ihash(entry.handle)?;
    file::read(engine.store(), &inode, 0, inode.size as usize)
        .map_err(|error| engine.judge(entry.handle, format!("/team/{name}"), ihash, &error))
}

/// Proves: altered data makes reads of its own file fail, with evidence, and of no other; a missing block of a file that
/// still exists is an integrity failure too; one of a file that was deleted meanwhile is only stale; no engine freezes.
#[test]
fn bad_data_fails_one_file() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let (a, b) = (world.start(0), world.start(1));
    for (number, name) in ["altered", "missing", "deleted", "good"].into_iter().enumerate() {
        upload(&a, directory, name, number as u8, 3 << 20);
    }
    let chunks_of = |name: &str| {
        let snapshot = b.fetch().unwrap();
        let entry = snapshot.entry(directory, name.as_bytes()).unwrap().unwrap();
        let inode = snapshot.inode(entry.handle).unwrap();
        let (_, references) = inode.encode().unwrap();
        (entry.handle, snapshot.ihash(entry.handle).unwrap(), inode, references)
    };
    let (handle, ihash, deleted, _) = chunks_of("deleted");
    let reachable = |blocks: &std::collections::HashMap<_, holdfast_content::StoredBlock>, roots: &[_]| {
        let mut stack = roots.to_vec();
        let mut chunks = Vec::new();
        while let Some(address) = stack.pop() {
            let block = &blocks[&address];
            if block.kind == BlockKind::Chunk {
                chunks.push(address);
            }
            stack.extend(&block.references);
        }
        chunks
    };
    let altered = chunks_of("altered").3;
    let missing = chunks_of("missing").3;
    let deleted_references = chunks_of("deleted").3;
    world.server.with_blocks(|blocks| {
        let chunk = reachable(blocks, &altered)[1];
        blocks.get_mut(&chunk).unwrap().body[7] ^= 1;
        let chunk = reachable(blocks, &missing)[0];
        blocks.remove(&chunk);
        let chunk = reachable(blocks, &deleted_references)[0];
        blocks.remove(&chunk);
    });
    match read_large(&b, directory, "altered") {
        Err(FsError::Integrity(report)) => {
            assert!(report.evidence.is_some(), "{report}");
            assert!(
                report.to_string().contains("altered") && report.to_string().contains("/team/altered"),
                "{report}"
            );
        }
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
    match read_large(&b, directory, "missing") {
        Err(FsError::Integrity(report)) => assert!(report.missing.is_some() && report.evidence.is_some()),
        other => panic!("{:?}", other.map(|bytes| bytes.len())),
    }
    modify(&a, unlink(directory, "deleted")).unwrap();
    let error = file::read(b.store(), &deleted, 0, deleted.size as usize).unwrap_err();
    assert!(matches!(b.judge(handle, "/team/deleted".into(), ihash, &error), FsError::Stale));
    assert_eq!(read_large(&b, directory, "good").unwrap().len(), 3 << 20);
    assert!(b.status().frozen.is_none());
    // A still reads the file from its cache.
    assert_eq!(read_large(&a, directory, "missing").unwrap().len(), 3 << 20);
}

/// Proves: if the cache on disk is corrupt, its blocks are fetched again: no wrong byte is read, and no alarm is raised.
#[test]
fn corrupt_cache_is_fetched_again() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let a = world.start(0);
    upload(&a, directory, "file", 7, 2 << 20);
    let cache = tempfile::tempdir().unwrap();
    let start = || {
        let machine = &world.users[1];
        let mut config = machine.config(&world.superuser, DEADLINE);
        config.cache_dir = Some(cache.path().to_owned());
        machine.start_with(config).unwrap()
    };
    let b = start();
    let bytes = read_large(&b, directory, "file").unwrap();
    stop(b);
    let b = start();
    assert_eq!(read_large(&b, directory, "file").unwrap(), bytes);
    assert!(b.status().store.disk_hits > 0, "{:?}", b.status().store);
    stop(b);
    let segment = cache.path().join("0000000000000000.segment");
    let mut content = std::fs::read(&segment).unwrap();
    for offset in (1000..content.len()).step_by(5000) {
        content[offset] ^= 0x10;
    }
    std::fs::write(&segment, content).unwrap();
    let b = start();
    assert_eq!(read_large(&b, directory, "file").unwrap(), bytes);
    assert!(b.status().frozen.is_none());
    drop(DiskCache::open(cache.path(), 1 << 20).unwrap());
}

/// Proves: a device that loses power at any write of its state comes back without an alarm, everything it committed is
/// there, and nothing is there that it never tried. Both on the fast path and where another device gets in between.
#[test]
fn crash_after_every_write_of_the_state() {
    for is_disturbed in [false, true] {
        for k in 1..24 {
            let world = World::new(2, Duration::from_millis(30));
            let directory = world.group_dir;
            let b = world.start(1);
            let machine = &world.users[0];
            let mut committed = Vec::new();
            let mut tried = Vec::new();
            for life in 0..3u64 {
                machine.disk.crash_after(k * (life + 1));
                if let Ok(a) = machine.start(&world.superuser, DEADLINE) {
                    for number in 0..6 {
                        if is_disturbed {
                            modify(&b, create(directory, &format!("b-{life}-{number}"), b"")).unwrap();
                        }
                        let name = format!("a-{life}-{number}");
                        tried.push(name.clone());
                        if modify(&a, create(directory, &name, b"")).is_err() {
                            break;
                        }
                        if a.flush_commits().is_err() {
                            break;
                        }
                        committed.push(name);
                    }
                    assert!(a.status().frozen.is_none(), "{:?}", a.status().frozen);
                    a.stop();
                }
                machine.disk.restart(Crash::PowerLoss);
            }
            let a = world.start(0);
            let found = names(&a.fetch().unwrap(), directory);
            for name in &committed {
                assert!(found.contains(name), "k={k}: {name} was committed and is gone");
            }
            for name in found.iter().filter(|name| name.starts_with("a-")) {
                assert!(tried.contains(name), "k={k}: {name} came from nowhere");
            }
            assert_eq!(names(&b.fetch().unwrap(), directory), found);
        }
    }
}

/// Proves: the fsync before sending is needed: without it some crash makes a device reuse a number or fall behind the
/// server, and it refuses to start.
#[test]
fn the_fsync_before_sending_is_needed() {
    let noticed = (1..40).any(|k| {
        let world = World::new(1, Duration::from_millis(30));
        let machine = &world.users[0];
        machine.disk.disable(Some(SyncSite::COMMIT));
        let a = machine.start(&world.superuser, DEADLINE).unwrap();
        machine.disk.crash_after(k);
        for number in 0..20 {
            if modify(&a, create(world.group_dir, &format!("{number}"), b"")).is_err() {
                break;
            }
        }
        stop(a);
        machine.disk.restart(Crash::PowerLoss);
        machine.disk.disable(None);
        machine.start(&world.superuser, DEADLINE).is_err()
    });
    assert!(noticed);
}

/// Proves: when a member leaves a group, the group's files that this member's table has move to device 0 with their
/// content; the former member can write them no more, and the others go on.
#[test]
fn removed_member_loses_hold() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let (a, b) = (world.start(0), world.start(1));
    for number in 0..30 {
        let name = format!("a{number}");
        modify(&a, create(directory, &name, name.as_bytes())).unwrap();
    }
    modify(&b, create(directory, "b", b"b")).unwrap();
    commit(&a, write(directory, "b", b"by a"));
    b.flush_commits().unwrap();
    let root = world.root.start(&world.superuser, DEADLINE).unwrap();
    let admin = Admin::new(&root).unwrap();
    // 30 files of its own and `b`, which it wrote last. B wrote the directory last.
    assert_eq!(admin.remove_member("team", "user0").unwrap().adopted, 31);
    assert!(matches!(admin.remove_member("team", "user0"), Err(FsError::NotFound)));
    let snapshot = b.fetch().unwrap();
    for number in 0..30 {
        let name = format!("a{number}");
        assert_eq!(read(&snapshot, directory, &name).unwrap(), name.as_bytes());
    }
    assert_eq!(read(&snapshot, directory, "b").unwrap(), b"by a");
    assert!(matches!(modify(&a, create(directory, "more", b"")), Err(FsError::Access(_))));
    assert!(matches!(modify(&a, write(directory, "b", b"again")), Err(FsError::Access(_))));
    modify(&b, create(directory, "more", b"b")).unwrap();
    assert_eq!(read(&a.fetch().unwrap(), directory, "more").unwrap(), b"b");
    admin.remove_user("user0").unwrap();
    assert!(matches!(a.fetch(), Err(FsError::Access(_))));
    assert_eq!(names(&b.fetch().unwrap(), directory).len(), 32);
    for engine in [&b, &root] {
        assert!(engine.status().frozen.is_none());
    }
}

/// Proves: a user who is in a group through an inner group writes as its members do. When the inner group leaves, or a
/// group in between is removed, what this user holds of the outer group is taken over, and the user can write it no more.
#[test]
fn members_by_an_inner_group_lose_hold_with_it() {
    let world = World::new(2, ABORT_AFTER);
    let root = world.root.start(&world.superuser, DEADLINE).unwrap();
    let admin = Admin::new(&root).unwrap();
    admin.add_group("inner", &["user0"], Home::None, NOW).unwrap();
    admin.add_group("middle", &["@inner"], Home::None, NOW).unwrap();
    admin.add_group("outer", &["@middle", "user1"], Home::Make, NOW).unwrap();
    let (a, b) = (world.start(0), world.start(1));
    let directory = b.fetch().unwrap().entry(Handle::ROOT, b"outer").unwrap().unwrap().handle;
    for change in ["inner", "middle"] {
        let name = |number: usize| format!("{change}{number}");
        for number in 0..5 {
            modify(&a, create(directory, &name(number), b"by a")).unwrap();
        }
        a.flush_commits().unwrap();
        let departure = match change {
            "inner" => admin.remove_member("middle", "@inner").unwrap(),
            _ => admin.remove_group("middle").unwrap(),
        };
        // The five files and the directory.
        assert_eq!(departure.adopted, 6, "{change}");
        let mut left: Vec<&str> = departure.left.iter().map(|(group, _)| group.as_str()).collect();
        left.sort_unstable();
        assert_eq!(left, if change == "inner" { vec!["middle", "outer"] } else { vec!["outer"] });
        assert!(departure.left.iter().all(|(_, users)| users == &["user0"]));
        assert!(matches!(modify(&a, create(directory, "more", b"")), Err(FsError::Access(_))));
        let snapshot = b.fetch().unwrap();
        for number in 0..5 {
            assert_eq!(read(&snapshot, directory, &name(number)).unwrap(), b"by a");
        }
        modify(&b, create(directory, change, b"b")).unwrap();
        if change == "inner" {
            admin.add_member("middle", "@inner").unwrap();
            assert!(matches!(admin.add_member("middle", "@inner"), Err(FsError::Exists)));
        }
    }
    let circle = admin.add_member("inner", "@outer").and_then(|()| admin.add_member("outer", "@inner"));
    assert!(matches!(circle, Err(FsError::Invalid(why)) if why.contains("circle")));
    for engine in [&a, &b, &root] {
        assert!(engine.status().frozen.is_none());
    }
}

/// Proves: an edit of a directory whose blocks are missing fails alone: edits of other directories that share its
/// operation take effect, on the fast path and on the slow one.
#[test]
fn bad_directory_spoils_nothing_else() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let a = world.start(0);
    for number in 0..200 {
        modify(&a, create(directory, &format!("{number}"), b"")).unwrap();
    }
    a.flush_commits().unwrap();
    let b = world.start(1);
    let home = b.fetch().unwrap().entry(Handle::ROOT, b"user1").unwrap().unwrap().handle;
    world.server.with_blocks(|blocks| blocks.retain(|_, block| block.kind != BlockKind::MapLeaf));
    for disturbed in [false, true] {
        if disturbed {
            // A has its blocks in its cache. What it commits sends B's next operation the slow path.
            commit(&a, create(directory, "more", b""));
        }
        std::thread::scope(|scope| {
            let bad = scope.spawn(|| modify(&b, create(directory, &format!("1x{disturbed}"), b"")).map(drop));
            let good: Vec<_> = (0..4)
                .map(|number| {
                    let name = format!("{disturbed}-{number}");
                    let b = &b;
                    scope.spawn(move || modify(b, create(home, &name, b"fine")).map(drop))
                })
                .collect();
            match bad.join().unwrap() {
                Err(FsError::Integrity(report)) => assert!(report.missing.is_some(), "{report}"),
                other => panic!("{other:?}"),
            }
            for good in good {
                good.join().unwrap().unwrap();
            }
        });
    }
    assert_eq!(names(&b.fetch().unwrap(), home).len(), 8);
    assert!(b.status().frozen.is_none());
}

/// Proves: an edit that is too large for one operation is refused, and the engine goes on.
#[test]
fn too_large_an_edit() {
    let world = World::new(1, ABORT_AFTER);
    let directory = world.group_dir;
    let a = world.start(0);
    let edit = move |changes: &mut dyn Changes| {
        for number in 0..5000 {
            let entry = Entry { handle: Handle { number: number + 1, ..directory }, kind: InodeKind::File };
            changes.set_entry(directory, format!("{number}").as_bytes(), Some(entry), NOW)?;
        }
        Ok(())
    };
    assert!(matches!(modify(&a, edit), Err(FsError::TooLarge)));
    modify(&a, create(directory, "small", b"")).unwrap();
    assert_eq!(names(&a.fetch().unwrap(), directory), ["small"]);
}

/// Proves: inode numbers of an operation that was under way when the engine froze are not given out again, once the alarm
/// is acknowledged and the server shows the true order again.
#[test]
fn acknowledged_alarm_reuses_no_number() {
    let world = World::new(2, ABORT_AFTER);
    let directory = world.group_dir;
    let a = world.start(0);
    commit(&a, create(directory, "first", b"1"));
    // The server accepts the next operation, and its receipt names another number.
    world.users[0].link.tamper(|response| {
        if let Response::Committed(receipt) | Response::LeasedCommitted(receipt, _) = response {
            receipt.value.number += 1;
        }
    });
    assert!(matches!(modify(&a, create(directory, "second", b"2")), Err(FsError::Frozen(_))));
    stop(a);
    world.users[0].link.tamper(|_| {});
    let machine = &world.users[0];
    let mut config = machine.config(&world.superuser, DEADLINE);
    config.acknowledge_alarm = true;
    let a = machine.start_with(config).unwrap();
    modify(&a, create(directory, "third", b"3")).unwrap();
    let snapshot = a.fetch().unwrap();
    for (name, bytes) in [("first", b"1"), ("second", b"2"), ("third", b"3")] {
        assert_eq!(read(&snapshot, directory, name).unwrap(), bytes);
    }
}
