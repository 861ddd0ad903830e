//! An honest server, realistic clients, and an unreliable network, under virtual time.
//!
//! Proves, seed by seed: no alarm; no answer but the expected ones; everything acknowledged is there at the end,
//! in the order of the log, for every client; nothing that was reported as not done is; nothing that was signed
//! contradicts anything else that was; and there is an end.

use super::client::{Client, ClientAction, WorldRequest};
use super::ledger::{Ledger, OperationKnowledge};
use super::server::Server;
use super::{GROUP, device_key, found, tables};
use crate::random::Random;
use holdfast_content::{DeviceId, MemoryBlocks, PrincipalId};
use holdfast_crypto::{Digest, DigestKey};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::judge::{Exhibit, Suspect, contradictions};
use holdfast_protocol::message::{Request, Response};
use holdfast_protocol::signed::{Signable, Signed};
use holdfast_protocol::structure::{Outcome, Structure};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::rc::Rc;

/// The rates of faults.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    /// Clients besides the superuser's.
    pub clients: u32,
    /// Operations that each client makes.
    pub operations: u64,
    /// Of a hundred messages, how many are lost.
    pub loss: u64,
    /// Of a hundred messages, how many arrive twice.
    pub twice: u64,
    /// The longest delay of a message, in milliseconds.
    pub delay_ms: u64,
    /// Of a hundred effects, before how many the client crashes.
    pub client_crash: u64,
    /// Of a hundred requests, after how many the server crashes.
    pub server_crash: u64,
    /// Of a hundred folds, how many take longer than the abort time-out.
    pub slow_fold: u64,
    /// The abort time-out, in milliseconds.
    pub abort_after_ms: u64,
}

impl Weather {
    /// Nothing ever goes wrong.
    pub const CALM: Weather = Weather {
        clients: 3,
        operations: 30,
        loss: 0,
        twice: 0,
        delay_ms: 20,
        client_crash: 0,
        server_crash: 0,
        slow_fold: 0,
        abort_after_ms: 2_000,
    };

    /// Every fault happens.
    pub const STORM: Weather = Weather {
        loss: 10,
        twice: 10,
        delay_ms: 100,
        client_crash: 3,
        server_crash: 3,
        slow_fold: 5,
        ..Weather::CALM
    };
}

/// The outcome of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Operations committed.
    pub committed: u64,
    /// Of these, without effect.
    pub nothing: u64,
    /// Operations not accepted, aborted or given up.
    pub failed: u64,
    /// Length of the log of updates.
    pub log: u64,
    /// Virtual milliseconds.
    pub time_ms: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    Begin(usize),
    ToServer { client: usize, id: u64, message: u64 },
    ToClient { client: usize, id: u64, message: u64 },
    TimeOut { client: usize, id: u64 },
    Fold { client: usize, generation: u64 },
    Restart(usize),
    Sync,
}

struct World {
    random: Random,
    weather: Weather,
    blocks: Rc<MemoryBlocks>,
    server: Server,
    clients: Vec<Client>,
    /// For each client: the request whose answer it waits for, the wait for another's structure, and a number that
    /// grows with each crash.
    waiting: Vec<(u64, u64, u64)>,
    ledger: Ledger,
    now_ms: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    sequence: u64,
    next_id: u64,
    requests: BTreeMap<u64, Request>,
    responses: BTreeMap<u64, Response>,
    unsynced: Vec<(usize, u64, Response)>,
    sent_twice: BTreeMap<u64, u32>,
    /// Certificates of all operations ever ordered, by device and number.
    certificates: BTreeMap<(DeviceId, u64), Certificate>,
    report: Report,
    acknowledged: Vec<((DeviceId, u64), Outcome)>,
    failed: Vec<(DeviceId, u64)>,
    /// Every structure ever signed, refused ones included, and every receipt.
    signed: Vec<Signed<Structure>>,
    receipts: BTreeSet<Digest>,
}

/// Runs one seed.
///
/// # Panics
/// If anything is not as it must be; the message names it.
pub fn run(seed: u64, weather: Weather) -> Report {
    let mut world = World::new(seed, weather);
    world.play();
    world.finish()
}

