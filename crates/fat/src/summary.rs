//! Data written for other implementations: the summary in FSInfo, the marks of an unmounted file system, the
//! label in the boot sector. None of it is ever trusted.

use crate::Result;
use crate::draft::{Draft, Effect};
use crate::layout::BlockId;
use crate::space::Space;

const LEAD: u32 = 0x4161_5252;
const STRUCTURE: u32 = 0x6141_7272;
const TRAIL: u32 = 0xaa55_0000;
pub(crate) const UNKNOWN: u32 = 0xffff_ffff;
/// The bit of the table's second entry that is set while the file system is not in use.
const CLEAN: u32 = 1 << 27;
/// The byte of the boot sector in which Linux keeps a mark, and the mark.
const STATE: usize = 65;
const IN_USE: u8 = 1;
pub(crate) const LABEL: std::ops::Range<usize> = 71..82;

/// The number of free clusters and the hint in FSInfo, if the sector is valid.
pub(crate) fn read(draft: &Draft) -> Result<Option<(u32, u32)>> {
    let Some(sector) = draft.layout.info_sector else { return Ok(None) };
    let (block, at) = sector_place(draft, sector);
    draft.look(block, |bytes| {
        let word = |offset: usize| {
            u32::from_le_bytes(bytes[at + offset..at + offset + 4].try_into().expect("four bytes"))
        };
        (word(0) == LEAD && word(484) == STRUCTURE && word(508) == TRAIL).then(|| (word(488), word(492)))
    })
}

/// The bytes of an FSInfo sector.
pub(crate) fn info_sector(sector_bytes: usize, free: u32, hint: u32) -> Vec<u8> {
    let mut bytes = vec![0; sector_bytes];
    for (at, word) in [(0, LEAD), (484, STRUCTURE), (488, free), (492, hint), (508, TRAIL)] {
        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// The position of a reserved sector. It may share its block with others, or be longer than one block.
pub(crate) fn sector_place(draft: &Draft, sector: u32) -> (BlockId, usize) {
    draft.layout.metadata_block(u64::from(sector) * u64::from(draft.layout.sector_bytes))
}

/// Brings FSInfo up to date with what a draft uses and frees.
pub(crate) fn update(draft: &mut Draft, space: &Space) -> Result<()> {
    let (mut used, mut freed, mut hint) = (0u64, 0u64, None);
    for effect in &draft.effects {
        match effect {
            Effect::Used(run) => {
                used += u64::from(run.count);
                hint = Some(run.start + run.count - 1);
            }
            Effect::Freed(run) => freed += u64::from(run.count),
            _ => {}
        }
    }
    if used == 0 && freed == 0 {
        return Ok(());
    }
    let Some((stated, _)) = read(draft)? else { return Ok(()) };
    let stated = (stated <= draft.layout.clusters).then_some(u64::from(stated));
    let free = match space.free_known().or(stated) {
        Some(before) => (before + freed).saturating_sub(used).min(u64::from(draft.layout.clusters)) as u32,
        None => UNKNOWN,
    };
    let sector = draft.layout.info_sector.expect("it was just read");
    let (block, at) = sector_place(draft, sector);
    let bytes = draft.edit(block)?;
    bytes[at + 488..at + 492].copy_from_slice(&free.to_le_bytes());
    if let Some(hint) = hint {
        bytes[at + 492..at + 496].copy_from_slice(&hint.to_le_bytes());
    }
    Ok(())
}

/// Whether the last user of the file system unmounted it.
pub(crate) fn is_clean(draft: &Draft) -> Result<bool> {
    let (block, at) = sector_place(draft, 0);
    let mark = draft.look(block, |bytes| bytes[at + STATE])?;
    Ok(mark & IN_USE == 0 && draft.raw_link(draft.layout.read_copy(), 1)? & CLEAN != 0)
}
