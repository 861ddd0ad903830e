//! A hostile peer cannot affect anything beyond its own connection.

use super::*;
use crate::flow::Duplex;
use crate::frame::{self, FrameHeader};
use crate::link::write_frame;
use crate::privsep;
use crate::socket::CountedStream;
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, ServerError, Welcome};
use holdfast_testing::PATIENCE;
use proptest::prelude::*;
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

type Stream = Box<dyn Duplex>;

/// A server and what carries conversations with it. Every test is run over both.
#[derive(Clone, Copy)]
struct ServerFixture {
    address: SocketAddr,
    over: TransportKind,
    built: Processes,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransportKind {
    Tcp,
    Quic,
}

/// Admits everybody but key 99; notes how many requests run at once.
#[derive(Default)]
struct Counting {
    running: AtomicUsize,
    most: AtomicUsize,
    closed: AtomicUsize,
}

impl Service for Counting {
    type State = ();

    async fn handle(&self, session: &Arc<Session<()>>, request: Request) -> Response {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let answer = match request {
            Request::Hello { versions, .. } if versions.0 > 4 => Response::Error(ServerError::Version(4, 4)),
            Request::Hello { .. } => {
                if session.peer != key(99).public() {
                    session.admit();
                }
                Response::Hello(Welcome { version: 2, file_system: None, device: None, abort_after_ms: 0 })
            }
            Request::FetchPending { wait_ms, .. } => {
                tokio::time::sleep(Duration::from_millis(wait_ms.into())).await;
                Response::Structure(None)
            }
            _ => Response::Done,
        };
        self.running.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    fn closed(&self, _session: &Session<()>) {
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// Whether the server is one process, or a front end and a back end (here: two threads).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Processes {
    Whole,
    Apart,
}

/// Limits that no active connection reaches.
fn patient() -> Limits {
    Limits { greeting_patience: PATIENCE, stranger_patience: PATIENCE, ..Limits::default() }
}

/// Waits until `attempt` has a value.
async fn eventually<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let attempts = async {
        loop {
            match attempt().await {
                Some(value) => return value,
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    };
    match tokio::time::timeout(PATIENCE, attempts).await {
        Ok(value) => value,
        Err(_) => panic!("did not happen: {what}"),
    }
}

/// Runs `test` with a server with these limits, once over each transport, as one process and as two.
fn with_server<F: Future<Output = ()>>(limits: Limits, test: impl Fn(ServerFixture, Arc<Counting>) -> F) {
    let sites = [TransportKind::Tcp, TransportKind::Quic]
        .map(|over| [(over, Processes::Whole), (over, Processes::Apart)]);
    for (over, built) in sites.into_iter().flatten() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            let address = match over {
                TransportKind::Tcp => listener.local_addr().unwrap(),
                TransportKind::Quic => udp.local_addr().unwrap(),
            };
            let listeners = Listeners { tcp: listener, udp: Some(udp) };
            let service = Arc::new(Counting::default());
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = {
                let (service, limits) = (service.clone(), limits.clone());
                tokio::spawn(async move {
                    let stopped = async { drop(stopped.await) };
                    match built {
                        Processes::Whole => {
                            serve(listeners, &key(2), service, limits, stopped).await.unwrap()
                        }
                        Processes::Apart => serve_apart(listeners, service, limits, stopped).await,
                    }
                })
            };
            test(ServerFixture { address, over, built }, service).await;
            drop(stop);
            serving.await.unwrap();
        });
    }
}

/// A back end here, and a front end on a thread of its own.
async fn serve_apart(
    listeners: Listeners,
    service: Arc<Counting>,
    limits: Limits,
    stopped: impl Future<Output = ()>,
) {
    let (handshakes, introduced) = privsep::HandshakeService::new(Arc::new(key(2)));
    let (stop_front, front_stopped) = oneshot::channel::<()>();
    let tcp = listeners.tcp.into_std().unwrap();
    privsep::prepare_listeners(&tcp, listeners.udp.as_ref()).unwrap();
    let its_limits = limits.clone();
    let front = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listeners = Listeners { tcp: TcpListener::from_std(tcp).unwrap(), udp: listeners.udp };
            let stopped = async { drop(front_stopped.await) };
            let back_end = Arc::new(handshakes);
            privsep::run(listeners, key(2).public(), back_end, its_limits, stopped).await.unwrap();
        });
    });
    privsep::serve_introduced(introduced, service, limits, stopped).await.unwrap();
    drop(stop_front);
    tokio::task::spawn_blocking(move || front.join().unwrap()).await.unwrap();
}

