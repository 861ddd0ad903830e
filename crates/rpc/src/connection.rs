//! A client's [`Connection`] to a server: made when first needed, and again after it is lost.
//!
//! It has two links, each made when first used: control for small requests and bulk for blocks, so that a
//! large transfer never delays an operation. A connection owns one thread with its own reactor; calls come
//! from any thread or runtime.

use crate::address::ServerAddress;
use crate::budget::Budget;
use crate::choice::{self, Finding, Transport};
use crate::dial::{Carrier, Dialer, GreetedConnection};
use crate::error::RpcError;
use crate::estimate::LinkEstimate;
use crate::link::{ExchangeError, Keepalive, Link};
use crate::quic::Quic;
use crate::sockets::{OwnSockets, Sockets};
use crate::tls;
use backon::{BackoffBuilder, ExponentialBuilder};
use bytes::Bytes;
use holdfast_crypto::{Digest, KeyHolder, PublicKey, decode, encode};
use holdfast_protocol::message::{
    AddressedBlock, MESSAGE_BYTES_MAX, Request, Response, ServerError, StoreHeader, Welcome,
};
use parking_lot::Mutex;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::time::Instant;

/// What a server must prove before a request is sent to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerProof {
    /// The file system it must serve.
    pub file_system: Digest,
    /// Highest sequence of a list of server keys seen before (0 at first). The caller stores it across
    /// restarts.
    pub minimum_sequence: u64,
}

/// The link that a request uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Small requests that a program waits for.
    Control,
    /// Blocks in large quantities.
    Bulk,
}

impl Lane {
    /// A request's lane unless the caller chooses another: many blocks travel in bulk.
    pub fn of(request: &Request) -> Lane {
        match request {
            Request::Store(_) | Request::StoreParcels(_) => Lane::Bulk,
            Request::Retrieve(addresses) if addresses.len() > 4 => Lane::Bulk,
            Request::RetrieveParcel { wanted, .. } if wanted.len() > 4 => Lane::Bulk,
            Request::RetrieveTree { bytes_max, .. } if *bytes_max > TREE_BYTES_SMALL => Lane::Bulk,
            Request::BlockServer(request) if request.call.is_bulky() => Lane::Bulk,
            _ => Lane::Control,
        }
    }
}

/// A tree of more bytes than this may delay other replies, so it travels in bulk.
const TREE_BYTES_SMALL: u32 = 256 << 10;
/// Times that apply if a file system's address names several servers.
const SEVERAL_PAUSE_MAX: Duration = Duration::from_millis(500);
const SEVERAL_CONNECT_PATIENCE: Duration = Duration::from_secs(4);
const SEVERAL_PING_AFTER: Duration = Duration::from_secs(2);
const SEVERAL_DEAD_AFTER: Duration = Duration::from_secs(8);
/// How long a server may leave callers waiting before the other servers are tried, in case one has taken
/// over; also the time between tries.
const SEVERAL_LOOK_AFTER: Duration = Duration::from_secs(2);
const SEVERAL_LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often to check whether QUIC would be better for a link over TCP.
const RECONSIDER_EVERY: Duration = Duration::from_secs(2);

/// Most bytes of blocks that one `Retrieve` may return, in all its messages together: request fewer at once.
pub const RETRIEVED_BYTES_MAX: usize = 64 << 20;

fn block_bytes(blocks: &[Option<(StoreHeader, AddressedBlock)>]) -> usize {
    blocks.iter().flatten().map(|(_, found)| found.block.body.len() + found.block.references.len() * 32).sum()
}

/// Whether sending a request twice does no more than sending it once, whatever happened in between.
pub fn is_idempotent(request: &Request) -> bool {
    if let Request::BlockServer(request) = request {
        return request.call.may_repeat();
    }
    matches!(
        request,
        Request::Hello { .. }
            | Request::Retrieve(_)
            | Request::Present(_)
            | Request::RetrieveParcel { .. }
            | Request::RetrieveTree { .. }
            | Request::VRetrieve { .. }
            | Request::Look { .. }
            | Request::FetchPending { .. }
            | Request::Ping
            | Request::Lock(_)
            | Request::TestLock(_)
            | Request::AwaitLock { .. }
            | Request::KeepLocks { .. }
            | Request::Holds
            | Request::Usage
            | Request::AwaitRecall { .. }
            | Request::EndLeases { .. }
            | Request::Witnessed { .. }
            | Request::History { .. }
            | Request::Past { .. }
            | Request::NameSnapshot(_)
            | Request::EndSnapshot(_)
            | Request::Leaves { .. }
            | Request::Servers
            | Request::DeclareRestore { .. }
    )
}

