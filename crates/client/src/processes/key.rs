//! The main process's side: starts the other two processes, hands over the key, and requests signatures.

use super::link::Link;
use super::messages::{
    AGENT, HANDSHAKE, KeyLocation, NETWORK, NetworkRequest, ORDERS, PART_BYTES, SIGN, SIGNER, SOCKETS,
    SignerReply, SignerRequest, SigningPayload,
};
use super::sockets::{self, Servers};
use crate::remote::Remote;
use holdfast_components::{
    Asker, Bounds, ChannelPlan, ComponentError, ComponentPlan, End, Patience, Permission, Plan, Profile,
    Program, Restart, Supervisor,
};
use holdfast_content::Restore;
use holdfast_crypto::{Digest, KeyHolder, PublicKey, SignError, SignRequest, Signature, SigningKey, keyfile};
use holdfast_protocol::mandate::Mandate;
use holdfast_rpc::{ServerAddress, ServerProof, Transport, diagnosis_socket};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of the signer's file in the state directory.
pub(super) const FILE: &str = "signed";
/// How long to wait for a signature: an agent may ask a person twice for one operation.
const SIGN_PATIENCE: Duration = Duration::from_secs(90);
/// Longest time for the signer to take a request, since it reads whenever it is idle.
const TAKEN_PATIENCE: Duration = Duration::from_secs(2);
/// How long to wait for a network process that is being restarted.
const OPEN_PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait until the signer of an earlier process has ended.
const GONE_PATIENCE: Duration = Duration::from_secs(3);

/// Where a device's private key comes from.
pub enum KeySource {
    /// A pipe with its seed (32 bytes), which no other process reads.
    Pipe {
        /// The pipe that the seed can be read from.
        pipe: OwnedFd,
        /// The public half of the key.
        public: PublicKey,
    },
    /// The key is in an SSH agent.
    Agent {
        /// Path of the agent's socket.
        socket: PathBuf,
        /// The public half of the key.
        public: PublicKey,
    },
}

impl KeySource {
    /// A source for a key that this process has and is about to drop.
    ///
    /// # Errors
    /// The system provides no pipe.
    pub fn of(key: &SigningKey) -> io::Result<KeySource> {
        let (pipe, into) = pipe_with(PipeFlags::CLOEXEC)?;
        std::fs::File::from(into).write_all(&*key.seed())?;
        Ok(KeySource::Pipe { pipe, public: key.public() })
    }

    /// The public half of the key.
    pub fn public(&self) -> PublicKey {
        match self {
            KeySource::Pipe { public, .. } | KeySource::Agent { public, .. } => *public,
        }
    }
}

/// Why the processes cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ProcessesError {
    /// They cannot be started, or one has ended.
    #[error(
        "Holdfast keeps a device's key, and reads from the network, in processes of their own, shut in: {0}"
    )]
    Component(#[from] ComponentError),
    /// Another process signs with the key.
    #[error("another process signs with this key")]
    InUse,
    /// The signer's record file cannot be used.
    #[error("{path}: {source}")]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] SignError),
}

/// The processes of one key.
pub struct Processes {
    source: Mutex<Option<KeySource>>,
    public: PublicKey,
    asker: Asker<SignerRequest, SignerReply>,
    orders: Asker<NetworkRequest, ()>,
    servers: Arc<Mutex<Servers>>,
    /// Held during one exchange with the signer, since long messages consist of several parts.
    turn: Mutex<()>,
    supervisor: Supervisor,
}

impl Processes {
    /// Starts the processes. [`Processes::begin`] hands over the key.
    ///
    /// # Errors
    /// The system cannot make sandboxes, or lacks resources.
    pub fn start(source: KeySource) -> Result<Arc<Processes>, ProcessesError> {
        Processes::start_as(Program::current()?, source)
    }

