//! Messages between the client's processes. They are bounded and canonical, and each process checks those it
//! receives. The module is public so that tests can play a hostile process.

use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::Restore;
use holdfast_crypto::{Digest, Domain, PublicKey, SignError, SignRequest, Signature};
use holdfast_protocol::certificate::Certificate;
use holdfast_protocol::epoch::Declaration;
use holdfast_protocol::history::{Snapshot, SnapshotEnd};
use holdfast_protocol::message::{ServerKeys, Welcome};
use holdfast_protocol::signed::Signable;
use holdfast_protocol::structure::Structure;
use holdfast_protocol::warrant::Change;
use holdfast_rpc::RpcError;

/// Name of the process that has the key.
pub const SIGNER: &str = "signer";
/// Name of the process that reads from the network.
pub const NETWORK: &str = "network";

/// Port on which the main process requests signatures.
pub const SIGN: &str = "sign";
/// Port on which the network process asks for signatures of handshakes.
pub const HANDSHAKE: &str = "handshake";
/// Port on which the signer asks for connections to an SSH agent.
pub const AGENT: &str = "agent";

/// Port on which the main process asks for connections.
pub const ORDERS: &str = "orders";
/// Port on which the network process asks for sockets.
pub const SOCKETS: &str = "sockets";

/// Most bytes of a message's part in one packet.
pub const PART_BYTES: usize = 60 << 10;
/// Most bytes of a message assembled from parts: a certificate with all its deltas, and a structure.
pub const WHOLE_BYTES_MAX: usize = 8 << 20;
/// Bound in bytes that no message of a handshake reaches.
pub const HANDSHAKE_BYTES_MAX: usize = 256;

/// A request of the main process to the signer.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SignerRequest {
    /// The next part of a long message.
    Part(Vec<u8>),
    /// Hands over the key, once. The parts before are the main process's record of signatures, if there is
    /// one. Files come along: a pipe with the seed, and the file for the signer's record, as far as they are
    /// needed.
    Begin {
        /// Where the key is.
        key: KeyLocation,
        /// The file system in which it signs. `None`: it signs handshakes only, and has no record file.
        file_system: Option<Digest>,
    },
    /// Sign the payloads in the parts before: a list of [`SigningPayload`].
    Sign,
    /// Enter the epoch of the last of these restores. The parts before are the mandate that the main process
    /// computed from the remaining state.
    GoOver {
        /// The superuser who declared the restores.
        superuser: PublicKey,
        /// All restores of the file system, in order.
        restores: Vec<Restore>,
    },
    /// Other clients may connect to this one from now on: also sign the handshakes of a TLS server.
    MeetPeers,
}

/// Where the private key is.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum KeyLocation {
    /// The key comes through a pipe.
    Pipe,
    /// The key is in an agent.
    Agent {
        /// Name of the agent, for messages.
        name: String,
        /// The public half of the key.
        public: PublicKey,
    },
}

/// A reply of the signer to the main process.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SignerReply {
    /// The part was taken: send the next one.
    Accepted,
    /// The signer has the key and can sign.
    Ready {
        /// The public half of the key.
        public: PublicKey,
        /// The highest number of an operation that was signed.
        number: u64,
    },
    /// The requested signatures, in the order of the payloads.
    Signed(Vec<Signature>),
    /// Nothing was signed, for this reason.
    NotSigned(SignError),
}

/// A request of the main process to the network process.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum NetworkRequest {
    /// Connect to a server.
    Open(OpenRequest),
    /// Turn a connected socket into a channel to another client ([`super::handshakes`]). Files: a stream, and
    /// the socket.
    Meet(MeetRequest),
    /// Receive the beacons of clients on the local network. Files: a stream, and a datagram socket.
    HearBeacons {
        /// The file system whose beacons are wanted.
        file_system: Digest,
    },
}

/// Describes a socket that is connected to another client.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct MeetRequest {
    /// The key with which the signer signs handshakes.
    pub public: PublicKey,
    /// The file system that both clients use.
    pub file_system: Digest,
    /// The key that the peer must prove, if this client made the connection.
    pub expected: Option<PublicKey>,
}

/// Result of a handshake with a peer: the first message on its stream, after its length as `u32`.
pub type PeerIntroduction = Result<PublicKey, String>;

/// A beacon that was received, with its sender's address.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct HeardBeacon {
    /// IP address, 4 or 16 bytes.
    pub address: Vec<u8>,
    /// Number of the device that sends the beacon.
    pub device: u32,
    /// TCP port on which that device listens.
    pub port: u16,
}