/// Bounds and times of a connection.
#[derive(Clone, Debug)]
pub struct ConnectionOptions {
    /// Most requests under way; further calls wait.
    pub requests_max: usize,
    /// Most request bytes under way; further calls wait.
    pub bytes_max: usize,
    /// How long one attempt to connect may take, including the greeting.
    pub connect_patience: Duration,
    /// First pause after a failed attempt; doubled after each up to `pause_max`.
    pub pause_first: Duration,
    /// Longest pause between attempts.
    pub pause_max: Duration,
    /// A server that has been silent for this long is pinged.
    pub ping_after: Duration,
    /// A link on which nothing has moved for this long is closed.
    pub dead_after: Duration,
    /// The transport of the links.
    pub transport: Transport,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            requests_max: 512,
            bytes_max: 64 << 20,
            connect_patience: Duration::from_secs(10),
            pause_first: Duration::from_millis(100),
            pause_max: Duration::from_secs(5),
            ping_after: Duration::from_secs(15),
            dead_after: Duration::from_secs(60),
            transport: Transport::default(),
        }
    }
}

impl ConnectionOptions {
    /// Pauses between attempts, without end.
    fn pauses(&self) -> impl Iterator<Item = Duration> + use<> {
        ExponentialBuilder::new()
            .with_min_delay(self.pause_first)
            .with_max_delay(self.pause_max)
            .without_max_times()
            .build()
    }
}

/// Everything needed to make a [`Connection`].
#[derive(Clone, Debug)]
pub struct Connector {
    /// The device's key, which identifies the client.
    pub key: Arc<dyn KeyHolder>,
    /// Addresses of the server, in order of preference.
    pub addresses: Vec<ServerAddress>,
    /// What the server must prove. `None` only to create a file system or to look at a server: then any
    /// Holdfast server is accepted.
    pub expected: Option<ServerProof>,
    /// The only key that the server may have; `None`: any that `expected` allows.
    pub server_key: Option<PublicKey>,
    /// The file system in the greeting if nothing is `expected`: servers that do not have it are skipped.
    pub requested: Option<Digest>,
    /// Limits and time-outs.
    pub options: ConnectionOptions,
    /// The source of sockets.
    pub sockets: Arc<dyn Sockets>,
}

impl Connector {
    /// A connector with the usual bounds.
    pub fn new(
        key: impl Into<Arc<dyn KeyHolder>>,
        addresses: Vec<ServerAddress>,
        expected: Option<ServerProof>,
    ) -> Self {
        let (options, sockets) = (ConnectionOptions::default(), Arc::new(OwnSockets));
        Connector {
            key: key.into(),
            addresses,
            expected,
            server_key: None,
            requested: None,
            options,
            sockets,
        }
    }

