//! The packed form of a view in messages: each vector is sent as its difference from the one before, each
//! record of a pending or aborted operation once. A plain view grows with the square of the number of devices
//! (each slot has a vector of all of them) and of pending operations (each entry names those before it). A
//! packed view grows with what changed from one operation to the next.
//!
//! Nothing here is signed: signatures cover the roots of vectors and the lists of records themselves, which
//! the reader reconstructs. So a sender that packs badly only wastes bytes, and a sender that packs falsely
//! sends a false view, like any lying server. A reply has exactly one packed form, and no other is accepted.
//! [`PLAIN_BYTES_MAX`] limits the reader's memory.
//!
//! ```text
//! reply     slots | pending | log head | peaks | consistency | blocks      (lists: u32 count, then items)
//! slot      device | forecast | outcome | handles | signature              in order of log size, then device
//! pending   certificate | forecast | dead
//! forecast  file system | device | vector | records pending | records aborted | voids | ineffective | certificate | log head
//! vector    principals left out (set) | those new or with another number (map), both against the forecast before this one
//! records   runs: 0, record: a new one, which gets the next place; 1, place u32, count u32: those at these places,
//!           as many as follow each other
//! ```
//!
//! A reader that has accepted an earlier view gets a [`Difference`]:
//!
//! ```text
//! difference  devices whose slots are sent, in order of device | digest of all slots | a reply, as above, with these slots
//!             alone; its first vector is against that of the newest slot (log size, then device) that is not sent
//! ```

use crate::message::{MESSAGE_BYTES_MAX, ViewReply};
use crate::signed::Signed;
use crate::structure::{Forecast, PendingEntry, Record, Structure, View};
use crate::vector::VersionVector;
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::{Digest, DigestKey, Domain};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io::{Error, ErrorKind, Read, Result, Write};

/// Most bytes that the vectors and records of one reply may take in memory.
pub const PLAIN_BYTES_MAX: usize = 64 << 20;

/// First byte of a run of records.
const NEW: u8 = 0;
const KNOWN: u8 = 1;

/// Writes a reply.
///
/// # Errors
/// The writer's.
#[allow(clippy::borrowed_box)] // As the derive calls it.
pub(crate) fn serialize<W: Write>(reply: &Box<ViewReply>, writer: &mut W) -> Result<()> {
    write(reply, writer).map(drop)
}

/// Packs a reply; returns the number of bytes that a reader will hold.
fn write<W: Write>(reply: &ViewReply, writer: &mut W) -> Result<MemoryCharge> {
    write_some(reply, |_| true, Packer::default(), writer)
}

/// Writes a reply with the slots of those devices for which `is_sent` says so. Returns what a reader will hold.
fn write_some<W: Write>(
    reply: &ViewReply,
    is_sent: impl Fn(DeviceId) -> bool,
    mut packer: Packer,
    writer: &mut W,
) -> Result<MemoryCharge> {
    let view = &reply.view;
    let mut slots: Vec<_> = view.slots.iter().filter(|(device, _)| is_sent(**device)).collect();
    slots.sort_by_key(|(device, slot)| (slot.value.forecast.log.size, **device));
    count(slots.len(), writer)?;
    for (device, slot) in slots {
        device.serialize(writer)?;
        packer.forecast(&slot.value.forecast, writer)?;
        slot.value.outcome.serialize(writer)?;
        slot.value.handles.serialize(writer)?;
        slot.signature.serialize(writer)?;
    }
    count(view.pending.len(), writer)?;
    for entry in &view.pending {
        entry.certificate.serialize(writer)?;
        packer.forecast(&entry.forecast, writer)?;
        entry.dead.serialize(writer)?;
    }
    (&view.log, &reply.peaks, &reply.consistency, &reply.blocks).serialize(writer)?;
    Ok(packer.plain)
}

/// A view as its changes since one that the reader has accepted. Resolved against that view it gives the
/// whole reply, which is checked like any other.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub struct Difference {
    /// Size of the log head of the view that the reader has.
    pub since: u64,
    /// Size of the log head of the view that this leads to.
    pub until: u64,
    packed: Vec<u8>,
}

