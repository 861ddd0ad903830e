//! The back end's part of a handshake: what it signs, and how it verifies the peer's identity.
//!
//! It parses no TLS record, no extension and nothing encrypted. It gets whole handshake messages, each with a
//! type and a length, and reads three of them at fixed positions. Invariants:
//! - What it signs has the form of a TLS 1.3 server CertificateVerify (RFC 8446, 4.4.3) over a transcript
//!   that contains random bytes drawn here and not used before, and that ends with this server's own key.
//! - A peer counts as a device only if its signature, in the form of a client CertificateVerify, covers the
//!   very transcript that was signed here and what follows it. An earlier handshake has other random bytes,
//!   and one with another server another key, so neither can be replayed.
//! - Each nonce is good for one handshake; few are open at a time, and none for long.

use holdfast_crypto::{KeyHolder, PublicKey, Signature};
use rustls::SignatureScheme;
use rustls::crypto::{WebPkiSupportedAlgorithms, ring};
use sha2::{Digest, Sha256, Sha384};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most handshakes at a time; beyond that the oldest is dropped.
const OPEN_MAX: usize = 1024;
/// How long a handshake may take.
const OPEN_TIME: Duration = Duration::from_secs(30);
/// Most messages of a transcript.
const MESSAGES_MAX: usize = 16;

const CLIENT_HELLO: u8 = 1;
const SERVER_HELLO: u8 = 2;
const ENCRYPTED_EXTENSIONS: u8 = 8;
const CERTIFICATE: u8 = 11;
const CERTIFICATE_REQUEST: u8 = 13;
const CERTIFICATE_VERIFY: u8 = 15;
const FINISHED: u8 = 20;
const MESSAGE_HASH: u8 = 254;

/// The bytes before the key in the body of a Certificate message with one raw Ed25519 key: no context, a list
/// of one entry, the entry's length, and the beginning of a SubjectPublicKeyInfo. Two zero bytes (no
/// extensions) follow the key.
const CERTIFICATE_HEAD: [u8; 19] =
    [0, 0, 0, 49, 0, 0, 44, 0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why the back end refuses. Each is an offence of the front end, or of a client of a strange kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The bytes are not a row of handshake messages of the kind expected.
    #[error("this is not the transcript of a handshake")]
    NoTranscript,
    /// The ServerHello has random bytes that were not drawn here, or were used.
    #[error("the handshake has no nonce of this server, or one that was used")]
    NotFresh,
    /// The key is not this server's.
    #[error("the handshake shows another server's key")]
    AnotherServer,
    /// The end of a handshake whose beginning was not signed here.
    #[error("the handshake does not continue what was signed")]
    NotSigned,
    /// The device's signature does not hold.
    #[error("the peer did not sign this handshake")]
    NotThePeer,
    /// The server's key could not be used.
    #[error("the server's key did not sign")]
    KeyFailed,
}

/// Handshakes under way.
#[derive(Debug)]
pub struct Handshakes {
    open: HashMap<[u8; 32], OpenHandshake>,
    order: VecDeque<[u8; 32]>,
    algorithms: WebPkiSupportedAlgorithms,
}

#[derive(Debug)]
struct OpenHandshake {
    since: Instant,
    /// Length and digest of the signed transcript.
    signed: Option<(usize, Vec<u8>)>,
}

/// The fields of a transcript that the back end reads.
struct HandshakeStart {
    nonce: [u8; 32],
    suite: Suite,
    /// The key in the Certificate at its end.
    key: PublicKey,
}

#[derive(Clone, Copy)]
enum Suite {
    Sha256,
    Sha384,
}

impl Suite {
    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Suite::Sha256 => Sha256::digest(bytes).to_vec(),
            Suite::Sha384 => Sha384::digest(bytes).to_vec(),
        }
    }
}

impl Default for Handshakes {
    fn default() -> Self {
        let algorithms = ring::default_provider().signature_verification_algorithms;
        Handshakes { open: HashMap::new(), order: VecDeque::new(), algorithms }
    }
}

impl Handshakes {
    /// Begins a handshake whose ServerHello must have these random bytes, which must not have been used
    /// before.
    pub fn begin(&mut self, now: Instant, random: [u8; 32]) {
        while let Some(oldest) = self.order.front() {
            let is_old = self.open.get(oldest).is_none_or(|open| now.duration_since(open.since) > OPEN_TIME);
            if !is_old && self.order.len() < OPEN_MAX {
                break;
            }
            let oldest = self.order.pop_front().expect("there is one");
            self.open.remove(&oldest);
        }
        self.open.insert(random, OpenHandshake { since: now, signed: None });
        self.order.push_back(random);
    }

    /// Signs the server's half of a handshake: the transcript up to and with the server's Certificate.
    ///
    /// # Errors
    /// [`HandshakeError`]; nothing is signed then.
    pub fn sign(
        &mut self,
        now: Instant,
        transcript: &[u8],
        key: &dyn KeyHolder,
    ) -> Result<Signature, HandshakeError> {
        let beginning = beginning(transcript)?;
        if beginning.key != key.public() {
            return Err(HandshakeError::AnotherServer);
        }
        let open = self.open.get_mut(&beginning.nonce).ok_or(HandshakeError::NotFresh)?;
        if open.signed.is_some() || now.duration_since(open.since) > OPEN_TIME {
            return Err(HandshakeError::NotFresh);
        }
        let digest = beginning.suite.digest(transcript);
        let signature = key
            .sign_message(&signed_form("TLS 1.3, server CertificateVerify", &digest))
            .map_err(|_| HandshakeError::KeyFailed)?;
        open.signed = Some((transcript.len(), digest));
        Ok(signature)
    }

