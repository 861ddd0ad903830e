//! Parcels: many blocks compressed together, against blocks that both sides have.
//!
//! The unit of transfer is still the block; a parcel transfers several. Its payload has for each block its
//! kind, references and body. The payload is one zstd frame whose raw-content **prefix** is the same encoding
//! of the *bases*, so a block that resembles an old one costs only what is new (residual delta). Addresses
//! are not sent: whoever opens a parcel hashes the blocks in it, so a false parcel can only yield other
//! blocks than were requested.
//!
//! A reference to a block earlier in the same payload is sent as its distance: a digest cannot be compressed,
//! but it can be computed. All others are sent together, so that they match the references of an older
//! version in long runs.
//!
//! ```text
//! block    kind u8 | references | distances | body length | distances * (place, distance) | addresses | body
//! ```
//!
//! Numbers without a size are LEB128 of at most five bytes. A place is counted from the one after the last
//! (the first from 0); a distance of 1 is the block just before. Bases have no distances.
//!
//! Attack answered: a parcel made to exhaust memory. Every size is checked before memory is reserved for it,
//! and opening one takes at most [`PARCEL_OPENING_BYTES_MAX`] bytes in addition to the parcel itself.

mod bases;

pub use bases::{Base, BaseError, PARCEL_NODES_MAX, Run};

use crate::block::{BODY_BYTES_MAX, Block, BlockKind, REFERENCES_MAX};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey};
use std::borrow::Borrow;
use std::collections::HashMap;
use zstd::zstd_safe::{self, CCtx, CParameter, DCtx, SafeResult};

/// Most bytes of a payload, and also of the blocks in it (bodies and references).
pub const PARCEL_PLAIN_BYTES_MAX: u32 = 16 << 20;
/// Most bytes of a prefix.
pub const PARCEL_PREFIX_BYTES_MAX: usize = 32 << 20;
/// Most blocks in a parcel.
pub const PARCEL_BLOCKS_MAX: usize = 4096;
/// Most bases of a parcel.
pub const PARCEL_BASES_MAX: usize = 4096;
/// Most memory that opening a parcel takes in addition to the parcel: prefix, payload, blocks, and the decoder.
pub const PARCEL_OPENING_BYTES_MAX: usize =
    PARCEL_PREFIX_BYTES_MAX + 2 * PARCEL_PLAIN_BYTES_MAX as usize + (1 << 20);

/// Least and greatest window, as powers of two. The greatest fits the largest prefix and payload.
const WINDOW_LOG: std::ops::RangeInclusive<u32> = 10..=26;
const _: () = assert!(PARCEL_PREFIX_BYTES_MAX + PARCEL_PLAIN_BYTES_MAX as usize <= 1 << *WINDOW_LOG.end());

/// Several blocks, compressed. Not trusted until [`Parcel::open`].
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Parcel {
    /// The blocks that it may copy from, in this order.
    pub bases: Vec<Base>,
    /// Length of the payload.
    pub plain_bytes: u32,
    /// The payload as one zstd frame.
    pub frame: Vec<u8>,
}

/// The blocks that a parcel copies from: both sides have them, in an order that both know.
///
/// In large prefixes the last bases are searched most thoroughly, so the likeliest belong at the end.
#[derive(Clone, Debug, Default)]
pub struct Prefix {
    bases: Vec<Digest>,
    /// The names of the bases, if they are not named one by one.
    names: Option<Vec<Base>>,
    bytes: Vec<u8>,
}

