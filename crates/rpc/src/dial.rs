//! Makes a link: TCP and TLS or a stream of QUIC, `Hello`, and the check that this server may serve this file
//! system.

use crate::address::ServerAddress;
use crate::connection::ServerProof;
use crate::error::{RpcError, WrongServer};
use crate::flow::Pipe;
use crate::frame;
use crate::link;
use crate::quic::{Quic, StreamError};
use crate::socket::CountedStream;
use crate::sockets::Sockets;
use crate::tls;
use holdfast_crypto::{Digest, PublicKey, decode, encode};
use holdfast_protocol::message::{
    MESSAGE_BYTES_MAX, PROTOCOL_VERSIONS, Request, Response, ServerError, Welcome,
};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// A connection that has been greeted and has proven its identity.
pub(crate) struct GreetedConnection {
    pub(crate) pipe: Pipe,
    pub(crate) welcome: Welcome,
    pub(crate) server_key: PublicKey,
    pub(crate) address: String,
    pub(crate) carrier: Carrier,
}

/// The transport of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Carrier {
    Tcp,
    Quic,
}

/// Connects to one address.
pub(crate) struct Dialer<'a> {
    pub(crate) address: &'a ServerAddress,
    pub(crate) expected: Option<&'a ServerProof>,
    /// The file system named in the greeting if nothing is expected.
    pub(crate) requested: Option<Digest>,
    /// The only key that the server may have.
    pub(crate) only_key: Option<PublicKey>,
    /// An attempt ends within about this time.
    pub(crate) patience: Duration,
    pub(crate) sockets: &'a dyn Sockets,
}

/// How long QUIC is tried before TCP, where both are tried and QUIC is known to be better.
const LEAD: Duration = Duration::from_secs(1);

