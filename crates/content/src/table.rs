//! I-tables and their i-handles (SUNDR 3.3.1, figure 2).
//!
//! A device's table has its inodes. A user's or group's table maps i-numbers to files of devices, so that one
//! device can write a shared file again and again without changing the shared table. The i-handle is the
//! address of the table block: owner, root of the table, and its short list of changes.
//!
//! Keys are i-numbers, u64 big-endian. A *range* of pre-allocated i-numbers (SUNDR 3.4.1) is one entry with
//! key `0xff` and its first i-number. So ranges sort after all single entries, and one floor look-up finds
//! the range that may cover a number; a single entry takes precedence.

use crate::codec::{FORMAT, Reader, Writer};
use crate::error::{ContentError, Malformed, within};
use crate::live::misuse;
use crate::{
    Block, BlockKind, BlockSink, BlockSource, Change, DeviceId, Inode, Listing, LiveMap, Lookup,
    OperationStatuses, PrincipalId, REFERENCES_PER_VALUE_MAX, Reference, Tag, VALUE_BYTES_MAX, Value,
};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_crypto::{Digest, DigestKey};
use std::ops::Bound;

/// Longest encoded inode, in bytes, that is stored in a table itself.
pub const INLINE_INODE_BYTES_MAX: usize = 512;
/// Highest i-number.
pub const NUMBER_MAX: u64 = (1 << 40) - 1;
/// Most i-numbers in one range.
pub const RANGE_COUNT_MAX: u32 = 1 << 16;

const _: () = assert!(INLINE_INODE_BYTES_MAX < VALUE_BYTES_MAX);

/// First byte of the key of a range.
const RANGE_PREFIX: u8 = 0xff;

/// An i-handle block: whose table, and the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// The principal that owns the table.
    pub owner: PrincipalId,
    /// The table.
    pub map: LiveMap,
}

/// How a table stores an inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum InodeSlot {
    /// An inode stored in the table itself.
    Inline(Inode),
    /// As a block of its own.
    Block(Reference),
}

/// What a user's or group's i-number maps to: `count` i-numbers of a device, from `first` on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Target {
    /// The device.
    pub device: DeviceId,
    /// The (first) i-number there.
    pub first: u64,
    /// Number of i-numbers: 1, or more for a pre-allocated range.
    pub count: u32,
}

impl Target {
    /// The target of one file.
    pub fn one(device: DeviceId, number: u64) -> Target {
        Target { device, first: number, count: 1 }
    }

    fn check(&self) -> Result<(), Malformed> {
        within("length of a range", self.count.into(), 1, RANGE_COUNT_MAX.into())?;
        within("i-number", self.first, 1, NUMBER_MAX - u64::from(self.count) + 1)
    }

    /// The encoded value: 1 and the target; or 0 for `None`, which hides a range below.
    fn to_value(target: Option<&Target>) -> Value {
        Value::plain(holdfast_crypto::encode(&target))
    }

    fn from_value(value: &Value) -> Result<Option<Target>, ContentError> {
        let read = || {
            if !value.references.is_empty() {
                return Err(Malformed::ReferenceUnused(value.references.len()));
            }
            let target: Option<Target> =
                holdfast_crypto::decode(&value.bytes).map_err(|error| Malformed::Rule(error.why))?;
            target.as_ref().map_or(Ok(()), Target::check)?;
            Ok(target)
        };
        read().map_err(|why| why.at("target", None))
    }
}

impl InodeSlot {
    /// The value of an inode, which is stored in the table if it is small, else as a block of its own.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn value_of(sink: &mut dyn BlockSink, inode: &Inode) -> Result<Value, ContentError> {
        let encoded = inode.encode_whole()?;
        if encoded.bytes.len() <= INLINE_INODE_BYTES_MAX
            && encoded.references.len() <= REFERENCES_PER_VALUE_MAX
        {
            let bytes = [&[0][..], &encoded.bytes].concat();
            return Ok(Value { bytes, references: encoded.references });
        }
        let block = Block::new(&sink.digest_key(), BlockKind::Inode, encoded.addresses(), encoded.bytes);
        Ok(Value { bytes: vec![1], references: vec![sink.put(block)] })
    }

    /// Decodes a table's value.
    ///
    /// # Errors
    /// [`ContentError::Malformed`].
    pub fn from_value(value: &Value) -> Result<InodeSlot, ContentError> {
        match (value.bytes.split_first(), &value.references[..]) {
            (Some((0, body)), references) => {
                let addresses: Vec<Digest> = references.iter().map(|reference| reference.address).collect();
                let inode = Inode::decode(body, &addresses)?;
                // The body repeats algorithm and length of each reference, which must agree.
                if inode.encode_whole()?.references != references || body.len() > INLINE_INODE_BYTES_MAX {
                    let why = "an inline inode disagrees with its own references or is too long";
                    return Err(Malformed::Rule(why.into()).at("inode slot", None));
                }
                Ok(InodeSlot::Inline(inode))
            }
            (Some((1, [])), [reference]) => Ok(InodeSlot::Block(*reference)),
            _ => {
                Err(Malformed::Rule("neither an inode nor a reference to one".into()).at("inode slot", None))
            }
        }
    }

    /// The inode, fetched if it has a block of its own.
    ///
    /// # Errors
    /// [`ContentError`]: the block could not be fetched or is malformed.
    pub fn into_inode(self, source: &dyn BlockSource) -> Result<Inode, ContentError> {
        match self {
            InodeSlot::Inline(inode) => Ok(inode),
            InodeSlot::Block(reference) => Inode::load(source, &reference),
        }
    }

    /// The i-hash, without fetching anything.
    ///
    /// # Errors
    /// [`ContentError::Misuse`] if the inode breaks a rule.
    pub fn ihash(&self, key: &DigestKey) -> Result<Digest, ContentError> {
        match self {
            InodeSlot::Inline(inode) => inode.ihash(key),
            InodeSlot::Block(reference) => Ok(reference.address),
        }
    }
}

