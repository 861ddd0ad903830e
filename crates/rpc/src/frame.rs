//! Frames: `length: u32, id: u64, payload`, all little-endian; `length` counts id and payload.
//!
//! A peer may send any length: it is checked against the present limit before one byte is reserved, and
//! memory grows with what has arrived, not with the length sent.

use crate::privsep::{NOTE_BYTES_MAX, NOTE_ID};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Bytes before the payload.
pub const FRAME_HEADER_BYTES: usize = 12;
const ID_BYTES: u32 = 8;
const STEP_BYTES: usize = 64 << 10;

/// The decoded start of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Payload length in bytes.
    pub payload_bytes: u32,
    /// Id of the request that the frame belongs to, chosen by the client; never 0 (reserved for notes).
    pub id: u64,
}

/// Why a frame is refused. The connection cannot continue, since the offset of the next frame is unknown.
#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    /// Peer: longer than allowed.
    #[error("a frame of {found} bytes is over the limit of {limit}")]
    TooLong {
        /// Claimed payload length.
        found: u64,
        /// The limit in force.
        limit: usize,
    },
    /// Peer: shorter than a frame can be.
    #[error("a frame of {0} bytes cannot be")]
    TooShort(u32),
    /// Peer: id 0.
    #[error("a frame with the reserved id 0")]
    ReservedId,
    /// Front end: a note that says nothing.
    #[error("a note that cannot be")]
    BadNote,
    /// Medium: the connection ended inside a frame or failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
}

impl FrameHeader {
    /// Writes the header of a frame.
    pub fn encode(id: u64, payload_bytes: usize) -> [u8; FRAME_HEADER_BYTES] {
        let mut out = [0; FRAME_HEADER_BYTES];
        let length = u32::try_from(payload_bytes).expect("messages are bounded") + ID_BYTES;
        out[..4].copy_from_slice(&length.to_le_bytes());
        out[4..].copy_from_slice(&id.to_le_bytes());
        out
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// [`FrameError`] unless the payload is within `limit` and the id is not 0.
    pub fn decode(bytes: [u8; FRAME_HEADER_BYTES], limit: usize) -> Result<FrameHeader, FrameError> {
        match FrameHeader::decode_any(bytes, limit)? {
            FrameHeader { id: 0, .. } => Err(FrameError::ReservedId),
            header => Ok(header),
        }
    }

    /// As [`FrameHeader::decode`], where frames may be notes, which have the id 0.
    fn decode_any(bytes: [u8; FRAME_HEADER_BYTES], limit: usize) -> Result<FrameHeader, FrameError> {
        let mut bytes = &bytes[..];
        let (length, id) = (bytes.get_u32_le(), bytes.get_u64_le());
        let payload_bytes = length.checked_sub(ID_BYTES).ok_or(FrameError::TooShort(length))?;
        let limit = if id == NOTE_ID { limit.min(NOTE_BYTES_MAX) } else { limit };
        if payload_bytes as usize > limit {
            return Err(FrameError::TooLong { found: payload_bytes.into(), limit });
        }
        Ok(FrameHeader { payload_bytes, id })
    }
}

/// Reads the next header; `None` if the peer closed the connection between frames.
pub(crate) async fn read_header<R: AsyncRead + Unpin>(
    stream: &mut R,
    limit: usize,
) -> Result<Option<FrameHeader>, FrameError> {
    read_header_bytes(stream).await?.map(|bytes| FrameHeader::decode(bytes, limit)).transpose()
}

/// As [`read_header`], between front end and back end, where the next frame may be a note.
pub(crate) async fn read_header_or_note<R: AsyncRead + Unpin>(
    stream: &mut R,
    limit: usize,
) -> Result<Option<FrameHeader>, FrameError> {
    read_header_bytes(stream).await?.map(|bytes| FrameHeader::decode_any(bytes, limit)).transpose()
}

async fn read_header_bytes<R: AsyncRead + Unpin>(
    stream: &mut R,
) -> Result<Option<[u8; FRAME_HEADER_BYTES]>, FrameError> {
    let mut bytes = [0; FRAME_HEADER_BYTES];
    let first = stream.read(&mut bytes).await?;
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut bytes[first..]).await?;
    Ok(Some(bytes))
}

