//! What a hostile peer can do to the server end: nothing beyond its own connection.

use super::*;
use crate::frame::{self, FrameHeader};
use crate::link::write_frame;
use crate::socket::Counted;
use holdfast_crypto::{Digest, decode, encode};
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, ServerError, Welcome};
use proptest::prelude::*;
use std::sync::atomic::AtomicUsize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::oneshot;

type Stream = tokio_rustls::client::TlsStream<Counted>;

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
            Request::Hello { versions, .. } if versions.0 > 1 => Response::Error(ServerError::Version(1, 1)),
            Request::Hello { .. } => {
                if session.peer != key(99).public() {
                    session.admit();
                }
                Response::Hello(Welcome { version: 1, file_system: None, device: None, abort_after_ms: 0 })
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

/// Runs `test` beside a server with these limits.
fn with_server<F: Future<Output = ()>>(limits: Limits, test: impl FnOnce(SocketAddr, Arc<Counting>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = Arc::new(Counting::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = {
            let service = service.clone();
            tokio::spawn(async move {
                serve(listener, &key(2), service, limits, async { drop(stopped.await) }).await.unwrap();
            })
        };
        test(address, service).await;
        drop(stop);
        serving.await.unwrap();
    });
}

async fn handshake(address: SocketAddr, seed: u8) -> std::io::Result<Stream> {
    let tcp = Counted::new(TcpStream::connect(address).await?);
    let connector = tokio_rustls::TlsConnector::from(tls::client_config(Arc::new(key(seed))));
    connector.connect(tls::server_name(), tcp).await
}

async fn greeted(address: SocketAddr, seed: u8) -> Stream {
    let mut stream = handshake(address, seed).await.unwrap();
    send(&mut stream, 1, &Request::Hello { versions: (1, 1), file_system: None }).await;
    assert!(matches!(receive(&mut stream).await, Some((1, Response::Hello(_)))));
    stream
}

async fn send(stream: &mut Stream, id: u64, request: &Request) {
    write_frame(stream, id, &encode(request)).await.unwrap();
    stream.flush().await.unwrap();
}

async fn receive(stream: &mut Stream) -> Option<(u64, Response)> {
    let header = frame::read_header(stream, MESSAGE_BYTES_MAX).await.ok()??;
    let payload = frame::read_payload(stream, header).await.unwrap();
    Some((header.id, decode(&payload).unwrap()))
}

/// Waits until the server has closed the connection.
async fn ended(stream: &mut Stream) {
    let mut rest = Vec::new();
    let _ =
        tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut rest)).await.expect("closed");
}

async fn works(stream: &mut Stream) {
    send(stream, 77, &Request::Ping).await;
    assert_eq!(receive(stream).await, Some((77, Response::Done)));
}

/// Proves: random bytes instead of TLS, half a handshake, silence, and a handshake without a greeting each end
/// by themselves, and a member is served meanwhile.
#[test]
fn stalled_handshakes_end() {
    let limits = Limits { greeting_patience: Duration::from_millis(300), ..Limits::default() };
    with_server(limits, async |address, _| {
        let mut member = greeted(address, 10).await;
        let mut garbage = TcpStream::connect(address).await.unwrap();
        garbage.write_all(&[0x5a; 600]).await.unwrap();
        let mut silent = TcpStream::connect(address).await.unwrap();
        let mut half = TcpStream::connect(address).await.unwrap();
        half.write_all(&[0x16, 3, 1, 2, 0, 1, 0]).await.unwrap();
        let mut wordless = handshake(address, 11).await.unwrap();
        for stream in [&mut garbage, &mut silent, &mut half] {
            let mut rest = Vec::new();
            let reading = stream.read_to_end(&mut rest);
            let _ = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("closed");
        }
        ended(&mut wordless).await;
        works(&mut member).await;
    });
}

/// Proves: a client without a key of its own is not let in.
#[test]
fn anonymous_clients_are_refused() {
    with_server(Limits::default(), async |address, _| {
        let provider = rustls::crypto::ring::default_provider();
        let mut config = rustls::ClientConfig::builder_with_provider(provider.into())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(tls::any_raw_key())
            .with_no_client_auth();
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        let tcp = Counted::new(TcpStream::connect(address).await.unwrap());
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        // The refusal may only show at the first read: in TLS 1.3 the client finishes first.
        if let Ok(mut stream) = connector.connect(tls::server_name(), tcp).await {
            let _ = write_frame(&mut stream, 1, &encode(&Request::Ping)).await;
            let _ = stream.flush().await;
            assert!(receive(&mut stream).await.is_none());
        }
    });
}

