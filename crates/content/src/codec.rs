//! Reading and writing bodies: little-endian, lengths first, references numbered through the block header.
//!
//! The n-th reference written into a body has the n-th address of the header; the body contains only its
//! algorithm, length and key. A reader must use up both, so one value has one encoding.

use crate::error::Malformed;
use crate::{Algorithm, BODY_BYTES_MAX, Reference};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::Digest;

/// The format number every body but a chunk's begins with.
pub(crate) const FORMAT: u8 = 1;

/// A body and the header's addresses in the making.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) references: Vec<Reference>,
    addresses: Vec<Digest>,
}

impl Writer {
    /// The header's addresses.
    pub(crate) fn addresses(&self) -> Vec<Digest> {
        self.addresses.clone()
    }

    /// Body and header's addresses.
    pub(crate) fn into_parts(self) -> (Vec<u8>, Vec<Digest>) {
        (self.bytes, self.addresses)
    }

    /// Bytes of a checked body as they are, with the addresses that they use. Only for what needs no whole
    /// references afterwards.
    pub(crate) fn copy(&mut self, bytes: &[u8], addresses: &[Digest]) {
        self.bytes.extend_from_slice(bytes);
        self.addresses.extend_from_slice(addresses);
    }

    pub(crate) fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Bytes behind a 16-bit length; callers have checked the length.
    pub(crate) fn bytes16(&mut self, bytes: &[u8]) {
        self.u16(u16::try_from(bytes.len()).expect("a checked length fits 16 bits"));
        self.bytes.extend_from_slice(bytes);
    }

    /// Bytes behind a 32-bit length.
    pub(crate) fn bytes32(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).expect("a checked length fits 32 bits"));
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn borsh<T: BorshSerialize>(&mut self, value: &T) {
        self.bytes.extend_from_slice(&holdfast_crypto::encode(value));
    }

    pub(crate) fn reference(&mut self, reference: &Reference) {
        self.references.push(*reference);
        self.addresses.push(reference.address);
        self.u8(reference.algorithm as u8);
        self.u32(reference.length);
        match &reference.key {
            None => self.u8(0),
            Some(key) => {
                self.u8(1);
                self.bytes.extend_from_slice(key);
            }
        }
    }
}

/// An untrusted body with the addresses of its header.
#[derive(Clone)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    references: &'a [Digest],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], references: &'a [Digest]) -> Self {
        Reader { bytes, references }
    }

    /// Bytes not yet read.
    pub(crate) fn bytes_left(&self) -> usize {
        self.bytes.len()
    }

    /// Addresses not yet used.
    pub(crate) fn references_left(&self) -> usize {
        self.references.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.bytes.split_at_checked(length).ok_or(Malformed::Truncated)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("took N bytes"))
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes16(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.take(length.into())
    }

    pub(crate) fn bytes32(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    /// 0 or 1.
    pub(crate) fn flag(&mut self, what: &'static str) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            found => Err(Malformed::UnknownVariant { what, found: found.into() }),
        }
    }

    pub(crate) fn borsh<T: BorshDeserialize>(&mut self) -> Result<T, Malformed> {
        T::deserialize(&mut self.bytes).map_err(|error| Malformed::Rule(error.to_string()))
    }

    pub(crate) fn format(&mut self) -> Result<(), Malformed> {
        match self.u8()? {
            FORMAT => Ok(()),
            found => Err(Malformed::UnknownFormat { found, known: FORMAT }),
        }
    }

    pub(crate) fn reference(&mut self) -> Result<Reference, Malformed> {
        let (address, rest) = self.references.split_first().ok_or(Malformed::ReferenceMissing)?;
        self.references = rest;
        let algorithm = match self.u8()? {
            1 => Algorithm::Blake3,
            found => {
                return Err(Malformed::UnknownVariant { what: "digest algorithm", found: found.into() });
            }
        };
        let length = self.u32()?;
        crate::error::within("length of a referenced block", length.into(), 0, BODY_BYTES_MAX.into())?;
        // A sealed body read as a plain one would be nonsense that passes its digest.
        if self.flag("seal flag")? {
            return Err(Malformed::Sealed);
        }
        Ok(Reference { algorithm, address: *address, length, key: None })
    }

    /// Demands that everything was used.
    pub(crate) fn finish(self) -> Result<(), Malformed> {
        if !self.bytes.is_empty() {
            return Err(Malformed::TrailingBytes(self.bytes.len()));
        }
        if !self.references.is_empty() {
            return Err(Malformed::ReferenceUnused(self.references.len()));
        }
        Ok(())
    }
}
