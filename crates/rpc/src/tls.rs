//! TLS 1.3 with raw Ed25519 public keys (RFC 7250), both ways.
//!
//! The handshake proves only that the peer holds the private half of its key. Whether that key is accepted is
//! decided one step later: by the client from the list of server keys in the server's first answer, by the
//! server from the membership in force. TLS signatures cover a transcript with TLS's own prefix (RFC 8446,
//! 4.4.3), ours cover 32-byte digests, so neither is valid as the other although both use one key. (Nor are
//! SSH's signatures with that key: they cover more than 32 bytes, and do not begin with TLS's 64 spaces.)

use crate::handshake_error::PeerKeyError;
use holdfast_crypto::{KeyHolder, PublicKey, SignError, SigningKey};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{self, CertifiedKey};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, OtherError,
    PeerIncompatible, ServerConfig, SignatureAlgorithm, SignatureScheme,
};
use std::sync::Arc;

/// The application protocol (ALPN). Its number changes only with the framing; messages have their own
/// version.
pub(crate) const ALPN: &[u8] = b"holdfast/1";

/// Start of every Ed25519 SubjectPublicKeyInfo (RFC 8410).
const SPKI_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certified(key: Arc<dyn KeyHolder>) -> Arc<CertifiedKey> {
    presented(key.public(), Arc::new(KeyHolderSigner(key)))
}

/// A [`KeyHolder`] as a signing key of rustls.
#[derive(Clone, Debug)]
struct KeyHolderSigner(Arc<dyn KeyHolder>);

impl sign::SigningKey for KeyHolderSigner {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn sign::Signer>> {
        offered.contains(&SignatureScheme::ED25519).then(|| Box::new(self.clone()) as Box<dyn sign::Signer>)
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::ED25519
    }
}

impl sign::Signer for KeyHolderSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        match self.0.sign_message(message) {
            Ok(signature) => Ok(signature.0.to_vec()),
            Err(error) => Err(Error::Other(OtherError(Arc::new(error)))),
        }
    }

    fn scheme(&self) -> SignatureScheme {
        SignatureScheme::ED25519
    }
}

/// Why our own key did not sign the handshake, if that was the cause of the failure.
pub(crate) fn not_signed(error: &Error) -> Option<&SignError> {
    match error {
        Error::Other(OtherError(error)) => error.downcast_ref(),
        _ => None,
    }
}

/// The Ed25519 key in a SubjectPublicKeyInfo; `None` for any other kind of key or encoding.
pub(crate) fn key_of(spki: &[u8]) -> Option<PublicKey> {
    let key = spki.strip_prefix(&SPKI_PREFIX[..])?;
    Some(PublicKey(key.try_into().ok()?))
}

pub(crate) fn client_config(key: Arc<dyn KeyHolder>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider speaks TLS 1.3")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(RawKeyVerifier::new()))
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified(key))));
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.enable_sni = false;
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// The settings for connecting to a peer whose key is known. Our key is sent to no other.
pub(crate) fn connecting(key: Arc<dyn KeyHolder>, peer: PublicKey, alpn: &[u8]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::clone(&client_config(key));
    config
        .dangerous()
        .set_certificate_verifier(Arc::new(RawKeyVerifier { only: Some(peer), ..RawKeyVerifier::new() }));
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

/// The settings of the end that accepts connections.
pub(crate) fn accepting(key: Arc<dyn KeyHolder>, alpn: &[u8]) -> Arc<ServerConfig> {
    let accepted = server_config_of(provider(), Arc::new(RawKeyVerifier::new()), certified(key));
    let mut config = ServerConfig::clone(&accepted);
    config.alpn_protocols = vec![alpn.to_vec()];
    Arc::new(config)
}

pub(crate) fn server_config(key: &SigningKey) -> Arc<ServerConfig> {
    let certified = certified(key.clone().into());
    server_config_of(provider(), Arc::new(RawKeyVerifier::new()), certified)
}

/// The server's raw key, and the object that signs with it.
pub(crate) fn presented(key: PublicKey, signs: Arc<dyn sign::SigningKey>) -> Arc<CertifiedKey> {
    let mut spki = SPKI_PREFIX.to_vec();
    spki.extend_from_slice(&key.0);
    Arc::new(CertifiedKey::new(vec![CertificateDer::from(spki)], signs))
}

/// The settings of every server, with its signer and verifier.
pub(crate) fn server_config_of(
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    certified: Arc<CertifiedKey>,
) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("the provider speaks TLS 1.3")
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would skip the peer's proof of possession of its key.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Arc::new(config)
}

/// A name that rustls demands: it is not sent (no SNI) and nothing is compared with it.
pub(crate) fn server_name() -> ServerName<'static> {
    ServerName::try_from("holdfast.invalid").expect("a valid name")
}

/// The peer's key after a complete handshake, or what is missing.
pub(crate) fn peer_key(connection: &rustls::CommonState) -> Result<PublicKey, PeerKeyError> {
    peer_key_of(connection, ALPN)
}

/// As [`peer_key`], for a connection with another application protocol.
pub(crate) fn peer_key_of(connection: &rustls::CommonState, alpn: &[u8]) -> Result<PublicKey, PeerKeyError> {
    if connection.alpn_protocol() != Some(alpn) {
        return Err(PeerKeyError::OtherProtocol(String::from_utf8_lossy(alpn).into_owned()));
    }
    let key = connection.peer_certificates().and_then(|chain| key_of(chain.first()?));
    key.ok_or(PeerKeyError::NoKey)
}

/// For tests with a client that accepts any key.
#[cfg(test)]
pub(crate) fn any_raw_key() -> Arc<dyn ServerCertVerifier> {
    Arc::new(RawKeyVerifier::new())
}

/// Accepts any Ed25519 raw public key whose owner signs the handshake.
#[derive(Debug)]
pub(crate) struct RawKeyVerifier {
    algorithms: WebPkiSupportedAlgorithms,
    /// The only accepted key; `None`: any key is accepted.
    only: Option<PublicKey>,
}

impl RawKeyVerifier {
    pub(crate) fn new() -> Self {
        RawKeyVerifier { algorithms: provider().signature_verification_algorithms, only: None }
    }

    fn check(&self, entity: &CertificateDer<'_>, intermediates: &[CertificateDer<'_>]) -> Result<(), Error> {
        match key_of(entity) {
            Some(key) if intermediates.is_empty() && self.only.is_none_or(|only| only == key) => Ok(()),
            _ => Err(CertificateError::BadEncoding.into()),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        spki: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        if signed.scheme != SignatureScheme::ED25519 {
            return Err(CertificateError::BadSignature.into());
        }
        let spki = SubjectPublicKeyInfoDer::from(spki.as_ref());
        verify_tls13_signature_with_raw_key(message, &spki, signed, &self.algorithms)
    }
}

impl ServerCertVerifier for RawKeyVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for RawKeyVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(end_entity, intermediates).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: only the exact encoding of an Ed25519 key is taken for one.
    #[test]
    fn only_ed25519_keys_are_read() {
        let key = SigningKey::from_seed(&[7; 32]).public();
        let mut spki = SPKI_PREFIX.to_vec();
        spki.extend_from_slice(&key.0);
        assert_eq!(key_of(&spki), Some(key));
        assert_eq!(key_of(&spki[..43]), None);
        spki.push(0);
        assert_eq!(key_of(&spki), None);
        spki.pop();
        spki[8] ^= 1;
        assert_eq!(key_of(&spki), None);
        assert_eq!(key_of(&[]), None);
    }
}