impl World {
    fn new(seed: u64, weather: Weather) -> World {
        let mut random = Random::new(seed);
        let blocks = Rc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
        let (signer, _, request) = found(&blocks, weather.clients);
        let mut ledger = Ledger::default();
        let certificates = match &request {
            Request::Fast { certificate, structure, .. } => {
                ledger.sign(DeviceId(0), &structure.value);
                BTreeMap::from([((DeviceId(0), 1), certificate.value.clone())])
            }
            _ => unreachable!("founding operations are fast"),
        };
        let (server, receipt) = Server::create(blocks.clone(), weather.abort_after_ms, request);
        let mut superuser = Client::with_signer(signer, blocks.clone());
        superuser.answer(receipt, &mut random, &mut ledger, 0);
        assert!(superuser.is_idle(), "the founding operation is committed");
        let mut clients = vec![superuser];
        clients.extend((1..=weather.clients).map(|id| Client::new(DeviceId(id), blocks.clone())));
        for (index, client) in clients.iter_mut().enumerate() {
            let count = if index == 0 { weather.operations / 6 } else { weather.operations };
            for _ in 0..count {
                let action = match random.below(10) {
                    0 | 1 => ClientAction::Fetch,
                    2 | 3 => ClientAction::Own,
                    4..=6 => ClientAction::Group,
                    7 | 8 => ClientAction::GroupIfFree,
                    _ if index == 0 || random.chance(30) => ClientAction::Members,
                    _ => ClientAction::Own,
                };
                client.wishes.push(action);
            }
        }
        let mut world = World {
            random,
            weather,
            blocks,
            server,
            waiting: vec![(0, 0, 0); clients.len()],
            clients,
            ledger,
            now_ms: 0,
            queue: BinaryHeap::new(),
            sequence: 0,
            next_id: 1,
            requests: BTreeMap::new(),
            responses: BTreeMap::new(),
            unsynced: Vec::new(),
            sent_twice: BTreeMap::new(),
            certificates,
            report: Report::default(),
            acknowledged: Vec::new(),
            failed: Vec::new(),
            signed: Vec::new(),
            receipts: BTreeSet::new(),
        };
        for client in 0..world.clients.len() {
            world.after(0, Happening::Begin(client));
        }
        world
    }

    fn after(&mut self, delay_ms: u64, happening: Happening) {
        self.sequence += 1;
        self.queue.push(Reverse((self.now_ms + delay_ms, self.sequence, happening)));
    }

    fn play(&mut self) {
        let end_ms = 3_600_000;
        while let Some(Reverse((time_ms, _, happening))) = self.queue.pop() {
            self.now_ms = time_ms;
            assert!(time_ms < end_ms, "no progress: operations are still waiting after an hour");
            self.happen(happening);
        }
        for client in &self.clients {
            assert!(client.wishes.is_empty(), "device {} still has wishes", client.device.0);
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Begin(client) => self.begin(client),
            Happening::ToServer { client, id, message } => self.arrive_at_server(client, id, message),
            Happening::ToClient { client, id, message } => self.arrive_at_client(client, id, message),
            Happening::TimeOut { client, id } => {
                if self.waiting[client].0 == id {
                    let wanted = self.clients[client].connection_lost(&mut self.random, &mut self.ledger);
                    self.carry_out(client, wanted);
                } else if self.waiting[client].1 == id {
                    self.waiting[client].1 = 0;
                }
            }
            Happening::Fold { client, generation } => {
                if self.waiting[client].2 == generation {
                    let crash = self.weather.client_crash;
                    let wanted = self.clients[client].fold(&mut self.random, &mut self.ledger, crash);
                    self.carry_out(client, wanted);
                }
            }
            Happening::Restart(client) => {
                let wanted = self.clients[client].restart(&mut self.random, &mut self.ledger);
                self.carry_out(client, wanted);
            }
            Happening::Sync => {
                self.server.sync();
                for (client, id, response) in std::mem::take(&mut self.unsynced) {
                    self.transmit(Some(response), None, client, id);
                }
                if self.random.chance(5) {
                    self.server.write_checkpoint();
                }
            }
        }
    }

    fn begin(&mut self, client: usize) {
        let crash = self.weather.client_crash;
        if self.clients[client].is_idle() {
            self.wait_for_another(client);
            let wanted = self.clients[client].begin(&mut self.random, &mut self.ledger, crash);
            self.carry_out(client, wanted);
        }
    }

    /// Sometimes waits for what another has pending, as a reader does.
    fn wait_for_another(&mut self, client: usize) {
        let signer = self.clients[client].signer().expect("idle");
        let live = signer.floor().view.pending.iter().find(|entry| !entry.dead);
        let Some(entry) = live else { return };
        let (device, number) = (entry.forecast.device, entry.forecast.number());
        if self.waiting[client].1 == 0 && self.random.chance(50) {
            let request = Request::FetchPending { device, number, wait_ms: 0 };
            self.waiting[client].1 = self.send(client, request);
        }
    }