impl Dialer<'_> {
    /// Connects and greets over TCP.
    pub(crate) async fn tcp(&self, config: Arc<rustls::ClientConfig>) -> Result<GreetedConnection, RpcError> {
        self.within_patience(self.greet_by_tcp(config)).await
    }

    /// Connects and greets over QUIC.
    pub(crate) async fn quic(&self, quic: &Quic) -> Result<GreetedConnection, RpcError> {
        self.within_patience(self.greet_by_quic(quic)).await
    }

    /// Connects over QUIC, or over TCP if QUIC is not answered soon.
    pub(crate) async fn either(
        &self,
        quic: &Quic,
        config: Arc<rustls::ClientConfig>,
    ) -> Result<GreetedConnection, RpcError> {
        let mut by_quic = std::pin::pin!(self.quic(quic));
        // If QUIC fails at once, TCP is tried at once.
        if let Ok(Ok(greeted)) = tokio::time::timeout(LEAD, &mut by_quic).await {
            return Ok(greeted);
        }
        self.tcp(config).await
    }

    async fn within_patience(
        &self,
        attempt: impl Future<Output = Result<GreetedConnection, RpcError>>,
    ) -> Result<GreetedConnection, RpcError> {
        match tokio::time::timeout(self.patience, attempt).await {
            Ok(result) => result,
            Err(_) => {
                let why = format!("no answer within {} seconds", self.patience.as_secs_f32());
                Err(RpcError::Unreachable { address: self.address.to_string(), why })
            }
        }
    }

    async fn greet_by_quic(&self, quic: &Quic) -> Result<GreetedConnection, RpcError> {
        let name = self.address.to_string();
        let unreachable = |why: String| RpcError::Unreachable { address: name.clone(), why };
        let found = self.sockets.resolve(self.address).await;
        let mut why = "its name has no address".to_owned();
        for address in found.map_err(|error| unreachable(error.to_string()))? {
            match quic.open(address).await {
                Ok((pipe, key)) => {
                    self.check_key(&name, &key)?;
                    return self.introduce(name, Carrier::Quic, pipe, key).await;
                }
                Err(StreamError::Unreachable(reason)) => why = reason,
                Err(StreamError::Refused(why)) => {
                    let why = WrongServer::NotHoldfast(why);
                    return Err(RpcError::WrongServer { address: name, why });
                }
            }
        }
        Err(unreachable(why))
    }

    /// Checks the server's key before anything is sent.
    fn check_key(&self, name: &str, found: &PublicKey) -> Result<(), RpcError> {
        match self.only_key {
            Some(expected) if expected != *found => {
                let why = WrongServer::OtherKey { expected: expected.to_string(), found: found.to_string() };
                Err(RpcError::WrongServer { address: name.to_owned(), why })
            }
            _ => Ok(()),
        }
    }

    async fn greet_by_tcp(&self, config: Arc<rustls::ClientConfig>) -> Result<GreetedConnection, RpcError> {
        let patience = self.patience;
        let name = self.address.to_string();
        let unreachable = |why: &dyn std::fmt::Display| RpcError::Unreachable {
            address: name.clone(),
            why: why.to_string(),
        };
        let wrong = |why: WrongServer| RpcError::WrongServer { address: name.clone(), why };

        let tcp = self.sockets.tcp(self.address).await.map_err(|e| unreachable(&e))?;
        let counted = CountedStream::over(tcp);
        let flow = counted.flow();
        // On a thread of its own, since the key holder may be slow to sign, and the other lane must not wait
        // for it.
        let (config, runtime) = (TlsConnector::from(config), Handle::current());
        let handshake = move || {
            let handshake = config.connect(tls::server_name(), counted);
            runtime.block_on(tokio::time::timeout(patience, handshake))
        };
        let shaken = tokio::task::spawn_blocking(handshake).await.map_err(|e| unreachable(&e))?;
        let stream = shaken.map_err(|e| unreachable(&e))?.map_err(|error| {
            // A failure inside TLS is our key's or the peer's doing, one below it the network's.
            match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(tls) => match tls::not_signed(tls) {
                    Some(ours) => RpcError::Key(ours.clone()),
                    None => wrong(WrongServer::NotHoldfast(tls.to_string())),
                },
                None => unreachable(&error),
            }
        })?;
        let server_key = tls::peer_key(stream.get_ref().1)
            .map_err(|why| wrong(WrongServer::NotHoldfast(why.to_string())))?;

        self.check_key(&name, &server_key)?;
        self.introduce(name, Carrier::Tcp, Pipe { stream: Box::new(stream), flow }, server_key).await
    }

    /// Sends `Hello` and checks the reply, over any transport.
    async fn introduce(
        &self,
        name: String,
        carrier: Carrier,
        pipe: Pipe,
        server_key: PublicKey,
    ) -> Result<GreetedConnection, RpcError> {
        let unreachable = |why: &dyn std::fmt::Display| RpcError::Unreachable {
            address: name.clone(),
            why: why.to_string(),
        };
        let Pipe { mut stream, flow } = pipe;
        let requested = Instant::now();
        let file_system = self.expected.map(|proof| proof.file_system).or(self.requested);
        let hello = Request::Hello { versions: PROTOCOL_VERSIONS, file_system };
        link::write_frame(&mut stream, 1, &encode(&hello)).await.map_err(|e| unreachable(&e))?;
        stream.flush().await.map_err(|e| unreachable(&e))?;
        let header = frame::read_header(&mut stream, MESSAGE_BYTES_MAX).await.map_err(|e| unreachable(&e))?;
        let header = header.ok_or_else(|| unreachable(&"the server closed the connection"))?;
        let payload = frame::read_payload(&mut stream, header).await.map_err(|e| unreachable(&e))?;
        flow.round_trip(requested.elapsed());
        let answer: Response = decode(&payload).map_err(|e| RpcError::Malformed(e.to_string()))?;
        let welcome = match answer {
            Response::Hello(welcome) if header.id == 1 => welcome,
            Response::Error(ServerError::Version(oldest, newest)) => {
                return Err(RpcError::Version { server: (oldest, newest), ours: PROTOCOL_VERSIONS });
            }
            Response::Error(error) => return Err(error.into()),
            _ => return Err(RpcError::Malformed("it did not answer the greeting".to_owned())),
        };
        check_welcome(&name, &welcome, self.expected, &server_key)?;
        Ok(GreetedConnection { pipe: Pipe { stream, flow }, welcome, server_key, address: name, carrier })
    }
}

