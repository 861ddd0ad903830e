//! The server without its sockets: file systems, the rights of sessions, and all requests except those that
//! wait.
//!
//! It blocks and is thread-safe. Storage and clock are passed in, so that tests can run it on a disk that
//! loses power and under a simulated clock.
//!
//! Invariants:
//! - A reply leaves only after everything it speaks of is durable. Usually blocks and ordering records go to
//!   one log, and one group commit serves all requests that wait at that moment. If the blocks are on another
//!   machine, blocks are durable there before a record that names them is appended here
//!   ([`crate::BlockStore`]).
//! - After a failed sync nothing is acknowledged any more ([`ServerCore::failure`]): until the store is
//!   opened again, nobody can say what is durable.
//! - A request acts in the name of the device that the membership in force gives the session's key, and of no
//!   other device.

mod member;

use crate::block_store::{BlockStore, LocalBlocks};
use crate::blocks;
use crate::clock::Clock;
use crate::config::{CoreSettings, CreatePolicy};
use crate::error::{OpenError, UnservedReason};
use crate::file_system::{Author, Claim, FileSystem, InheritedState};
use crate::notes::{LeasesNote, LocksNote, NotedSession};
use crate::order::etcd::Cluster;
use crate::parcels::ParcelLimits;
use crate::refusal::{RequestError, refuse};
use crate::resources::Resources;
use crate::restored::UndeclaredRestores;
use crate::statistics::Counters;
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, PublicKey, SigningKey};
use holdfast_log::Storage;
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::locks::SessionId;
use holdfast_protocol::message::{
    AddressedBlock, PROTOCOL_VERSIONS, Request, Response, ServerError, ServerKeys, Welcome,
};
use holdfast_protocol::packed::Difference;
use holdfast_protocol::rebuild::Nodes;
use holdfast_protocol::sequencer::Sequencer;
use holdfast_protocol::signed::Signed;
use holdfast_protocol::structure::Structure;
use holdfast_rpc::Throttle;
use holdfast_store::LogStore;
use member::MemberRequest;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Most file systems of one server.
const FILE_SYSTEMS_MAX: usize = 1024;

/// Whether the operator lists a key as one that may create file systems.
pub type AllowedSuperusers = Box<dyn Fn(&PublicKey) -> bool + Send + Sync>;

/// A server without its sockets: it owns the file systems, and answers decoded requests.
pub struct ServerCore {
    /// What the file systems share.
    pub(crate) resources: Arc<Resources>,
    allowed: AllowedSuperusers,
    pub(crate) file_systems: RwLock<BTreeMap<Digest, Arc<FileSystem>>>,
    /// File systems that are not served because their order is damaged, with the reason: serving them would
    /// roll them back.
    pub(crate) damaged: RwLock<BTreeMap<Digest, UnservedReason>>,
    /// The servers that share the order, if it is in etcd.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) creating: Mutex<()>,
    leases_note: LeasesNote,
    refusals: Throttle,
    pub(crate) awaiting: UndeclaredRestores,
}

/// The peer whose request is served: what the transport proved of it, and the file system that its greeting
/// named.
#[derive(Clone)]
pub struct Caller {
    /// The key the peer holds.
    pub peer: PublicKey,
    /// Whether it connects from this very machine.
    pub local: bool,
    /// The file system of the session.
    pub file_system: Option<Arc<FileSystem>>,
    /// A reply with blocks ends once it is this large, in bytes: about as much as the caller's link carries
    /// in a second or two, so that little is lost if the link breaks. The caller requests the rest again.
    pub answer_bytes: usize,
}

/// The reply to a greeting.
pub struct GreetingReply {
    /// The response to send.
    pub answer: Response,
    /// The file system of the session from now on, if the greeting was accepted.
    pub file_system: Option<Arc<FileSystem>>,
    /// Whether the limits for strangers may be lifted for this session.
    pub admitted: bool,
}

