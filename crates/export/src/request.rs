//! Carries out a request on the disk, and makes the reply.

use crate::negotiation::{Agreed, REQUEST_BYTES_MAX};
use crate::server::Export;
use crate::wire::{self, CHUNK_HEADER_BYTES, Kind, Request, SIMPLE_HEADER_BYTES, errno};
use holdfast_volume::refused_at;
use parking_lot::Mutex;
use std::io::{self, Write};

/// Most bytes in memory for one request; longer requests are carried out in pieces.
pub const PIECE_BYTES: usize = 2 << 20;
const SECTOR_BYTES: u64 = 512;

/// Why a request failed.
#[derive(Debug)]
pub struct Refusal {
    errno: u32,
    words: String,
    place: Option<u64>,
}

impl Refusal {
    fn new(errno: u32, words: &str) -> Refusal {
        Refusal { errno, words: words.to_owned(), place: None }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        // The error's own text has paths and tags of this machine, which belong into its log only.
        match (refused_at(&error), error.raw_os_error().map(|number| number as u32)) {
            (Some(place), _) => {
                let words = format!("the block at byte {place} is not what was written; it is refused");
                Refusal { errno: errno::EIO, words, place: Some(place) }
            }
            (None, Some(known @ (errno::EPERM | errno::ENOMEM | errno::EINVAL | errno::ENOSPC))) => {
                Refusal::new(known, "the disk failed")
            }
            _ => Refusal::new(errno::EIO, "the disk failed; the log of its server says why"),
        }
    }
}

/// Checks whether a request is allowed, before anything is done.
pub fn check(request: &Request, export: &Export, agreed: &Agreed) -> Result<(), Refusal> {
    let is_change = matches!(request.kind, Kind::Write | Kind::Trim | Kind::WriteZeroes);
    let has_range = is_change || request.kind == Kind::Read;
    let length = u64::from(request.length);
    if request.kind == Kind::Other {
        return Err(Refusal::new(errno::EINVAL, "this request, or one of its flags, is not known"));
    }
    if is_change && export.is_read_only {
        return Err(Refusal::new(errno::EPERM, "the export is read-only"));
    }
    if has_range && request.offset.checked_add(length).is_none_or(|end| end > agreed.size_bytes) {
        let errno = if is_change { errno::ENOSPC } else { errno::EINVAL };
        return Err(Refusal::new(errno, "the range lies beyond the end"));
    }
    if has_range && !(request.offset.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR_BYTES)) {
        return Err(Refusal::new(errno::EINVAL, "the range is not in whole sectors of 512 bytes"));
    }
    if request.kind == Kind::Read && request.length > REQUEST_BYTES_MAX {
        return Err(Refusal::new(errno::EINVAL, "more than 32 MiB at once"));
    }
    Ok(())
}

/// Carries out a request without data from the client, and replies. `buffer` is reused from request to
/// request.
///
/// # Errors
/// The connection failed, or must end.
pub fn answer<W: Write>(
    request: &Request,
    export: &Export,
    agreed: &Agreed,
    replies: &Mutex<W>,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let disk = &*export.disk;
    let done = check(request, export, agreed).and_then(|()| {
        match request.kind {
            Kind::Read if request.length > 0 => return Ok(true),
            Kind::Flush => disk.flush()?,
            Kind::Trim => disk.discard(request.offset, request.length.into())?,
            Kind::WriteZeroes => disk.write_zeroes(request.offset, request.length.into())?,
            _ => {}
        }
        if request.is_durable && !matches!(request.kind, Kind::Flush | Kind::Read) {
            disk.flush()?;
        }
        Ok(false)
    });
    match done {
        Ok(true) => read(request, export, agreed, replies, buffer),
        Ok(false) => finish(request, agreed, Ok(()), replies),
        Err(refusal) => finish(request, agreed, Err(refusal), replies),
    }
}

/// Replies without data.
///
/// # Errors
/// The connection failed.
pub fn finish<W: Write>(
    request: &Request,
    agreed: &Agreed,
    result: Result<(), Refusal>,
    replies: &Mutex<W>,
) -> io::Result<()> {
    let cookie = request.cookie;
    let mut replies = replies.lock();
    match result {
        Err(refusal) if agreed.is_structured => {
            replies.write_all(&wire::failure(cookie, refusal.errno, &refusal.words, refusal.place))
        }
        Err(refusal) => replies.write_all(&wire::simple(refusal.errno, cookie)),
        // A client that negotiated structured replies needs one to a read, even of no bytes.
        Ok(()) if agreed.is_structured => replies.write_all(&wire::nothing(cookie)),
        Ok(()) => replies.write_all(&wire::simple(0, cookie)),
    }
}

fn read<W: Write>(
    request: &Request,
    export: &Export,
    agreed: &Agreed,
    replies: &Mutex<W>,
    buffer: &mut Vec<u8>,
) -> io::Result<()> {
    let (start, end) = (request.offset, request.offset + u64::from(request.length));
    let header_bytes = if agreed.is_structured { CHUNK_HEADER_BYTES } else { SIMPLE_HEADER_BYTES };
    // Pieces of a simple reply have no headers, so no other reply may come between them.
    let mut held = None;
    let mut at = start;
    while at < end {
        let count = (end - at).min(PIECE_BYTES as u64) as usize;
        buffer.resize(buffer.len().max(header_bytes + count), 0);
        let bytes = &mut buffer[..header_bytes + count];
        if let Err(error) = export.disk.read(at, &mut bytes[header_bytes..]) {
            let place = refused_at(&error).unwrap_or(at);
            if held.is_some() {
                // The reply has said already that the read succeeded, so only the connection can end.
                return Err(error);
            }
            let refusal = Refusal { place: Some(place.clamp(start, end - 1)), ..Refusal::from(error) };
            return finish(request, agreed, Err(refusal), replies);
        }
        at += count as u64;
        if agreed.is_structured {
            let header = wire::piece(request.cookie, at - count as u64, count as u32, at == end);
            bytes[..header_bytes].copy_from_slice(&header);
            replies.lock().write_all(bytes)?;
            continue;
        }
        match &mut held {
            None => {
                bytes[..header_bytes].copy_from_slice(&wire::simple(0, request.cookie));
                let mut replies = replies.lock();
                replies.write_all(bytes)?;
                held = Some(replies);
            }
            Some(replies) => replies.write_all(&bytes[header_bytes..])?,
        }
    }
    Ok(())
}
