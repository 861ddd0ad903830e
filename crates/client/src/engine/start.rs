//! Starts an engine, given a key and an address.

use super::freshness::{FreshnessMonitor, WitnessPolicy};
use super::leaf_keeper::LeafKeeper;
use super::meeting::PeersPolicy;
use super::peers;
use super::pump::{Pump, TakeUp};
use super::queue::QueueHold;
use super::resend::Resend;
use super::restored;
use super::shared::Shared;
use super::{
    Engine, EngineConfig, FOREVER, TroubleHook, leases::Leases, locks::Locks, past::PastStates, pins::Pins,
};
use crate::backend::ReadSet;
use crate::error::{FrozenReport, FsError, StartError};
use crate::evidence::Evidence;
use crate::processes::{Processes, ProcessesError};
use crate::remote::{Remote, call_patiently};
use crate::state::{State, StateError, StateLog};
use crate::store::{StoreConfig, VerifiedStore};
use crate::tree::{Allocator, Base, TableCache};
use holdfast_content::Membership;
use holdfast_crypto::DigestKey;
use holdfast_log::{LocalStorage, Storage};
use holdfast_protocol::alarm::Blame;
use holdfast_protocol::check::membership_wanted;
use holdfast_protocol::floor::Floor;
use holdfast_protocol::mandate::Mandate;
use holdfast_protocol::message::{Request, Response, ServerError};
use holdfast_protocol::signer::Signer;
use holdfast_protocol::structure::View;
use holdfast_rpc::{Connector, RpcError, ServerAddress, ServerProof};
use parking_lot::Mutex;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a start that can do without a server waits for one.
const AWAY_PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which the reason why there is no connection is reported.
const TELLING_PAUSE: Duration = Duration::from_secs(1);
/// Pause between attempts of the first fetch after a start without a server.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Waits for the first connection, and reports why there is none yet.
fn connect(
    remote: &dyn Remote,
    patience: Duration,
    on_trouble: Option<&TroubleHook>,
) -> Result<(), RpcError> {
    let end = Instant::now() + patience;
    let mut said = String::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let step = if on_trouble.is_some() { left.min(TELLING_PAUSE) } else { left };
        match remote.wait_until_connected(step) {
            Err(error) if error.is_transient() && step < left => {
                let text = error.to_string();
                if text != said {
                    on_trouble.iter().for_each(|tell| tell(&error));
                    said = text;
                }
            }
            done => return done,
        }
    }
}

impl Engine {
    /// Connects, recovers what was in flight, and makes a first fetch; or starts from local state, see
    /// [`EngineConfig::starts_away`].
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(config: EngineConfig) -> Result<Arc<Engine>, StartError> {
        let local = |what: String| move |source| StartError::Local { what, source };
        let text = format!("making {}", config.state_dir.display());
        std::fs::create_dir_all(&config.state_dir).map_err(local(text))?;
        let text = format!("opening {}", config.state_dir.display());
        let storage = LocalStorage::open(&config.state_dir).map_err(local(text))?;
        let (log, state) = open_state(Arc::new(storage), &config)?;
        let minimum_sequence = match &state {
            Some(state) => {
                let signer = restore(state, &config.state_dir)?;
                signer.floor().server_keys.as_ref().map_or(0, |keys| keys.value.sequence)
            }
            None => 0,
        };
        let file_system = config.address.file_system;
        // The signer must have the key before anything is read from the network.
        let signed = begin_signing(&config, state.as_ref())?;
        let proof = ServerProof { file_system, minimum_sequence };
        let addresses = config.address.servers();
        let remote: Arc<dyn Remote> = match &config.processes {
            Some(processes) => processes.connect(addresses, Some(proof), config.transport),
            None => {
                let mut connector = Connector::new(config.key.clone(), addresses, Some(proof));
                connector.options.transport = config.transport;
                let local =
                    |source| StartError::Local { what: "starting the network thread".to_owned(), source };
                Arc::new(connector.start().map_err(local)?)
            }
        };
        let starts_away = config.starts_away && state.is_some();
        let patience = if starts_away { config.deadline.min(AWAY_PATIENCE) } else { config.deadline };
        match connect(&*remote, patience, config.on_trouble.as_ref()) {
            Err(error) if !(starts_away && error.is_transient()) => return Err(explain(error, &config)),
            _ => {}
        }
        let state_dir = config.state_dir.clone();
        let meeting = meeting(&config)?;
        let engine = Engine::start_on(config, remote, log, state, signed)?.keep_leaves(&state_dir)?;
        let engine = match meeting {
            Some((policy, processes, server, listener)) => {
                engine.meet_peers(policy, &processes, &server, listener)?
            }
            None => engine,
        };
        engine.send_again()
    }