/// Proves: the first request must be a greeting and no other may be; a peer that knows no common version is
/// told so; a malformed request gets an explanation and then the end.
#[test]
fn the_greeting_comes_first_and_once() {
    with_server(Limits::default(), async |address, service| {
        let mut rude = handshake(address, 10).await.unwrap();
        send(&mut rude, 1, &Request::Ping).await;
        ended(&mut rude).await;
        let mut future = handshake(address, 10).await.unwrap();
        send(&mut future, 1, &Request::Hello { versions: (2, 9), file_system: None }).await;
        let told = receive(&mut future).await;
        assert_eq!(told, Some((1, Response::Error(ServerError::Version(1, 1)))));
        ended(&mut future).await;
        let mut twice = greeted(address, 10).await;
        send(&mut twice, 2, &Request::Hello { versions: (1, 1), file_system: None }).await;
        assert!(matches!(receive(&mut twice).await, Some((2, Response::Error(ServerError::Invalid(_))))));
        ended(&mut twice).await;
        let mut malformed = greeted(address, 10).await;
        write_frame(&mut malformed, 5, &[250, 1, 2]).await.unwrap();
        malformed.flush().await.unwrap();
        assert!(matches!(receive(&mut malformed).await, Some((5, Response::Error(ServerError::Invalid(_))))));
        ended(&mut malformed).await;
        while service.closed.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
}

/// Proves: a stranger may send only small frames and not stay; a member may do both.
#[test]
fn strangers_are_kept_small() {
    let limits = Limits { stranger_patience: Duration::from_millis(400), ..Limits::default() };
    with_server(limits, async |address, _| {
        let large = Request::Retrieve(vec![Digest::ZERO; 1000]);
        let mut member = greeted(address, 10).await;
        send(&mut member, 2, &large).await;
        assert_eq!(receive(&mut member).await, Some((2, Response::Done)));
        let mut stranger = greeted(address, 99).await;
        works(&mut stranger).await;
        send(&mut stranger, 2, &large).await;
        ended(&mut stranger).await;
        let mut stranger = greeted(address, 99).await;
        ended(&mut stranger).await;
        works(&mut member).await;
    });
}

/// Proves: a peer that sends more requests than it may have under way is slowed, not refused, and all are
/// answered; no more run at once than allowed.
#[test]
fn floods_are_slowed() {
    let limits = Limits { requests_max: 4, ..Limits::default() };
    with_server(limits, async |address, service| {
        let mut stream = greeted(address, 10).await;
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

/// Proves: a frame over the limit, one that cannot be, or one that never gets finished ends its connection, and
/// an idle connection ends too; another one of the same server goes on.
#[test]
fn broken_framing_ends_the_connection() {
    let limits = Limits {
        idle_max: Duration::from_millis(1500),
        frame_patience: Duration::from_millis(200),
        frame_rate_min: usize::MAX,
        ..Limits::default()
    };
    with_server(limits, async |address, _| {
        let mut member = greeted(address, 10).await;
        for header in [
            FrameHeader::encode(2, MESSAGE_BYTES_MAX + 1),
            FrameHeader::encode(0, 1),
            [1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0],
            FrameHeader::encode(2, 1 << 20),
        ] {
            works(&mut member).await;
            let mut broken = greeted(address, 11).await;
            broken.write_all(&header).await.unwrap();
            broken.flush().await.unwrap();
            ended(&mut broken).await;
        }
        let mut idle = greeted(address, 12).await;
        let both = async {
            for _ in 0..20 {
                works(&mut member).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::join!(ended(&mut idle), both);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Proves: whatever a greeted peer sends (random bytes, or a valid request with some bytes changed, cut or
    /// repeated), the server neither panics nor stops serving others.
    #[test]
    fn mutated_requests_harm_nobody(
        seed in prop::collection::vec(any::<u8>(), 1..300),
        changes in prop::collection::vec((any::<u16>(), any::<u8>()), 0..8),
        framed in any::<bool>(),
    ) {
        with_server(Limits::default(), async |address, _| {
            let mut member = greeted(address, 10).await;
            let mut peer = greeted(address, 11).await;
            let mut bytes = encode(&Request::Retrieve(vec![Digest([seed[0]; 32]); seed.len() % 7]));
            for (at, value) in &changes {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *value;
            }
            if changes.is_empty() {
                bytes = seed.clone();
            }
            if framed {
                let _ = write_frame(&mut peer, 2, &bytes).await;
            } else {
                let _ = peer.write_all(&bytes).await;
            }
            let _ = peer.shutdown().await;
            while receive(&mut peer).await.is_some() {}
            works(&mut member).await;
        });
    }
}
