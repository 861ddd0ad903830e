//! Tests of a front end that lies to the back end: the back end signs only new handshakes of this server, and
//! introduces only peers that signed them.

use super::handshake::{HandshakeError, Handshakes};
use super::*;
use crate::serve::{Limits, Listeners};
use crate::tls;
use holdfast_crypto::{KeyHolder, PublicKey, Signature, SigningKey};
use parking_lot::Mutex;
use proptest::prelude::*;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

fn key(seed: u8) -> SigningKey {
    SigningKey::from_seed(&[seed; 32])
}

const SERVER: u8 = 2;

/// The requests of one handshake to the back end.
#[derive(Clone, Default, Debug)]
struct HandshakeRequests {
    nonces: Vec<[u8; 32]>,
    signed: Vec<u8>,
    introduced: Vec<u8>,
    signature: Vec<u8>,
}

/// A back end that signs and accepts everything, and records the requests: how an attacker collects material.
struct AgreeingBackEnd {
    key: SigningKey,
    nonce: [u8; 32],
    requests: Mutex<HandshakeRequests>,
}

impl BackEnd for AgreeingBackEnd {
    fn nonce(&self) -> Result<[u8; 32], BackEndError> {
        self.requests.lock().nonces.push(self.nonce);
        Ok(self.nonce)
    }

    fn sign(&self, transcript: Vec<u8>) -> Result<Signature, BackEndError> {
        let mut handshakes = Handshakes::default();
        handshakes.begin(Instant::now(), self.nonce);
        self.requests.lock().signed = transcript.clone();
        handshakes
            .sign(Instant::now(), &transcript, &self.key)
            .map_err(|offence| BackEndError(offence.to_string()))
    }

    fn introduce(
        &self,
        transcript: Vec<u8>,
        signature: Vec<u8>,
        _address: SocketAddr,
        _tcp: Option<OwnedFd>,
    ) -> Result<UnixStream, BackEndError> {
        let mut requests = self.requests.lock();
        (requests.introduced, requests.signature) = (transcript, signature);
        Ok(UnixStream::pair().expect("sockets").0)
    }
}

/// The messages of a real handshake between a device and a server whose hello has these random bytes, as the
/// back end gets them.
fn handshake(server: u8, device: u8, nonce: [u8; 32]) -> HandshakeRequests {
    let back_end = Arc::new(AgreeingBackEnd { key: key(server), nonce, requests: Mutex::default() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let tcp = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let address = tcp.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { drop(stopped.await) };
        let public = key(server).public();
        let front = run(Listeners::from(tcp), public, back_end.clone(), Limits::default(), stopped);
        let client = async {
            let tcp = tokio::net::TcpStream::connect(address).await.expect("connected");
            let config = tls::client_config(Arc::new(key(device)));
            let connector = tokio_rustls::TlsConnector::from(config);
            let mut stream = connector.connect(tls::server_name(), tcp).await.expect("shaken");
            // Ends when the front end has been refused its relay: by then the back end has had all requests.
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut [0]).await;
            drop(stop);
        };
        let (served, ()) = tokio::join!(front, client);
        served.expect("served");
    });
    let requests = back_end.requests.lock().clone();
    assert_eq!(requests.nonces, [nonce]);
    requests
}

/// The back end's verdict on a handshake: on its beginning, and then on its end.
fn verdict(
    nonce: [u8; 32],
    signed: &[u8],
    introduced: &[u8],
    signature: &[u8],
) -> Result<PublicKey, HandshakeError> {
    let (mut handshakes, now) = (Handshakes::default(), Instant::now());
    handshakes.begin(now, nonce);
    handshakes.sign(now, signed, &key(SERVER))?;
    handshakes.introduce(now, introduced, signature)
}

