//! Past states of honest and of lying servers, by the very machines that ship.
//!
//! The table of lies in `docs/internals/history.md` is what [`each_lie_is_refused`] checks.

use super::*;
use crate::certificate::{Delta, Path};
use crate::check::check;
use crate::history::archive::PointRecord;
use crate::log_tree::{UPDATES, consistency_proof};
use crate::sequencer::{CommitOutcome, OrderingRecord, Sequencer, Step, UpdateOutcome};
use crate::structure::{HandleVersion, Structure};
use crate::testing::random::Random;
use crate::testing::{A, B, C, Client, GROUP, founding, key, membership, table};
use holdfast_content::{Handle, PrincipalId};
use holdfast_crypto::{decode, encode};
use std::collections::{BTreeMap, HashMap};

const ABORT_AFTER_MS: u64 = 1000;
const SECOND_NS: i64 = 1_000_000_000;

/// An honest server with its archive, and the true state after each operation.
#[derive(Clone)]
struct Server {
    sequencer: Sequencer,
    nodes: HashMap<(u8, u64), Digest>,
    archive: Archive,
    now_ms: u64,
    truth: BTreeMap<u64, View>,
    /// Structures as they were committed, and some that were signed and refused.
    signed: Vec<Signed<Structure>>,
}

impl Server {
    fn new() -> Server {
        let (certificate, structure) = founding();
        let superuser = key(DeviceId(0)).public();
        let step = Sequencer::create(superuser, certificate, structure, membership(), ABORT_AFTER_MS);
        let Step { answer: (sequencer, _), records, nodes } = step.expect("a valid founding operation");
        let archive = Archive::default();
        let mut server = Server {
            sequencer,
            nodes: nodes.into_iter().collect(),
            archive,
            now_ms: 0,
            truth: BTreeMap::new(),
            signed: Vec::new(),
        };
        server.observe(&records);
        server
    }

    /// Advances the clock, so that each state has a second of its own.
    fn observe(&mut self, records: &[OrderingRecord]) {
        self.now_ms += 1000;
        for record in records {
            self.archive.observe(
                &self.sequencer,
                record,
                self.now_ms as i64 * 1_000_000,
                PointPolicy::LastOfSecond,
            );
        }
        if let Some(dead) = self.sequencer.dead() {
            let (slots, log) = (self.sequencer.slots().clone(), self.sequencer.head());
            self.truth.insert(log.size, View { slots, pending: dead, log });
        }
    }

    fn take<T>(&mut self, step: Step<T>) -> T {
        self.nodes.extend(step.nodes);
        self.observe(&step.records);
        step.answer
    }

    fn node(&self) -> impl FnMut(u8, u64) -> Option<Digest> + '_ {
        |level, index| self.nodes.get(&(level, index)).copied()
    }

    /// Orders an operation, and gives the structure by which it would be committed.
    fn order(&mut self, client: &mut Client, deltas: Vec<Delta>) -> Signed<Structure> {
        let device = client.floor.device;
        let certificate = client.declare(Path::Slow, deltas);
        let verified = certificate.clone().verified(key(device).public()).expect("signed");
        let step = self.sequencer.update(self.now_ms, device, &verified, None).expect("honest");
        let UpdateOutcome::View(mut reply) = self.take(step) else { panic!("not ordered") };
        let proof = consistency_proof(client.floor.log().size, reply.view.log.size, &mut self.node());
        reply.consistency = proof.expect("all nodes are kept");
        let accepted = check(&client.floor, &membership(), &reply, &certificate.value).expect("honest");
        client.floor = accepted.floor;
        client.structure(&certificate.value, accepted.forecast)
    }

    fn commit(&mut self, client: &mut Client, structure: &Signed<Structure>) -> bool {
        let device = client.floor.device;
        let verified = structure.clone().verified(key(device).public()).expect("signed");
        let step = self.sequencer.commit(device, &verified).expect("honest");
        self.signed.push(structure.clone());
        let is_committed = matches!(self.take(step), CommitOutcome::Committed(_));
        if is_committed {
            client.acknowledge(structure);
        }
        is_committed
    }

    fn operate(&mut self, client: &mut Client, deltas: Vec<Delta>) -> u64 {
        let structure = self.order(client, deltas);
        assert!(self.commit(client, &structure));
        self.sequencer.log_size()
    }

    /// An honest server's answer about a state, to a reader whose log has `known` operations.
    fn show(&self, log_size: u64, known: u64) -> PastReply {
        let (view, newest) = self.archive.state(log_size).expect("kept");
        self.prove(view, newest.clone(), known)
    }

    /// An answer for any view, with as many proofs as exist.
    fn prove(&self, view: View, newest: Signed<Certificate>, known: u64) -> PastReply {
        let size = view.log.size;
        let forecasts = view.slots.values().map(|slot| &slot.value.forecast);
        let forecasts = forecasts.chain(view.pending.iter().map(|entry| &entry.forecast));
        let include = |place| UPDATES.inclusion_proof(place, size, &mut self.node()).unwrap_or_default();
        let mut peaks = Vec::new();
        let mut first = 0;
        for level in (0..64u8).rev().filter(|level| size >> level & 1 == 1) {
            peaks.extend(self.nodes.get(&(level, first >> level)).copied());
            first += 1 << level;
        }
        PastReply {
            inclusion: forecasts.map(|forecast| include(forecast.log.size)).collect(),
            consistency: consistency_proof(size, known, &mut self.node()).unwrap_or_default(),
            peaks,
            newest,
            view,
        }
    }
}