    /// Makes a connection without waiting for a server: calls wait for one.
    ///
    /// # Errors
    /// The system's error: no thread or reactor is available.
    pub fn start(mut self) -> std::io::Result<Connection> {
        if self.addresses.len() > 1 {
            // If another server may have taken over, it is worth finding out soon.
            let options = &mut self.options;
            options.pause_max = options.pause_max.min(SEVERAL_PAUSE_MAX);
            options.connect_patience = options.connect_patience.min(SEVERAL_CONNECT_PATIENCE);
            options.ping_after = options.ping_after.min(SEVERAL_PING_AFTER);
            options.dead_after = options.dead_after.min(SEVERAL_DEAD_AFTER);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        std::thread::Builder::new().name("holdfast-rpc".to_owned()).spawn(move || {
            // Ends when the last `Connection` is dropped.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?;
        let inner = Arc::new(Inner {
            config: tls::client_config(self.key),
            quic: OnceLock::new(),
            sockets: self.sockets,
            addresses: self.addresses,
            expected: Mutex::new(self.expected),
            only_key: self.server_key,
            requested: self.requested,
            preferred: AtomicUsize::new(0),
            requests: Semaphore::new(self.options.requests_max),
            bytes: Budget::new(self.options.bytes_max),
            options: self.options,
            lanes: [LaneState::new(), LaneState::new()],
            latest: Mutex::new(None),
            greeted: AtomicBool::new(false),
            estimate: Mutex::new(None),
            handle,
            past_sent: AtomicU64::new(0),
            past_received: AtomicU64::new(0),
            connects: AtomicU64::new(0),
            requests_made: AtomicU64::new(0),
        });
        Ok(Connection(Arc::new(Owner { inner, stop: Some(stop) })))
    }

    /// Makes a connection and waits for the first greeting, for at most `deadline` from now; at least one
    /// attempt is made on each address. Blocking.
    ///
    /// # Errors
    /// [`RpcError::Unreachable`]: no server answered. At once [`RpcError::WrongServer`],
    /// [`RpcError::Version`] or [`RpcError::Server`]: one answered and is the wrong one, or refuses.
    pub fn connect(self, deadline: Duration) -> Result<Connection, RpcError> {
        let connection = self.start().map_err(|error| RpcError::Unreachable {
            address: "this machine".to_owned(),
            why: format!("the network thread could not be started: {error}"),
        })?;
        connection.wait_until_connected(deadline)?;
        Ok(connection)
    }
}

/// A channel to a server, shared by its clones. Dropping the last one closes it.
#[derive(Clone)]
pub struct Connection(Arc<Owner>);

/// Bytes and events since the connection was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Traffic {
    /// Bytes sent, TLS included.
    pub sent: u64,
    /// Bytes received, TLS included.
    pub received: u64,
    /// Links made.
    pub connects: u64,
    /// Requests made.
    pub requests: u64,
}

struct Owner {
    inner: Arc<Inner>,
    stop: Option<oneshot::Sender<()>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }
}

struct Inner {
    config: Arc<rustls::ClientConfig>,
    /// Made when first needed; `None` if the system cannot make one.
    quic: OnceLock<Option<Quic>>,
    sockets: Arc<dyn Sockets>,
    addresses: Vec<ServerAddress>,
    expected: Mutex<Option<ServerProof>>,
    only_key: Option<PublicKey>,
    requested: Option<Digest>,
    /// The address that worked last: both lanes go to the same server if they can.
    preferred: AtomicUsize,
    options: ConnectionOptions,
    requests: Semaphore,
    bytes: Budget,
    lanes: [LaneState; 2],
    latest: Mutex<Option<(Welcome, PublicKey)>>,
    greeted: AtomicBool,
    /// The last known estimate of the links.
    estimate: Mutex<Option<LinkEstimate>>,
    handle: Handle,
    past_sent: AtomicU64,
    past_received: AtomicU64,
    connects: AtomicU64,
    requests_made: AtomicU64,
}

struct LaneState {
    state: watch::Sender<State>,
    dialing: AtomicBool,
    waiting: AtomicUsize,
}

#[derive(Clone)]
enum State {
    Down(Option<RpcError>),
    Up(Arc<Link>),
}

impl LaneState {
    fn new() -> Self {
        LaneState {
            state: watch::Sender::new(State::Down(None)),
            dialing: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        }
    }
}

impl Connection {
    /// Makes a request on its usual lane and waits for the answer, at most for `deadline`. Needs a tokio
    /// runtime with time. A server's refusal is [`RpcError::Server`], never `Response::Error`.
    ///
    /// After cancellation (dropping the future) it is unknown whether the server carried out the request.
    ///
    /// # Errors
    /// [`RpcError`]; see [`RpcError::maybe_sent`].
    pub async fn call(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        self.call_on(Lane::of(&request), request, deadline).await
    }

    /// Like [`Connection::call`], for threads outside any runtime; blocks.
    ///
    /// # Errors
    /// See [`RpcError`].
    ///
    /// # Panics
    /// When called from within an asynchronous task.
    pub fn call_blocking(&self, request: Request, deadline: Duration) -> Result<Response, RpcError> {
        self.0.inner.handle.block_on(self.call(request, deadline))
    }

    /// Like [`Connection::call_blocking`], but gives up as soon as `is_called_off`, which is called every
    /// `glance`, returns true.
    ///
    /// # Errors
    /// [`RpcError::Deadline`] when it is called off; see [`RpcError`].
    ///
    /// # Panics
    /// When called from within an asynchronous task.
    pub fn call_blocking_unless(
        &self,
        request: Request,
        deadline: Duration,
        glance: Duration,
        is_called_off: &dyn Fn() -> bool,
    ) -> Result<Response, RpcError> {
        let called_off = async {
            while !is_called_off() {
                tokio::time::sleep(glance).await;
            }
        };
        self.0.inner.handle.block_on(async {
            tokio::select! {
                biased;
                answer = self.call(request, deadline) => answer,
                () = called_off => Err(RpcError::Deadline { maybe_sent: true }),
            }
        })
    }

