//! Lies, one by one: for each way in which a server can lie about the order, and each operation that it can lie to, the
//! outcome for the victim. The table in `docs/proof.md` is made here ([`table`]) and checked by a test.

use super::client::{Client, ClientAction, WorldRequest};
use super::ledger::Ledger;
use super::server::Server;
use super::{device_key, found, server_key};
use crate::random::Random;
use holdfast_content::{BlockSink, DeviceId, MemoryBlocks, PrincipalId, Reference};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::alarm::{Alarm, Blame};
use holdfast_protocol::message::{Receipt, Request, Response, ViewReply};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{HandleVersion, LogHead, PendingEntry, Structure, View};
use holdfast_protocol::warrant::Change;
use std::rc::Rc;

/// A way to lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Tells the truth.
    None,
    /// Shows the view of an earlier day.
    Rollback,
    /// Shows one device's earlier structure.
    StaleSlot,
    /// Leaves one device's structure out.
    HideSlot,
    /// Leaves out a pending operation that the victim has seen.
    DropPending,
    /// Shows pending operations in another order.
    ReorderPending,
    /// Shows a pending operation with another place in the order.
    ForgeForecast,
    /// Declares a committed operation dead.
    KillCommitted,
    /// Shows a dead operation as alive again.
    ReviveDead,
    /// Answers with what it answered before.
    ReplayAnswer,
    /// Alters a table in somebody's structure.
    AlterTable,
    /// Alters what somebody declared.
    AlterCertificate,
    /// Shows a shorter log.
    ShortenLog,
    /// Shows a log with another past.
    RewriteLog,
    /// With a member's help, shows a membership that the superuser has not signed.
    NoWarrant,
    /// With a member's help, shows one that the superuser signed to follow an earlier one than is in force.
    OldWarrant,
    /// Acknowledges, and forgets.
    Forget,
    /// Says "refused" or "aborted" of what it then shows to others as committed.
    DenyCommitted,
    /// Acknowledges with a receipt that is not a listed server's.
    FalseReceipt,
    /// Acknowledges with the receipt of another operation.
    WrongReceipt,
    /// Answers a wait with another structure of the same device.
    OtherStructure,
    /// Answers a wait with an altered structure.
    AlteredStructure,
    /// Never lets a wait end.
    Withhold,
    /// Shows the victim a copy of the file system without what others do from now on.
    Fork,
    /// Shows the victim what others did in the other copy.
    JoinForks,
    /// Moves the victim over to the other copy.
    SwitchFork,
}

/// The step of the victim that is lied to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum VictimStep {
    /// An operation on the slow path: its UPDATE.
    Update,
    /// An operation on the slow path: its COMMIT.
    Commit,
    /// An operation on the fast path.
    Fast,
    /// Looking without ordering anything.
    Look,
    /// Waiting for somebody's pending operation.
    Wait,
}

/// The outcome of the lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The victim alarms at once.
    AtOnce(String, Blame),
    /// The victim alarms at its next operation.
    Next(String, Blame),
    /// Somebody alarms as soon as one sees what the other did afterwards.
    Meeting(String, Blame),
    /// Nobody notices, and nobody is harmed.
    Harmless,
    /// Nobody notices until the two sides meet.
    Unnoticed,
}