fn set(number: u64) -> Vec<Delta> {
    vec![Delta::SetTable { file: Handle { principal: GROUP, number }, number: Some(number) }]
}

fn point(log_size: u64) -> Point {
    Point { log_size, time_ns: 0 }
}

/// Proves: every settled state in which something changed is stored, and a different client accepts it later
/// exactly as it was; also with dead operations in it, and after their authors came back.
#[test]
fn an_honest_past_is_believed() {
    let mut server = Server::new();
    let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
    server.operate(&mut a, set(1));
    server.operate(&mut b, set(2));
    // B dies with an operation pending; others go on.
    let lost = server.order(&mut b, set(3));
    server.now_ms += 2 * ABORT_AFTER_MS;
    server.operate(&mut a, set(4));
    server.operate(&mut c, set(5));
    assert!(!server.commit(&mut b, &lost), "it is dead");
    b.give_up(Path::Slow);
    server.operate(&mut b, set(6));
    server.operate(&mut a, set(7));
    // A look changes nothing, so it makes no new state.
    let kept = server.archive.len();
    server.operate(&mut c, Vec::new());
    assert_eq!(server.archive.len(), kept);

    let (points, more) = server.archive.points(0, 1000);
    assert!(!more && points.len() == 7, "{points:?}");
    let mut with_dead = 0;
    for Point { log_size, .. } in points {
        let shown = server.show(log_size, c.floor.log().size);
        let past = verify_past_state(&c.floor, &membership(), point(log_size), &shown);
        let past = past.unwrap_or_else(|lie| panic!("{log_size}: {lie}"));
        assert_eq!(*past.view(), server.truth[&log_size]);
        with_dead += usize::from(!past.view().pending.is_empty());
    }
    assert_eq!(with_dead, 2, "states with a dead operation in them");
}

/// Proves: an operation that was pending in the view a reader accepted last, and committed in a past state,
/// is accepted and reported, so that the reader learns it before relying on it.
#[test]
fn what_was_pending_is_to_be_learned() {
    let mut server = Server::new();
    let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
    server.operate(&mut a, set(1));
    let declared_ms = server.now_ms;
    let late = server.order(&mut b, set(2));
    // C sees it as pending, since it is not late yet, and continues after it was committed.
    server.now_ms = declared_ms;
    let next = server.order(&mut c, Vec::new());
    assert!(server.commit(&mut b, &late));
    assert!(server.commit(&mut c, &next));
    let size = server.sequencer.log_size();
    let shown = server.show(size, c.floor.log().size);
    let past = verify_past_state(&c.floor, &membership(), point(size), &shown).expect("honest");
    assert_eq!(past.settled(), std::slice::from_ref(&late));
    c.floor.learn(&membership(), late).expect("honest");
    let past = verify_past_state(&c.floor, &membership(), point(size), &shown).expect("honest");
    assert_eq!(past.settled(), []);
}

/// A lie: what it changes, the expected verdict, and the answer that contains it.
type LieCase = (&'static str, &'static str, fn(&Stage) -> (Point, PastReply));