    /// [`Connection::call_on`] for threads outside any runtime.
    ///
    /// # Errors
    /// See [`RpcError`].
    ///
    /// # Panics
    /// When called from within an asynchronous task.
    pub fn call_on_blocking(
        &self,
        lane: Lane,
        request: Request,
        deadline: Duration,
    ) -> Result<Response, RpcError> {
        self.0.inner.handle.block_on(self.call_on(lane, request, deadline))
    }

    /// Makes a request on the lane of the caller's choice; otherwise like [`Connection::call`].
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn call_on(
        &self,
        lane: Lane,
        request: Request,
        deadline: Duration,
    ) -> Result<Response, RpcError> {
        let deadline = Instant::now() + deadline;
        let inner = &self.0.inner;
        inner.requests_made.fetch_add(1, Ordering::Relaxed);
        let response = inner.call_once(lane, &request, deadline).await?;
        collect_blocks(&request, response, async |rest| inner.call_once(lane, &rest, deadline).await).await
    }

    /// Sends a request that is encoded already, and returns its answer undecoded, unless it is a refusal;
    /// otherwise like [`Connection::call_on`]. If blocks do not fit into one answer, the rest is not
    /// requested again. `is_idempotent`: whether the request may be sent twice. The request's number on its
    /// link, which the server's log contains, is returned with the answer.
    ///
    /// # Errors
    /// See [`RpcError`].
    pub async fn pass_on(
        &self,
        lane: Lane,
        request: Bytes,
        is_idempotent: bool,
        deadline: Duration,
    ) -> Result<(Bytes, u64), RpcError> {
        let inner = &self.0.inner;
        inner.requests_made.fetch_add(1, Ordering::Relaxed);
        inner.exchange(lane, request, is_idempotent, Instant::now() + deadline).await
    }

    /// Like [`Connection::wait_until_connected`], for tasks.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub async fn connected_by(&self, deadline: Duration) -> Result<(), RpcError> {
        self.0.inner.link(Lane::Control, Instant::now() + deadline).await.map(drop)
    }

    /// Waits for a link, at most for `deadline`; at least one attempt is made on each address. Blocking.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub fn wait_until_connected(&self, deadline: Duration) -> Result<(), RpcError> {
        let inner = &self.0.inner;
        inner.handle.block_on(async { inner.link(Lane::Control, Instant::now() + deadline).await.map(drop) })
    }

    /// The server's latest greeting; `None` before the first.
    pub fn welcome(&self) -> Option<Welcome> {
        self.0.inner.latest.lock().as_ref().map(|(welcome, _)| welcome.clone())
    }

    /// The key of the server greeted last.
    pub fn server_key(&self) -> Option<PublicKey> {
        self.0.inner.latest.lock().as_ref().map(|(_, key)| *key)
    }

    /// Whether the control link is up, as far as this end knows.
    pub fn is_connected(&self) -> bool {
        matches!(&*self.0.inner.lanes[0].state.borrow(), State::Up(link) if !link.is_closed())
    }

    /// Why the last attempt to connect failed, while the control link is down.
    pub fn last_error(&self) -> Option<RpcError> {
        match &*self.0.inner.lanes[0].state.borrow() {
            State::Down(error) => error.clone(),
            State::Up(_) => None,
        }
    }

    /// Whether the control link runs over QUIC; `None` while it is down.
    pub fn is_over_quic(&self) -> Option<bool> {
        match &*self.0.inner.lanes[0].state.borrow() {
            State::Up(link) => Some(link.carrier == Carrier::Quic),
            State::Down(_) => None,
        }
    }

    /// Bytes and events so far.
    pub fn traffic(&self) -> Traffic {
        let inner = &self.0.inner;
        let mut traffic = Traffic {
            sent: inner.past_sent.load(Ordering::Relaxed),
            received: inner.past_received.load(Ordering::Relaxed),
            connects: inner.connects.load(Ordering::Relaxed),
            requests: inner.requests_made.load(Ordering::Relaxed),
        };
        for lane in &inner.lanes {
            if let State::Up(link) = &*lane.state.borrow() {
                traffic.sent += link.activity.sent.load(Ordering::Relaxed);
                traffic.received += link.activity.received.load(Ordering::Relaxed);
            }
        }
        traffic
    }

    /// The estimate of the link from its own traffic; `None` before the first greeting. Cheap. It stays after
    /// the link is lost, since the next link is probably similar.
    pub fn estimate(&self) -> Option<LinkEstimate> {
        let inner = &self.0.inner;
        let lanes = inner.lanes.each_ref().map(|lane| match &*lane.state.borrow() {
            State::Up(link) => link.flow.estimate(),
            State::Down(_) => None,
        });
        let [control, bulk] = lanes;
        let mut known = inner.estimate.lock();
        for new in [bulk, control].into_iter().flatten() {
            *known = Some(new.or(*known));
        }
        // Large messages use the bulk link, which knows the rates better.
        if let (Some(known), Some(bulk)) = (known.as_mut(), bulk) {
            known.sent_bytes_per_second = bulk.sent_bytes_per_second.or(known.sent_bytes_per_second);
            known.received_bytes_per_second =
                bulk.received_bytes_per_second.or(known.received_bytes_per_second);
        }
        *known
    }

    /// The reactor on which this connection lives, for tasks that belong to it.
    pub fn runtime(&self) -> Handle {
        self.0.inner.handle.clone()
    }
}

