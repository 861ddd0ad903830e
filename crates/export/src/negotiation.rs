//! The handshake: what the client wants to know about the export, and which kind of replies it will get.

use crate::server::Export;
use crate::wire::{self, can, info, option, option_reply};
use std::io::{self, Read, Write};

/// Most options that a client may send before it decides.
const OPTIONS_MAX: u32 = 64;
/// Longest data of an option, in bytes: a name of 4096 bytes with its other fields.
const OPTION_BYTES_MAX: u32 = 16 << 10;
/// The alignment of requests and their best size, in bytes; the longest is [`REQUEST_BYTES_MAX`].
const SECTOR_BYTES: u32 = 512;
const PREFERRED_BYTES: u32 = 4096;
/// Longest read or write, in bytes.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// The outcome of the negotiation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Whether replies to reads are structured: in pieces, with errors that have a position.
    pub is_structured: bool,
    /// The size that was given to the client.
    pub size_bytes: u64,
}

/// What happens after an option.
enum OptionOutcome {
    Option,
    Serve,
    Leave,
}

/// Shakes hands. Returns `None` if the client disconnects.
///
/// # Errors
/// The connection failed, or the client does not speak the protocol.
pub fn negotiate<S: Read + Write>(stream: &mut S, export: &Export) -> io::Result<Option<Agreed>> {
    let mut hello = Vec::with_capacity(18);
    hello.extend_from_slice(&wire::HELLO.to_be_bytes());
    hello.extend_from_slice(&wire::OPTION.to_be_bytes());
    hello.extend_from_slice(&(wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
    stream.write_all(&hello)?;
    let flags = read_u32(stream)?;
    if flags & !u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES) != 0 {
        return Err(nonsense("flags that are not known"));
    }
    let mut negotiation = Negotiation {
        stream,
        export,
        has_zeroes: flags & u32::from(wire::NO_ZEROES) == 0,
        agreed: Agreed { is_structured: false, size_bytes: export.disk.size_bytes() },
    };
    for _ in 0..OPTIONS_MAX {
        match negotiation.option()? {
            OptionOutcome::Option => {}
            OptionOutcome::Serve => return Ok(Some(negotiation.agreed)),
            OptionOutcome::Leave => return Ok(None),
        }
    }
    Err(nonsense("more options than anybody needs"))
}

struct Negotiation<'a, S> {
    stream: &'a mut S,
    export: &'a Export,
    has_zeroes: bool,
    agreed: Agreed,
}

impl<S: Read + Write> Negotiation<'_, S> {
    fn option(&mut self) -> io::Result<OptionOutcome> {
        let mut magic = [0; 8];
        self.stream.read_exact(&mut magic)?;
        if u64::from_be_bytes(magic) != wire::OPTION {
            return Err(nonsense("no option"));
        }
        let option = read_u32(self.stream)?;
        let length = read_u32(self.stream)?;
        if length > OPTION_BYTES_MAX {
            return Err(nonsense("an option that is too long"));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        match option {
            option::EXPORT_NAME => return self.export_name(&data),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[])?;
                return Ok(OptionOutcome::Leave);
            }
            option::LIST if data.is_empty() => {
                let name = self.export.name.as_bytes();
                let entry = [&(name.len() as u32).to_be_bytes(), name].concat();
                self.reply(option, option_reply::SERVER, &entry)?;
                self.reply(option, option_reply::ACK, &[])?;
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.agreed.is_structured = true;
                self.reply(option, option_reply::ACK, &[])?;
            }
            option::INFO | option::GO => return self.info(option, &data),
            option::LIST | option::STRUCTURED_REPLY => {
                self.reply(option, option_reply::INVALID, b"this option has no data")?;
            }
            _ => self.reply(option, option_reply::UNSUPPORTED, &[])?,
        }
        Ok(OptionOutcome::Option)
    }

    /// The oldest option to begin with; it has no reply for a refusal.
    fn export_name(&mut self, name: &[u8]) -> io::Result<OptionOutcome> {
        if !self.export.is_called(name) {
            return Err(nonsense("an export that is not here"));
        }
        let mut reply = Vec::with_capacity(134);
        reply.extend_from_slice(&self.agreed.size_bytes.to_be_bytes());
        reply.extend_from_slice(&self.can().to_be_bytes());
        if self.has_zeroes {
            reply.resize(reply.len() + 124, 0);
        }
        self.stream.write_all(&reply)?;
        Ok(OptionOutcome::Serve)
    }

    fn info(&mut self, option: u32, data: &[u8]) -> io::Result<OptionOutcome> {
        let Some((name, wanted)) = parse_info(data) else {
            self.reply(option, option_reply::INVALID, b"lengths that do not fit")?;
            return Ok(OptionOutcome::Option);
        };
        if !self.export.is_called(name) {
            let words = format!("there is no such export; this one is called {:?}", self.export.name);
            self.reply(option, option_reply::UNKNOWN, words.as_bytes())?;
            return Ok(OptionOutcome::Option);
        }
        let kind = |kind: u16| kind.to_be_bytes();
        let size = self.agreed.size_bytes.to_be_bytes();
        let can = self.can().to_be_bytes();
        self.reply(option, option_reply::INFO, &[&kind(info::EXPORT)[..], &size, &can].concat())?;
        let sizes = [SECTOR_BYTES, PREFERRED_BYTES, REQUEST_BYTES_MAX].map(u32::to_be_bytes);
        let sizes = [&kind(info::BLOCK_SIZE)[..], sizes.as_flattened()].concat();
        self.reply(option, option_reply::INFO, &sizes)?;
        for (number, text) in [(info::NAME, &self.export.name), (info::DESCRIPTION, &self.export.description)]
        {
            if wanted.iter().any(|wanted| u16::from_be_bytes(*wanted) == number) {
                self.reply(option, option_reply::INFO, &[&kind(number)[..], text.as_bytes()].concat())?;
            }
        }
        self.reply(option, option_reply::ACK, &[])?;
        Ok(if option == option::GO { OptionOutcome::Serve } else { OptionOutcome::Option })
    }

    fn can(&self) -> u16 {
        let all = can::HAS_FLAGS | can::FLUSH | can::FUA | can::MULTI_CONN;
        match self.export.is_read_only {
            true => all | can::READ_ONLY,
            false => all | can::TRIM | can::WRITE_ZEROES,
        }
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(20 + data.len());
        bytes.extend_from_slice(&wire::OPTION_REPLY.to_be_bytes());
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&kind.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes)
    }
}

/// Parses an export's name, and the numbers of the requested information.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[[u8; 2]])> {
    let (length, rest) = data.split_first_chunk()?;
    let (name, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
    let (count, rest) = rest.split_first_chunk()?;
    let (wanted, odd) = rest.as_chunks();
    (odd.is_empty() && wanted.len() == usize::from(u16::from_be_bytes(*count))).then_some((name, wanted))
}

fn read_u32(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn nonsense(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the client sent {what}"))
}
