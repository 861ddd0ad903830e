//! Trees and plans of several devices against a plain model of directories, under random interleavings of UPDATEs and
//! COMMITs, aborts, conflicts, fast operations and folding. No network, no threads, no clock.
//!
//! In the model, operations take effect one after the other in the order of their UPDATEs: those that were committed with
//! effect, and no others. Every device must read exactly that, and every operation that claims an effect must have been
//! possible at its position in the order.

use holdfast_client::FsError;
use holdfast_client::store::Blocks;
use holdfast_client::tree::{Allocator, Base, Changes, Plan, ReadError, TableCache, Transaction};
use holdfast_content::{
    Content, Device, DeviceId, Entry, Group, GroupId, Handle, Inode, InodeKind, Membership, MemoryBlocks,
    PrincipalId, Tag, User, UserId,
};
use holdfast_crypto::{DigestKey, SigningKey};
use holdfast_protocol::certificate::Path;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::log_tree::{Node, consistency_proof};
use holdfast_protocol::message::{Receipt, Request, ServerKeys, ViewReply};
use holdfast_protocol::sequencer::{CommitOutcome, FastOutcome, Sequencer, Step, UpdateOutcome};
use holdfast_protocol::signed::Signed;
use holdfast_protocol::signer::{Effect, Event, OperationEnd, Signer, Tables};
use holdfast_protocol::structure::Outcome;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

const DEVICES: usize = 3;
const DIRECTORIES: usize = 3;
const ABORT_AFTER_MS: u64 = 1000;

/// A change that an application asks for.
#[derive(Clone, Debug)]
enum EditRequest {
    Create(usize, u8),
    Unlink(usize, u8),
    Write(usize, u8),
    /// Renames; a file that has the new name is replaced.
    Rename(usize, u8, usize, u8),
    /// Gives a file another name.
    Link(usize, u8, usize, u8),
    Chmod(usize),
    /// Removes a directory, and fails unless it is empty.
    Seal(usize),
    Look,
}

#[derive(Clone, Debug)]
enum Action {
    /// Begin an operation of these requests, after finishing what is left of the device's last one.
    Begin(usize, Vec<EditRequest>),
    /// Send the COMMIT.
    Commit(usize),
    /// Die before the COMMIT: the device comes back later and gives the operation's number up.
    Forget(usize),
    /// Make the pending operations older than the abort time-out.
    Wait,
}

fn request() -> impl Strategy<Value = EditRequest> {
    // A few names are chosen often, for conflicts; many rarely, so that change lists are folded.
    let name = || prop_oneof![2 => 0u8..4, 1 => 4u8..120];
    let directory = || 0..DIRECTORIES;
    prop_oneof![
        6 => (directory(), name()).prop_map(|(d, n)| EditRequest::Create(d, n)),
        3 => (directory(), name()).prop_map(|(d, n)| EditRequest::Unlink(d, n)),
        3 => (directory(), name()).prop_map(|(d, n)| EditRequest::Write(d, n)),
        2 => (directory(), name(), directory(), name()).prop_map(|(a, b, c, d)| EditRequest::Rename(a, b, c, d)),
        1 => (directory(), name(), directory(), name()).prop_map(|(a, b, c, d)| EditRequest::Link(a, b, c, d)),
        1 => directory().prop_map(EditRequest::Chmod),
        1 => directory().prop_map(EditRequest::Seal),
        2 => Just(EditRequest::Look),
    ]
}

fn action() -> impl Strategy<Value = Action> {
    let device = || 0..DEVICES;
    prop_oneof![
        8 => (device(), prop::collection::vec(request(), 1..6)).prop_map(|(d, w)| Action::Begin(d, w)),
        6 => device().prop_map(Action::Commit),
        1 => device().prop_map(Action::Forget),
        1 => Just(Action::Wait),
    ]
}

/// The model: directories as maps of names, files as bytes.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Model {
    names: Vec<BTreeMap<u8, Handle>>,
    files: BTreeMap<Handle, u64>,
    modes: Vec<u32>,
}

/// The effect of a request as it was planned: enough to apply it to the model.
#[derive(Clone, Debug, PartialEq, Eq)]
enum EditKind {
    Create(usize, u8, Handle, u64),
    Unlink(usize, u8),
    Write(usize, u8, u64),
    Rename(usize, u8, usize, u8),
    Link(usize, u8, usize, u8),
    Chmod(usize, u32),
    Seal(usize),
    Look,
}