/// Proves, row by row: the honest handshake gets through, and each way to pose as a device or as another
/// server does not.
#[test]
fn what_a_front_end_may_show() {
    let (mine, other) = ([7; 32], [8; 32]);
    let anna = handshake(SERVER, 10, mine);
    let berta = handshake(SERVER, 11, mine);
    let earlier = handshake(SERVER, 10, other);
    let elsewhere = handshake(3, 10, mine);
    let end = |requests: &HandshakeRequests| requests.introduced[requests.signed.len()..].to_vec();
    let spliced = |begin: &HandshakeRequests, end: Vec<u8>| [begin.signed.clone(), end].concat();
    let swap_key = |requests: &HandshakeRequests| {
        let mut swapped = requests.introduced.clone();
        let place = swapped.len() - 34;
        swapped[place..place + 32].copy_from_slice(&key(11).public().0);
        swapped
    };
    type Row<'a> = (&'a str, Result<PublicKey, HandshakeError>, Result<PublicKey, HandshakeError>);
    let table: &[Row] = &[
        (
            "a device's own handshake",
            verdict(mine, &anna.signed, &anna.introduced, &anna.signature),
            Ok(key(10).public()),
        ),
        (
            "an earlier handshake of the device, replayed whole",
            verdict(mine, &earlier.signed, &earlier.introduced, &earlier.signature),
            Err(HandshakeError::NotFresh),
        ),
        (
            "the end of an earlier handshake after a new beginning",
            verdict(mine, &berta.signed, &spliced(&berta, end(&earlier)), &earlier.signature),
            Err(HandshakeError::NotThePeer),
        ),
        (
            "an earlier end, with its own beginning, after a new one was signed",
            verdict(mine, &berta.signed, &anna.introduced, &anna.signature),
            Err(HandshakeError::NotSigned),
        ),
        (
            "what the device signed for another server",
            verdict(mine, &elsewhere.signed, &elsewhere.introduced, &elsewhere.signature),
            Err(HandshakeError::AnotherServer),
        ),
        (
            "another device's key in a handshake",
            verdict(mine, &anna.signed, &swap_key(&anna), &anna.signature),
            Err(HandshakeError::NotThePeer),
        ),
        (
            "another device's signature",
            verdict(mine, &anna.signed, &anna.introduced, &berta.signature),
            Err(HandshakeError::NotThePeer),
        ),
        ("no signature", verdict(mine, &anna.signed, &anna.introduced, &[]), Err(HandshakeError::NotThePeer)),
        (
            "the server's signature is wanted for the client's end",
            verdict(mine, &anna.introduced, &anna.introduced, &anna.signature),
            Err(HandshakeError::NoTranscript),
        ),
        (
            "no client certificate",
            verdict(mine, &anna.signed, &anna.signed, &anna.signature),
            Err(HandshakeError::NoTranscript),
        ),
        ("nothing", verdict(mine, &[], &[], &[]), Err(HandshakeError::NoTranscript)),
        (
            "a digest to be signed as a structure",
            verdict(mine, &[5; 32], &[], &[]),
            Err(HandshakeError::NoTranscript),
        ),
    ];
    for (what, found, expected) in table {
        assert_eq!(found, expected, "{what}");
    }
}

/// Proves: a nonce is good for one signature and one introduction, and expires; a flood of beginnings uses
/// limited memory and drops the oldest.
#[test]
fn handshakes_are_used_once() {
    let nonce = [7; 32];
    let anna = handshake(SERVER, 10, nonce);
    let (mut handshakes, now) = (Handshakes::default(), Instant::now());
    let later = now + std::time::Duration::from_secs(31);
    let introduce =
        |handshakes: &mut Handshakes, now| handshakes.introduce(now, &anna.introduced, &anna.signature);
    handshakes.begin(now, nonce);
    assert_eq!(introduce(&mut handshakes, now), Err(HandshakeError::NotSigned));
    assert_eq!(handshakes.sign(now, &anna.signed, &key(SERVER)), Err(HandshakeError::NotFresh));
    handshakes.begin(now, nonce);
    assert!(handshakes.sign(now, &anna.signed, &key(SERVER)).is_ok());
    assert_eq!(handshakes.sign(now, &anna.signed, &key(SERVER)), Err(HandshakeError::NotFresh));
    assert_eq!(introduce(&mut handshakes, now), Ok(key(10).public()));
    assert_eq!(introduce(&mut handshakes, now), Err(HandshakeError::NotFresh));
    handshakes.begin(now, nonce);
    assert_eq!(handshakes.sign(later, &anna.signed, &key(SERVER)), Err(HandshakeError::NotFresh));
    handshakes.begin(now, nonce);
    assert!(handshakes.sign(now, &anna.signed, &key(SERVER)).is_ok());
    assert_eq!(introduce(&mut handshakes, later), Err(HandshakeError::NotFresh));
    handshakes.begin(now, nonce);
    for other in 0..5000u32 {
        let mut random = [0; 32];
        random[..4].copy_from_slice(&other.to_le_bytes());
        handshakes.begin(now, random);
    }
    assert_eq!(handshakes.sign(now, &anna.signed, &key(SERVER)), Err(HandshakeError::NotFresh));
}

