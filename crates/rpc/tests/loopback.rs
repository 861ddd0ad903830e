//! Client and server end of the transport against each other over loopback.

use holdfast_content::{BlockKind, Codec, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, PublicKey, SigningKey, encode};
use holdfast_protocol::message::{
    AddressedBlock, Request, Response, ServerError, ServerKeys, StoreHeader, Welcome,
};
use holdfast_protocol::signed::Signed;
use holdfast_rpc::{
    Connection, ConnectionOptions, Connector, Limits, Listeners, RpcError, ServerAddress, ServerProof,
    Service, Session, Transport, WrongServer, serve,
};
use holdfast_testing::{PATIENCE, eventually, eventually_some, free_port};
use std::net::{TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// Answers as a server would that serves key 1's file system to keys 10 and up.
struct Echo {
    server_keys: Signed<ServerKeys>,
    superuser: PublicKey,
    snapshots: AtomicUsize,
    waiting: AtomicUsize,
    busy: AtomicU64,
    /// While this is locked, the server hangs at the next request: its thread does nothing more.
    hangs: Mutex<()>,
}

impl Echo {
    fn new(listed: &[u8]) -> Echo {
        let superuser = key(1);
        let keys = listed.iter().map(|seed| key(*seed).public()).collect();
        let file_system = superuser.public().file_system_id();
        let server_keys = Signed::new(ServerKeys { file_system, sequence: 1, keys }, &superuser);
        Echo {
            server_keys,
            superuser: superuser.public(),
            snapshots: 0.into(),
            waiting: 0.into(),
            busy: 0.into(),
            hangs: Mutex::default(),
        }
    }
}

fn block(size: usize) -> Option<(StoreHeader, AddressedBlock)> {
    let block =
        StoredBlock { kind: BlockKind::Chunk, codec: Codec::Plain, references: vec![], body: vec![7; size] };
    Some((StoreHeader { owner: DeviceId(0), stored_ns: 0 }, AddressedBlock { address: Digest::ZERO, block }))
}

impl Service for Echo {
    type State = AtomicUsize;

    async fn handle(&self, session: &Arc<Session<AtomicUsize>>, request: Request) -> Response {
        drop(self.hangs.lock());
        session.state.fetch_add(1, Ordering::Relaxed);
        match request {
            Request::Hello { versions, .. } if versions.0 > 4 => Response::Error(ServerError::Version(4, 4)),
            Request::Hello { file_system, .. } => {
                if session.peer != key(99).public() {
                    session.admit();
                }
                Response::Hello(Welcome {
                    version: holdfast_protocol::message::PROTOCOL_VERSIONS.1,
                    file_system: file_system.map(|_| (self.superuser, self.server_keys.clone())),
                    device: None,
                    abort_after_ms: 1000,
                })
            }
            Request::Ping => Response::Done,
            // At most 5 blocks of 1 MiB fit into one answer.
            Request::Retrieve(wanted) => Response::Blocks(vec![block(1 << 20); wanted.len().min(5)]),
            Request::FetchPending { wait_ms, .. } => {
                self.waiting.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(wait_ms.into())).await;
                Response::Structure(None)
            }
            Request::Snapshot => {
                self.snapshots.fetch_add(1, Ordering::SeqCst);
                // An answer that never comes.
                std::future::pending().await
            }
            Request::Pin { .. } if self.busy.fetch_sub(1, Ordering::SeqCst) > 0 => {
                Response::Error(ServerError::Busy)
            }
            Request::Pin { .. } => Response::Done,
            Request::Look { .. } => panic!("a bug in the server"),
            _ => Response::Error(ServerError::NotAllowed("no".to_owned())),
        }
    }
}

/// A running server on its own thread; stops when dropped.
struct Running {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(service: Arc<Echo>, port: u16, limits: Limits) -> Running {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let udp = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let tcp = tokio::net::TcpListener::from_std(listener).unwrap();
                let stopped = async { drop(stopped.await) };
                serve(Listeners { tcp, udp: Some(udp) }, &key(2), service, limits, stopped).await.unwrap();
            });
        });
        Running { port, stop: Some(stop), thread: Some(thread) }
    }

    fn address(&self) -> Vec<ServerAddress> {
        vec![ServerAddress { host: "127.0.0.1".to_owned(), port: self.port }]
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.thread.take().unwrap().join().unwrap();
    }
}

fn proof() -> ServerProof {
    ServerProof { file_system: key(1).public().file_system_id(), minimum_sequence: 0 }
}

const BOTH: [Transport; 2] = [Transport::Tcp, Transport::Quic];

fn connector(seed: u8, addresses: Vec<ServerAddress>, proof: ServerProof, transport: Transport) -> Connector {
    let options = ConnectionOptions { transport, ..ConnectionOptions::default() };
    Connector { options, ..Connector::new(key(seed), addresses, Some(proof)) }
}