impl Model {
    fn drop_if_unnamed(&mut self, file: Handle) {
        if !self.names.iter().any(|names| names.values().any(|other| *other == file)) {
            self.files.remove(&file);
        }
    }

    /// Applies an effect, which must be possible.
    fn apply(&mut self, edit: &EditKind) {
        match *edit {
            EditKind::Create(d, n, handle, value) => {
                assert!(self.names[d].insert(n, handle).is_none(), "{edit:?}: the name is taken");
                assert!(self.files.insert(handle, value).is_none(), "{edit:?}: the number is taken");
            }
            EditKind::Unlink(d, n) => {
                let file = self.names[d].remove(&n).unwrap_or_else(|| panic!("{edit:?}: no such name"));
                self.drop_if_unnamed(file);
            }
            EditKind::Write(d, n, value) => {
                let file = self.names[d].get(&n).unwrap_or_else(|| panic!("{edit:?}: no such name"));
                *self.files.get_mut(file).expect("a named file is there") = value;
            }
            EditKind::Rename(a, b, c, d) => {
                let file = self.names[a].remove(&b).unwrap_or_else(|| panic!("{edit:?}: no such name"));
                if let Some(old) = self.names[c].insert(d, file) {
                    self.drop_if_unnamed(old);
                }
            }
            EditKind::Link(a, b, c, d) => {
                let file = *self.names[a].get(&b).unwrap_or_else(|| panic!("{edit:?}: no such name"));
                assert!(self.names[c].insert(d, file).is_none(), "{edit:?}: the name is taken");
            }
            EditKind::Chmod(d, mode) => self.modes[d] = mode,
            EditKind::Seal(d) => {
                assert!(self.names[d].is_empty(), "{edit:?}: not empty");
                self.modes[d] = 0o500;
            }
            EditKind::Look => {}
        }
    }
}

/// An operation as it was ordered.
struct Ordered {
    device: DeviceId,
    number: u64,
    edits: Vec<EditKind>,
    status: OperationStatus,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OperationStatus {
    Pending,
    Effective,
    Nothing,
}

struct TestServer {
    sequencer: Sequencer,
    nodes: HashMap<(u8, u64), holdfast_crypto::Digest>,
    key: SigningKey,
    now_ms: u64,
    order: Vec<Ordered>,
}

impl TestServer {
    fn take<T>(&mut self, step: Step<T>) -> T {
        self.nodes.extend(step.nodes.into_iter().map(|node: Node| node));
        step.answer
    }

    fn receipt(&self, receipt: Receipt) -> Signed<Receipt> {
        Signed::new(receipt, &self.key)
    }

    fn prove(&self, log_size: u64, mut reply: ViewReply) -> ViewReply {
        let node = &mut |level, index| self.nodes.get(&(level, index)).copied();
        reply.consistency = consistency_proof(log_size, reply.view.log.size, node).unwrap();
        reply
    }

    fn set_status(&mut self, device: DeviceId, number: u64, status: OperationStatus) {
        let ordered = self.order.iter_mut().find(|op| (op.device, op.number) == (device, number));
        ordered.expect("it was ordered").status = status;
    }

    /// The state that the model dictates at the end of the order.
    fn model(&self) -> Model {
        let mut model = Model {
            names: vec![BTreeMap::new(); DIRECTORIES],
            modes: vec![0o755; DIRECTORIES],
            ..Model::default()
        };
        for ordered in self.order.iter().filter(|ordered| ordered.status == OperationStatus::Effective) {
            ordered.edits.iter().for_each(|edit| model.apply(edit));
        }
        model
    }