    /// Like [`Processes::start`], with the program that contains the components.
    ///
    /// # Errors
    /// See [`Processes::start`].
    pub fn start_as(program: Program, source: KeySource) -> Result<Arc<Processes>, ProcessesError> {
        let public = source.public();
        let supervisor = Supervisor::start(program, plan(&public), |_| ())?;
        let ports = supervisor.ports();
        let (asker, orders) = (ports.asker(SIGN)?, ports.asker(ORDERS)?);
        let agent = match &source {
            KeySource::Agent { socket, .. } => Some(socket.clone()),
            KeySource::Pipe { .. } => None,
        };
        let servers = Arc::default();
        sockets::serve(Arc::clone(ports), Arc::clone(&servers), agent)
            .map_err(|source| ComponentError::System { what: "starting a thread", source })?;
        let (source, turn) = (Mutex::new(Some(source)), Mutex::default());
        Ok(Arc::new(Processes { source, public, asker, orders, servers, turn, supervisor }))
    }

    /// A connection to a server, carried by the network process. It is made when it is first used or waited
    /// for.
    pub fn connect(
        self: &Arc<Self>,
        addresses: Vec<ServerAddress>,
        proof: Option<ServerProof>,
        transport: Transport,
    ) -> Arc<dyn Remote> {
        Arc::new(Link::new(Arc::clone(self), addresses, proof, transport))
    }

    /// The public half of the key.
    pub(super) fn public_key(&self) -> PublicKey {
        self.public
    }

    /// Allows the network process connections to these servers; returns their positions in the list.
    pub(super) fn register(&self, addresses: &[ServerAddress], transport: Transport) -> Vec<(u16, String)> {
        let mut servers = self.servers.lock();
        addresses.iter().map(|address| (servers.register(address, transport), address.to_string())).collect()
    }

    /// Makes the network process, or its successor, carry a connection over `stream`.
    pub(super) fn open(&self, order: &NetworkRequest, stream: OwnedFd) -> Result<(), ComponentError> {
        self.order(order, [stream].into_iter().chain(diagnosis_socket()).collect())
    }

    /// Makes the signer sign handshakes with clients that connect to this one.
    #[cfg(feature = "peers")]
    pub(super) fn meets_peers(&self) -> Result<(), ProcessesError> {
        let _turn = self.turn.lock();
        match self.ask(&SignerRequest::MeetPeers, &[])? {
            SignerReply::Accepted => Ok(()),
            SignerReply::NotSigned(why) => Err(why.into()),
            _ => Err(unexpected_reply().into()),
        }
    }

    /// Sends the network process a request, with files.
    pub(super) fn order(&self, order: &NetworkRequest, files: Vec<OwnedFd>) -> Result<(), ComponentError> {
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        let patience = Patience::of(OPEN_PATIENCE);
        let ticket = self.orders.start(0, order, &borrowed, patience)?;
        self.orders.finish(ticket, patience).map(drop)
    }

    /// Ends a network process that broke the rules. A new one takes its place.
    pub(super) fn end_network(&self) {
        if let Err(error) = self.supervisor.kill(NETWORK) {
            tracing::debug!(%error, "it has ended already");
        }
    }

    /// Hands the key to the signer, which from then on signs operations of `file_system`. It goes by its own
    /// record in `state_dir`, or by `known` if that includes more. Returns the highest number signed for.
    ///
    /// # Errors
    /// [`ProcessesError::InUse`]; the record or the key cannot be used.
    pub fn begin(
        &self,
        state_dir: &Path,
        file_system: &Digest,
        known: Option<&Mandate>,
    ) -> Result<u64, ProcessesError> {
        let path = state_dir.join(FILE);
        let file = open_record(&path)?;
        let known = known.map(Mandate::to_bytes).unwrap_or_default();
        self.hand_over(&known, Some(*file_system), Some(file))
    }

