//! Past states on a server whose disk loses power, under a clock of the test's own.

use crate::common;

use common::core::{TestClock, settings};
use common::{Author, committed, creation, file_system, key, membership, superuser, view};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, PublicKey};
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::check::check_look;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::history::{PastReply, Point, Retention, Snapshot, SnapshotEnd, verify_past_state};
use holdfast_protocol::message::{Request, Response, ServerError, ViewReply};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{LogHead, View};
use holdfast_server::{Caller, CoreSettings, ServerCore};
use holdfast_store::StoreConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct World {
    disk: PowerLoss,
    clock: Arc<TestClock>,
    core: ServerCore,
    rules: Retention,
    /// The true state after each operation.
    truth: BTreeMap<u64, View>,
}

fn open(disk: &PowerLoss, clock: &Arc<TestClock>, rules: &Retention) -> ServerCore {
    let store = StoreConfig { gc_window: Duration::from_secs(60), ..settings().store };
    let settings = CoreSettings { history: rules.clone(), store, ..settings() };
    ServerCore::open(disk.storage(), key(2), settings, Box::new(|_: &PublicKey| false), clock.clone())
        .unwrap()
}

impl World {
    fn new(rules: &str) -> World {
        let rules: Retention = rules.parse().unwrap();
        let disk = PowerLoss::new(11);
        let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
        let core = open(&disk, &clock, &rules);
        let world = World { disk, clock, core, rules, truth: BTreeMap::new() };
        committed(world.ask(0, creation(key(2).public(), 3)), &key(2).public());
        world
    }

    fn restart(mut self, crash: Crash) -> World {
        drop(self.core);
        self.disk.restart(crash);
        self.core = open(&self.disk, &self.clock, &self.rules);
        self
    }

    fn ask(&self, device: u8, request: Request) -> Response {
        let key = if device == 0 { superuser() } else { key(10 + device) };
        let peer = key.public();
        let file_system = self
            .core
            .greet(peer, true, holdfast_protocol::message::PROTOCOL_VERSIONS, Some(file_system()))
            .file_system;
        self.core.handle(&Caller { peer, local: true, file_system, answer_bytes: usize::MAX }, request)
    }

    fn look(&self) -> ViewReply {
        view(self.ask(3, Request::Look { log_size: 0 }))
    }

    /// Makes an operation that changes a table, some time after the one before.
    fn change(&mut self, author: &mut Author, seconds: u64) -> u64 {
        self.clock.0.fetch_add(seconds * 1000, Ordering::SeqCst);
        let request = author.fast(&self.look().view);
        committed(self.ask(author.device.0 as u8, request), &key(2).public());
        let view = self.look().view;
        let size = view.log.size;
        self.truth.insert(size, view);
        size
    }

    fn points(&self, note: bool) -> (Vec<Point>, Vec<Signed<Snapshot>>) {
        match self.ask(3, Request::History { after: 0, note }) {
            Response::History { points, more: false, named } => (points, named),
            other => panic!("{other:?}"),
        }
    }

    fn sizes(&self) -> Vec<u64> {
        self.points(false).0.iter().map(|point| point.log_size).collect()
    }

    fn past(&self, log_size: u64) -> Option<PastReply> {
        match self.ask(3, Request::Past { log_size, known: self.look().view.log.size }) {
            Response::Past(found) => found.map(|reply| *reply),
            other => panic!("{other:?}"),
        }
    }

    /// Asserts that a reader who has seen nothing but the present accepts every listed state, that it is as it was, and
    /// that its tables are here.
    fn check(&self) {
        let members = membership(1, 3);
        let floor = Floor::new(superuser().public(), DeviceId(3));
        let floor = check_look(&floor, &members, &self.look()).expect("an honest view");
        for point in self.points(false).0 {
            let shown = self.past(point.log_size).expect("it is listed");
            let past = verify_past_state(&floor, &members, point, &shown)
                .unwrap_or_else(|lie| panic!("{point:?}: {lie}"));
            if let Some(truth) = self.truth.get(&point.log_size) {
                assert_eq!(past.view(), truth, "{point:?}");
            }
            let handles = past.view().slots.values().flat_map(|slot| slot.value.handles.values());
            self.have(handles.map(|handle| handle.reference.address).collect(), true);
        }
    }

    fn have(&self, addresses: Vec<Digest>, expected: bool) {
        let Response::Blocks(found) = self.ask(3, Request::Retrieve(addresses)) else { panic!("blocks") };
        assert!(found.iter().all(|block| block.is_some() == expected), "{expected}: {found:?}");
    }

    fn tables(&self, log_size: u64, device: u32) -> Vec<Digest> {
        let slot = &self.truth[&log_size].slots[&DeviceId(device)];
        slot.value.handles.values().map(|handle| handle.reference.address).collect()
    }

