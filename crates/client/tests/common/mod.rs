//! A server in the same process: the real sequencer, blocks in memory, and faults at will.
#![allow(missing_docs)]

pub mod site;

use holdfast_client::admin::{Admin, CreateConfig, Home, create_with};
use holdfast_client::remote::Remote;
use holdfast_client::{Changes, Edit, Engine, EngineConfig, FsError, Snapshot, StartError, View};
use holdfast_content::{
    BlockKind, DeviceId, Entry, GroupId, Handle, Inode, InodeKind, Membership, PrincipalId, StoredBlock,
};
use holdfast_crypto::{Digest, DigestKey, PublicKey, SigningKey};
use holdfast_log::Storage;
use holdfast_log::simulated::PowerLoss;
use holdfast_protocol::certificate::{Certificate, Delta};
use holdfast_protocol::history::{Archive, PastReply, PointPolicy};
use holdfast_protocol::leases::{LeaseGrant, Withheld};
use holdfast_protocol::log_tree::{UPDATES, consistency_proof};
use holdfast_protocol::message::{
    AddressedBlock, Request, Response, ServerError, ServerKeys, StoreHeader, ViewReply, Welcome,
};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::sequencer::{
    CommitOutcome, FastOutcome, OrderingStatus, Sequencer, Step, UpdateOutcome,
};
use holdfast_protocol::signed::Signed;
use holdfast_rpc::{Address, RpcError, ServerAddress};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

pub const NOW: i64 = 1_700_000_000_000_000_000;

/// A server in memory. It checks what an honest server checks, and panics where an honest client is at fault.
pub struct Server {
    key: SigningKey,
    state: Mutex<State>,
    settled: Condvar,
    started: Instant,
    abort_after: Duration,
    aged: Mutex<Duration>,
}

#[derive(Default)]
struct State {
    file_system: Option<FileSystem>,
    blocks: HashMap<Digest, StoredBlock>,
    dereferenced: Vec<Digest>,
    tampered: bool,
}

struct FileSystem {
    sequencer: Sequencer,
    keys: Signed<ServerKeys>,
    nodes: HashMap<(u8, u64), Digest>,
    records: Vec<Vec<u8>>,
    archive: Archive,
}

impl FileSystem {
    fn take<T>(&mut self, step: Step<T>) -> T {
        self.nodes.extend(step.nodes);
        self.records.extend(step.records.iter().map(|record| record.to_bytes()));
        for record in &step.records {
            let now_ns = self.records.len() as i64 * 1_000_000_000;
            self.archive.observe(&self.sequencer, record, now_ns, PointPolicy::LastOfSecond);
        }
        step.answer
    }

    fn past(&self, log_size: u64, known: u64) -> Option<Box<PastReply>> {
        let (view, newest) = self.archive.state(log_size)?;
        let mut node = |level: u8, index: u64| self.nodes.get(&(level, index)).copied();
        let slots = view.slots.values().map(|slot| &slot.value.forecast);
        let forecasts = slots.chain(view.pending.iter().map(|entry| &entry.forecast));
        let sizes: Vec<u64> = forecasts.map(|forecast| forecast.log.size).collect();
        let include = |size| UPDATES.inclusion_proof(size, log_size, &mut node).expect("all nodes are kept");
        let inclusion = sizes.into_iter().map(include).collect();
        let (mut peaks, mut first) = (Vec::new(), 0);
        for level in (0..64u8).rev().filter(|level| log_size >> level & 1 == 1) {
            peaks.push(self.nodes[&(level, first >> level)]);
            first += 1 << level;
        }
        let mut node = |level: u8, index: u64| self.nodes.get(&(level, index)).copied();
        let consistency = consistency_proof(log_size, known, &mut node).unwrap_or_default();
        Some(Box::new(PastReply { view, peaks, newest: newest.clone(), consistency, inclusion }))
    }