    /// Like [`Engine::start`], with a server that is reached in another way and with the state in `storage`.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start_with(
        config: EngineConfig,
        remote: Arc<dyn Remote>,
        storage: Arc<dyn Storage>,
    ) -> Result<Arc<Engine>, StartError> {
        let (log, state) = open_state(storage, &config)?;
        let signed = begin_signing(&config, state.as_ref())?;
        if !config.starts_away {
            remote.wait_until_connected(config.deadline).map_err(|error| explain(error, &config))?;
        }
        Engine::start_on(config, remote, log, state, signed)?.send_again()
    }

    fn start_on(
        config: EngineConfig,
        remote: Arc<dyn Remote>,
        log: StateLog,
        state: Option<State>,
        signed: u64,
    ) -> Result<Arc<Engine>, StartError> {
        let witnesses = config.witnesses.clone();
        let welcome = remote.welcome();
        let is_away = welcome.is_none() && config.starts_away && state.is_some();
        if welcome.is_none() && !is_away {
            return Err(StartError::Unreachable("no greeting".into()));
        }
        let (signer, allocator) = match &state {
            Some(state) => {
                let mut signer = restore(state, &config.state_dir)?;
                match frozen(state) {
                    Ok(()) => {}
                    Err(_) if config.acknowledge_alarm => signer.acknowledge(),
                    // The alarm may have been caused by a restore that had not been declared yet, or that
                    // must be taken up.
                    Err(_)
                        if !is_away && restored::is_declared(&*remote, signer.floor(), config.deadline) =>
                    {
                        signer.acknowledge();
                    }
                    Err(frozen) => return Err(frozen),
                }
                (signer, state.allocator.clone())
            }
            None => (enrol(&*remote, &config)?, Allocator::default()),
        };
        let me = signer.floor().device;
        // Only the server says so, but without its permission nothing can be done anyway.
        if welcome.is_some_and(|welcome| welcome.device.is_none()) {
            return Err(StartError::Removed { device: me.0 });
        }
        let evidence = Arc::new(Evidence::new(config.state_dir.join("evidence"), config.address.file_system));
        evidence.set_device(me);
        let deadline = if config.hard { FOREVER } else { config.deadline };
        let store = VerifiedStore::new(
            StoreConfig {
                key: DigestKey::WELL_KNOWN,
                memory_bytes: config.memory_bytes,
                cache: config.cache_dir.clone().map(|directory| (directory, config.cache_bytes)),
                evidence: evidence.clone(),
                deadline,
                transfer: config.transfer,
            },
            remote.clone(),
        );
        let tables = Arc::new(TableCache::default());
        let (view, members) = match is_away {
            true => (signer.floor().view.clone(), known_members(signer.floor(), &store)?),
            // The first fetch replaces this view before any call can read from it.
            false => (View::default(), Membership::founding("-", "-", signer.floor().superuser)),
        };
        let blocks = Arc::new(store.clone());
        let base = Arc::new(Base::new(Arc::new(view), Arc::new(members), me, blocks, tables.clone()));
        let address = config.address.to_string();
        let floor = Arc::new(signer.floor().clone());
        let run =
            draw_run().map_err(|source| StartError::Local { what: "drawing a number".to_owned(), source })?;
        let leases = Leases::new(config.leases, run);
        let again = Arc::new(Resend::new(&config.state_dir));
        let shared = Arc::new(Shared::new(
            address,
            me,
            deadline,
            remote,
            store,
            evidence,
            tables,
            base,
            floor,
            leases,
            again.clone(),
        ));
        if again.has_work() {
            shared.queue.hold(QueueHold::All);
            again.begin();
        }
        let take_up = TakeUp {
            state_dir: config.state_dir.clone(),
            processes: config.processes.clone(),
            sends_again: config.sends_again,
        };
        let pump = Pump::new(shared.clone(), config.key.clone(), signer, log, allocator, signed, take_up);
        let thread = spawn("pump", move || pump.run())?;
        let pins = Arc::new(Pins::default());
        let (pinned, keeper) = (pins.clone(), shared.clone());
        let pinner = spawn("pins", move || pinned.run(&keeper))?;
        let locks = Arc::new(Locks::new(run));
        let (held, keeper) = (locks.clone(), shared.clone());
        let locker = spawn("locks", move || held.run(&keeper))?;
        let keeper = shared.clone();
        let lessee = spawn("leases", move || keeper.leases.run(&keeper))?;
        // The last thread is ended last: see `Engine::stop`.
        let threads = Mutex::new(vec![thread, pinner, locker, lessee]);
        let pasts = PastStates::new(config.key.clone());
        let quota = Default::default();
        let engine = Arc::new(Engine { shared: shared.clone(), pins, locks, pasts, quota, threads });
        if is_away {
            tracing::warn!("no server answers; starting from what is known here");
            // The connection is made only when there is a request.
            let asking = spawn("first-fetch", move || {
                while let Err(FsError::Unreachable(_)) = shared.fetch(ReadSet::default())
                    && !shared.queue.is_stopped()
                {
                    std::thread::sleep(FIRST_PAUSE);
                }
            })?;
            engine.threads.lock().insert(0, asking);
            return engine.start_freshness_monitor(witnesses, false);
        }
        // Programs wait until lost operations are made again, but the start does not.
        match shared.fetch_first(ReadSet::default()) {
            Ok(_) => engine.start_freshness_monitor(witnesses, true),
            Err(error) => {
                engine.stop();
                Err(match error {
                    FsError::Frozen(report) => StartError::Frozen(report),
                    FsError::Unreachable(why) => StartError::Unreachable(why),
                    FsError::Key(why) => StartError::Key(why),
                    other => StartError::First(other),
                })
            }
        }
    }
}