/// Why a parcel cannot be made or is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParcelError {
    /// Something is over its limit.
    #[error("parcel: {what} {found}, at most {limit}")]
    TooLarge {
        /// The part that is too large.
        what: &'static str,
        /// Its size.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The given bases are not those that the parcel names.
    #[error("parcel: these are not the bases it names")]
    OtherBases,
    /// The parcel has no blocks.
    #[error("parcel: it holds no block")]
    Empty,
    /// The frame is not what it says, or does not fit these bases.
    #[error("parcel: its frame does not decode: {0}")]
    Frame(String),
    /// The payload breaks the format.
    #[error("parcel: {0}")]
    Malformed(&'static str),
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<(), ParcelError> {
    match found <= limit {
        true => Ok(()),
        false => Err(ParcelError::TooLarge { what, found: found as u64, limit: limit as u64 }),
    }
}

/// Most bytes that a block takes in a payload, or in a prefix.
pub fn parcel_bytes(block: &Block) -> usize {
    block.references().len() * 32 + block.body().len() + HEADER_BYTES_MAX
}

/// Bytes of a kind and three numbers that are at most 2^20.
const HEADER_BYTES_MAX: usize = 10;

impl Prefix {
    /// Adds a base; `false` if there is no room for it.
    pub fn push(&mut self, base: &Block) -> bool {
        if self.bases.len() == PARCEL_BASES_MAX
            || self.bytes.len() + parcel_bytes(base) > PARCEL_PREFIX_BYTES_MAX
        {
            return false;
        }
        self.bases.push(base.reference().address);
        self.names = None;
        encode(&mut self.bytes, base, &[]);
        true
    }

    /// The parcel with other names for the same bases in the same order.
    #[must_use]
    pub fn named(self, names: Vec<Base>) -> Prefix {
        Prefix { names: Some(names), ..self }
    }

    /// The names of the bases.
    pub fn names(&self) -> Vec<Base> {
        match &self.names {
            Some(names) => names.clone(),
            None => self.bases.iter().copied().map(Base::Block).collect(),
        }
    }

    /// The bases, and the nodes by which they are named: all that the other side may turn out to lack.
    pub fn mentioned(&self) -> Vec<Digest> {
        let nodes = self.names.iter().flatten().filter_map(|base| match base {
            Base::Under { node, .. } => Some(*node),
            Base::Block(_) => None,
        });
        self.bases.iter().copied().chain(nodes).collect()
    }

    /// The bases, in order.
    pub fn bases(&self) -> &[Digest] {
        &self.bases
    }

    /// The length of the prefix in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there are no bases.
    pub fn is_empty(&self) -> bool {
        self.bases.is_empty()
    }
}

impl Parcel {
    /// Packs blocks; blocks that others refer to should come before those, if the caller can arrange that
    /// cheaply. `level` is zstd's, 1 to 19. Takes about three times the memory of prefix and payload, and at
    /// levels above 9 up to 100 MB more.
    ///
    /// # Errors
    /// [`ParcelError::TooLarge`], [`ParcelError::Empty`].
    pub fn pack(prefix: &Prefix, blocks: &[impl Borrow<Block>], level: i32) -> Result<Parcel, ParcelError> {
        if blocks.is_empty() {
            return Err(ParcelError::Empty);
        }
        within("blocks", blocks.len(), PARCEL_BLOCKS_MAX)?;
        let bytes: usize = blocks.iter().map(|block| parcel_bytes(block.borrow())).sum();
        within("bytes of blocks", bytes, PARCEL_PLAIN_BYTES_MAX as usize)?;
        let mut payload = Vec::with_capacity(bytes);
        let mut places: HashMap<Digest, usize> = HashMap::with_capacity(blocks.len());
        for (place, block) in blocks.iter().enumerate() {
            let block = block.borrow();
            let near: Vec<(usize, usize)> = block
                .references()
                .iter()
                .enumerate()
                .filter_map(|(at, address)| Some((at, place - places.get(address)?)))
                .collect();
            encode(&mut payload, block, &near);
            places.insert(block.reference().address, place);
        }
        let frame = compress(&prefix.bytes, &payload, level).map_err(ParcelError::Frame)?;
        Ok(Parcel { bases: prefix.names(), plain_bytes: payload.len() as u32, frame })
    }

    /// Checks everything that can be checked without the bases, so that a caller need not fetch them for an
    /// invalid parcel.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn check(&self) -> Result<(), ParcelError> {
        Base::check(&self.bases)?;
        within("payload bytes", self.plain_bytes as usize, PARCEL_PLAIN_BYTES_MAX as usize)?;
        if self.plain_bytes == 0 {
            return Err(ParcelError::Empty);
        }
        let bad = |why: &str| Err(ParcelError::Frame(why.to_owned()));
        match zstd_safe::get_frame_content_size(&self.frame) {
            Ok(Some(length)) if length == u64::from(self.plain_bytes) => {}
            Ok(_) => return bad("it is of another length than the parcel says"),
            Err(_) => return bad("it is no frame"),
        }
        match zstd_safe::find_frame_compressed_size(&self.frame) {
            Ok(length) if length == self.frame.len() => Ok(()),
            Ok(_) => bad("something follows it"),
            Err(code) => bad(zstd_safe::get_error_name(code)),
        }
    }

    /// The approximate number of bytes in a message.
    pub fn message_bytes(&self) -> usize {
        self.frame.len() + Base::message_bytes(&self.bases) + 16
    }

    /// Unpacks the blocks. Their addresses are computed from their bytes; the caller compares them with the
    /// ones it requested.
    ///
    /// # Errors
    /// [`ParcelError`]; no memory is reserved for anything over the limits.
    pub fn open(&self, key: &DigestKey, prefix: &Prefix) -> Result<Vec<Block>, ParcelError> {
        self.check()?;
        if self.bases != prefix.names() {
            return Err(ParcelError::OtherBases);
        }
        let payload =
            expand(&prefix.bytes, &self.frame, self.plain_bytes as usize).map_err(ParcelError::Frame)?;
        let mut rest = payload.as_slice();
        let mut blocks: Vec<Block> = Vec::new();
        let mut bytes = 0;
        while !rest.is_empty() {
            within("blocks", blocks.len() + 1, PARCEL_BLOCKS_MAX)?;
            let block = decode(&mut rest, key, &blocks, &mut bytes)?;
            blocks.push(block);
        }
        Ok(blocks)
    }
}

fn encode(out: &mut Vec<u8>, block: &Block, near: &[(usize, usize)]) {
    out.push(block.kind() as u8);
    put(out, block.references().len());
    put(out, near.len());
    put(out, block.body().len());
    let mut next = 0;
    for (place, distance) in near {
        put(out, place - next);
        put(out, *distance);
        next = place + 1;
    }
    let mut near = near.iter().peekable();
    for (at, address) in block.references().iter().enumerate() {
        match near.peek() {
            Some((place, _)) if *place == at => drop(near.next()),
            _ => out.extend_from_slice(&address.0),
        }
    }
    out.extend_from_slice(block.body());
}

fn decode(
    rest: &mut &[u8],
    key: &DigestKey,
    earlier: &[Block],
    bytes: &mut usize,
) -> Result<Block, ParcelError> {
    let kind = match take(rest, 1)?[0] {
        1 => BlockKind::Chunk,
        2 => BlockKind::MapLeaf,
        3 => BlockKind::MapInner,
        4 => BlockKind::Inode,
        5 => BlockKind::Table,
        6 => BlockKind::Membership,
        _ => return Err(ParcelError::Malformed("a block is of an unknown kind")),
    };
    let (count, near_count, length) = (get(rest)?, get(rest)?, get(rest)?);
    within("references of a block", count, REFERENCES_MAX)?;
    within("bytes of a body", length, BODY_BYTES_MAX as usize)?;
    // References that travel as distances are longer here than there.
    *bytes += count * 32 + length;
    within("bytes of blocks", *bytes, PARCEL_PLAIN_BYTES_MAX as usize)?;
    let far_count =
        count.checked_sub(near_count).ok_or(ParcelError::Malformed("more distances than references"))?;
    let mut near = Vec::with_capacity(near_count);
    let mut next = 0;
    for _ in 0..near_count {
        let place = next + get(rest)?;
        let distance = get(rest)?;
        let target = earlier.len().checked_sub(distance).filter(|_| distance > 0);
        let target = target.ok_or(ParcelError::Malformed("a distance leads outside"))?;
        near.push((place, earlier[target].reference().address));
        next = place + 1;
    }
    if next > count {
        return Err(ParcelError::Malformed("a place is outside of the references"));
    }
    let far = take(rest, far_count * 32)?.chunks_exact(32);
    let mut far = far.map(|digest| Digest(digest.try_into().expect("32 bytes")));
    let mut near = near.into_iter().peekable();
    let references = (0..count)
        .map(|at| match near.next_if(|(place, _)| *place == at) {
            Some((_, address)) => address,
            None => far.next().expect("places are within the references and ascend"),
        })
        .collect();
    let body = take(rest, length)?.to_vec();
    Ok(Block::new(key, kind, references, body))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], ParcelError> {
    let (taken, after) =
        rest.split_at_checked(length).ok_or(ParcelError::Malformed("its payload ends too early"))?;
    *rest = after;
    Ok(taken)
}

fn put(out: &mut Vec<u8>, number: usize) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn get(rest: &mut &[u8]) -> Result<usize, ParcelError> {
    let mut number = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let byte = take(rest, 1)?[0];
        if shift == 28 && byte > 0x0f {
            break;
        }
        number |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(number as usize);
        }
    }
    Err(ParcelError::Malformed("a number is too long"))
}