/// A history to lie about, and a reader that has accepted all of it.
struct Stage {
    server: Server,
    /// Forked from it after four operations.
    fork: Server,
    reader: Client,
    /// A state in the middle.
    at: u64,
    /// Another structure that B signed for the same number, for another certificate.
    other: Signed<Structure>,
    /// A structure that B signed and that was refused, since its operation was dead.
    refused: Signed<Structure>,
    /// The state with that operation dead.
    with_dead: u64,
}

impl Stage {
    fn new() -> Stage {
        let mut server = Server::new();
        let (mut a, mut b, mut c) = (Client::new(A), Client::new(B), Client::new(C));
        server.operate(&mut a, set(1));
        server.operate(&mut b, set(2));
        server.operate(&mut c, set(3));
        let mut fork = server.clone();
        let mut elsewhere = a.clone();
        fork.operate(&mut elsewhere, set(99));
        fork.operate(&mut elsewhere, set(98));
        server.operate(&mut a, set(4));
        let other = server.clone().order(&mut b.clone(), set(77));
        let at = server.operate(&mut b, set(5));
        server.operate(&mut a, set(6));
        let refused = server.order(&mut b, set(7));
        server.now_ms += 2 * ABORT_AFTER_MS;
        let with_dead = server.operate(&mut a, set(8));
        assert!(!server.commit(&mut b, &refused));
        b.give_up(Path::Slow);
        server.operate(&mut b, set(9));
        server.operate(&mut c, set(10));
        Stage { server, fork, reader: c, at, other, refused, with_dead }
    }

    fn known(&self) -> u64 {
        self.reader.floor.log().size
    }

    fn honest(&self) -> PastReply {
        self.server.show(self.at, self.known())
    }

    /// The honest answer with another view, proven as well as can be.
    fn with_view(&self, change: impl FnOnce(&mut View)) -> (Point, PastReply) {
        let PastReply { mut view, newest, .. } = self.honest();
        change(&mut view);
        (point(self.at), self.server.prove(view, newest, self.known()))
    }

    /// A device's structure of an earlier or a later state.
    fn slot_of(&self, device: DeviceId, log_size: u64) -> Signed<Structure> {
        self.server.truth[&log_size].slots[&device].clone()
    }
}