    /// Makes the signer enter the epoch of the last of these restores, with the mandate computed from the
    /// remaining state. It never goes back.
    ///
    /// # Errors
    /// The restores are not validly declared, or do not continue those that the key has taken up.
    pub fn enter_epoch(
        &self,
        superuser: &PublicKey,
        restores: &[Restore],
        next: &Mandate,
    ) -> Result<(), ProcessesError> {
        let _turn = self.turn.lock();
        self.send_parts(&next.to_bytes())?;
        let question = SignerRequest::GoOver { superuser: *superuser, restores: restores.to_vec() };
        match self.ask(&question, &[])? {
            SignerReply::Ready { .. } => Ok(()),
            SignerReply::NotSigned(why) => Err(why.into()),
            _ => Err(unexpected_reply().into()),
        }
    }

    /// Hands the key to the signer for handshakes only, for a program that only reads.
    ///
    /// # Errors
    /// The key cannot be used.
    pub fn begin_reading(&self) -> Result<(), ProcessesError> {
        self.hand_over(&[], None, None).map(drop)
    }

    fn hand_over(
        &self,
        known: &[u8],
        file_system: Option<Digest>,
        file: Option<OwnedFd>,
    ) -> Result<u64, ProcessesError> {
        let _turn = self.turn.lock();
        let source = self.source.lock().take();
        let source = source.ok_or_else(|| SignError::Refused("the key was handed over before".to_owned()))?;
        let (key, pipe) = match source {
            KeySource::Pipe { pipe, .. } => (KeyLocation::Pipe, Some(pipe)),
            KeySource::Agent { socket, public } => {
                let name = format!("the SSH agent at {}", socket.display());
                (KeyLocation::Agent { name, public }, None)
            }
        };
        self.send_parts(known)?;
        let files: Vec<OwnedFd> = pipe.into_iter().chain(file).collect();
        let borrowed: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        match self.ask(&SignerRequest::Begin { key, file_system }, &borrowed)? {
            SignerReply::Ready { public, number } if public == self.public => Ok(number),
            SignerReply::NotSigned(why) => Err(why.into()),
            _ => Err(unexpected_reply().into()),
        }
    }

    /// Sends a request to the signer. If it has ended, this does not wait, since it is not restarted.
    fn ask(&self, question: &SignerRequest, files: &[BorrowedFd]) -> Result<SignerReply, ComponentError> {
        let ticket = self.asker.start(0, question, files, Patience::of(TAKEN_PATIENCE))?;
        Ok(self.asker.finish(ticket, Patience::of(SIGN_PATIENCE))?.body)
    }

    fn send_parts(&self, bytes: &[u8]) -> Result<(), ProcessesError> {
        for part in bytes.chunks(PART_BYTES) {
            let part = SignerRequest::Part(part.to_vec());
            match self.ask(&part, &[])? {
                SignerReply::Accepted => {}
                SignerReply::NotSigned(why) => return Err(why.into()),
                _ => return Err(unexpected_reply().into()),
            }
        }
        Ok(())
    }

    fn sign(&self, asks: &[SignRequest]) -> Result<Vec<Signature>, ProcessesError> {
        let things = SigningPayload::encode_all(asks)?;
        let _turn = self.turn.lock();
        self.send_parts(&things)?;
        match self.ask(&SignerRequest::Sign, &[])? {
            SignerReply::Signed(signatures) if signatures.len() == asks.len() => Ok(signatures),
            SignerReply::NotSigned(why) => Err(why.into()),
            _ => Err(unexpected_reply().into()),
        }
    }

    /// Turns a failure to reach the signer into the error of a signature.
    fn lost(&self, error: ProcessesError) -> SignError {
        match error {
            ProcessesError::Key(why) => why,
            ProcessesError::Component(ComponentError::TimedOut(_)) => {
                SignError::Away("the process that keeps this device's key does not answer".to_owned())
            }
            error => {
                let listing = self.supervisor.listing();
                let signer = listing.components.iter().find(|component| component.name == SIGNER);
                let why =
                    signer.and_then(|signer| signer.last_end.clone()).unwrap_or_else(|| error.to_string());
                SignError::Refused(format!(
                    "the process that keeps this device's key has ended, and the key with it ({why}); nothing \
                     acknowledged is lost: unmount, and mount again"
                ))
            }
        }
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "Processes({})", keyfile::fingerprint(&self.public))
    }
}

