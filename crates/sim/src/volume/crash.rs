//! The states that a crash may leave: what was flushed, and of every write since any sectors or none.

use crate::random::Random;
use holdfast_log::simulated_device::{Devices, Event, Trace};
use holdfast_volume::BLOCK_BYTES;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// What a device writes as a whole, in bytes.
const SECTOR_BYTES: usize = 512;
/// Unflushed writes up to which all subsets are tried.
const ALL_SUBSETS: usize = 4;

/// What becomes of one write that was not flushed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum WriteOutcome {
    Kept,
    Lost,
    /// The first sectors only.
    CutAt(usize),
    /// Sectors at random.
    Torn(u64),
}

struct Unflushed {
    event: usize,
    device: usize,
    offset: u64,
    bytes: Arc<[u8]>,
}

/// The devices at one moment of a trace: what is durable, and what is not.
pub struct Moment {
    names: Vec<String>,
    durable: Vec<Vec<u8>>,
    unflushed: Vec<Unflushed>,
    /// The last flush of each device.
    flushed: Vec<usize>,
    events: usize,
}

/// A state that a crash left.
pub struct State {
    /// The devices.
    pub devices: Devices,
    /// Blocks of each device of which parts of a write are there.
    pub torn: Vec<BTreeSet<u64>>,
    /// Tells states apart.
    pub name: u64,
    /// For people: what became of each write.
    pub story: String,
}

/// The same, of bytes.
struct Crashed {
    live: Vec<Vec<u8>>,
    torn: Vec<BTreeSet<u64>>,
    name: u64,
    story: String,
}

impl Moment {
    /// Before anything happened.
    pub fn first(trace: &Trace) -> Moment {
        Moment {
            names: trace.names.clone(),
            durable: trace.before.clone(),
            unflushed: Vec::new(),
            flushed: vec![usize::MAX; trace.before.len()],
            events: 0,
        }
    }

    /// One event later.
    pub fn step(&mut self, event: &Event) {
        match event {
            Event::Write { device, offset, bytes } => {
                let (event, device, offset, bytes) = (self.events, *device, *offset, bytes.clone());
                self.unflushed.push(Unflushed { event, device, offset, bytes });
            }
            Event::Flush { device } => {
                for write in self.unflushed.iter().filter(|write| write.device == *device) {
                    let place = &mut self.durable[*device][write.offset as usize..][..write.bytes.len()];
                    place.copy_from_slice(&write.bytes);
                }
                self.unflushed.retain(|write| write.device != *device);
                self.flushed[*device] = self.events;
            }
            Event::FailedFlush { device } => self.unflushed.retain(|write| write.device != *device),
            Event::Mark => {}
        }
        self.events += 1;
    }

    /// Events so far.
    pub fn events(&self) -> usize {
        self.events
    }

    /// What is durable on a device.
    pub fn durable(&self, device: usize) -> &[u8] {
        &self.durable[device]
    }

    /// The state in which exactly what was flushed is there.
    pub fn lost(&self) -> State {
        self.state(&vec![WriteOutcome::Lost; self.unflushed.len()])
    }

    /// About `count` states that a crash now may leave, the plain ones first.
    pub fn states(&self, random: &mut Random, count: usize) -> Vec<State> {
        self.outcomes(random, count).iter().map(|outcomes| self.state(outcomes)).collect()
    }

    /// One of about `count` states that a crash now may leave, for devices that are too large to make them all: what is
    /// on each device, and what became of each write.
    pub fn one(&self, random: &mut Random, count: usize) -> (Vec<Vec<u8>>, String) {
        let outcomes = self.outcomes(random, count);
        let crashed = self.crashed(&outcomes[random.below(outcomes.len() as u64) as usize]);
        (crashed.live, crashed.story)
    }