impl Inner {
    /// Sends one request and decodes its answer; resends it where that is harmless.
    async fn call_once(
        self: &Arc<Self>,
        lane: Lane,
        request: &Request,
        deadline: Instant,
    ) -> Result<Response, RpcError> {
        let payload = Bytes::from(encode(request));
        let (answer, _) = self.exchange(lane, payload, is_idempotent(request), deadline).await?;
        decode(&answer).map_err(|error| RpcError::Malformed(error.to_string()))
    }

    /// Sends one request and returns its answer undecoded, with the request's number on its link; a refusal
    /// is an error.
    async fn exchange(
        self: &Arc<Self>,
        lane: Lane,
        payload: Bytes,
        idempotent: bool,
        deadline: Instant,
    ) -> Result<(Bytes, u64), RpcError> {
        if payload.len() > MESSAGE_BYTES_MAX {
            return Err(RpcError::TooLarge { bytes: payload.len(), limit: MESSAGE_BYTES_MAX });
        }
        let room = async { (self.requests.acquire().await, self.bytes.take(payload.len()).await) };
        let Ok(_room) = tokio::time::timeout_at(deadline, room).await else {
            return Err(RpcError::Deadline { maybe_sent: false });
        };
        let mut pauses = self.options.pauses();
        loop {
            let link = self.link(lane, deadline).await?;
            let (answer, id) = match link.exchange(payload.clone(), deadline).await {
                Ok(answer) => answer,
                Err(ExchangeError::Lost { maybe_sent }) if idempotent || !maybe_sent => continue,
                Err(ExchangeError::Lost { maybe_sent }) => return Err(RpcError::Lost { maybe_sent }),
                Err(ExchangeError::Deadline { maybe_sent }) => return Err(RpcError::Deadline { maybe_sent }),
            };
            match refusal(&answer)? {
                // The server did not take the request, so trying again later is harmless for any request.
                Some(error @ ServerError::Busy) => match pauses.next() {
                    Some(pause) if Instant::now() + pause < deadline => {
                        tokio::time::sleep(jittered(pause)).await;
                    }
                    _ => return Err(error.into()),
                },
                Some(error) => return Err(error.into()),
                None => return Ok((answer, id)),
            }
        }
    }

