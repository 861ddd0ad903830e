//! Recovers what a crash left and asks the oracle; crashes the recovery too.

use super::crash::{Moment, State};
use super::oracle::Allowed;
use super::{Block, DISK, content, open, read};
use crate::random::Random;
use holdfast_log::simulated_device::Devices;
use holdfast_volume::{BLOCK_BYTES, Options, Report, Volume, VolumeError};

/// What was found, over many states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckResult {
    /// States recovered.
    pub states: u64,
    /// Of them, states of recoveries that crashed.
    pub nested: u64,
    /// Blocks refused, all torn and unacknowledged.
    pub refused: u64,
    /// Blocks of the disk that were examined because they had several candidates.
    pub examined: u64,
    /// Blocks written again from the log.
    pub replayed: u64,
}

/// What a volume serves: each block, or nothing where it is refused.
type Served = Vec<Option<Box<Block>>>;

fn served(volume: &Volume) -> Result<Served, String> {
    let blocks = volume.size_bytes() / BLOCK_BYTES as u64;
    let mut whole = vec![0; volume.size_bytes() as usize];
    if volume.read(0, &mut whole).is_ok() {
        let block = |bytes: &[u8]| Some(Box::new(bytes.try_into().expect("a block")));
        return Ok(whole.chunks_exact(BLOCK_BYTES).map(block).collect());
    }
    let one = |block| match read(volume, block) {
        Ok(bytes) => Ok(Some(Box::new(bytes))),
        Err(VolumeError::BadBlock { .. }) => Ok(None),
        Err(error) => Err(error.to_string()),
    };
    (0..blocks).map(one).collect()
}

/// Whether what is served is what may be.
fn judge(served: &Served, report: &Report, allowed: &Allowed, state: &State) -> Result<(), String> {
    for (block, bytes) in (0..).zip(served) {
        match bytes {
            Some(bytes) if allowed.allows(block, &bytes[..]) => {}
            Some(_) => return Err(format!("block {block} has what it must not have")),
            None if !state.torn[DISK].contains(&block) => {
                return Err(format!("block {block} is refused, and was not torn"));
            }
            None if !allowed.is_unacknowledged(block) => {
                return Err(format!(
                    "block {block} is refused, and nothing was written that was not acknowledged"
                ));
            }
            None if !report.refused.iter().any(|bad| bad.number == block) => {
                return Err(format!("block {block} is refused and was not listed"));
            }
            None => {}
        }
    }
    allowed.together(|block| served[block as usize].as_ref().map(|bytes| &bytes[..]))
}

/// A recovery that crashed after its checkpoint has listed what the next one need not find again.
fn listed(report: &Report, before: &Report) -> Report {
    let refused = report.refused.iter().chain(&before.refused).copied().collect();
    Report { refused, ..report.clone() }
}

/// Recovers a state, and asks the oracle. Then crashes that recovery at `nested` moments, each of which must recover to
/// what is allowed too; what the recovery has served must be served ever after.
///
/// # Errors
/// What is wrong.
pub fn check(
    state: &State,
    allowed: &Allowed,
    options: &Options,
    nested: usize,
    random: &mut Random,
    found: &mut CheckResult,
) -> Result<(), String> {
    let devices = &state.devices;
    let anchor = allowed.anchor.as_ref();
    let said = |error: VolumeError| error.to_string();
    let (volume, report) = open(devices, options, anchor, random.number()).map_err(said)?;
    found.states += 1;
    found.examined += report.examined;
    found.replayed += report.replayed;
    found.refused += report.refused.len() as u64;
    let first = served(&volume)?;
    let first_report = report;
    judge(&first, &first_report, allowed, state)?;
    let anchor_now = volume.anchor();
    drop(volume);
    if nested == 0 {
        return Ok(());
    }
    // It crashes as soon as it is done: what it has served must be what the next one serves.
    let trace = devices.trace();
    let mut moment = Moment::first(&trace);
    let points: Vec<usize> =
        (0..nested).map(|_| random.below(trace.events.len() as u64 + 1) as usize).collect();
    for at in 0..=trace.events.len() {
        let times = points.iter().filter(|point| **point == at).count();
        if times > 0 {
            for inner in moment.states(random, 3 + times).into_iter().rev().take(times) {
                let again = |error: String| {
                    format!("a crash of recovery after {at} events ({}): {error}", inner.story)
                };
                let (volume, report) = open(&inner.devices, options, anchor, random.number())
                    .map_err(|error| again(said(error)))?;
                let second = served(&volume).map_err(again)?;
                judge(&second, &listed(&report, &first_report), allowed, state).map_err(again)?;
                found.states += 1;
                found.nested += 1;
            }
        }
        if let Some(event) = trace.events.get(at) {
            moment.step(event);
        }
    }
    let after = moment.lost();
    let (volume, report) = open(&after.devices, options, Some(&anchor_now), random.number())
        .map_err(|error| format!("again: {error}"))?;
    found.states += 1;
    found.nested += 1;
    if !report.refused.is_empty() || report.examined + report.replayed > 0 {
        return Err(format!("a second recovery had work to do: {report:?}"));
    }
    if served(&volume)? != first {
        return Err("a second recovery serves something else".into());
    }
    goes_on(&after.devices, volume, &first, options, random)
}

/// A recovered volume can be used: refused blocks are good once they are written, and a flush holds.
fn goes_on(
    devices: &Devices,
    volume: Volume,
    served: &Served,
    options: &Options,
    random: &mut Random,
) -> Result<(), String> {
    let mut wanted: Vec<u64> =
        (0..).zip(served).filter(|(_, bytes)| bytes.is_none()).map(|(at, _)| at).collect();
    wanted.push(random.below(served.len() as u64));
    for block in &wanted {
        volume.write(block * BLOCK_BYTES as u64, &content(77 + block)).map_err(|error| error.to_string())?;
    }
    volume.flush().map_err(|error| error.to_string())?;
    let anchor = volume.anchor();
    drop(volume);
    let trace = devices.trace();
    let mut moment = Moment::first(&trace);
    trace.events.iter().for_each(|event| moment.step(event));
    let lost = moment.lost();
    let (volume, _) =
        open(&lost.devices, options, Some(&anchor), random.number()).map_err(|error| error.to_string())?;
    for block in wanted {
        if read(&volume, block).map_err(|error| error.to_string())? != content(77 + block) {
            return Err(format!("block {block} was written after recovery, and flushed, and is not there"));
        }
    }
    Ok(())
}