    /// Verifies the peer's identity: the device that signed this transcript, which continues up to the
    /// client's Certificate. Ends the handshake, whether it succeeds or not.
    ///
    /// # Errors
    /// [`HandshakeError`]: the peer's identity is not proven.
    pub fn introduce(
        &mut self,
        now: Instant,
        transcript: &[u8],
        signature: &[u8],
    ) -> Result<PublicKey, HandshakeError> {
        let messages = messages(transcript)?;
        // The messages after the server's Certificate: its CertificateVerify and Finished, and the client's
        // Certificate.
        let (first, rest) = messages.split_last_chunk::<3>().ok_or(HandshakeError::NoTranscript)?;
        if rest.map(|message| message.kind) != [CERTIFICATE_VERIFY, FINISHED, CERTIFICATE] {
            return Err(HandshakeError::NoTranscript);
        }
        let begun = first.last().map_or(0, |message| message.end);
        let beginning = beginning(&transcript[..begun])?;
        let open = self.open.remove(&beginning.nonce).ok_or(HandshakeError::NotFresh)?;
        if now.duration_since(open.since) > OPEN_TIME {
            return Err(HandshakeError::NotFresh);
        }
        if open.signed != Some((begun, beginning.suite.digest(&transcript[..begun]))) {
            return Err(HandshakeError::NotSigned);
        }
        let peer = certified_key(rest[2].body)?;
        let message = signed_form("TLS 1.3, client CertificateVerify", &beginning.suite.digest(transcript));
        let known = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == SignatureScheme::ED25519);
        let (_, algorithms) = known.ok_or(HandshakeError::KeyFailed)?;
        let holds = algorithms.iter().any(|one| one.verify_signature(&peer.0, &message, signature).is_ok());
        if holds { Ok(peer) } else { Err(HandshakeError::NotThePeer) }
    }
}

/// The bytes that are signed in TLS 1.3: spaces, the purpose, a zero, the digest of the transcript.
fn signed_form(purpose: &str, digest: &[u8]) -> Vec<u8> {
    let mut message = vec![0x20; 64];
    message.extend_from_slice(purpose.as_bytes());
    message.push(0);
    message.extend_from_slice(digest);
    message
}

/// One handshake message, and where it ends in the transcript.
#[derive(Clone, Copy)]
struct Message<'a> {
    kind: u8,
    body: &'a [u8],
    end: usize,
}

fn messages(transcript: &[u8]) -> Result<Vec<Message<'_>>, HandshakeError> {
    let mut found = Vec::new();
    let mut rest = transcript;
    while !rest.is_empty() {
        let (head, after) = rest.split_first_chunk::<4>().ok_or(HandshakeError::NoTranscript)?;
        let bytes = usize::from(head[1]) << 16 | usize::from(head[2]) << 8 | usize::from(head[3]);
        let (body, after) = after.split_at_checked(bytes).ok_or(HandshakeError::NoTranscript)?;
        rest = after;
        found.push(Message { kind: head[0], body, end: transcript.len() - rest.len() });
        if found.len() > MESSAGES_MAX {
            return Err(HandshakeError::NoTranscript);
        }
    }
    Ok(found)
}

/// Reads a transcript from the ClientHello to the server's Certificate, with or without a HelloRetryRequest.
fn beginning(transcript: &[u8]) -> Result<HandshakeStart, HandshakeError> {
    let messages = messages(transcript)?;
    let kinds: Vec<u8> = messages.iter().map(|message| message.kind).collect();
    let usual = [CLIENT_HELLO, SERVER_HELLO, ENCRYPTED_EXTENSIONS, CERTIFICATE_REQUEST, CERTIFICATE];
    let (before, rest) = kinds.split_last_chunk::<5>().ok_or(HandshakeError::NoTranscript)?;
    if *rest != usual || !(before.is_empty() || before == [MESSAGE_HASH, SERVER_HELLO]) {
        return Err(HandshakeError::NoTranscript);
    }
    // version (2), random (32), session id (1 and up to 32), cipher suite (2), ...
    let hello = messages[before.len() + 1].body;
    let nonce =
        *hello.get(2..).and_then(|rest| rest.first_chunk::<32>()).ok_or(HandshakeError::NoTranscript)?;
    let session = usize::from(*hello.get(34).ok_or(HandshakeError::NoTranscript)?);
    let suite = match hello.get(35 + session..37 + session) {
        Some([0x13, 0x01 | 0x03]) => Suite::Sha256,
        Some([0x13, 0x02]) => Suite::Sha384,
        _ => return Err(HandshakeError::NoTranscript),
    };
    let key = certified_key(messages[messages.len() - 1].body)?;
    Ok(HandshakeStart { nonce, suite, key })
}

/// The key in the body of a Certificate message.
fn certified_key(body: &[u8]) -> Result<PublicKey, HandshakeError> {
    let key = body.strip_prefix(&CERTIFICATE_HEAD).and_then(|rest| rest.strip_suffix(&[0, 0]));
    key.and_then(|key| key.try_into().ok()).map(PublicKey).ok_or(HandshakeError::NoTranscript)
}