impl Engine {
    /// Starts the resend's thread. This must come after the policies that decide whether anything may be
    /// changed are in force.
    fn send_again(self: Arc<Self>) -> Result<Arc<Engine>, StartError> {
        let shared = self.shared.clone();
        let sender = spawn("again", move || shared.resend.run(&shared))?;
        self.threads.lock().insert(0, sender);
        Ok(self)
    }

    /// Starts to store leaves of the log beside the state.
    fn keep_leaves(self: Arc<Self>, state_dir: &Path) -> Result<Arc<Engine>, StartError> {
        match LeafKeeper::open(state_dir) {
            Ok(keeper) => {
                let keeper = Arc::new(keeper);
                keeper.note(&self.shared.latest.read().floor.clone());
                let _ = self.shared.leaf_keeper.set(keeper.clone());
                let shared = self.shared.clone();
                let thread = spawn("leaves", move || keeper.run(&shared))?;
                self.threads.lock().insert(0, thread);
            }
            Err(error) => tracing::warn!(%error, "leaves of the log cannot be kept"),
        }
        Ok(self)
    }

    /// Starts the monitor that checks that the newest head is not too old.
    fn start_freshness_monitor(
        self: Arc<Self>,
        policy: Option<WitnessPolicy>,
        is_here: bool,
    ) -> Result<Arc<Engine>, StartError> {
        let Some(policy) = policy else { return Ok(self) };
        let monitor = Arc::new(FreshnessMonitor::new(policy));
        if is_here {
            monitor.begin(&self.shared);
        }
        let _ = self.shared.freshness.set(monitor.clone());
        let shared = self.shared.clone();
        let thread = spawn("freshness", move || monitor.run(&shared))?;
        self.threads.lock().insert(0, thread);
        Ok(self)
    }
}