const LIES: &[LieCase] = &[
    ("another state than the one asked for", "OtherState", |stage| {
        (point(stage.at), stage.server.show(stage.at + 1, stage.known()))
    }),
    ("a state of a fork", "OtherLog", |stage| {
        (point(stage.at), stage.fork.show(stage.at, stage.fork.sequencer.log_size()))
    }),
    ("a state of a fork, with the true log's proof", "OtherLog", |stage| {
        let consistency = stage.honest().consistency;
        let shown = stage.fork.show(stage.at, stage.fork.sequencer.log_size());
        (point(stage.at), PastReply { consistency, ..shown })
    }),
    ("no proof that it is of this log", "OtherLog", |stage| {
        (point(stage.at), PastReply { consistency: Vec::new(), ..stage.honest() })
    }),
    ("no proof that an operation is in it", "NotInLog", |stage| {
        (point(stage.at), PastReply { inclusion: Vec::new(), ..stage.honest() })
    }),
    ("one device's structure as it was before", "View(Hidden", |stage| {
        let earlier = stage.slot_of(A, 2);
        stage.with_view(|view| drop(view.slots.insert(A, earlier)))
    }),
    ("one device's structure as it was later", "View(LogOrder", |stage| {
        let later = stage.slot_of(A, stage.at + 1);
        stage.with_view(|view| drop(view.slots.insert(A, later)))
    }),
    ("one device left out", "View(Hidden", |stage| stage.with_view(|view| drop(view.slots.remove(&C)))),
    ("the last operation left out", "NewestLeftOut", |stage| {
        let earlier = stage.server.truth[&(stage.at - 1)].slots.clone();
        stage.with_view(|view| view.slots = earlier)
    }),
    ("a table altered", "View(BadSignature", |stage| {
        stage.with_view(|view| {
            let handles = &mut view.slots.get_mut(&B).expect("there").value.handles;
            handles.get_mut(&GROUP).expect("there").reference = table("another");
        })
    }),
    ("an operation that its author signed and that was never ordered", "NotInLog", |stage| {
        let other = stage.other.clone();
        stage.with_view(|view| drop(view.slots.insert(B, other)))
    }),
    ("something pending", "Unsettled", |stage| {
        let (_, mut shown) = (0, stage.server.show(stage.with_dead, stage.known()));
        shown.view.pending[0].dead = false;
        (point(stage.with_dead), shown)
    }),
    ("a dead operation as committed", "Contradiction", |stage| {
        let PastReply { mut view, .. } = stage.server.show(stage.with_dead - 2, stage.known());
        let entry = stage.server.show(stage.with_dead, stage.known()).view.pending.remove(0);
        view.slots.insert(B, stage.refused.clone());
        view.log = log_at(&stage.server, stage.with_dead - 1);
        let size = view.log.size;
        (point(size), stage.server.prove(view, entry.certificate, stage.known()))
    }),
    ("a committed operation as dead", "Contradiction", |stage| {
        let (structure, certificate) = (stage.slot_of(B, stage.at), stage.honest().newest);
        let earlier = stage.slot_of(B, stage.at - 1);
        stage.with_view(|view| {
            let forecast = structure.value.forecast;
            view.pending.push(crate::structure::PendingEntry { certificate, forecast, dead: true });
            view.slots.insert(B, earlier);
        })
    }),
    ("the state dated otherwise", "OtherTime", |stage| {
        (Point { time_ns: 5, ..point(stage.at) }, stage.honest())
    }),
    ("another certificate, to tell another time", "OtherCertificate", |stage| {
        let newest = stage.server.show(stage.at + 1, stage.known()).newest;
        (point(stage.at), PastReply { newest, ..stage.honest() })
    }),
    ("more log than there was", "View(LogNotExtended", |stage| {
        let (_, shown) = stage.with_view(|view| view.log.size += 1);
        (point(stage.at + 1), shown)
    }),
    ("a table that is in force now, as another", "Contradiction", |stage| {
        // B helps the server, and has signed two tables for one place.
        let size = stage.server.sequencer.log_size();
        let mut shown = stage.server.show(size, stage.known());
        let slot = shown.view.slots.get_mut(&B).expect("there");
        let own = PrincipalId::Device(B);
        let handle = HandleVersion { reference: table("mine"), ..slot.value.handles[&own] };
        slot.value.handles.insert(own, handle);
        *slot = Signed::new(slot.value.clone(), &key(B));
        (point(size), shown)
    }),
];

fn log_at(server: &Server, size: u64) -> LogHead {
    let mut frontier = crate::log_tree::Frontier::default();
    for place in 0..size {
        frontier.append(server.nodes[&(0, place)]);
    }
    frontier.head()
}

fn verdict(result: Result<VerifiedPast, Lie>) -> String {
    match result {
        Ok(_) => "accepted".to_owned(),
        Err(lie) => {
            assert!(!lie.to_string().is_empty());
            match &lie {
                Lie::View(alarm) => {
                    let alarm = format!("{alarm:?}");
                    format!("View({}", alarm.split(['(', ' ', '{']).next().expect("a name"))
                }
                other => format!("{other:?}").split(['(', ' ', '{']).next().expect("a name").to_owned(),
            }
        }
    }
}

/// Proves: every lie in the table has its verdict, and what it was made from is believed.
#[test]
fn each_lie_is_refused() {
    let stage = Stage::new();
    let believed =
        |(at, shown): (Point, PastReply)| verify_past_state(&stage.reader.floor, &membership(), at, &shown);
    for size in [stage.at, stage.with_dead] {
        let shown = stage.server.show(size, stage.known());
        assert_eq!(verdict(believed((point(size), shown))), "accepted");
    }
    let found: Vec<_> = LIES.iter().map(|(lie, _, tell)| (*lie, verdict(believed(tell(&stage))))).collect();
    let expected: Vec<_> = LIES.iter().map(|(lie, verdict, _)| (*lie, (*verdict).to_owned())).collect();
    assert_eq!(found, expected);
}

