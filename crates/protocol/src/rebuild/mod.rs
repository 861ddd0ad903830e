//! Reconstructs a lost server's order from what its clients have accepted (SUNDR, section 1: "a SUNDR server
//! can recover file system data from untrusted clients' file caches").
//!
//! Each source contributes a view and the right edge of its log. The longest log is the present; structures
//! that it only announces, and that other sources have, complete it. No source is believed: the result is a
//! view that is checked like any other ([`CombinedView::check`]), by a client that has accepted nothing and
//! by each source in turn, with the very checks that clients will make.
//!
//! Invariants:
//! - Everything that a source has accepted as committed is committed in the result; otherwise the result is
//!   refused.
//! - Everything pending is dead in the result. Its author may be gone, and the answer to it is lost. If no
//!   source has its structure, no source was told that it is committed. If its author still waits, it makes
//!   the operation again.
//! - Numbers that a source has given up stay given up.
//!
//! Attack answered: a bad client that contributes an invented or an older state. It can only add what is
//! validly signed. Where two sources cannot both be right, both are named, and a person must choose.

mod nodes;
#[cfg(test)]
mod tests;

pub use nodes::{KnownNodes, Nodes};

use crate::alarm::{Alarm, Operation};
use crate::check::{check_look, membership_wanted};
use crate::floor::Floor;
use crate::log_tree::{Frontier, consistency_proof, leaf};
use crate::members::Members;
use crate::message::ViewReply;
use crate::signed::Signed;
use crate::structure::{LogHead, PendingEntry, Structure, View};
use holdfast_content::{DeviceId, Reference};
use holdfast_crypto::{Digest, PublicKey};
use std::collections::BTreeMap;

/// A device number that nobody has, used to check a view as a client that has accepted nothing.
const NOBODY: DeviceId = DeviceId(u32::MAX);

/// What one client has accepted, or an older copy of the server's data contains.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The view.
    pub view: &'a View,
    /// The right edge of its log.
    pub frontier: &'a Frontier,
    /// The client's floor; `None` for a server's data.
    pub floor: Option<&'a Floor>,
}

impl<'a> From<&'a Floor> for Source<'a> {
    fn from(floor: &'a Floor) -> Source<'a> {
        Source { view: &floor.view, frontier: &floor.frontier, floor: Some(floor) }
    }
}

/// Two sources that cannot both be right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Disagreement {
    /// The two sources, by their indices.
    pub between: (usize, usize),
    /// The disagreement, in words.
    pub what: String,
}

/// The view that a set of sources makes together; nothing of it has been verified.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CombinedView {
    /// The view.
    pub view: View,
    /// The right edge of its log.
    pub frontier: Frontier,
    /// Index of the source with the longest log.
    pub newest: usize,
    /// The highest number that each device has given up.
    pub given_up: BTreeMap<DeviceId, u64>,
}

/// Pending operations, with the index of the source that says so.
type PendingByOperation<'a> = BTreeMap<(DeviceId, u64), (&'a PendingEntry, usize)>;