/// The key of a single i-number.
pub fn number_key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// The i-number of a single entry's key.
pub fn key_number(key: &[u8]) -> Option<u64> {
    key.try_into().ok().map(u64::from_be_bytes).filter(|number| (1..=NUMBER_MAX).contains(number))
}

fn range_key(first: u64) -> Vec<u8> {
    [&[RANGE_PREFIX][..], &first.to_be_bytes()].concat()
}

/// The change that maps `number` (and, for a range, the numbers after it) to `target`. `None` hides whatever
/// `number` maps to, also a range; [`Table::remove`] drops the entry where possible.
///
/// # Errors
/// [`ContentError::Misuse`]: a number or count out of range.
pub fn target_change(number: u64, target: Option<&Target>, tag: Option<Tag>) -> Result<Change, ContentError> {
    let count = target.map_or(1, |target| target.count);
    misuse(target.map_or(Ok(()), Target::check))?;
    misuse(within("i-number", number, 1, NUMBER_MAX - u64::from(count) + 1))?;
    let key = if count > 1 { range_key(number) } else { number_key(number) };
    Ok(Change { key, value: Some(Target::to_value(target)), tag })
}

/// The change that puts `inode` at `number` of a device's table; `None` removes it.
///
/// # Errors
/// [`ContentError::Misuse`]: the number is out of range or the inode breaks a rule.
pub fn inode_change(
    sink: &mut dyn BlockSink,
    number: u64,
    inode: Option<&Inode>,
    tag: Option<Tag>,
) -> Result<Change, ContentError> {
    misuse(within("i-number", number, 1, NUMBER_MAX))?;
    let value = inode.map(|inode| InodeSlot::value_of(sink, inode)).transpose()?;
    Ok(Change { key: number_key(number), value, tag })
}

impl Table {
    /// An empty table.
    pub fn new(owner: PrincipalId) -> Table {
        Table { owner, map: LiveMap::EMPTY }
    }