    fn prove(&self, log_size: u64, mut reply: ViewReply) -> ViewReply {
        reply.consistency = consistency_proof(log_size, reply.view.log.size, &mut |level, index| {
            self.nodes.get(&(level, index)).copied()
        })
        .unwrap_or_default();
        reply
    }
}

impl Server {
    pub fn new(abort_after: Duration) -> Arc<Server> {
        Arc::new(Server {
            key: SigningKey::from_seed(&[200; 32]),
            state: Mutex::default(),
            settled: Condvar::new(),
            started: Instant::now(),
            abort_after,
            aged: Mutex::default(),
        })
    }

    pub fn key(&self) -> PublicKey {
        self.key.public()
    }

    /// Replays the records into a new sequencer, as a server does that starts again.
    pub fn restart(&self) {
        let mut state = self.state.lock();
        let now_ms = self.now_ms();
        if let Some(fs) = &mut state.file_system {
            let abort_after = self.abort_after.as_millis() as u64;
            let (sequencer, _) = Sequencer::restore(None, &fs.records, abort_after, now_ms).unwrap();
            assert_eq!(sequencer.look().view, fs.sequencer.look().view);
            fs.sequencer = sequencer;
        }
    }

    /// Changes the stored blocks, as a malicious or careless operator does. From then on blocks may be missing.
    pub fn with_blocks<T>(&self, f: impl FnOnce(&mut HashMap<Digest, StoredBlock>) -> T) -> T {
        let mut state = self.state.lock();
        state.tampered = true;
        f(&mut state.blocks)
    }

    /// A copy of the order, to fork from or to roll back to.
    pub fn copy_order(&self) -> Vec<Vec<u8>> {
        self.state.lock().file_system.as_ref().unwrap().records.clone()
    }

    /// Puts an earlier order in place of the present one.
    pub fn roll_back(&self, records: Vec<Vec<u8>>) {
        let mut state = self.state.lock();
        let fs = state.file_system.as_mut().unwrap();
        let now_ms = self.now_ms();
        let abort_after = self.abort_after.as_millis() as u64;
        let (sequencer, _) = Sequencer::restore(None, &records, abort_after, now_ms).unwrap();
        fs.sequencer = sequencer;
        fs.records = records;
    }

    /// All leaves of the log of updates, and its nodes.
    pub fn log(&self) -> (Vec<Digest>, HashMap<(u8, u64), Digest>) {
        let state = self.state.lock();
        let fs = state.file_system.as_ref().unwrap();
        let leaves = (0..fs.sequencer.log_size()).map(|index| fs.nodes[&(0, index)]).collect();
        (leaves, fs.nodes.clone())
    }

    /// The server's private key.
    pub fn signing_key(&self) -> SigningKey {
        self.key.clone()
    }

    /// Moves the server's clock forward.
    pub fn age(&self, by: Duration) {
        *self.aged.lock() += by;
    }

    fn now_ms(&self) -> u64 {
        (self.started.elapsed() + *self.aged.lock()).as_millis() as u64
    }

    /// Another server with the same content: the other side of a fork.
    pub fn fork(&self) -> Arc<Server> {
        let other = Server::new(self.abort_after);
        let state = self.state.lock();
        let fs = state.file_system.as_ref().unwrap();
        *other.state.lock() = State {
            file_system: Some(FileSystem {
                sequencer: fs.sequencer.clone(),
                keys: fs.keys.clone(),
                nodes: fs.nodes.clone(),
                records: fs.records.clone(),
                archive: fs.archive.clone(),
            }),
            blocks: state.blocks.clone(),
            ..State::default()
        };
        drop(state);
        other
    }

