//! The world of a run: real servers on disks in memory under a clock of their own, and real clients who reach them only
//! by a [`Link`] that the adversary may control.

use super::scene::Scene;
use crate::differences::{by_difference, want_whole};
use holdfast_checkpoint::note::VerifierKey;
use holdfast_client::files::{Caller, FileSystem, Ino, MountOptions, OwnerMap};
use holdfast_client::remote::Remote;
use holdfast_client::{Engine, EngineConfig, FsError, StartError, WhenStale, WitnessPolicy};
use holdfast_content::{GroupId, UserId};
use holdfast_crypto::{Digest, PublicKey, SigningKey};
use holdfast_log::Storage;
use holdfast_log::simulated::{Crash, PowerLoss};
use holdfast_protocol::message::{PROTOCOL_VERSIONS, Request, Response, Welcome};
use holdfast_protocol::structure::Structure;
use holdfast_rpc::{Address, RpcError, ServerAddress, ServerProof, check_welcome};
use holdfast_server::{Caller as Peer, Clock, CoreSettings, CreatePolicy, ParcelSettings, ServerCore};
use holdfast_store::StoreConfig;
use holdfast_testing::PATIENCE;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The time at which the world begins, in nanoseconds since 1970.
pub const NOW_NS: i64 = 1_700_000_000_000_000_000;
/// The abort time-out, by the server's clock.
pub const ABORT_AFTER: Duration = Duration::from_millis(100);
/// The user id of the programs of all machines.
pub const WHO: Caller = Caller { uid: 1000, gid: 1000, thread: 0 };
/// The local group that the group `team` is mapped to.
pub const TEAM_GID: u32 = 2000;
/// The pause between two looks at what is waited for.
const PAUSE: Duration = Duration::from_millis(1);

/// The content of a disk.
#[derive(Clone, Default)]
pub struct Image(BTreeMap<String, Vec<u8>>);

impl Image {
    /// The present content of a disk.
    ///
    /// # Errors
    /// The power is off.
    pub fn of(disk: &PowerLoss) -> io::Result<Image> {
        let storage = disk.storage();
        let mut files = BTreeMap::new();
        for name in storage.list()? {
            let file = storage.open(&name)?;
            let mut bytes = vec![0; file.len()? as usize];
            let read = file.read_at(0, &mut bytes)?;
            bytes.truncate(read);
            files.insert(name, bytes);
        }
        Ok(Image(files))
    }

    /// Whether the disk is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A disk with this content.
    pub fn disk(&self, seed: u64) -> PowerLoss {
        let disk = PowerLoss::new(seed);
        self.0.iter().for_each(|(name, bytes)| disk.overwrite(name, bytes));
        disk
    }
}

/// A clock that moves only when it is told to.
#[derive(Default)]
pub struct SimClock {
    monotonic_ms: AtomicU64,
    wall_ns: AtomicI64,
}

impl SimClock {
    fn starting(monotonic_ms: u64, wall_ns: i64) -> Arc<SimClock> {
        Arc::new(SimClock { monotonic_ms: monotonic_ms.into(), wall_ns: wall_ns.into() })
    }

    /// Lets time pass.
    pub fn pass(&self, time: Duration) {
        self.monotonic_ms.fetch_add(time.as_millis() as u64, SeqCst);
        self.wall_ns.fetch_add(time.as_nanos() as i64, SeqCst);
    }

    /// Sets the wall clock.
    pub fn jump(&self, seconds: i64) {
        self.wall_ns.fetch_add(seconds.saturating_mul(1_000_000_000), SeqCst);
    }
}

impl Clock for SimClock {
    fn wall_ns(&self) -> i64 {
        self.wall_ns.load(SeqCst)
    }

    fn monotonic_ms(&self) -> u64 {
        self.monotonic_ms.load(SeqCst)
    }
}

/// The key of the machine that serves.
pub fn server_key() -> SigningKey {
    SigningKey::from_seed(&[200; 32])
}

/// A real server without its sockets.
pub struct Server {
    running: Mutex<Running>,
    /// The term of its leases; zero means that it grants none.
    lease_term: Duration,
    /// Its clock.
    pub clock: Arc<SimClock>,
    /// The file system that it shows whatever it is asked for, if any.
    pub instead: Option<Digest>,
}

#[derive(Clone)]
struct Running {
    disk: PowerLoss,
    host: Arc<ServerCore>,
}

fn open(disk: PowerLoss, clock: &Arc<SimClock>, lease_term: Duration) -> Running {
    open_as(disk, clock, lease_term, false)
}