impl KeyHolder for Processes {
    fn public(&self) -> PublicKey {
        self.public
    }

    fn sign_message(&self, _: &[u8]) -> Result<Signature, SignError> {
        Err(SignError::Refused("handshakes are signed for the network process only".to_owned()))
    }

    fn try_sign(&self, domain: holdfast_crypto::Domain, _: &[u8]) -> Result<Signature, SignError> {
        Err(SignError::Refused(format!("this device's key signs no {domain:?} unseen")))
    }

    fn try_sign_all(&self, asks: &[SignRequest]) -> Result<Vec<Signature>, SignError> {
        self.sign(asks).map_err(|error| self.lost(error))
    }
}

fn unexpected_reply() -> SignError {
    SignError::Refused("the process that keeps this device's key answers something else".to_owned())
}

fn plan(public: &PublicKey) -> Plan {
    let files_and_more = Bounds { files_max: 2, ..Bounds::default() };
    let mut signer = ComponentPlan::new(SIGNER, Profile::with_permissions(&[Permission::Sync]));
    signer.profile.memory_bytes_max = 128 << 20;
    signer.profile.mapped_bytes_max = 0;
    signer.profile.files_max = 32;
    signer.restart = Restart::NEVER;
    signer.source = Some(SIGNER.to_owned());
    signer.guards = vec![
        "signs only what extends what it signed last, and has that durable first".to_owned(),
        "in plain form, handshakes of TLS only: a client's, and a server's where clients meet".to_owned(),
    ];
    // The network permission is needed for options and addresses of streams; the process gets no listening
    // socket.
    let permissions = [Permission::Threads, Permission::Reactor, Permission::Network, Permission::Datagrams];
    let mut network = ComponentPlan::new(NETWORK, Profile::with_permissions(&permissions));
    // Memory for requests and answers under way, up to 64 MiB each, in both directions.
    network.profile.memory_bytes_max = 1 << 30;
    network.profile.mapped_bytes_max = 1 << 30;
    network.profile.threads_max = 64;
    network.restart =
        Restart { times_max: 50, window: Duration::from_secs(60), wait: Duration::from_millis(20) };
    network.guards = vec![
        "believed no further than a server: the main process checks every answer".to_owned(),
        "gets connections to the servers of its address, and to clients that it meets, only".to_owned(),
    ];
    let channel = |asks, serves| ChannelPlan { bounds: files_and_more, ..ChannelPlan::new(asks, serves) };
    Plan {
        name: format!("client of key {}", keyfile::fingerprint(public)),
        components: vec![signer, network],
        channels: vec![
            channel(End::host(SIGN), End::of(SIGNER, SIGN)),
            channel(End::of(SIGNER, AGENT), End::host(AGENT)),
            channel(End::host(ORDERS), End::of(NETWORK, ORDERS)),
            channel(End::of(NETWORK, SOCKETS), End::host(SOCKETS)),
            ChannelPlan::new(End::of(NETWORK, HANDSHAKE), End::of(SIGNER, HANDSHAKE)),
        ],
    }
}

/// Opens the record exclusively, for one signer. The signer of a process that has just ended may take a
/// moment to end.
pub(super) fn open_record(path: &Path) -> Result<OwnedFd, ProcessesError> {
    let failed = |source: io::Error| ProcessesError::File { path: path.to_owned(), source };
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|error| failed(error.into()))?;
    let end = Instant::now() + GONE_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
            Err(Errno::WOULDBLOCK) => return Err(ProcessesError::InUse),
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
}