/// The rows of the table: each lie, and the steps that it can be told to.
pub const ROWS: &[(Lie, &[VictimStep])] = &[
    (
        Lie::None,
        &[VictimStep::Update, VictimStep::Commit, VictimStep::Fast, VictimStep::Look, VictimStep::Wait],
    ),
    (Lie::Rollback, &[VictimStep::Update, VictimStep::Look]),
    (Lie::StaleSlot, &[VictimStep::Update, VictimStep::Look]),
    (Lie::HideSlot, &[VictimStep::Update, VictimStep::Look]),
    (Lie::DropPending, &[VictimStep::Update, VictimStep::Look]),
    (Lie::ReorderPending, &[VictimStep::Update, VictimStep::Look]),
    (Lie::ForgeForecast, &[VictimStep::Update, VictimStep::Look]),
    (Lie::KillCommitted, &[VictimStep::Update, VictimStep::Look]),
    (Lie::ReviveDead, &[VictimStep::Update, VictimStep::Look]),
    (Lie::ReplayAnswer, &[VictimStep::Update, VictimStep::Look]),
    (Lie::AlterTable, &[VictimStep::Update, VictimStep::Look]),
    (Lie::AlterCertificate, &[VictimStep::Update, VictimStep::Look]),
    (Lie::ShortenLog, &[VictimStep::Update, VictimStep::Look]),
    (Lie::RewriteLog, &[VictimStep::Update, VictimStep::Look]),
    (Lie::NoWarrant, &[VictimStep::Update, VictimStep::Look]),
    (Lie::OldWarrant, &[VictimStep::Update, VictimStep::Look]),
    (Lie::Forget, &[VictimStep::Commit, VictimStep::Fast]),
    (Lie::DenyCommitted, &[VictimStep::Commit, VictimStep::Fast]),
    (Lie::FalseReceipt, &[VictimStep::Commit, VictimStep::Fast]),
    (Lie::WrongReceipt, &[VictimStep::Commit, VictimStep::Fast]),
    (Lie::OtherStructure, &[VictimStep::Wait]),
    (Lie::AlteredStructure, &[VictimStep::Wait]),
    (Lie::Withhold, &[VictimStep::Wait]),
    (Lie::Fork, &[VictimStep::Update, VictimStep::Fast]),
    (Lie::JoinForks, &[VictimStep::Update, VictimStep::Look]),
    (Lie::SwitchFork, &[VictimStep::Update, VictimStep::Look]),
];