async fn handshake(server: ServerFixture, seed: u8) -> std::io::Result<Stream> {
    let config = tls::client_config(Arc::new(key(seed)));
    match server.over {
        TransportKind::Tcp => {
            let tcp = CountedStream::new(TcpStream::connect(server.address).await?);
            let connector = tokio_rustls::TlsConnector::from(config);
            Ok(Box::new(connector.connect(tls::server_name(), tcp).await?))
        }
        TransportKind::Quic => {
            let connection = quic_connection(server.address, config).await?;
            let (send, receive) = connection.open_bi().await?;
            Ok(Box::new(tokio::io::join(receive, send)))
        }
    }
}

async fn quic_connection(
    address: SocketAddr,
    config: Arc<rustls::ClientConfig>,
) -> std::io::Result<quinn::Connection> {
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap())?;
    let connecting = endpoint.connect_with(crate::quic::client_config(config), address, "holdfast.invalid");
    Ok(connecting.map_err(std::io::Error::other)?.await?)
}

async fn greeted(server: ServerFixture, seed: u8) -> Stream {
    let mut stream = handshake(server, seed).await.unwrap();
    send_hello(&mut stream).await;
    stream
}

/// The same where the server's patience is so short that this may take too long.
async fn soon_greeted(server: ServerFixture, seed: u8) -> Stream {
    let hello = encode(&Request::Hello {
        versions: holdfast_protocol::message::PROTOCOL_VERSIONS,
        file_system: None,
    });
    eventually("it is greeted in time", async || {
        let mut stream = handshake(server, seed).await.ok()?;
        write_frame(&mut stream, 1, &hello).await.ok()?;
        stream.flush().await.ok()?;
        matches!(receive(&mut stream).await, Some((1, Response::Hello(_)))).then_some(stream)
    })
    .await
}

async fn send_hello(stream: &mut Stream) {
    send(
        stream,
        1,
        &Request::Hello { versions: holdfast_protocol::message::PROTOCOL_VERSIONS, file_system: None },
    )
    .await;
    assert!(matches!(receive(stream).await, Some((1, Response::Hello(_)))));
}

async fn send(stream: &mut Stream, id: u64, request: &Request) {
    write_frame(stream, id, &encode(request)).await.unwrap();
    stream.flush().await.unwrap();
}

async fn receive(stream: &mut Stream) -> Option<(u64, Response)> {
    let header = frame::read_header(stream, MESSAGE_BYTES_MAX).await.ok()??;
    let payload = frame::read_payload(stream, header).await.ok()?;
    Some((header.id, decode(&payload).unwrap()))
}

/// Waits until the server has closed the connection.
async fn ended(stream: &mut Stream) {
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("closed");
}

async fn answers(stream: &mut Stream) -> bool {
    let sent = write_frame(stream, 77, &encode(&Request::Ping)).await.and(stream.flush().await);
    sent.is_ok() && receive(stream).await == Some((77, Response::Done))
}

async fn works(stream: &mut Stream) {
    assert!(answers(stream).await);
}

/// Proves: random bytes instead of TLS, half a handshake, silence, and a handshake without a greeting each
/// time out, and a member is served meanwhile.
#[test]
fn stalled_handshakes_end() {
    let limits = Limits { greeting_patience: Duration::from_millis(300), ..patient() };
    with_server(limits, async |server, _| {
        let mut member = soon_greeted(server, 10).await;
        let mut wordless = eventually("shaken", async || handshake(server, 11).await.ok()).await;
        if server.over == TransportKind::Quic {
            let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
            // A long header of version 1 that stands for no packet, and plain garbage.
            for first in [0xc3, 0x5a] {
                let mut datagram = vec![0; 1200];
                datagram[..5].copy_from_slice(&[first, 0, 0, 0, 1]);
                socket.send_to(&datagram, server.address).await.unwrap();
            }
            ended(&mut wordless).await;
            works(&mut member).await;
            return;
        }
        let mut garbage = TcpStream::connect(server.address).await.unwrap();
        let _ = garbage.write_all(&[0x5a; 600]).await;
        let mut silent = TcpStream::connect(server.address).await.unwrap();
        let mut half = TcpStream::connect(server.address).await.unwrap();
        let _ = half.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await;
        for stream in [&mut garbage, &mut silent, &mut half] {
            let mut rest = Vec::new();
            let reading = stream.read_to_end(&mut rest);
            let _ = tokio::time::timeout(PATIENCE, reading).await.expect("closed");
        }
        ended(&mut wordless).await;
        works(&mut member).await;
    });
}