    fn is_settled(&self) -> bool {
        self.order.iter().all(|ordered| ordered.status != OperationStatus::Pending)
    }
}

struct Client {
    key: SigningKey,
    signer: Signer,
    allocator: Allocator,
    base: Arc<Base>,
    /// A signed COMMIT that was not sent, with the inode numbers that are used if it takes effect.
    unsent: Option<(Request, Allocator, Outcome)>,
    counter: u64,
}

struct Fixture {
    server: TestServer,
    blocks: Arc<MemoryBlocks>,
    tables: Arc<TableCache>,
    membership: Arc<Membership>,
    clients: Vec<Client>,
    directories: Vec<Handle>,
    stats: BTreeMap<&'static str, u64>,
}

fn explain(_: Option<Handle>, error: &ReadError) -> FsError {
    match error {
        ReadError::NotFound => FsError::NotFound,
        other => panic!("{other}"),
    }
}

fn file_bytes(value: u64) -> Content {
    Content::Inline(value.to_le_bytes().to_vec())
}

fn name_of(name: u8) -> Vec<u8> {
    format!("name-{name:03}").into_bytes()
}

/// Plans one request and returns its effect.
fn fulfil(
    request: &EditRequest,
    directories: &[Handle],
    value: u64,
    changes: &mut dyn Changes,
) -> Result<EditKind, FsError> {
    let time = 1_000_000 + value as i64;
    let drop_name = |changes: &mut dyn Changes, file: Handle| {
        let mut inode = Inode::clone(&*changes.inode(file)?);
        inode.links -= 1;
        if inode.links == 0 { changes.remove_inode(file) } else { changes.set_inode(file, inode) }
    };
    match *request {
        EditRequest::Create(d, n) => {
            let directory = directories[d];
            changes.inode(directory)?;
            if changes.entry(directory, &name_of(n))?.is_some() {
                return Err(FsError::Exists);
            }
            let handle = changes.allocate(directory.principal)?;
            let mut inode = Inode::new(InodeKind::File, 0o644, changes.me(), time);
            inode.size = 8;
            inode.content = file_bytes(value);
            changes.set_inode(handle, inode)?;
            let entry = Entry { handle, kind: InodeKind::File };
            changes.set_entry(directory, &name_of(n), Some(entry), time)?;
            Ok(EditKind::Create(d, n, handle, value))
        }
        EditRequest::Unlink(d, n) => {
            let directory = directories[d];
            let entry = changes.entry(directory, &name_of(n))?.ok_or(FsError::NotFound)?;
            changes.set_entry(directory, &name_of(n), None, time)?;
            drop_name(changes, entry.handle)?;
            Ok(EditKind::Unlink(d, n))
        }
        EditRequest::Write(d, n) => {
            let entry = changes.entry(directories[d], &name_of(n))?.ok_or(FsError::NotFound)?;
            let mut inode = Inode::clone(&*changes.inode(entry.handle)?);
            inode.content = file_bytes(value);
            changes.set_inode(entry.handle, inode)?;
            Ok(EditKind::Write(d, n, value))
        }
        EditRequest::Rename(a, b, c, d) => {
            let entry = changes.entry(directories[a], &name_of(b))?.ok_or(FsError::NotFound)?;
            let target = changes.entry(directories[c], &name_of(d))?;
            if (a, b) == (c, d) || target.is_some_and(|target| target.handle == entry.handle) {
                return Err(FsError::Exists);
            }
            if let Some(target) = target {
                drop_name(changes, target.handle)?;
            }
            changes.set_entry(directories[a], &name_of(b), None, time)?;
            changes.set_entry(directories[c], &name_of(d), Some(entry), time)?;
            Ok(EditKind::Rename(a, b, c, d))
        }
        EditRequest::Link(a, b, c, d) => {
            let entry = changes.entry(directories[a], &name_of(b))?.ok_or(FsError::NotFound)?;
            if changes.entry(directories[c], &name_of(d))?.is_some() {
                return Err(FsError::Exists);
            }
            let mut inode = Inode::clone(&*changes.inode(entry.handle)?);
            inode.links += 1;
            changes.set_inode(entry.handle, inode)?;
            changes.set_entry(directories[c], &name_of(d), Some(entry), time)?;
            Ok(EditKind::Link(a, b, c, d))
        }
        EditRequest::Chmod(d) => {
            let mode = 0o700 | (value as u32 & 0o77);
            let mut inode = Inode::clone(&*changes.inode(directories[d])?);
            inode.mode = mode;
            changes.set_inode(directories[d], inode)?;
            Ok(EditKind::Chmod(d, mode))
        }
        EditRequest::Seal(d) => {
            if !changes.entries(directories[d], None, 1)?.is_empty() {
                return Err(FsError::NotEmpty);
            }
            let mut inode = Inode::clone(&*changes.inode(directories[d])?);
            inode.mode = 0o500;
            changes.set_inode(directories[d], inode)?;
            Ok(EditKind::Seal(d))
        }
        EditRequest::Look => Ok(EditKind::Look),
    }
}

type Planned = (Plan, Vec<EditKind>, BTreeSet<Tag>);

impl Fixture {
    fn new() -> Fixture {
        let superuser = SigningKey::from_seed(&[1; 32]);
        let blocks = Arc::new(MemoryBlocks::new(DigestKey::WELL_KNOWN));
        let tables = Arc::new(TableCache::default());
        let mut membership = Membership::founding("model", "root", superuser.public());
        let keys: Vec<SigningKey> =
            (0..DEVICES as u8).map(|n| SigningKey::from_seed(&[10 + n; 32])).collect();
        for (n, key) in (1u32..).zip(&keys) {
            membership.users.insert(UserId(n), User { name: format!("user{n}"), removed: false });
            let device = Device { user: UserId(n), name: "d".into(), key: key.public(), removed_at: None };
            membership.devices.insert(DeviceId(n), device);
        }
        let members = (1..=DEVICES as u32).map(UserId).collect();
        membership.groups.insert(
            GroupId(1),
            Group {
                name: "team".into(),
                members,
                former: Default::default(),
                removed: false,
                groups: Default::default(),
            },
        );
        let membership = Arc::new(membership);
        let server_key = SigningKey::from_seed(&[200; 32]);
        let server_keys = Signed::new(
            ServerKeys {
                file_system: superuser.public().file_system_id(),
                sequence: 1,
                keys: vec![server_key.public()],
            },
            &superuser,
        );
        let base = Arc::new(Base::new(
            Arc::default(),
            membership.clone(),
            DeviceId(0),
            blocks.clone() as Arc<dyn Blocks>,
            tables.clone(),
        ));
        // The first operation also makes the group's directories.
        let mut directories = Vec::new();
        let mut transaction = Transaction::new(&base, Allocator::default(), &explain);
        let mut found = |changes: &mut dyn Changes| {
            let root = Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 0);
            changes.set_inode(Handle::ROOT, root)?;
            for n in 0..DIRECTORIES {
                let handle = changes.allocate(PrincipalId::Group(GroupId(1)))?;
                let inode = Inode::new(InodeKind::Directory, 0o755, DeviceId(0), 0);
                changes.set_inode(handle, inode)?;
                let entry = Entry { handle, kind: InodeKind::Directory };
                changes.set_entry(Handle::ROOT, format!("d{n}").as_bytes(), Some(entry), 0)?;
                directories.push(handle);
            }
            changes.membership()?.set(Membership::clone(&membership))
        };
        transaction.run(&mut found).0.unwrap();
        let mut plan = transaction.finish(Path::Fast).unwrap();
        let handles = plan.build(&base).unwrap();
        let mut founder = Signer::new(Floor::new(superuser.public(), DeviceId(0)));
        let effects = founder.found(&superuser, plan.deltas.clone(), 0, &handles).unwrap();
        let Some(Effect::Send(request)) = effects.into_iter().nth(1) else { panic!("it is sent") };
        let Request::Fast { certificate, structure, .. } = *request else { panic!("it is fast") };
        let step = Sequencer::create(
            superuser.public(),
            certificate,
            structure,
            Membership::clone(&membership),
            ABORT_AFTER_MS,
        )
        .unwrap();
        let mut nodes = HashMap::new();
        nodes.extend(step.nodes);
        let server =
            TestServer { sequencer: step.answer.0, nodes, key: server_key, now_ms: 0, order: Vec::new() };
        let clients = (1u32..)
            .zip(keys)
            .map(|(n, key)| {
                let mut signer = Signer::new(Floor::new(superuser.public(), DeviceId(n)));
                signer.step(&key, Event::ServerKeys(server_keys.clone())).unwrap();
                let base = Arc::new(Base::new(
                    Arc::default(),
                    membership.clone(),
                    DeviceId(n),
                    blocks.clone() as Arc<dyn Blocks>,
                    tables.clone(),
                ));
                Client { key, signer, allocator: Allocator::default(), base, unsent: None, counter: 0 }
            })
            .collect();
        Fixture { server, blocks, tables, membership, clients, directories, stats: BTreeMap::new() }
    }