/// The table as Markdown: a row for each lie, a column for each step.
pub fn table() -> String {
    let columns =
        [VictimStep::Update, VictimStep::Commit, VictimStep::Fast, VictimStep::Look, VictimStep::Wait];
    let mut text =
        "| the server... | UPDATE | COMMIT | fast | look | wait |\n|---|---|---|---|---|---|\n".to_owned();
    for (lie, told) in ROWS {
        text += &format!("| {} |", lie.words());
        for step in columns {
            let cell = if told.contains(&step) { verdict(*lie, step).words() } else { String::new() };
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    text
}

impl Lie {
    fn words(self) -> &'static str {
        match self {
            Lie::None => "is honest",
            Lie::Rollback => "shows yesterday's view",
            Lie::StaleSlot => "shows one device's earlier structure",
            Lie::HideSlot => "leaves one device out",
            Lie::DropPending => "drops a pending operation that was seen",
            Lie::ReorderPending => "reorders pending operations",
            Lie::ForgeForecast => "forges the place of a pending operation",
            Lie::KillCommitted => "declares a committed operation dead",
            Lie::ReviveDead => "revives a dead operation",
            Lie::ReplayAnswer => "repeats an earlier answer",
            Lie::AlterTable => "alters a table in a structure",
            Lie::AlterCertificate => "alters a declaration",
            Lie::ShortenLog => "shortens the log",
            Lie::RewriteLog => "rewrites the log",
            Lie::NoWarrant => "and a member change the membership without the superuser",
            Lie::OldWarrant => "and a member use a warrant that was overtaken",
            Lie::Forget => "acknowledges and forgets",
            Lie::DenyCommitted => "denies what it shows to others",
            Lie::FalseReceipt => "signs the receipt with an unlisted key",
            Lie::WrongReceipt => "gives the receipt of another operation",
            Lie::OtherStructure => "sends another structure of that device",
            Lie::AlteredStructure => "sends an altered structure",
            Lie::Withhold => "lets nobody know of the commit",
            Lie::Fork => "forks: hides what others do from now on",
            Lie::JoinForks => "after a fork, shows what the others did",
            Lie::SwitchFork => "after a fork, goes over to the others' side",
        }
    }
}

impl Verdict {
    fn words(&self) -> String {
        let blamed = |blame: &Blame| match blame {
            Blame::Server => String::new(),
            Blame::Device(device) => format!(" (blames device {})", device.0),
            Blame::LocalState => " (blames local state)".to_owned(),
            Blame::Nobody => " (blames nobody)".to_owned(),
        };
        match self {
            Verdict::AtOnce(name, blame) => format!("{name}{}", blamed(blame)),
            Verdict::Next(name, blame) => format!("next: {name}{}", blamed(blame)),
            Verdict::Meeting(name, blame) => format!("when they meet: {name}{}", blamed(blame)),
            Verdict::Harmless => "accepted".to_owned(),
            Verdict::Unnoticed => "not noticed".to_owned(),
        }
    }
}

const VICTIM: usize = 1;

pub(super) struct Stage {
    pub(super) random: Random,
    ledger: Ledger,
    pub(super) server: Server,
    pub(super) clients: Vec<Client>,
    /// An answer to the victim from before.
    yesterday: Option<ViewReply>,
    /// The last answer to the victim.
    latest: Option<ViewReply>,
    /// Structures committed before the last ones.
    former: Vec<Signed<Structure>>,
    old_receipt: Option<Response>,
    /// The operation of device 2 that the victim saw pending.
    entry: Option<PendingEntry>,
    /// Blocks of memberships that device 2 may not bring: not signed, and overtaken.
    memberships: [Reference; 2],
    now_ms: u64,
}

/// Tells `lie` to a client at a step.
pub fn verdict(lie: Lie, step: VictimStep) -> Verdict {
    let mut stage = Stage::set(step == VictimStep::Fast);
    if matches!(lie, Lie::JoinForks | Lie::SwitchFork) {
        return stage.forks(lie, step);
    }
    if lie == Lie::Fork {
        return stage.fork(step);
    }
    if let Some(alarm) = stage.tell(lie, step) {
        return Verdict::AtOnce(name(&alarm), alarm.blame());
    }
    // The server is honest from now on. Every client operates once more, the victim first. (A look, because an
    // operation that does not fit is refused before anything is shown.)
    if let Some(alarm) = stage.look(&mut |_| {}) {
        return Verdict::Next(name(&alarm), alarm.blame());
    }
    for client in [VICTIM, 2, 3] {
        if let Some(alarm) = stage.operate(client, &mut |_, response| response) {
            let (name, blame) = (name(&alarm), alarm.blame());
            return if client == VICTIM { Verdict::Next(name, blame) } else { Verdict::Meeting(name, blame) };
        }
    }
    Verdict::Harmless
}

fn name(alarm: &Alarm) -> String {
    let text = format!("{alarm:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

impl Stage {
    /// Three users who have worked in one group. Unless it has to be quiet, device 2 has an operation pending that
    /// device 1 has seen, and device 3 one that is aborted.
    pub(super) fn set(quiet: bool) -> Stage {
        let mut random = Random::new(7);
        let blocks = Rc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
        let (signer, _, request) = found(&blocks, 3);
        let (server, receipt) = Server::create(blocks.clone(), 1000, request);
        let mut ledger = Ledger::default();
        let mut superuser = Client::with_signer(signer, blocks.clone());
        superuser.answer(receipt, &mut random, &mut ledger, 0);
        let mut clients = vec![superuser];
        clients.extend((1..=3).map(|id| Client::new(DeviceId(id), blocks.clone())));
        let memberships = unwarranted(&blocks);
        let mut stage = Stage {
            memberships,
            random,
            ledger,
            server,
            clients,
            yesterday: None,
            latest: None,
            former: Vec::new(),
            old_receipt: None,
            entry: None,
            now_ms: 0,
        };
        for round in 0..3 {
            for client in 1..=3 {
                assert_eq!(stage.operate(client, &mut |_, response| response), None, "honest");
            }
            if round == 0 {
                stage.yesterday = stage.latest.clone();
                stage.former = stage.server.sequencer().look().view.slots.into_values().collect();
            }
        }
        if !quiet {
            stage.leave_pending(3);
            stage.now_ms += 5000;
            stage.leave_pending(2);
        }
        assert_eq!(stage.operate(VICTIM, &mut |_, response| response), None, "honest");
        stage
    }

    /// Has a client send an UPDATE and nothing more.
    fn leave_pending(&mut self, client: usize) {
        self.clients[client].wishes.push(ClientAction::Group);
        // Fast operations leave nothing pending: insist on the slow path.
        let wanted = self.clients[client].begin_slow(&mut self.random, &mut self.ledger);
        let Some(WorldRequest::Send(request)) = wanted.into_iter().next() else { panic!("it was idle") };
        let device = self.clients[client].device;
        let response = self.server.handle(self.now_ms, device, *request);
        self.server.sync();
        let wanted = self.clients[client].answer(response, &mut self.random, &mut self.ledger, 0);
        assert!(matches!(wanted[..], [WorldRequest::Fold]), "ordered");
    }

    /// Runs one operation to its end; `tamper` gets each answer before the client does.
    pub(super) fn operate(
        &mut self,
        client: usize,
        tamper: &mut dyn FnMut(&Request, Response) -> Response,
    ) -> Option<Alarm> {
        let mut wanted = if self.clients[client].is_idle() {
            self.clients[client].wishes.push(ClientAction::Group);
            self.clients[client].begin(&mut self.random, &mut self.ledger, 0)
        } else {
            self.clients[client].fold(&mut self.random, &mut self.ledger, 0)
        };
        while let Some(next) = wanted.pop() {
            wanted = match next {
                WorldRequest::Send(request) => {
                    let device = self.clients[client].device;
                    let response = self.server.handle(self.now_ms, device, (*request).clone());
                    self.server.sync();
                    let response = tamper(&request, response);
                    if client == VICTIM {
                        match &response {
                            Response::View(reply) => self.latest = Some((**reply).clone()),
                            Response::Committed(_) => self.old_receipt = Some(response.clone()),
                            _ => {}
                        }
                    }
                    self.clients[client].answer(response, &mut self.random, &mut self.ledger, 0)
                }
                WorldRequest::Fold => self.clients[client].fold(&mut self.random, &mut self.ledger, 0),
            };
        }
        self.clients[client].alarms.first().cloned()
    }

    /// What the server can lie with at this moment.
    pub(super) fn lies(&self) -> Lies {
        Lies {
            entry: self.entry.clone(),
            yesterday: self.yesterday.clone().expect("kept"),
            latest: self.latest.clone().expect("kept"),
            former: self.former.clone(),
            memberships: self.memberships,
        }
    }

    /// The victim's operation, with the lie.
    fn tell(&mut self, lie: Lie, step: VictimStep) -> Option<Alarm> {
        match step {
            VictimStep::Update | VictimStep::Look => {
                if lie == Lie::KillCommitted {
                    // The victim has seen device 2's operation pending; now it sees it committed.
                    let seen = &self.clients[VICTIM].signer().expect("up").floor().view;
                    self.entry = seen.pending.iter().find(|entry| !entry.dead).cloned();
                    self.former = self.server.sequencer().look().view.slots.into_values().collect();
                    assert_eq!(self.operate(2, &mut |_, response| response), None, "honest");
                    assert_eq!(self.operate(VICTIM, &mut |_, response| response), None, "honest");
                }
                let lies = self.lies();
                if step == VictimStep::Look {
                    return self.look(&mut |reply| lies.apply(lie, reply));
                }
                self.clients[VICTIM].slow_only = true;
                self.operate(VICTIM, &mut |request, response| match (request, response) {
                    (Request::Update { .. }, Response::View(mut reply)) => {
                        lies.apply(lie, &mut reply);
                        Response::View(reply)
                    }
                    (_, response) => response,
                })
            }
            VictimStep::Commit | VictimStep::Fast => {
                let before = self.server.clone();
                self.clients[VICTIM].slow_only = step == VictimStep::Commit;
                let old = self.old_receipt.clone().expect("kept");
                let mut forgotten = false;
                let mut after_update = None;
                let alarm = self.operate(VICTIM, &mut |request, response| {
                    let Response::Committed(receipt) = &response else { return response };
                    after_update = Some(request.clone());
                    match lie {
                        Lie::Forget => {
                            forgotten = true;
                            response
                        }
                        Lie::DenyCommitted if step == VictimStep::Fast => Response::Refused,
                        Lie::DenyCommitted => Response::Aborted,
                        Lie::FalseReceipt => {
                            Response::Committed(Signed::new(receipt.value.clone(), &device_key(DeviceId(3))))
                        }
                        Lie::WrongReceipt => old.clone(),
                        _ => response,
                    }
                });
                if forgotten {
                    self.server = before;
                }
                self.clients[VICTIM].slow_only = false;
                alarm
            }
            VictimStep::Wait => self.wait(lie),
        }
    }

    pub(super) fn look(&mut self, tamper: &mut dyn FnMut(&mut ViewReply)) -> Option<Alarm> {
        // A server that forgot part of the log shows what it has.
        let known = self.clients[VICTIM].signer().expect("up").floor().log().size;
        let log_size = known.min(self.server.sequencer().log_size());
        let response = self.server.handle(self.now_ms, DeviceId(VICTIM as u32), Request::Look { log_size });
        let Response::View(mut reply) = response else { panic!("a look is answered") };
        tamper(&mut reply);
        self.clients[VICTIM].answer(Response::View(reply), &mut self.random, &mut self.ledger, 0);
        self.clients[VICTIM].alarms.first().cloned()
    }

    /// Device 2 commits what the victim has seen pending; the victim waits for it.
    fn wait(&mut self, lie: Lie) -> Option<Alarm> {
        let pending = self.clients[VICTIM].signer().expect("up").floor().view.pending.clone();
        let entry = pending.iter().find(|entry| !entry.dead).expect("device 2's");
        let (device, number) = (entry.forecast.device, entry.forecast.number());
        assert_eq!(self.operate(2, &mut |_, response| response), None, "honest");
        let request = Request::FetchPending { device, number, wait_ms: 0 };
        let response = self.server.handle(self.now_ms, DeviceId(VICTIM as u32), request);
        let response = match (lie, response) {
            (Lie::OtherStructure, _) => {
                let other = self.former.iter().find(|structure| structure.value.device() == device);
                // The earlier structure is already in the victim's view; one of the same number but another path is
                // not.
                let mut other = other.expect("kept").clone();
                other.value.forecast.vector.set(PrincipalId::Device(device), number);
                Response::Structure(Some(Box::new(other)))
            }
            (Lie::AlteredStructure, Response::Structure(Some(mut structure))) => {
                for handle in structure.value.handles.values_mut() {
                    handle.reference.address = Digest::ZERO;
                }
                Response::Structure(Some(structure))
            }
            (Lie::Withhold, _) => Response::Structure(None),
            (_, response) => response,
        };
        self.clients[VICTIM].learn(response, &mut self.random, &mut self.ledger);
        self.clients[VICTIM].alarms.first().cloned()
    }

    /// From now on the victim talks to a copy of its own, and notices nothing.
    fn fork(&mut self, step: VictimStep) -> Verdict {
        let mut other_side = self.server.clone();
        self.clients[VICTIM].slow_only = step == VictimStep::Update;
        std::mem::swap(&mut self.server, &mut other_side);
        for _ in 0..3 {
            if let Some(alarm) = self.operate(VICTIM, &mut |_, response| response) {
                return Verdict::AtOnce(name(&alarm), alarm.blame());
            }
        }
        std::mem::swap(&mut self.server, &mut other_side);
        match (2..=3).find_map(|client| self.operate(client, &mut |_, response| response)) {
            Some(alarm) => Verdict::Meeting(name(&alarm), alarm.blame()),
            None => Verdict::Unnoticed,
        }
    }

    /// Both sides of a fork have gone on; then the server wants to join them again.
    fn forks(&mut self, lie: Lie, step: VictimStep) -> Verdict {
        let mut other_side = self.server.clone();
        self.operate(VICTIM, &mut |_, response| response);
        std::mem::swap(&mut self.server, &mut other_side);
        // Their first operations were ordered before the fork, and belong to both sides.
        for client in [2, 3, 2, 3] {
            assert_eq!(self.operate(client, &mut |_, response| response), None, "not noticed");
        }
        if lie == Lie::JoinForks {
            std::mem::swap(&mut self.server, &mut other_side);
        }
        let foreign = other_side.sequencer().look().view;
        let join = move |reply: &mut ViewReply| {
            if lie == Lie::JoinForks {
                for device in [DeviceId(2), DeviceId(3)] {
                    reply.view.slots.insert(device, foreign.slots[&device].clone());
                }
                let passed = |entry: &PendingEntry| {
                    let certificate = &entry.certificate.value;
                    foreign.slots[&certificate.device].value.number() >= certificate.number
                };
                reply.view.pending.retain(|entry| !passed(entry));
            }
        };
        let alarm = if step == VictimStep::Look {
            self.look(&mut |reply| join(reply))
        } else {
            // The other side cannot order what does not follow its past, but it can pretend to.
            let shown = self.server.handle(self.now_ms, DeviceId(2), Request::Look { log_size: 0 });
            self.clients[VICTIM].slow_only = true;
            self.operate(VICTIM, &mut |_, response| match response {
                Response::View(mut reply) => {
                    join(&mut reply);
                    Response::View(reply)
                }
                Response::Error(_) => shown.clone(),
                response => response,
            })
        };
        alarm.map_or(Verdict::Unnoticed, |alarm| Verdict::AtOnce(name(&alarm), alarm.blame()))
    }
}

pub(super) struct Lies {
    yesterday: ViewReply,
    latest: ViewReply,
    former: Vec<Signed<Structure>>,
    /// What device 2 had pending.
    entry: Option<PendingEntry>,
    memberships: [Reference; 2],
}

impl Lies {
    pub(super) fn apply(&self, lie: Lie, reply: &mut ViewReply) {
        let view = &mut reply.view;
        let other = DeviceId(2);
        match lie {
            Lie::Rollback => *reply = self.yesterday.clone(),
            Lie::ReplayAnswer => *reply = self.latest.clone(),
            Lie::StaleSlot => {
                let former = self.former.iter().find(|former| former.value.device() == other);
                view.slots.insert(other, former.expect("kept").clone());
            }
            Lie::HideSlot => drop(view.slots.remove(&other)),
            Lie::DropPending => view.pending.retain(|entry| entry.dead),
            Lie::ReorderPending => {
                view.pending.reverse();
                forge_places(view);
            }
            Lie::ForgeForecast => {
                if let Some(entry) = view.pending.iter_mut().find(|entry| !entry.dead) {
                    entry.forecast.vector.set(super::GROUP, 1000);
                }
            }
            Lie::KillCommitted => {
                let Some(entry) = self.entry.clone() else { return };
                let former = self.former.iter().find(|former| former.value.device() == other);
                view.slots.insert(other, former.expect("kept").clone());
                view.pending.insert(0, PendingEntry { dead: true, ..entry });
            }
            Lie::ReviveDead => view.pending.iter_mut().for_each(|entry| entry.dead = false),
            Lie::AlterTable => {
                let Some(slot) = view.slots.get_mut(&other) else { return };
                slot.value.handles.values_mut().for_each(|handle| handle.reference.address = Digest::ZERO);
            }
            Lie::AlterCertificate => {
                view.pending.iter_mut().for_each(|entry| entry.certificate.value.deltas.clear());
            }
            Lie::NoWarrant => bring(view, other, self.memberships[0]),
            Lie::OldWarrant => bring(view, other, self.memberships[1]),
            Lie::ShortenLog => {
                view.log = self.yesterday.view.log;
                reply.peaks = self.yesterday.peaks.clone();
            }
            Lie::RewriteLog => view.log = LogHead { root: Digest::ZERO, ..view.log },
            _ => {}
        }
    }
}

/// A membership without a warrant, and one that the superuser once signed to follow another than the first.
fn unwarranted(blocks: &Rc<MemoryBlocks>) -> [Reference; 2] {
    let mut next = super::membership(3);
    next.groups.clear();
    next.version = 2;
    let superuser = device_key(DeviceId(0));
    let change = Change {
        file_system: superuser.public().file_system_id(),
        version: 0,
        follows: Digest::ZERO,
        next: next.undated(),
    };
    let old = change.enacted(2, Signed::new(change.clone(), &superuser).signature);
    let mut sink = &**blocks;
    [next, old].map(|membership| sink.put(membership.to_block(&DigestKey::WELL_KNOWN).expect("valid")))
}

/// Device 2 helps the server: it signs a structure that holds this membership as the next one.
fn bring(view: &mut View, device: DeviceId, reference: Reference) {
    let Some(slot) = view.slots.get_mut(&device) else { return };
    let mut structure = slot.value.clone();
    structure.forecast.vector.set(PrincipalId::Members, 2);
    structure.handles.insert(PrincipalId::Members, HandleVersion { version: 2, reference });
    *slot = Signed::new(structure, &device_key(device));
}

/// Exchanges the positions of the pending operations.
fn forge_places(view: &mut View) {
    let logs: Vec<LogHead> = view.pending.iter().rev().map(|entry| entry.forecast.log).collect();
    for (entry, log) in view.pending.iter_mut().zip(logs) {
        entry.forecast.log = log;
    }
}

/// A receipt that a lying server signs for anything.
pub(super) fn receipt_for(structure: &Structure) -> Signed<Receipt> {
    let receipt = Receipt {
        file_system: structure.forecast.file_system,
        device: structure.device(),
        number: structure.number(),
        structure: structure.digest(),
    };
    Signed::new(receipt, &server_key())
}
