//! What the client's processes say to each other. Bounded, canonical, and judged by whoever hears it. It is public so
//! that tests can speak it as an enemy.

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

/// The main process asks for signatures.
pub const SIGN: &str = "sign";
/// The network process asks for signatures of handshakes.
pub const HANDSHAKE: &str = "handshake";
/// The signer asks for connections to an SSH agent.
pub const AGENT: &str = "agent";

/// The main process has connections made.
pub const ORDERS: &str = "orders";
/// The network process asks for sockets.
pub const SOCKETS: &str = "sockets";

/// Bytes of one packet's part of something longer.
pub const PART_BYTES: usize = 60 << 10;
/// Most bytes of what is put together from parts: a certificate with all its deltas, and a structure.
pub const WHOLE_BYTES_MAX: usize = 8 << 20;
/// Longer than any message of a handshake.
pub const HANDSHAKE_BYTES_MAX: usize = 256;

/// To the signer.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum ToSigner {
    /// More of what is to follow.
    Part(Vec<u8>),
    /// The key, once: the parts before are what this machine remembers of its signatures, if there are any. With it come
    /// a pipe that holds the seed, and the file for what is signed, as far as they are named here.
    Begin {
        /// Whose key, and where it is.
        key: KeyPlace,
        /// In which file system it signs; `None`: it makes handshakes only, and there is no file.
        file_system: Option<Digest>,
    },
    /// Sign what the parts before say: a list of [`Thing`].
    Sign,
    /// Go over to the epoch of the last of these restores: the parts before are what this machine makes of the state that
    /// is left.
    GoOver {
        /// Who declared them.
        superuser: PublicKey,
        /// All of the file system, first to last.
        restores: Vec<Restore>,
    },
    /// From now on other clients may connect to this one: sign the handshakes of a TLS server, too.
    MeetPeers,
}

/// Where the private key is.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum KeyPlace {
    /// In the pipe.
    Pipe,
    /// In an agent, which is called this.
    Agent {
        /// In words, for messages.
        name: String,
        /// The public half.
        public: PublicKey,
    },
}

/// From the signer.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum FromSigner {
    /// Go on.
    Taken,
    /// It has the key.
    Ready {
        /// Its public half.
        public: PublicKey,
        /// The highest number signed for.
        number: u64,
    },
    /// All of them.
    Signed(Vec<Signature>),
    /// None.
    Not(SignError),
}

/// To the network process.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum ToNetwork {
    /// Be a connection to a server.
    Open(Open),
    /// Make a connected socket a channel to another client ([`super::meetings`]). With it come a stream and the socket.
    Meet(Meet),
    /// Read what clients say to all of a network. With it come a stream and a socket for datagrams.
    HearBeacons {
        /// Whose beacons.
        file_system: Digest,
    },
}

/// A socket that is connected to another client.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct Meet {
    /// Whose handshakes the signer signs.
    pub public: PublicKey,
    /// The file system that both know.
    pub file_system: Digest,
    /// Whose key must answer, if this machine made the connection.
    pub expected: Option<PublicKey>,
}

/// How a meeting went: the first thing in its stream, after its length as `u32`.
pub type Introduced = Result<PublicKey, String>;

/// A beacon that was heard: the address it came from, and what it says.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct Heard {
    /// 4 or 16 bytes.
    pub address: Vec<u8>,
    /// Who says so.
    pub device: u32,
    /// Where that listens.
    pub port: u16,
}

/// Be a connection to a server. With it come a stream, over which requests and answers go ([`super::frames`]),
/// and something to ask the kernel for counters with, if there is any.
#[derive(BorshSerialize, BorshDeserialize)]
pub struct Open {
    /// Whose handshakes the signer signs.
    pub public: PublicKey,
    /// Servers by their places in the main process's list, and what they are called.
    pub servers: Vec<(u16, String)>,
    /// The file system that a server must serve, and the lowest number of its list.
    pub proof: Option<(Digest, u64)>,
    /// TCP, QUIC, or what is better: 0, 1, 2.
    pub transport: u8,
}

/// From the network process: a socket, by a server's place.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum WantedSocket {
    /// A connection over TCP.
    Tcp(u16),
    /// One for datagrams.
    Udp,
    /// No socket: the addresses of a server.
    Addresses(u16),
}

/// What comes with a socket, or instead of one.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum GivenSocket {
    /// A socket. Whether the system has the congestion control that bears losses.
    Socket {
        /// It has.
        bbr: bool,
    },
    /// Addresses: 4 or 16 bytes, and a port.
    Addresses(Vec<(Vec<u8>, u16)>),
    /// None, and why.
    None(String),
}

/// How the connection is, as the network process says. Nothing is decided by it but words, sizes, and
/// whether the server is asked once more.
#[derive(Clone, Default, PartialEq, BorshSerialize, BorshDeserialize)]
pub struct Standing {
    /// What the server said first.
    pub welcome: Option<Welcome>,
    /// Its key.
    pub server_key: Option<PublicKey>,
    /// Whether there is a connection now.
    pub is_connected: bool,
    /// Why there is none.
    pub trouble: Option<RpcError>,
    /// Bytes sent so far.
    pub sent: u64,
    /// Bytes received so far.
    pub received: u64,
    /// Links made so far.
    pub connects: u64,
    /// Whether it is over QUIC, if there is one.
    pub is_over_quic: Option<bool>,
    /// Round trip in microseconds, bytes a second each way, losses in millionths.
    pub estimate: Option<(u64, Option<u64>, Option<u64>, u32)>,
}

/// Something to be signed, whole.
#[derive(BorshSerialize, BorshDeserialize)]
pub enum Thing {
    /// The certificate of an operation.
    Certificate(Certificate),
    /// A version structure.
    Structure(Structure),
    /// A list of server keys.
    ServerKeys(ServerKeys),
    /// A name for a past state.
    Snapshot(Snapshot),
    /// Its end.
    SnapshotEnd(SnapshotEnd),
    /// A change of membership.
    Warrant(Change),
    /// A restore that the superuser declares.
    Restore(Declaration),
}

impl Thing {
    /// As the mandate judges it. What its signature covers is computed here, from the whole.
    pub fn ask(&self) -> SignRequest {
        match self {
            Thing::Certificate(certificate) => certificate.ask(),
            Thing::Structure(structure) => structure.ask(),
            Thing::ServerKeys(keys) => keys.ask(),
            Thing::Snapshot(snapshot) => snapshot.ask(),
            Thing::SnapshotEnd(end) => end.ask(),
            Thing::Warrant(change) => change.ask(),
            Thing::Restore(declaration) => declaration.ask(),
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
        let bytes = Thing::encode_all(&[keys.ask(), keys.ask()]).expect("known");
        let things: Vec<Thing> = decode(&bytes).expect("as it is read");
        assert_eq!(encode(&things), bytes);
        assert!(things.iter().all(|thing| thing.ask() == keys.ask()));
        let other = SignRequest { domain: Domain::Receipt, ..keys.ask() };
        assert!(Thing::encode_all(&[other]).is_err());
    }
}