/// Proves: however many silent connections are held open, before or after the handshake, later clients are
/// served, and so are those admitted before.
#[test]
fn silent_strangers_keep_nobody_out() {
    let limits = Limits { strangers_max: 6, strangers_per_address_max: 4, ..patient() };
    with_server(limits, async |server, _| {
        let mut early = greeted(server, 10).await;
        let (mut silent, mut wordless) = (Vec::new(), Vec::new());
        for round in 0..5 {
            for seed in 0..3 {
                silent.push(TcpStream::connect(server.address).await);
                wordless.push(handshake(server, 20 + seed).await.ok());
            }
            let mut late = greeted(server, 11 + round % 2).await;
            works(&mut late).await;
        }
        works(&mut early).await;
    });
}

/// Proves: a client without a key of its own is refused.
#[test]
fn anonymous_clients_are_refused() {
    with_server(patient(), async |server, _| {
        let provider = rustls::crypto::ring::default_provider();
        let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(tls::any_raw_key())
            .with_no_client_auth();
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        // The refusal may only show at the first read: in TLS 1.3 the client finishes first.
        let stream: std::io::Result<Stream> = match server.over {
            TransportKind::Tcp => {
                let tcp = CountedStream::new(TcpStream::connect(server.address).await.unwrap());
                let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
                connector.connect(tls::server_name(), tcp).await.map(|stream| Box::new(stream) as Stream)
            }
            TransportKind::Quic => match quic_connection(server.address, Arc::new(config)).await {
                Ok(connection) => connection
                    .open_bi()
                    .await
                    .map(|(send, receive)| Box::new(tokio::io::join(receive, send)) as Stream)
                    .map_err(Into::into),
                Err(error) => Err(error),
            },
        };
        if let Ok(mut stream) = stream {
            let _ = write_frame(&mut stream, 1, &encode(&Request::Ping)).await;
            let _ = stream.flush().await;
            assert!(receive(&mut stream).await.is_none());
        }
    });
}

/// Proves: the first request must be a greeting and no other may be; a peer without a common version is told
/// so; a malformed request gets an explanation and ends the connection.
#[test]
fn the_greeting_comes_first_and_once() {
    with_server(patient(), async |server, service| {
        let mut rude = handshake(server, 10).await.unwrap();
        send(&mut rude, 1, &Request::Ping).await;
        ended(&mut rude).await;
        let mut future = handshake(server, 10).await.unwrap();
        send(&mut future, 1, &Request::Hello { versions: (5, 9), file_system: None }).await;
        let told = receive(&mut future).await;
        assert_eq!(told, Some((1, Response::Error(ServerError::Version(4, 4)))));
        ended(&mut future).await;
        let mut twice = greeted(server, 10).await;
        send(
            &mut twice,
            2,
            &Request::Hello { versions: holdfast_protocol::message::PROTOCOL_VERSIONS, file_system: None },
        )
        .await;
        assert!(matches!(receive(&mut twice).await, Some((2, Response::Error(ServerError::Invalid(_))))));
        ended(&mut twice).await;
        let mut malformed = greeted(server, 10).await;
        write_frame(&mut malformed, 5, &[250, 1, 2]).await.unwrap();
        malformed.flush().await.unwrap();
        assert!(matches!(receive(&mut malformed).await, Some((5, Response::Error(ServerError::Invalid(_))))));
        ended(&mut malformed).await;
        let closed = || service.closed.load(Ordering::SeqCst);
        eventually("two are closed", async || (closed() >= 2).then_some(())).await;
    });
}