    fn base(&self, device: usize) -> Arc<Base> {
        Arc::new(Base::new(
            Arc::new(self.clients[device].signer.floor().view.clone()),
            self.membership.clone(),
            DeviceId(device as u32 + 1),
            self.blocks.clone() as Arc<dyn Blocks>,
            self.tables.clone(),
        ))
    }

    fn plan(&self, device: usize, requests: &[EditRequest], allocator: Allocator, path: Path) -> Planned {
        let client = &self.clients[device];
        let base = client.base.clone();
        let mut transaction = Transaction::new(&base, allocator, &explain);
        let mut edits = Vec::new();
        for (index, request) in requests.iter().enumerate() {
            let value = (device as u64 + 1) << 32 | client.counter << 4 | index as u64;
            let mut planned = None;
            let mut edit = |changes: &mut dyn Changes| {
                planned = Some(fulfil(request, &self.directories, value, changes)?);
                Ok(())
            };
            if transaction.run(&mut edit).0.is_ok() {
                edits.extend(planned);
            }
        }
        let plan = transaction.finish(path).unwrap();
        let conflicts = plan.conflicts.clone();
        (plan, edits, conflicts)
    }

    fn count(&mut self, what: &'static str) {
        *self.stats.entry(what).or_default() += 1;
    }