    /// The slot of `number` in a device's table.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn slot(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        number: u64,
    ) -> Result<Lookup<InodeSlot>, ContentError> {
        self.map.get(source, statuses, &number_key(number))?.try_map(|value| InodeSlot::from_value(&value))
    }

    /// The inode of `number` in a device's table.
    ///
    /// # Errors
    /// [`ContentError`]: a node or inode could not be fetched or is malformed.
    pub fn inode(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        number: u64,
    ) -> Result<Lookup<Inode>, ContentError> {
        self.slot(source, statuses, number)?.try_map(|slot| slot.into_inode(source))
    }

    /// At most `limit` slots of a device's table, from `first` on.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn slots(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        first: u64,
        limit: usize,
    ) -> Result<Listing<InodeSlot>, ContentError> {
        let listing = self.map.range(source, statuses, Bound::Included(&number_key(first)), limit)?;
        let Listing { entries, unsettled, complete } = listing;
        let entries = entries
            .into_iter()
            .map(|(key, value)| Ok((key, InodeSlot::from_value(&value)?)))
            .collect::<Result<_, ContentError>>()?;
        Ok(Listing { entries, unsettled, complete })
    }

    /// At most `limit` entries of a user's or group's table after the key `after`, single entries first: each
    /// with its key, its (first) i-number and its target. Hidden numbers of a range are left out.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn targets(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Listing<(u64, Target)>, ContentError> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let Listing { entries, unsettled, complete } = self.map.range(source, statuses, from, limit)?;
        let mut targets = Vec::new();
        for (key, value) in entries {
            let number = range_first(&key).or_else(|| key_number(&key));
            let number =
                number.ok_or_else(|| Malformed::Rule("its key is no i-number".into()).at("target", None))?;
            if let Some(target) = Target::from_value(&value)? {
                targets.push((key, (number, target)));
            }
        }
        Ok(Listing { entries: targets, unsettled, complete })
    }

    /// The target of `number` in a user's or group's table: always one file.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn target(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        number: u64,
    ) -> Result<Lookup<Target>, ContentError> {
        let single = self.map.get(source, statuses, &number_key(number))?;
        if let Some(value) = &single.value {
            let target = Target::from_value(value)?;
            if target.is_some_and(|target| target.count != 1) {
                return Err(
                    Malformed::Rule("a range under the key of a single entry".into()).at("target", None)
                );
            }
            return Ok(Lookup { value: target, unsettled: single.unsettled });
        }
        let range = self.covering_range(source, statuses, number)?;
        Ok(Lookup { value: range.value, unsettled: single.unsettled.or(range.unsettled) })
    }

    fn covering_range(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        number: u64,
    ) -> Result<Lookup<Target>, ContentError> {
        let entry = self.map.floor(source, statuses, Bound::Included(&range_key(number)))?.0;
        let malformed = |why: &str| Malformed::Rule(why.into()).at("target", None);
        let mut value = None;
        if let Some((key, entry)) = entry.filter(|(key, _)| key[0] == RANGE_PREFIX) {
            let first = range_first(&key).ok_or_else(|| malformed("its key is no range"))?;
            let target = Target::from_value(&entry)?.filter(|target| target.count > 1);
            let target = target.ok_or_else(|| malformed("a single entry under the key of a range"))?;
            // The floor is at most the number, and the target was checked to end within the i-numbers.
            let distance = number - first;
            value =
                (distance < target.count.into()).then(|| Target::one(target.device, target.first + distance));
        }
        // Of the pending changes only those matter whose range covers this number, or would cover it.
        let mut unsettled = None;
        for change in self.map.changes.iter().rev() {
            let (Some(tag), Some(first)) = (change.tag, range_first(&change.key)) else { continue };
            if first > number || statuses.status(&tag) != crate::OperationStatus::Pending {
                continue;
            }
            let count = match &change.value {
                Some(value) => Target::from_value(value)?.map_or(1, |target| target.count),
                None => RANGE_COUNT_MAX,
            };
            if number - first < count.into() {
                unsettled = Some(tag);
                break;
            }
        }
        Ok(Lookup { value, unsettled })
    }

    /// The change that removes `number` from a user's or group's table: drops the entry, or hides it if a
    /// range would otherwise reappear.
    ///
    /// # Errors
    /// [`ContentError`]: a node could not be fetched or is malformed.
    pub fn remove(
        &self,
        source: &dyn BlockSource,
        statuses: &dyn OperationStatuses,
        number: u64,
        tag: Option<Tag>,
    ) -> Result<Change, ContentError> {
        let range = self.covering_range(source, statuses, number)?;
        if range.value.is_some() || range.unsettled.is_some() {
            return target_change(number, None, tag);
        }
        misuse(within("i-number", number, 1, NUMBER_MAX))?;
        Ok(Change { key: number_key(number), value: None, tag })
    }

    /// Fetches a table.
    ///
    /// # Errors
    /// [`ContentError`]: the block could not be fetched or is malformed.
    pub fn load(source: &dyn BlockSource, reference: &Reference) -> Result<Table, ContentError> {
        let block = source.fetch(reference, BlockKind::Table)?;
        Table::from_block(&block)
    }

    /// Decodes a table's block.
    ///
    /// # Errors
    /// [`ContentError::Malformed`].
    pub fn from_block(block: &Block) -> Result<Table, ContentError> {
        let mut reader = Reader::new(block.body(), block.references());
        let mut read = || {
            reader.format()?;
            let owner: PrincipalId = reader.borsh()?;
            if owner == PrincipalId::Members {
                return Err(Malformed::Rule("members have no i-table".into()));
            }
            let map = LiveMap::read(&mut reader)?;
            reader.clone().finish()?;
            Ok(Table { owner, map })
        };
        read().map_err(|why| why.at("i-table", Some(block.reference().address)))
    }

    /// The table as a block.
    ///
    /// # Errors
    /// [`ContentError::Misuse`]: too many or too large changes; compact first.
    pub fn to_block(&self, key: &DigestKey) -> Result<Block, ContentError> {
        misuse(self.map.check())?;
        let mut writer = Writer::default();
        writer.u8(FORMAT);
        writer.borsh(&self.owner);
        self.map.write(&mut writer);
        misuse(within("references", writer.references.len() as u64, 0, crate::REFERENCES_MAX as u64))?;
        misuse(within("bytes of a table", writer.bytes.len() as u64, 0, crate::BODY_BYTES_MAX.into()))?;
        Ok(Block::new(key, BlockKind::Table, writer.addresses(), writer.bytes))
    }

    /// Stores the table as a block, which is the i-handle.
    ///
    /// # Errors
    /// [`ContentError::Misuse`]: too many or too large changes; compact first.
    pub fn store(&self, sink: &mut dyn BlockSink) -> Result<Reference, ContentError> {
        let block = self.to_block(&sink.digest_key())?;
        Ok(sink.put(block))
    }
}

/// The first i-number of a range, by its key.
fn range_first(key: &[u8]) -> Option<u64> {
    match key {
        [RANGE_PREFIX, first @ ..] => key_number(first),
        _ => None,
    }
}