/// Proves: a stranger may send only small frames and not stay; a member may do both.
#[test]
fn strangers_are_limited() {
    with_server(patient(), async |server, _| {
        let large = Request::Retrieve(vec![Digest::ZERO; 1000]);
        let mut member = greeted(server, 10).await;
        send(&mut member, 2, &large).await;
        assert_eq!(receive(&mut member).await, Some((2, Response::Done)));
        let mut stranger = greeted(server, 99).await;
        works(&mut stranger).await;
        send(&mut stranger, 2, &large).await;
        ended(&mut stranger).await;
        works(&mut member).await;
    });
    let limits = Limits { stranger_patience: Duration::from_millis(200), ..patient() };
    with_server(limits, async |server, _| {
        let mut member = soon_greeted(server, 10).await;
        let mut stranger = soon_greeted(server, 99).await;
        ended(&mut stranger).await;
        works(&mut member).await;
    });
}

/// Proves: a peer that sends more requests than it may have under way is slowed, not refused, and all are
/// answered; no more run at once than allowed.
#[test]
fn floods_are_slowed() {
    let limits = Limits { requests_max: 4, ..patient() };
    with_server(limits, async |server, service| {
        let mut stream = greeted(server, 10).await;
        let slow = Request::FetchPending { device: holdfast_content::DeviceId(1), number: 1, wait_ms: 5 };
        for id in 2..42 {
            write_frame(&mut stream, id, &encode(&slow)).await.unwrap();
        }
        stream.flush().await.unwrap();
        let mut answered = std::collections::BTreeSet::new();
        while answered.len() < 40 {
            answered.insert(receive(&mut stream).await.unwrap().0);
        }
        assert!(service.most.load(Ordering::SeqCst) <= 4);
    });
}

/// Proves: a frame that is over the limit, impossible, or never completed ends its connection, and an idle
/// connection ends too; another connection of the same server continues.
#[test]
fn broken_framing_ends_the_connection() {
    let breaks = async |server, member: &mut Stream, header: [u8; 12]| {
        works(member).await;
        let mut broken = greeted(server, 11).await;
        broken.write_all(&header).await.unwrap();
        broken.flush().await.unwrap();
        ended(&mut broken).await;
        works(member).await;
    };
    with_server(patient(), async |server, _| {
        let mut member = greeted(server, 10).await;
        breaks(server, &mut member, FrameHeader::encode(2, MESSAGE_BYTES_MAX + 1)).await;
        breaks(server, &mut member, FrameHeader::encode(0, 1)).await;
        breaks(server, &mut member, [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]).await;
    });
    let frame_patience = Duration::from_millis(200);
    with_server(Limits { frame_patience, frame_rate_min: usize::MAX, ..patient() }, async |server, _| {
        let mut member = greeted(server, 10).await;
        breaks(server, &mut member, FrameHeader::encode(2, 1 << 20)).await;
    });
    let idle_max = Duration::from_millis(400);
    with_server(Limits { idle_max, ..patient() }, async |server, _| {
        eventually("one is heard often enough", async || outlives_an_idle_one(server, idle_max).await).await;
    });
}

/// Fails if a used connection does not outlive an idle one. `None`: the machine was so busy that the
/// connection was not used for long either.
async fn outlives_an_idle_one(server: ServerFixture, idle_max: Duration) -> Option<()> {
    let mut member = soon_greeted(server, 10).await;
    let mut idle = soon_greeted(server, 12).await;
    let (mut heard, mut silent_max) = (tokio::time::Instant::now(), Duration::ZERO);
    let mut goes_on = true;
    let mut used = async || {
        while goes_on {
            goes_on = answers(&mut member).await;
            silent_max = silent_max.max(heard.elapsed());
            heard = tokio::time::Instant::now();
            tokio::time::sleep(idle_max / 20).await;
        }
    };
    tokio::select! {
        () = ended(&mut idle) => {}
        () = used() => {}
    }
    assert!(goes_on || silent_max >= idle_max / 2, "it was used all the time");
    goes_on.then_some(())
}