/// The outcome of a request.
pub(crate) enum RequestOutcome {
    /// The request was answered.
    Answered(Box<Response>),
    /// The request has to wait for leases of other sessions; it is handed back to the caller.
    Waits {
        /// The request.
        request: Box<Request>,
        /// Longest time to wait before the next attempt, in milliseconds.
        wait_ms: u64,
        /// The claim to hold while the request waits, if this attempt made one.
        claim: Option<Claim>,
    },
}

impl ServerCore {
    /// Opens all file systems in `storage`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(
        storage: Arc<dyn Storage>,
        key: SigningKey,
        settings: CoreSettings,
        allowed: AllowedSuperusers,
        clock: Arc<dyn Clock>,
    ) -> Result<ServerCore, OpenError> {
        ServerCore::open_over(storage, key, settings, allowed, clock, None)
    }

    /// Like [`ServerCore::open`], but with blocks in `blocks` if that is given, instead of in `storage`.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open_over(
        storage: Arc<dyn Storage>,
        key: SigningKey,
        settings: CoreSettings,
        allowed: AllowedSuperusers,
        clock: Arc<dyn Clock>,
        blocks: Option<Arc<dyn BlockStore>>,
    ) -> Result<ServerCore, OpenError> {
        let store = LogStore::open(storage.clone(), settings.store.clone())?;
        let leases_note =
            LeasesNote::at(settings.leases_note.clone(), settings.lease_term.as_millis() as u64);
        let resources = Arc::new(Resources {
            has_separate_blocks: blocks.is_some(),
            blocks: blocks.unwrap_or_else(|| Arc::new(LocalBlocks::new(store.clone()))),
            store,
            storage,
            key,
            locks_note: LocksNote::at(settings.locks_note.clone()),
            parcels: ParcelLimits::new(settings.parcels),
            settings,
            clock,
            counters: Counters::default(),
            failure: watch::Sender::new(None),
        });
        let (mut file_systems, mut damaged) = (BTreeMap::new(), BTreeMap::new());
        for id in resources.store.file_systems() {
            let before = InheritedState {
                locks_held: resources.locks_note.is_set(),
                leases: leases_note.inherited(id),
                first_epoch: resources.clock.wall_ns().unsigned_abs(),
            };
            match FileSystem::open(resources.clone(), resources.embedded(id), id, before) {
                Ok(Some(file_system)) => {
                    tracing::info!(file_system = %id, operations = file_system.log_size(), "serving");
                    file_systems.insert(id, Arc::new(file_system));
                }
                // The server stopped during its creation, before that was acknowledged.
                Ok(None) => {
                    tracing::info!(file_system = %id, "ignoring a file system that was never created")
                }
                // One damaged file system is no reason not to serve the others.
                Err(error) if error.is_of_one_file_system() => {
                    tracing::error!(file_system = %id, %error, "this file system is not served");
                    damaged.insert(id, UnservedReason::Damaged(error.to_string()));
                }
                Err(error) => return Err(error),
            }
        }
        let settings = &resources.settings;
        let now: Vec<Digest> =
            if settings.is_restored { file_systems.keys().copied().collect() } else { Vec::new() };
        let awaiting = UndeclaredRestores::open(settings.restored_note.clone(), &now)?;
        for id in file_systems.keys().filter(|id| awaiting.has(id)) {
            tracing::warn!(file_system = %id, "put back: waits until its superuser declares that (holdfast fs restored)");
        }
        Ok(ServerCore {
            resources,
            allowed,
            file_systems: RwLock::new(file_systems),
            damaged: RwLock::new(damaged),
            cluster: None,
            creating: Mutex::new(()),
            leases_note,
            refusals: Throttle::default(),
            awaiting,
        })
    }

    /// File systems that are not served because their order is damaged, with the reason.
    pub fn damaged(&self) -> BTreeMap<Digest, UnservedReason> {
        self.damaged.read().clone()
    }

    /// The server's public key.
    pub fn server_key(&self) -> PublicKey {
        self.resources.server_key()
    }

    /// All file systems.
    pub fn file_systems(&self) -> Vec<Arc<FileSystem>> {
        self.file_systems.read().values().cloned().collect()
    }

    /// A file system that this server serves.
    pub(crate) fn file_system(&self, id: &Digest) -> Option<Arc<FileSystem>> {
        self.file_systems.read().get(id).cloned()
    }

    /// Becomes `Some`, with the reason, when the storage has failed and nothing more can be acknowledged.
    pub fn failure(&self) -> watch::Receiver<Option<String>> {
        self.resources.failure.subscribe()
    }

    /// Answers a greeting.
    pub fn greet(
        &self,
        peer: PublicKey,
        local: bool,
        versions: (u16, u16),
        wanted: Option<Digest>,
    ) -> GreetingReply {
        let refused =
            |error| GreetingReply { answer: Response::Error(error), file_system: None, admitted: false };
        let (oldest, newest) = PROTOCOL_VERSIONS;
        let version = versions.1.min(newest);
        if versions.0 > versions.1 || version < versions.0.max(oldest) {
            return refused(ServerError::Version(oldest, newest));
        }
        let abort_after_ms =
            u32::try_from(self.resources.settings.abort_after.as_millis()).unwrap_or(u32::MAX);
        let Some(wanted) = wanted else {
            let welcome = Welcome { version, file_system: None, device: None, abort_after_ms };
            let admitted = self.may_create(&peer, local);
            return GreetingReply { answer: Response::Hello(welcome), file_system: None, admitted };
        };
        if let Some(why) = self.damaged.read().get(&wanted) {
            return refused(ServerError::Storage(why.to_string()));
        }
        let Some(file_system) = self.file_system(&wanted) else {
            return refused(self.why_not_here(&wanted));
        };
        let device = file_system.device(&peer);
        let welcome = Welcome { version, file_system: Some(file_system.proof()), device, abort_after_ms };
        GreetingReply {
            answer: Response::Hello(welcome),
            file_system: Some(file_system),
            admitted: device.is_some(),
        }
    }

    /// Answers any request except `Hello` and `FetchPending`.
    pub fn handle(&self, caller: &Caller, request: Request) -> Response {
        self.resources.counters.requests.add(1);
        match self.answer(caller, request) {
            Ok(response) => response,
            Err(refused) => {
                let error = self.resources.note(refused);
                self.resources.counters.refused.add(1);
                if let Some(suppressed) = self.refusals.allow() {
                    tracing::info!(peer = ?caller.peer, %error, suppressed, "request refused");
                }
                Response::Error(error)
            }
        }
    }

    /// Called at a clean shutdown: if no lock is held, the next start need not wait for holders.
    pub(crate) fn settle_locks(&self) {
        if !self.file_systems().iter().any(|file_system| file_system.holds_locks()) {
            self.resources.locks_note.clear();
        }
    }

    /// Called before a clean shutdown: recalls all leases and waits up to `patience` for their release, so
    /// that the next start need not wait for their holders.
    pub(crate) async fn recall_leases(&self, patience: Duration) {
        let end = tokio::time::Instant::now() + patience;
        for file_system in self.file_systems() {
            file_system.close_leases();
        }
        for file_system in self.file_systems() {
            loop {
                let mut freed = std::pin::pin!(file_system.next_freed());
                freed.as_mut().enable();
                if file_system.is_unleased() || tokio::time::timeout_at(end, freed).await.is_err() {
                    break;
                }
            }
        }
    }

    /// Called at the end of a clean shutdown: if no lease is held, the next start need not wait for holders.
    pub(crate) fn settle_leases(&self) {
        if self.file_systems().iter().all(|file_system| file_system.is_unleased()) {
            self.leases_note.clear();
        }
    }

    /// Answers a request, unless it is an operation that conflicts with other sessions' leases. Such an
    /// operation claims what it changes, unless it `has_claim` from an earlier attempt.
    pub(crate) fn attempt(&self, caller: &Caller, request: Request, has_claim: bool) -> RequestOutcome {
        if let Request::Fast { certificate, lease, .. } | Request::Update { certificate, lease, .. } =
            &request
            && let Ok((file_system, device)) = self.member(caller)
            && let Some((wait_ms, claim)) =
                file_system.obstacle(device, &certificate.value, lease.as_ref(), has_claim)
        {
            return RequestOutcome::Waits { request: Box::new(request), wait_ms, claim };
        }
        RequestOutcome::Answered(Box::new(self.handle(caller, request)))
    }

    /// The reply to a client's run that must give up something; `None` if it has nothing to give up now.
    pub(crate) fn recall(
        &self,
        caller: &Caller,
        run: u128,
        epoch: u64,
        acknowledged: u64,
    ) -> Option<Response> {
        match self.member(caller) {
            Ok((file_system, device)) => {
                let recall = file_system.recall(device, run, epoch, acknowledged)?;
                Some(Response::Recalled(Some(recall)))
            }
            Err(refused) => Some(Response::Error(self.resources.note(refused))),
        }
    }

    /// A reply to `AwaitRecall`: the operations of other devices since this device's log had `log_size`
    /// leaves, made durable first. Returns `None` if there is nothing to push ([`FileSystem::push`]).
    pub(crate) fn push(&self, caller: &Caller, log_size: u64) -> Option<Response> {
        let push = || -> Result<Option<Difference>, RequestError> {
            let (file_system, device) = self.member(caller)?;
            let pushed = file_system.push(device, log_size)?;
            if pushed.is_some() {
                file_system.sync()?;
            }
            Ok(pushed)
        };
        match push() {
            Ok(pushed) => pushed.map(Response::Difference),
            Err(refused) => Some(Response::Error(self.resources.note(refused))),
        }
    }

    /// The status of an operation, once it is durable: the reply to `FetchPending`, or `None` while it is
    /// pending.
    pub fn operation_status(&self, caller: &Caller, device: DeviceId, number: u64) -> Option<Response> {
        let answer = || -> Result<Option<Response>, RequestError> {
            let (file_system, _) = self.member(caller)?;
            let status = file_system.operation_status(device, number)?;
            if status.is_some() {
                file_system.sync()?;
            }
            Ok(status)
        };
        match answer() {
            Ok(status) => status,
            Err(refused) => Some(Response::Error(self.resources.note(refused))),
        }
    }

    fn answer(&self, caller: &Caller, request: Request) -> Result<Response, RequestError> {
        if let Some(why) = &*self.resources.failure.borrow() {
            return Err(ServerError::Storage(why.clone()).into());
        }
        match request {
            Request::Ping => Ok(Response::Done),
            Request::CreateFileSystem { superuser, server_keys, certificate, structure, blocks } => {
                self.create(caller, superuser, server_keys, certificate, structure, blocks)
            }
            Request::Hello { .. } | Request::FetchPending { .. } => {
                refuse("this request is answered elsewhere")
            }
            // A peer that has just created a file system is not a member of one in this session.
            Request::Servers if self.may_create(&caller.peer, caller.local) => Ok(self.servers()),
            other => {
                let (file_system, device) = self.member(caller)?;
                let author = Author { device, key: caller.peer };
                let (resources, now_ns) = (&*self.resources, self.resources.clock.wall_ns());
                MemberRequest { core: self, resources, caller, file_system, author, now_ns }.answer(other)
            }
        }
    }

    fn create(
        &self,
        caller: &Caller,
        superuser: PublicKey,
        server_keys: Signed<ServerKeys>,
        certificate: Signed<Certificate>,
        structure: Signed<Structure>,
        given: Vec<AddressedBlock>,
    ) -> Result<Response, RequestError> {
        if !self.may_create(&caller.peer, caller.local) {
            let why = "this server does not let this key create file systems".to_owned();
            return Err(ServerError::NotAllowed(why).into());
        }
        if caller.peer != superuser {
            return Err(
                ServerError::NotAllowed("only the superuser's own key may create it".to_owned()).into()
            );
        }
        let checked = blocks::check_attached(given)?;
        let id = superuser.file_system_id();
        if let Some(why) = self.damaged.read().get(&id) {
            return Err(ServerError::Storage(why.to_string()).into());
        }
        let _creating = self.creating.lock();
        if let Some(existing) = self.file_systems.read().get(&id) {
            // The client may repeat a creation because the reply was lost.
            let receipt = existing.founding_receipt(&structure).ok_or(ServerError::Exists)?;
            return existing.settle(Ok(receipt));
        }
        if self.file_systems.read().len() >= FILE_SYSTEMS_MAX {
            let why = format!("this server has {FILE_SYSTEMS_MAX} file systems and takes no more");
            return Err(ServerError::NotAllowed(why).into());
        }
        let order = self.begun(id)?;
        let resources = self.resources.clone();
        let created =
            FileSystem::create(resources, order, superuser, server_keys, certificate, structure, checked);
        let durable = created.and_then(|(file_system, receipt)| {
            file_system.sync()?;
            Ok((file_system, receipt))
        });
        let (file_system, receipt) = durable.inspect_err(|_| self.not_begun(id))?;
        let file_system = Arc::new(file_system);
        self.file_systems.write().insert(id, file_system.clone());
        tracing::info!(file_system = %id, "created");
        file_system.settle(Ok(receipt))
    }

    fn may_create(&self, key: &PublicKey, local: bool) -> bool {
        match self.resources.settings.create {
            CreatePolicy::Anyone => true,
            CreatePolicy::Nobody => false,
            CreatePolicy::Listed => (self.allowed)(key),
            CreatePolicy::Local => local || (self.allowed)(key),
        }
    }

    fn member<'a>(&self, caller: &'a Caller) -> Result<(&'a Arc<FileSystem>, DeviceId), RequestError> {
        let Some(file_system) = &caller.file_system else {
            return refuse("the greeting named no file system");
        };
        match file_system.device(&caller.peer) {
            Some(device) => Ok((file_system, device)),
            None => {
                let why = "this key is not that of a member's device".to_owned();
                Err(ServerError::NotAllowed(why).into())
            }
        }
    }

    /// Notes durably that a session holds leases, in the note in the data directory.
    fn note_leases(
        &self,
        file_system: &FileSystem,
        session: SessionId,
        exclusively: bool,
    ) -> std::io::Result<()> {
        let session = file_system.noted_session(session, exclusively);
        self.leases_note.note(session, || self.noted_sessions())
    }

    fn noted_sessions(&self) -> Vec<NotedSession> {
        self.file_systems().iter().flat_map(|file_system| file_system.noted_sessions()).collect()
    }

    /// Replaces the order of a file system, durably. Afterwards the caller must not serve the file system
    /// from this `ServerCore`, but must open the data directory again.
    pub(crate) fn replace_order(
        &self,
        sequencer: &Sequencer,
        server_keys: &Signed<ServerKeys>,
        nodes: &Nodes,
    ) -> Result<(), RequestError> {
        let id = sequencer.file_system();
        let (resources, present) = (&self.resources, self.file_system(&id));
        FileSystem::replace(resources, present.as_deref(), sequencer, server_keys, nodes)?;
        resources.sync_stores()?;
        // The notes are written before the first start with the new order. As after a crash, nobody knows
        // which locks and leases clients hold.
        let noted = resources.locks_note.set();
        let noted = noted.and_then(|()| self.leases_note.note_unknown(id, self.noted_sessions()));
        noted.map_err(|error| ServerError::Storage(error.to_string()).into())
    }
}