    fn collect(&self) {
        for (_, result) in self.core.collect(Duration::ZERO) {
            result.expect("collected");
        }
    }

    fn name(&self, device: u8, name: &str, log_size: u64) -> Response {
        let log =
            self.truth.get(&log_size).map_or(LogHead { size: log_size, root: Digest::ZERO }, |view| view.log);
        self.ask(device, Request::NameSnapshot(snapshot(device, name, log)))
    }
}

fn snapshot(device: u8, name: &str, log: LogHead) -> Signed<Snapshot> {
    let key = if device == 0 { superuser() } else { key(10 + device) };
    let device = DeviceId(device.into());
    Signed::new(Snapshot { file_system: file_system(), device, name: name.to_owned(), log, time_ns: 1 }, &key)
}

fn refused(response: &Response) -> bool {
    matches!(response, Response::Error(ServerError::Invalid(_)))
}

/// Proves: each state is kept and shown as it was, with its tables, although power losses, kills, checkpoints and
/// collections happen at any of them. A name that was acknowledged is never lost.
#[test]
fn states_and_names_survive_power_loss() {
    let mut world = World::new("all:1h");
    let mut authors = [Author::new(1), Author::new(2)];
    let mut names = Vec::new();
    let mut sizes = vec![1];
    for round in 0..40 {
        sizes.push(world.change(&mut authors[round % 2], 2));
        if round % 6 == 1 {
            let name = format!("name {round}");
            assert_eq!(world.name(1 + (round % 2) as u8, &name, *sizes.last().unwrap()), Response::Done);
            names.push(name);
        }
        if round % 4 == 3 {
            world.core.checkpoint_if_due();
        }
        if round % 7 == 2 {
            world.collect();
        }
        if round % 3 == 2 {
            world = world.restart(if round % 2 == 0 { Crash::PowerLoss } else { Crash::Kill });
        }
        assert_eq!(world.sizes(), sizes, "round {round}");
        let mut named: Vec<String> =
            world.points(false).1.into_iter().map(|named| named.value.name).collect();
        named.sort_by_key(|name| names.iter().position(|known| known == name));
        assert_eq!(named, names);
    }
    world.check();
    world.collect();
    world.check();
}

/// Proves: a state that the rules drop is removed, with what only it referred to, and stays removed, also when the
/// clock is set back. A state with a name stays until the name is removed.
#[test]
fn collections_honour_the_rules_and_the_names() {
    let mut world = World::new("all:10s");
    let mut author = Author::new(1);
    let sizes: Vec<u64> = (0..6).map(|_| world.change(&mut author, 2)).collect();
    assert_eq!(world.name(1, "kept", sizes[1]), Response::Done);
    world.clock.0.fetch_add(3_600_000, Ordering::SeqCst);
    world.collect();
    assert_eq!(world.sizes(), [sizes[1]]);
    world.check();
    world.have(world.tables(sizes[1], 1), true);
    world.have(world.tables(sizes[2], 1), false);
    world.have(world.tables(sizes[5], 1), true);
    assert_eq!(world.past(sizes[2]), None);
    world.clock.0.fetch_sub(3_600_000, Ordering::SeqCst);
    for crash in [Crash::Kill, Crash::PowerLoss] {
        world = world.restart(crash);
        assert_eq!(world.sizes(), [sizes[1]], "nothing comes back whose blocks are gone");
    }

    let end = |device: u8, known: &Signed<Snapshot>| {
        let key = if device == 0 { superuser() } else { key(10 + device) };
        let (snapshot, device) = (known.value.digest(), DeviceId(device.into()));
        Request::EndSnapshot(Signed::new(SnapshotEnd { device, snapshot, file_system: file_system() }, &key))
    };
    let known = world.points(false).1.remove(0);
    let denied = world.ask(2, end(2, &known));
    assert!(matches!(&denied, Response::Error(ServerError::NotAllowed(why)) if why.contains("another user")));
    assert!(refused(&world.ask(2, end(1, &known))), "another's signature");
    assert_eq!(world.points(false).1.len(), 1);
    // The superuser may, and a second time changes nothing.
    assert_eq!(world.ask(0, end(0, &known)), Response::Done);
    assert_eq!(world.ask(0, end(0, &known)), Response::Done);
    world = world.restart(Crash::PowerLoss);
    assert!(world.points(false).1.is_empty());
    world.clock.0.fetch_add(7_200_000, Ordering::SeqCst);
    world.collect();
    assert!(world.sizes().is_empty());
    world.have(world.tables(sizes[1], 1), false);
    world.have(world.tables(sizes[5], 1), true);
}