fn connect(running: &Running, seed: u8, transport: Transport) -> Connection {
    let connection = connector(seed, running.address(), proof(), transport).connect(PATIENCE).unwrap();
    assert_eq!(connection.is_over_quic(), Some(transport == Transport::Quic));
    connection
}

/// Proves: a call succeeds from plain threads and from a runtime, many at once share one connection, and
/// answers reach their callers.
#[test]
fn calls_are_multiplexed() {
    for transport in BOTH {
        calls_are_multiplexed_over(transport);
    }
}

fn calls_are_multiplexed_over(transport: Transport) {
    let running = Running::start(Arc::new(Echo::new(&[2])), free_port(), Limits::default());
    let connection = connect(&running, 10, transport);
    assert_eq!(connection.server_key(), Some(key(2).public()));
    assert_eq!(connection.welcome().unwrap().abort_after_ms, 1000);
    let slow = Request::FetchPending { device: DeviceId(1), number: 1, wait_ms: 200 };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..50 {
                    assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
                }
            });
            scope.spawn(|| {
                assert_eq!(connection.call_blocking(slow.clone(), PATIENCE), Ok(Response::Structure(None)));
            });
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(runtime.block_on(connection.call(Request::Ping, PATIENCE)), Ok(Response::Done));
    let refused = connection.call_blocking(Request::Dereference(vec![]), PATIENCE);
    assert!(matches!(refused, Err(RpcError::Server(ServerError::NotAllowed(_)))));
    let traffic = connection.traffic();
    assert_eq!((traffic.connects, traffic.requests), (1, 410));
}

/// Proves: more blocks than fit into one message arrive nonetheless, in bulk, beside a busy control lane.
#[test]
fn large_answers_come_in_parts() {
    for transport in BOTH {
        large_answers_come_in_parts_over(transport);
    }
}

fn large_answers_come_in_parts_over(transport: Transport) {
    let running = Running::start(Arc::new(Echo::new(&[2])), free_port(), Limits::default());
    let connection = connect(&running, 10, transport);
    let Ok(Response::Blocks(blocks)) =
        connection.call_blocking(Request::Retrieve(vec![Digest::ZERO; 23]), PATIENCE)
    else {
        panic!("blocks were asked for");
    };
    assert_eq!(blocks.len(), 23);
    assert!(blocks.iter().all(|found| found.as_ref().unwrap().1.block.body.len() == 1 << 20));
    assert_eq!(connection.traffic().connects, 2, "control and bulk");
    // A server that answers small requests with large blocks is stopped before it fills our memory.
    let flood = connection.call_blocking(Request::Retrieve(vec![Digest::ZERO; 100]), PATIENCE);
    assert!(matches!(flood, Err(RpcError::Malformed(_))));
}

/// Proves: a server that is not in the superuser's list, or that shows an older list than seen before, is
/// refused with the reason; one that does not exist is reported as unreachable.
#[test]
fn the_wrong_server_is_refused() {
    for transport in BOTH {
        the_wrong_server_is_refused_over(transport);
    }
}

fn the_wrong_server_is_refused_over(transport: Transport) {
    let running = Running::start(Arc::new(Echo::new(&[3])), free_port(), Limits::default());
    let error =
        |proof, addresses| connector(10, addresses, proof, transport).connect(PATIENCE).err().unwrap();
    let refused = error(proof(), running.address());
    assert!(matches!(refused, RpcError::WrongServer { why: WrongServer::NotListed { .. }, .. }), "{refused}");
    let other = ServerProof { file_system: key(5).public().file_system_id(), minimum_sequence: 0 };
    let refused = error(other, running.address());
    assert!(matches!(refused, RpcError::WrongServer { why: WrongServer::OtherFileSystem, .. }), "{refused}");

    let running = Running::start(Arc::new(Echo::new(&[2])), free_port(), Limits::default());
    let refused = error(ServerProof { minimum_sequence: 2, ..proof() }, running.address());
    assert!(matches!(refused, RpcError::WrongServer { why: WrongServer::OldList { .. }, .. }), "{refused}");

    let address = running.address();
    drop(running);
    let mut connector = connector(10, address, proof(), transport);
    connector.options.connect_patience = Duration::from_millis(500);
    let refused = connector.connect(Duration::ZERO).err().unwrap();
    assert!(matches!(refused, RpcError::Unreachable { .. }), "{refused}");
}

/// Proves: a service that is no Holdfast server is named as such, not as a network failure.
#[test]
fn another_service_is_recognised() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").unwrap();
        // Held open so that our greeting does not meet a reset first.
        std::io::copy(&mut stream, &mut std::io::sink()).ok();
    });
    let address = vec![ServerAddress { host: "127.0.0.1".to_owned(), port }];
    let error = Connector::new(key(10), address, Some(proof())).connect(Duration::ZERO).err().unwrap();
    assert!(matches!(error, RpcError::WrongServer { why: WrongServer::NotHoldfast(_), .. }), "{error}");
    server.join().unwrap();
}