/// Checks the answer to a greeting before anything else is sent, on any transport: it must choose an offered
/// version, and prove that the server called `name` with this key may serve what is expected.
///
/// # Errors
/// [`RpcError::Malformed`], [`RpcError::WrongServer`].
pub fn check_welcome(
    name: &str,
    welcome: &Welcome,
    expected: Option<&ServerProof>,
    server_key: &PublicKey,
) -> Result<(), RpcError> {
    if !(PROTOCOL_VERSIONS.0..=PROTOCOL_VERSIONS.1).contains(&welcome.version) {
        let why = format!("it chose version {}, which was not offered", welcome.version);
        return Err(RpcError::Malformed(why));
    }
    match expected.map(|expected| check_proof(welcome, expected, server_key)) {
        Some(Err(why)) => Err(RpcError::WrongServer { address: name.to_owned(), why }),
        _ => Ok(()),
    }
}

/// Whether the server with this TLS key may serve the file system, by its superuser's word.
fn check_proof(welcome: &Welcome, expected: &ServerProof, server_key: &PublicKey) -> Result<(), WrongServer> {
    let (superuser, list) = welcome.file_system.as_ref().ok_or(WrongServer::NoProof)?;
    if superuser.file_system_id() != expected.file_system || list.value.file_system != expected.file_system {
        return Err(WrongServer::OtherFileSystem);
    }
    if !list.verify(superuser) {
        return Err(WrongServer::BadSignature);
    }
    if list.value.sequence < expected.minimum_sequence {
        return Err(WrongServer::OldList { expected: expected.minimum_sequence, found: list.value.sequence });
    }
    if !list.value.keys.contains(server_key) {
        return Err(WrongServer::NotListed { found: server_key.to_string() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::SigningKey;
    use holdfast_protocol::message::ServerKeys;
    use holdfast_protocol::signed::Signed;

    /// Proves: each way in which a server's proof can be wrong is refused under its own name.
    #[test]
    fn proofs_are_checked() {
        let superuser = SigningKey::from_seed(&[1; 32]);
        let other = SigningKey::from_seed(&[2; 32]);
        let server = SigningKey::from_seed(&[3; 32]).public();
        let file_system = superuser.public().file_system_id();
        let keys = |sequence, keys: Vec<PublicKey>| ServerKeys { file_system, sequence, keys };
        let expected = ServerProof { file_system, minimum_sequence: 5 };
        let check = |proof: Option<(PublicKey, Signed<ServerKeys>)>| {
            let welcome = Welcome { version: 1, file_system: proof, device: None, abort_after_ms: 0 };
            check_proof(&welcome, &expected, &server)
        };
        let good = Signed::new(keys(5, vec![server]), &superuser);
        assert_eq!(check(Some((superuser.public(), good.clone()))), Ok(()));
        assert_eq!(check(None), Err(WrongServer::NoProof));
        assert_eq!(check(Some((other.public(), good.clone()))), Err(WrongServer::OtherFileSystem));
        let foreign = ServerKeys { file_system: other.public().file_system_id(), ..keys(5, vec![server]) };
        let foreign = Signed::new(foreign, &superuser);
        assert_eq!(check(Some((superuser.public(), foreign))), Err(WrongServer::OtherFileSystem));
        let forged = Signed::new(keys(5, vec![server]), &other);
        assert_eq!(check(Some((superuser.public(), forged))), Err(WrongServer::BadSignature));
        let old = Signed::new(keys(4, vec![server]), &superuser);
        let verdict = check(Some((superuser.public(), old)));
        assert_eq!(verdict, Err(WrongServer::OldList { expected: 5, found: 4 }));
        let unlisted = Signed::new(keys(6, vec![other.public()]), &superuser);
        let verdict = check(Some((superuser.public(), unlisted)));
        assert!(matches!(verdict, Err(WrongServer::NotListed { .. })));
    }
}