    /// A live link, made if need be.
    async fn link(self: &Arc<Self>, lane: Lane, deadline: Instant) -> Result<Arc<Link>, RpcError> {
        let state = &self.lanes[lane as usize];
        let mut changes = state.state.subscribe();
        state.waiting.fetch_add(1, Ordering::AcqRel);
        let _waiting = Waiter(&state.waiting);
        let mut first = true;
        loop {
            let seen = changes.borrow_and_update().clone();
            let error = match seen {
                State::Up(link) if !link.is_closed() => return Ok(link),
                State::Up(_) => None,
                State::Down(error) => error,
            };
            // A definite refusal ends calls on a connection that was never established; calls on one that was
            // established before wait.
            let definite = |error: &RpcError| !error.is_transient() && !self.greeted.load(Ordering::Acquire);
            if !first
                && let Some(error) = &error
                && definite(error)
            {
                return Err(error.clone());
            }
            self.ensure_dialing(lane);
            let changed = tokio::time::timeout_at(deadline, changes.changed()).await;
            match changed {
                Ok(Ok(())) => first = false,
                Ok(Err(_)) => return Err(RpcError::Closed),
                // One attempt is always made, however short the deadline; it has a time limit of its own.
                Err(_) if first && error.is_none() => {
                    if tokio::time::timeout(self.options.connect_patience * 2, changes.changed())
                        .await
                        .is_err()
                    {
                        return Err(RpcError::Deadline { maybe_sent: false });
                    }
                    first = false;
                }
                Err(_) => return Err(error.unwrap_or(RpcError::Deadline { maybe_sent: false })),
            }
        }
    }

    fn ensure_dialing(self: &Arc<Self>, lane: Lane) {
        if !self.lanes[lane as usize].dialing.swap(true, Ordering::AcqRel) {
            let inner = self.clone();
            self.handle.spawn(async move { inner.dial_until_up(lane).await });
        }
    }

    /// Tries the addresses in turn, with growing pauses, until a link is up or no caller waits any more.
    async fn dial_until_up(self: Arc<Self>, lane: Lane) {
        let state = &self.lanes[lane as usize];
        for pause in self.options.pauses() {
            match self.dial_each().await {
                Ok(greeted) => {
                    self.accept(lane, greeted);
                    break;
                }
                Err(error) => {
                    tracing::debug!(?lane, %error, "no connection");
                    state.state.send_replace(State::Down(Some(error)));
                }
            }
            tokio::time::sleep(jittered(pause)).await;
            if state.waiting.load(Ordering::Acquire) == 0 {
                break;
            }
        }
        state.dialing.store(false, Ordering::Release);
        // A caller may have come, or the link closed, between the last check and the store.
        let up = matches!(&*state.state.borrow(), State::Up(link) if !link.is_closed());
        if !up && state.waiting.load(Ordering::Acquire) > 0 {
            self.ensure_dialing(lane);
        }
    }

    async fn dial_each(&self) -> Result<GreetedConnection, RpcError> {
        self.dial_from(self.preferred.load(Ordering::Relaxed), 0).await
    }

    /// Tries the addresses in turn from `first` on, leaving out the first `skipped` of them.
    async fn dial_from(&self, first: usize, skipped: usize) -> Result<GreetedConnection, RpcError> {
        let mut worst: Option<RpcError> = None;
        for offset in skipped..self.addresses.len() {
            let index = (first + offset) % self.addresses.len();
            let expected = self.expected.lock().clone();
            let attempt = self.dial(&self.addresses[index], expected.as_ref());
            match attempt.await {
                Ok(greeted) => {
                    self.preferred.store(index, Ordering::Relaxed);
                    return Ok(greeted);
                }
                // A server's answer is a more useful error than that another server could not be reached.
                Err(error) if worst.as_ref().is_none_or(RpcError::is_transient) => worst = Some(error),
                Err(_) => {}
            }
        }
        Err(worst.unwrap_or_else(|| RpcError::Unreachable {
            address: "(none)".to_owned(),
            why: "no address was given".to_owned(),
        }))
    }

    async fn dial(
        &self,
        address: &ServerAddress,
        expected: Option<&ServerProof>,
    ) -> Result<GreetedConnection, RpcError> {
        let dialer = Dialer {
            address,
            expected,
            requested: self.requested,
            only_key: self.only_key,
            patience: self.options.connect_patience,
            sockets: &*self.sockets,
        };
        let finding = choice::recall(address);
        match (self.options.transport, self.quic_for(finding)) {
            (Transport::Quic, Some(quic)) => dialer.quic(quic).await.map_err(or_over_tcp),
            (Transport::Quic, None) => Err(RpcError::Unreachable {
                address: address.to_string(),
                why: "this machine gives no socket for QUIC; try with the transport 'tcp'".to_owned(),
            }),
            (Transport::Auto, Some(quic)) => {
                let greeted = dialer.either(quic, self.config.clone()).await;
                if greeted.as_ref().is_ok_and(|greeted| greeted.carrier == Carrier::Tcp) {
                    choice::remember(address, Finding::Unanswered);
                }
                greeted
            }
            (Transport::Auto | Transport::Tcp, _) => dialer.tcp(self.config.clone()).await,
        }
    }

