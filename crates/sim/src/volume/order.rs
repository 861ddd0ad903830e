//! The write-ahead rule, checked at every write of a trace: no block reaches the disk before a record of it is durable,
//! and no hash is called void before what replaced it is durable on the disk.

use super::crash::Moment;
use super::{DISK, LOG, key};
use holdfast_log::simulated_device::{Devices, Event, Trace};
use holdfast_volume::{BLOCK_BYTES, Claim, claims};
use std::collections::{HashMap, HashSet};

/// What was checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Checked {
    /// Blocks written to the disk.
    pub written: u64,
    /// Blocks that the log called stable.
    pub stable: u64,
    /// The most hashes of one block that a crash would have left to choose from, beside the stable one.
    pub candidates: usize,
}

/// What the log says last of a block that it calls stable, and what it announces after that; nothing is a discard.
struct Stable {
    tag: Option<[u8; 16]>,
    later: Vec<Option<[u8; 16]>>,
}

/// What the durable log has announced.
#[derive(Default)]
struct Announced {
    /// By records that it still has.
    now: HashSet<(u64, [u8; 16])>,
    /// By any.
    ever: HashSet<(u64, [u8; 16])>,
    /// Blocks of which the last that was said is that they are discarded: what is written late, by who began before,
    /// does no harm.
    discarded: HashSet<u64>,
    is_known: bool,
}

impl Announced {
    fn learn(&mut self, claims: &[Claim]) {
        self.now.clear();
        for claim in claims {
            match claim.tag {
                Some(tag) => {
                    self.now.insert((claim.block, tag));
                    self.discarded.remove(&claim.block);
                }
                None => drop(self.discarded.insert(claim.block)),
            }
        }
        self.ever.extend(&self.now);
        self.is_known = true;
    }

    fn allows(&self, block: u64, tag: [u8; 16]) -> bool {
        let one = (block, tag);
        self.now.contains(&one) || self.discarded.contains(&block) && self.ever.contains(&one)
    }
}

fn claims_of(bytes: &[u8]) -> Result<Vec<Claim>, String> {
    let devices = Devices::new();
    devices.add_with("log", bytes.to_vec());
    claims(devices.device(0), &key()).map_err(|error| error.to_string())
}

/// Checks a trace of a volume that was taken over before it began.
///
/// # Errors
/// The first write that broke the rule.
pub fn check(trace: &Trace) -> Result<Checked, String> {
    check_some(trace, 1)
}

/// The same, but what the log calls stable only at one of `each` writes to it, which takes long for large volumes.
///
/// # Errors
/// The first write that broke the rule.
pub fn check_some(trace: &Trace, each: usize) -> Result<Checked, String> {
    let key = key();
    let mut checked = Checked::default();
    let mut moment = Moment::first(trace);
    let mut log_live = trace.before[LOG].clone();
    // Made anew after the log was flushed.
    let mut announced = Announced::default();
    for (at, event) in trace.events.iter().enumerate() {
        match event {
            Event::Write { device: DISK, offset, bytes } => {
                if !announced.is_known {
                    announced.learn(&claims_of(moment.durable(LOG))?);
                }
                let first = offset / BLOCK_BYTES as u64;
                if offset % BLOCK_BYTES as u64 != 0 || bytes.len() % BLOCK_BYTES != 0 {
                    return Err(format!("event {at} writes parts of blocks"));
                }
                for (block, bytes) in (first..).zip(bytes.as_chunks::<BLOCK_BYTES>().0) {
                    checked.written += 1;
                    if !announced.allows(block, key.block_tag(block, bytes)) {
                        let claims = claims_of(moment.durable(LOG))?;
                        let of_it: Vec<_> = claims.iter().filter(|claim| claim.block == block).collect();
                        let tag = key.block_tag(block, bytes);
                        return Err(format!(
                            "event {at} writes block {block} with tag {tag:02x?} before its record is durable; the log has {of_it:02x?}"
                        ));
                    }
                }
            }
            Event::Write { offset, bytes, .. } => {
                log_live[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                if at % each != 0 {
                    moment.step(event);
                    continue;
                }
                let claims = claims_of(&log_live)?;
                let mut last: HashMap<u64, Stable> = HashMap::new();
                let mut candidates: HashMap<u64, usize> = HashMap::new();
                for claim in claims.iter().filter(|claim| !claim.is_stable) {
                    *candidates.entry(claim.block).or_default() += 1;
                }
                checked.candidates = candidates.into_values().fold(checked.candidates, usize::max);
                for claim in claims {
                    match (claim.is_stable, last.get_mut(&claim.block)) {
                        (true, _) => {
                            drop(last.insert(claim.block, Stable { tag: claim.tag, later: Vec::new() }))
                        }
                        (false, Some(stable)) => stable.later.push(claim.tag),
                        (false, None) => {}
                    }
                }
                for (block, Stable { tag, later }) in last {
                    // What is discarded may be anything.
                    let Some(tag) = tag.filter(|_| !later.contains(&None)) else { continue };
                    checked.stable += 1;
                    let there = &moment.durable(DISK)[block as usize * BLOCK_BYTES..][..BLOCK_BYTES];
                    let there = key.block_tag(block, there.try_into().expect("a block"));
                    if there != tag && !later.contains(&Some(there)) {
                        return Err(format!(
                            "event {at} calls block {block} stable, which is not on the disk"
                        ));
                    }
                }
            }
            Event::Flush { device: LOG } => announced.is_known = false,
            Event::Flush { .. } | Event::FailedFlush { .. } | Event::Mark => {}
        }
        moment.step(event);
    }
    Ok(checked)
}