/// Documents a limit: a member that helps the server can have signed two tables of its own for one place, and
/// the server can present either as past once neither is in force. Other members' tables are not affected.
#[test]
fn a_member_can_show_its_own_past_otherwise() {
    let stage = Stage::new();
    let (_, mut shown) = stage.with_view(|_| {});
    let slot = shown.view.slots.get_mut(&B).expect("there");
    let own = PrincipalId::Device(B);
    let handle = HandleVersion { reference: table("mine"), ..slot.value.handles[&own] };
    slot.value.handles.insert(own, handle);
    *slot = Signed::new(slot.value.clone(), &key(B));
    assert!(verify_past_state(&stage.reader.floor, &membership(), point(stage.at), &shown).is_ok());
    // A's slot, signed with B's key.
    let slot = shown.view.slots.get_mut(&A).expect("there");
    slot.value.handles.insert(PrincipalId::Device(A), handle);
    *slot = Signed::new(slot.value.clone(), &key(B));
    assert!(verify_past_state(&stage.reader.floor, &membership(), point(stage.at), &shown).is_err());
}

/// Proves: however the bytes of an answer are changed, the check neither panics nor accepts another state.
#[test]
fn altered_bytes_show_nothing_else() {
    let stage = Stage::new();
    let bytes = encode(&stage.server.show(stage.with_dead, stage.known()));
    let truth = &stage.server.truth[&stage.with_dead];
    let mut random = Random::new(7);
    let mut decoded = 0;
    for _ in 0..3000 {
        let mut altered = bytes.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(altered.len() as u64) as usize;
            altered[at] ^= 1 << random.below(8);
        }
        let Ok(shown) = decode::<PastReply>(&altered) else { continue };
        decoded += 1;
        if let Ok(past) =
            verify_past_state(&stage.reader.floor, &membership(), point(stage.with_dead), &shown)
        {
            assert_eq!(past.view(), truth);
        }
    }
    assert!(decoded > 1000, "most are well formed: {decoded}");
}

/// Proves, with random histories against a list of the true states: each stored state is presented exactly as
/// it was, whatever was thinned, named, saved and restored in between. The archive holds only what its states
/// need. A log cut by a power loss also loses the saved points beyond the cut.
#[test]
fn an_archive_keeps_what_was() {
    for seed in 0..30 {
        let mut random = Random::new(seed);
        let mut server = Server::new();
        let mut clients = [Client::new(A), Client::new(B), Client::new(C)];
        let mut file: Vec<HistoryRecord> = Vec::new();
        let rules: Retention = "all:10s,4s:40s".parse().expect("rules");
        let mut named = 0;
        for step in 0..60 {
            let client = &mut clients[random.below(3) as usize];
            server.operate(client, if random.below(4) == 0 { Vec::new() } else { set(1 + random.below(5)) });
            match random.below(8) {
                0 => drop(server.archive.retain(&rules, server.now_ms as i64 * 1_000_000)),
                1 => file.extend(server.archive.take_unsaved(server.sequencer.log_size())),
                2 => {
                    file.extend(server.archive.take_unsaved(server.sequencer.log_size()));
                    let (restored, is_cut) = Archive::restore(file.clone(), server.sequencer.log_size());
                    assert!(!is_cut);
                    assert_eq!(
                        restored.points(0, 999),
                        server.archive.points(0, 999),
                        "seed {seed}, step {step}"
                    );
                    server.archive = restored;
                }
                3 => {
                    server.archive.take_unsaved(server.sequencer.log_size());
                    file = server.archive.all().collect();
                }
                4 => {
                    let (points, _) = server.archive.points(0, 999);
                    let Some(point) = points.get(random.below(points.len() as u64 + 1) as usize) else {
                        continue;
                    };
                    let snapshot = Snapshot {
                        file_system: server.sequencer.file_system(),
                        device: A,
                        name: format!("name {step}"),
                        log: server.archive.head(point.log_size).expect("kept"),
                        time_ns: 0,
                    };
                    assert!(server.archive.name(Signed::new(snapshot, &key(A))));
                    named += 1;
                }
                _ => {}
            }
            if random.below(8) == 3 {
                // Saved whole before: `all` does not count as saving.
                file = server.archive.all().collect();
                server.archive = Archive::restore(file.clone(), u64::MAX - 1).0;
            }
            let (points, _) = server.archive.points(0, 999);
            for Point { log_size, .. } in &points {
                let (view, newest) = server.archive.state(*log_size).expect("kept");
                assert_eq!(view, server.truth[log_size], "seed {seed}, step {step}, state {log_size}");
                assert_eq!(view.log.size, *log_size);
                assert_eq!(newest.value.file_system, server.sequencer.file_system());
            }
            for snapshot in server.archive.snapshots() {
                assert!(server.archive.state(snapshot.value.log.size).is_some(), "a name keeps its state");
            }
        }
        assert!(named > 0);
        file = server.archive.all().collect();
        let cut = server.sequencer.log_size() / 2;
        let (restored, is_cut) = Archive::restore(file, cut);
        assert!(is_cut);
        let (points, _) = restored.points(0, 999);
        assert!(points.iter().all(|point| point.log_size <= cut));
        for Point { log_size, .. } in points {
            assert_eq!(restored.state(log_size).expect("kept").0, server.truth[&log_size]);
        }
        // With no points, one structure of each device remains, since later states need it.
        let nothing: Retention = "0".parse().expect("rules");
        for name in server.archive.snapshots().cloned().collect::<Vec<_>>() {
            let snapshot = name.value.digest();
            let file_system = name.value.file_system;
            server.archive.end(Signed::new(SnapshotEnd { device: A, snapshot, file_system }, &key(A)));
        }
        server.archive.retain(&nothing, 0);
        assert!(server.archive.is_empty());
        assert!(server.archive.roots().count() <= 4 * 4, "{}", server.archive.roots().count());
    }
}

