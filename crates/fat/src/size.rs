//! Changes the size of a file: clusters are added near its end, or the cut-off ones wait in the limbo.
//!
//! A file always has exactly the clusters that its size needs. The transaction lists the added blocks, which
//! are nominated to the file's owner after the commit. If that fails, or a crash comes in between, the file
//! has blocks that its owner cannot reach yet: nothing is lost, nothing belongs to another user, and they can
//! be nominated again.

use crate::draft::{Effect, Metadata};
use crate::entry::Entry;
use crate::fs::{Change, Fat};
use crate::layout::Run;
use crate::nodes::FileId;
use crate::space::Placement;
use crate::table::{Link, append, cluster_at, last, link_run, runs_to, total};
use crate::time::{Moment, Stored};
use crate::{FatError, LimboId, Result};
use std::ops::Range;

/// The largest file, in bytes.
pub const FILE_BYTES_MAX: u64 = u32::MAX as u64;
/// Most clusters added in one transaction.
const CLUSTERS_MAX: u64 = 65_536;

/// The result of changing a file's size.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resized {
    /// The size after this transaction. If it is less than requested, several transactions are needed: ask
    /// again. There is space for all of them.
    pub size: u64,
    /// A range in clusters that the file had before, which is now below its size. The driver cannot reach
    /// these bytes; a writer of the file must zero them before the new size becomes visible.
    pub fill: Option<Range<u64>>,
    /// The item in the limbo of the cut-off blocks, if there are any.
    pub limbo: Option<LimboId>,
}

impl<M: Metadata> Fat<M> {
    /// Makes a file longer or shorter.
    pub fn resize(&mut self, id: FileId, size: u64, now: Moment) -> Result<Change<Resized>> {
        self.change(|state, draft| {
            if size > FILE_BYTES_MAX {
                return Err(FatError::FileTooLarge(size));
            }
            if state.nodes.get(id)?.directory.is_some() {
                return Err(FatError::IsADirectory(format!("file {}", id.0)));
            }
            let (directory, location, mut entry) = state.entry(draft, id)?;
            let runs = state.file_runs(draft, &entry, location)?;
            let old_size = u64::from(entry.size);
            let has = total(&runs);
            let needs = draft.layout.clusters_for(size);
            let each = u64::from(draft.layout.cluster_bytes);
            let mut limbo = None;
            let mut reached = size;
            if needs < has {
                let cut = cluster_at(&runs, needs).expect("the chain is longer").start;
                let rest = Entry { first: cut, size: (old_size - needs * each) as u32, ..entry };
                match needs {
                    0 => entry.first = 0,
                    _ => {
                        let end = cluster_at(&runs, needs - 1).expect("the chain is longer").start;
                        draft.set_link(end, Link::Next(cut), Link::End)?;
                    }
                }
                limbo = Some(LimboId(crate::limbo::add(state, draft, rest, now)?.slot));
                let kept = (needs > 0).then(|| runs_to(&runs, needs).into());
                draft.effects.push(Effect::Chain(runs[0].start, kept));
            } else if needs > has {
                state.space.require(draft, needs - has)?;
                let mut end = last(&runs);
                let wanted = (needs - has).min(CLUSTERS_MAX) as u32;
                let added: Vec<Run> = state.space.choose(
                    draft,
                    end.map_or(Placement::Anywhere, Placement::EndOfFile),
                    wanted,
                )?;
                for run in &added {
                    link_run(draft, end, *run)?;
                    end = Some(run.start + run.count - 1);
                    draft.allocated.push(draft.layout.blocks(*run));
                }
                let Some(first) = added.first() else {
                    return Err(FatError::Full { needed: needs - has, free: 0 });
                };
                if has == 0 {
                    entry.first = first.start;
                }
                let mut all = runs.to_vec();
                added.iter().for_each(|run| append(&mut all, *run));
                draft.effects.push(Effect::Chain(entry.first, Some(all.into())));
                reached = size.min((has + total(&added)) * each);
            }
            let filled = reached.min(has * each);
            let fill = (filled > old_size).then_some(old_size..filled);
            entry.size = reached as u32;
            entry.attributes |= Entry::ARCHIVE;
            entry.modified = Stored { hundredths: 0, ..state.stored(now) };
            directory.write(draft, location.slot, &entry.to_bytes())?;
            Ok(Resized { size: reached, fill, limbo })
        })
    }
}
