//! Retains deleted content for a while (LBFS section 4.2, the trash directory): today's files are often made
//! from what was removed or overwritten yesterday, so it stays useful for chunks and deltas.
//!
//! A block is *dead* from the first collection that finds it unreachable and old. It is dropped when it has
//! been dead for [`StoreConfig::keep_deleted`], or earlier if there is too much dead content. Then what died
//! first is dropped first, and of what died together, blocks that refer to others before those that do not.
//!
//! Invariants:
//! - What a retained block refers to is retained too, whatever its own time: a client that gets the answer
//!   "I have it" for a dead block may build on it at once.
//! - The time of death is in the index alone and follows from no record. If it is lost, the time only
//!   begins anew. A block that was relied on since is not dead since then.
//! - Memory is bounded by what is dropped and what has just died, not by what is retained.

use crate::StoreError;
use crate::index::Index;
use crate::mark::Marks;
use crate::state::{Entry, Key};
use crate::store::{Shared, StoreConfig};
use holdfast_content::DeviceId;
use holdfast_crypto::Digest;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Without a limit set by the operator, this part of all data may be retained dead content, ...
const PART_KEPT: u64 = 10;
/// ... but at least so many bytes.
const BYTES_KEPT_MIN: u64 = 1 << 30;

/// A file system's garbage, divided into what is dropped and what is retained.
#[derive(Default)]
pub(crate) struct SortedGarbage {
    /// To be dropped unless marked.
    pub(crate) goes: Vec<(Key, Entry)>,
    pub(crate) kept: u64,
    pub(crate) kept_bytes: u64,
}

/// Blocks that died at the same time.
#[derive(Default)]
struct Cohort {
    /// Bytes of blocks that refer to others, and of those that do not.
    nodes: u64,
    leaves: u64,
}

/// Where retention ends: what died after `since_ns` is retained, and `leaf_bytes` of the leaves that died at
/// that time. (Nodes of one time are dropped together, since it is not known here which of them refer to
/// which.)
struct Cut {
    since_ns: i64,
    leaf_bytes: u64,
}

/// The policy of one collection for dead blocks.
pub(crate) struct Retention<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) number: u32,
    pub(crate) now_ns: i64,
    /// Blocks not relied on since are old; in nanoseconds since 1970.
    pub(crate) cutoff_ns: i64,
    /// Devices whose dead blocks are not retained: their users are near their limits, and are charged for
    /// blocks as long as these exist.
    pub(crate) short: &'a BTreeSet<DeviceId>,
}