fn open_as(disk: PowerLoss, clock: &Arc<SimClock>, lease_term: Duration, is_restored: bool) -> Running {
    let settings = CoreSettings {
        user_quota: None,
        is_restored,
        restored_note: None,
        create: CreatePolicy::Anyone,
        abort_after: ABORT_AFTER,
        checkpoint_records: 64,
        store: StoreConfig { keep_deleted: Duration::ZERO, segment_bytes: 4 << 20, ..StoreConfig::default() },
        parcels: ParcelSettings::default(),
        locks_note: None,
        lease_term,
        leases_note: None,
        history: holdfast_protocol::history::Retention::everything(),
    };
    let host = ServerCore::open(disk.storage(), server_key(), settings, Box::new(|_| true), clock.clone());
    let host = host.unwrap_or_else(|error| panic!("an honest server starts: {error}"));
    Running { disk, host: Arc::new(host) }
}

impl Server {
    /// A server on a disk.
    pub fn start(image: &Image) -> Arc<Server> {
        Server::start_with_leases(image, Duration::ZERO)
    }

    /// A server with leases of this term.
    pub fn start_with_leases(image: &Image, term: Duration) -> Arc<Server> {
        Server::started(image, term, SimClock::starting(1_000_000, NOW_NS))
    }

    fn started(image: &Image, lease_term: Duration, clock: Arc<SimClock>) -> Arc<Server> {
        let running = Mutex::new(open(image.disk(1), &clock, lease_term));
        Arc::new(Server { running, lease_term, clock, instead: None })
    }

    /// A server whose disk was put back, and that waits for its superuser's declaration.
    pub fn put_back_from(image: &Image) -> Arc<Server> {
        let clock = SimClock::starting(1_000_000, NOW_NS);
        let running = Mutex::new(open_as(image.disk(1), &clock, Duration::ZERO, true));
        Arc::new(Server { running, lease_term: Duration::ZERO, clock, instead: None })
    }

    /// A server that shows another file system to every client.
    pub fn impostor(image: &Image, shown: Digest) -> Arc<Server> {
        let clock = SimClock::starting(1_000_000, NOW_NS);
        let running = Mutex::new(open(image.disk(1), &clock, Duration::ZERO));
        Arc::new(Server { running, lease_term: Duration::ZERO, clock, instead: Some(shown) })
    }

    /// The content of its disk.
    ///
    /// # Panics
    /// If its power is off.
    pub fn image(&self) -> Image {
        Image::of(&self.running.lock().disk).expect("its power is on")
    }

    /// Another server with the same content and the same key.
    pub fn fork(&self) -> Arc<Server> {
        let clock = SimClock::starting(self.clock.monotonic_ms(), self.clock.wall_ns());
        Server::started(&self.image(), self.lease_term, clock)
    }

    /// Goes on from what its disk held at another time.
    pub fn put_back(&self, image: &Image) {
        let running = open(image.disk(2), &self.clock, self.lease_term);
        *self.running.lock() = running;
    }

    /// Ends, and starts again from what is durable.
    pub fn crash(&self, crash: Crash) {
        let mut running = self.running.lock();
        let disk = running.disk.clone();
        disk.restart(crash);
        *running = open(disk, &self.clock, self.lease_term);
    }

    /// The service without its sockets.
    pub fn host(&self) -> Arc<ServerCore> {
        self.running.lock().host.clone()
    }

    fn greet(&self, peer: PublicKey, wanted: Digest) -> holdfast_server::GreetingReply {
        let wanted = self.instead.unwrap_or(wanted);
        self.host().greet(peer, true, PROTOCOL_VERSIONS, Some(wanted))
    }

    /// Answers `peer`, until `end`.
    pub fn answer(&self, peer: PublicKey, wanted: Digest, request: Request, end: Instant) -> Response {
        let wait_ms = match &request {
            Request::FetchPending { wait_ms, .. }
            | Request::AwaitLock { wait_ms, .. }
            | Request::AwaitRecall { wait_ms, .. } => u64::from(*wait_ms),
            _ => u64::MAX,
        };
        let file_system = self.greet(peer, wanted).file_system;
        let caller = Peer { peer, local: true, file_system, answer_bytes: usize::MAX };
        let mut waited = 0;
        let host = self.host();
        host.handle_waiting(&caller, request, &mut || {
            // Time passes for those who wait as fast as it does here.
            std::thread::sleep(PAUSE);
            self.clock.pass(PAUSE);
            waited += PAUSE.as_millis() as u64;
            waited < wait_ms && Instant::now() < end && Arc::ptr_eq(&host, &self.host())
        })
    }
}