    pub fn handle(&self, peer: PublicKey, request: Request) -> Response {
        let mut state = self.state.lock();
        let now_ms = self.now_ms();
        let store = |state: &mut State, blocks: Vec<AddressedBlock>| {
            for block in blocks {
                block
                    .block
                    .clone()
                    .open_any(&DigestKey::WELL_KNOWN, block.address, holdfast_content::BODY_BYTES_MAX)
                    .expect("an honest client's block is what it says");
                state.blocks.insert(block.address, block.block);
            }
        };
        if let Request::CreateFileSystem { superuser, server_keys, certificate, structure, blocks } = request
        {
            store(&mut state, blocks);
            let members = members_of(&state, &certificate.value).expect("it brings a membership");
            let abort_after = self.abort_after.as_millis() as u64;
            let step = Sequencer::create(superuser, certificate, structure, members, abort_after).unwrap();
            let records: Vec<Vec<u8>> = step.records.iter().map(|record| record.to_bytes()).collect();
            let nodes = step.nodes.into_iter().collect();
            let (sequencer, receipt) = step.answer;
            let mut archive = Archive::default();
            for record in &step.records {
                archive.observe(&sequencer, record, 0, PointPolicy::LastOfSecond);
            }
            state.file_system = Some(FileSystem { sequencer, keys: server_keys, nodes, records, archive });
            return Response::Committed(Signed::new(receipt, &self.key));
        }
        let Some(device) = state.file_system.as_ref().and_then(|fs| fs.sequencer.device(&peer)) else {
            return Response::Error(ServerError::NotAllowed("no member".into()));
        };
        let refused = |error: holdfast_protocol::sequencer::Refusal| Response::Error(error.into());
        match request {
            Request::Store(blocks) => {
                store(&mut state, blocks);
                Response::Done
            }
            Request::Retrieve(addresses) => Response::Blocks(
                addresses
                    .into_iter()
                    .map(|address| {
                        let block = state.blocks.get(&address)?.clone();
                        let header = StoreHeader { owner: DeviceId(0), stored_ns: 0 };
                        Some((header, AddressedBlock { address, block }))
                    })
                    .collect(),
            ),
            Request::Dereference(addresses) => {
                for address in &addresses {
                    state.blocks.remove(address);
                }
                let count = addresses.len() as u32;
                state.dereferenced.extend(addresses);
                Response::Dereferenced(count)
            }
            Request::Look { log_size } => {
                let fs = state.file_system.as_ref().unwrap();
                Response::View(Box::new(fs.prove(log_size, fs.sequencer.look())))
            }
            Request::Update { certificate, attached, log_size, by_difference, lease } => {
                store(&mut state, attached.blocks);
                let members = members_of(&state, &certificate.value);
                let certificate = certificate.verified(peer).expect("signed by its sender");
                let fs = state.file_system.as_mut().unwrap();
                match fs.sequencer.update(now_ms, device, &certificate, members) {
                    Err(error) => refused(error),
                    Ok(step) => match fs.take(step) {
                        UpdateOutcome::View(reply) => {
                            let reply = Box::new(fs.prove(log_size, *reply));
                            let grant = lease.map(|_| LeaseGrant::none(Withheld::default()));
                            // This server cannot tell what was ordered before and committed since. A client that
                            // misses something asks for the whole view.
                            let difference = by_difference.then(|| {
                                let slots = &reply.view.slots;
                                let ordered = |device| {
                                    slots.get(&device).map_or(0, |slot| slot.value.forecast.log.size)
                                };
                                Difference::of(&reply, log_size, |device| ordered(device) + 1 < log_size)
                            });
                            match (difference, grant) {
                                (Some(difference), Some(grant)) => {
                                    Response::LeasedDifference(difference, grant)
                                }
                                (Some(difference), None) => Response::Difference(difference),
                                (None, Some(grant)) => Response::LeasedView(reply, grant),
                                (None, None) => Response::View(reply),
                            }
                        }
                        UpdateOutcome::Aborted => Response::Aborted,
                        UpdateOutcome::Refused => Response::Refused,
                    },
                }
            }
            Request::Fast { certificate, structure, attached, lease, .. } => {
                store(&mut state, attached.blocks);
                if !tables_present(&state, &structure.value) {
                    return Response::Error(ServerError::Invalid("a table was never stored".into()));
                }
                let members = members_of(&state, &certificate.value);
                let certificate = certificate.verified(peer).expect("signed by its sender");
                let structure = structure.verified(peer).expect("signed by its sender");
                let fs = state.file_system.as_mut().unwrap();
                match fs.sequencer.fast(now_ms, device, &certificate, &structure, members) {
                    Err(error) => refused(error),
                    Ok(step) => match fs.take(step) {
                        FastOutcome::Accepted(receipt) => {
                            let receipt = Signed::new(receipt, &self.key);
                            match lease {
                                Some(_) => {
                                    Response::LeasedCommitted(receipt, LeaseGrant::none(Withheld::default()))
                                }
                                None => Response::Committed(receipt),
                            }
                        }
                        FastOutcome::Refused => Response::Refused,
                    },
                }
            }
            Request::Commit { structure, attached } => {
                store(&mut state, attached.blocks);
                if !tables_present(&state, &structure.value) {
                    return Response::Error(ServerError::Invalid("a table was never stored".into()));
                }
                let structure = structure.verified(peer).expect("signed by its sender");
                let fs = state.file_system.as_mut().unwrap();
                let response = match fs.sequencer.commit(device, &structure) {
                    Err(error) => refused(error),
                    Ok(step) => match fs.take(step) {
                        CommitOutcome::Committed(receipt) => {
                            Response::Committed(Signed::new(receipt, &self.key))
                        }
                        CommitOutcome::Aborted => Response::Aborted,
                    },
                };
                self.settled.notify_all();
                response
            }
            Request::FetchPending { device, number, wait_ms } => {
                let end = Instant::now() + Duration::from_millis(wait_ms.into());
                loop {
                    match state.file_system.as_ref().unwrap().sequencer.standing(device, number) {
                        OrderingStatus::Committed(structure) => return Response::Structure(Some(structure)),
                        OrderingStatus::Gone => return Response::Structure(None),
                        OrderingStatus::Pending => {
                            if self.settled.wait_until(&mut state, end).timed_out() {
                                return Response::Structure(None);
                            }
                        }
                    }
                }
            }
            Request::History { after, note } => {
                let fs = state.file_system.as_mut().unwrap();
                let now_ns = fs.records.len() as i64 * 1_000_000_000;
                if note && fs.archive.note(&fs.sequencer, now_ns, PointPolicy::LastOfSecond).is_none() {
                    return Response::Error(ServerError::Busy);
                }
                let (points, more) = fs.archive.points(after, 3);
                Response::History { points, more, named: fs.archive.snapshots().cloned().collect() }
            }
            Request::Past { log_size, known } => {
                Response::Past(state.file_system.as_ref().unwrap().past(log_size, known))
            }
            Request::NameSnapshot(snapshot) => {
                assert!(state.file_system.as_mut().unwrap().archive.name(snapshot), "it is kept");
                Response::Done
            }
            Request::EndSnapshot(end) => {
                state.file_system.as_mut().unwrap().archive.end(end);
                Response::Done
            }
            Request::Pin { .. } | Request::Snapshot | Request::Ping => Response::Done,
            Request::Present(addresses) => {
                let there = |address: &Digest| state.blocks.contains_key(address);
                Response::Present(addresses.iter().map(there).collect())
            }
            // Clients keep leaves to rebuild a lost server, and this one is never lost.
            Request::Leaves { .. } => Response::Leaves(Vec::new()),
            other => panic!("not served here: {other:?}"),
        }
    }
}