/// What is needed to meet other clients.
type PeerSetup = (PeersPolicy, Arc<Processes>, ServerAddress, TcpListener);

/// Opens the listener for other clients, if they are to be met, before anything else is started.
fn meeting(config: &EngineConfig) -> Result<Option<PeerSetup>, StartError> {
    let Some(policy) = &config.peers else { return Ok(None) };
    let Some(processes) = &config.processes else {
        let source = std::io::ErrorKind::Unsupported.into();
        return Err(StartError::Local { what: "meeting other clients without processes".to_owned(), source });
    };
    let listener = peers::listen(policy)?;
    Ok(Some((policy.clone(), processes.clone(), config.address.server.clone(), listener)))
}

/// Makes the process that has the key begin, and returns the highest number signed for; 0 if this process has
/// the key.
fn begin_signing(config: &EngineConfig, state: Option<&State>) -> Result<u64, StartError> {
    let Some(processes) = &config.processes else { return Ok(0) };
    let known = match state {
        Some(state) => Some(Mandate::adopt(&restore(state, &config.state_dir)?, config.key.public())),
        None => None,
    };
    let begun = processes.begin(&config.state_dir, &config.address.file_system, known.as_ref());
    begun.map_err(|error| match error {
        ProcessesError::InUse => StartError::InUse { state_dir: config.state_dir.clone() },
        ProcessesError::File { path, source } => {
            StartError::Local { what: format!("opening {}", path.display()), source }
        }
        error => StartError::Key(error.to_string()),
    })
}

/// The membership of the last view that was accepted here.
fn known_members(floor: &Floor, store: &VerifiedStore) -> Result<Membership, StartError> {
    let unknown = |why: String| {
        StartError::Unreachable(format!("and what is known here is not enough to do without it: {why}"))
    };
    let reference = membership_wanted(floor, &floor.view).map_err(|alarm| unknown(alarm.explain()))?;
    Membership::load(&store.near(), &reference).map_err(|error| unknown(error.to_string()))
}

/// Draws a number that distinguishes this run from others of the same device.
pub(super) fn draw_run() -> std::io::Result<u128> {
    let mut run = [0; 16];
    getrandom::fill(&mut run).map_err(|error| std::io::Error::other(error.to_string()))?;
    Ok(u128::from_le_bytes(run))
}

pub(super) fn spawn(
    name: &str,
    body: impl FnOnce() + Send + 'static,
) -> Result<std::thread::JoinHandle<()>, StartError> {
    std::thread::Builder::new()
        .name(format!("holdfast-{name}"))
        .spawn(body)
        .map_err(|source| StartError::Local { what: "starting a thread".to_owned(), source })
}

fn open_state(
    storage: Arc<dyn Storage>,
    config: &EngineConfig,
) -> Result<(StateLog, Option<State>), StartError> {
    let state_dir = config.state_dir.clone();
    let key = config.key.public();
    let file_system = config.address.file_system;
    StateLog::open(storage, file_system, key).map_err(|error| match error {
        StateError::InUse => StartError::InUse { state_dir },
        StateError::Foreign(found) => StartError::StateForeign {
            state_dir,
            found,
            expected: format!("key {key} of file system {file_system}"),
        },
        StateError::Corrupt(why) => StartError::StateCorrupt { state_dir, why },
        moved @ StateError::Moved(_) => StartError::StateMoved { state_dir, why: moved.to_string() },
        StateError::Full => StartError::Local {
            what: format!("opening {}", state_dir.display()),
            source: std::io::ErrorKind::StorageFull.into(),
        },
        StateError::Failed(why) => StartError::Local {
            what: format!("opening {}", state_dir.display()),
            source: std::io::Error::other(why),
        },
    })
}

