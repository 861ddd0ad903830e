//! Clients that meet without the server exchange their latest operations (SUNDR section 3.2: "continuously
//! exchange information on their latest operations"): the messages, how they are judged, and which peers are
//! present ([`roster`]).
//!
//! The attack: a server presents different, incomplete histories to two devices, for as long as neither sees
//! an operation of the other through the server. Here each sees the other's operations directly.
//!
//! A device sends its last committed operation with the server's receipt for it, and the length of the log
//! that it has accepted. A message is never content, and nothing in it freezes anybody by itself:
//!
//! - An operation is believed only with its device's signature and a listed server's receipt
//!   ([`verify_progress`]).
//! - Two operations with receipts that contradict each other convict the server, by [`crate::judge`].
//! - If a peer has an operation that this device has not seen ([`Finding::Unseen`]), the device asks the
//!   server. Once it has made an operation of its own and has the server's receipt, either that operation
//!   knows of the peer's, or both convict the server: an honest server orders the later one after the
//!   earlier, so one of them must know of the other.
//!
//! So [`Finding::Convicted`] holds for everybody who has both receipts, whoever says so.

mod roster;
#[cfg(test)]
mod tests;

pub use roster::{Change, PEERS_MAX, Peer, Presence, Roster, UNKNOWN_RUN};

use crate::check::authentic;
use crate::floor::Floor;
use crate::judge::{Contradiction, Exhibit, Suspect, contradictions};
use crate::members::Members;
use crate::message::Receipt;
use crate::signed::{Signable, Signed};
use crate::structure::{LogHead, Structure};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::DeviceId;
use holdfast_crypto::{Digest, DigestKey, Domain, encode};

/// The version of this conversation.
pub const VERSION: u16 = 1;
/// Longest message that is read: a structure at all its limits is shorter.
pub const WORD_BYTES_MAX: usize = 4 << 20;
/// Length of a beacon in bytes.
pub const BEACON_BYTES: usize = 8 + SALT_BYTES + 6 + 32;
/// Length of a knock in bytes.
pub const KNOCK_BYTES: usize = SALT_BYTES + 32;
/// Random bytes in a beacon or a knock.
pub const SALT_BYTES: usize = 16;

/// First bytes of a beacon.
const BEACON_MAGIC: [u8; 8] = *b"hfpeer\0\x01";

/// An operation that a server has promised to have committed.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct AcknowledgedOperation {
    /// The structure that its device signed.
    pub structure: Signed<Structure>,
    /// The server's receipt for it.
    pub receipt: Signed<Receipt>,
}

/// Which operations a device has made and seen so far.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct DeviceProgress {
    /// Its last committed operation, if it has made one and received a receipt.
    pub operation: Option<AcknowledgedOperation>,
    /// The log that it has accepted. Unproven, but a reason to ask the server.
    pub log: LogHead,
}

/// A message between two devices that have proven their keys to each other.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub enum PeerMessage {
    /// The first message of each side.
    Hello {
        /// Version of this protocol.
        version: u16,
        /// The epoch of the file system that the conversation is about.
        file_system: Digest,
        /// Number that tells this run of the device from others.
        run: u64,
    },
    /// The sender's progress so far.
    Progress(Box<DeviceProgress>),
    /// The sender is still there.
    KeepAlive,
    /// The sender leaves in order.
    Bye,
}

impl DeviceProgress {
    /// The progress of the device with this floor.
    pub fn of(floor: &Floor) -> DeviceProgress {
        let operation = floor.own().zip(floor.receipt.as_ref()).and_then(|(structure, receipt)| {
            // A receipt may be of an earlier operation.
            (receipt.value.structure == structure.value.digest())
                .then(|| AcknowledgedOperation { structure: structure.clone(), receipt: receipt.clone() })
        });
        DeviceProgress { operation, log: floor.log() }
    }
}

/// The result of comparing a peer's progress with what this device has accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Finding {
    /// Everything that the peer sent is in what this device has accepted, as far as can be told.
    Agrees,
    /// The peer has seen what this device was not shown. The server must be asked.
    Unseen(UnseenState),
    /// Both sides' receipts convict the server.
    Convicted(Box<Contradiction>),
}

/// Something that this device has not seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnseenState {
    /// The peer's operation of this number.
    Operation(u64),
    /// A log of this many operations, or another one of the same length: the peer's word.
    Log(u64),
}

/// Why a peer's word is not believed. None of it says anything about the server.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Offence {
    /// The message is of another file system, or of another version of this protocol.
    #[error("it speaks of something else")]
    Foreign,
    /// The operation is another device's.
    #[error("it said that an operation of device {} was its own", .0.0)]
    AnotherDevice(DeviceId),
    /// The operation is not validly signed.
    #[error("its operation is not to be believed: {0}")]
    NotAuthentic(String),
    /// The receipt is none of a server that the superuser has listed.
    #[error("its receipt is not one of a listed server's for that operation")]
    BadReceipt,
    /// Its operation is another one than was signed with its key before, under one number.
    #[error("operation {0} of it is signed twice, differently: its key is in use twice")]
    SignedTwice(u64),
}