    fn begin(&mut self, device: usize, requests: &[EditRequest]) {
        self.commit(device);
        self.clients[device].counter += 1;
        self.clients[device].base = self.base(device);
        let fast = self.clients[device].signer.wants_fast();
        let allocator = self.clients[device].allocator.begin();
        let path = if fast { Path::Fast } else { Path::Slow };
        let (mut plan, edits, _) = self.plan(device, requests, allocator, path);
        let tables: Option<Tables> =
            fast.then(|| plan.build(&self.clients[device].base).expect("the base can be read"));
        let client = &mut self.clients[device];
        let event = Event::Begin { deltas: plan.deltas.clone(), time_ns: 0, fast: tables };
        let mut effects: std::collections::VecDeque<Effect> =
            client.signer.step(&client.key, event).unwrap().into();
        let work = plan.allocator.clone();
        let mut done = (edits, work, Outcome::Done);
        while let Some(effect) = effects.pop_front() {
            let key = self.clients[device].key.clone();
            match effect {
                Effect::Persist(_) | Effect::Note(_) => {}
                Effect::Send(request) => match *request {
                    Request::Fast { certificate, structure, .. } => {
                        let id = DeviceId(device as u32 + 1);
                        let number = certificate.value.number;
                        let certificate = certificate.verified(key.public()).unwrap();
                        let structure = structure.verified(key.public()).unwrap();
                        let step = self
                            .server
                            .sequencer
                            .fast(self.server.now_ms, id, &certificate, &structure, None)
                            .unwrap();
                        let event = match self.server.take(step) {
                            FastOutcome::Accepted(receipt) => {
                                self.count("fast");
                                self.server.order.push(Ordered {
                                    device: id,
                                    number,
                                    edits: done.0.clone(),
                                    status: OperationStatus::Effective,
                                });
                                Event::Committed(self.server.receipt(receipt))
                            }
                            FastOutcome::Refused => {
                                self.count("refused");
                                Event::Refused
                            }
                        };
                        effects.extend(self.clients[device].signer.step(&key, event).unwrap());
                    }
                    Request::Update { certificate, log_size, .. } => {
                        let id = DeviceId(device as u32 + 1);
                        let number = certificate.value.number;
                        let certificate = certificate.verified(key.public()).unwrap();
                        let step =
                            self.server.sequencer.update(self.server.now_ms, id, &certificate, None).unwrap();
                        let UpdateOutcome::View(reply) = self.server.take(step) else {
                            panic!("it is taken")
                        };
                        // Operations that this one aborted have no effect.
                        for entry in &reply.view.pending {
                            if entry.dead {
                                let (device, number) = (entry.forecast.device, entry.forecast.number());
                                self.server.set_status(device, number, OperationStatus::Nothing);
                            }
                        }
                        self.server.order.push(Ordered {
                            device: id,
                            number,
                            edits: Vec::new(),
                            status: OperationStatus::Pending,
                        });
                        let reply = self.server.prove(log_size, *reply);
                        let members = self.membership.clone();
                        let event = Event::Reply { reply: &reply, members: &*members };
                        effects.extend(self.clients[device].signer.step(&key, event).unwrap());
                    }
                    Request::Commit { structure, attached } => {
                        let outcome = done.2;
                        let unsent = (Request::Commit { structure, attached }, done.1.clone(), outcome);
                        let last = self.server.order.last_mut().expect("it was ordered");
                        last.edits = if outcome == Outcome::Done { done.0.clone() } else { Vec::new() };
                        self.clients[device].unsent = Some(unsent);
                        return;
                    }
                    other => panic!("{other:?}"),
                },
                Effect::Fold(accepted) => {
                    assert_eq!(accepted.view, self.clients[device].signer.floor().view);
                    self.clients[device].base = self.base(device);
                    let allocator = self.clients[device].allocator.again(&done.1);
                    let (mut again, edits, conflicts) = self.plan(device, requests, allocator, Path::Slow);
                    let stands = again.deltas == plan.deltas && conflicts.is_empty();
                    let base = self.clients[device].base.clone();
                    let (outcome, tables) = if stands {
                        done.0 = edits;
                        done.1 = again.allocator.clone();
                        self.count("slow");
                        (Outcome::Done, again.build(&base).unwrap())
                    } else {
                        self.count(if conflicts.is_empty() { "different" } else { "conflict" });
                        let outcome = if plan.deltas.is_empty() { Outcome::Done } else { Outcome::Nothing };
                        done.0.clear();
                        (outcome, plan.give_way(&base).unwrap())
                    };
                    done.2 = outcome;
                    let client = &mut self.clients[device];
                    let event = Event::Folded { outcome, tables };
                    effects.extend(client.signer.step(&key, event).unwrap());
                }
                Effect::Finished(OperationEnd::Committed(_)) => {
                    self.clients[device].allocator = done.1.clone().committed();
                }
                Effect::Finished(OperationEnd::NotOrdered) => {
                    self.clients[device].allocator = done.1.clone().without_effect();
                }
                other => panic!("{other:?}"),
            }
        }
        self.clients[device].base = self.base(device);
    }