/// Proves: of the states of one second only the last is stored, beside a named one. Nothing is recorded while
/// an operation is pending.
#[test]
fn states_of_one_second_are_one() {
    let mut server = Server::new();
    let mut a = Client::new(A);
    server.operate(&mut a, set(1));
    let before = server.archive.len();
    let now_ns = (server.now_ms + 5000) as i64 * 1_000_000 / SECOND_NS * SECOND_NS;
    for number in 2..6 {
        let structure = server.order(&mut a, set(number));
        assert_eq!(
            server.archive.clone().note(&server.sequencer, now_ns, PointPolicy::None),
            None,
            "something is pending"
        );
        let verified = structure.clone().verified(key(A).public()).expect("signed");
        let step = server.sequencer.commit(A, &verified).expect("honest");
        server.nodes.extend(step.nodes);
        for record in &step.records {
            server.archive.observe(
                &server.sequencer,
                record,
                now_ns + number as i64,
                PointPolicy::LastOfSecond,
            );
        }
        a.acknowledge(&structure);
    }
    assert_eq!(server.archive.len(), before + 1);
    let (points, _) = server.archive.points(0, 999);
    assert_eq!(points.last().map(|point| point.log_size), Some(server.sequencer.log_size()));
}

/// Proves: signed and stored bytes have the layout of existing files. If this fails, the format has changed:
/// give it a new number and keep reading the old one.
#[test]
fn formats_are_held() {
    let log = LogHead { size: 3, root: Digest([7; 32]) };
    let (file_system, device) = (Digest([0xf5; 32]), DeviceId(3));
    let snapshot =
        Snapshot { file_system, device, name: "before".to_owned(), log, time_ns: 1_700_000_000_000_000_000 };
    let end = SnapshotEnd { device, snapshot: snapshot.digest(), file_system };
    let (certificate, structure) = founding();
    let kept = PointRecord { log, noted_ns: 5, newest: certificate, dead: Vec::new() };
    let records = [
        HistoryRecord::Structures(vec![structure]),
        HistoryRecord::Point(kept),
        HistoryRecord::Dropped(vec![3, 4]),
        HistoryRecord::Named(Signed::new(snapshot.clone(), &key(A))),
        HistoryRecord::Ended(Signed::new(end.clone(), &key(A))),
        HistoryRecord::UpTo(9),
    ];
    let short =
        |bytes: &[u8]| holdfast_crypto::DigestKey::WELL_KNOWN.digest(Domain::LocalRecord, bytes).short();
    let mut found: Vec<String> = records.iter().map(|record| short(&encode(record))).collect();
    found.extend([snapshot.digest().short(), end.digest().short()]);
    assert_eq!(found, GOLDEN);
    assert_eq!(decode::<HistoryRecord>(&encode(&records[2])), Ok(records[2].clone()));
}

const GOLDEN: [&str; 8] = [
    "a050f47156b7",
    "c62f78e2740c",
    "7d2f49c2af34",
    "a02e3cacf704",
    "ea848fbd9cd8",
    "f13dd409b482",
    "92e1828ae890",
    "a3792c3908ba",
];