impl Retention<'_> {
    /// Divides garbage into what is retained and what is dropped, and marks what is retained with everything
    /// it refers to.
    pub(crate) fn sort(&self, marks: &mut Marks) -> Result<SortedGarbage, StoreError> {
        let config = &self.shared.config;
        let cut = match config.keep_deleted.is_zero() || config.keep_deleted_bytes == Some(0) {
            true => None,
            false => Some(self.cut(marks)?),
        };
        let mut sorted = SortedGarbage::default();
        let mut change = DeadTableChange::default();
        let mut any_dead = false;
        let mut nodes: Vec<Digest> = Vec::new();
        let mut leaves_left = cut.as_ref().map_or(0, |cut| cut.leaf_bytes);
        self.index().visit_with_dead(
            &mut |key, entry, dead_ns| {
                if key.file_system() != self.number {
                    return;
                }
                any_dead |= dead_ns.is_some();
                if !self.is_garbage(marks, &entry) {
                    change.lives_again.extend(dead_ns.map(|_| key));
                    return;
                }
                let since_ns = self.dead_since(&entry, dead_ns);
                let length = u64::from(entry.location.length);
                let may_stay = cut.as_ref().filter(|_| !self.short.contains(&entry.owner));
                let stays = may_stay.is_some_and(|cut| match since_ns.cmp(&cut.since_ns) {
                    Ordering::Greater => true,
                    Ordering::Equal if entry.leaf && length <= leaves_left => {
                        leaves_left -= length;
                        true
                    }
                    _ => false,
                });
                if !stays {
                    sorted.goes.push((key, entry));
                    return;
                }
                sorted.kept += 1;
                sorted.kept_bytes += length;
                if dead_ns != Some(since_ns) {
                    change.died.push(key);
                }
                if !entry.leaf {
                    nodes.push(key.address());
                }
            },
            &mut |key| change.gone.push(key),
        )?;
        marks.keep_below(nodes)?;
        // A block that a retained one refers to is retained too, with its own time of death.
        if sorted.kept > 0 {
            let SortedGarbage { goes, kept, kept_bytes } = &mut sorted;
            goes.retain(|(_, entry)| {
                let goes = !marks.contains(entry.location.position);
                if !goes {
                    *kept += 1;
                    *kept_bytes += u64::from(entry.location.length);
                }
                goes
            });
        }
        if any_dead {
            change.gone.extend(sorted.goes.iter().map(|(key, _)| *key));
        }
        self.index().write_dead(self.now_ns, &change.died, &[&change.lives_again[..], &change.gone[..]])?;
        Ok(sorted)
    }

    fn index(&self) -> &Index {
        &self.shared.index
    }

    fn is_garbage(&self, marks: &Marks, entry: &Entry) -> bool {
        entry.age_ns <= self.cutoff_ns && !marks.contains(entry.location.position)
    }

    fn dead_since(&self, entry: &Entry, dead_ns: Option<i64>) -> i64 {
        dead_ns.filter(|dead_ns| *dead_ns > entry.age_ns && *dead_ns <= self.now_ns).unwrap_or(self.now_ns)
    }

    /// Decides which dead blocks may be retained.
    fn cut(&self, marks: &Marks) -> Result<Cut, StoreError> {
        let mut cohorts: BTreeMap<i64, Cohort> = BTreeMap::new();
        let (mut ours, mut all) = (0, 0);
        self.index().visit_with_dead(
            &mut |key, entry, dead_ns| {
                let length = u64::from(entry.location.length);
                all += length;
                if key.file_system() != self.number {
                    return;
                }
                ours += length;
                if self.is_garbage(marks, &entry) {
                    let cohort = cohorts.entry(self.dead_since(&entry, dead_ns)).or_default();
                    match entry.leaf {
                        true => cohort.leaves += length,
                        false => cohort.nodes += length,
                    }
                }
            },
            &mut |_| {},
        )?;
        let keep_ns = i64::try_from(self.shared.config.keep_deleted.as_nanos()).unwrap_or(i64::MAX);
        let expired_ns = self.now_ns.saturating_sub(keep_ns);
        let mut left = allowance(&self.shared.config, ours, all, self.shared.storage.free_bytes());
        for (since_ns, Cohort { nodes, leaves }) in cohorts.into_iter().rev() {
            if since_ns <= expired_ns {
                return Ok(Cut { since_ns, leaf_bytes: 0 });
            }
            match left.checked_sub(nodes + leaves) {
                Some(rest) => left = rest,
                None => return Ok(Cut { since_ns, leaf_bytes: left }),
            }
        }
        Ok(Cut { since_ns: i64::MIN, leaf_bytes: 0 })
    }
}

/// Number of dead bytes that a file system may retain if it has `ours` of `all` bytes: its share of what all
/// may retain. If the disk fills up, no more than what is free.
fn allowance(config: &StoreConfig, ours: u64, all: u64, free_bytes: Option<u64>) -> u64 {
    let kept = config.keep_deleted_bytes.unwrap_or((all / PART_KEPT).max(BYTES_KEPT_MIN));
    let part = u128::from(kept) * u128::from(ours) / u128::from(all.max(1));
    u64::try_from(part).unwrap_or(u64::MAX).min(free_bytes.unwrap_or(u64::MAX))
}

/// The changes of the index's table of dead blocks.
#[derive(Default)]
struct DeadTableChange {
    died: Vec<Key>,
    lives_again: Vec<Key>,
    gone: Vec<Key>,
}