    fn commit(&mut self, device: usize) {
        let Some((request, work, outcome)) = self.clients[device].unsent.take() else { return };
        let Request::Commit { structure, .. } = request else { panic!("a COMMIT") };
        let id = DeviceId(device as u32 + 1);
        let number = structure.value.number();
        let key = self.clients[device].key.clone();
        let structure = structure.verified(key.public()).unwrap();
        let step = self.server.sequencer.commit(id, &structure).unwrap();
        let effective = outcome == Outcome::Done;
        let event = match self.server.take(step) {
            CommitOutcome::Committed(receipt) => {
                self.server.set_status(
                    id,
                    number,
                    if effective { OperationStatus::Effective } else { OperationStatus::Nothing },
                );
                self.clients[device].allocator =
                    if effective { work.committed() } else { work.without_effect() };
                Event::Committed(self.server.receipt(receipt))
            }
            CommitOutcome::Aborted => {
                self.count("aborted");
                self.server.set_status(id, number, OperationStatus::Nothing);
                self.clients[device].allocator = work.without_effect();
                Event::Aborted
            }
        };
        let effects = self.clients[device].signer.step(&key, event).unwrap();
        assert!(effects.iter().any(|effect| matches!(effect, Effect::Finished(_))), "{effects:?}");
        self.clients[device].base = self.base(device);
    }

    /// The device loses its plan, and its next operation gives the number up.
    fn forget(&mut self, device: usize) {
        if let Some((_, work, _)) = self.clients[device].unsent.take() {
            self.count("forgotten");
            let client = &mut self.clients[device];
            client.allocator = work.without_effect();
            // The signer gives a number up when the server answers "aborted"; no server has answered here.
            client.signer.step(&client.key, Event::Aborted).unwrap();
        }
    }