/// Combines the views of several sources. `None` if no source has accepted anything.
///
/// # Errors
/// [`Disagreement`]: the first one found. With an honest server none of these can occur.
pub fn combine(sources: &[Source<'_>]) -> Result<Option<CombinedView>, Disagreement> {
    let seen = sources.iter().enumerate().filter(|(_, source)| !source.view.slots.is_empty());
    // Of several sources with the same log any is good.
    let Some((newest, base)) = seen.max_by_key(|(_, source)| source.view.log.size) else { return Ok(None) };
    let head = base.view.log;
    let mut announced: PendingByOperation<'_> = BTreeMap::new();
    for (place, source) in sources.iter().enumerate().filter(|(_, source)| source.view.log.size == head.size)
    {
        if source.view.log != head {
            let what = format!("each has {} operations, and not the same ones", head.size);
            return Err(Disagreement { between: (newest, place), what });
        }
        for entry in &source.view.pending {
            let operation = operation(entry);
            match announced.get(&(operation.device, operation.number)) {
                Some((known, other)) if known.forecast != entry.forecast => {
                    let what = format!("{} was announced differently", words(operation));
                    return Err(Disagreement { between: (*other, place), what });
                }
                // A source that shows it dead is right: death is final.
                Some((known, _)) if known.dead => {}
                _ => drop(announced.insert((operation.device, operation.number), (entry, place))),
            }
        }
    }
    let slots = slots(sources, newest, head, &announced)?;
    let number = |device: &DeviceId| slots.get(device).map_or(0, |slot| slot.value.number());
    let open =
        announced.values().filter(|(entry, _)| operation(entry).number > number(&operation(entry).device));
    let mut pending: Vec<PendingEntry> =
        open.map(|(entry, _)| PendingEntry { dead: true, ..(*entry).clone() }).collect();
    pending.sort_by_key(|entry| entry.forecast.log.size);
    let mut given_up = BTreeMap::new();
    for floor in sources.iter().filter_map(|source| source.floor) {
        let last = floor.voids.0.values().max().copied().unwrap_or(0);
        if last > number(&floor.device) {
            given_up.insert(floor.device, last);
        }
    }
    let slots: BTreeMap<DeviceId, Signed<Structure>> =
        slots.into_iter().map(|(device, slot)| (device, slot.clone())).collect();
    let view = View { slots, pending, log: head };
    Ok(Some(CombinedView { view, frontier: base.frontier.clone(), newest, given_up }))
}

/// The newest structure of each device that any source has accepted.
fn slots<'a>(
    sources: &[Source<'a>],
    newest: usize,
    head: LogHead,
    announced: &PendingByOperation<'_>,
) -> Result<BTreeMap<DeviceId, &'a Signed<Structure>>, Disagreement> {
    let mut slots: BTreeMap<DeviceId, (&Signed<Structure>, usize)> = BTreeMap::new();
    let all = sources.iter().enumerate();
    let (first, rest): (Vec<_>, Vec<_>) = all.partition(|(_, source)| source.view.log.size == head.size);
    for (place, source) in first.into_iter().chain(rest) {
        let is_newest = source.view.log.size == head.size;
        for (device, slot) in &source.view.slots {
            let of = Operation { device: *device, number: slot.value.number() };
            if let Some((known, other)) = slots.get(device) {
                if known.value.number() > of.number {
                    continue;
                }
                if known.value.number() == of.number {
                    if *known == slot {
                        continue;
                    }
                    let what = format!("{} is not the same in both", words(of));
                    return Err(Disagreement { between: (*other, place), what });
                }
            }
            match announced.get(&(of.device, of.number)) {
                Some((entry, other)) if entry.dead => {
                    let what = format!("{} is dead in one and committed in the other", words(of));
                    return Err(Disagreement { between: (*other, place), what });
                }
                Some((entry, other)) if entry.forecast != slot.value.forecast => {
                    let what = format!("{} was announced otherwise than it came", words(of));
                    return Err(Disagreement { between: (*other, place), what });
                }
                Some(_) => {}
                None if is_newest => {}
                None => {
                    let what = format!(
                        "{} is committed in the one with fewer operations, and unknown to the other",
                        words(of)
                    );
                    return Err(Disagreement { between: (newest, place), what });
                }
            }
            slots.insert(*device, (slot, place));
        }
    }
    Ok(slots.into_iter().map(|(device, (slot, _))| (device, slot)).collect())
}

fn operation(entry: &PendingEntry) -> Operation {
    let certificate = &entry.certificate.value;
    Operation { device: certificate.device, number: certificate.number }
}

fn words(operation: Operation) -> String {
    format!("operation {} of device {}", operation.number, operation.device.0)
}

/// Whether the end of the log is proven, or only claimed by a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LogEnd {
    /// The end of the log follows from what the author of the last structure has signed, and from the
    /// operations announced after it.
    Proven,
    /// Too little of the log is known. If the end is invented, no other device can be given a proof that it
    /// extends that device's log.
    Unproven,
    /// The source is made up; the text says what shows it.
    False(String),
}

/// How the client of a source will react to the combined view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SourceOutcome {
    /// It accepts the view, as if the server had never been lost.
    GoesOn,
    /// The nodes of the log that would prove to it that the view extends its own are lost.
    Unproven,
    /// It would raise this alarm.
    Alarms(Box<Alarm>),
}