impl Difference {
    /// The part of `reply` that a reader lacks who has accepted a view whose log has `since` leaves. The
    /// reader has the same slots as in `reply` for those devices for which `is_known` is true.
    pub fn of(reply: &ViewReply, since: u64, is_known: impl Fn(DeviceId) -> bool) -> Difference {
        let slots = &reply.view.slots;
        let sent: BTreeSet<DeviceId> = slots.keys().copied().filter(|device| !is_known(*device)).collect();
        let packer = Packer { vector: newest_vector(slots, &sent), ..Packer::default() };
        let mut packed = Vec::new();
        let written = (&sent, digest_of(slots))
            .serialize(&mut packed)
            .and_then(|()| write_some(reply, |device| sent.contains(&device), packer, &mut packed));
        written.expect("writing into memory cannot fail");
        Difference { since, until: reply.view.log.size, packed }
    }

    /// The reply, for a reader who has accepted `base`, whose log has `log_size` leaves.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`]: these are no packed reply, it needs more than [`PLAIN_BYTES_MAX`], or it
    /// is a difference from another view. The reader then asks for the whole.
    pub fn resolve(&self, base: &View, log_size: u64) -> Result<Box<ViewReply>> {
        let mut rest = &self.packed[..];
        let (sent, digest): (BTreeSet<DeviceId>, Digest) = BorshDeserialize::deserialize_reader(&mut rest)?;
        let unpacker = Unpacker { vector: newest_vector(&base.slots, &sent), ..Unpacker::default() };
        let mut reply = read(unpacker, &mut rest)?;
        if !rest.is_empty() || !reply.view.slots.keys().eq(&sent) || reply.view.log.size != self.until {
            return Err(invalid("no difference of views"));
        }
        let unchanged = base.slots.iter().filter(|(device, _)| !sent.contains(device));
        reply.view.slots.extend(unchanged.map(|(device, slot)| (*device, slot.clone())));
        match self.since == log_size && digest_of(&reply.view.slots) == digest {
            true => Ok(reply),
            false => Err(invalid("a difference from another view")),
        }
    }

    /// The approximate number of bytes in a message.
    pub fn packed_bytes(&self) -> usize {
        self.packed.len()
    }
}

/// The vector of the newest slot that is not among those sent.
fn newest_vector(slots: &BTreeMap<DeviceId, Signed<Structure>>, sent: &BTreeSet<DeviceId>) -> VersionVector {
    let kept = slots.iter().filter(|(device, _)| !sent.contains(device));
    let newest = kept.max_by_key(|(device, slot)| (slot.value.forecast.log.size, **device));
    newest.map(|(_, slot)| slot.value.forecast.vector.clone()).unwrap_or_default()
}

/// A digest of what is signed in the slots, which identifies a view.
fn digest_of(slots: &BTreeMap<DeviceId, Signed<Structure>>) -> Digest {
    let mut bytes = Vec::with_capacity(slots.len() * 68);
    for (device, slot) in slots {
        bytes.extend(device.0.to_le_bytes());
        bytes.extend(slot.signature.0);
    }
    DigestKey::WELL_KNOWN.digest(Domain::Slots, &bytes)
}

/// An upper bound, in bytes, of the packed size of a reply with these slots and nothing pending; its vectors
/// and records take less than three times as much in memory. Computed without packing, which would compare
/// all vectors.
pub(crate) fn slots_bytes_at_most(slots: &BTreeMap<DeviceId, Signed<Structure>>) -> usize {
    let longest = slots.values().map(|slot| slot.value.forecast.vector.versions().len()).max().unwrap_or(0);
    let slot = |slot: &Signed<Structure>| {
        let Structure { forecast, handles, .. } = &slot.value;
        let ranges = forecast.voids.0.len() + forecast.ineffective.0.len();
        let records = forecast.pending.len() + forecast.aborted.len();
        // For each vector: principals left out (5 bytes each) and those with another number (13), neither
        // more than the longest vector has.
        256 + 18 * longest + 24 * ranges + 56 * records + 96 * handles.len()
    };
    // The log head, and at most 64 peaks and 128 digests of a proof.
    (8 << 10) + slots.values().map(slot).sum::<usize>()
}

/// A reply in packed form, as a server stores it for repeated requests.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize)]
pub(crate) struct Packed(Vec<u8>);

impl Packed {
    /// Packs a reply.
    pub(crate) fn of(reply: &ViewReply) -> Packed {
        let mut bytes = Vec::new();
        write(reply, &mut bytes).expect("writing into memory cannot fail");
        Packed(bytes)
    }