    /// QUIC's socket if it should be used, by choice or because of an earlier finding.
    fn quic_for(&self, finding: Option<Finding>) -> Option<&Quic> {
        let wanted = match self.options.transport {
            Transport::Auto => finding == Some(Finding::Better),
            Transport::Tcp => false,
            Transport::Quic => true,
        };
        wanted.then(|| self.quic()).flatten()
    }

    fn quic(&self) -> Option<&Quic> {
        let make = || match Quic::start(self.config.clone(), &*self.sockets) {
            Ok(quic) => Some(quic),
            Err(error) => {
                tracing::info!(%error, "no socket for QUIC");
                None
            }
        };
        self.quic.get_or_init(make).as_ref()
    }

    /// Watches a link as long as it exists. While its server leaves callers waiting, the others are asked: if
    /// one greets, it has taken over from a server that hangs but whose machine may still accept data.
    async fn look_elsewhere(inner: Weak<Self>, lane: Lane, from: usize, link: Weak<Link>) {
        loop {
            tokio::time::sleep(SEVERAL_LOOK_EVERY).await;
            let (Some(inner), Some(link)) = (inner.upgrade(), link.upgrade()) else { return };
            if link.is_closed() {
                return;
            }
            if !link.leaves_waiting(SEVERAL_LOOK_AFTER) {
                continue;
            }
            let Ok(greeted) = inner.dial_from(from, 1).await else { continue };
            if link.leaves_waiting(SEVERAL_LOOK_AFTER) {
                tracing::info!(address = %link.address, now = %greeted.address, "the server hangs; going on at another");
                inner.accept(lane, greeted);
                link.give_up();
                return;
            }
        }
    }

    /// Watches a link over TCP as long as it lasts, and moves the conversation to QUIC if that would be
    /// better.
    async fn reconsider(inner: Weak<Self>, address: ServerAddress, link: Weak<Link>) {
        loop {
            tokio::time::sleep(RECONSIDER_EVERY).await;
            let (Some(inner), Some(link)) = (inner.upgrade(), link.upgrade()) else { return };
            if link.is_closed() {
                return;
            }
            let seems_better = || link.flow.estimate().is_some_and(|link| choice::is_worth_trying(&link));
            match choice::recall(&address) {
                Some(Finding::Unanswered) => return,
                Some(Finding::Better) => {}
                None if seems_better() => {}
                None => continue,
            }
            for lane in [Lane::Control, Lane::Bulk] {
                if let Err(error) = inner.move_to_quic(lane, &address).await {
                    choice::remember(&address, Finding::Unanswered);
                    tracing::debug!(%address, %error, "QUIC is not answered");
                    return;
                }
            }
            choice::remember(&address, Finding::Better);
            tracing::info!(%address, "the link loses packets; going on over QUIC");
            return;
        }
    }

    /// Replaces a lane's link over TCP with a stream of QUIC; the TCP link ends once its outstanding requests
    /// are answered.
    async fn move_to_quic(self: &Arc<Self>, lane: Lane, address: &ServerAddress) -> Result<(), RpcError> {
        let State::Up(old) = self.lanes[lane as usize].state.borrow().clone() else { return Ok(()) };
        let Some(quic) = self.quic().filter(|_| old.carrier == Carrier::Tcp) else { return Ok(()) };
        let expected = self.expected.lock().clone();
        let patience = self.options.connect_patience;
        let (expected, only_key, requested) = (expected.as_ref(), self.only_key, self.requested);
        let dialer = Dialer { address, expected, requested, only_key, patience, sockets: &*self.sockets };
        let greeted = dialer.quic(quic).await?;
        self.accept(lane, greeted);
        old.retire();
        Ok(())
    }