/// Handles the request truthfully.
pub type Honest<'a> = &'a dyn Fn(Request) -> Response;
/// Answers in the server's place.
pub type Liar = Arc<dyn Fn(Request, Honest<'_>) -> Result<Response, RpcError> + Send + Sync>;
/// Changes the server's greeting.
pub type FalseGreeting = Arc<dyn Fn(&mut Welcome) + Send + Sync>;

/// The link from one client to a server, which the adversary may control.
pub struct Link {
    peer: PublicKey,
    file_system: Digest,
    server: Mutex<Arc<Server>>,
    liar: Mutex<Option<Liar>>,
    greeting: Mutex<Option<FalseGreeting>>,
    /// Whether the connection was lost, so that the server has to be greeted before anything is asked.
    lost: Mutex<bool>,
    down: Mutex<bool>,
    /// The highest list of server keys that a connection was shown, which it remembers.
    sequence: AtomicU64,
    /// Structures that were sent over it.
    signed: Mutex<Vec<Structure>>,
}

impl Link {
    /// A link to `server` for the owner of this key.
    pub fn new(server: &Arc<Server>, file_system: Digest, peer: PublicKey, sequence: u64) -> Arc<Link> {
        Arc::new(Link {
            peer,
            file_system,
            server: Mutex::new(server.clone()),
            liar: Mutex::default(),
            greeting: Mutex::default(),
            lost: Mutex::default(),
            down: Mutex::default(),
            sequence: sequence.into(),
            signed: Mutex::default(),
        })
    }

    /// What its client has signed since the last call.
    pub fn take_signed(&self) -> Vec<Structure> {
        std::mem::take(&mut self.signed.lock())
    }

    /// Leads to another server from now on.
    pub fn lead_to(&self, server: &Arc<Server>) {
        *self.server.lock() = server.clone();
    }

    /// The server that it leads to.
    pub fn server(&self) -> Arc<Server> {
        self.server.lock().clone()
    }

    /// Has lies told on this link; `None` ends them.
    pub fn lie(&self, liar: Option<Liar>) {
        *self.liar.lock() = liar;
    }

    /// Has the server greet falsely; an open connection is lost.
    pub fn greet_falsely(&self, greeting: Option<FalseGreeting>) {
        *self.lost.lock() = greeting.is_some();
        *self.greeting.lock() = greeting;
    }

    /// Whether nothing gets through.
    pub fn set_down(&self, down: bool) {
        *self.down.lock() = down;
    }

    fn unreachable(&self) -> RpcError {
        RpcError::Unreachable { address: "sim".to_owned(), why: "nothing gets through".to_owned() }
    }

    fn greet(&self) -> Result<Welcome, RpcError> {
        if *self.down.lock() {
            return Err(self.unreachable());
        }
        let server = self.server();
        let mut welcome = match server.greet(self.peer, self.file_system).answer {
            Response::Hello(welcome) => welcome,
            Response::Error(error) => return Err(error.into()),
            other => return Err(RpcError::Malformed(format!("{other:?}"))),
        };
        if let Some(falsify) = self.greeting.lock().clone() {
            falsify(&mut welcome);
        }
        let minimum_sequence = self.sequence.load(SeqCst);
        let expected = ServerProof { file_system: self.file_system, minimum_sequence };
        check_welcome("sim", &welcome, Some(&expected), &server_key().public())?;
        if let Some((_, list)) = &welcome.file_system {
            self.sequence.fetch_max(list.value.sequence, SeqCst);
        }
        *self.lost.lock() = false;
        Ok(welcome)
    }
}

impl Remote for Link {
    fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        if *self.down.lock() {
            return Err(self.unreachable());
        }
        if *self.lost.lock() {
            self.greet()?;
        }
        if let Request::Commit { structure, .. } | Request::Fast { structure, .. } = &request {
            self.signed.lock().push(structure.value.clone());
        }
        let end = Instant::now() + deadline;
        let server = self.server();
        let honest = |request| server.answer(self.peer, self.file_system, request, end);
        let liar = self.liar.lock().clone();
        let answer = match liar {
            Some(liar) => {
                let mut request = request;
                let since = want_whole(&mut request);
                by_difference(liar(request, &honest)?, since)
            }
            None => honest(request),
        };
        match answer {
            Response::Error(error) => Err(error.into()),
            answer => Ok(answer),
        }
    }

    fn welcome(&self) -> Option<Welcome> {
        self.greet().ok()
    }

    fn is_connected(&self) -> bool {
        !*self.down.lock()
    }

    fn traffic(&self) -> (u64, u64) {
        (0, 0)
    }

    fn wait_until_connected(&self, _deadline: Duration) -> Result<(), RpcError> {
        self.greet().map(drop)
    }

    fn server_key(&self) -> Option<PublicKey> {
        Some(server_key().public())
    }
}