/// Proves: without rules only named states are kept, and the present can be noted for a name. The server checks what a
/// name may be and who gives it, and the same request sent again changes nothing.
#[test]
fn names_are_policed() {
    let mut world = World::new("0");
    let mut author = Author::new(1);
    let size = world.change(&mut author, 2);
    assert!(world.sizes().is_empty());
    assert!(refused(&world.name(1, "x", size)), "it is not kept");
    assert_eq!(world.points(true).0.last().map(|point| point.log_size), Some(size));
    let head = world.truth[&size].log;
    for (name, log) in [
        ("x", LogHead { root: Digest([3; 32]), ..head }),
        ("x", LogHead { size: size + 1, ..head }),
        ("", head),
        ("2026", head),
        ("a/b", head),
        ("..", head),
        ("a\nb", head),
    ] {
        assert!(refused(&world.ask(1, Request::NameSnapshot(snapshot(1, name, log)))), "{name:?}");
    }
    let long = "x".repeat(201);
    assert!(refused(&world.ask(1, Request::NameSnapshot(snapshot(1, &long, head)))));
    assert!(refused(&world.ask(1, Request::NameSnapshot(snapshot(2, "x", head)))), "another's signature");
    assert!(world.points(false).1.is_empty());
    let mine = Request::NameSnapshot(snapshot(1, "x", head));
    assert_eq!(world.ask(1, mine.clone()), Response::Done);
    assert_eq!(world.ask(1, mine), Response::Done);
    assert!(refused(&world.ask(2, Request::NameSnapshot(snapshot(2, "x", head)))), "it is taken");
    world.change(&mut author, 2);
    world.collect();
    world = world.restart(Crash::PowerLoss);
    assert_eq!(world.sizes(), [size]);
    world.check();
    // While an operation is pending there is no present state to note.
    let (_, update) = author.update(&world.look().view);
    view(world.ask(1, update));
    let busy = world.ask(3, Request::History { after: 0, note: true });
    assert_eq!(busy, Response::Error(ServerError::Busy));
    let beyond = world.ask(3, Request::Past { log_size: size, known: 1000 });
    assert!(refused(&beyond), "{beyond:?}");
}

/// Proves: if the file of past states is damaged, torn or gone, only past states are lost: the server starts, the
/// present is whole, and new states are kept.
#[test]
fn a_damaged_file_costs_only_the_past() {
    for harm in 0..4 {
        let mut world = World::new("all:1h");
        let mut author = Author::new(1);
        for _ in 0..12 {
            world.change(&mut author, 2);
        }
        assert_eq!(world.name(1, "x", 13), Response::Done);
        world.core.checkpoint_if_due();
        let name = format!("history-{}", file_system());
        let length = world.disk.storage().open(&name).expect("it is there").len().expect("measured");
        let World { core, disk, clock, rules, truth } = world;
        drop(core);
        disk.restart(Crash::Kill);
        match harm {
            0 => disk.corrupt(&name, length / 2),
            1 => disk.storage().open(&name).unwrap().truncate(length - 3).unwrap(),
            2 => disk.delete(&name),
            _ => disk.storage().open(&name).unwrap().write_at(length, &[0xff; 100]).unwrap(),
        }
        let core = open(&disk, &clock, &rules);
        let mut world = World { core, disk, clock, rules, truth };
        let left = world.sizes();
        assert!(left.len() <= 13 && (harm != 3 || left.len() == 13), "harm {harm}: {left:?}");
        world.check();
        let size = world.change(&mut author, 2);
        assert_eq!(world.name(2, "y", size), Response::Done);
        let world = world.restart(Crash::PowerLoss);
        assert_eq!(world.sizes().last(), Some(&size), "harm {harm}");
        assert!(world.points(false).1.iter().any(|named| named.value.name == "y"));
        world.check();
    }
}

/// Proves: a thousand named states cost what changed in each, in the file and after a restart, and the first is found
/// as fast as the last. The figures in `docs/internals/history.md` are printed by `-- --nocapture`.
#[test]
fn a_thousand_snapshots_cost_what_changed() {
    let mut world = World::new("all:1d");
    let mut author = Author::new(1);
    let (mut first, mut last) = (0, 0);
    for number in 0..1000 {
        last = world.change(&mut author, 2);
        first = if number == 0 { last } else { first };
        assert_eq!(world.name(1, &format!("name {number}"), last), Response::Done);
    }
    let name = format!("history-{}", file_system());
    let bytes = world.disk.storage().open(&name).expect("it is there").len().expect("measured");
    println!("1000 named states: {bytes} bytes in the file");
    assert!(bytes < 1000 * 2048, "{bytes}");
    let world = world.restart(Crash::PowerLoss);
    assert_eq!(world.points(false).1.len(), 1000);
    for size in [first, last] {
        let shown = world.past(size).expect("kept");
        assert_eq!(shown.view, world.truth[&size]);
    }
    let removed = world.disk.storage().list().expect("listed");
    assert!(!removed.iter().any(|name| name.ends_with(".new")), "{removed:?}");
}
