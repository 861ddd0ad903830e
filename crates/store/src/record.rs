//! The records the store appends to the log. A record's kind is the number of its variant; its head is the
//! borsh encoding of the variant's fields; bodies are block bodies and opaque payloads.

use crate::StoreError;
use crate::holds::Hold;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{BlockKind, Codec, DeviceId};
use holdfast_crypto::{DecodeError, Digest, PublicKey, Signature};
use holdfast_log::{BodyTag, Log, LogError, Position, RecordHead};

/// A block; the body is its encoded body.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct BlockRecord {
    pub(crate) file_system: Digest,
    pub(crate) address: Digest,
    /// The device that stored the block first.
    pub(crate) owner: DeviceId,
    /// When the block was first stored, in nanoseconds since 1970.
    pub(crate) stored_ns: i64,
    /// When a device last relied on the block, in nanoseconds since 1970.
    pub(crate) age_ns: i64,
    /// Whether this copy replaces any other: the collector moved it, or the other is damaged.
    pub(crate) replaces: bool,
    pub(crate) kind: BlockKind,
    pub(crate) codec: Codec,
    pub(crate) references: Vec<Digest>,
}

/// Blocks that a device has relied on again.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct RenewRecord {
    pub(crate) file_system: Digest,
    pub(crate) at_ns: i64,
    pub(crate) addresses: Vec<Digest>,
}

/// Copies that are garbage from here on, named by location so that a later copy is not affected. The records
/// of one round count only once the last of them is in the log.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct DroppedRecord {
    pub(crate) file_system: Digest,
    pub(crate) round: u64,
    pub(crate) last: bool,
    pub(crate) copies: Vec<(u64, Digest)>,
}

/// The consistency server's record, or a checkpoint, which replaces all before it. The body is the payload.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct OrderingRecord {
    pub(crate) file_system: Digest,
    pub(crate) sequence: u64,
}

/// A signed block (VSTORE); the body is the block.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct SignedRecord {
    pub(crate) file_system: Digest,
    pub(crate) key: PublicKey,
    pub(crate) number: u64,
    pub(crate) stored_ns: i64,
    /// The location of the copy that this one replaces, or 0.
    pub(crate) moved_from: u64,
    pub(crate) signature: Signature,
}

/// Blocks that a reader holds open; an empty list ends the hold.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct PinRecord {
    pub(crate) file_system: Digest,
    pub(crate) holder: u64,
    pub(crate) until_ns: i64,
    pub(crate) addresses: Vec<Digest>,
}

/// All holds of a file system, in order of name; only the last such record counts. (If each hold had a record
/// of its own, a hold would come back when the record of its end is collected before that of its beginning.)
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct HoldsRecord {
    pub(crate) file_system: Digest,
    pub(crate) holds: Vec<Hold>,
}

/// Copies named by one record.
pub(crate) const COPIES_PER_RECORD: usize = 4096;

/// Any record of the store. Numbers are stored.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum StoreRecord {
    Block(BlockRecord) = 1,
    Renew(RenewRecord) = 2,
    Dropped(DroppedRecord) = 3,
    Ordering(OrderingRecord) = 4,
    Checkpoint(OrderingRecord) = 5,
    Signed(SignedRecord) = 6,
    Pin(PinRecord) = 7,
    Holds(HoldsRecord) = 8,
}

/// Why a record of the log is none of the store's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordError {
    /// A newer program has written it, or another one.
    #[error("a record of unknown kind {0}")]
    UnknownKind(u8),
    /// Its bytes are not those of its kind.
    #[error(transparent)]
    Malformed(#[from] DecodeError),
}

impl StoreRecord {
    fn parts(&self) -> (u8, Vec<u8>) {
        use holdfast_crypto::encode;
        match self {
            StoreRecord::Block(record) => (1, encode(record)),
            StoreRecord::Renew(record) => (2, encode(record)),
            StoreRecord::Dropped(record) => (3, encode(record)),
            StoreRecord::Ordering(record) => (4, encode(record)),
            StoreRecord::Checkpoint(record) => (5, encode(record)),
            StoreRecord::Signed(record) => (6, encode(record)),
            StoreRecord::Pin(record) => (7, encode(record)),
            StoreRecord::Holds(record) => (8, encode(record)),
        }
    }

    /// Appends the record.
    pub(crate) fn append(&self, log: &Log, body: &[u8], tag: BodyTag) -> Result<Location, LogError> {
        let (kind, head) = self.parts();
        let position = log.append_parts(kind, &head, body, tag)?;
        Ok(Location { position, length: holdfast_log::stored_length(head.len(), body.len()) })
    }

    /// Decodes a record the log has verified; anything else is a newer or foreign record.
    pub(crate) fn decode(record: &RecordHead) -> Result<StoreRecord, StoreError> {
        StoreRecord::decode_at(record.position, record.kind, &record.head)
    }

    /// As [`StoreRecord::decode`], for a record that was read whole.
    pub(crate) fn decode_at(position: Position, kind: u8, head: &[u8]) -> Result<StoreRecord, StoreError> {
        StoreRecord::decode_parts(kind, head).map_err(|error| {
            StoreError::Log(LogError::Damaged {
                file: format!("segment {}", position.segment),
                offset: position.offset.into(),
                why: error.to_string(),
            })
        })
    }

    pub(crate) fn decode_parts(kind: u8, head: &[u8]) -> Result<StoreRecord, RecordError> {
        use holdfast_crypto::decode;
        let decoded = match kind {
            1 => decode(head).map(StoreRecord::Block),
            2 => decode(head).map(StoreRecord::Renew),
            3 => decode(head).map(StoreRecord::Dropped),
            4 => decode(head).map(StoreRecord::Ordering),
            5 => decode(head).map(StoreRecord::Checkpoint),
            6 => decode(head).map(StoreRecord::Signed),
            7 => decode(head).map(StoreRecord::Pin),
            8 => decode(head).map(StoreRecord::Holds),
            other => return Err(RecordError::UnknownKind(other)),
        };
        Ok(decoded?)
    }
}

/// Position and length of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Location {
    pub(crate) position: Position,
    pub(crate) length: u32,
}

impl Location {
    pub(crate) fn of(record: &RecordHead) -> Location {
        Location { position: record.position, length: record.stored_length() }
    }
}

impl BorshSerialize for Location {
    fn serialize<W: borsh::io::Write>(&self, writer: &mut W) -> borsh::io::Result<()> {
        (self.position.to_u64(), self.length).serialize(writer)
    }
}

impl BorshDeserialize for Location {
    fn deserialize_reader<R: borsh::io::Read>(reader: &mut R) -> borsh::io::Result<Self> {
        let (position, length) = <(u64, u32)>::deserialize_reader(reader)?;
        Ok(Location { position: Position::from_u64(position), length })
    }
}