/// The options with which a machine mounts.
#[derive(Clone, Default)]
pub struct Habits {
    /// Whether it asks for leases.
    pub leases: bool,
    /// How long it waits for an answer; `None` means very long.
    pub patience: Option<Duration>,
    /// The witness that it trusts, and the largest age of a head.
    pub witness: Option<(VerifierKey, Duration)>,
    /// Acknowledges an alarm.
    pub acknowledge: bool,
}

/// A device: its key, and the files of its machine.
pub struct Machine {
    /// Its user's name.
    pub name: &'static str,
    /// Its key.
    pub key: SigningKey,
    /// The disk with its state.
    pub disk: PowerLoss,
    /// Its link to the server.
    pub link: Arc<Link>,
    folder: tempfile::TempDir,
}

/// A mounted file system.
pub struct Mount {
    /// The inode API.
    pub files: Arc<FileSystem>,
    /// The engine below it.
    pub engine: Arc<Engine>,
    /// The group's directory.
    pub team: Ino,
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.engine.stop();
    }
}

/// Why a call or a mount failed.
#[derive(Debug)]
pub enum Refusal {
    /// A call did.
    Call(FsError),
    /// A mount did.
    Start(StartError),
}

impl From<FsError> for Refusal {
    fn from(error: FsError) -> Refusal {
        Refusal::Call(error)
    }
}

impl From<StartError> for Refusal {
    fn from(error: StartError) -> Refusal {
        match error {
            StartError::First(error) => Refusal::Call(error),
            error => Refusal::Start(error),
        }
    }
}

impl Machine {
    /// A machine with a state.
    ///
    /// # Panics
    /// If there is no room for its files.
    pub fn new(name: &'static str, key: SigningKey, image: &Image, link: Arc<Link>) -> Machine {
        let folder = tempfile::tempdir().expect("room for a folder");
        let disk = image.disk(u64::from(name.as_bytes()[0]));
        Machine { name, key, disk, link, folder }
    }

    /// The options of its engine.
    pub fn config(&self, habits: &Habits) -> EngineConfig {
        let address = Address {
            server: ServerAddress { host: "sim".into(), port: 1 },
            others: Vec::new(),
            file_system: self.link.file_system,
        };
        let mut config = EngineConfig::new(address, self.key.clone(), self.folder.path().to_owned());
        // The oracle knows of calls only.
        config.sends_again = false;
        config.deadline = habits.patience.unwrap_or(PATIENCE);
        config.memory_bytes = 32 << 20;
        config.leases = habits.leases;
        config.acknowledge_alarm = habits.acknowledge;
        config.witnesses = habits.witness.clone().map(|(witness, stale_after)| WitnessPolicy {
            witnesses: vec![witness],
            quorum: None,
            stale_after,
            when_stale: WhenStale::Stop,
        });
        config
    }

    /// Starts its engine.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(&self, habits: &Habits) -> Result<Arc<Engine>, StartError> {
        let storage: Arc<dyn Storage> = self.disk.storage();
        Engine::start_with(self.config(habits), self.link.clone(), storage)
    }

    /// Mounts the file system.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn mount(&self, habits: &Habits) -> Result<Mount, Refusal> {
        let engine = self.start(habits)?;
        let groups: BTreeMap<GroupId, u32> = [(Scene::TEAM, TEAM_GID)].into();
        let users: BTreeMap<UserId, u32> = [(engine.me().1, WHO.uid)].into();
        let options = MountOptions {
            uid: WHO.uid,
            gid: WHO.gid,
            owners: OwnerMap { users, groups, ..OwnerMap::default() },
            spool_dir: self.folder.path().join("spool"),
            salvage_dir: self.folder.path().join("salvage"),
            read_only: false,
        };
        let files = FileSystem::new(engine.clone(), options)?;
        let mut mount = Mount { files, engine, team: Ino::ROOT };
        mount.team = mount.files.lookup(&WHO, Ino::ROOT, b"team")?.ino;
        Ok(mount)
    }
}
