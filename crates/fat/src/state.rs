//! The state of a mounted file system in memory.

use crate::check::Checked;
use crate::directory::Directory;
use crate::draft::{Draft, Effect};
use crate::entry::{Attributes, Entry};
use crate::fs::{Kind, Options, Stat};
use crate::layout::{Layout, Run};
use crate::nodes::{EntryLocation, FileId, Nodes};
use crate::problem::Problem;
use crate::space::Space;
use crate::table::{ChainError, Length, total};
use crate::time::{Moment, Stored};
use crate::{FatError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Most pieces of chains that are cached together.
const CACHED_RUNS_MAX: usize = 1 << 18;
/// The state of a driver. It changes when a transaction is applied, and when something is read for the first time.
pub(crate) struct DriverState {
    pub(crate) options: Options,
    pub(crate) space: Space,
    pub(crate) nodes: Nodes,
    /// First cluster of the limbo.
    pub(crate) limbo: Option<u32>,
    chains: BTreeMap<u32, Arc<[Run]>>,
    cached_runs: usize,
    /// Clusters that two chains claim.
    suspects: BTreeSet<u32>,
    /// Whether the caller has vouched for the file system, so that blocks of files can be listed.
    pub(crate) vouched: bool,
    /// Why changes are refused: something unsound was seen.
    pub(crate) refusal: Option<String>,
    outstanding: Option<u64>,
    transactions: u64,
}

impl DriverState {
    pub(crate) fn new(layout: &Layout, options: Options) -> DriverState {
        DriverState {
            options,
            space: Space::new(layout),
            nodes: Nodes::new(layout.root_cluster),
            limbo: None,
            chains: BTreeMap::new(),
            cached_runs: 0,
            suspects: BTreeSet::new(),
            vouched: false,
            refusal: None,
            outstanding: None,
            transactions: 0,
        }
    }

    /// Accepts the result of a check. What was found unsound before stays so.
    pub(crate) fn vouch(&mut self, checked: &Checked) {
        self.suspects = checked.suspects.clone();
        self.chains.clear();
        self.cached_runs = 0;
        self.vouched = true;
        if self.refusal.is_none() {
            self.refusal = checked.refusal.clone();
        }
    }

    /// Checks that a change may begin now.
    pub(crate) fn may_change(&self) -> Result<()> {
        if !self.vouched {
            return Err(FatError::NotChecked);
        }
        match &self.refusal {
            Some(why) => Err(FatError::ReadOnly(why.clone())),
            None => self.nothing_outstanding(),
        }
    }

    /// Checks that every transaction was applied or abandoned.
    pub(crate) fn nothing_outstanding(&self) -> Result<()> {
        match self.outstanding {
            Some(_) => Err(FatError::Outstanding),
            None => Ok(()),
        }
    }

    /// The number of a transaction that now is the one outstanding.
    pub(crate) fn begin(&mut self) -> u64 {
        self.transactions += 1;
        self.outstanding = Some(self.transactions);
        self.transactions
    }

    /// Checks that a transaction is the outstanding one, and ends it.
    pub(crate) fn settle(&mut self, number: u64) -> Result<()> {
        if self.outstanding != Some(number) {
            return Err(FatError::WrongTransaction);
        }
        self.outstanding = None;
        Ok(())
    }

    /// The runs of a chain, followed to its end and checked.
    pub(crate) fn runs(
        &mut self,
        draft: &Draft,
        first: u32,
        length: Length,
    ) -> std::result::Result<Arc<[Run]>, ChainError> {
        let fits = |runs: &Arc<[Run]>| match length {
            Length::Exactly(clusters) => total(runs) == clusters,
            Length::Directory => true,
        };
        let in_draft = draft.effects.iter().rev().find_map(|effect| match effect {
            Effect::Chain(chain, runs) if *chain == first => Some(runs),
            _ => None,
        });
        match in_draft {
            Some(Some(runs)) if fits(runs) => return Ok(runs.clone()),
            Some(_) => {}
            None => {
                if let Some(runs) = self.chains.get(&first).filter(|runs| fits(runs)) {
                    return Ok(runs.clone());
                }
            }
        }
        let suspects = &self.suspects;
        let runs: Arc<[Run]> = draft
            .chain(first, length, |cluster| match suspects.contains(&cluster) {
                true => Err(Problem::CrossLinked(cluster).into()),
                false => Ok(()),
            })?
            .into();
        if in_draft.is_none() {
            self.keep_chain(first, runs.clone());
        }
        Ok(runs)
    }

    /// Caches the runs of a chain, if there is room; otherwise the cache is emptied.
    pub(crate) fn keep_chain(&mut self, first: u32, runs: Arc<[Run]>) {
        self.forget_chain(first);
        if runs.is_empty() || runs.len() > CACHED_RUNS_MAX {
            return;
        }
        if self.cached_runs + runs.len() > CACHED_RUNS_MAX {
            self.chains.clear();
            self.cached_runs = 0;
        }
        self.cached_runs += runs.len();
        self.chains.insert(first, runs);
    }

    pub(crate) fn forget_chain(&mut self, first: u32) {
        if let Some(runs) = self.chains.remove(&first) {
            self.cached_runs -= runs.len();
        }
    }

    pub(crate) fn directory_at(&mut self, draft: &Draft, first: u32) -> Result<Directory> {
        let runs = self
            .runs(draft, first, Length::Directory)
            .map_err(|broken| broken.at(|| format!("the directory at cluster {first}")))?;
        Ok(Directory { first, runs })
    }

    /// A directory by its number.
    pub(crate) fn directory(&mut self, draft: &Draft, id: FileId) -> Result<Directory> {
        let node = self.nodes.get(id)?;
        let first = node.directory.ok_or_else(|| FatError::NotADirectory(format!("file {}", id.0)))?;
        if node.location.is_none() && id != crate::ROOT {
            return Err(FatError::Gone);
        }
        self.directory_at(draft, first)
    }

    /// A file's entry, with the directory that holds it.
    pub(crate) fn entry(&mut self, draft: &Draft, id: FileId) -> Result<(Directory, EntryLocation, Entry)> {
        let location = self.nodes.get(id)?.location.ok_or(FatError::Gone)?;
        let directory = self.directory_at(draft, location.directory)?;
        if location.slot >= directory.slots(draft.layout) {
            return Err(FatError::Gone);
        }
        let entry = directory.entry(draft, location.slot)?;
        Ok((directory, location, entry))
    }

    /// The clusters of a file.
    pub(crate) fn file_runs(
        &mut self,
        draft: &Draft,
        entry: &Entry,
        location: EntryLocation,
    ) -> Result<Arc<[Run]>> {
        let clusters = draft.layout.clusters_for(u64::from(entry.size));
        self.runs(draft, entry.first, Length::Exactly(clusters)).map_err(|broken| {
            broken.at(|| {
                let name = crate::names::shown_short(&entry.short, entry.case_bits);
                format!("{name} (entry {} of the directory at cluster {})", location.slot, location.directory)
            })
        })
    }

    pub(crate) fn is_limbo(&self, entry: &Entry) -> bool {
        self.limbo == Some(entry.first) && entry.is_directory()
    }

    pub(crate) fn stat(&self, entry: &Entry, size: u64) -> Stat {
        let offset = self.options.utc_offset_minutes;
        let day = Stored { date: entry.accessed, time: 0, hundredths: 0 };
        Stat {
            kind: if entry.is_directory() { Kind::Directory } else { Kind::File },
            size,
            created: entry.created.to_moment(offset),
            modified: entry.modified.to_moment(offset),
            accessed: day.to_moment(offset),
            attributes: Attributes::of(entry.attributes),
        }
    }

    pub(crate) fn stored(&self, moment: Moment) -> Stored {
        Stored::from_moment(moment, self.options.utc_offset_minutes)
    }

    /// Remembers that something unsound was seen.
    pub(crate) fn note<T>(&mut self, result: Result<T>) -> Result<T> {
        if let Err(error @ FatError::Unsound { problem, .. }) = &result
            && problem.forbids_changes()
            && self.refusal.is_none()
        {
            self.refusal = Some(format!("something unsound was seen: {error}"));
        }
        result
    }
}