    fn accept(self: &Arc<Self>, lane: Lane, greeted: GreetedConnection) {
        let GreetedConnection { pipe, welcome, server_key, address, carrier } = greeted;
        if let (Some(expected), Some((_, list))) = (self.expected.lock().as_mut(), &welcome.file_system) {
            expected.minimum_sequence = expected.minimum_sequence.max(list.value.sequence);
        }
        self.connects.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(?lane, %address, server_key = ?server_key, "connected");
        *self.latest.lock() = Some((welcome, server_key));
        self.greeted.store(true, Ordering::Release);
        let watch = Keepalive { ping_after: self.options.ping_after, dead_after: self.options.dead_after };
        let inner = Arc::downgrade(self);
        let closed = move |link: &Arc<Link>, why: String| {
            let Some(inner) = inner.upgrade() else { return };
            inner.past_sent.fetch_add(link.activity.sent.load(Ordering::Relaxed), Ordering::Relaxed);
            inner.past_received.fetch_add(link.activity.received.load(Ordering::Relaxed), Ordering::Relaxed);
            tracing::debug!(?lane, address = %link.address, why, "connection lost");
            let lost = RpcError::Unreachable { address: link.address.clone(), why };
            inner.lanes[lane as usize].state.send_if_modified(|state| {
                let ours = matches!(state, State::Up(current) if Arc::ptr_eq(current, link));
                if ours {
                    *state = State::Down(Some(lost));
                }
                ours
            });
        };
        let link = Link::start(pipe, address, carrier, watch, closed);
        let from = self.preferred.load(Ordering::Relaxed);
        if self.addresses.len() > 1 {
            tokio::spawn(Inner::look_elsewhere(Arc::downgrade(self), lane, from, Arc::downgrade(&link)));
        }
        if self.options.transport == Transport::Auto && carrier == Carrier::Tcp {
            let server = self.addresses[from % self.addresses.len()].clone();
            tokio::spawn(Inner::reconsider(Arc::downgrade(self), server, Arc::downgrade(&link)));
        }
        self.lanes[lane as usize].state.send_replace(State::Up(link));
    }
}

/// Adds to the error that TCP may work, if only QUIC is allowed and there is no answer.
fn or_over_tcp(error: RpcError) -> RpcError {
    match error {
        RpcError::Unreachable { address, why } => {
            let why = format!(
                "{why} over QUIC (UDP), which this server may not offer (--no-quic) or a network in between not let \
                 through; the transports 'auto' and 'tcp' go over TCP"
            );
            RpcError::Unreachable { address, why }
        }
        other => other,
    }
}

struct Waiter<'a>(&'a AtomicUsize);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Decodes an answer only if it is a refusal.
fn refusal(answer: &[u8]) -> Result<Option<ServerError>, RpcError> {
    static FIRST_BYTE: OnceLock<u8> = OnceLock::new();
    let first = FIRST_BYTE.get_or_init(|| encode(&Response::Error(ServerError::Busy))[0]);
    if answer.first() != Some(first) {
        return Ok(None);
    }
    match decode(answer).map_err(|error| RpcError::Malformed(error.to_string()))? {
        Response::Error(error) => Ok(Some(error)),
        _ => Ok(None),
    }
}

/// Requests again blocks that did not fit into one answer.
///
/// # Errors
/// The error of `ask`; or [`RpcError::Malformed`] if blocks are left out or there are too many.
pub async fn collect_blocks(
    request: &Request,
    response: Response,
    mut ask: impl AsyncFnMut(Request) -> Result<Response, RpcError>,
) -> Result<Response, RpcError> {
    let (Request::Retrieve(addresses), Response::Blocks(_)) = (request, &response) else {
        return Ok(response);
    };
    let Response::Blocks(mut blocks) = response else { return Ok(response) };
    let mut bytes = block_bytes(&blocks);
    while blocks.len() < addresses.len() {
        match ask(Request::Retrieve(addresses[blocks.len()..].to_vec())).await? {
            Response::Blocks(more) if !more.is_empty() => {
                bytes += block_bytes(&more);
                blocks.extend(more);
            }
            _ => return Err(RpcError::Malformed("it left out blocks".to_owned())),
        }
        if bytes > RETRIEVED_BYTES_MAX {
            let why = format!("it sent over {RETRIEVED_BYTES_MAX} bytes of blocks for one request");
            return Err(RpcError::Malformed(why));
        }
    }
    if blocks.len() > addresses.len() {
        return Err(RpcError::Malformed("it sent more blocks than were asked for".to_owned()));
    }
    Ok(Response::Blocks(blocks))
}

/// A time between half of `pause` and all of it, so that the clients of a restarted server do not reconnect
/// at the same moments.
fn jittered(pause: Duration) -> Duration {
    let noise = RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64(0.5 * (noise as f64 / u64::MAX as f64))
}
