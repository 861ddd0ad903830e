//! The stream between the main process and the network process: the protocol's requests and answers, in
//! frames that connect each answer with its request.
//!
//! ```text
//! length u32 of what follows | kind u8 | id u64 | body            little endian
//! to the network:  1 call: lane u8 | may be sent twice u8 | deadline u64 ms | request    2 wait: deadline u64 ms
//!                  3 never mind                     4 ask how things stand: told first, then answered with nothing
//! from it:         1 answer | microseconds that it took here, u32 | number of the request on its link, u64
//!                  2 failed: RpcError        3 standing: Standing, id 0
//! ```
//!
//! No frame is longer than a message of the protocol with its header. A longer frame, or one of an unknown
//! kind, is an offence and ends the process that sent it.

use holdfast_protocol::message::MESSAGE_BYTES_MAX;

/// Bytes of a header: length, kind and id.
pub(super) const HEADER_BYTES: usize = 13;
/// Bytes that the length counts besides a request or answer: kind and id, and what precedes a request (10
/// bytes) or follows an answer (12).
const AROUND_BYTES: usize = 9 + 12;

pub(super) const CALL: u8 = 1;
pub(super) const WAIT: u8 = 2;
pub(super) const NEVER_MIND: u8 = 3;
pub(super) const ASK: u8 = 4;
pub(super) const ANSWER: u8 = 1;
pub(super) const FAILED: u8 = 2;
pub(super) const STANDING: u8 = 3;

/// Header of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: u8,
    pub(super) id: u64,
    pub(super) body_bytes: usize,
}

impl Header {
    pub(super) fn encode(kind: u8, id: u64, body_bytes: usize) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&((body_bytes + 9) as u32).to_le_bytes());
        bytes[4] = kind;
        bytes[5..].copy_from_slice(&id.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if no valid frame has it.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let id = u64::from_le_bytes(*bytes.last_chunk().expect("thirteen"));
        let fits = (9..=MESSAGE_BYTES_MAX + AROUND_BYTES).contains(&length) && (1..=4).contains(&bytes[4]);
        fits.then(|| Header { kind: bytes[4], id, body_bytes: length - 9 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Proves: encoded headers decode, and headers of too long frames or of unknown kinds do not.
    #[test]
    fn headers() {
        for body_bytes in [0, 1, MESSAGE_BYTES_MAX + 12] {
            let header = Header { kind: CALL, id: 77, body_bytes };
            assert_eq!(Header::decode(&Header::encode(CALL, 77, body_bytes)), Some(header));
        }
        assert_eq!(Header::decode(&Header::encode(CALL, 1, MESSAGE_BYTES_MAX + 13)), None);
        assert_eq!(Header::decode(&Header::encode(5, 1, 0)), None);
        assert_eq!(Header::decode(&Header::encode(0, 1, 0)), None);
        assert_eq!(Header::decode(&[0; HEADER_BYTES]), None);
        assert_eq!(Header::decode(&[0xff; HEADER_BYTES]), None);
    }
}
