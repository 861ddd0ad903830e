//! The table of a disk that is adopted with its content. There are no requests yet, so nothing is guarded;
//! and nothing changes its owner, so nothing is erased. Only here owners come from outside: whoever adopts a
//! disk says who owns its files.

use crate::table::Table;
use crate::{BlockRange, Disk, Image, Label, Refused};

/// Consecutive blocks with one owner and ACL.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owned {
    /// The blocks.
    pub range: BlockRange,
    /// Owner and ACL.
    pub label: Label,
}

/// The blocks that store the table of such a disk. `parts` are disjoint, in order, and together all blocks of
/// the disk. `owned` are disjoint and in order; blocks that they do not contain get the owner of their part.
///
/// # Errors
/// [`Refused::BeyondDisk`]: the ranges are not as demanded. [`Refused::NotStorable`],
/// [`Refused::AclTooLong`], [`Refused::Full`], [`Refused::TableTooSmall`].
pub fn adopt(disk: Disk, parts: &[Owned], owned: &[Owned]) -> Result<Vec<Image>, Refused> {
    disk.table().ok_or(Refused::TableTooSmall)?;
    let beyond = Refused::BeyondDisk(disk.blocks);
    let mut extents: Vec<(u64, &Label)> = Vec::with_capacity(parts.len() + 2 * owned.len());
    let mut rest = owned.iter().peekable();
    let mut at = 0;
    for part in parts {
        if part.range.first() != at {
            return Err(beyond);
        }
        let end = part.range.end();
        while let Some(Owned { range, label }) = rest.next_if(|next| next.range.first() < end) {
            if range.first() < at || range.end() > end {
                return Err(beyond);
            }
            if at < range.first() {
                extents.push((at, &part.label));
            }
            extents.push((range.first(), label));
            at = range.end();
        }
        if at < end {
            extents.push((at, &part.label));
        }
        at = end;
    }
    if at != disk.blocks || rest.peek().is_some() {
        return Err(beyond);
    }
    let (_, images) = Table::of(disk, extents.into_iter().map(|(first, label)| (first, label.clone())))?;
    Ok(images)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Policy};
    use holdfast_access::{Access, Acl, Name, Principal};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const BLOCKS: u64 = 20_000;

    fn disk(table_blocks: u64) -> Disk {
        Disk { number: 0, identity: [7; 16], blocks: BLOCKS, table_first: BLOCKS, table_blocks }
    }

    fn label(name: &str) -> Label {
        let owner = Principal::User(Name::new(name).expect("a name"));
        Label { acl: Acl::of(owner.clone(), Access::ReadWrite).expect("storable"), owner }
    }

    fn owned(first: u64, count: u64, name: &str) -> Owned {
        Owned { range: BlockRange::new(first, count).expect("blocks"), label: label(name) }
    }

    fn opened(disk: Disk, images: Vec<Image>) -> Policy {
        let blocks: BTreeMap<u64, Box<Block>> =
            images.into_iter().map(|image| (image.block, image.bytes)).collect();
        let read = |at| blocks.get(&at).cloned().ok_or_else(|| "it was not written".to_owned());
        Policy::open(disk, label("root").owner, read).expect("it is sound")
    }

    fn owner_of(policy: &Policy, block: u64) -> String {
        let range = BlockRange::new(block, 1).expect("a block");
        policy.region_policy(&[range]).expect("one block has one owner").owner.to_string()
    }

    proptest! {
        /// Proves: the table says of every block what a plain array says, however files lie, and can be changed after.
        #[test]
        fn whose_each_block_is(steps in prop::collection::vec((0u64..60, 1u64..9, 0usize..3), 0..900), edge in 1u64..BLOCKS) {
            let names = ["alice", "bob", "carol"];
            let parts = [owned(0, edge, "first"), owned(edge, BLOCKS - edge, "second")];
            let (mut model, mut at, mut files) = (Vec::new(), 0, Vec::new());
            model.extend((0..BLOCKS).map(|block| if block < edge { "user:first" } else { "user:second" }.to_owned()));
            for (gap, count, who) in steps {
                let first = at + gap;
                if first + count > BLOCKS { break }
                at = first + count;
                if first < edge && at > edge { continue }
                for block in first..at { model[block as usize] = format!("user:{}", names[who]) }
                files.push(owned(first, count, names[who]));
            }
            let policy = opened(disk(64), adopt(disk(64), &parts, &files).expect("there is room"));
            for block in 0..BLOCKS {
                prop_assert_eq!(&owner_of(&policy, block), &model[block as usize], "block {}", block);
            }
        }
    }

    /// Proves: ranges that overlap, are out of order, cross an edge of a part, are not on the disk, or leave
    /// blocks without an owner are refused, and so is more than fits into the table.
    #[test]
    fn refused() {
        let whole = [owned(0, BLOCKS, "driver")];
        let beyond = Err(Refused::BeyondDisk(BLOCKS));
        let halves = [owned(0, 100, "a"), owned(100, BLOCKS - 100, "b")];
        let cases: [(&[Owned], &[Owned]); 8] = [
            (&whole, &[owned(5, 10, "x"), owned(14, 2, "y")]),
            (&whole, &[owned(50, 10, "x"), owned(5, 2, "y")]),
            (&halves, &[owned(99, 2, "x")]),
            (&whole, &[owned(BLOCKS - 1, 2, "x")]),
            (&whole, &[owned(BLOCKS, 1, "x")]),
            (&[owned(0, 100, "a")], &[]),
            (&[owned(1, BLOCKS - 1, "a")], &[]),
            (&[], &[]),
        ];
        for (at, (parts, files)) in cases.into_iter().enumerate() {
            assert_eq!(adopt(disk(64), parts, files), beyond, "case {at}");
        }
        let scattered: Vec<Owned> = (0..BLOCKS / 2).map(|at| owned(at * 2, 1, "x")).collect();
        assert_eq!(adopt(disk(8), &whole, &scattered), Err(Refused::Full));
        assert_eq!(adopt(disk(2), &whole, &[]), Err(Refused::TableTooSmall));
        let process = Principal::Process(holdfast_access::ProcessName { boot: [0; 16], number: 1 });
        let transient = Owned { label: Label { owner: process, acl: label("x").acl }, ..owned(3, 1, "x") };
        assert!(matches!(adopt(disk(64), &whole, &[transient]), Err(Refused::NotStorable(_))));
        let exactly = adopt(disk(70), &whole, &scattered).expect("every page full");
        assert_eq!(owner_of(&opened(disk(70), exactly), 7), "user:driver");
    }
}