    /// The share of a message, or of its reader's memory, that a reply takes: the larger of the two.
    pub(crate) fn share(reply: &ViewReply) -> f64 {
        let mut bytes = Vec::new();
        let plain = write(reply, &mut bytes).expect("writing into memory cannot fail");
        (bytes.len() as f64 / MESSAGE_BYTES_MAX as f64).max(plain.0 as f64 / PLAIN_BYTES_MAX as f64)
    }

    /// The reply; `None` for bytes that [`Packed::of`] never made.
    pub(crate) fn reply(&self) -> Option<Box<ViewReply>> {
        let mut rest = &self.0[..];
        deserialize(&mut rest).ok().filter(|_| rest.is_empty())
    }
}

/// Reads a reply.
///
/// # Errors
/// From the reader; or [`ErrorKind::InvalidData`]: these bytes are no packed reply, or it needs more than
/// [`PLAIN_BYTES_MAX`].
pub(crate) fn deserialize<R: Read>(reader: &mut R) -> Result<Box<ViewReply>> {
    read(Unpacker::default(), reader)
}

fn read<R: Read>(mut unpacker: Unpacker, reader: &mut R) -> Result<Box<ViewReply>> {
    let mut slots = BTreeMap::new();
    let mut last = None;
    for _ in 0..u32::deserialize_reader(reader)? {
        let device = DeviceId::deserialize_reader(reader)?;
        let forecast = unpacker.forecast(reader)?;
        let (outcome, handles, signature) = BorshDeserialize::deserialize_reader(reader)?;
        let place = Some((forecast.log.size, device));
        if last.replace((forecast.log.size, device)) >= place {
            return Err(invalid("slots that are not in order"));
        }
        let value = Structure { forecast, outcome, handles };
        if slots.insert(device, Signed { value, signature }).is_some() {
            return Err(invalid("two slots of one device"));
        }
    }
    let mut pending = Vec::new();
    for _ in 0..u32::deserialize_reader(reader)? {
        let certificate = BorshDeserialize::deserialize_reader(reader)?;
        let forecast = unpacker.forecast(reader)?;
        let dead = bool::deserialize_reader(reader)?;
        pending.push(PendingEntry { certificate, forecast, dead });
    }
    let (log, peaks, consistency, blocks) = BorshDeserialize::deserialize_reader(reader)?;
    Ok(Box::new(ViewReply { view: View { slots, pending, log }, peaks, consistency, blocks }))
}

/// What the reader knows from the bytes before.
#[derive(Default)]
struct Packer {
    vector: VersionVector,
    places: HashMap<Record, u32>,
    plain: MemoryCharge,
}

impl Packer {
    fn forecast<W: Write>(&mut self, forecast: &Forecast, writer: &mut W) -> Result<()> {
        (forecast.file_system, forecast.device).serialize(writer)?;
        self.vector(&forecast.vector, writer)?;
        self.records(&forecast.pending, writer)?;
        self.records(&forecast.aborted, writer)?;
        (&forecast.voids, &forecast.ineffective, forecast.certificate, forecast.log).serialize(writer)
    }

    fn vector<W: Write>(&mut self, vector: &VersionVector, writer: &mut W) -> Result<()> {
        let before = std::mem::replace(&mut self.vector, vector.clone());
        let (gone, other) = differences(&before, vector);
        if !gone.is_empty() || !other.is_empty() {
            self.plain.charge::<(PrincipalId, u64)>(before.versions().len() + other.len());
        }
        (gone, other).serialize(writer)
    }

    fn records<W: Write>(&mut self, records: &[Record], writer: &mut W) -> Result<()> {
        let mut runs: Vec<(Option<Record>, u32, u32)> = Vec::new();
        for record in records {
            match (self.places.get(record), runs.last_mut()) {
                (Some(&place), last) => {
                    self.plain.charge::<Record>(1);
                    match last {
                        Some((None, first, length)) if *first + *length == place => *length += 1,
                        _ => runs.push((None, place, 1)),
                    }
                }
                (None, _) => {
                    self.plain.charge::<Record>(3);
                    self.places.insert(*record, self.places.len() as u32);
                    runs.push((Some(*record), 0, 0));
                }
            }
        }
        count(runs.len(), writer)?;
        for (new, first, length) in runs {
            match new {
                Some(record) => (NEW, record).serialize(writer)?,
                None => (KNOWN, first, length).serialize(writer)?,
            }
        }
        Ok(())
    }
}

