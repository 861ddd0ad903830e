//! Messages between the client's processes. They are bounded and canonical, and each process checks what it receives.
//! The module is public so that tests can play a hostile process.

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

/// The process that keeps the key.
pub const SIGNER: &str = "signer";
/// The process that reads what the network sends.
pub const NETWORK: &str = "network";

/// Port on which the main process asks for signatures.
pub const SIGN: &str = "sign";
/// Port on which the network process asks for signatures of handshakes.
pub const HANDSHAKE: &str = "handshake";
/// Port on which the signer asks for connections to an SSH agent.
pub const AGENT: &str = "agent";

/// Port on which the main process asks for connections.
pub const ORDERS: &str = "orders";
/// Port on which the network process asks for sockets.
pub const SOCKETS: &str = "sockets";

/// Bytes of one packet's part of something longer.
pub const PART_BYTES: usize = 60 << 10;
/// Most bytes of what is put together from parts: a certificate with all its deltas, and a structure.
pub const WHOLE_BYTES_MAX: usize = 8 << 20;
/// A bound that no message of a handshake reaches.
pub const HANDSHAKE_BYTES_MAX: usize = 256;

/// From the main process to the signer.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SignerRequest {
    /// The next part of a long message.
    Part(Vec<u8>),
    /// The key, once: the parts before are what this machine remembers of its signatures, if there are any. With it come
    /// a pipe that holds the seed, and the file for what is signed, as far as they are named here.
    Begin {
        /// The key, and where it is.
        key: KeyLocation,
        /// The file system in which it signs; `None`: it signs handshakes only, and there is no file.
        file_system: Option<Digest>,
    },
    /// Sign what the parts before say: a list of [`SigningPayload`].
    Sign,
    /// Go over to the epoch of the last of these restores: the parts before are what this machine makes of the state that
    /// is left.
    GoOver {
        /// The superuser who declared the restores.
        superuser: PublicKey,
        /// All restores of the file system, first to last.
        restores: Vec<Restore>,
    },
    /// From now on other clients may connect to this one: sign the handshakes of a TLS server, too.
    MeetPeers,
}

/// Where the private key is.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum KeyLocation {
    /// The key comes through a pipe.
    Pipe,
    /// The key is in an agent.
    Agent {
        /// What the agent is called in messages.
        name: String,
        /// The public half of the key.
        public: PublicKey,
    },
}

/// From the signer to the main process.
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
    /// Signatures of all that was asked for, in the same sequence.
    Signed(Vec<Signature>),
    /// Nothing was signed, for this reason.
    NotSigned(SignError),
}

/// From the main process to the network process.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum NetworkRequest {
    /// Make a connection to a server.
    Open(OpenRequest),
    /// Make a connected socket a channel to another client ([`super::handshakes`]). With it come a stream and the
    /// socket.
    Meet(MeetRequest),
    /// Read what clients say to all of a network. With it come a stream and a socket for datagrams.
    HearBeacons {
        /// The file system whose beacons are wanted.
        file_system: Digest,
    },
}

/// A socket that is connected to another client.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct MeetRequest {
    /// The key with which the signer signs handshakes.
    pub public: PublicKey,
    /// The file system that both know.
    pub file_system: Digest,
    /// The key that the peer must prove, if this machine made the connection.
    pub expected: Option<PublicKey>,
}

/// Result of a handshake with a peer: the first message in its stream, after its length as `u32`.
pub type PeerIntroduction = Result<PublicKey, String>;

/// A beacon that was heard: the address it came from, and what it says.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct HeardBeacon {
    /// IP address, 4 or 16 bytes.
    pub address: Vec<u8>,
    /// Number of the device that sends the beacon.
    pub device: u32,
    /// TCP port on which that device listens.
    pub port: u16,
}

/// Be a connection to a server. With it come a stream, over which requests and answers go ([`super::frames`]),
/// and something to ask the kernel for counters with, if there is any.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct OpenRequest {
    /// The key with which the signer signs handshakes.
    pub public: PublicKey,
    /// Servers by their places in the main process's list, and what they are called.
    pub servers: Vec<(u16, String)>,
    /// The file system that a server must serve, and the lowest number of its list.
    pub proof: Option<(Digest, u64)>,
    /// Transport: 0 for TCP, 1 for QUIC, 2 for the better of the two.
    pub transport: u8,
}

/// The network process's request for a socket; servers are given by their position in the list.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SocketRequest {
    /// A connection over TCP to the server of this number in the list.
    Tcp(u16),
    /// A socket for datagrams.
    Udp,
    /// The addresses of a server, instead of a socket.
    Addresses(u16),
}

/// Reply to a request for a socket.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum SocketReply {
    /// A socket. Whether the system has the congestion control that bears losses.
    Socket {
        /// Whether the system has BBR.
        bbr: bool,
    },
    /// Addresses: 4 or 16 bytes, and a port.
    Addresses(Vec<(Vec<u8>, u16)>),
    /// There is no socket, for this reason.
    None(String),
}

/// How the connection is, as the network process says. Nothing is decided by it but words, sizes, and
/// whether the server is asked once more.
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

/// Something that is to be signed, as a whole.
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
    /// As the mandate judges it. What its signature covers is computed here, from the whole.
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

    /// The encoding of a list of things, from what their signers have at hand.
    ///
    /// # Errors
    /// Something else is to be signed.
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

    /// The encoding made of parts is the one that is read.
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