/// Proves: only the one form that TLS 1.3 gives to a server's CertificateVerify is signed.
#[test]
fn only_one_form_is_signed() {
    #[derive(Debug)]
    struct CapturingSigner(SigningKey, Mutex<Vec<u8>>);
    impl KeyHolder for CapturingSigner {
        fn public(&self) -> PublicKey {
            self.0.public()
        }
        fn sign_message(&self, message: &[u8]) -> Result<Signature, holdfast_crypto::SignError> {
            *self.1.lock() = message.to_vec();
            KeyHolder::sign_message(&self.0, message)
        }
    }
    let nonce = [9; 32];
    let anna = handshake(SERVER, 10, nonce);
    let shown = CapturingSigner(key(SERVER), Mutex::default());
    let (mut handshakes, now) = (Handshakes::default(), Instant::now());
    handshakes.begin(now, nonce);
    handshakes.sign(now, &anna.signed, &shown).expect("signed");
    let message = shown.1.lock().clone();
    let purpose = b"TLS 1.3, server CertificateVerify\0";
    assert!(message.starts_with(&[0x20; 64]) && message[64..].starts_with(purpose));
    assert!(matches!(message.len() - 64 - purpose.len(), 32 | 48));
}

/// Proves: what a front end passes as a TCP connection must be one; a file, a listener or a socket pair is
/// refused.
#[test]
fn an_address_is_the_kernels() {
    use std::os::fd::AsFd;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a listener");
    let address = listener.local_addr().expect("an address");
    let client = std::net::TcpStream::connect(address).expect("connected");
    let (accepted, from) = listener.accept().expect("accepted");
    let copy = |fd: &dyn AsFd| Some(fd.as_fd().try_clone_to_owned().expect("a copy"));
    let claimed: SocketAddr = "192.0.2.1:9".parse().expect("an address");
    let of = |fd| back_end::HandshakeService::address_of(claimed, fd);
    assert_eq!(of(copy(&accepted)), Ok((from, true)));
    assert_eq!(of(None), Ok((claimed, false)));
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    udp.connect(address).expect("connected");
    let (pair, _other) = UnixStream::pair().expect("sockets");
    let file = std::fs::File::open("/dev/null").expect("open");
    for wrong in [copy(&listener), copy(&udp), copy(&pair), copy(&file)] {
        assert!(of(wrong).is_err());
    }
    drop(client);
}

proptest! {
    /// Proves: whatever bytes a front end shows, nothing panics, nothing is signed and nobody is introduced.
    #[test]
    fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..2000), signature in prop::collection::vec(any::<u8>(), 0..80)) {
        let (mut handshakes, now) = (Handshakes::default(), Instant::now());
        handshakes.begin(now, [7; 32]);
        prop_assert!(handshakes.sign(now, &bytes, &key(SERVER)).is_err());
        prop_assert!(handshakes.introduce(now, &bytes, &signature).is_err());
    }
}

/// Proves: a transcript with any byte changed is refused at one of the two questions, whatever byte it is.
#[test]
fn every_byte_counts() {
    let nonce = [7; 32];
    let anna = handshake(SERVER, 10, nonce);
    for place in 0..anna.introduced.len() {
        let mut introduced = anna.introduced.clone();
        introduced[place] ^= 1;
        let signed = anna.signed.clone();
        let outcome = verdict(nonce, &signed, &introduced, &anna.signature);
        assert!(outcome.is_err(), "byte {place}: {outcome:?}");
        // The front end may also have the changed beginning signed; the device did not sign that.
        let begun = introduced[..signed.len()].to_vec();
        let outcome = verdict(nonce, &begun, &introduced, &anna.signature);
        assert!(outcome.is_err(), "byte {place}: {outcome:?}");
    }
}
