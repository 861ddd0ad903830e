//! Checks 2 and 3: all operations in the view form one strict order that extends the floor, and none of them
//! knows more operations of this device than it has made.

use super::policy::Rule;
use super::{Context, Element, Origin};
use crate::alarm::{Alarm, Operation};
use crate::log_tree::{Frontier, verify_consistency};
use holdfast_crypto::Digest;

/// Checks that the log extends the one accepted last.
pub(super) fn log(
    context: &Context<'_>,
    peaks: &[Digest],
    consistency: &[Digest],
) -> Result<Frontier, Alarm> {
    let (known, found) = (context.floor.log(), context.view.log);
    let not_extended = Alarm::LogNotExtended { known, found };
    let frontier = Frontier::from_peaks(found, peaks.to_vec()).ok_or(not_extended.clone())?;
    if context.policy.on(Rule::Log) && !verify_consistency(known, found, consistency) {
        return Err(not_extended);
    }
    Ok(frontier)
}

/// Check 2. Comparing neighbours is enough: an author's numbers grow along the order, so what holds between
/// neighbours holds between any two. Two elements that were both in the last accepted view were compared
/// then.
pub(super) fn total(context: &Context<'_>) -> Result<(), Alarm> {
    for pair in context.elements.windows(2).filter(|pair| !(pair[0].is_known && pair[1].is_known)) {
        follows(context, pair[0], pair[1])?;
    }
    if context.policy.on(Rule::Log)
        && let Some(last) = context.elements.last().filter(|last| {
            !matches!(last.origin, Origin::Own | Origin::Floor)
                && last.forecast.log.size >= context.view.log.size
        })
    {
        return Err(Alarm::LogOrder { first: last.operation(), second: last.operation() });
    }
    Ok(())
}

fn follows(context: &Context<'_>, x: Element<'_>, y: Element<'_>) -> Result<(), Alarm> {
    let offence = || match (x.origin, y.origin) {
        (Origin::Floor, _) => Alarm::BehindFloor { operation: y.operation() },
        (_, Origin::Floor) => Alarm::BehindFloor { operation: x.operation() },
        _ => Alarm::Forked { first: x.operation(), second: y.operation() },
    };
    if context.policy.on(Rule::Order) && !x.forecast.vector.at_most(&y.forecast.vector) {
        return Err(offence());
    }
    let author = y.forecast.device;
    let strict = x.forecast.vector.device(author) < y.forecast.vector.device(author);
    if context.policy.on(Rule::Strict) && y.origin != Origin::Floor && !strict {
        return Err(offence());
    }
    let (earlier, later) = (x.forecast.log, y.forecast.log);
    let grows = if x.origin == Origin::Floor {
        earlier.size < later.size || earlier == later
    } else {
        earlier.size < later.size
    };
    if context.policy.on(Rule::Log) && !grows {
        return Err(Alarm::LogOrder { first: x.operation(), second: y.operation() });
    }
    Ok(())
}

/// Check 3: the device's own slot has the number that this device committed last.
pub(super) fn own_numbers(context: &Context<'_>) -> Result<(), Alarm> {
    if !context.policy.on(Rule::OwnNumbers) {
        return Ok(());
    }
    let floor = context.floor;
    let last = floor.last();
    let others = context
        .elements
        .iter()
        .filter(|element| element.forecast.device != floor.device && element.origin != Origin::Floor);
    for element in others {
        let operation: Operation = element.operation();
        let found = element.forecast.vector.device(floor.device);
        let mut records = element.forecast.pending.iter().chain(&element.forecast.aborted);
        let recorded = records.clone().any(|record| (record.device, record.number) == (floor.device, found));
        if floor.never_offered.contains(found) {
            return Err(Alarm::NeverOffered { operation, number: found });
        }
        if found > last && !(floor.voids.contains(found) && recorded) {
            return Err(Alarm::OwnNumber { operation, found, last });
        }
        if let Some(record) = records
            .find(|record| record.device == floor.device && floor.never_offered.contains(record.number))
        {
            return Err(Alarm::NeverOffered { operation, number: record.number });
        }
    }
    Ok(())
}
