//! Gives the blocks of an adopted disk their owners: makes the policy table from FSChecker's reports, before
//! any component runs that could be given a block.

use super::loading::Survey;
use super::roles::driver_of;
use crate::StackError;
use crate::disk_layout::DiskLayout;
use holdfast_access::{Access, Acl, Principal};
use holdfast_monitor::PAGE_BYTES;
use holdfast_policy::{BlockRange, Label, Owned};
use holdfast_volume::Volume;

fn label(owner: &Principal) -> Result<Label, StackError> {
    Ok(Label { owner: owner.clone(), acl: Acl::of(owner.clone(), Access::ReadWrite)? })
}

fn owned(first: u64, count: u64, label: &Label) -> Result<Owned, StackError> {
    let range = BlockRange::new(first, count);
    let range = range.ok_or_else(|| StackError::Component("a run without blocks".to_owned()))?;
    Ok(Owned { range, label: label.clone() })
}

/// Writes the policy table of a disk that is adopted. Files belong to the owners whose numbers are in the
/// surveys (one survey for each partition); everything else belongs to the FSDriver of its partition. The
/// table is not durable before a flush.
///
/// # Errors
/// The table is too small; or the volume failed.
pub fn adopt(
    volume: &Volume,
    layout: &DiskLayout,
    surveys: &[Survey],
    owners: &[Principal],
) -> Result<(), StackError> {
    let owners = owners.iter().map(label).collect::<Result<Vec<_>, _>>()?;
    let (mut parts, mut files) = (Vec::new(), Vec::new());
    for (at, survey) in surveys.iter().enumerate() {
        let blocks = layout.blocks(at);
        parts.push(owned(blocks.first, blocks.count, &label(&driver_of(layout, at)?)?)?);
        for (first, count, owner) in &survey.files {
            let label = owners.get(usize::from(*owner));
            let label = label.ok_or_else(|| StackError::Component("an owner that is none".to_owned()))?;
            files.push(owned(blocks.first + first, *count, label)?);
        }
    }
    for image in holdfast_policy::adopt(layout.disk(0), &parts, &files)? {
        volume.write(layout.table.0 + image.block * PAGE_BYTES as u64, &image.bytes[..])?;
    }
    Ok(())
}