    fn send(&mut self, client: usize, request: Request) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.transmit(None, Some(request), client, id);
        let patience = 4 * self.weather.delay_ms + 50;
        self.after(patience, Happening::TimeOut { client, id });
        id
    }

    fn transmit(&mut self, response: Option<Response>, request: Option<Request>, client: usize, id: u64) {
        let copies = match () {
            () if self.random.chance(self.weather.loss) => 0,
            () if self.random.chance(self.weather.twice) => 2,
            () => 1,
        };
        for _ in 0..copies {
            let message = self.next_id;
            self.next_id += 1;
            // Copies may come much later than what was sent after them.
            let late = if copies > 1 && self.random.chance(30) { 20 } else { 1 };
            let delay = 1 + self.random.below(self.weather.delay_ms * late);
            if let Some(response) = &response {
                self.responses.insert(message, response.clone());
                self.after(delay, Happening::ToClient { client, id, message });
            }
            if let Some(request) = &request {
                *self.sent_twice.entry(id).or_default() += u32::from(copies > 1);
                self.requests.insert(message, request.clone());
                self.after(delay, Happening::ToServer { client, id, message });
            }
        }
    }

    fn arrive_at_server(&mut self, client: usize, id: u64, message: u64) {
        let request = self.requests.remove(&message).expect("sent");
        let device = self.clients[client].device;
        let response = self.server.handle(self.now_ms, device, request.clone());
        if let (Request::Update { certificate, .. } | Request::Fast { certificate, .. }, true) =
            (&request, matches!(response, Response::View(_) | Response::Committed(_)))
        {
            let certificate = &certificate.value;
            let known =
                self.certificates.entry((device, certificate.number)).or_insert_with(|| certificate.clone());
            assert_eq!(known.digest(), certificate.digest(), "a number is used once");
        }
        if self.random.chance(self.weather.server_crash) {
            self.unsynced.clear();
            self.server.crash(self.now_ms);
            return;
        }
        if self.unsynced.is_empty() {
            self.after(1, Happening::Sync);
        }
        self.unsynced.push((client, id, response));
    }

    fn arrive_at_client(&mut self, client: usize, id: u64, message: u64) {
        let response = self.responses.remove(&message).expect("sent");
        if let Response::Committed(receipt) = &response {
            self.receipts.insert(receipt.value.structure);
        }
        let crash = self.weather.client_crash;
        if self.waiting[client].1 == id {
            self.waiting[client].1 = 0;
            self.clients[client].learn(response, &mut self.random, &mut self.ledger);
            self.assert_no_alarm(client);
            return;
        }
        if self.waiting[client].0 != id {
            return;
        }
        self.waiting[client].0 = 0;
        let wanted = self.clients[client].answer(response, &mut self.random, &mut self.ledger, crash);
        assert!(self.clients[client].errors.is_empty(), "refused: {:?}", self.clients[client].errors);
        self.carry_out(client, wanted);
    }

    fn assert_no_alarm(&self, client: usize) {
        let alarms = &self.clients[client].alarms;
        assert!(
            alarms.is_empty(),
            "false alarm at device {}: {}",
            self.clients[client].device.0,
            alarms[0].explain()
        );
    }

    fn carry_out(&mut self, client: usize, wanted: Vec<WorldRequest>) {
        self.assert_no_alarm(client);
        for want in wanted {
            match want {
                WorldRequest::Send(request) => {
                    match &*request {
                        Request::Fast { structure, .. } | Request::Commit { structure, .. } => {
                            self.signed.push(structure.clone());
                        }
                        _ => {}
                    }
                    self.waiting[client].0 = self.send(client, *request);
                }
                WorldRequest::Fold => {
                    let slow = self.random.chance(self.weather.slow_fold);
                    let delay = if slow { self.weather.abort_after_ms * 2 } else { self.random.below(10) };
                    let generation = self.waiting[client].2;
                    self.after(delay, Happening::Fold { client, generation });
                }
            }
        }
        let device = self.clients[client].device;
        for ended in std::mem::take(&mut self.clients[client].ended) {
            match ended.outcome {
                Some(outcome) => {
                    self.report.committed += 1;
                    self.report.nothing += u64::from(outcome == Outcome::Nothing);
                    self.acknowledged.push(((device, ended.number), outcome));
                }
                None => {
                    self.report.failed += 1;
                    self.failed.push((device, ended.number));
                }
            }
        }
        if self.clients[client].is_down() {
            let (_, _, generation) = self.waiting[client];
            self.waiting[client] = (0, 0, generation + 1);
            let long = self.random.chance(20);
            let delay = if long { self.weather.abort_after_ms * 3 } else { 10 };
            self.after(delay, Happening::Restart(client));
        } else if self.clients[client].is_idle() && !self.clients[client].wishes.is_empty() {
            let pause = self.random.below(50);
            self.after(pause, Happening::Begin(client));
        }
    }

    /// No more faults, one last fetch by every client, and the final checks.
    fn finish(mut self) -> Report {
        self.report.time_ms = self.now_ms;
        self.weather = Weather { clients: self.weather.clients, ..Weather::CALM };
        for round in 0..3 {
            for client in 0..self.clients.len() {
                self.clients[client].wishes.push(ClientAction::Fetch);
                self.after(round, Happening::Begin(client));
                self.play();
            }
        }
        let truth = self.server.sequencer().look().view;
        self.report.log = truth.log.size;
        assert!(truth.pending.is_empty(), "everybody came back, so nothing is left pending");

        let mut operations: Vec<(u64, &Certificate)> = Vec::new();
        for ((device, number), certificate) in &self.certificates {
            if truth.status_of(*device, *number) == holdfast_content::OperationStatus::Committed {
                let place = self.place(*device, *number);
                operations.push((place, certificate));
            }
        }
        operations.sort_by_key(|(place, _)| *place);
        let mut principals = vec![GROUP];
        principals.extend(self.clients.iter().map(|client| PrincipalId::Device(client.device)));
        for client in &self.clients {
            let view = &client.signer().expect("up").floor().view;
            for principal in &principals {
                let expected =
                    tables::expected(operations.iter().map(|(_, certificate)| *certificate), *principal);
                let found = tables::contents(&self.blocks, view, *principal);
                assert_eq!(found, expected, "table of {principal} as device {} sees it", client.device.0);
            }
        }
        for ((device, number), outcome) in &self.acknowledged {
            let known_outcome = truth.status_of(*device, *number);
            let expected = match outcome {
                Outcome::Done => holdfast_content::OperationStatus::Committed,
                Outcome::Nothing => holdfast_content::OperationStatus::Aborted,
            };
            assert_eq!(known_outcome, expected, "acknowledged operation {number} of device {}", device.0);
        }
        for (device, number) in &self.failed {
            let known_outcome = truth.status_of(*device, *number);
            assert_ne!(
                known_outcome,
                holdfast_content::OperationStatus::Committed,
                "failed operation {number} of device {}",
                device.0
            );
        }
        for client in &self.clients {
            let history = self.ledger.history(client.device);
            for (operation, _) in &self.acknowledged {
                assert_ne!(
                    history.known_outcome(*operation),
                    Some(OperationKnowledge::Aborted),
                    "{operation:?} is acknowledged"
                );
            }
        }
        self.convict_nobody();
        self.report
    }

    /// No third party finds anything wrong in what was signed; and whatever one member then signs on top of it, nobody
    /// else is convicted.
    fn convict_nobody(&mut self) {
        let exhibit = |structure| self.exhibit(structure);
        let mut exhibits: Vec<Exhibit<'_>> = self.signed.iter().map(exhibit).collect();
        assert_eq!(contradictions(&exhibits), [], "an honest history convicts");
        let liar = DeviceId(1);
        let mut forged = Vec::new();
        for _ in 0..20 {
            let mut structure = self.random.pick(&self.signed).value.clone();
            structure.forecast.device = liar;
            for device in 0..=self.weather.clients {
                if self.random.chance(50) {
                    let number = self.random.below(40);
                    structure.forecast.vector.set(PrincipalId::Device(DeviceId(device)), number);
                }
            }
            structure.forecast.log.size = self.random.below(self.report.log + 10);
            forged.push(Signed::new(structure, &device_key(liar)));
        }
        exhibits.extend(forged.iter().map(|structure| Exhibit { structure, acknowledged: false }));
        let found = contradictions(&exhibits);
        assert!(!found.is_empty(), "twenty forgeries contradict something");
        for clash in found {
            let suspects = clash.suspects.0;
            assert!(suspects.contains(&Suspect::Device(liar)), "the liar is left out: {suspects:?}");
        }
    }

    fn exhibit<'a>(&self, structure: &'a Signed<Structure>) -> Exhibit<'a> {
        Exhibit { structure, acknowledged: self.receipts.contains(&structure.value.digest()) }
    }

    /// An operation's position in the log.
    fn place(&self, device: DeviceId, number: u64) -> u64 {
        self.server.places().get(&(device, number)).copied().expect("every committed operation was ordered")
    }
}
