//! Engines against the real server over the network of this machine.

use crate::common;

use common::site::{Site, key};
use common::{EditClosure, NOW, commit, create as make, modify, names, read, unlink, write};
use holdfast_client::admin::{Admin, CreateConfig, CreateError, create};
use holdfast_client::{Engine, FsError, StartError, View};
use holdfast_content::Handle;
use std::sync::Arc;
use std::time::Duration;

/// A site whose leases and abort time-out outlast every test.
fn site() -> Site {
    Site::new(|config| {
        config.abort_after = Duration::from_secs(3600);
        config.lease_term = Duration::from_secs(3600);
    })
}

fn team_of(engine: &Engine) -> Handle {
    engine.fetch().unwrap().entry(Handle::ROOT, b"team").unwrap().unwrap().handle
}

/// Proves: a superuser's key has one file system: it cannot create another, with its state or without.
#[test]
fn a_file_system_is_created_once() {
    let site = site();
    for state in ["state-1", "elsewhere"] {
        let config = CreateConfig { now_ns: NOW + 1, ..site.create_config(state) };
        assert!(matches!(create(config), Err(CreateError::Exists)));
    }
}

/// Proves: two engines create files in one group directory of a real server at once, and both find all of them; restarts
/// of the server and of the clients lose nothing.
#[test]
fn two_engines_one_server() {
    let mut site = site();
    let engines = [site.start(2).unwrap(), site.start(3).unwrap()];
    let directory = team_of(&engines[0]);
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            for thread in 0..3 {
                scope.spawn(move || {
                    for number in 0..20 {
                        let name = format!("{device}-{thread}-{number}");
                        modify(engine, make(directory, &name, name.as_bytes())).unwrap();
                    }
                });
            }
        }
    });
    for engine in &engines {
        engine.flush_commits().unwrap();
        assert_eq!(names(&engine.fetch().unwrap(), directory).len(), 120);
        assert!(engine.status().frozen.is_none());
    }
    // The server goes away and comes back while both work.
    std::thread::scope(|scope| {
        for (device, engine) in engines.iter().enumerate() {
            scope.spawn(move || {
                for number in 0..30 {
                    let name = format!("{device}-0-{}", number % 20);
                    if number < 20 {
                        modify(engine, write(directory, &name, b"rewritten")).unwrap();
                    } else {
                        modify(engine, unlink(directory, &name)).unwrap();
                    }
                    engine.flush_commits().unwrap();
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2 {
                std::thread::sleep(Duration::from_millis(100)); // The server may stop at any moment of their work.
                site.stop_server();
                site.start_server();
            }
        });
    });
    let expected = names(&engines[0].fetch().unwrap(), directory);
    assert_eq!(expected.len(), 100);
    let [a, b] = engines;
    drop((a, b));
    for seed in [2, 3] {
        let engine = site.start(seed).unwrap();
        let snapshot = engine.fetch().unwrap();
        assert_eq!(names(&snapshot, directory), expected);
        assert_eq!(read(&snapshot, directory, "0-0-15").unwrap(), b"rewritten");
    }
}

/// Proves: each reason why an engine cannot start has an error of its own.
#[test]
fn wrong_starts() {
    let site = site();
    let alice = site.start(2).unwrap();
    assert!(matches!(site.start(2), Err(StartError::InUse { .. })));
    assert!(matches!(site.start(9), Err(StartError::UnknownDevice { .. })));
    let mut config = site.config(2);
    config.state_dir = site.path("other");
    assert!(matches!(Engine::start(config), Err(StartError::StateMissing { .. })));
    let mut config = site.config(3);
    config.address.file_system = key(77).public().file_system_id();
    config.state_dir = site.path("wrong");
    assert!(matches!(Engine::start(config), Err(StartError::UnknownFileSystem | StartError::WrongServer(_))));
    let mut config = site.config(3);
    config.address.server.port = 1;
    config.deadline = Duration::from_millis(300);
    assert!(matches!(Engine::start(config), Err(StartError::Unreachable(_))));
    alice.stop();
    drop(alice);
    let mut config = site.config(3);
    config.state_dir = site.path("state-2");
    assert!(matches!(Engine::start(config), Err(StartError::StateForeign { .. })));
    site.start(2).unwrap();
}

/// Proves: a device that the superuser removed is refused from then on, and what it wrote stays; another device of the
/// same user goes on with its files.
#[test]
fn devices_come_and_go() {
    let site = site();
    let laptop = site.start(2).unwrap();
    let directory = team_of(&laptop);
    commit(&laptop, make(directory, "file", b"from the laptop"));
    let root = site.start(1).unwrap();
    let admin = Admin::new(&root).unwrap();
    admin.add_device("alice", "desktop", key(4).public()).unwrap();
    let desktop = site.start(4).unwrap();
    assert_eq!(desktop.me().1, laptop.me().1);
    modify(&desktop, write(directory, "file", b"from the desktop")).unwrap();
    assert_eq!(read(&laptop.fetch().unwrap(), directory, "file").unwrap(), b"from the desktop");
    admin.remove_device("alice", "laptop").unwrap();
    assert!(matches!(modify(&laptop, make(directory, "late", b"")), Err(FsError::Access(_))));
    modify(&desktop, make(directory, "later", b"")).unwrap();
    assert_eq!(names(&root.fetch().unwrap(), directory), ["file", "later"]);
    assert!(matches!(Admin::new(&desktop), Err(FsError::Access(_))));
    let members = admin.membership().unwrap();
    assert_eq!(members.devices.values().filter(|device| device.removed_at.is_some()).count(), 1);
}

/// Proves: an engine reads what it has a lease of without an operation. Before another device's change takes effect, the
/// lease is recalled; a lease of a whole group that saved little is replaced by one of the directory. A delegation is
/// given to a device that is alone; a mere fetch of another recalls it, and sees what the holder sends before it gives
/// it up; then it is given again.
#[test]
fn leases_and_delegations() {
    let site = site();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = team_of(&alice);
    let operations = |engine: &Engine| engine.status().operations;
    assert!(alice.leased(&[team]).is_none(), "it is asked for with the next operation");
    alice.fetch().unwrap();
    let before = operations(&alice);
    let (view, stamp) = alice.leased(&[team]).expect("granted");
    assert_eq!(names(&view, team), [""; 0]);
    assert!(alice.leased_for(stamp, &[team]).is_some());
    modify(&alice, create_file(team, "own")).unwrap();
    assert_eq!(names(&alice.leased(&[team]).expect("the lease stays").0, team), ["own"]);
    assert_eq!(operations(&alice), before + 1);

    modify(&bob, create_file(team, "other")).unwrap();
    // The server leases nothing that is pending.
    bob.flush_commits().unwrap();
    assert!(alice.leased(&[team]).is_none(), "it was recalled before bob's file was made");
    assert!(alice.leased_for(stamp, &[team]).is_none());
    assert_eq!(names(&alice.fetch().unwrap(), team), ["other", "own"]);
    if alice.leased(&[team]).is_none() {
        // The server refused the fetch its fast path, and with it the request for a lease.
        alice.fetch().unwrap();
    }
    assert_eq!(names(&alice.leased(&[team]).expect("the directory is leased").0, team), ["other", "own"]);
    let elsewhere = Handle { number: u64::MAX >> 8, ..team };
    assert!(alice.leased(&[elsewhere]).is_none(), "and only that");
    assert_eq!(alice.status().recalls, 1);
    assert!(alice.status().leased_reads >= 3);

    bob.stop();
    let bob = site.start(3).unwrap();
    let (engine, sent) = (Arc::downgrade(&alice), Arc::new(std::sync::atomic::AtomicBool::new(false)));
    let has_sent = sent.clone();
    alice.on_recall(Box::new(move |dropped| {
        if let (true, Some(engine)) = (dropped.delegation, engine.upgrade()) {
            assert!(!engine.delegation());
            commit(&engine, create_file(team, "held back"));
            has_sent.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }));
    alice.want_exclusive(true);
    assert!(!alice.delegation());
    holdfast_testing::eventually("a delegation is given", || {
        alice.fetch().unwrap();
        alice.delegation()
    });
    let seen = bob.fetch().unwrap();
    assert!(sent.load(std::sync::atomic::Ordering::SeqCst));
    assert!(names(&seen, team).contains(&"held back".to_owned()));
    holdfast_testing::eventually("it is given again, as the other has looked", || {
        alice.fetch().unwrap();
        alice.delegation()
    });
}

fn create_file(directory: Handle, name: &str) -> impl EditClosure + use<> {
    make(directory, name, name.as_bytes())
}

/// Proves: an engine that stops gives up its leases, so that others' changes need not wait for their term, which is longer
/// than the deadline of an operation.
#[test]
fn leases_end_with_their_engine() {
    let site = site();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = team_of(&alice);
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    alice.stop();
    commit(&bob, create_file(team, "other"));
}

/// Proves: after the server was killed, changes wait until the holders of leases have heard of it, not for the whole term.
#[test]
fn leases_over_restarts() {
    let mut site = site();
    let (alice, bob) = (site.start(2).unwrap(), site.start(3).unwrap());
    let team = team_of(&alice);
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    let note = site.path("server/leases");
    let text = std::fs::read_to_string(&note).unwrap();
    assert_eq!(text.lines().count(), 3, "{text}");
    // A server that ends in order recalls all leases, and so removes its note of them.
    site.stop_server();
    site.start_server();
    assert!(!note.exists());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_none());
    alice.fetch().unwrap();
    assert!(alice.leased(&[team]).is_some());
    // A killed server leaves the note behind: here the test puts it back.
    let text = std::fs::read_to_string(&note).unwrap();
    site.stop_server();
    std::fs::write(&note, &text).unwrap();
    site.start_server();
    // Alice's engine learns with its next operation that its leases are gone.
    alice.fetch().unwrap();
    modify(&bob, create_file(team, "after")).unwrap();
    assert!(alice.leased(&[team]).is_none());
    assert_eq!(names(&alice.fetch().unwrap(), team), ["after"]);
}