/// Proves: connections of one key are counted alike on any transport: streams of one QUIC connection each
/// have a slot, and the oldest is closed when there are too many.
#[test]
fn streams_have_places() {
    let limits = Limits { connections_per_peer_max: 2, ..patient() };
    with_server(limits, async |server, _| {
        let mut streams = Vec::new();
        for _ in 0..3 {
            streams.push(greeted(server, 10).await);
        }
        ended(&mut streams[0]).await;
        works(&mut streams[1]).await;
        works(&mut streams[2]).await;
        // A front end carries one stream of a connection: one handshake introduces one peer, once.
        if server.over == TransportKind::Quic && server.built == Processes::Apart {
            let config = tls::client_config(Arc::new(key(10)));
            let connection = quic_connection(server.address, config).await.unwrap();
            for is_carried in [true, false] {
                let (send, receive) = connection.open_bi().await.unwrap();
                let mut stream: Stream = Box::new(tokio::io::join(receive, send));
                match is_carried {
                    true => send_hello(&mut stream).await,
                    false => {
                        let hello = Request::Hello {
                            versions: holdfast_protocol::message::PROTOCOL_VERSIONS,
                            file_system: None,
                        };
                        self::send(&mut stream, 1, &hello).await;
                        // The later request on the relayed one is answered first.
                        works(streams.last_mut().unwrap()).await;
                        let answered = tokio::time::timeout(Duration::ZERO, self::receive(&mut stream));
                        assert!(!matches!(answered.await, Ok(Some(_))));
                    }
                }
                streams.push(stream);
            }
        }
        if server.over == TransportKind::Quic && server.built == Processes::Whole {
            let config = tls::client_config(Arc::new(key(10)));
            let connection = quic_connection(server.address, config).await.unwrap();
            for _ in 0..2 {
                let (send, receive) = connection.open_bi().await.unwrap();
                let mut stream: Stream = Box::new(tokio::io::join(receive, send));
                send_hello(&mut stream).await;
                streams.push(stream);
            }
            ended(&mut streams[1]).await;
            ended(&mut streams[2]).await;
            works(&mut streams[4]).await;
        }
    });
}

/// Proves: while few slots for strangers are left, the sender of a datagram must prove its address before it
/// takes one; a sender that does is served as usual.
#[test]
fn forged_senders_take_no_places() {
    let limits = Limits { strangers_max: 8, ..patient() };
    with_server(limits, async |server, _| {
        if server.over == TransportKind::Tcp {
            return;
        }
        let mut member = greeted(server, 10).await;
        let mut stranger = greeted(server, 99).await;
        // One of eight slots is taken, so later clients are asked to return with a token.
        let mut others = Vec::new();
        for _ in 0..4 {
            others.push(greeted(server, 11).await);
        }
        works(&mut stranger).await;
        works(&mut member).await;
        // First datagrams of many clients that never answer: each would take a slot for the whole time limit
        // of the greeting.
        let sink = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
        let mut silent = Vec::new();
        for _ in 0..40 {
            let config = crate::quic::client_config(tls::client_config(Arc::new(key(12))));
            let to = sink.local_addr().unwrap();
            let connecting = endpoint.connect_with(config, to, "holdfast.invalid").unwrap();
            let mut datagram = [0; 2048];
            let (bytes, _) = sink.recv_from(&mut datagram).await.unwrap();
            drop(connecting);
            // From a sender that ignores answers.
            let deaf = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            deaf.send_to(&datagram[..bytes], server.address).unwrap();
            silent.push(deaf);
        }
        let mut late = greeted(server, 13).await;
        works(&mut late).await;
    });
}

type Mutation = (Vec<u8>, Vec<(u16, u8)>, bool);

fn mutation() -> impl Strategy<Value = Mutation> {
    let changes = prop::collection::vec((any::<u16>(), any::<u8>()), 0..8);
    (prop::collection::vec(any::<u8>(), 1..300), changes, any::<bool>())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1, ..ProptestConfig::default() })]

    /// Proves: whatever a greeted peer sends (random bytes, or a valid request with some bytes changed, cut
    /// or repeated), the server neither panics nor stops serving others.
    #[test]
    fn mutated_requests_harm_nobody(mutations in prop::collection::vec(mutation(), 24)) {
        with_server(patient(), async |server, _| {
            let mut member = greeted(server, 10).await;
            for (seed, changes, framed) in &mutations {
                let mut peer = greeted(server, 11).await;
                let mut bytes = encode(&Request::Retrieve(vec![Digest([seed[0]; 32]); seed.len() % 7]));
                for (at, value) in changes {
                    let at = usize::from(*at) % bytes.len();
                    bytes[at] = *value;
                }
                if changes.is_empty() {
                    bytes = seed.clone();
                }
                if *framed {
                    let _ = write_frame(&mut peer, 2, &bytes).await;
                } else {
                    let _ = peer.write_all(&bytes).await;
                }
                let _ = peer.shutdown().await;
                while receive(&mut peer).await.is_some() {}
                works(&mut member).await;
            }
        });
    }
}
