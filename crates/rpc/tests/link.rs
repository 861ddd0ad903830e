//! The transport over links that are cut, that lose packets, and whose client moves. Making links needs root;
//! the tests are skipped with a message otherwise.

use holdfast_content::{BlockKind, Codec, DeviceId, StoredBlock};
use holdfast_crypto::{Digest, SigningKey};
use holdfast_link::{Conditions, Link, SERVER, Side};
use holdfast_protocol::message::{AddressedBlock, Request, Response, Welcome};
use holdfast_rpc::{
    Connection, ConnectionOptions, Connector, Limits, Listeners, RpcError, ServerAddress, Service, Session,
    Transport, serve,
};
use holdfast_testing::{PATIENCE, eventually};
use std::net::{TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;
use tokio::sync::Semaphore;

const PORT: u16 = 7440;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// A service whose pending requests wait until the test completes them.
struct Simple {
    waiting: AtomicUsize,
    let_go: Semaphore,
    /// Number of datagrams without an answer.
    unanswered: AtomicUsize,
}

impl Service for Simple {
    type State = ();

    async fn handle(&self, session: &Arc<Session<()>>, request: Request) -> Response {
        match request {
            Request::Hello { .. } => {
                session.admit();
                Response::Hello(Welcome {
                    version: holdfast_protocol::message::PROTOCOL_VERSIONS.1,
                    file_system: None,
                    device: None,
                    abort_after_ms: 0,
                })
            }
            Request::FetchPending { .. } => {
                self.waiting.fetch_add(1, SeqCst);
                let _let_go = self.let_go.acquire().await.unwrap();
                Response::Structure(None)
            }
            _ => Response::Done,
        }
    }
}

/// A link with a server at its end; the server ends with the process.
fn site(conditions: Conditions, with_quic: bool) -> Option<(Link, Arc<Simple>)> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: making network namespaces takes root");
        return None;
    }
    let up = Conditions { seed: conditions.seed + 100, ..conditions };
    let link = Link::make(up, conditions).unwrap();
    let service = Arc::new(Simple { waiting: 0.into(), let_go: Semaphore::new(0), unanswered: 0.into() });
    let serving = service.clone();
    std::thread::scope(|scope| {
        let at_server = scope.spawn(|| {
            link.enter(Side::Server).unwrap();
            let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
            listener.set_nonblocking(true).unwrap();
            let udp = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
            let (udp, mute) = if with_quic { (Some(udp), None) } else { (None, Some(udp)) };
            if let Some(mute) = mute {
                let counting = service.clone();
                std::thread::spawn(move || {
                    while mute.recv(&mut [0; 2048]).is_ok() {
                        counting.unanswered.fetch_add(1, SeqCst);
                    }
                });
            }
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let tcp = tokio::net::TcpListener::from_std(listener).unwrap();
                    let never = std::future::pending();
                    let listeners = Listeners { tcp, udp };
                    serve(listeners, &key(2), serving, Limits::default(), never).await.unwrap();
                });
            });
        });
        at_server.join().unwrap();
    });
    Some((link, service))
}

fn connect(link: &Link, transport: Transport) -> Connection {
    std::thread::scope(|scope| {
        let at_client = scope.spawn(|| {
            link.enter(Side::Client).unwrap();
            let address = ServerAddress { host: SERVER.to_owned(), port: PORT };
            let options = ConnectionOptions { transport, ..ConnectionOptions::default() };
            Connector { options, ..Connector::new(key(10), vec![address], None) }.connect(PATIENCE).unwrap()
        });
        at_client.join().unwrap()
    })
}

fn store(connection: &Connection, bytes: usize) {
    let block =
        StoredBlock { kind: BlockKind::Chunk, codec: Codec::Plain, references: vec![], body: vec![7; bytes] };
    let request = Request::Store(vec![AddressedBlock { address: Digest::ZERO, block }]);
    assert_eq!(connection.call_blocking(request, PATIENCE), Ok(Response::Done));
}

const PENDING: Request = Request::FetchPending { device: DeviceId(1), number: 1, wait_ms: 60_000 };