/// Asks for a connection to a server. Files: a stream for requests and answers ([`super::frames`]), and a
/// socket for asking the kernel for counters, if there is one.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct OpenRequest {
    /// The key with which the signer signs handshakes.
    pub public: PublicKey,
    /// The servers: the position of each in the main process's list, and its address as text.
    pub servers: Vec<(u16, String)>,
    /// The file system that a server must serve, and the lowest accepted sequence number of its list of keys.
    pub proof: Option<(Digest, u64)>,
    /// Transport: 0 for TCP, 1 for QUIC, 2 for the better of the two.
    pub transport: u8,
}

/// A request of the network process for a socket. Servers are given by their position in the list.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SocketRequest {
    /// A TCP connection to the server at this position.
    Tcp(u16),
    /// A datagram socket.
    Udp,
    /// The addresses of the server at this position, instead of a socket.
    Addresses(u16),
}

/// Reply to a request for a socket.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SocketReply {
    /// A socket.
    Socket {
        /// Whether the system has BBR, a congestion control that tolerates losses.
        bbr: bool,
    },
    /// Addresses: 4 or 16 bytes, and a port.
    Addresses(Vec<(Vec<u8>, u16)>),
    /// There is no socket, for this reason.
    None(String),
}

/// The status of a connection, as reported by the network process. It only affects texts, sizes, and whether
/// the server is asked once more.
#[derive(Clone, Default, PartialEq, BorshSerialize, BorshDeserialize)]
pub struct ConnectionStatus {
    /// The server's first message.
    pub welcome: Option<Welcome>,
    /// The server's key.
    pub server_key: Option<PublicKey>,
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// Why there is no connection.
    pub trouble: Option<RpcError>,
    /// Bytes sent so far.
    pub sent: u64,
    /// Bytes received so far.
    pub received: u64,
    /// Number of connections made so far.
    pub connects: u64,
    /// Whether the connection is over QUIC, if there is one.
    pub is_over_quic: Option<bool>,
    /// Round trip in microseconds, bytes a second each way, losses in millionths.
    pub estimate: Option<(u64, Option<u64>, Option<u64>, u32)>,
}

/// A complete message to be signed.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SigningPayload {
    /// The certificate of an operation.
    Certificate(Certificate),
    /// A version structure.
    Structure(Structure),
    /// A list of server keys.
    ServerKeys(ServerKeys),
    /// A name for a past state.
    Snapshot(Snapshot),
    /// The end of a name for a past state.
    SnapshotEnd(SnapshotEnd),
    /// A change of membership.
    Warrant(Change),
    /// A restore that the superuser declares.
    Restore(Declaration),
}

impl SigningPayload {
    /// The request as the mandate judges it. The bytes that the signature covers are computed here, from the
    /// whole message.
    pub fn ask(&self) -> SignRequest {
        match self {
            SigningPayload::Certificate(certificate) => certificate.ask(),
            SigningPayload::Structure(structure) => structure.ask(),
            SigningPayload::ServerKeys(keys) => keys.ask(),
            SigningPayload::Snapshot(snapshot) => snapshot.ask(),
            SigningPayload::SnapshotEnd(end) => end.ask(),
            SigningPayload::Warrant(change) => change.ask(),
            SigningPayload::Restore(declaration) => declaration.ask(),
        }
    }

    /// The encoding of a list of messages, from signing requests.
    ///
    /// # Errors
    /// A request is for something else than these kinds of messages.
    pub fn encode_all(asks: &[SignRequest]) -> Result<Vec<u8>, SignError> {
        let mut bytes = (asks.len() as u32).to_le_bytes().to_vec();
        for ask in asks {
            bytes.push(match ask.domain {
                Domain::Certificate => 0,
                Domain::Structure => 1,
                Domain::ServerKeys => 2,
                Domain::Snapshot => 3,
                Domain::SnapshotEnd => 4,
                Domain::Warrant => 5,
                Domain::Restore => 6,
                other => return Err(SignError::Refused(format!("this device's key signs no {other:?}"))),
            });
            bytes.extend_from_slice(&ask.whole);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_crypto::{decode, encode};

    /// Proves: the encoding made from signing requests decodes to the same messages.
    #[test]
    fn things_as_they_are_read() {
        let keys = ServerKeys { file_system: Digest([1; 32]), sequence: 3, keys: Vec::new() };
        let bytes = SigningPayload::encode_all(&[keys.ask(), keys.ask()]).expect("known");
        let things: Vec<SigningPayload> = decode(&bytes).expect("as it is read");
        assert_eq!(encode(&things), bytes);
        assert!(things.iter().all(|thing| thing.ask() == keys.ask()));
        let other = SignRequest { domain: Domain::Receipt, ..keys.ask() };
        assert!(SigningPayload::encode_all(&[other]).is_err());
    }
}