    fn outcomes(&self, random: &mut Random, count: usize) -> Vec<Vec<WriteOutcome>> {
        let writes = self.unflushed.len();
        let all = |outcome: WriteOutcome| vec![outcome; writes];
        let mut outcomes = vec![all(WriteOutcome::Kept), all(WriteOutcome::Lost)];
        let chosen = |keep: &dyn Fn(usize, &Unflushed) -> bool| -> Vec<WriteOutcome> {
            let outcome = |(at, write)| if keep(at, write) { WriteOutcome::Kept } else { WriteOutcome::Lost };
            self.unflushed.iter().enumerate().map(outcome).collect()
        };
        for device in 0..self.names.len() {
            outcomes.push(chosen(&|_, write| write.device == device));
        }
        if writes <= ALL_SUBSETS {
            outcomes.extend((0..1 << writes).map(|subset: usize| chosen(&|at, _| subset >> at & 1 == 1)));
        }
        while writes > 0 && outcomes.len() < count {
            let one = random.below(writes as u64) as usize;
            let write = &self.unflushed[one];
            let sectors = write.bytes.len() / SECTOR_BYTES;
            let mut next = match random.below(8) {
                // The log, or the disk, loses its end; the other has all.
                0 => chosen(&|at, other| other.device != write.device || at < one),
                // One write was overtaken by all others, or overtook them.
                1 => chosen(&|at, _| at != one),
                2 => chosen(&|at, _| at == one),
                3 => chosen(&|at, _| at < one),
                // Any order at all, whole or torn.
                4 => (0..writes).map(|_| *random.pick(&[WriteOutcome::Kept, WriteOutcome::Lost])).collect(),
                5 | 6 => (0..writes)
                    .map(|_| match random.below(4) {
                        0 => WriteOutcome::Lost,
                        1 | 2 => WriteOutcome::Kept,
                        _ => WriteOutcome::Torn(random.number()),
                    })
                    .collect(),
                _ => chosen(&|at, _| at <= one),
            };
            if random.chance(40) {
                next[one] = match random.chance(50) {
                    true => WriteOutcome::CutAt(random.below(sectors as u64) as usize),
                    false => WriteOutcome::Torn(random.number()),
                };
            }
            outcomes.push(next);
        }
        outcomes
    }

    fn state(&self, outcomes: &[WriteOutcome]) -> State {
        let Crashed { live, torn, name, story } = self.crashed(outcomes);
        let devices = Devices::new();
        for (name, bytes) in self.names.iter().zip(live) {
            devices.add_with(name, bytes);
        }
        State { devices, torn, name, story }
    }

    fn crashed(&self, outcomes: &[WriteOutcome]) -> Crashed {
        let mut live = self.durable.clone();
        let mut torn = vec![BTreeSet::new(); live.len()];
        let mut name = DefaultHasher::new();
        self.flushed.hash(&mut name);
        for (write, outcome) in self.unflushed.iter().zip(outcomes) {
            if *outcome != WriteOutcome::Lost {
                (write.event, outcome).hash(&mut name);
            }
            let mut sector_of = match outcome {
                WriteOutcome::Lost => continue,
                WriteOutcome::Torn(seed) => Random::new(*seed),
                WriteOutcome::Kept | WriteOutcome::CutAt(_) => Random::new(0),
            };
            let place = &mut live[write.device][write.offset as usize..][..write.bytes.len()];
            let (mut done, mut left) = (BTreeSet::new(), BTreeSet::new());
            let sectors = place.chunks_mut(SECTOR_BYTES).zip(write.bytes.chunks(SECTOR_BYTES));
            for (at, (old, new)) in sectors.enumerate() {
                let is_there = match outcome {
                    WriteOutcome::Kept => true,
                    WriteOutcome::CutAt(end) => at < *end,
                    WriteOutcome::Torn(_) | WriteOutcome::Lost => sector_of.chance(50),
                };
                let block = (write.offset as usize + at * SECTOR_BYTES) / BLOCK_BYTES;
                if is_there {
                    old.copy_from_slice(new);
                    done.insert(block as u64);
                } else {
                    left.insert(block as u64);
                }
            }
            let whole = done.difference(&left).copied().collect::<BTreeSet<u64>>();
            let parts = done.intersection(&left).copied();
            // What is written whole afterwards is no longer torn.
            torn[write.device] = &torn[write.device] - &whole;
            torn[write.device].extend(parts);
        }
        let told = |(write, outcome): (&Unflushed, &WriteOutcome)| {
            format!("{} {}+{} {outcome:?}", self.names[write.device], write.offset, write.bytes.len())
        };
        let story: Vec<String> = self.unflushed.iter().zip(outcomes).map(told).collect();
        Crashed { live, torn, name: name.finish(), story: story.join(", ") }
    }
}