fn members_of(state: &State, certificate: &Certificate) -> Option<Membership> {
    let reference = certificate.deltas.iter().find_map(|delta| match delta {
        Delta::SetMembers { reference } => Some(*reference),
        _ => None,
    })?;
    let block = state.blocks.get(&reference.address).expect("it came along").clone();
    let block = block.open(&DigestKey::WELL_KNOWN, &reference, BlockKind::Membership).unwrap();
    Some(Membership::from_block(&block).unwrap())
}

/// Whether all tables of a structure are stored; then everything they reach must be, unless a test removed blocks.
fn tables_present(state: &State, structure: &holdfast_protocol::structure::Structure) -> bool {
    let tables = structure.handles.iter().map(|(principal, handle)| (principal, handle.reference.address));
    let present = tables.clone().all(|(_, table)| state.blocks.contains_key(&table));
    if present && !state.tampered {
        tables.for_each(|(principal, table)| assert_present(state, table, &format!("table of {principal}")));
    }
    present
}

/// Panics unless every block that a table reaches is stored: a client that commits what it never stored would make the
/// server look like one that loses data.
fn assert_present(state: &State, address: Digest, what: &str) {
    let mut stack = vec![address];
    let mut seen = std::collections::HashSet::new();
    while let Some(address) = stack.pop() {
        if !seen.insert(address) {
            continue;
        }
        let block = state.blocks.get(&address).unwrap_or_else(|| {
            let lost = state.dereferenced.contains(&address);
            panic!("{what}: block {address:?} was never stored, or dereferenced ({lost})")
        });
        stack.extend(&block.references);
    }
}