/// Whether `peer` may be believed to have made this operation, and a server to have promised it.
///
/// # Errors
/// [`Offence`].
pub fn verify_progress(
    floor: &Floor,
    members: &dyn Members,
    peer: DeviceId,
    operation: &AcknowledgedOperation,
) -> Result<(), Offence> {
    let structure = &operation.structure;
    if structure.value.device() != peer {
        return Err(Offence::AnotherDevice(structure.value.device()));
    }
    if structure.value.forecast.file_system != floor.epoch {
        return Err(Offence::Foreign);
    }
    authentic(members, structure).map_err(|alarm| Offence::NotAuthentic(alarm.to_string()))?;
    match floor.is_promised(&operation.receipt, &structure.value) {
        true => Ok(()),
        false => Err(Offence::BadReceipt),
    }
}

/// Compares a peer's progress with what this device has accepted.
///
/// # Errors
/// [`Offence`]: the peer's fault; it says nothing about the server.
pub fn judge(
    floor: &Floor,
    members: &dyn Members,
    peer: DeviceId,
    latest: &DeviceProgress,
) -> Result<Finding, Offence> {
    if let Some(theirs) = &latest.operation {
        verify_progress(floor, members, peer, theirs)?;
        if let Some(contradiction) = conviction(floor, theirs) {
            return Ok(Finding::Convicted(Box::new(contradiction)));
        }
        let number = theirs.structure.value.number();
        let slot = floor.view.slots.get(&peer);
        match slot.filter(|slot| slot.value.number() == number) {
            Some(slot) if slot.value.digest() != theirs.structure.value.digest() => {
                return Err(Offence::SignedTwice(number));
            }
            _ => {}
        }
        if slot.map_or(0, |slot| slot.value.number()) < number {
            return Ok(Finding::Unseen(UnseenState::Operation(number)));
        }
    }
    let (ours, theirs) = (floor.log(), latest.log);
    let differs = theirs.size > ours.size || (theirs.size == ours.size && theirs.root != ours.root);
    Ok(if differs { Finding::Unseen(UnseenState::Log(theirs.size)) } else { Finding::Agrees })
}

/// The contradiction between this device's last operation and another's, both with receipts, that convicts the server.
fn conviction(floor: &Floor, theirs: &AcknowledgedOperation) -> Option<Contradiction> {
    let ours = DeviceProgress::of(floor).operation?;
    if !floor.accepts_receipt(&ours.receipt, &ours.structure.value) {
        return None;
    }
    let exhibit = |operation| Exhibit { structure: operation, acknowledged: true };
    let found = contradictions(&[exhibit(&ours.structure), exhibit(&theirs.structure)]);
    found.into_iter().find(|found| found.suspects.convicted() == Some(Suspect::Server))
}

/// A broadcast by which clients of one file system find each other on a network, while others do not learn
/// which file system it is: `magic | salt | device u32 | port u16 | keyed digest`, integers little endian.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beacon {
    /// The device that sends it.
    pub device: DeviceId,
    /// The TCP port on which it listens, at the address that the beacon came from.
    pub port: u16,
}

impl Beacon {
    /// Encodes the beacon as it is sent.
    pub fn to_bytes(self, file_system: &Digest, salt: [u8; SALT_BYTES]) -> [u8; BEACON_BYTES] {
        let mut bytes = [0; BEACON_BYTES];
        bytes[..8].copy_from_slice(&BEACON_MAGIC);
        bytes[8..24].copy_from_slice(&salt);
        bytes[24..28].copy_from_slice(&self.device.0.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.port.to_le_bytes());
        let tag = keyed(file_system, b"beacon", &bytes[8..30]);
        bytes[30..].copy_from_slice(&tag.0);
        bytes
    }

    /// Decodes a beacon; `None` if it is not one of this file system.
    pub fn read(file_system: &Digest, bytes: &[u8]) -> Option<Beacon> {
        let bytes: &[u8; BEACON_BYTES] = bytes.try_into().ok()?;
        let is_ours =
            bytes[..8] == BEACON_MAGIC && bytes[30..] == keyed(file_system, b"beacon", &bytes[8..30]).0;
        let device = DeviceId(u32::from_le_bytes(bytes[24..28].try_into().ok()?));
        let port = u16::from_le_bytes(bytes[28..30].try_into().ok()?);
        (is_ours && port > 0).then_some(Beacon { device, port })
    }
}

/// The first message of a client that connects to another, which proves that it knows of the file system. A
/// client that does not gets no handshake, and so neither a key's name nor a signature.
pub fn knock(file_system: &Digest, to: &Digest, salt: [u8; SALT_BYTES]) -> [u8; KNOCK_BYTES] {
    let mut bytes = [0; KNOCK_BYTES];
    bytes[..SALT_BYTES].copy_from_slice(&salt);
    let tag = keyed(file_system, b"knock", &encode(&(salt, to)));
    bytes[SALT_BYTES..].copy_from_slice(&tag.0);
    bytes
}

/// Whether a knock is for the device whose key has this digest.
pub fn is_knock(file_system: &Digest, to: &Digest, bytes: &[u8; KNOCK_BYTES]) -> bool {
    let mut salt = [0; SALT_BYTES];
    salt.copy_from_slice(&bytes[..SALT_BYTES]);
    knock(file_system, to, salt) == *bytes
}

fn keyed(file_system: &Digest, what: &[u8], bytes: &[u8]) -> Digest {
    DigestKey(file_system.0).digest(Domain::Meeting, &[what, bytes].concat())
}