/// Reads a payload whose header was accepted.
pub(crate) async fn read_payload<R: AsyncRead + Unpin>(
    stream: &mut R,
    header: FrameHeader,
) -> Result<Bytes, FrameError> {
    let wanted = header.payload_bytes as usize;
    let mut out = BytesMut::with_capacity(wanted.min(STEP_BYTES));
    while out.len() < wanted {
        if out.capacity() == out.len() {
            // Doubling keeps the copying linear; at most twice what has arrived is reserved.
            out.reserve((wanted - out.len()).min(out.len().max(STEP_BYTES)));
        }
        let room = wanted - out.len();
        if stream.read_buf(&mut (&mut out).limit(room)).await? == 0 {
            return Err(FrameError::Io(std::io::ErrorKind::UnexpectedEof.into()));
        }
    }
    Ok(out.freeze())
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testing::noise;
    use proptest::prelude::*;

    fn run<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Proves: a length over the limit, under the minimum, or the reserved id is refused from the header
    /// alone.
    #[test]
    fn bad_headers_are_refused() {
        let limit = 100;
        let header = |length: u32, id: u64| {
            let mut bytes = [0; FRAME_HEADER_BYTES];
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4..].copy_from_slice(&id.to_le_bytes());
            FrameHeader::decode(bytes, limit)
        };
        assert_eq!(header(108, 7).unwrap(), FrameHeader { payload_bytes: 100, id: 7 });
        assert_eq!(header(8, u64::MAX).unwrap(), FrameHeader { payload_bytes: 0, id: u64::MAX });
        assert!(matches!(header(109, 7), Err(FrameError::TooLong { found: 101, limit: 100 })));
        assert!(matches!(header(u32::MAX, 7), Err(FrameError::TooLong { .. })));
        assert!(matches!(header(7, 7), Err(FrameError::TooShort(7))));
        assert!(matches!(header(0, 7), Err(FrameError::TooShort(0))));
        assert!(matches!(header(20, 0), Err(FrameError::ReservedId)));
    }

    /// Proves: a peer that claims a large frame and sends little makes us reserve little.
    #[test]
    fn memory_follows_what_arrives() {
        let header = FrameHeader { payload_bytes: 8 << 20, id: 1 };
        let error = run(read_payload(&mut &[1u8; 1000][..], header)).unwrap_err();
        assert!(matches!(error, FrameError::Io(_)));
    }

    proptest! {
        /// Proves: whatever bytes come, in whatever pieces, reading frames ends without a panic, and frames
        /// that were sent are read unchanged.
        #[test]
        fn frames_round_trip(payloads in prop::collection::vec((any::<u64>(), 0..200_000usize), 0..4)) {
            let payloads: Vec<_> = payloads.into_iter().map(|(seed, length)| noise(seed, length)).collect();
            let mut stream = Vec::new();
            for (index, payload) in payloads.iter().enumerate() {
                stream.extend_from_slice(&FrameHeader::encode(index as u64 + 1, payload.len()));
                stream.extend_from_slice(payload);
            }
            run(async {
                let mut stream = tokio::io::BufReader::with_capacity(777, &stream[..]);
                for (index, payload) in payloads.iter().enumerate() {
                    let header = read_header(&mut stream, 1 << 20).await.unwrap().unwrap();
                    assert_eq!(header.id, index as u64 + 1);
                    assert_eq!(&read_payload(&mut stream, header).await.unwrap()[..], &payload[..]);
                }
                assert!(read_header(&mut stream, 1 << 20).await.unwrap().is_none());
            });
        }

        /// Proves: random bytes never panic the reader nor yield a payload over the limit.
        #[test]
        fn random_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..4096), limit in 0usize..2048) {
            run(async {
                let mut stream = &bytes[..];
                while let Ok(Some(header)) = read_header(&mut stream, limit).await {
                    assert!(header.payload_bytes as usize <= limit);
                    if read_payload(&mut stream, header).await.is_err() {
                        break;
                    }
                }
            });
        }
    }
}