/// What happens to a request on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The request arrives, and so does its answer.
    None,
    /// The server never sees the request.
    LoseRequest,
    /// The server handles the request, and its answer gets lost.
    LoseAnswer,
}

type Faults = Box<dyn FnMut(&Request) -> Fault + Send>;
type Tamper = Box<dyn FnMut(&mut Response) + Send>;
type Forger = Box<dyn FnMut(&Request) -> Option<Response> + Send>;

/// A client's link to the server, with the faults that a test injects.
pub struct Link {
    server: Mutex<Arc<Server>>,
    peer: PublicKey,
    faults: Mutex<Option<Faults>>,
    down: Mutex<bool>,
    refused: AtomicU64,
    forger: Mutex<Option<Forger>>,
    tampers: Mutex<Option<Tamper>>,
}

impl Link {
    pub fn new(server: &Arc<Server>, key: &SigningKey) -> Arc<Link> {
        Arc::new(Link {
            server: Mutex::new(server.clone()),
            peer: key.public(),
            faults: Mutex::new(None),
            down: Mutex::new(false),
            refused: AtomicU64::new(0),
            forger: Mutex::new(None),
            tampers: Mutex::new(None),
        })
    }

    pub fn set_faults(&self, faults: impl FnMut(&Request) -> Fault + Send + 'static) {
        *self.faults.lock() = Some(Box::new(faults));
    }

    pub fn clear_faults(&self) {
        *self.faults.lock() = None;
    }

    /// Alters the server's answers.
    pub fn tamper(&self, tamper: impl FnMut(&mut Response) + Send + 'static) {
        *self.tampers.lock() = Some(Box::new(tamper));
    }

    /// Answers requests in the server's place, where `forger` has an answer.
    pub fn forge(&self, forger: impl FnMut(&Request) -> Option<Response> + Send + 'static) {
        *self.forger.lock() = Some(Box::new(forger));
    }

    pub fn set_down(&self, down: bool) {
        *self.down.lock() = down;
    }

    /// The number of requests that were made while the link was down.
    pub fn refused(&self) -> u64 {
        self.refused.load(SeqCst)
    }

    pub fn redirect(&self, server: &Arc<Server>) {
        *self.server.lock() = server.clone();
    }
}

impl Remote for Link {
    fn call(&self, request: Request, _deadline: Duration) -> Result<Response, RpcError> {
        if *self.down.lock() {
            self.refused.fetch_add(1, SeqCst);
            return Err(RpcError::Unreachable { address: "test".into(), why: "down".into() });
        }
        let fault = self.faults.lock().as_mut().map_or(Fault::None, |faults| faults(&request));
        if fault == Fault::LoseRequest {
            return Err(RpcError::Lost { maybe_sent: true });
        }
        let server = self.server.lock().clone();
        let forged = self.forger.lock().as_mut().and_then(|forger| forger(&request));
        let mut response = forged.unwrap_or_else(|| server.handle(self.peer, request));
        if let Some(tamper) = &mut *self.tampers.lock() {
            tamper(&mut response);
        }
        match (fault, response) {
            (Fault::LoseAnswer, _) => Err(RpcError::Lost { maybe_sent: true }),
            (_, Response::Error(error)) => Err(error.into()),
            (_, response) => Ok(response),
        }
    }