/// Proves: when the server goes away, a request that could do harm twice is reported as lost and maybe sent,
/// harmless ones succeed after the restart, and an expired deadline says that the request was sent.
#[test]
fn restarts_are_survived() {
    for transport in BOTH {
        restarts_are_survived_over(transport);
    }
}

fn restarts_are_survived_over(transport: Transport) {
    let service = Arc::new(Echo::new(&[2]));
    let limits = Limits { shutdown_patience: Duration::from_millis(50), ..Limits::default() };
    let running = Running::start(service.clone(), free_port(), limits.clone());
    let port = running.port;
    let connection = connect(&running, 10, transport);

    // A busy machine may not have sent it by then.
    let late = eventually_some("it is sent", || {
        let late = connection.call_blocking(Request::Snapshot, Duration::from_millis(300));
        (late != Err(RpcError::Deadline { maybe_sent: false })).then_some(late)
    });
    assert_eq!(late, Err(RpcError::Deadline { maybe_sent: true }));
    let snapshots = || service.snapshots.load(Ordering::SeqCst);
    eventually("it comes", || snapshots() == 1);

    let caller = connection.clone();
    let lost = std::thread::spawn(move || caller.call_blocking(Request::Snapshot, PATIENCE));
    eventually("the second comes", || snapshots() == 2);
    let caller = connection.clone();
    let slow = Request::FetchPending { device: DeviceId(1), number: 1, wait_ms: 1000 };
    let harmless = std::thread::spawn(move || caller.call_blocking(slow, PATIENCE));
    eventually("it waits", || service.waiting.load(Ordering::SeqCst) > 0);
    drop(running);
    assert_eq!(lost.join().unwrap(), Err(RpcError::Lost { maybe_sent: true }));
    assert_eq!(snapshots(), 2, "not sent again");

    eventually("an attempt has failed", || {
        let gone = connection.call_blocking(Request::Ping, Duration::from_millis(200));
        matches!(gone, Err(RpcError::Unreachable { .. }))
    });
    let _running = Running::start(service.clone(), port, limits);
    assert_eq!(harmless.join().unwrap(), Ok(Response::Structure(None)));
    assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
}

/// Proves: if another server has taken over from one that hangs, whose machine still accepts data, calls
/// continue there, including those that waited.
#[test]
fn a_server_that_hangs_is_left() {
    for transport in BOTH {
        let hanging = Arc::new(Echo::new(&[2]));
        let first = Running::start(hanging.clone(), free_port(), Limits::default());
        let port = free_port();
        let addresses =
            [first.address(), vec![ServerAddress { host: "127.0.0.1".to_owned(), port }]].concat();
        let connection = connector(10, addresses, proof(), transport).connect(PATIENCE).unwrap();
        let call = |deadline| connection.call_blocking(Request::Ping, deadline);
        assert!(call(PATIENCE).is_ok());
        let hangs = hanging.hangs.lock().unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| call(PATIENCE));
            eventually("a call waits", || call(Duration::from_millis(100)).is_err());
            let second = Running::start(Arc::new(Echo::new(&[2])), port, Limits::default());
            eventually("calls go on", || call(Duration::from_millis(100)).is_ok());
            assert!(waiting.join().unwrap().is_ok());
            drop((hangs, second));
        });
    }
}

/// Proves: a busy server is asked again automatically, and a panic in one request ends only that connection,
/// which is then made again.
#[test]
fn busy_and_broken_servers_are_survived() {
    for transport in BOTH {
        busy_and_broken_servers_are_survived_over(transport);
    }
}

fn busy_and_broken_servers_are_survived_over(transport: Transport) {
    let service = Arc::new(Echo::new(&[2]));
    let running = Running::start(service.clone(), free_port(), Limits::default());
    let (connection, bystander) = (connect(&running, 10, transport), connect(&running, 11, transport));
    service.busy.store(2, Ordering::SeqCst);
    let pin = Request::Pin { addresses: vec![], seconds: 1 };
    assert_eq!(connection.call_blocking(pin, PATIENCE), Ok(Response::Done));
    let broken = connection.call_blocking(Request::Look { log_size: 0 }, Duration::from_secs(1));
    assert!(broken.is_err(), "{broken:?}");
    assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    assert_eq!(bystander.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
    assert_eq!(bystander.traffic().connects, 1);
}

/// Proves: a request over the message limit is refused here, before anything is sent.
#[test]
fn oversized_requests_are_the_callers_fault() {
    let running = Running::start(Arc::new(Echo::new(&[2])), free_port(), Limits::default());
    let connection = connect(&running, 10, Transport::Tcp);
    let request = Request::Store(vec![block(9 << 20).unwrap().1]);
    assert!(encode(&request).len() > 9 << 20);
    assert!(matches!(connection.call_blocking(request, PATIENCE), Err(RpcError::TooLarge { .. })));
}