fn restore(state: &State, state_dir: &Path) -> Result<Signer, StartError> {
    Signer::restore(&state.signer)
        .map_err(|error| StartError::StateCorrupt { state_dir: state_dir.to_owned(), why: error.to_string() })
}

/// Fails if the saved state is frozen: the alarm was about the server, which may still be lying.
fn frozen(state: &State) -> Result<(), StartError> {
    let signer = Signer::restore(&state.signer).ok();
    let alarm = signer.as_ref().and_then(|signer| signer.frozen());
    let is_local = alarm.is_some_and(|alarm| alarm.blame() == Blame::LocalState);
    let is_restored = alarm.is_some_and(|alarm| alarm.blame() == Blame::Nobody);
    let report = match &state.frozen {
        Some(frozen) => FrozenReport {
            what: frozen.what.clone(),
            noticed_ns: frozen.noticed_ns,
            last_good_operation: frozen.last_good_operation,
            evidence: frozen.evidence.as_ref().map(Into::into),
            is_local,
            is_restored,
        },
        None => match alarm {
            Some(alarm) => FrozenReport {
                what: alarm.explain(),
                noticed_ns: 0,
                last_good_operation: signer.as_ref().map_or(0, |signer| signer.floor().last()),
                evidence: None,
                is_local,
                is_restored,
            },
            None => return Ok(()),
        },
    };
    Err(StartError::Frozen(Arc::new(report)))
}

/// Creates the signer at the first start of a key on this machine. The server is only read from: if this
/// key's state were elsewhere, a signature made here would use one of its numbers twice.
fn enrol(remote: &dyn Remote, config: &EngineConfig) -> Result<Signer, StartError> {
    let welcome = remote.welcome().ok_or_else(|| StartError::Unreachable("no greeting".into()))?;
    let Some((superuser, _)) = &welcome.file_system else {
        return Err(StartError::WrongServer("it showed no proof for this file system".to_owned()));
    };
    if superuser.file_system_id() != config.address.file_system {
        return Err(StartError::WrongServer("its superuser key belongs to another file system".to_owned()));
    }
    let key = config.key.public();
    let Some(device) = welcome.device else {
        return Err(StartError::UnknownDevice { key: holdfast_crypto::keyfile::format_public(&key, "") });
    };
    let look = Request::Look { log_size: 0 };
    let reply =
        match call_patiently(remote, &look, config.deadline).map_err(|error| explain(error, config))? {
            Response::View(reply) => reply,
            other => return Err(explain(crate::store::unexpected("Look", &other), config)),
        };
    let shown = reply.view.slots.get(&device).map_or(0, |slot| slot.value.number());
    let pending = reply.view.pending.iter().filter(|entry| entry.forecast.device == device);
    let operations = pending.map(|entry| entry.forecast.number()).max().unwrap_or(0).max(shown);
    // Device 0 makes the founding operation before it first mounts, with its own state; see `admin`.
    if operations > 0 {
        return Err(StartError::StateMissing {
            device: device.0,
            operations,
            state_dir: config.state_dir.clone(),
        });
    }
    Ok(Signer::new(Floor::new(*superuser, device)))
}

/// The error of a start that could not reach the server.
pub(crate) fn explain(error: RpcError, config: &EngineConfig) -> StartError {
    match error {
        RpcError::WrongServer { .. } => StartError::WrongServer(error.to_string()),
        RpcError::Version { .. } => StartError::Version(error.to_string()),
        RpcError::Server(ServerError::UnknownFileSystem) => StartError::UnknownFileSystem,
        RpcError::Server(ServerError::NotAllowed(_)) => StartError::UnknownDevice {
            key: holdfast_crypto::keyfile::format_public(&config.key.public(), ""),
        },
        RpcError::Key(why) => StartError::Key(why.to_string()),
        other => StartError::Unreachable(other.to_string()),
    }
}