    fn welcome(&self) -> Option<Welcome> {
        let server = self.server.lock().clone();
        let state = server.state.lock();
        let fs = state.file_system.as_ref();
        Some(Welcome {
            version: 1,
            file_system: fs.map(|fs| (fs.sequencer.superuser(), fs.keys.clone())),
            device: fs.and_then(|fs| fs.sequencer.device(&self.peer)),
            abort_after_ms: server.abort_after.as_millis() as u32,
        })
    }

    fn is_connected(&self) -> bool {
        !*self.down.lock()
    }

    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }
}

/// A device: its key, its state on a simulated disk, and its link to the server.
pub struct Machine {
    pub key: SigningKey,
    pub disk: PowerLoss,
    pub directory: tempfile::TempDir,
    pub link: Arc<Link>,
}

impl Machine {
    pub fn new(server: &Arc<Server>, seed: u8) -> Machine {
        let key = SigningKey::from_seed(&[seed; 32]);
        let link = Link::new(server, &key);
        Machine { key, disk: PowerLoss::new(seed.into()), directory: tempfile::tempdir().unwrap(), link }
    }

    pub fn config(&self, superuser: &PublicKey, deadline: Duration) -> EngineConfig {
        let address = Address {
            server: ServerAddress { host: "test".into(), port: 1 },
            others: Vec::new(),
            file_system: superuser.file_system_id(),
        };
        let mut config = EngineConfig::new(address, self.key.clone(), self.directory.path().to_owned());
        config.deadline = deadline;
        config.memory_bytes = 64 << 20;
        config
    }

    pub fn start(&self, superuser: &PublicKey, deadline: Duration) -> Result<Arc<Engine>, StartError> {
        self.start_with(self.config(superuser, deadline))
    }

    pub fn start_with(&self, config: EngineConfig) -> Result<Arc<Engine>, StartError> {
        Engine::start_with(config, self.link.clone(), self.disk.storage())
    }
}

pub const DEADLINE: Duration = holdfast_testing::PATIENCE;

/// An abort time-out that runs out only when a test makes its server older ([`Server::age`]).
pub const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A file system with a superuser, some users with a device each, and the group `team` of them all.
pub struct World {
    pub server: Arc<Server>,
    pub superuser: PublicKey,
    pub root: Machine,
    pub users: Vec<Machine>,
    pub group: GroupId,
    pub group_dir: Handle,
}

