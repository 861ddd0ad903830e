//! NBD on the wire: numbers, requests, replies. Pure. Everything is big-endian.

/// "NBDMAGIC".
pub const HELLO: u64 = 0x4e42_444d_4147_4943;
/// "IHAVEOPT".
pub const OPTION: u64 = 0x4948_4156_454f_5054;
/// The magic number of a reply to an option.
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
/// The magic number of a request.
pub const REQUEST: u32 = 0x2560_9513;
const SIMPLE_REPLY: u32 = 0x6744_6698;
const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// A flag in the handshake of both sides: the protocol is the fixed newstyle one.
pub const FIXED_NEWSTYLE: u16 = 1;
/// A flag of both sides, like [`FIXED_NEWSTYLE`]: 124 zeroes at the end of the handshake are left out.
pub const NO_ZEROES: u16 = 2;

/// Options.
pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
}

/// Replies to options.
pub mod option_reply {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    const ERROR: u32 = 1 << 31;
    pub const UNSUPPORTED: u32 = ERROR | 1;
    pub const INVALID: u32 = ERROR | 3;
    pub const UNKNOWN: u32 = ERROR | 6;
}

/// Kinds of information about an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Flags that say what an export supports.
pub mod can {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const FLUSH: u16 = 1 << 2;
    pub const FUA: u16 = 1 << 3;
    pub const TRIM: u16 = 1 << 5;
    pub const WRITE_ZEROES: u16 = 1 << 6;
    pub const MULTI_CONN: u16 = 1 << 8;
}

/// Error numbers of NBD, which are those of Linux.
pub mod errno {
    pub const EPERM: u32 = 1;
    pub const EIO: u32 = 5;
    pub const ENOMEM: u32 = 12;
    pub const EINVAL: u32 = 22;
    pub const ENOSPC: u32 = 28;
}

/// Bytes of a request without its data.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of the header of a simple reply.
pub const SIMPLE_HEADER_BYTES: usize = 16;
/// Bytes of the header of a piece of a structured reply.
pub const CHUNK_HEADER_BYTES: usize = 28;

/// A flag of a request: it counts as done only when it is durable.
pub const FUA: u16 = 1;
const NO_HOLE: u16 = 2;

/// The kind of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Read bytes.
    Read,
    /// Write bytes.
    Write,
    /// End the connection.
    Disconnect,
    /// Make durable all that was answered.
    Flush,
    /// Discard a range.
    Trim,
    /// Write zeroes.
    WriteZeroes,
    /// An unknown number, or a request with flags that it may not have.
    Other,
}

/// A request. The reply to it has the same `cookie`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// The kind of the request.
    pub kind: Kind,
    /// Whether the data must be durable before the reply.
    pub is_durable: bool,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// Offset of the first byte.
    pub offset: u64,
    /// The number of bytes.
    pub length: u32,
    /// Whether data follows, even if the request is refused.
    pub has_data: bool,
}

impl Request {
    /// Decodes a request. Returns `None` if the bytes are not one; then the beginning of the next request
    /// cannot be found.
    pub fn decode(bytes: &[u8; REQUEST_BYTES]) -> Option<Request> {
        let (magic, rest) = bytes.split_first_chunk().expect("28 bytes");
        let (flags, rest) = rest.split_first_chunk().expect("24 bytes");
        let (number, rest) = rest.split_first_chunk().expect("22 bytes");
        let (cookie, rest) = rest.split_first_chunk().expect("20 bytes");
        let (offset, rest) = rest.split_first_chunk().expect("12 bytes");
        let length = rest.first_chunk().expect("4 bytes");
        if u32::from_be_bytes(*magic) != REQUEST {
            return None;
        }
        let number = u16::from_be_bytes(*number);
        let (kind, allowed) = match number {
            0 => (Kind::Read, FUA),
            1 => (Kind::Write, FUA),
            2 => (Kind::Disconnect, u16::MAX),
            3 => (Kind::Flush, FUA),
            4 => (Kind::Trim, FUA),
            6 => (Kind::WriteZeroes, FUA | NO_HOLE),
            _ => (Kind::Other, 0),
        };
        let flags = u16::from_be_bytes(*flags);
        Some(Request {
            kind: if flags & !allowed == 0 { kind } else { Kind::Other },
            is_durable: flags & FUA != 0,
            cookie: u64::from_be_bytes(*cookie),
            offset: u64::from_be_bytes(*offset),
            length: u32::from_be_bytes(*length),
            has_data: number == 1,
        })
    }
}

/// A simple reply without data, or the header of one with data.
pub fn simple(error: u32, cookie: u64) -> [u8; SIMPLE_HEADER_BYTES] {
    let mut bytes = [0; SIMPLE_HEADER_BYTES];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

fn chunk(kind: u16, is_last: bool, cookie: u64, length: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.extend_from_slice(&STRUCTURED_REPLY.to_be_bytes());
    bytes.extend_from_slice(&u16::from(is_last).to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

/// A structured reply that only says that the request succeeded.
pub fn nothing(cookie: u64) -> Vec<u8> {
    chunk(0, true, cookie, 0)
}

/// The header of a piece of data that was read.
pub fn piece(cookie: u64, offset: u64, length: u32, is_last: bool) -> [u8; CHUNK_HEADER_BYTES] {
    let mut bytes = chunk(1, is_last, cookie, length + 8);
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.try_into().expect("20 and 8 bytes")
}

/// A structured error, which ends a reply, with a text (at most 4096 bytes) and the offset of the failure, if
/// there is one.
pub fn failure(cookie: u64, error: u32, words: &str, place: Option<u64>) -> Vec<u8> {
    let (kind, more) = if place.is_some() { (2, 8) } else { (1, 0) };
    let mut bytes = chunk((1 << 15) | kind, true, cookie, 6 + words.len() as u32 + more);
    bytes.extend_from_slice(&error.to_be_bytes());
    bytes.extend_from_slice(&(words.len() as u16).to_be_bytes());
    bytes.extend_from_slice(words.as_bytes());
    if let Some(place) = place {
        bytes.extend_from_slice(&place.to_be_bytes());
    }
    bytes
}
