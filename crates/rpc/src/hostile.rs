//! Tests: all that a hostile server can do to the client is to make the call fail.

use crate::connection::{Connection, Connector};
use crate::flow::Duplex;
use crate::frame::{self, FrameHeader};
use crate::link::write_frame;
use crate::socket::CountedStream;
use crate::{RpcError, ServerAddress, Transport, quic, tls};
use holdfast_crypto::{SigningKey, encode};
use holdfast_protocol::message::{MESSAGE_BYTES_MAX, Request, Response, Welcome};
use holdfast_testing::PATIENCE;
use proptest::prelude::*;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

/// The server's reaction to the first request after the greeting.
#[derive(Clone)]
enum Trick {
    /// These raw bytes, then the end.
    Raw(Vec<u8>),
    /// A well-formed frame with this id and payload, then the end.
    Frame(u64, Vec<u8>),
    /// An answer with the right id that answers another question.
    Answer(Box<Response>),
}

/// Greets one client properly, over its transport, and then plays its trick. Returns a connection to it.
fn against(trick: Trick, transport: Transport) -> Connection {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = if transport == Transport::Quic { udp.local_addr() } else { listener.local_addr() };
    let port = address.unwrap().port();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        // It is no error of the server if a client goes away.
        let _: std::io::Result<()> = runtime.block_on(async {
            if transport == Transport::Quic {
                let endpoint = quinn::Endpoint::new(
                    quinn::EndpointConfig::default(),
                    Some(quic::server_config(&key(2))),
                    udp,
                    std::sync::Arc::new(quinn::TokioRuntime),
                )?;
                let connection = endpoint.accept().await.unwrap().await?;
                let (send, receive) = connection.accept_bi().await?;
                let result = play(Box::new(tokio::io::join(receive, send)), trick).await;
                let _ = tokio::time::timeout(PATIENCE, connection.closed()).await;
                return result;
            }
            let listener = TcpListener::from_std(listener).unwrap();
            let (tcp, _) = listener.accept().await.unwrap();
            let acceptor = tokio_rustls::TlsAcceptor::from(tls::server_config(&key(2)));
            play(Box::new(acceptor.accept(CountedStream::new(tcp)).await?), trick).await
        });
    });
    let address = ServerAddress { host: "127.0.0.1".to_owned(), port };
    let mut connector = Connector::new(key(10), vec![address], None);
    connector.options.transport = transport;
    connector.connect(PATIENCE).unwrap()
}

async fn play(mut stream: Box<dyn Duplex>, trick: Trick) -> std::io::Result<()> {
    let hello = frame::read_header(&mut stream, MESSAGE_BYTES_MAX).await.unwrap().unwrap();
    frame::read_payload(&mut stream, hello).await.unwrap();
    let welcome = Welcome {
        version: holdfast_protocol::message::PROTOCOL_VERSIONS.1,
        file_system: None,
        device: None,
        abort_after_ms: 0,
    };
    write_frame(&mut stream, hello.id, &encode(&Response::Hello(welcome))).await?;
    stream.flush().await?;
    let asked = frame::read_header(&mut stream, MESSAGE_BYTES_MAX).await.unwrap().unwrap();
    frame::read_payload(&mut stream, asked).await.unwrap();
    match trick {
        Trick::Raw(bytes) => stream.write_all(&bytes).await?,
        Trick::Frame(id, payload) => write_frame(&mut stream, id, &payload).await?,
        Trick::Answer(answer) => write_frame(&mut stream, asked.id, &encode(&*answer)).await?,
    }
    stream.flush().await?;
    stream.shutdown().await
}

/// The caller's result, which must be the same over both transports.
fn outcome(trick: Trick) -> Result<Response, RpcError> {
    // This request is never resent, so the caller sees the effect of the trick.
    let over = |transport| against(trick.clone(), transport).call_blocking(Request::Snapshot, PATIENCE);
    let heard = over(Transport::Tcp);
    assert_eq!(over(Transport::Quic), heard);
    heard
}

/// Proves: impossible frames, unexpected answers, and undecodable ones are distinguished and end in an error.
#[test]
fn broken_answers_are_errors() {
    let lost = Err(RpcError::Lost { maybe_sent: true });
    assert_eq!(outcome(Trick::Raw(FrameHeader::encode(2, MESSAGE_BYTES_MAX + 1).to_vec())), lost);
    assert_eq!(outcome(Trick::Raw(FrameHeader::encode(2, 1000).to_vec())), lost, "cut short");
    assert_eq!(outcome(Trick::Raw(FrameHeader::encode(0, 1).to_vec())), lost);
    assert_eq!(outcome(Trick::Frame(999, encode(&Response::Done))), lost, "an answer nobody waits for");
    assert!(matches!(outcome(Trick::Frame(2, vec![250, 1])), Err(RpcError::Malformed(_))));
    assert!(matches!(outcome(Trick::Frame(2, Vec::new())), Err(RpcError::Malformed(_))));
    // The caller judges the meaning of an answer, not the transport.
    assert_eq!(outcome(Trick::Answer(Box::new(Response::Refused))), Ok(Response::Refused));
}

/// Proves: a server that sends more blocks than were asked for, or keeps sending none, is caught.
#[test]
fn block_counts_are_checked() {
    let ask = |answer, count| {
        let wanted = vec![holdfast_crypto::Digest::ZERO; count];
        against(Trick::Answer(Box::new(answer)), Transport::Tcp)
            .call_blocking(Request::Retrieve(wanted), PATIENCE)
    };
    assert!(matches!(ask(Response::Blocks(vec![None; 3]), 2), Err(RpcError::Malformed(_))));
    assert_eq!(ask(Response::Blocks(vec![None; 2]), 2), Ok(Response::Blocks(vec![None; 2])));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Proves: whatever bytes a server sends, the caller gets an error (or a decodable answer), and nothing
    /// panics.
    #[test]
    fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..600), framed in any::<bool>()) {
        let trick = if framed { Trick::Frame(2, bytes) } else { Trick::Raw(bytes) };
        let result = outcome(trick);
        prop_assert!(!matches!(result, Err(RpcError::Deadline { .. })), "{:?}", result);
    }
}
