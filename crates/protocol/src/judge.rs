//! What signatures prove by themselves: which structures, from whatever source, cannot all come from an
//! honest server and honest devices, and who is to blame.
//!
//! This needs no server, no clock and no tables' contents, so anybody can repeat it with a file. It is sound:
//! structures of an honest history are never found to contradict each other, including those that were signed
//! and then refused or declared dead (`crates/sim/tests/order_honest.rs` tests that with storms). It is not
//! complete: two branches of a fork prove nothing if the available structures of one could follow those of
//! the other.
//!
//! The rules, for structures *x* and *y* with log sizes s(x) <= s(y), in terms of an honest order. The log
//! before a structure fixes its place, so a later structure has seen everything that an earlier one has seen:
//! - A device signs one structure for each number, and its view never goes back. Only the device can break
//!   this.
//! - *x* knows no more operations of any device (except its own) than *y* does, and of *y*'s device fewer
//!   than *y*'s number.
//! - If *x* has a receipt and s(x) < s(y), *y* knows of *x*: an operation with a receipt is in the past of
//!   every later one.
//! - At equal sizes both are based on the same log, and at most one of them has a receipt.
//! - No structure records an operation with a receipt as aborted, and every operation has the contents that
//!   were announced.
//!
//! A receipt has the server's signature, and an honest server gives one only to structures in its one order.
//! So a structure with a receipt cannot be its device's lie. This narrows the blame: two receipts convict the
//! server.
//!
//! Attack answered: a server that lied and claims that its victims invented it, and a member who does invent
//! it.

use crate::alarm::Operation;
use crate::signed::{Signable, Signed};
use crate::structure::Structure;
use holdfast_content::{DeviceId, PrincipalId};
use holdfast_crypto::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Most clashes reported; one is enough to convict, and a hostile file must not make many.
pub const CLASHES_MAX: usize = 64;
/// Most structures at one place of the log that are compared with each other.
const SAME_PLACE_MAX: usize = 64;

/// A structure whose signature was verified by its device's key, at a place where that device was a member.
#[derive(Clone, Copy, Debug)]
pub struct Exhibit<'a> {
    /// The structure.
    pub structure: &'a Signed<Structure>,
    /// Whether a listed server's receipt for it is at hand, verified.
    pub acknowledged: bool,
}

/// A party that may have lied.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Suspect {
    /// The holder of the server's key.
    Server,
    /// The holder of this device's key.
    Device(DeviceId),
}

/// How two structures contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Clash {
    /// One device signed two structures under one number.
    SignedTwice,
    /// A server gave receipts for two structures of one number, or of one place in the log.
    PromisedTwice,
    /// A device signed a view older than one it had signed before.
    WentBack,
    /// The first has a receipt, and the later second one does not know of it.
    Forgotten,
    /// The first has a receipt, and the second records it as aborted.
    Aborted,
    /// The second records the first with other contents than it has.
    AnnouncedOtherwise,
    /// Each knows of something that the other does not.
    Forked,
    /// Both stand at the same place of the log, on different logs.
    OtherPast,
}

impl fmt::Display for Clash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Clash::SignedTwice => "one device signed two different operations under one number",
            Clash::PromisedTwice => "the server promised two operations the same place",
            Clash::WentBack => "a device signed a view older than one that it had signed before",
            Clash::Forgotten => {
                "the server promised that the first was committed, and showed the signer of the second, which is \
                 later, a history without it"
            }
            Clash::Aborted => {
                "the server promised that the first was committed, and told the signer of the second that it had been \
                 aborted"
            }
            Clash::AnnouncedOtherwise => {
                "the first was announced to the signer of the second otherwise than it came"
            }
            Clash::Forked => "neither can be later than the other: each leaves out what the other has seen",
            Clash::OtherPast => "both follow on the same number of operations, which are not the same operations",
        })
    }
}

/// Two structures that cannot both be true.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Contradiction {
    /// At least one of these lied. A single suspect is convicted. Convictions sort before suspicions.
    pub suspects: Suspects,
    /// How they contradict each other.
    pub clash: Clash,
    /// The first operation, and the digest of its structure.
    pub first: (Operation, Digest),
    /// The second operation, and the digest of its structure.
    pub second: (Operation, Digest),
}

/// A set of which at least one lied; smaller sets sort first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspects(pub BTreeSet<Suspect>);

