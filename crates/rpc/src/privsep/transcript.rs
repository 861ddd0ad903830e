//! The transcript of a TLS handshake, from the only place where rustls exposes it: the hash that it feeds.
//!
//! rustls gives signers and verifiers the *digest* of the transcript, which proves nothing to a process that
//! did not see the handshake. So the front end's cipher suites hash through a recorder that stores the bytes,
//! and the last few digests of this thread are stored with the bytes that they are of. rustls signs, or
//! verifies, right after computing the digest and on the same thread.

use rustls::crypto::CipherSuiteCommon;
use rustls::crypto::hash::{Context, Hash, HashAlgorithm, Output};
use rustls::crypto::{CryptoProvider, GetRandomFailed, SecureRandom, ring};
use rustls::{SupportedCipherSuite, Tls13CipherSuite};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

/// A handshake whose transcript is longer is not recorded, and so cannot be signed. Ours have about a
/// kilobyte.
pub(super) const TRANSCRIPT_BYTES_MAX: usize = 24 << 10;
/// Digests remembered on a thread.
const DIGESTS: usize = 4;

thread_local! {
    static RECENT: RefCell<VecDeque<(Vec<u8>, Vec<u8>)>> = const { RefCell::new(VecDeque::new()) };
    static NONCES: RefCell<Option<Nonces>> = const { RefCell::new(None) };
}

/// The source of the random bytes of a ServerHello.
type Nonces = Box<dyn Fn() -> Option<[u8; 32]>>;

/// From now on, the random bytes of this thread's handshakes come from `source`.
pub(super) fn draw_nonces_from(source: impl Fn() -> Option<[u8; 32]> + 'static) {
    NONCES.with(|nonces| *nonces.borrow_mut() = Some(Box::new(source)));
}

/// The transcript whose digest was taken on this thread a moment ago.
pub(super) fn transcript_of(digest: &[u8]) -> Option<Vec<u8>> {
    RECENT.with(|recent| {
        let recent = recent.borrow();
        recent.iter().find(|(known, _)| known == digest).map(|(_, transcript)| transcript.clone())
    })
}

/// The usual provider, with cipher suites that record the transcript and random bytes that come from the back
/// end.
pub(super) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> = LazyLock::new(|| {
        let usual = ring::default_provider();
        let cipher_suites = usual.cipher_suites.iter().filter_map(|suite| recording(*suite)).collect();
        Arc::new(CryptoProvider { cipher_suites, secure_random: &BackEndRandom, ..usual })
    });
    PROVIDER.clone()
}

/// A TLS 1.3 suite with a hash that records. Suites live as long as the process, so a few bytes are never
/// freed.
fn recording(suite: SupportedCipherSuite) -> Option<SupportedCipherSuite> {
    let suite = suite.tls13()?;
    let hash: &'static Recording = Box::leak(Box::new(Recording(suite.common.hash_provider)));
    let common = CipherSuiteCommon { hash_provider: hash, ..suite.common };
    let suite = Tls13CipherSuite { common, ..*suite };
    Some(SupportedCipherSuite::Tls13(Box::leak(Box::new(suite))))
}

/// Random bytes for handshakes.
#[derive(Debug)]
struct BackEndRandom;

impl SecureRandom for BackEndRandom {
    fn fill(&self, bytes: &mut [u8]) -> Result<(), GetRandomFailed> {
        // The random bytes of a hello are the only ones that a server of TLS 1.3 without tickets draws.
        if bytes.len() == 32 {
            let nonce = NONCES.with(|nonces| nonces.borrow().as_ref().map(|source| source()));
            if let Some(nonce) = nonce {
                bytes.copy_from_slice(&nonce.ok_or(GetRandomFailed)?);
                return Ok(());
            }
        }
        getrandom::fill(bytes).map_err(|_| GetRandomFailed)
    }
}

struct Recording(&'static dyn Hash);

impl Hash for Recording {
    fn start(&self) -> Box<dyn Context> {
        Box::new(Recorder { context: self.0.start(), bytes: Some(Vec::new()) })
    }

    fn hash(&self, data: &[u8]) -> Output {
        self.0.hash(data)
    }

    fn output_len(&self) -> usize {
        self.0.output_len()
    }

    fn algorithm(&self) -> HashAlgorithm {
        self.0.algorithm()
    }
}

struct Recorder {
    context: Box<dyn Context>,
    /// `None` once it has grown too long.
    bytes: Option<Vec<u8>>,
}

impl Context for Recorder {
    fn fork_finish(&self) -> Output {
        let output = self.context.fork_finish();
        if let Some(bytes) = &self.bytes {
            RECENT.with(|recent| {
                let mut recent = recent.borrow_mut();
                if recent.len() >= DIGESTS {
                    recent.pop_front();
                }
                recent.push_back((output.as_ref().to_vec(), bytes.clone()));
            });
        }
        output
    }

    fn fork(&self) -> Box<dyn Context> {
        Box::new(Recorder { context: self.context.fork(), bytes: self.bytes.clone() })
    }

    fn finish(self: Box<Self>) -> Output {
        self.context.finish()
    }

    fn update(&mut self, data: &[u8]) {
        self.context.update(data);
        if let Some(bytes) = &mut self.bytes {
            match bytes.len() + data.len() <= TRANSCRIPT_BYTES_MAX {
                true => bytes.extend_from_slice(data),
                false => self.bytes = None,
            }
        }
    }
}