    /// Reads everything as one device sees it.
    fn read(&self, device: usize) -> Model {
        let base = self.base(device);
        let mut model = Model::default();
        for directory in &self.directories {
            let (entries, complete) = base.entries(*directory, None, 1000).unwrap();
            assert!(complete);
            let mut names = BTreeMap::new();
            for (name, entry) in entries {
                let number = std::str::from_utf8(&name[5..]).unwrap().parse().unwrap();
                assert_eq!(base.entry(*directory, &name).unwrap(), Some(entry));
                let inode = base.inode(entry.handle).unwrap();
                assert_eq!(base.ihash(entry.handle).unwrap(), inode.ihash(&DigestKey::WELL_KNOWN).unwrap());
                let Content::Inline(bytes) = &inode.content else { panic!("a small file") };
                model.files.insert(entry.handle, u64::from_le_bytes(bytes[..].try_into().unwrap()));
                names.insert(number, entry.handle);
            }
            model.names.push(names);
            model.modes.push(base.inode(*directory).unwrap().mode);
        }
        // A file has as many links as names.
        for file in model.files.keys() {
            let links = model.names.iter().flat_map(BTreeMap::values).filter(|other| *other == file).count();
            assert_eq!(base.inode(*file).unwrap().links as usize, links, "links of {file}");
        }
        model
    }

    fn check(&mut self) {
        for device in 0..DEVICES {
            self.commit(device);
        }
        self.server.now_ms += ABORT_AFTER_MS;
        // Twice: a device that does not know of the pending operation tries the fast path first and is refused,
        // which settles nothing; its next attempt goes the slow path.
        for device in (0..DEVICES).chain(0..DEVICES) {
            self.begin(device, &[EditRequest::Look]);
            self.commit(device);
        }
        assert!(self.server.is_settled());
        // Once more, so that every device has seen the last operation of every other.
        let model = self.server.model();
        for device in 0..DEVICES {
            self.begin(device, &[EditRequest::Look]);
            self.commit(device);
            assert_eq!(self.read(device), model, "device {}", device + 1);
        }
    }

    fn act(&mut self, action: &Action) {
        match action {
            Action::Begin(device, requests) => self.begin(*device, requests),
            Action::Commit(device) => self.commit(*device),
            Action::Forget(device) => self.forget(*device),
            Action::Wait => self.server.now_ms += ABORT_AFTER_MS,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 3000, ..ProptestConfig::default() })]

    /// Proves: whatever the interleaving, every device reads what the order and the statuses of its operations dictate;
    /// no operation had an effect that was impossible at its position, and no part of an aborted one is ever seen.
    #[test]
    fn trees_follow_the_order(actions in prop::collection::vec(action(), 1..60)) {
        let mut world = Fixture::new();
        for (index, action) in actions.iter().enumerate() {
            world.act(action);
            if index % 20 == 19 {
                world.check();
            }
        }
        world.check();
    }
}

/// Proves: a long run with a fixed seed meets every way that an operation can go, as the random runs above should.
#[test]
fn every_way_is_met() {
    let mut world = Fixture::new();
    let mut random = 7u64;
    let mut next = |limit: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % limit
    };
    for round in 0..1500 {
        let device = next(DEVICES as u64) as usize;
        let action = match next(20) {
            0..=9 => {
                let requests = (0..1 + next(4))
                    .map(|_| {
                        let (d, e) = (next(3) as usize, next(3) as usize);
                        let hot = next(3) > 0;
                        let n = if hot { next(3) } else { next(120) } as u8;
                        match next(10) {
                            0..=4 => EditRequest::Create(d, n),
                            5 | 6 => EditRequest::Write(d, n),
                            7 => EditRequest::Rename(d, n, e, next(120) as u8),
                            8 => EditRequest::Unlink(d, n),
                            _ => EditRequest::Look,
                        }
                    })
                    .collect();
                Action::Begin(device, requests)
            }
            10..=17 => Action::Commit(device),
            18 => Action::Forget(device),
            _ => Action::Wait,
        };
        world.act(&action);
        if round % 100 == 99 {
            world.check();
        }
    }
    for way in ["fast", "refused", "slow", "different", "conflict", "aborted", "forgotten"] {
        assert!(world.stats.get(way).is_some_and(|count| *count > 3), "{way}: {:?}", world.stats);
    }
    // Change lists were folded into maps.
    let base = world.base(0);
    assert!(world.directories.iter().any(|directory| {
        let inode = base.inode(*directory).unwrap();
        matches!(&inode.content, Content::Directory(map) if !map.root.is_empty())
    }));
}