impl Suspects {
    /// The only suspect, if there is only one.
    pub fn convicted(&self) -> Option<Suspect> {
        if self.0.len() == 1 { self.0.first().copied() } else { None }
    }
}

impl PartialOrd for Suspects {
    fn partial_cmp(&self, other: &Suspects) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Suspects {
    fn cmp(&self, other: &Suspects) -> std::cmp::Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.cmp(&other.0))
    }
}

/// A structure, with its digest.
#[derive(Clone, Copy)]
struct Element<'a> {
    structure: &'a Structure,
    digest: Digest,
    acknowledged: bool,
}

impl Element<'_> {
    fn device(&self) -> DeviceId {
        self.structure.device()
    }

    fn operation(&self) -> Operation {
        Operation { device: self.device(), number: self.structure.number() }
    }

    fn knows(&self, device: DeviceId) -> u64 {
        self.structure.forecast.vector.device(device)
    }

    fn place(&self) -> u64 {
        self.structure.forecast.log.size
    }

    fn known(&self) -> impl Iterator<Item = (DeviceId, u64)> {
        self.structure.forecast.vector.versions().iter().filter_map(|(principal, number)| match principal {
            PrincipalId::Device(device) => Some((*device, *number)),
            _ => None,
        })
    }
}

/// All contradictions between `exhibits`, which are of one file system: convictions first, at most
/// [`CLASHES_MAX`]. An empty list does not prove that nobody lied. Structures of different epochs
/// ([`crate::epoch`]) are not compared, since a declared restore releases everybody from what it lost.
pub fn contradictions(exhibits: &[Exhibit<'_>]) -> Vec<Contradiction> {
    let mut epochs: BTreeMap<Digest, Vec<Exhibit<'_>>> = BTreeMap::new();
    for exhibit in exhibits {
        epochs.entry(exhibit.structure.value.forecast.file_system).or_default().push(*exhibit);
    }
    let mut found: Vec<Contradiction> = epochs.values().flat_map(|exhibits| within_epoch(exhibits)).collect();
    found.sort();
    found.truncate(CLASHES_MAX);
    found
}

fn within_epoch(exhibits: &[Exhibit<'_>]) -> Vec<Contradiction> {
    let mut distinct: BTreeMap<Digest, Element<'_>> = BTreeMap::new();
    for exhibit in exhibits {
        let structure = &exhibit.structure.value;
        let digest = structure.digest();
        distinct.entry(digest).or_insert(Element { structure, digest, acknowledged: false }).acknowledged |=
            exhibit.acknowledged;
    }
    let mut elements: Vec<Element<'_>> = distinct.into_values().collect();
    elements.sort_by_key(|element| (element.place(), element.device(), element.structure.number()));
    let mut found = ContradictionSet::default();
    by_device(&elements, &mut found);
    records(&elements, &mut found);
    // Structures with receipts are compared first, since a contradiction with one of them convicts.
    let promised: Vec<Element<'_>> =
        elements.iter().filter(|element| element.acknowledged).copied().collect();
    along_the_log(&promised, &mut found);
    along_the_log(&elements, &mut found);
    found.0.into_iter().take(CLASHES_MAX).collect()
}

/// Sorted with convictions first; beyond the limit the last are dropped.
#[derive(Default)]
struct ContradictionSet(BTreeSet<Contradiction>);

impl ContradictionSet {
    fn add(&mut self, clash: Clash, first: &Element<'_>, second: &Element<'_>, suspects: BTreeSet<Suspect>) {
        self.0.insert(Contradiction {
            suspects: Suspects(suspects),
            clash,
            first: (first.operation(), first.digest),
            second: (second.operation(), second.digest),
        });
        if self.0.len() > 2 * CLASHES_MAX {
            self.0.pop_last();
        }
    }

    /// Adds a contradiction of two views: one of the devices lied about its view, unless a receipt proves
    /// that it did not, or the server presented both views.
    fn views(&mut self, clash: Clash, first: &Element<'_>, second: &Element<'_>) {
        if first.device() == second.device() {
            // An honest device never signs an older view than before, whatever the server sends.
            return self.add(Clash::WentBack, first, second, [Suspect::Device(first.device())].into());
        }
        let liars = [first, second].into_iter().filter(|element| !element.acknowledged);
        let devices = liars.map(|element| Suspect::Device(element.device()));
        self.add(clash, first, second, devices.chain([Suspect::Server]).collect());
    }
}

/// Finds contradictions between structures of one device.
fn by_device(elements: &[Element<'_>], found: &mut ContradictionSet) {
    let mut last: BTreeMap<DeviceId, Element<'_>> = BTreeMap::new();
    let mut sorted = elements.to_vec();
    sorted.sort_by_key(|element| (element.device(), element.structure.number(), !element.acknowledged));
    for element in sorted {
        if let Some(before) = last.get(&element.device()) {
            if before.structure.number() == element.structure.number() {
                found.add(Clash::SignedTwice, before, &element, [Suspect::Device(element.device())].into());
                if before.acknowledged && element.acknowledged {
                    found.add(Clash::PromisedTwice, before, &element, [Suspect::Server].into());
                }
                continue;
            }
            let back = before.place() > element.place()
                || before
                    .known()
                    .any(|(device, number)| device != element.device() && number > element.knows(device));
            if back {
                found.views(Clash::WentBack, before, &element);
            }
        }
        last.insert(element.device(), element);
    }
}

/// Finds contradictions between structures and what others recorded of them.
fn records(elements: &[Element<'_>], found: &mut ContradictionSet) {
    let mut by_operation: BTreeMap<Operation, Vec<&Element<'_>>> = BTreeMap::new();
    for element in elements {
        by_operation.entry(element.operation()).or_default().push(element);
    }
    for later in elements {
        for record in &later.structure.forecast.aborted {
            for first in by_operation.get(&Operation::from(*record)).into_iter().flatten() {
                if first.acknowledged {
                    found.views(Clash::Aborted, first, later);
                }
            }
        }
        for record in &later.structure.forecast.pending {
            for first in by_operation.get(&Operation::from(*record)).into_iter().flatten() {
                if first.structure.forecast.digest() != record.forecast {
                    found.views(Clash::AnnouncedOtherwise, first, later);
                }
            }
        }
    }
}

/// Finds structures that do not know what an earlier one in the log knows.
fn along_the_log(elements: &[Element<'_>], found: &mut ContradictionSet) {
    // The highest number of each device that any structure so far knows, and which structure that is.
    let mut most: BTreeMap<DeviceId, (u64, usize)> = BTreeMap::new();
    let mut start = 0;
    while start < elements.len() {
        let place = elements[start].place();
        let end = start + elements[start..].iter().take_while(|element| element.place() == place).count();
        for later in &elements[start..end] {
            for (&device, &(number, by)) in &most {
                let earlier = &elements[by];
                let own = device == later.device();
                let clashes = if own && earlier.device() != device {
                    number >= later.structure.number()
                } else {
                    number > later.knows(device)
                };
                if clashes {
                    let forgotten = earlier.acknowledged && earlier.device() == device;
                    found.views(if forgotten { Clash::Forgotten } else { Clash::Forked }, earlier, later);
                }
            }
        }
        same_place(&elements[start..end], found);
        for (index, element) in elements.iter().enumerate().take(end).skip(start) {
            for (device, number) in element.known() {
                // A signed structure may have been refused: only a receipt says that it was committed.
                if device == element.device() && !element.acknowledged {
                    continue;
                }
                let known = most.entry(device).or_insert((number, index));
                if number > known.0 {
                    *known = (number, index);
                }
            }
        }
        start = end;
    }
}

/// Finds structures that took the same position in the log.
fn same_place(elements: &[Element<'_>], found: &mut ContradictionSet) {
    let elements = &elements[..elements.len().min(SAME_PLACE_MAX)];
    for (index, first) in elements.iter().enumerate() {
        for second in &elements[index + 1..] {
            if first.acknowledged && second.acknowledged && first.device() != second.device() {
                found.add(Clash::PromisedTwice, first, second, [Suspect::Server].into());
            }
            if first.structure.forecast.log.root != second.structure.forecast.log.root {
                found.views(Clash::OtherPast, first, second);
            }
            let differs = |one: &Element<'_>, other: &Element<'_>| {
                one.known().any(|(device, number)| match device {
                    device if device == one.device() => false,
                    device if device == other.device() => number >= other.structure.number(),
                    device => number > other.knows(device),
                })
            };
            if differs(first, second) || differs(second, first) {
                found.views(Clash::Forked, first, second);
            }
        }
    }
}

#[cfg(test)]
mod tests;