impl World {
    pub fn new(users: u8, abort_after: Duration) -> World {
        let server = Server::new(abort_after);
        let root = Machine::new(&server, 1);
        let superuser = root.key.public();
        let config = CreateConfig {
            server: ServerAddress { host: "test".into(), port: 1 },
            others: Vec::new(),
            superuser: root.key.clone().into(),
            name: "world".into(),
            superuser_name: "root".into(),
            state_dir: PathBuf::from("-"),
            now_ns: NOW,
            deadline: DEADLINE,
        };
        let storage: Arc<dyn Storage> = root.disk.storage();
        create_with(&config, config.deadline, &*root.link, server.key(), storage).unwrap();
        let machines: Vec<Machine> = (0..users).map(|n| Machine::new(&server, 10 + n)).collect();
        let engine = root.start(&superuser, DEADLINE).unwrap();
        let admin = Admin::new(&engine).unwrap();
        let names: Vec<String> = (0..users).map(|n| format!("user{n}")).collect();
        for (name, machine) in names.iter().zip(&machines) {
            admin.add_user(name, Some(("laptop", machine.key.public())), Home::Make, NOW).unwrap();
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let group = admin.add_group("team", &names, Home::Make, NOW).unwrap();
        let group_dir = engine.fetch().unwrap().entry(Handle::ROOT, b"team").unwrap().unwrap().handle;
        engine.stop();
        World { server, superuser, root, users: machines, group, group_dir }
    }

    pub fn start(&self, user: usize) -> Arc<Engine> {
        self.users[user].start(&self.superuser, DEADLINE).unwrap()
    }

    pub fn principal(&self) -> PrincipalId {
        PrincipalId::Group(self.group)
    }
}

/// An edit of a test: a closure that reads and changes the tree.
pub trait EditClosure: FnMut(&mut dyn Changes) -> Result<(), FsError> + Send + 'static {}

impl<F: FnMut(&mut dyn Changes) -> Result<(), FsError> + Send + 'static> EditClosure for F {}

/// Stops an engine and drops it, so that its machine may start another.
pub fn stop(engine: Arc<Engine>) {
    engine.stop();
}

/// Runs an edit, and returns the view it is in as soon as it is ordered.
pub fn modify(engine: &Engine, edit: impl EditClosure) -> Result<Arc<Snapshot>, FsError> {
    let edit: Arc<Mutex<dyn Edit>> = Arc::new(Mutex::new(edit));
    engine.modify(edit)
}

/// Runs an edit, and waits until everything of this engine is committed.
pub fn commit(engine: &Engine, edit: impl EditClosure) {
    modify(engine, edit).unwrap();
    engine.flush_commits().unwrap();
}

/// An edit that makes a small file, unless the name is taken.
pub fn create(directory: Handle, name: &str, bytes: &[u8]) -> impl EditClosure + use<> {
    let (name, bytes) = (name.as_bytes().to_vec(), bytes.to_vec());
    move |changes| {
        if changes.inode(directory)?.kind != InodeKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if changes.entry(directory, &name)?.is_some() {
            return Err(FsError::Exists);
        }
        let handle = changes.allocate(directory.principal)?;
        let mut inode = Inode::new(InodeKind::File, 0o644, changes.me(), NOW);
        inode.size = bytes.len() as u64;
        if !bytes.is_empty() {
            inode.content = holdfast_content::Content::Inline(bytes.clone());
        }
        changes.set_inode(handle, inode)?;
        let entry = Entry { handle, kind: InodeKind::File };
        changes.set_entry(directory, &name, Some(entry), NOW)
    }
}

/// An edit that replaces a file's content.
pub fn write(directory: Handle, name: &str, bytes: &[u8]) -> impl EditClosure + use<> {
    let (name, bytes) = (name.as_bytes().to_vec(), bytes.to_vec());
    move |changes| {
        let entry = changes.entry(directory, &name)?.ok_or(FsError::NotFound)?;
        let mut inode = Inode::clone(&*changes.inode(entry.handle)?);
        inode.size = bytes.len() as u64;
        inode.content = match bytes.is_empty() {
            true => holdfast_content::Content::None,
            false => holdfast_content::Content::Inline(bytes.clone()),
        };
        changes.set_inode(entry.handle, inode)
    }
}

/// An edit that removes a file.
pub fn unlink(directory: Handle, name: &str) -> impl EditClosure + use<> {
    let name = name.as_bytes().to_vec();
    move |changes| {
        let entry = changes.entry(directory, &name)?.ok_or(FsError::NotFound)?;
        changes.set_entry(directory, &name, None, NOW)?;
        changes.remove_inode(entry.handle)
    }
}

/// The bytes of a file that is small enough to be in its inode.
pub fn read(snapshot: &Snapshot, directory: Handle, name: &str) -> Result<Vec<u8>, FsError> {
    let entry = snapshot.entry(directory, name.as_bytes())?.ok_or(FsError::NotFound)?;
    let inode = snapshot.inode(entry.handle)?;
    Ok(match &inode.content {
        holdfast_content::Content::Inline(bytes) => bytes.clone(),
        _ => Vec::new(),
    })
}

/// All names in a directory, sorted.
pub fn names(snapshot: &Snapshot, directory: Handle) -> Vec<String> {
    let entries = snapshot.entries(directory, None, usize::MAX >> 1).unwrap();
    entries.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
}