impl CombinedView {
    /// Keeps numbers refused that an earlier server has refused.
    pub fn keep_given_up(&mut self, refused: &BTreeMap<DeviceId, u64>) {
        for (device, number) in refused {
            let last = self.view.slots.get(device).map_or(0, |slot| slot.value.number());
            if *number > last {
                let known = self.given_up.entry(*device).or_default();
                *known = (*known).max(*number);
            }
        }
    }

    /// The membership block that the view names.
    ///
    /// # Errors
    /// [`Alarm`]: the view is not one of this superuser's.
    pub fn membership_wanted(&self, superuser: PublicKey) -> Result<Reference, Alarm> {
        membership_wanted(&Floor::new(superuser, NOBODY), &self.view)
    }

    /// Checks the view as a client would that has accepted nothing: signatures, one order, nothing hidden,
    /// records that agree.
    ///
    /// # Errors
    /// [`Alarm`].
    pub fn check(&self, superuser: PublicKey, members: &dyn Members) -> Result<(), Alarm> {
        check_look(&Floor::unseen(superuser, NOBODY, members), members, &self.reply()).map(drop)
    }

    /// How a client at `floor` will react to the view.
    pub fn standing(&self, floor: &Floor, members: &dyn Members, nodes: &Nodes) -> SourceOutcome {
        let known = floor.log();
        let proof =
            consistency_proof(known.size, self.view.log.size, &mut |level, index| nodes.get(level, index));
        let Some(consistency) = proof else {
            return match known.size > self.view.log.size {
                true => {
                    SourceOutcome::Alarms(Box::new(Alarm::LogNotExtended { known, found: self.view.log }))
                }
                false => SourceOutcome::Unproven,
            };
        };
        match check_look(floor, members, &ViewReply { consistency, ..self.reply() }) {
            Ok(_) => SourceOutcome::GoesOn,
            Err(alarm) => SourceOutcome::Alarms(Box::new(alarm)),
        }
    }

    /// Whether signed structures prove the end of the log. A structure binds the log before it, and every
    /// operation after the last structure is announced, except for one of the newest source's own that it
    /// remembers to have offered.
    pub fn log_end(&self, sources: &[Source<'_>], nodes: &Nodes) -> LogEnd {
        let slots = self.view.slots.values().map(|slot| &slot.value.forecast);
        let Some(last) = slots.max_by_key(|forecast| forecast.log.size) else {
            return LogEnd::False("nobody has done anything".to_owned());
        };
        let mut leaves = vec![leaf(last.certificate, last.digest())];
        let size = |leaves: &[Digest]| last.log.size.saturating_add(leaves.len() as u64);
        for entry in &self.view.pending {
            if entry.forecast.log.size == size(&leaves) {
                leaves.push(leaf(entry.forecast.certificate, entry.forecast.digest()));
            }
        }
        let floor = sources.get(self.newest).and_then(|newest| newest.floor);
        if size(&leaves).checked_add(1) == Some(self.view.log.size) {
            let open = floor.and_then(|floor| {
                let open = floor.offered.iter().rev().take_while(|(number, _)| **number > floor.last());
                open.into_iter().find_map(|(_, offered)| Some(leaf(offered.certificate, offered.forecast?)))
            });
            leaves.extend(open);
        }
        if size(&leaves) != self.view.log.size {
            let shown = size(&leaves);
            return LogEnd::False(format!(
                "it has {} operations, and those shown make {shown}",
                self.view.log.size
            ));
        }
        let before =
            |source: &Source<'_>| (source.frontier.head() == last.log).then(|| source.frontier.clone());
        let Some(mut frontier) = sources.iter().find_map(before).or_else(|| nodes.frontier_at(last.log.size))
        else {
            return LogEnd::Unproven;
        };
        if frontier.head() != last.log {
            return LogEnd::False("it is not the log that its last structure follows on".to_owned());
        }
        leaves.into_iter().for_each(|leaf| drop(frontier.append(leaf)));
        match frontier == self.frontier {
            true => LogEnd::Proven,
            false => LogEnd::False("its last operations are not those that are shown".to_owned()),
        }
    }

    fn reply(&self) -> ViewReply {
        ViewReply {
            view: self.view.clone(),
            peaks: self.frontier.peaks().to_vec(),
            consistency: Vec::new(),
            blocks: Vec::new(),
        }
    }
}