fn named(result: SafeResult) -> Result<usize, String> {
    result.map_err(|code| zstd_safe::get_error_name(code).to_owned())
}

fn compress(prefix: &[u8], payload: &[u8], level: i32) -> Result<Vec<u8>, String> {
    let window = (prefix.len() + payload.len()).next_power_of_two().ilog2();
    let mut context = CCtx::try_create().ok_or("no memory")?;
    let parameters = [
        CParameter::CompressionLevel(level.clamp(1, 19)),
        CParameter::WindowLog(window.clamp(*WINDOW_LOG.start(), *WINDOW_LOG.end())),
        // Long-distance matching finds what the matches of the chunker leave; parameters were chosen by
        // measurement.
        CParameter::EnableLongDistanceMatching(true),
        CParameter::LdmMinMatch(16),
        CParameter::LdmHashRateLog(3),
    ];
    for parameter in parameters {
        named(context.set_parameter(parameter))?;
    }
    named(context.ref_prefix(prefix))?;
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(payload.len()));
    named(context.compress2(&mut frame, payload))?;
    frame.shrink_to_fit();
    Ok(frame)
}

/// Decompresses in one call, so that prefix and output are the only window.
fn expand(prefix: &[u8], frame: &[u8], length: usize) -> Result<Vec<u8>, String> {
    let mut context = DCtx::try_create().ok_or("no memory")?;
    named(context.ref_prefix(prefix))?;
    let mut payload = Vec::with_capacity(length);
    named(context.decompress(&mut payload, frame))?;
    match payload.len() == length {
        true => Ok(payload),
        false => Err("it is of another length than the parcel says".to_owned()),
    }
}

#[cfg(test)]
mod tests;