/// Proves: while a link is cut, calls end with their deadlines; those with longer deadlines, also one already
/// sent, continue once the link is restored.
#[test]
fn a_link_that_drops_is_waited_for() {
    for transport in [Transport::Tcp, Transport::Quic] {
        let conditions = Conditions { delay: Duration::from_millis(10), ..Conditions::default() };
        let Some((link, service)) = site(conditions, true) else { return };
        let connection = connect(&link, transport);
        store(&connection, 200_000);
        std::thread::scope(|scope| {
            let before = scope.spawn(|| connection.call_blocking(PENDING, PATIENCE));
            eventually("it waits at the server", || service.waiting.load(SeqCst) == 1);
            link.cut(true);
            service.let_go.add_permits(1);
            let impatient = connection.call_blocking(Request::Ping, Duration::from_millis(500));
            assert!(matches!(impatient, Err(RpcError::Deadline { .. })), "{impatient:?}");
            let lost = || [link.counts().0.lost, link.counts().1.lost];
            let until_now = lost();
            let patient = scope.spawn(|| connection.call_blocking(Request::Ping, PATIENCE));
            eventually("both sides try in vain", || {
                lost().iter().zip(until_now).all(|(lost, old)| *lost > old)
            });
            assert!(!patient.is_finished() && !before.is_finished());
            link.cut(false);
            assert_eq!(before.join().unwrap(), Ok(Response::Structure(None)), "{transport:?}");
            assert_eq!(patient.join().unwrap(), Ok(Response::Done), "{transport:?}");
        });
    }
}

/// Proves: a client whose address changes continues over QUIC in the same connection, with its outstanding
/// requests.
#[test]
fn a_moved_client_goes_on() {
    let conditions = Conditions { delay: Duration::from_millis(10), ..Conditions::default() };
    let Some((link, service)) = site(conditions, true) else { return };
    let connection = connect(&link, Transport::Quic);
    std::thread::scope(|scope| {
        let under_way = scope.spawn(|| connection.call_blocking(PENDING, PATIENCE));
        eventually("it waits at the server", || service.waiting.load(SeqCst) == 1);
        link.move_client().unwrap();
        assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
        service.let_go.add_permits(1);
        assert_eq!(under_way.join().unwrap(), Ok(Response::Structure(None)));
    });
    assert_eq!(connection.traffic().connects, 1);
    assert_eq!(service.waiting.load(SeqCst), 1, "it was not sent again");
}

/// With more losses, TCP now and then ends because all repetitions of one packet are lost for half a minute.
fn lossy() -> Conditions {
    Conditions { delay: Duration::from_millis(15), loss: 0.15, ..Conditions::default() }
}

fn talk(connection: &Connection) {
    store(connection, 100_000);
    assert_eq!(connection.call_blocking(Request::Ping, PATIENCE), Ok(Response::Done));
}

/// Proves: by default a connection on a far and very lossy link begins over TCP and continues over QUIC
/// without a failed call.
#[test]
fn lossy_links_get_quic() {
    let Some((link, _)) = site(lossy(), true) else { return };
    let connection = connect(&link, Transport::Auto);
    assert_eq!(connection.is_over_quic(), Some(false));
    eventually("it goes on over QUIC", || {
        talk(&connection);
        connection.is_over_quic() == Some(true)
    });
    store(&connection, 100_000);
}

/// Proves: where no datagrams are answered it stays with TCP, and no call fails while QUIC is tried.
#[test]
fn lossy_links_without_datagrams_keep_tcp() {
    let Some((link, service)) = site(lossy(), false) else { return };
    let connection = connect(&link, Transport::Auto);
    eventually("QUIC is tried", || {
        talk(&connection);
        service.unanswered.load(SeqCst) > 0
    });
    for _ in 0..3 {
        talk(&connection);
        assert_eq!(connection.is_over_quic(), Some(false));
    }
}

/// Proves: after some traffic both transports know a slow link to an order of magnitude, and advise small frames.
#[test]
fn a_slow_link_is_known() {
    for transport in [Transport::Tcp, Transport::Quic] {
        let conditions = Conditions {
            bytes_per_second: Some(100_000),
            delay: Duration::from_millis(20),
            ..Conditions::default()
        };
        let Some((link, _)) = site(conditions, true) else { return };
        let connection = connect(&link, transport);
        // A busy machine that sends slowly makes the link look slower.
        eventually("the rate is known", || {
            store(&connection, 100_000);
            let estimate = connection.estimate().unwrap();
            estimate.sent_bytes_per_second.is_some_and(|rate| (20_000..500_000).contains(&rate))
        });
        let estimate = connection.estimate().unwrap();
        assert!(estimate.rtt >= Duration::from_millis(40), "{transport:?}: {estimate:?}");
        assert!(estimate.frame_bytes_advised() < 1 << 20);
    }
}