#[derive(Default)]
struct Unpacker {
    vector: VersionVector,
    records: Vec<Record>,
    known: HashSet<Record>,
    plain: MemoryCharge,
}

impl Unpacker {
    fn forecast<R: Read>(&mut self, reader: &mut R) -> Result<Forecast> {
        let (file_system, device) = BorshDeserialize::deserialize_reader(reader)?;
        let vector = self.vector(reader)?;
        let pending = self.records(reader)?;
        let aborted = self.records(reader)?;
        let (voids, ineffective, certificate, log) = BorshDeserialize::deserialize_reader(reader)?;
        Ok(Forecast { file_system, device, vector, pending, aborted, voids, ineffective, certificate, log })
    }

    fn vector<R: Read>(&mut self, reader: &mut R) -> Result<VersionVector> {
        let gone: BTreeSet<PrincipalId> = BorshDeserialize::deserialize_reader(reader)?;
        let other: BTreeMap<PrincipalId, u64> = BorshDeserialize::deserialize_reader(reader)?;
        if !gone.is_empty() || !other.is_empty() {
            self.plain.charge::<(PrincipalId, u64)>(self.vector.versions().len() + other.len());
            self.plain.is_bounded()?;
            let versions = self.vector.versions_mut();
            if gone.iter().any(|principal| versions.remove(principal).is_none()) {
                return Err(invalid("a vector without what it never had"));
            }
            for (principal, number) in other {
                if gone.contains(&principal) || versions.insert(principal, number) == Some(number) {
                    return Err(invalid("a vector told twice"));
                }
            }
        }
        Ok(self.vector.clone())
    }

    fn records<R: Read>(&mut self, reader: &mut R) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        // Where the last run ended, so that a run that continues there is merged with it.
        let mut end = None;
        for _ in 0..u32::deserialize_reader(reader)? {
            match u8::deserialize_reader(reader)? {
                NEW => {
                    self.plain.charge::<Record>(3);
                    self.plain.is_bounded()?;
                    let record = Record::deserialize_reader(reader)?;
                    if !self.known.insert(record) {
                        return Err(invalid("a record told twice"));
                    }
                    end = None;
                    self.records.push(record);
                    records.push(record);
                }
                KNOWN => {
                    let (first, length) = <(u32, u32)>::deserialize_reader(reader)?;
                    let (first, length) = (first as usize, length as usize);
                    if length == 0 || end.replace(first.saturating_add(length)) == Some(first) {
                        return Err(invalid("a run of records in parts"));
                    }
                    let known = self.records.get(first..first.saturating_add(length));
                    let known = known.ok_or_else(|| invalid("records that were not named"))?;
                    self.plain.charge::<Record>(length);
                    self.plain.is_bounded()?;
                    records.extend_from_slice(known);
                }
                _ => return Err(invalid("no such run of records")),
            }
        }
        Ok(records)
    }
}

/// The memory, in bytes, that a reader needs for what was packed.
#[derive(Default)]
struct MemoryCharge(usize);

impl MemoryCharge {
    fn charge<T>(&mut self, items: usize) {
        self.0 = self.0.saturating_add(items.saturating_mul(size_of::<T>()));
    }

    fn is_bounded(&self) -> Result<()> {
        let fits = self.0 <= PLAIN_BYTES_MAX;
        fits.then_some(()).ok_or_else(|| invalid("a view of more than can be held"))
    }
}

/// The principals of `before` that `now` lacks, and those that are new or have another number in `now`.
fn differences(
    before: &VersionVector,
    now: &VersionVector,
) -> (Vec<PrincipalId>, BTreeMap<PrincipalId, u64>) {
    let (mut gone, mut other) = (Vec::new(), BTreeMap::new());
    let mut former = before.versions().iter().peekable();
    for (&principal, &number) in now.versions().iter() {
        while let Some((&left, _)) = former.next_if(|(former, _)| **former < principal) {
            gone.push(left);
        }
        match former.next_if(|(former, _)| **former == principal) {
            Some((_, &as_before)) if as_before == number => {}
            _ => _ = other.insert(principal, number),
        }
    }
    gone.extend(former.map(|(principal, _)| *principal));
    (gone, other)
}

fn count<W: Write>(items: usize, writer: &mut W) -> Result<()> {
    u32::try_from(items).map_err(|_| invalid("more items than can be counted"))?.serialize(writer)
}

fn invalid(why: &str) -> Error {
    Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
